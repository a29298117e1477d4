#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/base/utf8.h"
#include "common/text/unicode.h"

static struct td_text_uni *uni;

static int setup(void **state)
{
    return td_text_uni_create(&uni);
}

static int teardown(void **state)
{
    uni = td_text_uni_destroy(uni);
    return 0;
}

static void classes_are_those_of_the_patterns(void **state)
{
    static const struct {
        uint32_t cp;
        unsigned cls;
    } cases[] = {
        {'a', TD_TEXT_L | TD_TEXT_LOWER},
        {'Z', TD_TEXT_L | TD_TEXT_UPPER},
        {0x1c5, TD_TEXT_L | TD_TEXT_UPPER}, /* a title case letter */
        {0x2b0, TD_TEXT_L},                 /* a modifier */
        {0xa7cb, TD_TEXT_L | TD_TEXT_UPPER},
        {0x10d70, TD_TEXT_L | TD_TEXT_LOWER},
        {'_', 0},
        {'0', TD_TEXT_N},
        {'\n', TD_TEXT_WS},
        {0x0b, TD_TEXT_WS},
        {0x1c, 0},
        {0x85, TD_TEXT_WS},
        {0xa0, TD_TEXT_WS},
        {0x200b, 0},
        {0x3000, TD_TEXT_WS},
        {0x202f, TD_TEXT_WS},
        {0xb2, TD_TEXT_N},
        {0x2160, TD_TEXT_N},
        {0x660, TD_TEXT_N},
        {0x4e2d, TD_TEXT_L},
        {0x1f600, 0},
        {0xaa, TD_TEXT_L},
        {0x2ebf0, TD_TEXT_L},
        {0x1ccf0, TD_TEXT_N},
        {0x105c0, TD_TEXT_L},
        {0x10ffff, 0},
        {0x378, 0},
    };
    for (size_t i = 0; i < TD_COUNT(cases); i++) {
        const unsigned cls = td_text_uni_class(uni, cases[i].cp);
        assert_int_equal(cls & ~(unsigned)TD_TEXT_UNSAFE, cases[i].cls);
    }
    assert_int_equal(td_text_uni_class(uni, 0x301), TD_TEXT_M | TD_TEXT_UNSAFE);
    assert_int_equal(td_text_uni_class(uni, TD_TEXT_BAD_CP), 0);
}

static void only_well_formed_characters_are_decoded(void **state)
{
    struct td_rng r = {3};
    for (int i = 0; i < 200000; i++) {
        uint8_t b[4];
        const uint64_t x = td_rng_next(&r);
        memcpy(b, &x, 4);
        if ((x >> 40 & 1) != 0) { /* mostly bytes that begin something */
            b[0] = (uint8_t)(0xc0 | b[0]);
            b[1] = (uint8_t)(0x80 | (b[1] & 0x3f));
            b[2] = (uint8_t)(0x80 | (b[2] & 0x3f));
        }
        const size_t have = 1 + (size_t)td_rng_below(&r, 4);
        uint32_t cp = 0;
        const size_t n = td_text_utf8(b, b + have, &cp);
        assert_int_equal(n, td_utf8_char_len((const char *)b, have));
        utf8proc_uint8_t back[4];
        if (n > 0) {
            assert_int_equal(utf8proc_encode_char((utf8proc_int32_t)cp, back), n);
            assert_memory_equal(back, b, n);
        }
    }
}

static void nfc_of(const char *in, const char *out)
{
    struct td_text_nfc s = {0};
    const uint8_t *p;
    size_t n;
    assert_int_equal(td_text_nfc(uni, &s, (const uint8_t *)in, strlen(in), &p, &n), TD_OK);
    assert_int_equal(n, strlen(out));
    assert_memory_equal(p, out, n);
    td_text_nfc_fini(&s);
}

static void nfc_composes_reorders_and_replaces(void **state)
{
    nfc_of("re\xcc\x81sume\xcc\x81.", "r\xc3\xa9sum\xc3\xa9.");
    nfc_of("\xe2\x84\xab", "\xc3\x85");                             /* Angstrom sign */
    nfc_of("a\xcc\x81\xcc\xa3", "\xe1\xba\xa1\xcc\x81");            /* marks change places */
    nfc_of("\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81"); /* Hangul */
    nfc_of("\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc");             /* excluded from composition */
    nfc_of("\xcc\x81"
           "e",
           "\xcc\x81"
           "e");                              /* a mark on nothing */
    nfc_of("e\x80\xcc\x81", "e\x80\xcc\x81"); /* nothing joins across a stray byte */
    nfc_of("e\xcc\x81\xff", "\xc3\xa9\xff");
}

