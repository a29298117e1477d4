/* Timing of single operations on random data: ceilings, flat products, decode and prefill attention. */
#include "tests/bench/gpu/gpu_cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES    25
#define COLD_BYTES ((size_t)400 << 20) /* a rotation longer than several L2 */

/* ---- ceilings ---- */
struct ceiling {
    void *a, *b;
    size_t bytes;
    struct tk_lt *lt;
    struct tk_lt_product p;
};
static void do_copy(void *ctx, tk_stream s, int i)
{
    const struct ceiling *c = ctx;
    CU(cudaMemcpyAsync(c->b, c->a, c->bytes, cudaMemcpyDeviceToDevice, s));
    (void)i;
}
static void do_read(void *ctx, tk_stream s, int i)
{
    const struct ceiling *c = ctx;
    gpu_read_sweep(s, c->a, c->bytes, c->b);
    (void)i;
}
static void do_matmul(void *ctx, tk_stream s, int i)
{
    const struct ceiling *c = ctx;
    TK(tk_lt_run(c->lt, s, &c->p));
    (void)i;
}

void gpu_bench_ceiling(void)
{
    struct ceiling c = {.bytes = (size_t)2 << 30};
    c.a = gpu_random_bf16(c.bytes / 2, 1.f, 1);
    c.b = gpu_alloc(c.bytes);
    gpu_say("ceiling.copy", gpu_time_stream(do_copy, &c, SAMPLES), 2.0 * (double)c.bytes, 0, "%s",
            "");
    gpu_say("ceiling.read", gpu_time_stream(do_read, &c, SAMPLES), (double)c.bytes, 0, "%s", "");
    for (uint32_t n = 4096; n <= 8192; n *= 2) {
        c.p = (struct tk_lt_product){c.a, (tk_bf16 *)c.a + (size_t)n * n, NULL, c.b, n, n, n, n, n};
        TK(tk_lt_create((size_t)64 << 20, &c.lt));
        TK(tk_lt_plan(c.lt, NULL, &c.p, true));
        gpu_say("ceiling.matmul", gpu_time_stream(do_matmul, &c, SAMPLES), 0, 2.0 * n * n * n,
                ", \"n\": %u", n);
        c.lt = tk_lt_destroy(c.lt);
    }
    gpu_free(c.a);
    gpu_free(c.b);
}

/* ---- flat products ---- */
struct flat_bench {
    struct tk_map *w;
    struct tk_map x;
    struct tk_flat a;
    int copies;
};
static void do_flat(void *ctx, tk_stream s, int i)
{
    struct flat_bench *b = ctx;
    struct tk_flat a = b->a;
    a.w = &b->w[i % b->copies];
    a.pdl = i > 0;
    TK(tk_flat(s, &a));
}

static void bench_flat_shape(const char *name, uint32_t n, uint32_t k, enum tk_flat_mode mode,
                             bool tiled)
{
    const uint32_t rows_list[] = {1, 8, 16, 32, 64};
    const size_t w_bytes = (size_t)n * k * 2;
    struct flat_bench b;
    memset(&b, 0, sizeof b);
    b.copies = (int)(COLD_BYTES / w_bytes) + 2;
    b.w = calloc((size_t)b.copies, sizeof *b.w);
    tk_bf16 *w = gpu_random_bf16((size_t)n * k * (size_t)b.copies, 0.02f, 1);
    for (int i = 0; i < b.copies; i++) {
        TK(tk_flat_w_map(w + (size_t)i * n * k, n, k, tiled, &b.w[i]));
    }
    tk_bf16 *x = gpu_random_bf16((size_t)64 * k, 1.f, 2), *gain = gpu_random_bf16(n, 1.f, 3);
    tk_bf16 *out = gpu_alloc((size_t)64 * n * 2), *h = gpu_random_bf16((size_t)64 * n, 1.f, 4);
    float *ss = gpu_alloc((size_t)TK_NORM_PARTS * TK_MAX_ROWS * 4),
          *bv = gpu_alloc(TK_ARGMAX_PARTS * TK_MAX_ROWS * 4);
    int32_t *bi = gpu_alloc(TK_ARGMAX_PARTS * TK_MAX_ROWS * 4);
    CU(cudaMemset(ss, 0x3c, (size_t)TK_NORM_PARTS * TK_MAX_ROWS * 4));
    const bool normed = mode != TK_FLAT_RESIDUAL;
    for (size_t r = 0; r < sizeof rows_list / sizeof rows_list[0]; r++) {
        const uint32_t rows = rows_list[r];
        TK(tk_flat_x_map(x, rows, k, k, &b.x));
        b.a = (struct tk_flat){.x = &b.x,
                               .rows = rows,
                               .n = n,
                               .k = k,
                               .mode = mode,
                               .out = out,
                               .out_stride = mode == TK_FLAT_SWIGLU ? n / 2 : n,
                               .h = h,
                               .hg = out,
                               .gain = gain,
                               .sumsq = ss,
                               .best_val = bv,
                               .best_idx = bi,
                               .norm = {ss, normed ? 128 : 0, k, 1e-5f}};
        const struct gpu_time t = gpu_time_graph(do_flat, &b, 2 * b.copies, SAMPLES);
        gpu_say("flat", t, (double)w_bytes, 2.0 * rows * n * k,
                ", \"op\": \"%s\", \"rows\": %u, \"n\": %u, \"k\": %u, \"tiled\": %s", name, rows,
                n, k, tiled ? "true" : "false");
    }
    gpu_free(w), gpu_free(x), gpu_free(gain), gpu_free(out), gpu_free(h), gpu_free(ss),
        gpu_free(bv), gpu_free(bi);
    free(b.w);
}

