/* Random models: the same bytes with any number of threads and shards, values as they should be. */
#include "common/model/random_model.h"

#include <math.h>
#include <openssl/sha.h>

#include "common/model/dequant.h"
#include "common/model/hf_dir.h"
#include "tests/unit/model/hf_util.h"

static char text[512];
static const struct td_why why = {text, sizeof text};

static struct td_hf_dir *open_dir(const struct hf_dir *d)
{
    struct td_hf_dir *dir = NULL;

    assert_int_equal(td_hf_dir_open(d->path, &dir, &why), TD_OK);
    return dir;
}

static void the_same_seed_gives_the_same_bytes(void **state)
{
    struct hf_dir d[2] = {hf_empty(), hf_empty()};
    struct td_random_params p = {
        .shape = td_random_shape_find("tiny-qwen2"), .seed = 5, .n_threads = 1};

    (void)state;
    for (int i = 0; i < 2; i++) {
        p.n_threads = i == 0 ? 1 : 5;
        assert_int_equal(td_random_model_write(&p, d[i].path, &why), TD_OK);
    }
    for (int i = 0; i < 2; i++) {
        struct td_buf a, b;
        char path[2][512];
        const char *name = i == 0 ? "model.safetensors" : "tokenizer.json";

        hf_path(&d[0], name, path[0]);
        hf_path(&d[1], name, path[1]);
        read_whole(path[0], &a);
        read_whole(path[1], &b);
        assert_int_equal(a.len, b.len);
        assert_memory_equal(a.data, b.data, a.len);
        td_buf_fini(&a);
        td_buf_fini(&b);
    }
    hf_remove(&d[0]);
    hf_remove(&d[1]);
}

/* Goldens of tests/golden/hf belong to these bytes. */
static void the_bytes_of_a_seed_never_change(void **state)
{
    static const uint8_t want[4] = {0xf7, 0x55, 0x9c, 0x81};
    struct hf_dir d = hf_make("tiny-llama", 0);
    struct td_buf b;
    char path[512];
    uint8_t sha[32];

    (void)state;
    hf_path(&d, "model.safetensors", path);
    read_whole(path, &b);
    assert_non_null(SHA256(b.data, b.len, sha));
    assert_memory_equal(sha, want, sizeof want);
    td_buf_fini(&b);
    hf_remove(&d);
}

static void values_have_the_spread_they_should(void **state)
{
    struct hf_dir d = hf_make("tiny-llama", 0);
    struct td_hf_dir *dir = open_dir(&d);
    const struct td_gguf_tensor *t = td_hf_dir_tensor(dir, "model.layers.1.mlp.gate_proj.weight");
    size_t n = 256 * 512;
    float *v = malloc(n * sizeof *v);
    double sum = 0;
    double squares = 0;
    double next = 0;

    (void)state;
    assert_non_null(v);
    assert_non_null(t);
    assert_int_equal(t->dtype, TD_DTYPE_BF16);
    td_dequant_row(t->dtype, t->data, n, v);
    for (size_t i = 0; i < n; i++) {
        sum += (double)v[i];
        squares += (double)v[i] * (double)v[i];
        next += i > 0 ? (double)v[i] * (double)v[i - 1] : 0;
    }
    assert_true(fabs(sum / (double)n) < 0.002);
    assert_true(fabs(sqrt(squares / (double)n) - 0.125) < 0.001); /* 2 / sqrt(256) */
    assert_true(fabs(next / squares) < 0.01);                     /* neighbours know nothing */
    free(v);
    (void)td_hf_dir_close(dir);
    hf_remove(&d);
}

static void real_shapes_have_their_sizes(void **state)
{
    (void)state;
    assert_int_equal(td_random_model_bytes(td_random_shape_find("llama3-8b")), 16060522496);
    assert_int_equal(td_random_model_bytes(td_random_shape_find("qwen3-8b")), 16381470720);
    assert_null(td_random_shape_find("gpt-5"));
    for (size_t i = 0; td_random_shape_at(i) != NULL; i++) {
        assert_ptr_equal(td_random_shape_find(td_random_shape_at(i)->name), td_random_shape_at(i));
    }
}

static void a_folder_that_is_not_there_is_an_error(void **state)
{
    struct td_random_params p = {
        .shape = td_random_shape_find("tiny-llama"), .seed = 1, .n_threads = 1};

    (void)state;
    assert_int_equal(td_random_model_write(&p, "/nonexistent/x", &why), TD_ERR_IO);
    assert_non_null(strstr(text, "/nonexistent/x/config.json"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_seed_gives_the_same_bytes),
        cmocka_unit_test(the_bytes_of_a_seed_never_change),
        cmocka_unit_test(values_have_the_spread_they_should),
        cmocka_unit_test(real_shapes_have_their_sizes),
        cmocka_unit_test(a_folder_that_is_not_there_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
