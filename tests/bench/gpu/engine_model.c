#include "tests/bench/gpu/engine_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/tiny/tiny_gguf.h"

enum { LAYERS = 32, EMBD = 4096, FFN = 14336, HEADS = 32, KV_HEADS = 8, DIM = 128, VOCAB = 128256 };

static void require(bool ok, const char *what)
{
    if (!ok) {
        (void)fprintf(stderr, "engine-check: %s\n", what);
        exit(2);
    }
}

struct em em_tiny(uint32_t n_layers, uint32_t n_embd, uint32_t n_heads, uint32_t n_kv_heads)
{
    struct td_tiny_params p = td_tiny_defaults();
    struct em e = {0};
    p.type = "bf16";
    p.n_layers = n_layers;
    p.n_embd = n_embd;
    p.n_ffn = 2048;
    p.n_heads = n_heads;
    p.n_kv_heads = n_kv_heads;
    td_buf_init(&e.file, TD_TINY_MAX_BYTES);
    require(td_tiny_write(&p, &e.file) == TD_OK, "cannot make a tiny model");
    require(td_model_open_memory(e.file.data, e.file.len, "tiny", &e.m) == TD_OK,
            "cannot open a tiny model");
    return e;
}

struct em em_open(const char *path)
{
    struct em e = {0};
    td_buf_init(&e.file, 1);
    require(td_model_open(path, &e.m) == TD_OK, path);
    return e;
}

/* Rows of bf16 over the shared buffer, from an offset that differs from tensor to tensor. */
static struct td_weight matrix(const void *random, uint32_t rows, uint32_t cols)
{
    return (struct td_weight){.dtype = TD_DTYPE_BF16,
                              .rows = rows,
                              .cols = cols,
                              .row_bytes = cols * 2ull,
                              .data = random};
}

static struct td_weight vector(const float *ones, uint32_t n)
{
    return (struct td_weight){
        .dtype = TD_DTYPE_F32, .rows = 1, .cols = n, .row_bytes = n * 4ull, .data = ones};
}

/* Uniform, as wide as a matrix of EMBD columns wants: logits then spread a few units. */
static void fill_random(uint16_t *p, size_t n)
{
    struct td_rng r = {11};
    for (size_t i = 0; i < n; i += 4) {
        uint64_t v = td_rng_next(&r);
        for (int k = 0; k < 4; k++, v >>= 16) {
            float f = ((float)(v & 0xffff) / 32768.0f - 1.0f) * 0.027f;
            uint32_t u;
            memcpy(&u, &f, sizeof u);
            p[i + (size_t)k] = (uint16_t)(u >> 16);
        }
    }
}

struct em em_llama3_8b(void)
{
    struct em e = {0};
    const size_t n = (size_t)VOCAB * EMBD;
    struct td_model *m = calloc(1, sizeof *m);
    float *ones = calloc(EMBD, sizeof *ones);
    uint16_t *random = malloc((n + LAYERS * 64) * sizeof *random);
    td_buf_init(&e.file, 1);
    require(m != NULL && ones != NULL && random != NULL, "out of memory");
    m->layers = calloc(LAYERS, sizeof *m->layers);
    m->rope_freq = calloc(DIM / 2, sizeof *m->rope_freq);
    require(m->layers != NULL && m->rope_freq != NULL, "out of memory");
    fill_random(random, n + LAYERS * 64);
    for (uint32_t i = 0; i < EMBD; i++) {
        ones[i] = 1;
    }
    for (uint32_t i = 0; i < DIM / 2; i++) {
        m->rope_freq[i] = (float)pow(5e5, -2.0 * i / DIM);
    }
    m->hp = (struct td_hparams){.n_layers = LAYERS,
                                .n_embd = EMBD,
                                .n_ffn = FFN,
                                .n_heads = HEADS,
                                .n_kv_heads = KV_HEADS,
                                .head_dim = DIM,
                                .n_vocab = VOCAB,
                                .n_ctx = 8448,
                                .rms_eps = 1e-5f,
                                .rope_style = TD_ROPE_HALVES,
                                .rope_dim = DIM,
                                .rope_theta = 5e5f};
    for (uint32_t i = 0; i < LAYERS; i++) {
        const uint16_t *at = random + (size_t)i * 64;
        m->layers[i] = (struct td_layer){.attn_norm = vector(ones, EMBD),
                                         .wq = matrix(at, HEADS * DIM, EMBD),
                                         .wk = matrix(at + 16, KV_HEADS * DIM, EMBD),
                                         .wv = matrix(at + 24, KV_HEADS * DIM, EMBD),
                                         .wo = matrix(at + 32, EMBD, HEADS * DIM),
                                         .ffn_norm = vector(ones, EMBD),
                                         .gate = matrix(at + 40, FFN, EMBD),
                                         .up = matrix(at + 48, FFN, EMBD),
                                         .down = matrix(at + 56, EMBD, FFN)};
    }
    m->token_embd = matrix(random + 8, VOCAB, EMBD);
    m->output = matrix(random, VOCAB, EMBD);
    m->output_norm = vector(ones, EMBD);
    m->weight_bytes = 16060522496ull;
    e.m = m;
    e.random = random;
    return e;
}

void em_close(struct em *e)
{
    if (e->random != NULL) {
        free((void *)(uintptr_t)e->m->output_norm.data);
        free(e->m->layers);
        free(e->m->rope_freq);
        free(e->m);
        free(e->random);
    } else {
        (void)td_model_close(e->m);
        td_buf_fini(&e->file);
    }
}
