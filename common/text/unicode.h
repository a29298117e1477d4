/* unicode.h - what the pre-tokenisers ask about a character: letter and its case, number, space, mark; and
 * NFC.
 *
 * What: one byte of classes per code point in a two-level table, built from utf8proc at creation
 * and completed to Unicode 16, the version of Hugging Face `tokenizers` (Oniguruma), so that ids
 * agree on new scripts too. Not: case mapping, segmentation, NFKC. Owner: the vocabulary. Thread:
 * any; the table never changes. td_text_nfc needs a scratch object of its caller. Bounds: 35 KB of
 * index plus about 60 KB of classes. NFC output is at most 3 times its input; time is linear, also
 *         over long runs of combining marks (utf8proc's own ordering is quadratic there).
 * Failure: TD_ERR_NO_MEMORY.
 */
#ifndef TD_TEXT_UNICODE_H
#define TD_TEXT_UNICODE_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

enum td_text_class {
    TD_TEXT_L = 1,       /* \p{L} */
    TD_TEXT_N = 2,       /* \p{N} */
    TD_TEXT_WS = 4,      /* \s */
    TD_TEXT_M = 8,       /* \p{M} */
    TD_TEXT_UNSAFE = 16, /* NFC may change it, or join it to what stands before it */
    TD_TEXT_UPPER = 32,  /* \p{Lu} or \p{Lt}; with TD_TEXT_L */
    TD_TEXT_LOWER = 64   /* \p{Ll}; with TD_TEXT_L */
};

#define TD_TEXT_CP_COUNT 0x110000u
#define TD_TEXT_BAD_CP   UINT32_MAX /* a byte that is part of no well-formed character */

/* Open for the inline look-up below; read-only to everyone but unicode.c. */
struct td_text_uni {
    uint16_t block[TD_TEXT_CP_COUNT >> 8]; /* index of a block of 256 classes */
    uint8_t *classes;                      /* owned; [n_blocks][256] */
};

td_err td_text_uni_create(struct td_text_uni **out_uni) TD_MUST_CHECK;
struct td_text_uni *td_text_uni_destroy(struct td_text_uni *u);

/* Classes of a code point; 0 for TD_TEXT_BAD_CP. */
static inline unsigned td_text_uni_class(const struct td_text_uni *u, uint32_t cp)
{
    return cp < TD_TEXT_CP_COUNT ? u->classes[((size_t)u->block[cp >> 8] << 8) | (cp & 0xff)] : 0;
}

/* Bytes of the well-formed character that starts at p < end, 0 if there is none there; *out_cp is
 * set when there is. */
static inline size_t td_text_utf8(const uint8_t *p, const uint8_t *end, uint32_t *out_cp)
{
    const uint32_t c = p[0];
    const size_t left = (size_t)(end - p);
    if (c < 0x80) {
        *out_cp = c;
        return 1;
    }
    if (c < 0xc2 || left < 2 || (p[1] & 0xc0) != 0x80) {
        return 0;
    }
    if (c < 0xe0) {
        *out_cp = (c & 0x1f) << 6 | (p[1] & 0x3fu);
        return 2;
    }
    if (left < 3 || (p[2] & 0xc0) != 0x80) {
        return 0;
    }
    if (c < 0xf0) {
        const uint32_t v = (c & 0xf) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
        *out_cp = v;
        return v < 0x800 || (v >= 0xd800 && v < 0xe000) ? 0 : 3;
    }
    if (c > 0xf4 || left < 4 || (p[3] & 0xc0) != 0x80) {
        return 0;
    }
    const uint32_t v = (c & 7) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
    *out_cp = v;
    return v < 0x10000 || v > 0x10ffff ? 0 : 4;
}

/* The character at p < end: its length, or 1 and TD_TEXT_BAD_CP for a stray byte. */
static inline size_t td_text_next(const uint8_t *p, const uint8_t *end, uint32_t *out_cp)
{
    const size_t n = td_text_utf8(p, end, out_cp);
    if (n == 0) {
        *out_cp = TD_TEXT_BAD_CP;
        return 1;
    }
    return n;
}

/* Scratch of one thread for td_text_nfc; zero-initialise. */
struct td_text_nfc {
    uint8_t *bytes; /* owned: the last result */
    size_t cap_bytes;
    int32_t *cps; /* owned: one stretch between two safe characters, twice (the second half for
                     sorting) */
    size_t cap_cps;
};

void td_text_nfc_fini(struct td_text_nfc *s);

/* Normalises to NFC. *out is `in` itself when nothing changes, else the scratch's bytes, valid
 * until the next call. Bytes that are not UTF-8 pass unchanged and nothing is joined across them.
 */
td_err td_text_nfc(const struct td_text_uni *u, struct td_text_nfc *s, const uint8_t *in, size_t n,
                   const uint8_t **out, size_t *out_n) TD_MUST_CHECK;

#endif
