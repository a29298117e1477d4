/* Design. One Knuth-Morris-Pratt automaton per stop string. What is held back is the longest suffix
 * that begins some stop string; being the beginning of that string, it is not stored: it is read
 * from the string when it must go out.
 */
#include "common/text/stop.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"

struct pattern {
    uint8_t *bytes; /* owned */
    uint16_t *fail; /* owned; [len + 1]: longest proper border of each prefix */
    size_t len;
    size_t state; /* bytes matched so far */
};

struct td_text_stop {
    struct pattern p[TD_TEXT_STOPS_MAX];
    size_t n;
    bool include;
    int matched; /* index, or -1 */
};
_Static_assert(TD_TEXT_STOP_BYTES_MAX < UINT16_MAX, "borders fit 16 bits");

static td_err pattern_init(struct pattern *p, struct td_text_str s)
{
    if (s.len == 0 || s.len > TD_TEXT_STOP_BYTES_MAX) {
        return TD_ERR_BAD_REQUEST;
    }
    p->bytes = td_zalloc(s.len, 1);
    p->fail = td_zalloc(s.len + 1, sizeof *p->fail);
    if (p->bytes == NULL || p->fail == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    memcpy(p->bytes, s.ptr, s.len);
    p->len = s.len;
    size_t k = 0;
    for (size_t i = 1; i < s.len; i++) {
        while (k > 0 && p->bytes[i] != p->bytes[k]) {
            k = p->fail[k];
        }
        k += p->bytes[i] == p->bytes[k];
        p->fail[i + 1] = (uint16_t)k;
    }
    return TD_OK;
}

td_err td_text_stop_create(const struct td_text_str *stops, size_t n, bool include,
                           struct td_text_stop **out_stop)
{
    if (n > TD_TEXT_STOPS_MAX) {
        return TD_ERR_BAD_REQUEST;
    }
    TD_CLEANUP(td_text_stop_destroyp) struct td_text_stop *s = td_zalloc(1, sizeof *s);
    if (s == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    s->include = include;
    s->matched = -1;
    for (s->n = 0; s->n < n; s->n++) {
        const td_err e = pattern_init(&s->p[s->n], stops[s->n]);
        if (e != TD_OK) {
            s->n++; /* so that the half-built one is freed too */
            return e;
        }
    }
    *out_stop = TD_STEAL(s);
    return TD_OK;
}

struct td_text_stop *td_text_stop_destroy(struct td_text_stop *s)
{
    if (s != NULL) {
        for (size_t i = 0; i < s->n; i++) {
            free(s->p[i].bytes);
            free(s->p[i].fail);
        }
        free(s);
    }
    return NULL;
}

static void advance(struct pattern *p, uint8_t c)
{
    while (p->state > 0 && p->bytes[p->state] != c) {
        p->state = p->fail[p->state];
    }
    p->state += p->bytes[p->state] == c;
}

/* The pattern whose matched prefix is longest: what is held back. */
static const struct pattern *longest(const struct td_text_stop *s)
{
    const struct pattern *best = &s->p[0];
    for (size_t i = 1; i < s->n; i++) {
        best = s->p[i].state > best->state ? &s->p[i] : best;
    }
    return best;
}

/* Runs the automata over the text up to a match; returns how many bytes were read. */
static size_t scan(struct td_text_stop *s, const uint8_t *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        for (size_t k = 0; k < s->n; k++) {
            struct pattern *p = &s->p[k];
            advance(p, text[i]);
            if (p->state == p->len && (s->matched < 0 || p->len > s->p[s->matched].len)) {
                s->matched = (int)k;
            }
        }
        if (s->matched >= 0) {
            return i + 1;
        }
    }
    return len;
}

td_err td_text_stop_push(struct td_text_stop *s, const void *text, size_t len, struct td_buf *out)
{
    if (s->matched >= 0) {
        return TD_OK;
    }
    /* At most what was held and what comes now goes out: room for it first, so that nothing can
     * fail later. */
    const struct pattern *was = longest(s);
    const size_t n_was = was->state;
    uint8_t *dst;
    TD_TRY(td_buf_reserve(out, n_was + len, &dst));
    const size_t n_read = scan(s, text, len);
    size_t keep = longest(s)->state;
    if (s->matched >= 0) {
        keep = s->include ? 0 : s->p[s->matched].len;
    }
    TD_INSIST(keep <= n_was + n_read);
    const size_t n_out = n_was + n_read - keep;
    const size_t from_was = n_out < n_was ? n_out : n_was;
    if (from_was > 0) {
        memcpy(dst, was->bytes, from_was);
    }
    if (n_out > from_was) {
        memcpy(dst + from_was, text, n_out - from_was);
    }
    out->len += n_out;
    return TD_OK;
}

td_err td_text_stop_flush(struct td_text_stop *s, struct td_buf *out)
{
    const struct pattern *p = longest(s);
    if (s->matched < 0 && p->state > 0) {
        TD_TRY(td_buf_append(out, p->bytes, p->state));
        for (size_t i = 0; i < s->n; i++) {
            s->p[i].state = 0;
        }
    }
    return TD_OK;
}

int td_text_stop_matched(const struct td_text_stop *s)
{
    return s->matched;
}

size_t td_text_stop_held(const struct td_text_stop *s)
{
    return s->matched < 0 ? longest(s)->state : 0;
}
