/* The sm_80 kernels, run on the CPU from their own source (tests/emulate), against the reference operations: odd shapes,
 * ragged batches, windows, shuffled tables, stale numbers in the pool; and the same bits alone, together, by chunks and
 * in any order of threads. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ref/tk_device_ref.h"
#include "kernels/tk_cuda.h"
#include "tests/emulate/emulate.h"
#include "tests/unit/check.h"

#define LAYER  1
#define HEADER 128

static float up(tk_bf16 v)
{
    uint32_t u = (uint32_t)v << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint64_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static void fill(tk_bf16 *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) { /* -2 .. 2, eight bits of mantissa */
        float f = (float)(int32_t)(next(&seed) % 513 - 256) / 128.f;
        uint32_t u;
        memcpy(&u, &f, sizeof u);
        p[i] = (tk_bf16)(u >> 16);
    }
}

static tk_bf16 *numbers(size_t n, uint64_t seed)
{
    tk_bf16 *p = aligned_alloc(64, (n * sizeof *p + 63) / 64 * 64);
    assert_non_null(p);
    fill(p, n, seed);
    return p;
}

static void *poison(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(p);
    memset(p, 0xff, bytes);
    return p;
}

/* ||a - b|| / ||b||, the worst row; NaN anywhere is NaN. */
static double worst_row(const tk_bf16 *a, const tk_bf16 *b, size_t rows, size_t cols)
{
    double worst = 0;
    for (size_t r = 0; r < rows; r++) {
        double d = 0, n = 0;
        for (size_t i = r * cols; i < (r + 1) * cols; i++) {
            const double x = (double)up(a[i]), y = (double)up(b[i]);
            d += (x - y) * (x - y);
            n += y * y;
        }
        const double e = sqrt(d / n);
        worst = e <= worst ? worst : e;
    }
    return worst;
}

#define CLOSE(a, b, rows, cols) assert_true(worst_row((a), (b), (rows), (cols)) < 0.02)

/* ---- a pool ---- */

struct kv {
    struct tk_kv_pool pool;
    struct tk_map map, decode_map;
    int32_t *tables; /* [n][stride]; what no sequence has is out of range */
    uint32_t stride;
};

/* Tokens 0 .. lens[i] - 1 of each sequence hold numbers, everything else NaN. */
static struct kv kv_make(const int32_t *lens, uint32_t n, uint32_t heads, uint32_t dim)
{
    struct kv c = {.stride = 3};
    uint32_t blocks = 5;
    uint64_t seed = 11;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t need = ((uint32_t)lens[i] + TK_BLOCK_TOK - 1) / TK_BLOCK_TOK;
        blocks += need;
        c.stride = need + 2 > c.stride ? need + 2 : c.stride;
    }
    const size_t slice = tk_kv_slice_bytes(heads, dim, HEADER);
    c.pool = (struct tk_kv_pool){poison(slice * 2 * blocks), blocks, 2, heads, dim, HEADER, slice};
    c.tables = poison((size_t)n * c.stride * sizeof *c.tables); /* -1 */
    int32_t order[1024];
    assert_true(blocks <= 1024);
    for (uint32_t i = 0; i < blocks; i++) {
        const uint32_t j = (uint32_t)next(&seed) % (i + 1);
        order[i] = (int32_t)i;
        order[i] = order[j];
        order[j] = (int32_t)i;
    }
    uint32_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        for (int32_t t = 0; t < lens[i]; t++) {
            int32_t *block = &c.tables[i * c.stride + (uint32_t)t / TK_BLOCK_TOK];
            *block = t % TK_BLOCK_TOK == 0 ? order[at++] : *block;
            for (uint32_t h = 0; h < 2 * heads; h++) {
                char *to = (char *)c.pool.base + ((size_t)*block * 2 + LAYER) * slice + HEADER;
                fill((tk_bf16 *)(void *)to +
                         ((size_t)h * TK_BLOCK_TOK + (uint32_t)t % TK_BLOCK_TOK) * dim,
                     dim, next(&seed));
            }
        }
    }
    assert_int_equal(tk_kv_map(&c.pool, &c.map), TD_OK);
    assert_int_equal(tk_kv_decode_map(&c.pool, LAYER, &c.decode_map), TD_OK);
    return c;
}

