/* tls_client.h - how our own clients check a server's certificate, and what they show it: OpenSSL behind a few calls.
 *
 * What: trusts the CAs of a file, or the system's; checks the name that was dialled, or the one that is told; shows a
 * certificate for mutual TLS. TLS 1.2 at least. There is no way to switch the checks off.
 * Not: a connection (stream.h, http_client.h), a server's side (tls.h). Files are read once, at creation: a program that
 * makes one for each call sees renewed files.
 * Owner and thread: the creator's. Bounds: names of TD_TLS_CLIENT_NAME bytes. Failure: of creation only: TD_ERR_NO_FILE,
 * TD_ERR_CONFIG, TD_ERR_NO_MEMORY, with a sentence for the operator. Nothing is logged.
 */
#ifndef TD_IO_TLS_CLIENT_H
#define TD_IO_TLS_CLIENT_H

#include <stddef.h>

#include "common/base/err.h"

#define TD_TLS_CLIENT_NAME 256

struct ssl_st;
struct td_tls_client;

/* NULL or "": none, or the default. */
struct td_tls_client_params {
    const char *ca;          /* PEM file of whom to trust; default: the system's */
    const char *cert, *key;  /* PEM files shown to servers that ask; both or none */
    const char *server_name; /* in the server's certificate; default: the host that is dialled */
    const char *name_option; /* that chooses server_name, for what is said; NULL: none; static */
};

td_err td_tls_client_create(const struct td_tls_client_params *p, struct td_tls_client **out_tls,
                            char *err_text, size_t err_cap) TD_MUST_CHECK;
struct td_tls_client *td_tls_client_destroy(struct td_tls_client *t);
/* For one connection to `host` (a name or an address); `alpn` as in tls.h, static. NULL when out of memory. The session is
 * the caller's. */
struct ssl_st *td_tls_client_session(const struct td_tls_client *t, const char *host,
                                     const char *alpn);
/* Why TLS failed, as a sentence; `code`: what OpenSSL said (ERR_get_error), 0: nothing. */
void td_tls_client_why(const struct ssl_st *session, unsigned long code, char *err_text,
                       size_t err_cap);

#endif
