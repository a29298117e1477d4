#include "common/sched/batch.h"

#include "common/base/rng.h"
#include "tests/unit/check.h"

#define ROWS 32

static struct td_batch batch_of(uint32_t rows, uint32_t tokens, uint32_t chunk)
{
    struct td_batch b;
    struct td_batch_params p = {
        .max_rows = rows, .max_tokens = tokens, .chunk_tok = chunk, .unit_tok = 16};
    assert_true(td_batch_init(&b, &p));
    return b;
}

static void parameters_that_do_not_fit_are_refused(void **state)
{
    struct td_batch b;
    static const struct td_batch_params bad[] = {
        {.max_rows = 1, .max_tokens = 64, .chunk_tok = 32, .unit_tok = 0},
        {.max_rows = 1, .max_tokens = 64, .chunk_tok = 24, .unit_tok = 16},
        {.max_rows = 1, .max_tokens = 8, .chunk_tok = 32, .unit_tok = 16},
        {.max_rows = 0, .max_tokens = 64, .chunk_tok = 32, .unit_tok = 16},
        {.max_rows = 1, .max_tokens = 64, .chunk_tok = 8, .unit_tok = 16},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(td_batch_init(&b, &bad[i]));
    }
}

static void a_prompt_is_cut_into_chunks_of_whole_units(void **state)
{
    struct td_batch_row out[ROWS];
    struct td_batch_item it = {0};
    static const uint32_t want[] = {32, 32, 32, 4};
    (void)state;
    struct td_batch b = batch_of(ROWS, 40, 32);
    td_batch_join_prefill(&b, &it, 0, 0, 100);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(td_batch_plan(&b, out, ROWS), 1);
        assert_int_equal(out[0].n, want[i]);
        assert_int_equal(out[0].last, i == 3);
    }
    assert_int_equal(it.kind, TD_BATCH_OUT);
    assert_int_equal(td_batch_plan(&b, out, ROWS), 0);
    assert_int_equal(b.todo_tok, 0);
}

static void decode_rows_come_first_and_prompts_fill_the_rest(void **state)
{
    struct td_batch_row out[ROWS];
    struct td_batch_item d[10] = {0};
    struct td_batch_item p[2] = {0};
    (void)state;
    struct td_batch b = batch_of(ROWS, 64, 32);
    for (int i = 0; i < 10; i++) {
        td_batch_join_decode(&b, &d[i]);
    }
    td_batch_join_prefill(&b, &p[0], 0, 0, 100);
    td_batch_join_prefill(&b, &p[1], 0, 1, 100);
    assert_int_equal(td_batch_plan(&b, out, ROWS), 12);
    uint32_t tokens = 0;
    for (int i = 0; i < 12; i++) {
        assert_int_equal(out[i].kind, i < 10 ? TD_BATCH_DECODE : TD_BATCH_PREFILL);
        tokens += out[i].n;
    }
    assert_ptr_equal(out[10].item, &p[0]);
    assert_int_equal(out[10].n, 32);
    assert_int_equal(out[11].n, 16); /* 22 left, cut to a unit */
    assert_true(tokens <= 64);
}

static void a_started_prompt_goes_before_a_better_newcomer(void **state)
{
    struct td_batch_row out[ROWS];
    struct td_batch_item old = {0};
    struct td_batch_item urgent = {0};
    (void)state;
    struct td_batch b = batch_of(ROWS, 32, 32);
    td_batch_join_prefill(&b, &old, 1000, 0, 96);
    assert_int_equal(td_batch_plan(&b, out, ROWS), 1);
    td_batch_join_prefill(&b, &urgent, 0, 1, 32);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(td_batch_plan(&b, out, ROWS), 1);
        assert_ptr_equal(out[0].item, &old);
    }
    assert_int_equal(td_batch_plan(&b, out, ROWS), 1);
    assert_ptr_equal(out[0].item, &urgent);
}

static void new_prompts_are_ordered_by_key_then_arrival(void **state)
{
    struct td_batch_row out[ROWS];
    struct td_batch_item p[3] = {0};
    (void)state;
    struct td_batch b = batch_of(ROWS, 512, 32);
    td_batch_join_prefill(&b, &p[0], 50, 0, 16);
    td_batch_join_prefill(&b, &p[1], 20, 1, 16);
    td_batch_join_prefill(&b, &p[2], 20, 2, 16);
    assert_int_equal(td_batch_plan(&b, out, ROWS), 3);
    assert_ptr_equal(out[0].item, &p[1]);
    assert_ptr_equal(out[1].item, &p[2]);
    assert_ptr_equal(out[2].item, &p[0]);
}

