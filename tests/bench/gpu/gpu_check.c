/* Correctness of the CUDA operations on a device: float64 references over odd shapes, ragged batches, poisoned outputs
 * and pools, shuffled block tables; and bit-equality where the header promises it. */
#include "tests/bench/gpu/gpu_cases.h"
#include "tests/bench/gpu/gpu_kv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOL_ATTN 6e-3 /* P and the output are rounded to bf16 */
#define TOL_FLAT 4e-3 /* the output is rounded to bf16 */

/* Entries that decode attention is told of beyond those that there are: its grid and its pages in flight follow from their
 * number. No bit may depend on it. */
static uint32_t spare_entries;

/* Runs decode attention over sequences first .. first + n - 1 of the case. */
/* NOLINTNEXTLINE(readability-function-size): a case has this many knobs */
static void run_decode(const struct gpu_kv *c, const tk_bf16 *q, tk_bf16 *out, uint32_t n_heads,
                       uint32_t layer, uint32_t first, uint32_t n, uint32_t window, bool host_plan)
{
    const uint32_t dim = c->pool.head_dim, kvh = c->pool.n_kv_heads;
    int32_t *lens = malloc(c->n_seqs * sizeof *lens);
    uint32_t total = 0, entries = 0;
    gpu_download(lens, c->lens, c->n_seqs * sizeof *lens);
    for (uint32_t i = 0; i < n; i++) {
        total += (uint32_t)lens[first + i];
    }
    const size_t words = tk_plan_words(n, total);
    uint32_t *plan_h = calloc(words, sizeof *plan_h);
    TK(tk_plan_window_host(lens + first, n, window, plan_h, words, &entries));
    uint32_t *plan = gpu_upload(plan_h, words * sizeof *plan_h);
    if (!host_plan) {
        CU(cudaMemset(plan, 0xff, words * sizeof *plan));
        TK(tk_plan_window_device(NULL, c->lens + first, n, window, plan, words));
    }
    const uint32_t cap = entries + spare_entries;
    const size_t sb = tk_attn_decode_scratch(kvh, n_heads / kvh, dim, cap);
    void *scratch = gpu_alloc(sb);
    gpu_poison(scratch, sb);
    CU(cudaMemset(scratch, 0, tk_attn_decode_counters(kvh)));
    struct tk_map map;
    TK(tk_kv_decode_map(&c->pool, layer, &map));
    const struct tk_attn_decode a = {.kv = &map,
                                     .q = q + (size_t)first * n_heads * dim,
                                     .out = out + (size_t)first * n_heads * dim,
                                     .lens = c->lens + first,
                                     .tables = c->tables + (size_t)first * c->stride,
                                     .plan = plan,
                                     .scratch = scratch,
                                     .n_seqs = n,
                                     .n_heads = n_heads,
                                     .n_kv_heads = kvh,
                                     .head_dim = dim,
                                     .table_stride = c->stride,
                                     .q_stride = n_heads * dim,
                                     .out_stride = n_heads * dim,
                                     .max_entries = cap,
                                     .scale = 1.f / sqrtf((float)dim),
                                     .pdl = false,
                                     .window = window};
    TK(tk_attn_decode(NULL, &a));
    TK(tk_attn_decode(NULL, &a)); /* the counters must be back at zero */
    CU(cudaDeviceSynchronize());
    gpu_free(plan);
    gpu_free(scratch);
    free(plan_h);
    free(lens);
}