/* Pages wholly before this position are gone. */
static void kv_hide(struct kv *c, uint32_t seq, int32_t from)
{
    for (int32_t p = 0; p < from / TK_BLOCK_TOK; p++) {
        c->tables[seq * c->stride + (uint32_t)p] = -1;
    }
}

static void kv_drop(struct kv *c)
{
    free(c->pool.base);
    free(c->tables);
}

/* ---- prefill attention ---- */

struct prefill {
    struct tk_attn_prefill a;
    struct tk_map q;
    uint32_t tiles[64];
};

static void prefill_make(struct prefill *p, const struct kv *c, const tk_bf16 *q, uint32_t heads,
                         const struct tk_chunk *chunks, uint32_t n)
{
    const uint32_t dim = c->pool.head_dim;
    uint32_t rows = 0, n_tiles = 0;
    for (uint32_t i = 0; i < n; i++) {
        rows += (uint32_t)chunks[i].n;
    }
    assert_int_equal(tk_tiles_host(chunks, n, p->tiles, 64, &n_tiles), TD_OK);
    assert_int_equal(tk_rows_map(q, rows, heads, dim, heads * dim, &p->q), TD_OK);
    p->a = (struct tk_attn_prefill){.kv = &c->map,
                                    .q = &p->q,
                                    .chunks = chunks,
                                    .tiles = p->tiles,
                                    .tables = c->tables,
                                    .n_tiles = n_tiles,
                                    .n_heads = heads,
                                    .n_kv_heads = c->pool.n_kv_heads,
                                    .head_dim = dim,
                                    .layer = LAYER,
                                    .table_stride = c->stride,
                                    .out_stride = heads * dim,
                                    .scale = 1.f / sqrtf((float)dim)};
}

static void check_prefill(uint32_t heads, uint32_t kv_heads, uint32_t dim, uint32_t window,
                          const struct tk_chunk *chunks, uint32_t n)
{
    int32_t lens[8];
    uint32_t rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        lens[i] = chunks[i].pos0 + chunks[i].n;
        rows += (uint32_t)chunks[i].n;
    }
    struct kv c = kv_make(lens, n, kv_heads, dim);
    for (uint32_t i = 0; i < n; i++) {
        kv_hide(&c, i, tk_window_start(chunks[i].pos0 + 1, (int32_t)window));
    }
    const size_t elems = (size_t)rows * heads * dim;
    tk_bf16 *q = numbers(elems, 3), *want = poison(elems * 2), *got = poison(elems * 2);
    struct prefill p;
    prefill_make(&p, &c, q, heads, chunks, n);
    p.a.window = window;
    p.a.out = want;
    assert_int_equal(tk_attn_prefill(NULL, &p.a), TD_OK);
    p.a.out = got;
    assert_int_equal(emulate_attn_prefill(&p.a, 1), TD_OK);
    CLOSE(got, want, rows, (size_t)heads * dim);
    kv_drop(&c);
    free(q), free(want), free(got);
}

static void prefill_is_close_to_the_reference_over_ragged_chunks(void **state)
{
    static const struct tk_chunk ragged[] = {{0, 1, 0, 0}, {1, 130, 37, 1}, {131, 20, 100, 2}};
    static const struct tk_chunk one[] = {{0, 128, 0, 0}};
    check_prefill(2, 1, 128, 0, ragged, 3);
    check_prefill(3, 3, 64, 0, ragged, 3);
    check_prefill(7, 1, 64, 0, one, 1);
    check_prefill(1, 1, 128, 0, one, 1);
}

