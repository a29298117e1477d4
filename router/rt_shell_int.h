/* rt_shell_int.h - what the parts of the router shell share: rt_shell.c (life, links, core),
 * rt_client.c (one answer), rt_http.c (routes), rt_grpc.c (services), rt_metrics.c (figures), rt_history.c (finished
 * requests). Not for others.
 */
#ifndef ROUTER_RT_SHELL_INT_H
#define ROUTER_RT_SHELL_INT_H

#include "common/base/ring.h"
#include "common/io/api_keys.h"
#include "common/io/grpc_admin.h"
#include "common/io/grpc_server.h"
#include "common/io/http_server.h"
#include "common/io/link_fit.h"
#include "common/io/link_nng.h"
#include "router/rt_core.h"
#include "router/rt_history.h"
#include "router/rt_live.h"
#include "router/rt_metrics.h"
#include "router/rt_model.h"
#include "router/rt_page.h"
#include "router/rt_shell.h"
#include "router/rt_worker.h"

#define RT_MAX_CANCELS RT_MAX_REQUESTS /* a choice asks once */

struct rt_client;
struct rt_grpc;
struct rt_grpc_admin;

#define RT_MAX_PROBES 4
struct rt_probe {
    struct rt_shell *shell;
    struct td_http_exchange *x; /* borrowed; NULL: gone or answered */
    bool used;
    uint64_t counter; /* in the core */
    int64_t started_us, first_us;
    uint32_t n_prompt;
    bool park;
};

struct rt_shell {
    struct rt_shell_params p;
    uint64_t epoch;
    uint8_t salt_secret[32]; /* keys the cache salt: HMAC over tenant and the client's salt */
    uint64_t next_id;        /* of requests, part of their ids */
    struct rt_model *model;  /* owned, like all below */
    struct td_api_keys *keys;
    struct rt_worker *worker;
    struct rt_core *core;
    struct rt_actions acts;
    struct td_arena *arena; /* of decoded messages */
    struct td_buf out;      /* encoded message in the making */
    struct td_link_nng *links;
    struct td_wire_router_info info; /* what nodes are told of us */
    struct td_link_fit_at_router fit;
    struct td_http_server *http, *admin;
    struct rt_grpc *grpc;
    struct rt_grpc_admin *grpc_admin; /* on the admin port */
    struct td_tls *tls, *admin_tls;   /* NULL: cleartext */
    struct td_timer *core_timer, *sweep_timer;
    struct rt_metrics *metrics;
    struct rt_history *history;
    struct rt_live *live;
    struct rt_page *page;
    struct rt_probe probes[RT_MAX_PROBES];
    struct rt_client *clients; /* all of them, linked */
    uint32_t n_clients;
    bool stepping, draining;
    struct {
        uint64_t counter;
        td_err reason;
    } * cancels; /* wanted while a step was being carried out; [RT_MAX_CANCELS] */
    uint32_t n_cancels;
    uint64_t lost[RT_MAX_NODES]; /* nodes whose session we dropped during a step */
    uint32_t n_lost;
    int64_t started_us;
};

/* rt_shell.c */
void rt__shell_event(struct rt_shell *s, const struct rt_event *ev, uint64_t *out_counter);
/* Now, or after the step in progress. */
void rt__shell_cancel(struct rt_shell *s, uint64_t counter, td_err reason);

/* By name, or by epoch in hex. TD_ERR_NOT_FOUND. */
td_err rt__shell_drain_node(struct rt_shell *s, const char *name, const struct td_wire_drain *d,
                            struct rt_node **out_node) TD_MUST_CHECK;
void rt__live_gauges(const struct rt_shell *s, struct rt_live_gauges *out);

/* rt_probe.c: a request of our own through one pair, asked for on the admin port */
/* p_epoch == d_epoch: a node of both roles. `park`: as in rt_submit. Answers the exchange, now or later. */
void rt__probe_start(struct rt_shell *s, struct td_http_exchange *x, uint64_t p_epoch,
                     uint64_t d_epoch, uint32_t n_prompt, bool park);
/* The probe that a core action is for, or NULL: a client's. */
struct rt_probe *rt__probe_of(struct rt_shell *s, const struct rt_action *a);
void rt__probe_token(struct rt_probe *p);
void rt__probe_end(struct rt_probe *p, const struct rt_action *a);

/* rt_client.c */
void rt__client_start(struct rt_shell *s, struct td_http_exchange *x, bool chat,
                      struct td_api_key *key, const char *request_id);
/* Draining, or a limit of the key: *out_retry_s says when to come again. Else one admission is held until td_api_key_done. */
td_err rt__client_admit(struct rt_shell *s, struct td_api_key *key,
                        double *out_retry_s) TD_MUST_CHECK;
/* A GenerateRequest; takes the admission. */
void rt__client_start_call(struct rt_shell *s, struct td_grpc_call *call, struct td_api_key *key,
                           const uint8_t *message, size_t len);
/* Ends the gRPC answer of this id when it is of the same tenant; false: there is none. */
bool rt__client_cancel(struct rt_shell *s, const char *id, const struct td_api_key *key);
/* The client's own id when it is a clean one, else a new one. */
void rt__request_id(struct rt_shell *s, const struct td_http_request *r,
                    char out[TD_WIRE_MAX_NAME]);
void rt__client_job_done(void *arg, struct rt_job *job);
void rt__client_token(const struct rt_action *a);
void rt__client_end(const struct rt_action *a);
/* Pings silent streams. */
void rt__clients_sweep(struct rt_shell *s, int64_t now_us);
/* Ends every answer still owed with an error. */
void rt__clients_fail(struct rt_shell *s, td_err err, const char *text);
void rt__clients_destroy(struct rt_shell *s);

/* rt_grpc.c; port 0 and never busy when gRPC is off */
td_err rt__grpc_create(struct rt_shell *s, struct rt_grpc **out_grpc) TD_MUST_CHECK;
struct rt_grpc *rt__grpc_destroy(struct rt_grpc *g);
void rt__grpc_drain(struct rt_grpc *g);
uint32_t rt__grpc_busy(const struct rt_grpc *g);
uint16_t rt__grpc_port(const struct rt_grpc *g);
/* *out as it was when gRPC is off. */
void rt__grpc_stats(const struct rt_grpc *g, struct td_h2_server_stats *out);

/* Counts the calls of a server, which the shell's figures outlive. */
void rt__grpc_count(struct rt_shell *s, struct td_grpc_server *server);

/* What the router is to a prober: "" and "readiness", "liveness", "prefill", "decode". */
enum td_health rt__health(void *arg, const char *service);

/* rt_grpc_explain.c */
/* Appends an ExplainResponse; TD_ERR_NOT_FOUND. */
td_err rt__grpc_explain(const struct rt_shell *s, const char *id, struct td_buf *b) TD_MUST_CHECK;

/* rt_admin.c */
const char *rt__phase_name(enum rt_phase p);

/* rt_grpc_admin.c */
td_err rt__grpc_admin_create(struct rt_shell *s, struct rt_grpc_admin **out_admin) TD_MUST_CHECK;
struct rt_grpc_admin *rt__grpc_admin_destroy(struct rt_grpc_admin *a);
/* Tells those who watch; strings may be "". a NULL: not there yet. */
void rt__event(struct rt_grpc_admin *a, const char *kind, const char *node, const char *id,
               const char *text);

/* rt_http.c */
void rt__http_public(void *arg, struct td_http_exchange *x);
void rt__http_admin(void *arg, struct td_http_exchange *x);

#endif
