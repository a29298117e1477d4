/* The router core against scripted nodes: each test says what a client must see. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "router/rt_core.h"

#define P0 0xa0u
#define P1 0xa1u
#define D0 0xd0u
#define D1 0xd1u

struct bench {
    struct rt_core *core;
    struct rt_actions acts;
    int64_t now;
    uint64_t state_seq[256];
};

static void step(struct bench *b, const struct rt_event *ev, uint64_t *counter)
{
    rt_actions_reset(&b->acts);
    rt_core_step(b->core, b->now, ev, &b->acts, counter);
    assert_false(b->acts.overflow);
    assert_int_equal(rt_core_check(b->core), TD_OK);
}

static void drain_node(struct bench *b, uint64_t node, bool undo);
static void node_state(struct bench *b, uint64_t epoch, enum td_role role, uint64_t queued_tok,
                       uint32_t free_blk)
{
    struct td_wire_msg m = {.type = TD_WIRE_STATE};
    m.state = (struct td_wire_state){.seq = ++b->state_seq[epoch],
                                     .full = true,
                                     .ready = true,
                                     .role = role,
                                     .queued_prompt_tok = queued_tok,
                                     .prefill_us_per_ktok = 100000,
                                     .decode_step_us = 1000};
    m.state.blocks[TD_BLK_FREE] = free_blk;
    step(b, &(struct rt_event){.type = RT_EV_NODE_MSG, .node_epoch = epoch, .msg = &m}, NULL);
}

static void node_with(struct bench *b, uint64_t epoch, enum td_role role, uint64_t layout,
                      uint32_t n_blocks)
{
    static const uint8_t addr[4] = {1, 2, 3, 4};
    struct td_wire_rank rank = {.address = addr, .address_len = 4};
    struct td_wire_node_info i = {.epoch = epoch,
                                  .name = "n",
                                  .version = "",
                                  .model_name = "m",
                                  .numerics = "",
                                  .admin_address = "",
                                  .role = role,
                                  .layout = {.id = layout, .block_tok = 16},
                                  .numerics_id = 7,
                                  .max_model_len = 1024,
                                  .n_blocks = n_blocks,
                                  .max_seqs = 8,
                                  .n_ranks = 1,
                                  .ranks = &rank};
    step(b, &(struct rt_event){.type = RT_EV_NODE_UP, .node_info = &i}, NULL);
    node_state(b, epoch, role, 0, n_blocks);
}

static void node_up(struct bench *b, uint64_t epoch, enum td_role role, uint64_t layout)
{
    node_with(b, epoch, role, layout, 100);
}

static int setup(void **state)
{
    struct bench *b = td_zalloc(1, sizeof *b);
    struct rt_core_params p = {.epoch = 0x77,
                               .max_requests = 64,
                               .max_queue = 4,
                               .max_queue_bytes = 1 << 20,
                               .max_node_queue = 2,
                               .max_replays = 2,
                               .resume = true,
                               .pair_wait_us = 5000000,
                               .close_wait_us = 10000000,
                               .model_name = "m"};
    td_log_set_level(TD_LOG_ERROR);
    assert_int_equal(rt_core_create(&p, &b->core), TD_OK);
    assert_int_equal(rt_actions_init(&b->acts), TD_OK);
    b->now = 1000;
    *state = b;
    return 0;
}

static int teardown(void **state)
{
    struct bench *b = *state;
    rt_core_destroy(b->core);
    rt_actions_fini(&b->acts);
    free(b);
    return 0;
}

static const int32_t prompt[40] = {1, 2, 3};

static uint64_t submit_as(struct bench *b, uint32_t max_tokens, int32_t priority, bool park)
{
    struct rt_submit s = {.prompt = prompt,
                          .n_prompt = 40,
                          .sampling = {.max_tokens = max_tokens, .temperature = 0},
                          .priority = priority,
                          .budget_us = 60000000,
                          .tenant = "t",
                          .request_id = "r",
                          .only_p = park ? P0 : 0,
                          .only_d = park ? D0 : 0,
                          .park = park,
                          .user = b};
    uint64_t counter = 0;
    step(b, &(struct rt_event){.type = RT_EV_SUBMIT, .submit = &s}, &counter);
    return counter;
}

static uint64_t submit(struct bench *b, uint32_t max_tokens, int32_t priority)
{
    return submit_as(b, max_tokens, priority, false);
}

static const struct rt_action *find(const struct bench *b, enum rt_action_type type, uint64_t node,
                                    enum td_wire_type msg)
{
    for (uint32_t i = 0; i < b->acts.n; i++) {
        const struct rt_action *a = &b->acts.list[i];
        if (a->type == type &&
            (type != RT_DO_SEND || (a->node_epoch == node && a->msg->type == msg))) {
            return a;
        }
    }
    return NULL;
}

static void token(struct bench *b, uint64_t node, uint64_t counter, uint32_t attempt,
                  uint32_t index, int32_t id, enum td_finish finish)
{
    struct td_wire_token t = {.id = {.router_epoch = 0x77, .counter = counter, .attempt = attempt},
                              .index = index,
                              .token = id,
                              .finish = finish};
    struct td_wire_msg m = {.type = TD_WIRE_TOKENS, .tokens = {.n = 1, .tokens = &t}};
    step(b, &(struct rt_event){.type = RT_EV_NODE_MSG, .node_epoch = node, .msg = &m}, NULL);
}

static void end(struct bench *b, uint64_t node, uint64_t counter, uint32_t attempt, td_err err)
{
    struct td_wire_msg m = {.type = TD_WIRE_END};
    m.end =
        (struct td_wire_end){.id = {.router_epoch = 0x77, .counter = counter, .attempt = attempt},
                             .err = err,
                             .text = "",
                             .stages = {.transport = "shm", .kv_bytes = 5}};
    step(b, &(struct rt_event){.type = RT_EV_NODE_MSG, .node_epoch = node, .msg = &m}, NULL);
}

static void lost(struct bench *b, uint64_t node)
{
    step(b, &(struct rt_event){.type = RT_EV_NODE_LOST, .node_epoch = node}, NULL);
}

static void pair(struct bench *b)
{
    node_up(b, P0, TD_ROLE_PREFILL, 1);
    node_up(b, D0, TD_ROLE_DECODE, 1);
}

static void a_request_goes_to_both_nodes_and_ends_once(void **state)
{
    struct bench *b = *state;
    pair(b);
    uint64_t c = submit(b, 3, 0);
    assert_int_not_equal(c, 0);
    const struct rt_action *p = find(b, RT_DO_SEND, P0, TD_WIRE_PREFILL),
                           *d = find(b, RT_DO_SEND, D0, TD_WIRE_RESERVE);
    assert_non_null(p);
    assert_non_null(d);
    assert_memory_equal(&p->msg->prefill.ticket, &d->msg->reserve.ticket,
                        sizeof(struct td_wire_ticket));
    assert_int_equal(d->msg->reserve.mode, TD_RESERVE_REMOTE);
    token(b, P0, c, 0, 0, 11, TD_FINISH_NONE);
    assert_int_equal(find(b, RT_DO_TOKEN, 0, 0)->token, 11);
    token(b, D0, c, 0, 0, 11, TD_FINISH_NONE); /* D says the first token too */
    assert_null(find(b, RT_DO_TOKEN, 0, 0));
    end(b, P0, c, 0, TD_OK);
    token(b, D0, c, 0, 1, 12, TD_FINISH_NONE);
    token(b, D0, c, 0, 2, 13, TD_FINISH_LENGTH);
    assert_int_equal(find(b, RT_DO_TOKEN, 0, 0)->finish, TD_FINISH_LENGTH);
    assert_null(find(b, RT_DO_END, 0, 0));
    end(b, D0, c, 0, TD_OK);
    const struct rt_action *e = find(b, RT_DO_END, 0, 0);
    assert_int_equal(e->err, TD_OK);
    assert_int_equal(e->n_output, 3);
    assert_string_equal(e->stages.transport, "shm");
    assert_int_equal(rt_core_count(b->core, RT_FREE), 64);
}

