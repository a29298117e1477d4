/* The CPU engine through its interface: the same bits whatever the instruction set, chunking, batch
 * and team; bad rows harm nobody; steps, layers and failures as engine.h says. */
#include "common/model/cpu_engine.h"

#include "common/base/fault.h"
#include "tests/unit/model/engine_util.h"
#include "tests/unit/model/golden.h"

#define LONG 300 /* tokens: crosses a chunk of attention */

static float *logits_of(struct td_engine *e, const int32_t *tokens, uint32_t n, uint32_t chunk)
{
    float *out = malloc((size_t)n * e->ops->info(e)->n_vocab * sizeof *out);
    assert_non_null(out);
    assert_int_equal(td_cpu_engine_logits(e, tokens, n, chunk, out), TD_OK);
    return out;
}

static void instruction_sets_chunks_and_teams_give_the_same_bits(void **state)
{
    static const struct {
        enum td_cpu_isa isa;
        uint32_t threads, chunk;
    } how[] = {
        {TD_ISA_PORTABLE, 3, 64}, {TD_ISA_AVX2, 1, 300},  {TD_ISA_AVX2, 2, 17},
        {TD_ISA_AVX512, 1, 1},    {TD_ISA_AVX512, 3, 29}, {TD_ISA_AVX512, 2, 256},
    };
    for (uint32_t t = 0; t <= EU_ARCHS; t++) {
        struct eu_model m = t < EU_ARCHS ? eu_model_arch(t) : eu_model_open("q4_1");
        int32_t tokens[LONG];
        eu_tokens(&m, 5, tokens, LONG);
        struct td_engine *ref = eu_engine(&m, "int8", TD_ISA_AUTO, 1);
        float *want = logits_of(ref, tokens, LONG, LONG);
        for (size_t i = 0; i < TD_COUNT(how); i++) {
            struct td_engine *e = eu_engine(&m, "int8", how[i].isa, how[i].threads);
            if (e == NULL) {
                continue;
            }
            uint32_t n = how[i].isa == TD_ISA_PORTABLE ? 64 : LONG;
            float *got = logits_of(e, tokens, n, how[i].chunk);
            assert_memory_equal(got, want, (size_t)n * m.m->hp.n_vocab * sizeof *got);
            free(got);
            e->ops->destroy(e);
        }
        free(want);
        ref->ops->destroy(ref);
        eu_model_close(&m);
    }
}

static void compare_golden(const char *type, const char *numerics, struct golden_logits *g)
{
    struct td_tiny_params p = td_tiny_defaults();
    struct td_buf file;
    struct td_model *model = NULL;
    struct td_engine *e = NULL;
    char path[64];
    int32_t *ids = NULL;
    uint32_t n = 0;
    p.type = type; /* as tests/golden/model/make.sh says */
    p.untied = strcmp(type, "mix") == 0;
    if (!p.untied) {
        p.seed = 2;
        p.n_layers = 3;
    }
    make_tiny(&p, &file);
    assert_int_equal(td_model_open_memory(file.data, file.len, type, &model), TD_OK);
    struct td_cpu_engine_params ep = eu_params(numerics, TD_ISA_AUTO, 2);
    assert_int_equal(td_cpu_engine_create(model, &ep, &e), TD_OK);
    (void)snprintf(path, sizeof path, "model/tiny-%s.%s.bin", type,
                   strcmp(numerics, "f32") == 0 ? "f32" : "exact");
    golden_logits_open(path, g);
    while (golden_logits_next(g, &ids, &n)) {
        float *logits = logits_of(e, ids, n, 50);
        for (uint32_t t = 0; t < n; t++) {
            golden_logits_row(g, logits + (size_t)t * g->n_vocab);
        }
        free(logits);
        free(ids);
    }
    print_message("# %s %s: difference %.2g, best token %u of %u\n", type, numerics, g->max_rel,
                  g->n_same_best, g->n_rows);
    golden_logits_close(g);
    e->ops->destroy(e);
    (void)td_model_close(model);
    td_buf_fini(&file);
}