/* NOLINTNEXTLINE(readability-function-size): a case has this many knobs */
static void check_decode_shape(uint32_t heads, uint32_t kvh, uint32_t dim, const int32_t *lens,
                               uint32_t n, uint32_t header, uint32_t window)
{
    char name[128];
    struct gpu_kv c = gpu_kv_make(lens, n, kvh, dim, 2, header, 11);
    const size_t elems = (size_t)n * heads * dim;
    tk_bf16 *q = gpu_random_bf16(elems, 1.f, 5), *out = gpu_alloc(elems * 2),
            *alone = gpu_alloc(elems * 2);
    float *want = gpu_alloc(elems * 4);
    struct gpu_ref_row *rows = malloc(n * sizeof *rows);
    for (uint32_t i = 0; i < n; i++) {
        rows[i] =
            (struct gpu_ref_row){(int32_t)i, lens[i], tk_window_start(lens[i], (int32_t)window)};
        gpu_kv_hide(&c, i, rows[i].from);
    }
    struct gpu_ref_row *rows_dev = gpu_upload(rows, n * sizeof *rows);
    const uint32_t layer = 1;
    gpu_poison(out, elems * 2);
    gpu_poison(alone, elems * 2);
    run_decode(&c, q, out, heads, layer, 0, n, window, false);
    gpu_ref_attn(q, heads * dim, rows_dev, n, heads, &c.pool, layer, c.tables, c.stride,
                 1.f / sqrtf((float)dim), want);
    (void)snprintf(name, sizeof name, "decode %u/%u x %u, %u sequences, header %u, window %u",
                   heads, kvh, dim, n, header, window);
    (void)gpu_close(name, out, heads * dim, want, n, heads * dim, TOL_ATTN);
    for (uint32_t i = 0; i < n; i++) {
        run_decode(&c, q, alone, heads, layer, i, 1, window, true);
    }
    (void)snprintf(name, sizeof name, "decode %u/%u x %u, window %u: alone = in its batch", heads,
                   kvh, dim, window);
    (void)gpu_same_bits(name, out, alone, elems * 2);
    static const uint32_t spares[] = {7, 1000};
    for (size_t i = 0; i < sizeof spares / sizeof spares[0]; i++) {
        spare_entries = spares[i];
        gpu_poison(alone, elems * 2);
        run_decode(&c, q, alone, heads, layer, 0, n, window, false);
        (void)snprintf(name, sizeof name, "decode %u/%u x %u: room for %u more", heads, kvh, dim,
                       spare_entries);
        (void)gpu_same_bits(name, out, alone, elems * 2);
    }
    spare_entries = 0;
    gpu_kv_drop(&c);
    gpu_free(q);
    gpu_free(out);
    gpu_free(alone);
    gpu_free(want);
    gpu_free(rows_dev);
    free(rows);
}

void gpu_check_decode(void)
{
    const int32_t lens[] = {1,   15,  16,   17,   255, 256,  257, 300,
                            511, 513, 1000, 2049, 31,  4097, 64,  777};
    check_decode_shape(32, 8, 128, lens, 16, 0, 0);
    check_decode_shape(28, 4, 128, lens, 13, 128, 0);
    check_decode_shape(9, 3, 64, lens, 16, 0, 0);
    check_decode_shape(8, 8, 128, lens, 5, 0, 0);
    const int32_t one[] = {9000};
    check_decode_shape(32, 8, 128, one, 1, 0, 0);
    check_decode_shape(32, 8, 128, lens, 16, 0, 1);
    check_decode_shape(28, 4, 128, lens, 16, 0, 100);
    check_decode_shape(9, 3, 64, lens, 16, 128, 300);
    check_decode_shape(32, 8, 128, lens, 16, 0, 1024);
}

/* ---- flat products ---- */
struct flat_case {
    struct tk_map w, x;
    tk_bf16 *wp, *xp;
    float *want; /* raw product, device */
    uint32_t rows, n, k;
    bool tiled;
};

static struct flat_case flat_make(uint32_t rows, uint32_t n, uint32_t k, bool tiled)
{
    struct flat_case c = {.rows = rows, .n = n, .k = k, .tiled = tiled};
    const uint32_t n_mem = (n + TK_FLAT_ROWS - 1) / TK_FLAT_ROWS * TK_FLAT_ROWS;
    c.wp = gpu_random_bf16((size_t)n_mem * k, 1.f / sqrtf((float)k), 3);
    c.xp = gpu_random_bf16((size_t)TK_MAX_ROWS * k, 1.f, 4);
    c.want = gpu_alloc((size_t)rows * n * 4);
    gpu_ref_product(c.xp, k, c.wp, tiled, rows, n, k, c.want);
    TK(tk_flat_w_map(c.wp, n, k, tiled, &c.w));
    TK(tk_flat_x_map(c.xp, rows, k, k, &c.x));
    return c;
}

static void flat_drop(struct flat_case *c)
{
    gpu_free(c->wp);
    gpu_free(c->xp);
    gpu_free(c->want);
}