static void text_that_is_nfc_is_not_copied(void **state)
{
    static const char text[] =
        "plain, \xc3\xa9t\xc3\xa9, \xe4\xb8\xad\xe6\x96\x87 \xf0\x9f\x98\x80";
    struct td_text_nfc s = {0};
    const uint8_t *p;
    size_t n;
    assert_int_equal(td_text_nfc(uni, &s, (const uint8_t *)text, sizeof text - 1, &p, &n), TD_OK);
    assert_ptr_equal(p, text);
    assert_null(s.bytes);
}

/* Characters that meet: starters, marks of many classes, Hangul parts, singletons. */
static uint32_t interesting(struct td_rng *r)
{
    static const uint32_t fixed[] = {
        'a',    'e',    0xe9,   0x41,  0x300,  0x301,   0x323,   0x327,   0x345,  0x1100, 0x1161,
        0x11a8, 0xac00, 0x212b, 0x958, 0x9c7,  0x9be,   0xfb1d,  0x1e69,  0x3b1,  0x1f00, 0x304b,
        0x3099, 0xdd9,  0x1fdc, 0x344, 0x4e2d, 0x1d15e, 0x11099, 0x110ba, 0x20000};
    switch (td_rng_below(r, 4)) {
    case 0:
        return 0x300 + (uint32_t)td_rng_below(r, 0x70);
    case 1:
        return 0xc0 + (uint32_t)td_rng_below(r, 0x200);
    default:
        return fixed[td_rng_below(r, TD_COUNT(fixed))];
    }
}

static void random_text_agrees_with_utf8proc(void **state)
{
    struct td_rng r = {5};
    struct td_text_nfc s = {0};
    for (int round = 0; round < 30000; round++) {
        utf8proc_uint8_t text[64];
        size_t len = 0;
        const size_t chars = 1 + (size_t)td_rng_below(&r, 12);
        for (size_t i = 0; i < chars; i++) {
            len += (size_t)utf8proc_encode_char((utf8proc_int32_t)interesting(&r), text + len);
        }
        text[len] = 0;
        utf8proc_uint8_t *want = utf8proc_NFC(text);
        const uint8_t *p;
        size_t n;
        assert_int_equal(td_text_nfc(uni, &s, text, len, &p, &n), TD_OK);
        assert_int_equal(n, strlen((const char *)want));
        assert_memory_equal(p, want, n);
        free(want);
    }
    td_text_nfc_fini(&s);
}

static void a_million_marks_in_the_worst_order_are_sorted_once(void **state)
{
    const size_t n_marks = 1000000;
    uint8_t *text = malloc(n_marks * 2 + 1);
    assert_non_null(text);
    text[0] = 'q';
    for (size_t i = 0; i < n_marks; i++) { /* above (230) and below (220) by turns */
        text[1 + 2 * i] = 0xcc;
        text[2 + 2 * i] = (i & 1) == 0 ? 0x8d : 0xad;
    }
    struct td_text_nfc s = {0};
    const uint8_t *p;
    size_t n;
    assert_int_equal(td_text_nfc(uni, &s, text, n_marks * 2 + 1, &p, &n), TD_OK);
    assert_int_equal(n, n_marks * 2 + 1);
    assert_int_equal(p[2], 0xad);
    assert_int_equal(p[n_marks], 0xad);
    assert_int_equal(p[n_marks + 2], 0x8d);
    assert_int_equal(p[n - 1], 0x8d);
    td_text_nfc_fini(&s);
    free(text);
}

static void creation_survives_any_failing_allocation(void **state)
{
#if TD_WITH_FAULTS
    for (unsigned nth = 1;; nth++) {
        struct td_text_uni *u = NULL;
        td_mem_fail_nth(nth);
        const td_err e = td_text_uni_create(&u);
        td_mem_fail_nth(0);
        if (e == TD_OK) {
            td_text_uni_destroy(u);
            assert_true(nth > 2);
            break;
        }
        assert_int_equal(e, TD_ERR_NO_MEMORY);
    }
#else
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_are_those_of_the_patterns),
        cmocka_unit_test(only_well_formed_characters_are_decoded),
        cmocka_unit_test(nfc_composes_reorders_and_replaces),
        cmocka_unit_test(text_that_is_nfc_is_not_copied),
        cmocka_unit_test(random_text_agrees_with_utf8proc),
        cmocka_unit_test(a_million_marks_in_the_worst_order_are_sorted_once),
        cmocka_unit_test(creation_survives_any_failing_allocation),
    };
    return cmocka_run_group_tests_name("text/unicode", tests, setup, teardown);
}