static void
a_parked_request_is_reserved_after_its_first_token_and_told_when_both_ended(void **state)
{
    struct bench *b = *state;
    pair(b);
    uint64_t c = submit_as(b, 2, 0, true);
    const struct rt_action *p = find(b, RT_DO_SEND, P0, TD_WIRE_PREFILL);
    struct td_wire_ticket ticket = p->msg->prefill.ticket;
    assert_null(find(b, RT_DO_SEND, D0, TD_WIRE_RESERVE));
    token(b, P0, c, 0, 0, 11, TD_FINISH_NONE);
    const struct rt_action *d = find(b, RT_DO_SEND, D0, TD_WIRE_RESERVE);
    assert_non_null(d);
    assert_int_equal(d->msg->reserve.ticket.p_epoch, P0);
    assert_memory_equal(d->msg->reserve.ticket.nonce, ticket.nonce, sizeof ticket.nonce);
    assert_int_equal(d->msg->reserve.mode, TD_RESERVE_REMOTE);
    assert_int_equal(d->msg->reserve.r.n_prompt, 40); /* as sent to prefill, without its token */
    token(b, D0, c, 0, 0, 11, TD_FINISH_NONE);
    assert_null(find(b, RT_DO_SEND, D0, TD_WIRE_RESERVE)); /* once */
    token(b, D0, c, 0, 1, 12, TD_FINISH_LENGTH);
    end(b, D0, c, 0, TD_OK);
    assert_null(find(b, RT_DO_END, 0, 0)); /* prefill's times are still to come */
    end(b, P0, c, 0, TD_OK);
    assert_int_equal(find(b, RT_DO_END, 0, 0)->err, TD_OK);
    assert_int_equal(rt_core_count(b->core, RT_FREE), 64);
}

