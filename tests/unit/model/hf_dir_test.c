/* Directories: shards and their index agree, files that are missing or lie are named. */
#include "common/model/hf_dir.h"

#include "common/model/model.h"
#include "tests/unit/model/hf_util.h"

#define INDEX "model.safetensors.index.json"

static char text[TD_GGUF_ERR_TEXT * 2];
static const struct td_why why = {text, sizeof text};

static void expect(const struct hf_dir *d, td_err want, const char *says)
{
    struct td_hf_dir *dir = NULL;

    text[0] = '\0';
    assert_int_equal(td_hf_dir_open(d->path, &dir, &why), want);
    if (strstr(text, says) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", text, says);
    }
    assert_null(dir);
}

static void shards_make_one_table(void **state)
{
    struct hf_dir one = hf_make("tiny-qwen3", 0);
    struct hf_dir many = hf_make("tiny-qwen3", 700000);
    struct td_hf_dir *a = NULL;
    struct td_hf_dir *b = NULL;
    char path[512];

    (void)state;
    hf_path(&many, "model.safetensors.index.json", path);
    assert_int_equal(access(path, F_OK), 0);
    hf_path(&many, "model.safetensors", path);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(td_hf_dir_open(one.path, &a, &why), TD_OK);
    assert_int_equal(td_hf_dir_open(many.path, &b, &why), TD_OK);
    assert_int_equal(td_hf_dir_n_tensors(a), td_hf_dir_n_tensors(b));
    for (size_t i = 0; i < td_hf_dir_n_tensors(a); i++) {
        const struct td_gguf_tensor *x = td_hf_dir_tensor_at(a, i);
        const struct td_gguf_tensor *y = td_hf_dir_tensor_at(b, i);

        assert_int_equal(x->name.len, y->name.len);
        assert_memory_equal(x->name.data, y->name.data, x->name.len);
        assert_int_equal(x->bytes, y->bytes);
        assert_memory_equal(x->data, y->data, x->bytes);
    }
    assert_non_null(td_hf_dir_tensor(b, "model.norm.weight"));
    assert_null(td_hf_dir_tensor(b, "model.norm"));
    assert_true(td_hf_dir_bytes(b) > td_hf_dir_bytes(a));
    (void)td_hf_dir_close(a);
    (void)td_hf_dir_close(b);
    hf_remove(&one);
    hf_remove(&many);
}

/* One model has one identity however it is cut and its JSON is laid out. */
static void the_identity_does_not_depend_on_shards(void **state)
{
    struct hf_dir d[3] = {hf_make("tiny-llama", 0), hf_make("tiny-llama", 500000),
                          hf_make("tiny-llama", 0)};
    struct td_model *m[3] = {NULL};
    uint8_t full[3][32];

    (void)state;
    hf_change(&d[1], "config.json", "use_cache", "true"); /* rewrites the file on one line */
    hf_change(&d[2], "config.json", "rope_theta", "10001.0");
    for (int i = 0; i < 3; i++) {
        assert_int_equal(td_model_open(d[i].path, &m[i]), TD_OK);
        assert_int_equal(td_model_full_hash(m[i], full[i]), TD_OK);
    }
    assert_memory_equal(m[0]->id, m[1]->id, 32);
    assert_memory_equal(full[0], full[1], 32);
    assert_memory_not_equal(m[0]->id, m[2]->id, 32);
    assert_memory_not_equal(full[0], full[2], 32);
    assert_memory_not_equal(full[0], m[0]->id, 32);
    for (int i = 0; i < 3; i++) {
        (void)td_model_close(m[i]);
        hf_remove(&d[i]);
    }
}

