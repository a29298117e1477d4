#include "common/model/tiny_vocab.h"

#include <string.h>

#include "tests/unit/check.h"

static void every_byte_and_every_merge_has_a_piece(void **state)
{
    struct td_tiny_vocab *v = NULL;

    (void)state;
    assert_int_equal(td_tiny_vocab_create(&v), TD_OK);
    assert_int_equal(v->n_tokens, TD_TINY_SPECIALS + 256 + v->n_merges);
    assert_int_equal(v->n_merges, TD_TINY_MAX_MERGES);
    assert_true(td_str_eq(v->tokens[TD_TINY_IM_END], "<|im_end|>") &&
                v->types[TD_TINY_IM_END] == 3);
    assert_true(td_str_eq(v->tokens[TD_TINY_SPECIALS + 'a'], "a"));
    assert_true(td_str_eq(v->tokens[TD_TINY_SPECIALS + ' '], "\xc4\xa0"));
    for (uint32_t i = 0; i < v->n_merges; i++) {
        struct td_str m = v->merges[i];
        struct td_str piece = v->tokens[TD_TINY_SPECIALS + 256 + i];
        const char *space = memchr(m.data, ' ', m.len);
        size_t left = (size_t)(space - m.data);

        assert_int_equal(piece.len, m.len - 1);
        assert_memory_equal(piece.data, m.data, left);
        assert_memory_equal(piece.data + left, space + 1, m.len - left - 1);
    }
    (void)td_tiny_vocab_destroy(v);
}

static void a_failed_allocation_is_reported(void **state)
{
    struct td_tiny_vocab *v = NULL;

    (void)state;
    for (unsigned n = 1; n <= 3; n++) {
        td_mem_fail_nth(n);
        assert_int_equal(td_tiny_vocab_create(&v), TD_ERR_NO_MEMORY);
        td_mem_fail_nth(0);
    }
    assert_null(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_and_every_merge_has_a_piece),
        cmocka_unit_test(a_failed_allocation_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
