#define TD_LOG_ROOM "node"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/io/http_error.h"
#include "common/node/node_int.h"

#define BODY_MAX  (8u << 20)
#define MAX_WAITS 4096

struct call {
    struct td_node *n;
    struct td_http_exchange *x;
};

static void respond(struct call *c, td_err err, const struct td_buf *b, const char *type)
{
    if (err != TD_OK) {
        td_http_refuse(c->x, err, "the answer does not fit into memory", NULL, 1);
        return;
    }
    td_http_respond(c->x, 200, NULL, 0, type, b->data, b->len);
}

static void h_ready(struct call *c)
{
    if (c->n->draining || c->n->held) {
        td_http_refuse(c->x, TD_ERR_DRAINING, "this node is draining", NULL, 1);
        return;
    }
    td_http_respond(c->x, 200, NULL, 0, "application/json", "{\"status\":\"ok\"}", 15);
}

static void h_alive(struct call *c)
{
    td_http_respond(c->x, 200, NULL, 0, "application/json", "{\"status\":\"ok\"}", 15);
}

static void h_version(struct call *c)
{
    char body[128];
    int n = snprintf(body, sizeof body, "{\"version\":\"" TD_VERSION "\",\"unix_us\":%" PRId64 "}",
                     td_wall_us());
    td_http_respond(c->x, 200, NULL, 0, "application/json", body, (size_t)n);
}

static void h_metrics(struct call *c)
{
    struct td_buf b;
    td_buf_init(&b, BODY_MAX);
    td_err err = nd_metrics_write(c->n->metrics, &b);
    respond(c, err, &b, "text/plain; version=0.0.4; charset=utf-8");
    td_buf_fini(&b);
}

static td_err waits_json(const struct nd_wait *w, uint32_t n, struct td_buf *b)
{
    int64_t now = td_now_us();
    TD_TRY(td_buf_puts(b, "{\"waits\":["));
    for (uint32_t i = 0; i < n; i++) {
        TD_TRY(td_buf_printf(b,
                             "%s{\"router\":\"%016" PRIx64 "\",\"counter\":%" PRIu64
                             ",\"attempt\":%u,\"what\":\"%s\","
                             "\"age_us\":%" PRId64 ",\"deadline_in_us\":%" PRId64 "}",
                             i > 0 ? "," : "", w[i].id.router_epoch, w[i].id.counter,
                             w[i].id.attempt, w[i].what, now - w[i].since_us,
                             w[i].deadline_us == TD_NEVER ? -1 : w[i].deadline_us - now));
    }
    return td_buf_puts(b, "]}");
}

static void h_waits(struct call *c)
{
    TD_CLEANUP(td_freep) struct nd_wait *w = td_zalloc(MAX_WAITS, sizeof *w);
    struct td_buf b;
    td_buf_init(&b, BODY_MAX);
    td_err err = w != NULL ? TD_OK : TD_ERR_NO_MEMORY;
    if (err == TD_OK) {
        err = waits_json(w, c->n->p.role->waits(c->n->core, w, MAX_WAITS), &b);
    }
    respond(c, err, &b, "application/json");
    td_buf_fini(&b);
}

static const struct {
    const char *path;
    bool probe; /* no certificate needed */
    void (*handle)(struct call *c);
} routes[] = {
    {"/health", true, h_ready},    {"/readyz", true, h_ready},     {"/readiness", true, h_ready},
    {"/livez", true, h_alive},     {"/liveness", true, h_alive},   {"/startupz", true, h_alive},
    {"/version", true, h_version}, {"/metrics", false, h_metrics}, {"/debug/waits", false, h_waits},
};

/* Index of the path, or TD_COUNT(routes). */
static size_t find_route(const char *path)
{
    size_t i = 0;
    while (i < TD_COUNT(routes) && strcmp(routes[i].path, path) != 0) {
        i++;
    }
    return i;
}

void nd__admin(void *arg, struct td_http_exchange *x)
{
    struct call c = {.n = arg, .x = x};
    const struct td_http_request *r = td_http_exchange_request(x);
    size_t i = find_route(r->path);
    bool known = i < TD_COUNT(routes);
    if (!(known && routes[i].probe) &&
        !td_tls_lets_in(c.n->admin_tls, td_http_exchange_verified(x))) {
        td_http_refuse(x, TD_ERR_FORBIDDEN, TD_TLS_SHOW_ONE, NULL, 1);
    } else if (!known) {
        td_http_refuse(x, TD_ERR_NOT_FOUND, NULL, NULL, 1);
    } else if (strcmp(r->method, "GET") != 0 && strcmp(r->method, "HEAD") != 0) {
        td_http_refuse(x, TD_ERR_METHOD, NULL, NULL, 1);
    } else {
        routes[i].handle(&c);
    }
}

static void count_call(void *arg, const struct td_grpc_call *c, enum td_grpc_status status)
{
    const struct td_node *n = arg;
    nd_metrics_call(n->metrics, td_grpc_call_service(c), td_grpc_call_method(c), status);
}

void nd__count_calls(struct td_node *n, struct td_grpc_server *server)
{
    td_grpc_server_on_end(server, count_call, n);
}

/* The probes of gRPC say what those of HTTP say: a node without a router is ready too. */
enum td_health nd__health(void *arg, const char *service)
{
    const struct td_node *n = arg;
    bool is_prefill = n->p.role_told != TD_ROLE_DECODE,
         is_decode = n->p.role_told != TD_ROLE_PREFILL;
    enum td_health ready = n->draining || n->held ? TD_HEALTH_NOT_SERVING : TD_HEALTH_SERVING;
    if (strcmp(service, "liveness") == 0) {
        return TD_HEALTH_SERVING; /* this line runs: the loop lives */
    }
    if (service[0] == 0 || strcmp(service, "readiness") == 0) {
        return ready;
    }
    if (strcmp(service, "prefill") == 0) {
        return is_prefill ? ready : TD_HEALTH_NOT_SERVING;
    }
    if (strcmp(service, "decode") == 0) {
        return is_decode ? ready : TD_HEALTH_NOT_SERVING;
    }
    return TD_HEALTH_SERVICE_UNKNOWN;
}
