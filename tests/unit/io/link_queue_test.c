#include "common/io/link_queue.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "common/base/rng.h"

static const struct link_queue_limits limits = {.queue_bytes = 4000,
                                                .window_bytes = 400,
                                                .queue_msgs = 16,
                                                .window_frames = 8,
                                                .frame_payload = 100};

static int setup(void **state)
{
    struct link_queue *q = td_zalloc(1, sizeof *q);
    assert_non_null(q);
    assert_int_equal(link_queue_init(q, &limits), TD_OK);
    *state = q;
    return 0;
}

static int teardown(void **state)
{
    link_queue_fini(*state);
    free(*state);
    return 0;
}

static uint8_t data[8192];

/* Takes the next frame; 0 when there is none. */
static uint64_t emit(struct link_queue *q, struct link_slice *out)
{
    uint64_t seq = 0;
    *out = (struct link_slice){0};
    const struct link_slice *s = link_queue_peek(q, &seq);
    if (s == NULL) {
        return 0;
    }
    *out = *s;
    link_queue_emitted(q);
    return seq;
}

static void frames_are_numbered_cut_and_freed_by_acknowledgements(void **state)
{
    struct link_queue *q = *state;
    struct link_slice s;
    assert_int_equal(link_queue_push(q, 0, data, 250), TD_OK);
    assert_int_equal(link_queue_push(q, 0, data, 10), TD_OK);
    assert_int_equal(emit(q, &s), 1); /* the small one first */
    assert_true(s.first && s.last && s.len == 10 && s.lane == 0);
    assert_int_equal(emit(q, &s), 2);
    assert_true(s.first && !s.last && s.len == 100 && s.total == 250 && s.lane == TD_LINK_LANE_BIG);
    assert_int_equal(emit(q, &s), 3);
    assert_int_equal(emit(q, &s), 4);
    assert_true(!s.first && s.last && s.len == 50);
    assert_int_equal(emit(q, &s), 0);
    assert_int_equal(link_queue_unacked(q), 260);
    assert_true(link_queue_ack(q, 3));
    assert_int_equal(link_queue_bytes(q), 50);
    assert_false(link_queue_ack(q, 5)); /* never sent */
    assert_true(link_queue_ack(q, 2));  /* old news */
    assert_true(link_queue_ack(q, 4));
    assert_int_equal(link_queue_bytes(q), 0);
}

static void a_rewind_sends_what_is_not_acknowledged_with_the_same_numbers(void **state)
{
    struct link_queue *q = *state;
    struct link_slice s;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(link_queue_push(q, 0, data, 10), TD_OK);
        assert_int_equal(emit(q, &s), (uint64_t)i + 1);
    }
    assert_true(link_queue_ack(q, 2));
    link_queue_rewind(q);
    assert_int_equal(emit(q, &s), 3);
    assert_int_equal(emit(q, &s), 4);
    assert_int_equal(emit(q, &s), 0);
}

static void the_window_bounds_bytes_and_frames(void **state)
{
    struct link_queue *q = *state;
    struct link_slice s;
    for (int i = 0; i < 10; i++) {
        assert_int_equal(link_queue_push(q, 0, data, 30), TD_OK);
    }
    for (int i = 1; i <= 8; i++) {
        assert_int_equal(emit(q, &s), i);
    }
    assert_int_equal(emit(q, &s), 0); /* eight frames */
    assert_true(link_queue_ack(q, 8));
    assert_int_equal(emit(q, &s), 9);
    link_queue_reset(q);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(link_queue_push(q, 0, data, 100), TD_OK);
    }
    for (int i = 1; i <= 4; i++) {
        assert_int_equal(emit(q, &s), i);
    }
    assert_int_equal(emit(q, &s), 0); /* 400 bytes */
}

