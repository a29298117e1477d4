/* rt_keys.h - API keys: who may call, as which tenant, how much.
 *
 * What: a file of lines `key-id sha256-of-the-key tenant priority-ceiling requests/s concurrent
 * tokens/min`, where 0 means no limit and '#' starts a comment. Keys are compared as SHA-256 in
 * constant time; the key itself is never kept or logged. Without a file every caller is tenant
 * "default" without limits. Limits are token buckets of one second (requests) and one minute
 * (tokens), and a count (concurrent). Pure but for reading the file: `now` is handed in. Owner and
 * thread: router shell, loop. Bounds: RT_KEYS_MAX. Failure: TD_ERR_CONFIG with the line that is
 * wrong, logged; TD_ERR_UNAUTHORIZED; TD_ERR_RATE_LIMITED.
 */
#ifndef ROUTER_RT_KEYS_H
#define ROUTER_RT_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

#define RT_KEYS_MAX 4096

struct rt_key {
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

struct rt_keys;

/* path NULL or "": open to everyone. */
td_err rt_keys_load(const char *path, struct rt_keys **out_keys) TD_MUST_CHECK;
struct rt_keys *rt_keys_destroy(struct rt_keys *k);
/* From text, for tests. */
td_err rt_keys_parse(const char *text, size_t len, struct rt_keys **out_keys) TD_MUST_CHECK;
/* The key of an Authorization header value (NULL when absent). TD_ERR_UNAUTHORIZED otherwise. */
td_err rt_keys_check(struct rt_keys *k, const char *authorization,
                     struct rt_key **out_key) TD_MUST_CHECK;
/* Takes one request; TD_ERR_RATE_LIMITED with the seconds to wait in *out_retry_s. Balanced by
 * rt_key_done. */
td_err rt_key_admit(struct rt_key *key, int64_t now_us, double *out_retry_s) TD_MUST_CHECK;
/* What a key is limited to, for the x-ratelimit headers: "requests" (a second), "tokens" (a
 * minute), "concurrent". Only the limits it has; returns how many. */
struct rt_key_limit {
    const char *what;        /* static */
    double limit, remaining; /* never negative */
    double reset_s;          /* until all of it is there again; 0 for concurrent: nobody knows */
};
#define RT_KEY_LIMITS 3
uint32_t rt_key_limits(const struct rt_key *key, struct rt_key_limit out[RT_KEY_LIMITS]);
/* The request ended and used so many tokens. */
void rt_key_done(struct rt_key *key, uint64_t tokens);
bool rt_keys_open(const struct rt_keys *k);

#endif
