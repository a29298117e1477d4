/* Whole layers in one launch (tk_layers) against a launch for attention and one for a chain of products: a decode step's time in
 * turn, and in builds for it (gpu-bench-times) where a layer's time goes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/gpu/gpu_cases.h"
#include "tests/bench/gpu/gpu_model.h"

#define SAMPLES 25
#define ROUNDS  3

static void do_step(void *ctx, tk_stream s, int i)
{
    gm_step(ctx, s, false);
    (void)i;
}

static const struct variant {
    const char *name;
    enum gm_products products;
    uint32_t group; /* layers of a launch; 0: all */
} variants[] = {
    {"step.chain", GM_CHAIN, 0},
    {"step.layers", GM_LAYERS, 0},
    {"step.layers by 1", GM_LAYERS, 1},
    {"step.layers by 8", GM_LAYERS, 8},
};
#define N_VARIANTS (sizeof variants / sizeof variants[0])

static void use(struct gm *m, const struct variant *v)
{
    m->products = v->products;
    m->group = v->group;
}

/* Every step from the same tokens: its head leaves others. */
static void same_bits(struct gm *m)
{
    const size_t bytes = (size_t)m->rows * m->s.hid * 2, ids = m->rows * sizeof *m->tokens;
    tk_bf16 *h = gpu_alloc(bytes);
    int32_t *tokens = gpu_alloc(ids);
    CU(cudaMemcpy(tokens, m->tokens, ids, cudaMemcpyDeviceToDevice));
    use(m, &variants[0]);
    gm_step(m, NULL, false);
    CU(cudaDeviceSynchronize());
    CU(cudaMemcpy(h, m->h, bytes, cudaMemcpyDeviceToDevice));
    CU(cudaMemcpy(m->tokens, tokens, ids, cudaMemcpyDeviceToDevice));
    use(m, &variants[1]);
    gm_step(m, NULL, false);
    (void)gpu_same_bits("layers: all of a model's, h", m->h, h, bytes);
    gpu_free(h), gpu_free(tokens);
}

static void step_case(struct gm *m, uint32_t rows, uint32_t ctx, size_t n_variants)
{
    gm_kv(m, rows, ctx);
    gm_decode_prepare(m, rows, ctx);
    same_bits(m);
    for (int r = 0; r < ROUNDS; r++) { /* turn by turn: the card warms up for all */
        for (size_t v = 0; v < n_variants; v++) {
            use(m, &variants[v]);
            m->layer_runs = 0;
            const struct gpu_time t = gpu_time_graph(do_step, m, 1, SAMPLES);
            gpu_say(variants[v].name, t, 0, 0, ", \"B\": %u, \"ctx\": %u, \"launches\": %u", rows,
                    ctx, m->layer_runs);
        }
    }
    use(m, &variants[0]);
    gm_decode_drop(m);
    gm_kv_drop(m);
}

void gpu_variants_layers(void)
{
    struct gm *m = gm_create(&gm_llama3_8b, 1);
    step_case(m, 1, 1024, N_VARIANTS);
    step_case(m, 2, 1024, N_VARIANTS);
    step_case(m, 1, 8192, N_VARIANTS);
    step_case(m, 4, 1024, N_VARIANTS);
    step_case(m, 8, 1024, 2);
    gm_destroy(m);
}

#ifdef TK_LAYER_TIMES
static double least(double a, double b)
{
    return a < b ? a : b;
}
static double most(double a, double b)
{
    return a > b ? a : b;
}

/* A stage of all layers but the first: from the end of the last block's qkv before, ns. */
struct lap {
    double first_input, last_input, first_end, last_end;
};

static void add_lap(struct lap *l, const uint64_t *t, uint32_t blocks, uint64_t began)
{
    struct lap x = {1e18, 0, 1e18, 0};
    for (uint32_t b = 0; b < blocks; b++) {
        if (t[(size_t)b * 2] != 0) {
            const double in = (double)(int64_t)(t[(size_t)b * 2] - began);
            x.first_input = least(x.first_input, in);
            x.last_input = most(x.last_input, in);
        }
        if (t[(size_t)b * 2 + 1] != 0) {
            const double end = (double)(int64_t)(t[(size_t)b * 2 + 1] - began);
            x.first_end = least(x.first_end, end);
            x.last_end = most(x.last_end, end);
        }
    }
    l->first_input += x.first_input;
    l->last_input += x.last_input;
    l->first_end += x.first_end;
    l->last_end += x.last_end;
}

