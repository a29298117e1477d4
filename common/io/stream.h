/* stream.h - a connection of a blocking client: TCP, or TLS over it, with a deadline on every step.
 *
 * What: resolves "host:port" ("[::1]:port"), tries each of its addresses, checks the server's certificate, writes and reads.
 * Not: a protocol; a loop's connection (acceptor.h, libevent).
 * Owner and thread: the caller. Bounds: none of its own: the caller's buffers. Deadlines are monotonic (td_now_us), TD_NEVER
 * waits for ever; looking the name up is the C library's and not counted.
 * Failure: TD_ERR_BAD_REQUEST not an address, TD_ERR_ADDRESS its host is unknown, TD_ERR_PEER_LOST nobody listens or the
 * connection broke, TD_ERR_CLOSED the server has ended it, TD_ERR_BUDGET the deadline passed, TD_ERR_PEER_AUTH TLS failed (a
 * certificate, a protocol), TD_ERR_NO_MEMORY; td_stream_why has a sentence for the operator. Nothing is logged.
 */
#ifndef TD_IO_STREAM_H
#define TD_IO_STREAM_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

struct td_stream;
struct td_tls_client;

/* tls NULL: cleartext, and alpn is not looked at; else the server must have chosen it. On failure err_text says why. */
td_err td_stream_open(const char *address, const struct td_tls_client *tls, const char *alpn,
                      int64_t deadline_us, struct td_stream **out_stream, char *err_text,
                      size_t err_cap) TD_MUST_CHECK;
struct td_stream *td_stream_close(struct td_stream *s);
/* All of it. */
td_err td_stream_write(struct td_stream *s, const void *data, size_t len,
                       int64_t deadline_us) TD_MUST_CHECK;
/* At least a byte. */
td_err td_stream_read(struct td_stream *s, void *buf, size_t cap, int64_t deadline_us,
                      size_t *out_len) TD_MUST_CHECK;
/* Of the last failure; valid with the stream. */
const char *td_stream_why(const struct td_stream *s);

#endif
