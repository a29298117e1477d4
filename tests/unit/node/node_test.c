/* The node shell around a scripted role: what routers and operators see of it. */
#include "common/node/node.h"

#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "tests/unit/node/shell_rig.h"

static const int32_t prompt[3] = {1, 2, 3};

static struct td_wire_msg reserve(const struct fake_router *x)
{
    struct td_wire_msg m = {.type = TD_WIRE_RESERVE};
    m.reserve = (struct td_wire_reserve){
        .r = {.id = {.router_epoch = x->epoch, .counter = 1},
              .budget_ms = 1000,
              .tenant = "t",
              .traceparent = "",
              .request_id = "r",
              .adapter = "",
              .prompt = prompt,
              .n_prompt = 3,
              .sampling = {.max_tokens = 4, .top_p = 1, .repetition_penalty = 1}},
        .mode = TD_RESERVE_LOCAL,
        .prefill_node = ""};
    return m;
}

static void a_router_learns_who_the_node_is_and_its_whole_state(void **state)
{
    struct shell_rig *r = *state;
    struct fake_router *x = &r->routers[0];
    shell_start(r);
    shell_attach(r, 0);
    shell_reaches(r, &x->n_states, 1, "the first state");
    assert_string_equal(x->name, "d0");
    assert_int_equal(x->info.role, TD_ROLE_DECODE);
    assert_int_equal(x->info.n_blocks, 64);
    assert_int_equal(x->info.max_seqs, 8);
    assert_int_equal(x->info.layout.block_tok, 16);
    assert_memory_equal(x->info.model_id, r->model->id, 32);
    char admin[64];
    (void)snprintf(admin, sizeof admin, "http://127.0.0.1:%u", td_node_admin_port(r->node));
    assert_string_equal(x->admin, admin);
    assert_true(x->state.full && x->state.ready && !x->state.draining);
    assert_int_equal(x->state.seq, 1);
    assert_int_equal(x->state.blocks[TD_BLK_FREE], 60);
    assert_int_equal(fake_role.events[ND_EV_ROUTER_UP], 1);
    assert_int_equal(fake_role.last_router, x->epoch);
}

static bool has_queue(void *arg)
{
    return ((struct fake_router *)arg)->state.queued_requests == 9;
}

static void a_changed_state_is_published_with_the_next_number(void **state)
{
    struct shell_rig *r = *state;
    struct fake_router *x = &r->routers[0];
    shell_start(r);
    shell_attach(r, 0);
    shell_reaches(r, &x->n_states, 1, "the first state");
    fake_role.state.queued_requests = 9;
    struct td_wire_msg m = reserve(x);
    shell_send(x, &m);
    shell_until(r, has_queue, x, "the new state");
    assert_true(x->states_in_order && !x->state.full);
    uint32_t before = x->n_states;
    shell_reaches(r, &x->n_states, before + 1,
                  "the state of an idle node"); /* at least each second */
    assert_true(x->states_in_order);
}

static bool is_full(void *arg)
{
    const struct fake_router *x = arg;
    return x->state.full && x->state.seq > 1;
}

static void a_router_that_asks_gets_a_full_state(void **state)
{
    struct shell_rig *r = *state;
    struct fake_router *x = &r->routers[0];
    struct td_wire_msg ask = {.type = TD_WIRE_STATE_REQUEST};
    shell_start(r);
    shell_attach(r, 0);
    shell_reaches(r, &x->n_states, 1, "the first state");
    uint32_t msgs = fake_role.events[ND_EV_MSG];
    shell_send(x, &ask);
    shell_until(r, is_full, x, "a full state");
    assert_true(x->states_in_order);
    assert_int_equal(fake_role.events[ND_EV_MSG], msgs); /* not the role's business */
}

static void each_router_has_its_own_numbers(void **state)
{
    struct shell_rig *r = *state;
    struct fake_router *a = &r->routers[0], *b = &r->routers[1];
    shell_start(r);
    shell_attach(r, 0);
    shell_reaches(r, &a->n_states, 2, "two states");
    shell_attach(r, 1);
    shell_reaches(r, &b->n_states, 2, "the other's states");
    assert_true(a->states_in_order && b->states_in_order && a->state.seq > b->state.seq);
}

