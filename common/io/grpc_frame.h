/* grpc_frame.h - gRPC's own grammar over HTTP/2: length-prefixed messages, statuses, timeouts, texts of trailers.
 *
 * Pure. Not: HTTP/2 (h2_server.h), calls (grpc_server.h). Owner and thread: the caller's. Bounds: a message has at most
 * `max` bytes, which is checked on its prefix, before anything is kept. Failure: a status of the table below.
 */
#ifndef TD_IO_GRPC_FRAME_H
#define TD_IO_GRPC_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"

#define TD_GRPC_PREFIX      5 /* bytes in front of a message: flag, big-endian length */
#define TD_GRPC_MAX_MESSAGE (4u << 20)
#define TD_GRPC_MAX_TEXT    1024 /* of a status, before it is encoded */

enum td_grpc_status {
    TD_GRPC_OK = 0,
    TD_GRPC_CANCELLED = 1,
    TD_GRPC_UNKNOWN = 2,
    TD_GRPC_INVALID_ARGUMENT = 3,
    TD_GRPC_DEADLINE_EXCEEDED = 4,
    TD_GRPC_NOT_FOUND = 5,
    TD_GRPC_ALREADY_EXISTS = 6,
    TD_GRPC_PERMISSION_DENIED = 7,
    TD_GRPC_RESOURCE_EXHAUSTED = 8,
    TD_GRPC_FAILED_PRECONDITION = 9,
    TD_GRPC_ABORTED = 10,
    TD_GRPC_OUT_OF_RANGE = 11,
    TD_GRPC_UNIMPLEMENTED = 12,
    TD_GRPC_INTERNAL = 13,
    TD_GRPC_UNAVAILABLE = 14,
    TD_GRPC_DATA_LOSS = 15,
    TD_GRPC_UNAUTHENTICATED = 16,
};

/* What a client is told of an error. */
enum td_grpc_status td_grpc_status_of(td_err err);
/* "NOT_FOUND"; "UNKNOWN" for what gRPC does not know either. */
const char *td_grpc_status_name(enum td_grpc_status status);

/* Cuts a stream of bytes into messages. */
struct td_grpc_reader {
    size_t max;
    uint8_t prefix[TD_GRPC_PREFIX];
    uint32_t n_prefix;
    size_t want;           /* of the message in progress */
    struct td_buf message; /* owned */
};

void td_grpc_reader_init(struct td_grpc_reader *r, size_t max);
void td_grpc_reader_fini(struct td_grpc_reader *r);
/* Takes bytes until a message is complete; returns how many it took. *out_complete: r->message is a whole message, valid
 * until the next call. A failure is final: TD_ERR_TOO_LARGE, TD_ERR_UNSUPPORTED (compressed), TD_ERR_PROTOCOL
 * (a flag that gRPC does not know), TD_ERR_NO_MEMORY. */
td_err td_grpc_reader_feed(struct td_grpc_reader *r, const uint8_t *data, size_t len,
                           size_t *out_used, bool *out_complete) TD_MUST_CHECK;
/* Nothing of a message has come yet. */
bool td_grpc_reader_between(const struct td_grpc_reader *r);

void td_grpc_prefix(size_t len, uint8_t out[TD_GRPC_PREFIX]);

/* grpc-timeout: one to eight digits and a unit, "250m"; false when it is anything else. A wait longer than a week becomes
 * a week. */
bool td_grpc_timeout_parse(const char *text, int64_t *out_us);

/* grpc-message: what is no printable ASCII, and '%', as %XX. Cut to TD_GRPC_MAX_TEXT bytes; `out` has room for three times
 * that and a zero. */
void td_grpc_text_encode(const char *text, char out[TD_GRPC_MAX_TEXT * 3 + 1]);

/* "application/grpc" with an optional "+proto" or parameters. */
bool td_grpc_is_content_type(const char *type);

#endif
