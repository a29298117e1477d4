/* From rows to passes: which kernels compute a row, where its token, table and result lie. */
#include <stdlib.h>
#include <string.h>

#include "common/model/cuda_engine_priv.h"
#include "tests/unit/check.h"

enum { ROWS = 200, TOKENS = 600, BLOCKS = 64, SLOTS = 200 };

struct fixture {
    struct td__cu_shape c;
    struct td__cu_host h;
    struct td_sample_slot *slots;
    struct td_step s;
    struct td_step_row rows[ROWS];
    int32_t tokens[TOKENS];
    td_block_id table[BLOCKS];
};

static void *zeros(size_t n, size_t size)
{
    void *p = calloc(n, size);
    assert_non_null(p);
    return p;
}

static struct fixture *fixture_new(bool deterministic)
{
    struct fixture *f = zeros(1, sizeof *f);
    f->c = (struct td__cu_shape){.deterministic = deterministic,
                                 .max_entries = 256,
                                 .blocks_per_seq = BLOCKS,
                                 .max_rows = ROWS,
                                 .max_tokens = TOKENS,
                                 .max_tiles = TOKENS / TK_TILE_ROWS + ROWS,
                                 .max_passes = ROWS + TOKENS / TK_MAX_ROWS + 2,
                                 .max_samples = TOKENS,
                                 .max_tables = 2 * ROWS};
    f->slots = zeros(SLOTS, sizeof *f->slots);
    for (uint32_t i = 0; i < SLOTS; i++) {
        f->slots[i].p.top_p = f->slots[i].p.repetition_penalty = 1;
        f->slots[i].n_prompt = 10;
    }
    for (uint32_t i = 0; i < BLOCKS; i++) {
        f->table[i] = 1000 + i;
    }
    for (int32_t i = 0; i < TOKENS; i++) {
        f->tokens[i] = 5000 + i;
    }
    struct td__cu_host *h = &f->h;
    h->flat = zeros(f->c.max_passes, sizeof *h->flat);
    h->tables = zeros((size_t)2 * ROWS * BLOCKS, sizeof *h->tables);
    h->tokens = zeros(TOKENS, sizeof *h->tokens);
    h->slot_of = zeros(TOKENS, sizeof *h->slot_of);
    h->pos = zeros(TOKENS, sizeof *h->pos);
    h->table_of = zeros(TOKENS, sizeof *h->table_of);
    h->lens = zeros(TOKENS, sizeof *h->lens);
    h->pick = zeros(TOKENS, sizeof *h->pick);
    h->chunks = zeros(ROWS, sizeof *h->chunks);
    h->tiles = zeros(f->c.max_tiles, sizeof *h->tiles);
    h->rows = zeros(TOKENS, sizeof *h->rows);
    h->results = zeros(TOKENS, sizeof *h->results);
    h->result_row = zeros(TOKENS, sizeof *h->result_row);
    h->groups = zeros(TOKENS, sizeof *h->groups);
    h->passes = zeros(f->c.max_passes, sizeof *h->passes);
    f->s.rows = f->rows;
    f->s.tokens = f->tokens;
    return f;
}

static void fixture_free(struct fixture *f)
{
    struct td__cu_host *h = &f->h;
    void *all[] = {h->flat,   h->tables, h->tokens,     h->slot_of, h->pos,  h->table_of,
                   h->lens,   h->pick,   h->chunks,     h->tiles,   h->rows, h->results,
                   h->groups, h->passes, h->result_row, f->slots};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        free(all[i]);
    }
    free(f);
}

/* A chunk where n > 1 or slot is TD_NO_SAMPLE, else a decode row at a position behind the prompt. */
static struct td_step_row *add(struct fixture *f, uint32_t pos, uint32_t n, uint32_t slot)
{
    struct td_step_row *r = &f->rows[f->s.n_rows++];
    *r = (struct td_step_row){.live = true,
                              .pos = pos,
                              .n = n,
                              .token0 = f->s.n_tok,
                              .sampling = slot,
                              .n_blocks = (pos + n + 15) / 16,
                              .table = f->table};
    f->s.n_tok += n;
    return r;
}