static void a_parked_request_that_ends_early_leaves_nothing_on_decode(void **state)
{
    struct bench *b = *state;
    pair(b);
    uint64_t c = submit_as(b, 2, 0, true);
    token(b, P0, c, 0, 0, 11, TD_FINISH_STOP); /* answered by its first token */
    assert_null(find(b, RT_DO_SEND, D0, TD_WIRE_RESERVE));
    assert_int_equal(find(b, RT_DO_END, 0, 0)->err, TD_OK);
    end(b, P0, c, 0, TD_OK);
    assert_int_equal(rt_core_count(b->core, RT_FREE), 64);
    c = submit_as(b, 2, 0, true);
    end(b, P0, c, 0, TD_ERR_STALLED); /* failed before: decode may know of it, or not */
    assert_int_equal(find(b, RT_DO_END, 0, 0)->err, TD_ERR_STALLED);
    assert_non_null(find(b, RT_DO_SEND, D0, TD_WIRE_CANCEL));
    (void)submit_as(b, 2, 0, true);
    lost(b, D0);
    assert_int_equal(find(b, RT_DO_END, 0, 0)->err, TD_ERR_PEER_LOST);
}

static void link_is(struct bench *b, uint64_t node, bool attached)
{
    struct rt_event ev = {.type = RT_EV_NODE_LINK, .node_epoch = node, .attached = attached};
    step(b, &ev, NULL);
}

static void new_requests_go_round_a_node_whose_link_is_down(void **state)
{
    struct bench *b = *state;
    pair(b);
    node_up(b, D1, TD_ROLE_DECODE, 1);
    link_is(b, D0, false);
    uint64_t c = submit(b, 1, 0);
    assert_null(find(b, RT_DO_SEND, D0, TD_WIRE_RESERVE));
    assert_non_null(find(b, RT_DO_SEND, D1, TD_WIRE_RESERVE));
    struct rt_request_view v;
    assert_true(rt_core_request(b->core, c, &v));
    assert_int_equal(rt_core_decision(b->core, v.decision)->n_skipped, 1);
    assert_string_equal(rt_core_decision(b->core, v.decision)->skipped[0].why, "its link is down");
    link_is(b, 12345, false); /* gone already */
}

static void requests_wait_for_the_only_link_and_its_loss_ends_them(void **state)
{
    struct bench *b = *state;
    pair(b);
    link_is(b, D0, false);
    assert_int_equal(rt_nodes_ready(rt_core_nodes(b->core), TD_ROLE_DECODE), 0);
    uint64_t c = submit(b, 1, 0), second = submit(b, 1, 0);
    assert_int_not_equal(second, 0);
    assert_int_equal(rt_core_count(b->core, RT_QUEUED), 2);
    link_is(b, D0, true);
    assert_non_null(find(b, RT_DO_SEND, D0, TD_WIRE_RESERVE));
    assert_int_equal(rt_core_count(b->core, RT_QUEUED), 0);
    struct rt_request_view v;
    assert_true(rt_core_request(b->core, c, &v));
    assert_int_equal(v.replays, 0);
    link_is(b, D0, false);
    assert_int_not_equal(submit(b, 1, 0), 0);
    lost(b, D0); /* all three wait for a pair now, as replays do */
    assert_int_equal(rt_core_count(b->core, RT_QUEUED), 3);
    b->now = rt_core_next_deadline(b->core);
    step(b, &(struct rt_event){.type = RT_EV_TICK}, NULL);
    assert_int_equal(find(b, RT_DO_END, 0, 0)->err, TD_ERR_NO_NODE);
    assert_int_equal(rt_core_count(b->core, RT_QUEUED), 0);
}

static void only_a_node_that_drained_to_its_end_may_leave(void **state)
{
    struct bench *b = *state;
    pair(b);
    assert_false(rt_core_node_may_leave(b->core, D0));
    uint64_t c = submit(b, 2, 0);
    drain_node(b, D0, false);
    assert_false(rt_core_node_may_leave(b->core, D0)); /* it still works */
    token(b, P0, c, 0, 0, 11, TD_FINISH_NONE);
    token(b, D0, c, 0, 1, 12, TD_FINISH_LENGTH);
    end(b, P0, c, 0, TD_OK);
    end(b, D0, c, 0, TD_OK);
    assert_true(rt_core_node_may_leave(b->core, D0));
    assert_false(rt_core_node_may_leave(b->core, P0));
    assert_false(rt_core_node_may_leave(b->core, 12345)); /* nobody */
}

