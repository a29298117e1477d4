/* hf_util.h - temporary directories with the random models of random_model.h, whole or spoilt: what
 * the tests of Hugging Face directories share. */
#ifndef TD_TESTS_UNIT_MODEL_HF_UTIL_H
#define TD_TESTS_UNIT_MODEL_HF_UTIL_H

#include <dirent.h>
#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/model/random_model.h"
#include "tests/unit/model/model_util.h"

struct hf_dir {
    char path[256];
};

static inline void hf_path(const struct hf_dir *d, const char *name, char out[512])
{
    int n = snprintf(out, 512, "%s/%s", d->path, name);

    assert_true(n > 0 && n < 512);
}

static inline struct hf_dir hf_empty(void)
{
    struct hf_dir d;
    const char *tmp = getenv("TMPDIR"); /* NOLINT: one thread */

    (void)snprintf(d.path, sizeof d.path, "%s/td-hf-XXXXXX", tmp != NULL ? tmp : "/tmp");
    assert_non_null(mkdtemp(d.path));
    return d;
}

static inline struct hf_dir hf_make(const char *shape, uint64_t shard_bytes)
{
    struct hf_dir d = hf_empty();
    char text[256] = "";
    struct td_why why = {text, sizeof text};
    struct td_random_params p = {.shape = td_random_shape_find(shape),
                                 .seed = 1,
                                 .n_threads = 2,
                                 .shard_bytes = shard_bytes};

    assert_non_null(p.shape);
    assert_int_equal(td_random_model_write(&p, d.path, &why), TD_OK);
    return d;
}

static inline void hf_remove(const struct hf_dir *d)
{
    DIR *dir = opendir(d->path);
    const struct dirent *e;
    char path[512];

    assert_non_null(dir);
    while ((e = readdir(dir)) != NULL) { /* NOLINT: this stream is ours alone */
        hf_path(d, e->d_name, path);
        if (e->d_name[0] != '.') {
            assert_int_equal(unlink(path), 0);
        }
    }
    (void)closedir(dir);
    assert_int_equal(rmdir(d->path), 0);
}

static inline void hf_write(const struct hf_dir *d, const char *name, const void *data, size_t len)
{
    char path[512];
    FILE *f;

    hf_path(d, name, path);
    f = fopen(path, "wbe");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static inline void hf_puts(const struct hf_dir *d, const char *name, const char *text)
{
    hf_write(d, name, text, strlen(text));
}

static inline json_t *hf_json(const struct hf_dir *d, const char *name)
{
    char path[512];
    json_t *j;

    hf_path(d, name, path);
    j = json_load_file(path, 0, NULL);
    assert_non_null(j);
    return j;
}

/* Sets (or, with NULL, drops) a member of a JSON file; `value` is JSON. */
static inline void hf_change(const struct hf_dir *d, const char *name, const char *key,
                             const char *value)
{
    json_t *j = hf_json(d, name);
    char path[512];

    hf_path(d, name, path);
    if (value == NULL) {
        assert_int_equal(json_object_del(j, key), 0);
    } else {
        json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);

        assert_non_null(v);
        assert_int_equal(json_object_set_new(j, key, v), 0);
    }
    assert_int_equal(json_dump_file(j, path, 0), 0);
    json_decref(j);
}

#endif
