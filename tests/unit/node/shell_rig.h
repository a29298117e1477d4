/* shell_rig.h - a node shell around a scripted role and a scripted engine, and routers that dial it, in one loop.
 *
 * What: the role counts events, keeps what it saw and does what the test put into `next`; the engine takes steps and
 * finishes them when told; a router is a real control link that keeps the states and tokens it got.
 * Not: a data plane. Owner and thread: the test's. Failure: cmocka assertions; whatever is waited for must happen
 * within SHELL_GIVE_UP_US.
 */
#ifndef TD_TESTS_UNIT_NODE_SHELL_RIG_H
#define TD_TESTS_UNIT_NODE_SHELL_RIG_H

#include "common/io/link_nng.h"
#include "common/node/node.h"
#include "tests/unit/check.h"

#define SHELL_GIVE_UP_US 20000000
#define SHELL_ROUTERS    2

struct fake_role {
    uint32_t events[ND_EV_UNDRAIN + 1]; /* by type */
    uint64_t last_router;
    enum td_wire_type last_msg;
    td_err last_decode_err;
    td_ticket last_ticket;
    int64_t drain_deadline_us, deadline_us;
    struct td_wire_state state;
    struct nd_counts counts;
    uint32_t n_work;
    struct nd_wait waits[2];
    uint32_t n_waits;
    void (*next)(struct fake_role *f, const struct nd_event *ev,
                 struct nd_actions *out); /* or NULL */
    uint32_t created, destroyed;
};
extern struct fake_role fake_role; /* of the one node of a test */
extern const struct nd_role_ops fake_role_ops;

struct step_engine {
    struct td_engine base;
    struct td_engine_info info;
    int fd;
    uint32_t n_submitted, n_rows, n_slots_set;
    td_ticket ticket;
    td_err submit_err;
    bool done;  /* a step waits to be polled */
    bool ended; /* by itself */
    struct td_row_result row;
};

struct fake_router {
    struct shell_rig *rig;
    struct td_link_nng *link;
    uint64_t epoch, session;
    uint32_t ups, losts, refusals, n_states, n_tokens;
    struct td_wire_state state; /* the last */
    bool states_in_order;
    struct td_wire_node_info info;
    char name[64], admin[128];
};

struct shell_rig {
    struct td_loop *loop;
    char model_path[64];
    struct td_model *model;
    struct td_link_key key;
    struct step_engine engine;
    struct td_node_params p; /* of the node; change it before shell_start() */
    struct td_node *node;
    struct td_arena *arena;
    struct fake_router routers[SHELL_ROUTERS];
};

int shell_setup(void **state);
int shell_teardown(void **state);
void shell_start(struct shell_rig *r);
/* Router i dials and is up. */
void shell_attach(struct shell_rig *r, int i);
void shell_send(struct fake_router *x, const struct td_wire_msg *m);
void shell_send_bytes(struct fake_router *x, const void *data, size_t len);
void shell_until(struct shell_rig *r, bool (*cond)(void *arg), void *arg, const char *what);
/* Until *value reaches at least `want`. */
void shell_reaches(struct shell_rig *r, const uint32_t *value, uint32_t want, const char *what);
void shell_passes(struct shell_rig *r, int n);
void shell_step_done(struct shell_rig *r);
/* GET (or METHOD) a path of the admin port: the status, and the whole answer in `out`. */
int shell_get(struct shell_rig *r, const char *method, const char *path, char *out, size_t cap);
/* The same of any port whose server runs in this loop. */
int shell_ask(struct td_loop *loop, uint16_t port, const char *method, const char *path, char *out,
              size_t cap);

#endif
