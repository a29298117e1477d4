/* tk.h - the operations of a transformer on a CPU: one table of functions per instruction set.
 *
 * What: packed weights, products, norms, rope, attention over paged KV, vector helpers for
 * sampling. Not: memory, threads, models or pools: the caller (common/model/cpu_engine) owns every
 * buffer and cuts the work into column tiles, rows and attention tasks. Numerics: NUMERICS.md, bit
 * for bit equal in every table. Thread: any; no function keeps state, allocates or fails: shapes
 * are the caller's contract (TK_* limits below, checked when an engine is made). Alignment: 64
 * bytes for every base pointer. Element order inside buffers is written beside each field.
 */
#ifndef TD_KERNELS_TK_H
#define TD_KERNELS_TK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

#define TK_LANES        16  /* columns of a tile, lanes of a sum */
#define TK_QK           32  /* k of a tile and of a quantised block */
#define TK_PANEL        8   /* rows of an activation panel */
#define TK_BLOCK_TOK    16  /* tokens of a KV block */
#define TK_CHUNK_TOK    256 /* tokens of an attention chunk */
#define TK_CHUNK_BLOCKS (TK_CHUNK_TOK / TK_BLOCK_TOK)
#define TK_MAX_HEAD_DIM 256 /* a multiple of 16 */
#define TK_MAX_QUERIES  64  /* query vectors (rows x heads of one KV head) of an attention call */
#define TK_MAX_K        (1024u * 1024)

/* Types of weights in a file, with the numbers of GGUF. */
enum tk_wtype {
    TK_W_F32 = 0,
    TK_W_F16 = 1,
    TK_W_Q4_0 = 2,
    TK_W_Q4_1 = 3,
    TK_W_Q5_0 = 6,
    TK_W_Q5_1 = 7,
    TK_W_Q8_0 = 8,
    TK_W_Q4_K = 12,
    TK_W_Q5_K = 13,
    TK_W_Q6_K = 14,
    TK_W_BF16 = 30,
};

/* How a tile of 16 columns x 32 k is stored. Nibbles: vector j of 64 B holds k-quad 2j in the low
 * and 2j+1 in the high halves, byte 4c+i is column c, k = 4 quad + i. Bytes: vector j is k-quad j.
 * Scales follow, 16 each. */
enum tk_kind {
    TK_Q4_OFF,    /* nibbles, f16 d;         w = d (q - 8) */
    TK_Q4_MIN,    /* nibbles, f16 d, f16 m;  w = d q + m */
    TK_Q4_MINF,   /* nibbles, f32 d, f32 m */
    TK_Q8_F16,    /* bytes q ^ 0x80, f16 d;  w = d q */
    TK_Q8_F32,    /* bytes q ^ 0x80, f32 d */
    TK_Q8_MINF,   /* bytes q (0..31), f32 d, f32 m */
    TK_Q8_HALVES, /* bytes q ^ 0x80, f32 d of k 0..15, f32 d of k 16..31 */
    TK_F32,       /* f32 [32 k][16 columns] */
    TK_N_KINDS
};

/* A weight matrix [n][k] (n outputs), packed: tile (column group t, block b) at
 * data + (t * k/32 + b) * tile_bytes. Columns beyond n are zero. */
struct tk_packed {
    enum tk_kind kind;
    uint32_t n, k;
    uint32_t n_tiles; /* (n + 15) / 16 */
    size_t tile_bytes;
    uint8_t *data; /* borrowed, 64-byte aligned, tk_packed_bytes() long */
};

struct tk_weight {
    enum tk_wtype type;
    uint32_t n, k; /* k % 32 == 0; K-quants: k % 256 == 0 */
    const void *data;
    size_t row_bytes;
};

/* TD_ERR_FILE_UNSUPPORTED for a type or shape that has no packing. f32: pack as TK_F32. */
td_err tk_pack_plan(const struct tk_weight *w, bool f32, struct tk_packed *out) TD_MUST_CHECK;
size_t tk_packed_bytes(const struct tk_packed *p);
/* Packs column groups [tile0, tile0 + n_tiles) into p->data. */
void tk_pack(const struct tk_weight *w, const struct tk_packed *p, uint32_t tile0,
             uint32_t n_tiles);
/* Dequantises n values (a multiple of the type's block) of a row of the file to f32. */
void tk_dequant(enum tk_wtype type, const void *row, uint32_t n, float *out);

/* One quantised block of one row. */
struct tk_qblk {
    float d;         /* scale */
    float s;         /* d * sum */
    int32_t sum;     /* of the 32 integers */
    int32_t sum_low; /* of the first 16 */
};

/* Wide rows have 16-bit activations as two rows of int8 digits, high in row 2r, low in row 2r + 1:
 * value = 256 high + low. Both have the d and s of the whole value, and sums of their own digits. */

