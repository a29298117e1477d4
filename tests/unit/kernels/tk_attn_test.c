/* Attention: tables agree bit for bit, query vectors are independent of each other, stale memory
 * behind the visible tokens changes nothing, and the result is near a softmax in binary64. */
#include "tests/unit/kernels/kernels_util.h"

#define SEED 77

struct chunk {
    uint32_t dim, nq, n_tok;
    bool f32;
    float *q;
    uint16_t limit[TK_MAX_QUERIES], first[TK_MAX_QUERIES];
    bool window; /* `first` counts, and NaN stands before the least of them */
    void *kv;    /* [16 blocks][k, v][dim * 16] */
};

static size_t elem(const struct chunk *c)
{
    return c->f32 ? 4 : 2;
}

static void *block_of(const struct chunk *c, uint32_t b, int v)
{
    return (uint8_t *)c->kv + ((size_t)b * 2 + (size_t)v) * c->dim * TK_BLOCK_TOK * elem(c);
}

static struct chunk chunk_of(uint32_t dim, uint32_t nq, uint32_t n_tok, bool f32, uint64_t seed)
{
    struct td_rng r = {SEED + seed};
    struct chunk c = {.dim = dim, .nq = nq, .n_tok = n_tok, .f32 = f32};
    size_t bytes = (size_t)TK_CHUNK_BLOCKS * 2 * dim * TK_BLOCK_TOK * elem(&c);
    c.kv = ku_alloc(bytes);
    memset(c.kv, 0xff, bytes); /* NaN behind the visible tokens */
    c.q = ku_alloc((size_t)nq * dim * sizeof(float));
    for (size_t i = 0; i < (size_t)nq * dim; i++) {
        c.q[i] = ku_float(&r, 0.5f);
    }
    for (uint32_t t = 0; t < n_tok; t++) {
        float k[TK_MAX_HEAD_DIM], v[TK_MAX_HEAD_DIM];
        for (uint32_t d = 0; d < dim; d++) {
            k[d] = ku_float(&r, 2);
            v[d] = ku_float(&r, 2);
        }
        void *kb = block_of(&c, t / 16, 0), *vb = block_of(&c, t / 16, 1);
        if (f32) {
            tk_kv_write_f32(k, v, dim, t % 16, kb, vb);
        } else {
            tk_kv_write_bf16(k, v, dim, t % 16, kb, vb);
        }
    }
    for (uint32_t i = 0; i < nq; i++) {
        c.limit[i] = (uint16_t)(i % 3 == 0 ? n_tok : 1 + td_rng_below(&r, n_tok));
    }
    return c;
}

/* The same behind a window: vectors begin at `least` or later, what lies before is NaN. */
static struct chunk window_of(uint32_t dim, uint32_t nq, uint32_t n_tok, bool f32, uint64_t seed)
{
    struct td_rng r = {SEED + 1000 + seed};
    struct chunk c = chunk_of(dim, nq, n_tok, f32, seed);
    uint32_t least = (uint32_t)td_rng_below(&r, n_tok);
    c.window = true;
    for (uint32_t i = 0; i < nq; i++) {
        c.limit[i] = (uint16_t)(c.limit[i] > least ? c.limit[i] : least + 1);
        uint64_t room = (uint64_t)c.limit[i] - least;
        c.first[i] = (uint16_t)(least + (i % 4 == 0 ? 0 : td_rng_below(&r, room)));
    }
    for (uint32_t t = 0; t < least; t++) {
        float nan[TK_MAX_HEAD_DIM];
        memset(nan, 0xff, sizeof nan);
        void *kb = block_of(&c, t / 16, 0), *vb = block_of(&c, t / 16, 1);
        if (f32) {
            tk_kv_write_f32(nan, nan, dim, t % 16, kb, vb);
        } else {
            tk_kv_write_bf16(nan, nan, dim, t % 16, kb, vb);
        }
    }
    return c;
}

