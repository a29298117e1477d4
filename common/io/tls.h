/* tls.h - the certificate that servers of common/io show, and whom they let in: OpenSSL behind a few calls.
 *
 * What: loads certificate chain, key and, for mutual TLS, the CAs of clients; looks at the files again and again, and at
 * td_tls_reload, so that a renewed certificate is used by the next connection. TLS 1.2 at least; no renegotiation, no
 * sessions to resume. Not: a connection (acceptor.h). Owner: a shell. Thread: loop; a reload reads files of a few KB there.
 * Failure: creation fails with an error, logged with the file and what to do; a reload that fails keeps what was loaded.
 */
#ifndef TD_IO_TLS_H
#define TD_IO_TLS_H

#include <stdint.h>

#include "common/base/err.h"
#include "common/io/loop.h"

struct ssl_st;
struct td_tls;

struct td_tls_params {
    struct td_loop *loop;
    const char *cert, *key; /* PEM files; cert: leaf first, then intermediates */
    const char *client_ca;  /* PEM file; NULL or "": clients show nothing */
    int64_t poll_us;        /* between looks at the files */
};

/* Protocols for ALPN, as RFC 7301 writes lists. */
#define TD_ALPN_HTTP "\x08http/1.1"
#define TD_ALPN_H2   "\x02h2"

td_err td_tls_create(const struct td_tls_params *p, struct td_tls **out_tls) TD_MUST_CHECK;
struct td_tls *td_tls_destroy(struct td_tls *t);
/* Now, whatever the files look like. */
td_err td_tls_reload(struct td_tls *t) TD_MUST_CHECK;
/* For one accepted connection; NULL when out of memory. alpn: static, one of the above; a client that offers protocols
 * without this one is refused. */
struct ssl_st *td_tls_session(struct td_tls *t, const char *alpn);
/* When the certificate in use ends, in seconds since 1970; how often one was loaded. */
int64_t td_tls_expires(const struct td_tls *t);
uint64_t td_tls_loads(const struct td_tls *t);

#endif
