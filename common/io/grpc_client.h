/* grpc_client.h - one gRPC call, blocking: what tandemctl is built on.
 *
 * What: connects (cleartext HTTP/2 with prior knowledge, or TLS with ALPN h2), sends metadata and one message, collects the
 * messages of the answer or hands them over as they come, until the status. A stream that is reset, an HTTP status in place of
 * a gRPC one and a GOAWAY that cuts the call off become the statuses that gRPC defines for them.
 * Not: a client for a loop thread, no kept connections, no client streams, no compression.
 * Owner and thread: the caller. Bounds: TD_GRPC_CLIENT_MAX_HEAD bytes of headers and trailers together, max_answer bytes of
 * collected answer or of one message, TD_GRPC_CLIENT_METADATA headers of the caller, timeout_us in all (looking the name up is
 * the C library's and not counted); without a deadline a server that is silent for two keepalives is lost.
 * Failure: no status came: TD_ERR_BAD_REQUEST not an address, or metadata that HTTP/2 forbids, TD_ERR_ADDRESS its host is
 * unknown, TD_ERR_PEER_LOST nobody listens, it closed early or went silent, TD_ERR_PEER_AUTH TLS failed, TD_ERR_BUDGET the time
 * is over, TD_ERR_PROTOCOL the answer is no gRPC, TD_ERR_TOO_LARGE it does not fit; each with a sentence for the operator.
 * Nothing is logged. A status is an answer.
 */
#ifndef TD_IO_GRPC_CLIENT_H
#define TD_IO_GRPC_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/io/grpc_frame.h"
#include "common/io/http_parse.h"

#define TD_GRPC_CLIENT_MAX      (16u << 20)
#define TD_GRPC_CLIENT_MAX_HEAD (16u << 10)
#define TD_GRPC_CLIENT_METADATA 8
#define TD_GRPC_CLIENT_MAX_KEY  1024

struct td_tls_client;

struct td_grpc_client_call {
    const char *address; /* "host:port", "[::1]:port" */
    const char *path;    /* "/grpc.health.v1.Health/Check" */
    const char *key;     /* API key; NULL: none */
    const void *message;
    size_t len;
    int64_t timeout_us;    /* TD_NEVER: until the server ends the call */
    int64_t keepalive_us;  /* asks a silent server whether it lives (PING); 0: never */
    uint32_t max_messages; /* then the stream is cancelled and the status OK; 0: until the status */
    size_t max_answer;     /* 0: TD_GRPC_CLIENT_MAX */
    const struct td_tls_client *tls;       /* NULL: cleartext */
    const struct td_http_header *metadata; /* names in lower case */
    uint32_t n_metadata;
    /* Each message as it comes, instead of keeping it; false: enough, as with max_messages. NULL: they are kept. */
    bool (*on_message)(void *arg, const uint8_t *data, size_t len);
    void *arg;
};

struct td_grpc_client_answer {
    enum td_grpc_status status;
    char text[256];       /* of the status; printable ASCII */
    char code[64];        /* trailer tandem-code */
    char request_id[128]; /* header x-request-id */
    int64_t retry_ms;     /* trailer grpc-retry-pushback-ms: 0 not said, -1 a retry cannot help */
    struct td_buf bytes;  /* owned: the messages, each behind its prefix */
    uint32_t n_messages;  /* kept or handed over */
};

/* On failure *out is untouched. */
td_err td_grpc_client_run(const struct td_grpc_client_call *call, struct td_grpc_client_answer *out,
                          char *err_text, size_t err_cap) TD_MUST_CHECK;
/* The i-th kept message; false past the end. */
bool td_grpc_client_message(const struct td_grpc_client_answer *a, uint32_t i,
                            const uint8_t **out_data, size_t *out_len);
void td_grpc_client_answer_fini(struct td_grpc_client_answer *a);

#endif
