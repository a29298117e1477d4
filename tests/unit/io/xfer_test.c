#include <dirent.h>
#include <malloc.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/mem.h"
#include "common/io/xfer_int.h"
#include "tests/unit/check.h"
#include "tests/unit/io/xfer_rig.h"

/* Both ends in one process; every test runs over shared memory and over TCP. */

#define P_EPOCH 0x1111u
#define D_EPOCH 0x2222u

static const struct rig_shape small = {.n_blocks = 64, .n_layers = 4, .slice_bytes = 4096};

struct pair {
    struct rig_node p, d;
};

/* *state names the transports. */
static void pair_up(struct pair *t, void **state, const struct rig_shape *shape)
{
    struct rig_shape s = *shape;
    s.transports = *state;
    td_fault_reset();
    rig_up(&t->p, P_EPOCH, &s);
    rig_up(&t->d, D_EPOCH, &s);
    rig_connect(&t->d, &t->p);
}

static void pair_down(struct pair *t)
{
    rig_down(&t->d);
    rig_down(&t->p);
    td_fault_reset();
}

static void a_pushed_chunk_lands_bit_exact_in_shuffled_blocks(void **state)
{
    static const struct {
        uint32_t slice_bytes, n_blocks;
    } sizes[] = {{4096, 1}, {4096, 3}, {12288, 32}, {65536, 17}, {1u << 20, 5}, {512, 200}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct rig_shape s = {
            .n_blocks = 256, .n_layers = 3, .slice_bytes = sizes[i].slice_bytes, .checksum = i % 2};
        struct pair t;
        struct rig_job j;
        s.n_blocks = sizes[i].slice_bytes > 65536 ? 16 : 256;
        pair_up(&t, state, &s);
        rig_job_make(&j, 9, sizes[i].n_blocks, &t.p, &t.d, i + 1);
        rig_offer(&t.d, &t.p, &j);
        rig_push(&t.p, &j, D_EPOCH, 0, j.n_blocks, 0, 0);
        const struct rig_event *e = rig_wait(&t.p, TD_XFER_PUSHED, j.push, 0);
        assert_non_null(e);
        assert_int_equal(e->ev.err, TD_OK);
        assert_int_equal(e->ev.n_bytes, (uint64_t)j.n_blocks * 3 * s.slice_bytes);
        assert_true(rig_wait_landed(&t.d, j.land, 3));
        assert_true(rig_landed_exact(&t.d, &j));
        pair_down(&t);
    }
}

static void pushed(struct pair *t, const struct rig_job *j, uint32_t chunk, td_err err,
                   uint32_t n_slices)
{
    const struct rig_event *e = rig_wait(&t->p, TD_XFER_PUSHED, j->push + chunk, 0);
    assert_non_null(e);
    assert_int_equal(e->ev.err, err);
    assert_int_equal(e->ev.n_bytes,
                     (uint64_t)n_slices * j->n_blocks * t->p.engine.info.layout.slice_bytes);
    assert_int_equal(rig_count(&t->p, TD_XFER_PUSHED, j->push + chunk), 1);
}

/* Both threads have done everything submitted so far: a message there and back. */
static void settle(struct pair *t)
{
    uint32_t from_d = t->d.n;
    uint32_t from_p = t->p.n;
    rig_send(&t->d, P_EPOCH, "ping", 4);
    assert_non_null(rig_wait(&t->p, TD_XFER_MSG, D_EPOCH, from_p));
    rig_send(&t->p, D_EPOCH, "pong", 4);
    assert_non_null(rig_wait(&t->d, TD_XFER_MSG, P_EPOCH, from_d));
    rig_take(&t->d);
}

static uint32_t landed_slices(const struct rig_node *d, uint64_t land)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->n; i++) {
        const struct td_xfer_event *e = &d->log[i].ev;
        n = e->type == TD_XFER_LANDED && e->land == land ? e->n_slices : n;
    }
    return n;
}

static void a_message_follows_the_slices_before_it(void **state)
{
    static const struct rig_shape big = {.n_blocks = 32, .n_layers = 6, .slice_bytes = 1u << 18};
    struct pair t;
    pair_up(&t, state, &big);
    for (uint32_t round = 0; round < 10; round++) {
        struct rig_job j;
        rig_job_make(&j, 20 + round, round % 2 ? 16 : 1, &t.p, &t.d, round);
        rig_offer(&t.d, &t.p, &j);
        uint32_t from = t.d.n;
        rig_push(&t.p, &j, D_EPOCH, 0, j.n_blocks, 0, 0);
        rig_send(&t.p, D_EPOCH, "record", 6);
        const struct rig_event *e = rig_wait(&t.d, TD_XFER_MSG, P_EPOCH, from);
        assert_non_null(e);
        t.d.n = (uint32_t)(e - t.d.log) + 1; /* what was said up to the message */
        assert_int_equal(landed_slices(&t.d, j.land), 6);
        assert_true(rig_landed_exact(&t.d, &j));
        pushed(&t, &j, 0, TD_OK, 6); /* only now P's blocks are free again */
    }
    pair_down(&t);
}

