#include "router/rt_metrics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/metrics_process.h"
#include "common/io/tls.h"
#include "common/model/model.h"
#include "router/rt_shell_int.h"

/* One row a family; docs/metrics.md lists them, tests/integration/metrics_test.py compares. */
#define NONE                                                                                       \
    {                                                                                              \
        NULL                                                                                       \
    }
#define L1(a)                                                                                      \
    {                                                                                              \
        a, NULL                                                                                    \
    }

#define GEN_AI(more)                                                                               \
    {                                                                                              \
        "gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", more, NULL        \
    }

/* Placement takes microseconds; the others are OpenTelemetry's (interfaces.md 2.5). */
static const double scheduler_buckets[] = {1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5,
                                           1e-4, 2e-4, 5e-4, 1e-3, 5e-3, .05};
static const double genai_duration_buckets[] = {.01,  .02,  .04,  .08,   .16,   .32,   .64,
                                                1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92};
static const double genai_ttft_buckets[] = {.001, .005, .01, .02, .04, .06, .08, .1,
                                            .25,  .5,   .75, 1,   2.5, 5,   7.5, 10};
static const double genai_tpot_buckets[] = {.01, .025, .05, .075, .1, .15, .2,
                                            .3,  .4,   .5,  .75,  1,  2.5};
static const double genai_token_buckets[] = {
    1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864};

enum family {
    F_RUNNING,
    F_QUEUED,
    F_QUEUED_BYTES,
    F_READY,
    F_NODE_INFLIGHT,
    F_NODE_TOKENS,
    F_KV_USAGE,
    F_QUEUE_SIZE,
    F_REQUESTS,
    F_GRPC_REQUESTS,
    F_ERRORS,
    F_ADMISSIONS,
    F_DECISIONS,
    F_ATTEMPTS,
    F_RETRIES,
    F_STALE,
    F_REQUEST_SECONDS,
    F_TTFT,
    F_ITL,
    F_PROMPT,
    F_OUTPUT,
    F_QUEUE_SECONDS,
    F_PREDICTOR_ERROR,
    F_CONNECTIONS,
    F_HTTP_BYTES_IN,
    F_HTTP_BYTES_OUT,
    F_SLOW_READERS,
    F_UPTIME,
    F_KV_USAGE_SD,
    F_QUEUE_SIZE_SD,
    F_SATURATION,
    F_PLANNED,
    F_SCHEDULER_SECONDS,
    F_STALLS,
    F_SPANS,
    F_TLS_EXPIRES,
    F_TLS_LOADS,
    F_GEN_DURATION,
    F_GEN_TTFT,
    F_GEN_TPOT,
    F_GEN_TOKENS,
    FAMILIES
};

