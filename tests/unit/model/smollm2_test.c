/* The float32 reference on the default model against the independent oracle. Needs the model's
 * file: $TANDEM_TEST_MODEL, or where ./dev puts it. Runs in release builds only (suite
 * integration). */
#include <openssl/sha.h>

#include "common/model/ref_f32.h"
#include "tests/unit/model/golden.h"

static struct td_model *open_default(struct golden_logits *g)
{
    const char *path = getenv("TANDEM_TEST_MODEL"); /* NOLINT: one thread */
    struct td_model *m = NULL;
    struct td_buf file;
    uint8_t sha[32];
    char fallback[512];

    if (path == NULL) {
        const char *cache = getenv("XDG_CACHE_HOME"); /* NOLINT: one thread */
        const char *home = getenv("HOME");            /* NOLINT: one thread */

        (void)snprintf(fallback, sizeof fallback, "%s%s/tandem/models/%s",
                       cache != NULL ? cache : home, cache != NULL ? "" : "/.cache",
                       "SmolLM2-135M-Instruct.Q4_1.gguf");
        path = fallback;
    }
    read_whole(path, &file);
    assert_non_null(SHA256(file.data, file.len, sha));
    if (memcmp(sha, g->file_sha256, 32) != 0) {
        fail_msg("%s is not the model that the goldens were made with", path);
    }
    td_buf_fini(&file);
    assert_int_equal(td_model_open(path, &m), TD_OK);
    return m;
}

static void logits_of_ten_prompts_are_within_a_thousandth_of_the_oracle(void **state)
{
    struct golden_logits g;
    struct td_model *m;
    int32_t *ids = NULL;
    uint32_t n = 0;
    uint32_t n_prompts;

    (void)state;
    golden_logits_open("model/smollm2.f32.bin", &g);
    n_prompts = g.n_prompts;
    m = open_default(&g);
    while (golden_logits_next(&g, &ids, &n)) {
        float *logits = malloc((size_t)n * g.n_vocab * sizeof *logits);
        struct td_ref_kv kv;

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
    print_message("# %u prompts, %u positions: largest difference %.2g of a row's largest logit, "
                  "rms %.2g, best token %u of %u\n",
                  n_prompts, g.n_rows, g.max_rel, g.max_rms, g.n_same_best, g.n_rows);
    assert_true(n_prompts >= 8);
    assert_true(g.max_rel <= 1e-3);
    assert_true(g.max_rms <= 1e-3);
    golden_logits_close(&g);
    (void)td_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_of_ten_prompts_are_within_a_thousandth_of_the_oracle),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
