#include "common/model/engine_steps.h"

#include <poll.h>
#include <string.h>

#include "tests/unit/check.h"

enum { ROWS = 4, TOKENS = 32, SLOTS = 3, LEN = 64, VOCAB = 100, BLOCKS = 8 };

static const struct td_engine_info info = {.n_layers = 2,
                                           .n_vocab = VOCAB,
                                           .max_model_len = LEN,
                                           .n_blocks = BLOCKS,
                                           .max_rows = ROWS,
                                           .max_tokens = TOKENS,
                                           .max_slots = SLOTS};
static const td_block_id table[4] = {3, 1, 0, 7};
static const int32_t ids[TOKENS] = {5, 6, 7};

static struct td_steps make(void)
{
    struct td_steps q;
    memset(&q, 0, sizeof q);
    q.event_fd = q.layer_fd = -1;
    assert_int_equal(td_steps_init(&q, &info), TD_OK);
    return q;
}

static struct td_row row(uint32_t pos, uint32_t n)
{
    return (struct td_row){
        .pos = pos, .n = n, .tokens = ids, .table = table, .n_blocks = 4, .sampling = TD_NO_SAMPLE};
}

static bool is_readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

static void set_slot(struct td_steps *q, uint32_t slot)
{
    struct td_sampling_state s = {.p = {.top_p = 1, .repetition_penalty = 1}};
    assert_int_equal(td_steps_slot_set(q, slot, &s), TD_OK);
}

/* The error of one row submitted alone. */
static td_err error_of(struct td_row r)
{
    struct td_steps q = make();
    td_ticket t;
    set_slot(&q, 0);
    assert_int_equal(td_steps_submit(&q, &r, 1, NULL, &t), TD_OK);
    td_err err = q.steps[0].results[0].err;
    assert_int_equal(q.steps[0].rows[0].live, err == TD_OK);
    td_steps_fini(&q);
    return err;
}

static void a_bad_row_gets_its_own_error(void **state)
{
    static const td_block_id outside[4] = {0, 1, BLOCKS, 2};
    static const int32_t bad_id[1] = {VOCAB};
    struct td_row r = row(0, 3);
    assert_int_equal(error_of(r), TD_OK);
    assert_int_equal(error_of(row(0, 0)), TD_ERR_BAD_REQUEST);
    assert_int_equal(error_of(row(LEN - 1, 2)), TD_ERR_CONTEXT_LENGTH);
    assert_int_equal(error_of(row(UINT32_MAX, 2)), TD_ERR_CONTEXT_LENGTH);
    r.n_blocks = 0;
    assert_int_equal(error_of(r), TD_ERR_BAD_REQUEST);
    r = row(40, 1);
    r.table = outside;
    assert_int_equal(error_of(r), TD_ERR_BAD_REQUEST);
    r = row(0, 1);
    r.tokens = bad_id;
    assert_int_equal(error_of(r), TD_ERR_BAD_REQUEST);
    r = row(0, 1);
    r.sampling = 1; /* never set */
    assert_int_equal(error_of(r), TD_ERR_BAD_REQUEST);
    r.sampling = SLOTS;
    assert_int_equal(error_of(r), TD_ERR_BAD_REQUEST);
    r = row(0, 1);
    r.tokens = NULL; /* and no slot to take the token from */
    assert_int_equal(error_of(r), TD_ERR_BAD_REQUEST);
    r.sampling = 0;
    assert_int_equal(error_of(r), TD_OK);
    r.n = 2;
    assert_int_equal(error_of(r), TD_ERR_BAD_REQUEST);
}

static void a_slot_serves_one_row_of_a_step(void **state)
{
    struct td_steps q = make();
    struct td_row r[2] = {row(0, 1), row(0, 1)};
    td_ticket t;
    set_slot(&q, 2);
    r[0].sampling = r[1].sampling = 2;
    assert_int_equal(td_steps_submit(&q, r, 2, NULL, &t), TD_OK);
    assert_int_equal(q.steps[0].results[0].err, TD_OK);
    assert_int_equal(q.steps[0].results[1].err, TD_ERR_BAD_REQUEST);
    td_steps_fini(&q);
}

