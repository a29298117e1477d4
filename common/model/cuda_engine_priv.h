/* cuda_engine_priv.h - the inside of the CUDA engine, shared by the files cuda_engine*.c only.
 *
 * A step becomes passes (cuda_engine_plan.c): flat ones of at most TK_MAX_ROWS decode tokens, run as a
 * captured graph, and at most one wide one of everything else. The engine thread fills the host side
 * of a step (pinned), enqueues copies and operations (cuda_engine_run.c) on the one stream and records
 * the step's event; the other thread waits for the event and hands the results to the loop.
 * Device buffers exist once: the stream orders their use. Host buffers exist per step slot.
 */
#ifndef TD_MODEL_CUDA_ENGINE_PRIV_H
#define TD_MODEL_CUDA_ENGINE_PRIV_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "common/model/cuda_engine.h"
#include "common/model/engine_steps.h"
#include "common/model/model.h"
#include "kernels/tk_device.h"
#include "kernels/tk_step.h"

#define TD__CU_MAGIC   0x54435545u
#define TD__CU_BUCKETS 7  /* 1, 2, 4 .. TK_MAX_ROWS rows */
#define TD__CU_CLASSES 5  /* of context length, see td__cu_class_entries */
#define TD__CU_MAX_M   32 /* row counts that large products are planned for */

/* ---- planning: pure ---- */

/* What a flat pass reads, as it lies in device memory. */
struct td__cu_flat_in {
    int32_t tokens[TK_MAX_ROWS];
    int32_t slot_of[TK_MAX_ROWS]; /* whose last token it is, or -1: tokens[] */
    int32_t pos[TK_MAX_ROWS];     /* -1: an empty row */
    int32_t lens[TK_MAX_ROWS];    /* 0: an empty row */
    struct tk_sample_row rows[TK_MAX_ROWS];
};

/* Decode rows of a wide pass whose attention runs in one launch. */
struct td__cu_group {
    uint32_t tok0, n, entries;
    uint32_t table0; /* row of the table array; the others' follow */
};

struct td__cu_pass {
    bool wide;
    bool greedy; /* every sampling row takes the largest logit as it is */
    bool
        ordered; /* flat: several tokens of one sequence, so K and V are written before attention */
    uint32_t n_tok;
    uint32_t n_samples;          /* results; flat: n_tok */
    uint32_t result0;            /* in the step's results */
    uint32_t table0;             /* first row in the step's tables */
    uint32_t n_tables, n_blocks; /* rows, and most blocks of one */
    uint32_t entries;            /* flat: of decode attention */
    uint32_t in;                 /* flat: index of its td__cu_flat_in */
    /* wide */
    uint32_t n_chunks, n_tiles, n_groups;
};

/* The host side of a step: everything that is copied to the device, and what comes back. */
struct td__cu_host {
    struct td__cu_flat_in *flat; /* [max_passes] */
    int32_t *tables;             /* [max_tables][blocks_per_seq] */
    /* of the wide pass; arrays of max_tokens unless told */
    int32_t *tokens, *slot_of, *pos, *table_of, *lens;
    int32_t *pick;              /* [max_samples] token whose logits are wanted */
    struct tk_chunk *chunks;    /* [max_rows] */
    uint32_t *tiles;            /* [max_tiles] */
    struct tk_sample_row *rows; /* [max_samples] */
    struct tk_sampled *results; /* [max_samples] */
    /* not copied */
    uint32_t *result_row;        /* [max_samples] row of the step; UINT32_MAX: nobody's */
    struct td__cu_group *groups; /* [max_rows] */
    struct td__cu_pass *passes;  /* [max_passes] */
    uint32_t n_passes, n_results, n_tables;
    bool failed; /* could not be enqueued */
    int64_t started_us;
};

/* What planning must know. */
struct td__cu_shape {
    bool deterministic;
    uint32_t max_entries; /* of one decode attention launch */
    uint32_t blocks_per_seq;
    uint32_t max_rows, max_tokens, max_tiles, max_passes, max_samples, max_tables;
};

/* Fills h->passes and all that they name; drops nothing: every live row of s is in one pass. */
td_err td__cu_plan(const struct td__cu_shape *c, const struct td_sample_slot *slots,
                   const struct td_step *s, struct td__cu_host *h) TD_MUST_CHECK;
/* Smallest bucket that holds n rows: its rows are 1 << bucket. */
uint32_t td__cu_bucket(uint32_t n);
/* Entries of one decode attention launch, at most, over sequences of up to max_len tokens. */
uint32_t td__cu_max_entries(uint32_t max_len);
/* Smallest class of a bucket whose entries suffice, and the entries of a class. */
uint32_t td__cu_class(const struct td__cu_shape *c, uint32_t bucket, uint32_t entries);
uint32_t td__cu_class_entries(const struct td__cu_shape *c, uint32_t bucket, uint32_t cls);
/* Row counts that large products are planned for, ascending; the last is max_tokens (at least). */
uint32_t td__cu_product_rows(uint32_t max_tokens, uint32_t out_m[TD__CU_MAX_M]);

