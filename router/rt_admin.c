/* Design: everything here is read from the core, the history and the live figures in one pass and answered whole; every
 * list has a bound. What changes something is a POST with a JSON body: a page of another site cannot send that without
 * a preflight, which nobody here answers; a page under another name of this host is refused by its Origin.
 */
#define TD_LOG_ROOM "router"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "router/rt_explain.h"
#include "router/rt_http_int.h"

#define RECENT_US        60000000
#define LIST_DEFAULT     100 /* finished requests listed */
#define MAX_LIMIT_MS     86400000
#define PROBE_TOKENS     128
#define PROBE_MAX_TOKENS 4096

/* ---- parts of answers ---- */

static td_err text(struct td_buf *b, const char *key, const char *value)
{
    TD_TRY(td_buf_printf(b, "\"%s\":", key));
    return td_buf_json_string(b, value, strlen(value));
}

static td_err node_identity(const struct rt_node *n, struct td_buf *b)
{
    static const char *const roles[] = {"", "prefill", "decode", "both"};
    TD_TRY(text(b, "name", n->name));
    TD_TRY(td_buf_printf(
        b, ",\"role\":\"%s\",\"epoch\":\"%016" PRIx64 "\",\"ready\":%s,\"draining\":%s,",
        roles[n->role & 3], n->epoch, n->have_state && n->state.ready ? "true" : "false",
        n->state.draining || n->held ? "true" : "false"));
    TD_TRY(td_buf_printf(b, "\"drained\":%s,", rt_node_drained(n) ? "true" : "false"));
    TD_TRY(text(b, "why_not", rt_node_why_not(n)));
    TD_TRY(td_buf_puts(b, ","));
    TD_TRY(text(b, "version", n->version));
    TD_TRY(td_buf_puts(b, ","));
    TD_TRY(text(b, "numerics", n->numerics));
    TD_TRY(td_buf_puts(b, ","));
    TD_TRY(text(b, "admin", n->admin_address));
    return td_buf_printf(
        b,
        ",\"layout_id\":\"%016" PRIx64 "\",\"numerics_id\":\"%016" PRIx64
        "\",\"block_tokens\":%u,\"layers\":%u,\"max_model_len\":%u,\"max_seqs\":%u,\"ranks\":%u",
        n->layout_id, n->numerics_id, n->block_tok, n->n_layers, n->max_model_len, n->max_seqs,
        n->n_ranks);
}

static td_err node_json(const struct rt_node *n, struct td_buf *b)
{
    static const char *const states[TD_BLK_STATES] = {"free",    "cached", "reserved",   "filling",
                                                      "running", "parked", "quarantined"};
    TD_TRY(td_buf_puts(b, "{"));
    TD_TRY(node_identity(n, b));
    TD_TRY(td_buf_printf(b,
                         ",\"running\":%u,\"queued\":%u,\"queued_prompt_tokens\":%" PRIu64
                         ",\"inflight\":%u,\"dispatched\":%" PRIu64 ",\"n_blocks\":%u,\"blocks\":{",
                         n->state.running_requests, n->state.queued_requests,
                         n->state.queued_prompt_tok, n->inflight, n->dispatched, n->n_blocks));
    for (int i = 0; i < TD_BLK_STATES; i++) {
        TD_TRY(td_buf_printf(b, "%s\"%s\":%u", i > 0 ? "," : "", states[i], n->state.blocks[i]));
    }
    return td_buf_printf(
        b, "},\"prefill_us_per_ktok\":%u,\"decode_step_us\":%u,\"report_age_us\":%" PRId64 "}",
        n->state.prefill_us_per_ktok, n->state.decode_step_us,
        n->have_state ? td_now_us() - n->reported_us : -1);
}

