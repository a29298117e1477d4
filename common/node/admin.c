#define TD_LOG_ROOM "node"
#include "common/node/admin.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/io/http_error.h"
#include "common/io/http_server.h"

#define MAX_CONNECTIONS 256
#define MAX_REQUEST     65536

struct nd_admin {
    const struct nd_admin_ops *ops;
    void *arg;
    struct td_tls *tls;          /* owned; NULL: cleartext */
    struct td_http_server *http; /* owned */
    struct td_grpc_admin *grpc;  /* owned, on the same port */
};

static void say_ok(struct td_http_exchange *x)
{
    td_http_respond(x, 200, NULL, 0, "application/json", "{\"status\":\"ok\"}", 15);
}

static void h_ready(struct nd_admin *a, struct td_http_exchange *x)
{
    if (a->ops->draining(a->arg)) {
        td_http_refuse(x, TD_ERR_DRAINING, "this node is draining", NULL, 1);
        return;
    }
    say_ok(x);
}

static void h_alive(struct nd_admin *a, struct td_http_exchange *x)
{
    (void)a;
    say_ok(x);
}

static void h_version(struct nd_admin *a, struct td_http_exchange *x)
{
    char body[128];
    (void)a;
    int n = snprintf(body, sizeof body, "{\"version\":\"" TD_VERSION "\",\"unix_us\":%" PRId64 "}",
                     td_wall_us());
    td_http_respond(x, 200, NULL, 0, "application/json", body, (size_t)n);
}

static void show(struct nd_admin *a, struct td_http_exchange *x,
                 td_err (*write)(void *arg, struct td_buf *out), const char *type)
{
    struct td_buf b;
    td_buf_init(&b, ND_ADMIN_BODY_MAX);
    if (write(a->arg, &b) == TD_OK) {
        td_http_respond(x, 200, NULL, 0, type, b.data, b.len);
    } else {
        td_http_refuse(x, TD_ERR_NO_MEMORY, "the answer does not fit into memory", NULL, 1);
    }
    td_buf_fini(&b);
}

static void h_metrics(struct nd_admin *a, struct td_http_exchange *x)
{
    show(a, x, a->ops->metrics, "text/plain; version=0.0.4; charset=utf-8");
}

static void h_waits(struct nd_admin *a, struct td_http_exchange *x)
{
    if (a->ops->waits == NULL) {
        td_http_refuse(x, TD_ERR_NOT_FOUND, NULL, NULL, 1);
        return;
    }
    show(a, x, a->ops->waits, "application/json");
}

static const struct {
    const char *path;
    bool probe; /* no certificate needed */
    void (*handle)(struct nd_admin *a, struct td_http_exchange *x);
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

static void on_request(void *arg, struct td_http_exchange *x)
{
    struct nd_admin *a = arg;
    const struct td_http_request *r = td_http_exchange_request(x);
    size_t i = find_route(r->path);
    bool known = i < TD_COUNT(routes);
    if (!(known && routes[i].probe) && !td_tls_lets_in(a->tls, td_http_exchange_verified(x))) {
        td_http_refuse(x, TD_ERR_FORBIDDEN, TD_TLS_SHOW_ONE, NULL, 1);
    } else if (!known) {
        td_http_refuse(x, TD_ERR_NOT_FOUND, NULL, NULL, 1);
    } else if (strcmp(r->method, "GET") != 0 && strcmp(r->method, "HEAD") != 0) {
        td_http_refuse(x, TD_ERR_METHOD, NULL, NULL, 1);
    } else {
        routes[i].handle(a, x);
    }
}

static td_err listen_on(struct nd_admin *a, const struct nd_admin_params *p)
{
    struct td_http_server_params s;
    TD_TRY(td_tls_create_admin(p->loop, &p->tls, &a->tls));
    td_http_server_defaults(&s);
    s.loop = p->loop;
    s.host = p->host;
    s.port = p->port;
    s.option = "--admin-port";
    s.limits.max_body = MAX_REQUEST;
    s.tls = a->tls;
    s.alpn = TD_ALPN_BOTH;
    s.max_connections = MAX_CONNECTIONS;
    s.max_per_address = MAX_CONNECTIONS;
    s.handler = on_request;
    s.arg = a;
    s.error_body = td_http_error_body;
    TD_TRY(td_http_server_create(&s, &a->http));
    return td_grpc_admin_create(p->loop, a->http, a->tls, p->ops->health, p->arg, &a->grpc);
}

td_err nd_admin_create(const struct nd_admin_params *p, struct nd_admin **out_admin)
{
    struct nd_admin *a = td_zalloc(1, sizeof *a);
    if (a == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    a->ops = p->ops;
    a->arg = p->arg;
    td_err err = listen_on(a, p);
    if (err != TD_OK) {
        nd_admin_destroy(a);
        return err;
    }
    *out_admin = a;
    return TD_OK;
}

struct nd_admin *nd_admin_destroy(struct nd_admin *a)
{
    if (a != NULL) {
        td_grpc_admin_destroy(a->grpc);
        td_http_server_destroy(a->http);
        td_tls_destroy(a->tls);
        free(a);
    }
    return NULL;
}

uint16_t nd_admin_port(const struct nd_admin *a)
{
    return td_http_server_port(a->http);
}

const struct td_tls *nd_admin_tls(const struct nd_admin *a)
{
    return a->tls;
}

void nd_admin_reload_tls(struct nd_admin *a)
{
    if (a->tls != NULL) {
        TD_IGNORE(td_tls_reload(a->tls)); /* logged there; the old ones stay */
    }
}

struct td_grpc_server *nd_admin_grpc(const struct nd_admin *a)
{
    return td_grpc_admin_server(a->grpc);
}
