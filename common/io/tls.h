/* tls.h - the certificate that servers of common/io show, and whom they let in: OpenSSL behind a few calls.
 *
 * What: loads certificate chain, key and, for mutual TLS, the CAs of clients; looks at the files again and again, and at
 * td_tls_reload, so that a renewed certificate is used by the next connection. TLS 1.2 at least; no renegotiation, no
 * sessions to resume. Not: a connection (acceptor.h). Owner: a shell. Thread: loop; a reload reads files of a few KB there.
 * Failure: creation fails with an error, logged with the file and what to do; a reload that fails keeps what was loaded.
 */
#ifndef TD_IO_TLS_H
#define TD_IO_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/io/loop.h"

struct ssl_st;
struct td_tls;

struct td_tls_params {
    struct td_loop *loop;
    const char *cert, *key; /* PEM files; cert: leaf first, then intermediates */
    const char *client_ca;  /* PEM file; NULL or "": clients show nothing */
    /* With client_ca: who shows nothing is let in, unverified (td_acceptor_verified). */
    bool client_may_hide;
    /* Of the options that name the files, for the log; static. NULL: "--tls-". */
    const char *prefix;
    int64_t poll_us; /* between looks at the files */
};

#define TD_TLS_POLL_US 2000000

/* Protocols for ALPN, as RFC 7301 writes lists. */
#define TD_ALPN_HTTP "\x08http/1.1"
#define TD_ALPN_H2   "\x02h2"
/* HTTP/1.1 first: a browser that speaks both is not to be taken for a gRPC client. */
#define TD_ALPN_BOTH TD_ALPN_HTTP TD_ALPN_H2

td_err td_tls_create(const struct td_tls_params *p, struct td_tls **out_tls) TD_MUST_CHECK;
/* For files that may not be named: *out_tls is NULL without them; a key without a certificate, or a CA without both, is
 * refused. */
td_err td_tls_create_named(const struct td_tls_params *p, struct td_tls **out_tls) TD_MUST_CHECK;
struct td_tls *td_tls_destroy(struct td_tls *t);
/* The files of an admin port. */
struct td_tls_files {
    const char *cert, *key, *client_ca; /* NULL or "": none */
};
/* td_tls_create_named for an admin port (--admin-tls-...): with client_ca a client may hide, because the probes of a kubelet
 * show nothing; td_tls_lets_in says what is open to it. */
td_err td_tls_create_admin(struct td_loop *loop, const struct td_tls_files *files,
                           struct td_tls **out_tls) TD_MUST_CHECK;
/* False: clients are asked for a certificate, and this one has shown none. `t` may be NULL. */
bool td_tls_lets_in(const struct td_tls *t, bool verified);
#define TD_TLS_SHOW_ONE "show a client certificate that --admin-tls-client-ca has signed"
/* Now, whatever the files look like. */
td_err td_tls_reload(struct td_tls *t) TD_MUST_CHECK;
/* For one accepted connection; NULL when out of memory. alpn: static, one of the above; a client that offers protocols
 * without this one is refused. */
struct ssl_st *td_tls_session(struct td_tls *t, const char *alpn);
/* OpenSSL's question for a key's password: there is none, or it would ask at the terminal. */
int td_tls_no_password(char *buf, int size, int writing, void *arg);
/* When the certificate in use ends, in seconds since 1970; how often one was loaded. */
int64_t td_tls_expires(const struct td_tls *t);
uint64_t td_tls_loads(const struct td_tls *t);
/* Of several, NULL for ports in cleartext: the end of the one that ends first, and all loads; 0 and 0 without any. */
void td_tls_figures(const struct td_tls *const *all, size_t n, int64_t *out_expires,
                    uint64_t *out_loads);

#endif