static const struct td_metric_desc descs[FAMILIES] = {
    [F_RUNNING] = {"tandem_router_running_requests", "Requests placed on nodes.", TD_GAUGE, NONE,
                   NULL, 0},
    [F_QUEUED] = {"tandem_router_queued_requests", "Requests waiting in the router.", TD_GAUGE,
                  NONE, NULL, 0},
    [F_QUEUED_BYTES] = {"tandem_router_queued_bytes", "Prompt bytes waiting in the router.",
                        TD_GAUGE, NONE, NULL, 0},
    [F_READY] = {"tandem_router_ready_nodes", "Nodes that take new work and whose link stands.",
                 TD_GAUGE, L1("role"), NULL, 0},
    [F_NODE_INFLIGHT] = {"tandem_router_node_inflight_requests", "Works this router has on a node.",
                         TD_GAUGE, L1("node"), NULL, 0},
    [F_NODE_TOKENS] = {"tandem_router_node_inflight_tokens",
                       "Prompt tokens this router has on a node.", TD_GAUGE, L1("node"), NULL, 0},
    [F_KV_USAGE] = {"tandem_router_average_kv_usage_ratio", "Mean share of KV blocks in use.",
                    TD_GAUGE, L1("role"), NULL, 0},
    [F_QUEUE_SIZE] = {"tandem_router_average_queue_size", "Mean queued requests of nodes.",
                      TD_GAUGE, L1("role"), NULL, 0},
    [F_REQUESTS] = {"tandem_router_requests_total", "API answers by HTTP status.", TD_COUNTER,
                    L1("code"), NULL, 0},
    [F_GRPC_REQUESTS] = {"tandem_router_grpc_requests_total",
                         "Calls of gRPC by method and status.",
                         TD_COUNTER,
                         {"grpc_service", "grpc_method", "grpc_code", NULL},
                         NULL,
                         0},
    [F_ERRORS] = {"tandem_router_errors_total", "API errors by code.", TD_COUNTER, L1("error_code"),
                  NULL, 0},
    [F_ADMISSIONS] = {"tandem_router_admissions_total", "Admission outcomes.", TD_COUNTER,
                      L1("outcome"), NULL, 0},
    [F_DECISIONS] = {"tandem_router_disagg_decisions_total", "Placements by kind.", TD_COUNTER,
                     L1("decision"), NULL, 0},
    [F_ATTEMPTS] = {"tandem_router_scheduler_attempts_total", "Placements tried, by outcome.",
                    TD_COUNTER, L1("status"), NULL, 0},
    [F_RETRIES] = {"tandem_router_retries_total", "Replays by reason.", TD_COUNTER, L1("reason"),
                   NULL, 0},
    [F_STALE] = {"tandem_router_stale_tokens_total",
                 "Tokens of old attempts, and positions told twice, dropped.", TD_COUNTER, NONE,
                 NULL, 0},
    [F_REQUEST_SECONDS] = {"tandem_router_request_seconds", "From submit to end.", TD_HISTOGRAM,
                           NONE, td_buckets_e2e, TD_COUNT(td_buckets_e2e)},
    [F_TTFT] = {"tandem_router_time_to_first_token_seconds", "From arrival to the first token.",
                TD_HISTOGRAM, L1("streaming"), td_buckets_ttft, TD_COUNT(td_buckets_ttft)},
    [F_ITL] = {"tandem_router_inter_token_latency_seconds", "Between tokens of one request.",
               TD_HISTOGRAM, NONE, td_buckets_itl, TD_COUNT(td_buckets_itl)},
    [F_PROMPT] = {"tandem_router_prompt_tokens", "Prompt tokens per request.", TD_HISTOGRAM, NONE,
                  td_buckets_tokens, TD_COUNT(td_buckets_tokens)},
    [F_OUTPUT] = {"tandem_router_output_tokens", "Output tokens per request.", TD_HISTOGRAM, NONE,
                  td_buckets_tokens, TD_COUNT(td_buckets_tokens)},
    [F_QUEUE_SECONDS] = {"tandem_router_queue_seconds", "Waiting in the router's queue.",
                         TD_HISTOGRAM, NONE, td_buckets_ttft, TD_COUNT(td_buckets_ttft)},
    [F_PREDICTOR_ERROR] =
        {"tandem_router_predictor_error_seconds",
         "Distance of predicted and measured time to the first token (queue-linear).", TD_HISTOGRAM,
         NONE, td_buckets_ttft, TD_COUNT(td_buckets_ttft)},
    [F_CONNECTIONS] = {"tandem_router_connections", "Open client connections.", TD_GAUGE, NONE,
                       NULL, 0},
    [F_HTTP_BYTES_IN] = {"tandem_router_request_bytes_total", "Bytes read from clients.",
                         TD_COUNTER, NONE, NULL, 0},
    [F_HTTP_BYTES_OUT] = {"tandem_router_response_bytes_total", "Bytes written to clients.",
                          TD_COUNTER, NONE, NULL, 0},
    [F_SLOW_READERS] = {"tandem_router_slow_readers_total",
                        "Clients dropped because they did not read.", TD_COUNTER, NONE, NULL, 0},
    [F_KV_USAGE_SD] = {"tandem_router_stddev_kv_usage_ratio",
                       "Standard deviation of the nodes' KV use.", TD_GAUGE, L1("role"), NULL, 0},
    [F_QUEUE_SIZE_SD] = {"tandem_router_stddev_queue_size",
                         "Standard deviation of the nodes' queues.", TD_GAUGE, L1("role"), NULL, 0},
    [F_SATURATION] = {"tandem_router_saturation", "How full a stage is, 0 to 1.", TD_GAUGE,
                      L1("stage"), NULL, 0},
    [F_PLANNED] = {"tandem_router_planned_nodes", "Nodes there should be (--planned-*).", TD_GAUGE,
                   L1("role"), NULL, 0},
    [F_SCHEDULER_SECONDS] = {"tandem_router_scheduler_seconds",
                             "The core's step that placed a request.", TD_HISTOGRAM, NONE,
                             scheduler_buckets, TD_COUNT(scheduler_buckets)},
    [F_STALLS] = {"tandem_router_loop_stalls_total", "Callbacks that held the loop too long.",
                  TD_COUNTER, NONE, NULL, 0},
    [F_TLS_EXPIRES] = {"tandem_router_tls_certificate_expires_seconds",
                       "When the certificate in use ends, unix time.", TD_GAUGE, NONE, NULL, 0},
    [F_TLS_LOADS] = {"tandem_router_tls_loads_total",
                     "Certificates loaded: at the start and when they were renewed.", TD_COUNTER,
                     NONE, NULL, 0},
    [F_SPANS] = {"tandem_router_trace_spans_total",
                 "Spans: sent, dropped for want of room, failed with their post.", TD_COUNTER,
                 L1("outcome"), NULL, 0},
    [F_GEN_DURATION] = {"gen_ai_server_request_duration_seconds", "OpenTelemetry: whole requests.",
                        TD_HISTOGRAM, GEN_AI("error_type"), genai_duration_buckets,
                        TD_COUNT(genai_duration_buckets)},
    [F_GEN_TTFT] = {"gen_ai_server_time_to_first_token_seconds",
                    "OpenTelemetry: time to the first token.", TD_HISTOGRAM, GEN_AI(NULL),
                    genai_ttft_buckets, TD_COUNT(genai_ttft_buckets)},
    [F_GEN_TPOT] = {"gen_ai_server_time_per_output_token_seconds",
                    "OpenTelemetry: mean time between the tokens of a request.", TD_HISTOGRAM,
                    GEN_AI(NULL), genai_tpot_buckets, TD_COUNT(genai_tpot_buckets)},
    [F_GEN_TOKENS] = {"gen_ai_client_token_usage", "OpenTelemetry: tokens of a request.",
                      TD_HISTOGRAM, GEN_AI("gen_ai_token_type"), genai_token_buckets,
                      TD_COUNT(genai_token_buckets)},
    [F_UPTIME] = {"tandem_router_uptime_seconds", "Since the start of the process.", TD_GAUGE, NONE,
                  NULL, 0},
};

