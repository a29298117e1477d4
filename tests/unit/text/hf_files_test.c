/* The files' shape; that Hugging Face reads the same ids out of them: tests/text_oracle.py export. */
#include "common/text/hf_files.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <minizip/unzip.h>

#include "common/base/mem.h"
#include "tests/unit/check.h"

#define STR(s) ((struct td_str){.data = (s), .len = sizeof(s) - 1})

static const struct td_str pieces[] = {{.data = "<s>", .len = 3},
                                       {.data = "a", .len = 1},
                                       {.data = "b\"", .len = 2},
                                       {.data = "<u>", .len = 3}};
static const int32_t types[] = {3, 1, 1, 4};
static const struct td_str merges[] = {{.data = "a b\"", .len = 4}};

static struct td_model_tokenizer plain(const char *pre)
{
    return (struct td_model_tokenizer){.model = STR("gpt2"),
                                       .pre = {.data = pre, .len = strlen(pre)},
                                       .n_tokens = 4,
                                       .tokens = pieces,
                                       .types = types,
                                       .n_merges = 1,
                                       .merges = merges,
                                       .bos = 0,
                                       .eos = 0,
                                       .eot = -1,
                                       .unk = -1,
                                       .pad = -1,
                                       .ignore_merges = -1,
                                       .nfc = -1};
}

static json_t *parse(struct td_buf *b)
{
    json_error_t e;
    json_t *j = json_loadb((const char *)b->data, b->len, 0, &e);
    if (j == NULL) {
        fail_msg("%s at %d", e.text, e.position);
    }
    return j;
}

static json_t *exported(const struct td_model_tokenizer *t)
{
    struct td_buf b;
    td_buf_init(&b, 1 << 20);
    assert_int_equal(td_text_hf_tokenizer(t, &b), TD_OK);
    json_t *j = parse(&b);
    td_buf_fini(&b);
    return j;
}

static const char *type_at(json_t *j, const char *key)
{
    const char *s = json_string_value(json_object_get(json_object_get(j, key), "type"));
    return s != NULL ? s : "";
}

static void pieces_merges_and_added_tokens_are_all_there(void **state)
{
    (void)state;
    struct td_model_tokenizer t = plain("gpt-2");
    json_t *j = exported(&t), *m = json_object_get(j, "model"),
           *added = json_object_get(j, "added_tokens");
    assert_int_equal(json_object_size(json_object_get(m, "vocab")), 4);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(m, "vocab"), "b\"")), 2);
    assert_string_equal(json_string_value(json_array_get(json_object_get(m, "merges"), 0)),
                        "a b\"");
    assert_int_equal(json_array_size(added), 2);
    assert_true(json_is_true(json_object_get(json_array_get(added, 0), "special")));
    assert_true(json_is_false(json_object_get(json_array_get(added, 1), "special")));
    assert_int_equal(json_integer_value(json_object_get(json_array_get(added, 1), "id")), 3);
    assert_string_equal(type_at(j, "pre_tokenizer"), "ByteLevel");
    assert_string_equal(type_at(j, "post_processor"), "ByteLevel");
    json_decref(j);
}

static void each_family_has_its_own_rules(void **state)
{
    static const struct {
        const char *pre, *normalizer;
        bool ignore;
        const char *first; /* of the sequence */
    } rows[] = {{"smollm", "", false, "Digits"},
                {"llama-bpe", "", true, "Split"},
                {"qwen2", "NFC", false, "Split"},
                {"qwen35", "", false, "Split"}};
    (void)state;
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        struct td_model_tokenizer t = plain(rows[i].pre);
        json_t *j = exported(&t);
        json_t *steps = json_object_get(json_object_get(j, "pre_tokenizer"), "pretokenizers");
        assert_string_equal(json_string_value(json_object_get(json_array_get(steps, 0), "type")),
                            rows[i].first);
        assert_string_equal(type_at(j, "normalizer"), rows[i].normalizer);
        json_t *ignore = json_object_get(json_object_get(j, "model"), "ignore_merges");
        assert_int_equal(json_is_true(ignore), rows[i].ignore);
        json_decref(j);
        t.ignore_merges =
            rows[i].ignore ? 0 : 1; /* the file's word goes before the family's habit */
        t.nfc = 1;
        j = exported(&t);
        ignore = json_object_get(json_object_get(j, "model"), "ignore_merges");
        assert_int_equal(json_is_true(ignore), !rows[i].ignore);
        assert_string_equal(type_at(j, "normalizer"), "NFC");
        json_decref(j);
    }
    struct td_model_tokenizer t = plain("unheard-of");
    struct td_buf b;
    td_buf_init(&b, 1 << 20);
    assert_int_equal(td_text_hf_tokenizer(&t, &b), TD_ERR_FILE_UNSUPPORTED);
    td_buf_fini(&b);
}

