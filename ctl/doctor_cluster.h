/* doctor_cluster.h - `tandemctl doctor --cluster`: is a running cluster sound, and does every pair of nodes work.
 *
 * What: judges a router's /live: versions, roles, layouts, numerics, pools; asks each node's admin port for its clock; sends
 * one small request through every pair of a prefill and a decode node (POST /probe) and measures its link (doctor_link.h), or, when that is not wanted, judges what
 * clients' requests have moved. The judging functions are pure.
 * Thread: main. Bounds: CTL_CLUSTER_PAIRS probes; the pairs beyond are counted. Failure: findings; a router that does not
 * answer is one, too.
 */
#ifndef CTL_DOCTOR_CLUSTER_H
#define CTL_DOCTOR_CLUSTER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "ctl/admin.h"
#include "ctl/report.h"

#define CTL_CLUSTER_PAIRS 64

struct ctl_cluster_params {
    const struct ctl_admin *admin;
    bool probe;      /* send a request through each pair */
    uint32_t tokens; /* of its prompt */
};

/* CTL_UNREACHABLE, said: the router does not answer; else CTL_OK, whatever was found. */
enum ctl_exit ctl_doctor_cluster(struct ctl_report *r, const struct ctl_cluster_params *p);

/* Of /live. */
void ctl_cluster_judge_router(struct ctl_report *r, const json_t *live, const char *our_version);
void ctl_cluster_judge_nodes(struct ctl_report *r, const json_t *live);
/* offset_us: the node's clock less ours, known to half the round trip. */
void ctl_cluster_judge_clock(struct ctl_report *r, const char *node, int64_t offset_us,
                             int64_t round_trip_us);
/* An answer of /probe, with its status. */
void ctl_cluster_judge_probe(struct ctl_report *r, const char *prefill, const char *decode,
                             int status, const json_t *answer);
/* A row of /live's transfers; NULL: nothing has moved. */
void ctl_cluster_judge_transfer(struct ctl_report *r, const char *prefill, const char *decode,
                                const json_t *row);

#endif
