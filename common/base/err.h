/* err.h - the one error type of every room.
 *
 * What: TD_OK is 0, failures are negative. One table gives each error its name, the stable `code`
 * string that clients see, an HTTP status, whether a retry may help, and what it spoils (the
 * class). Not: a message. The function that decides on an error logs it once with its context;
 * callers propagate silently. Thread: any. Failure: none.
 */
#ifndef TD_BASE_ERR_H
#define TD_BASE_ERR_H

#include <stdbool.h>

enum td_err_class {
    TD_CLASS_NONE,
    TD_CLASS_REQUEST, /* this request is wrong or refused; nothing else is affected */
    TD_CLASS_SEQ,     /* this sequence or its KV is lost; the request may be replayed */
    TD_CLASS_PEER,    /* the peer, its session or its path is spoiled */
    TD_CLASS_NODE,    /* this process lacks something */
    TD_CLASS_CONFIG,  /* the operator must change something */
};

/* X(NAME, value, "code", http_status, retryable, class, "text") */
#define TD_ERR_TABLE(X)                                                                            \
    X(BAD_REQUEST, -1, "bad_request", 400, 0, REQUEST, "bad request")                              \
    X(UNAUTHORIZED, -2, "invalid_api_key", 401, 0, REQUEST, "missing or wrong API key")            \
    X(FORBIDDEN, -3, "forbidden", 403, 0, REQUEST, "the key lacks this right")                     \
    X(NOT_FOUND, -4, "not_found", 404, 0, REQUEST, "unknown path")                                 \
    X(MODEL_NOT_FOUND, -5, "model_not_found", 404, 0, REQUEST, "unknown model")                    \
    X(METHOD, -6, "method_not_allowed", 405, 0, REQUEST, "method not allowed")                     \
    X(TOO_LARGE, -7, "payload_too_large", 413, 0, REQUEST, "body too large")                       \
    X(MEDIA_TYPE, -8, "unsupported_media_type", 415, 0, REQUEST, "unsupported content type")       \
    X(HEADER_TOO_LARGE, -9, "header_too_large", 431, 0, REQUEST, "request header too large")       \
    X(CONTEXT_LENGTH, -10, "context_length_exceeded", 400, 0, REQUEST,                             \
      "prompt and output exceed the context")                                                      \
    X(UNSUPPORTED, -11, "unsupported", 400, 0, REQUEST, "feature not supported")                   \
    X(RATE_LIMITED, -12, "rate_limited", 429, 1, REQUEST, "rate limit reached")                    \
    X(OVERLOADED, -13, "overloaded", 429, 1, REQUEST, "queue full")                                \
    X(TIMEOUT_READ, -14, "request_timeout", 408, 1, REQUEST, "request arrived too slowly")         \
    X(CANCELLED, -15, "cancelled", 499, 0, REQUEST, "cancelled by the client")                     \
    X(BUDGET, -16, "budget_spent", 504, 1, REQUEST, "time budget spent")                           \
    X(NO_NODE, -17, "no_ready_node", 503, 1, REQUEST, "no ready prefill or decode node")           \
    X(NO_PAIR, -18, "no_compatible_pair", 503, 1, REQUEST,                                         \
      "no compatible prefill and decode pair")                                                     \
    X(NO_CAPACITY, -19, "no_capacity", 503, 1, REQUEST, "not enough KV blocks")                    \
    X(DRAINING, -20, "draining", 503, 1, REQUEST, "draining")                                      \
    X(LOADING, -21, "loading", 503, 1, REQUEST, "still loading")                                   \
    X(REPLAYS, -22, "replays_exhausted", 502, 1, REQUEST, "replays exhausted")                     \
    X(POISON, -23, "poison_suspected", 502, 0, REQUEST, "running on two nodes when they died")     \
    X(UNKNOWN_REQUIRES, -24, "unknown_requires", 400, 0, REQUEST,                                  \
      "message requires an unknown feature")                                                       \
    X(INTERNAL, -30, "internal_error", 500, 0, REQUEST, "internal error")                          \
    X(SEQ_FAILED, -40, "sequence_failed", 502, 1, SEQ, "the engine failed this sequence")          \
    X(KV_MISMATCH, -41, "kv_mismatch", 502, 1, SEQ, "KV header or record did not verify")          \
    X(STALE, -42, "stale", 502, 1, SEQ, "stale epoch, generation or attempt")                      \
    X(LEASE, -43, "lease_expired", 502, 1, SEQ, "lease expired")                                   \
    X(STALLED, -44, "transfer_stalled", 502, 1, SEQ, "transfer made no progress")                  \
    X(PEER_LOST, -60, "node_lost", 502, 1, PEER, "peer lost")                                      \
    X(PROTOCOL, -61, "peer_protocol", 502, 0, PEER, "peer broke the protocol")                     \
    X(PEER_AUTH, -62, "peer_auth", 502, 0, PEER, "peer failed to prove the cluster secret")        \
    X(PEER_VERSION, -63, "peer_version", 502, 0, PEER, "no common protocol version")               \
    X(PEER_MODEL, -64, "peer_model", 502, 0, PEER,                                                 \
      "peer serves another model, tokenizer, layout or numerics")                                  \
    X(AGAIN, -80, "try_again", 503, 1, NODE, "not now")                                            \
    X(FULL, -81, "full", 503, 1, NODE, "bounded container is full")                                \
    X(NO_MEMORY, -82, "out_of_memory", 503, 1, NODE, "out of memory")                              \
    X(IO, -83, "io_error", 500, 1, NODE, "input or output failed")                                 \
    X(CLOSED, -84, "closed", 503, 1, NODE, "closed")                                               \
    X(DEVICE, -85, "device_error", 500, 1, NODE, "accelerator failed")                             \
    X(TRANSPORT, -86, "transport_error", 502, 1, NODE, "transport library failed")                 \
    X(CONFIG, -100, "bad_config", 500, 0, CONFIG, "bad configuration")                             \
    X(FILE_FORMAT, -101, "bad_file", 500, 0, CONFIG, "file is malformed")                          \
    X(FILE_UNSUPPORTED, -102, "unsupported_file", 500, 0, CONFIG,                                  \
      "file needs a feature this build lacks")                                                     \
    X(NO_FILE, -103, "no_file", 500, 0, CONFIG, "file cannot be opened")                           \
    X(ADDRESS, -104, "bad_address", 500, 0, CONFIG, "address cannot be used")