static void float32_logits_equal_the_independent_oracle(void **state)
{
    struct golden_logits g;
    compare_golden("mix", "f32", &g);
    assert_true(g.max_rel <= 1e-3 && g.n_same_best == g.n_rows);
    compare_golden("q4_1", "f32", &g);
    assert_true(g.max_rel <= 1e-3 && g.n_same_best == g.n_rows);
}

static void int8_logits_equal_the_oracle_with_the_same_rounding(void **state)
{
    struct golden_logits g;
    compare_golden("mix", "int8", &g);
    assert_true(g.max_rel <= 1e-6 && g.n_same_best == g.n_rows);
    compare_golden("q4_1", "int8", &g);
    assert_true(g.max_rel <= 1e-6 && g.n_same_best == g.n_rows);
}

/* Sequences with different prompts and settings, each alone; then all of them together, joining and
 * leaving, in other blocks, prefilled by other chunks. */
static void compare_batch(struct eu_model m)
{
    enum { SEQS = 4, GEN = 12 };
    static const uint32_t lens[SEQS] = {5, 40, 270, 16};
    struct td_engine *e = eu_engine(&m, "int8", TD_ISA_AUTO, 2);
    int32_t prompts[SEQS][LONG], alone[SEQS][GEN];
    struct eu_seq s[SEQS];
    for (uint32_t i = 0; i < SEQS; i++) {
        eu_tokens(&m, 100 + i, prompts[i], lens[i]);
        eu_set(e, i, eu_sampling(i % 2 == 0 ? 0 : 0.8f, i));
        s[i] = eu_seq_new(i, 3, 1);
        eu_generate(e, &s[i], prompts[i], lens[i], 64, alone[i], GEN);
    }
    for (uint32_t i = 0; i < SEQS; i++) {
        eu_set(e, i, eu_sampling(i % 2 == 0 ? 0 : 0.8f, i));
        s[i] = eu_seq_new(i, i * 19 + 1, 1);
    }
    uint32_t made[SEQS] = {0}, fed[SEQS] = {0};
    for (uint32_t step = 0; step < 60; step++) {
        struct td_row rows[SEQS];
        uint32_t who[SEQS], n = 0;
        for (uint32_t i = 0; i < SEQS; i++) {
            if (step < i * 2 || made[i] == GEN) {
                continue; /* joins later, has left */
            }
            uint32_t len = lens[i] - fed[i] < 37 ? lens[i] - fed[i] : 37;
            who[n] = i;
            if (len > 0) {
                rows[n++] = eu_row(&s[i], prompts[i] + fed[i], len, fed[i] + len == lens[i]);
                fed[i] += len;
            } else {
                rows[n++] = eu_row(&s[i], NULL, 1, true); /* its last id, still in the engine */
            }
        }
        if (n == 0) {
            continue;
        }
        struct td_step_result r = eu_step(e, rows, n);
        for (uint32_t k = 0; k < n; k++) {
            assert_int_equal(r.rows[k].err, TD_OK);
            assert_int_equal(r.rows[k].seq.index, who[k]);
            if (r.rows[k].n_ids == 1) {
                assert_int_equal(r.rows[k].ids[0], alone[who[k]][made[who[k]]]);
                made[who[k]]++;
            }
        }
    }
    for (uint32_t i = 0; i < SEQS; i++) {
        assert_int_equal(made[i], GEN);
    }
    e->ops->destroy(e);
    eu_model_close(&m);
}

static void a_sequence_in_a_batch_gives_the_ids_it_gives_alone(void **state)
{
    for (uint32_t i = 0; i < EU_ARCHS; i++) {
        compare_batch(eu_model_arch(i));
    }
}

