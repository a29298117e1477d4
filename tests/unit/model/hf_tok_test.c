/* tokenizer.json and its neighbours: both spellings of the field, ids, end tokens, templates, and
 * files that lie or want what is not supported. */
#include "common/model/hf_tok.h"

#include "tests/unit/model/hf_util.h"

static char text[TD_GGUF_ERR_TEXT];
static const struct td_why why = {text, sizeof text};

/* Parsed sources; free_src(). */
struct src {
    json_t *tokenizer, *config, *tokenizer_config, *generation;
};

static json_t *parse(const char *json)
{
    json_t *j = json != NULL ? json_loads(json, 0, NULL) : NULL;

    assert_true(json == NULL || j != NULL);
    return j;
}

static void free_src(struct src *s)
{
    json_decref(s->tokenizer);
    json_decref(s->config);
    json_decref(s->tokenizer_config);
    json_decref(s->generation);
}

static td_err load(const struct src *s, uint32_t n_vocab, struct td_model_tokenizer *t)
{
    struct td_hf_tok_src in = {.tokenizer = s->tokenizer,
                               .tokenizer_config = s->tokenizer_config,
                               .config = s->config,
                               .generation = s->generation,
                               .jinja = {"", 0},
                               .n_vocab = n_vocab};

    text[0] = '\0';
    return td_hf_tok_load(&in, t, &why);
}

#define MODEL "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"
#define BYTES "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"
#define ADDED "[{\"id\":3,\"content\":\"<e>\",\"special\":true},{\"id\":4,\"content\":\"<u>\"}]"
#define WITH(model, pre, added)                                                                    \
    "{\"model\":" model ",\"pre_tokenizer\":" pre ",\"added_tokens\":" added "}"
#define GOOD WITH(MODEL, BYTES, ADDED)

static void the_parts_become_plain_arrays(void **state)
{
    struct src s = {.tokenizer = parse(GOOD)};
    struct td_model_tokenizer t;

    (void)state;
    assert_int_equal(load(&s, 8, &t), TD_OK);
    free_src(&s); /* nothing points into the JSON any more */
    assert_int_equal(t.n_tokens, 8);
    assert_true(td_str_eq(t.tokens[2], "ab") && t.types[2] == 1);
    assert_true(td_str_eq(t.tokens[3], "<e>") && t.types[3] == 3);
    assert_true(td_str_eq(t.tokens[4], "<u>") && t.types[4] == 4);
    assert_true(t.tokens[7].len == 0 && t.types[7] == 5);
    assert_int_equal(t.n_merges, 1);
    assert_true(td_str_eq(t.merges[0], "a b"));
    assert_true(td_str_eq(t.model, "gpt2") && td_str_eq(t.pre, "gpt-2"));
    assert_int_equal(t.ignore_merges, 0);
    assert_int_equal(t.nfc, 0);
    assert_int_equal(t.bos, -1);
    assert_false(t.add_bos);
    assert_int_equal(t.n_end_ids, 0);
    td_tok_data_fini(&t);
}

/* The rows of `pre_tokenizer`, `normalizer` and the name they get. */
#define SPLIT(pattern)                                                                             \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"        \
    "\"" pattern "\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"use_"  \
    "regex\":false}]}"
#define DIGITS                                                                                     \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true}"   \
    "," BYTES "]}"

static void known_ways_to_cut_text_have_names(void **state)
{
    json_t *qwen =
        json_pack("{s:s,s:[{s:s,s:{s:s},s:s},{s:s,s:b}]}", "type", "Sequence", "pretokenizers",
                  "type", "Split", "pattern", "Regex", TD_HF_SPLIT_QWEN2, "behavior", "Isolated",
                  "type", "ByteLevel", "use_regex", 0);
    struct src s = {.tokenizer = parse(WITH(MODEL, DIGITS, ADDED))};
    struct td_model_tokenizer t;

    (void)state;
    assert_int_equal(load(&s, 5, &t), TD_OK);
    assert_true(td_str_eq(t.pre, "smollm"));
    td_tok_data_fini(&t);
    assert_int_equal(json_object_set_new(s.tokenizer, "pre_tokenizer", qwen), 0);
    assert_int_equal(json_object_set_new(s.tokenizer, "normalizer", parse("{\"type\":\"NFC\"}")),
                     0);
    assert_int_equal(load(&s, 5, &t), TD_OK);
    assert_true(td_str_eq(t.pre, "qwen2") && t.nfc == 1);
    td_tok_data_fini(&t);
    free_src(&s);
}

