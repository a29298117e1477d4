/* Whole layers in one launch (kernels/cuda/layers.cuh): Hopper's kernel, run on the CPU from its own source with all its blocks at
 * once (tests/emulate), against the reference operations and against itself cut into launches otherwise; attention against the
 * sm_80 kernel's bits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ref/tk_device_ref.h"
#include "kernels/tk_cuda.h"
#include "tests/emulate/emulate.h"
#include "tests/unit/check.h"

#define DIM         128
#define MOST_LAYERS 3
#define MOST_ROWS   3
#define EPS         1e-5f

struct shape {
    uint32_t layers, hid, heads, kv_heads, ffn, window;
    uint32_t rows;
    int32_t lens[MOST_ROWS];
};

struct weights {
    tk_bf16 *w[TK_CHAIN_MAX]; /* o, gate and up, down, the next layer's qkv */
    struct tk_map map[TK_CHAIN_MAX], kv;
    tk_bf16 *gain[2];
};

struct model {
    struct shape s;
    struct weights l[MOST_LAYERS];
    struct tk_kv_pool pool;
    size_t pool_bytes;
    int32_t *tables;
    uint32_t table_stride, qkv, entries;
    float *cos_sin;
    uint32_t plan[1 + TK_MAX_SEQS + 64];
    tk_bf16 *q, *h, *hg, *att, *act;
    float *ss1, *ss2;
    struct tk_map x_att, x_hg, x_act;
    void *work, *scratch;
    /* what a step begins with */
    tk_bf16 *q0, *h0;
    void *pool0;
};

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

static void *room(size_t bytes)
{
    void *p = aligned_alloc(128, (bytes + 127) / 128 * 128);
    assert_non_null(p);
    memset(p, 0xff, bytes);
    return p;
}

static tk_bf16 *numbers(size_t n, float scale, uint64_t seed)
{
    tk_bf16 *p = room(n * sizeof *p);
    for (size_t i = 0; i < n; i++) {
        const float f = scale * (float)(int32_t)(next(&seed) % 513 - 256) / 128.f;
        uint32_t u;
        memcpy(&u, &f, sizeof u);
        p[i] = (tk_bf16)(u >> 16);
    }
    return p;
}

static void *copy_of(const void *p, size_t bytes)
{
    void *c = room(bytes);
    memcpy(c, p, bytes);
    return c;
}

static void make_layer(struct model *m, uint32_t i)
{
    const struct shape *s = &m->s;
    struct weights *l = &m->l[i];
    const uint32_t n[TK_CHAIN_MAX] = {s->hid, 2 * s->ffn, s->hid, m->qkv};
    const uint32_t k[TK_CHAIN_MAX] = {s->heads * DIM, s->hid, s->ffn, s->hid};
    for (uint32_t p = 0; p < TK_CHAIN_MAX; p++) {
        const size_t padded = (n[p] + TK_FLAT_ROWS - 1) / TK_FLAT_ROWS * TK_FLAT_ROWS;
        l->w[p] = numbers(padded * k[p], 1.f / sqrtf((float)k[p]), 100 * i + p);
        assert_int_equal(tk_flat_w_map(l->w[p], n[p], k[p], false, &l->map[p]), TD_OK);
    }
    l->gain[0] = numbers(s->hid, 1, 1000 + i);
    l->gain[1] = numbers(s->hid, 1, 2000 + i);
    assert_int_equal(tk_kv_decode_map(&m->pool, i, &l->kv), TD_OK);
}