void gpu_bench_flat(void)
{
    for (int tiled = 0; tiled < 2; tiled++) {
        bench_flat_shape("qkv", 6144, 4096, TK_FLAT_STORE, tiled);
        bench_flat_shape("o", 4096, 4096, TK_FLAT_RESIDUAL, tiled);
        bench_flat_shape("gate_up", 28672, 4096, TK_FLAT_SWIGLU, tiled);
        bench_flat_shape("down", 4096, 14336, TK_FLAT_RESIDUAL, tiled);
        bench_flat_shape("head", 128256, 4096, TK_FLAT_ARGMAX, tiled);
    }
}

/* ---- attention ---- */
enum { HQ = 32, HKV = 8, DIM = 128 };

struct attn_bench {
    struct tk_map kv, q, maps[32];
    struct tk_attn_decode d;
    struct tk_attn_prefill p;
    uint32_t layers;
    bool rotate;
};
static void do_decode(void *ctx, tk_stream s, int i)
{
    struct attn_bench *b = ctx;
    struct tk_attn_decode d = b->d;
    d.kv = &b->maps[b->rotate ? (uint32_t)i % b->layers : 0];
    d.pdl = i > 0;
    TK(tk_attn_decode(s, &d));
}
static void do_prefill(void *ctx, tk_stream s, int i)
{
    const struct attn_bench *b = ctx;
    TK(tk_attn_prefill(s, &b->p));
    (void)i;
}

static struct tk_kv_pool random_pool(uint32_t blocks, uint32_t layers)
{
    const size_t slice = tk_kv_slice_bytes(HKV, DIM, 0);
    const struct tk_kv_pool p = {
        gpu_random_bf16(slice / 2 * layers * blocks, 1.f, 9), blocks, layers, HKV, DIM, 0, slice};
    return p;
}

static void time_decode(struct attn_bench *b, uint32_t batch, uint32_t ctx)
{
    const double kv_bytes = (double)batch * ctx * HKV * DIM * 4;
    for (int rotate = 0; rotate < 2; rotate++) {
        b->rotate = rotate;
        const struct gpu_time t =
            gpu_time_graph(do_decode, b, rotate ? 2 * (int)b->layers : 10, SAMPLES);
        gpu_say(rotate ? "decode.rotated" : "decode", t, kv_bytes, 0, ", \"B\": %u, \"ctx\": %u",
                batch, ctx);
    }
}