static void prefill_sees_its_window_alone(void **state)
{
    static const struct tk_chunk ragged[] = {{0, 70, 0, 0}, {70, 129, 137, 1}, {199, 1, 190, 2}};
    check_prefill(2, 1, 128, 30, ragged, 3);
    check_prefill(2, 2, 64, 100, ragged, 3);
    check_prefill(2, 1, 64, 1, ragged, 3);
}

static void check_chunked(uint32_t dim, uint32_t window)
{
    enum { LEN = 210, HEADS = 2 };
    static const int32_t cuts[] = {0, 65, 66, 150, LEN};
    const int32_t len = LEN;
    struct kv c = kv_make(&len, 1, 1, dim);
    const size_t elems = (size_t)LEN * HEADS * dim;
    tk_bf16 *q = numbers(elems, 4), *whole = poison(elems * 2), *parts = poison(elems * 2);
    const struct tk_chunk all = {0, LEN, 0, 0};
    struct prefill p;
    prefill_make(&p, &c, q, HEADS, &all, 1);
    p.a.window = window;
    p.a.out = whole;
    assert_int_equal(emulate_attn_prefill(&p.a, 1), TD_OK);
    for (size_t i = 0; i + 1 < sizeof cuts / sizeof cuts[0]; i++) {
        /* the pool holds tokens of later chunks already: they must not matter */
        const struct tk_chunk part = {cuts[i], cuts[i + 1] - cuts[i], cuts[i], 0};
        kv_hide(&c, 0, tk_window_start(cuts[i] + 1, (int32_t)window));
        prefill_make(&p, &c, q, HEADS, &part, 1);
        p.a.window = window;
        p.a.out = parts;
        assert_int_equal(emulate_attn_prefill(&p.a, 77 + i), TD_OK);
    }
    assert_memory_equal(parts, whole, elems * 2);
    kv_drop(&c);
    free(q), free(whole), free(parts);
}

static void prefill_by_chunks_gives_the_bits_of_the_whole(void **state)
{
    check_chunked(64, 0);
    check_chunked(128, 0);
    check_chunked(64, 77);
}

/* ---- decode attention ---- */

struct decode {
    uint32_t heads, kv_heads, dim, window;
    bool fused, one_table;
};

struct decode_run {
    struct tk_attn_decode a;
    uint32_t plan[1 + TK_MAX_SEQS + 64];
};

static void decode_make(struct decode_run *r, const struct decode *d, const struct kv *c,
                        const int32_t *lens, uint32_t n)
{
    const uint32_t width = d->heads * d->dim;
    uint32_t entries = 0;
    assert_int_equal(
        tk_plan_window_host(lens, n, d->window, r->plan, 1 + TK_MAX_SEQS + 64, &entries), TD_OK);
    r->a = (struct tk_attn_decode){.kv = &c->decode_map,
                                   .lens = lens,
                                   .tables = c->tables,
                                   .plan = r->plan,
                                   .pool = &c->pool,
                                   .layer = LAYER,
                                   .n_seqs = n,
                                   .n_heads = d->heads,
                                   .n_kv_heads = d->kv_heads,
                                   .head_dim = d->dim,
                                   .table_stride = c->stride,
                                   .one_table = d->one_table,
                                   .q_stride = width + 2 * d->kv_heads * d->dim,
                                   .out_stride = width,
                                   .max_entries = entries + 2, /* graphs have room to spare */
                                   .scale = 1.f / sqrtf((float)d->dim),
                                   .window = d->window};
}

/* Room for any entries of the tests. */
static void *decode_scratch(const struct decode *d)
{
    const size_t n = (size_t)2 * TK_MAX_SEQS * d->kv_heads * 4 +
                     (size_t)64 * d->kv_heads * TK_MAX_GROUP * (8 + d->dim * 4) + 256;
    return poison(n);
}

