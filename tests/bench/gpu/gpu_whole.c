/* Whole decode step and whole prefill of a llama-shaped model: checks on a tiny one, times on Llama-3-8B's shape. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/gpu/gpu_cases.h"
#include "tests/bench/gpu/gpu_model.h"

#define SAMPLES 25

static void do_step(void *ctx, tk_stream s, int i)
{
    gm_step(ctx, s, false);
    (void)i;
}

void gpu_bench_step(void)
{
    static const uint32_t cases[][2] = {{1, 1024},  {8, 1024},  {16, 1024},
                                        {32, 1024}, {64, 1024}, {64, 4096}};
    struct gm *m = gm_create(&gm_llama3_8b, 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const uint32_t rows = cases[i][0], ctx = cases[i][1];
        gm_kv(m, rows, ctx);
        gm_decode_prepare(m, rows, ctx);
        const struct gpu_time t = gpu_time_graph(do_step, m, 1, SAMPLES);
        const double kv = (double)rows * ctx * m->s.layers * m->s.kv_heads * m->s.dim * 4;
        gpu_say("step", t, m->weight_bytes + kv, 0, ", \"B\": %u, \"ctx\": %u, \"tok_s\": %.0f",
                rows, ctx, rows / t.median * 1e6);
        gm_decode_drop(m);
        gm_kv_drop(m);
    }
    gm_destroy(m);
}

struct prompt_ctx {
    struct gm *m;
    int32_t *token;
};
static void do_prompt(void *ctx, tk_stream s, int i)
{
    const struct prompt_ctx *c = ctx;
    gm_prefill(c->m, s, NULL, c->token);
    (void)i;
}

static double prompt_flops(const struct gm_shape *s, double n)
{
    const double w = (double)s->hid * (s->heads + 2 * s->kv_heads) * s->dim +
                     (double)s->hid * s->heads * s->dim + 3.0 * s->hid * s->ffn;
    return 2 * n * w * s->layers + 2.0 * s->vocab * s->hid +
           2.0 * s->layers * s->heads * s->dim * n * n;
}

void gpu_bench_prompt(void)
{
    struct prompt_ctx c = {gm_create(&gm_llama3_8b, 1), gpu_alloc(4)};
    for (uint32_t n = 512; n <= 8192; n *= 4) {
        const struct tk_chunk chunk = {0, (int32_t)n, 0, 0};
        int32_t *tokens = malloc(n * sizeof *tokens);
        uint64_t seed = 3;
        for (uint32_t i = 0; i < n; i++) {
            tokens[i] = (int32_t)(gpu_rand(&seed) % c.m->s.vocab);
        }
        gm_kv(c.m, 1, n);
        gm_prefill_prepare(c.m, &chunk, 1, tokens);
        const struct gpu_time t = gpu_time_stream(do_prompt, &c, 20);
        gpu_say("prefill", t, 0, prompt_flops(&c.m->s, n), ", \"S\": %u, \"tok_s\": %.0f", n,
                n / t.median * 1e6);
        gm_prefill_drop(c.m);
        gm_kv_drop(c.m);
        free(tokens);
    }
    gpu_free(c.token);
    gm_destroy(c.m);
}

/* A prompt run whole, then the same continued by decode steps; against prefill of the longer prompt. */
static double logits_distance(const float *a_dev, const float *b_dev, uint32_t n)
{
    float *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b);
    gpu_download(a, a_dev, n * sizeof *a);
    gpu_download(b, b_dev, n * sizeof *b);
    double e = 0, r = 0;
    for (uint32_t i = 0; i < n; i++) {
        e += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        r += (double)b[i] * b[i];
    }
    free(a), free(b);
    return sqrt(e / r);
}

void gpu_check_model(void)
{
    enum { ROWS = 5, LONG = 700 };
    static const int32_t start[ROWS] = {300, 17, 256, 511, 699};
    char name[96];
    struct gm *m = gm_create(&gm_tiny, 4);
    const uint32_t vocab = m->s.vocab;
    int32_t tokens[LONG], *token = gpu_alloc(4);
    uint64_t seed = 8;
    float *want = gpu_alloc((size_t)ROWS * vocab * 4), *got = gpu_alloc((size_t)ROWS * vocab * 4);
    float *alone = gpu_alloc((size_t)ROWS * vocab * 4);
    for (int i = 0; i < LONG; i++) {
        tokens[i] = (int32_t)(gpu_rand(&seed) % vocab);
    }
    gm_kv(m, ROWS, 1024);
    /* want: prefill of start[r] + 1 tokens, its last logits; that also leaves the KV of sequence r in the pool */
    for (int r = 0; r < ROWS; r++) {
        const struct tk_chunk c = {0, start[r] + 1, 0, r};
        gm_prefill_prepare(m, &c, 1, tokens);
        gm_prefill(m, NULL, want + (size_t)r * vocab, token);
        CU(cudaDeviceSynchronize());
        gm_prefill_drop(m);
    }
    /* got: one decode step at position start[r] of all sequences at once, which writes the same token's KV again */
    int32_t lens[ROWS], pos[ROWS], toks[ROWS];
    for (int r = 0; r < ROWS; r++) {
        lens[r] = start[r] + 1;
        pos[r] = start[r];
        toks[r] = tokens[start[r]];
    }
    gm_decode_prepare(m, ROWS, 1);
    CU(cudaMemcpy(m->lens, lens, sizeof lens, cudaMemcpyHostToDevice));
    CU(cudaMemcpy(m->pos, pos, sizeof pos, cudaMemcpyHostToDevice));
    CU(cudaMemcpy(m->tokens, toks, sizeof toks, cudaMemcpyHostToDevice));
    m->logits = got;
    gm_step(m, NULL, false);
    CU(cudaDeviceSynchronize());
    for (int r = 0; r < ROWS; r++) {
        const double d = logits_distance(got + (size_t)r * vocab, want + (size_t)r * vocab, vocab);
        (void)snprintf(name, sizeof name, "model: decode after %d tokens near prefill (rel %.1e)",
                       start[r], d);
        gpu_expect(name, d < 2e-2);
    }
    gm_decode_drop(m);
    /* each row alone: bit-equal logits */
    for (int r = 0; r < ROWS; r++) {
        int32_t *keep = m->tables;
        gm_decode_prepare(m, 1, 1);
        m->tables = keep + (size_t)r * m->table_stride;
        CU(cudaMemcpy(m->lens, &lens[r], 4, cudaMemcpyHostToDevice));
        CU(cudaMemcpy(m->pos, &pos[r], 4, cudaMemcpyHostToDevice));
        CU(cudaMemcpy(m->tokens, &toks[r], 4, cudaMemcpyHostToDevice));
        m->logits = alone + (size_t)r * vocab;
        gm_step(m, NULL, false);
        CU(cudaDeviceSynchronize());
        m->tables = keep;
        gm_decode_drop(m);
    }
    (void)gpu_same_bits("model: a row alone = in its batch, logits", got, alone,
                        (size_t)ROWS * vocab * 4);
    m->logits = NULL;
    gm_kv_drop(m);
    gm_destroy(m);
    gpu_free(token), gpu_free(want), gpu_free(got), gpu_free(alone);
}