/* More decode rows than are split by chunk take the other way through attention. */
static void many_windowed_rows_give_the_ids_of_one(void **state)
{
    enum { SEQS = 12, GEN = 8, LEN = 90 };
    struct eu_model m = eu_model_arch(1);
    struct td_cpu_engine_params p = eu_params("int8", TD_ISA_AUTO, 2);
    struct td_engine *e = NULL;
    int32_t prompt[LEN], want[GEN];
    struct eu_seq s[SEQS];
    p.max_rows = p.max_slots = SEQS;
    assert_int_equal(td_cpu_engine_create(m.m, &p, &e), TD_OK);
    eu_tokens(&m, 9, prompt, LEN);
    for (uint32_t i = 0; i < SEQS; i++) {
        int32_t first = 0;
        eu_set(e, i, eu_sampling(0, 1));
        s[i] = eu_seq_new(i, i * 8, 1);
        eu_generate(e, &s[i], prompt, LEN, 31 + i, i == 0 ? want : &first, i == 0 ? GEN : 1);
        assert_true(i == 0 || first == want[0]);
    }
    eu_set(e, 0, eu_sampling(0, 1));
    s[0] = eu_seq_new(0, 0, 1);
    eu_generate(e, &s[0], prompt, LEN, LEN, want, 1);
    for (uint32_t g = 1; g < GEN; g++) {
        struct td_row rows[SEQS];
        for (uint32_t i = 0; i < SEQS; i++) {
            rows[i] = eu_row(&s[i], NULL, 1, true);
        }
        struct td_step_result r = eu_step(e, rows, SEQS);
        for (uint32_t i = 0; i < SEQS; i++) {
            assert_int_equal(r.rows[i].ids[0], want[g]);
        }
    }
    e->ops->destroy(e);
    eu_model_close(&m);
}

static void two_steps_in_flight_give_the_ids_of_one(void **state)
{
    enum { GEN = 20 };
    struct eu_model m = eu_model_open("q4_1");
    struct td_engine *e = eu_engine(&m, "int8", TD_ISA_AUTO, 2);
    int32_t prompt[9], want[GEN];
    struct eu_seq s = eu_seq_new(0, 0, 1);
    td_ticket ticket = 0, before = 0;
    eu_tokens(&m, 1, prompt, 9);
    eu_set(e, 0, eu_sampling(1, 3));
    eu_generate(e, &s, prompt, 9, 9, want, GEN);
    eu_set(e, 0, eu_sampling(1, 3));
    s = eu_seq_new(0, 40, 1);
    struct td_row row = eu_row(&s, prompt, 9, true);
    assert_int_equal(e->ops->submit(e, &row, 1, &before), TD_OK);
    for (uint32_t i = 0; i < GEN; i++) {
        if (i + 1 < GEN) {
            row = eu_row(&s, NULL, 1, true);
            assert_int_equal(e->ops->submit(e, &row, 1, &ticket), TD_OK);
            assert_true(ticket == before + 1);
            before = ticket;
        }
        assert_int_equal(eu_wait(e).rows[0].ids[0], want[i]);
    }
    e->ops->destroy(e);
    eu_model_close(&m);
}

static void a_third_step_waits_for_a_poll(void **state)
{
    struct eu_model m = eu_model_open("q4_1");
    struct td_engine *e = eu_engine(&m, "int8", TD_ISA_AUTO, 1);
    int32_t prompt[4] = {1, 2, 3, 4};
    struct eu_seq s = eu_seq_new(0, 0, 1);
    struct td_row rows[3];
    td_ticket ticket;
    struct td_step_result r;
    for (int i = 0; i < 3; i++) {
        rows[i] = eu_row(&s, prompt, 4, false);
    }
    assert_int_equal(e->ops->poll(e, &r), TD_ERR_AGAIN);
    assert_int_equal(e->ops->submit(e, &rows[0], 1, &ticket), TD_OK);
    assert_int_equal(e->ops->submit(e, &rows[1], 1, &ticket), TD_OK);
    assert_int_equal(e->ops->submit(e, &rows[2], 1, &ticket), TD_ERR_AGAIN);
    assert_true(eu_wait(e).ticket == ticket - 1);
    assert_int_equal(e->ops->submit(e, &rows[2], 1, &ticket), TD_OK);
    assert_true(eu_wait(e).ticket == ticket - 1);
    assert_true(eu_wait(e).ticket == ticket);
    e->ops->destroy(e);
    eu_model_close(&m);
}