/* The line that the loss of a node writes, into out. */
static void lost_and_logged(struct bench *b, uint64_t node, char *out, size_t cap)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0); /* NOLINT: one thread, no exec */
    td_log_set_fd(ends[1]);
    td_log_set_level(TD_LOG_INFO);
    lost(b, node);
    td_log_set_level(TD_LOG_ERROR);
    td_log_set_fd(2);
    (void)close(ends[1]);
    ssize_t n = read(ends[0], out, cap - 1);
    out[n > 0 ? n : 0] = '\0';
    (void)close(ends[0]);
}

static void a_node_that_drained_to_its_end_brings_no_warning(void **state)
{
    struct bench *b = *state;
    struct td_wire_msg leaving = {.type = TD_WIRE_GO_AWAY};
    char line[2048];
    pair(b);
    node_up(b, P1, TD_ROLE_PREFILL, 1);
    step(b, &(struct rt_event){.type = RT_EV_NODE_MSG, .node_epoch = P1, .msg = &leaving}, NULL);
    lost_and_logged(b, P1, line, sizeof line);
    assert_non_null(strstr(line, "level=info room=router msg=\"node left\""));
    uint64_t c = submit(b, 3, 0);
    assert_int_not_equal(c, 0);
    step(b, &(struct rt_event){.type = RT_EV_NODE_MSG, .node_epoch = P0, .msg = &leaving}, NULL);
    lost_and_logged(b, P0, line, sizeof line); /* its time ran out over a request */
    assert_non_null(strstr(line, "level=warn room=router msg=\"node lost\""));
    lost_and_logged(b, D0, line, sizeof line); /* nobody had asked it to go */
    assert_non_null(strstr(line, "level=warn room=router msg=\"node lost\""));
}

static void without_nodes_a_request_is_refused_at_once(void **state)
{
    struct bench *b = *state;
    assert_int_equal(submit(b, 3, 0), 0);
    assert_int_equal(find(b, RT_DO_END, 0, 0)->err, TD_ERR_NO_NODE);
    node_up(b, D0, TD_ROLE_DECODE, 1);
    assert_int_equal(submit(b, 3, 0), 0);
    assert_int_equal(find(b, RT_DO_END, 0, 0)->err, TD_ERR_NO_NODE);
}

/* To ask again does not help: clients must not. */
static void a_prompt_that_no_pool_holds_is_too_long_for_good(void **state)
{
    struct bench *b = *state;
    int32_t ids[1020] = {0};
    struct rt_submit s = {.user = b,
                          .prompt = ids,
                          .n_prompt = 1020,
                          .sampling = {.max_tokens = 2},
                          .budget_us = 60000000};
    uint64_t counter = 0;
    node_up(b, P0, TD_ROLE_PREFILL, 1);
    node_with(b, D0, TD_ROLE_DECODE, 1, 63); /* 1008 tokens; P's pool and both contexts hold more */
    step(b, &(struct rt_event){.type = RT_EV_SUBMIT, .submit = &s}, &counter);
    const struct rt_action *end = find(b, RT_DO_END, 0, 0);
    assert_true(counter == 0 && end->err == TD_ERR_CONTEXT_LENGTH);
    assert_non_null(strstr(end->text, "whole KV pool"));
    s.n_prompt = 1000;
    step(b, &(struct rt_event){.type = RT_EV_SUBMIT, .submit = &s}, &counter);
    assert_true(counter != 0);
}

static void nodes_of_unequal_layout_never_pair(void **state)
{
    struct bench *b = *state;
    node_up(b, P0, TD_ROLE_PREFILL, 1);
    node_up(b, D0, TD_ROLE_DECODE, 2);
    assert_int_equal(submit(b, 3, 0), 0);
    assert_int_equal(find(b, RT_DO_END, 0, 0)->err, TD_ERR_NO_PAIR);
}

static void prefill_lost_before_the_first_token_is_replayed_on_another(void **state)
{
    struct bench *b = *state;
    pair(b);
    uint64_t c = submit(b, 3, 0);
    node_up(b, P1, TD_ROLE_PREFILL, 1);
    lost(b, P0);
    assert_null(find(b, RT_DO_END, 0, 0));
    assert_non_null(find(b, RT_DO_SEND, D0, TD_WIRE_CANCEL));
    const struct rt_action *p = find(b, RT_DO_SEND, P1, TD_WIRE_PREFILL);
    assert_non_null(p);
    assert_int_equal(p->msg->prefill.r.id.attempt, 1);
    token(b, D0, c, 0, 0, 99, TD_FINISH_NONE); /* a late token of the old attempt */
    assert_null(find(b, RT_DO_TOKEN, 0, 0));
    token(b, P1, c, 1, 0, 11, TD_FINISH_NONE);
    assert_int_equal(find(b, RT_DO_TOKEN, 0, 0)->token, 11);
}