static void rows_tokens_and_tables_are_copied(void **state)
{
    struct td_steps q = make();
    int32_t tokens[3] = {1, 2, 3};
    td_block_id blocks[2] = {4, 5};
    struct td_row r[2] = {row(0, 2), row(16, 3)};
    td_ticket t;
    r[1].tokens = tokens;
    r[1].table = blocks;
    assert_int_equal(td_steps_submit(&q, r, 2, NULL, &t), TD_OK);
    memset(tokens, 0, sizeof tokens);
    memset(blocks, 0, sizeof blocks);
    const struct td_step *s = td_steps_take(&q, 0);
    assert_ptr_equal(s, &q.steps[0]);
    assert_null(td_steps_take(&q, 1));
    assert_int_equal(s->n_tok, 5);
    assert_int_equal(s->rows[1].token0, 2);
    assert_int_equal(s->tokens[4], 3);
    assert_int_equal(s->rows[1].n_blocks, 2);
    assert_int_equal(s->rows[1].table[1], 5);
    td_steps_fini(&q);
}

static void the_third_step_waits_and_results_come_in_order(void **state)
{
    struct td_steps q = make();
    struct td_row r = row(0, 1);
    struct td_step_result got;
    td_ticket t[3];
    assert_int_equal(td_steps_submit(&q, &r, 1, NULL, &t[0]), TD_OK);
    assert_int_equal(td_steps_submit(&q, &r, 1, NULL, &t[1]), TD_OK);
    assert_int_equal(td_steps_submit(&q, &r, 1, NULL, &t[2]), TD_ERR_AGAIN);
    assert_int_equal(td_steps_poll(&q, &got), TD_ERR_AGAIN);
    td_steps_finish(&q, td_steps_take(&q, 0));
    td_steps_finish(&q, td_steps_take(&q, 1));
    assert_true(is_readable(q.event_fd));
    assert_int_equal(td_steps_poll(&q, &got), TD_OK);
    assert_int_equal(got.ticket, t[0]);
    assert_true(is_readable(q.event_fd)); /* another one is there */
    assert_int_equal(td_steps_poll(&q, &got), TD_OK);
    assert_int_equal(got.ticket, t[1]);
    assert_false(is_readable(q.event_fd));
    assert_int_equal(td_steps_poll(&q, &got), TD_ERR_AGAIN);
    assert_int_equal(td_steps_submit(&q, &r, 1, NULL, &t[2]), TD_OK);
    td_steps_fini(&q);
}

static void layers_are_told_once_they_are_done(void **state)
{
    struct td_steps q = make();
    struct td_row r = row(0, 1);
    td_ticket first, second;
    r.want = TD_PUSH_LAYERS;
    assert_int_equal(td_steps_submit(&q, &r, 1, NULL, &first), TD_OK);
    assert_int_equal(td_steps_submit(&q, &r, 1, NULL, &second), TD_OK);
    assert_int_equal(td_steps_layers_done(&q, first), 0);
    td_steps_layer(&q, td_steps_take(&q, 0), 1);
    assert_true(is_readable(q.layer_fd));
    assert_int_equal(td_steps_layers_done(&q, first), 1);
    assert_int_equal(td_steps_layers_done(&q, second), 0);
    td_steps_finish(&q, td_steps_take(&q, 0));
    td_steps_layer(&q, td_steps_take(&q, 1), 1);
    assert_int_equal(td_steps_layers_done(&q, first), info.n_layers);
    assert_int_equal(td_steps_layers_done(&q, second), 1);
    td_steps_fini(&q);
}