static void missing_files_are_named(void **state)
{
    struct hf_dir d = hf_empty();
    char path[512];
    char says[300];
    json_t *index;
    const char *shard;

    (void)state;
    expect(&d, TD_ERR_NO_FILE, "no config.json");
    hf_puts(&d, "config.json", "{}");
    expect(&d, TD_ERR_NO_FILE, "neither model.safetensors nor");
    hf_puts(&d, "pytorch_model.bin", "PK");
    expect(&d, TD_ERR_NO_FILE, "pickled weights are not read");
    hf_puts(&d, "tokenizer.json", "{");
    expect(&d, TD_ERR_FILE_FORMAT, "tokenizer.json: invalid JSON");
    hf_remove(&d);
    d = hf_make("tiny-llama", 700000);
    index = hf_json(&d, INDEX);
    shard = json_string_value(
        json_object_get(json_object_get(index, "weight_map"), "model.norm.weight"));
    hf_path(&d, shard, path);
    assert_int_equal(unlink(path), 0);
    (void)snprintf(says, sizeof says, "%s: cannot be opened", shard);
    expect(&d, TD_ERR_NO_FILE, says);
    json_decref(index);
    hf_remove(&d);
}

static void an_index_that_lies_is_refused(void **state)
{
    struct hf_dir d = hf_make("tiny-llama", 700000);
    json_t *good = hf_json(&d, INDEX);
    json_t *map = json_object_get(good, "weight_map");
    const char *first = json_string_value(json_object_get(map, "model.embed_tokens.weight"));
    char entry[256];
    char *less;

    (void)state;
    hf_change(&d, INDEX, "weight_map", "[]");
    expect(&d, TD_ERR_FILE_FORMAT, "has no weight_map");
    hf_change(&d, INDEX, "weight_map", "{\"a\": \"../secret.safetensors\"}");
    expect(&d, TD_ERR_FILE_FORMAT, "not in a .safetensors file");
    hf_change(&d, INDEX, "weight_map", "{\"a\": \"weights.bin\"}");
    expect(&d, TD_ERR_FILE_FORMAT, "not in a .safetensors file");
    hf_change(&d, INDEX, "weight_map", "{\"a\": 1}");
    expect(&d, TD_ERR_FILE_FORMAT, "not in a .safetensors file");
    (void)snprintf(entry, sizeof entry, "{\"a\": \"%s\"}", first);
    hf_change(&d, INDEX, "weight_map", entry);
    expect(&d, TD_ERR_FILE_FORMAT, "tensor a is not in model-");
    (void)json_object_del(map, "model.norm.weight");
    less = json_dumps(map, 0);
    hf_change(&d, INDEX, "weight_map", less);
    free(less);
    expect(&d, TD_ERR_FILE_FORMAT, "the shards hold");
    json_decref(good);
    hf_remove(&d);
}

static void a_damaged_shard_is_named(void **state)
{
    struct hf_dir d = hf_make("tiny-mistral", 0);
    char path[512];

    (void)state;
    hf_path(&d, "model.safetensors", path);
    assert_int_equal(truncate(path, 100000), 0);
    expect(&d, TD_ERR_FILE_FORMAT, "model.safetensors: tensor ");
    assert_int_equal(truncate(path, 5), 0);
    expect(&d, TD_ERR_FILE_FORMAT, "model.safetensors: file ends");
    hf_remove(&d);
}

static void each_failed_allocation_is_reported_and_leaks_nothing(void **state)
{
    struct hf_dir d = hf_make("tiny-qwen2", 2000000);
    struct td_model *m = NULL;
    FILE *log = catch_log();
    char line[512];
    unsigned n = 0;
    td_err e;

    (void)state;
    do {
        td_mem_fail_nth(++n);
        e = td_model_open(d.path, &m);
        td_mem_fail_nth(0);
        assert_true(e == TD_OK || e == TD_ERR_NO_MEMORY);
    } while (e != TD_OK);
    caught_log(log, line, sizeof line);
    assert_true(n > 20);
    (void)td_model_close(m);
    hf_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_make_one_table),
        cmocka_unit_test(the_identity_does_not_depend_on_shards),
        cmocka_unit_test(missing_files_are_named),
        cmocka_unit_test(an_index_that_lies_is_refused),
        cmocka_unit_test(a_damaged_shard_is_named),
        cmocka_unit_test(each_failed_allocation_is_reported_and_leaks_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