static void prefill_lost_before_decode_spoke_is_replayed_with_the_first_token(void **state)
{
    struct bench *b = *state;
    pair(b);
    uint64_t c = submit(b, 5, 0);
    token(b, P0, c, 0, 0, 11, TD_FINISH_NONE);
    node_up(b, P1, TD_ROLE_PREFILL, 1);
    lost(b, P0); /* frozen with its slices under way: D would wait for them */
    const struct rt_action *p = find(b, RT_DO_SEND, P1, TD_WIRE_PREFILL);
    assert_non_null(p);
    assert_int_equal(p->msg->prefill.r.n_replayed, 1);
    assert_non_null(find(b, RT_DO_SEND, D0, TD_WIRE_CANCEL));
}

static void prefill_lost_after_decode_spoke_changes_nothing(void **state)
{
    struct bench *b = *state;
    pair(b);
    uint64_t c = submit(b, 5, 0);
    token(b, P0, c, 0, 0, 11, TD_FINISH_NONE);
    token(b, D0, c, 0, 0, 11, TD_FINISH_NONE);
    lost(b, P0);
    assert_null(find(b, RT_DO_SEND, D0, TD_WIRE_CANCEL));
    token(b, D0, c, 0, 1, 12, TD_FINISH_NONE);
    assert_int_equal(find(b, RT_DO_TOKEN, 0, 0)->token, 12);
}

static void a_replay_waits_for_a_pair_and_then_says_so(void **state)
{
    struct bench *b = *state;
    pair(b);
    (void)submit(b, 3, 0);
    lost(b, P0);
    assert_null(find(b, RT_DO_END, 0, 0));
    b->now += 6000000;
    step(b, &(struct rt_event){.type = RT_EV_TICK}, NULL);
    assert_int_equal(find(b, RT_DO_END, 0, 0)->err, TD_ERR_NO_NODE);
}

static void decode_lost_after_tokens_resumes_with_them(void **state)
{
    struct bench *b = *state;
    pair(b);
    uint64_t c = submit(b, 5, 0);
    token(b, P0, c, 0, 0, 11, TD_FINISH_NONE);
    token(b, D0, c, 0, 1, 12, TD_FINISH_NONE);
    node_up(b, D1, TD_ROLE_DECODE, 1);
    lost(b, D0);
    const struct rt_action *p = find(b, RT_DO_SEND, P0, TD_WIRE_PREFILL);
    assert_non_null(p);
    assert_int_equal(p->msg->prefill.r.n_prompt, 42);
    assert_int_equal(p->msg->prefill.r.n_replayed, 2);
    assert_int_equal(p->msg->prefill.r.prompt[41], 12);
    token(b, P0, c, 1, 2, 13, TD_FINISH_NONE);
    assert_int_equal(find(b, RT_DO_TOKEN, 0, 0)->index, 2);
}

static void two_deaths_under_one_request_end_it(void **state)
{
    struct bench *b = *state;
    pair(b);
    node_up(b, P1, TD_ROLE_PREFILL, 1);
    (void)submit(b, 3, 0);
    uint64_t first = find(b, RT_DO_SEND, P0, TD_WIRE_PREFILL) != NULL ? P0 : P1;
    lost(b, first);
    lost(b, first == P0 ? P1 : P0);
    assert_int_equal(find(b, RT_DO_END, 0, 0)->err, TD_ERR_POISON);
    assert_int_equal(rt_core_count(b->core, RT_CLOSING), 1); /* D has not acknowledged yet */
}

static void replays_are_counted(void **state)
{
    struct bench *b = *state;
    pair(b);
    uint64_t c = submit(b, 3, 0);
    end(b, D0, c, 0, TD_ERR_STALLED);
    end(b, D0, c, 1, TD_ERR_STALLED);
    assert_null(find(b, RT_DO_END, 0, 0));
    end(b, D0, c, 2, TD_ERR_STALLED);
    assert_int_equal(find(b, RT_DO_END, 0, 0)->err, TD_ERR_REPLAYS);
}

static void cancel_stops_both_nodes_and_waits_for_them(void **state)
{
    struct bench *b = *state;
    pair(b);
    uint64_t c = submit(b, 3, 0);
    step(b, &(struct rt_event){.type = RT_EV_CANCEL, .counter = c, .reason = TD_ERR_CANCELLED},
         NULL);
    assert_non_null(find(b, RT_DO_SEND, P0, TD_WIRE_CANCEL));
    assert_non_null(find(b, RT_DO_SEND, D0, TD_WIRE_CANCEL));
    assert_int_equal(find(b, RT_DO_END, 0, 0)->err, TD_ERR_CANCELLED);
    for (int i = 0; i < 2; i++) {
        struct td_wire_msg m = {.type = TD_WIRE_CANCEL_ACK};
        m.cancel_ack.id = (struct td_work_id){.router_epoch = 0x77, .counter = c};
        step(b,
             &(struct rt_event){.type = RT_EV_NODE_MSG, .node_epoch = i == 0 ? P0 : D0, .msg = &m},
             NULL);
        assert_null(find(b, RT_DO_END, 0, 0));
    }
    assert_int_equal(rt_core_count(b->core, RT_FREE), 64);
}

