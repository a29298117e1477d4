/* A group of ranks gives the bits of one engine, whatever its size; what travels is believed by nobody; a group that
 * ends leaves no thread waiting and claims nothing that it has not computed. */
#include "common/model/cpu_engine_ranks.h"

#include "common/base/clock.h"
#include "common/base/fault.h"
#include "tests/unit/model/engine_util.h"
#include "tests/unit/model/ranks_util.h"

#define LONG 280 /* tokens: crosses a chunk of attention */

struct group {
    struct ru_group *g;
    uint32_t n;
    struct td_engine *e[RU_MAX];
    FILE *log;
};

/* llama, with a window, qwen2, qwen3, and heads so narrow that two make a quantised block: i < MODELS. */
#define MODELS (EU_ARCHS + 1)
static struct eu_model model_at(uint32_t i)
{
    static const struct {
        const char *arch;
        uint32_t window, head_dim, heads, kv_heads;
    } all[MODELS] = {{NULL, 0, 0, 8, 4},
                     {"llama", 50, 0, 8, 4},
                     {"qwen2", 0, 0, 8, 4},
                     {"qwen3", 0, 128, 4, 4},
                     {NULL, 0, 16, 16, 16}};
    struct td_tiny_params p = td_tiny_defaults();
    p.arch = all[i].arch;
    p.window = all[i].window;
    p.head_dim = all[i].head_dim;
    p.n_heads = all[i].heads;
    p.n_kv_heads = all[i].kv_heads;
    p.untied = i % 2 == 1;
    return eu_model_make(&p);
}

static struct td_cpu_engine_params rank_params(struct ru_group *g, uint32_t rank,
                                               const char *numerics, uint32_t threads)
{
    struct td_cpu_engine_params p = eu_params(numerics, TD_ISA_AUTO, threads);
    p.ranks = &g->ranks[rank].base;
    return p;
}

/* Lines of the engines go to a file until the group is freed. */
static struct group group_make(const struct eu_model *m, const char *numerics, uint32_t n,
                               uint32_t threads)
{
    struct group g = {.g = ru_group_make(n), .n = n, .log = catch_log()};
    for (uint32_t p = 0; p < n; p++) {
        struct td_cpu_engine_params params = rank_params(g.g, p, numerics, threads);
        assert_int_equal(td_cpu_engine_create(m->m, &params, &g.e[p]), TD_OK);
        assert_int_equal(td_cpu_engine_farewell(g.e[p]), TD_ERR_AGAIN);
    }
    return g;
}

/* Waits until the engine says that it has ended, and how. */
static td_err ended(struct td_engine *e)
{
    struct td_step_result r;
    struct pollfd fd = {.fd = e->ops->event_fd(e), .events = POLLIN};
    td_err err = e->ops->poll(e, &r);
    while (err != TD_ERR_CLOSED) {
        assert_true(err == TD_OK || err == TD_ERR_AGAIN);
        assert_true(err == TD_OK || poll(&fd, 1, 60000) == 1);
        err = e->ops->poll(e, &r);
    }
    assert_true(poll(&fd, 1, 0) == 1); /* and goes on saying so */
    assert_int_equal(e->ops->poll(e, &r), TD_ERR_CLOSED);
    return td_cpu_engine_farewell(e);
}

/* Rank 0 says goodbye, and all hear it. */
static void group_free(struct group *g)
{
    char text[4096];
    g->e[0]->ops->destroy(g->e[0]);
    for (uint32_t p = 1; p < g->n; p++) {
        assert_int_equal(ended(g->e[p]), TD_OK);
    }
    for (uint32_t p = 1; p < g->n; p++) {
        g->e[p]->ops->destroy(g->e[p]);
    }
    ru_group_free(g->g);
    caught_log(g->log, text, sizeof text);
    assert_null(strstr(text, "level=error"));
}

static float *logits_of(struct td_engine *e, const int32_t *tokens, uint32_t n, uint32_t chunk)
{
    float *out = malloc((size_t)n * e->ops->info(e)->n_vocab * sizeof *out);
    assert_non_null(out);
    assert_int_equal(td_cpu_engine_logits(e, tokens, n, chunk, out), TD_OK);
    return out;
}

static size_t pool_bytes(const struct td_engine *e)
{
    const struct td_engine_info *i = e->ops->info(e);
    return i->n_blocks * i->layout.block_bytes;
}

