#include "common/model/tok_data.h"

#include "tests/unit/model/small_model.h"

static td_err load(const struct change *c, struct td_model_tokenizer *t, char *text, size_t cap)
{
    struct td_gguf *g = NULL;
    struct td_buf file;
    td_err e;

    small_model(c, &file);
    assert_int_equal(td_gguf_open_memory(file.data, file.len, &g, NULL, 0), TD_OK);
    e = td_tok_data_load(g, t, text, cap);
    if (e == TD_OK) { /* strings end with the file */
        td_tok_data_fini(t);
    }
    (void)td_gguf_close(g);
    td_buf_fini(&file);
    return e;
}

static void everything_a_tokenizer_needs_is_read(void **state)
{
    struct td_model_tokenizer t;
    struct td_gguf *g = NULL;
    struct td_buf file;

    (void)state;
    small_model(&(struct change){0}, &file);
    assert_int_equal(td_gguf_open_memory(file.data, file.len, &g, NULL, 0), TD_OK);
    assert_int_equal(td_tok_data_load(g, &t, NULL, 0), TD_OK);
    assert_true(td_str_eq(t.model, "gpt2") && td_str_eq(t.pre, "smollm"));
    assert_int_equal(t.n_tokens, 3);
    assert_true(td_str_eq(t.tokens[2], "ab"));
    assert_int_equal(t.types[0], 3);
    assert_null(t.scores);
    assert_int_equal(t.n_merges, 1);
    assert_true(td_str_eq(t.merges[0], "a b"));
    assert_int_equal(t.bos, 1);
    assert_int_equal(t.eos, 2);
    assert_int_equal(t.eot, -1);
    assert_false(t.add_bos);
    assert_true(td_str_eq(t.chat_template, "{{ messages }}"));
    td_tok_data_fini(&t);
    (void)td_gguf_close(g);
    td_buf_fini(&file);
}

static void control_tokens_known_to_end_a_turn_join_the_end_ids(void **state)
{
    struct td_model_tokenizer t;
    struct td_gguf *g = NULL;
    struct td_buf file;

    (void)state;
    small_model(&(struct change){0}, &file);
    assert_int_equal(td_gguf_open_memory(file.data, file.len, &g, NULL, 0), TD_OK);
    assert_int_equal(td_tok_data_load(g, &t, NULL, 0), TD_OK);
    assert_int_equal(t.n_end_ids, 2);
    assert_int_equal(t.end_ids[0], 2); /* eos */
    assert_int_equal(t.end_ids[1], 0); /* <|im_end|>, a control token */
    td_tok_data_fini(&t);
    (void)td_gguf_close(g);
    td_buf_fini(&file);
}

/* ---- refusals ---- */

static void more_ints(struct td_gguf_build *b)
{
    static const int32_t types[] = {3, 1};

    td_gguf_build_i32s(b, "tokenizer.ggml.token_type", types, 2);
}

static void type_7(struct td_gguf_build *b)
{
    static const int32_t types[] = {3, 1, 7};

    td_gguf_build_i32s(b, "tokenizer.ggml.token_type", types, 3);
}

static void types_as_text(struct td_gguf_build *b)
{
    td_gguf_build_str(b, "tokenizer.ggml.token_type", "1");
}

static void no_tokens(struct td_gguf_build *b)
{
    td_gguf_build_strs(b, "tokenizer.ggml.tokens", NULL, 0);
}

static void tokens_as_numbers(struct td_gguf_build *b)
{
    static const int32_t ints[] = {1, 2, 3};

    td_gguf_build_i32s(b, "tokenizer.ggml.tokens", ints, 3);
}

static void merge_of(struct td_gguf_build *b, const char *text)
{
    struct td_str merges[2] = {{"a b", 3}, {text, strlen(text)}};

    td_gguf_build_strs(b, "tokenizer.ggml.merges", merges, 2);
}

static void merge_without_space(struct td_gguf_build *b)
{
    merge_of(b, "ab");
}

static void merge_without_left(struct td_gguf_build *b)
{
    merge_of(b, " ab");
}

static void merge_without_right(struct td_gguf_build *b)
{
    merge_of(b, "ab ");
}

static void merge_empty(struct td_gguf_build *b)
{
    merge_of(b, "");
}

static void eot_negative(struct td_gguf_build *b)
{
    td_gguf_build_raw(b, "tokenizer.ggml.eot_token_id", TD_GGUF_I32, &(int32_t){-5}, 4);
}

static void bos_demanded(struct td_gguf_build *b)
{
    td_gguf_build_bool(b, "tokenizer.ggml.add_bos_token", true);
}

static void flag_as_number(struct td_gguf_build *b)
{
    td_gguf_build_u32(b, "tokenizer.ggml.add_eos_token", 1);
}