/* On a message: settings, a step of one row. On its end: a token to the router. */
static void run_one(struct fake_role *f, const struct nd_event *ev, struct nd_actions *out)
{
    static const struct td_sampling_state sampling;
    static const struct td_block_ref no_blocks;
    static struct td_row row;
    static td_block_id table[1];
    (void)no_blocks;
    if (ev->type == ND_EV_MSG) {
        struct nd_action *set = nd_actions_add(out, ND_DO_SEQ_SET);
        set->slot = 3;
        set->sampling = &sampling;
        row =
            (struct td_row){.n = 3, .tokens = prompt, .table = table, .n_blocks = 1, .sampling = 3};
        struct nd_action *step = nd_actions_add(out, ND_DO_STEP);
        step->rows = &row;
        step->n_rows = 1;
        nd_actions_observe(out, ND_M_BATCH_TOKENS, 3);
    } else if (ev->type == ND_EV_STEP) {
        static struct td_wire_token token;
        token = (struct td_wire_token){.id = {.router_epoch = 0x7000, .counter = 1},
                                       .token = ev->step->rows[0].ids[0]};
        struct td_wire_msg *m = nd_actions_send(out, 0x7000, TD_WIRE_TOKENS);
        m->tokens = (struct td_wire_tokens){.n = 1, .tokens = &token};
        (void)nd_actions_send(out, 0x9999, TD_WIRE_GO_AWAY); /* to a router that is gone: nothing */
    }
    (void)f;
}

static void actions_reach_the_engine_and_the_router(void **state)
{
    struct shell_rig *r = *state;
    struct fake_router *x = &r->routers[0];
    shell_start(r);
    shell_attach(r, 0);
    fake_role.next = run_one;
    struct td_wire_msg m = reserve(x);
    shell_send(x, &m);
    shell_reaches(r, &r->engine.n_submitted, 1, "a step");
    assert_int_equal(fake_role.last_msg, TD_WIRE_RESERVE);
    assert_int_equal(fake_role.last_router, x->epoch);
    assert_int_equal(r->engine.n_slots_set, 1);
    assert_int_equal(r->engine.n_rows, 1);
    shell_step_done(r);
    shell_reaches(r, &x->n_tokens, 1, "a token");
    assert_int_equal(fake_role.last_ticket, 1);
}

static void an_engine_that_refuses_is_survived(void **state)
{
    struct shell_rig *r = *state;
    struct fake_router *x = &r->routers[0];
    shell_start(r);
    shell_attach(r, 0);
    fake_role.next = run_one;
    r->engine.submit_err = TD_ERR_AGAIN;
    r->engine.info.max_slots = 1;
    td_log_set_fd(-1);
    struct td_wire_msg m = reserve(x);
    shell_send(x, &m);
    shell_reaches(r, &fake_role.events[ND_EV_MSG], 1, "the message");
    td_log_set_fd(2);
    char out[65536];
    assert_int_equal(shell_get(r, "GET", "/readyz", out, sizeof out), 200);
}

static void count_end(void *arg)
{
    ++*(uint32_t *)arg;
}

/* A rank of its group is lost: what has finished is taken, then the program is told, and the node waits to be ended. */
static void an_engine_that_has_ended_is_told_of_once(void **state)
{
    struct shell_rig *r = *state;
    uint32_t n_ends = 0;
    char out[65536];
    r->p.ended = count_end;
    r->p.ended_arg = &n_ends;
    shell_start(r);
    shell_attach(r, 0);
    fake_role.next = run_one;
    struct td_wire_msg m = reserve(&r->routers[0]);
    shell_send(&r->routers[0], &m);
    shell_reaches(r, &r->engine.n_submitted, 1, "the step");
    assert_int_equal(n_ends, 0);
    r->engine.ended = true;
    shell_step_done(r);
    shell_reaches(r, &n_ends, 1, "the engine's end");
    assert_int_equal(fake_role.last_ticket, 1);
    r->engine.submit_err =
        TD_ERR_CLOSED; /* a step that is planned meanwhile is no error of its own */
    shell_send(&r->routers[0], &m);
    shell_reaches(r, &fake_role.events[ND_EV_MSG], 2, "the message");
    shell_passes(r, 3);
    assert_int_equal(n_ends, 1);
    assert_int_equal(shell_get(r, "GET", "/livez", out, sizeof out), 200);
}