static void plan(struct fixture *f)
{
    assert_int_equal(td__cu_plan(&f->c, f->slots, &f->s, &f->h), TD_OK);
}

static void decode_rows_share_a_flat_pass(void **state)
{
    struct fixture *f = fixture_new(false);
    add(f, 20, 1, 0);
    add(f, 300, 1, 7)->from_engine = true;
    add(f, 11, 1, 3)->live = false;
    add(f, 12, 1, 4);
    plan(f);
    assert_int_equal(f->h.n_passes, 1);
    const struct td__cu_pass *p = &f->h.passes[0];
    const struct td__cu_flat_in *in = &f->h.flat[p->in];
    assert_true(!p->wide && p->greedy && !p->ordered);
    assert_int_equal(p->n_tok, 3);
    assert_int_equal(p->entries, 1 + 2 + 1);
    assert_int_equal(in->tokens[0], 5000);
    assert_int_equal(in->slot_of[0], -1);
    assert_int_equal(in->slot_of[1], 7);
    assert_int_equal(in->lens[1], 301);
    assert_int_equal(in->rows[1].flags, TK_SAMPLE_CHAINED);
    assert_int_equal(in->tokens[2], 5003);
    assert_int_equal(in->pos[3], -1);
    assert_int_equal(in->lens[3], 0);
    assert_int_equal(in->rows[3].live, 0);
    assert_int_equal(f->h.result_row[2], 3);
    assert_int_equal(p->n_blocks, 19);
    assert_int_equal(f->h.tables[BLOCKS + 18], 1018);
    fixture_free(f);
}

/* A class too large starts blocks that have nothing to do: a tenth of the time at 8k tokens. */
static void long_rows_count_chunks_of_512_tokens(void **state)
{
    struct fixture *f = fixture_new(false);
    static const uint32_t pos[] = {2047, 2048, 8191};
    for (uint32_t i = 0; i < 3; i++) {
        add(f, pos[i], 1, i)->n_blocks = 1;
    }
    plan(f);
    assert_int_equal(f->h.passes[0].entries, 8 + 5 + 16);
    assert_int_equal(td__cu_class_entries(&f->c, 0, td__cu_class(&f->c, 0, 16)), 16);
    fixture_free(f);
}

static void a_prompt_token_is_no_decode_row_even_alone(void **state)
{
    struct fixture *f = fixture_new(true);
    add(f, 9, 1, 0);            /* the last of a prompt of 10 */
    add(f, 4, 1, TD_NO_SAMPLE); /* a chunk of one token */
    add(f, 10, 1, 1);           /* output */
    plan(f);
    assert_int_equal(f->h.n_passes, 2);
    assert_false(f->h.passes[0].wide);
    assert_int_equal(f->h.passes[0].n_tok, 1);
    assert_true(f->h.passes[1].wide);
    assert_int_equal(f->h.passes[1].n_tok, 2);
    assert_int_equal(f->h.passes[1].n_chunks, 2);
    assert_int_equal(f->h.passes[1].n_samples, 1);
    fixture_free(f);
}

static void beside_a_chunk_decode_rows_go_wide_unless_deterministic(void **state)
{
    struct fixture *f = fixture_new(false);
    add(f, 30, 1, 0);
    add(f, 0, 200, TD_NO_SAMPLE);
    add(f, 40, 1, 1);
    plan(f);
    assert_int_equal(f->h.n_passes, 1);
    const struct td__cu_pass *p = &f->h.passes[0];
    assert_true(p->wide);
    assert_int_equal(p->n_tok, 202);
    assert_int_equal(p->n_chunks, 1);
    assert_int_equal(p->n_tiles, 2);
    assert_int_equal(p->n_groups, 1);
    assert_int_equal(f->h.groups[0].tok0, 200);
    assert_int_equal(f->h.groups[0].n, 2);
    assert_int_equal(f->h.groups[0].table0, 1);
    assert_int_equal(f->h.pick[1], 201);
    assert_int_equal(f->h.result_row[0], 0);
    assert_int_equal(f->h.result_row[1], 2);
    assert_int_equal(f->h.table_of[201], 2);
    assert_int_equal(f->h.tokens[0], 5001);
    fixture_free(f);
    f = fixture_new(true);
    add(f, 30, 1, 0);
    add(f, 0, 200, TD_NO_SAMPLE);
    plan(f);
    assert_int_equal(f->h.n_passes, 2);
    assert_false(f->h.passes[0].wide);
    assert_int_equal(f->h.passes[1].n_tok, 200);
    assert_int_equal(f->h.passes[1].n_groups, 0);
    fixture_free(f);
}

