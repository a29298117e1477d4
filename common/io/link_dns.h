/* link_dns.h - looks names up again and again, off the loop: which numeric addresses does a host
 * name have now?
 *
 * A thread of its own calls getaddrinfo (which may block for long, and is the only resolver that
 * follows the host's configuration and long answers); results reach the loop as a callback.
 * Owner: link_nng.c. Thread: functions are the loop's.
 * Bounds: TD_DNS_MAX_NAMES names, TD_DNS_MAX_ADDRS addresses each; more are ignored with a log
 * line.
 * Failure: a name that does not resolve is reported with no addresses and an error, and tried
 * again.
 */
#ifndef TD_IO_LINK_DNS_H
#define TD_IO_LINK_DNS_H

#include <stdint.h>

#include "common/base/err.h"
#include "common/io/loop.h"

#define TD_DNS_MAX_NAMES 16
#define TD_DNS_MAX_ADDRS 64
#define TD_DNS_ADDR      64 /* "[v6]" or "v4", with the zero */
#define TD_DNS_HOST      256

struct td_dns;

/* addrs: sorted, without duplicates, IPv6 in brackets; n 0 with TD_ERR_ADDRESS: not resolved now,
 * keep what you have. */
typedef void (*td_dns_fn)(void *arg, unsigned name, char addrs[][TD_DNS_ADDR], unsigned n,
                          td_err err);

td_err td_dns_create(struct td_loop *loop, int64_t every_us, td_dns_fn fn, void *arg,
                     struct td_dns **out_dns) TD_MUST_CHECK;
/* Does not wait for a look-up under way; its result is dropped. */
struct td_dns *td_dns_destroy(struct td_dns *d);
/* Starts looking a host up, now and every every_us. TD_ERR_FULL. */
td_err td_dns_add(struct td_dns *d, const char *host, unsigned *out_name) TD_MUST_CHECK;

#endif