static void want_xfer(struct fake_role *f, const struct nd_event *ev, struct nd_actions *out)
{
    (void)f;
    if (ev->type == ND_EV_MSG) {
        nd_actions_add(out, ND_DO_XFER)->cmd.type = TD_XFER_CLOSE;
    }
}

static void a_command_without_a_data_plane_is_logged_and_dropped(void **state)
{
    struct shell_rig *r = *state;
    struct fake_router *x = &r->routers[0];
    shell_start(r);
    shell_attach(r, 0);
    fake_role.next = want_xfer;
    uint64_t errors = td_log_count(TD_LOG_ERROR);
    td_log_set_fd(-1);
    struct td_wire_msg m = reserve(x);
    shell_send(x, &m);
    shell_reaches(r, &fake_role.events[ND_EV_MSG], 1, "the message");
    td_log_set_fd(2);
    assert_int_equal(td_log_count(TD_LOG_ERROR), errors + 1);
}

static void an_unreadable_message_ends_the_routers_session_and_its_work(void **state)
{
    struct shell_rig *r = *state;
    struct fake_router *x = &r->routers[0];
    static const uint8_t junk[] = {0xff, 0xff, 0xff, 1, 2};
    shell_start(r);
    shell_attach(r, 0);
    td_log_set_fd(-1);
    shell_send_bytes(x, junk, sizeof junk);
    shell_reaches(r, &fake_role.events[ND_EV_ROUTER_LOST], 1, "the loss");
    assert_int_equal(fake_role.last_router, x->epoch);
    shell_reaches(r, &x->ups, 2, "the router to come back");
    td_log_set_fd(2);
    shell_reaches(r, &fake_role.events[ND_EV_ROUTER_UP], 2, "the role to know");
    assert_int_equal(fake_role.events[ND_EV_MSG], 0);
}

static void a_router_that_vanishes_is_lost_to_the_role(void **state)
{
    struct shell_rig *r = *state;
    shell_start(r);
    shell_attach(r, 0);
    r->routers[0].link = td_link_nng_destroy(r->routers[0].link);
    shell_reaches(r, &fake_role.events[ND_EV_ROUTER_LOST], 1, "the loss");
    assert_int_equal(fake_role.last_router, 0x7000);
}

static void a_deadline_of_the_role_becomes_a_tick(void **state)
{
    struct shell_rig *r = *state;
    struct fake_router *x = &r->routers[0];
    shell_start(r);
    shell_attach(r, 0);
    fake_role.deadline_us = td_now_us() + 1000;
    struct td_wire_msg m = reserve(x);
    shell_send(x, &m);
    shell_reaches(r, &fake_role.events[ND_EV_TICK], 1, "a tick");
}

static bool is_draining(void *arg)
{
    return ((struct fake_router *)arg)->state.draining;
}

static void a_drain_is_told_at_once_and_ends_when_no_work_is_left(void **state)
{
    struct shell_rig *r = *state;
    struct fake_router *x = &r->routers[0];
    char out[65536];
    shell_start(r);
    shell_attach(r, 0);
    fake_role.n_work = 2;
    assert_int_equal(shell_get(r, "GET", "/readyz", out, sizeof out), 200);
    int64_t before = td_now_us();
    td_node_drain(r->node, 5000000);
    assert_int_equal(fake_role.events[ND_EV_DRAIN], 1);
    assert_true(fake_role.drain_deadline_us >= before + 5000000);
    assert_false(td_node_idle(r->node));
    shell_until(r, is_draining, x, "the state");
    assert_int_equal(shell_get(r, "GET", "/readyz", out, sizeof out), 503);
    assert_non_null(strstr(out, "draining"));
    assert_int_equal(shell_get(r, "GET", "/livez", out, sizeof out), 200);
    fake_role.n_work = 0;
    for (int i = 0; i < 2000 && !td_node_idle(r->node); i++) {
        shell_passes(r, 1); /* until the router has everything */
    }
    assert_true(td_node_idle(r->node));
}

static bool is_not_draining(void *arg)
{
    return !is_draining(arg);
}