static void many_decode_rows_are_cut_at_64_or_go_wide(void **state)
{
    struct fixture *f = fixture_new(true);
    for (uint32_t i = 0; i < 130; i++) {
        add(f, 20, 1, i);
    }
    plan(f);
    assert_int_equal(f->h.n_passes, 3);
    assert_int_equal(f->h.passes[2].n_tok, 2);
    assert_int_equal(f->h.passes[2].result0, 128);
    assert_int_equal(f->h.passes[2].table0, 128);
    assert_int_equal(f->h.result_row[129], 129);
    f->c.deterministic = false;
    plan(f);
    assert_int_equal(f->h.n_passes, 1);
    assert_true(f->h.passes[0].wide);
    assert_int_equal(f->h.passes[0].n_tok, 130);
    fixture_free(f);
}

static void work_of_one_launch_is_bounded(void **state)
{
    struct fixture *f = fixture_new(true);
    f->c.max_entries = 4;
    for (uint32_t i = 0; i < 5; i++) {
        add(f, 299, 1, i); /* two items each */
    }
    plan(f);
    assert_int_equal(f->h.n_passes, 3);
    f->c.deterministic = false;
    add(f, 250, 10, TD_NO_SAMPLE);
    plan(f);
    assert_int_equal(f->h.n_passes, 1);
    assert_int_equal(f->h.passes[0].n_chunks, 1);
    assert_int_equal(f->h.passes[0].n_groups, 3);
    assert_int_equal(f->h.groups[0].n, 2);
    assert_int_equal(f->h.groups[1].tok0, 12);
    assert_int_equal(f->h.groups[1].table0, 3);
    assert_int_equal(f->h.groups[2].n, 1);
    fixture_free(f);
}

static void replayed_output_keeps_its_order_and_samples_once(void **state)
{
    struct fixture *f = fixture_new(true);
    add(f, 10, 70, 2)->output_pos = 10;
    add(f, 30, 1, 0);
    plan(f);
    assert_int_equal(f->h.n_passes, 3);
    assert_false(f->h.passes[0].ordered);
    assert_true(f->h.passes[1].ordered && f->h.passes[2].ordered);
    assert_int_equal(f->h.passes[1].n_tok, 64);
    assert_int_equal(f->h.passes[2].n_tok, 6);
    assert_int_equal(f->h.passes[1].table0, 1);
    assert_int_equal(f->h.passes[2].table0, 1);
    assert_int_equal(f->h.passes[2].n_blocks, 5);
    assert_int_equal(f->h.flat[2].pos[5], 79);
    assert_int_equal(f->h.flat[2].rows[5].live, 1);
    assert_int_equal(f->h.flat[2].rows[4].live, 0);
    assert_int_equal(f->h.result_row[1], UINT32_MAX);
    assert_int_equal(f->h.result_row[70], 0);
    f->c.deterministic = false; /* then it is a chunk as any other */
    plan(f);
    assert_int_equal(f->h.n_passes, 1);
    assert_int_equal(f->h.passes[0].n_tok, 71);
    fixture_free(f);
}

static void a_row_may_end_its_prompt_and_go_on_with_output(void **state)
{
    struct fixture *f = fixture_new(true);
    add(f, 4, 20, 2)->output_pos = 10;
    plan(f);
    assert_int_equal(f->h.n_passes, 2);
    assert_true(f->h.passes[0].wide);
    assert_int_equal(f->h.passes[0].n_tok, 6);
    assert_int_equal(f->h.passes[0].n_samples, 0);
    assert_true(f->h.passes[1].ordered);
    assert_int_equal(f->h.passes[1].n_tok, 14);
    assert_int_equal(f->h.flat[1].pos[0], 10);
    assert_int_equal(f->h.flat[1].tokens[0], 5006);
    assert_int_equal(f->h.result_row[13], 0);
    fixture_free(f);
}

