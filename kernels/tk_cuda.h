/* tk_cuda.h - the CUDA operations: one C launcher per operation.
 *
 * Two sets of kernels: sm_90a (Hopper: TMA, wgmma, clusters) and sm_80, for every device of compute capability 8.0 and
 * later. The device decides, or tk_path_set.
 * What: launchers that enqueue on an explicit stream. Every launcher checks its shapes, launches,
 * and returns; results are ready when the stream gets there. All of them may be captured into a
 * CUDA graph: what changes from step to step (tokens, lengths, block tables, work lists) is read
 * from device buffers that the caller owns. Not: an engine. No allocation, no synchronisation, no
 * global state except the driver entry point for tensor maps (found once, read-only afterwards) and the chosen path.
 * Owner: the caller owns every buffer; scratch is passed in, with its size told by a function
 * beside the launcher. Thread: any, with the device current; one stream at a time per scratch
 * buffer. Bounds: TK_MAX_ROWS rows in a flat product, TK_MAX_GROUP query heads per KV head in
 * decode attention; head_dim 64 or 128; KV blocks of TK_BLOCK_TOK tokens. Failure:
 * TD_ERR_UNSUPPORTED for a shape outside the limits above, TD_ERR_DEVICE when CUDA refuses the
 * launch.
 *
 * Numerics: bf16 operands, float32 accumulation in an order that depends on the shape of the
 * operation only (K, N, position), never on the number of rows, the chunking or the neighbours of a
 * row. tests/bench/gpu checks it. The order of the two sets of kernels differs.
 */
#ifndef TK_CUDA_H
#define TK_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __CUDACC__
#define TK_HOST_DEVICE __host__ __device__
#else
#define TK_HOST_DEVICE
#endif

#define TK_BLOCK_TOK    16   /* tokens of a KV block */
#define TK_CHUNK_TOK    256  /* tokens of a decode attention work item, see tk_chunk_tok */
#define TK_CHUNK_LONG   2048 /* longer sequences take twice that; part of the numerics */
#define TK_TILE_KEYS    128  /* key tile of prefill attention; fixed, part of the numerics */
#define TK_TILE_ROWS    128  /* query tile of prefill attention */
#define TK_MAX_ROWS     64   /* rows of a flat product */
#define TK_MAX_GROUP    8    /* query heads per KV head in decode attention */
#define TK_MAX_SEQS     1024 /* sequences in one decode plan */
#define TK_FLAT_ROWS    128  /* weight rows are padded to a multiple of this in memory */
#define TK_NORM_PARTS   256  /* most partial sums of squares per row, see tk_norm_state */
#define TK_ARGMAX_PARTS 264  /* most partial maxima per row of the LM head */

typedef struct CUstream_st *tk_stream; /* cudaStream_t */
typedef uint16_t tk_bf16;

/* The CUDA text behind the last TD_ERR_DEVICE of this thread; never NULL. */
const char *tk_cuda_last_error(void);

/* ---- which kernels ---- */
enum tk_path { TK_PATH_AUTO, TK_PATH_SM80, TK_PATH_SM90A };
/* The kernels that a device of this compute capability runs: sm_90a ones exactly on 9.0, unless sm_80 is wanted.
 * TD_ERR_UNSUPPORTED below 8.0, and where sm_90a is wanted elsewhere. */
td_err tk_path_for(uint32_t major, uint32_t minor, enum tk_path wanted, enum tk_path *out);
/* For the whole process, before any graph is captured: launchers choose when they enqueue. Asks the current device. */
td_err tk_path_set(enum tk_path wanted, enum tk_path *out_used);

/* A matrix or a pool as kernels read it: a CUtensorMap for those with TMA, plain numbers for the others. Opaque to
 * callers. */