static void a_router_can_drain_the_node_and_take_it_back(void **state)
{
    struct shell_rig *r = *state;
    struct fake_router *x = &r->routers[0], *other = &r->routers[1];
    char out[65536];
    shell_start(r);
    shell_attach(r, 0);
    shell_attach(r, 1);
    struct td_wire_msg m = {.type = TD_WIRE_DRAIN, .drain = {.limit_ms = 5000, .why = "up\"grade"}};
    int64_t before = td_now_us();
    shell_send(x, &m);
    shell_until(r, is_draining, other, "the other router to hear of it");
    shell_until(r, is_draining, x, "the router that asked to hear of it");
    assert_int_equal(fake_role.events[ND_EV_DRAIN], 1);
    assert_true(fake_role.drain_deadline_us >= before + 5000000);
    assert_int_equal(shell_get(r, "GET", "/readyz", out, sizeof out), 503);
    m.drain = (struct td_wire_drain){.why = "", .undo = true};
    shell_send(other, &m);
    shell_until(r, is_not_draining, x, "the node to be back");
    assert_int_equal(fake_role.events[ND_EV_UNDRAIN], 1);
    assert_int_equal(shell_get(r, "GET", "/readyz", out, sizeof out), 200);
    m.drain = (struct td_wire_drain){.why = ""}; /* without a limit */
    shell_send(x, &m);
    shell_reaches(r, &fake_role.events[ND_EV_DRAIN], 2, "the second drain");
    assert_true(fake_role.drain_deadline_us == TD_NEVER);
    td_node_drain(r->node, 5000000); /* the process ends: no word takes that back */
    m.drain.undo = true;
    shell_send(x, &m);
    shell_passes(r, 20);
    assert_int_equal(fake_role.events[ND_EV_UNDRAIN], 1);
    shell_until(r, is_draining, other, "the node to stay drained");
}

static void the_admin_port_serves_probes_version_metrics_and_waits(void **state)
{
    struct shell_rig *r = *state;
    static const char *const ok[] = {"/health",   "/readyz",   "/readiness", "/livez",
                                     "/liveness", "/startupz", "/version",   "/metrics"};
    static char out[1 << 20];
    shell_start(r);
    for (size_t i = 0; i < TD_COUNT(ok); i++) {
        assert_int_equal(shell_get(r, "GET", ok[i], out, sizeof out), 200);
    }
    fake_role.n_waits = 2;
    fake_role.waits[0] = (struct nd_wait){.id = {.router_epoch = 0xab, .counter = 5, .attempt = 1},
                                          .what = "blocks",
                                          .deadline_us = TD_NEVER};
    fake_role.waits[1] = (struct nd_wait){.what = "slices", .deadline_us = td_now_us() + 1000000};
    assert_int_equal(shell_get(r, "GET", "/debug/waits", out, sizeof out), 200);
    json_t *j = json_loads(strstr(out, "\r\n\r\n") + 4, JSON_DISABLE_EOF_CHECK, NULL);
    json_t *w = json_array_get(json_object_get(j, "waits"), 0);
    assert_string_equal(json_string_value(json_object_get(w, "router")), "00000000000000ab");
    assert_string_equal(json_string_value(json_object_get(w, "what")), "blocks");
    assert_int_equal(json_integer_value(json_object_get(w, "deadline_in_us")), -1);
    assert_int_equal(json_array_size(json_object_get(j, "waits")), 2);
    json_decref(j);
    assert_int_equal(shell_get(r, "GET", "/nothing", out, sizeof out), 404);
    assert_non_null(strstr(out, "\"code\":\"not_found\""));
    assert_int_equal(shell_get(r, "POST", "/health", out, sizeof out), 405);
    assert_int_equal(shell_get(r, "HEAD", "/livez", out, sizeof out), 200);
}

static void parameters_that_do_not_fit_are_refused(void **state)
{
    struct shell_rig *r = *state;
    struct td_node *none = NULL;
    td_log_set_fd(-1);
    r->p.chunk_tokens = 17;
    assert_int_equal(td_node_create(&r->p, &none), TD_ERR_CONFIG);
    r->p.chunk_tokens = 64;
    r->p.control_url = "nonsense";
    assert_int_not_equal(td_node_create(&r->p, &none), TD_OK);
    r->p.control_url = "tcp://127.0.0.1:0";
    static const char *const names[] = {"", "two words", "a\"b", "tab\t", "\xc3\xa9"};
    for (size_t i = 0; i < TD_COUNT(names); i++) { /* no router would take them */
        r->p.name = names[i];
        assert_int_equal(td_node_create(&r->p, &none), TD_ERR_CONFIG);
    }
    r->p.name = "d0";
    r->p.admin_host = "not an address";
    assert_int_not_equal(td_node_create(&r->p, &none), TD_OK);
    td_log_set_fd(2);
    assert_null(none);
    assert_null(td_node_destroy(NULL));
}