struct rt_metrics {
    struct rt_shell *shell;             /* borrowed */
    struct td_metrics *reg;             /* owned */
    struct td_metrics_process *process; /* owned */
    struct td_metric_family *f[FAMILIES];
    struct td_metric *one[FAMILIES]; /* of a family without labels of its own, or NULL */
};

static struct td_metric *labelled(struct rt_metrics *m, enum family f, const char *value)
{
    const char *values[] = {value, NULL};
    return td_metric_child(m->f[f], values);
}

static void set(struct rt_metrics *m, enum family f, double v)
{
    td_metric_set(m->one[f], v);
}

/* Sums over the nodes of a role, for mean and deviation. */
struct spread {
    double n, sum, squares;
};

static void spread_add(struct spread *s, double v)
{
    s->n += 1;
    s->sum += v;
    s->squares += v * v;
}

static double mean(const struct spread *s)
{
    return s->n > 0 ? s->sum / s->n : 0;
}

static double deviation(const struct spread *s)
{
    double v = s->n > 0 ? s->squares / s->n - mean(s) * mean(s) : 0;
    return v > 0 ? sqrt(v) : 0;
}

/* Share of a node's room in use: its blocks and, for prefill, the works that the router lets wait there. */
static double fullness(const struct rt_metrics *m, const struct rt_node *n, double kv, bool prefill)
{
    double queue = prefill ? (double)n->inflight / m->shell->p.max_node_queue : 0;
    return queue > kv ? queue : kv;
}

