#include "common/text/detok.h"

#include <string.h>

#include "common/base/assert.h"

static const uint8_t replacement[3] = {0xef, 0xbf, 0xbd}; /* U+FFFD */

/* What a character that starts at p needs: its whole length, or 0 if p[0] starts none; *out_have is
 * how many of its bytes are there and fit (a maximal subpart when that is less than the length). */
static size_t want(const uint8_t *p, const uint8_t *end, size_t *out_have)
{
    const uint8_t c = p[0];
    uint8_t lo = 0x80;
    uint8_t hi = 0xbf;
    size_t len;
    *out_have = 1;
    if (c < 0x80) {
        return 1;
    }
    if (c < 0xc2 || c > 0xf4) {
        return 0;
    }
    if (c < 0xe0) {
        len = 2;
    } else if (c < 0xf0) {
        len = 3;
        lo = c == 0xe0 ? 0xa0 : lo;
        hi = c == 0xed ? 0x9f : hi;
    } else {
        len = 4;
        lo = c == 0xf0 ? 0x90 : lo;
        hi = c == 0xf4 ? 0x8f : hi;
    }
    size_t n = 1;
    while (n < len && p + n < end && p[n] >= lo && p[n] <= hi) {
        lo = 0x80;
        hi = 0xbf;
        n++;
    }
    *out_have = n;
    return len;
}

/* Writes the characters of [p, end) to dst (room for 3 bytes per byte), U+FFFD for each maximal
 * subpart that is none. Returns the bytes written; *out_rest is where an unfinished character at
 * the end begins. */
static size_t whole_chars(const uint8_t *p, const uint8_t *end, uint8_t *dst,
                          const uint8_t **out_rest)
{
    uint8_t *q = dst;
    while (p < end) {
        size_t have;
        const size_t len = want(p, end, &have);
        if (len == have) {
            memcpy(q, p, len);
            q += len;
        } else if (len != 0 && p + have == end) {
            break;
        } else {
            memcpy(q, replacement, sizeof replacement);
            q += sizeof replacement;
        }
        p += have;
    }
    *out_rest = p;
    return (size_t)(q - dst);
}

void td_text_detok_init(struct td_text_detok *d, const struct td_text_vocab *vocab,
                        bool skip_special)
{
    memset(d, 0, sizeof *d);
    d->vocab = vocab;
    d->skip_special = skip_special;
}

/* The bytes of a token, taken in parts so that the scratch on the stack is small. */
static void feed(struct td_text_detok *d, const uint8_t *bytes, size_t len, uint8_t *dst,
                 size_t *out_len)
{
    uint8_t part[64];
    size_t written = 0;
    while (len > 0) {
        const size_t room = sizeof part - d->n_held;
        const size_t n = len < room ? len : room;
        memcpy(part, d->held, d->n_held);
        memcpy(part + d->n_held, bytes, n);
        const uint8_t *const end = part + d->n_held + n;
        const uint8_t *rest;
        written += whole_chars(part, end, dst + written, &rest);
        d->n_held = (uint8_t)(end - rest);
        TD_INSIST(d->n_held < sizeof d->held);
        memcpy(d->held, rest, d->n_held);
        bytes += n;
        len -= n;
    }
    *out_len = written;
}

td_err td_text_detok_push(struct td_text_detok *d, int32_t id, struct td_buf *out)
{
    size_t len = 0;
    const uint8_t *bytes = td_text_vocab_bytes(d->vocab, id, &len);
    if (bytes == NULL) {
        return TD_ERR_BAD_REQUEST;
    }
    if (len == 0 || (d->skip_special && td_text_vocab_is_control(d->vocab, id))) {
        return TD_OK;
    }
    uint8_t *dst;
    TD_TRY(td_buf_reserve(out, (len + d->n_held) * 3, &dst));
    size_t written = 0;
    feed(d, bytes, len, dst, &written);
    out->len += written;
    return TD_OK;
}

td_err td_text_detok_flush(struct td_text_detok *d, struct td_buf *out)
{
    if (d->n_held > 0) { /* one unfinished character is one maximal subpart */
        TD_TRY(td_buf_append(out, replacement, sizeof replacement));
        d->n_held = 0;
    }
    return TD_OK;
}