static void failing_allocations_are_errors_without_leaks(void **state)
{
    struct shell_rig *r = *state;
    td_err err = TD_ERR_NO_MEMORY;
    unsigned n = 1;
    td_log_set_fd(-1);
    for (; err != TD_OK && n < 2000; n++) {
        td_mem_fail_nth(n);
        err = td_node_create(&r->p, &r->node);
        td_mem_fail_nth(0);
    }
    td_log_set_fd(2);
    assert_int_equal(err, TD_OK);
    assert_true(n > 10);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, shell_setup, shell_teardown)

/* ---- requests of a service of this process ---- */

struct service {
    struct td_node *node;
    uint64_t ref, second;
    uint32_t n_tokens, n_ends;
    bool inside; /* of a call into the node */
    bool again;  /* submits once more when the first ends */
    td_err err;
};

static void answer_local(struct fake_role *f, const struct nd_event *ev, struct nd_actions *out)
{
    static const struct td_wire_token none = {0};
    (void)f;
    if (ev->type != ND_EV_MSG || ev->msg->type != TD_WIRE_RESERVE) {
        return;
    }
    struct td_wire_token *t = nd_actions_copy(out, &none, sizeof none);
    t->id = ev->msg->reserve.r.id;
    t->token = 42;
    struct td_wire_msg *m = nd_actions_send(out, ev->router_epoch, TD_WIRE_TOKENS);
    m->tokens = (struct td_wire_tokens){.n = 1, .tokens = t};
    m = nd_actions_send(out, ev->router_epoch, TD_WIRE_END);
    m->end = (struct td_wire_end){
        .id = t->id, .err = TD_ERR_NO_CAPACITY, .text = "full", .stages.transport = ""};
}

static const struct nd_local_ops service_ops;

static uint64_t submit(struct service *s)
{
    uint64_t ref = 0;
    struct nd_local_request q = {.mode = ND_LOCAL_WHOLE,
                                 .budget_ms = 1000,
                                 .prompt = prompt,
                                 .n_prompt = 3,
                                 .sampling = {.max_tokens = 4, .top_p = 1}};
    s->inside = true;
    assert_int_equal(td_node_submit(s->node, &q, &service_ops, s, &ref), TD_OK);
    s->inside = false;
    return ref;
}

static void service_token(void *arg, const struct nd_local_token *t)
{
    struct service *s = arg;
    assert_false(s->inside);
    assert_int_equal(t->token, 42);
    s->n_tokens++;
}

static void service_end(void *arg, const struct nd_local_end *e)
{
    struct service *s = arg;
    assert_false(s->inside);
    s->n_ends++;
    s->err = e->err;
    if (s->again) {
        s->again = false;
        s->second = submit(s);
    }
    assert_string_equal(e->text, "full");
}

static const struct nd_local_ops service_ops = {.on_token = service_token, .on_end = service_end};

static void a_service_of_the_process_is_answered_after_its_call(void **state)
{
    struct shell_rig *r = *state;
    r->p.role_told = TD_ROLE_BOTH;
    r->p.local = true;
    shell_start(r);
    fake_role.next = answer_local;
    struct service s = {.node = r->node, .again = true};
    s.ref = submit(&s);
    assert_int_equal(s.n_ends, 0);
    assert_int_equal(td_node_local_count(r->node), 1);
    shell_reaches(r, &s.n_ends, 2, "both ends");
    assert_int_equal(s.n_tokens, 2);
    assert_int_equal(s.err, TD_ERR_NO_CAPACITY);
    assert_true(s.second != 0 && s.second != s.ref);
    assert_int_equal(td_node_local_count(r->node), 0);
    td_node_cancel(r->node, s.ref); /* over: nothing is fed */
    assert_int_equal(fake_role.last_msg, TD_WIRE_RESERVE);
}

static void answer_hold(struct fake_role *f, const struct nd_event *ev, struct nd_actions *out)
{
    static const struct td_wire_token none = {0};
    (void)f;
    if (ev->type == ND_EV_MSG && ev->msg->type == TD_WIRE_PREFILL) {
        struct td_wire_token *t = nd_actions_copy(out, &none, sizeof none);
        t->id = ev->msg->prefill.r.id;
        t->token = 42;
        struct td_wire_msg *m = nd_actions_send(out, ev->router_epoch, TD_WIRE_TOKENS);
        m->tokens = (struct td_wire_tokens){.n = 1, .tokens = t};
        assert_int_equal(ev->msg->prefill.hold_ms, 1500);
        assert_int_equal(ev->msg->prefill.ticket.d_epoch, 0);
    }
}

