/* Design: one table of routes for both ports. Authentication comes before routing on the public
 * port: everything needs a key but what the table calls open (probes and the version; the metrics
 * are open on the admin port only).
 */
#define TD_LOG_ROOM "router"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/io/http_error.h"
#include "router/rt_http_int.h"

void rt__refuse(struct rt_call *c, td_err err, const char *text, const char *param, double retry_s)
{
    struct td_http_header id = {"x-request-id", c->id};
    td_http_refuse_with(c->x, err, text, param, retry_s, &id, 1);
}

void rt__answer(struct rt_call *c, const char *type, const void *body, size_t len)
{
    struct td_http_header id = {"x-request-id", c->id};
    td_http_respond(c->x, 200, &id, 1, type, body, len);
}

void rt__answer_json(struct rt_call *c, const struct td_buf *body, td_err err)
{
    if (err != TD_OK) {
        rt__refuse(c, err, "the answer does not fit into memory", NULL, 1);
        return;
    }
    rt__answer(c, "application/json", body->data, body->len);
}

/* ---- the API ---- */

static bool is_json(const char *type)
{
    return type != NULL && strncasecmp(type, "application/json", 16) == 0 &&
           (type[16] == 0 || strchr("; \t", type[16]) != NULL);
}

/* With what this key is limited to and what is left of it: x-ratelimit-limit-requests and so on. */
static void refuse_by_key(struct rt_call *c, td_err err, double retry_s)
{
    static const char *const parts[] = {"limit", "remaining", "reset"};
    struct td_api_key_limit limits[TD_API_KEY_LIMITS];
    struct td_http_header h[TD_HTTP_REFUSE_EXTRA] = {{"x-request-id", c->id}};
    char names[TD_API_KEY_LIMITS][3][48], values[TD_API_KEY_LIMITS][3][32];
    uint32_t n = td_api_key_limits(c->key, limits), n_h = 1;
    for (uint32_t i = 0; i < n; i++) {
        const struct td_api_key_limit *l = &limits[i];
        (void)snprintf(values[i][0], sizeof values[i][0], "%.0f", ceil(l->limit));
        (void)snprintf(values[i][1], sizeof values[i][1], "%.0f", floor(l->remaining));
        (void)snprintf(values[i][2], sizeof values[i][2], "%.2fs", fmin(l->reset_s, 1e9));
        for (uint32_t k = 0; k < (l->reset_s > 0 ? 3u : 2u); k++) {
            (void)snprintf(names[i][k], sizeof names[i][k], "x-ratelimit-%s-%s", parts[k], l->what);
            h[n_h++] = (struct td_http_header){names[i][k], values[i][k]};
        }
    }
    td_http_refuse_with(c->x, err, "this key has reached a rate limit", NULL, retry_s, h, n_h);
}

static void generate(struct rt_call *c, bool chat)
{
    double retry_s = 1;
    if (!is_json(td_http_header_get(c->r, "content-type"))) {
        rt__refuse(c, TD_ERR_MEDIA_TYPE, "Content-Type must be application/json", NULL, 1);
        rt_metrics_answer(c->s->metrics, 415, TD_ERR_MEDIA_TYPE);
        return;
    }
    td_err err = rt__client_admit(c->s, c->key, &retry_s);
    if (err != TD_OK) {
        if (err == TD_ERR_RATE_LIMITED) {
            refuse_by_key(c, err, retry_s);
        } else {
            rt__refuse(c, err, err == TD_ERR_DRAINING ? "this router is draining" : NULL, NULL,
                       retry_s);
        }
        rt_metrics_answer(c->s->metrics, td_err_http(err), err);
        return;
    }
    rt__client_start(c->s, c->x, chat, c->key, c->id);
}

static void h_chat(struct rt_call *c)
{
    generate(c, true);
}

static void h_completions(struct rt_call *c)
{
    generate(c, false);
}

static td_err model_object(const struct rt_shell *s, const char *name, struct td_buf *b)
{
    TD_TRY(td_buf_puts(b, "{\"id\":"));
    TD_TRY(td_buf_json_string(b, name, strlen(name)));
    TD_TRY(td_buf_printf(
        b, ",\"object\":\"model\",\"created\":%" PRId64 ",\"owned_by\":\"tandem\",\"root\":",
        (td_wall_us() - (td_now_us() - s->started_us)) / 1000000));
    TD_TRY(td_buf_json_string(b, name, strlen(name)));
    return td_buf_printf(b, ",\"parent\":null,\"max_model_len\":%u,\"permission\":[]}",
                         s->model->max_model_len);
}

static void h_models(struct rt_call *c)
{
    struct td_buf b;
    td_buf_init(&b, RT_BODY_MAX);
    td_err err = td_buf_puts(&b, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; err == TD_OK && i < c->s->model->n_names; i++) {
        err = i > 0 ? td_buf_puts(&b, ",") : TD_OK;
        err = err == TD_OK ? model_object(c->s, c->s->model->names[i], &b) : err;
    }
    err = err == TD_OK ? td_buf_puts(&b, "]}") : err;
    rt__answer_json(c, &b, err);
    td_buf_fini(&b);
}

static void h_model(struct rt_call *c)
{
    const char *name = c->r->path + strlen("/v1/models/");
    struct td_buf b;
    if (!rt_model_serves(c->s->model, name)) {
        rt__refuse(c, TD_ERR_MODEL_NOT_FOUND, "unknown model", "model", 1);
        return;
    }
    td_buf_init(&b, RT_BODY_MAX);
    rt__answer_json(c, &b, model_object(c->s, name, &b));
    td_buf_fini(&b);
}