/* m, l and o of all vectors in one buffer: [nq] [nq] [nq][dim]. */
static float *run(const struct tk_ops *ops, const struct chunk *c, uint32_t v0, uint32_t nq)
{
    float *out = ku_alloc(((size_t)nq * 2 + (size_t)nq * c->dim) * sizeof(float));
    float *scratch = ku_alloc(tk_attn_scratch(c->dim, nq) * sizeof(float));
    struct tk_attn a = {.head_dim = c->dim,
                        .nq = nq,
                        .q = c->q + (size_t)v0 * c->dim,
                        .limit = c->limit + v0,
                        .first = c->window ? c->first + v0 : NULL,
                        .n_tok = c->n_tok,
                        .m = out,
                        .l = out + nq,
                        .o = out + 2 * (size_t)nq,
                        .scratch = scratch};
    for (uint32_t b = 0; b < TK_CHUNK_BLOCKS; b++) {
        a.k[b] = block_of(c, b, 0);
        a.v[b] = block_of(c, b, 1);
    }
    if (c->f32) {
        ops->attn_f32(&a);
    } else {
        ops->attn(&a);
    }
    free(scratch);
    return out;
}

static void chunk_free(struct chunk *c)
{
    free(c->q);
    free(c->kv);
}

static void compare_tables(struct chunk c)
{
    float *want = run(tk_select(TK_ISA_REF), &c, 0, c.nq);
    for (uint32_t i = 0; i < c.nq * (2 + c.dim); i++) {
        assert_true(want[i] - want[i] == 0); /* nothing invisible came in */
    }
    for (size_t s = 0; s < KU_N_ISAS; s++) {
        const struct tk_ops *ops = tk_select(ku_isas[s]);
        if (ops != NULL) {
            float *got = run(ops, &c, 0, c.nq);
            assert_memory_equal(got, want, (size_t)c.nq * (2 + c.dim) * sizeof(float));
            free(got);
        }
    }
    free(want);
    chunk_free(&c);
}

static void every_table_gives_the_bits_of_the_reference(void **state)
{
    static const uint32_t dims[] = {16, 32, 64, 80, 128}, nqs[] = {1, 2, 3, 4, 7, 11, 48};
    static const uint32_t toks[] = {1, 15, 16, 17, 100, 255, 256};
    for (uint32_t i = 0; i < 5 * 7 * 7; i++) {
        uint32_t dim = dims[i % 5], nq = nqs[i / 5 % 7], n_tok = toks[i / 35];
        compare_tables(chunk_of(dim, nq, n_tok, i % 4 == 0, i));
        compare_tables(window_of(dim, nq, n_tok, i % 4 == 0, i));
    }
}

/* A window that begins at a block's border is the same chunk without the blocks before. */
static void tokens_before_a_window_count_for_nothing(void **state)
{
    struct chunk whole = chunk_of(64, 5, 200, false, 9), tail = whole;
    tail.kv = block_of(&whole, 3, 0);
    tail.n_tok = 200 - 48;
    whole.window = true;
    for (uint32_t i = 0; i < 5; i++) {
        whole.limit[i] = (uint16_t)(100 + i);
        tail.limit[i] = (uint16_t)(52 + i);
        whole.first[i] = 48;
    }
    for (size_t s = 0; s < KU_N_ISAS; s++) {
        const struct tk_ops *ops = tk_select(ku_isas[s]);
        if (ops != NULL) {
            float *a = run(ops, &whole, 0, 5), *b = run(ops, &tail, 0, 5);
            assert_memory_equal(a, b, 5 * (2 + 64) * sizeof(float));
            free(a);
            free(b);
        }
    }
    chunk_free(&whole);
}

static void a_query_alone_equals_the_query_in_a_group(void **state)
{
    struct chunk c = chunk_of(64, 23, 200, false, 1);
    for (size_t s = 0; s < KU_N_ISAS; s++) {
        const struct tk_ops *ops = tk_select(ku_isas[s]);
        if (ops == NULL) {
            continue;
        }
        float *all = run(ops, &c, 0, c.nq);
        for (uint32_t v = 0; v < c.nq; v++) {
            float *one = run(ops, &c, v, 1);
            assert_memory_equal(&one[0], &all[v], sizeof(float));
            assert_memory_equal(&one[1], &all[c.nq + v], sizeof(float));
            assert_memory_equal(&one[2], &all[2 * c.nq + (size_t)v * 64], 64 * sizeof(float));
            free(one);
        }
        free(all);
    }
    chunk_free(&c);
}

