/* The router inside of a node, by hand and with a role that really serves (the rig). */
#include "common/node/local.h"

#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "decode-node/dc_core.h"
#include "prefill-node/pf_core.h"
#include "tests/unit/check.h"
#include "tests/unit/node/rig.h"

struct heard { /* what the service was told of one work */
    uint32_t n_tokens, n_helds, n_ends;
    struct td_handoff handoff;
    int32_t tokens[64];
    struct nd_local_end end;
};

static void on_token(void *arg, const struct nd_local_token *t)
{
    struct heard *h = arg;
    assert_int_equal(t->index, h->n_tokens);
    assert_int_equal(h->n_ends, 0);
    h->tokens[h->n_tokens++] = t->token;
}

static void on_end(void *arg, const struct nd_local_end *e)
{
    struct heard *h = arg;
    h->n_ends++;
    h->end = *e;
    h->end.text = NULL;
}

static void on_held(void *arg, const struct td_handoff *handoff)
{
    struct heard *h = arg;
    assert_int_equal(h->n_tokens, 1);
    assert_int_equal(h->n_ends, 0);
    h->n_helds++;
    h->handoff = *handoff;
}

static const struct nd_local_ops ops = {.on_token = on_token, .on_held = on_held, .on_end = on_end};

#define HOLD_MS 90000u

static struct nd_local *make_at(enum td_role role, uint64_t epoch, uint32_t node)
{
    static const uint8_t address[] = "address of p";
    struct nd_local_params p = {.epoch = epoch,
                                .node_epoch = 0xe000 + node,
                                .role = role,
                                .layout_id = RIG_LAYOUT_ID,
                                .numerics_id = RIG_NUMERICS,
                                .hold_ms = HOLD_MS,
                                .address = address,
                                .address_len = sizeof address,
                                .max_tokens = 2 * RIG_MAX_ROWS};
    struct nd_local *l = NULL;
    assert_int_equal(nd_local_create(&p, &l), TD_OK);
    return l;
}

static struct nd_local *make(enum td_role role)
{
    return make_at(role, RIG_ROUTER, 0);
}

static struct nd_local_request whole(const struct td_wire_request *q)
{
    return (struct nd_local_request){.mode = ND_LOCAL_WHOLE,
                                     .request_id = "r",
                                     .budget_ms = 60000,
                                     .prompt = q->prompt,
                                     .n_prompt = q->n_prompt,
                                     .sampling = q->sampling};
}

static void hear(struct nd_local *l)
{
    struct nd_local_word w;
    while (nd_local_next(l, &w)) {
        if (w.type == ND_LOCAL_TOKEN) {
            w.ops->on_token(w.arg, &w.token);
        } else if (w.type == ND_LOCAL_HELD) {
            w.ops->on_held(w.arg, w.handoff);
        } else if (w.type == ND_LOCAL_END) {
            w.ops->on_end(w.arg, &w.end);
        }
    }
    assert_int_equal(nd_local_check(l), TD_OK);
}

/* The role's words since mail `from`. */
static void carry(const struct rig *r, struct nd_local *l, uint32_t *from)
{
    for (; *from < r->n_mail; (*from)++) {
        if (r->mail[*from].to == nd_local_epoch(l)) {
            nd_local_take(l, &r->mail[*from].msg);
        }
    }
    hear(l);
}