static void check_store(uint32_t rows, uint32_t n, uint32_t k, bool tiled)
{
    char name[128];
    struct flat_case c = flat_make(rows, n, k, tiled);
    tk_bf16 *out = gpu_alloc((size_t)TK_MAX_ROWS * n * 2), *alone = gpu_alloc((size_t)rows * n * 2);
    struct tk_flat a = {.w = &c.w,
                        .x = &c.x,
                        .rows = rows,
                        .n = n,
                        .k = k,
                        .mode = TK_FLAT_STORE,
                        .out = out,
                        .out_stride = n};
    gpu_poison(out, (size_t)TK_MAX_ROWS * n * 2);
    TK(tk_flat(NULL, &a));
    (void)snprintf(name, sizeof name, "flat store %u x %u x %u%s", rows, n, k,
                   tiled ? " tiled" : "");
    (void)gpu_close(name, out, n, c.want, rows, n, TOL_FLAT);
    gpu_poison(alone, (size_t)rows * n * 2);
    for (uint32_t r = 0; r < rows; r++) {
        struct tk_map x1;
        struct tk_flat b = a;
        TK(tk_flat_x_map(c.xp + (size_t)r * k, 1, k, k, &x1));
        b.x = &x1;
        b.rows = 1;
        b.out = alone + (size_t)r * n;
        TK(tk_flat(NULL, &b));
    }
    (void)snprintf(name, sizeof name, "flat %u x %u x %u: a row alone = in its batch", rows, n, k);
    (void)gpu_same_bits(name, out, alone, (size_t)rows * n * 2);
    gpu_free(out);
    gpu_free(alone);
    flat_drop(&c);
}

static void check_residual(uint32_t rows, uint32_t n, uint32_t k)
{
    char name[128];
    struct flat_case c = flat_make(rows, n, k, false);
    const size_t elems = (size_t)rows * n;
    const uint32_t parts = tk_flat_norm_parts(n);
    tk_bf16 *h = gpu_random_bf16(elems, 1.f, 8), *hg = gpu_alloc(elems * 2),
            *gain = gpu_random_bf16(n, 1.f, 9);
    float *sumsq = gpu_alloc((size_t)parts * TK_MAX_ROWS * 4), *want = malloc(elems * 4),
          *y = malloc(elems * 4);
    float *ss = malloc((size_t)parts * TK_MAX_ROWS * 4);
    tk_bf16 *h0 = malloc(elems * 2), *g = malloc(n * 2u);
    gpu_download(h0, h, elems * 2);
    gpu_download(g, gain, n * 2u);
    gpu_download(y, c.want, elems * 4);
    gpu_poison(hg, elems * 2);
    gpu_poison(sumsq, (size_t)parts * TK_MAX_ROWS * 4);
    const struct tk_flat a = {.w = &c.w,
                              .x = &c.x,
                              .rows = rows,
                              .n = n,
                              .k = k,
                              .mode = TK_FLAT_RESIDUAL,
                              .h = h,
                              .hg = hg,
                              .gain = gain,
                              .sumsq = sumsq};
    TK(tk_flat(NULL, &a));
    for (size_t i = 0; i < elems; i++) {
        want[i] = gpu_bf16_to_float(h0[i]) + y[i];
    }
    float *want_dev = gpu_upload(want, elems * 4);
    (void)snprintf(name, sizeof name, "flat residual %u x %u x %u: h", rows, n, k);
    (void)gpu_close(name, h, n, want_dev, rows, n, TOL_FLAT);
    gpu_download(h0, h, elems * 2);
    gpu_download(ss, sumsq, (size_t)parts * TK_MAX_ROWS * 4);
    bool ok = true;
    for (uint32_t r = 0; r < rows; r++) {
        double want_ss = 0, got = 0;
        for (uint32_t i = 0; i < n; i++) {
            const double v = (double)gpu_bf16_to_float(h0[(size_t)r * n + i]);
            want_ss += v * v;
            want[(size_t)r * n + i] = (float)v * gpu_bf16_to_float(g[i]);
        }
        for (uint32_t p = 0; p < parts; p++) {
            got += (double)ss[p * TK_MAX_ROWS + r];
        }
        ok = ok && fabs(got - want_ss) <= 1e-5 * want_ss;
    }
    (void)snprintf(name, sizeof name, "flat residual %u x %u x %u: sums of squares", rows, n, k);
    gpu_expect(name, ok);
    CU(cudaMemcpy(want_dev, want, elems * 4, cudaMemcpyHostToDevice));
    (void)snprintf(name, sizeof name, "flat residual %u x %u x %u: h gain", rows, n, k);
    (void)gpu_close(name, hg, n, want_dev, rows, n, TOL_FLAT);
    gpu_free(h), gpu_free(hg), gpu_free(gain), gpu_free(sumsq), gpu_free(want_dev);
    free(want), free(y), free(ss), free(h0), free(g);
    flat_drop(&c);
}

