/* A told step is read as it was written, by its golden bytes, and no field of it is believed. */
#include "common/model/rank_step.h"

#include <string.h>

#include "common/base/mem.h"
#include "tests/unit/check.h"

enum { ROWS = 4, TOKENS = 32, LEN = 64, VOCAB = 100, BLOCKS = 8 };

static const struct td_engine_info info = {.n_layers = 2,
                                           .n_vocab = VOCAB,
                                           .max_model_len = LEN,
                                           .n_blocks = BLOCKS,
                                           .max_rows = ROWS,
                                           .max_tokens = TOKENS};

static struct td_steps make(void)
{
    struct td_steps q;
    memset(&q, 0, sizeof q);
    q.event_fd = q.layer_fd = -1;
    assert_int_equal(td_steps_init(&q, &info), TD_OK);
    return q;
}

/* Ticket 7: tokens 1..5 from position 0; a row that failed; token 6 at position 20, sampled, its KV landed. */
#define N_WORDS (10 + 8 + 6 + 3)
static const uint32_t golden[N_WORDS] = {0x54525354u, 1, 1, 1, 7, 0, 2, 6, 3, 0, /* head */
                                         0,           5, 1, 0, /* row: pos, n, n_blocks, flags */
                                         20,          1, 2, 3, /* row */
                                         1,           2, 3, 4, 5, 6, /* tokens */
                                         0,           5, 6};         /* blocks */

static void fill(struct td_steps *q, struct td_step *s)
{
    static const td_block_id tables[3][2] = {{0}, {7, 7}, {5, 6}};
    s->ticket = 7;
    s->n_rows = 3;
    s->n_tok = 6;
    for (uint32_t i = 0; i < 3; i++) {
        s->rows[i] = (struct td_step_row){.live = i != 1,
                                          .pos = i == 2 ? 20 : 0,
                                          .n = i == 2 ? 1 : 5,
                                          .token0 = i == 2 ? 5 : 0,
                                          .sampling = i == 2 ? 3 : TD_NO_SAMPLE,
                                          .want = i == 2 ? TD_KV_LANDED | TD_WANT_LOGPROBS : 0,
                                          .n_blocks = i == 2 ? 2 : 1,
                                          .table = s->tables + (size_t)i * q->blocks_per_seq};
        memcpy(s->rows[i].table, tables[i], sizeof tables[i]);
    }
    for (int32_t i = 0; i < 6; i++) {
        s->tokens[i] = i + 1;
    }
}

static const char *read_back(struct td_steps *q, const uint8_t *data, size_t n)
{
    enum td_rank_step_kind kind;
    bool every;
    return td_rank_step_read(q, 6, data, n, &q->steps[1], &kind, &every);
}

static void a_step_has_its_golden_bytes(void **state)
{
    struct td_steps q = make();
    uint8_t out[sizeof golden + 1];
    fill(&q, &q.steps[0]);
    assert_true(sizeof golden <= td_rank_step_cap(&info));
    assert_int_equal(td_rank_step_write(&q.steps[0], true, out), sizeof golden);
    assert_memory_equal(out, golden, sizeof golden);
    assert_int_equal(td_rank_step_write(&q.steps[0], false, out), sizeof golden);
    assert_int_equal(out[12], 0);
    td_steps_fini(&q);
}

static void a_step_is_read_as_the_rows_that_live(void **state)
{
    struct td_steps q = make();
    uint8_t odd[sizeof golden + 1];
    enum td_rank_step_kind kind = TD_RANK_BYE;
    bool every = false;
    memcpy(odd + 1, golden, sizeof golden); /* of any alignment */
    assert_null(td_rank_step_read(&q, 6, odd + 1, sizeof golden, &q.steps[1], &kind, &every));
    const struct td_step *s = &q.steps[1];
    assert_true(kind == TD_RANK_STEP && every && s->ticket == 7 && s->n_rows == 2 && s->n_tok == 6);
    assert_true(s->rows[0].live && s->rows[0].sampling == TD_NO_SAMPLE && s->rows[0].want == 0);
    const struct td_step_row *r = &s->rows[1];
    assert_true(r->live && !r->from_engine && r->pos == 20 && r->n == 1 && r->token0 == 5);
    assert_true(r->sampling == 0 && r->want == TD_KV_LANDED && r->n_blocks == 2);
    assert_true(r->table[0] == 5 && r->table[1] == 6 && s->tokens[5] == 6);
    td_steps_fini(&q);
}

