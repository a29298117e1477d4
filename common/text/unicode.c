#include "common/text/unicode.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "common/base/assert.h"
#include "common/base/mem.h"

#define UP  (TD_TEXT_L | TD_TEXT_UPPER)
#define LOW (TD_TEXT_L | TD_TEXT_LOWER)

/* Letters, numbers and marks that Unicode 15.1 and 16 added to what utf8proc 2.8 (Unicode 15)
 * knows. Found, and kept complete, by the exhaustive comparison in tests/text_oracle.py. */
static const struct {
    uint32_t first, last;
    uint8_t cls;
} newer[] = {
    {0x0897, 0x0897, TD_TEXT_M},   {0x1c89, 0x1c89, UP},          {0x1c8a, 0x1c8a, LOW},
    {0xa7cb, 0xa7cc, UP},          {0xa7cd, 0xa7cd, LOW},         {0xa7da, 0xa7da, UP},
    {0xa7db, 0xa7db, LOW},         {0xa7dc, 0xa7dc, UP},          {0x105c0, 0x105f3, TD_TEXT_L},
    {0x10d40, 0x10d49, TD_TEXT_N}, {0x10d4a, 0x10d4f, TD_TEXT_L}, {0x10d50, 0x10d65, UP},
    {0x10d69, 0x10d6d, TD_TEXT_M}, {0x10d6f, 0x10d6f, TD_TEXT_L}, {0x10d70, 0x10d85, LOW},
    {0x10ec2, 0x10ec4, TD_TEXT_L}, {0x10efc, 0x10efc, TD_TEXT_M}, {0x11380, 0x11389, TD_TEXT_L},
    {0x1138b, 0x1138b, TD_TEXT_L}, {0x1138e, 0x1138e, TD_TEXT_L}, {0x11390, 0x113b5, TD_TEXT_L},
    {0x113b7, 0x113b7, TD_TEXT_L}, {0x113b8, 0x113c0, TD_TEXT_M}, {0x113c2, 0x113c2, TD_TEXT_M},
    {0x113c5, 0x113c5, TD_TEXT_M}, {0x113c7, 0x113ca, TD_TEXT_M}, {0x113cc, 0x113d0, TD_TEXT_M},
    {0x113d1, 0x113d1, TD_TEXT_L}, {0x113d2, 0x113d2, TD_TEXT_M}, {0x113d3, 0x113d3, TD_TEXT_L},
    {0x113e1, 0x113e2, TD_TEXT_M}, {0x116d0, 0x116e3, TD_TEXT_N}, {0x11bc0, 0x11be0, TD_TEXT_L},
    {0x11bf0, 0x11bf9, TD_TEXT_N}, {0x11f5a, 0x11f5a, TD_TEXT_M}, {0x13460, 0x143fa, TD_TEXT_L},
    {0x16100, 0x1611d, TD_TEXT_L}, {0x1611e, 0x1612f, TD_TEXT_M}, {0x16130, 0x16139, TD_TEXT_N},
    {0x16d40, 0x16d6c, TD_TEXT_L}, {0x16d70, 0x16d79, TD_TEXT_N}, {0x18cff, 0x18cff, TD_TEXT_L},
    {0x1ccf0, 0x1ccf9, TD_TEXT_N}, {0x1e5d0, 0x1e5ed, TD_TEXT_L}, {0x1e5ee, 0x1e5ef, TD_TEXT_M},
    {0x1e5f0, 0x1e5f0, TD_TEXT_L}, {0x1e5f1, 0x1e5fa, TD_TEXT_N}, {0x2ebf0, 0x2ee5d, TD_TEXT_L},
};

#define MAX_DECOMPOSED 8 /* canonical decompositions are at most 4 code points */

static bool is_space(uint32_t cp)
{
    return (cp >= 0x09 && cp <= 0x0d) || cp == 0x20 || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f ||
           cp == 0x205f || cp == 0x3000;
}

static uint8_t category_class(uint32_t cp)
{
    if (is_space(cp)) {
        return TD_TEXT_WS;
    }
    const int cat = (int)utf8proc_category((utf8proc_int32_t)cp);
    switch (cat) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
        return UP;
    case UTF8PROC_CATEGORY_LL:
        return LOW;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return TD_TEXT_L;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return TD_TEXT_N;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
        return TD_TEXT_M;
    default:
        return 0;
    }
}

/* Canonical decomposition in its raw order; 0 when the code point stands for itself. */
static size_t decompose(uint32_t cp, utf8proc_int32_t *dst, size_t cap)
{
    int boundary = 0;
    const utf8proc_ssize_t n =
        utf8proc_decompose_char((utf8proc_int32_t)cp, dst, (utf8proc_ssize_t)cap,
                                UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundary);
    return n <= 0 || (size_t)n > cap || (n == 1 && dst[0] == (utf8proc_int32_t)cp) ? 0 : (size_t)n;
}