static void compare_logits(const struct eu_model *m, const char *numerics, uint32_t n_tok)
{
    static const struct {
        uint32_t ranks, threads, chunk;
    } how[] = {{2, 1, LONG}, {3, 1, 17}, {2, 2, 1}, {3, 2, LONG}, {4, 1, 64}};
    int32_t tokens[LONG];
    eu_tokens(m, 5, tokens, LONG);
    struct td_engine *one = eu_engine(m, numerics, TD_ISA_AUTO, 1);
    float *want = logits_of(one, tokens, n_tok, n_tok);
    for (size_t i = 0; i < TD_COUNT(how); i++) {
        uint32_t n = how[i].chunk == 1 && n_tok > 40 ? 40 : n_tok;
        struct group g = group_make(m, numerics, how[i].ranks, how[i].threads);
        float *got = logits_of(g.e[0], tokens, n, how[i].chunk);
        assert_memory_equal(got, want, (size_t)n * m->m->hp.n_vocab * sizeof *got);
        if (n == n_tok) {
            assert_memory_equal(g.e[0]->ops->pool_base(g.e[0]), one->ops->pool_base(one),
                                pool_bytes(one));
        }
        free(got);
        group_free(&g);
    }
    free(want);
    one->ops->destroy(one);
}

static void groups_of_any_size_give_the_bits_of_one(void **state)
{
    for (uint32_t i = 0; i < MODELS; i++) {
        struct eu_model m = model_at(i);
        compare_logits(&m, "int8", i < 2 ? LONG : 90);
        eu_model_close(&m);
    }
}

static void groups_give_the_bits_of_one_in_float32(void **state)
{
    for (uint32_t i = 0; i < MODELS; i++) {
        struct eu_model m = model_at(i);
        compare_logits(&m, "f32", 70);
        eu_model_close(&m);
    }
}

/* Three sequences by chunks of 37 beside each other's decode rows, two steps in flight, ids fed within the engine. */
#define SEQS 3
#define GEN  9
struct play {
    int32_t ids[SEQS][GEN];
    uint32_t made[SEQS], fed[SEQS];
    struct eu_seq s[SEQS];
    int32_t prompt[SEQS][LONG];
};
static const uint32_t play_len[SEQS] = {5, 130, 16};

static uint32_t play_rows(struct play *p, uint32_t step, struct td_row *rows, uint32_t *who)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < SEQS; i++) {
        uint32_t left = play_len[i] - p->fed[i], len = left < 37 ? left : 37;
        if (step < i * 2 || p->made[i] == GEN) {
            continue;
        }
        who[n] = i;
        if (len > 0) {
            rows[n++] = eu_row(&p->s[i], p->prompt[i] + p->fed[i], len, len == left);
            p->fed[i] += len;
        } else {
            rows[n++] = eu_row(&p->s[i], NULL, 1, true);
        }
        p->made[i] += len == left; /* once this step is done */
    }
    return n;
}

static void play_take(struct play *p, struct td_engine *e, const uint32_t *who, uint32_t *got)
{
    struct td_step_result r = eu_wait(e);
    for (uint32_t i = 0; i < r.n_rows; i++) {
        assert_int_equal(r.rows[i].err, TD_OK);
        if (r.rows[i].n_ids > 0) {
            p->ids[who[i]][got[who[i]]++] = r.rows[i].ids[0];
        }
    }
}

static void play(const struct eu_model *m, struct td_engine *e, struct play *p)
{
    uint32_t who[2][SEQS] = {{0}}, got[SEQS] = {0}, flying = 0;
    memset(p, 0, sizeof *p);
    for (uint32_t i = 0; i < SEQS; i++) {
        eu_tokens(m, 100 + i, p->prompt[i], play_len[i]);
        eu_set(e, i, eu_sampling(i % 2 == 0 ? 0 : 0.8f, i));
        p->s[i] = eu_seq_new(i, i * 19 + 1, 1);
    }
    for (uint32_t step = 0; step < 30; step++) {
        struct td_row rows[SEQS];
        td_ticket ticket;
        uint32_t n = play_rows(p, step, rows, who[step % 2]);
        if (n == 0) {
            break;
        }
        assert_int_equal(e->ops->submit(e, rows, n, &ticket), TD_OK);
        if (++flying == 2) {
            play_take(p, e, who[(step + 1) % 2], got);
            flying--;
        }
        if (step + 1 < 30 && p->made[0] == GEN && p->made[1] == GEN && p->made[2] == GEN) {
            play_take(p, e, who[step % 2], got);
            flying--;
        }
    }
    assert_true(flying == 0 && got[0] == GEN && got[1] == GEN && got[2] == GEN);
}

static void mixed_steps_in_flight_give_the_ids_and_the_pool_of_one(void **state)
{
    for (uint32_t i = 0; i < 2 * MODELS; i++) {
        const char *numerics = i < MODELS ? "int8" : "f32";
        struct eu_model m = model_at(i % MODELS);
        struct play want, got;
        struct td_engine *one = eu_engine(&m, numerics, TD_ISA_AUTO, 2);
        play(&m, one, &want);
        struct group g = group_make(&m, numerics, 2 + i % 2, 1 + i / 2 % 2);
        play(&m, g.e[0], &got);
        assert_memory_equal(got.ids, want.ids, sizeof want.ids);
        assert_memory_equal(g.e[0]->ops->pool_base(g.e[0]), one->ops->pool_base(one),
                            pool_bytes(one));
        group_free(&g);
        one->ops->destroy(one);
        eu_model_close(&m);
    }
}

