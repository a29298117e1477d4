#include "common/node/node_metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/node/node_int.h"

#define NONE                                                                                       \
    {                                                                                              \
        NULL                                                                                       \
    }
#define L1(a)                                                                                      \
    {                                                                                              \
        a, NULL                                                                                    \
    }
#define H(b) b, TD_COUNT(b)

enum family {
    F_KV_BLOCKS,
    F_KV_USAGE,
    F_QUEUED_TOKENS,
    F_INFLIGHT,
    F_UPTIME,
    F_PREFILL_QUEUE,
    F_DECODE_QUEUE,
    F_CANCELLATIONS,
    F_REQUEST_BYTES,
    F_RESPONSE_BYTES,
    F_BATCH_TOKENS,
    F_STEP_SECONDS,
    F_TRANSFER_SECONDS,
    F_TRANSFER_EXPOSED,
    F_TRANSFER_BYTES,
    F_TRANSFER_RATE,
    F_TRANSFER_FAILURES,
    F_TRANSFER_TRANSPORT,
    F_REGISTRATIONS,
    F_XFER_DROPPED,
    F_XFER_REFUSED,
    F_XFER_STALE,
    F_STALE,
    F_REFUSED,
    F_FINISHED,
    F_SEND_FAILURES,
    F_ROUTERS,
    V_RUNNING,
    V_WAITING,
    V_KV_USAGE,
    V_CACHE_INFO,
    V_LORA_INFO,
    V_PROMPT,
    V_GENERATION,
    V_SUCCESS,
    V_TTFT,
    V_ITL,
    V_QUEUE,
    V_PREFILL,
    V_DECODE,
    V_ITERATION,
    FAMILIES
};