static void long_messages_arrive_whole_and_in_order(void **state)
{
    struct pair t;
    uint32_t n = 3u << 20;
    uint8_t *text = calloc(1, n);
    assert_non_null(text);
    pair_up(&t, state, &small);
    for (uint8_t i = 0; i < 8; i++) {
        text[0] = i;
        rig_send(&t.d, P_EPOCH, text, i % 2 ? n : 100); /* long and short take turns */
    }
    uint32_t from = 0;
    for (uint8_t i = 0; i < 8; i++) {
        const struct rig_event *e = rig_wait(&t.p, TD_XFER_MSG, D_EPOCH, from);
        assert_non_null(e);
        assert_int_equal(e->head[0], i);
        assert_int_equal(e->ev.n_bytes, i % 2 ? n : 100);
        from = (uint32_t)(e - t.p.log) + 1;
    }
    free(text);
    pair_down(&t);
}

static void layers_leave_when_the_engine_has_finished_them(void **state)
{
    struct pair t;
    struct rig_job j;
    pair_up(&t, state, &small);
    rig_job_make(&j, 3, 8, &t.p, &t.d, 1);
    rig_offer(&t.d, &t.p, &j);
    rig_push(&t.p, &j, D_EPOCH, 0, 8, 0, 1);
    for (uint32_t l = 1; l <= 4; l++) {
        settle(&t);
        assert_int_equal(landed_slices(&t.d, j.land), l - 1);
        fake_engine_set_layers(&t.p.engine, l);
        assert_true(rig_wait_landed(&t.d, j.land, l));
    }
    pushed(&t, &j, 0, TD_OK, 4);
    assert_true(rig_landed_exact(&t.d, &j));
    pair_down(&t);
}

static void a_waiting_push_holds_up_neither_messages_nor_other_pushes(void **state)
{
    struct pair t;
    struct rig_job waiting;
    struct rig_job ready;
    pair_up(&t, state, &small);
    rig_job_make(&waiting, 3, 8, &t.p, &t.d, 1);
    rig_job_make(&ready, 4, 8, &t.p, &t.d, 2);
    rig_offer(&t.d, &t.p, &waiting);
    rig_offer(&t.d, &t.p, &ready);
    rig_push(&t.p, &waiting, D_EPOCH, 0, 8, 0, 1);
    rig_push(&t.p, &ready, D_EPOCH, 0, 8, 0, 0);
    pushed(&t, &ready, 0, TD_OK, 4);
    settle(&t);
    assert_int_equal(landed_slices(&t.d, ready.land), 4);
    assert_int_equal(landed_slices(&t.d, waiting.land), 0);
    pair_down(&t);
}

static void chunks_of_one_land_fill_their_parts_of_the_table(void **state)
{
    struct pair t;
    struct rig_job j;
    pair_up(&t, state, &small);
    rig_job_make(&j, 3, 30, &t.p, &t.d, 1);
    rig_offer(&t.d, &t.p, &j);
    rig_push(&t.p, &j, D_EPOCH, 0, 16, 0, 0);
    rig_push(&t.p, &j, D_EPOCH, 16, 13, 1, 0);
    rig_push(&t.p, &j, D_EPOCH, 29, 1, 2, 0);
    assert_true(rig_wait_landed(&t.d, j.land, 12));
    assert_true(rig_landed_exact(&t.d, &j));
    pair_down(&t);
}

static void a_push_cancelled_at_any_layer_ends_once_and_posts_no_more(void **state)
{
    struct pair t;
    pair_up(&t, state, &small);
    for (uint32_t k = 0; k <= 4; k++) {
        struct rig_job j;
        fake_engine_set_layers(&t.p.engine, k);
        rig_job_make(&j, 30 + k, 8, &t.p, &t.d, k);
        rig_offer(&t.d, &t.p, &j);
        rig_push(&t.p, &j, D_EPOCH, 0, 8, 0, 1);
        if (k > 0) {
            assert_true(rig_wait_landed(&t.d, j.land, k));
        }
        if (k == 4) {
            pushed(&t, &j, 0, TD_OK, 4); /* too late to cancel */
        }
        struct td_xfer_cmd cancel = {.type = TD_XFER_PUSH_CANCEL, .push = j.push};
        rig_submit(&t.p, &cancel);
        rig_submit(&t.p, &cancel); /* twice is as good as once */
        if (k < 4) {
            pushed(&t, &j, 0, TD_ERR_CANCELLED, k);
        }
        fake_engine_set_layers(&t.p.engine, 4);
        settle(&t);
        assert_int_equal(landed_slices(&t.d, j.land), k);
        assert_int_equal(rig_count(&t.p, TD_XFER_PUSHED, j.push), 1);
    }
    pair_down(&t);
}

static void unland(struct rig_node *d, uint64_t land)
{
    struct td_xfer_cmd c = {.type = TD_XFER_UNLAND, .land = land};
    rig_submit(d, &c);
    assert_non_null(rig_wait(d, TD_XFER_UNLANDED, land, 0));
}