static void whole_requests_are_answered_by_the_role(void **state)
{
    enum { N = 6 };
    (void)state;
    struct rig *r = rig_create();
    struct rig_params both = {.local_prefill = true};
    struct nd_local *l = make(TD_ROLE_BOTH);
    struct heard h[N] = {0};
    uint32_t at = 0;
    assert_int_equal(rig_add(r, &dc_role_ops, &both), 0);
    for (uint32_t i = 0; i < N; i++) {
        struct td_wire_request q = rig_request(i, 10 + 20 * i, 5 + i);
        struct nd_local_request lr = whole(&q);
        struct td_wire_msg m;
        uint64_t ref = 0;
        assert_int_equal(nd_local_submit(l, &lr, NULL, &ops, &h[i], &ref, &m), TD_OK);
        rig_msg(r, 0, &m, TD_OK);
    }
    assert_int_equal(nd_local_count(l), N);
    rig_settle(r);
    carry(r, l, &at);
    for (uint32_t i = 0; i < N; i++) {
        struct td_wire_request q = rig_request(i, 10 + 20 * i, 5 + i);
        assert_int_equal(h[i].n_ends, 1);
        assert_int_equal(h[i].end.err, TD_OK);
        assert_int_equal(h[i].end.finish, TD_FINISH_LENGTH);
        assert_int_equal(h[i].end.stages.output_tokens, 5 + i);
        assert_int_equal(h[i].n_tokens, 5 + i);
        for (uint32_t k = 0; k < 5 + i; k++) {
            assert_int_equal(h[i].tokens[k], rig_expect(&q, k));
        }
    }
    assert_int_equal(nd_local_count(l), 0);
    rig_assert_idle(r, 0);
    (void)nd_local_destroy(l);
    (void)rig_destroy(r);
}

static void a_cancel_ends_a_work_once_and_a_late_one_is_nothing(void **state)
{
    (void)state;
    struct rig *r = rig_create();
    struct rig_params both = {.local_prefill = true};
    struct nd_local *l = make(TD_ROLE_BOTH);
    struct heard h = {0};
    uint32_t at = 0;
    assert_int_equal(rig_add(r, &dc_role_ops, &both), 0);
    struct td_wire_request q = rig_request(1, 40, 20);
    struct nd_local_request lr = whole(&q);
    struct td_wire_msg m;
    uint64_t ref = 0;
    assert_int_equal(nd_local_submit(l, &lr, NULL, &ops, &h, &ref, &m), TD_OK);
    rig_msg(r, 0, &m, TD_OK);
    rig_deliver(r);
    assert_true(nd_local_cancel(l, ref, &m));
    rig_msg(r, 0, &m, TD_OK);
    rig_settle(r);
    carry(r, l, &at);
    assert_int_equal(h.n_ends, 1);
    assert_int_equal(h.end.err, TD_ERR_CANCELLED);
    assert_int_equal(h.end.finish, TD_FINISH_NONE);
    assert_false(nd_local_cancel(l, ref, &m));
    rig_assert_idle(r, 0);
    (void)nd_local_destroy(l);
    (void)rig_destroy(r);
}

static struct td_wire_msg end_of(const struct nd_local *l, uint64_t ref)
{
    struct td_wire_msg m = {.type = TD_WIRE_END};
    m.end = (struct td_wire_end){.id = {.router_epoch = nd_local_epoch(l), .counter = ref},
                                 .err = TD_ERR_BUDGET,
                                 .text = "spent",
                                 .stages.transport = ""};
    return m;
}

/* A role may say a token again, and may speak of a work after its end. */
static void what_the_role_says_twice_or_late_is_said_once(void **state)
{
    (void)state;
    struct nd_local *l = make(TD_ROLE_BOTH);
    static struct heard h;
    h = (struct heard){0};
    struct td_wire_request q = rig_request(1, 10, 3);
    struct nd_local_request ask = whole(&q);
    struct td_wire_msg m, cancel;
    uint64_t ref;
    assert_int_equal(nd_local_submit(l, &ask, NULL, &ops, &h, &ref, &m), TD_OK);
    struct td_wire_token t = {.id = m.reserve.r.id, .token = 5};
    struct td_wire_msg tokens = {.type = TD_WIRE_TOKENS, .tokens = {.tokens = &t, .n = 1}};
    struct td_wire_msg end = {.type = TD_WIRE_END, .end = {.id = t.id, .text = ""}};
    nd_local_take(l, &tokens);
    nd_local_take(l, &tokens);
    nd_local_take(l, &end);
    assert_false(nd_local_cancel(l, ref, &cancel)); /* over, though nobody has heard it yet */
    t.index = 1;
    nd_local_take(l, &tokens);
    nd_local_take(l, &end);
    hear(l);
    assert_int_equal(h.n_tokens, 1);
    assert_int_equal(h.n_ends, 1);
    assert_int_equal(nd_local_check(l), TD_OK);
    assert_int_equal(nd_local_count(l), 0);
    (void)nd_local_destroy(l);
}