/* Bytes that all ranks together received for one step of n tokens, of which one row samples. */
static uint64_t step_bytes(const struct eu_model *m, struct group *g, uint32_t n)
{
    int32_t tokens[LONG];
    struct eu_seq s = eu_seq_new(0, 0, 1);
    eu_tokens(m, 3, tokens, n);
    eu_set(g->e[0], 0, eu_sampling(0, 0));
    struct td_row row = eu_row(&s, tokens, n, true);
    uint64_t before = g->g->bytes; /* no rank is in a call that counts */
    assert_int_equal(eu_step(g->e[0], &row, 1).rows[0].err, TD_OK);
    return g->g->bytes - before;
}

/* The table of common/model/README.md. */
static void steps_move_what_the_documents_say(void **state)
{
    for (uint32_t i = 0; i < 2 * MODELS; i++) {
        bool f32 = i >= MODELS;
        uint32_t n = 2 + i % 2;
        struct eu_model m = model_at(i % MODELS);
        const struct td_hparams *hp = &m.m->hp;
        uint64_t q = hp->n_heads * hp->head_dim, block = f32 ? 128 : 40;
        uint64_t layer = (q + hp->n_ffn) / 32 * block + 8 * hp->n_embd;
        struct group g = group_make(&m, f32 ? "f32" : "int8", n, 1);
        /* rank 0 has the first share itself: what comes to it alone */
        const struct td__ce_ranks *r = ((const struct td__ce *)g.e[0])->ranks;
        uint64_t kv = (hp->n_kv_heads - r->heads.from[1]) * hp->head_dim * (f32 ? 8 : 4);
        uint64_t logits = 4 * (hp->n_vocab - r->vocab.from[1]);
        for (uint32_t tokens = 1; tokens <= 64; tokens += 21) {
            assert_true(step_bytes(&m, &g, tokens) ==
                        tokens * hp->n_layers * ((n - 1) * layer + kv) + logits);
        }
        group_free(&g);
        eu_model_close(&m);
    }
}

/* --- KV from outside --- */

/* Copies every block of the sequence that holds a position below pos. */
static void copy_blocks(struct td_engine *to, const struct eu_seq *st, struct td_engine *from,
                        const struct eu_seq *sf, uint32_t pos)
{
    const struct td_kv_layout *l = &from->ops->info(from)->layout;
    for (uint32_t b = 0; b * l->block_tok < pos; b++) {
        for (uint32_t layer = 0; layer < l->n_layers; layer++) {
            memcpy(td_engine_slice(to, st->table[b], layer),
                   td_engine_slice(from, sf->table[b], layer), l->slice_bytes);
        }
    }
}

/* The rest of the sequence on e: its first step says that the KV before pos has landed. */
static void resume(struct td_engine *e, struct eu_seq *s, uint32_t want_first, const int32_t *first,
                   int32_t *out, uint32_t n)
{
    out[0] = first[0];
    for (uint32_t i = 1; i < n; i++) {
        struct td_row row = eu_row(s, &out[i - 1], 1, true);
        row.want = i == 1 ? want_first : 0;
        out[i] = eu_step(e, &row, 1).rows[0].ids[0];
    }
}

static void landed_kv_reaches_all_ranks(void **state)
{
    for (uint32_t i = 0; i < MODELS; i++) {
        struct eu_model m = model_at(i);
        struct td_engine *one = eu_engine(&m, "int8", TD_ISA_AUTO, 1);
        struct group g = group_make(&m, "int8", 2 + i % 2, 1 + i % 2);
        struct eu_seq a = eu_seq_new(0, 0, 1), b = eu_seq_new(0, 30, 3);
        int32_t prompt[LONG], want[GEN], got[GEN];
        eu_tokens(&m, 4, prompt, LONG);
        eu_set(one, 0, eu_sampling(0, 5));
        eu_set(g.e[0], 0, eu_sampling(0, 5));
        eu_generate(one, &a, prompt, 135, 50, want, GEN);
        copy_blocks(g.e[0], &b, one, &a, 135);
        b.pos = 135;
        resume(g.e[0], &b, TD_KV_LANDED, want, got, GEN);
        assert_memory_equal(got, want, sizeof want);
        /* without the word, the ranks attend to what they have: nothing */
        b = eu_seq_new(0, 1, 3);
        copy_blocks(g.e[0], &b, one, &a, 135);
        b.pos = 135;
        eu_set(g.e[0], 0, eu_sampling(0, 5));
        resume(g.e[0], &b, 0, want, got, GEN);
        assert_memory_not_equal(got, want, sizeof want);
        group_free(&g);
        one->ops->destroy(one);
        eu_model_close(&m);
    }
}

