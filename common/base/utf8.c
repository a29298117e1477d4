#include "common/base/utf8.h"

#include <stdint.h>

/* Lowest and highest second byte after each lead byte: that alone excludes overlong forms and
 * surrogates. */
static bool lead(uint8_t b, size_t *out_len, uint8_t *out_lo, uint8_t *out_hi)
{
    *out_lo = 0x80;
    *out_hi = 0xbf;
    if (b >= 0xc2 && b <= 0xdf) {
        *out_len = 2;
        return true;
    }
    if (b >= 0xe0 && b <= 0xef) {
        *out_len = 3;
        *out_lo = b == 0xe0 ? 0xa0 : 0x80;
        *out_hi = b == 0xed ? 0x9f : 0xbf;
        return true;
    }
    if (b >= 0xf0 && b <= 0xf4) {
        *out_len = 4;
        *out_lo = b == 0xf0 ? 0x90 : 0x80;
        *out_hi = b == 0xf4 ? 0x8f : 0xbf;
        return true;
    }
    return false;
}

size_t td_utf8_char_len(const char *s, size_t len)
{
    const uint8_t *u = (const uint8_t *)s;
    size_t n;
    uint8_t lo;
    uint8_t hi;
    if (u[0] < 0x80) {
        return 1;
    }
    if (!lead(u[0], &n, &lo, &hi) || len < n || u[1] < lo || u[1] > hi) {
        return 0;
    }
    for (size_t i = 2; i < n; i++) {
        if ((u[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    return n;
}

bool td_utf8_valid(const char *s, size_t len)
{
    size_t i = 0;
    while (i < len) {
        size_t n = td_utf8_char_len(s + i, len - i);
        if (n == 0) {
            return false;
        }
        i += n;
    }
    return true;
}