static float *angles(int32_t positions, uint32_t dim)
{
    float *t = malloc((size_t)positions * dim * sizeof *t);
    assert_non_null(t);
    for (int32_t p = 0; p < positions; p++) {
        for (uint32_t i = 0; i < dim / 2; i++) {
            const double a = p * pow(1e4, -2.0 * i / dim);
            t[(uint32_t)p * dim + i] = (float)cos(a);
            t[(uint32_t)p * dim + dim / 2 + i] = (float)sin(a);
        }
    }
    return t;
}

static void check_decode(struct decode d, const int32_t *lens, uint32_t n)
{
    int32_t most = 1;
    for (uint32_t i = 0; i < n; i++) {
        most = lens[i] > most ? lens[i] : most;
    }
    struct kv c = kv_make(d.one_table ? &most : lens, d.one_table ? 1 : n, d.kv_heads, d.dim);
    const size_t width = (size_t)d.heads * d.dim, elems = n * width;
    for (uint32_t i = 0; i < n && !d.one_table; i++) {
        kv_hide(&c, i, tk_window_start(lens[i], (int32_t)d.window));
    }
    float *cs = angles(most, d.dim);
    struct decode_run r;
    decode_make(&r, &d, &c, lens, n);
    const size_t pool_bytes = c.pool.slice_bytes * 2 * c.pool.n_blocks;
    tk_bf16 *q = numbers((size_t)n * r.a.q_stride, 9), *want = poison(elems * 2),
            *got = poison(elems * 2), *alone = poison(elems * 2);
    void *scratch = decode_scratch(&d), *before = malloc(pool_bytes), *after = malloc(pool_bytes);
    assert_non_null(before);
    assert_non_null(after);
    memcpy(before, c.pool.base, pool_bytes);
    r.a.scratch = scratch;
    r.a.q = q;
    r.a.cos_sin = d.fused ? cs : NULL;
    r.a.out = want;
    assert_int_equal(tk_attn_decode(NULL, &r.a), TD_OK);
    memcpy(after, c.pool.base, pool_bytes);
    memcpy(c.pool.base, before, pool_bytes);
    r.a.out = got;
    assert_int_equal(emulate_attn_decode(&r.a, 5), TD_OK);
    CLOSE(got, want, n, width);
    assert_memory_equal(c.pool.base, after, pool_bytes); /* what was appended, and nothing else */
    for (uint32_t i = 0; i < n; i++) {
        struct kv one = c;
        one.tables += d.one_table ? 0 : i * c.stride;
        decode_make(&r, &d, &one, &lens[i], 1);
        r.a.scratch = scratch;
        r.a.q = q + (size_t)i * r.a.q_stride;
        r.a.cos_sin = d.fused ? cs : NULL;
        r.a.out = alone + i * width;
        assert_int_equal(emulate_attn_decode(&r.a, 100 + i), TD_OK);
    }
    assert_memory_equal(alone, got, elems * 2);
    kv_drop(&c);
    free(q), free(want), free(got), free(alone), free(scratch), free(before), free(after), free(cs);
}

static void decode_is_close_to_the_reference_and_alone_as_in_a_batch(void **state)
{
    static const int32_t lens[] = {1, 16, 17, 300, 530, 64};
    check_decode((struct decode){.heads = 4, .kv_heads = 1, .dim = 128}, lens, 6);
    check_decode((struct decode){.heads = 6, .kv_heads = 2, .dim = 64}, lens, 6);
    check_decode((struct decode){.heads = 7, .kv_heads = 1, .dim = 128}, lens, 6);
    check_decode((struct decode){.heads = 8, .kv_heads = 1, .dim = 64}, lens, 6);
    check_decode((struct decode){.heads = 2, .kv_heads = 2, .dim = 64}, lens, 6);
}

static void decode_cuts_long_sequences_into_longer_chunks(void **state)
{
    static const int32_t lens[] = {TK_CHUNK_LONG, TK_CHUNK_LONG + 1, 9, 5000};
    check_decode((struct decode){.heads = 2, .kv_heads = 1, .dim = 64}, lens, 4);
}

