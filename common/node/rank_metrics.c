#include "common/node/rank_metrics.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/mem.h"
#include "common/node/node_metrics_list.h"

struct nd_rank_metrics {
    struct nd_rank_source source;
    struct td_metric *exchanges, *sent, *received, *wait; /* borrowed from the registry */
};

static void on_scrape(void *arg)
{
    const struct nd_rank_metrics *m = arg;
    struct td_ranks_stats s = {0};
    m->source.stats(m->source.ranks, &s);
    td_metric_set(m->exchanges, (double)s.exchanges);
    td_metric_set(m->sent, (double)s.bytes_out);
    td_metric_set(m->received, (double)s.bytes_in);
    td_metric_set(m->wait, (double)s.wait_us * 1e-6);
}

static struct td_metric *only(struct td_metrics *reg, enum nd_family f)
{
    struct td_metric_family *family = td_metrics_family(reg, &nd_metric_list[f]);
    return family != NULL ? td_metric_only(family) : NULL;
}

/* Which rank of how many, and the path to the next one: a gauge that says it in labels. */
static td_err set_place(struct td_metrics *reg, const struct nd_rank_source *source)
{
    char rank[16], size[16];
    struct td_ranks_stats s = {.transport = ""};
    const struct td_ranks *r = source->ranks;
    if (r != NULL) {
        source->stats(r, &s);
    }
    (void)snprintf(rank, sizeof rank, "%u", r != NULL ? r->rank : 0);
    (void)snprintf(size, sizeof size, "%u", r != NULL ? r->n : 1);
    const char *const values[] = {rank, size, s.transport != NULL ? s.transport : "", NULL};
    struct td_metric_family *f = td_metrics_family(reg, &nd_metric_list[F_RANK]);
    if (f == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    td_metric_set(td_metric_child(f, values), 1);
    return TD_OK;
}

td_err nd_rank_metrics_create(struct td_metrics *reg, const struct nd_rank_source *source,
                              struct nd_rank_metrics **out_metrics)
{
    struct nd_rank_metrics *m = td_zalloc(1, sizeof *m);
    if (m == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    *m = (struct nd_rank_metrics){.source = *source,
                                  .exchanges = only(reg, F_RANK_EXCHANGES),
                                  .sent = only(reg, F_RANK_SENT),
                                  .received = only(reg, F_RANK_RECEIVED),
                                  .wait = only(reg, F_RANK_WAIT)};
    bool made = m->exchanges != NULL && m->sent != NULL && m->received != NULL && m->wait != NULL;
    td_err err = made ? set_place(reg, source) : TD_ERR_NO_MEMORY;
    if (err != TD_OK) {
        free(m);
        return err;
    }
    if (source->ranks != NULL) {
        td_metrics_on_scrape(reg, on_scrape, m);
    }
    *out_metrics = m;
    return TD_OK;
}

struct nd_rank_metrics *nd_rank_metrics_destroy(struct nd_rank_metrics *m)
{
    free(m);
    return NULL;
}
