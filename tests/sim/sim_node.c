/* Design: the node shell (common/node/node.c, node_link.c) without sockets. It also remembers what the
 * core has said about each request, to see that an end is an end. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "decode-node/dc_core.h"
#include "prefill-node/pf_core.h"
#include "tests/sim/sim.h"

#define STATE_MIN_US  (250 * SIM_MS)
#define STATE_IDLE_US (2 * SIM_SECOND)
#define LAYOUT_ID     77u
#define NUMERICS_ID   88u
#define MAX_WAITS     512u

/* ---- what it has said ---- */

struct sim_work *sim_node_work(struct sim_proc *p, const struct td_work_id *id)
{
    struct sim_node *n = p->node;
    for (uint32_t i = n->n_works; i-- > 0;) {
        if (td_work_id_eq(&n->works[i].id, id)) {
            return &n->works[i];
        }
    }
    if (n->n_works == n->cap_works) {
        n->cap_works = n->cap_works * 2 + 64;
        n->works = realloc(n->works, n->cap_works * sizeof *n->works);
        TD_INSIST(n->works != NULL);
    }
    n->works[n->n_works] = (struct sim_work){.id = *id};
    return &n->works[n->n_works++];
}

struct sim_work *sim_node_by_handle(struct sim_proc *p, uint64_t handle)
{
    struct sim_node *n = p->node;
    for (uint32_t i = n->n_works; i-- > 0;) {
        if (n->works[i].handle == handle) {
            return &n->works[i];
        }
    }
    return NULL;
}

static void hear(struct sim *s, struct sim_proc *p, const struct td_wire_msg *m)
{
    struct sim_work *w;
    if (m->type == TD_WIRE_TOKENS) {
        for (uint32_t i = 0; i < m->tokens.n; i++) {
            w = sim_node_work(p, &m->tokens.tokens[i].id);
            if (w->n_ends > 0 || w->cancelled) {
                sim_fail(s, "%s: a token of request %" PRIu64 " after its %s", p->name,
                         w->id.counter, w->cancelled ? "cancel" : "end");
            }
        }
    } else if (m->type == TD_WIRE_END) {
        w = sim_node_work(p, &m->end.id);
        if (w->n_ends++ > 0) {
            sim_fail(s, "%s: request %" PRIu64 " attempt %u ends twice", p->name, w->id.counter,
                     w->id.attempt);
        }
    } else if (m->type == TD_WIRE_CANCEL_ACK) {
        sim_node_work(p, &m->cancel_ack.id)->cancelled = true;
    }
}

/* ---- actions ---- */

static void trace_message(struct sim *s, const struct sim_proc *p, const char *verb, uint64_t peer,
                          const struct td_wire_msg *m)
{
    static const struct td_work_id nobody;
    if (s->verbose) {
        const struct td_work_id *id = td_wire_id(m);
        id = id != NULL ? id : &nobody;
        const struct sim_req *r = sim_req_of(s, id);
        td_err err = m->type == TD_WIRE_END     ? m->end.err
                     : m->type == TD_WIRE_TAKEN ? m->taken.err
                     : m->type == TD_WIRE_ABORT ? m->abort.err
                                                : TD_OK;
        sim_trace(s, "%s %s %s: peer %016" PRIx64 " request %d attempt %u %s", p->name, verb,
                  td_wire_type_name(m->type), peer, r != NULL ? (int)r->index : -1, id->attempt,
                  err != TD_OK ? td_err_code(err) : "");
    }
}

static void trace_command(struct sim *s, const struct sim_proc *p, const struct nd_action *a)
{
    static const char *const what[] = {"connects", "sends",        "lands", "unlands",
                                       "pushes",   "cancels push", "closes"};
    if (a->cmd.type == TD_XFER_SEND) {
        trace_message(s, p, "tells", a->cmd.epoch, a->msg);
        sim_fault_moment(s, p, a->msg->type);
        return;
    }
    sim_trace(s, "%s %s: peer %016" PRIx64 " land %" PRIx64 " push %" PRIx64 " blocks %u", p->name,
              what[a->cmd.type], a->cmd.epoch, a->cmd.land, a->cmd.push, a->cmd.n_blocks);
}