/* ---- the engine ---- */

struct td__cu_layer {
    tk_bf16 *attn_norm, *ffn_norm; /* [embd] */
    tk_bf16 *qkv, *o, *gu, *down;  /* qkv: q, k, v; gu: gate and up interleaved by 8 rows */
    tk_bf16 *bias;                 /* [qkv_width] or NULL */
    tk_bf16 *q_norm, *k_norm;      /* [head_dim] or NULL */
    struct tk_map m_qkv, m_o, m_gu, m_down, m_kv;
};

/* One host-to-device ring that weights pass through. */
#define TD__CU_STAGES 4
struct td__cu_staging {
    struct {
        void *p; /* pinned, owned */
        tk_event sent;
    } stage[TD__CU_STAGES];
    uint32_t next;
};

struct td__cu {
    struct td_engine base;
    uint32_t magic;
    const struct td_model *model;
    struct td_engine_info info;
    struct td__cu_shape shape;
    struct td_steps q;
    int device;
    char numerics[48];
    uint32_t embd; /* n_embd, zero-padded to what flat products take */
    uint32_t ffn, n_heads, n_kv, dim, group, q_width, qkv_width;
    uint32_t logits_stride; /* n_vocab, up to a multiple of 16 bytes */
    bool fused;             /* rope and append run inside decode attention */
    float scale;

    struct td__cu_layer *layers;
    struct tk_layer *flat_layers; /* [TK_LAYERS_MAX] host: a launch being told of its layers */
    tk_bf16 *embedding, *output, *output_norm;
    struct tk_map m_output;
    float *cos_sin; /* device [max_model_len][dim] */
    struct tk_kv_pool pool;
    struct tk_map m_pool;
    struct tk_lt *lt;
    tk_stream stream;

    /* device: inputs */
    struct td__cu_flat_in *d_flat;
    int32_t *d_flat_tables; /* [TK_MAX_ROWS][blocks_per_seq] */
    int32_t *d_tokens, *d_slot_of, *d_pos, *d_table_of, *d_lens, *d_pick, *d_tables;
    struct tk_chunk *d_chunks;
    uint32_t *d_tiles;
    struct tk_sample_row *d_rows;
    int32_t *d_history; /* [max_model_len] */
    /* device: state and results */
    struct tk_slots slots;
    uint32_t *slot_version; /* host: as uploaded */
    struct tk_sampled *d_results;
    /* device: work */
    uint32_t *plan;
    void *attn_scratch;
    tk_bf16 *f_h, *f_hg, *f_q, *f_att, *f_act; /* flat: [TK_MAX_ROWS] */
    float *ss1, *ss2, *best_val, *logits, *adjusted;
    int32_t *best_idx;
    void *chain_work, *layers_work;                  /* flat */
    tk_bf16 *w_h, *w_n, *w_q, *w_att, *w_gu, *w_act; /* wide: [max_tokens] */
    tk_bf16 *w_last, *w_last_n;                      /* [TK_MAX_ROWS] rows that are sampled */
    struct tk_map m_wq;
    struct tk_graph *graphs[TD__CU_BUCKETS][2][TD__CU_CLASSES];

    struct td__cu_host host[TD_STEPS_SLOTS];
    tk_event done[TD_STEPS_SLOTS];
    struct {
        tk_event *ev; /* [n_layers] */
    } layer_done[TD_STEPS_SLOTS];

    atomic_uint kick, kick_sleepers;          /* engine thread: a step was submitted, or stop */
    atomic_uint queued;                       /* steps enqueued */
    atomic_uint queued_kick, queued_sleepers; /* waiting thread: a step was enqueued, or stop */
    atomic_bool stop, stop_waiter;
    uint32_t spins; /* pauses before one of the two sleeps */
    pthread_t threads[2];
    uint32_t n_threads;

    void **owned; /* device memory */
    uint32_t n_owned, cap_owned;
    void **pinned;
    uint32_t n_pinned, cap_pinned;
};

/* cuda_engine.c: memory that lives as long as the engine; logs what it cannot get. */
td_err td__cu_alloc(struct td__cu *e, size_t count, size_t size, void **out) TD_MUST_CHECK;
/* Logs the device's words behind an error, once, and returns it. */
td_err td__cu_said(td_err err, const char *what);

/* cuda_engine_weights.c: checks the shapes, then brings every tensor to the device. */
td_err td__cu_check_model(const struct td_model *m) TD_MUST_CHECK;
td_err td__cu_load(struct td__cu *e) TD_MUST_CHECK;

/* cuda_engine_run.c: what the first use of a shape would cost otherwise: algorithms and graphs. */
td_err td__cu_prepare(struct td__cu *e) TD_MUST_CHECK;
/* Enqueues the planned step on the stream, results included; then its event. */
td_err td__cu_enqueue(struct td__cu *e, const struct td_step *s, uint32_t slot) TD_MUST_CHECK;

#endif