static void a_closed_queue_hands_out_what_finished_and_says_so_for_good(void **state)
{
    struct td_steps q = make();
    struct td_row r = row(0, 1);
    struct td_step_result got;
    td_ticket t[2];
    assert_int_equal(td_steps_submit(&q, &r, 1, NULL, &t[0]), TD_OK);
    assert_int_equal(td_steps_submit(&q, &r, 1, NULL, &t[1]), TD_OK);
    td_steps_finish(&q, td_steps_take(&q, 0));
    td_steps_close(&q);
    assert_int_equal(td_steps_poll(&q, &got), TD_OK);
    assert_true(got.ticket == t[0]);
    for (int i = 0; i < 3; i++) {
        assert_true(is_readable(q.event_fd));
        assert_int_equal(td_steps_poll(&q, &got), TD_ERR_CLOSED);
    }
    assert_int_equal(td_steps_layers_done(&q, t[1]), 0);
    assert_int_equal(td_steps_submit(&q, &r, 1, NULL, &t[0]), TD_ERR_CLOSED);
    td_steps_fini(&q);
}

static void a_step_that_is_too_large_is_refused(void **state)
{
    struct td_steps q = make();
    struct td_row r[ROWS + 1];
    td_ticket t;
    for (int i = 0; i <= ROWS; i++) {
        r[i] = row(0, TOKENS / ROWS);
    }
    assert_int_equal(td_steps_submit(&q, r, 0, NULL, &t), TD_ERR_BAD_REQUEST);
    assert_int_equal(td_steps_submit(&q, r, ROWS + 1, NULL, &t), TD_ERR_BAD_REQUEST);
    assert_int_equal(td_steps_submit(&q, r, ROWS, NULL, &t), TD_OK);
    r[0].n++;
    assert_int_equal(td_steps_submit(&q, r, ROWS, NULL, &t), TD_ERR_BAD_REQUEST);
    td_steps_fini(&q);
}

static void a_slot_remembers_what_it_was_set_to(void **state)
{
    struct td_steps q = make();
    static const int32_t prompt[3] = {1, 2, 3}, output[2] = {4, 5};
    static const struct td_logit_bias bias[1] = {{7, -2.f}};
    struct td_sampling_state s = {
        .p = {.top_p = 1, .n_bias = 1, .bias = bias}, .prompt = prompt, .n_prompt = 3};
    assert_int_equal(td_steps_slot_set(&q, SLOTS, &s), TD_ERR_BAD_REQUEST);
    s.p.n_bias = TD_SAMPLING_MAX_BIAS + 1;
    assert_int_equal(td_steps_slot_set(&q, 1, &s), TD_ERR_BAD_REQUEST);
    s.p.n_bias = 1;
    s.n_prompt = LEN + 1;
    assert_int_equal(td_steps_slot_set(&q, 1, &s), TD_ERR_CONTEXT_LENGTH);
    s.n_prompt = 3;
    s.output = output;
    s.n_output = 2;
    assert_int_equal(td_steps_slot_set(&q, 1, &s), TD_OK);
    assert_int_equal(q.slots[1].n_history, 5);
    assert_int_equal(q.slots[1].history[4], 5);
    assert_true(q.slots[1].has_last && q.slots[1].last == 5);
    assert_ptr_equal(q.slots[1].p.bias, q.slots[1].bias);
    assert_int_equal(q.slots[1].bias[0].id, 7);
    td_steps_fini(&q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bad_row_gets_its_own_error),
        cmocka_unit_test(a_slot_serves_one_row_of_a_step),
        cmocka_unit_test(rows_tokens_and_tables_are_copied),
        cmocka_unit_test(the_third_step_waits_and_results_come_in_order),
        cmocka_unit_test(layers_are_told_once_they_are_done),
        cmocka_unit_test(a_closed_queue_hands_out_what_finished_and_says_so_for_good),
        cmocka_unit_test(a_step_that_is_too_large_is_refused),
        cmocka_unit_test(a_slot_remembers_what_it_was_set_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
