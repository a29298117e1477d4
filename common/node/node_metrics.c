#include "common/node/node_metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/metrics_process.h"
#include "common/node/node_int.h"
#include "common/node/node_metrics_list.h"
#include "common/node/rank_metrics.h"

#define MAX_TRANSPORTS 8

struct nd_metrics {
    struct td_node *node;               /* borrowed */
    struct td_metrics *reg;             /* owned */
    struct td_metrics_process *process; /* owned */
    struct nd_rank_metrics *ranks;      /* owned */
    struct td_metric_family *f[ND_FAMILIES];
    struct td_metric
        *one[ND_FAMILIES]; /* of a family without labels of its own; NULL: not served */
    double last_transfer_us;
    struct {
        const char *name; /* static */
        double bytes;
    } transports[MAX_TRANSPORTS];
};

/* There is one engine a node. */
static struct td_metric *labelled(struct nd_metrics *m, enum nd_family f, const char *value)
{
    const char *values[] = {value, "0", NULL};
    return td_metric_child(m->f[f], values);
}

static void set(struct nd_metrics *m, enum nd_family f, double v)
{
    if (m->one[f] != NULL) {
        td_metric_set(m->one[f], v);
    }
}

static void add(struct nd_metrics *m, enum nd_family f, double v)
{
    if (m->one[f] != NULL && v > 0) {
        td_metric_add(m->one[f], (uint64_t)v);
    }
}

static void add_labelled(struct nd_metrics *m, enum nd_family f, const char *value, double v)
{
    if (m->f[f] != NULL && v > 0) {
        td_metric_add(labelled(m, f, value), (uint64_t)v);
    }
}

static void see(struct nd_metrics *m, enum nd_family f, double v)
{
    if (m->one[f] != NULL) {
        td_metric_observe(m->one[f], v);
    }
}