static td_err nodes_json(const struct rt_shell *s, struct td_buf *b)
{
    const struct rt_nodes *ns = rt_core_nodes(s->core);
    bool first = true;
    TD_TRY(td_buf_puts(b, "\"nodes\":["));
    for (uint32_t i = 0; i < RT_MAX_NODES; i++) {
        if (ns->list[i].epoch != 0) {
            TD_TRY(first ? TD_OK : td_buf_puts(b, ","));
            TD_TRY(node_json(&ns->list[i], b));
            first = false;
        }
    }
    return td_buf_puts(b, "]");
}

const char *rt__phase_name(enum rt_phase p)
{
    static const char *const names[] = {"free", "queued", "prefill", "decode", "closing"};
    return p < RT_PHASES ? names[p] : "?";
}

/* Without the closing brace. */
static td_err live_fields(const struct rt_shell *s, const struct rt_request_view *v,
                          struct td_buf *b)
{
    const struct rt_decision_record *d = rt_core_decision(s->core, v->decision);
    TD_TRY(td_buf_puts(b, "{"));
    TD_TRY(text(b, "request_id", v->request_id));
    TD_TRY(td_buf_printf(b,
                         ",\"phase\":\"%s\",\"attempt\":%u,\"prompt_tokens\":%u,\"output_tokens\":"
                         "%u,\"age_us\":%" PRId64 ",\"deadline_in_us\":%" PRId64 ",",
                         rt__phase_name(v->phase), v->id.attempt, v->n_prompt, v->n_output,
                         td_now_us() - v->since_us, v->deadline_us - td_now_us()));
    TD_TRY(text(b, "prefill", d != NULL ? d->p_name : ""));
    TD_TRY(td_buf_puts(b, ","));
    return text(b, "decode", d != NULL ? d->d_name : "");
}

static td_err live_requests(const struct rt_shell *s, struct td_buf *b)
{
    static struct rt_request_view views[512]; /* loop thread only */
    uint32_t n = rt_core_requests(s->core, views, TD_COUNT(views));
    TD_TRY(td_buf_puts(b, "\"live\":["));
    for (uint32_t i = 0; i < n; i++) {
        TD_TRY(i > 0 ? td_buf_puts(b, ",") : TD_OK);
        TD_TRY(live_fields(s, &views[i], b));
        TD_TRY(td_buf_puts(b, "}"));
    }
    return td_buf_puts(b, "]");
}

static td_err finished_requests(const struct rt_shell *s, uint32_t limit, struct td_buf *b)
{
    TD_TRY(td_buf_puts(b, "\"finished\":["));
    for (uint32_t i = 0; i < limit; i++) {
        const struct rt_history_record *r = rt_history_get(s->history, i);
        if (r == NULL) {
            break;
        }
        TD_TRY(i > 0 ? td_buf_puts(b, ",") : TD_OK);
        TD_TRY(rt_history_json(r, b));
    }
    return td_buf_puts(b, "]");
}

/* ---- what is asked ---- */

/* A whole number of the query, "a=1&limit=20"; *out keeps its value when it is not there. False: it is no number, which has
 * been answered. */
static bool query_number(struct rt_call *c, const char *name, uint64_t *out)
{
    char why[64];
    size_t n = strlen(name);
    for (const char *p = c->r->query; p != NULL && *p != 0; p = strchr(p, '&')) {
        p += *p == '&' ? 1 : 0;
        if (strncmp(p, name, n) == 0 && p[n] == '=') {
            char *end = NULL;
            errno = 0;
            uint64_t v = strtoull(p + n + 1, &end, 10);
            if (p[n + 1] < '0' || p[n + 1] > '9' || (*end != 0 && *end != '&') || errno != 0) {
                (void)snprintf(why, sizeof why, "%s must be a whole number", name);
                rt__refuse(c, TD_ERR_BAD_REQUEST, why, name, 1);
                return false;
            }
            *out = v;
            return true;
        }
    }
    return true;
}

void rt__admin_nodes(struct rt_call *c)
{
    struct td_buf b;
    td_buf_init(&b, RT_BODY_MAX);
    td_err err = td_buf_puts(&b, "{");
    err = err == TD_OK ? nodes_json(c->s, &b) : err;
    err = err == TD_OK ? td_buf_puts(&b, "}") : err;
    rt__answer_json(c, &b, err);
    td_buf_fini(&b);
}