/* A hand-over: the slices that one engine wrote, copied into other blocks of another engine. */
static void copied_slices_continue_on_another_engine(void **state)
{
    enum { GEN = 10, PROMPT = 50 };
    struct eu_model m = eu_model_open("mix");
    struct td_engine *a = eu_engine(&m, "int8", TD_ISA_AUTO, 1);
    struct td_engine *b = eu_engine(&m, "int8", TD_ISA_AUTO, 2);
    const struct td_kv_layout *l = &a->ops->info(a)->layout;
    int32_t prompt[PROMPT], want[GEN], got[GEN];
    eu_tokens(&m, 4, prompt, PROMPT);
    eu_set(a, 0, eu_sampling(0.9f, 5));
    struct eu_seq sa = eu_seq_new(0, 0, 1), sb = eu_seq_new(2, 30, 3);
    eu_generate(a, &sa, prompt, PROMPT, 20, want, GEN);
    for (uint32_t i = 0; i < (PROMPT + 15) / 16; i++) {
        for (uint32_t layer = 0; layer < l->n_layers; layer++) {
            memcpy(td_engine_slice(b, sb.table[i], layer), td_engine_slice(a, sa.table[i], layer),
                   l->slice_bytes);
        }
    }
    struct td_sampling_state s = {eu_sampling(0.9f, 5), prompt, PROMPT, want, 1};
    assert_int_equal(b->ops->seq_set(b, 2, &s), TD_OK);
    sb.pos = PROMPT;
    got[0] = want[0];
    for (uint32_t i = 1; i < GEN; i++) { /* the first by the slot's state, as after a hand-over */
        struct td_row row = eu_row(&sb, i == 1 ? NULL : &got[i - 1], 1, true);
        got[i] = eu_step(b, &row, 1).rows[0].ids[0];
    }
    assert_memory_equal(got, want, sizeof got);
    a->ops->destroy(a);
    b->ops->destroy(b);
    eu_model_close(&m);
}

static void a_bad_row_fails_alone(void **state)
{
    struct eu_model m = eu_model_open("q4_1");
    struct td_engine *e = eu_engine(&m, "int8", TD_ISA_AUTO, 2);
    const int32_t vocab = (int32_t)m.m->hp.n_vocab;
    int32_t good[6] = {1, 2, 3, 4, 5, 6}, outside[2] = {1, vocab}, negative[2] = {-1, 2}, want[1];
    td_block_id wild[40];
    struct eu_seq s = eu_seq_new(0, 0, 1);
    eu_set(e, 0, eu_sampling(0, 0));
    eu_generate(e, &s, good, 6, 6, want, 1);
    for (uint32_t i = 0; i < 40; i++) {
        wild[i] = i == 1 ? EU_BLOCKS : i + 30;
    }
    const td_block_id *fine = s.table;
    const uint32_t none = TD_NO_SAMPLE;
    const struct {
        struct td_row row;
        td_err err;
    } bad[] = {
        {{.n = 0, .tokens = good, .table = fine, .n_blocks = 9, .sampling = none},
         TD_ERR_BAD_REQUEST},
        {{.n = 2, .tokens = outside, .table = fine, .n_blocks = 9, .sampling = none},
         TD_ERR_BAD_REQUEST},
        {{.n = 2, .tokens = negative, .table = fine, .n_blocks = 9, .sampling = none},
         TD_ERR_BAD_REQUEST},
        {{.n = 2, .tokens = good, .table = NULL, .n_blocks = 9, .sampling = none},
         TD_ERR_BAD_REQUEST},
        {{.pos = 15, .n = 2, .tokens = good, .table = fine, .n_blocks = 1, .sampling = none},
         TD_ERR_BAD_REQUEST},
        {{.pos = 30, .n = 2, .tokens = good, .table = wild, .n_blocks = 40, .sampling = none},
         TD_ERR_BAD_REQUEST},
        {{.pos = EU_MAX_LEN - 1,
          .n = 2,
          .tokens = good,
          .table = fine,
          .n_blocks = 38,
          .sampling = none},
         TD_ERR_CONTEXT_LENGTH},
        {{.pos = UINT32_MAX,
          .n = 2,
          .tokens = good,
          .table = fine,
          .n_blocks = 38,
          .sampling = none},
         TD_ERR_CONTEXT_LENGTH},
        {{.n = 2, .tokens = good, .table = fine, .n_blocks = 9, .sampling = EU_SLOTS},
         TD_ERR_BAD_REQUEST},
        {{.n = 2, .tokens = good, .table = fine, .n_blocks = 9, .sampling = 3}, /* never set */
         TD_ERR_BAD_REQUEST},
        {{.n = 2, .tokens = good, .table = fine, .n_blocks = 9, .sampling = 0}, /* used twice */
         TD_ERR_BAD_REQUEST},
        {{.n = 1, .tokens = NULL, .table = fine, .n_blocks = 9, .sampling = none},
         TD_ERR_BAD_REQUEST},
        {{.n = 2, .tokens = NULL, .table = fine, .n_blocks = 9, .sampling = 1}, TD_ERR_BAD_REQUEST},
        {{.n = 1, .tokens = NULL, .table = fine, .n_blocks = 9, .sampling = 1}, /* no last id */
         TD_ERR_SEQ_FAILED},
        {{.n = 2,
          .tokens = good,
          .table = fine,
          .n_blocks = 9,
          .sampling = none,
          .want = TD_WANT_PROMPT_LOGPROBS},
         TD_ERR_BAD_REQUEST},
    };
    eu_set(e, 1, eu_sampling(0, 0));
    for (size_t i = 0; i < TD_COUNT(bad); i++) {
        eu_set(e, 0, eu_sampling(0, 0));
        s = eu_seq_new(0, 60, 1);
        struct td_row rows[2] = {eu_row(&s, good, 6, true), bad[i].row};
        struct td_step_result r = eu_step(e, rows, 2);
        assert_int_equal(r.rows[0].err, TD_OK);
        assert_int_equal(r.rows[0].ids[0], want[0]);
        assert_int_equal(r.rows[1].err, bad[i].err);
        assert_int_equal(r.rows[1].n_ids, 0);
    }
    e->ops->destroy(e);
    eu_model_close(&m);
}

