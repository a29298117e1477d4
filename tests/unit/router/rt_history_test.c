#include "router/rt_history.h"

#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "common/base/mem.h"
#include "tests/unit/check.h"

static struct rt_history_record record(unsigned i)
{
    struct rt_history_record r = {.counter = i, .finish = TD_FINISH_STOP, .n_output = i};
    (void)snprintf(r.request_id, sizeof r.request_id, "r-%u", i);
    return r;
}

static void the_newest_comes_first_and_the_oldest_gives_way(void **state)
{
    (void)state;
    struct rt_history *h = rt_history_create();
    assert_non_null(h);
    assert_null(rt_history_get(h, 0));
    for (unsigned i = 0; i < RT_HISTORY + 3; i++) {
        struct rt_history_record r = record(i);
        rt_history_add(h, &r);
        assert_int_equal(rt_history_get(h, 0)->counter, i);
    }
    assert_int_equal(rt_history_get(h, RT_HISTORY - 1)->counter, 3);
    assert_null(rt_history_get(h, RT_HISTORY));
    assert_null(rt_history_find(h, "r-2"));
    assert_int_equal(rt_history_find(h, "r-3")->counter, 3);
    assert_null(rt_history_find(h, "unknown"));
    assert_null(rt_history_destroy(h));
    assert_null(rt_history_destroy(NULL));
}

static void a_short_history_ends_at_its_first_record(void **state)
{
    (void)state;
    struct rt_history *h = rt_history_create();
    struct rt_history_record r = record(1);
    rt_history_add(h, &r);
    assert_null(rt_history_get(h, 1));
    assert_null(rt_history_find(h, ""));
    rt_history_destroy(h);
}

static void a_record_is_json_whatever_its_names_hold(void **state)
{
    (void)state;
    struct rt_history_record r = record(1);
    struct td_buf b;
    r.err = TD_ERR_PEER_LOST;
    r.ttft_us = 12;
    r.stages.kv_bytes = 1u << 20;
    r.stages.transport = "shm";
    (void)snprintf(r.request_id, sizeof r.request_id, "a\"b");
    (void)snprintf(r.prefill, sizeof r.prefill, "p\"\\0");
    (void)snprintf(r.decode, sizeof r.decode, "d\n");
    td_buf_init(&b, 65536);
    assert_int_equal(rt_history_json(&r, &b), TD_OK);
    json_t *j = json_loadb((const char *)b.data, b.len, 0, NULL);
    assert_non_null(j);
    assert_string_equal(json_string_value(json_object_get(j, "prefill")), "p\"\\0");
    assert_string_equal(json_string_value(json_object_get(j, "decode")), "d\n");
    assert_string_equal(json_string_value(json_object_get(j, "code")), "node_lost");
    assert_string_equal(json_string_value(json_object_get(j, "transport")), "shm");
    assert_int_equal(json_integer_value(json_object_get(j, "ttft_us")), 12);
    assert_int_equal(json_integer_value(json_object_get(j, "kv_bytes")), 1 << 20);
    json_decref(j);
    td_buf_fini(&b);
    td_buf_init(&b, 100);
    assert_int_not_equal(rt_history_json(&r, &b), TD_OK);
    td_buf_fini(&b);
}

static void the_recent_ones_give_percentiles(void **state)
{
    (void)state;
    struct rt_history *h = rt_history_create();
    struct rt_history_recent got;
    rt_history_recent(h, 0, &got);
    assert_int_equal(got.finished + got.failed + got.ttft_p95_us, 0);
    for (unsigned i = 1; i <= 100; i++) {
        struct rt_history_record r = record(i);
        r.wall_us = i;
        r.ttft_us = 1000 - i; /* unsorted */
        r.tpot_us = i;
        rt_history_add(h, &r);
    }
    struct rt_history_record lost = {.err = TD_ERR_PEER_LOST, .wall_us = 101, .ttft_us = 7};
    rt_history_add(h, &lost);
    rt_history_recent(h, 51, &got); /* 51 to 100 */
    assert_int_equal(got.finished, 50);
    assert_int_equal(got.failed, 1);
    assert_int_equal(got.ttft_p50_us, 924);
    assert_int_equal(got.ttft_p95_us, 947);
    assert_int_equal(got.tpot_p50_us, 75);
    assert_int_equal(got.tpot_p95_us, 98);
    rt_history_destroy(h);
}

static void out_of_memory_gives_no_history(void **state)
{
    (void)state;
    td_mem_fail_nth(1);
    assert_null(rt_history_create());
    td_mem_fail_nth(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_newest_comes_first_and_the_oldest_gives_way),
        cmocka_unit_test(a_short_history_ends_at_its_first_record),
        cmocka_unit_test(a_record_is_json_whatever_its_names_hold),
        cmocka_unit_test(the_recent_ones_give_percentiles),
        cmocka_unit_test(out_of_memory_gives_no_history),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