static void nothing_is_said_of_a_detached_work(void **state)
{
    (void)state;
    struct nd_local *l = make(TD_ROLE_BOTH);
    struct heard h = {0};
    struct td_wire_request q = rig_request(1, 4, 2);
    struct nd_local_request lr = whole(&q);
    struct td_wire_msg m;
    uint64_t ref = 0;
    assert_int_equal(nd_local_submit(l, &lr, NULL, &ops, &h, &ref, &m), TD_OK);
    nd_local_detach(l, ref);
    m = end_of(l, ref);
    nd_local_take(l, &m);
    hear(l);
    assert_int_equal(h.n_ends, 0);
    assert_int_equal(nd_local_count(l), 0);
    nd_local_detach(l, ref); /* over: nothing */
    (void)nd_local_destroy(l);
}

static void works_are_bounded_and_their_numbers_never_come_twice(void **state)
{
    (void)state;
    static uint64_t refs[ND_LOCAL_MAX_WORKS];
    struct nd_local *l = make(TD_ROLE_BOTH);
    struct heard h = {0};
    struct td_wire_request q = rig_request(1, 4, 2);
    struct nd_local_request lr = whole(&q);
    struct td_wire_msg m;
    uint64_t ref = 0;
    for (uint32_t i = 0; i < ND_LOCAL_MAX_WORKS; i++) {
        assert_int_equal(nd_local_submit(l, &lr, NULL, &ops, &h, &refs[i], &m), TD_OK);
    }
    assert_int_equal(nd_local_submit(l, &lr, NULL, &ops, &h, &ref, &m), TD_ERR_OVERLOADED);
    for (uint32_t i = 0; i < ND_LOCAL_MAX_WORKS; i++) {
        m = end_of(l, refs[i]);
        nd_local_take(l, &m);
        nd_local_take(l, &m); /* a second end is nobody's */
    }
    hear(l);
    assert_int_equal(h.n_ends, ND_LOCAL_MAX_WORKS);
    assert_int_equal(nd_local_submit(l, &lr, NULL, &ops, &h, &ref, &m), TD_OK);
    for (uint32_t i = 0; i < ND_LOCAL_MAX_WORKS; i++) {
        assert_true(refs[i] != ref);
    }
    (void)nd_local_destroy(l);
}

static void a_mode_that_the_role_does_not_serve_is_refused(void **state)
{
    (void)state;
    static const enum td_role roles[] = {TD_ROLE_PREFILL, TD_ROLE_DECODE};
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        struct nd_local *l = make(roles[i]);
        struct td_wire_request q = rig_request(1, 4, 2);
        struct nd_local_request lr = whole(&q);
        struct td_wire_msg m;
        uint64_t ref = 0;
        assert_int_equal(nd_local_submit(l, &lr, NULL, &ops, NULL, &ref, &m), TD_ERR_UNSUPPORTED);
        assert_int_equal(nd_local_count(l), 0);
        (void)nd_local_destroy(l);
    }
}

/* Whoever takes may come, and then wait for room, as long as the prompt is held. */
static void tickets_live_as_long_as_the_hold(void **state)
{
    (void)state;
    static struct heard h;
    static const uint8_t nonce[16] = {7};
    struct td_wire_request q = rig_request(1, 10, 3);
    struct nd_local_request r = whole(&q);
    struct td_wire_msg m;
    uint64_t ref;
    struct nd_local *p = make(TD_ROLE_PREFILL), *d = make_at(TD_ROLE_DECODE, 5, 1);
    r.mode = ND_LOCAL_HOLD;
    assert_int_equal(nd_local_submit(p, &r, nonce, &ops, &h, &ref, &m), TD_OK);
    assert_int_equal(m.prefill.hold_ms, HOLD_MS);
    assert_int_equal(m.prefill.ticket.life_ms, HOLD_MS);
    struct td_handoff handoff = {.p_epoch = 0xe000,
                                 .id = m.prefill.r.id,
                                 .nonce = {7},
                                 .hold_ms = 1234,
                                 .n_prompt = q.n_prompt,
                                 .prompt_hash = nd_local_prompt_hash(q.prompt, q.n_prompt),
                                 .layout_id = RIG_LAYOUT_ID,
                                 .numerics_id = RIG_NUMERICS,
                                 .address_len = 4};
    r.mode = ND_LOCAL_TAKE;
    r.handoff = &handoff;
    assert_int_equal(nd_local_submit(d, &r, NULL, &ops, &h, &ref, &m), TD_OK);
    assert_int_equal(m.reserve.ticket.life_ms, 1234);
    assert_int_equal(m.reserve.ticket.p_epoch, 0xe000);
    assert_int_equal(m.reserve.ticket.d_epoch, 0xe001);
    assert_memory_equal(m.reserve.ticket.nonce, nonce, sizeof nonce);
    (void)nd_local_destroy(p);
    (void)nd_local_destroy(d);
}