static struct td_handoff got_handoff;
static uint32_t n_helds;

static void service_held(void *arg, const struct td_handoff *h)
{
    const struct service *s = arg;
    assert_int_equal(s->n_tokens, 1);
    got_handoff = *h;
    n_helds++;
}

static void a_held_prompt_comes_with_a_nonce_of_its_own(void **state)
{
    static const struct nd_local_ops ops = {
        .on_token = service_token, .on_held = service_held, .on_end = service_end};
    struct shell_rig *r = *state;
    r->p.role_told = TD_ROLE_PREFILL;
    r->p.local = true;
    r->p.hold_s = 1.5;
    shell_start(r);
    fake_role.next = answer_hold;
    struct nd_local_request q = {.mode = ND_LOCAL_HOLD,
                                 .budget_ms = 1000,
                                 .prompt = prompt,
                                 .n_prompt = 3,
                                 .sampling = {.max_tokens = 1, .top_p = 1, .seed = 5}};
    struct td_handoff first = {0};
    n_helds = 0;
    for (uint32_t i = 0; i < 2; i++) {
        struct service s = {.node = r->node};
        assert_int_equal(td_node_submit(r->node, &q, &ops, &s, &s.ref), TD_OK);
        shell_reaches(r, &n_helds, i + 1, "the hand-off");
        assert_int_equal(got_handoff.hold_ms, 1500);
        assert_int_equal(got_handoff.n_prompt, 3);
        assert_int_equal(got_handoff.seed, 5);
        assert_true(got_handoff.p_epoch != 0 && got_handoff.id.router_epoch != 0);
        assert_true(i == 0 || memcmp(first.nonce, got_handoff.nonce, sizeof first.nonce) != 0);
        first = got_handoff;
        td_node_detach(r->node, s.ref);
    }
    assert_int_equal(td_node_local_count(r->node), 2); /* they are held still */
}

static void a_service_cancels_and_looks_away(void **state)
{
    struct shell_rig *r = *state;
    r->p.role_told = TD_ROLE_BOTH;
    r->p.local = true;
    shell_start(r);
    struct service s = {.node = r->node};
    s.ref = submit(&s);
    td_node_cancel(r->node, s.ref);
    assert_int_equal(fake_role.last_msg, TD_WIRE_CANCEL);
    fake_role.next = answer_local;
    struct service gone = {.node = r->node};
    gone.ref = submit(&gone);
    td_node_detach(r->node, gone.ref);
    s.second = submit(&s);
    shell_reaches(r, &s.n_ends, 1, "the end of the last");
    assert_int_equal(gone.n_tokens + gone.n_ends, 0);
    assert_int_equal(td_node_local_count(r->node), 1); /* the role has not ended the first */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_router_learns_who_the_node_is_and_its_whole_state),
        TEST(a_changed_state_is_published_with_the_next_number),
        TEST(a_router_that_asks_gets_a_full_state),
        TEST(each_router_has_its_own_numbers),
        TEST(actions_reach_the_engine_and_the_router),
        TEST(an_engine_that_refuses_is_survived),
        TEST(an_engine_that_has_ended_is_told_of_once),
        TEST(a_command_without_a_data_plane_is_logged_and_dropped),
        TEST(an_unreadable_message_ends_the_routers_session_and_its_work),
        TEST(a_router_that_vanishes_is_lost_to_the_role),
        TEST(a_deadline_of_the_role_becomes_a_tick),
        TEST(a_drain_is_told_at_once_and_ends_when_no_work_is_left),
        TEST(a_router_can_drain_the_node_and_take_it_back),
        TEST(the_admin_port_serves_probes_version_metrics_and_waits),
        TEST(parameters_that_do_not_fit_are_refused),
        TEST(a_service_of_the_process_is_answered_after_its_call),
        TEST(a_held_prompt_comes_with_a_nonce_of_its_own),
        TEST(a_service_cancels_and_looks_away),
        TEST(failing_allocations_are_errors_without_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