/* Sums of squares whose scale is known, for the modes that use one. */
static float *known_norm(uint32_t parts, uint32_t dim, float *scale)
{
    float *ss = malloc((size_t)parts * TK_MAX_ROWS * 4);
    uint64_t seed = 77;
    for (uint32_t r = 0; r < TK_MAX_ROWS; r++) {
        double sum = 0;
        for (uint32_t p = 0; p < parts; p++) {
            ss[p * TK_MAX_ROWS + r] = (float)(gpu_rand(&seed) % 1000 + 1) / 10.f;
            sum += (double)ss[p * TK_MAX_ROWS + r];
        }
        scale[r] = (float)(1.0 / sqrt(sum / dim + 1e-5));
    }
    float *dev = gpu_upload(ss, (size_t)parts * TK_MAX_ROWS * 4);
    free(ss);
    return dev;
}

static void check_swiglu(uint32_t rows, uint32_t n, uint32_t k, uint32_t parts)
{
    char name[128];
    struct flat_case c = flat_make(rows, n, k, false);
    const uint32_t f = n / 2;
    float scale[TK_MAX_ROWS], *y = malloc((size_t)rows * n * 4),
                              *want = malloc((size_t)rows * f * 4);
    float *ss = known_norm(parts, k, scale);
    tk_bf16 *out = gpu_alloc((size_t)rows * f * 2);
    gpu_poison(out, (size_t)rows * f * 2);
    gpu_download(y, c.want, (size_t)rows * n * 4);
    const struct tk_flat a = {.w = &c.w,
                              .x = &c.x,
                              .rows = rows,
                              .n = n,
                              .k = k,
                              .mode = TK_FLAT_SWIGLU,
                              .out = out,
                              .out_stride = f,
                              .norm = {ss, parts, k, 1e-5f}};
    TK(tk_flat(NULL, &a));
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t i = 0; i < f; i++) {
            const float g = scale[r] * y[(size_t)r * n + i / 8 * 16 + i % 8];
            const float u = scale[r] * y[(size_t)r * n + i / 8 * 16 + 8 + i % 8];
            want[(size_t)r * f + i] = g / (1.f + expf(-g)) * u;
        }
    }
    float *want_dev = gpu_upload(want, (size_t)rows * f * 4);
    (void)snprintf(name, sizeof name, "flat swiglu %u x %u x %u, %u norm parts", rows, n, k, parts);
    (void)gpu_close(name, out, f, want_dev, rows, f, TOL_FLAT);
    gpu_free(out), gpu_free(ss), gpu_free(want_dev);
    free(y), free(want);
    flat_drop(&c);
}

static void check_argmax(uint32_t rows, uint32_t n, uint32_t k)
{
    char name[128];
    struct flat_case c = flat_make(rows, n, k, false);
    const uint32_t parts = tk_flat_argmax_parts(n);
    float *y = malloc((size_t)rows * n * 4), *bv = gpu_alloc((size_t)parts * TK_MAX_ROWS * 4);
    float *logits = gpu_alloc((size_t)rows * n * 4), *got = malloc((size_t)rows * n * 4);
    int32_t *bi = gpu_alloc((size_t)parts * TK_MAX_ROWS * 4), *tok = gpu_alloc(TK_MAX_ROWS * 4),
            tok_h[TK_MAX_ROWS];
    gpu_poison(bv, (size_t)parts * TK_MAX_ROWS * 4);
    gpu_poison(logits, (size_t)rows * n * 4);
    gpu_download(y, c.want, (size_t)rows * n * 4);
    const struct tk_flat a = {.w = &c.w,
                              .x = &c.x,
                              .rows = rows,
                              .n = n,
                              .k = k,
                              .mode = TK_FLAT_ARGMAX,
                              .best_val = bv,
                              .best_idx = bi,
                              .out_f32 = logits,
                              .out_stride = n};
    TK(tk_flat(NULL, &a));
    TK(tk_argmax_end(NULL, bv, bi, parts, rows, tok, NULL, NULL, false));
    gpu_download(tok_h, tok, rows * 4);
    gpu_download(got, logits, (size_t)rows * n * 4);
    bool ok = true, close = true;
    for (uint32_t r = 0; r < rows; r++) {
        const float *w = y + (size_t)r * n, *l = got + (size_t)r * n;
        uint32_t arg = 0;
        for (uint32_t i = 0; i < n; i++) {
            close = close && fabsf(l[i] - w[i]) <= 1e-3f + 1e-3f * fabsf(w[i]);
            arg = l[i] > l[arg] ? i : arg;
        }
        ok = ok && tok_h[r] == (int32_t)arg;
    }
    (void)snprintf(name, sizeof name, "flat argmax %u x %u x %u: index", rows, n, k);
    gpu_expect(name, ok);
    (void)snprintf(name, sizeof name, "flat argmax %u x %u x %u: logits", rows, n, k);
    gpu_expect(name, close);
    gpu_free(bv), gpu_free(bi), gpu_free(tok), gpu_free(logits);
    free(y), free(got);
    flat_drop(&c);
}

