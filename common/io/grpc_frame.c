#include "common/io/grpc_frame.h"

#include <string.h>
#include <strings.h>

#define WEEK_US INT64_C(604800000000)

enum td_grpc_status td_grpc_status_of(td_err err)
{
    if (err == TD_OK) {
        return TD_GRPC_OK;
    }
    if (err == TD_ERR_UNSUPPORTED || err == TD_ERR_UNKNOWN_REQUIRES) {
        return TD_GRPC_UNIMPLEMENTED;
    }
    if (err == TD_ERR_TIMEOUT_READ) {
        return TD_GRPC_CANCELLED;
    }
    switch (td_err_http(err)) {
    case 400:
        return TD_GRPC_INVALID_ARGUMENT;
    case 401:
        return TD_GRPC_UNAUTHENTICATED;
    case 403:
        return TD_GRPC_PERMISSION_DENIED;
    case 404:
        return TD_GRPC_NOT_FOUND;
    case 405:
    case 415:
        return TD_GRPC_UNIMPLEMENTED;
    case 413:
    case 429:
    case 431:
        return TD_GRPC_RESOURCE_EXHAUSTED;
    case 499:
        return TD_GRPC_CANCELLED;
    case 502:
        return td_err_retryable(err) ? TD_GRPC_UNAVAILABLE : TD_GRPC_ABORTED;
    case 503:
        return TD_GRPC_UNAVAILABLE;
    case 504:
        return TD_GRPC_DEADLINE_EXCEEDED;
    default:
        return TD_GRPC_INTERNAL;
    }
}

const char *td_grpc_status_name(enum td_grpc_status status)
{
    static const char *const names[] = {
        [TD_GRPC_OK] = "OK",
        [TD_GRPC_CANCELLED] = "CANCELLED",
        [TD_GRPC_UNKNOWN] = "UNKNOWN",
        [TD_GRPC_INVALID_ARGUMENT] = "INVALID_ARGUMENT",
        [TD_GRPC_DEADLINE_EXCEEDED] = "DEADLINE_EXCEEDED",
        [TD_GRPC_NOT_FOUND] = "NOT_FOUND",
        [TD_GRPC_ALREADY_EXISTS] = "ALREADY_EXISTS",
        [TD_GRPC_PERMISSION_DENIED] = "PERMISSION_DENIED",
        [TD_GRPC_RESOURCE_EXHAUSTED] = "RESOURCE_EXHAUSTED",
        [TD_GRPC_FAILED_PRECONDITION] = "FAILED_PRECONDITION",
        [TD_GRPC_ABORTED] = "ABORTED",
        [TD_GRPC_OUT_OF_RANGE] = "OUT_OF_RANGE",
        [TD_GRPC_UNIMPLEMENTED] = "UNIMPLEMENTED",
        [TD_GRPC_INTERNAL] = "INTERNAL",
        [TD_GRPC_UNAVAILABLE] = "UNAVAILABLE",
        [TD_GRPC_DATA_LOSS] = "DATA_LOSS",
        [TD_GRPC_UNAUTHENTICATED] = "UNAUTHENTICATED",
    };
    size_t i = (size_t)status;
    return i < sizeof names / sizeof names[0] ? names[i] : "UNKNOWN";
}

/* ---- messages ---- */

void td_grpc_reader_init(struct td_grpc_reader *r, size_t max)
{
    memset(r, 0, sizeof *r);
    r->max = max;
    td_buf_init(&r->message, max);
}

void td_grpc_reader_fini(struct td_grpc_reader *r)
{
    td_buf_fini(&r->message);
}

static td_err check_prefix(struct td_grpc_reader *r)
{
    const uint8_t *p = r->prefix;
    r->want = (size_t)p[1] << 24 | (size_t)p[2] << 16 | (size_t)p[3] << 8 | p[4];
    if (p[0] > 1) {
        return TD_ERR_PROTOCOL;
    }
    if (p[0] == 1) {
        return TD_ERR_UNSUPPORTED;
    }
    return r->want > r->max ? TD_ERR_TOO_LARGE : TD_OK;
}

td_err td_grpc_reader_feed(struct td_grpc_reader *r, const uint8_t *data, size_t len,
                           size_t *out_used, bool *out_complete)
{
    size_t used = 0;
    *out_used = 0;
    *out_complete = false;
    if (r->n_prefix == 0) {
        td_buf_clear(&r->message);
    }
    while (used < len && r->n_prefix < TD_GRPC_PREFIX) {
        r->prefix[r->n_prefix++] = data[used++];
        if (r->n_prefix == TD_GRPC_PREFIX) {
            TD_TRY(check_prefix(r));
        }
    }
    if (r->n_prefix == TD_GRPC_PREFIX) {
        size_t missing = r->want - r->message.len;
        size_t take = missing < len - used ? missing : len - used;
        TD_TRY(take > 0 ? td_buf_append(&r->message, data + used, take) : TD_OK);
        used += take;
        *out_complete = r->message.len == r->want;
        r->n_prefix = *out_complete ? 0 : r->n_prefix;
    }
    *out_used = used;
    return TD_OK;
}

bool td_grpc_reader_between(const struct td_grpc_reader *r)
{
    return r->n_prefix == 0;
}

void td_grpc_prefix(size_t len, uint8_t out[TD_GRPC_PREFIX])
{
    out[0] = 0;
    out[1] = (uint8_t)(len >> 24);
    out[2] = (uint8_t)(len >> 16);
    out[3] = (uint8_t)(len >> 8);
    out[4] = (uint8_t)len;
}

/* ---- headers ---- */

bool td_grpc_timeout_parse(const char *text, int64_t *out_us)
{
    static const struct {
        char unit;
        int64_t num, den; /* microseconds = n * num / den */
    } units[] = {{'H', 3600000000, 1}, {'M', 60000000, 1}, {'S', 1000000, 1},
                 {'m', 1000, 1},       {'u', 1, 1},        {'n', 1, 1000}};
    int64_t n = 0;
    size_t digits = strspn(text, "0123456789");
    if (digits < 1 || digits > 8 || text[digits] == 0 || text[digits + 1] != 0) {
        return false;
    }
    for (size_t i = 0; i < digits; i++) {
        n = n * 10 + (text[i] - '0');
    }
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (text[digits] == units[i].unit) {
            int64_t us = n * units[i].num / units[i].den;
            *out_us = us < WEEK_US ? us : WEEK_US;
            return true;
        }
    }
    return false;
}

void td_grpc_text_encode(const char *text, char out[TD_GRPC_MAX_TEXT * 3 + 1])
{
    static const char hex[] = "0123456789ABCDEF";
    size_t n = 0;
    for (size_t i = 0; text[i] != 0 && i < TD_GRPC_MAX_TEXT; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c <= 0x7e && c != '%') {
            out[n++] = (char)c;
        } else {
            out[n++] = '%';
            out[n++] = hex[c >> 4];
            out[n++] = hex[c & 15];
        }
    }
    out[n] = 0;
}

bool td_grpc_is_content_type(const char *type)
{
    static const char want[] = "application/grpc";
    if (type == NULL || strncasecmp(type, want, sizeof want - 1) != 0) {
        return false;
    }
    const char *rest = type + sizeof want - 1;
    return *rest == 0 || *rest == ';' || strcasecmp(rest, "+proto") == 0 ||
           strncasecmp(rest, "+proto;", 7) == 0;
}
