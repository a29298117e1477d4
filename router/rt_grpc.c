/* Design: gRPC enters the router where HTTP does: the same keys, limits, clients and core; only the encoder of an answer
 * differs (rt_client.c). This file has the services, who may call them, and what is answered at once.
 */
#define TD_LOG_ROOM "router"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/io/grpc_health.h"
#include "common/io/grpc_reflect.h"
#include "proto/api.h"
#include "router/rt_shell_int.h"

#define ANSWER_MAX  (8u << 20)
#define ARENA_BYTES (64u << 20)

struct rt_grpc {
    struct rt_shell *shell;          /* borrowed */
    struct td_grpc_server *server;   /* owned; NULL: gRPC is off */
    struct td_grpc_health *health;   /* owned */
    struct td_grpc_reflect *reflect; /* owned */
    struct td_arena *arena;          /* owned; of small requests being decoded */
};

/* ---- who may call ---- */

static td_err admit(void *arg, struct td_grpc_call *c)
{
    const struct rt_grpc *g = arg;
    const struct td_http_request *r = td_grpc_call_request(c);
    char id[TD_WIRE_MAX_NAME];
    struct td_api_key *key = NULL;
    rt__request_id(g->shell, r, id);
    td_grpc_call_set_request_id(c, id);
    td_err err = td_api_keys_check_request(g->shell->keys, r, &key);
    td_grpc_call_set_tag(c, key);
    if (err != TD_OK) {
        rt_metrics_answer(g->shell->metrics, td_err_http(err), err);
    }
    return err;
}

/* ---- answers given at once ---- */

static void answer(struct td_grpc_call *c, const struct td_buf *b, td_err err)
{
    if (err != TD_OK) {
        td_grpc_fail(c, err, "the answer does not fit into memory", 1);
    } else if (td_grpc_send(c, b->data, b->len) == TD_OK) {
        td_grpc_finish(c, TD_GRPC_OK, NULL, NULL, 0);
    }
}

static void h_list_models(void *arg, struct td_grpc_call *c, const uint8_t *message, size_t len)
{
    const struct rt_grpc *g = arg;
    const struct rt_model *m = g->shell->model;
    struct td_api_model list[TD_COUNT(m->names)];
    struct td_buf b;
    if (td_api_empty_decode(message, len) != TD_OK) {
        td_grpc_fail(c, TD_ERR_BAD_REQUEST, "not a ListModelsRequest", 0);
        return;
    }
    for (uint32_t i = 0; i < m->n_names; i++) {
        list[i] = (struct td_api_model){
            .id = m->names[i],
            .max_model_len = m->max_model_len,
            .created_unix = (td_wall_us() - (td_now_us() - g->shell->started_us)) / 1000000};
    }
    td_buf_init(&b, ANSWER_MAX);
    answer(c, &b, td_api_models_encode(&b, list, m->n_names));
    td_buf_fini(&b);
}

/* ---- through the worker ---- */

static bool admitted(struct rt_grpc *g, struct td_grpc_call *c)
{
    double retry_s = 1;
    td_err err = rt__client_admit(g->shell, td_grpc_call_tag(c), &retry_s);
    if (err != TD_OK) {
        td_grpc_fail(c, err, NULL, retry_s);
        rt_metrics_answer(g->shell->metrics, td_err_http(err), err);
    }
    return err == TD_OK;
}

static void h_generate(void *arg, struct td_grpc_call *c, const uint8_t *message, size_t len)
{
    struct rt_grpc *g = arg;
    if (admitted(g, c)) {
        rt__client_start_call(g->shell, c, td_grpc_call_tag(c), message, len);
    }
}

/* A call that waits for the worker; it outlives the call when that is gone first. */
struct errand {
    struct rt_grpc *grpc;
    struct td_grpc_call *call; /* borrowed; NULL: gone */
};

static void errand_gone(void *arg)
{
    struct errand *e = arg;
    e->call = NULL;
}

static void errand_done(struct rt_job *job)
{
    struct errand *e = job->user;
    struct td_grpc_call *c = e->call;
    struct td_buf b;
    td_buf_init(&b, ANSWER_MAX);
    if (c != NULL && job->error.err != TD_OK) {
        td_grpc_fail(c, job->error.err, job->error.text, 1);
    } else if (c != NULL && job->what == RT_JOB_TOKENIZE) {
        answer(c, &b,
               td_api_tokenize_encode(&b, job->ids[0], job->n_ids[0],
                                      e->grpc->shell->model->max_model_len));
    } else if (c != NULL) {
        answer(c, &b, td_api_detokenize_encode(&b, (const char *)job->text.data, job->text.len));
    }
    td_buf_fini(&b);
    free(e);
    rt_job_destroy(job);
}

static void run_errand(struct rt_grpc *g, struct td_grpc_call *c, enum rt_job_what what,
                       const uint8_t *message, size_t len)
{
    if (!admitted(g, c)) {
        return;
    }
    td_api_key_done(td_grpc_call_tag(c),
                    0); /* counted as a request; no token of the engine is used */
    struct errand *e = td_zalloc(1, sizeof *e);
    struct rt_job *job =
        e != NULL ? rt_job_create(false, message, len, td_wall_us() / 1000000, e) : NULL;
    td_err err = TD_ERR_NO_MEMORY;
    if (job != NULL) {
        *e = (struct errand){.grpc = g, .call = c};
        job->what = what;
        job->done = errand_done;
        err = rt_worker_submit(g->shell->worker, job);
    }
    if (err != TD_OK) {
        rt_job_destroy(job);
        free(e);
        td_grpc_fail(c, err, "too many requests are being parsed", 1);
        return;
    }
    td_grpc_call_on_gone(c, errand_gone, e);
}