static void a_step_beyond_its_bounds_is_refused(void **state)
{
    struct eu_model m = eu_model_open("q4_1");
    struct td_engine *e = eu_engine(&m, "int8", TD_ISA_AUTO, 1);
    int32_t tokens[EU_TOKENS] = {0};
    struct eu_seq s = eu_seq_new(0, 0, 1);
    struct td_row rows[EU_ROWS + 1];
    td_ticket ticket;
    for (int i = 0; i <= EU_ROWS; i++) {
        s.pos = 0;
        rows[i] = eu_row(&s, tokens, 1, false);
    }
    assert_int_equal(e->ops->submit(e, rows, 0, &ticket), TD_ERR_BAD_REQUEST);
    assert_int_equal(e->ops->submit(e, rows, EU_ROWS + 1, &ticket), TD_ERR_BAD_REQUEST);
    rows[0].n = EU_TOKENS;
    assert_int_equal(e->ops->submit(e, rows, 2, &ticket), TD_ERR_BAD_REQUEST);
    assert_int_equal(eu_step(e, rows, 1).rows[0].err, TD_OK);
    assert_int_equal(eu_step(e, rows + 1, EU_ROWS).rows[0].err, TD_OK);
    e->ops->destroy(e);
    eu_model_close(&m);
}

static void layers_are_reported_as_they_are_done(void **state)
{
    struct eu_model m = eu_model_open("q4_1");
    struct td_engine *e = eu_engine(&m, "int8", TD_ISA_AUTO, 2);
    int32_t tokens[200];
    struct eu_seq s = eu_seq_new(0, 0, 1);
    td_ticket ticket;
    eu_tokens(&m, 9, tokens, 200);
    struct td_row row = eu_row(&s, tokens, 200, false);
    row.want = TD_PUSH_LAYERS;
    assert_int_equal(e->ops->submit(e, &row, 1, &ticket), TD_OK);
    uint32_t done = e->ops->layers_done(e, ticket), before = 0;
    while (done < m.m->hp.n_layers) {
        struct pollfd fd = {.fd = e->ops->layer_fd(e), .events = POLLIN};
        uint64_t count;
        assert_true(done >= before);
        before = done;
        assert_true(poll(&fd, 1, 60000) == 1);
        assert_true(read(fd.fd, &count, sizeof count) == sizeof count);
        done = e->ops->layers_done(e, ticket);
    }
    assert_int_equal(done, m.m->hp.n_layers);
    assert_int_equal(e->ops->layers_done(e, ticket + 1), 0);
    (void)eu_wait(e);
    row.pos = 0;
    row.want = 0;
    (void)eu_step(e, &row, 1);
    assert_int_equal(e->ops->layers_done(e, ticket), m.m->hp.n_layers); /* long past */
    e->ops->destroy(e);
    eu_model_close(&m);
}