static void nothing_writes_a_block_after_unlanded(void **state)
{
    static const struct rig_shape big = {.n_blocks = 16, .n_layers = 8, .slice_bytes = 1u << 18};
    struct pair t;
    pair_up(&t, state, &big);
    for (uint32_t round = 0; round < 24; round++) {
        struct rig_job j;
        rig_job_make(&j, 40 + round, 12, &t.p, &t.d, round);
        rig_offer(&t.d, &t.p, &j);
        rig_push(&t.p, &j, D_EPOCH, 0, 12, 0, 0);
        if (round % 8 > 0) { /* rounds end at different layers */
            uint32_t from = 0;
            const struct rig_event *e;
            do {
                e = rig_wait(&t.d, TD_XFER_LANDED, j.land, from);
                assert_non_null(e);
                from = (uint32_t)(e - t.d.log) + 1;
            } while (e->ev.n_slices < round % 8);
        }
        unland(&t.d, j.land);
        fake_engine_poison(&t.d.engine, 0xA5);
        assert_non_null(rig_wait(&t.p, TD_XFER_PUSHED, j.push, 0));
        settle(&t);
        for (uint32_t b = 0; b < 16; b++) {
            assert_true(fake_engine_is_poison(&t.d.engine, b, 0xA5));
        }
        assert_int_equal(rig_count(&t.d, TD_XFER_UNLANDED, j.land), 1);
    }
    pair_down(&t);
}

static void unland_of_an_unknown_land_is_answered_at_once(void **state)
{
    struct pair t;
    pair_up(&t, state, &small);
    unland(&t.d, 999);
    pair_down(&t);
}

static void slices_for_an_unknown_land_are_dropped_and_counted(void **state)
{
    struct pair t;
    struct rig_job j;
    struct td_xfer_stats s;
    pair_up(&t, state, &small);
    rig_job_make(&j, 3, 8, &t.p, &t.d, 1);
    rig_offer(&t.d, &t.p, &j);
    j.land = 12345;
    rig_push(&t.p, &j, D_EPOCH, 0, 8, 0, 0);
    pushed(&t, &j, 0, TD_OK, 4);
    settle(&t);
    td_xfer_stats_get(t.d.x, &s);
    assert_int_equal(s.dropped, 4);
    assert_int_equal(s.slices_in, 0);
    pair_down(&t);
}

enum wrong { WRONG_LAYOUT, WRONG_ATTEMPT, WRONG_COUNTER, WRONG_GENERATION, WRONG_RANGE, WRONGS };

static void a_slice_that_does_not_fit_its_land_is_refused(void **state)
{
    static const td_err expected[WRONGS] = {TD_ERR_KV_MISMATCH, TD_ERR_STALE, TD_ERR_STALE,
                                            TD_ERR_STALE, TD_ERR_KV_MISMATCH};
    struct pair t;
    pair_up(&t, state, &small);
    for (uint32_t w = 0; w < WRONGS; w++) {
        struct rig_job j;
        rig_job_make(&j, 50 + w, 8, &t.p, &t.d, w);
        rig_offer(&t.d, &t.p, &j);
        fake_engine_poison(&t.d.engine, 0x5A);
        uint32_t first = w == WRONG_RANGE ? 5 : 0;
        j.layout += w == WRONG_LAYOUT;
        j.id.attempt += w == WRONG_ATTEMPT;
        j.id.counter += w == WRONG_COUNTER;
        j.table[0].generation += w == WRONG_GENERATION;
        struct td_xfer_cmd c = {.type = TD_XFER_PUSH,
                                .epoch = D_EPOCH,
                                .land = j.land,
                                .push = j.push,
                                .id = j.id,
                                .layout_id = j.layout,
                                .blocks = j.table,
                                .src = j.src,
                                .n_blocks = 8,
                                .first_block = first,
                                .n_layers = 4};
        rig_submit(&t.p, &c);
        const struct rig_event *e = rig_wait(&t.d, TD_XFER_LAND_BAD, j.land, 0);
        assert_non_null(e);
        assert_int_equal(e->ev.err, expected[w]);
        settle(&t);
        assert_int_equal(landed_slices(&t.d, j.land), 0);
        for (uint32_t b = 0; b < 64; b++) {
            assert_true(fake_engine_is_poison(&t.d.engine, b, 0x5A));
        }
    }
    pair_down(&t);
}

static void every_field_of_a_header_is_verified(void **state)
{
    struct td_block_ref table[4] = {{7, 1}, {8, 2}, {9, 3}, {1, 4}};
    struct xf_land land = {.cmd = {.c = {.land = 1,
                                         .layout_id = 9,
                                         .id = {1, 2, 3, 4},
                                         .blocks = table,
                                         .n_blocks = 4,
                                         .n_layers = 2}}};
    const struct td_slice_header good = {.layout_id = 9,
                                         .id = {1, 2, 3, 4},
                                         .layer = 1,
                                         .generation = 2,
                                         .first_block = 1,
                                         .n_blocks = 3,
                                         .bytes = 300};
    struct td_slice_header h = good;
    (void)state;
    assert_int_equal(td__xf_land_verify(&land, &h, 300, 100), TD_OK);
#define BAD(field, value, err)                                                                     \
    h = good;                                                                                      \
    h.field = (value);                                                                             \
    assert_int_equal(td__xf_land_verify(&land, &h, 300, 100), err)
    BAD(layout_id, 8, TD_ERR_KV_MISMATCH);
    BAD(layer, 2, TD_ERR_KV_MISMATCH);
    BAD(layer, UINT32_MAX, TD_ERR_KV_MISMATCH);
    BAD(id.router_epoch, 0, TD_ERR_STALE);
    BAD(id.counter, 0, TD_ERR_STALE);
    BAD(id.attempt, 0, TD_ERR_STALE);
    BAD(id.choice, 0, TD_ERR_STALE);
    BAD(generation, 3, TD_ERR_STALE);
    BAD(first_block, 2, TD_ERR_KV_MISMATCH);
    BAD(first_block, UINT32_MAX, TD_ERR_KV_MISMATCH);
    BAD(n_blocks, 0, TD_ERR_KV_MISMATCH);
    BAD(n_blocks, 4, TD_ERR_KV_MISMATCH);
    BAD(n_blocks, UINT32_MAX, TD_ERR_KV_MISMATCH);
    BAD(bytes, 299, TD_ERR_KV_MISMATCH);
    BAD(bytes, 301, TD_ERR_KV_MISMATCH);
#undef BAD
    h = good;
    assert_int_equal(td__xf_land_verify(&land, &h, 299, 100), TD_ERR_KV_MISMATCH);
    assert_int_equal(td__xf_land_verify(&land, &h, 0, 100), TD_ERR_KV_MISMATCH);
}