static void the_longest_step_fits_its_cap(void **state)
{
    struct td_steps q = make();
    struct td_step *s = &q.steps[0];
    size_t cap = td_rank_step_cap(&info);
    uint8_t *out = malloc(cap); /* a sanitizer sees what is written behind it */
    assert_non_null(out);
    s->ticket = 7;
    s->n_rows = ROWS;
    s->n_tok = TOKENS;
    for (uint32_t i = 0; i < ROWS; i++) {
        s->rows[i] = (struct td_step_row){.live = true,
                                          .pos = LEN - TOKENS / ROWS,
                                          .n = TOKENS / ROWS,
                                          .token0 = i * (TOKENS / ROWS),
                                          .sampling = TD_NO_SAMPLE,
                                          .n_blocks = LEN / 16,
                                          .table = s->tables + (size_t)i * q.blocks_per_seq};
    }
    assert_int_equal(td_rank_step_write(s, false, out), cap);
    assert_null(read_back(&q, out, cap));
    free(out);
    td_steps_fini(&q);
}

static void a_goodbye_is_a_head_alone(void **state)
{
    struct td_steps q = make();
    uint8_t out[sizeof golden] = {0};
    enum td_rank_step_kind kind = TD_RANK_STEP;
    bool every = true;
    size_t n = td_rank_step_write_bye(out);
    assert_int_equal(n, 40);
    assert_null(td_rank_step_read(&q, UINT64_MAX, out, n, &q.steps[1], &kind, &every));
    assert_true(kind == TD_RANK_BYE && !every);
    assert_string_equal(read_back(&q, out, n + 1), "length");
    assert_string_equal(read_back(&q, out, n - 1), "length");
    td_steps_fini(&q);
}

static void no_field_is_believed(void **state)
{
    static const struct {
        uint32_t at, value;
        const char *field;
    } bad[] = {
        {0, 0x54535254u, "version"}, /* of another byte order */
        {1, 2, "version"},
        {2, 0, "kind"},
        {2, 3, "kind"},
        {3, 2, "kind"},
        {9, 1, "kind"},
        {4, 6, "ticket"}, /* not after the last one */
        {4, 0, "ticket"},
        {6, 0, "count"},
        {6, ROWS + 1, "count"},
        {6, UINT32_MAX, "count"},
        {6, 1, "length"},
        {7, 0, "count"},
        {7, TOKENS + 1, "count"},
        {7, UINT32_MAX, "count"},
        {7, 5, "length"},
        {8, 2, "length"},
        {8, UINT32_MAX, "count"},
        {10, UINT32_MAX, "position"},
        {10, LEN, "position"},
        {10, 12, "blocks"}, /* needs two */
        {11, 0, "position"},
        {11, 6, "sum"}, /* more than the step's tokens */
        {11, 4, "sum"},
        {11, UINT32_MAX, "position"},
        {11, LEN + 1, "position"},
        {12, 2, "blocks"},
        {12, 0, "blocks"},
        {13, 4, "flags"},
        {14, LEN - 1, "blocks"},
        {18, 0x80000000u, "token"},
        {23, VOCAB, "token"},
        {24, BLOCKS, "block"},
        {26, UINT32_MAX, "block"},
    };
    struct td_steps q = make();
    uint32_t w[N_WORDS];
    for (size_t i = 0; i < TD_COUNT(bad); i++) {
        memcpy(w, golden, sizeof w);
        w[bad[i].at] = bad[i].value;
        const char *field = read_back(&q, (const uint8_t *)w, sizeof w);
        assert_non_null(field);
        assert_string_equal(field, bad[i].field);
    }
    td_steps_fini(&q);
}

/* Sums that agree with the lengths, but rows that exchange what they need. */
static void rows_may_not_borrow_from_each_other(void **state)
{
    struct td_steps q = make();
    uint32_t w[N_WORDS];
    memcpy(w, golden, sizeof w);
    w[11] = 1;
    w[15] = 5; /* 20..24: two blocks still */
    assert_null(read_back(&q, (const uint8_t *)w, sizeof w));
    w[12] = 2;
    w[16] = 1;
    assert_string_equal(read_back(&q, (const uint8_t *)w, sizeof w), "blocks");
    td_steps_fini(&q);
}

static void any_cut_is_refused(void **state)
{
    struct td_steps q = make();
    for (size_t n = 0; n < sizeof golden; n++) {
        uint8_t *cut = malloc(n + 1);
        assert_non_null(cut);
        memcpy(cut, golden, n);
        assert_string_equal(read_back(&q, cut, n), "length");
        free(cut);
    }
    td_steps_fini(&q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_has_its_golden_bytes),
        cmocka_unit_test(a_step_is_read_as_the_rows_that_live),
        cmocka_unit_test(the_longest_step_fits_its_cap),
        cmocka_unit_test(a_goodbye_is_a_head_alone),
        cmocka_unit_test(no_field_is_believed),
        cmocka_unit_test(rows_may_not_borrow_from_each_other),
        cmocka_unit_test(any_cut_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