static void merges_may_be_pairs(void **state)
{
    struct src s = {
        .tokenizer = parse(
            WITH("{\"type\":\"BPE\",\"ignore_merges\":true,\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},"
                 "\"merges\":[[\"a\",\"b\"]]}",
                 BYTES, "[]"))};
    struct td_model_tokenizer t;

    (void)state;
    assert_int_equal(load(&s, 3, &t), TD_OK);
    assert_true(td_str_eq(t.merges[0], "a b"));
    assert_int_equal(t.ignore_merges, 1);
    td_tok_data_fini(&t);
    free_src(&s);
}

static void special_ids_come_from_the_neighbours(void **state)
{
    struct src s = {.tokenizer = parse(GOOD),
                    .tokenizer_config = parse("{\"bos_token\":{\"content\":\"<u>\"},\"eos_token\":"
                                              "\"<e>\",\"add_bos_token\":true,\"chat_template\":["
                                              "{\"name\":\"tool_use\",\"template\":\"T\"},"
                                              "{\"name\":\"default\",\"template\":\"D\"}]}"),
                    .config = parse("{\"bos_token_id\":0,\"eos_token_id\":1}"),
                    .generation = parse("{\"eos_token_id\":[2,3]}")};
    struct td_model_tokenizer t;

    (void)state;
    assert_int_equal(load(&s, 5, &t), TD_OK);
    assert_int_equal(t.bos, 4);
    assert_int_equal(t.eos, 3);
    assert_true(t.add_bos && !t.add_eos);
    assert_int_equal(t.n_end_ids, 3);
    assert_int_equal(t.end_ids[0], 3);
    assert_int_equal(t.end_ids[1], 2);
    assert_int_equal(t.end_ids[2], 1);
    assert_true(td_str_eq(t.chat_template, "D"));
    td_tok_data_fini(&t);
    json_decref(s.tokenizer_config);
    s.tokenizer_config = NULL;
    assert_int_equal(load(&s, 5, &t), TD_OK);
    assert_int_equal(t.bos, 0); /* config.json, where nothing else says */
    assert_int_equal(t.eos, 2);
    td_tok_data_fini(&t);
    free_src(&s);
}

static void the_post_processor_says_whether_bos_comes_first(void **state)
{
    struct src s = {.tokenizer = parse(GOOD), .tokenizer_config = parse("{\"bos_token\":\"<e>\"}")};
    struct td_model_tokenizer t;

    (void)state;
    assert_int_equal(
        json_object_set_new(
            s.tokenizer, "post_processor",
            parse("{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":"
                  "\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<e>\"}},"
                  "{\"Sequence\":{\"id\":\"A\"}}]}]}")),
        0);
    assert_int_equal(load(&s, 5, &t), TD_OK);
    assert_true(t.add_bos && !t.add_eos);
    td_tok_data_fini(&t);
    assert_int_equal(json_object_set_new(s.tokenizer_config, "add_bos_token", json_false()), 0);
    assert_int_equal(load(&s, 5, &t), TD_OK);
    assert_false(t.add_bos);
    td_tok_data_fini(&t);
    free_src(&s);
}

