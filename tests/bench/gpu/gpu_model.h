/* gpu_model.h - a llama-shaped model with random weights, whose decode step and prefill are built from tk_cuda.h.
 *
 * What: every layer has its own memory; weights plain [N][K], gate and up interleaved by 8. The step reads tokens,
 *   positions, lengths and block tables from fixed device buffers, so one captured graph serves every step.
 * Not: the product's engine; it has no scheduler and no loader.
 * Thread: one. Failure: exits the process (gpu.h).
 */
#ifndef GPU_BENCH_MODEL_H
#define GPU_BENCH_MODEL_H

#include "tests/bench/gpu/gpu.h"

#define GM_MAX_LAYERS 40

struct gm_shape {
    uint32_t layers, hid, heads, kv_heads, dim, ffn, vocab;
};
extern const struct gm_shape gm_llama3_8b, gm_tiny;

struct gm_layer {
    tk_bf16 *n1, *n2, *qkv, *o, *gu, *dn;
    struct tk_map m_qkv, m_o, m_gu, m_dn, m_kv; /* m_kv: of decode */
};

/* How a decode step's layers run, where that computes them, else as the next one says: whole layers in one launch (what the
 * product's engine does), a chain behind each attention, a launch for each product. */
enum gm_products { GM_LAYERS, GM_CHAIN, GM_LAUNCHES };

struct gm {
    struct gm_shape s;
    enum gm_products products;
    uint32_t chains, layer_runs; /* launched so far */
    void *chain_work, *layers_work;
    uint32_t group;          /* layers of a launch, GM_LAYERS; 0: all */
    struct tk_layers layers; /* GM_LAYERS: the debugging builds' buffers */
    uint32_t window;
    uint32_t qkv_w;
    struct gm_layer l[GM_MAX_LAYERS];
    tk_bf16 *embed, *head, *norm;
    struct tk_map m_head;
    float *cos_sin;
    double weight_bytes; /* that a decode step reads */
    struct tk_lt *lt;
    /* KV and the batch */
    struct tk_kv_pool pool;
    struct tk_map m_kv;
    uint32_t seqs, ctx_max, table_stride;
    int32_t *tables, *lens, *pos, *tokens, *table_of;
    uint32_t *plan;
    size_t plan_words;
    uint32_t plan_cap;
    void *scratch;
    /* decode buffers */
    uint32_t rows;
    tk_bf16 *h, *hg, *q, *att, *act;
    float *ss1, *ss2, *best_val, *logits;
    int32_t *best_idx;
    struct tk_map x_hg, x_att, x_act;
    /* prefill buffers */
    uint32_t p_rows;
    tk_bf16 *ph, *pn, *pq, *patt, *pgu, *pact;
    struct tk_map m_pq;
    struct tk_chunk *chunks;
    uint32_t *tiles, n_tiles;
    int32_t *p_pos, *p_tokens, *p_table_of;
};

/* KV for seqs sequences of at most ctx_max tokens, blocks shuffled; everything random. */
struct gm *gm_create(const struct gm_shape *shape, uint64_t seed);
void gm_destroy(struct gm *m);
void gm_kv(struct gm *m, uint32_t seqs, uint32_t ctx_max);
void gm_kv_drop(struct gm *m);
/* Decode: rows sequences, each at ctx tokens (its current one included); then one step may be enqueued. */
void gm_decode_prepare(struct gm *m, uint32_t rows, uint32_t ctx);
/* advance: positions and lengths move on, so that steps may follow each other. */
void gm_step(struct gm *m, tk_stream s, bool advance);
void gm_decode_drop(struct gm *m);
/* Prefill of chunks whose rows are consecutive; tokens[] on the host, one per row. */
void gm_prefill_prepare(struct gm *m, const struct tk_chunk *chunks, uint32_t n_chunks,
                        const int32_t *tokens);
/* Leaves the last row's token in best; logits of the last row where given. */
void gm_prefill(struct gm *m, tk_stream s, float *logits, int32_t *token);
void gm_prefill_drop(struct gm *m);

#endif
