/* rig.h - role cores wired together in memory, for tests of one core and of a pair.
 *
 * What: up to RIG_NODES cores with fake engines and a fake data plane, driven by hand: events wait
 * in one line and are delivered in order, an engine step ends when the test says so. After every
 * event the core's check() must hold and no wait may be overdue. The fake engine's KV is a number
 * for each (token, position, layer), and a sampled token is a hash over all KV the row's table
 * names, so a token proves which KV was read; rig_expect() computes the same from the tokens alone.
 * It is read as another rank of the engine has it: what has landed, from the row on that says so.
 * What a core sends, to routers and to peers (even those that do not exist), is kept in `mail`.
 * Not: time that passes by itself, loss, reordering (tests/sim).
 * Failure: cmocka assertions.
 */
#ifndef TD_TESTS_UNIT_NODE_RIG_H
#define TD_TESTS_UNIT_NODE_RIG_H

#include "common/node/core.h"

#define RIG_NODES     4
#define RIG_LAYERS    3u
#define RIG_BLOCK     16u
#define RIG_VOCAB     1000u
#define RIG_ROUTER    0x0123456789abcdefull
#define RIG_LAYOUT_ID 77u
#define RIG_NUMERICS  88u
#define RIG_MAX_ROWS  64u
#define RIG_MAX_LANDS 256u
#define RIG_MAX_PUSH  1024u
#define RIG_SECOND    ((int64_t)1000000)

struct rig_row {
    struct td_seq_ref seq;
    uint32_t pos, n, n_blocks, sampling, want;
    int32_t *tokens; /* owned; NULL: the slot's last one */
    uint32_t *table; /* owned */
};

struct rig_step {
    struct rig_row rows[RIG_MAX_ROWS];
    uint32_t n_rows;
};

struct rig_land {
    uint64_t land, peer;
    struct td_block_ref *blocks; /* owned */
    uint32_t n_blocks, n_slices;
    uint64_t n_bytes;
    bool closing; /* UNLAND came, the test holds its answer: late slices still land */
};

struct rig_push {
    struct td_xfer_cmd cmd; /* blocks and src owned */
};

struct rig_node {
    const struct nd_role_ops *ops; /* NULL: no such node */
    void *core;
    uint64_t epoch;
    bool dead;
    struct td_engine_info info;
    struct nd_actions actions;
    uint64_t *kv;     /* owned [n_blocks][RIG_LAYERS][RIG_BLOCK] */
    uint64_t *handed; /* owned, as kv: what the engine's other ranks have of it */
    uint64_t *seeds;  /* owned [max_slots] */
    int32_t *last;    /* owned [max_slots]: the token sampled last */
    struct rig_step steps[TD_ENGINE_MAX_INFLIGHT]; /* under way, the oldest first */
    uint32_t n_steps, max_steps;
    td_ticket ticket;    /* of the last one submitted */
    uint32_t output_pos; /* of the last row of several tokens */
    struct rig_land lands[RIG_MAX_LANDS];
    uint32_t n_lands;
    struct rig_push pushes[RIG_MAX_PUSH]; /* not posted yet: gated, or held by the test */
    uint32_t n_pushes;
    uint32_t n_observed[ND_METRICS];
    uint32_t n_done;
    struct nd_done done; /* the last */
    /* Knobs of the test. */
    bool fail_rows;     /* every row of the next steps fails */
    bool hold_pushes;   /* nothing is posted */
    bool hold_unlanded; /* UNLAND is not answered */
    bool bad_slices;    /* what lands does not verify */
};

struct rig_mail { /* what routers and peers were sent */
    uint64_t to;
    uint32_t node;
    struct td_wire_msg msg; /* tokens owned */
};

struct rig_event {
    uint32_t node;
    uint64_t router;
    enum nd_event_type type;
    struct td_wire_msg msg; /* table blocks owned */
    bool has_msg;
    td_err decode_err;
    struct td_xfer_event xfer;
    int64_t deadline_us;
};

struct rig {
    struct rig_node node[RIG_NODES];
    uint32_t n_nodes;
    int64_t now;
    struct rig_event *line; /* owned */
    uint32_t n_line, at_line, cap_line;
    struct rig_mail *mail; /* owned */
    uint32_t n_mail, cap_mail;
    unsigned drop; /* bit per wire type: lost on the data plane */
};

