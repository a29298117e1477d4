/* sim.h - the simulated cluster: routers, prefill and decode nodes, links and faults of one seed,
 * under virtual time.
 *
 * What: the pure objects of production (rt_core, pf_core, dc_core, td_link) driven by one queue of
 * events. Bytes of the control plane travel through td_link on both ends, messages of the data plane
 * as encoded bytes, KV as tagged cells. sim_run() plays one seed and says whether every invariant
 * held (README.md lists them).
 * Not: sockets, threads, clocks: the same seed gives the same trace, event for event.
 * Owner: whoever calls sim_run. Thread: one. Bounds: SIM_MAX_*; SIM_MAX_EVENTS a seed.
 * Failure: sim_fail() keeps the first broken invariant and ends the run.
 */
#ifndef TD_TESTS_SIM_SIM_H
#define TD_TESTS_SIM_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/rng.h"
#include "common/io/link_session.h"
#include "common/node/core.h"
#include "common/node/local.h"
#include "router/rt_core.h"

#define SIM_ROUTERS      2u
#define SIM_MAX_PROCS    10u
#define SIM_MAX_REQS     60u
#define SIM_MAX_OUTS     12u /* requests of an outside router */
#define SIM_MAX_PROMPT   256u
#define SIM_MAX_OUTPUT   64u
#define SIM_MAX_MODEL    (SIM_MAX_PROMPT + SIM_MAX_OUTPUT)
#define SIM_LAYERS       2u
#define SIM_BLOCK        16u
#define SIM_MAX_BLOCKS   96u
#define SIM_MAX_ROWS     32u
#define SIM_MAX_TOKENS   256u
#define SIM_VOCAB        (1u << 23)
#define SIM_MAX_LANDS    64u
#define SIM_MAX_PUSHES   256u
#define SIM_MAX_PEERS    32u
#define SIM_MAX_RECVS    256u
#define SIM_MAX_SESSIONS 16u
#define SIM_MAX_FAULTS   12u
#define SIM_MAX_OLD      16u
#define SIM_MAX_DEATHS   32u
#define SIM_WINDOW       4u
#define SIM_MAX_EVENTS   2000000u
#define SIM_MS           ((int64_t)1000)
#define SIM_SECOND       ((int64_t)1000000)
#define SIM_T_CLEAN      (45 * SIM_SECOND) /* failures.md part 1 */
#define SIM_T_EXIT       (2 * SIM_SECOND)  /* 1 s, and 1 s of grace */
#define SIM_T_DEAD       (21 * SIM_SECOND) /* 10 s of silence, 10 s without a connection, and 1 s */
#define SIM_NOBODY       UINT32_MAX

enum sim_kind { SIM_ROUTER, SIM_PREFILL, SIM_DECODE };

/* ---- events ---- */
enum sim_ev_type {
    SIM_EV_ACCEPT,  /* a = connection */
    SIM_EV_DIALED,  /* a = connection */
    SIM_EV_NO_DIAL, /* a = target, b = 1: refused */
    SIM_EV_BYTES,   /* a = connection */
    SIM_EV_WROTE,
    SIM_EV_CLOSED,
    SIM_EV_LINK_TICK,
    SIM_EV_CORE_TICK,
    SIM_EV_STATE_TICK,
    SIM_EV_LAYER,  /* a = ticket, b = layer */
    SIM_EV_STEP,   /* a = ticket */
    SIM_EV_PACKET, /* a = data connection, data = struct sim_packet */
    SIM_EV_PLACED, /* a = data connection, data = struct sim_packet: its payload is here */
    SIM_EV_POSTED, /* a = data connection, b = post number */
    SIM_EV_XFAIL,  /* a = data connection */
    SIM_EV_XEND,   /* a = data connection: every operation on it has ended */
    SIM_EV_FENCE,  /* a = land: fenced by force */
    SIM_EV_XFER,   /* data = struct td_xfer_event and its bytes: for the core */
    SIM_EV_SUBMIT, /* a = request */
    SIM_EV_CANCEL, /* a = request */
    SIM_EV_TAKE,   /* a = request of the outside router, b = round and which of its tries */
    SIM_EV_FAULT,  /* a = fault */
    SIM_EV_HEAL,   /* a = fault */
    SIM_EV_TIDY,   /* a = request: no node may know it any more */
    SIM_EV_AUDIT,  /* who still counts on the dead? */
    SIM_EV_TYPES
};

