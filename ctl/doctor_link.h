/* doctor_link.h - the raw link of a pair of nodes, for `tandemctl doctor --cluster`: what the data plane moves a second,
 * what a slice costs, and whether that is enough for the KV that prefill makes.
 *
 * What: parked probes (POST /probe with "park"), whose KV waits on prefill until it is whole and then moves at once, so that
 * the time of the transfer is the link's and not the prefill's. The first one, which makes the connection, is thrown away;
 * of the others the fastest counts. Not: the pair's answer to a request (doctor_cluster.h), a network benchmark.
 * Thread: main. Bounds: CTL_LINK_SHORT + CTL_LINK_LONG + 1 probes. Failure: a finding.
 */
#ifndef CTL_DOCTOR_LINK_H
#define CTL_DOCTOR_LINK_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "ctl/admin.h"
#include "ctl/report.h"

#define CTL_LINK_SHORT 3
#define CTL_LINK_LONG  2

struct ctl_link {
    char transport[16];
    bool one_host;             /* both nodes' admin ports lie on one address */
    int64_t bytes, us;         /* of the fastest long probe */
    int64_t slices, slices_us; /* of the fastest short one: one block, a slice for each layer */
    int64_t prompt_tok,
        prefill_us;  /* of the long probe: what its KV belongs to, what it took to make */
    int64_t max_tok; /* the model's context */
};

/* Takes over what a parked probe's answer tells of the link; false when it is none. `layers` != 0: it was a short one. */
bool ctl_link_take(struct ctl_link *l, const json_t *answer, int64_t layers);
/* Pure. */
void ctl_link_judge(struct ctl_report *r, const char *check, const struct ctl_link *l);
/* Measures between two nodes of /live; `tokens`: of the long probes. */
void ctl_link_check(struct ctl_report *r, const struct ctl_admin *admin, const json_t *prefill,
                    const json_t *decode, uint32_t tokens);

#endif
