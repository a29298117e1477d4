/* cpu_engine_priv.h - the inside of the CPU engine, shared by the files cpu_engine*.c only.
 *
 * Threads: the loop submits and polls; member 0 of the team is the engine thread that takes steps
 * in order, the other members help it. A step slot belongs to the loop until it is submitted
 * (`tail` grows), to the team until it is finished (`done` grows), then to the loop until the poll
 * after the one that returned it.
 */
#ifndef TD_MODEL_CPU_ENGINE_PRIV_H
#define TD_MODEL_CPU_ENGINE_PRIV_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "common/model/cpu_engine.h"
#include "common/model/cpu_engine_team.h"
#include "common/model/engine_steps.h"
#include "common/model/model.h"
#include "kernels/tk.h"

#define TD__CE_MAGIC        0x54434531u
#define TD__CE_MAX_OWNED    64
#define TD__CE_SPLIT_ROWS   8  /* decode rows up to which attention is split by chunk */
#define TD__CE_GATE_ROWS    64 /* rows of gate and up that stay in a member's scratch */
#define TD__CE_SHARE_TOK    4  /* tokens up to which products are cut into one share a member */
#define TD__CE_SERIAL_TOK   2  /* tokens up to which small phases run inside a barrier */
#define TD__CE_TILE_QUERIES 48

struct td__ce_layer {
    const float *attn_norm, *ffn_norm;     /* borrowed from the model */
    const float *q_bias, *k_bias, *v_bias; /* the same; NULL: none */
    const float *q_norm, *k_norm;          /* the same */
    struct tk_packed q, k, v, o, gate, up, down;
};

/* What one member needs alone. */
struct td__ce_member {
    float *attn;             /* kernel scratch */
    float *q;                /* [TILE_QUERIES][dim] */
    float *m, *l, *o;        /* of a chunk */
    float *sm, *sl, *so;     /* merged */
    float *gate, *up;        /* [GATE_ROWS][32] */
    float *norm;             /* [max(embd, attention width)] */
    float *weights;          /* [n_vocab] sampling */
    float *adjusted;         /* [n_vocab] logits after penalties and bias */
    uint32_t *order, *count; /* [n_vocab] sampling; count stays zero between uses */
    uint16_t limit[TK_MAX_QUERIES], first[TK_MAX_QUERIES];
    uint16_t fresh[TK_MAX_QUERIES],
        known[TK_MAX_QUERIES]; /* limits, by whether a chunk came before */
};

struct td__ce_task_span {
    uint32_t row, first, n_tiles; /* tiles x kv heads x chunks tasks from `first` */
    uint32_t chunk0, n_chunks;    /* split rows: the chunks that their window touches */
};

struct td__ce_ranks; /* cpu_engine_ranks.h */

struct td__ce {
    struct td_engine base;
    uint32_t magic;
    const struct td_model *model;
    const struct tk_ops *ops;
    struct td_engine_info info;
    bool f32;
    uint32_t embd, dim, group, rope_dim;
    /* what this engine computes: the whole model, or a rank's share (the activations act_* are whole) */
    uint32_t ffn, n_heads, n_kv, n_out; /* n_out: columns of the LM head */
    uint32_t q_width, kv_width, qkv_width;
    uint32_t window; /* 0: none */

    struct td__ce_layer *layers;
    struct tk_packed output;
    struct tk_weight embedding; /* rows of the mapped file */
    const float *output_norm;
    float *rope;         /* [max_model_len][rope_dim / 2][2] */
    uint8_t *pool;       /* [n_blocks][n_layers][K, V][pool_heads][head_bytes] */
    uint32_t pool_heads; /* KV heads of the pool: the model's, or a helping rank's own */
    size_t head_bytes;   /* of one head's K or V in a block */

    /* activations of the running step */
    float *x;   /* [max_tokens][embd] residual stream */
    float *qkv; /* [max_tokens][qkv_width] */
    float *att; /* [max_tokens][q_width] */
    struct tk_act act_embd, act_att, act_ffn, act_head;
    float *logits;                   /* [max_rows][n_vocab]; NULL at a helping rank */
    float *part_m, *part_l, *part_o; /* chunk results of split decode rows */
    struct td__ce_task_span *spans;  /* [max_rows] */
    uint32_t n_spans, n_attn_tasks;
    bool split;
    uint32_t layer; /* whose attention runs */
    float q_scale;  /* 1 / sqrt(dim) */

    struct td__ce_member *members;
    struct td_steps q;
    struct td_step *running;
    /* of the running step, filled when it starts */
    uint32_t *tok_row;     /* [max_tokens] */
    uint32_t *sample_rows; /* [max_rows] rows that sample */
    uint32_t n_sample;
    bool every_logit;           /* the LM head for every token: a tool's step */
    struct td__ce_ranks *ranks; /* NULL: this engine computes alone */

    atomic_uint kick; /* futex word of the engine thread: grows with submit and stop */
    atomic_uint kick_sleepers;
    atomic_bool stop;
    struct td_team team;
    pthread_t threads[TD_TEAM_MAX];
    uint32_t n_started;

    struct {
        void *p;
        size_t bytes; /* 0: free(), else munmap() */
    } owned[TD__CE_MAX_OWNED];
    uint32_t n_owned;
};

/* Zeroed memory that lives as long as the engine; NULL when out of memory. Big ones are mapped. */
void *td__ce_alloc(struct td__ce *e, size_t bytes);

/* Lists the tokens and the sampling rows of a checked step, closes the gaps of rows that are not live, plans the
 * attention. */
void td__ce_lay_out(struct td__ce *e, struct td_step *s);

/* cpu_engine_weights.c: packs every matrix, or this rank's columns of it; sets the dimensions of e. */
td_err td__ce_load(struct td__ce *e, struct td_ranks *group) TD_MUST_CHECK;
/* TD_ERR_FILE_UNSUPPORTED, logged: no product here takes a model of this shape. */
td_err td__ce_check_shape(const struct td_hparams *hp) TD_MUST_CHECK;

/* cpu_engine_run.c: one member's part of the running step. */
void td__ce_run(struct td__ce *e, uint32_t member);

/* cpu_engine_attn.c */
void td__ce_attn_plan(struct td__ce *e);
void td__ce_attn_task(struct td__ce *e, uint32_t member, uint32_t task);
/* Merges the parts of a split row's token, or finds it done. Token t's attention output in e->att.
 */
void td__ce_attn_collect(struct td__ce *e, uint32_t member, uint32_t t);
/* Address of K (which 0) or V (1) of a head in a block's slice of a layer. */
void *td__ce_kv(const struct td__ce *e, td_block_id block, uint32_t layer, uint32_t head,
                uint32_t which);

/* cpu_engine_sample.c */
/* Chooses the next token of a row from its logits; position: of the token chosen. */
void td__ce_sample(struct td__ce *e, uint32_t member, struct td_sample_slot *s, float *logits,
                   uint32_t position, uint32_t want, struct td_row_result *out);

#endif