struct tk_map {
    unsigned char bytes[128] __attribute__((aligned(64)));
    const void *base;    /* of the pool: behind block 0's header; of a decode map: of its layer */
    uint64_t block_step; /* bytes from block to block */
    uint64_t layer_step; /* bytes from layer to layer */
    uint32_t row_step;   /* elements from row to row; of weights: K */
    bool tiled;
};

/* ---- KV pool: [block][layer]{header}[K/V][head][TK_BLOCK_TOK][head_dim] bf16 ---- */
struct tk_kv_pool {
    void *base; /* device; 128-byte aligned */
    uint32_t n_blocks, n_layers, n_kv_heads, head_dim;
    uint32_t header_bytes; /* in front of each slice (PUT paths: 128; else 0) */
    size_t slice_bytes;    /* stride from layer to layer: header_bytes + 2 x heads x 16 x dim x 2,
                              multiple of 128 */
};
size_t tk_kv_slice_bytes(uint32_t n_kv_heads, uint32_t head_dim, uint32_t header_bytes);
/* The 5-D map {dim, token, K/V x head, layer, block}, box {64, 16, 1, 1, 1}, 128-byte swizzle. */
td_err tk_kv_map(const struct tk_kv_pool *pool, struct tk_map *out_map);
/* One layer for decode: {64, token x head_dim / 64, head, K/V, block}, box {64, 16 head_dim / 64, 1, 2, 1}: K and V of a
 * head's page in one request. */
td_err tk_kv_decode_map(const struct tk_kv_pool *pool, uint32_t layer, struct tk_map *out_map);

/* ---- decode attention ---- */
/* A sequence is cut into chunks by its own length alone; the cut is part of the numerics. Beyond TK_CHUNK_LONG tokens a
 * chunk takes 2 TK_CHUNK_TOK: fewer partial sums. */
TK_HOST_DEVICE static inline int32_t tk_chunk_tok(int32_t len)
{
    return len > TK_CHUNK_LONG ? 2 * TK_CHUNK_TOK : TK_CHUNK_TOK;
}
/* Entries of a sequence of len tokens in a plan, at most: a window leaves some out. */
TK_HOST_DEVICE static inline uint32_t tk_seq_entries(uint32_t len)
{
    const uint32_t tok = (uint32_t)tk_chunk_tok((int32_t)len);
    return (len + tok - 1) / tok;
}
/* The same of a sequence of any length up to max_len: one of TK_CHUNK_LONG tokens has more than one a little longer. */
TK_HOST_DEVICE static inline uint32_t tk_most_entries(uint32_t max_len)
{
    const uint32_t cut = max_len < TK_CHUNK_LONG ? max_len : TK_CHUNK_LONG;
    return tk_seq_entries(max_len) > tk_seq_entries(cut) ? tk_seq_entries(max_len)
                                                         : tk_seq_entries(cut);
}
/* A plan lists the work of one step for all layers: entries (seq, chunk), sequence by sequence,
 * chunks ascending. Layout of the device buffer, in uint32: [0] entries, [1 .. TK_MAX_SEQS] first
 * entry of a sequence, then the entries, each seq << 16 | chunk, with TK_CHUNK_IS_LONG in chunks of long sequences. */
#define TK_CHUNK_IS_LONG 0x8000u
/* The first position that a sequence of len tokens sees through a window (0: none) of its last tokens. */
TK_HOST_DEVICE static inline int32_t tk_window_start(int32_t len, int32_t window)
{
    return window > 0 && len > window ? len - window : 0;
}
size_t tk_plan_words(uint32_t max_seqs, uint32_t max_tokens_total);
/* Fills a plan on the host. lens[i]: tokens of sequence i that are visible, its current one
 * included; 0 = no row. TD_ERR_FULL when the entries do not fit in words. */
td_err tk_plan_host(const int32_t *lens, uint32_t n_seqs, uint32_t *out_words, size_t words,
                    uint32_t *out_entries);
/* The same on the device, from lengths that live there. A plan that does not fit is left empty: no row is computed. */
td_err tk_plan_device(tk_stream s, const int32_t *lens, uint32_t n_seqs, uint32_t *out_words,
                      size_t words);