void gpu_check_flat(void)
{
    check_store(1, 6144, 4096, false);
    check_store(7, 4608, 3584, false);
    check_store(16, 1536, 576, true);
    check_store(33, 6144, 4096, true);
    check_store(64, 300, 1024, false);
    check_store(64, 20480, 512, false);
    check_residual(1, 4096, 4096);
    check_residual(8, 3584, 18944);
    check_residual(13, 4096, 14336);
    check_residual(64, 4096, 4096);
    check_residual(33, 128, 2048);
    check_residual(40, 1152, 1024);
    check_store(50, 6144, 4096, false);
    check_swiglu(45, 2 * 3 * 64, 1024, 4);
    check_argmax(37, 300, 576);
    check_argmax(3, 300, 576);
    check_swiglu(1, 28672, 4096, 128);
    check_swiglu(31, 2 * 1536, 576, 18);
    check_swiglu(64, 28672, 1024, 1);
    check_argmax(1, 128256, 512);
    check_argmax(19, 49152, 576);
    check_argmax(64, 32003, 1024);
}

/* ---- prefill attention ---- */
/* NOLINTNEXTLINE(readability-function-size): a case has this many knobs */
static void run_prefill(const struct gpu_kv *c, const tk_bf16 *q, uint32_t rows, tk_bf16 *out,
                        uint32_t n_heads, uint32_t layer, const struct tk_chunk *chunks,
                        uint32_t n_chunks, uint32_t window)
{
    const uint32_t dim = c->pool.head_dim;
    uint32_t tiles_h[1024], n_tiles = 0;
    struct tk_map qm;
    TK(tk_tiles_host(chunks, n_chunks, tiles_h, 1024, &n_tiles));
    TK(tk_rows_map(q, rows, n_heads, dim, n_heads * dim, &qm));
    uint32_t *tiles = gpu_upload(tiles_h, n_tiles * sizeof *tiles_h);
    struct tk_chunk *ch = gpu_upload(chunks, n_chunks * sizeof *chunks);
    const struct tk_attn_prefill a = {.kv = &c->map,
                                      .q = &qm,
                                      .out = out,
                                      .chunks = ch,
                                      .tiles = tiles,
                                      .tables = c->tables,
                                      .n_tiles = n_tiles,
                                      .n_heads = n_heads,
                                      .n_kv_heads = c->pool.n_kv_heads,
                                      .head_dim = dim,
                                      .layer = layer,
                                      .table_stride = c->stride,
                                      .out_stride = n_heads * dim,
                                      .scale = 1.f / sqrtf((float)dim),
                                      .window = window};
    TK(tk_attn_prefill(NULL, &a));
    CU(cudaDeviceSynchronize());
    gpu_free(tiles);
    gpu_free(ch);
}

static void check_prefill_batch(uint32_t heads, uint32_t kvh, uint32_t dim,
                                const struct tk_chunk *chunks, uint32_t n, uint32_t window)
{
    char name[128];
    int32_t lens[16];
    uint32_t rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        lens[i] = chunks[i].pos0 + chunks[i].n;
        rows += (uint32_t)chunks[i].n;
    }
    struct gpu_kv c = gpu_kv_make(lens, n, kvh, dim, 2, 0, 21);
    const size_t elems = (size_t)rows * heads * dim;
    tk_bf16 *q = gpu_random_bf16(elems, 1.f, 6), *out = gpu_alloc(elems * 2);
    float *want = gpu_alloc(elems * 4);
    struct gpu_ref_row *rr = malloc(rows * sizeof *rr);
    uint32_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        for (int32_t j = 0; j < chunks[i].n; j++) {
            const int32_t seen = chunks[i].pos0 + j + 1;
            rr[at++] =
                (struct gpu_ref_row){(int32_t)i, seen, tk_window_start(seen, (int32_t)window)};
        }
        gpu_kv_hide(&c, i, tk_window_start(chunks[i].pos0 + 1, (int32_t)window));
    }
    struct gpu_ref_row *rr_dev = gpu_upload(rr, rows * sizeof *rr);
    gpu_poison(out, elems * 2);
    run_prefill(&c, q, rows, out, heads, 1, chunks, n, window);
    gpu_ref_attn(q, heads * dim, rr_dev, rows, heads, &c.pool, 1, c.tables, c.stride,
                 1.f / sqrtf((float)dim), want);
    (void)snprintf(name, sizeof name, "prefill %u/%u x %u, %u chunks, %u rows, window %u", heads,
                   kvh, dim, n, rows, window);
    (void)gpu_close(name, out, heads * dim, want, rows, heads * dim, TOL_ATTN);
    gpu_kv_drop(&c);
    gpu_free(q), gpu_free(out), gpu_free(want), gpu_free(rr_dev);
    free(rr);
}

