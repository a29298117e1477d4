/* The exported files' shape; that Hugging Face reads the same ids out of them: tests/text_oracle.py export. */
#include "ctl/export_tokenizer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/mem.h"
#include "common/model/model.h"
#include "common/model/random_model.h"
#include "tests/tiny/tiny_gguf.h"
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
    assert_int_equal(ctl_tokenizer_json(t, &b), TD_OK);
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
    assert_int_equal(ctl_tokenizer_json(&t, &b), TD_ERR_FILE_UNSUPPORTED);
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
    assert_int_equal(ctl_tokenizer_config_json(&t, 2048, &b), TD_OK);
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

static enum ctl_exit run(const char *model, const char *dir)
{
    struct {
        char *model;
    } o;
    char *copy = td_strdup(model), *args[] = {td_strdup(dir)};
    o.model = copy;
    enum ctl_exit status = ctl_export_tokenizer(&o, args);
    free(copy);
    free(args[0]);
    return status;
}

static void the_command_writes_both_files_or_says_why_not(void **state)
{
    (void)state;
    char folder[] = "/tmp/tandem-export-XXXXXX", model[64], dir[64], file[128];
    struct td_tiny_params p = td_tiny_defaults();
    struct stat s;
    assert_non_null(mkdtemp(folder));
    (void)snprintf(model, sizeof model, "%s/m.gguf", folder);
    (void)snprintf(dir, sizeof dir, "%s/tok", folder);
    assert_int_equal(td_tiny_write_file(&p, model), TD_OK);
    assert_int_equal(run(model, dir), CTL_OK);
    assert_int_equal(run(model, dir), CTL_OK); /* again over itself */
    (void)snprintf(file, sizeof file, "%s/tokenizer.json", dir);
    assert_int_equal(stat(file, &s), 0);
    assert_true(s.st_size > 1000);
    (void)unlink(file);
    (void)snprintf(file, sizeof file, "%s/tokenizer_config.json", dir);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(rmdir(dir), 0); /* nothing else was left there */
    assert_int_equal(run(dir, dir), CTL_FAILED);
    assert_int_equal(run("", dir), CTL_USAGE);
    assert_int_equal(run(model, "/proc/no/such/place"), CTL_FAILED);
    (void)unlink(model);
    (void)rmdir(folder);
}

/* What is exported of a directory is read back as the same tokenizer. */
static void a_directory_comes_back_as_it_was(void **state)
{
    static const char *const shapes[] = {"tiny-llama", "tiny-qwen3", "tiny-mistral"};
    static const char *const exported[] = {"tokenizer.json", "tokenizer_config.json"};
    static const char *const written[] = {"config.json",         "generation_config.json",
                                          "tokenizer.json",      "tokenizer_config.json",
                                          "chat_template.jinja", "model.safetensors"};
    const struct td_why why = {NULL, 0};
    (void)state;
    for (size_t i = 0; i < TD_COUNT(shapes); i++) {
        char dir[] = "/tmp/tandem-export-dir-XXXXXX", path[128];
        char out[] = "/tmp/tandem-export-out-XXXXXX", from[128];
        struct td_model *m = NULL, *again = NULL;
        struct td_random_params p = {
            .shape = td_random_shape_find(shapes[i]), .seed = 1, .n_threads = 1};
        assert_non_null(mkdtemp(dir));
        assert_int_equal(td_random_model_write(&p, dir, &why), TD_OK);
        assert_int_equal(td_model_open(dir, &m), TD_OK);
        assert_int_equal(run(dir, dir), CTL_FAILED); /* never over its own files */
        assert_non_null(mkdtemp(out));
        assert_int_equal(run(dir, out), CTL_OK);
        for (size_t k = 0; k < 2; k++) {
            (void)snprintf(path, sizeof path, "%s/%s", dir, exported[k]);
            (void)snprintf(from, sizeof from, "%s/%s", out, exported[k]);
            assert_int_equal(rename(from, path), 0);
        }
        assert_int_equal(rmdir(out), 0);
        assert_int_equal(td_model_open(dir, &again), TD_OK);
        assert_memory_equal(again->tok.tokenizer_hash, m->tok.tokenizer_hash, 32);
        assert_memory_equal(again->tok.template_hash, m->tok.template_hash, 32);
        (void)td_model_close(m);
        (void)td_model_close(again);
        for (size_t k = 0; k < TD_COUNT(written); k++) {
            (void)snprintf(path, sizeof path, "%s/%s", dir, written[k]);
            (void)unlink(path); /* not every shape has the template's file */
        }
        assert_int_equal(rmdir(dir), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_merges_and_added_tokens_are_all_there),
        cmocka_unit_test(each_family_has_its_own_rules),
        cmocka_unit_test(bos_stands_in_front_when_the_model_wants_it),
        cmocka_unit_test(the_configuration_names_special_tokens_and_the_template),
        cmocka_unit_test(the_command_writes_both_files_or_says_why_not),
        cmocka_unit_test(a_directory_comes_back_as_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