/* Every sequence has its pages all over the pool; one more page each is nobody's. */
static void make_pool(struct model *m)
{
    const struct shape *s = &m->s;
    int32_t most = 1;
    for (uint32_t i = 0; i < s->rows; i++) {
        most = s->lens[i] > most ? s->lens[i] : most;
    }
    m->table_stride = (uint32_t)(most + TK_BLOCK_TOK - 1) / TK_BLOCK_TOK + 1;
    m->table_stride += m->table_stride % 7 == 0; /* the tables step by 7 */
    const uint32_t blocks = m->table_stride * s->rows;
    const size_t slice = tk_kv_slice_bytes(s->kv_heads, DIM, 128);
    m->pool_bytes = slice * s->layers * blocks;
    m->pool = (struct tk_kv_pool){
        numbers(m->pool_bytes / 2, 1, 5), blocks, s->layers, s->kv_heads, DIM, 128, slice};
    m->tables = room(blocks * sizeof *m->tables);
    for (uint32_t i = 0; i < blocks; i++) {
        m->tables[i] = (int32_t)((i * 7 + 3) % blocks);
    }
    m->cos_sin = room((size_t)most * DIM * sizeof *m->cos_sin);
    for (int32_t p = 0; p < most; p++) {
        for (uint32_t i = 0; i < DIM / 2; i++) {
            const double a = p * pow(1e4, -2.0 * i / DIM);
            m->cos_sin[(uint32_t)p * DIM + i] = (float)cos(a);
            m->cos_sin[(uint32_t)p * DIM + DIM / 2 + i] = (float)sin(a);
        }
    }
}

static struct model *make(const struct shape *s)
{
    struct model *m = room(sizeof *m);
    memset(m, 0, sizeof *m);
    m->s = *s;
    m->qkv = (s->heads + 2 * s->kv_heads) * DIM;
    make_pool(m);
    for (uint32_t i = 0; i < s->layers; i++) {
        make_layer(m, i);
    }
    assert_int_equal(tk_plan_window_host(s->lens, s->rows, s->window, m->plan,
                                         sizeof m->plan / sizeof m->plan[0], &m->entries),
                     TD_OK);
    const size_t r = s->rows;
    m->q0 = numbers(r * m->qkv, 1, 7), m->h0 = numbers(r * s->hid, 1, 8);
    m->q = room(r * m->qkv * 2), m->h = room(r * s->hid * 2), m->hg = room(r * s->hid * 2);
    m->att = room(r * s->heads * DIM * 2), m->act = room(r * s->ffn * 2);
    m->ss1 = room((size_t)TK_NORM_PARTS * TK_MAX_ROWS * 4);
    m->ss2 = room((size_t)TK_NORM_PARTS * TK_MAX_ROWS * 4);
    m->pool0 = copy_of(m->pool.base, m->pool_bytes);
    m->work = room(emulate_layers_work_bytes());
    memset(m->work, 0, emulate_layers_work_bytes());
    m->scratch = room((size_t)2 * TK_MAX_SEQS * s->kv_heads * 4 +
                      (size_t)64 * s->kv_heads * TK_MAX_GROUP * (8 + DIM * 4) + 256);
    assert_int_equal(tk_flat_x_map(m->att, s->rows, s->heads * DIM, s->heads * DIM, &m->x_att),
                     TD_OK);
    assert_int_equal(tk_flat_x_map(m->hg, s->rows, s->hid, s->hid, &m->x_hg), TD_OK);
    assert_int_equal(tk_flat_x_map(m->act, s->rows, s->ffn, s->ffn, &m->x_act), TD_OK);
    return m;
}

static void drop(struct model *m)
{
    for (uint32_t i = 0; i < m->s.layers; i++) {
        for (uint32_t p = 0; p < TK_CHAIN_MAX; p++) {
            free(m->l[i].w[p]);
        }
        free(m->l[i].gain[0]), free(m->l[i].gain[1]);
    }
    free(m->pool.base), free(m->tables), free(m->cos_sin), free(m->q0), free(m->h0);
    free(m->q), free(m->h), free(m->hg), free(m->att), free(m->act), free(m->ss1), free(m->ss2);
    free(m->pool0), free(m->work), free(m->scratch), free(m);
}