static void a_prompt_and_a_budget_are_needed(void **state)
{
    (void)state;
    struct nd_local *l = make(TD_ROLE_BOTH);
    struct td_wire_request q = rig_request(1, 4, 2);
    struct nd_local_request none = whole(&q);
    struct nd_local_request late = whole(&q);
    struct td_wire_msg m;
    uint64_t ref = 0;
    none.n_prompt = 0;
    late.budget_ms = 0;
    assert_int_equal(nd_local_submit(l, &none, NULL, &ops, NULL, &ref, &m), TD_ERR_BAD_REQUEST);
    assert_int_equal(nd_local_submit(l, &late, NULL, &ops, NULL, &ref, &m), TD_ERR_BAD_REQUEST);
    (void)nd_local_destroy(l);
}

static void creation_survives_each_failing_allocation(void **state)
{
    (void)state;
    struct nd_local_params p = {.epoch = 1, .node_epoch = 2, .role = TD_ROLE_BOTH, .max_tokens = 4};
    struct nd_local *l = NULL;
    td_err e = TD_ERR_NO_MEMORY;
    unsigned n = 0;
    while (e == TD_ERR_NO_MEMORY) {
        td_mem_fail_nth(++n);
        e = nd_local_create(&p, &l);
        td_mem_fail_nth(0);
    }
    assert_int_equal(e, TD_OK);
    assert_true(n > 3);
    (void)nd_local_destroy(l);
}

/* ---- an outside router: one prefill node, two decode nodes ---- */

#define P  0u
#define D1 1u
#define D2 2u

struct outside {
    struct rig *r;
    struct nd_local *local[3];
    uint32_t at[3]; /* mail read */
};

static struct outside *outside_create(void)
{
    static struct outside o;
    static const uint64_t epochs[] = {0x1111, 0x2222, 0x3333};
    o = (struct outside){.r = rig_create()};
    for (uint32_t i = 0; i < 3; i++) {
        struct rig_params p = {.local_epoch = epochs[i]};
        assert_int_equal(rig_add(o.r, i == P ? &pf_role_ops : &dc_role_ops, &p), i);
        o.local[i] = make_at(i == P ? TD_ROLE_PREFILL : TD_ROLE_DECODE, epochs[i], i);
    }
    return &o;
}

static void hear_all(struct outside *o)
{
    for (uint32_t i = 0; i < 3; i++) {
        carry(o->r, o->local[i], &o->at[i]);
    }
}

static void run(struct outside *o)
{
    rig_settle(o->r);
    hear_all(o);
}

/* All is given back everywhere. */
static void outside_destroy(struct outside *o)
{
    for (uint32_t i = 0; i < 3; i++) {
        if (!o->r->node[i].dead) {
            rig_assert_idle(o->r, i);
            assert_int_equal(nd_local_count(o->local[i]), 0);
        }
        o->local[i] = nd_local_destroy(o->local[i]);
    }
    o->r = rig_destroy(o->r);
}

