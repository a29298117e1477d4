/* rt_rig.h - a router shell and a scripted node on the two ends of a real control link, in one loop.
 *
 * What: the node serves both roles and does what the test says: it keeps the works it was asked for
 * and sends tokens and ends by hand. Clients are plain sockets.
 * Not: an engine. Owner and thread: the test's. Failure: cmocka assertions; whatever is waited for
 * must happen within RIG_GIVE_UP_US.
 */
#ifndef TD_TESTS_ROUTER_RT_RIG_H
#define TD_TESTS_ROUTER_RT_RIG_H

#include <jansson.h>

#include "common/io/link_nng.h"
#include "common/text/tokenizer.h"
#include "router/rt_shell.h"
#include "tests/unit/check.h"

#define RIG_GIVE_UP_US 20000000
#define RIG_WORKS      64
#define RIG_CLIENT_MAX (1u << 20)

struct rig_work { /* a RESERVE that the node got */
    struct td_work_id id;
    uint32_t n_prompt, max_tokens, n_stop_ids;
    uint64_t seed;
    int32_t priority;
    uint8_t salt[32];
    char tenant[64];
    uint32_t n_sent; /* tokens */
    bool cancelled;
    td_err cancel_reason;
};

struct rig {
    struct td_loop *loop;
    struct rt_shell_params p; /* what rig_start will use; change it before */
    struct rt_shell *shell;
    char model_path[64];
    struct rt_model *model; /* the same file, for token ids */
    struct td_text_tokenizer *tok;
    /* the node */
    struct td_link_nng *node;
    struct td_arena *arena;
    struct td_link_key key;
    uint64_t session, state_seq;
    uint32_t ups, losts, n_works, max_seqs;
    bool wrong_model, silent; /* silent: does not acknowledge cancels */
    struct rig_work works[RIG_WORKS];
    char url[TD_LINK_NNG_URL];
    const char *urls[1];
};

/* setup() prepares a rig in *state without starting it; teardown() ends everything. */
int rig_setup(void **state);
int rig_teardown(void **state);
/* Node and router are up; ready: the router has the node's state. */
void rig_start(struct rig *r);
/* Runs the loop until cond(arg), or fails. */
void rig_until(struct rig *r, bool (*cond)(void *arg), void *arg, const char *what);
void rig_passes(struct rig *r, int n);

/* The i-th work, waited for. */
struct rig_work *rig_work(struct rig *r, uint32_t i);
void rig_state(struct rig *r, bool draining);
void rig_token(struct rig *r, struct rig_work *w, int32_t token, enum td_finish finish);
/* n times the same token in one message. */
void rig_repeat(struct rig *r, struct rig_work *w, int32_t token, uint32_t n);
/* One token for each character of ASCII text. */
void rig_say(struct rig *r, struct rig_work *w, const char *text);
int32_t rig_byte(struct rig *r, uint8_t byte); /* the token of this byte */
int32_t rig_end_id(const struct rig *r);
void rig_end(struct rig *r, struct rig_work *w, td_err err, const char *text);
/* The end token, then the end. */
void rig_finish(struct rig *r, struct rig_work *w);
void rig_cancelled(struct rig *r, struct rig_work *w);
void rig_garbage(struct rig *r);

/* ---- clients ---- */
struct rig_client {
    int fd;
    char *got; /* owned: everything read, with a zero */
    size_t n;
    bool closed; /* by the server */
};
void rig_dial(struct rig *r, uint16_t port, struct rig_client *c);
void rig_send(struct rig_client *c, const char *text);
/* POST with Content-Type and Content-Length; extra: whole header lines, or "". */
void rig_post(struct rig *r, struct rig_client *c, const char *path, const char *body,
              const char *extra);
/* Reads until the text appears. */
void rig_read(struct rig *r, struct rig_client *c, const char *want);
/* Sends a request and reads its whole answer (Content-Length or chunked); the status. */
int rig_answer(struct rig *r, struct rig_client *c);
int rig_get(struct rig *r, uint16_t port, const char *path, struct rig_client *c);
void rig_hang_up(struct rig_client *c);
/* The body behind the head, chunks joined; in place: call once, at the end. */
char *rig_body(struct rig_client *c);
/* The value of the first JSON document of the body; a new reference. */
json_t *rig_json(struct rig_client *c);
/* The n-th `data:` event of a body that rig_body() gave; a new reference, NULL past the end. */
json_t *rig_event(const char *body, unsigned n);

#endif
