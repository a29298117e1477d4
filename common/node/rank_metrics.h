/* rank_metrics.h - a process's place in its node's group and what it exchanges there: the tandem_node_rank* families.
 *
 * What: the same on rank 0 and on the others, read from the group at each scrape. A node that computes alone is rank 0 of 1.
 * Owner: whoever owns the registry; destroyed after it, since scrapes refer to it. Thread: loop. Failure: of creation only.
 */
#ifndef TD_NODE_RANK_METRICS_H
#define TD_NODE_RANK_METRICS_H

#include "common/base/err.h"
#include "common/base/metrics.h"
#include "common/io/ranks.h"

struct nd_rank_source {
    const struct td_ranks *ranks; /* borrowed; NULL: no group */
    /* td_ranks_stats_get, or a test's; NULL: no group. */
    void (*stats)(const struct td_ranks *ranks, struct td_ranks_stats *out);
};

struct nd_rank_metrics;

td_err nd_rank_metrics_create(struct td_metrics *reg, const struct nd_rank_source *source,
                              struct nd_rank_metrics **out_metrics) TD_MUST_CHECK;
struct nd_rank_metrics *nd_rank_metrics_destroy(struct nd_rank_metrics *m);

#endif
