/* doctor_net.h - can a cluster listen here, and how fast does KV move on this host.
 *
 * What: tries to listen on addresses and lets go again; measures the data plane by td_xfer_measure().
 * Not: the network between hosts. Thread: main; the measuring forks, so no thread may run yet.
 * Bounds: CTL_PORTS_MAX addresses. Failure: findings.
 */
#ifndef CTL_DOCTOR_NET_H
#define CTL_DOCTOR_NET_H

#include <stdbool.h>
#include <stdint.h>

#include "ctl/report.h"

#define CTL_PORTS_MAX 64

/* One address, "8000", "127.0.0.1:8000", "[::1]:8000", "tcp://host:8101" or "http://host:8001". A port in use is a FAIL if
 * `asked` for by the operator, else a WARN: it may be a running cluster. */
void ctl_doctor_port(struct ctl_report *r, const char *address, bool asked);

struct ctl_transfer_params {
    const char *device;
    bool trust_network;
    uint32_t megabytes;        /* moved per measurement */
    uint64_t kv_bytes_per_tok; /* of the model, to say what a speed means; 0: unknown */
};
/* transports: as UCX_TLS; "" lets UCX choose; "cma": slices by reference beside shared memory. must: failing is a FAIL, else a WARN. */
void ctl_doctor_transfer(struct ctl_report *r, const struct ctl_transfer_params *p,
                         const char *transports, bool must);

/* Splits an address; false when it is none. For tests. */
bool ctl_doctor_split(const char *address, char *host, size_t host_cap, char *port,
                      size_t port_cap);

#endif