static size_t compose(utf8proc_int32_t *cps, size_t n)
{
    const utf8proc_ssize_t r =
        utf8proc_normalize_utf32(cps, (utf8proc_ssize_t)n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    return r < 0 ? 0 : (size_t)r;
}

/* NFC leaves a safe character alone and never joins it to the left: it has combining class 0, is its
 * own NFC, and is not the second half of any composition. */
static void mark_unsafe(uint8_t *cls, uint32_t cp)
{
    const utf8proc_property_t *prop = utf8proc_get_property((utf8proc_int32_t)cp);
    const bool hangul = cp >= 0xac00 && cp < 0xd7a4;
    utf8proc_int32_t d[MAX_DECOMPOSED];
    utf8proc_int32_t c[MAX_DECOMPOSED];
    if (prop->combining_class != 0) {
        cls[cp] |= TD_TEXT_UNSAFE;
    }
    if (prop->decomp_seqindex == UINT16_MAX && !hangul) {
        return; /* most: spares the slow question */
    }
    const size_t n = decompose(cp, d, MAX_DECOMPOSED);
    if (n == 0) {
        return;
    }
    memcpy(c, d, n * sizeof *c);
    if (compose(c, n) == 1 && c[0] == (utf8proc_int32_t)cp) {
        for (size_t i = 1; i < n; i++) {
            cls[d[i]] |= TD_TEXT_UNSAFE;
        }
    } else {
        cls[cp] |= TD_TEXT_UNSAFE;
    }
}

/* The other planes are unassigned or for private use: no classes. */
static bool in_use(uint32_t plane)
{
    return plane <= 3 || plane == 14;
}

static void fill_flat(uint8_t *cls)
{
    for (uint32_t cp = 0; cp < TD_TEXT_CP_COUNT; cp++) {
        if (in_use(cp >> 16)) {
            cls[cp] |= category_class(cp); /* a composition before it may have marked it */
            mark_unsafe(cls, cp);
        }
    }
    for (size_t i = 0; i < TD_COUNT(newer); i++) {
        for (uint32_t cp = newer[i].first; cp <= newer[i].last; cp++) {
            cls[cp] = newer[i].cls;
        }
    }
}

/* Folds equal blocks of 256; returns how many are left, moved to the front of `flat`. */
static size_t fold_blocks(struct td_text_uni *u, uint8_t *flat)
{
    size_t n_blocks = 0;
    for (size_t b = 0; b < TD_COUNT(u->block); b++) {
        size_t at = 0;
        while (at < n_blocks && memcmp(flat + at * 256, flat + b * 256, 256) != 0) {
            at++;
        }
        if (at == n_blocks) {
            memmove(flat + at * 256, flat + b * 256, 256);
            n_blocks++;
        }
        u->block[b] = (uint16_t)at;
    }
    return n_blocks;
}

td_err td_text_uni_create(struct td_text_uni **out_uni)
{
    TD_CLEANUP(td_freep) uint8_t *flat = td_zalloc(TD_TEXT_CP_COUNT, 1);
    struct td_text_uni *u = td_zalloc(1, sizeof *u);
    if (flat == NULL || u == NULL) {
        free(u);
        return TD_ERR_NO_MEMORY;
    }
    fill_flat(flat);
    const size_t n_blocks = fold_blocks(u, flat);
    u->classes = td_zalloc(n_blocks, 256);
    if (u->classes == NULL) {
        free(u);
        return TD_ERR_NO_MEMORY;
    }
    memcpy(u->classes, flat, n_blocks * 256);
    *out_uni = u;
    return TD_OK;
}

struct td_text_uni *td_text_uni_destroy(struct td_text_uni *u)
{
    if (u != NULL) {
        free(u->classes);
        free(u);
    }
    return NULL;
}

void td_text_nfc_fini(struct td_text_nfc *s)
{
    free(s->bytes);
    free(s->cps);
    memset(s, 0, sizeof *s);
}

/* First unsafe character at or after p (`end` if none); *out_safe is the safe character before it,
 * where the stretch to normalise begins (or the unsafe one itself, after a stray byte or at the
 * start). */
static const uint8_t *find_unsafe(const struct td_text_uni *u, const uint8_t *p, const uint8_t *end,
                                  const uint8_t **out_safe)
{
    const uint8_t *prev = NULL;
    while (p < end) {
        if (*p < 0x80) {
            prev = p++;
            continue;
        }
        uint32_t cp;
        const size_t n = td_text_next(p, end, &cp);
        if ((td_text_uni_class(u, cp) & TD_TEXT_UNSAFE) != 0) {
            *out_safe = prev != NULL ? prev : p;
            return p;
        }
        prev = cp == TD_TEXT_BAD_CP ? NULL : p;
        p += n;
    }
    return end;
}

/* Reorders each run of combining marks by class, equal classes in their order. tmp has room for n.
 */
static void order_marks(utf8proc_int32_t *cps, size_t n, utf8proc_int32_t *tmp)
{
    size_t i = 0;
    while (i < n) {
        size_t j = i;
        uint32_t count[257] = {0};
        int prev = 0;
        bool sorted = true;
        while (j < n) {
            const int ccc = (int)utf8proc_get_property(cps[j])->combining_class;
            if (ccc == 0) {
                break;
            }
            sorted = sorted && ccc >= prev;
            prev = ccc;
            count[ccc + 1]++;
            j++;
        }
        if (!sorted) {
            for (size_t c = 1; c < TD_COUNT(count); c++) {
                count[c] += count[c - 1];
            }
            for (size_t k = i; k < j; k++) {
                tmp[count[utf8proc_get_property(cps[k])->combining_class]++] = cps[k];
            }
            memcpy(cps + i, tmp, (j - i) * sizeof *cps);
        }
        i = j + 1;
    }
}

/* Room for `bytes` more bytes of output and for the code points of a stretch of `bytes` bytes. */
static td_err grow(struct td_text_nfc *s, size_t used, size_t bytes)
{
    const size_t need_bytes = used + bytes * 3;
    if (need_bytes > s->cap_bytes) {
        const size_t cap = need_bytes + need_bytes / 2;
        uint8_t *p = td_realloc(s->bytes, cap);
        if (p == NULL) {
            return TD_ERR_NO_MEMORY;
        }
        s->bytes = p;
        s->cap_bytes = cap;
    }
    const size_t need_cps = (bytes * 2 + MAX_DECOMPOSED) * 2;
    if (need_cps > s->cap_cps) {
        int32_t *p = td_realloc(s->cps, need_cps * sizeof *p);
        if (p == NULL) {
            return TD_ERR_NO_MEMORY;
        }
        s->cps = p;
        s->cap_cps = need_cps;
    }
    return TD_OK;
}

/* Normalises the stretch [p, end), which holds no stray byte, to s->bytes + used; returns its new
 * length. */
static size_t normalise_stretch(struct td_text_nfc *s, size_t used, const uint8_t *p,
                                const uint8_t *end)
{
    const size_t cap = s->cap_cps / 2;
    size_t n = 0;
    while (p < end) {
        uint32_t cp;
        p += td_text_next(p, end, &cp);
        TD_INSIST(cp != TD_TEXT_BAD_CP && n + MAX_DECOMPOSED <= cap);
        const size_t d = decompose(cp, s->cps + n, cap - n);
        if (d == 0) {
            s->cps[n] = (int32_t)cp;
        }
        n += d == 0 ? 1 : d;
    }
    order_marks(s->cps, n, s->cps + cap);
    n = compose(s->cps, n);
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        len += (size_t)utf8proc_encode_char(s->cps[i], s->bytes + used + len);
    }
    return len;
}