static void send(struct sim *s, struct sim_proc *p, uint64_t router, const struct td_wire_msg *m)
{
    const struct td_work_id *id = td_wire_id(m);
    uint64_t key = m->type == TD_WIRE_STATE ? 0 : (id != NULL ? id->router_epoch : router);
    if (sim_net_session(p, router) != NULL && !sim_net_send(s, p, router, key, m)) {
        sim_net_drop(s, p, router, TD_ERR_FULL);
        TD_INSIST(p->n_lost < SIM_MAX_PROCS);
        p->lost[p->n_lost++] = router;
    }
}

static void carry_out(struct sim *s, struct sim_proc *p)
{
    struct nd_actions *acts = &p->node->acts;
    for (uint32_t i = 0; i < acts->n && !s->failed; i++) {
        const struct nd_action *a = &acts->list[i];
        switch (a->type) {
        case ND_DO_SEND:
            trace_message(s, p, "says", a->router_epoch, a->msg);
            sim_fault_moment(s, p, a->msg->type);
            hear(s, p, a->msg);
            if (a->router_epoch == nd_local_epoch(p->node->local)) {
                nd_local_take(p->node->local, a->msg);
            } else {
                send(s, p, a->router_epoch, a->msg);
            }
            break;
        case ND_DO_SEQ_SET:
            sim_engine_seq_set(s, p, a);
            break;
        case ND_DO_STEP:
            sim_engine_step(s, p, a);
            break;
        case ND_DO_XFER:
            trace_command(s, p, a);
            sim_xfer_cmd(s, p, a);
            break;
        case ND_DO_OBSERVE:
        case ND_DO_DONE:
            break;
        }
    }
    if (acts->overflow) {
        sim_fail(s, "%s: action list overflow", p->name);
    }
}

void sim_node_arm(struct sim *s, struct sim_proc *p)
{
    int64_t at = p->node->ops->next_deadline(p->node->core);
    if (at < p->core_armed) {
        p->core_armed = at;
        sim_post(s, (struct sim_ev){
                        .at = at, .type = SIM_EV_CORE_TICK, .proc = p->index, .life = p->life});
    }
}

static void step(struct sim *s, struct sim_proc *p, const struct nd_event *ev)
{
    struct sim_node *n = p->node;
    nd_actions_reset(&n->acts);
    n->ops->step(n->core, s->now, ev, &n->acts);
    carry_out(s, p);
}

void sim_node_feed(struct sim *s, struct sim_proc *p, const struct nd_event *ev)
{
    step(s, p, ev);
    while (p->n_lost > 0 && !s->failed) {
        struct nd_event lost = {.type = ND_EV_ROUTER_LOST, .router_epoch = p->lost[--p->n_lost]};
        step(s, p, &lost);
    }
    sim_node_arm(s, p);
    sim_node_publish(s, p);
    sim_outside_hear(s, p);
}

/* ---- load ---- */

static void arm_state(struct sim *s, struct sim_proc *p, int64_t at)
{
    if (at < p->state_armed) {
        p->state_armed = at;
        sim_post(s, (struct sim_ev){
                        .at = at, .type = SIM_EV_STATE_TICK, .proc = p->index, .life = p->life});
    }
}

static bool same_load(const struct td_wire_state *a, const struct td_wire_state *b)
{
    return a->draining == b->draining && a->queued_requests == b->queued_requests &&
           a->running_requests == b->running_requests &&
           a->queued_prompt_tok == b->queued_prompt_tok &&
           memcmp(a->blocks, b->blocks, sizeof a->blocks) == 0 &&
           a->prefill_us_per_ktok == b->prefill_us_per_ktok &&
           a->decode_step_us == b->decode_step_us;
}