static void big_messages_leave_a_quarter_of_the_window(void **state)
{
    struct link_queue *q = *state;
    struct link_slice s;
    assert_int_equal(link_queue_push(q, 0, data, 1000), TD_OK);
    assert_int_equal(emit(q, &s), 1);
    assert_int_equal(emit(q, &s), 2);
    assert_int_equal(emit(q, &s), 3);
    assert_int_equal(emit(q, &s), 0); /* 300 of 400 */
    assert_int_equal(link_queue_push(q, 0, data, 60), TD_OK);
    assert_int_equal(emit(q, &s), 4);
    assert_int_equal(s.lane, 0);
}

static void a_full_queue_refuses_and_keeps_what_it_has(void **state)
{
    struct link_queue *q = *state;
    assert_int_equal(link_queue_push(q, 0, data, 4001), TD_ERR_FULL);
    for (int i = 0; i < 16; i++) {
        assert_int_equal(link_queue_push(q, 0, data, 10), TD_OK);
    }
    assert_int_equal(link_queue_push(q, 0, data, 10), TD_ERR_FULL); /* sixteen messages */
    assert_int_equal(link_queue_push(q, 0, data, 3840), TD_OK);     /* the other lane */
    assert_int_equal(link_queue_push(q, 0, data, 1), TD_ERR_FULL);
    assert_int_equal(link_queue_bytes(q), 4000);
}

/* Random traffic against a plain model: per key order and content survive, whatever is big or
 * small. */
static void order_within_a_key_holds_for_any_mix(void **state)
{
    struct link_queue *q = *state;
    struct td_rng rng = {5};
    uint8_t next_in[4] = {0}, next_out[4] = {0}, m[400] = {0}, big[400] = {0};
    size_t big_len = 0;
    for (int round = 0; round < 20000; round++) {
        uint64_t key = 1 + td_rng_below(&rng, 3);
        size_t len = 2 + td_rng_below(&rng, td_rng_below(&rng, 4) == 0 ? 390 : 40);
        memset(m, next_in[key], len);
        m[0] = (uint8_t)key;
        if (link_queue_push(q, key, m, len) == TD_OK) {
            next_in[key]++;
        }
        struct link_slice s;
        uint64_t seq = td_rng_below(&rng, 2) == 0 ? emit(q, &s) : 0;
        if (seq != 0) {
            uint8_t *to = s.lane == TD_LINK_LANE_BIG ? big + (s.first ? 0 : big_len) : m;
            link_queue_copy(q, &s, to);
            big_len = s.lane == TD_LINK_LANE_BIG ? (s.first ? 0 : big_len) + s.len : big_len;
            const uint8_t *whole = s.lane == TD_LINK_LANE_BIG ? big : m;
            if (s.last) {
                uint8_t k = whole[0];
                assert_in_range(k, 1, 3);
                assert_int_equal(whole[1], next_out[k]);
                assert_int_equal(whole[s.total - 1], next_out[k]);
                next_out[k]++;
            }
            if (td_rng_below(&rng, 3) == 0) {
                assert_true(link_queue_ack(q, seq));
            }
        }
    }
    assert_true(next_out[1] != 0 || next_out[2] != 0);
}

static void a_failed_growth_is_an_error_and_nothing_is_lost(void **state)
{
    struct link_queue *q = *state;
    struct link_slice s;
    assert_int_equal(link_queue_push(q, 0, data, 10), TD_OK);
    td_mem_fail_nth(1);
    assert_int_equal(link_queue_push(q, 0, data, 3000),
                     TD_ERR_NO_MEMORY); /* the lane of big ones is still empty */
    td_mem_fail_nth(0);
    assert_int_equal(emit(q, &s), 1);
    assert_int_equal(emit(q, &s), 0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(frames_are_numbered_cut_and_freed_by_acknowledgements),
        T(a_rewind_sends_what_is_not_acknowledged_with_the_same_numbers),
        T(the_window_bounds_bytes_and_frames),
        T(big_messages_leave_a_quarter_of_the_window),
        T(a_full_queue_refuses_and_keeps_what_it_has),
        T(order_within_a_key_holds_for_any_mix),
        T(a_failed_growth_is_an_error_and_nothing_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
