/* Chains of flat products (tk_chain): a decode step with them against one with a launch for each product, bit by bit, again
 * and again, since what may go wrong is an order of events. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/gpu/gpu_cases.h"
#include "tests/bench/gpu/gpu_model.h"

#define CONTEXT 300
#define AGAIN   40

static const struct gm_shape shapes[] = {
    {3, 1024, 8, 2, 128, 2816, 4096},   /* fewer units than blocks */
    {2, 256, 2, 1, 128, 576, 512},      /* one tile or two */
    {2, 4096, 32, 8, 128, 14336, 2048}, /* Llama-3-8B's */
    {2, 3584, 28, 4, 128, 18944, 1024}, /* Qwen2.5-7B's: 8 rows of q for a KV head's 7 */
};

struct state {
    tk_bf16 *h, *q;
    float *logits;
};

static void copy_state(const struct gm *m, const struct state *s)
{
    CU(cudaDeviceSynchronize());
    CU(cudaMemcpy(s->h, m->h, (size_t)m->rows * m->s.hid * 2, cudaMemcpyDeviceToDevice));
    CU(cudaMemcpy(s->q, m->q, (size_t)m->rows * m->qkv_w * 2, cudaMemcpyDeviceToDevice));
    CU(cudaMemcpy(s->logits, m->logits, (size_t)m->rows * m->s.vocab * 4,
                  cudaMemcpyDeviceToDevice));
}

static void compare(const struct gm *m, const struct state *s, const char *how)
{
    char name[128];
    const uint32_t r = m->rows;
    CU(cudaDeviceSynchronize());
    (void)snprintf(name, sizeof name, "chain %s: %u rows of %u, %u: h", how, r, m->s.hid, m->s.ffn);
    (void)gpu_same_bits(name, m->h, s->h, (size_t)r * m->s.hid * 2);
    (void)snprintf(name, sizeof name, "chain %s: %u rows of %u, %u: q", how, r, m->s.hid, m->s.ffn);
    (void)gpu_same_bits(name, m->q, s->q, (size_t)r * m->qkv_w * 2);
    (void)snprintf(name, sizeof name, "chain %s: %u rows of %u, %u: logits", how, r, m->s.hid,
                   m->s.ffn);
    (void)gpu_same_bits(name, m->logits, s->logits, (size_t)r * m->s.vocab * 4);
}

/* One step from the given tokens. */
static void step(struct gm *m, const int32_t *tokens, enum gm_products how)
{
    m->products = how;
    CU(cudaMemcpyAsync(m->tokens, tokens, m->rows * sizeof *tokens, cudaMemcpyHostToDevice, NULL));
    gm_step(m, NULL, false);
}

static void check_rows(struct gm *m, uint32_t rows, uint32_t again)
{
    int32_t tokens[TK_MAX_ROWS], others[TK_MAX_ROWS];
    const struct state s = {gpu_alloc((size_t)rows * m->s.hid * 2),
                            gpu_alloc((size_t)rows * m->qkv_w * 2),
                            gpu_alloc((size_t)rows * m->s.vocab * 4)};
    for (uint32_t i = 0; i < rows; i++) {
        tokens[i] = (int32_t)((i * 37 + 5) % m->s.vocab);
        others[i] = (int32_t)((i * 53 + 7) % m->s.vocab);
    }
    gm_kv(m, rows, CONTEXT);
    gm_decode_prepare(m, rows, CONTEXT);
    m->logits = gpu_alloc((size_t)rows * m->s.vocab * 4);
    step(m, tokens, GM_LAUNCHES);
    copy_state(m, &s);
    gpu_poison(m->act, (size_t)rows * m->s.ffn * 2);
    gpu_poison(m->q, (size_t)rows * m->qkv_w * 2);
    m->chains = 0;
    step(m, tokens, GM_CHAIN);
    compare(m, &s, "once");
    for (uint32_t i = 0; i < again; i++) {
        step(m, others, GM_CHAIN); /* where too early a read looks lie others' numbers */
        step(m, tokens, GM_CHAIN);
    }
    compare(m, &s, "again");
    gpu_expect("chain: a layer's products were one launch",
               m->chains == (1 + 2 * again) * m->s.layers);
    gpu_free(m->logits);
    m->logits = NULL;
    gm_decode_drop(m);
    gm_kv_drop(m);
    gpu_free(s.h), gpu_free(s.q), gpu_free(s.logits);
}

void gpu_check_chain(void)
{
    static const uint32_t rows[] = {1, 3, 8, 9, 16, 17, TK_CHAIN_ROWS, 8, 1};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct gm *m = gm_create(&shapes[i], 7 + i);
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
            check_rows(m, rows[r], AGAIN);
        }
        gm_destroy(m);
    }
}

/* Small enough for compute-sanitizer. */
void gpu_check_chain_small(void)
{
    struct gm *m = gm_create(&shapes[1], 7);
    check_rows(m, 3, 2);
    gm_destroy(m);
}