static void decode_rotates_and_appends_the_newest_token(void **state)
{
    static const int32_t lens[] = {1, 33, 16, 300};
    check_decode((struct decode){.heads = 4, .kv_heads = 1, .dim = 128, .fused = true}, lens, 4);
    check_decode((struct decode){.heads = 6, .kv_heads = 2, .dim = 64, .fused = true}, lens, 4);
}

static void decode_sees_its_window_alone(void **state)
{
    static const int32_t lens[] = {5, 300, 700, 64};
    check_decode((struct decode){.heads = 2, .kv_heads = 1, .dim = 64, .window = 37}, lens, 4);
    check_decode(
        (struct decode){.heads = 2, .kv_heads = 1, .dim = 128, .window = 400, .fused = true}, lens,
        4);
}

static void tokens_of_one_sequence_share_its_table(void **state)
{
    static const int32_t lens[] = {15, 16, 17, 18, 300};
    check_decode((struct decode){.heads = 4, .kv_heads = 2, .dim = 64, .one_table = true}, lens, 5);
}

static void a_plan_that_did_not_fit_computes_nothing(void **state)
{
    static const int32_t lens[] = {300};
    const struct decode d = {.heads = 2, .kv_heads = 1, .dim = 64};
    struct kv c = kv_make(lens, 1, 1, 64);
    struct decode_run r;
    tk_bf16 *q = numbers(1024, 9), *out = poison(512), *want = poison(512);
    decode_make(&r, &d, &c, lens, 1);
    r.plan[0] = 0;
    r.a.q = q;
    r.a.out = out;
    r.a.scratch = decode_scratch(&d);
    assert_int_equal(emulate_attn_decode(&r.a, 1), TD_OK);
    assert_memory_equal(out, want, 512);
    free(r.a.scratch), free(q), free(out), free(want);
    kv_drop(&c);
}

/* ---- flat products ---- */

struct flat_case {
    uint32_t rows, n, k, parts;
    enum tk_flat_mode mode;
};

struct flat_out {
    tk_bf16 *out, *h, *hg;
    float *sumsq, *best_val, *logits;
    int32_t *best_idx;
};

static struct flat_out flat_out_make(const struct flat_case *c)
{
    const size_t elems = (size_t)c->rows * c->n;
    return (struct flat_out){poison(elems * 2),
                             numbers(elems, 21),
                             poison(elems * 2),
                             poison((size_t)TK_NORM_PARTS * TK_MAX_ROWS * 4),
                             poison((size_t)TK_ARGMAX_PARTS * TK_MAX_ROWS * 4),
                             poison(elems * 4),
                             poison((size_t)TK_ARGMAX_PARTS * TK_MAX_ROWS * 4)};
}

static void flat_out_drop(struct flat_out *o)
{
    free(o->out), free(o->h), free(o->hg), free(o->sumsq), free(o->best_val), free(o->logits),
        free(o->best_idx);
}

struct flat_inputs {
    tk_bf16 *w, *x, *gain;
    float *norm;
    struct tk_map w_map;
};

static struct flat_inputs flat_inputs_make(const struct flat_case *c)
{
    struct flat_inputs in = {numbers((size_t)c->n * c->k, 1),
                             numbers((size_t)c->rows * c->k, 2),
                             numbers(c->n, 3),
                             poison((size_t)TK_NORM_PARTS * TK_MAX_ROWS * 4),
                             {{0}, NULL, 0, 0, 0, false}};
    for (uint32_t i = 0; i < c->parts * TK_MAX_ROWS; i++) {
        in.norm[i] = (float)(i % 37 + 1);
    }
    assert_int_equal(tk_flat_w_map(in.w, c->n, c->k, false, &in.w_map), TD_OK);
    return in;
}

static void flat_inputs_drop(struct flat_inputs *in)
{
    free(in->w), free(in->x), free(in->gain), free(in->norm);
}

