#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/text/special.h"

#define S(s, id, control)                                                                          \
    {                                                                                              \
        (const uint8_t *)(s), sizeof(s) - 1, id, control                                           \
    }

static const struct td_text_special list[] = {
    S("<|im_end|>", 9, true), S("<|im_start|>", 8, true), S("<|im_start|>user", 7, true),
    S("<think>", 3, false),   S("<", 4, false),           S("  ", 5, false),
    S("<|im_end|>", 2, true),
};

static const struct td_text_special *find(const struct td_text_specials *s, bool controls,
                                          const char *text, size_t *at)
{
    const uint8_t *p = (const uint8_t *)text;
    const uint8_t *where = NULL;
    const struct td_text_special *t =
        td_text_specials_find(s, controls, p, p + strlen(text), &where);
    *at = t != NULL ? (size_t)(where - p) : SIZE_MAX;
    return t;
}

static struct td_text_specials *make(void)
{
    struct td_text_specials *s = NULL;
    assert_int_equal(td_text_specials_create(list, TD_COUNT(list), &s), TD_OK);
    return s;
}

static void the_leftmost_and_then_the_longest_token_is_found(void **state)
{
    struct td_text_specials *s = make();
    size_t at;
    assert_int_equal(find(s, true, "ab<|im_start|>user", &at)->id, 7);
    assert_int_equal(at, 2);
    assert_int_equal(find(s, true, "<|im_start|>use", &at)->id, 8);
    assert_int_equal(find(s, true, "x<|im_star", &at)->id, 4);
    assert_int_equal(at, 1);
    assert_int_equal(find(s, true, "a   <think>", &at)->id, 5);
    assert_int_equal(at, 1);
    assert_null(find(s, true, "nothing here", &at));
    td_text_specials_destroy(s);
}

static void control_tokens_are_invisible_unless_asked_for(void **state)
{
    struct td_text_specials *s = make();
    size_t at;
    assert_int_equal(find(s, false, "<|im_end|>", &at)->id, 4);
    assert_int_equal(find(s, false, "a<think>", &at)->id, 3);
    assert_int_equal(at, 1);
    td_text_specials_destroy(s);
}

static void of_two_equal_texts_the_lower_id_counts(void **state)
{
    struct td_text_specials *s = make();
    size_t at;
    assert_int_equal(find(s, true, "<|im_end|>", &at)->id, 2);
    assert_int_equal(td_text_specials_exact(s, (const uint8_t *)"<|im_end|>", 10)->id, 2);
    assert_null(td_text_specials_exact(s, (const uint8_t *)"<|im_end|", 9));
    td_text_specials_destroy(s);
}

static void a_list_without_tokens_finds_nothing(void **state)
{
    struct td_text_specials *s = NULL;
    size_t at;
    assert_int_equal(td_text_specials_create(NULL, 0, &s), TD_OK);
    assert_null(find(s, true, "<|im_end|>", &at));
    assert_null(td_text_specials_exact(s, (const uint8_t *)"a", 1));
    td_text_specials_destroy(s);
}

static void random_texts_agree_with_a_plain_search(void **state)
{
    struct td_rng r = {11};
    char texts[40][6];
    struct td_text_special l[40];
    for (size_t i = 0; i < 40; i++) {
        const size_t n = 1 + (size_t)td_rng_below(&r, 5);
        for (size_t k = 0; k < n; k++) {
            texts[i][k] = (char)('a' + td_rng_below(&r, 3));
        }
        l[i] = (struct td_text_special){(const uint8_t *)texts[i], (uint32_t)n, (int32_t)i,
                                        td_rng_below(&r, 2) != 0};
    }
    struct td_text_specials *s = NULL;
    assert_int_equal(td_text_specials_create(l, 40, &s), TD_OK);
    for (int round = 0; round < 3000; round++) {
        uint8_t text[8];
        for (size_t k = 0; k < sizeof text; k++) {
            text[k] = (uint8_t)('a' + td_rng_below(&r, 4));
        }
        const bool controls = (round & 1) != 0;
        const struct td_text_special *best = NULL;
        size_t best_at = 0;
        for (size_t at = 0; at < sizeof text && best == NULL; at++) {
            for (size_t i = 0; i < 40; i++) {
                if ((controls || !l[i].control) && at + l[i].len <= sizeof text &&
                    memcmp(text + at, l[i].text, l[i].len) == 0 &&
                    (best == NULL || l[i].len > best->len)) {
                    best = &l[i];
                    best_at = at;
                }
            }
        }
        const uint8_t *where = NULL;
        const struct td_text_special *got =
            td_text_specials_find(s, controls, text, text + sizeof text, &where);
        assert_int_equal(got != NULL, best != NULL);
        if (best != NULL) {
            assert_int_equal(got->id, best->id);
            assert_ptr_equal(where, text + best_at);
        }
    }
    td_text_specials_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_leftmost_and_then_the_longest_token_is_found),
        cmocka_unit_test(control_tokens_are_invisible_unless_asked_for),
        cmocka_unit_test(of_two_equal_texts_the_lower_id_counts),
        cmocka_unit_test(a_list_without_tokens_finds_nothing),
        cmocka_unit_test(random_texts_agree_with_a_plain_search),
    };
    return cmocka_run_group_tests_name("text/special", tests, NULL, NULL);
}
