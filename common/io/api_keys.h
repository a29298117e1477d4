/* api_keys.h - API keys: who may call, as which tenant, how much.
 *
 * What: a file of lines `key-id sha256-of-the-key tenant priority-ceiling requests/s concurrent
 * tokens/min`, where 0 means no limit and '#' starts a comment. Keys are compared as SHA-256 in
 * constant time; the key itself is never kept or logged. Without a file every caller is tenant
 * "default" without limits. Limits are token buckets of one second (requests) and one minute
 * (tokens), and a count (concurrent). Pure but for reading the file: `now` is handed in. Owner: a
 * shell. Thread: loop. Bounds: TD_API_KEYS_MAX. Failure: TD_ERR_CONFIG with the line that is
 * wrong, logged; TD_ERR_UNAUTHORIZED; TD_ERR_RATE_LIMITED.
 */
#ifndef TD_IO_API_KEYS_H
#define TD_IO_API_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/io/http_parse.h"

#define TD_API_KEYS_MAX 4096

struct td_api_key {
    char id[64];
    char tenant[64];
    uint8_t sha256[32];
    int32_t priority_ceiling; /* a request's priority is at least this (lower runs first) */
    double requests_per_s, tokens_per_min;
    uint32_t max_concurrent;
    /* state */
    double request_tokens, token_tokens; /* what is left in the buckets */
    int64_t refilled_us;
    uint32_t concurrent;
};

struct td_api_keys;

/* path NULL or "": open to everyone. */
td_err td_api_keys_load(const char *path, struct td_api_keys **out_keys) TD_MUST_CHECK;
struct td_api_keys *td_api_keys_destroy(struct td_api_keys *k);
/* From text, for tests. */
td_err td_api_keys_parse(const char *text, size_t len, struct td_api_keys **out_keys) TD_MUST_CHECK;
/* The key of an Authorization header value (NULL when absent). TD_ERR_UNAUTHORIZED otherwise. */
td_err td_api_keys_check(struct td_api_keys *k, const char *authorization,
                         struct td_api_key **out_key) TD_MUST_CHECK;
/* The same of a request's headers: `authorization: Bearer KEY`, or `x-api-key: KEY`. */
td_err td_api_keys_check_request(struct td_api_keys *k, const struct td_http_request *r,
                                 struct td_api_key **out_key) TD_MUST_CHECK;
/* Takes one request; TD_ERR_RATE_LIMITED with the seconds to wait in *out_retry_s. Balanced by
 * td_api_key_done. */
td_err td_api_key_admit(struct td_api_key *key, int64_t now_us, double *out_retry_s) TD_MUST_CHECK;
/* What a key is limited to, for the x-ratelimit headers: "requests" (a second), "tokens" (a
 * minute), "concurrent". Only the limits it has; returns how many. */
struct td_api_key_limit {
    const char *what;        /* static */
    double limit, remaining; /* never negative */
    double reset_s;          /* until all of it is there again; 0 for concurrent: nobody knows */
};
#define TD_API_KEY_LIMITS 3
uint32_t td_api_key_limits(const struct td_api_key *key,
                           struct td_api_key_limit out[TD_API_KEY_LIMITS]);
/* The request ended and used so many tokens. */
void td_api_key_done(struct td_api_key *key, uint64_t tokens);
bool td_api_keys_open(const struct td_api_keys *k);

#endif