void rt__admin_requests(struct rt_call *c)
{
    uint64_t limit = LIST_DEFAULT;
    struct td_buf b;
    if (!query_number(c, "limit", &limit)) {
        return;
    }
    td_buf_init(&b, RT_BODY_MAX);
    td_err err = td_buf_puts(&b, "{");
    err = err == TD_OK ? live_requests(c->s, &b) : err;
    err = err == TD_OK ? td_buf_puts(&b, ",") : err;
    err = err == TD_OK
              ? finished_requests(c->s, limit < RT_HISTORY ? (uint32_t)limit : RT_HISTORY, &b)
              : err;
    err = err == TD_OK ? td_buf_puts(&b, "}") : err;
    rt__answer_json(c, &b, err);
    td_buf_fini(&b);
}

/* Its fields, then its attempts. */
static td_err finished_json(const struct rt_shell *s, const struct rt_history_record *r,
                            struct td_buf *b)
{
    TD_TRY(rt_history_fields(r, b));
    TD_TRY(td_buf_puts(b, ","));
    TD_TRY(rt_explain_json(s->core, r->decision, r->started_us, b));
    return td_buf_puts(b, "}");
}

static td_err running_json(const struct rt_shell *s, const struct rt_request_view *v,
                           struct td_buf *b)
{
    TD_TRY(live_fields(s, v, b));
    TD_TRY(td_buf_printf(b, ",\"attempts\":%u,", v->id.attempt + 1));
    TD_TRY(rt_explain_json(s->core, v->decision, v->since_us, b));
    return td_buf_puts(b, "}");
}

void rt__admin_request(struct rt_call *c)
{
    const char *id = c->r->path + strlen("/debug/request/");
    const struct rt_history_record *r = rt_history_find(c->s->history, id);
    struct rt_request_view v;
    struct td_buf b;
    if (r == NULL && !rt_core_request_named(c->s->core, id, &v)) {
        rt__refuse(c, TD_ERR_NOT_FOUND, "no request of this id runs or is remembered", NULL, 1);
        return;
    }
    td_buf_init(&b, RT_BODY_MAX);
    rt__answer_json(c, &b, r != NULL ? finished_json(c->s, r, &b) : running_json(c->s, &v, &b));
    td_buf_fini(&b);
}

/* ---- the live figures ---- */

static td_err router_json(const struct rt_shell *s, struct td_buf *b)
{
    struct rt_live_gauges g;
    rt__live_gauges(s, &g);
    TD_TRY(td_buf_puts(b, "\"router\":{"));
    TD_TRY(text(b, "name", s->p.name));
    TD_TRY(td_buf_puts(b, ","));
    TD_TRY(text(b, "model", s->model->names[0]));
    return td_buf_printf(
        b,
        ",\"version\":\"" TD_VERSION "\",\"ready\":%s,\"draining\":%s,\"queued\":%u,\"running\":%u,"
        "\"queued_bytes\":%" PRIu64 ",\"uptime_us\":%" PRId64
        ",\"kv_prefill\":%.4f,\"kv_decode\":%.4f}",
        rt_shell_ready(s) ? "true" : "false", s->draining ? "true" : "false", g.queued, g.running,
        rt_core_queued_bytes(s->core), td_now_us() - s->started_us, g.kv_prefill, g.kv_decode);
}

static td_err recent_json(const struct rt_shell *s, struct td_buf *b)
{
    struct rt_history_recent r;
    rt_history_recent(s->history, td_wall_us() - RECENT_US, &r);
    return td_buf_printf(
        b,
        "\"recent\":{\"window_us\":%d,\"finished\":%u,\"failed\":%u,\"ttft_p50_us\":%" PRId64
        ",\"ttft_p95_us\":%" PRId64 ",\"tpot_p50_us\":%" PRId64 ",\"tpot_p95_us\":%" PRId64 "}",
        RECENT_US, r.finished, r.failed, r.ttft_p50_us, r.ttft_p95_us, r.tpot_p50_us,
        r.tpot_p95_us);
}