struct sim_ev {
    int64_t at;
    uint64_t seq;
    enum sim_ev_type type;
    uint32_t proc, life; /* SIM_NOBODY: the world's */
    uint64_t a, b;
    void *data; /* owned */
    size_t len;
};

struct sim_list {        /* events kept back, in order */
    struct sim_ev *list; /* owned */
    uint32_t n, cap;
};

/* ---- requests ---- */
struct sim_req {
    uint32_t index;
    uint32_t router; /* proc that took it; SIM_NOBODY: none yet */
    uint32_t router_life;
    uint64_t router_epoch, counter;
    uint32_t n_prompt, n_expect; /* output tokens that the engine gives, undisturbed */
    enum td_finish expect_finish;
    struct td_sampling_params sampling;
    int32_t tokens[SIM_MAX_MODEL]; /* prompt, then the one right output */
    uint64_t chain[SIM_MAX_MODEL]; /* what a cell of that position holds */
    int32_t priority;
    int64_t submit_us, cancel_us, budget_us; /* cancel_us: TD_NEVER; budget from the submit */
    uint32_t stop_after;                     /* a stop string shows after so many tokens; 0: none */
    bool submitted, cancelled, stopped, ended, reset;
    uint32_t n_got, n_ends;
    td_err err;
    enum td_finish finish;
    int64_t ended_us;
};

/* ---- the outside router ---- */
enum { SIM_HOLD, SIM_TAKE, SIM_RIVAL, SIM_TRIES };

struct sim_try { /* one work at one node */
    uint32_t out;
    bool open, wrong; /* wrong: the nonce */
    uint32_t proc, life, n_got;
    uint64_t epoch, ref; /* of the node's own router, and the work's number there */
    int64_t since_us;
    td_err err;
    enum td_finish finish;
};

struct sim_out {               /* a request; its sim_req is at n_reqs + index */
    uint32_t round, n_waiting; /* takes on their way */
    bool abandon, rival, wrong, presented;
    int64_t late_us, held_us;
    struct sim_try tries[SIM_TRIES]; /* of this round */
    struct td_handoff handoff;
};

/* ---- nodes ---- */
struct sim_cell {
    uint64_t h; /* chain[position] mixed with the layer; 0: never written */
    uint64_t writer;
    uint32_t attempt;
};

#define SIM_NO_TOKEN (-1)

struct sim_row {
    uint64_t handle; /* of its sequence: what lands are called too */
    struct td_seq_ref seq;
    uint32_t pos, n, n_blocks, sampling;
    uint32_t tokens, table; /* offsets */
    bool failed;            /* its token never came */
};

struct sim_step {
    struct sim_row rows[SIM_MAX_ROWS];
    int32_t
        tokens[SIM_MAX_TOKENS]; /* SIM_NO_TOKEN: the slot's last one, known when the step starts */
    uint32_t table[SIM_MAX_ROWS * (SIM_MAX_MODEL / SIM_BLOCK + 1)];
    uint32_t n_rows, n_tokens, n_table;
    td_ticket ticket;
    int64_t started_us;
};

struct sim_engine {
    struct sim_cell *cells;                        /* owned [n_blocks][SIM_LAYERS][SIM_BLOCK] */
    struct sim_step steps[TD_ENGINE_MAX_INFLIGHT]; /* the first one runs */
    uint32_t n_steps;
    uint64_t seeds[SIM_MAX_ROWS];
    int32_t last[SIM_MAX_ROWS]; /* token sampled last for each slot, or SIM_NO_TOKEN */
    td_ticket ticket;           /* last submitted */
    uint32_t layers;            /* of the running step */
    uint32_t fail_rows;         /* so many rows fail */
    uint32_t slow;              /* factor */
};