/* The request as the outside router sends it to prefill: one token is wanted. */
static uint64_t hold(struct outside *o, const struct td_wire_request *q, struct heard *h)
{
    struct nd_local_request lr = whole(q);
    struct td_wire_msg m;
    uint8_t nonce[16] = {9, 8, 7, [15] = (uint8_t)q->id.counter};
    uint64_t ref = 0;
    lr.mode = ND_LOCAL_HOLD;
    lr.sampling.max_tokens = 1;
    assert_int_equal(nd_local_submit(o->local[P], &lr, nonce, &ops, h, &ref, &m), TD_OK);
    rig_msg(o->r, P, &m, TD_OK);
    return ref;
}

static td_err try_take(struct outside *o, uint32_t d, const struct td_wire_request *q,
                       const struct td_handoff *handoff, struct heard *h)
{
    struct nd_local_request lr = whole(q);
    struct td_wire_msg m;
    uint64_t ref = 0;
    lr.mode = ND_LOCAL_TAKE;
    lr.handoff = handoff;
    lr.sampling.seed = 0xdead; /* the hand-off's counts */
    TD_TRY(nd_local_submit(o->local[d], &lr, NULL, &ops, h, &ref, &m));
    rig_msg(o->r, d, &m, TD_OK);
    return TD_OK;
}

static void take(struct outside *o, uint32_t d, const struct td_wire_request *q,
                 const struct heard *held, struct heard *h)
{
    assert_int_equal(held->n_helds, 1);
    assert_int_equal(try_take(o, d, q, &held->handoff, h), TD_OK);
}

static void assert_whole(const struct heard *h, const struct td_wire_request *q)
{
    assert_int_equal(h->n_ends, 1);
    assert_int_equal(h->end.err, TD_OK);
    assert_int_equal(h->end.finish, TD_FINISH_LENGTH);
    assert_int_equal(h->n_tokens, q->sampling.max_tokens);
    for (uint32_t k = 0; k < h->n_tokens; k++) {
        assert_int_equal(h->tokens[k], rig_expect(q, k));
    }
}

static void a_held_prompt_is_taken_and_gives_the_tokens_of_one_engine(void **state)
{
    enum { N = 8 };
    (void)state;
    struct outside *o = outside_create();
    static struct heard held[N], taken[N];
    memset(held, 0, sizeof held);
    memset(taken, 0, sizeof taken);
    for (uint32_t i = 0; i < N; i++) {
        struct td_wire_request q = rig_request(i, 10 + 20 * i, 1 + 3 * i);
        hold(o, &q, &held[i]);
    }
    run(o);
    for (uint32_t i = 0; i < N; i++) {
        struct td_wire_request q = rig_request(i, 10 + 20 * i, 1 + 3 * i);
        assert_int_equal(held[i].n_ends, 0);
        assert_int_equal(held[i].tokens[0], rig_expect(&q, 0));
        take(o, i % 2 == 0 ? D1 : D2, &q, &held[i], &taken[i]);
    }
    run(o);
    for (uint32_t i = 0; i < N; i++) {
        struct td_wire_request q = rig_request(i, 10 + 20 * i, 1 + 3 * i);
        assert_whole(&taken[i], &q);
        assert_int_equal(held[i].n_ends, 1);
        assert_int_equal(held[i].end.err, TD_OK);
        assert_int_equal(held[i].n_tokens, 1);
    }
    outside_destroy(o);
}

static void a_hold_outlives_the_budget_of_its_request_but_not_its_time(void **state)
{
    (void)state;
    struct outside *o = outside_create();
    static struct heard a, b, taken, late;
    a = b = taken = late = (struct heard){0};
    struct td_wire_request q = rig_request(1, 100, 5);
    struct td_wire_request other = rig_request(2, 50, 5);
    hold(o, &q, &a);
    hold(o, &other, &b);
    run(o);
    rig_pass(o->r, 80 * RIG_SECOND); /* the budget was 60 */
    take(o, D1, &q, &a, &taken);
    run(o);
    assert_whole(&taken, &q);
    rig_pass(o->r, 10 * RIG_SECOND);
    hear_all(o);
    assert_int_equal(b.n_ends, 1);
    assert_int_equal(b.end.err, TD_ERR_LEASE);
    take(o, D2, &other, &b, &late);
    run(o);
    assert_int_equal(late.n_ends, 1);
    assert_int_equal(late.end.err, TD_ERR_LEASE);
    assert_int_equal(late.n_tokens, 0);
    outside_destroy(o);
}