/* The same for layers that see the last window tokens alone: chunks wholly before them are left out. A plan serves
 * launches of its own window. */
td_err tk_plan_window_host(const int32_t *lens, uint32_t n_seqs, uint32_t window,
                           uint32_t *out_words, size_t words, uint32_t *out_entries);
td_err tk_plan_window_device(tk_stream s, const int32_t *lens, uint32_t n_seqs, uint32_t window,
                             uint32_t *out_words, size_t words);

/* With pdl the kernel starts while the one before it still runs, and reads plan, lens, tables and all KV pages but the one
 * of each sequence's newest token before that one has ended: those must not be its output. */
struct tk_attn_decode {
    const struct tk_map *kv; /* host; tk_kv_decode_map of this layer */
    const tk_bf16 *q;        /* [n_seqs][n_heads][head_dim], rows q_stride elements apart */
    tk_bf16 *out;            /* [n_seqs][n_heads][head_dim], rows out_stride elements apart */
    const int32_t *lens;     /* [n_seqs] device */
    const int32_t *tables;   /* [n_seqs][table_stride] device, block numbers */
    const uint32_t *plan;    /* device */
    /* Fused rope and append, where cos_sin is given (as in tk_rope_kv): q is then rows of q | k | v not yet rotated, the
     * newest token's position is lens[i] - 1, and its K and V go into the pool on the way. */
    const float *cos_sin;
    const struct tk_kv_pool *pool; /* host; only with cos_sin */
    uint32_t layer;                /* only with cos_sin */
    void *scratch; /* tk_attn_decode_scratch() bytes; counters zeroed once at boot */
    uint32_t n_seqs, n_heads, n_kv_heads, head_dim, table_stride, q_stride, out_stride;
    /* No plan may have more entries; scratch holds as many. Told close, the launch is no larger than the work: at 1 x 8k
     * idle blocks cost a tenth. Moves no bit. */
    uint32_t max_entries;
    float scale;     /* usually 1/sqrt(head_dim) */
    bool pdl;        /* start early behind the previous kernel of the stream */
    bool one_table;  /* tokens of one sequence: all rows have the first row's table */
    uint32_t window; /* 0: all; else the last tokens that a row sees, as in the plan */
};
/* The counters come first and take tk_attn_decode_counters() bytes, whatever the number of sequences: launches of any
 * n_seqs and max_entries may share a scratch buffer that is large enough, one after the other. */
size_t tk_attn_decode_counters(uint32_t n_kv_heads);
size_t tk_attn_decode_scratch(uint32_t n_kv_heads, uint32_t group, uint32_t head_dim,
                              uint32_t max_entries);
td_err tk_attn_decode(tk_stream s, const struct tk_attn_decode *a);

/* ---- prefill attention: causal, paged, a ragged batch of chunks. Heads of 64 take the sm_80 kernel on every device ---- */
struct tk_chunk {
    int32_t row0;  /* first row of the chunk in q and out */
    int32_t n;     /* rows */
    int32_t pos0;  /* position of the first row; keys 0 .. pos0 + i are visible to row i */
    int32_t table; /* row of the block table array */
};
/* Host: fills the tile list of a batch of chunks, most keys first; each entry chunk << 16 | tile of the chunk. At most
 * 65,535 chunks and tiles; TD_ERR_FULL when cap is too small. */
td_err tk_tiles_host(const struct tk_chunk *chunks, uint32_t n_chunks, uint32_t *out_tiles,
                     size_t cap, uint32_t *out_n);