struct sim_land {
    bool used, ending;
    uint64_t handle, epoch;
    struct td_work_id id;
    struct td_block_ref *blocks; /* owned */
    uint32_t n_blocks, n_slices, n_recvs;
    uint64_t n_bytes;
};

struct sim_push {
    struct td_xfer_cmd cmd; /* blocks and src owned */
    bool used;
    uint32_t peer, posted, inflight, avail;
    uint64_t seq, owner; /* order of submission; whose blocks */
    td_err err;
    uint64_t bytes;
    int64_t first_us, last_us;
};

struct sim_recv { /* a slice whose payload is on its way into the pool */
    bool used;
    uint64_t id, land;
    uint32_t xconn;
};

struct sim_send {
    uint64_t land, seq, barrier; /* barrier 0: waits for slices that are not posted */
    uint8_t *bytes;              /* owned */
    size_t len;
};

struct sim_slot {
    bool used;
    uint32_t push;
    uint64_t post_no, land;
};

struct sim_peer {
    bool used, known, dying, failed, say_lost, say_closed;
    uint64_t epoch;
    uint32_t xconn, side;
    td_err why;
    struct sim_send sends[64];
    uint32_t n_sends;
    struct sim_slot slots[SIM_WINDOW];
    uint64_t next_post;
    int64_t free_us; /* the link has sent what it was given */
    int64_t in_us;   /* slices that have arrived are in place: messages wait for that */
};

struct sim_work { /* what a node has said about a request */
    struct td_work_id id;
    uint64_t handle;
    uint32_t n_tok; /* its prompt, with the replayed output */
    uint32_t n_ends;
    bool cancelled; /* and said so */
};

struct sim_node {
    const struct nd_role_ops *ops;
    void *core;
    struct nd_local *local;
    struct td_engine_info info;
    struct nd_actions acts;
    struct sim_engine eng;
    struct sim_land lands[SIM_MAX_LANDS];
    uint32_t land_of[SIM_MAX_BLOCKS]; /* index + 1 of the land that may write the block */
    struct sim_push pushes[SIM_MAX_PUSHES];
    uint32_t n_push_order, push_order[SIM_MAX_PUSHES];
    struct sim_peer peers[SIM_MAX_PEERS];
    struct sim_recv recvs[SIM_MAX_RECVS];
    uint64_t next_seq;
    int64_t xfer_last_us;
    struct sim_work *works; /* owned */
    uint32_t n_works, cap_works;
    struct td_wire_state last_state;
    int64_t state_sent_us;
    bool draining;
    /* Faults in waiting. */
    uint32_t drop_slices, bad_slices, drop_msgs;
    uint32_t stuck_slices;
    int64_t late_us, fence_us;
};

/* ---- processes ---- */
struct sim_session {
    bool used;
    uint64_t handle, peer_epoch;
    uint64_t sent, got;         /* messages */
    uint64_t *seen;             /* owned: bit per serial */
    uint32_t cap_seen;          /* words */
    uint64_t key[64], last[64]; /* order of the recent keys */
    uint64_t state_seq;
    bool full_wanted;
};

struct sim_proc {
    uint32_t index;
    enum sim_kind kind;
    char name[8];
    uint64_t epoch;
    uint32_t life;            /* grows with each start */
    bool both;                /* a decode node that prefills for itself */
    bool up, stalled, silent; /* silent: its host is gone too */
    int64_t cont_us;          /* when it went on after its last stop */
    struct sim_list held;
    struct td_link *link;
    int64_t link_armed, core_armed, state_armed;
    struct td_arena *arena; /* of decoded messages */
    struct td_buf out;
    struct sim_session sessions[SIM_MAX_SESSIONS];
    uint64_t lost[SIM_MAX_PROCS]; /* sessions given up while a step was carried out */
    uint32_t n_lost;
    /* Router. */
    struct rt_core *rt;
    struct rt_actions rt_acts;
    bool stepping;
    struct sim_req *stops[SIM_MAX_REQS];
    uint32_t n_stops;
    /* Node. */
    struct sim_node *node;
};

