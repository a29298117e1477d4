/* Whole layers in one launch (tk_layers): a decode step with them against one with a launch for each operation, bit by bit, again
 * and again, over contexts at the edges of chunks, pages and windows. KV blocks are shuffled. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/gpu/gpu_cases.h"
#include "tests/bench/gpu/gpu_model.h"

#define AGAIN     20
#define MOST_ROWS TK_LAYERS_ROWS

static const struct gm_shape shapes[] = {
    {3, 1024, 8, 2, 128, 2816, 4096},   /* fewer units than blocks */
    {2, 256, 2, 1, 128, 576, 512},      /* one tile or two, K never cut */
    {2, 4096, 32, 8, 128, 14336, 2048}, /* Llama-3-8B's */
    {3, 3584, 28, 4, 128, 18944, 1024}, /* Qwen2.5-7B's: 7 query heads to a KV head */
};

/* Lengths of the rows, the newest token included; 0: no row. */
static const struct batch {
    uint32_t rows, window;
    int32_t lens[MOST_ROWS];
} batches[] = {
    {1, 0, {1}},
    {1, 0, {2}},
    {1, 0, {16}},
    {1, 0, {17}},
    {1, 0, {255}},
    {1, 0, {256}},
    {1, 0, {257}},
    {1, 0, {1024}},
    {1, 0, {2048}},
    {1, 0, {2049}}, /* chunks of 512 */
    {1, 0, {8192}},
    {1, 300, {1024}},
    {1, 100, {1030}},
    {1, 4096, {8192}},
    {1, 1000, {5000}},
    {2, 0, {1024, 1}},
    {2, 0, {8192, 300}},
    {3, 0, {300, 17, 513}},
    {3, 40, {16, 41, 300}},
    {3, 0, {300, 0, 17}},
    {4, 0, {1024, 1024, 1024, 1024}},
    {8, 0, {1, 16, 17, 255, 256, 257, 511, 1024}},
    {8,
     0,
     {5, 257, 29, 43, 57, 71, 85,
      99}},      /* of few heads: blocks that have rows alone, of one chunk */
    {1, 0, {0}}, /* an empty plan: nothing to wait for */
};

/* What a step leaves. */
struct left {
    tk_bf16 *h, *att, *pool;
    float *logits;
};

static size_t pool_bytes(const struct gm *m)
{
    return m->pool.slice_bytes * m->pool.n_layers * m->pool.n_blocks;
}

static void copy_left(const struct gm *m, const struct left *s)
{
    const size_t r = m->rows;
    CU(cudaDeviceSynchronize());
    CU(cudaMemcpy(s->h, m->h, r * m->s.hid * 2, cudaMemcpyDeviceToDevice));
    CU(cudaMemcpy(s->att, m->att, r * m->s.heads * m->s.dim * 2, cudaMemcpyDeviceToDevice));
    CU(cudaMemcpy(s->logits, m->logits, r * m->s.vocab * 4, cudaMemcpyDeviceToDevice));
    CU(cudaMemcpy(s->pool, m->pool.base, pool_bytes(m), cudaMemcpyDeviceToDevice));
}

static void compare(const struct gm *m, const struct left *s, const struct batch *b,
                    const char *how)
{
    char name[160];
    const size_t r = m->rows;
    const int n =
        snprintf(name, sizeof name, "layers by %u %s: %u of %u, %d rows %d.. window %d: ", m->group,
                 how, m->s.hid, m->s.ffn, (int)r, b->lens[0], (int)b->window);
    char *what = name + n;
    const size_t room = sizeof name - (size_t)n;
    CU(cudaDeviceSynchronize());
    (void)snprintf(what, room, "attention");
    (void)gpu_same_bits(name, m->att, s->att, r * m->s.heads * m->s.dim * 2);
    (void)snprintf(what, room, "h");
    (void)gpu_same_bits(name, m->h, s->h, r * m->s.hid * 2);
    (void)snprintf(what, room, "logits");
    (void)gpu_same_bits(name, m->logits, s->logits, r * m->s.vocab * 4);
    (void)snprintf(what, room, "KV");
    (void)gpu_same_bits(name, m->pool.base, s->pool, pool_bytes(m));
}