struct tk_attn_prefill {
    const struct tk_map *kv;
    const struct tk_map *q;        /* tk_rows_map(): {64, heads, rows} */
    tk_bf16 *out;                  /* [rows][n_heads][head_dim], rows out_stride elements apart */
    const struct tk_chunk *chunks; /* device */
    const uint32_t *tiles;         /* device, from tk_tiles_host */
    const int32_t *tables;         /* device, [..][table_stride] */
    uint32_t n_tiles, n_heads, n_kv_heads, head_dim, layer, table_stride, out_stride;
    float scale;
    uint32_t
        window; /* 0: all; else a row sees its last window tokens, itself included. Blocks wholly before what the first
                        row of a tile sees are not read */
};
/* Map over rows of q, row_stride elements apart. */
td_err tk_rows_map(const tk_bf16 *q, uint32_t rows, uint32_t n_heads, uint32_t head_dim,
                   uint32_t row_stride, struct tk_map *out_map);
td_err tk_attn_prefill(tk_stream s, const struct tk_attn_prefill *a);

/* ---- flat products: y[rows][N] = x[rows][K] W[N][K]^T, 1..64 rows ---- */
enum tk_flat_mode {
    TK_FLAT_STORE,    /* out[r][n] = bf16(scale_r * y) */
    TK_FLAT_RESIDUAL, /* h[r][n] += y; hg[r][n] = h * gain[n]; sums of squares of h for the next
                         scale */
    TK_FLAT_SWIGLU, /* rows of W interleaved by 8 (8 gate, 8 up): out[r][n/2] = silu(s g) * (s u) */
    TK_FLAT_ARGMAX, /* best[r] = first index of the largest y; logits too where out_f32 is given */
};
/* A row's RMSNorm scale, left by the previous operation as partial sums of squares:
 * [parts][TK_MAX_ROWS] float32. parts = 0: no scale. */
struct tk_norm_state {
    const float *sumsq;
    uint32_t parts;
    uint32_t dim; /* divisor of the mean */
    float eps;
};
struct tk_flat {
    const struct tk_map *w; /* tk_flat_w_map */
    const struct tk_map *x; /* tk_flat_x_map for the same row count class */
    uint32_t rows, n, k;
    enum tk_flat_mode mode;
    struct tk_norm_state norm;
    tk_bf16 *out; /* STORE, SWIGLU: rows out_stride apart */
    uint32_t out_stride;
    tk_bf16 *h, *hg;     /* RESIDUAL: [rows][n] */
    const tk_bf16 *gain; /* RESIDUAL: [n] */
    float *sumsq;        /* RESIDUAL: [tk_flat_norm_parts(n)][TK_MAX_ROWS] */
    float *best_val;     /* ARGMAX: [TK_ARGMAX_PARTS][TK_MAX_ROWS] */
    int32_t *best_idx;   /* ARGMAX: likewise */
    float *out_f32;      /* ARGMAX: [rows][out_stride] logits, or NULL */
    bool pdl;
};
/* tiled: W is stored as [N/128][K/64][128][64] instead of [N][K]. N padded to TK_FLAT_ROWS in
 * memory, K % 64 = 0. */
td_err tk_flat_w_map(const tk_bf16 *w, uint32_t n, uint32_t k, bool tiled, struct tk_map *out_map);
td_err tk_flat_x_map(const tk_bf16 *x, uint32_t rows, uint32_t k, uint32_t row_stride,
                     struct tk_map *out_map);
/* Partials that a RESIDUAL product leaves per row, and parts that an ARGMAX product leaves. */
uint32_t tk_flat_norm_parts(uint32_t n);
uint32_t tk_flat_argmax_parts(uint32_t n);
td_err tk_flat(tk_stream s, const struct tk_flat *a);

/* ---- chains of flat products ---- */
/* Several products in one launch, each reading what the one before wrote (its out, or its h, hg and sumsq): the bits of a
 * tk_flat each, without a launch between them. RESIDUAL products have no norm, SWIGLU and STORE products have one; the
 * same rows in all. The pdl of the products is not looked at. At most one chain at a time on a device, whatever the stream: its
 * blocks take every SM and wait for each other. Bounds: TK_CHAIN_MAX products, TK_CHAIN_ROWS rows (above
 * that launches are as fast). */