/* The same tokens in one softmax of binary64 against chunks merged in order. */
static void merged_chunks_are_near_one_exact_softmax(void **state)
{
    enum { DIM = 32, CHUNKS = 3 };
    const struct tk_ops *ops = tk_select(TK_ISA_AUTO);
    double acc[DIM] = {0}, total = 0;
    float sm = 0, sl = 0, so[DIM], out[DIM];
    for (uint32_t i = 0; i < CHUNKS; i++) {
        struct chunk c = chunk_of(DIM, 1, i == CHUNKS - 1 ? 19 : 256, false, 0);
        float *part = run(ops, &c, 0, 1);
        struct tk_attn a = {
            .head_dim = DIM, .nq = 1, .limit = c.limit, .m = part, .l = part + 1, .o = part + 2};
        ops->attn_merge(&a, &sm, &sl, so, i == 0);
        for (uint32_t t = 0; t < c.limit[0]; t++) {
            const uint16_t *k = block_of(&c, t / 16, 0), *v = block_of(&c, t / 16, 1);
            double s = 0;
            for (uint32_t d = 0; d < DIM; d++) {
                uint32_t bits = (uint32_t)k[d * 16 + t % 16] << 16;
                float f;
                memcpy(&f, &bits, 4);
                s += (double)c.q[d] * (double)f;
            }
            total += exp(s);
            for (uint32_t d = 0; d < DIM; d++) {
                uint32_t bits = (uint32_t)v[t % 16 * DIM + d] << 16;
                float f;
                memcpy(&f, &bits, 4);
                acc[d] += exp(s) * (double)f;
            }
        }
        free(part);
        chunk_free(&c);
    }
    ops->attn_finish(so, sl, DIM, out);
    for (uint32_t d = 0; d < DIM; d++) {
        assert_true(fabs((double)out[d] - acc[d] / total) <= 1e-5);
    }
}

static void every_table_merges_and_finishes_alike(void **state)
{
    struct td_rng r = {SEED};
    for (uint32_t dim = 16; dim <= 144; dim += 16) {
        enum { NQ = 5 };
        float part[NQ * 150], start[NQ * 150], want[NQ * 150 + 150];
        uint16_t limit[NQ] = {1, 0, 256, 7, 0};
        for (uint32_t i = 0; i < NQ * 150; i++) {
            part[i] = ku_float(&r, 3);
            start[i] = ku_float(&r, 3) + 4;
        }
        for (int s = 0; s < 3; s++) {
            static const enum tk_isa isas[] = {TK_ISA_REF, TK_ISA_AVX2, TK_ISA_AVX512};
            const struct tk_ops *ops = tk_select(isas[s]);
            float got[NQ * 150 + 150] = {0};
            if (ops == NULL) {
                continue;
            }
            memcpy(got, start, sizeof start);
            struct tk_attn a = {.head_dim = dim,
                                .nq = NQ,
                                .limit = limit,
                                .m = part,
                                .l = part + NQ,
                                .o = part + 2 * NQ};
            ops->attn_merge(&a, got, got + NQ, got + 2 * NQ, false);
            ops->attn_finish(got + 2 * NQ, got[NQ], dim, got + NQ * 150);
            if (s == 0) {
                memcpy(want, got, sizeof got);
            }
            assert_memory_equal(got, want, sizeof got);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_table_gives_the_bits_of_the_reference),
        cmocka_unit_test(tokens_before_a_window_count_for_nothing),
        cmocka_unit_test(a_query_alone_equals_the_query_in_a_group),
        cmocka_unit_test(merged_chunks_are_near_one_exact_softmax),
        cmocka_unit_test(every_table_merges_and_finishes_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
