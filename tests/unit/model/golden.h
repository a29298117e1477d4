/* golden.h - reads the logits that tests/golden/oracle.py wrote and compares an engine's with them.
 *
 *   struct golden_logits g;
 *   golden_logits_open("model/tiny-mix.f32.bin", &g);
 *   while (golden_logits_next(&g, &ids, &n)) {
 *       ... compute n rows of g.n_vocab logits ...
 *       for (t = 0; t < n; t++) golden_logits_row(&g, logits + t * g.n_vocab);
 *   }
 *   assert g.max_rel, g.n_same_best; golden_logits_close(&g);
 */
#ifndef TD_TESTS_UNIT_MODEL_GOLDEN_H
#define TD_TESTS_UNIT_MODEL_GOLDEN_H

#include <math.h>

#include "tests/unit/model/model_util.h"

struct golden_logits {
    struct td_buf file; /* owned */
    struct golden at;
    const uint8_t *file_sha256; /* of the model's file */
    uint32_t n_prompts, n_vocab, n_top, n_sampled;
    const uint8_t *sampled; /* ids, little-endian */
    /* so far */
    uint32_t n_rows, n_same_best;
    double max_rel; /* largest |difference| of a stored logit over the largest |logit| of its row */
    double
        max_rms; /* root mean square of a row's differences over that of its logits, the largest */
};

static inline void golden_logits_open(const char *name, struct golden_logits *g)
{
    memset(g, 0, sizeof *g);
    read_golden(name, &g->file);
    g->at = (struct golden){g->file.data, g->file.len};
    assert_memory_equal(golden_bytes(&g->at, 8), "TDLOGIT1", 8);
    g->file_sha256 = golden_bytes(&g->at, 32);
    g->n_prompts = golden_u32(&g->at);
    g->n_vocab = golden_u32(&g->at);
    g->n_top = golden_u32(&g->at);
    g->n_sampled = golden_u32(&g->at);
    g->sampled = golden_bytes(&g->at, 4 * (size_t)g->n_sampled);
}

static inline void golden_logits_close(struct golden_logits *g)
{
    td_buf_fini(&g->file);
}

/* The next prompt; false after the last. *out_ids is the caller's to free. */
static inline bool golden_logits_next(struct golden_logits *g, int32_t **out_ids, uint32_t *out_n)
{
    if (g->n_prompts == 0) {
        assert_int_equal(g->at.left, 0);
        return false;
    }
    g->n_prompts--;
    *out_n = golden_u32(&g->at);
    *out_ids = malloc(4 * (size_t)*out_n);
    assert_non_null(*out_ids);
    memcpy(*out_ids, golden_bytes(&g->at, 4 * (size_t)*out_n), 4 * (size_t)*out_n);
    return true;
}

static inline uint32_t golden_id(const uint8_t *ids, uint32_t i)
{
    uint32_t id;

    memcpy(&id, ids + 4 * (size_t)i, 4);
    return id;
}

/* Compares the next position of the current prompt with row[n_vocab]. */
static inline void golden_logits_row(struct golden_logits *g, const float *row)
{
    const uint8_t *top = golden_bytes(&g->at, 4 * (size_t)g->n_top);
    uint32_t n = g->n_top + g->n_sampled;
    uint32_t best = 0;
    double diff = 0;
    double largest = 0;
    double squares = 0;
    float rms;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = i < g->n_top ? golden_id(top, i) : golden_id(g->sampled, i - g->n_top);
        double want = (double)golden_f32(&g->at);
        double d = fabs((double)row[id] - want);

        diff = d > diff || isnan(d) ? d : diff;
        largest = fabs(want) > largest ? fabs(want) : largest;
        squares += d * d;
    }
    rms = golden_f32(&g->at);
    for (uint32_t i = 1; i < g->n_vocab; i++) {
        best = row[i] > row[best] ? i : best;
    }
    g->n_rows++;
    g->n_same_best += best == golden_id(top, 0);
    /* Written so that a NaN shows. */
    g->max_rel = diff / largest <= g->max_rel ? g->max_rel : diff / largest;
    g->max_rms = sqrt(squares / n) / (double)rms <= g->max_rms ? g->max_rms
                                                               : sqrt(squares / n) / (double)rms;
}

#endif