static const struct {
    const char *text;
    struct change change;
} refused[] = {
    {"no tokenizer", {.drop = "tokenizer.ggml.model"}},
    {"tokens is not an array", {.drop = "tokenizer.ggml.tokens"}},
    {"vocabulary is empty", {.drop = "tokenizer.ggml.tokens", .extra = no_tokens}},
    {"not an array of strings", {.drop = "tokenizer.ggml.tokens", .extra = tokens_as_numbers}},
    {"array of 3 numbers", {.drop = "tokenizer.ggml.token_type", .extra = more_ints}},
    {"array of 3 numbers", {.drop = "tokenizer.ggml.token_type", .extra = types_as_text}},
    {"token 2 has type 7", {.drop = "tokenizer.ggml.token_type", .extra = type_7}},
    {"merge 1", {.drop = "tokenizer.ggml.merges", .extra = merge_without_space}},
    {"merge 1", {.drop = "tokenizer.ggml.merges", .extra = merge_without_left}},
    {"merge 1", {.drop = "tokenizer.ggml.merges", .extra = merge_without_right}},
    {"merge 1", {.drop = "tokenizer.ggml.merges", .extra = merge_empty}},
    {"eos_token_id is not", {.u32_key = "tokenizer.ggml.eos_token_id", .u32 = 3}},
    {"bos_token_id is not", {.u32_key = "tokenizer.ggml.bos_token_id", .u32 = UINT32_MAX}},
    {"eot_token_id is not", {.extra = eot_negative}},
    {"first token is demanded", {.drop = "tokenizer.ggml.bos_token_id", .extra = bos_demanded}},
    {"not a boolean", {.extra = flag_as_number}},
};

static void bad_vocabularies_are_refused_with_a_reason(void **state)
{
    (void)state;
    for (size_t i = 0; i < TD_COUNT(refused); i++) {
        struct td_model_tokenizer t;
        char text[TD_GGUF_ERR_TEXT] = "";
        td_err e = load(&refused[i].change, &t, text, sizeof text);

        if (e != TD_ERR_FILE_FORMAT || strstr(text, refused[i].text) == NULL) {
            fail_msg("case %zu (%s): %s: %s", i, refused[i].text, td_err_code(e), text);
        }
        assert_null(t.tokens);
    }
}

/* ---- hashes ---- */

static void hashes(const struct change *c, uint8_t tokenizer[32], uint8_t chat[32])
{
    struct td_model_tokenizer t;
    struct td_gguf *g = NULL;
    struct td_buf file;

    small_model(c, &file);
    assert_int_equal(td_gguf_open_memory(file.data, file.len, &g, NULL, 0), TD_OK);
    assert_int_equal(td_tok_data_load(g, &t, NULL, 0), TD_OK);
    memcpy(tokenizer, t.tokenizer_hash, 32);
    memcpy(chat, t.template_hash, 32);
    td_tok_data_fini(&t);
    (void)td_gguf_close(g);
    td_buf_fini(&file);
}

static void hashes_follow_the_tokenizer_and_the_template_apart(void **state)
{
    static const struct change template_change = {.str_key = "tokenizer.chat_template", .str = "x"};
    static const struct change pre_change = {.str_key = "tokenizer.ggml.pre", .str = "qwen2"};
    static const struct change weight_change = {.f32_key = "llama.rope.freq_base", .f32 = 5000};
    uint8_t tok[4][32];
    uint8_t chat[4][32];

    (void)state;
    hashes(&(struct change){0}, tok[0], chat[0]);
    hashes(&template_change, tok[1], chat[1]);
    hashes(&pre_change, tok[2], chat[2]);
    hashes(&weight_change, tok[3], chat[3]);
    assert_memory_equal(tok[0], tok[1], 32);
    assert_memory_not_equal(chat[0], chat[1], 32);
    assert_memory_not_equal(tok[0], tok[2], 32);
    assert_memory_equal(chat[0], chat[2], 32);
    assert_memory_equal(tok[0], tok[3], 32);
    assert_memory_equal(chat[0], chat[3], 32);
}

static void each_failed_allocation_is_reported_and_leaks_nothing(void **state)
{
    struct td_model_tokenizer t;
    struct td_gguf *g = NULL;
    struct td_buf file;
    unsigned n = 0;
    td_err e;

    (void)state;
    if (!TD_WITH_FAULTS) {
        skip();
    }
    small_model(&(struct change){0}, &file);
    assert_int_equal(td_gguf_open_memory(file.data, file.len, &g, NULL, 0), TD_OK);
    do {
        td_mem_fail_nth(++n);
        e = td_tok_data_load(g, &t, NULL, 0);
        td_mem_fail_nth(0);
        assert_true(e == TD_OK || e == TD_ERR_NO_MEMORY);
    } while (e != TD_OK);
    assert_true(n > 3);
    td_tok_data_fini(&t);
    (void)td_gguf_close(g);
    td_buf_fini(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_a_tokenizer_needs_is_read),
        cmocka_unit_test(control_tokens_known_to_end_a_turn_join_the_end_ids),
        cmocka_unit_test(bad_vocabularies_are_refused_with_a_reason),
        cmocka_unit_test(hashes_follow_the_tokenizer_and_the_template_apart),
        cmocka_unit_test(each_failed_allocation_is_reported_and_leaks_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
