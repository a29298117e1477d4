#define TD_LOG_ROOM "node"
#include "common/node/rank_node.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/metrics_process.h"
#include "common/node/admin.h"
#include "common/node/node_metrics_list.h"

/* Families of a node that mean the same here. */
enum own { OWN_UPTIME, OWN_STALLS, OWN_LOAD, OWN_TLS_EXPIRES, OWN_TLS_LOADS, OWNS };

struct td_rank_node {
    struct td_rank_node_params p;
    int64_t started_us;
    struct nd_admin *admin; /* owned, like all below */
    struct td_metrics *reg; /* before those that its scrapes read */
    struct nd_rank_metrics *exchanges;
    struct td_metrics_process *process;
    struct td_metric *own[OWNS]; /* borrowed from reg */
    struct td_watch *engine_watch;
    bool draining, ended;
};

/* ---- the engine ---- */

static void on_engine(void *arg, unsigned ready)
{
    struct td_rank_node *n = arg;
    struct td_step_result r;
    (void)ready;
    td_err err = n->p.engine->ops->poll(n->p.engine, &r);
    if (err == TD_ERR_CLOSED && !n->ended) {
        n->ended = true;
        n->engine_watch = td_watch_destroy(n->engine_watch);
        n->p.ended(n->p.arg);
    } else if (err == TD_OK) { /* it takes no steps, so it finishes none */
        TD_LOG(ERROR, "a rank's engine finished a step that nobody gave it", "rank=%s", n->p.name);
    }
}

/* ---- the admin port ---- */

static void on_scrape(void *arg)
{
    const struct td_rank_node *n = arg;
    const struct td_tls *const tls[] = {nd_admin_tls(n->admin)};
    int64_t expires = 0;
    uint64_t loads = 0;
    td_tls_figures(tls, TD_COUNT(tls), &expires, &loads);
    td_metric_set(n->own[OWN_UPTIME], (double)(td_now_us() - n->started_us) * 1e-6);
    td_metric_set(n->own[OWN_STALLS], (double)td_loop_stalls(n->p.loop));
    td_metric_set(n->own[OWN_LOAD], n->p.model_load_s);
    td_metric_set(n->own[OWN_TLS_EXPIRES], (double)expires);
    td_metric_set(n->own[OWN_TLS_LOADS], (double)loads);
}

static bool is_draining(void *arg)
{
    return ((const struct td_rank_node *)arg)->draining;
}

static td_err write_metrics(void *arg, struct td_buf *out)
{
    return td_metrics_write(((const struct td_rank_node *)arg)->reg, out);
}

static enum td_health health(void *arg, const char *service)
{
    const struct td_rank_node *n = arg;
    if (strcmp(service, "liveness") == 0) {
        return TD_HEALTH_SERVING; /* this line runs: the loop lives */
    }
    if (service[0] == 0 || strcmp(service, "readiness") == 0) {
        return n->draining ? TD_HEALTH_NOT_SERVING : TD_HEALTH_SERVING;
    }
    return TD_HEALTH_SERVICE_UNKNOWN;
}

static const struct nd_admin_ops admin_ops = {
    .draining = is_draining, .metrics = write_metrics, .health = health};

/* ---- life ---- */

static td_err make_own(struct td_rank_node *n)
{
    static const enum nd_family families[OWNS] = {[OWN_UPTIME] = F_UPTIME,
                                                  [OWN_STALLS] = F_STALLS,
                                                  [OWN_LOAD] = F_MODEL_LOAD,
                                                  [OWN_TLS_EXPIRES] = F_TLS_EXPIRES,
                                                  [OWN_TLS_LOADS] = F_TLS_LOADS};
    for (int i = 0; i < OWNS; i++) {
        struct td_metric_family *f = td_metrics_family(n->reg, &nd_metric_list[families[i]]);
        if (f == NULL) {
            return TD_ERR_NO_MEMORY;
        }
        n->own[i] = td_metric_only(f);
    }
    td_metrics_on_scrape(n->reg, on_scrape, n);
    return TD_OK;
}

static td_err make_metrics(struct td_rank_node *n)
{
    static const char *const roles[] = {"", "prefill", "decode", "both"};
    n->reg = td_metrics_create();
    if (n->reg == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    TD_TRY(td_metrics_const_label(n->reg, "model_name", n->p.model_name));
    TD_TRY(td_metrics_const_label(n->reg, "role", roles[n->p.role & 3]));
    TD_TRY(td_metrics_const_label(n->reg, "node", n->p.name));
    TD_TRY(make_own(n));
    TD_TRY(nd_rank_metrics_create(n->reg, &n->p.group, &n->exchanges));
    return td_metrics_process_create(n->reg, TD_VERSION, &n->process);
}

static td_err make_all(struct td_rank_node *n)
{
    const struct nd_admin_params p = {.loop = n->p.loop,
                                      .host = n->p.admin_host,
                                      .port = n->p.admin_port,
                                      .tls = n->p.admin_tls,
                                      .ops = &admin_ops,
                                      .arg = n};
    TD_TRY(make_metrics(n));
    TD_TRY(td_watch_create(n->p.loop, "nd-rank-engine", n->p.engine->ops->event_fd(n->p.engine),
                           TD_WATCH_READ, on_engine, n, &n->engine_watch));
    return nd_admin_create(&p, &n->admin);
}

td_err td_rank_node_create(const struct td_rank_node_params *p, struct td_rank_node **out_node)
{
    struct td_rank_node *n = td_zalloc(1, sizeof *n);
    if (n == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    n->p = *p;
    n->started_us = td_now_us();
    td_err err = make_all(n);
    if (err != TD_OK) {
        td_rank_node_destroy(n);
        return err;
    }
    TD_LOG(INFO, "rank follows", "node=%s rank=%u of=%u admin=%s:%u", p->name, p->group.ranks->rank,
           p->group.ranks->n, p->admin_host, td_rank_node_admin_port(n));
    *out_node = n;
    return TD_OK;
}

struct td_rank_node *td_rank_node_destroy(struct td_rank_node *n)
{
    if (n != NULL) {
        nd_admin_destroy(n->admin);
        td_watch_destroy(n->engine_watch);
        td_metrics_destroy(n->reg);
        nd_rank_metrics_destroy(n->exchanges);
        td_metrics_process_destroy(n->process);
        free(n);
    }
    return NULL;
}

uint16_t td_rank_node_admin_port(const struct td_rank_node *n)
{
    return nd_admin_port(n->admin);
}

void td_rank_node_reload_tls(struct td_rank_node *n)
{
    nd_admin_reload_tls(n->admin);
}

void td_rank_node_drain(struct td_rank_node *n)
{
    n->draining = true;
}