#define TK_CHAIN_MAX  4
#define TK_CHAIN_ROWS 32
struct tk_chain {
    struct tk_flat products[TK_CHAIN_MAX];
    uint32_t n;
    /* device, tk_chain_work_bytes, 128-byte aligned, zeroed once, for all chains of an engine. A launch that did not end leaves
     * it unusable. */
    void *work;
    /* SMs that the kernel before keeps to its end: as many blocks start late, and the others bring their weights into L2.
     * Moves no bit; more than half of the SMs: nothing is done */
    uint32_t late;
    bool pdl;
};
size_t tk_chain_work_bytes(void);
/* Whether this device computes these products as a chain (w, x and buffers are not looked at): the kernels are Hopper's, and
 * the parts of a split product must run at once. */
bool tk_chain_fits(const struct tk_flat *products, uint32_t n);
/* TD_ERR_UNSUPPORTED: tk_chain_fits says no. */
td_err tk_chain(tk_stream s, const struct tk_chain *c);

/* ---- whole layers, attention included ---- */
/* Decode attention and the chain behind it, layer after layer, in one launch: for rows that are a sequence the bits of a
 * tk_attn_decode and a tk_flat each; what others leave in h is numbers of no meaning, if `out` holds numbers.
 * The first layer's q | k | v is there; every layer's products are o, gate and up, down and the next layer's qkv, which the
 * last may lack. The qkv between two layers of a launch is left nowhere: attention.q is written by the last product of the
 * last layer alone. What differs from layer to layer: maps of weights and KV, gains; the layers of the pool follow
 * each other. Attention is fused (cos_sin), head_dim 128, a table for each sequence; its q is what STORE leaves
 * and its out what the first product reads. Read early, so not to be written by the launch before: lengths, tables, the plan
 * and the pages of KV, the newest token's too. As for a chain: at most one at a time on a device. Bounds: TK_LAYERS_MAX
 * layers, TK_LAYERS_ROWS rows, TK_LAYERS_ITEMS entries x KV heads. Hopper's alone. */
#define TK_LAYERS_MAX   40
#define TK_LAYERS_ROWS  8
#define TK_LAYERS_ITEMS 264
#define TK_STAGES       5 /* of a layer: attention and the products */
/* Up to so many rows of so many heads, o's tokens come with a tag each, not behind a count of blocks that are done. */
#define TK_LAYERS_TAGGED 2
#define TK_LAYERS_HEADS  64
struct tk_layer {
    struct tk_attn_decode attention;
    struct tk_flat products[TK_CHAIN_MAX];
    uint32_t n_products;
};
struct tk_layers {
    const struct tk_layer *layers;
    uint32_t n;
    /* device, tk_layers_work_bytes, 128-byte aligned, zeroed once, for all launches of an engine; not a chain's. A launch
     * that did not end leaves it unusable. */
    void *work;
    bool pdl;
    /* Of debugging builds, else not looked at. TK_SPIN_MS: host memory, mapped, for spin.cuh's words. TK_LAYER_TIMES: device
     * memory for the times, ns, of [stage][block]'s input and end. */
    uint32_t *stuck;
    uint64_t *times;
};
size_t tk_layers_work_bytes(void);
/* Whether this device computes these layers so (weights' maps and what buffers hold are not looked at): all that is said above,
 * and every layer as the first but for what may differ. */
bool tk_layers_fits(const struct tk_layer *layers, uint32_t n);
/* TD_ERR_UNSUPPORTED: tk_layers_fits says no. */
td_err tk_layers_run(tk_stream s, const struct tk_layers *l);

/* ---- pointwise ---- */
/* h[r] = table[token[r]]; hg = h * gain; sumsq as of a RESIDUAL product with one part. NULL hg: the
 * gather alone. */