/* Rows from row0 on, into the same rows of o; seed 0: by the reference. */
static void flat_run(const struct flat_case *c, const struct flat_inputs *in, uint32_t row0,
                     uint32_t rows, const struct flat_out *o, uint64_t seed)
{
    const uint32_t width = c->mode == TK_FLAT_SWIGLU ? c->n / 2 : c->n;
    struct tk_map x;
    assert_int_equal(tk_flat_x_map(in->x + (size_t)row0 * c->k, rows, c->k, c->k, &x), TD_OK);
    const struct tk_flat a = {.w = &in->w_map,
                              .x = &x,
                              .rows = rows,
                              .n = c->n,
                              .k = c->k,
                              .mode = c->mode,
                              .norm = {in->norm + row0, c->parts, c->k, 1e-5f},
                              .out = o->out + (size_t)row0 * width,
                              .out_stride = c->mode == TK_FLAT_ARGMAX ? c->n : width,
                              .h = o->h + (size_t)row0 * c->n,
                              .hg = o->hg + (size_t)row0 * c->n,
                              .gain = in->gain,
                              .sumsq = o->sumsq + row0,
                              .best_val = o->best_val + row0,
                              .best_idx = o->best_idx + row0,
                              .out_f32 = o->logits + (size_t)row0 * c->n};
    assert_int_equal(seed == 0 ? tk_flat(NULL, &a) : emulate_flat(&a, seed), TD_OK);
}

static void expect_close(const struct flat_case *c, const struct flat_out *got,
                         const struct flat_out *want)
{
    switch (c->mode) {
    case TK_FLAT_STORE:
        CLOSE(got->out, want->out, c->rows, c->n);
        break;
    case TK_FLAT_SWIGLU:
        CLOSE(got->out, want->out, c->rows, c->n / 2);
        break;
    case TK_FLAT_RESIDUAL:
        CLOSE(got->h, want->h, c->rows, c->n);
        CLOSE(got->hg, want->hg, c->rows, c->n);
        for (uint32_t p = 0; p < tk_flat_norm_parts(c->n); p++) {
            for (uint32_t r = 0; r < c->rows; r++) {
                const float g = got->sumsq[p * TK_MAX_ROWS + r],
                            w = want->sumsq[p * TK_MAX_ROWS + r];
                assert_true(fabsf(g - w) <= 0.02f * w);
            }
        }
        break;
    case TK_FLAT_ARGMAX:
        for (uint32_t r = 0; r < c->rows; r++) {
            const uint32_t id = (uint32_t)got->best_idx[r];
            assert_true(id < c->n);
            assert_true(got->best_val[r] == got->logits[(size_t)r * c->n + id]);
            for (uint32_t i = 0; i < c->n; i++) {
                const float g = got->logits[(size_t)r * c->n + i],
                            w = want->logits[(size_t)r * c->n + i];
                assert_true(fabsf(g - w) <= 1e-3f + 1e-3f * fabsf(w));
                assert_true(g <= got->best_val[r]);
            }
        }
        break;
    }
}

static void check_flat(struct flat_case c)
{
    struct flat_inputs in = flat_inputs_make(&c);
    struct flat_out want = flat_out_make(&c), got = flat_out_make(&c), alone = flat_out_make(&c);
    const size_t elems = (size_t)c.rows * c.n;
    flat_run(&c, &in, 0, c.rows, &want, 0);
    flat_run(&c, &in, 0, c.rows, &got, 7);
    expect_close(&c, &got, &want);
    for (uint32_t r = 0; r<c.rows; r += c.rows> 8 ? 7 : 1) { /* some rows alone: the same bits */
        const size_t at = (size_t)r * c.n, half = c.mode == TK_FLAT_SWIGLU ? 2 : 1;
        flat_run(&c, &in, r, 1, &alone, 31 + r);
        assert_memory_equal(alone.out + at / half, got.out + at / half, c.n / half * 2);
        assert_memory_equal(alone.h + at, got.h + at, c.n * 2);
        assert_memory_equal(alone.logits + at, got.logits + at, c.n * 4);
    }
    assert_true(elems > 0);
    flat_inputs_drop(&in);
    flat_out_drop(&want), flat_out_drop(&got), flat_out_drop(&alone);
}

