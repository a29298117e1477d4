/* metrics_process.h - what Prometheus knows of any process: processor time, memory, descriptors, start, version.
 *
 * What: process_* under the names of the Prometheus client libraries, and tandem_build_info, read at each scrape.
 * Not: anything of the program's own work.
 * Owner: whoever owns the registry; destroyed after it, since scrapes refer to it. Thread: the scraping one. It reads
 * /proc/self, which does not wait for a disk; counting descriptors costs microseconds for each hundred.
 * Failure: creation only; what cannot be read keeps its last value.
 */
#ifndef TD_BASE_METRICS_PROCESS_H
#define TD_BASE_METRICS_PROCESS_H

#include "common/base/err.h"
#include "common/base/metrics.h"

struct td_metrics_process;

td_err td_metrics_process_create(struct td_metrics *m, const char *version,
                                 struct td_metrics_process **out_process) TD_MUST_CHECK;
struct td_metrics_process *td_metrics_process_destroy(struct td_metrics_process *p);

#endif