/* A prompt whose beginning landed, as a chunk beside another sequence's. */
static void landed_kv_of_a_chunk_beside_others(void **state)
{
    struct eu_model m = model_at(0);
    struct td_engine *one = eu_engine(&m, "f32", TD_ISA_AUTO, 1);
    struct group g = group_make(&m, "f32", 3, 1);
    int32_t prompt[LONG], want[2][1];
    eu_tokens(&m, 4, prompt, LONG);
    for (uint32_t i = 0; i < 2; i++) {
        struct eu_seq s = eu_seq_new(i, 40 * i, 1);
        eu_set(one, i, eu_sampling(0, 5));
        eu_set(g.e[0], i, eu_sampling(0, 5));
        eu_generate(one, &s, prompt + i, 100, 100, want[i], 1);
    }
    struct eu_seq from = eu_seq_new(0, 0, 1), a = eu_seq_new(0, 50, 1), b = eu_seq_new(1, 10, 1);
    copy_blocks(g.e[0], &a, one, &from, 64);
    a.pos = 64;
    struct td_row rows[2] = {eu_row(&b, prompt + 1, 100, true), eu_row(&a, prompt + 64, 36, true)};
    rows[1].want = TD_KV_LANDED;
    struct td_step_result r = eu_step(g.e[0], rows, 2);
    assert_int_equal(r.rows[0].ids[0], want[1][0]);
    assert_int_equal(r.rows[1].ids[0], want[0][0]);
    group_free(&g);
    one->ops->destroy(one);
    eu_model_close(&m);
}

/* --- layers, failures --- */

static void layers_are_done_when_rank_0_has_all_heads(void **state)
{
    struct eu_model m = model_at(0);
    struct td_engine *one = eu_engine(&m, "int8", TD_ISA_AUTO, 1);
    struct group g = group_make(&m, "int8", 2, 2);
    struct td_engine *e = g.e[0];
    int32_t tokens[200];
    struct eu_seq s = eu_seq_new(0, 0, 1);
    td_ticket ticket;
    eu_tokens(&m, 9, tokens, 200);
    struct td_row row = eu_row(&s, tokens, 200, false);
    (void)eu_step(one, &row, 1);
    row.want = TD_PUSH_LAYERS;
    assert_int_equal(e->ops->submit(e, &row, 1, &ticket), TD_OK);
    for (uint32_t layer = 0; layer < m.m->hp.n_layers; layer++) {
        while (e->ops->layers_done(e, ticket) <= layer) {
            struct pollfd fd = {.fd = e->ops->layer_fd(e), .events = POLLIN};
            uint64_t count;
            assert_true(poll(&fd, 1, 60000) == 1);
            assert_true(read(fd.fd, &count, sizeof count) == sizeof count);
        }
        for (uint32_t b = 0; b < 13; b++) { /* final: the slices of one engine */
            assert_memory_equal(td_engine_slice(e, b, layer), td_engine_slice(one, b, layer),
                                e->ops->info(e)->layout.slice_bytes);
        }
    }
    (void)eu_wait(e);
    group_free(&g);
    one->ops->destroy(one);
    eu_model_close(&m);
}

static void a_row_that_fails_is_not_told(void **state)
{
    struct eu_model m = model_at(0);
    struct td_engine *one = eu_engine(&m, "int8", TD_ISA_AUTO, 1);
    struct group g = group_make(&m, "int8", 2, 1);
    struct td_engine *e = g.e[0];
    int32_t tokens[5] = {1, 2, 3, 4, 5}, want[1];
    struct eu_seq s = eu_seq_new(0, 0, 1);
    eu_set(one, 0, eu_sampling(0, 0));
    eu_generate(one, &s, tokens, 5, 5, want, 1);
    eu_set(e, 0, eu_sampling(0, 0));
    eu_set(e, 1, eu_sampling(0, 0));
    struct eu_seq a = eu_seq_new(0, 20, 1), b = eu_seq_new(1, 40, 1), c = eu_seq_new(2, 60, 1);
    struct td_row rows[3] = {eu_row(&b, NULL, 1, true), eu_row(&a, tokens, 5, true),
                             eu_row(&c, tokens, 3, false)};
    rows[2].n_blocks = 0;
    struct td_step_result r = eu_step(e, rows, 3);
    assert_int_equal(r.rows[0].err, TD_ERR_SEQ_FAILED); /* no id before it */
    assert_int_equal(r.rows[1].err, TD_OK);
    assert_int_equal(r.rows[1].ids[0], want[0]);
    assert_int_equal(r.rows[2].err, TD_ERR_BAD_REQUEST);
    uint64_t tells = g.g->tells;
    rows[0] = eu_row(&b, NULL, 1, true);
    rows[0].sampling = 3; /* never set: nothing of the step lives, so nobody hears of it */
    assert_int_equal(eu_step(e, rows, 1).rows[0].err, TD_ERR_BAD_REQUEST);
    assert_true(g.g->tells == tells);
    group_free(&g);
    one->ops->destroy(one);
    eu_model_close(&m);
}

