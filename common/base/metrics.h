/* metrics.h - counters, gauges and histograms in Prometheus text format 0.0.4.
 *
 * A registry owns families; a family has a name, a help text, a type and label names; a child is
 * one set of label values. Children are created on first use and kept. Updates are relaxed atomics:
 * any thread. Values are doubles for gauges and histogram sums, uint64 for counters. Bounds: 1000
 * children a family, then the child with every label value "other"; label values cut at 128 bytes.
 * Failure: out of memory yields a child that swallows updates; a scrape says so in
 * tandem_metrics_lost_total.
 */
#ifndef TD_BASE_METRICS_H
#define TD_BASE_METRICS_H

#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"

#define TD_METRIC_MAX_LABELS 6

/* TD_COUNTER_REAL: a counter with a fraction (seconds), set by its owner, never lowered. */
enum td_metric_type { TD_COUNTER, TD_GAUGE, TD_HISTOGRAM, TD_COUNTER_REAL };

struct td_metrics;       /* registry */
struct td_metric_family; /* one name */
struct td_metric;        /* one child */

struct td_metric_desc {
    const char *name;
    const char *help;
    enum td_metric_type type;
    const char *labels[TD_METRIC_MAX_LABELS]; /* NULL-terminated when fewer */
    const double *buckets; /* histogram: ascending upper bounds without +Inf; borrowed, static */
    uint32_t n_buckets;
};

struct td_metrics *td_metrics_create(void);
struct td_metrics *td_metrics_destroy(struct td_metrics *m);
/* Labels that every child carries (model_name, node, role): values copied; call before the first
 * family. */
td_err td_metrics_const_label(struct td_metrics *m, const char *name,
                              const char *value) TD_MUST_CHECK;
/* Registers a family; the same name twice returns the first. */
struct td_metric_family *td_metrics_family(struct td_metrics *m, const struct td_metric_desc *desc);
/* Child for these label values (in the order of desc->labels; NULL-terminated). Takes a lock: keep
 * the pointer on hot paths. */
struct td_metric *td_metric_child(struct td_metric_family *f, const char *const *values);
/* Child of a family without labels. */
struct td_metric *td_metric_only(struct td_metric_family *f);
void td_metric_add(struct td_metric *c, uint64_t n);
void td_metric_set(struct td_metric *c, double v);
void td_metric_observe(struct td_metric *c, double v);
/* Current value of a counter or gauge; count of a histogram. */
double td_metric_value(const struct td_metric *c);
/* Runs before each scrape, to set gauges from owner state; called on the scraping thread. */
void td_metrics_on_scrape(struct td_metrics *m, void (*fn)(void *), void *arg);
/* The whole exposition; families sorted by name. */
td_err td_metrics_write(struct td_metrics *m, struct td_buf *out) TD_MUST_CHECK;

/* Bucket sets of interfaces.md 2.1. */
extern const double td_buckets_ttft[22], td_buckets_itl[22], td_buckets_e2e[21],
    td_buckets_tokens[19], td_buckets_transfer_seconds[12], td_buckets_transfer_bytes[12];

#endif