struct rig_params { /* zero: a default */
    uint32_t n_blocks, max_seqs, max_queue, max_batched, chunk, max_model_len, max_slots;
    uint32_t steps_in_flight, window;
    bool local_prefill;
    uint64_t local_epoch;
};

struct rig *rig_create(void);
struct rig *rig_destroy(struct rig *r);
/* Returns the node's index. Its epoch is 0xe000 + index. */
uint32_t rig_add(struct rig *r, const struct nd_role_ops *ops, const struct rig_params *p);

/* Puts an event in line. */
void rig_msg(struct rig *r, uint32_t node, const struct td_wire_msg *m, td_err decode_err);
void rig_peer_msg(struct rig *r, uint32_t node, uint64_t from, const struct td_wire_msg *m);
void rig_xfer(struct rig *r, uint32_t node, const struct td_xfer_event *ev);
void rig_plain(struct rig *r, uint32_t node, enum nd_event_type type, int64_t deadline_us);
/* Delivers what is in line, and what comes of it; engines do not finish. */
void rig_deliver(struct rig *r);
/* Ends the oldest step of a node and delivers its result; false when none runs. */
bool rig_finish(struct rig *r, uint32_t node);
/* Delivers and finishes steps until nothing moves. */
void rig_settle(struct rig *r);
/* Time passes; cores whose deadline has come get a tick, in order of deadlines. */
void rig_pass(struct rig *r, int64_t us);
/* The node loses the peer of this epoch: its pushes end, then it is told. */
void rig_lose(struct rig *r, uint32_t node, uint64_t epoch);
/* A node vanishes; the others and it lose each other. */
void rig_kill(struct rig *r, uint32_t node);
/* Ends the first push that waits, with this result. */
void rig_end_push(struct rig *r, uint32_t node, td_err err);
/* Answers the UNLANDs that hold_unlanded kept. */
void rig_fence(struct rig *r, uint32_t node);
/* Posts what hold_pushes kept. */
void rig_post(struct rig *r, uint32_t node);

/* A request with n_prompt tokens drawn from `counter`, and messages about it. The prompt is static
 * until the next call with the same counter. */
struct td_wire_request rig_request(uint64_t counter, uint32_t n_prompt, uint32_t max_tokens);
struct td_wire_msg rig_prefill(const struct rig *r, uint32_t p, uint32_t d,
                               const struct td_wire_request *q);
struct td_wire_msg rig_reserve(const struct rig *r, uint32_t p, uint32_t d,
                               const struct td_wire_request *q);
struct td_wire_msg rig_reserve_local(const struct td_wire_request *q);
struct td_wire_msg rig_cancel(const struct td_work_id *id);
/* Both messages to their nodes. */
void rig_ask(struct rig *r, uint32_t p, uint32_t d, const struct td_wire_request *q);

/* Output token `index` of this request, as an undisturbed engine samples it. */
int32_t rig_expect(const struct td_wire_request *q, uint32_t index);
/* The END of this work from this node, or NULL; at most one may exist. */
const struct td_wire_end *rig_end(const struct rig *r, uint32_t node, const struct td_work_id *id);
/* Messages of a type about this work from this node. */
uint32_t rig_count(const struct rig *r, uint32_t node, enum td_wire_type type,
                   const struct td_work_id *id);
/* The last such message, or NULL. */
const struct td_wire_msg *rig_last(const struct rig *r, uint32_t node, enum td_wire_type type,
                                   const struct td_work_id *id);
/* Output tokens that the router has, from both nodes, in order and as expected; their number. */
uint32_t rig_tokens(const struct rig *r, const struct td_wire_request *q);
/* The finish that came with the work's last token. */
enum td_finish rig_finish_of(const struct rig *r, const struct td_work_id *id);
struct td_wire_state rig_state(const struct rig *r, uint32_t node);
/* Blocks of a state on a node. */
uint32_t rig_blocks(const struct rig *r, uint32_t node, enum td_blk_state s);
/* Nothing is known, every block free. */
void rig_assert_idle(const struct rig *r, uint32_t node);
/* What the first wait of a work is called; "" when it waits for nothing. */
const char *rig_wait(const struct rig *r, uint32_t node, const struct td_work_id *id);

#endif