/* Returns how full the role's nodes are on average. */
static double scrape_nodes(struct rt_metrics *m, const struct rt_nodes *ns, enum td_role role,
                           const char *name)
{
    struct spread kv = {0}, queued = {0}, full = {0};
    for (uint32_t i = 0; i < RT_MAX_NODES; i++) {
        const struct rt_node *node = &ns->list[i];
        if (node->epoch == 0 || ((unsigned)node->role & (unsigned)role) == 0) {
            continue;
        }
        double free_blk =
            node->state.blocks[TD_BLK_FREE] + (double)node->state.blocks[TD_BLK_CACHED];
        double used = node->n_blocks > 0 && node->have_state ? 1 - free_blk / node->n_blocks : 0;
        spread_add(&kv, used);
        spread_add(&queued, node->state.queued_requests);
        spread_add(&full, fullness(m, node, used, role == TD_ROLE_PREFILL));
        td_metric_set(labelled(m, F_NODE_INFLIGHT, node->name), node->inflight);
        td_metric_set(labelled(m, F_NODE_TOKENS, node->name), (double)node->pending_tok);
    }
    td_metric_set(labelled(m, F_READY, name), rt_nodes_ready(ns, role));
    td_metric_set(labelled(m, F_KV_USAGE, name), mean(&kv));
    td_metric_set(labelled(m, F_KV_USAGE_SD, name), deviation(&kv));
    td_metric_set(labelled(m, F_QUEUE_SIZE, name), mean(&queued));
    td_metric_set(labelled(m, F_QUEUE_SIZE_SD, name), deviation(&queued));
    td_metric_set(labelled(m, F_SATURATION, name), mean(&full));
    return mean(&full);
}

static void scrape_spans(struct rt_metrics *m)
{
    struct td_otlp_stats s;
    if (m->shell->p.otlp == NULL) {
        return;
    }
    td_otlp_stats(m->shell->p.otlp, &s);
    td_metric_set(labelled(m, F_SPANS, "sent"), (double)s.sent);
    td_metric_set(labelled(m, F_SPANS, "dropped"), (double)s.dropped);
    td_metric_set(labelled(m, F_SPANS, "failed"), (double)s.failed);
}

static void scrape_tls(struct rt_metrics *m)
{
    const struct td_tls *const all[] = {m->shell->tls, m->shell->admin_tls};
    int64_t expires = 0;
    uint64_t loads = 0;
    td_tls_figures(all, TD_COUNT(all), &expires, &loads);
    if (loads > 0) {
        set(m, F_TLS_EXPIRES, (double)expires);
        set(m, F_TLS_LOADS, (double)loads);
    }
}

static void scrape_all_nodes(struct rt_metrics *m)
{
    const struct rt_nodes *ns = rt_core_nodes(m->shell->core);
    double prefill = scrape_nodes(m, ns, TD_ROLE_PREFILL, "prefill");
    double decode = scrape_nodes(m, ns, TD_ROLE_DECODE, "decode");
    td_metric_set(labelled(m, F_SATURATION, "effective"), prefill > decode ? prefill : decode);
    if (m->shell->p.planned_prefill > 0 || m->shell->p.planned_decode > 0) {
        td_metric_set(labelled(m, F_PLANNED, "prefill"), m->shell->p.planned_prefill);
        td_metric_set(labelled(m, F_PLANNED, "decode"), m->shell->p.planned_decode);
    }
}