struct sim_conn { /* control plane: side 0 dialed */
    uint32_t proc[2], life[2];
    uint64_t handle[2];
    bool open[2];
    bool dead; /* reset: bytes under way are lost */
    int64_t last_us[2];
    struct sim_list blocked[2]; /* while the path is cut */
};

struct sim_xconn { /* data plane: side 0 dialed */
    uint32_t proc[2], life[2];
    uint64_t epoch[2]; /* whom side 0 wants, and who side 0 is */
    int64_t last_us[2];
    struct sim_list blocked[2];
};

struct sim_path { /* between two processes, both ways */
    bool cut;
    int64_t delay_us, jitter_us;
};

enum sim_fault_kind {
    SIM_F_DELAY,
    SIM_F_RESET,
    SIM_F_CUT,      /* shorter than T_dead: the session resumes */
    SIM_F_CUT_LONG, /* longer */
    SIM_F_XLOSS,
    SIM_F_XCUT,
    SIM_F_SLICE_DROP,
    SIM_F_SLICE_BAD,
    SIM_F_SLICE_LATE,
    SIM_F_MSG_DROP,
    SIM_F_MSG_OLD,
    SIM_F_STALL,
    SIM_F_STALL_LONG,
    SIM_F_CRASH,
    SIM_F_CRASH_SILENT,
    SIM_F_ROUTER_CRASH,
    SIM_F_ROW_FAIL,
    SIM_F_SLOW,
    SIM_F_DRAIN,
    SIM_F_ROUTER_DRAIN,
    SIM_F_FENCE, /* slices get stuck, and closed connections let go late */
    SIM_FAULTS
};

struct sim_fault {
    enum sim_fault_kind kind;
    uint32_t a, b; /* processes */
    int64_t at_us, for_us;
    uint32_t life; /* of a, when it began */
    bool begun, over;
    enum td_wire_type on; /* strikes when a node says this for the n-th time; NONE: at its time */
    uint32_t nth;
};

struct sim_death {
    uint64_t epoch;
    int64_t at_us;
    uint32_t proc;
    bool quick; /* its kernel has told everybody who could hear */
};

struct sim_old { /* a message of the data plane that may come again */
    uint32_t proc;
    uint64_t epoch;
    uint8_t *bytes; /* owned */
    size_t len;
};

struct sim {
    uint64_t seed;
    struct td_rng rng;
    int64_t now;
    struct sim_ev *heap; /* owned */
    uint32_t n_heap, cap_heap;
    uint64_t next_seq, n_events, hash;
    bool verbose, calm; /* calm: no fault at all */
    struct sim_proc procs[SIM_MAX_PROCS];
    uint32_t n_procs, n_prefill, n_decode;
    struct sim_conn *conns; /* owned */
    uint32_t n_conns, cap_conns;
    struct sim_xconn *xconns; /* owned */
    uint32_t n_xconns, cap_xconns;
    struct sim_path ctl[SIM_MAX_PROCS][SIM_MAX_PROCS], data[SIM_MAX_PROCS][SIM_MAX_PROCS];
    struct sim_req reqs[SIM_MAX_REQS + SIM_MAX_OUTS];
    uint32_t n_reqs, n_ended;
    struct sim_out outs[SIM_MAX_OUTS];
    uint32_t n_outs, n_outs_over;
    struct td_rng out_rng; /* of the outside router */
    int64_t hold_ms;
    struct sim_fault faults[SIM_MAX_FAULTS];
    uint32_t n_faults, n_over;
    struct sim_death deaths[SIM_MAX_DEATHS];
    uint32_t n_deaths;
    bool smooth;      /* no path is slow or cut in this seed */
    int64_t quiet_us; /* last end of a request or of a fault */
    struct sim_old old[SIM_MAX_OLD];
    uint32_t n_old;
    /* Sizes of this seed. */
    uint32_t p_blocks, d_blocks, max_seqs, max_queue, max_batched, chunk, link_queue;
    uint32_t steps_in_flight;
    uint32_t window; /* tokens that a token sees; 0: all */
    uint32_t n_both; /* the last decode nodes prefill for themselves */
    struct rt_core_params rt;
    uint64_t errors; /* lines of level error before the run */
    bool failed;
    char why[512];
    /* What happened, for the summary. */
    uint32_t n_complete, n_error, n_cancelled, n_resets, n_replays, n_resumes, n_lost, n_taken,
        n_expired;
};

