/* tandem.v1.Admin on the admin port through the whole shell: a client of raw frames, a scripted node. */
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "tests/unit/io/h2_rig.h"
#include "tests/unit/router/rt_rig.h"

#define ADMIN(method)  "/tandem.v1.Admin/" method
#define ENGINE(method) "/tandem.v1.Engine/" method
#define BYTES(text)    (text), sizeof(text) - 1
#define NODE           "\x0a\3n\"1" /* field 1: the rig's node */
#define MAX_WATCHERS   256u
#define A_CONNECTION   64u /* streams */

static uint8_t body[65536];
static size_t n_body;
static struct h2_frame frame;

static struct h2_conn *start(struct rig *r)
{
    r->p.grpc = true;
    rig_start(r);
    struct h2_conn *c = h2_dial(r->loop, rt_shell_admin_port(r->shell));
    h2_hello(c);
    return c;
}

static const char *call(struct h2_conn *c, uint32_t stream, const char *path, const char *message,
                        size_t len)
{
    h2_request(c, stream, path, NULL, 0);
    h2_message(c, stream, message, len, H2_END_STREAM);
    n_body = h2_answer(c, stream, body, sizeof body);
    return h2_header(c, "grpc-status");
}

static bool told(const char *text)
{
    return memmem(body, n_body, text, strlen(text)) != NULL;
}

static void finish_one(struct rig *r, const char *id)
{
    struct rig_client c = {0};
    char extra[64];
    (void)snprintf(extra, sizeof extra, "x-request-id: %s\r\n", id);
    uint32_t n = r->n_works;
    rig_post(r, &c, "/v1/completions", "{\"prompt\":\"hi\"}", extra);
    struct rig_work *w = rig_work(r, n);
    rig_say(r, w, "ok");
    rig_finish(r, w);
    assert_int_equal(rig_answer(r, &c), 200);
    rig_hang_up(&c);
}

static void nodes_are_listed_with_their_identity_and_blocks(void **state)
{
    struct rig *r = *state;
    struct h2_conn *c = start(r);
    assert_string_equal(call(c, 1, ADMIN("ListNodes"), NULL, 0), "0");
    assert_true(told("n\"1") && told("000000000000d00d") && told("test"));
    assert_string_equal(call(c, 3, ADMIN("ListNodes"), BYTES("\xff")), "3");
    h2_hang_up(c);
}

static void the_public_port_does_not_have_it(void **state)
{
    struct rig *r = *state;
    struct h2_conn *c = start(r);
    struct h2_conn *public = h2_dial(r->loop, rt_shell_grpc_port(r->shell));
    h2_hello(public);
    assert_string_equal(call(public, 1, ADMIN("ListNodes"), NULL, 0), "12");
    assert_string_equal(call(c, 1, ENGINE("ListModels"), NULL, 0), "12");
    h2_hang_up(public);
    h2_hang_up(c);
}

static void a_drain_is_refused_when_it_makes_no_sense(void **state)
{
    struct rig *r = *state;
    struct h2_conn *c = start(r);
    static char why[400] = {0x0a, 1, 'n', 0x1a, (char)0x84, 3}; /* why: 388 bytes */
    memset(why + 6, 'w', 388);
    assert_string_equal(call(c, 1, ADMIN("Drain"), BYTES("\x0a\2no")), "5");
    assert_string_equal(call(c, 3, ADMIN("Drain"), BYTES("\xff")), "3");
    assert_string_equal(call(c, 5, ADMIN("Drain"), BYTES(NODE "\x10\xff\xff\xff\x7f")), "3");
    assert_string_equal(call(c, 7, ADMIN("Drain"), why, 6 + 388), "3");
    assert_string_equal(call(c, 9, ADMIN("Drain"), BYTES(NODE)), "0");
    h2_hang_up(c);
}

static void a_finished_request_is_explained_by_stages_and_candidates(void **state)
{
    struct rig *r = *state;
    static const char *const names[] = {"router_queue",     "prefill_queue", "prefill",
                                        "transfer_exposed", "decode_queue",  "decode"};
    struct h2_conn *c = start(r);
    finish_one(r, "e-1");
    assert_string_equal(call(c, 1, ADMIN("Explain"), BYTES("\x0a\3e-1")), "0");
    for (size_t i = 0; i < TD_COUNT(names); i++) {
        assert_true(told(names[i]));
    }
    assert_true(told("e-1") && told("n\"1"));
    assert_string_equal(call(c, 3, ADMIN("Explain"), BYTES("\x0a\2no")), "5");
    assert_string_equal(call(c, 5, ADMIN("Explain"), BYTES("\xff")), "3");
    h2_hang_up(c);
}

static void watch(struct h2_conn *c, uint32_t stream, const char *message, size_t len)
{
    h2_request(c, stream, ADMIN("WatchEvents"), NULL, 0);
    h2_message(c, stream, message, len, H2_END_STREAM);
    assert_true(h2_wait(c, H2_HEADERS, &frame) && frame.stream == stream);
}