/* ---- probes ---- */

static void status_only(struct rt_call *c, bool ok, td_err err)
{
    if (ok) {
        rt__answer(c, "application/json", "{\"status\":\"ok\"}", 15);
    } else {
        rt__refuse(c, err, td_err_text(err), NULL, 1);
    }
}

static void h_health(struct rt_call *c)
{
    td_err err = c->s->draining ? TD_ERR_DRAINING : TD_ERR_NO_NODE;
    status_only(c, !c->s->draining && rt_shell_ready(c->s), err);
}

static void h_alive(struct rt_call *c)
{
    status_only(c, true, TD_OK); /* this line runs: the loop lives */
}

static void h_version(struct rt_call *c)
{
    static const char body[] = "{\"version\":\"" TD_VERSION "\"}";
    rt__answer(c, "application/json", body, sizeof body - 1);
}

static void h_metrics(struct rt_call *c)
{
    struct td_buf b;
    td_buf_init(&b, RT_BODY_MAX);
    td_err err = rt_metrics_write(c->s->metrics, &b);
    if (err != TD_OK) {
        rt__refuse(c, err, "metrics do not fit into memory", NULL, 1);
    } else {
        rt__answer(c, "text/plain; version=0.0.4; charset=utf-8", b.data, b.len);
    }
    td_buf_fini(&b);
}

/* ---- routes ---- */

#define PUBLIC 1u
#define ADMIN  2u
#define BOTH   3u

static const struct route {
    const char *method, *path; /* a path that ends in '/' is a prefix */
    unsigned ports;
    bool open;  /* no key needed */
    bool probe; /* no certificate needed on the admin port */
    void (*handle)(struct rt_call *c);
} routes[] = {
    {"POST", "/v1/chat/completions", PUBLIC, false, false, h_chat},
    {"POST", "/v1/completions", PUBLIC, false, false, h_completions},
    {"GET", "/v1/models", PUBLIC, false, false, h_models},
    {"GET", "/v1/models/", PUBLIC, false, false, h_model},
    {"GET", "/health", BOTH, true, true, h_health},
    {"GET", "/v1/health", BOTH, true, true, h_health},
    {"GET", "/readyz", BOTH, true, true, h_health},
    {"GET", "/readiness", BOTH, true, true, h_health},
    {"GET", "/livez", BOTH, true, true, h_alive},
    {"GET", "/liveness", BOTH, true, true, h_alive},
    {"GET", "/startupz", BOTH, true, true, h_alive},
    {"GET", "/version", BOTH, true, true, h_version},
    {"GET", "/metrics", BOTH, false, false, h_metrics},
    {"GET", "/nodes", ADMIN, true, false, rt__admin_nodes},
    {"GET", "/requests", ADMIN, true, false, rt__admin_requests},
    {"GET", "/debug/request/", ADMIN, true, false, rt__admin_request},
    {"GET", "/live", ADMIN, true, false, rt__admin_live},
    {"GET", "/", ADMIN, true, false, rt__admin_page},
    {"GET", "/ui", ADMIN, true, false, rt__admin_page},
    {"POST", "/drain", ADMIN, true, false, rt__admin_drain},
    {"POST", "/probe", ADMIN, true, false, rt__admin_probe},
};

static bool path_matches(const char *pattern, const char *path)
{
    size_t n = strlen(pattern);
    if (n > 1 && pattern[n - 1] == '/') {
        return strncmp(path, pattern, n) == 0 && path[n] != 0;
    }
    return strcmp(path, pattern) == 0;
}

static bool method_matches(const char *have, const char *want)
{
    return strcmp(have, want) == 0 || (strcmp(have, "HEAD") == 0 && strcmp(want, "GET") == 0);
}

static const struct route *find_route(const struct td_http_request *r, unsigned port,
                                      bool *out_path_known)
{
    *out_path_known = false;
    for (size_t i = 0; i < TD_COUNT(routes); i++) {
        if ((routes[i].ports & port) != 0 && path_matches(routes[i].path, r->path)) {
            *out_path_known = true;
            if (method_matches(r->method, routes[i].method)) {
                return &routes[i];
            }
        }
    }
    return NULL;
}

static void serve(struct rt_shell *s, struct td_http_exchange *x, unsigned port)
{
    struct rt_call c = {.s = s, .x = x, .r = td_http_exchange_request(x)};
    bool known = false;
    rt__request_id(s, c.r, c.id);
    const struct route *route = find_route(c.r, port, &known);
    td_err err = TD_OK;
    if (port == PUBLIC && (route == NULL || !route->open)) {
        err = td_api_keys_check(s->keys, td_http_header_get(c.r, "authorization"), &c.key);
    }
    if (port == ADMIN && (route == NULL || !route->probe) &&
        !td_tls_lets_in(s->admin_tls, td_http_exchange_verified(x))) {
        rt__refuse(&c, TD_ERR_FORBIDDEN, TD_TLS_SHOW_ONE, NULL, 1);
        return;
    }
    if (err == TD_OK && route == NULL) {
        err = known ? TD_ERR_METHOD : TD_ERR_NOT_FOUND;
    }
    if (err != TD_OK) {
        rt__refuse(&c, err, NULL, NULL, 1);
        rt_metrics_answer(s->metrics, td_err_http(err), err);
        return;
    }
    route->handle(&c);
}

void rt__http_public(void *arg, struct td_http_exchange *x)
{
    serve(arg, x, PUBLIC);
}

void rt__http_admin(void *arg, struct td_http_exchange *x)
{
    serve(arg, x, ADMIN);
}