void sim_node_publish(struct sim *s, struct sim_proc *p)
{
    struct sim_node *n = p->node;
    struct td_wire_state st;
    memset(&st, 0, sizeof st);
    n->ops->state(n->core, &st);
    st.ready = true;
    st.draining = st.draining || n->draining;
    bool changed = !same_load(&st, &n->last_state);
    bool wanted = st.draining != n->last_state.draining;
    for (uint32_t i = 0; i < SIM_MAX_SESSIONS; i++) {
        wanted = wanted || (p->sessions[i].used && p->sessions[i].full_wanted);
    }
    int64_t due = n->state_sent_us + (changed ? STATE_MIN_US : STATE_IDLE_US);
    if (!wanted && s->now < due) {
        arm_state(s, p, due);
        return;
    }
    n->last_state = st;
    n->state_sent_us = s->now;
    for (uint32_t i = 0; i < SIM_MAX_SESSIONS; i++) {
        struct sim_session *x = &p->sessions[i];
        if (x->used) {
            struct td_wire_msg m = {.type = TD_WIRE_STATE, .state = st};
            m.state.seq = ++x->state_seq;
            m.state.full = x->full_wanted;
            x->full_wanted = false;
            (void)sim_net_send(s, p, x->peer_epoch, 0, &m);
        }
    }
    arm_state(s, p, s->now + STATE_IDLE_US);
}

/* ---- events ---- */

static void note_request(struct sim_proc *p, const struct td_wire_msg *m)
{
    const struct td_wire_request *r = m->type == TD_WIRE_PREFILL   ? &m->prefill.r
                                      : m->type == TD_WIRE_RESERVE ? &m->reserve.r
                                                                   : NULL;
    if (r != NULL) {
        sim_node_work(p, &r->id)->n_tok = r->n_prompt;
    }
}

void sim_node_message(struct sim *s, struct sim_proc *p, uint64_t router_epoch,
                      const struct td_wire_msg *m, td_err err)
{
    struct sim_session *x = sim_net_session(p, router_epoch);
    if (m->type == TD_WIRE_STATE_REQUEST) {
        x->full_wanted = true;
        sim_node_publish(s, p);
        return;
    }
    trace_message(s, p, "hears", router_epoch, m);
    note_request(p, m);
    struct nd_event ev = {
        .type = ND_EV_MSG, .router_epoch = router_epoch, .msg = m, .decode_err = err};
    sim_node_feed(s, p, &ev);
}

void sim_node_local(struct sim *s, struct sim_proc *p, const struct td_wire_msg *m)
{
    note_request(p, m);
    struct nd_event ev = {
        .type = ND_EV_MSG, .router_epoch = nd_local_epoch(p->node->local), .msg = m};
    sim_node_feed(s, p, &ev);
}

void sim_node_xfer(struct sim *s, struct sim_proc *p, struct sim_ev *ev)
{
    struct td_xfer_event *x = ev->data;
    struct nd_event in = {.type = ND_EV_XFER, .xfer = x};
    struct td_wire_msg msg;
    if (x->type == TD_XFER_MSG) {
        x->bytes = (const uint8_t *)ev->data + sizeof *x;
        td_arena_reset(p->arena);
        td_err err = td_wire_decode(x->bytes, x->n_bytes, p->arena, &msg);
        if (err != TD_OK) {
            sim_fail(s, "%s cannot decode a peer's message: %s", p->name, td_err_code(err));
            return;
        }
        in.msg = &msg;
        trace_message(s, p, "hears", x->epoch, &msg);
    } else {
        sim_trace(s,
                  "%s: transfer event %d peer %016" PRIx64 " land %" PRIx64 " push %" PRIx64
                  " slices %u %s",
                  p->name, (int)x->type, x->epoch, x->land, x->push, x->n_slices,
                  td_err_code(x->err));
    }
    sim_node_feed(s, p, &in);
}

/* ---- life ---- */

static const struct td_kv_layout layout = {.version = 1,
                                           .n_layers = SIM_LAYERS,
                                           .n_kv_heads = 1,
                                           .head_dim = 8,
                                           .block_tok = SIM_BLOCK,
                                           .slice_bytes = 512,
                                           .block_bytes = 512 * SIM_LAYERS};

static struct td_kv_layout layout_of(const struct sim *s)
{
    struct td_kv_layout l = layout;
    l.window = s->window;
    return l;
}