/* End of the stretch that begins at `from` (a character): before the next safe character or stray
 * byte. `p` is its first unsafe character. */
static const uint8_t *stretch_end(const struct td_text_uni *u, const uint8_t *p, const uint8_t *end)
{
    while (p < end) {
        uint32_t cp;
        const size_t n = td_text_next(p, end, &cp);
        if ((td_text_uni_class(u, cp) & TD_TEXT_UNSAFE) == 0) {
            break;
        }
        p += n;
    }
    return p;
}

td_err td_text_nfc(const struct td_text_uni *u, struct td_text_nfc *s, const uint8_t *in, size_t n,
                   const uint8_t **out, size_t *out_n)
{
    const uint8_t *const end = in + n;
    const uint8_t *p = in;
    size_t used = 0;
    bool changed = false;
    while (p < end) {
        const uint8_t *from = end;
        const uint8_t *unsafe = find_unsafe(u, p, end, &from);
        if (unsafe == end && !changed) {
            break;
        }
        const uint8_t *to = unsafe == end ? end : stretch_end(u, unsafe, end);
        TD_TRY(grow(s, used + (size_t)(from - p), (size_t)(to - from)));
        memcpy(s->bytes + used, p, (size_t)(from - p));
        used += (size_t)(from - p);
        used += normalise_stretch(s, used, from, to);
        changed = true;
        p = to;
    }
    *out = changed ? s->bytes : in;
    *out_n = changed ? used : n;
    return TD_OK;
}