static void h_tokenize(void *arg, struct td_grpc_call *c, const uint8_t *message, size_t len)
{
    run_errand(arg, c, RT_JOB_TOKENIZE, message, len);
}

static void h_detokenize(void *arg, struct td_grpc_call *c, const uint8_t *message, size_t len)
{
    run_errand(arg, c, RT_JOB_DETOKENIZE, message, len);
}

static void h_cancel(void *arg, struct td_grpc_call *c, const uint8_t *message, size_t len)
{
    struct rt_grpc *g = arg;
    const char *id = "";
    struct td_buf b;
    td_arena_reset(g->arena);
    td_err err = td_api_id_decode(message, len, g->arena, &id);
    if (err != TD_OK) {
        td_grpc_fail(c, err, "not a CancelRequest", 0);
        return;
    }
    td_buf_init(&b, ANSWER_MAX);
    answer(c, &b, td_api_cancel_encode(&b, rt__client_cancel(g->shell, id, td_grpc_call_tag(c))));
    td_buf_fini(&b);
}

static const struct td_grpc_method engine_methods[] = {
    {.name = "Generate", .handle = h_generate},      {.name = "Cancel", .handle = h_cancel},
    {.name = "Tokenize", .handle = h_tokenize},      {.name = "Detokenize", .handle = h_detokenize},
    {.name = "ListModels", .handle = h_list_models},
};

/* ---- health ---- */

static enum td_health as_health(bool serving)
{
    return serving ? TD_HEALTH_SERVING : TD_HEALTH_NOT_SERVING;
}

enum td_health rt__health(void *arg, const char *service)
{
    const struct rt_shell *s = arg;
    const struct rt_nodes *ns = rt_core_nodes(s->core);
    static const char *const ready_names[] = {"", "readiness", "tandem.v1.Engine"};
    for (size_t i = 0; i < TD_COUNT(ready_names); i++) {
        if (strcmp(service, ready_names[i]) == 0) {
            return as_health(!s->draining && rt_shell_ready(s));
        }
    }
    if (strcmp(service, "liveness") == 0) {
        return TD_HEALTH_SERVING; /* this line runs: the loop lives */
    }
    if (strcmp(service, "prefill") == 0) {
        return as_health(rt_nodes_ready(ns, TD_ROLE_PREFILL) > 0);
    }
    if (strcmp(service, "decode") == 0) {
        return as_health(rt_nodes_ready(ns, TD_ROLE_DECODE) > 0);
    }
    return TD_HEALTH_SERVICE_UNKNOWN;
}

/* ---- life ---- */

static void count_call(void *arg, const struct td_grpc_call *c, enum td_grpc_status status)
{
    const struct rt_shell *s = arg;
    rt_metrics_call(s->metrics, td_grpc_call_service(c), td_grpc_call_method(c), status);
}

void rt__grpc_count(struct rt_shell *s, struct td_grpc_server *server)
{
    td_grpc_server_on_end(server, count_call, s);
}

static td_err make_server(struct rt_grpc *g)
{
    const struct rt_shell_params *sp = &g->shell->p;
    struct td_grpc_server_params p;
    td_grpc_server_defaults(&p);
    p.h2.loop = sp->loop;
    p.h2.host = sp->host;
    p.h2.port = sp->grpc_port;
    p.h2.option = "--grpc-port";
    p.h2.tls = g->shell->tls;
    p.admit = admit;
    p.arg = g;
    g->arena = td_arena_create(ARENA_BYTES);
    TD_TRY(g->arena != NULL ? td_grpc_server_create(&p, &g->server) : TD_ERR_NO_MEMORY);
    rt__grpc_count(g->shell, g->server);
    const struct td_grpc_service engine = {.name = "tandem.v1.Engine",
                                           .methods = engine_methods,
                                           .n_methods = TD_COUNT(engine_methods),
                                           .arg = g};
    td_grpc_server_add(g->server, &engine);
    TD_TRY(td_grpc_health_create(sp->loop, rt__health, g->shell, &g->health));
    td_grpc_health_add(g->health, g->server);
    return td_grpc_reflect_create(g->server, false, &g->reflect);
}

td_err rt__grpc_create(struct rt_shell *s, struct rt_grpc **out_grpc)
{
    struct rt_grpc *g = td_zalloc(1, sizeof *g);
    if (g == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    g->shell = s;
    td_err err = s->p.grpc ? make_server(g) : TD_OK;
    if (err != TD_OK) {
        rt__grpc_destroy(g);
        return err;
    }
    *out_grpc = g;
    return TD_OK;
}

struct rt_grpc *rt__grpc_destroy(struct rt_grpc *g)
{
    if (g != NULL) {
        td_grpc_server_destroy(g->server);
        td_grpc_health_destroy(g->health);
        td_grpc_reflect_destroy(g->reflect);
        td_arena_destroy(g->arena);
        free(g);
    }
    return NULL;
}

void rt__grpc_drain(struct rt_grpc *g)
{
    if (g->server != NULL) {
        td_h2_server_drain(td_grpc_server_h2(g->server));
    }
}

uint32_t rt__grpc_busy(const struct rt_grpc *g)
{
    return g->server != NULL ? td_h2_server_busy(td_grpc_server_h2(g->server)) : 0;
}

void rt__grpc_stats(const struct rt_grpc *g, struct td_h2_server_stats *out)
{
    if (g != NULL && g->server != NULL) {
        td_h2_server_stats(td_grpc_server_h2(g->server), out);
    }
}

uint16_t rt__grpc_port(const struct rt_grpc *g)
{
    return g->server != NULL ? td_h2_server_port(td_grpc_server_h2(g->server)) : 0;
}