/* Rows without a token keep the zeros of their attention. */
static void start(struct model *m)
{
    memcpy(m->q, m->q0, (size_t)m->s.rows * m->qkv * 2);
    memcpy(m->h, m->h0, (size_t)m->s.rows * m->s.hid * 2);
    memcpy(m->pool.base, m->pool0, m->pool_bytes);
    memset(m->att, 0, (size_t)m->s.rows * m->s.heads * DIM * 2);
    memset(m->act, 0xff, (size_t)m->s.rows * m->s.ffn * 2);
}

static struct tk_attn_decode attention_of(struct model *m, uint32_t i)
{
    const struct shape *s = &m->s;
    return (struct tk_attn_decode){.kv = &m->l[i].kv,
                                   .q = m->q,
                                   .out = m->att,
                                   .lens = s->lens,
                                   .tables = m->tables,
                                   .plan = m->plan,
                                   .cos_sin = m->cos_sin,
                                   .pool = &m->pool,
                                   .layer = i,
                                   .scratch = m->scratch,
                                   .n_seqs = s->rows,
                                   .n_heads = s->heads,
                                   .n_kv_heads = s->kv_heads,
                                   .head_dim = DIM,
                                   .table_stride = m->table_stride,
                                   .q_stride = m->qkv,
                                   .out_stride = s->heads * DIM,
                                   .max_entries = m->entries + 1,
                                   .scale = 1.f / sqrtf(DIM),
                                   .window = s->window};
}

static struct tk_flat product_of(struct model *m, uint32_t i, uint32_t p)
{
    const struct shape *s = &m->s;
    static const enum tk_flat_mode modes[] = {TK_FLAT_RESIDUAL, TK_FLAT_SWIGLU, TK_FLAT_RESIDUAL,
                                              TK_FLAT_STORE};
    const struct tk_map *x[] = {&m->x_att, &m->x_hg, &m->x_act, &m->x_hg};
    const uint32_t n[] = {s->hid, 2 * s->ffn, s->hid, m->qkv};
    const uint32_t k[] = {s->heads * DIM, s->hid, s->ffn, s->hid};
    struct tk_flat f = {
        .w = &m->l[i].map[p], .x = x[p], .rows = s->rows, .n = n[p], .k = k[p], .mode = modes[p]};
    if (p % 2 == 0) {
        f.h = m->h, f.hg = m->hg, f.gain = m->l[i].gain[p / 2], f.sumsq = p == 0 ? m->ss2 : m->ss1;
    } else {
        f.out = p == 1 ? m->act : m->q;
        f.out_stride = p == 1 ? s->ffn : m->qkv;
        f.norm = (struct tk_norm_state){p == 1 ? m->ss2 : m->ss1, s->hid / 32, s->hid, EPS};
    }
    return f;
}

static struct tk_layer layer_of(struct model *m, uint32_t i)
{
    struct tk_layer l = {.attention = attention_of(m, i),
                         .n_products = i + 1 < m->s.layers ? TK_CHAIN_MAX : TK_CHAIN_MAX - 1};
    for (uint32_t p = 0; p < l.n_products; p++) {
        l.products[p] = product_of(m, i, p);
    }
    return l;
}

static void run_reference(struct model *m)
{
    start(m);
    for (uint32_t i = 0; i < m->s.layers; i++) {
        const struct tk_layer l = layer_of(m, i);
        assert_int_equal(tk_attn_decode(NULL, &l.attention), TD_OK);
        for (uint32_t p = 0; p < l.n_products; p++) {
            assert_int_equal(tk_flat(NULL, &l.products[p]), TD_OK);
        }
    }
}

struct how {
    uint32_t sms, group;
    uint64_t seed;
};