static void flat_products_store_and_scale(void **state)
{
    check_flat((struct flat_case){1, 96, 576, 0, TK_FLAT_STORE});
    check_flat((struct flat_case){7, 300, 64, 5, TK_FLAT_STORE});
    check_flat((struct flat_case){16, 64, 1088, 18, TK_FLAT_STORE});
    check_flat((struct flat_case){64, 41, 320, 1, TK_FLAT_STORE});
}

static void flat_products_add_to_the_residual(void **state)
{
    check_flat((struct flat_case){1, 128, 192, 0, TK_FLAT_RESIDUAL});
    check_flat((struct flat_case){33, 256, 512, 0, TK_FLAT_RESIDUAL});
}

static void flat_products_gate(void **state)
{
    check_flat((struct flat_case){3, 112, 256, 8, TK_FLAT_SWIGLU});
    check_flat((struct flat_case){20, 64, 640, 0, TK_FLAT_SWIGLU});
}

static void flat_products_find_the_largest(void **state)
{
    check_flat((struct flat_case){2, 300, 128, 3, TK_FLAT_ARGMAX});
    check_flat((struct flat_case){40, 130, 64, 0, TK_FLAT_ARGMAX});
}

static void equal_largest_values_give_the_smallest_index(void **state)
{
    const struct flat_case c = {5, 200, 64, 0, TK_FLAT_ARGMAX};
    struct flat_inputs in = flat_inputs_make(&c);
    struct flat_out o = flat_out_make(&c);
    memset(in.w, 0, (size_t)c.n * c.k * 2); /* all logits are zero */
    flat_run(&c, &in, 0, c.rows, &o, 3);
    for (uint32_t r = 0; r < c.rows; r++) {
        assert_int_equal(o.best_idx[r], 0);
    }
    flat_inputs_drop(&in);
    flat_out_drop(&o);
}

static void shapes_beyond_the_limits_are_refused(void **state)
{
    struct tk_map m = {{0}, NULL, 0, 0, 8, false};
    const struct tk_attn_prefill p = {
        .kv = &m, .q = &m, .n_tiles = 1, .n_heads = 3, .n_kv_heads = 2, .head_dim = 64};
    const struct tk_attn_decode d = {
        .kv = &m, .n_seqs = 1, .n_heads = 9, .n_kv_heads = 1, .head_dim = 64};
    const struct tk_flat f = {.w = &m, .x = &m, .rows = 1, .n = 64, .k = 96};
    assert_int_equal(emulate_attn_prefill(&p, 1), TD_ERR_UNSUPPORTED);
    assert_int_equal(emulate_attn_decode(&d, 1), TD_ERR_UNSUPPORTED);
    assert_int_equal(emulate_flat(&f, 1), TD_ERR_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefill_is_close_to_the_reference_over_ragged_chunks),
        cmocka_unit_test(prefill_sees_its_window_alone),
        cmocka_unit_test(prefill_by_chunks_gives_the_bits_of_the_whole),
        cmocka_unit_test(decode_is_close_to_the_reference_and_alone_as_in_a_batch),
        cmocka_unit_test(decode_cuts_long_sequences_into_longer_chunks),
        cmocka_unit_test(decode_rotates_and_appends_the_newest_token),
        cmocka_unit_test(decode_sees_its_window_alone),
        cmocka_unit_test(tokens_of_one_sequence_share_its_table),
        cmocka_unit_test(a_plan_that_did_not_fit_computes_nothing),
        cmocka_unit_test(flat_products_store_and_scale),
        cmocka_unit_test(flat_products_add_to_the_residual),
        cmocka_unit_test(flat_products_gate),
        cmocka_unit_test(flat_products_find_the_largest),
        cmocka_unit_test(equal_largest_values_give_the_smallest_index),
        cmocka_unit_test(shapes_beyond_the_limits_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