static void helping_ranks_take_no_steps(void **state)
{
    struct eu_model m = model_at(0);
    struct group g = group_make(&m, "int8", 2, 1);
    struct td_engine *help = g.e[1];
    int32_t tokens[4] = {1, 2, 3, 4};
    struct eu_seq s = eu_seq_new(0, 0, 1);
    struct td_row row = eu_row(&s, tokens, 4, false);
    struct td_step_result r;
    td_ticket ticket = 0;
    float *logits = malloc(4 * m.m->hp.n_vocab * sizeof *logits);
    assert_int_equal(help->ops->submit(help, &row, 1, &ticket), TD_ERR_UNSUPPORTED);
    assert_int_equal(td_cpu_engine_logits(help, tokens, 4, 4, logits), TD_ERR_UNSUPPORTED);
    assert_int_equal(help->ops->poll(help, &r), TD_ERR_AGAIN);
    assert_null(help->ops->pool_base(help));
    assert_non_null(g.e[0]->ops->pool_base(g.e[0]));
    const struct td_engine_info *a = g.e[0]->ops->info(g.e[0]), *b = help->ops->info(help);
    assert_memory_equal(&a->layout, &b->layout, sizeof a->layout);
    assert_string_equal(a->numerics, "cpu-int8-v1"); /* no word of ranks: the bits are the same */
    assert_true(a->numerics_id == b->numerics_id);
    free(logits);
    group_free(&g);
    eu_model_close(&m);
}

static void steps_in_flight_are_done_before_the_goodbye(void **state)
{
    struct eu_model m = model_at(0);
    struct group g = group_make(&m, "int8", 3, 2);
    int32_t tokens[200];
    struct eu_seq s = eu_seq_new(0, 0, 1);
    td_ticket ticket;
    eu_tokens(&m, 2, tokens, 200);
    for (int i = 0; i < 2; i++) {
        struct td_row row = eu_row(&s, tokens, 200, false);
        assert_int_equal(g.e[0]->ops->submit(g.e[0], &row, 1, &ticket), TD_OK);
    }
    group_free(&g);
    eu_model_close(&m);
}

static void a_waiting_rank_is_destroyed_and_its_group_is_over(void **state)
{
    struct eu_model m = model_at(0);
    struct group g = group_make(&m, "int8", 3, 2);
    char text[4096];
    g.e[1]->ops->destroy(g.e[1]);
    assert_int_equal(ended(g.e[2]), TD_ERR_PEER_LOST);
    int32_t tokens[4] = {1, 2, 3, 4};
    struct eu_seq s = eu_seq_new(0, 0, 1);
    struct td_row row = eu_row(&s, tokens, 4, false);
    td_ticket ticket;
    assert_int_equal(g.e[0]->ops->submit(g.e[0], &row, 1, &ticket), TD_OK);
    assert_int_equal(ended(g.e[0]), TD_ERR_PEER_LOST);
    assert_int_equal(g.e[0]->ops->layers_done(g.e[0], ticket), 0);
    g.e[0]->ops->destroy(g.e[0]);
    g.e[2]->ops->destroy(g.e[2]);
    ru_group_free(g.g);
    caught_log(g.log, text, sizeof text);
    assert_non_null(strstr(text, "engine has lost its group of ranks"));
    eu_model_close(&m);
}

/* The program stops the exchanges before it destroys the engine: nothing is lost then. */
static void a_rank_that_is_stopped_by_its_own_process_has_lost_nothing(void **state)
{
    struct eu_model m = model_at(0);
    struct group g = group_make(&m, "int8", 2, 1);
    char text[4096];
    g.g->ranks[1].base.ops->stop(&g.g->ranks[1].base);
    assert_int_equal(ended(g.e[1]), TD_ERR_CLOSED);
    g.e[1]->ops->destroy(g.e[1]);
    g.e[0]->ops->destroy(g.e[0]);
    ru_group_free(g.g);
    caught_log(g.log, text, sizeof text);
    assert_non_null(strstr(text, "engine leaves its group of ranks"));
    assert_null(strstr(text, "level=error"));
    eu_model_close(&m);
}