static void any_bit_of_a_header_that_flips_is_noticed(void **state)
{
    struct td_slice_header h = {.magic = TD_SLICE_MAGIC, .land = 3, .bytes = 99};
    (void)state;
    h.header_sum = td_slice_header_sum(&h);
    for (size_t bit = 0; bit < sizeof h * 8; bit++) {
        struct td_slice_header c = h;
        ((uint8_t *)&c)[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_true(c.header_sum != td_slice_header_sum(&c));
    }
}

static void flips_are_noticed(void **state)
{
    static const char *const points[] = {"kv.header.flip=flip:times=1", "kv.byte.flip=flip:times=1",
                                         "kv.byte.flip=flip:after=3:times=1"};
    static const uint32_t sizes[] = {512, 1u << 18};
    for (size_t s = 0; s < 2; s++) {
        struct rig_shape shape = {
            .n_blocks = 16, .n_layers = 4, .slice_bytes = sizes[s], .checksum = true};
        struct pair t;
        pair_up(&t, state, &shape);
        for (uint32_t i = 0; i < 3; i++) {
            struct rig_job j;
            rig_job_make(&j, 60 + i, 8, &t.p, &t.d, i);
            rig_offer(&t.d, &t.p, &j);
            assert_int_equal(td_fault_configure(points[i]), TD_OK);
            rig_push(&t.p, &j, D_EPOCH, 0, 8, 0, 0);
            const struct rig_event *e = rig_wait(&t.d, TD_XFER_LAND_BAD, j.land, 0);
            assert_non_null(e);
            assert_int_equal(e->ev.err, TD_ERR_KV_MISMATCH);
            pushed(&t, &j, 0, TD_OK, 4);
            settle(&t);
            assert_int_equal(landed_slices(&t.d, j.land), 3);
            td_fault_reset();
        }
        pair_down(&t);
    }
}

static void a_post_that_fails_ends_its_push_and_no_other(void **state)
{
    struct pair t;
    struct rig_job j;
    struct rig_job other;
    pair_up(&t, state, &small);
    rig_job_make(&j, 3, 8, &t.p, &t.d, 1);
    rig_job_make(&other, 4, 8, &t.p, &t.d, 2);
    rig_offer(&t.d, &t.p, &j);
    rig_offer(&t.d, &t.p, &other);
    assert_int_equal(td_fault_configure("xfer.post.fail=fail:after=2:times=1"), TD_OK);
    rig_push(&t.p, &j, D_EPOCH, 0, 8, 0, 0);
    pushed(&t, &j, 0, TD_ERR_TRANSPORT, 2);
    rig_push(&t.p, &other, D_EPOCH, 0, 8, 0, 0);
    pushed(&t, &other, 0, TD_OK, 4);
    settle(&t);
    assert_int_equal(rig_count(&t.p, TD_XFER_PEER_LOST, 0), 0);
    pair_down(&t);
}

static void at_end_nothing_leaves_before_the_last_layer(void **state)
{
    struct pair t;
    struct rig_job j;
    pair_up(&t, state, &small);
    rig_job_make(&j, 3, 8, &t.p, &t.d, 1);
    rig_offer(&t.d, &t.p, &j);
    assert_int_equal(td_fault_configure("xfer.at.end=on"), TD_OK);
    fake_engine_set_layers(&t.p.engine, 3);
    rig_push(&t.p, &j, D_EPOCH, 0, 8, 0, 1);
    settle(&t);
    assert_int_equal(landed_slices(&t.d, j.land), 0);
    fake_engine_set_layers(&t.p.engine, 4);
    assert_true(rig_wait_landed(&t.d, j.land, 4));
    pair_down(&t);
}

static void a_slow_link_delays_its_slices_and_not_other_peers(void **state)
{
    struct rig_shape s = small;
    struct rig_node other;
    struct pair t;
    struct rig_job slow;
    struct rig_job fast;
    pair_up(&t, state, &small);
    s.transports = *state;
    rig_up(&other, 0x3333, &s);
    rig_connect(&other, &t.p);
    rig_job_make(&slow, 3, 8, &t.p, &t.d, 1);
    rig_job_make(&fast, 4, 8, &t.p, &other, 2);
    rig_offer(&t.d, &t.p, &slow);
    rig_offer(&other, &t.p, &fast);
    /* The first push draws a delay longer than any test; the later ones none. */
    assert_int_equal(td_fault_configure("xfer.slice.delay=delay:us=3600000000:times=1"), TD_OK);
    rig_push(&t.p, &slow, D_EPOCH, 0, 8, 0, 0);
    while (td_fault_hits(TD_FAULT_XFER_SLICE_DELAY_ID) == 0) {
        (void)sched_yield(); /* until it is the slow one that drew it */
    }
    rig_push(&t.p, &fast, 0x3333, 0, 8, 0, 0);
    assert_true(rig_wait_landed(&other, fast.land, 4));
    assert_int_equal(landed_slices(&t.d, slow.land), 0);
    rig_down(&other);
    pair_down(&t);
}

static void a_delayed_record_waits_and_other_messages_do_not(void **state)
{
    struct pair t;
    struct rig_job j;
    pair_up(&t, state, &small);
    rig_job_make(&j, 3, 8, &t.p, &t.d, 1);
    rig_offer(&t.d, &t.p, &j);
    assert_int_equal(td_fault_configure("xfer.done.delay=delay:us=3600000000"), TD_OK);
    rig_send(&t.p, D_EPOCH, "first", 5); /* nothing before it */
    assert_non_null(rig_wait(&t.d, TD_XFER_MSG, P_EPOCH, 0));
    rig_push(&t.p, &j, D_EPOCH, 0, 8, 0, 0);
    rig_send(&t.p, D_EPOCH, "record", 6);
    assert_true(rig_wait_landed(&t.d, j.land, 4));
    rig_send(&t.d, P_EPOCH, "ping", 4);
    assert_non_null(rig_wait(&t.p, TD_XFER_MSG, D_EPOCH, t.p.n));
    rig_take(&t.d);
    assert_int_equal(rig_count(&t.d, TD_XFER_MSG, P_EPOCH), 1);
    pair_down(&t);
}

/* The receiving loop takes nothing: its memory must not grow without bound, and nothing may be lost. */
static void a_loop_that_does_not_poll_is_waited_for(void **state)
{
    enum { MESSAGES = 60, BYTES = 4 << 20 };
    struct pair t;
    struct td_xfer_event ev;
    uint8_t *text = calloc(1, BYTES);
    uint32_t got = 0;
    uint64_t waiting = 0;
    assert_non_null(text);
    pair_up(&t, state, &small);
    for (int i = 0; i < MESSAGES; i++) {
        text[0] = (uint8_t)i;
        rig_send(&t.d, P_EPOCH, text, BYTES);
    }
    /* Full when two looks in a row find the same. */
    for (uint64_t before = UINT64_MAX; waiting == 0 || waiting != before;) {
        struct pollfd none = {.fd = -1};
        before = waiting;
        (void)poll(&none, 1, 300);
        waiting = __atomic_load_n(&t.p.x->msg_bytes, __ATOMIC_RELAXED);
    }
    assert_true(waiting < (uint64_t)MESSAGES * BYTES);
    assert_true(waiting <= XF_MAX_MSG_BYTES + 8ull * BYTES); /* what one turn may add */
    int64_t until = td_now_us() + RIG_LIMIT_US;
    while (got < MESSAGES && td_now_us() < until) {
        if (td_xfer_poll(t.p.x, &ev) && ev.type == TD_XFER_MSG) {
            assert_int_equal(ev.n_bytes, BYTES);
            assert_int_equal(ev.bytes[0], got);
            got++;
        }
    }
    assert_int_equal(got, MESSAGES);
    free(text);
    pair_down(&t);
}

static void a_full_command_ring_refuses_and_loses_nothing(void **state)
{
    struct pair t;
    uint32_t sent = 0;
    uint32_t got = 0;
    struct td_xfer_event ev;
    td_err e;
    pair_up(&t, state, &small);
    do { /* each is answered by an event; nobody takes them, so that the thread stops taking commands */
        struct td_xfer_cmd c = {.type = TD_XFER_UNLAND, .land = sent + 1};
        e = td_xfer_submit(t.d.x, &c);
        sent += e == TD_OK;
        assert_true(sent < 4 * (XF_RING_COMMANDS + XF_RING_EVENTS + XF_MAX_BACKLOG));
    } while (e == TD_OK);
    assert_int_equal(e, TD_ERR_FULL);
    int64_t until = td_now_us() + RIG_LIMIT_US;
    while (got < sent && td_now_us() < until) {
        if (td_xfer_poll(t.d.x, &ev)) {
            assert_int_equal(ev.type, TD_XFER_UNLANDED);
            assert_int_equal(ev.land, got + 1); /* in order */
            got++;
        }
    }
    assert_int_equal(got, sent);
    pair_down(&t);
}

static void lands_and_pushes_beyond_their_maximum_are_refused(void **state)
{
    struct pair t;
    struct rig_job j;
    pair_up(&t, state, &small);
    rig_job_make(&j, 1, 1, &t.p, &t.d, 1);
    rig_offer(&t.d, &t.p, &j);
    for (uint64_t i = 2; i <= TD_XFER_MAX_LANDS; i++) {
        j.land = i;
        rig_land(&t.d, &j, P_EPOCH);
    }
    settle(&t);
    assert_int_equal(rig_count(&t.d, TD_XFER_LAND_BAD, 0), 0);
    j.land = TD_XFER_MAX_LANDS + 1;
    rig_land(&t.d, &j, P_EPOCH);
    const struct rig_event *e = rig_wait(&t.d, TD_XFER_LAND_BAD, j.land, 0);
    assert_non_null(e);
    assert_int_equal(e->ev.err, TD_ERR_FULL);
    j.land = 5;
    rig_land(&t.d, &j, P_EPOCH); /* a handle that is in use */
    e = rig_wait(&t.d, TD_XFER_LAND_BAD, 5, 0);
    assert_non_null(e);
    assert_int_equal(e->ev.err, TD_ERR_BAD_REQUEST);

    for (uint64_t i = 0; i < TD_XFER_MAX_PUSHES; i++) {
        j.push = 100 + i;
        rig_push(&t.p, &j, D_EPOCH, 0, 1, 0, 1); /* they wait for the engine */
    }
    settle(&t);
    assert_int_equal(rig_count(&t.p, TD_XFER_PUSHED, 0), 0);
    j.push = 100 + TD_XFER_MAX_PUSHES;
    rig_push(&t.p, &j, D_EPOCH, 0, 1, 0, 1);
    e = rig_wait(&t.p, TD_XFER_PUSHED, j.push, 0);
    assert_non_null(e);
    assert_int_equal(e->ev.err, TD_ERR_FULL);
    pair_down(&t);
}

static void close_fences_and_the_other_side_hears_of_it(void **state)
{
    struct pair t;
    struct rig_job j;
    struct td_xfer_cmd c = {.type = TD_XFER_CLOSE, .epoch = P_EPOCH};
    pair_up(&t, state, &small);
    rig_job_make(&j, 3, 8, &t.p, &t.d, 1);
    rig_offer(&t.d, &t.p, &j);
    rig_push(&t.p, &j, D_EPOCH, 0, 8, 0, 1); /* waits for the engine */
    rig_submit(&t.d, &c);
    assert_non_null(rig_wait(&t.d, TD_XFER_CLOSED, P_EPOCH, 0));
    assert_non_null(rig_wait(&t.p, TD_XFER_PEER_LOST, D_EPOCH, 0));
    pushed(&t, &j, 0, TD_ERR_PEER_LOST, 0);
    unland(&t.d, j.land);
    rig_submit(&t.d, &c); /* again: nothing to close */
    assert_non_null(rig_wait(&t.d, TD_XFER_CLOSED, P_EPOCH, t.d.n));
    assert_int_equal(rig_count(&t.d, TD_XFER_PEER_LOST, 0), 0);
    pair_down(&t);
}

static void a_closed_peer_can_be_dialed_again(void **state)
{
    struct pair t;
    pair_up(&t, state, &small);
    for (uint32_t i = 0; i < 10; i++) {
        struct rig_job j;
        struct td_xfer_cmd c = {.type = TD_XFER_CLOSE, .epoch = P_EPOCH};
        uint32_t from = t.d.n;
        rig_job_make(&j, 3 + i, 8, &t.p, &t.d, 1);
        rig_offer(&t.d, &t.p, &j);
        rig_push(&t.p, &j, D_EPOCH, 0, 8, 0, 0);
        assert_true(rig_wait_landed(&t.d, j.land, 4));
        pushed(&t, &j, 0, TD_OK, 4);
        rig_submit(&t.d, &c);
        assert_non_null(rig_wait(&t.d, TD_XFER_CLOSED, P_EPOCH, from));
        rig_connect(&t.d, &t.p);
    }
    pair_down(&t);
}

static void dialing_twice_is_dialing_once(void **state)
{
    struct pair t;
    struct td_xfer_stats s;
    pair_up(&t, state, &small);
    rig_connect(&t.d, &t.p);
    rig_connect(&t.d, &t.p);
    settle(&t);
    td_xfer_stats_get(t.d.x, &s);
    assert_int_equal(s.connects, 1);
    assert_int_equal(s.peers, 1);
    pair_down(&t);
}

static void a_hello_for_another_epoch_is_refused_and_said(void **state)
{
    struct pair t;
    struct td_xfer_stats s;
    struct td_xfer_cmd c = {.type = TD_XFER_CONNECT, .epoch = 0x9999};
    pair_up(&t, state, &small);
    settle(&t);
    td_xfer_address(t.p.x, &c.bytes,
                    &c.n_bytes); /* an address that a restarted process took over */
    struct rig_shape shape = small;
    struct rig_node late;
    shape.transports = *state;
    rig_up(&late, 0x3333, &shape);
    rig_submit(&late, &c);
    assert_non_null(rig_wait(&late, TD_XFER_PEER_LOST, 0x9999, 0));
    td_xfer_stats_get(t.p.x, &s);
    assert_int_equal(s.stale, 1);
    settle(&t);
    td_xfer_stats_get(t.p.x, &s);
    assert_int_equal(s.peers, 1);
    rig_down(&late);
    pair_down(&t);
}

static void a_peer_that_has_gone_before_it_is_dialed_is_lost(void **state)
{
    struct pair t;
    uint8_t addr[TD_UCX_MAX_ADDRESS];
    const uint8_t *a;
    struct td_xfer_cmd c = {.type = TD_XFER_CONNECT, .epoch = 0x4444, .bytes = addr};
    struct rig_shape s = small;
    struct rig_node gone;
    s.transports = *state;
    pair_up(&t, state, &small);
    rig_up(&gone, 0x4444, &s);
    td_xfer_address(gone.x, &a, &c.n_bytes);
    memcpy(addr, a, c.n_bytes);
    rig_down(&gone);
    rig_submit(&t.d, &c);
    rig_send(&t.d, 0x4444, "table", 5);
    assert_non_null(rig_wait(&t.d, TD_XFER_PEER_LOST, 0x4444, 0));
    settle(&t); /* the others are none the worse */
    pair_down(&t);
}

static void garbage_for_an_address_is_refused(void **state)
{
    struct pair t;
    uint8_t bytes[4096];
    size_t n;
    const uint8_t *good;
    pair_up(&t, state, &small);
    td_xfer_address(t.p.x, &good, &n);
    for (uint64_t i = 0; i < 8; i++) {
        struct td_xfer_cmd c = {
            .type = TD_XFER_CONNECT, .epoch = 0x100 + i, .bytes = bytes, .n_bytes = n};
        memset(bytes, 0xFF, sizeof bytes);
        if (i > 0) { /* a good one with one byte changed, or cut, or too long */
            memcpy(bytes, good, n);
            bytes[i * n / 8] ^= 1;
        }
        c.n_bytes = i == 6 ? n - 1 : i == 7 ? sizeof bytes : n;
        rig_submit(&t.d, &c);
        const struct rig_event *e = rig_wait(&t.d, TD_XFER_PEER_LOST, c.epoch, 0);
        assert_non_null(e);
        assert_int_equal(e->ev.err, TD_ERR_ADDRESS);
    }
    settle(&t);
    pair_down(&t);
}

static void work_for_an_unknown_peer_ends_at_once(void **state)
{
    struct pair t;
    struct rig_job j;
    pair_up(&t, state, &small);
    rig_job_make(&j, 3, 8, &t.p, &t.d, 1);
    rig_push(&t.p, &j, 0x777, 0, 8, 0, 0);
    pushed(&t, &j, 0, TD_ERR_PEER_LOST, 0);
    rig_send(&t.p, 0x777, "x", 1);
    assert_non_null(rig_wait(&t.p, TD_XFER_PEER_LOST, 0x777, 0));
    pair_down(&t);
}

static void commands_out_of_range_are_refused(void **state)
{
    struct pair t;
    struct rig_job j;
    pair_up(&t, state, &small);
    rig_job_make(&j, 3, 8, &t.p, &t.d, 1);
    struct td_xfer_cmd c = {.type = TD_XFER_LAND,
                            .epoch = P_EPOCH,
                            .land = 1,
                            .blocks = j.table,
                            .n_blocks = 8,
                            .n_layers = 4};
    struct td_xfer_cmd b = c;
    b.land = 0;
    assert_int_equal(td_xfer_submit(t.d.x, &b), TD_ERR_BAD_REQUEST);
    b = c;
    b.n_blocks = 0;
    assert_int_equal(td_xfer_submit(t.d.x, &b), TD_ERR_BAD_REQUEST);
    b = c;
    b.n_layers = 5;
    assert_int_equal(td_xfer_submit(t.d.x, &b), TD_ERR_BAD_REQUEST);
    b = c;
    j.table[3].index = 64;
    assert_int_equal(td_xfer_submit(t.d.x, &b), TD_ERR_BAD_REQUEST);
    b = (struct td_xfer_cmd){.type = TD_XFER_SEND, .epoch = P_EPOCH, .bytes = (const uint8_t *)"x"};
    assert_int_equal(td_xfer_submit(t.d.x, &b), TD_ERR_BAD_REQUEST);
    b.n_bytes = TD_XFER_MAX_MSG + 1;
    assert_int_equal(td_xfer_submit(t.d.x, &b), TD_ERR_BAD_REQUEST);
    pair_down(&t);
}

static void the_transport_in_use_has_a_name(void **state)
{
    struct pair t;
    struct rig_job j;
    const char *list = *state;
    const char *name = strcmp(list, "tcp") == 0 ? "tcp" : strcmp(list, "sm") == 0 ? "shm" : "cma";
    pair_up(&t, state, &small);
    assert_string_equal(td_xfer_transport(t.d.x, 0x7777), "");
    rig_job_make(&j, 3, 8, &t.p, &t.d, 1);
    rig_offer(&t.d, &t.p, &j);
    rig_push(&t.p, &j, D_EPOCH, 0, 8, 0, 0);
    assert_true(rig_wait_landed(&t.d, j.land, 4));
    assert_string_equal(rig_wait(&t.d, TD_XFER_LANDED, j.land, 0)->ev.transport, name);
    assert_string_equal(rig_wait(&t.p, TD_XFER_PUSHED, j.push, 0)->ev.transport, name);
    assert_string_equal(td_xfer_transport(t.d.x, P_EPOCH), name);
    assert_string_equal(td_xfer_transport(t.p.x, D_EPOCH), name);
    pair_down(&t);
}

static size_t open_fds(void)
{
    size_t n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d) != NULL) {
        n++;
    }
    closedir(d);
    return n;
}