static const struct td_metric_desc descs[FAMILIES] = {
    [F_KV_BLOCKS] = {"tandem_node_kv_blocks", "KV blocks by state; the states sum to the pool.",
                     TD_GAUGE, L1("state"), NULL, 0},
    [F_KV_USAGE] = {"tandem_node_kv_usage_ratio", "Share of KV blocks neither free nor cached.",
                    TD_GAUGE, NONE, NULL, 0},
    [F_QUEUED_TOKENS] = {"tandem_node_queued_prompt_tokens",
                         "Prompt tokens waiting to be computed.", TD_GAUGE, NONE, NULL, 0},
    [F_INFLIGHT] = {"tandem_node_inflight_requests", "Requests this node knows.", TD_GAUGE, NONE,
                    NULL, 0},
    [F_UPTIME] = {"tandem_node_uptime_seconds", "Since the start of the process.", TD_GAUGE, NONE,
                  NULL, 0},
    [F_PREFILL_QUEUE] = {"tandem_node_prefill_queue_seconds", "Waiting before the first chunk.",
                         TD_HISTOGRAM, NONE, H(td_buckets_ttft)},
    [F_DECODE_QUEUE] = {"tandem_node_decode_queue_seconds",
                        "From hand-over to the first decode step.", TD_HISTOGRAM, NONE,
                        H(td_buckets_ttft)},
    [F_CANCELLATIONS] = {"tandem_node_cancellations_total", "Cancelled works by phase.", TD_COUNTER,
                         L1("phase"), NULL, 0},
    [F_REQUEST_BYTES] = {"tandem_node_request_bytes_total", "Bytes of router messages.", TD_COUNTER,
                         NONE, NULL, 0},
    [F_RESPONSE_BYTES] = {"tandem_node_response_bytes_total", "Bytes of messages to routers.",
                          TD_COUNTER, NONE, NULL, 0},
    [F_BATCH_TOKENS] = {"tandem_node_batch_tokens", "Tokens per engine step.", TD_HISTOGRAM, NONE,
                        H(td_buckets_tokens)},
    [F_STEP_SECONDS] = {"tandem_node_step_seconds", "Execution of an engine step.", TD_HISTOGRAM,
                        NONE, H(td_buckets_itl)},
    [F_TRANSFER_SECONDS] = {"tandem_node_kv_transfer_seconds",
                            "From the first to the last byte of a request's KV.", TD_HISTOGRAM,
                            NONE, H(td_buckets_transfer_seconds)},
    [F_TRANSFER_EXPOSED] = {"tandem_node_kv_transfer_exposed_seconds",
                            "Transfer left after the prefill had ended.", TD_HISTOGRAM, NONE,
                            H(td_buckets_transfer_seconds)},
    [F_TRANSFER_BYTES] = {"tandem_node_kv_transfer_bytes", "KV bytes of a request.", TD_HISTOGRAM,
                          NONE, H(td_buckets_transfer_bytes)},
    [F_TRANSFER_RATE] = {"tandem_node_kv_transfer_bytes_per_second", "Rate of the last transfer.",
                         TD_GAUGE, NONE, NULL, 0},
    [F_TRANSFER_FAILURES] = {"tandem_node_kv_transfer_failures_total",
                             "Failed transfers by reason.", TD_COUNTER, L1("reason"), NULL, 0},
    [F_TRANSFER_TRANSPORT] = {"tandem_node_kv_transfer_transport_bytes_total",
                              "KV bytes pushed, by transport.", TD_COUNTER, L1("transport"), NULL,
                              0},
    [F_REGISTRATIONS] = {"tandem_node_kv_registrations",
                         "Memory registrations; more than one is a defect.", TD_GAUGE, NONE, NULL,
                         0},
    [F_XFER_DROPPED] = {"tandem_node_kv_dropped_slices_total", "Slices nobody waited for.",
                        TD_COUNTER, NONE, NULL, 0},
    [F_XFER_REFUSED] = {"tandem_node_kv_refused_slices_total", "Malformed slices or messages.",
                        TD_COUNTER, NONE, NULL, 0},
    [F_XFER_STALE] = {"tandem_node_kv_stale_slices_total",
                      "Slices of another epoch, attempt or generation, not placed.", TD_COUNTER,
                      NONE, NULL, 0},
    [F_STALE] = {"tandem_node_stale_total",
                 "Messages of another epoch, attempt or generation dropped.", TD_COUNTER, NONE,
                 NULL, 0},
    [F_REFUSED] = {"tandem_node_refused_total", "Works refused, by code.", TD_COUNTER, L1("code"),
                   NULL, 0},
    [F_FINISHED] = {"tandem_node_finished_total", "Works ended, by reason.", TD_COUNTER,
                    L1("reason"), NULL, 0},
    [F_SEND_FAILURES] = {"tandem_node_send_failures_total",
                         "Messages to routers that could not be queued.", TD_COUNTER, NONE, NULL,
                         0},
    [F_ROUTERS] = {"tandem_node_routers", "Attached routers.", TD_GAUGE, NONE, NULL, 0},
    [V_RUNNING] = {"vllm:num_requests_running", "Requests in the batch.", TD_GAUGE, NONE, NULL, 0},
    [V_WAITING] = {"vllm:num_requests_waiting", "Requests waiting.", TD_GAUGE, NONE, NULL, 0},
    [V_KV_USAGE] = {"vllm:kv_cache_usage_perc", "KV use, 0 to 1.", TD_GAUGE, NONE, NULL, 0},
    [V_CACHE_INFO] = {"vllm:cache_config_info",
                      "Cache geometry.",
                      TD_GAUGE,
                      {"block_size", "num_gpu_blocks", NULL},
                      NULL,
                      0},
    [V_LORA_INFO] = {"vllm:lora_requests_info",
                     "Adapters in use; the value is the time.",
                     TD_GAUGE,
                     {"max_lora", "running_lora_adapters", "waiting_lora_adapters", NULL},
                     NULL,
                     0},
    [V_PROMPT] = {"vllm:prompt_tokens_total", "Prompt tokens computed.", TD_COUNTER, NONE, NULL, 0},
    [V_GENERATION] = {"vllm:generation_tokens_total", "Tokens generated.", TD_COUNTER, NONE, NULL,
                      0},
    [V_SUCCESS] = {"vllm:request_success_total", "Finished requests.", TD_COUNTER,
                   L1("finished_reason"), NULL, 0},
    [V_TTFT] = {"vllm:time_to_first_token_seconds", "Arrival at the node to the first token.",
                TD_HISTOGRAM, NONE, H(td_buckets_ttft)},
    [V_ITL] = {"vllm:inter_token_latency_seconds", "Between tokens.", TD_HISTOGRAM, NONE,
               H(td_buckets_itl)},
    [V_QUEUE] = {"vllm:request_queue_time_seconds", "Waiting.", TD_HISTOGRAM, NONE,
                 H(td_buckets_e2e)},
    [V_PREFILL] = {"vllm:request_prefill_time_seconds", "Prefill.", TD_HISTOGRAM, NONE,
                   H(td_buckets_e2e)},
    [V_DECODE] = {"vllm:request_decode_time_seconds", "Decode.", TD_HISTOGRAM, NONE,
                  H(td_buckets_e2e)},
    [V_ITERATION] = {"vllm:iteration_tokens_total", "Tokens per step.", TD_HISTOGRAM, NONE,
                     H(td_buckets_tokens)},
};