typedef enum td_err {
    TD_OK = 0,
#define TD_ERR_ENUM(name, value, code, http, retry, cls, text) TD_ERR_##name = (value),
    TD_ERR_TABLE(TD_ERR_ENUM)
#undef TD_ERR_ENUM
} td_err;

#define TD_MUST_CHECK __attribute__((warn_unused_result))

/* Stable lower-case code for clients and metrics ("ok" for TD_OK, "internal_error" for unknown
 * values). */
const char *td_err_code(td_err e);
/* Human text. */
const char *td_err_text(td_err e);
/* HTTP status (200 for TD_OK). */
int td_err_http(td_err e);
bool td_err_retryable(td_err e);
enum td_err_class td_err_class_of(td_err e);
static inline bool td_err_is_peer(td_err e)
{
    return td_err_class_of(e) == TD_CLASS_PEER;
}
/* True when value is one of the table's, so that numbers from the wire can be checked. */
bool td_err_known(int value);

/* Propagates a failure. The callee has logged it. */
#define TD_TRY(call)                                                                               \
    do {                                                                                           \
        td_err td_try_err_ = (call);                                                               \
        if (td_try_err_ != TD_OK) {                                                                \
            return td_try_err_;                                                                    \
        }                                                                                          \
    } while (0)

/* Ignores a result on purpose: the comment beside it says why. */
#define TD_IGNORE(call)                                                                            \
    do {                                                                                           \
        td_err td_ignored_ = (call);                                                               \
        (void)td_ignored_;                                                                         \
    } while (0)

#endif