static void a_failed_row_leaves_its_neighbours_and_its_next_step_fails_too(void **state)
{
#if TD_WITH_FAULTS
    struct eu_model m = eu_model_open("q4_1");
    struct td_engine *e = eu_engine(&m, "int8", TD_ISA_AUTO, 2);
    int32_t tokens[5] = {1, 2, 3, 4, 5}, want[1];
    struct eu_seq s = eu_seq_new(0, 0, 1);
    eu_set(e, 0, eu_sampling(0, 0));
    eu_generate(e, &s, tokens, 5, 5, want, 1);
    eu_set(e, 0, eu_sampling(0, 0));
    eu_set(e, 1, eu_sampling(0, 0));
    struct eu_seq a = eu_seq_new(0, 20, 1), b = eu_seq_new(1, 40, 1);
    assert_int_equal(td_fault_configure("step.fail=fail:times=1,step.pause=delay:us=10"), TD_OK);
    struct td_row rows[2] = {eu_row(&b, tokens, 5, true), eu_row(&a, tokens, 5, true)};
    struct td_step_result r = eu_step(e, rows, 2);
    assert_int_equal(r.rows[0].err, TD_ERR_SEQ_FAILED);
    assert_int_equal(r.rows[1].err, TD_OK);
    assert_int_equal(r.rows[1].ids[0], want[0]);
    assert_true(td_fault_hits(TD_FAULT_STEP_PAUSE_ID) == 1);
    td_fault_reset();
    rows[0] = eu_row(&b, NULL, 1, true);
    assert_int_equal(eu_step(e, rows, 1).rows[0].err, TD_ERR_SEQ_FAILED);
    e->ops->destroy(e);
    eu_model_close(&m);
#else
    skip();
#endif
}

static void the_pool_starts_zeroed_and_only_named_blocks_are_written(void **state)
{
    struct eu_model m = eu_model_open("q4_1");
    struct td_engine *e = eu_engine(&m, "int8", TD_ISA_AUTO, 2);
    const struct td_engine_info *info = e->ops->info(e);
    const uint8_t *pool = e->ops->pool_base(e);
    int32_t tokens[20];
    struct eu_seq s = eu_seq_new(0, 11, 2);
    eu_tokens(&m, 2, tokens, 20);
    assert_true((uintptr_t)pool % 64 == 0);
    struct td_row row = eu_row(&s, tokens, 20, false);
    (void)eu_step(e, &row, 1);
    for (uint32_t b = 0; b < EU_BLOCKS; b++) {
        bool zero = true;
        for (size_t i = 0; i < info->layout.block_bytes; i++) {
            zero = zero && pool[b * info->layout.block_bytes + i] == 0;
        }
        assert_true(zero == !(b == 11 || b == 13));
    }
    e->ops->destroy(e);
    eu_model_close(&m);
}

static void bad_parameters_are_refused_in_words(void **state)
{
    struct eu_model m = eu_model_open("q4_1");
    struct td_cpu_engine_params good = eu_params("int8", TD_ISA_AUTO, 1), p[8];
    for (size_t i = 0; i < TD_COUNT(p); i++) {
        p[i] = good;
    }
    p[0].numerics = "int4";
    p[1].numerics = NULL;
    p[2].isa = TD_ISA_AMX;
    p[3].n_threads = 0;
    p[4].n_threads = 100000;
    p[5].n_blocks = 0;
    p[6].max_rows = 0;
    p[7].max_tokens = 0;
    for (size_t i = 0; i < TD_COUNT(p); i++) {
        struct td_engine *e = NULL;
        char text[512];
        FILE *log = catch_log();
        assert_int_equal(td_cpu_engine_create(m.m, &p[i], &e), TD_ERR_CONFIG);
        caught_log(log, text, sizeof text);
        assert_non_null(strstr(text, "cpu engine refuses a parameter"));
        assert_null(e);
    }
    eu_model_close(&m);
}