static void two_hundred_reconnects_leak_nothing(void **state)
{
    struct pair t;
    struct rig_shape s = small;
    struct td_xfer_stats stats;
    size_t fds = 0;
    size_t bytes = 0;
    s.transports = *state;
    pair_up(&t, state, &small);
    settle(&t);
    for (uint64_t i = 0; i < 200; i++) {
        struct rig_node d;
        struct rig_job j;
        rig_up(&d, 0x5000 + i, &s);
        rig_connect(&d, &t.p);
        rig_job_make(&j, 3, 8, &t.p, &d, i);
        rig_offer(&d, &t.p, &j);
        rig_push(&t.p, &j, d.epoch, 0, 8, 0, i % 3 == 0); /* a third ends in the middle */
        if (i % 3 != 0) {
            assert_true(rig_wait_landed(&d, j.land, 4));
        }
        rig_down(&d);
        assert_non_null(rig_wait(&t.p, TD_XFER_PEER_LOST, d.epoch, 0));
        t.p.n = 0;
        if (i == 50) {
            fds = open_fds();
            bytes = mallinfo2().uordblks;
        }
    }
    td_xfer_stats_get(t.p.x, &stats);
    assert_int_equal(stats.peers, 1);
    assert_int_equal(stats.pushes, 0);
    assert_int_equal(stats.registrations, 1);
    assert_true(open_fds() <= fds + 4); /* the last connection may be closing */
    print_message("# heap grew by %zd bytes in 149 reconnects\n",
                  (ssize_t)(mallinfo2().uordblks - bytes));
    assert_true(mallinfo2().uordblks < bytes + 149 * 512);
    settle(&t);
    pair_down(&t);
}