static void run_layers(struct model *m, struct how how, uint32_t first, uint32_t n)
{
    struct tk_layer l[MOST_LAYERS];
    for (uint32_t i = 0; i < n; i++) {
        l[i] = layer_of(m, first + i);
    }
    const struct tk_layers run = {.layers = l, .n = n, .work = m->work};
    assert_int_equal(emulate_layers(&run, how.sms, how.seed + first), TD_OK);
}

static void run_all(struct model *m, struct how how)
{
    start(m);
    for (uint32_t i = 0; i < m->s.layers; i += how.group) {
        const uint32_t left = m->s.layers - i;
        run_layers(m, how, i, how.group < left ? how.group : left);
    }
}

/* ||a - b|| / ||b|| of all; NaN anywhere is NaN. */
static double distance(const tk_bf16 *a, const tk_bf16 *b, size_t n)
{
    double d = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        const double x = (double)up(a[i]), y = (double)up(b[i]);
        d += (x - y) * (x - y);
        s += y * y;
    }
    return sqrt(d / s);
}

/* One layer a launch, whose q everybody may look at: attention has the sm_80 kernel's bits. */
static void check_attention(struct model *m, struct how how)
{
    const size_t bytes = (size_t)m->s.rows * m->s.heads * DIM * 2;
    start(m);
    for (uint32_t i = 0; i < m->s.layers; i++) {
        const struct tk_attn_decode a = attention_of(m, i);
        void *before = copy_of(m->pool.base, m->pool_bytes);
        assert_int_equal(emulate_attn_decode(&a, how.seed), TD_OK);
        void *att = copy_of(m->att, bytes), *pool = copy_of(m->pool.base, m->pool_bytes);
        memcpy(m->pool.base, before, m->pool_bytes);
        memset(m->att, 0, bytes);
        run_layers(m, how, i, 1);
        assert_memory_equal(m->att, att, bytes);
        assert_memory_equal(m->pool.base, pool, m->pool_bytes);
        free(before), free(att), free(pool);
    }
}

static void check_shape(struct shape s, const struct how *hows, uint32_t n)
{
    struct model *m = make(&s);
    const size_t elems = (size_t)s.rows * s.hid;
    run_reference(m);
    tk_bf16 *want = copy_of(m->h, elems * 2);
    const struct how by_one = {hows[0].sms, 1, 1};
    check_attention(m, by_one);
    assert_true(distance(m->h, want, elems) < 0.02);
    memcpy(want, m->h, elems * 2);
    void *pool = copy_of(m->pool.base, m->pool_bytes);
    for (uint32_t i = 0; i < n; i++) {
        run_all(m, hows[i]);
        assert_memory_equal(m->h, want, elems * 2);
        assert_memory_equal(m->pool.base, pool, m->pool_bytes);
    }
    free(want), free(pool);
    drop(m);
}

static void layers_of_one_launch_have_the_bits_of_a_launch_each(void **state)
{
    static const struct how hows[] = {{13, 3, 2}}, small[] = {{8, 3, 2}, {20, 2, 4}};
    (void)state;
    check_shape((struct shape){3, 512, 4, 1, 192, 0, 1, {300}}, hows, sizeof hows / sizeof hows[0]);
    check_shape((struct shape){3, 256, 2, 1, 192, 0, 1, {40}}, small,
                sizeof small / sizeof small[0]);
}

static void a_context_of_one_token_and_of_one_chunk_need_no_sums(void **state)
{
    static const struct how hows[] = {{8, 2, 2}};
    (void)state;
    check_shape((struct shape){2, 256, 2, 1, 192, 0, 1, {1}}, hows, sizeof hows / sizeof hows[0]);
    check_shape((struct shape){2, 256, 2, 1, 192, 0, 1, {256}}, hows, sizeof hows / sizeof hows[0]);
    check_shape((struct shape){2, 256, 2, 1, 192, 0, 1, {257}}, hows, sizeof hows / sizeof hows[0]);
}