/* At the contexts timed here the engine's classes (td__cu_class_entries) say exactly the entries there are. */
static void bench_decode_case(uint32_t batch, uint32_t ctx)
{
    const uint32_t per = (ctx + TK_BLOCK_TOK - 1) / TK_BLOCK_TOK;
    const size_t kv_bytes = (size_t)batch * ctx * HKV * DIM * 4;
    struct attn_bench b;
    memset(&b, 0, sizeof b);
    b.layers = (uint32_t)(COLD_BYTES / kv_bytes) + 2;
    b.layers = b.layers > 32 ? 32 : b.layers;
    const struct tk_kv_pool pool = random_pool(batch * per, b.layers);
    for (uint32_t l = 0; l < b.layers; l++) {
        TK(tk_kv_decode_map(&pool, l, &b.maps[l]));
    }
    int32_t *tab = malloc((size_t)batch * per * 4), *lens = malloc(batch * sizeof *lens);
    gpu_shuffle(tab, (int32_t)(batch * per), 3);
    for (uint32_t i = 0; i < batch; i++) {
        lens[i] = (int32_t)ctx;
    }
    const uint32_t cap = batch * tk_seq_entries(ctx);
    const size_t words = (size_t)1 + TK_MAX_SEQS + cap;
    const size_t sb = tk_attn_decode_scratch(HKV, HQ / HKV, DIM, cap);
    b.d = (struct tk_attn_decode){.q = gpu_random_bf16((size_t)batch * HQ * DIM, 1.f, 7),
                                  .out = gpu_alloc((size_t)batch * HQ * DIM * 2),
                                  .lens = gpu_upload(lens, batch * sizeof *lens),
                                  .tables = gpu_upload(tab, (size_t)batch * per * 4),
                                  .plan = gpu_alloc(words * 4),
                                  .scratch = gpu_alloc(sb),
                                  .n_seqs = batch,
                                  .n_heads = HQ,
                                  .n_kv_heads = HKV,
                                  .head_dim = DIM,
                                  .table_stride = per,
                                  .q_stride = HQ * DIM,
                                  .out_stride = HQ * DIM,
                                  .max_entries = cap,
                                  .scale = 1.f / sqrtf(DIM)};
    CU(cudaMemset(b.d.scratch, 0, sb));
    TK(tk_plan_device(NULL, b.d.lens, batch, (uint32_t *)(uintptr_t)b.d.plan, words));
    CU(cudaDeviceSynchronize());
    time_decode(&b, batch, ctx);
    gpu_free(pool.base);
    gpu_free((void *)(uintptr_t)b.d.q), gpu_free(b.d.out), gpu_free((void *)(uintptr_t)b.d.lens);
    gpu_free((void *)(uintptr_t)b.d.tables), gpu_free((void *)(uintptr_t)b.d.plan),
        gpu_free(b.d.scratch);
    free(tab), free(lens);
}

void gpu_bench_decode(void)
{
    const uint32_t cases[][2] = {{1, 1024},  {1, 8192},  {1, 32768}, {8, 1024},
                                 {16, 1024}, {64, 1024}, {64, 4096}, {128, 1024}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bench_decode_case(cases[i][0], cases[i][1]);
    }
}

static void bench_prefill_case(uint32_t s)
{
    const uint32_t per = (s + TK_BLOCK_TOK - 1) / TK_BLOCK_TOK;
    struct attn_bench b;
    memset(&b, 0, sizeof b);
    const struct tk_kv_pool pool = random_pool(per, 1);
    int32_t *tab = malloc(per * 4u);
    uint32_t *tiles = malloc((s / TK_TILE_ROWS + 1) * 4u), n_tiles = 0;
    const struct tk_chunk chunk = {0, (int32_t)s, 0, 0};
    tk_bf16 *q = gpu_random_bf16((size_t)s * HQ * DIM, 1.f, 7);
    gpu_shuffle(tab, (int32_t)per, 3);
    TK(tk_kv_map(&pool, &b.kv));
    TK(tk_rows_map(q, s, HQ, DIM, HQ * DIM, &b.q));
    TK(tk_tiles_host(&chunk, 1, tiles, s / TK_TILE_ROWS + 1, &n_tiles));
    b.p = (struct tk_attn_prefill){.kv = &b.kv,
                                   .q = &b.q,
                                   .out = gpu_alloc((size_t)s * HQ * DIM * 2),
                                   .chunks = gpu_upload(&chunk, sizeof chunk),
                                   .tiles = gpu_upload(tiles, n_tiles * 4u),
                                   .tables = gpu_upload(tab, per * 4u),
                                   .n_tiles = n_tiles,
                                   .n_heads = HQ,
                                   .n_kv_heads = HKV,
                                   .head_dim = DIM,
                                   .table_stride = per,
                                   .out_stride = HQ * DIM,
                                   .scale = 1.f / sqrtf(DIM)};
    gpu_say("attn", gpu_time_stream(do_prefill, &b, SAMPLES), 0, 2.0 * HQ * DIM * (double)s * s,
            ", \"S\": %u", s);
    gpu_free(pool.base), gpu_free(q), gpu_free(b.p.out), gpu_free((void *)(uintptr_t)b.p.chunks);
    gpu_free((void *)(uintptr_t)b.p.tiles), gpu_free((void *)(uintptr_t)b.p.tables);
    free(tab), free(tiles);
}

void gpu_bench_prefill(void)
{
    for (uint32_t s = 512; s <= 32768; s *= 4) {
        bench_prefill_case(s);
    }
}