static void bos_stands_in_front_when_the_model_wants_it(void **state)
{
    (void)state;
    struct td_model_tokenizer t = plain("llama-bpe");
    t.add_bos = true;
    json_t *j = exported(&t);
    assert_string_equal(type_at(j, "post_processor"), "TemplateProcessing");
    json_t *tokens = json_object_get(json_object_get(j, "post_processor"), "special_tokens");
    json_t *ids = json_object_get(json_object_get(tokens, "<s>"), "ids");
    assert_int_equal(json_integer_value(json_array_get(ids, 0)), 0);
    json_decref(j);
}

static void the_configuration_names_special_tokens_and_the_template(void **state)
{
    (void)state;
    struct td_model_tokenizer t = plain("gpt-2");
    struct td_buf b;
    t.chat_template = STR("{% for m in messages %}\"{{ m.content }}\"\n{% endfor %}");
    td_buf_init(&b, 1 << 20);
    assert_int_equal(td_text_hf_tokenizer_config(&t, 2048, &b), TD_OK);
    json_t *j = parse(&b);
    assert_string_equal(json_string_value(json_object_get(j, "bos_token")), "<s>");
    assert_string_equal(json_string_value(json_object_get(j, "pad_token")), "<s>");
    assert_null(json_object_get(j, "unk_token"));
    assert_int_equal(json_integer_value(json_object_get(j, "model_max_length")), 2048);
    assert_string_equal(json_string_value(json_object_get(j, "chat_template")),
                        t.chat_template.data);
    json_decref(j);
    td_buf_fini(&b);
}

/* What is in the archive under this name, as JSON. */
static json_t *unpacked(const char *path, const char *name)
{
    unzFile zip = unzOpen(path);
    struct td_buf b;
    char chunk[4096];
    int n = 0;
    assert_non_null(zip);
    assert_int_equal(unzLocateFile(zip, name, 1), UNZ_OK);
    assert_int_equal(unzOpenCurrentFile(zip), UNZ_OK);
    td_buf_init(&b, 1 << 20);
    while ((n = unzReadCurrentFile(zip, chunk, sizeof chunk)) > 0) {
        assert_int_equal(td_buf_append(&b, chunk, (size_t)n), TD_OK);
    }
    assert_int_equal(unzCloseCurrentFile(zip), UNZ_OK); /* checks the CRC */
    assert_int_equal(unzClose(zip), UNZ_OK);
    json_t *j = parse(&b);
    td_buf_fini(&b);
    return j;
}

static void the_archive_holds_both_files_and_is_the_same_every_time(void **state)
{
    (void)state;
    struct td_model_tokenizer t = plain("gpt-2");
    struct td_buf a, b;
    char path[] = "/tmp/tandem-zip-XXXXXX";
    td_buf_init(&a, 1 << 20);
    td_buf_init(&b, 1 << 20);
    assert_int_equal(td_text_hf_zip(&t, 2048, &a), TD_OK);
    assert_int_equal(td_text_hf_zip(&t, 2048, &b), TD_OK);
    assert_int_equal(a.len, b.len);
    assert_memory_equal(a.data, b.data, a.len);
    FILE *f = fdopen(mkstemp(path), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(a.data, 1, a.len, f), a.len);
    assert_int_equal(fclose(f), 0);
    json_t *tokenizer = unpacked(path, "tokenizer.json"),
           *config = unpacked(path, "tokenizer_config.json"), *whole = exported(&t);
    assert_true(json_equal(tokenizer, whole));
    assert_int_equal(json_integer_value(json_object_get(config, "model_max_length")), 2048);
    json_decref(tokenizer);
    json_decref(config);
    json_decref(whole);
    (void)unlink(path);
    td_buf_fini(&a);
    td_buf_fini(&b);
}

static void an_archive_that_does_not_fit_is_an_error(void **state)
{
    (void)state;
    struct td_model_tokenizer t = plain("gpt-2"), unknown = plain("unheard-of");
    struct td_buf b;
    td_buf_init(&b, 64);
    assert_int_not_equal(td_text_hf_zip(&t, 2048, &b), TD_OK);
    assert_int_equal(td_text_hf_zip(&unknown, 2048, &b), TD_ERR_FILE_UNSUPPORTED);
    assert_int_equal(b.len, 0);
    td_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_merges_and_added_tokens_are_all_there),
        cmocka_unit_test(each_family_has_its_own_rules),
        cmocka_unit_test(bos_stands_in_front_when_the_model_wants_it),
        cmocka_unit_test(the_configuration_names_special_tokens_and_the_template),
        cmocka_unit_test(the_archive_holds_both_files_and_is_the_same_every_time),
        cmocka_unit_test(an_archive_that_does_not_fit_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
