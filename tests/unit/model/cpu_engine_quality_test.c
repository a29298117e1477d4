/* The int8 engine on the default model against the independent oracle on four windows of 512 tokens
 * of a text. Needs the model's file: $TANDEM_TEST_MODEL, or where ./dev puts it. Release builds only
 * (suite integration). */
#include <math.h>

#include "common/model/cpu_engine.h"
#include "common/model/model.h"
#include "tests/unit/model/golden.h"

#define MODEL_FILE "SmolLM2-135M-Instruct.Q4_1.gguf"

static struct td_model *open_default(void)
{
    const char *path = getenv("TANDEM_TEST_MODEL"); /* NOLINT: one thread */
    struct td_model *m = NULL;
    char fallback[512];
    if (path == NULL) {
        const char *cache = getenv("XDG_CACHE_HOME"); /* NOLINT: one thread */
        const char *home = getenv("HOME");            /* NOLINT: one thread */
        (void)snprintf(fallback, sizeof fallback, "%s%s/tandem/models/%s",
                       cache != NULL ? cache : home, cache != NULL ? "" : "/.cache", MODEL_FILE);
        path = fallback;
    }
    assert_int_equal(td_model_open(path, &m), TD_OK);
    return m;
}

/* One window's part of the golden file. */
struct expected {
    const uint8_t *ids, *best_float, *best_int8;
    double loss_float;
};

static struct expected next_window(struct golden *at, uint32_t n)
{
    struct expected x;
    x.ids = golden_bytes(at, 4 * (size_t)n);
    x.best_float = golden_bytes(at, 4 * (size_t)n);
    (void)golden_bytes(at, 4 * (size_t)n); /* margins */
    x.loss_float = golden_f64(at);
    x.best_int8 = golden_bytes(at, 4 * (size_t)n);
    (void)golden_bytes(at, 4 * (size_t)n);
    (void)golden_f64(at);
    return x;
}

struct score {
    uint32_t n, like_float, like_int8;
    double loss, loss_float;
};

static void score_row(const float *row, uint32_t n_vocab, uint32_t t, const struct expected *x,
                      bool has_next, struct score *s)
{
    uint32_t best = 0;
    double sum = 0;
    for (uint32_t i = 1; i < n_vocab; i++) {
        best = row[i] > row[best] ? i : best;
    }
    s->n++;
    s->like_float += best == golden_id(x->best_float, t);
    s->like_int8 += best == golden_id(x->best_int8, t);
    for (uint32_t i = 0; i < n_vocab; i++) {
        sum += exp((double)row[i] - (double)row[best]);
    }
    if (has_next) {
        s->loss += (double)row[best] + log(sum) - (double)row[golden_id(x->ids, t + 1)];
    }
}

static void best_tokens_and_perplexity_hold_on_a_text(void **state)
{
    struct td_buf file;
    read_golden("model/smollm2.windows.exact.bin", &file);
    struct golden at = {file.data, file.len};
    assert_memory_equal(golden_bytes(&at, 8), "TDWINDW1", 8);
    (void)golden_bytes(&at, 32);
    uint32_t n_windows = golden_u32(&at), n = golden_u32(&at);
    struct td_model *m = open_default();
    struct td_engine *e = NULL;
    struct td_cpu_engine_params p = {.numerics = "int8",
                                     .n_threads = 2,
                                     .n_blocks = 64,
                                     .max_rows = 64,
                                     .max_tokens = n,
                                     .max_slots = 1,
                                     .max_model_len = 1024};
    struct score s = {0};
    assert_int_equal(td_cpu_engine_create(m, &p, &e), TD_OK);
    float *logits = malloc((size_t)n * m->hp.n_vocab * sizeof *logits);
    int32_t *ids = malloc(n * sizeof *ids);
    if (logits == NULL || ids == NULL) {
        fail();
        return;
    }
    for (uint32_t w = 0; w < n_windows; w++) {
        struct expected x = next_window(&at, n);
        memcpy(ids, x.ids, n * sizeof *ids);
        assert_int_equal(td_cpu_engine_logits(e, ids, n, 200, logits), TD_OK);
        for (uint32_t t = 0; t < n; t++) {
            score_row(logits + (size_t)t * m->hp.n_vocab, m->hp.n_vocab, t, &x, t + 1 < n, &s);
        }
        s.loss_float += x.loss_float;
    }
    assert_int_equal(at.left, 0);
    double steps = s.n - n_windows, ratio = exp((s.loss - s.loss_float) / steps);
    print_message("# best token like the same rounding %.2f %%, like float %.2f %%, perplexity "
                  "%.3f, %+.2f %%\n",
                  100.0 * s.like_int8 / s.n, 100.0 * s.like_float / s.n, exp(s.loss / steps),
                  100 * (ratio - 1));
    assert_true(s.like_int8 * 100 >= s.n * 99);
    assert_true(s.like_float * 100 >= s.n * 96);
    assert_true(fabs(ratio - 1) <= 0.006);
    free(logits);
    free(ids);
    e->ops->destroy(e);
    (void)td_model_close(m);
    td_buf_fini(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(best_tokens_and_perplexity_hold_on_a_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