static void creation_survives_every_failed_allocation(void **state)
{
    struct fake_engine e;
    (void)state;
    assert_true(fake_engine_init(&e, 4, 2, 512));
    struct td_xfer_params p = {.epoch = 1, .engine = &e.base, .device = "lo", .transports = "sm"};
    struct td_xfer *x = NULL;
    td_err err;
    unsigned n = 0;
    do {
        td_mem_fail_nth(++n);
        err = td_xfer_create(&p, &x);
        assert_true(err == TD_OK || err == TD_ERR_NO_MEMORY);
    } while (err != TD_OK);
    td_mem_fail_nth(0);
    assert_true(n > 5);
    (void)td_xfer_destroy(x);
    fake_engine_fini(&e);
}

/* Every test, over each transport. */
#define OVER(test)                                                                                 \
    {#test "_over_shm", test, NULL, NULL, (void *)(uintptr_t) "sm"},                               \
        {#test "_over_cma", test, NULL, NULL, (void *)(uintptr_t) "sm,cma"},                       \
    {                                                                                              \
#test "_over_tcp", test, NULL, NULL, (void *)(uintptr_t) "tcp"                             \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        OVER(a_pushed_chunk_lands_bit_exact_in_shuffled_blocks),
        OVER(a_message_follows_the_slices_before_it),
        OVER(long_messages_arrive_whole_and_in_order),
        OVER(layers_leave_when_the_engine_has_finished_them),
        OVER(a_waiting_push_holds_up_neither_messages_nor_other_pushes),
        OVER(chunks_of_one_land_fill_their_parts_of_the_table),
        OVER(a_push_cancelled_at_any_layer_ends_once_and_posts_no_more),
        OVER(nothing_writes_a_block_after_unlanded),
        cmocka_unit_test_prestate(unland_of_an_unknown_land_is_answered_at_once,
                                  (void *)(uintptr_t) "sm"),
        OVER(slices_for_an_unknown_land_are_dropped_and_counted),
        OVER(a_slice_that_does_not_fit_its_land_is_refused),
        cmocka_unit_test(every_field_of_a_header_is_verified),
        cmocka_unit_test(any_bit_of_a_header_that_flips_is_noticed),
        OVER(flips_are_noticed),
        OVER(a_post_that_fails_ends_its_push_and_no_other),
        OVER(at_end_nothing_leaves_before_the_last_layer),
        OVER(a_slow_link_delays_its_slices_and_not_other_peers),
        OVER(a_delayed_record_waits_and_other_messages_do_not),
        OVER(a_loop_that_does_not_poll_is_waited_for),
        cmocka_unit_test_prestate(a_full_command_ring_refuses_and_loses_nothing,
                                  (void *)(uintptr_t) "sm"),
        cmocka_unit_test_prestate(lands_and_pushes_beyond_their_maximum_are_refused,
                                  (void *)(uintptr_t) "sm"),
        OVER(close_fences_and_the_other_side_hears_of_it),
        OVER(a_closed_peer_can_be_dialed_again),
        OVER(dialing_twice_is_dialing_once),
        OVER(a_hello_for_another_epoch_is_refused_and_said),
        OVER(a_peer_that_has_gone_before_it_is_dialed_is_lost),
        OVER(garbage_for_an_address_is_refused),
        OVER(work_for_an_unknown_peer_ends_at_once),
        cmocka_unit_test_prestate(commands_out_of_range_are_refused, (void *)(uintptr_t) "sm"),
        OVER(the_transport_in_use_has_a_name),
        OVER(two_hundred_reconnects_leak_nothing),
        cmocka_unit_test(creation_survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