static void on_scrape(void *arg)
{
    struct rt_metrics *m = arg;
    struct rt_shell *s = m->shell;
    struct td_http_server_stats http;
    set(m, F_RUNNING,
        rt_core_count(s->core, RT_PREFILL) + (double)rt_core_count(s->core, RT_DECODE));
    set(m, F_QUEUED, rt_core_count(s->core, RT_QUEUED));
    set(m, F_QUEUED_BYTES, (double)rt_core_queued_bytes(s->core));
    scrape_all_nodes(m);
    scrape_spans(m);
    scrape_tls(m);
    set(m, F_STALLS, (double)td_loop_stalls(s->p.loop));
    struct td_h2_server_stats grpc = {0};
    td_http_server_stats(s->http, &http);
    rt__grpc_stats(s->grpc, &grpc);
    set(m, F_CONNECTIONS, http.open + grpc.open);
    set(m, F_HTTP_BYTES_IN, (double)(http.request_bytes + grpc.request_bytes));
    set(m, F_HTTP_BYTES_OUT, (double)(http.response_bytes + grpc.response_bytes));
    set(m, F_SLOW_READERS, (double)(http.slow_readers + grpc.slow_readers));
    set(m, F_UPTIME, (double)(td_now_us() - s->started_us) * 1e-6);
}