/* Two steps whose group ends at the given call; true when it lived to the end of both. */
static bool end_at(const struct eu_model *m, const struct play *want, uint32_t ranks,
                   uint32_t threads, uint64_t call)
{
    struct group g = group_make(m, "int8", ranks, threads);
    struct td_engine *e = g.e[0];
    struct eu_seq s = eu_seq_new(0, 1, 1);
    struct td_row rows[2];
    td_ticket ticket[2];
    char text[4096];
    (void)pthread_mutex_lock(&g.g->lock);
    g.g->fail_at = call;
    (void)pthread_mutex_unlock(&g.g->lock);
    eu_set(e, 0, eu_sampling(0, 0));
    rows[0] = eu_row(&s, want->prompt[0], play_len[0], true);
    rows[1] = eu_row(&s, NULL, 1, true);
    rows[1].want = TD_KV_LANDED; /* as good as new, in one trade more */
    assert_int_equal(e->ops->submit(e, &rows[0], 1, &ticket[0]), TD_OK);
    td_err err = e->ops->submit(e, &rows[1], 1, &ticket[1]);
    assert_true(err == TD_OK || err == TD_ERR_CLOSED); /* the first has ended all */
    ticket[1] = ticket[0] + 1;
    struct td_step_result r;
    struct pollfd fd = {.fd = e->ops->event_fd(e), .events = POLLIN};
    uint32_t done = 0;
    err = TD_ERR_AGAIN;
    while (done < 2 && err != TD_ERR_CLOSED) {
        err = e->ops->poll(e, &r);
        assert_true(err != TD_ERR_AGAIN || poll(&fd, 1, 60000) == 1);
        if (err == TD_OK) { /* what finishes is right */
            assert_true(r.ticket == ticket[done] && r.rows[0].ids[0] == want->ids[0][done]);
            done++;
        }
    }
    if (done < 2) {
        assert_int_equal(ended(e), TD_ERR_PEER_LOST);
        assert_true(e->ops->layers_done(e, ticket[1]) <= m->m->hp.n_layers);
        assert_true(done > 0 || e->ops->layers_done(e, ticket[1]) == 0);
    }
    e->ops->destroy(e);
    for (uint32_t p = 1; p < ranks; p++) {
        td_err farewell = ended(g.e[p]);
        assert_true(done < 2 ? farewell == TD_ERR_PEER_LOST
                             : farewell == TD_ERR_PEER_LOST || farewell == TD_OK);
    }
    for (uint32_t p = 1; p < ranks; p++) {
        g.e[p]->ops->destroy(g.e[p]);
    }
    ru_group_free(g.g);
    caught_log(g.log, text, sizeof text);
    return done == 2;
}

static void a_group_may_end_at_any_call(void **state)
{
    struct eu_model m = model_at(0);
    struct play want;
    struct td_engine *one = eu_engine(&m, "int8", TD_ISA_AUTO, 1);
    play(&m, one, &want);
    for (uint32_t ranks = 2; ranks <= 3; ranks++) {
        uint64_t call = 1;
        while (!end_at(&m, &want, ranks, 1 + (uint32_t)call % 2, call)) {
            call++;
            assert_true(call < 200);
        }
        assert_true(call > 2 * ranks * (1 + 4 * m.m->hp.n_layers)); /* every trade of two steps */
    }
    one->ops->destroy(one);
    eu_model_close(&m);
}

/* --- hostile rank 0 --- */

/* A message of rank_step.h: head, two rows, 5 + 1 tokens, 1 + 2 blocks. */
#define N_WORDS (10 + 8 + 6 + 3)
static void good_message(uint32_t *w)
{
    const uint32_t message[N_WORDS] = {0x54525354u, 1,  1, 0, 7, 0, 2, 6, 3, 0, /* head */
                                       0,           5,  1, 0,                   /* row */
                                       20,          1,  2, 1,                   /* row, samples */
                                       1,           2,  3, 4, 5, 6,             /* tokens */
                                       0,           10, 11};                    /* blocks */
    memcpy(w, message, sizeof message);
}

/* What a lone rank 1 makes of a message; rank 0's part of the exchanges is never played. */
static td_err hears(const struct eu_model *m, const void *message, size_t n)
{
    struct ru_group *g = ru_group_make(2);
    struct td_cpu_engine_params p = rank_params(g, 1, "int8", 2);
    struct td_engine *e = NULL;
    struct td_ranks *zero = &g->ranks[0].base;
    char text[4096];
    FILE *log = catch_log();
    assert_int_equal(td_cpu_engine_create(m->m, &p, &e), TD_OK);
    assert_int_equal(zero->ops->tell(zero, message, n), TD_OK);
    (void)pthread_mutex_lock(&g->lock);
    while (!g->over && g->box[1][0].data == NULL && td_cpu_engine_farewell(e) == TD_ERR_AGAIN) {
        struct timespec soon;
        (void)clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_nsec += 1000000;
        soon.tv_sec += soon.tv_nsec / 1000000000;
        soon.tv_nsec %= 1000000000;
        (void)pthread_cond_timedwait(&g->changed, &g->lock, &soon);
    }
    bool took = g->box[1][0].data != NULL; /* it computes, and has something for rank 0 */
    (void)pthread_mutex_unlock(&g->lock);
    td_err err = took ? TD_OK : ended(e);
    e->ops->destroy(e);
    ru_group_free(g);
    caught_log(log, text, sizeof text);
    assert_true((err == TD_ERR_PROTOCOL) ==
                (strstr(text, "told a step that this rank cannot") != NULL));
    return err;
}