#define MAX_TRANSPORTS 8

struct nd_metrics {
    struct td_node *node;   /* borrowed */
    struct td_metrics *reg; /* owned */
    struct td_metric_family *f[FAMILIES];
    double last_transfer_us;
    struct {
        const char *name; /* static */
        double bytes;
    } transports[MAX_TRANSPORTS];
};

static struct td_metric *labelled(struct nd_metrics *m, enum family f, const char *value)
{
    const char *values[] = {value, NULL};
    return td_metric_child(m->f[f], values);
}

static struct td_metric *only(struct nd_metrics *m, enum family f)
{
    return m->f[f] != NULL ? td_metric_only(m->f[f]) : NULL;
}

static void set(struct nd_metrics *m, enum family f, double v)
{
    if (m->f[f] != NULL) {
        td_metric_set(only(m, f), v);
    }
}

static void add(struct nd_metrics *m, enum family f, double v)
{
    if (m->f[f] != NULL && v > 0) {
        td_metric_add(only(m, f), (uint64_t)v);
    }
}

static void see(struct nd_metrics *m, enum family f, double v)
{
    if (m->f[f] != NULL) {
        td_metric_observe(only(m, f), v);
    }
}

static void scrape_blocks(struct nd_metrics *m, const struct td_wire_state *s)
{
    static const char *const names[TD_BLK_STATES] = {"free",    "cached", "reserved",   "filling",
                                                     "running", "parked", "quarantined"};
    double total = 0;
    for (int i = 0; i < TD_BLK_STATES; i++) {
        td_metric_set(labelled(m, F_KV_BLOCKS, names[i]), s->blocks[i]);
        total += s->blocks[i];
    }
    double used = total - s->blocks[TD_BLK_FREE] - s->blocks[TD_BLK_CACHED];
    set(m, F_KV_USAGE, total > 0 ? used / total : 0);
    set(m, V_KV_USAGE, total > 0 ? used / total : 0);
}

static void scrape_xfer(struct nd_metrics *m)
{
    struct td_xfer_stats x;
    if (m->node->xfer == NULL) {
        return;
    }
    td_xfer_stats_get(m->node->xfer, &x);
    set(m, F_REGISTRATIONS, (double)x.registrations);
    set(m, F_XFER_DROPPED, (double)x.dropped);
    set(m, F_XFER_REFUSED, (double)x.refused);
    set(m, F_XFER_STALE, (double)x.stale);
}

static void scrape_transports(struct nd_metrics *m)
{
    for (int i = 0; i < MAX_TRANSPORTS && m->transports[i].name != NULL; i++) {
        td_metric_set(labelled(m, F_TRANSFER_TRANSPORT, m->transports[i].name),
                      m->transports[i].bytes);
    }
}