static void see_us(struct nd_metrics *m, enum nd_family f, int64_t from_us, int64_t to_us)
{
    if (from_us > 0 && to_us >= from_us) {
        see(m, f, (double)(to_us - from_us) * 1e-6);
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

static void scrape_spans(struct nd_metrics *m)
{
    struct td_otlp_stats s;
    if (m->node->p.otlp == NULL) {
        return;
    }
    td_otlp_stats(m->node->p.otlp, &s);
    td_metric_set(labelled(m, F_SPANS, "sent"), (double)s.sent);
    td_metric_set(labelled(m, F_SPANS, "dropped"), (double)s.dropped);
    td_metric_set(labelled(m, F_SPANS, "failed"), (double)s.failed);
}

static void scrape_tls(struct nd_metrics *m)
{
    const struct td_tls *const all[] = {nd_admin_tls(m->node->admin), m->node->service_tls};
    int64_t expires = 0;
    uint64_t loads = 0;
    td_tls_figures(all, TD_COUNT(all), &expires, &loads);
    set(m, F_TLS_EXPIRES, (double)expires);
    set(m, F_TLS_LOADS, (double)loads);
}

static void scrape_transports(struct nd_metrics *m)
{
    for (int i = 0; i < MAX_TRANSPORTS && m->transports[i].name != NULL; i++) {
        td_metric_set(labelled(m, F_TRANSFER_TRANSPORT, m->transports[i].name),
                      m->transports[i].bytes);
    }
}

/* Works by what they wait for. The decode role's landing works wait for KV, which vLLM calls deferred. */
static void scrape_counts(struct nd_metrics *m, const struct td_wire_state *s)
{
    struct nd_counts n = {0};
    bool prefill = m->node->p.role->role == TD_ROLE_PREFILL;
    m->node->p.role->count(m->node->core, &n);
    const struct td_engine_info *e = m->node->p.engine->ops->info(m->node->p.engine);
    double pool_tok = (double)e->n_blocks * e->layout.block_tok;
    set(m, F_PREFILL_PREALLOC, prefill ? n.table : 0);
    set(m, F_PREFILL_INFLIGHT, prefill ? n.transfer : 0);
    set(m, F_PREFILL_HELD, prefill ? n.held : 0);
    set(m, F_DECODE_PREALLOC, prefill ? 0 : n.blocks);
    set(m, F_DECODE_TRANSFER, prefill ? 0 : n.transfer);
    set(m, F_PENDING_RATIO, pool_tok > 0 ? (double)n.pending_tok / pool_tok : 0);
    uint32_t deferred = prefill ? 0 : n.transfer;
    uint32_t running = s->running_requests > deferred ? s->running_requests - deferred : 0;
    set(m, V_RUNNING, running);
    set(m, V_WAITING, s->queued_requests + deferred);
    if (m->f[V_WAITING_REASON] != NULL) {
        td_metric_set(labelled(m, V_WAITING_REASON, "capacity"), s->queued_requests);
        td_metric_set(labelled(m, V_WAITING_REASON, "deferred"), deferred);
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
    scrape_spans(m);
    scrape_tls(m);
    set(m, F_QUEUED_TOKENS, (double)s.queued_prompt_tok);
    set(m, F_INFLIGHT, m->node->p.role->work_count(m->node->core));
    set(m, F_UPTIME, (double)(td_now_us() - m->node->started_us) * 1e-6);
    set(m, F_ROUTERS, m->node->n_routers);
    if (m->f[V_LORA_INFO] != NULL) { /* no adapters in this version; routers read the name */
        const char *const values[] = {"0", "", "", "0", NULL};
        td_metric_set(td_metric_child(m->f[V_LORA_INFO], values), (double)td_wall_us() * 1e-6);
    }
    set(m, F_STALLS, (double)td_loop_stalls(m->node->p.loop));
    scrape_counts(m, &s);
}

static td_err make_families(struct nd_metrics *m)
{
    for (int f = 0; f < ND_FAMILIES; f++) {
        if (f >= V_RUNNING && !m->node->p.metrics_vllm) {
            break;
        }
        m->f[f] = td_metrics_family(m->reg, &nd_metric_list[f]);
        if (m->f[f] == NULL) {
            return TD_ERR_NO_MEMORY;
        }
        /* Made at once: a counter starts at 0, so that its first step shows. */
        const char *first = nd_metric_list[f].labels[0];
        if (first == NULL || strcmp(first, "engine") == 0) {
            const char *const values[] = {"0", NULL};
            m->one[f] = td_metric_child(m->f[f], first == NULL ? NULL : values);
        }
    }
    return TD_OK;
}

/* Nodes do not sleep; tools read the name. */
static void set_awake(struct nd_metrics *m)
{
    static const char *const states[] = {"awake", "weights_offloaded", "discard_all"};
    for (size_t i = 0; m->f[V_SLEEP] != NULL && i < TD_COUNT(states); i++) {
        td_metric_set(labelled(m, V_SLEEP, states[i]), i == 0);
    }
}

static void set_cache_info(struct nd_metrics *m)
{
    const struct td_engine_info *e = m->node->p.engine->ops->info(m->node->p.engine);
    char block[16], blocks[16];
    const char *values[] = {block, blocks, "0", NULL};
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
    err = err == TD_OK ? td_metrics_process_create(m->reg, TD_VERSION, &m->process) : err;
    err = err == TD_OK ? nd_rank_metrics_create(m->reg, &n->p.group, &m->ranks) : err;
    if (err != TD_OK) {
        nd_metrics_destroy(m);
        return err;
    }
    set_cache_info(m);
    set_awake(m);
    set(m, F_MODEL_LOAD, n->p.model_load_s);
    td_metrics_on_scrape(m->reg, on_scrape, m);
    *out_metrics = m;
    return TD_OK;
}

struct nd_metrics *nd_metrics_destroy(struct nd_metrics *m)
{
    if (m != NULL) {
        td_metrics_destroy(m->reg);
        td_metrics_process_destroy(m->process);
        nd_rank_metrics_destroy(m->ranks);
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
        enum nd_family own, vllm; /* ND_FAMILIES: none */
    } rows[] = {
        {ND_M_PREFILL_QUEUE_US, F_PREFILL_QUEUE, V_QUEUE},
        {ND_M_PREFILL_US, ND_FAMILIES, V_PREFILL},
        {ND_M_TRANSFER_US, F_TRANSFER_SECONDS, ND_FAMILIES},
        {ND_M_TRANSFER_EXPOSED_US, F_TRANSFER_EXPOSED, ND_FAMILIES},
        {ND_M_DECODE_QUEUE_US, F_DECODE_QUEUE, V_QUEUE},
        {ND_M_DECODE_US, ND_FAMILIES, V_DECODE},
        {ND_M_TTFT_US, ND_FAMILIES, V_TTFT},
        {ND_M_ITL_US, ND_FAMILIES, V_ITL},
    };
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        if (rows[i].what == what) {
            if (rows[i].own != ND_FAMILIES) {
                see(m, rows[i].own, s);
            }
            if (rows[i].vllm != ND_FAMILIES) {
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
        add(m, V_XFER_FAILED, 1);
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

static void done_transfer(struct nd_metrics *m, const struct nd_done *d)
{
    if (d->local || (d->decode && d->record_us == 0)) {
        return;
    }
    if (!d->decode) {
        see_us(m, F_TRANSFER_BOOTSTRAP, d->arrived_us, d->table_us);
        add(m, F_EXPIRED, d->err == TD_ERR_LEASE ? 1 : 0);
        add(m, V_XFER_EXPIRED, d->err == TD_ERR_LEASE ? 1 : 0);
        double unheard = d->record_us != 0 && d->err != TD_OK && d->err != TD_ERR_CANCELLED ? 1 : 0;
        add(m, F_NOTIFY_FAILURES, unheard);
        add(m, V_XFER_NOTIFY_FAILED, unheard);
    }
    if (d->err == TD_OK && d->kv_bytes > 0) {
        see_us(m, V_XFER_TIME, d->xfer_first_us, d->xfer_last_us);
        see(m, V_XFER_BYTES, (double)d->kv_bytes);
        see(m, V_XFER_DESCRIPTORS, d->n_slices);
    }
}

static void done_tokens(struct nd_metrics *m, const struct nd_done *d)
{
    bool computed = d->token_us != 0, brought = d->decode && !d->local && d->record_us != 0;
    add_labelled(m, V_SOURCE, "local_compute", computed ? d->n_prompt : 0);
    add_labelled(m, V_SOURCE, "external_kv_transfer", brought ? d->n_prompt : 0);
    add(m, V_EXTERNAL_QUERIES, d->decode && !d->local ? d->n_prompt : 0);
    add(m, V_EXTERNAL_HITS, brought ? d->n_prompt : 0);
    if (d->err == TD_OK) {
        see(m, V_REQ_PROMPT, d->n_prompt);
        see(m, V_REQ_GENERATION, d->n_output);
        see(m, V_REQ_MAX_TOKENS, d->max_tokens);
        see(m, V_REQ_MAX_GENERATION, d->n_output); /* a work is one choice */
        see(m, V_REQ_N, 1);
        see(m, V_REQ_KV_COMPUTED, computed ? d->n_prompt : 0);
    }
}

void nd_metrics_done(struct nd_metrics *m, const struct nd_done *d)
{
    int64_t first_us = d->token_us != 0 ? d->token_us : d->record_us;
    done_transfer(m, d);
    done_tokens(m, d);
    add(m, V_PREEMPTIONS, d->preempted);
    if (d->decode && !d->local) {
        see_us(m, F_TRANSFER_ALLOC, d->arrived_us, d->table_us);
    }
    if (d->err != TD_OK) {
        return;
    }
    see_us(m, V_E2E, d->arrived_us, d->ended_us);
    see_us(m, V_INFERENCE, d->exec_us != 0 ? d->exec_us : d->decode_us, d->last_us);
    if (d->decode && d->n_output > 1 && d->last_us > first_us) {
        see(m, V_TPOT, (double)(d->last_us - first_us) * 1e-6 / (d->n_output - 1));
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

void nd_metrics_call(struct nd_metrics *m, const char *service, const char *method,
                     enum td_grpc_status status)
{
    const char *values[] = {service, method, td_grpc_status_name(status), NULL};
    td_metric_add(td_metric_child(m->f[F_GRPC_REQUESTS], values), 1);
}

td_err nd_metrics_write(struct nd_metrics *m, struct td_buf *out)
{
    return td_metrics_write(m->reg, out);
}