static void settings_become_flags(void **state)
{
    struct fixture *f = fixture_new(false);
    f->slots[0].p.temperature = 0.7f;
    f->slots[0].p.top_p = 0.9f;
    f->slots[1].p.presence_penalty = 1;
    f->slots[2].p.n_bias = 4;
    f->slots[3].p.n_stop_ids = 2;
    f->slots[3].p.min_tokens = 6;
    f->slots[4] = f->slots[3];
    for (uint32_t i = 0; i < 6; i++) {
        add(f, i == 4 ? 15 : 14, 1, i); /* the 6th and, of slot 4, the 7th output token is chosen */
    }
    f->rows[5].want = TD_WANT_LOGPROBS;
    plan(f);
    const struct tk_sample_row *r = f->h.flat[0].rows;
    assert_false(f->h.passes[0].greedy);
    assert_true(r[0].temperature > 0.6f && r[0].top_p > 0.8f);
    assert_int_equal(r[0].position, 15);
    assert_int_equal(r[1].flags, TK_SAMPLE_PENALTIES);
    assert_int_equal(r[2].flags, TK_SAMPLE_BIAS);
    assert_int_equal(r[2].n_bias, 4);
    assert_int_equal(r[3].flags, TK_SAMPLE_BAN);
    assert_int_equal(r[4].flags, 0);
    assert_int_equal(r[5].flags, TK_SAMPLE_LOGPROB);
    assert_true(r[1].top_p <= 0); /* 1 is off */
    fixture_free(f);
}

static void buckets_and_classes_hold_what_they_must(void **state)
{
    struct td__cu_shape c = {.max_entries = 1000};
    assert_int_equal(td__cu_bucket(1), 0);
    assert_int_equal(td__cu_bucket(2), 1);
    assert_int_equal(td__cu_bucket(33), 6);
    assert_int_equal(td__cu_bucket(64), 6);
    assert_int_equal(td__cu_class_entries(&c, 0, 0), 4);
    assert_int_equal(td__cu_class(&c, 0, 4), 0);
    assert_int_equal(td__cu_class(&c, 0, 5), 1);
    assert_int_equal(td__cu_class(&c, 0, 65), 4);
    assert_int_equal(td__cu_class_entries(&c, 6, 2), 1000);
    assert_int_equal(td__cu_class(&c, 6, 1000), 2);
    assert_int_equal(td__cu_max_entries(1024), 4 * 64);
    assert_int_equal(td__cu_max_entries(2049), 8 * 64); /* as a sequence of 2,048 */
    assert_int_equal(td__cu_max_entries(8192), 16 * 64);
    assert_int_equal(td__cu_max_entries(131072), 8192);
    assert_int_equal(td__cu_max_entries(512 * 9000), 9000);
    uint32_t m[TD__CU_MAX_M];
    uint32_t n = td__cu_product_rows(512, m);
    assert_true(n > 1 && m[n - 1] == 512 && m[n - 2] < 512);
    n = td__cu_product_rows(16384, m);
    assert_true(n <= TD__CU_MAX_M && m[n - 1] == 16384);
    for (uint32_t i = 1; i < n; i++) {
        assert_true(m[i] > m[i - 1]);
    }
    assert_int_equal(td__cu_product_rows(20, m), 1);
    assert_int_equal(m[0], 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_rows_share_a_flat_pass),
        cmocka_unit_test(long_rows_count_chunks_of_512_tokens),
        cmocka_unit_test(a_prompt_token_is_no_decode_row_even_alone),
        cmocka_unit_test(beside_a_chunk_decode_rows_go_wide_unless_deterministic),
        cmocka_unit_test(many_decode_rows_are_cut_at_64_or_go_wide),
        cmocka_unit_test(work_of_one_launch_is_bounded),
        cmocka_unit_test(replayed_output_keeps_its_order_and_samples_once),
        cmocka_unit_test(a_row_may_end_its_prompt_and_go_on_with_output),
        cmocka_unit_test(settings_become_flags),
        cmocka_unit_test(buckets_and_classes_hold_what_they_must),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
