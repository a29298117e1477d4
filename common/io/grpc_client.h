/* grpc_client.h - one gRPC call, blocking: what tandemctl's probe is built on.
 *
 * What: connects, sends one message, collects the messages of the answer until its status or until `max_messages` have come
 * (then the stream is cancelled, and the status is OK). Cleartext HTTP/2 with prior knowledge.
 * Not: a client for a loop thread, no TLS, no kept connections.
 * Owner and thread: the caller. Bounds: TD_GRPC_CLIENT_MAX bytes of answer, timeout_us in all (looking the name up is the C
 * library's and not counted). Failure: TD_ERR_BAD_REQUEST not an address, TD_ERR_ADDRESS its host is unknown,
 * TD_ERR_PEER_LOST nobody listens or it closed early, TD_ERR_BUDGET the time is over, TD_ERR_PROTOCOL the answer is no gRPC,
 * TD_ERR_TOO_LARGE it does not fit; each with a sentence for the operator. Nothing is logged. A status is an answer.
 */
#ifndef TD_IO_GRPC_CLIENT_H
#define TD_IO_GRPC_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/io/grpc_frame.h"

#define TD_GRPC_CLIENT_MAX (16u << 20)

struct td_grpc_client_call {
    const char *address; /* "host:port", "[::1]:port" */
    const char *path;    /* "/grpc.health.v1.Health/Check" */
    const char *key;     /* API key; NULL: none */
    const void *message;
    size_t len;
    int64_t timeout_us;
    uint32_t max_messages; /* 0: until the status */
};

struct td_grpc_client_answer {
    enum td_grpc_status status;
    char text[256];      /* of the status */
    char code[64];       /* trailer tandem-code */
    struct td_buf bytes; /* owned: the messages, each behind its prefix */
    uint32_t n_messages;
};

/* On failure *out is untouched. */
td_err td_grpc_client_run(const struct td_grpc_client_call *call, struct td_grpc_client_answer *out,
                          char *err_text, size_t err_cap) TD_MUST_CHECK;
/* The i-th message; false past the end. */
bool td_grpc_client_message(const struct td_grpc_client_answer *a, uint32_t i,
                            const uint8_t **out_data, size_t *out_len);
void td_grpc_client_answer_fini(struct td_grpc_client_answer *a);

#endif