static void a_step_that_cannot_be_is_the_end(void **state)
{
    static const struct {
        uint32_t at, value;
    } bad[] = {{1, 2}, {6, EU_ROWS + 1}, {7, EU_TOKENS + 1}, {10, EU_MAX_LEN}, {24, EU_BLOCKS}};
    struct eu_model m = model_at(0);
    uint32_t w[N_WORDS] = {0};
    good_message(w);
    assert_int_equal(hears(&m, w, sizeof w), TD_OK);
    assert_int_equal(hears(&m, w, sizeof w - 1), TD_ERR_PROTOCOL);
    assert_int_equal(hears(&m, w, 0), TD_ERR_PROTOCOL);
    for (size_t i = 0; i < TD_COUNT(bad); i++) {
        good_message(w);
        w[bad[i].at] = bad[i].value;
        assert_int_equal(hears(&m, w, sizeof w), TD_ERR_PROTOCOL);
    }
    good_message(w);
    w[2] = 2; /* a goodbye is a head alone */
    assert_int_equal(hears(&m, w, sizeof w), TD_ERR_PROTOCOL);
    assert_int_equal(hears(&m, w, 40), TD_OK);
    eu_model_close(&m);
}

static void a_rank_survives_any_byte_of_a_step(void **state)
{
    struct eu_model m = model_at(0);
    struct td_rng r = {11};
    for (uint32_t i = 0; i < 20; i++) {
        uint32_t w[N_WORDS];
        good_message(w);
        for (uint32_t j = 0; j <= i % 3; j++) {
            ((uint8_t *)w)[td_rng_below(&r, sizeof w)] ^= (uint8_t)(1u << td_rng_below(&r, 8));
        }
        td_err err = hears(&m, w, sizeof w);
        assert_true(err == TD_OK || err == TD_ERR_PROTOCOL);
    }
    eu_model_close(&m);
}

static void a_step_longer_than_any_is_the_end(void **state)
{
    struct eu_model m = model_at(0);
    size_t n = (size_t)1 << 20;
    void *huge = calloc(1, n);
    struct ru_group *g = ru_group_make(2);
    struct td_cpu_engine_params p = rank_params(g, 1, "int8", 1);
    struct td_engine *e = NULL;
    char text[4096];
    FILE *log = catch_log();
    assert_int_equal(td_cpu_engine_create(m.m, &p, &e), TD_OK);
    assert_int_equal(g->ranks[0].base.ops->tell(&g->ranks[0].base, huge, n), TD_OK);
    assert_int_equal(ended(e), TD_ERR_PROTOCOL);
    e->ops->destroy(e);
    ru_group_free(g);
    caught_log(log, text, sizeof text);
    free(huge);
    eu_model_close(&m);
}

/* --- making --- */

static void a_model_is_not_cut_more_often_than_it_has_parts(void **state)
{
    static const struct {
        uint32_t heads, kv_heads, head_dim, n;
        bool ok;
    } cases[] = {{8, 4, 0, 4, true},     {8, 4, 0, 5, false},
                 {4, 1, 0, 2, false},    {16, 16, 16, 8, true}, /* two heads a quantised block */
                 {16, 16, 16, 9, false}, {8, 8, 32, 8, true}};
    for (size_t i = 0; i < TD_COUNT(cases); i++) {
        struct td_tiny_params t = td_tiny_defaults();
        t.n_heads = cases[i].heads;
        t.n_kv_heads = cases[i].kv_heads;
        t.head_dim = cases[i].head_dim;
        struct eu_model m = eu_model_make(&t);
        struct ru_group *g = ru_group_make(cases[i].n);
        struct td_cpu_engine_params p = rank_params(g, 1, "int8", 1);
        struct td_engine *e = NULL;
        char text[4096];
        FILE *log = catch_log();
        td_err err = td_cpu_engine_create(m.m, &p, &e);
        assert_int_equal(td_cpu_engine_check_ranks(m.m, cases[i].n), err);
        if (e != NULL) {
            e->ops->destroy(e);
        }
        caught_log(log, text, sizeof text);
        assert_int_equal(err, cases[i].ok ? TD_OK : TD_ERR_CONFIG);
        assert_true(cases[i].ok == (strstr(text, "--tensor-parallel-size is larger") == NULL));
        ru_group_free(g);
        eu_model_close(&m);
    }
}