static void of_two_takers_one_wins_and_the_other_is_told_stale(void **state)
{
    (void)state;
    for (uint32_t second = D1; second <= D2; second++) { /* the same node, and another */
        for (uint32_t later = 0; later < 2; later++) {   /* at once, and when all is over */
            struct outside *o = outside_create();
            static struct heard held, first, last;
            held = first = last = (struct heard){0};
            struct td_wire_request q = rig_request(1, 100, 5);
            hold(o, &q, &held);
            run(o);
            take(o, D1, &q, &held, &first);
            if (later > 0) {
                run(o);
            }
            take(o, second, &q, &held, &last);
            run(o);
            assert_whole(&first, &q);
            assert_int_equal(last.n_ends, 1);
            assert_int_equal(last.end.err, TD_ERR_STALE);
            assert_int_equal(last.n_tokens, 0);
            assert_int_equal(held.end.err, TD_OK);
            outside_destroy(o);
        }
    }
}

static void who_does_not_know_the_nonce_gets_nothing_and_harms_nobody(void **state)
{
    (void)state;
    struct outside *o = outside_create();
    static struct heard held, wrong, right;
    held = wrong = right = (struct heard){0};
    struct td_wire_request q = rig_request(1, 100, 5);
    hold(o, &q, &held);
    run(o);
    for (size_t i = 0; i < sizeof held.handoff.nonce; i++) {
        struct td_handoff guess = held.handoff;
        guess.nonce[i] ^= 0x10;
        wrong = (struct heard){0};
        assert_int_equal(try_take(o, D2, &q, &guess, &wrong), TD_OK);
        run(o);
        assert_int_equal(wrong.n_ends, 1);
        assert_int_equal(wrong.end.err, TD_ERR_STALE);
    }
    struct td_handoff other = held.handoff;
    other.id.counter++; /* a work that never was */
    wrong = (struct heard){0};
    assert_int_equal(try_take(o, D2, &q, &other, &wrong), TD_OK);
    run(o);
    assert_int_equal(wrong.end.err, TD_ERR_STALE);
    assert_int_equal(held.n_ends, 0);
    take(o, D1, &q, &held, &right);
    run(o);
    assert_whole(&right, &q);
    outside_destroy(o);
}

static void what_does_not_fit_is_refused_before_prefill_is_asked(void **state)
{
    (void)state;
    struct outside *o = outside_create();
    static struct heard held, h;
    held = h = (struct heard){0};
    struct td_wire_request q = rig_request(1, 100, 5);
    hold(o, &q, &held);
    run(o);
    struct td_handoff bad = held.handoff;
    bad.layout_id++;
    assert_int_equal(try_take(o, D1, &q, &bad, &h), TD_ERR_PEER_MODEL);
    bad = held.handoff;
    bad.numerics_id++;
    assert_int_equal(try_take(o, D1, &q, &bad, &h), TD_ERR_PEER_MODEL);
    struct td_wire_request mixed_up = rig_request(2, 100, 5);
    assert_int_equal(try_take(o, D1, &mixed_up, &held.handoff, &h), TD_ERR_BAD_REQUEST);
    struct td_wire_request shorter = rig_request(1, 99, 5);
    assert_int_equal(try_take(o, D1, &shorter, &held.handoff, &h), TD_ERR_BAD_REQUEST);
    bad = held.handoff;
    bad.address_len = 0;
    assert_int_equal(try_take(o, D1, &q, &bad, &h), TD_ERR_BAD_REQUEST);
    assert_int_equal(try_take(o, D1, &q, NULL, &h), TD_ERR_BAD_REQUEST);
    assert_int_equal(nd_local_count(o->local[D1]), 0);
    take(o, D1, &q, &held, &h);
    run(o);
    assert_whole(&h, &q);
    outside_destroy(o);
}

