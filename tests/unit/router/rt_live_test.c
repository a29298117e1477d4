/* The live figures under a clock of the test's. */
#include "router/rt_live.h"

#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "common/base/mem.h"
#include "tests/unit/check.h"

#define S INT64_C(1000000)

static json_t *shown(const struct rt_live *l, int64_t now, uint64_t since)
{
    struct td_buf b;
    td_buf_init(&b, 1 << 20);
    assert_int_equal(td_buf_puts(&b, "{"), TD_OK);
    assert_int_equal(rt_live_json(l, now, since, &b), TD_OK);
    assert_int_equal(td_buf_puts(&b, "}"), TD_OK);
    json_t *j = json_loadb((const char *)b.data, b.len, 0, NULL);
    td_buf_fini(&b);
    assert_non_null(j);
    return j;
}

/* The value of a field of the i-th sample. */
static double field(const json_t *j, size_t i, const char *name)
{
    const json_t *names = json_object_get(j, "sample_fields");
    for (size_t k = 0; k < json_array_size(names); k++) {
        if (strcmp(json_string_value(json_array_get(names, k)), name) == 0) {
            return json_number_value(
                json_array_get(json_array_get(json_object_get(j, "samples"), i), k));
        }
    }
    fail_msg("no field %s", name);
    return 0;
}

static void a_second_holds_what_was_observed_in_it(void **state)
{
    (void)state;
    struct rt_live *l = rt_live_create();
    struct rt_live_gauges g = {.queued = 3, .running = 2, .kv_prefill = 0.25, .kv_decode = 0.5};
    rt_live_tick(l, 10 * S, &g);
    rt_live_observe(l, RT_M_TTFT_US, 100);
    rt_live_observe(l, RT_M_TTFT_US, 300);
    rt_live_observe(l, RT_M_ITL_US, 50);
    rt_live_observe(l, RT_M_RETRY, -1);
    rt_live_observe(l, RT_M_QUEUE_US, 7);
    rt_live_tick(l, 10 * S + 1, &g);
    assert_int_equal(rt_live_next(l), 0); /* not over yet */
    rt_live_tick(l, 11 * S, &g);
    rt_live_tick(l, 12 * S, &g);
    json_t *j = shown(l, 12 * S, 0);
    assert_int_equal(json_integer_value(json_object_get(j, "next")), 2);
    assert_int_equal(json_array_size(json_object_get(j, "samples")), 2);
    assert_int_equal(field(j, 0, "tokens"), 3);
    assert_int_equal(field(j, 0, "ttft_mean_us"), 200);
    assert_int_equal(field(j, 0, "ttft_max_us"), 300);
    assert_int_equal(field(j, 0, "tpot_mean_us"), 50);
    assert_int_equal(field(j, 0, "replays"), 1);
    assert_int_equal(field(j, 0, "queued"), 3);
    assert_true(field(j, 0, "kv_prefill") == 0.25 && field(j, 0, "kv_decode") == 0.5);
    assert_int_equal(field(j, 1, "tokens"), 0);
    json_decref(j);
    j = shown(l, 12 * S, 1); /* only what is new */
    assert_int_equal(json_array_size(json_object_get(j, "samples")), 1);
    json_decref(j);
    j = shown(l, 12 * S, 99);
    assert_int_equal(json_array_size(json_object_get(j, "samples")), 0);
    json_decref(j);
    assert_null(rt_live_destroy(l));
    assert_null(rt_live_destroy(NULL));
}

static void a_held_up_loop_skips_seconds_instead_of_making_them_up(void **state)
{
    (void)state;
    struct rt_live *l = rt_live_create();
    struct rt_live_gauges g = {0};
    rt_live_tick(l, S, &g);
    rt_live_tick(l, 60 * S, &g);
    rt_live_tick(l, 60 * S + 1, &g);
    assert_int_equal(rt_live_next(l), 1);
    for (int64_t i = 0; i < 2 * RT_LIVE_SAMPLES; i++) {
        rt_live_tick(l, (61 + i) * S, &g);
    }
    json_t *j = shown(l, 2000 * S, 0);
    assert_int_equal(json_array_size(json_object_get(j, "samples")), RT_LIVE_SAMPLES);
    json_decref(j);
    rt_live_destroy(l);
}

static void moved(struct rt_live *l, int64_t now, const char *p, const char *d, td_err err)
{
    struct rt_action a = {.type = RT_DO_END, .err = err};
    (void)snprintf(a.p_name, sizeof a.p_name, "%s", p);
    (void)snprintf(a.d_name, sizeof a.d_name, "%s", d);
    a.stages = (struct td_wire_stages){
        .kv_bytes = 1000, .transfer_us = 40, .transfer_exposed_us = 4, .transport = "shm"};
    rt_live_end(l, now, &a);
}

static void each_pair_has_a_row_and_the_quietest_gives_way(void **state)
{
    (void)state;
    struct rt_live *l = rt_live_create();
    char name[64];
    moved(l, 1 * S, "p\"0", "d0", TD_OK);
    moved(l, 2 * S, "p\"0", "d0", TD_ERR_PEER_LOST);
    json_t *j = shown(l, 5 * S, 0);
    const json_t *row = json_array_get(json_object_get(j, "transfers"), 0);
    assert_string_equal(json_string_value(json_object_get(row, "prefill")), "p\"0");
    assert_string_equal(json_string_value(json_object_get(row, "transport")), "shm");
    assert_int_equal(json_integer_value(json_object_get(row, "count")), 2);
    assert_int_equal(json_integer_value(json_object_get(row, "bytes")), 2000);
    assert_int_equal(json_integer_value(json_object_get(row, "exposed_us")), 8);
    assert_int_equal(json_integer_value(json_object_get(row, "age_us")), 3 * S);
    json_decref(j);
    for (int i = 0; i < RT_LIVE_PAIRS; i++) {
        (void)snprintf(name, sizeof name, "p%d", i);
        moved(l, (10 + i) * S, name, "d0", TD_OK);
    }
    j = shown(l, 900 * S, 0);
    const json_t *all = json_object_get(j, "transfers");
    assert_int_equal(json_array_size(all), RT_LIVE_PAIRS);
    for (size_t i = 0; i < json_array_size(all); i++) {
        assert_string_not_equal(
            json_string_value(json_object_get(json_array_get(all, i), "prefill")), "p\"0");
    }
    json_decref(j);
    struct rt_action local = {.type = RT_DO_END}; /* nothing moved */
    rt_live_end(l, 2000 * S, &local);
    rt_live_tick(l, 2000 * S, &(struct rt_live_gauges){0});
    rt_live_tick(l, 2002 * S, &(struct rt_live_gauges){0});
    j = shown(l, 2002 * S, 0);
    assert_int_equal(field(j, 0, "finished"), RT_LIVE_PAIRS + 2);
    assert_int_equal(field(j, 0, "failed"), 1);
    json_decref(j);
    rt_live_destroy(l);
}

static void without_memory_there_is_none(void **state)
{
    (void)state;
    td_mem_fail_nth(1);
    assert_null(rt_live_create());
    td_mem_fail_nth(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_holds_what_was_observed_in_it),
        cmocka_unit_test(a_held_up_loop_skips_seconds_instead_of_making_them_up),
        cmocka_unit_test(each_pair_has_a_row_and_the_quietest_gives_way),
        cmocka_unit_test(without_memory_there_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