/* Three rows' output comes behind a count. */
static void rows_of_any_length_share_a_launch(void **state)
{
    static const struct how hows[] = {{9, 2, 9}};
    (void)state;
    static const struct how many[] = {{14, 3, 9}};
    check_shape((struct shape){3, 256, 2, 1, 192, 0, 3, {17, 33, 40}},
                many, /* blocks with rows alone */
                sizeof many / sizeof many[0]);
    check_shape((struct shape){2, 256, 2, 1, 192, 0, 3, {17, 530, 300}}, hows,
                sizeof hows / sizeof hows[0]);
    check_shape((struct shape){2, 256, 4, 2, 192, 0, 3, {300, 0, 16}}, hows,
                sizeof hows / sizeof hows[0]);
    check_shape((struct shape){2, 256, 2, 1, 192, 17, 3, {33, 1, 300}}, hows,
                sizeof hows / sizeof hows[0]);
}

/* That of two comes with tags. */
static void two_rows_wait_for_no_count(void **state)
{
    static const struct how hows[] = {{9, 2, 3}};
    (void)state;
    check_shape((struct shape){2, 256, 2, 1, 192, 0, 2, {300, 17}}, hows,
                sizeof hows / sizeof hows[0]);
    check_shape((struct shape){2, 256, 4, 2, 192, 0, 2, {0, 270}}, hows,
                sizeof hows / sizeof hows[0]);
}

static void seven_heads_share_a_kv_head(void **state)
{
    static const struct how hows[] = {{18, 2, 2}};
    (void)state;
    check_shape((struct shape){2, 512, 7, 1, 192, 0, 1, {40}}, hows, sizeof hows / sizeof hows[0]);
}

static void a_window_hides_pages_and_chunks(void **state)
{
    static const struct how hows[] = {{8, 2, 2}};
    (void)state;
    check_shape((struct shape){2, 256, 2, 1, 192, 100, 2, {300, 610}}, hows,
                sizeof hows / sizeof hows[0]);
    check_shape((struct shape){2, 256, 2, 1, 192, 17, 1, {33}}, hows, sizeof hows / sizeof hows[0]);
}

static void long_sequences_take_many_chunks(void **state)
{
    static const struct how hows[] = {{8, 2, 3}};
    (void)state;
    check_shape((struct shape){2, 256, 2, 1, 192, 0, 1, {2300}}, hows,
                sizeof hows / sizeof hows[0]);
    check_shape((struct shape){1, 256, 2, 1, 192, 0, 3, {2048, 0, 1}}, hows,
                sizeof hows / sizeof hows[0]);
}

static void an_empty_plan_ends(void **state)
{
    static const struct how hows[] = {{8, 2, 2}, {8, 2, 3}};
    (void)state;
    check_shape((struct shape){2, 256, 2, 1, 192, 0, 1, {0}}, hows, sizeof hows / sizeof hows[0]);
    check_shape((struct shape){2, 256, 2, 1, 192, 0, 3, {0, 0, 0}}, hows,
                sizeof hows / sizeof hows[0]);
}

/* Of a launch that has used nearly all tags the next one finds none that is its own. */
static void tags_begin_again(void **state)
{
    static const struct shape s = {2, 256, 2, 1, 192, 0, 2, {300, 17}};
    static const struct how how = {9, 2, 1};
    struct model *m = make(&s);
    const size_t bytes = (size_t)s.rows * s.hid * 2;
    (void)state;
    run_all(m, how);
    tk_bf16 *want = copy_of(m->h, bytes);
    *(uint32_t *)m->work = UINT32_MAX - 2 * TK_LAYERS_MAX * TK_STAGES - 1;
    run_all(m, how);
    assert_memory_equal(m->h, want, bytes);
    assert_int_equal(*(const uint32_t *)m->work, 0);
    run_all(m, how);
    assert_memory_equal(m->h, want, bytes);
    free(want);
    drop(m);
}