/* P has lost its session with the router and told D, which has not: the client wanted no cancel. */
static void a_cancel_that_nobody_asked_for_is_replayed(void **state)
{
    struct bench *b = *state;
    pair(b);
    uint64_t c = submit(b, 3, 0);
    token(b, P0, c, 0, 0, 11, TD_FINISH_NONE);
    end(b, D0, c, 0, TD_ERR_CANCELLED);
    assert_null(find(b, RT_DO_END, 0, 0));
    const struct rt_action *p = find(b, RT_DO_SEND, P0, TD_WIRE_PREFILL);
    assert_non_null(p);
    assert_int_equal(p->msg->prefill.r.id.attempt, 1);
    assert_int_equal(p->msg->prefill.r.n_replayed, 1);
}

/* The hand-over record is lost: decode would keep its blocks for the rest of the budget. */
static void an_answer_that_prefill_ended_makes_decode_let_go(void **state)
{
    struct bench *b = *state;
    pair(b);
    uint64_t c = submit(b, 1, 0);
    token(b, P0, c, 0, 0, 11, TD_FINISH_LENGTH);
    assert_int_equal(find(b, RT_DO_END, 0, 0)->err, TD_OK);
    end(b, P0, c, 0, TD_OK);
    assert_null(find(b, RT_DO_SEND, D0, TD_WIRE_CANCEL));
    b->now += 1000001;
    step(b, &(struct rt_event){.type = RT_EV_TICK}, NULL);
    assert_non_null(find(b, RT_DO_SEND, D0, TD_WIRE_CANCEL));
    assert_null(find(b, RT_DO_SEND, P0, TD_WIRE_CANCEL));
    assert_null(find(b, RT_DO_END, 0, 0));
    b->now += 10000001;
    step(b, &(struct rt_event){.type = RT_EV_TICK}, NULL);
    assert_int_equal(rt_core_count(b->core, RT_FREE), 64);
}

static void a_full_queue_refuses_and_priority_goes_first(void **state)
{
    struct bench *b = *state;
    pair(b);
    uint64_t first = submit(b, 3, 0);
    (void)submit(b, 3, 0);
    for (int i = 0; i < 3; i++) {
        assert_int_not_equal(submit(b, 3, 5), 0); /* two run on P0, these wait */
    }
    uint64_t urgent = submit(b, 3, -5);
    assert_int_equal(rt_core_count(b->core, RT_QUEUED), 4);
    assert_int_equal(submit(b, 3, 0), 0);
    assert_int_equal(find(b, RT_DO_END, 0, 0)->err, TD_ERR_OVERLOADED);
    token(b, P0, first, 0, 0, 1, TD_FINISH_NONE);
    end(b, P0, first, 0, TD_OK);
    const struct rt_action *p = find(b, RT_DO_SEND, P0, TD_WIRE_PREFILL);
    assert_non_null(p);
    assert_int_equal(p->msg->prefill.r.id.counter, urgent);
}

static void the_budget_ends_a_silent_request(void **state)
{
    struct bench *b = *state;
    pair(b);
    (void)submit(b, 3, 0);
    b->now += 60000001;
    step(b, &(struct rt_event){.type = RT_EV_TICK}, NULL);
    assert_int_equal(find(b, RT_DO_END, 0, 0)->err, TD_ERR_BUDGET);
    b->now += 10000001;
    step(b, &(struct rt_event){.type = RT_EV_TICK}, NULL);
    assert_int_equal(rt_core_count(b->core, RT_FREE), 64);
    assert_int_equal(rt_core_next_deadline(b->core), TD_NEVER);
}

static void a_skipped_token_is_never_shown(void **state)
{
    struct bench *b = *state;
    pair(b);
    uint64_t c = submit(b, 5, 0);
    token(b, P0, c, 0, 0, 11, TD_FINISH_NONE);
    td_log_set_level(TD_LOG_ERROR);
    token(b, D0, c, 0, 2, 13, TD_FINISH_NONE);
    assert_null(find(b, RT_DO_TOKEN, 0, 0));
    assert_non_null(find(b, RT_DO_SEND, D0, TD_WIRE_CANCEL));
}