/* Activation rows in panels of 8: block b of row r has its integers at
 * q + (r / 8) * 8 k + b * 256 + (r % 8) * 32, its tk_qblk at b[(r / 8) * 8 k/32 + 8 b + r % 8].
 * x (f32 numerics) is [rows][k]. */
struct tk_act {
    uint32_t k;
    int8_t *q;
    struct tk_qblk *b;
    float *x; /* instead of q and b in f32 numerics, else NULL */
};

struct tk_gemm {
    const struct tk_packed *w;
    const struct tk_act *a;
    uint32_t row0, m; /* rows [row0, row0 + m), row0 % 8 == 0 */
    float *y;         /* y[(r - row0) * y_stride + column - col0] */
    size_t y_stride;
    uint32_t col0;
    bool add;  /* y += instead of y = */
    bool wide; /* row r of y from the digit rows 2r and 2r + 1; not for TK_F32 */
};

/* One attention chunk for nq query vectors of one KV head of one sequence. */
struct tk_attn {
    uint32_t head_dim, nq;
    const float *q;        /* [nq][head_dim], scaled */
    const uint16_t *limit; /* [nq] visible tokens of this chunk end here, 0..256; 0: sees none */
    const uint16_t *first; /* [nq] and begin here, first < limit; NULL: at 0 for all */
    uint32_t n_tok;        /* max of limit */
    const void *k[TK_CHUNK_BLOCKS], *v[TK_CHUNK_BLOCKS]; /* K [dim][16 tok], V [16 tok][dim] */
    float *m, *l;                                        /* [nq] out */
    float *o;                                            /* [nq][head_dim] out */
    float *scratch;                                      /* tk_attn_scratch() floats */
};

enum tk_rope_style { TK_ROPE_PAIRS, TK_ROPE_HALVES };

enum tk_isa { TK_ISA_AUTO, TK_ISA_REF, TK_ISA_AVX2, TK_ISA_AVX512 };

struct tk_ops {
    const char *name;
    /* Columns of tiles [tile0, tile0 + n_tiles). */
    void (*gemm)(const struct tk_gemm *g, uint32_t tile0, uint32_t n_tiles);
    /* Quantises n values (n % 32 == 0) of row r starting at block b0 of the panel. */
    void (*quant)(const float *x, uint32_t n, const struct tk_act *a, uint32_t r, uint32_t b0);
    /* The same for a wide row r: digit rows 2r and 2r + 1. */
    void (*quant_wide)(const float *x, uint32_t n, const struct tk_act *a, uint32_t r);
    /* y may be x. */
    void (*rmsnorm)(const float *x, const float *w, uint32_t n, float eps, float *y);
    /* y may be g. */
    void (*swiglu)(const float *g, const float *u, uint32_t n, float *y);
    void (*attn)(const struct tk_attn *a);     /* bf16 KV */
    void (*attn_f32)(const struct tk_attn *a); /* f32 KV */
    /* State (sm, sl, so) of nq vectors takes a chunk's (m, l, o); first: copies. limit[i] == 0
     * leaves vector i alone. */
    void (*attn_merge)(const struct tk_attn *part, float *sm, float *sl, float *so, bool first);
    /* out[d] = so[d] * (1 / sl). */
    void (*attn_finish)(const float *so, float sl, uint32_t head_dim, float *out);
    /* Lowest index of the largest of n > 0 values. */
    uint32_t (*argmax)(const float *x, uint32_t n);
    /* out[i] = exp((x[i] - max) * scale); returns sum16(out). */
    float (*exps)(const float *x, uint32_t n, float max, float scale, float *out);
    /* Non-finite values among n. */
    bool (*all_finite)(const float *x, uint32_t n);
};

/* Never NULL for AUTO and REF; NULL when this CPU or build lacks a named set. */
const struct tk_ops *tk_select(enum tk_isa isa);
/* Floats of scratch that attn needs for this head_dim and nq. */
size_t tk_attn_scratch(uint32_t head_dim, uint32_t nq);

/* The same code in every table: plain IEEE steps, small against the products. */
/* x[i] = x[i] + bias[i]. */
void tk_add_bias(float *x, const float *bias, uint32_t n);
/* cs: [rope_dim / 2][2] cos and sin of the position; scales every value of the heads by `scale`
 * afterwards (1 leaves them). */
void tk_rope(float *x, const float *cs, uint32_t n_heads, uint32_t head_dim, uint32_t rope_dim,
             enum tk_rope_style style, float scale);
/* Writes one token (slot 0..15) of one head of a block. */
void tk_kv_write_bf16(const float *k, const float *v, uint32_t head_dim, uint32_t slot,
                      uint16_t *kblk, uint16_t *vblk);
void tk_kv_write_f32(const float *k, const float *v, uint32_t head_dim, uint32_t slot, float *kblk,
                     float *vblk);
float tk_exp(float x); /* the reference of exp */

#endif