td_err rt_metrics_create(struct rt_shell *s, struct rt_metrics **out_metrics)
{
    struct rt_metrics *m = td_zalloc(1, sizeof *m);
    if (m == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    m->shell = s;
    m->reg = td_metrics_create();
    td_err err = m->reg != NULL ? td_metrics_const_label(m->reg, "model_name", s->model->names[0])
                                : TD_ERR_NO_MEMORY;
    for (int f = 0; err == TD_OK && f < FAMILIES; f++) {
        m->f[f] = td_metrics_family(m->reg, &descs[f]);
        err = m->f[f] != NULL ? TD_OK : TD_ERR_NO_MEMORY;
        if (err == TD_OK && descs[f].labels[0] == NULL) {
            m->one[f] =
                td_metric_only(m->f[f]); /* a counter starts at 0, so that its first step shows */
        }
    }
    err = err == TD_OK ? td_metrics_process_create(m->reg, TD_VERSION, &m->process) : err;
    if (err != TD_OK) {
        rt_metrics_destroy(m);
        return err;
    }
    td_metrics_on_scrape(m->reg, on_scrape, m);
    *out_metrics = m;
    return TD_OK;
}

struct rt_metrics *rt_metrics_destroy(struct rt_metrics *m)
{
    if (m != NULL) {
        td_metrics_destroy(m->reg);
        td_metrics_process_destroy(m->process);
        free(m);
    }
    return NULL;
}

static const char *outcome(td_err err)
{
    switch ((int)err) {
    case TD_ERR_OVERLOADED:
    case TD_ERR_CONTEXT_LENGTH: /* no pool holds it */
        return "rejected_capacity";
    case TD_ERR_NO_NODE:
    case TD_ERR_NO_PAIR:
        return "rejected_no_node";
    case TD_ERR_BUDGET:
        return "expired";
    default:
        return "cancelled";
    }
}

/* An end that placement is to blame for. */
static bool placement_failed(td_err err)
{
    return err == TD_ERR_NO_NODE || err == TD_ERR_NO_PAIR || err == TD_ERR_CONTEXT_LENGTH ||
           err == TD_ERR_OVERLOADED;
}

static void refused(struct rt_metrics *m, td_err err)
{
    td_metric_add(labelled(m, F_ADMISSIONS, outcome(err)), 1);
    if (placement_failed(err)) {
        td_metric_add(labelled(m, F_ATTEMPTS, "failure"), 1);
    }
}

void rt_metrics_observe(struct rt_metrics *m, enum rt_metric what, double v)
{
    static const struct {
        enum family f;
        double unit;
    } plain[RT_METRICS] = {
        [RT_M_QUEUE_US] = {F_QUEUE_SECONDS, 1e-6},
        [RT_M_ITL_US] = {F_ITL, 1e-6},
        [RT_M_REQUEST_US] = {F_REQUEST_SECONDS, 1e-6},
        [RT_M_TTFT_ERROR_US] = {F_PREDICTOR_ERROR, 1e-6},
        [RT_M_PROMPT_TOKENS] = {F_PROMPT, 1},
        [RT_M_OUTPUT_TOKENS] = {F_OUTPUT, 1},
    };
    switch ((int)what) {
    case RT_M_ADMITTED:
        td_metric_add(labelled(m, F_ADMISSIONS, "dispatched"), 1);
        break;
    case RT_M_REFUSED:
        refused(m, (td_err)(int)v);
        break;
    case RT_M_DECISION:
        td_metric_add(labelled(m, F_DECISIONS, v > 0 ? "prefill-decode" : "decode-only"), 1);
        td_metric_add(labelled(m, F_ATTEMPTS, "success"), 1);
        break;
    case RT_M_RETRY:
        td_metric_add(labelled(m, F_RETRIES, td_err_code((td_err)(int)v)), 1);
        break;
    case RT_M_STALE_TOKEN:
        td_metric_add(m->one[F_STALE], 1);
        break;
    case RT_M_TTFT_US: /* measured from the arrival instead: rt_metrics_streaming_ttft */
    case RT_METRICS:
        break;
    default:
        td_metric_observe(m->one[plain[what].f], v * plain[what].unit);
        break;
    }
}

void rt_metrics_scheduler(struct rt_metrics *m, double seconds)
{
    td_metric_observe(m->one[F_SCHEDULER_SECONDS], seconds);
}

void rt_metrics_request(struct rt_metrics *m, const struct rt_metrics_done *d)
{
    const char *values[] = {d->chat ? "chat" : "text_completion", "tandem", d->model, "", NULL};
    if (d->err != TD_OK) {
        values[3] = td_err_code(d->err);
    }
    td_metric_observe(td_metric_child(m->f[F_GEN_DURATION], values), d->seconds);
    if (d->n_output > 0) {
        td_metric_observe(td_metric_child(m->f[F_GEN_TTFT], values), d->ttft_s);
    }
    if (d->tpot_s > 0) {
        td_metric_observe(td_metric_child(m->f[F_GEN_TPOT], values), d->tpot_s);
    }
    if (d->n_prompt > 0) {
        values[3] = "input";
        td_metric_observe(td_metric_child(m->f[F_GEN_TOKENS], values), (double)d->n_prompt);
        values[3] = "output";
        td_metric_observe(td_metric_child(m->f[F_GEN_TOKENS], values), (double)d->n_output);
    }
}

void rt_metrics_answer(struct rt_metrics *m, int status, td_err err)
{
    char code[16];
    (void)snprintf(code, sizeof code, "%d", status);
    td_metric_add(labelled(m, F_REQUESTS, code), 1);
    if (err != TD_OK) {
        td_metric_add(labelled(m, F_ERRORS, td_err_code(err)), 1);
    }
}

void rt_metrics_call(struct rt_metrics *m, const char *service, const char *method,
                     enum td_grpc_status status)
{
    const char *values[] = {service, method, td_grpc_status_name(status), NULL};
    td_metric_add(td_metric_child(m->f[F_GRPC_REQUESTS], values), 1);
}

void rt_metrics_streaming_ttft(struct rt_metrics *m, bool streaming, double seconds)
{
    td_metric_observe(labelled(m, F_TTFT, streaming ? "true" : "false"), seconds);
}

td_err rt_metrics_write(struct rt_metrics *m, struct td_buf *out)
{
    return td_metrics_write(m->reg, out);
}