/* One step from the same tokens and the same KV, without the newest tokens'. A row that is none keeps zeros. */
static void step(struct gm *m, enum gm_products how, uint32_t salt)
{
    int32_t tokens[MOST_ROWS];
    for (uint32_t i = 0; i < m->rows; i++) {
        tokens[i] = (int32_t)((i * 37 + 5 + salt * 11) % m->s.vocab);
    }
    m->products = how;
    CU(cudaMemcpy(m->tokens, tokens, m->rows * sizeof *tokens, cudaMemcpyHostToDevice));
    gm_step(m, NULL, false);
}

static void start(struct gm *m)
{
    gpu_fill_bf16(m->pool.base, pool_bytes(m) / 2, 1.f, 99);
    CU(cudaMemset(m->att, 0, (size_t)m->rows * m->s.heads * m->s.dim * 2));
    gpu_poison(m->act, (size_t)m->rows * m->s.ffn * 2);
    gpu_poison(m->q, (size_t)m->rows * m->qkv_w * 2);
    CU(cudaDeviceSynchronize());
}

/* Layers of a launch (0: all) move no bit. */
static const uint32_t groups[] = {0, 1, 2};

static void check_groups(struct gm *m, const struct left *want, const struct batch *b,
                         uint32_t again)
{
    for (size_t g = 0; g < sizeof groups / sizeof groups[0]; g++) {
        const uint32_t all = m->s.layers, by = groups[g] == 0 ? all : groups[g];
        m->group = groups[g];
        start(m);
        m->layer_runs = 0;
        step(m, GM_LAYERS, 0);
        compare(m, want, b, "once");
        for (uint32_t i = again; i > 0;
             i--) { /* others' numbers lie where too early a read looks */
            step(m, GM_LAYERS, i - 1);
        }
        compare(m, want, b, "again");
        gpu_expect("layers: computed by launches of whole layers",
                   m->layer_runs == (1 + again) * ((all + by - 1) / by));
    }
    m->group = 0;
}

static void check_batch(struct gm *m, const struct batch *b, uint32_t again)
{
    uint32_t most = 1;
    for (uint32_t i = 0; i < b->rows; i++) {
        most = (uint32_t)b->lens[i] > most ? (uint32_t)b->lens[i] : most;
    }
    gm_kv(m, b->rows, most);
    gm_decode_prepare(m, b->rows, most);
    CU(cudaMemcpy(m->lens, b->lens, b->rows * sizeof *b->lens, cudaMemcpyHostToDevice));
    m->window = b->window;
    m->logits = gpu_alloc((size_t)b->rows * m->s.vocab * 4);
    const struct left want = {gpu_alloc((size_t)b->rows * m->s.hid * 2),
                              gpu_alloc((size_t)b->rows * m->s.heads * m->s.dim * 2),
                              gpu_alloc(pool_bytes(m)),
                              gpu_alloc((size_t)b->rows * m->s.vocab * 4)};
    start(m);
    step(m, GM_LAUNCHES, 0);
    copy_left(m, &want);
    check_groups(m, &want, b, again);
    gpu_free(want.h), gpu_free(want.att), gpu_free(want.pool), gpu_free(want.logits);
    gpu_free(m->logits);
    m->logits = NULL;
    m->window = 0;
    gm_decode_drop(m);
    gm_kv_drop(m);
}

void gpu_check_layers(void)
{
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct gm *m = gm_create(&shapes[i], 7 + i);
        for (size_t k = 0; k < sizeof batches / sizeof batches[0]; k++) {
            check_batch(m, &batches[k], AGAIN);
        }
        gm_destroy(m);
    }
}

/* The smallest shape alone: a first look at a device. */
void gpu_check_layers_small(void)
{
    struct gm *m = gm_create(&shapes[1], 7);
    for (size_t k = 0; k < 8; k++) {
        check_batch(m, &batches[k], AGAIN);
    }
    gm_destroy(m);
}

/* For racecheck, under which a launch takes a third of a second: tokens that come with tags, and behind a count. */
void gpu_check_layers_race(void)
{
    static const struct batch few[] = {{1, 0, {300}}, {3, 0, {300, 17, 33}}};
    struct gm *m = gm_create(&shapes[1], 7);
    for (size_t k = 0; k < sizeof few / sizeof few[0]; k++) {
        check_batch(m, &few[k], 1);
    }
    gm_destroy(m);
}