static void a_cancelled_hold_gives_its_blocks_back_at_once(void **state)
{
    (void)state;
    struct outside *o = outside_create();
    static struct heard held, late;
    held = late = (struct heard){0};
    struct td_wire_request q = rig_request(1, 100, 5);
    uint64_t ref = hold(o, &q, &held);
    struct td_wire_msg m;
    run(o);
    assert_true(nd_local_cancel(o->local[P], ref, &m));
    rig_msg(o->r, P, &m, TD_OK);
    run(o);
    assert_int_equal(held.end.err, TD_ERR_CANCELLED);
    rig_assert_idle(o->r, P);
    take(o, D1, &q, &held, &late);
    run(o);
    assert_int_equal(late.end.err, TD_ERR_STALE);
    outside_destroy(o);
}

static void a_death_between_hold_and_take_or_in_a_take_is_told(void **state)
{
    static const uint32_t victims[] = {P, D1};
    (void)state;
    for (size_t i = 0; i < sizeof victims / sizeof victims[0]; i++) {
        struct outside *o = outside_create();
        static struct heard held, taken;
        held = taken = (struct heard){0};
        struct td_wire_request q = rig_request(1, 100, 5);
        hold(o, &q, &held);
        run(o);
        o->r->node[P].hold_pushes = true; /* the KV is under way */
        take(o, D1, &q, &held, &taken);
        rig_deliver(o->r);
        rig_kill(o->r, victims[i]);
        run(o);
        if (victims[i] == P) {
            assert_int_equal(taken.n_ends, 1);
            assert_int_equal(taken.end.err, TD_ERR_PEER_LOST);
        } else {
            assert_int_equal(held.n_ends, 1);
            assert_int_equal(held.end.err, TD_ERR_PEER_LOST);
        }
        outside_destroy(o);
    }
}

static void a_first_token_that_ends_the_answer_is_told_by_who_takes(void **state)
{
    (void)state;
    struct outside *o = outside_create();
    static struct heard held, taken;
    held = taken = (struct heard){0};
    struct td_wire_request q = rig_request(1, 100, 5);
    q.sampling.n_stop_ids = 1;
    q.sampling.stop_ids[0] = rig_expect(&q, 0);
    hold(o, &q, &held);
    run(o);
    take(o, D1, &q, &held, &taken);
    run(o);
    assert_int_equal(taken.n_tokens, 1);
    assert_int_equal(taken.end.err, TD_OK);
    assert_int_equal(taken.end.finish, TD_FINISH_STOP);
    assert_int_equal(held.end.err, TD_OK);
    outside_destroy(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_requests_are_answered_by_the_role),
        cmocka_unit_test(a_cancel_ends_a_work_once_and_a_late_one_is_nothing),
        cmocka_unit_test(what_the_role_says_twice_or_late_is_said_once),
        cmocka_unit_test(nothing_is_said_of_a_detached_work),
        cmocka_unit_test(works_are_bounded_and_their_numbers_never_come_twice),
        cmocka_unit_test(a_mode_that_the_role_does_not_serve_is_refused),
        cmocka_unit_test(tickets_live_as_long_as_the_hold),
        cmocka_unit_test(a_prompt_and_a_budget_are_needed),
        cmocka_unit_test(a_held_prompt_is_taken_and_gives_the_tokens_of_one_engine),
        cmocka_unit_test(a_hold_outlives_the_budget_of_its_request_but_not_its_time),
        cmocka_unit_test(of_two_takers_one_wins_and_the_other_is_told_stale),
        cmocka_unit_test(who_does_not_know_the_nonce_gets_nothing_and_harms_nobody),
        cmocka_unit_test(what_does_not_fit_is_refused_before_prefill_is_asked),
        cmocka_unit_test(a_cancelled_hold_gives_its_blocks_back_at_once),
        cmocka_unit_test(a_death_between_hold_and_take_or_in_a_take_is_told),
        cmocka_unit_test(a_first_token_that_ends_the_answer_is_told_by_who_takes),
        cmocka_unit_test(creation_survives_each_failing_allocation),
    };
    td_log_set_level(TD_LOG_ERROR);
    return cmocka_run_group_tests_name("node/local", tests, NULL, NULL);
}