void sim_node_info(const struct sim *s, const struct sim_proc *p, struct td_buf *out)
{
    uint64_t address[2] = {p->index, p->epoch};
    struct td_wire_rank rank = {.tp = 1,
                                .pp = 1,
                                .n_layers = SIM_LAYERS,
                                .n_heads = 1,
                                .address = (const uint8_t *)address,
                                .address_len = sizeof address};
    struct td_wire_node_info i = {.epoch = p->epoch,
                                  .name = p->name,
                                  .version = "sim",
                                  .model_name = "sim",
                                  .numerics = "sim",
                                  .admin_address = "",
                                  .role = p->both                  ? TD_ROLE_BOTH
                                          : p->kind == SIM_PREFILL ? TD_ROLE_PREFILL
                                                                   : TD_ROLE_DECODE,
                                  .version_min = TD_WIRE_VERSION_MIN,
                                  .version_max = TD_WIRE_VERSION_MAX,
                                  .layout = {.id = LAYOUT_ID,
                                             .version = 1,
                                             .n_layers = SIM_LAYERS,
                                             .n_kv_heads = 1,
                                             .head_dim = 8,
                                             .block_tok = SIM_BLOCK,
                                             .slice_bytes = 512,
                                             .window = s->window},
                                  .numerics_id = NUMERICS_ID,
                                  .max_model_len = SIM_MAX_MODEL,
                                  .n_blocks = p->kind == SIM_PREFILL ? s->p_blocks : s->d_blocks,
                                  .max_seqs = s->max_seqs,
                                  .max_batched_tokens = s->max_batched,
                                  .n_ranks = 1,
                                  .ranks = &rank};
    TD_INSIST(td_wire_node_info_encode(&i, out) == TD_OK);
}

void sim_node_start(struct sim *s, struct sim_proc *p)
{
    struct sim_node *n = p->node;
    struct nd_actions acts = n->acts; /* kept across lives: it is big */
    memset(n, 0, sizeof *n);
    n->acts = acts;
    n->ops = p->kind == SIM_PREFILL ? &pf_role_ops : &dc_role_ops;
    n->info = (struct td_engine_info){
        .layout = layout_of(s),
        .n_layers = SIM_LAYERS,
        .n_vocab = SIM_VOCAB,
        .max_model_len = SIM_MAX_MODEL,
        .n_blocks = p->kind == SIM_PREFILL ? s->p_blocks : s->d_blocks,
        .max_rows = SIM_MAX_ROWS,
        .max_tokens = SIM_MAX_TOKENS,
        .max_slots = SIM_MAX_ROWS,
        .numerics_id = NUMERICS_ID,
        .numerics = "sim",
    };
    n->eng.cells = calloc((size_t)n->info.n_blocks * SIM_LAYERS * SIM_BLOCK, sizeof *n->eng.cells);
    TD_INSIST(n->eng.cells != NULL);
    struct nd_core_params cp = {.epoch = p->epoch,
                                .name = p->name,
                                .engine = &n->info,
                                .layout_id = LAYOUT_ID,
                                .max_seqs = s->max_seqs,
                                .max_queue = s->max_queue,
                                .max_batched_tokens = s->max_batched,
                                .chunk_tokens = s->chunk,
                                .steps_in_flight = s->steps_in_flight,
                                .t_stall_us = 5 * SIM_SECOND,
                                .t_lease_us = 30 * SIM_SECOND,
                                .local_prefill = p->both,
                                .local_epoch = td_rng_next(&s->out_rng) | 1};
    TD_INSIST(nd_core_params_check(&cp) == TD_OK);
    TD_INSIST(n->ops->create(&cp, &n->core) == TD_OK);
    uint64_t address[2] = {p->index, p->epoch};
    struct nd_local_params lp = {.epoch = cp.local_epoch,
                                 .node_epoch = p->epoch,
                                 .role = n->ops->role, /* both take, too, here */
                                 .layout_id = LAYOUT_ID,
                                 .numerics_id = NUMERICS_ID,
                                 .hold_ms = (uint32_t)s->hold_ms,
                                 .address = (const uint8_t *)address,
                                 .address_len = sizeof address,
                                 .max_tokens = 2 * SIM_MAX_ROWS};
    TD_INSIST(nd_local_create(&lp, &n->local) == TD_OK);
    p->n_lost = 0;
}

