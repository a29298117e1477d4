#include "common/text/special.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"

struct td_text_specials {
    struct td_text_special *list; /* owned; by text, then by id */
    size_t n;
    uint32_t first[257]; /* list[first[b] .. first[b + 1]) begin with byte b */
    bool starts[2][256]; /* [controls allowed][byte]: can a token begin with it? */
};

static int by_text(const void *va, const void *vb)
{
    const struct td_text_special *a = va;
    const struct td_text_special *b = vb;
    const int c = memcmp(a->text, b->text, a->len < b->len ? a->len : b->len);
    if (c != 0) {
        return c;
    }
    if (a->len != b->len) {
        return a->len < b->len ? -1 : 1;
    }
    return a->id < b->id ? -1 : a->id > b->id;
}

td_err td_text_specials_create(const struct td_text_special *list, size_t n,
                               struct td_text_specials **out_specials)
{
    struct td_text_specials *s = td_zalloc(1, sizeof *s);
    if (s == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    s->list = td_zalloc(n, sizeof *s->list);
    if (s->list == NULL) {
        free(s);
        return TD_ERR_NO_MEMORY;
    }
    if (n > 0) {
        memcpy(s->list, list, n * sizeof *list);
        qsort(s->list, n, sizeof *list, by_text);
    }
    s->n = n;
    size_t at = 0;
    for (size_t b = 0; b < 256; b++) {
        s->first[b] = (uint32_t)at;
        for (; at < n && s->list[at].text[0] == b; at++) {
            s->starts[1][b] = true;
            s->starts[0][b] = s->starts[0][b] || !s->list[at].control;
        }
    }
    s->first[256] = (uint32_t)at;
    *out_specials = s;
    return TD_OK;
}

struct td_text_specials *td_text_specials_destroy(struct td_text_specials *s)
{
    if (s != NULL) {
        free(s->list);
        free(s);
    }
    return NULL;
}

/* First index in [lo, hi) whose byte `depth` is at least `byte`; all of them agree before and are
 * longer than depth. */
static size_t lower(const struct td_text_special *list, size_t lo, size_t hi, size_t depth,
                    unsigned byte)
{
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (list[mid].text[depth] < byte) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* The longest token at p. Narrows the range of texts that agree with what stands there, byte by
 * byte. */
static const struct td_text_special *longest_at(const struct td_text_specials *s, bool controls,
                                                const uint8_t *p, const uint8_t *end)
{
    size_t lo = s->first[*p];
    size_t hi = s->first[*p + 1];
    const struct td_text_special *best = NULL;
    for (size_t depth = 1; lo < hi; depth++) {
        const struct td_text_special *found = NULL;
        while (lo < hi && s->list[lo].len == depth) { /* the shortest sort first */
            if (found == NULL && (controls || !s->list[lo].control)) {
                found = &s->list[lo];
            }
            lo++;
        }
        best = found != NULL ? found : best;
        if (p + depth >= end) {
            break;
        }
        lo = lower(s->list, lo, hi, depth, p[depth]);
        hi = lower(s->list, lo, hi, depth, p[depth] + 1u);
    }
    return best;
}

const struct td_text_special *td_text_specials_find(const struct td_text_specials *s, bool controls,
                                                    const uint8_t *p, const uint8_t *end,
                                                    const uint8_t **out_at)
{
    const bool *starts = s->starts[controls];
    for (; p < end; p++) {
        if (starts[*p]) {
            const struct td_text_special *t = longest_at(s, controls, p, end);
            if (t != NULL) {
                *out_at = p;
                return t;
            }
        }
    }
    return NULL;
}

const struct td_text_special *td_text_specials_exact(const struct td_text_specials *s,
                                                     const uint8_t *text, size_t len)
{
    size_t lo = 0;
    size_t hi = s->n;
    const struct td_text_special want = {text, (uint32_t)len, INT32_MIN, false};
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (by_text(&s->list[mid], &want) < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < s->n && s->list[lo].len == len && memcmp(s->list[lo].text, text, len) == 0
               ? &s->list[lo]
               : NULL;
}
