#include "common/node/span.h"

#include <string.h>

#include "common/base/rng.h"
#include "tests/unit/check.h"

#define BYTES 20000u

static void what_was_put_can_be_read_in_any_pieces(void **state)
{
    static uint8_t data[BYTES], back[BYTES];
    struct td_rng r = {4};
    struct nd_span span = {0};
    (void)state;
    for (uint32_t i = 0; i < BYTES; i++) {
        data[i] = (uint8_t)td_rng_next(&r);
    }
    struct nd_spans *s = nd_spans_create(BYTES);
    assert_int_equal(nd_spans_put(s, data, BYTES, &span), TD_OK);
    for (int i = 0; i < 500; i++) {
        uint32_t from = (uint32_t)td_rng_below(&r, BYTES + 1);
        uint32_t n = (uint32_t)td_rng_below(&r, BYTES - from + 1);
        nd_spans_read(s, &span, from, n, back);
        assert_memory_equal(back, data + from, n);
    }
    CHECK_ABORTS(nd_spans_read(s, &span, BYTES, 1, back));
    nd_spans_drop(s, &span);
    assert_int_equal(nd_spans_free_pages(s), nd_spans_pages(s));
    assert_null(nd_spans_destroy(s));
}

static void a_full_store_refuses_and_keeps_the_rest(void **state)
{
    static uint8_t data[BYTES];
    struct nd_span a = {0};
    struct nd_span b = {0};
    (void)state;
    struct nd_spans *s = nd_spans_create(1000);
    assert_int_equal(nd_spans_put(s, data, 600, &a), TD_OK);
    uint32_t left = nd_spans_free_pages(s);
    assert_int_equal(nd_spans_put(s, data, BYTES, &b), TD_ERR_OVERLOADED);
    assert_int_equal(nd_spans_free_pages(s), left);
    assert_int_equal(b.first, 0);
    nd_spans_drop(s, &b);
    assert_int_equal(nd_spans_put(s, data, 0, &b), TD_OK);
    assert_int_equal(nd_spans_free_pages(s), left);
    (void)nd_spans_destroy(s);
}

static void random_spans_do_not_disturb_each_other(void **state)
{
    enum { N = 32 };
    uint8_t data[3000];
    struct nd_span span[N] = {0};
    struct td_rng r = {8};
    (void)state;
    struct nd_spans *s = nd_spans_create(BYTES);
    for (int i = 0; i < 3000; i++) {
        uint32_t k = (uint32_t)td_rng_below(&r, N);
        if (span[k].bytes > 0) {
            nd_spans_read(s, &span[k], 0, span[k].bytes, data);
            for (uint32_t b = 0; b < span[k].bytes; b++) {
                assert_int_equal(data[b], k);
            }
            nd_spans_drop(s, &span[k]);
        } else {
            memset(data, (int)k, sizeof data);
            (void)!nd_spans_put(s, data, 1 + td_rng_below(&r, sizeof data - 1), &span[k]);
        }
    }
    for (uint32_t k = 0; k < N; k++) {
        nd_spans_drop(s, &span[k]);
    }
    assert_int_equal(nd_spans_free_pages(s), nd_spans_pages(s));
    (void)nd_spans_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_put_can_be_read_in_any_pieces),
        cmocka_unit_test(a_full_store_refuses_and_keeps_the_rest),
        cmocka_unit_test(random_spans_do_not_disturb_each_other),
    };
    return cmocka_run_group_tests_name("node/span", tests, NULL, NULL);
}