/* ---- sim_queue.c ---- */
void sim_post(struct sim *s, struct sim_ev ev);
bool sim_pop(struct sim *s, struct sim_ev *out);
void sim_keep(struct sim_list *l, const struct sim_ev *ev);
/* Posts what was kept, in order, from `at` on; returns the time of the last one. */
int64_t sim_release(struct sim *s, struct sim_list *l, int64_t at);
void sim_list_fini(struct sim_list *l);
void sim_drop_event(struct sim_ev *ev);
void *sim_copy(const void *src, size_t bytes);
uint64_t sim_below(struct sim *s, uint64_t n);
bool sim_chance(struct sim *s, uint32_t one_in);
int64_t sim_between(struct sim *s, int64_t lo, int64_t hi);
void sim_fail(struct sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void sim_trace(struct sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void sim_hash(struct sim *s, uint64_t v);
uint64_t sim_hash_bytes(const void *data, size_t len);

/* ---- sim_net.c: connections and sessions of the control plane ---- */
void sim_net_start(struct sim *s, struct sim_proc *p);
void sim_net_stop(struct sim *s, struct sim_proc *p);
void sim_net_event(struct sim *s, struct sim_proc *p, const struct sim_ev *ev);
/* An event for a life that is over. */
void sim_net_stale(struct sim *s, const struct sim_ev *ev);
/* Carries out what the link wants and arms its timer. */
void sim_net_pump(struct sim *s, struct sim_proc *p);
/* False: the queue is full, the session is to be given up. A session whose loss is about to be told
 * takes the message and forgets it. */
bool sim_net_send(struct sim *s, struct sim_proc *p, uint64_t peer_epoch, uint64_t key,
                  const struct td_wire_msg *m);
void sim_net_drop(struct sim *s, struct sim_proc *p, uint64_t peer_epoch, td_err err);
struct sim_session *sim_net_session(struct sim_proc *p, uint64_t peer_epoch);
void sim_net_reset(struct sim *s, uint32_t a, uint32_t b);
void sim_net_healed(struct sim *s, uint32_t a, uint32_t b);
/* Both ends of each quiet session have seen the same messages. */
void sim_net_check(struct sim *s);

/* ---- sim_node.c ---- */
void sim_node_start(struct sim *s, struct sim_proc *p);
void sim_node_stop(struct sim *s, struct sim_proc *p);
void sim_node_feed(struct sim *s, struct sim_proc *p, const struct nd_event *ev);
void sim_node_message(struct sim *s, struct sim_proc *p, uint64_t router_epoch,
                      const struct td_wire_msg *m, td_err err);
/* From the router in the node's own process. */
void sim_node_local(struct sim *s, struct sim_proc *p, const struct td_wire_msg *m);
void sim_node_xfer(struct sim *s, struct sim_proc *p, struct sim_ev *ev);
void sim_node_publish(struct sim *s, struct sim_proc *p);
void sim_node_arm(struct sim *s, struct sim_proc *p);
struct sim_work *sim_node_work(struct sim_proc *p, const struct td_work_id *id);
struct sim_work *sim_node_by_handle(struct sim_proc *p, uint64_t handle);
void sim_node_info(const struct sim *s, const struct sim_proc *p, struct td_buf *out);
void sim_node_check(struct sim *s, struct sim_proc *p);
/* Whether the core still knows any attempt of the request. */
bool sim_node_knows(struct sim_proc *p, uint64_t router_epoch, uint64_t counter);
void sim_node_audit(struct sim *s, struct sim_proc *p);
void sim_node_check_idle(struct sim *s, struct sim_proc *p);

/* ---- sim_engine.c ---- */
void sim_engine_step(struct sim *s, struct sim_proc *p, const struct nd_action *a);
void sim_engine_seq_set(struct sim *s, struct sim_proc *p, const struct nd_action *a);
void sim_engine_event(struct sim *s, struct sim_proc *p, const struct sim_ev *ev);
struct sim_cell *sim_cells(struct sim_node *n, uint32_t block, uint32_t layer);
/* A row of a step under way whose table names the block, or NULL. */
const struct sim_row *sim_engine_row_of(const struct sim_engine *e, uint32_t block);
uint64_t sim_cell_hash(uint64_t chain, uint32_t layer);
/* tokens[pos] follows what `prev` stands for. */
uint64_t sim_chain(uint64_t prev, int32_t token, uint32_t pos);
int32_t sim_token(uint64_t chain, uint64_t seed, uint32_t req);

/* ---- sim_xfer.c: commands and packets of the data plane ---- */
enum sim_packet_kind { SIM_HELLO, SIM_MSG, SIM_SLICE, SIM_BYE };
struct sim_packet {
    enum sim_packet_kind kind;
    uint64_t from, to;
    /* SLICE */
    uint64_t land, post_no;
    struct td_work_id id;
    uint32_t layer, first_block, n_blocks, generation;
    bool bad, late_read; /* late_read: the payload is read when the receiver fetches it */
    uint32_t src[SIM_MAX_MODEL / SIM_BLOCK];
    struct sim_cell *cells; /* owned; not for late_read */
    /* MSG */
    uint8_t *bytes; /* owned */
    size_t len;
};
void sim_packet_free(struct sim_packet *k);
void sim_xfer_cmd(struct sim *s, struct sim_proc *p, const struct nd_action *a);
void sim_xfer_event(struct sim *s, struct sim_proc *p, struct sim_ev *ev);
void sim_xfer_pump(struct sim *s, struct sim_proc *p, struct sim_peer *e);
void sim_xfer_pump_all(struct sim *s, struct sim_proc *p);
void sim_xfer_tell(struct sim *s, struct sim_proc *p, const struct td_xfer_event *ev);
void sim_xfer_push_end(struct sim *s, struct sim_proc *p, struct sim_push *u);
/* The slice's payload as it is in P's blocks now; it must be the request's prompt. */
void sim_xfer_read_source(struct sim *s, struct sim_proc *p, const struct sim_packet *k,
                          struct sim_cell *out);
void sim_xfer_fini(struct sim_node *n);

/* ---- sim_land.c: slices into the pool ---- */
void sim_land_open(struct sim *s, struct sim_proc *p, const struct td_xfer_cmd *c);
void sim_land_close(struct sim *s, struct sim_proc *p, const struct td_xfer_cmd *c);
/* Says UNLANDED when nothing is on its way into a land that ends. */
void sim_land_ready(struct sim *s, struct sim_proc *p, struct sim_land *l);
/* Closes the connections that hold a land back. */
void sim_land_fence(struct sim *s, struct sim_proc *p, uint64_t handle);
struct sim_land *sim_land_find(struct sim_node *n, uint64_t handle);
void sim_slice_in(struct sim *s, struct sim_proc *p, struct sim_ev *ev);
void sim_slice_placed(struct sim *s, struct sim_proc *p, struct sim_ev *ev);

/* ---- sim_peer.c: connections of the data plane ---- */
void sim_peer_connect(struct sim *s, struct sim_proc *p, const struct td_xfer_cmd *c);
void sim_peer_close(struct sim *s, struct sim_proc *p, uint64_t epoch);
void sim_peer_fail(struct sim *s, struct sim_proc *p, struct sim_peer *e, td_err why);
void sim_peer_hello(struct sim *s, struct sim_proc *p, uint32_t xconn, const struct sim_packet *k);
void sim_peer_bye(struct sim *s, struct sim_proc *p, uint32_t xconn);
void sim_peer_ended(struct sim *s, struct sim_proc *p, uint32_t xconn);
struct sim_peer *sim_peer_find(struct sim_node *n, uint64_t epoch);
struct sim_peer *sim_peer_of(struct sim_node *n, uint32_t xconn);
/* Sends to the other end from `at` on, behind what went before. Takes the packet. */
void sim_peer_packet(struct sim *s, uint32_t xconn, uint32_t side, struct sim_packet *k,
                     int64_t at);
/* The process is gone: its peers notice. */
void sim_peer_gone(struct sim *s, struct sim_proc *p);
void sim_peer_lose(struct sim *s, uint32_t a, uint32_t b);
void sim_peer_healed(struct sim *s, uint32_t a, uint32_t b);

/* ---- sim_router.c ---- */
void sim_router_start(struct sim *s, struct sim_proc *p);
void sim_router_stop(struct sim *s, struct sim_proc *p);
void sim_router_event(struct sim *s, struct sim_proc *p, const struct rt_event *ev);
void sim_router_up(struct sim *s, struct sim_proc *p, const uint8_t *info, size_t len);
void sim_router_lost(struct sim *s, struct sim_proc *p, uint64_t epoch);
void sim_router_link(struct sim *s, struct sim_proc *p, uint64_t epoch, bool attached);
void sim_router_message(struct sim *s, struct sim_proc *p, uint64_t epoch,
                        const struct td_wire_msg *m, td_err err);
void sim_router_arm(struct sim *s, struct sim_proc *p);
void sim_router_check(struct sim *s, struct sim_proc *p);
/* Nobody counts on a process that has been dead for T_dead. */
void sim_router_audit(struct sim *s, struct sim_proc *p);
void sim_router_check_idle(struct sim *s, struct sim_proc *p);
/* The client's side. */
void sim_client_event(struct sim *s, const struct sim_ev *ev);
struct sim_req *sim_req_of(struct sim *s, const struct td_work_id *id);
void sim_client_check_end(struct sim *s);

/* ---- sim_outside.c: an outside router that drives nodes one by one ---- */
void sim_outside_event(struct sim *s, const struct sim_ev *ev);
/* What a node says of the outside router's works. */
void sim_outside_hear(struct sim *s, struct sim_proc *p);
/* The process is gone. */
void sim_outside_gone(struct sim *s, const struct sim_proc *p);
/* The request that is held under this id, or NULL. */
struct sim_req *sim_outside_req(struct sim *s, const struct td_work_id *id);
void sim_outside_check_end(struct sim *s);

/* ---- sim_plan.c: the seed's cluster, requests and faults ---- */
void sim_plan(struct sim *s);
void sim_fault_event(struct sim *s, const struct sim_ev *ev);
/* A node says something: a fault may have waited for that. */
void sim_fault_moment(struct sim *s, const struct sim_proc *p, enum td_wire_type said);
const char *sim_fault_name(enum sim_fault_kind k);

/* ---- sim_run.c ---- */
void sim_proc_start(struct sim *s, struct sim_proc *p);
/* Kills it. silent: nobody is told. */
void sim_proc_crash(struct sim *s, struct sim_proc *p, bool silent);
/* How long the process of this epoch has been dead, not counting time that `p` itself was stopped; 0:
 * it lives. */
int64_t sim_dead_for(const struct sim *s, const struct sim_proc *p, uint64_t epoch,
                     bool *out_quick);
void sim_proc_stall(struct sim *s, struct sim_proc *p);
void sim_proc_cont(struct sim *s, struct sim_proc *p);

struct sim_result {
    bool ok;
    uint64_t hash, n_events;
    uint32_t n_reqs, n_faults, n_complete, n_error, n_cancelled, n_resets, n_replays, n_resumes,
        n_lost, n_outs, n_taken, n_expired;
    int64_t virtual_us;
    char why[512];
};
/* Plays one seed. */
struct sim_result sim_run(uint64_t seed, bool verbose);

#endif