/* How long before the last one a block ended gate+up, mean over the layers, us; by block. Whether slow SMs are always the same. */
static void say_blocks(const uint64_t *t, uint32_t stages, uint32_t blocks)
{
    printf("{\"name\": \"layers.times blocks\", \"gate+up us before the last\": [");
    for (uint32_t b = 0; b < blocks; b++) {
        double sum = 0;
        uint32_t n = 0;
        for (uint32_t s = TK_STAGES + 2; s < stages; s += TK_STAGES, n++) {
            uint64_t last = 0;
            for (uint32_t i = 0; i < blocks; i++) {
                const uint64_t x = t[((size_t)s * blocks + i) * 2 + 1];
                last = x > last ? x : last;
            }
            sum += (double)(last - t[((size_t)s * blocks + b) * 2 + 1]);
        }
        printf("%s%.1f", b == 0 ? "" : ", ", sum / n / 1e3);
    }
    printf("]}\n");
}

static void time_case(struct gm *m, uint32_t rows, uint32_t ctx)
{
    static const char *const kinds[] = {"attention", "o", "gate+up", "down", "qkv"};
    const uint32_t stages = m->s.layers * TK_STAGES;
    int sms = 0;
    CU(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    const uint32_t blocks = (uint32_t)sms;
    const size_t bytes = (size_t)stages * blocks * 2 * sizeof(uint64_t);
    uint64_t *t = malloc(bytes);
    struct lap laps[TK_STAGES] = {{0}};
    gm_kv(m, rows, ctx);
    gm_decode_prepare(m, rows, ctx);
    use(m, &variants[1]);
    m->layers.times = gpu_alloc(bytes);
    CU(cudaMemset(m->layers.times, 0, bytes));
    for (int i = 0; i < 5; i++) {
        gm_step(m, NULL, false);
    }
    gpu_download(t, m->layers.times, bytes);
    for (uint32_t s = TK_STAGES; s + 1 < stages; s++) {
        uint64_t began = 0; /* the last block's end of qkv before this layer */
        for (uint32_t b = 0; b < blocks; b++) {
            const uint64_t x = t[((size_t)(s / TK_STAGES * TK_STAGES - 1) * blocks + b) * 2 + 1];
            began = x > began ? x : began;
        }
        add_lap(&laps[s % TK_STAGES], t + (size_t)s * blocks * 2, blocks, began);
    }
    for (uint32_t k = 0; k < TK_STAGES; k++) {
        const double n = 1e3 * (m->s.layers - (k == TK_STAGES - 1 ? 2 : 1));
        printf("{\"name\": \"layers.times\", \"how\": \"%s\", \"B\": %u, \"ctx\": %u, "
               "\"stage\": \"%s\", \"us_input\": [%.2f, %.2f], \"us_end\": [%.2f, %.2f]}\n",
               variants[1].name, rows, ctx, kinds[k], laps[k].first_input / n,
               laps[k].last_input / n, laps[k].first_end / n, laps[k].last_end / n);
    }
    say_blocks(t, stages - 1, blocks);
    gpu_free(m->layers.times);
    m->layers.times = NULL;
    gm_decode_drop(m);
    gm_kv_drop(m);
    free(t);
}

void gpu_times_layers(void)
{
    struct gm *m = gm_create(&gm_llama3_8b, 1);
    time_case(m, 1, 1024);
    time_case(m, 4, 1024); /* o's tokens behind a count */
    time_case(m, 1, 8192);
    gm_destroy(m);
}
#else
void gpu_times_layers(void)
{
    (void)fprintf(stderr, "times-layers: only gpu-bench-times has them\n");
}
#endif

#ifdef TK_SPIN_MS
/* What the threads that waited too long said (spin.cuh), when the process ends because of them. */
static uint32_t *stuck;

static void say_stuck(void)
{
    static const char *const what[] = {"?",   "barrier", "done before stage", "part", "qkv",
                                       "row", "out"};
    for (uint32_t i = 0; i < *stuck && i < 60; i++) {
        const uint32_t *w = stuck + 1 + (size_t)i * 8;
        (void)fprintf(stderr, "stuck: block %u thread %u at %s %u (0x%x), seen %u\n", w[3], w[4],
                      what[w[0] % 7], w[1], w[1], w[2]);
    }
}

void gpu_layers_debug(struct tk_layers *l)
{
    if (stuck == NULL) {
        CU(cudaHostAlloc((void **)&stuck, 4096, cudaHostAllocMapped));
        memset(stuck, 0, 4096);
        (void)atexit(say_stuck);
    }
    l->stuck = stuck;
}
#else
void gpu_layers_debug(struct tk_layers *l)
{
    (void)l;
}
#endif