static void on_scrape(void *arg)
{
    struct nd_metrics *m = arg;
    struct td_wire_state s;
    nd__state(m->node, &s);
    scrape_blocks(m, &s);
    scrape_xfer(m);
    scrape_transports(m);
    set(m, F_QUEUED_TOKENS, (double)s.queued_prompt_tok);
    set(m, F_INFLIGHT, m->node->p.role->work_count(m->node->core));
    set(m, F_UPTIME, (double)(td_now_us() - m->node->started_us) * 1e-6);
    set(m, F_ROUTERS, m->node->n_routers);
    if (m->f[V_LORA_INFO] != NULL) { /* no adapters in this version; routers read the name */
        const char *const values[] = {"0", "", "", NULL};
        td_metric_set(td_metric_child(m->f[V_LORA_INFO], values), (double)td_wall_us() * 1e-6);
    }
    set(m, V_RUNNING, s.running_requests);
    set(m, V_WAITING, s.queued_requests);
}

static td_err make_families(struct nd_metrics *m)
{
    for (int f = 0; f < FAMILIES; f++) {
        if (f >= V_RUNNING && !m->node->p.metrics_vllm) {
            break;
        }
        m->f[f] = td_metrics_family(m->reg, &descs[f]);
        if (m->f[f] == NULL) {
            return TD_ERR_NO_MEMORY;
        }
        if (descs[f].type == TD_COUNTER && descs[f].labels[0] == NULL) {
            (void)only(m, (enum family)f); /* a counter starts at 0, so that its first step shows */
        }
    }
    return TD_OK;
}

static void set_cache_info(struct nd_metrics *m)
{
    const struct td_engine_info *e = m->node->p.engine->ops->info(m->node->p.engine);
    char block[16], blocks[16];
    const char *values[] = {block, blocks, NULL};
    (void)snprintf(block, sizeof block, "%u", e->layout.block_tok);
    (void)snprintf(blocks, sizeof blocks, "%u", e->n_blocks);
    if (m->f[V_CACHE_INFO] != NULL) {
        td_metric_set(td_metric_child(m->f[V_CACHE_INFO], values), 1);
    }
}

td_err nd_metrics_create(struct td_node *n, struct nd_metrics **out_metrics)
{
    static const char *const roles[] = {"", "prefill", "decode", "both"};
    struct nd_metrics *m = td_zalloc(1, sizeof *m);
    if (m == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    m->node = n;
    m->reg = td_metrics_create();
    td_err err = m->reg != NULL ? TD_OK : TD_ERR_NO_MEMORY;
    err = err == TD_OK ? td_metrics_const_label(m->reg, "model_name", n->p.model_name) : err;
    err = err == TD_OK ? td_metrics_const_label(m->reg, "role", roles[n->p.role_told & 3]) : err;
    err = err == TD_OK ? td_metrics_const_label(m->reg, "node", n->name) : err;
    err = err == TD_OK ? make_families(m) : err;
    if (err != TD_OK) {
        nd_metrics_destroy(m);
        return err;
    }
    set_cache_info(m);
    td_metrics_on_scrape(m->reg, on_scrape, m);
    *out_metrics = m;
    return TD_OK;
}

struct nd_metrics *nd_metrics_destroy(struct nd_metrics *m)
{
    if (m != NULL) {
        td_metrics_destroy(m->reg);
        free(m);
    }
    return NULL;
}

/* A prefill node's work ends by being handed over; vLLM's prefill nodes call that "length". */
static void finished(struct nd_metrics *m, double v)
{
    static const char *const reasons[] = {"handed_over", "stop", "length", "abort", "error"};
    int i = v >= 0 && v <= TD_FINISH_ERROR ? (int)v : TD_FINISH_ERROR;
    td_metric_add(labelled(m, F_FINISHED, reasons[i]), 1);
    if (m->f[V_SUCCESS] != NULL) {
        int vllm = i == TD_FINISH_NONE ? TD_FINISH_LENGTH : i;
        td_metric_add(labelled(m, V_SUCCESS, reasons[vllm]), 1);
    }
}

static void transfer_bytes(struct nd_metrics *m, double bytes)
{
    see(m, F_TRANSFER_BYTES, bytes);
    if (m->last_transfer_us > 0) {
        set(m, F_TRANSFER_RATE, bytes / (m->last_transfer_us * 1e-6));
    }
}

static void observe_times(struct nd_metrics *m, enum nd_metric what, double s)
{
    static const struct {
        enum nd_metric what;
        enum family own, vllm; /* FAMILIES: none */
    } rows[] = {
        {ND_M_PREFILL_QUEUE_US, F_PREFILL_QUEUE, V_QUEUE},
        {ND_M_PREFILL_US, FAMILIES, V_PREFILL},
        {ND_M_TRANSFER_US, F_TRANSFER_SECONDS, FAMILIES},
        {ND_M_TRANSFER_EXPOSED_US, F_TRANSFER_EXPOSED, FAMILIES},
        {ND_M_DECODE_QUEUE_US, F_DECODE_QUEUE, V_QUEUE},
        {ND_M_DECODE_US, FAMILIES, V_DECODE},
        {ND_M_TTFT_US, FAMILIES, V_TTFT},
        {ND_M_ITL_US, FAMILIES, V_ITL},
    };
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        if (rows[i].what == what) {
            if (rows[i].own != FAMILIES) {
                see(m, rows[i].own, s);
            }
            if (rows[i].vllm != FAMILIES) {
                see(m, rows[i].vllm, s);
            }
        }
    }
}