static void a_node_of_both_roles_prefills_for_itself(void **state)
{
    struct bench *b = *state;
    node_up(b, D0, TD_ROLE_BOTH, 1);
    uint64_t c = submit(b, 1, 0);
    const struct rt_action *d = find(b, RT_DO_SEND, D0, TD_WIRE_RESERVE);
    assert_non_null(d);
    assert_int_equal(d->msg->reserve.mode, TD_RESERVE_LOCAL);
    assert_null(find(b, RT_DO_SEND, D0, TD_WIRE_PREFILL));
    token(b, D0, c, 0, 0, 4, TD_FINISH_LENGTH);
    end(b, D0, c, 0, TD_OK);
    assert_int_equal(find(b, RT_DO_END, 0, 0)->err, TD_OK);
    assert_int_equal(rt_core_count(b->core, RT_FREE), 64);
}

static void a_gap_in_reports_asks_for_a_full_one(void **state)
{
    struct bench *b = *state;
    pair(b);
    struct td_wire_msg m = {.type = TD_WIRE_STATE,
                            .state = {.seq = 9, .ready = true, .role = TD_ROLE_PREFILL}};
    step(b, &(struct rt_event){.type = RT_EV_NODE_MSG, .node_epoch = P0, .msg = &m}, NULL);
    assert_non_null(find(b, RT_DO_SEND, P0, TD_WIRE_STATE_REQUEST));
}

static void draining_refuses_new_requests(void **state)
{
    struct bench *b = *state;
    pair(b);
    step(b, &(struct rt_event){.type = RT_EV_DRAIN}, NULL);
    assert_int_equal(submit(b, 3, 0), 0);
    assert_int_equal(find(b, RT_DO_END, 0, 0)->err, TD_ERR_DRAINING);
}

static void drain_node(struct bench *b, uint64_t node, bool undo)
{
    struct td_wire_drain d = {.limit_ms = 7, .why = "upgrade", .undo = undo};
    step(b, &(struct rt_event){.type = RT_EV_NODE_DRAIN, .node_epoch = node, .drain = &d}, NULL);
}

static void a_drained_node_gets_nothing_new_until_it_is_taken_back(void **state)
{
    struct bench *b = *state;
    pair(b);
    uint64_t running = submit(b, 3, 0);
    drain_node(b, D0, false);
    const struct rt_action *a = find(b, RT_DO_SEND, D0, TD_WIRE_DRAIN);
    assert_non_null(a);
    assert_int_equal(a->msg->drain.limit_ms, 7);
    assert_string_equal(a->msg->drain.why, "upgrade");
    assert_false(a->msg->drain.undo);
    node_state(b, D0, TD_ROLE_DECODE, 0, 100); /* sent before the node heard of it */
    assert_int_equal(submit(b, 3, 0), 0);
    assert_int_equal(find(b, RT_DO_END, 0, 0)->err, TD_ERR_NO_NODE);
    token(b, P0, running, 0, 0, 11, TD_FINISH_NONE); /* what runs goes on */
    assert_non_null(find(b, RT_DO_TOKEN, 0, 0));
    drain_node(b, D0, true);
    assert_true(find(b, RT_DO_SEND, D0, TD_WIRE_DRAIN)->msg->drain.undo);
    assert_int_not_equal(submit(b, 3, 0), 0);
    drain_node(b, 0xee, false); /* unknown: gone meanwhile */
    assert_null(find(b, RT_DO_SEND, 0xee, TD_WIRE_DRAIN));
}

static void report_draining(struct bench *b, uint64_t node, bool draining)
{
    struct td_wire_msg m = {.type = TD_WIRE_STATE};
    m.state = (struct td_wire_state){.seq = ++b->state_seq[node],
                                     .full = true,
                                     .ready = true,
                                     .draining = draining,
                                     .role = TD_ROLE_DECODE};
    m.state.blocks[TD_BLK_FREE] = 100;
    step(b, &(struct rt_event){.type = RT_EV_NODE_MSG, .node_epoch = node, .msg = &m}, NULL);
}

/* Whichever router was asked to take it back. */
static void a_node_drained_here_and_taken_back_elsewhere_serves_again(void **state)
{
    struct bench *b = *state;
    pair(b);
    drain_node(b, D0, false);
    report_draining(b, D0, false); /* was under way when the drain was asked for */
    assert_int_equal(submit(b, 3, 0), 0);
    report_draining(b, D0, true);
    assert_int_equal(submit(b, 3, 0), 0);
    report_draining(b, D0, false);
    assert_int_not_equal(submit(b, 3, 0), 0);
}

