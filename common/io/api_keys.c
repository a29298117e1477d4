#define TD_LOG_ROOM "io"
#include "common/io/api_keys.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include "common/base/log.h"
#include "common/base/mem.h"

#define MAX_FILE (4u << 20)
#define KEY_MAX  1024

struct td_api_keys {
    bool open; /* no file: keys[0] is everyone */
    uint32_t n;
    struct td_api_key keys[];
};

static bool parse_hex(const char *hex, uint8_t out[32])
{
    if (strlen(hex) != 64) {
        return false;
    }
    for (size_t i = 0; i < 32; i++) {
        int hi = td_http_hex_digit(hex[2 * i]), lo = td_http_hex_digit(hex[2 * i + 1]);
        if (hi < 0 || lo < 0) {
            return false;
        }
        out[i] = (uint8_t)(hi * 16 + lo);
    }
    return true;
}

static bool parse_number(const char *text, double min, double max, double *out)
{
    char *end = NULL;
    double v = strtod(text, &end);
    *out = v;
    return end != text && *end == 0 && v >= min && v <= max;
}

static bool parse_whole(const char *text, double min, double max, double *out)
{
    return parse_number(text, min, max, out) && *out == (double)(int64_t)*out;
}

/* What a bucket of this rate holds at most: a rate below one a second still admits one. */
static double burst_of(double requests_per_s)
{
    return requests_per_s < 1 ? 1 : requests_per_s;
}

static const char *parse_fields(char *fields[7], struct td_api_key *k)
{
    double prio = 0, concurrent = 0;
    if (strlen(fields[0]) >= sizeof k->id || strlen(fields[2]) >= sizeof k->tenant) {
        return "key id or tenant longer than 63 bytes";
    }
    if (!parse_hex(fields[1], k->sha256)) {
        return "the second field must be the key's SHA-256 in hex";
    }
    if (!parse_whole(fields[3], -1000, 1000, &prio)) {
        return "priority ceiling must be a whole number, -1000 to 1000";
    }
    if (!parse_number(fields[4], 0, 1e6, &k->requests_per_s) ||
        !parse_whole(fields[5], 0, 1e6, &concurrent) ||
        !parse_number(fields[6], 0, 1e12, &k->tokens_per_min)) {
        return "limits must be numbers (concurrent a whole one), 0 for none";
    }
    (void)snprintf(k->id, sizeof k->id, "%s", fields[0]);
    (void)snprintf(k->tenant, sizeof k->tenant, "%s", fields[2]);
    k->priority_ceiling = (int32_t)prio;
    k->max_concurrent = (uint32_t)concurrent;
    k->request_tokens = burst_of(k->requests_per_s);
    k->token_tokens = k->tokens_per_min;
    return NULL;
}

/* One line; NULL when it is fine (or empty, then *out_used is false). */
static const char *parse_line(char *line, struct td_api_key *k, bool *out_used)
{
    char *fields[7], *save = NULL;
    uint32_t n = 0;
    *out_used = false;
    for (char *f = strtok_r(line, " \t\r", &save); f != NULL && f[0] != '#';
         f = strtok_r(NULL, " \t\r", &save)) {
        if (n == 7) {
            return "too many fields";
        }
        fields[n++] = f;
    }
    if (n == 0) {
        return NULL;
    }
    if (n != 7) {
        return "needs: key-id sha256 tenant priority-ceiling requests/s concurrent tokens/min";
    }
    *out_used = true;
    return parse_fields(fields, k);
}

static td_err parse_all(char *text, struct td_api_keys *keys)
{
    char *save = NULL;
    unsigned number = 0;
    for (char *line = text; line != NULL; line = save) {
        save = strchr(line, '\n');
        if (save != NULL) {
            *save++ = 0;
        }
        number++;
        struct td_api_key key = {0};
        bool used = false;
        const char *why = parse_line(line, &key, &used);
        if (why == NULL && used && keys->n == TD_API_KEYS_MAX) {
            why = "more keys than this version holds";
        }
        if (why != NULL) {
            TD_LOG(ERROR, "API key file is wrong", "line=%u why=\"%s\"", number, why);
            return TD_ERR_CONFIG;
        }
        if (used) {
            keys->keys[keys->n++] = key;
        }
    }
    return TD_OK;
}

td_err td_api_keys_parse(const char *text, size_t len, struct td_api_keys **out_keys)
{
    struct td_api_keys *keys = td_zalloc(1, sizeof *keys + TD_API_KEYS_MAX * sizeof keys->keys[0]);
    char *copy = td_zalloc(len + 1, 1);
    if (keys == NULL || copy == NULL) {
        free(keys);
        free(copy);
        return TD_ERR_NO_MEMORY;
    }
    memcpy(copy, text, len);
    td_err err = parse_all(copy, keys);
    free(copy);
    if (err != TD_OK) {
        free(keys);
        return err;
    }
    *out_keys = keys;
    return TD_OK;
}

