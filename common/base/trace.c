#include "common/base/trace.h"

#include <string.h>

#include "common/base/rng.h"

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* n bytes of lower-case digits; false when they are not, or all zero is not `zero_ok`. */
static bool read_hex(const char *text, uint32_t n, bool zero_ok, uint8_t *out)
{
    bool zero = true;
    for (uint32_t i = 0; i < n; i++) {
        int high = digit(text[2 * i]), low = high >= 0 ? digit(text[2 * i + 1]) : -1;
        if (low < 0) {
            return false;
        }
        out[i] = (uint8_t)(high * 16 + low);
        zero = zero && out[i] == 0;
    }
    return zero_ok || !zero;
}

bool td_trace_parse(const char *traceparent, struct td_trace *out_trace)
{
    struct td_trace t = {0};
    uint8_t version = 0, flags = 0;
    size_t n = strnlen(traceparent, TD_TRACEPARENT_LEN);
    if (n < TD_TRACEPARENT_LEN - 1 || traceparent[2] != '-' || traceparent[35] != '-' ||
        traceparent[52] != '-' || !read_hex(traceparent, 1, true, &version) || version == 0xff) {
        return false;
    }
    char end = traceparent[TD_TRACEPARENT_LEN - 1];
    if (version == 0 ? end != '\0' : end != '\0' && end != '-') {
        return false;
    }
    if (!read_hex(traceparent + 3, 16, false, t.trace_id) ||
        !read_hex(traceparent + 36, 8, false, t.span_id) ||
        !read_hex(traceparent + 53, 1, true, &flags)) {
        return false;
    }
    t.sampled = (flags & 1) != 0;
    *out_trace = t;
    return true;
}

void td_trace_hex(const uint8_t *bytes, uint32_t n, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (uint32_t i = 0; i < n; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[2 * n] = '\0';
}

void td_trace_format(const struct td_trace *t, char out[TD_TRACEPARENT_LEN])
{
    out[0] = out[1] = '0';
    out[2] = '-';
    td_trace_hex(t->trace_id, 16, out + 3);
    out[35] = '-';
    td_trace_hex(t->span_id, 8, out + 36);
    memcpy(out + 52, t->sampled ? "-01" : "-00", 4);
}

bool td_tracestate_ok(const char *tracestate)
{
    size_t n = strnlen(tracestate, TD_TRACESTATE_MAX);
    if (n == 0 || n >= TD_TRACESTATE_MAX || strchr(tracestate, '=') == NULL) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        if (tracestate[i] < ' ' || tracestate[i] > '~') {
            return false;
        }
    }
    return true;
}

static void fill_nonzero(uint8_t *out, size_t n)
{
    td_rng_fill(out, n);
    out[n - 1] |= 1; /* all zero is no identity */
}

void td_trace_new(struct td_trace *t)
{
    fill_nonzero(t->trace_id, sizeof t->trace_id);
    td_trace_new_span(t);
}

void td_trace_new_span(struct td_trace *t)
{
    fill_nonzero(t->span_id, sizeof t->span_id);
}

bool td_trace_in_ratio(const struct td_trace *t, double ratio)
{
    uint64_t v = 0; /* the last 56 bits, which W3C level 2 calls random */
    for (uint32_t i = 9; i < 16; i++) {
        v = v << 8 | t->trace_id[i];
    }
    return (double)v < ratio * 0x1p56;
}