/* More decode rows than a step holds, and a prompt: every row is served within two steps, the
 * prompt moves in each. */
static void nobody_starves_when_not_all_rows_fit(void **state)
{
    struct td_batch_row out[ROWS];
    struct td_batch_item d[60] = {0};
    struct td_batch_item p = {0};
    int last_served[60] = {0};
    (void)state;
    struct td_batch b = batch_of(ROWS, 48, 32);
    for (int i = 0; i < 60; i++) {
        td_batch_join_decode(&b, &d[i]);
    }
    td_batch_join_prefill(&b, &p, 0, 0, 16 * 100);
    for (int step = 1; step <= 100; step++) {
        uint32_t n = td_batch_plan(&b, out, ROWS);
        uint32_t prompt = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (out[i].kind == TD_BATCH_PREFILL) {
                prompt += out[i].n;
                continue;
            }
            long k = out[i].item - d;
            assert_true(step - last_served[k] <= 2);
            last_served[k] = step;
        }
        assert_int_equal(prompt, 16);
    }
    for (int i = 0; i < 60; i++) {
        assert_true(last_served[i] >= 99);
    }
}

static void a_held_row_sits_out_and_keeps_its_place(void **state)
{
    struct td_batch_row out[ROWS];
    struct td_batch_item d[3] = {0};
    (void)state;
    struct td_batch b = batch_of(ROWS, 64, 32);
    for (int i = 0; i < 3; i++) {
        td_batch_join_decode(&b, &d[i]);
    }
    d[0].held = true;
    assert_int_equal(td_batch_plan(&b, out, ROWS), 2);
    assert_true(out[0].item != &d[0] && out[1].item != &d[0]);
    d[0].held = false;
    assert_int_equal(td_batch_plan(&b, out, ROWS), 3);
    assert_ptr_equal(out[0].item, &d[0]);
}

/* Random joins and leaves: budgets hold, each prompt's chunks sum to its length, no row twice. */
static void budgets_hold_in_random_batches(void **state)
{
    enum { ITEMS = 40 };
    struct td_batch_row out[ROWS];
    struct td_batch_item items[ITEMS] = {0};
    uint32_t left[ITEMS] = {0};
    struct td_rng r = {77};
    (void)state;
    struct td_batch b = batch_of(8, 96, 48);
    for (int i = 0; i < 20000; i++) {
        size_t k = td_rng_below(&r, ITEMS);
        if (items[k].kind != TD_BATCH_OUT) {
            td_batch_leave(&b, &items[k]);
        } else if (td_rng_below(&r, 2) == 0) {
            td_batch_join_decode(&b, &items[k]);
        } else {
            left[k] = 1 + (uint32_t)td_rng_below(&r, 200);
            td_batch_join_prefill(&b, &items[k], (int64_t)td_rng_below(&r, 5), (uint64_t)i,
                                  left[k]);
        }
        uint32_t n = td_batch_plan(&b, out, ROWS);
        uint32_t tokens = 0;
        assert_true(n <= 8);
        for (uint32_t a = 0; a < n; a++) {
            tokens += out[a].n;
            for (uint32_t c = 0; c < a; c++) {
                assert_ptr_not_equal(out[a].item, out[c].item);
            }
            if (out[a].kind == TD_BATCH_PREFILL) {
                uint32_t *l = &left[out[a].item - items];
                assert_true(out[a].n <= *l && out[a].n <= 48);
                *l -= out[a].n;
                assert_int_equal(out[a].last, *l == 0);
                assert_true(out[a].last || out[a].n % 16 == 0);
            }
        }
        assert_true(tokens <= 96);
        assert_true(n > 0 || (b.prefill.n == 0 && b.decode.n == 0));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_that_do_not_fit_are_refused),
        cmocka_unit_test(a_prompt_is_cut_into_chunks_of_whole_units),
        cmocka_unit_test(decode_rows_come_first_and_prompts_fill_the_rest),
        cmocka_unit_test(a_started_prompt_goes_before_a_better_newcomer),
        cmocka_unit_test(new_prompts_are_ordered_by_key_then_arrival),
        cmocka_unit_test(nobody_starves_when_not_all_rows_fit),
        cmocka_unit_test(a_held_row_sits_out_and_keeps_its_place),
        cmocka_unit_test(budgets_hold_in_random_batches),
    };
    return cmocka_run_group_tests_name("sched/batch", tests, NULL, NULL);
}