static void each_attempt_keeps_where_it_went_and_why(void **state)
{
    struct bench *b = *state;
    pair(b);
    node_up(b, P1, TD_ROLE_PREFILL, 1);
    node_up(b, D1, TD_ROLE_DECODE, 1);
    drain_node(b, D1, false);
    node_state(b, P1, TD_ROLE_PREFILL, 100, 100); /* the slower choice */
    b->now += 5000;
    uint64_t c = submit(b, 3, 0);
    struct rt_request_view v;
    assert_true(rt_core_request(b->core, c, &v));
    const struct rt_decision_record *first = rt_core_decision(b->core, v.decision);
    assert_non_null(first);
    assert_int_equal(first->attempt, 0);
    assert_int_equal(first->submit_us, b->now);
    assert_int_equal(first->n_candidates, 2);
    assert_int_equal(first->candidates[0].p_epoch, P0); /* the chosen one first */
    assert_int_equal(first->candidates[1].p_epoch, P1);
    assert_true(first->candidates[1].score_us > first->candidates[0].score_us);
    assert_int_equal(first->n_skipped, 1);
    assert_string_equal(first->skipped[0].why, "draining");
    b->now += 9000;
    lost(b, P0);
    assert_int_equal(first->failure, TD_ERR_PEER_LOST);
    assert_int_equal(first->failed_us, b->now);
    assert_true(rt_core_request(b->core, c, &v));
    const struct rt_decision_record *second = rt_core_decision(b->core, v.decision);
    assert_int_equal(second->attempt, 1);
    assert_int_equal(second->previous, first->number);
    assert_int_equal(second->at_us, b->now);
    assert_int_equal(second->failed_us, 0);
    token(b, P1, c, 1, 0, 11, TD_FINISH_STOP);
    const struct rt_action *e = find(b, RT_DO_END, 0, 0);
    assert_non_null(e);
    assert_int_equal(e->decision, second->number);
    assert_null(rt_core_decision(b->core, 0));
    assert_null(rt_core_decision(b->core, second->number + 1));
}

static void old_decisions_give_way(void **state)
{
    struct bench *b = *state;
    pair(b);
    uint64_t first = 0;
    for (uint32_t i = 0; i <= RT_DECISIONS; i++) {
        uint64_t c = submit(b, 1, 0);
        struct rt_request_view v;
        assert_true(rt_core_request(b->core, c, &v));
        first = i == 0 ? v.decision : first;
        assert_int_equal(rt_core_decision(b->core, v.decision)->counter, c);
        token(b, P0, c, 0, 0, 11, TD_FINISH_LENGTH);
        end(b, P0, c, 0, TD_OK);
        end(b, D0, c, 0, TD_OK);
        assert_false(rt_core_request(b->core, c, &v));
    }
    assert_null(rt_core_decision(b->core, first));
    assert_non_null(rt_core_decision(b->core, first + 1));
}

static void creation_survives_failing_allocations(void **state)
{
    (void)state;
    struct rt_core_params p = {.epoch = 1, .max_requests = 8};
    struct rt_core *core = NULL;
    for (unsigned n = 1; n < 32; n++) {
        td_mem_fail_nth(n);
        td_err err = rt_core_create(&p, &core);
        td_mem_fail_nth(0);
        if (err == TD_OK) {
            rt_core_destroy(core);
            return;
        }
        assert_int_equal(err, TD_ERR_NO_MEMORY);
    }
    fail_msg("creation never succeeded");
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(a_request_goes_to_both_nodes_and_ends_once),
        T(a_parked_request_is_reserved_after_its_first_token_and_told_when_both_ended),
        T(a_parked_request_that_ends_early_leaves_nothing_on_decode),
        T(new_requests_go_round_a_node_whose_link_is_down),
        T(requests_wait_for_the_only_link_and_its_loss_ends_them),
        T(only_a_node_that_drained_to_its_end_may_leave),
        T(a_node_that_drained_to_its_end_brings_no_warning),
        T(without_nodes_a_request_is_refused_at_once),
        T(a_prompt_that_no_pool_holds_is_too_long_for_good),
        T(nodes_of_unequal_layout_never_pair),
        T(prefill_lost_before_the_first_token_is_replayed_on_another),
        T(prefill_lost_before_decode_spoke_is_replayed_with_the_first_token),
        T(prefill_lost_after_decode_spoke_changes_nothing),
        T(a_replay_waits_for_a_pair_and_then_says_so),
        T(decode_lost_after_tokens_resumes_with_them),
        T(two_deaths_under_one_request_end_it),
        T(replays_are_counted),
        T(a_drained_node_gets_nothing_new_until_it_is_taken_back),
        T(a_node_drained_here_and_taken_back_elsewhere_serves_again),
        T(each_attempt_keeps_where_it_went_and_why),
        T(old_decisions_give_way),
        T(cancel_stops_both_nodes_and_waits_for_them),
        T(a_cancel_that_nobody_asked_for_is_replayed),
        T(an_answer_that_prefill_ended_makes_decode_let_go),
        T(a_full_queue_refuses_and_priority_goes_first),
        T(the_budget_ends_a_silent_request),
        T(a_skipped_token_is_never_shown),
        T(a_node_of_both_roles_prefills_for_itself),
        T(a_gap_in_reports_asks_for_a_full_one),
        T(draining_refuses_new_requests),
        cmocka_unit_test(creation_survives_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