static td_err open_to_all(struct td_api_keys **out_keys)
{
    struct td_api_keys *keys = td_zalloc(1, sizeof *keys + sizeof keys->keys[0]);
    if (keys == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    keys->open = true;
    keys->n = 1;
    (void)snprintf(keys->keys[0].id, sizeof keys->keys[0].id, "none");
    (void)snprintf(keys->keys[0].tenant, sizeof keys->keys[0].tenant, "default");
    keys->keys[0].priority_ceiling = -1000;
    *out_keys = keys;
    return TD_OK;
}

td_err td_api_keys_load(const char *path, struct td_api_keys **out_keys)
{
    if (path == NULL || path[0] == 0) {
        return open_to_all(out_keys);
    }
    FILE *f = fopen(path, "rbe");
    if (f == NULL) {
        TD_LOG(ERROR, "cannot open the API key file", "path=%s errno=%d (%s)", path, errno,
               strerrordesc_np(errno));
        return TD_ERR_NO_FILE;
    }
    char *text = td_zalloc(MAX_FILE + 1, 1);
    size_t n = text != NULL ? fread(text, 1, MAX_FILE + 1, f) : 0;
    (void)fclose(f);
    td_err err = text == NULL ? TD_ERR_NO_MEMORY : TD_OK;
    if (n > MAX_FILE) {
        TD_LOG(ERROR, "API key file too large", "path=%s max=%u", path, MAX_FILE);
        err = TD_ERR_CONFIG;
    }
    err = err == TD_OK ? td_api_keys_parse(text, n, out_keys) : err;
    free(text);
    return err;
}

struct td_api_keys *td_api_keys_destroy(struct td_api_keys *k)
{
    free(k);
    return NULL;
}

bool td_api_keys_open(const struct td_api_keys *k)
{
    return k->open;
}

td_err td_api_keys_check(struct td_api_keys *k, const char *authorization,
                         struct td_api_key **out_key)
{
    uint8_t hash[32];
    if (k->open) {
        *out_key = &k->keys[0];
        return TD_OK;
    }
    if (authorization == NULL || strncasecmp(authorization, "Bearer ", 7) != 0) {
        return TD_ERR_UNAUTHORIZED;
    }
    const char *secret = authorization + 7;
    (void)SHA256((const uint8_t *)secret, strlen(secret), hash);
    struct td_api_key *found = NULL;
    for (uint32_t i = 0; i < k->n;
         i++) { /* all of them: the time must not tell which one matched */
        if (CRYPTO_memcmp(k->keys[i].sha256, hash, sizeof hash) == 0) {
            found = &k->keys[i];
        }
    }
    if (found == NULL) {
        return TD_ERR_UNAUTHORIZED;
    }
    *out_key = found;
    return TD_OK;
}

td_err td_api_keys_check_request(struct td_api_keys *k, const struct td_http_request *r,
                                 struct td_api_key **out_key)
{
    const char *bearer = td_http_header_get(r, "authorization");
    const char *bare = td_http_header_get(r, "x-api-key");
    char text[KEY_MAX];
    if (bearer == NULL && bare != NULL && strlen(bare) + sizeof "Bearer " <= sizeof text) {
        (void)snprintf(text, sizeof text, "Bearer %s", bare);
        bearer = text;
    }
    return td_api_keys_check(k, bearer, out_key);
}

static void refill(struct td_api_key *key, int64_t now_us)
{
    double s = key->refilled_us != 0 ? (double)(now_us - key->refilled_us) * 1e-6 : 0;
    double burst = burst_of(key->requests_per_s);
    key->refilled_us = now_us;
    key->request_tokens += s * key->requests_per_s;
    key->request_tokens = key->request_tokens > burst ? burst : key->request_tokens;
    key->token_tokens += s * key->tokens_per_min / 60;
    key->token_tokens =
        key->token_tokens > key->tokens_per_min ? key->tokens_per_min : key->token_tokens;
}

td_err td_api_key_admit(struct td_api_key *key, int64_t now_us, double *out_retry_s)
{
    refill(key, now_us);
    if (key->max_concurrent > 0 && key->concurrent >= key->max_concurrent) {
        *out_retry_s = 1;
        return TD_ERR_RATE_LIMITED;
    }
    if (key->requests_per_s > 0 && key->request_tokens < 1) {
        *out_retry_s = (1 - key->request_tokens) / key->requests_per_s;
        return TD_ERR_RATE_LIMITED;
    }
    if (key->tokens_per_min > 0 && key->token_tokens <= 0) {
        *out_retry_s = (1 - key->token_tokens) * 60 / key->tokens_per_min;
        return TD_ERR_RATE_LIMITED;
    }
    key->request_tokens -= 1;
    key->concurrent++;
    return TD_OK;
}

static struct td_api_key_limit bucket(const char *what, double limit, double left, double per_s)
{
    left = left < 0 ? 0 : left;
    return (struct td_api_key_limit){what, limit, left, left < limit ? (limit - left) / per_s : 0};
}

uint32_t td_api_key_limits(const struct td_api_key *key,
                           struct td_api_key_limit out[TD_API_KEY_LIMITS])
{
    uint32_t n = 0;
    if (key->requests_per_s > 0) {
        out[n++] = bucket("requests", burst_of(key->requests_per_s), key->request_tokens,
                          key->requests_per_s);
    }
    if (key->tokens_per_min > 0) {
        out[n++] =
            bucket("tokens", key->tokens_per_min, key->token_tokens, key->tokens_per_min / 60);
    }
    if (key->max_concurrent > 0) {
        uint32_t left = key->max_concurrent - key->concurrent;
        out[n++] = (struct td_api_key_limit){"concurrent", key->max_concurrent, left, 0};
    }
    return n;
}

void td_api_key_done(struct td_api_key *key, uint64_t tokens)
{
    key->concurrent -= key->concurrent > 0 ? 1 : 0;
    key->token_tokens -= (double)tokens;
}