td_err tk_embed(tk_stream s, const tk_bf16 *table, const int32_t *tokens, uint32_t rows,
                uint32_t dim, const tk_bf16 *gain, tk_bf16 *h, tk_bf16 *hg, float *sumsq, bool pdl);
/* out = rmsnorm(h) * gain; where add is given, h += add first (in bf16). The mean is over the first mean_dim of dim values;
 * those behind are padding: zeros. */
td_err tk_rmsnorm(tk_stream s, tk_bf16 *h, const tk_bf16 *add, const tk_bf16 *gain, tk_bf16 *out,
                  uint32_t rows, uint32_t dim, uint32_t mean_dim, float eps);
/* Rotates q in place and k on its way into the pool; copies v. qkv: [rows][(n_heads + 2 n_kv_heads)
 * head_dim], halves convention (Hugging Face). cos_sin: [max_pos][head_dim] float32, cos of the
 * first half, then sin. pos[r] < 0: skip the row. table_of[r]: row of the block table, NULL: r. Before that, where given: bias is added to
 * q, k and v, and each head of q and k is normalised (RMSNorm with eps) and multiplied by its gain. */
struct tk_rope_kv {
    tk_bf16 *qkv;
    const float *cos_sin;
    const int32_t *pos, *table_of, *tables;
    const struct tk_kv_pool *pool; /* host */
    uint32_t rows, n_heads, n_kv_heads, head_dim, layer, table_stride, row_stride;
    bool pdl;
    const tk_bf16 *bias;            /* [(n_heads + 2 n_kv_heads) head_dim] or NULL */
    const tk_bf16 *q_norm, *k_norm; /* [head_dim]; both or neither */
    float eps;                      /* only with the norms */
};
td_err tk_rope_kv(tk_stream s, const struct tk_rope_kv *a);
/* out[r][i] = silu(gate) * up over gate|up rows; interleaved: by 8 as TK_FLAT_SWIGLU wants, else
 * halves. */
td_err tk_swiglu(tk_stream s, const tk_bf16 *gate_up, tk_bf16 *out, uint32_t rows, uint32_t ffn,
                 bool interleaved);
/* Ends a TK_FLAT_ARGMAX: token[r] = best over the parts (ties: the smallest index). Then the state
 * of the next step: pos[r] + 1 and lens[r] + 1 where not NULL. */
td_err tk_argmax_end(tk_stream s, const float *best_val, const int32_t *best_idx, uint32_t parts,
                     uint32_t rows, int32_t *token, int32_t *pos, int32_t *lens, bool pdl);

/* ---- large products: y[m][n] = x[m][k] W[n][k]^T (+ c), cuBLASLt, no split-K ---- */
/* Owns a cuBLASLt handle (the library is opened at run time), its workspace and one chosen algorithm per shape.
 * Owner: one engine; one stream at a time. create and plan allocate and may synchronise; run does neither. */
struct tk_lt;
td_err tk_lt_create(size_t workspace_bytes, struct tk_lt **out);
struct tk_lt *tk_lt_destroy(struct tk_lt *lt); /* NULL-safe; returns NULL */
/* Chooses the algorithm of a shape: the library's first without split-K, or with tune the fastest of its first eight and
 * of a short list of others (gemm_lt.cu), timed on stream s with the given operands and nothing of them in L2, where the
 * workspace is larger than that. Bounds: 128 shapes. */
struct tk_lt_product {
    const tk_bf16 *x, *w, *c; /* c: added (residual), NULL: nothing; may equal y */
    tk_bf16 *y;
    uint32_t m, n, k, ldx, ldy;
};
td_err tk_lt_plan(struct tk_lt *lt, tk_stream s, const struct tk_lt_product *p, bool tune);
/* Runs with an algorithm planned for some m >= p->m and the same other numbers: the fastest where they were timed, else that
 * of the least m. */
td_err tk_lt_run(struct tk_lt *lt, tk_stream s, const struct tk_lt_product *p);

#ifdef __cplusplus
}
#endif
#endif