static void creation_survives_any_failing_allocation(void **state)
{
#if TD_WITH_FAULTS
    struct eu_model m = eu_model_open("q4_1");
    struct td_cpu_engine_params p = eu_params("int8", TD_ISA_AUTO, 2);
    struct td_engine *e = NULL;
    FILE *log = catch_log();
    char text[512];
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
    }
    caught_log(log, text, sizeof text);
    assert_true(nth > 1 && nth < 100);
    e->ops->destroy(e);
    eu_model_close(&m);
#else
    skip();
#endif
}

static void an_engine_is_destroyed_with_steps_in_flight(void **state)
{
    struct eu_model m = eu_model_open("q4_1");
    struct td_engine *e = eu_engine(&m, "int8", TD_ISA_AUTO, 3);
    int32_t tokens[200];
    struct eu_seq s = eu_seq_new(0, 0, 1);
    td_ticket ticket;
    eu_tokens(&m, 2, tokens, 200);
    for (int i = 0; i < 2; i++) {
        struct td_row row = eu_row(&s, tokens, 200, false);
        assert_int_equal(e->ops->submit(e, &row, 1, &ticket), TD_OK);
    }
    e->ops->destroy(e);
    eu_model_close(&m);
}

static void the_info_names_numerics_and_layout(void **state)
{
    struct eu_model m = eu_model_open("q4_1");
    struct td_engine *a = eu_engine(&m, "int8", TD_ISA_AUTO, 1);
    struct td_engine *b = eu_engine(&m, "int8", TD_ISA_PORTABLE, 2);
    struct td_engine *c = eu_engine(&m, "f32", TD_ISA_AUTO, 1);
    const struct td_engine_info *ia = a->ops->info(a), *ic = c->ops->info(c);
    assert_string_equal(ia->numerics, "cpu-int8-v1");
    assert_string_equal(ic->numerics, "cpu-f32-v1");
    assert_true(ia->numerics_id == b->ops->info(b)->numerics_id);
    assert_true(td_cpu_engine_numerics_id("int8") == ia->numerics_id);
    assert_true(td_cpu_engine_numerics_id("f32") == ic->numerics_id);
    assert_true(td_cpu_engine_numerics_id("int4") == 0);
    assert_true(ia->numerics_id != ic->numerics_id);
    assert_int_equal(ia->layout.dtype, TD_KV_BF16);
    assert_int_equal(ic->layout.dtype, TD_KV_F32);
    assert_int_equal(ia->layout.slice_bytes * 2, ic->layout.slice_bytes);
    assert_int_equal(ia->layout.block_bytes, (uint64_t)ia->layout.slice_bytes * ia->n_layers);
    assert_memory_equal(ia->model_id, m.m->id, 32);
    a->ops->destroy(a);
    b->ops->destroy(b);
    c->ops->destroy(c);
    eu_model_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(instruction_sets_chunks_and_teams_give_the_same_bits),
        cmocka_unit_test(float32_logits_equal_the_independent_oracle),
        cmocka_unit_test(int8_logits_equal_the_oracle_with_the_same_rounding),
        cmocka_unit_test(a_sequence_in_a_batch_gives_the_ids_it_gives_alone),
        cmocka_unit_test(many_windowed_rows_give_the_ids_of_one),
        cmocka_unit_test(two_steps_in_flight_give_the_ids_of_one),
        cmocka_unit_test(a_third_step_waits_for_a_poll),
        cmocka_unit_test(copied_slices_continue_on_another_engine),
        cmocka_unit_test(a_bad_row_fails_alone),
        cmocka_unit_test(a_step_beyond_its_bounds_is_refused),
        cmocka_unit_test(layers_are_reported_as_they_are_done),
        cmocka_unit_test(a_failed_row_leaves_its_neighbours_and_its_next_step_fails_too),
        cmocka_unit_test(the_pool_starts_zeroed_and_only_named_blocks_are_written),
        cmocka_unit_test(bad_parameters_are_refused_in_words),
        cmocka_unit_test(creation_survives_any_failing_allocation),
        cmocka_unit_test(an_engine_is_destroyed_with_steps_in_flight),
        cmocka_unit_test(the_info_names_numerics_and_layout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