void sim_node_stop(struct sim *s, struct sim_proc *p)
{
    struct sim_node *n = p->node;
    if (s != NULL && !s->failed) {
        sim_peer_gone(s, p);
        sim_outside_gone(s, p);
    }
    n->ops->destroy(n->core);
    n->local = nd_local_destroy(n->local);
    n->core = NULL;
    sim_xfer_fini(n);
    free(n->eng.cells);
    free(n->works);
    n->eng.cells = NULL;
    n->works = NULL;
    n->n_push_order = n->n_works = 0;
}

/* ---- invariants ---- */

void sim_node_check(struct sim *s, struct sim_proc *p)
{
    struct sim_node *n = p->node;
    struct nd_wait w[MAX_WAITS];
    struct td_wire_state st;
    if (n->ops->check(n->core) != TD_OK) {
        sim_fail(s, "%s: the core's own check fails", p->name);
        return;
    }
    uint32_t count = n->ops->waits(n->core, w, MAX_WAITS);
    int64_t next = n->ops->next_deadline(n->core);
    if (count < n->ops->work_count(n->core)) {
        sim_fail(s, "%s: a request waits for nothing", p->name);
    }
    for (uint32_t i = 0; i < count; i++) {
        bool late = w[i].deadline_us <= s->now && p->core_armed > s->now; /* no tick to come now */
        if (w[i].deadline_us == TD_NEVER || late || w[i].deadline_us < next ||
            w[i].what[0] == '\0') {
            sim_fail(s, "%s: request %" PRIu64 " waits for \"%s\" until %.6f, next deadline %.6f",
                     p->name, w[i].id.counter, w[i].what, (double)w[i].deadline_us / 1e6,
                     (double)next / 1e6);
            return;
        }
    }
    memset(&st, 0, sizeof st);
    n->ops->state(n->core, &st);
    uint32_t sum = 0;
    for (uint32_t i = 0; i < TD_BLK_STATES; i++) {
        sum += st.blocks[i];
    }
    if (sum != n->info.n_blocks) {
        sim_fail(s, "%s: block states sum to %u of %u", p->name, sum, n->info.n_blocks);
    }
}

void sim_node_audit(struct sim *s, struct sim_proc *p)
{
    struct nd_wait w[MAX_WAITS];
    uint32_t count = p->node->ops->waits(p->node->core, w, MAX_WAITS);
    for (uint32_t i = 0; i < count; i++) {
        bool quick = false;
        int64_t dead = sim_dead_for(s, p, w[i].id.router_epoch, &quick);
        /* What only waits for its step or its fence is over already; a stashed table holds nothing. */
        bool live = strncmp(w[i].what, "its step", 8) != 0 && strncmp(w[i].what, "a table", 7) != 0;
        if (live && dead > (SIM_T_DEAD)) {
            sim_fail(s, "%s still works (\"%s\") for a router dead for %.3f s", p->name, w[i].what,
                     (double)dead / 1e6);
            return;
        }
    }
}

bool sim_node_knows(struct sim_proc *p, uint64_t router_epoch, uint64_t counter)
{
    struct nd_wait w[MAX_WAITS];
    uint32_t count = p->node->ops->waits(p->node->core, w, MAX_WAITS);
    for (uint32_t i = 0; i < count; i++) {
        if (w[i].id.router_epoch == router_epoch && w[i].id.counter == counter) {
            return true;
        }
    }
    return false;
}

void sim_node_check_idle(struct sim *s, struct sim_proc *p)
{
    struct sim_node *n = p->node;
    struct td_wire_state st;
    uint32_t lands = 0;
    memset(&st, 0, sizeof st);
    n->ops->state(n->core, &st);
    for (uint32_t i = 0; i < SIM_MAX_LANDS; i++) {
        lands += n->lands[i].used;
    }
    uint32_t idle = st.blocks[TD_BLK_FREE] + st.blocks[TD_BLK_CACHED];
    uint32_t works = n->ops->work_count(n->core);
    if (idle != n->info.n_blocks || works != 0 || lands != 0 || n->n_push_order != 0 ||
        n->ops->next_deadline(n->core) != TD_NEVER || nd_local_count(n->local) != 0 ||
        nd_local_check(n->local) != TD_OK) {
        sim_fail(s, "%s is not idle: %u of %u blocks free, %u requests, %u lands, %u pushes",
                 p->name, idle, n->info.n_blocks, works, lands, n->n_push_order);
    }
}
