/* ref_f32.h - the oracle: the forward pass of a model in float32, written to be read.
 *
 * What: the logits of a run of tokens at given positions, weights dequantised row by row, no
 * quantised activations, keys and values kept in float32 arrays of the caller. Tests compare
 * engines with it, and it with the independent oracle under tests/golden. Not: an engine: no
 * paging, no batch of sequences, no threads. A token's result does not depend on how a prompt is
 * cut into calls, but it is not bit-equal to any engine: sums here are plain float32 in the order
 * of k, reductions over a vector and exponentials are done in float64. Thread: any; pure but for
 * the arrays given. Bounds: TD_REF_MAX_TOKENS a call; positions below kv->n_pos. Failure:
 * TD_ERR_BAD_REQUEST for a token id or position out of range, TD_ERR_NO_MEMORY.
 */
#ifndef TD_MODEL_REF_F32_H
#define TD_MODEL_REF_F32_H

#include <stdint.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/model/model.h"

#define TD_REF_MAX_TOKENS 8192

/* Keys (after rope) and values: [n_layers][n_pos][n_kv_heads * head_dim]. */
struct td_ref_kv {
    uint32_t n_pos;
    float *k, *v; /* owned when made by td_ref_kv_init() */
};

td_err td_ref_kv_init(struct td_ref_kv *kv, const struct td_model *m, uint32_t n_pos) TD_MUST_CHECK;
void td_ref_kv_fini(struct td_ref_kv *kv);

/* Runs tokens[0..n) at positions pos..pos+n-1, whose predecessors are already in kv. Logits:
 * [n][n_vocab] row major, or only the last row when last_only. */
td_err td_ref_f32_forward(const struct td_model *m, struct td_ref_kv *kv, uint32_t pos,
                          const int32_t *tokens, uint32_t n, bool last_only,
                          float *out_logits) TD_MUST_CHECK;

#endif