static void a_senseless_group_is_refused(void **state)
{
    static const uint32_t bad[][2] = {{0, 1}, {0, 0}, {2, 2}, {0, TD_RANKS_MAX + 1}};
    struct eu_model m = model_at(0);
    for (size_t i = 0; i < TD_COUNT(bad); i++) {
        struct td_ranks group = {.rank = bad[i][0], .n = bad[i][1]};
        struct td_cpu_engine_params p = eu_params("int8", TD_ISA_AUTO, 1);
        struct td_engine *e = NULL;
        char text[512];
        FILE *log = catch_log();
        p.ranks = &group;
        assert_int_equal(td_cpu_engine_create(m.m, &p, &e), TD_ERR_CONFIG);
        caught_log(log, text, sizeof text);
        assert_non_null(strstr(text, "refuses a group of ranks"));
    }
    eu_model_close(&m);
}

static void shares_cover_the_model_once(void **state)
{
    struct eu_model m = model_at(0);
    struct group g = group_make(&m, "int8", 3, 1);
    for (uint32_t p = 0; p < 3; p++) {
        const struct td__ce *e = (const struct td__ce *)g.e[p];
        const struct td__ce_cut *cuts[] = {&e->ranks->heads, &e->ranks->embd, &e->ranks->ffn,
                                           &e->ranks->vocab};
        const uint32_t end[] = {m.m->hp.n_kv_heads, m.m->hp.n_embd, m.m->hp.n_ffn / TK_QK,
                                m.m->hp.n_vocab};
        for (uint32_t c = 0; c < TD_COUNT(cuts); c++) {
            assert_true(cuts[c]->from[0] == 0 && cuts[c]->from[3] == end[c]);
            for (uint32_t q = 0; q < 3; q++) {
                assert_true(cuts[c]->from[q] < cuts[c]->from[q + 1]);
            }
        }
        assert_int_equal(e->layers[0].down.n, cuts[1]->from[p + 1] - cuts[1]->from[p]);
        assert_int_equal(e->output.n, cuts[3]->from[p + 1] - cuts[3]->from[p]);
    }
    group_free(&g);
    eu_model_close(&m);
}

static void making_a_rank_survives_any_failing_allocation(void **state)
{
#if TD_WITH_FAULTS
    struct eu_model m = model_at(2);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct ru_group *g = ru_group_make(2);
        struct td_cpu_engine_params p = rank_params(g, rank, "int8", 2);
        struct td_engine *e = NULL;
        FILE *log = catch_log();
        char text[4096];
        unsigned nth = 1;
        for (; nth < 100; nth++) {
            td_mem_fail_nth(nth);
            td_err err = td_cpu_engine_create(m.m, &p, &e);
            td_mem_fail_nth(0);
            if (err == TD_OK) {
                break;
            }
            assert_int_equal(err, TD_ERR_NO_MEMORY);
            assert_null(e);
            g->over = g->ranks[rank].stopped = false; /* a new try */
        }
        assert_true(nth > 1 && nth < 100);
        e->ops->destroy(e);
        caught_log(log, text, sizeof text);
        ru_group_free(g);
    }
    eu_model_close(&m);
#else
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_of_any_size_give_the_bits_of_one),
        cmocka_unit_test(groups_give_the_bits_of_one_in_float32),
        cmocka_unit_test(mixed_steps_in_flight_give_the_ids_and_the_pool_of_one),
        cmocka_unit_test(steps_move_what_the_documents_say),
        cmocka_unit_test(landed_kv_reaches_all_ranks),
        cmocka_unit_test(landed_kv_of_a_chunk_beside_others),
        cmocka_unit_test(layers_are_done_when_rank_0_has_all_heads),
        cmocka_unit_test(a_row_that_fails_is_not_told),
        cmocka_unit_test(helping_ranks_take_no_steps),
        cmocka_unit_test(steps_in_flight_are_done_before_the_goodbye),
        cmocka_unit_test(a_waiting_rank_is_destroyed_and_its_group_is_over),
        cmocka_unit_test(a_rank_that_is_stopped_by_its_own_process_has_lost_nothing),
        cmocka_unit_test(a_group_may_end_at_any_call),
        cmocka_unit_test(a_step_that_cannot_be_is_the_end),
        cmocka_unit_test(a_rank_survives_any_byte_of_a_step),
        cmocka_unit_test(a_step_longer_than_any_is_the_end),
        cmocka_unit_test(a_model_is_not_cut_more_often_than_it_has_parts),
        cmocka_unit_test(a_senseless_group_is_refused),
        cmocka_unit_test(shares_cover_the_model_once),
        cmocka_unit_test(making_a_rank_survives_any_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