static void watchers_hear_of_the_kinds_they_asked_for(void **state)
{
    struct rig *r = *state;
    struct h2_conn *c = start(r);
    watch(c, 1, BYTES("\x0a\x0anode.drain"));
    watch(c, 3, BYTES("\x0a\x09node.lost"));
    watch(c, 5, NULL, 0);
    struct h2_conn *other = h2_dial(r->loop, rt_shell_admin_port(r->shell));
    h2_hello(other);
    assert_string_equal(call(other, 1, ADMIN("Drain"), BYTES(NODE "\x1a\3why")), "0");
    uint32_t heard = 0;
    while (heard != (1u << 1 | 1u << 5)) {
        assert_true(h2_wait(c, H2_DATA, &frame) && frame.stream != 3);
        memcpy(body, frame.payload, frame.len);
        n_body = frame.len;
        heard |= told("node.drain") && told("why") ? 1u << frame.stream : 0;
    }
    h2_hang_up(other);
    h2_hang_up(c);
    rig_passes(r, 20);
    c = h2_dial(r->loop,
                rt_shell_admin_port(r->shell)); /* nobody listens any more: nothing breaks */
    h2_hello(c);
    assert_string_equal(call(c, 1, ADMIN("Drain"), BYTES(NODE)), "0");
    h2_hang_up(c);
}

static void kinds_that_are_never_told_and_too_many_are_refused(void **state)
{
    struct rig *r = *state;
    struct h2_conn *c = start(r);
    char many[9 * 9];
    for (size_t i = 0; i < 9; i++) {
        memcpy(many + i * 9, "\x0a\7node.up", 9);
    }
    assert_string_equal(call(c, 1, ADMIN("WatchEvents"), BYTES("\x0a\6node.x")), "3");
    assert_string_equal(call(c, 3, ADMIN("WatchEvents"), many, sizeof many), "3");
    assert_string_equal(call(c, 5, ADMIN("WatchEvents"), BYTES("\xff")), "3");
    watch(c, 7, many, sizeof many - 9);
    h2_hang_up(c);
}

static void there_are_so_many_watchers_and_each_that_leaves_makes_room(void **state)
{
    struct rig *r = *state;
    struct h2_conn *conns[MAX_WATCHERS / A_CONNECTION + 1] = {start(r)};
    static const uint8_t cancel[4] = {0, 0, 0, 8};
    for (size_t i = 1; i < TD_COUNT(conns); i++) {
        conns[i] = h2_dial(r->loop, rt_shell_admin_port(r->shell));
        h2_hello(conns[i]);
    }
    for (uint32_t i = 0; i < MAX_WATCHERS; i++) {
        watch(conns[i / A_CONNECTION], 2 * (i % A_CONNECTION) + 1, NULL, 0);
    }
    struct h2_conn *last = conns[TD_COUNT(conns) - 1];
    assert_string_equal(call(last, 1, ADMIN("WatchEvents"), NULL, 0), "8");
    h2_frame_out(conns[0], H2_RST, 0, 3, cancel, sizeof cancel);
    rig_passes(r, 20);
    watch(last, 3, NULL, 0);
    assert_string_equal(call(last, 5, ADMIN("WatchEvents"), NULL, 0), "8");
    for (size_t i = 0; i < TD_COUNT(conns); i++) {
        h2_hang_up(conns[i]);
    }
}

/* A window of nothing: what is told to it waits, up to a bound. */
static void a_watcher_that_does_not_read_is_cut(void **state)
{
    struct rig *r = *state;
    struct h2_conn *c = start(r);
    h2_setting(c, 4, 0);
    watch(c, 1, NULL, 0);
    struct h2_conn *other = h2_dial(r->loop, rt_shell_admin_port(r->shell));
    static const uint8_t wide[4] = {0x40, 0, 0, 0};
    h2_hello(other);
    h2_frame_out(other, H2_WINDOW, 0, 0, wide, sizeof wide); /* of the connection */
    static char ask[5 + 3 + 250] = NODE "\x1a\xfa\x01";      /* why: 250 bytes */
    memset(ask + 8, 'w', 250);
    for (uint32_t sent = 0, heard = 0; sent < 4000;) { /* 1.2 MB of events */
        for (uint32_t i = 0; i < A_CONNECTION / 2; i++, sent++) {
            h2_request(other, 2 * sent + 1, ADMIN("Drain"), NULL, 0);
            h2_message(other, 2 * sent + 1, ask, sizeof ask, H2_END_STREAM);
        }
        while (heard < sent) {
            assert_true(h2_next(other, &frame));
            heard += frame.type == H2_HEADERS && (frame.flags & H2_END_STREAM) != 0 ? 1 : 0;
        }
    }
    assert_true(h2_wait(c, H2_RST, &frame) && frame.stream == 1);
    h2_hang_up(other);
    h2_hang_up(c);
}

#define T(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(nodes_are_listed_with_their_identity_and_blocks),
        T(the_public_port_does_not_have_it),
        T(a_drain_is_refused_when_it_makes_no_sense),
        T(a_finished_request_is_explained_by_stages_and_candidates),
        T(watchers_hear_of_the_kinds_they_asked_for),
        T(kinds_that_are_never_told_and_too_many_are_refused),
        T(there_are_so_many_watchers_and_each_that_leaves_makes_room),
        T(a_watcher_that_does_not_read_is_cut),
    };
    return cmocka_run_group_tests_name("rt_grpc_admin", tests, NULL, NULL);
}