static td_err live_json(const struct rt_shell *s, uint64_t since, struct td_buf *b)
{
    TD_TRY(td_buf_printf(b, "{\"unix_us\":%" PRId64 ",", td_wall_us()));
    TD_TRY(router_json(s, b));
    TD_TRY(td_buf_puts(b, ","));
    TD_TRY(nodes_json(s, b));
    TD_TRY(td_buf_puts(b, ","));
    TD_TRY(recent_json(s, b));
    TD_TRY(td_buf_puts(b, ","));
    TD_TRY(rt_live_json(s->live, td_now_us(), since, b));
    return td_buf_puts(b, "}");
}

void rt__admin_live(struct rt_call *c)
{
    struct td_buf b;
    uint64_t since = 0;
    if (!query_number(c, "since", &since)) {
        return;
    }
    td_buf_init(&b, RT_BODY_MAX);
    rt__answer_json(c, &b, live_json(c->s, since, &b));
    td_buf_fini(&b);
}

void rt__admin_page(struct rt_call *c)
{
    size_t len = 0;
    const void *html = rt_page_html(c->s->page, &len);
    const struct td_http_header h[] = {
        {"x-request-id", c->id},
        {"content-security-policy", rt_page_policy(c->s->page)},
        {"x-content-type-options", "nosniff"},
        {"referrer-policy", "no-referrer"},
        {"cache-control", "no-cache"},
    };
    td_http_respond(c->x, 200, h, TD_COUNT(h), "text/html; charset=utf-8", html, len);
}

/* ---- what changes something ---- */

/* From our own page or from no page at all. */
static bool same_origin(const struct rt_call *c)
{
    const char *origin = td_http_header_get(c->r, "origin");
    const char *host = td_http_header_get(c->r, "host");
    const char *at = origin != NULL ? strstr(origin, "://") : NULL;
    return origin == NULL || (at != NULL && host != NULL && strcmp(at + 3, host) == 0);
}

static bool is_json(const struct rt_call *c)
{
    const char *type = td_http_header_get(c->r, "content-type");
    return type != NULL && strncasecmp(type, "application/json", 16) == 0 &&
           (type[16] == 0 || type[16] == ';' || type[16] == ' ');
}

/* The body's object, or NULL after an answer was given. */
static json_t *take_object(struct rt_call *c)
{
    json_t *j = NULL;
    char why[160] = "";
    if (!same_origin(c)) {
        rt__refuse(c, TD_ERR_FORBIDDEN, "a page of another origin may not do this", NULL, 1);
        return NULL;
    }
    if (!is_json(c)) {
        rt__refuse(c, TD_ERR_MEDIA_TYPE, "Content-Type must be application/json", NULL, 1);
        return NULL;
    }
    if (td_json_parse((const char *)c->r->body, c->r->body_len, &j, why, sizeof why) != TD_OK) {
        rt__refuse(c, TD_ERR_BAD_REQUEST, why, NULL, 1);
        return NULL;
    }
    if (!json_is_object(j)) {
        json_decref(j);
        rt__refuse(c, TD_ERR_BAD_REQUEST, "the body must be an object", NULL, 1);
        return NULL;
    }
    return j;
}

/* By name, or by epoch as /nodes shows it. */
static struct rt_node *find_node(struct rt_shell *s, const char *name)
{
    struct rt_nodes *ns = (struct rt_nodes *)(uintptr_t)rt_core_nodes(s->core); /* looked up only */
    struct rt_node *n = rt_nodes_named(ns, name);
    char *end = NULL;
    uint64_t epoch = strlen(name) == 16 ? strtoull(name, &end, 16) : 0;
    return n != NULL || end == NULL || *end != 0 ? n : rt_nodes_find(ns, epoch);
}