static void check_chunked_equals_whole(uint32_t dim, uint32_t window)
{
    char name[64];
    const int32_t len = 1500;
    struct gpu_kv c = gpu_kv_make(&len, 1, 2, dim, 1, 0, 31);
    const size_t elems = (size_t)len * 8 * dim;
    tk_bf16 *q = gpu_random_bf16(elems, 1.f, 6), *whole = gpu_alloc(elems * 2),
            *parts = gpu_alloc(elems * 2);
    const struct tk_chunk all = {0, len, 0, 0};
    const int32_t cuts[] = {0, 333, 334, 461, 640, 1408, 1500};
    gpu_poison(whole, elems * 2);
    gpu_poison(parts, elems * 2);
    run_prefill(&c, q, (uint32_t)len, whole, 8, 0, &all, 1, window);
    for (int i = 0; i + 1 < (int)(sizeof cuts / sizeof cuts[0]); i++) {
        /* the pool holds tokens of later chunks already: they must not matter */
        const struct tk_chunk one = {cuts[i], cuts[i + 1] - cuts[i], cuts[i], 0};
        gpu_kv_hide(&c, 0, tk_window_start(cuts[i] + 1, (int32_t)window));
        run_prefill(&c, q, (uint32_t)len, parts, 8, 0, &one, 1, window);
    }
    (void)snprintf(name, sizeof name, "prefill x %u, window %u: chunked = whole", dim, window);
    (void)gpu_same_bits(name, whole, parts, elems * 2);
    if (window == 0) {
        run_prefill(&c, q, (uint32_t)len, parts, 8, 0, &all, 1, window);
        (void)gpu_same_bits("prefill: a run = its repetition", whole, parts, elems * 2);
    }
    gpu_kv_drop(&c);
    gpu_free(q), gpu_free(whole), gpu_free(parts);
}

void gpu_check_prefill(void)
{
    const struct tk_chunk a[] = {{0, 128, 0, 0}};
    const struct tk_chunk b[] = {
        {0, 1, 0, 0}, {1, 300, 0, 1}, {301, 128, 128, 2}, {429, 77, 1000, 3}, {506, 513, 37, 4}};
    const struct tk_chunk d[] = {{0, 2048, 0, 0}};
    for (uint32_t dim = 64; dim <= 128; dim += 64) {
        check_prefill_batch(4, 1, dim, a, 1, 0);
        check_prefill_batch(32, 8, dim, b, 5, 0);
        check_prefill_batch(7, 7, dim, b, 5, 0);
        check_prefill_batch(14, 2, dim, b, 5, 0);
        check_prefill_batch(32, 8, dim, d, 1, 0);
        check_chunked_equals_whole(dim, 0);
        check_prefill_batch(4, 1, dim, a, 1, 1);
        check_prefill_batch(32, 8, dim, b, 5, 30);
        check_prefill_batch(7, 7, dim, b, 5, 333);
        check_prefill_batch(32, 8, dim, d, 1, 640);
        check_chunked_equals_whole(dim, 77);
        check_chunked_equals_whole(dim, 400);
    }
}

/* Small enough for compute-sanitizer's racecheck. */
void gpu_check_race(void)
{
    const int32_t lens[] = {300, 17};
    const struct tk_chunk chunks[] = {{0, 130, 0, 0}, {130, 20, 100, 1}};
    check_decode_shape(8, 2, 128, lens, 2, 0, 0);
    check_store(3, 256, 1024, false);
    check_residual(33, 256, 2048);
    check_swiglu(9, 512, 1024, 8);
    check_prefill_batch(2, 1, 128, chunks, 2, 0);
    check_prefill_batch(2, 1, 64, chunks, 2, 0);
    if (gpu_path == TK_PATH_SM90A) {
        gpu_check_chain_small();
        gpu_check_layers_race();
    }
}