void nd_metrics_observe(struct nd_metrics *m, enum nd_metric what, double v)
{
    static const char *const phases[] = {"queued", "prefill", "transfer", "decode"};
    switch ((int)what) {
    case ND_M_TRANSFER_US:
        m->last_transfer_us = v;
        observe_times(m, what, v * 1e-6);
        break;
    case ND_M_TRANSFER_BYTES:
        transfer_bytes(m, v);
        break;
    case ND_M_TRANSFER_FAILED:
        td_metric_add(labelled(m, F_TRANSFER_FAILURES, td_err_code((td_err)(int)v)), 1);
        break;
    case ND_M_PROMPT_TOKENS:
        add(m, V_PROMPT, v);
        break;
    case ND_M_OUTPUT_TOKENS:
        add(m, V_GENERATION, v);
        break;
    case ND_M_BATCH_TOKENS:
        see(m, F_BATCH_TOKENS, v);
        see(m, V_ITERATION, v);
        break;
    case ND_M_CANCELLED:
        td_metric_add(labelled(m, F_CANCELLATIONS, phases[v >= 0 && v < 4 ? (int)v : 0]), 1);
        break;
    case ND_M_FINISHED:
        finished(m, v);
        break;
    case ND_M_REFUSED:
        td_metric_add(labelled(m, F_REFUSED, td_err_code((td_err)(int)v)), 1);
        break;
    case ND_M_STALE:
        add(m, F_STALE, 1);
        break;
    default:
        observe_times(m, what, v * 1e-6);
        break;
    }
}

void nd_metrics_step(struct nd_metrics *m, int64_t exec_us)
{
    see(m, F_STEP_SECONDS, (double)exec_us * 1e-6);
}

void nd_metrics_xfer(struct nd_metrics *m, const struct td_xfer_event *ev)
{
    if (ev->type != TD_XFER_PUSHED || ev->transport == NULL || ev->transport[0] == 0) {
        return;
    }
    for (int i = 0; i < MAX_TRANSPORTS; i++) {
        if (m->transports[i].name == NULL || strcmp(m->transports[i].name, ev->transport) == 0) {
            m->transports[i].name = ev->transport;
            m->transports[i].bytes += (double)ev->n_bytes;
            return;
        }
    }
}

void nd_metrics_send_failed(struct nd_metrics *m)
{
    add(m, F_SEND_FAILURES, 1);
}

void nd_metrics_request_bytes(struct nd_metrics *m, size_t bytes)
{
    add(m, F_REQUEST_BYTES, (double)bytes);
}

void nd_metrics_response_bytes(struct nd_metrics *m, size_t bytes)
{
    add(m, F_RESPONSE_BYTES, (double)bytes);
}

td_err nd_metrics_write(struct nd_metrics *m, struct td_buf *out)
{
    return td_metrics_write(m->reg, out);
}