/* Two layers, of which the bytes at these places may not be changed in the second, nor in both. */
static const struct spoiled {
    size_t at;
    unsigned char bits;
    bool both;
} spoiled[] = {
    {offsetof(struct tk_layer, attention.scale), 2, false},
    {offsetof(struct tk_layer, attention.cos_sin), 16, false},
    {offsetof(struct tk_layer, attention.q), 16, false},
    {offsetof(struct tk_layer, attention.out), 16, false},
    {offsetof(struct tk_layer, attention.q_stride), 2, false},
    {offsetof(struct tk_layer, attention.out_stride), 2, false},
    {offsetof(struct tk_layer, attention.table_stride), 1, false},
    {offsetof(struct tk_layer, attention.max_entries), 1, false},
    {offsetof(struct tk_layer, attention.max_entries) + 1, 2, true}, /* 512 more */
    {offsetof(struct tk_layer, attention.window), 1, false},
    {offsetof(struct tk_layer, attention.layer), 1, false},
    {offsetof(struct tk_layer, attention.layer), 4, true}, /* beyond the pool's */
    {offsetof(struct tk_layer, attention.n_seqs), 1, false},
    {offsetof(struct tk_layer, attention.one_table), 1, true},
    {offsetof(struct tk_layer, n_products), 1, false},
    {offsetof(struct tk_layer, products[0].k), 64, true}, /* not what attention leaves */
    {offsetof(struct tk_layer, products[0].h), 16, false},
    {offsetof(struct tk_layer, products[1].n), 16, false},
    {offsetof(struct tk_layer, products[1].norm.eps), 2, false},
    {offsetof(struct tk_layer, products[1].norm.dim), 64, false},
    {offsetof(struct tk_layer, products[2].mode), 1, false},
};

static td_err run_spoiled(struct model *m, const struct spoiled *x)
{
    struct tk_layer l[] = {layer_of(m, 0), layer_of(m, 1)};
    const struct tk_layers run = {.layers = l, .n = 2, .work = m->work};
    for (uint32_t i = x->both ? 0 : 1; i < 2; i++) {
        ((unsigned char *)&l[i])[x->at] ^= x->bits;
    }
    return emulate_layers(&run, 9, 1);
}

static void layers_that_are_not_alike_are_refused(void **state)
{
    static const struct shape s = {2, 256, 2, 1, 192, 0, 2, {300, 17}};
    static const struct spoiled none = {0, 0, false};
    struct model *m = make(&s);
    (void)state;
    start(m);
    assert_int_equal(run_spoiled(m, &none), TD_OK);
    for (size_t i = 0; i < sizeof spoiled / sizeof spoiled[0]; i++) {
        assert_int_equal(run_spoiled(m, &spoiled[i]), TD_ERR_UNSUPPORTED);
    }
    const struct tk_layer l = layer_of(m, 0);
    const struct tk_layers none_at_all = {.layers = &l, .n = 0, .work = m->work},
                           too_many = {.layers = &l, .n = TK_LAYERS_MAX + 1, .work = m->work};
    assert_int_equal(emulate_layers(&none_at_all, 9, 1), TD_ERR_UNSUPPORTED);
    assert_int_equal(emulate_layers(&too_many, 9, 1), TD_ERR_UNSUPPORTED);
    drop(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_plan_ends),
        cmocka_unit_test(a_context_of_one_token_and_of_one_chunk_need_no_sums),
        cmocka_unit_test(layers_of_one_launch_have_the_bits_of_a_launch_each),
        cmocka_unit_test(rows_of_any_length_share_a_launch),
        cmocka_unit_test(two_rows_wait_for_no_count),
        cmocka_unit_test(seven_heads_share_a_kv_head),
        cmocka_unit_test(a_window_hides_pages_and_chunks),
        cmocka_unit_test(long_sequences_take_many_chunks),
        cmocka_unit_test(tags_begin_again),
        cmocka_unit_test(layers_that_are_not_alike_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
