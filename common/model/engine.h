/* engine.h - the one way to run a model: a ragged batch of prefill chunks and decode rows, one step at a time.
 *
 * What: a vtable that the backends `cpu`, `cuda`, `emulate` and the simulator's fake fill.
 * Not: a scheduler (common/sched) and not a block ledger (common/kv): the engine's backend owns the pool's memory, the
 * loop owns the ledger, and the rows of a step say which blocks they read and write.
 * Determinism: a row's result does not depend on the other rows, on chunking, on the number of threads or on the node,
 * under one numerics id.
 * Owner: the node shell. Thread: functions marked loop / xfer below; they never block; the engine's own threads execute.
 * Bounds: max_rows and max_tokens of td_engine_info; at most TD_ENGINE_MAX_INFLIGHT submitted steps.
 * Failure: a row's failure never fails the step; a failed step names its rows.
 */
#ifndef TD_MODEL_ENGINE_H
#define TD_MODEL_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/base/sampling.h"
#include "common/model/kv_layout.h"

#define TD_ENGINE_MAX_INFLIGHT 2
#define TD_ENGINE_MAX_SPEC     8 /* tokens a row may produce in one step */

typedef uint32_t td_block_id; /* index in the pool */
typedef uint64_t td_ticket;   /* of a submitted step; increases by one each time; 0 is never used */

struct td_seq_ref {
    uint32_t index, generation;
};

#define TD_NO_SAMPLE UINT32_MAX
enum td_row_want {
    TD_WANT_LOGPROBS = 1,
    TD_WANT_PROMPT_LOGPROBS = 2,
    TD_PUSH_LAYERS = 4,
    TD_OUTPUT_TOKENS =
        8, /* its tokens are output computed again: by the kernels that decode uses */
    TD_KV_LANDED =
        16, /* the KV of positions before pos was written into the pool from outside since the last step
                          that named these blocks: an engine of several ranks hands it on to them */
};

/* One sequence's part of a step: a prefill chunk, or one decode token (or several, for speculation). */
struct td_row {
    struct td_seq_ref seq; /* echoed in the result */
    uint32_t pos, n;       /* first position, number of tokens */
    const int32_t *
        tokens; /* n ids, borrowed until submit returns; NULL: the token that the previous step sampled for
                              this row's sampling slot, still in the engine (then n == 1) */
    const td_block_id
        *table; /* blocks of positions 0 .. pos + n - 1, borrowed until submit returns */
    uint32_t n_blocks;
    uint32_t sampling;   /* slot of its sampling state, or TD_NO_SAMPLE (not the last chunk) */
    uint32_t want;       /* enum td_row_want */
    uint32_t output_pos; /* tokens from this position on are output of the sequence that is computed
                            again, after a replay; 0: none. A deterministic engine whose decode rows
                            add in another order than chunks computes them as it did before. */
};

struct td_row_result {
    struct td_seq_ref seq;
    td_err err;
    uint32_t n_ids; /* 0 without sampling */
    int32_t ids[TD_ENGINE_MAX_SPEC];
    float logprobs[TD_ENGINE_MAX_SPEC]; /* of the chosen ids, natural log, before temperature */
};

struct td_step_result {
    td_ticket ticket;
    uint32_t n_rows;                  /* in the order of the submitted rows */
    const struct td_row_result *rows; /* borrowed until the next poll */
    int64_t exec_us;
};

struct td_engine_info {
    struct td_kv_layout layout; /* one group in this version */
    uint32_t n_layers, n_vocab, max_model_len;
    uint32_t n_blocks;             /* of the pool */
    uint32_t max_rows, max_tokens; /* per step */
    uint32_t max_slots;            /* sampling slots */
    uint64_t numerics_id; /* backend, kernel-set version, parallel size, deterministic or fast */
    const char *numerics; /* the same as text, e.g. "cpu-int8-v1" */
    uint8_t model_id[32]; /* SHA-256 over header, tensor table and samples (design.md 3) */
};

struct td_engine;

struct td_engine_ops {
    /* loop; returns at once; TD_ERR_AGAIN when full, TD_ERR_CLOSED as of poll */
    td_err (*submit)(struct td_engine *, const struct td_row *, size_t n_rows, td_ticket *out);
    /* loop; TD_ERR_AGAIN while no step has finished; steps finish in order. TD_ERR_CLOSED: the engine has ended by
     * itself (a rank of its group is lost): no step will finish any more, and the node ends */
    td_err (*poll)(struct td_engine *, struct td_step_result *out);
    uint32_t (*layers_done)(struct td_engine *,
                            td_ticket); /* xfer; monotonic: layers whose KV slices may be read */
    td_err (*seq_set)(struct td_engine *, uint32_t slot,
                      const struct td_sampling_state *); /* loop; slot not in flight */
    const struct td_engine_info *(*info)(const struct td_engine *);
    int (*event_fd)(const struct td_engine *); /* readable when poll has something */
    int (*layer_fd)(const struct td_engine
                        *); /* readable when layers_done grew and a row wanted TD_PUSH_LAYERS */
    void *(*pool_base)(
        const struct td_engine *); /* host address of block 0 (host backends); else NULL */
    /* Recomputes nothing: waits for running steps, then frees everything. */
    void (*destroy)(struct td_engine *);
};

struct td_engine {
    const struct td_engine_ops *ops;
};

static inline void *td_engine_slice(const struct td_engine *e, td_block_id block, uint32_t layer)
{
    const struct td_kv_layout *l = &e->ops->info(e)->layout;
    return (char *)e->ops->pool_base(e) + (size_t)block * l->block_bytes +
           (size_t)layer * l->slice_bytes;
}

#endif
