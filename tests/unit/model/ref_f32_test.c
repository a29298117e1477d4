#include "common/model/ref_f32.h"

#include <openssl/sha.h>

#include "tests/unit/model/golden.h"

/* The tiny models whose goldens tests/golden/model/make.sh made. */
static struct td_tiny_params golden_params(const char *name)
{
    struct td_tiny_params p = td_tiny_defaults();

    p.type = name;
    p.untied = strcmp(name, "mix") == 0;
    if (!p.untied) {
        p.seed = 2;
        p.n_layers = 3;
    }
    return p;
}

static struct td_model *open_tiny(const char *name, struct td_buf *file)
{
    struct td_tiny_params p = golden_params(name);
    struct td_model *m = NULL;

    make_tiny(&p, file);
    assert_int_equal(td_model_open_memory(file->data, file->len, name, &m), TD_OK);
    return m;
}

static void compare_with_golden(const char *name)
{
    struct golden_logits g;
    struct td_buf file;
    struct td_model *m = open_tiny(name, &file);
    uint8_t sha[32];
    char path[64];
    int32_t *ids = NULL;
    uint32_t n = 0;

    (void)snprintf(path, sizeof path, "model/tiny-%s.f32.bin", name);
    golden_logits_open(path, &g);
    assert_non_null(SHA256(file.data, file.len, sha));
    assert_memory_equal(sha, g.file_sha256, 32); /* the writer is the same on this machine */
    while (golden_logits_next(&g, &ids, &n)) {
        struct td_ref_kv kv;
        float *logits = malloc((size_t)n * g.n_vocab * sizeof *logits);

        assert_non_null(logits);
        assert_int_equal(td_ref_kv_init(&kv, m, n), TD_OK);
        assert_int_equal(td_ref_f32_forward(m, &kv, 0, ids, n, false, logits), TD_OK);
        for (uint32_t t = 0; t < n; t++) {
            golden_logits_row(&g, logits + (size_t)t * g.n_vocab);
        }
        td_ref_kv_fini(&kv);
        free(logits);
        free(ids);
    }
    print_message("# %s: largest difference %.2g of a row's largest logit, rms %.2g, best token "
                  "%u of %u\n",
                  name, g.max_rel, g.max_rms, g.n_same_best, g.n_rows);
    assert_true(g.max_rel <= 1e-5);
    assert_true(g.max_rms <= 1e-5);
    assert_int_equal(g.n_same_best, g.n_rows);
    golden_logits_close(&g);
    (void)td_model_close(m);
    td_buf_fini(&file);
}

static void logits_of_every_quantisation_equal_the_independent_oracle(void **state)
{
    (void)state;
    compare_with_golden("mix");
}

static void logits_of_a_tied_model_equal_the_independent_oracle(void **state)
{
    (void)state;
    compare_with_golden("q4_1");
}

static void the_result_does_not_depend_on_how_a_prompt_is_cut(void **state)
{
    static const uint32_t cuts[] = {1, 2, 15, 16, 17, 40};
    struct td_buf file;
    struct td_model *m = open_tiny("mix", &file);
    int32_t ids[40];
    float *whole = malloc(sizeof(float) * m->hp.n_vocab);
    float *cut = malloc(sizeof(float) * m->hp.n_vocab);
    struct td_ref_kv kv;

    (void)state;
    assert_non_null(whole);
    assert_non_null(cut);
    for (int i = 0; i < 40; i++) {
        ids[i] = 260 + 7 * i % 190;
    }
    assert_int_equal(td_ref_kv_init(&kv, m, 40), TD_OK);
    assert_int_equal(td_ref_f32_forward(m, &kv, 0, ids, 40, true, whole), TD_OK);
    for (size_t c = 0; c < TD_COUNT(cuts); c++) {
        for (uint32_t pos = 0; pos < 40; pos += cuts[c]) {
            uint32_t n = 40 - pos < cuts[c] ? 40 - pos : cuts[c];

            assert_int_equal(td_ref_f32_forward(m, &kv, pos, ids + pos, n, true, cut), TD_OK);
        }
        assert_memory_equal(whole, cut, sizeof(float) * m->hp.n_vocab);
    }
    td_ref_kv_fini(&kv);
    free(whole);
    free(cut);
    (void)td_model_close(m);
    td_buf_fini(&file);
}

static void ids_and_positions_out_of_range_are_refused(void **state)
{
    struct td_buf file;
    struct td_model *m = open_tiny("q4_1", &file);
    float *logits = malloc(sizeof(float) * m->hp.n_vocab);
    int32_t ids[4] = {1, 2, 3, 4};
    struct td_ref_kv kv;

    (void)state;
    assert_non_null(logits);
    assert_int_equal(td_ref_kv_init(&kv, m, 4), TD_OK);
    assert_int_equal(td_ref_f32_forward(m, &kv, 0, ids, 0, true, logits), TD_ERR_BAD_REQUEST);
    assert_int_equal(td_ref_f32_forward(m, &kv, 1, ids, 4, true, logits), TD_ERR_BAD_REQUEST);
    assert_int_equal(td_ref_f32_forward(m, &kv, UINT32_MAX, ids, 4, true, logits),
                     TD_ERR_BAD_REQUEST);
    ids[2] = (int32_t)m->hp.n_vocab;
    assert_int_equal(td_ref_f32_forward(m, &kv, 0, ids, 4, true, logits), TD_ERR_BAD_REQUEST);
    ids[2] = -1;
    assert_int_equal(td_ref_f32_forward(m, &kv, 0, ids, 4, true, logits), TD_ERR_BAD_REQUEST);
    ids[2] = 0;
    assert_int_equal(td_ref_f32_forward(m, &kv, 0, ids, 4, true, logits), TD_OK);
    td_ref_kv_fini(&kv);
    free(logits);
    (void)td_model_close(m);
    td_buf_fini(&file);
}

static void each_failed_allocation_is_reported_and_leaks_nothing(void **state)
{
    struct td_buf file;
    struct td_model *m;
    float *logits;
    unsigned n = 0;
    td_err e;

    (void)state;
    if (!TD_WITH_FAULTS) {
        skip();
    }
    m = open_tiny("q4_1", &file);
    logits = malloc(sizeof(float) * m->hp.n_vocab);
    assert_non_null(logits);
    do {
        struct td_ref_kv kv;

        td_mem_fail_nth(++n);
        e = td_ref_kv_init(&kv, m, 4);
        if (e == TD_OK) {
            e = td_ref_f32_forward(m, &kv, 0, (int32_t[]){300}, 1, true, logits);
            td_ref_kv_fini(&kv);
        }
        td_mem_fail_nth(0);
        assert_true(e == TD_OK || e == TD_ERR_NO_MEMORY);
    } while (e != TD_OK);
    assert_true(n > 10);
    free(logits);
    (void)td_model_close(m);
    td_buf_fini(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_of_every_quantisation_equal_the_independent_oracle),
        cmocka_unit_test(logits_of_a_tied_model_equal_the_independent_oracle),
        cmocka_unit_test(the_result_does_not_depend_on_how_a_prompt_is_cut),
        cmocka_unit_test(ids_and_positions_out_of_range_are_refused),
        cmocka_unit_test(each_failed_allocation_is_reported_and_leaks_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