static const struct {
    const char *says, *tokenizer, *tokenizer_config, *generation;
    td_err expect;
} refused[] = {
    {"tokenizer model Unigram", WITH("{\"type\":\"Unigram\"}", BYTES, "[]"), NULL, NULL,
     TD_ERR_FILE_UNSUPPORTED},
    {"model.vocab", WITH("{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}", BYTES, "[]"), NULL, NULL,
     TD_ERR_FILE_FORMAT},
    {"id 5, not below", WITH("{\"type\":\"BPE\",\"vocab\":{\"a\":5},\"merges\":[]}", BYTES, "[]"),
     NULL, NULL, TD_ERR_FILE_FORMAT},
    {"id -1, not below", WITH("{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}", BYTES, "[]"),
     NULL, NULL, TD_ERR_FILE_FORMAT},
    {"not a whole number",
     WITH("{\"type\":\"BPE\",\"vocab\":{\"a\":\"0\"},\"merges\":[]}", BYTES, "[]"), NULL, NULL,
     TD_ERR_FILE_FORMAT},
    {"used by two",
     WITH("{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}", BYTES, "[]"), NULL, NULL,
     TD_ERR_FILE_FORMAT},
    {"byte_fallback",
     WITH("{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{\"a\":0},\"merges\":[]}", BYTES,
          "[]"),
     NULL, NULL, TD_ERR_FILE_UNSUPPORTED},
    {"end_of_word_suffix",
     WITH("{\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\",\"vocab\":{\"a\":0},\"merges\":[]}",
          BYTES, "[]"),
     NULL, NULL, TD_ERR_FILE_UNSUPPORTED},
    {"model.merges", WITH("{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":{}}", BYTES, "[]"),
     NULL, NULL, TD_ERR_FILE_FORMAT},
    {"merge 0", WITH("{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"ab\"]}", BYTES, "[]"),
     NULL, NULL, TD_ERR_FILE_FORMAT},
    {"merge 0", WITH("{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a \"]}", BYTES, "[]"),
     NULL, NULL, TD_ERR_FILE_FORMAT},
    {"merge 0",
     WITH("{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"b c\"]]}", BYTES, "[]"), NULL,
     NULL, TD_ERR_FILE_FORMAT},
    {"merge 0", WITH("{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}", BYTES, "[]"),
     NULL, NULL, TD_ERR_FILE_FORMAT},
    {"merge 0", WITH("{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[1]}", BYTES, "[]"), NULL,
     NULL, TD_ERR_FILE_FORMAT},
    {"pre_tokenizer Metaspace", WITH(MODEL, "{\"type\":\"Metaspace\"}", "[]"), NULL, NULL,
     TD_ERR_FILE_UNSUPPORTED},
    {"pre_tokenizer", WITH(MODEL, "null", "[]"), NULL, NULL, TD_ERR_FILE_UNSUPPORTED},
    {"split pattern", WITH(MODEL, SPLIT("a+"), "[]"), NULL, NULL, TD_ERR_FILE_UNSUPPORTED},
    {"added token 0", WITH(MODEL, BYTES, "[{\"id\":3}]"), NULL, NULL, TD_ERR_FILE_FORMAT},
    {"has id 4, not 3", WITH(MODEL, BYTES, "[{\"id\":4,\"content\":\"<e>\"}]"), NULL, NULL,
     TD_ERR_FILE_FORMAT},
    {"has id 0, not 3", WITH(MODEL, BYTES, "[{\"id\":0,\"content\":\"<e>\"}]"), NULL, NULL,
     TD_ERR_FILE_FORMAT},
    {"lstrip", WITH(MODEL, BYTES, "[{\"id\":3,\"content\":\"<e>\",\"lstrip\":true}]"), NULL, NULL,
     TD_ERR_FILE_UNSUPPORTED},
    {"bos_token <x>", GOOD, "{\"bos_token\":\"<x>\"}", NULL, TD_ERR_FILE_FORMAT},
    {"eos_token_id", GOOD, NULL, "{\"eos_token_id\":5}", TD_ERR_FILE_FORMAT},
    {"eos_token_id", GOOD, NULL, "{\"eos_token_id\":[\"a\"]}", TD_ERR_FILE_FORMAT},
    {"eos_token_id has", GOOD, NULL, "{\"eos_token_id\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}",
     TD_ERR_FILE_FORMAT},
};

static void what_does_not_fit_is_refused_with_a_sentence(void **state)
{
    (void)state;
    for (size_t i = 0; i < TD_COUNT(refused); i++) {
        struct src s = {.tokenizer = parse(refused[i].tokenizer),
                        .tokenizer_config = parse(refused[i].tokenizer_config),
                        .generation = parse(refused[i].generation)};
        struct td_model_tokenizer t;
        td_err e = load(&s, 5, &t);

        if (e != refused[i].expect || strstr(text, refused[i].says) == NULL) {
            fail_msg("%zu: %d, \"%s\" does not say \"%s\"", i, (int)e, text, refused[i].says);
        }
        assert_null(t.tokens);
        free_src(&s);
    }
}

static void hashes_tell_tokenizers_apart(void **state)
{
    struct src s = {.tokenizer = parse(GOOD)};
    struct td_model_tokenizer a;
    struct td_model_tokenizer b;

    (void)state;
    assert_int_equal(load(&s, 5, &a), TD_OK);
    assert_int_equal(
        json_object_set_new(json_object_get(s.tokenizer, "model"), "ignore_merges", json_true()),
        0);
    assert_int_equal(load(&s, 5, &b), TD_OK);
    assert_memory_not_equal(a.tokenizer_hash, b.tokenizer_hash, 32);
    assert_memory_equal(a.template_hash, b.template_hash, 32);
    td_tok_data_fini(&a);
    td_tok_data_fini(&b);
    free_src(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_parts_become_plain_arrays),
        cmocka_unit_test(known_ways_to_cut_text_have_names),
        cmocka_unit_test(merges_may_be_pairs),
        cmocka_unit_test(special_ids_come_from_the_neighbours),
        cmocka_unit_test(the_post_processor_says_whether_bos_comes_first),
        cmocka_unit_test(what_does_not_fit_is_refused_with_a_sentence),
        cmocka_unit_test(hashes_tell_tokenizers_apart),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