td_err rt__shell_drain_node(struct rt_shell *s, const char *name, const struct td_wire_drain *d,
                            struct rt_node **out_node)
{
    struct rt_node *n = find_node(s, name);
    if (n == NULL) {
        return TD_ERR_NOT_FOUND;
    }
    struct rt_event ev = {.type = RT_EV_NODE_DRAIN, .node_epoch = n->epoch, .drain = d};
    rt__event(s->grpc_admin, d->undo ? "node.undrain" : "node.drain", n->name, "", d->why);
    rt__shell_event(s, &ev, NULL);
    *out_node = n;
    return TD_OK;
}

/* {"node": NAME, "undo": false, "limit_ms": 0, "why": ""}; the limit ends what still runs then, 0 never. */
static void drain(struct rt_call *c, const json_t *j)
{
    const json_t *limit = json_object_get(j, "limit_ms"), *why = json_object_get(j, "why");
    const json_t *undo = json_object_get(j, "undo");
    const char *name = json_string_value(json_object_get(j, "node"));
    json_int_t ms = limit == NULL ? 0 : json_is_integer(limit) ? json_integer_value(limit) : -1;
    struct td_wire_drain d = {.why = why == NULL ? "" : json_string_value(why),
                              .undo = json_is_true(undo)};
    struct rt_node *n = NULL;
    if (name == NULL || d.why == NULL || strlen(d.why) > 256 || ms < 0 || ms > MAX_LIMIT_MS ||
        (undo != NULL && !json_is_boolean(undo))) {
        rt__refuse(c, TD_ERR_BAD_REQUEST,
                   "needs node; undo is true or false, limit_ms 0 to 86400000, why at most 256 "
                   "bytes of text",
                   NULL, 1);
        return;
    }
    d.limit_ms = (uint32_t)ms;
    if (rt__shell_drain_node(c->s, name, &d, &n) != TD_OK) {
        rt__refuse(c, TD_ERR_NOT_FOUND, "no node of this name is attached", "node", 1);
        return;
    }
    struct td_buf b;
    td_buf_init(&b, RT_BODY_MAX);
    rt__answer_json(c, &b, node_json(n, &b));
    td_buf_fini(&b);
}

void rt__admin_drain(struct rt_call *c)
{
    json_t *j = take_object(c);
    if (j != NULL) {
        drain(c, j);
        json_decref(j);
    }
}

/* {"prefill": NAME, "decode": NAME, "tokens": 128, "park": false}: one small request of our own through that pair; parked,
 * its KV moves all at once, so that the time of the transfer is the link's. */
static void probe(struct rt_call *c, const json_t *j)
{
    const char *p_name = json_string_value(json_object_get(j, "prefill"));
    const char *d_name = json_string_value(json_object_get(j, "decode"));
    const json_t *n = json_object_get(j, "tokens"), *park = json_object_get(j, "park");
    json_int_t tokens = n == NULL ? PROBE_TOKENS : json_is_integer(n) ? json_integer_value(n) : 0;
    if (p_name == NULL || d_name == NULL || tokens < 1 || tokens > PROBE_MAX_TOKENS ||
        (park != NULL && !json_is_boolean(park))) {
        rt__refuse(c, TD_ERR_BAD_REQUEST,
                   "needs prefill and decode; tokens is 1 to 4096, park true or false", NULL, 1);
        return;
    }
    const struct rt_node *p = find_node(c->s, p_name), *d = find_node(c->s, d_name);
    if (p == NULL || d == NULL) {
        rt__refuse(c, TD_ERR_NOT_FOUND, "no node of this name is attached",
                   p == NULL ? "prefill" : "decode", 1);
        return;
    }
    rt__probe_start(c->s, c->x, p->epoch, d->epoch, (uint32_t)tokens, json_is_true(park));
}

void rt__admin_probe(struct rt_call *c)
{
    json_t *j = take_object(c);
    if (j != NULL) {
        probe(c, j);
        json_decref(j);
    }
}
