#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "common/base/rng.h"
#include "common/base/utf8.h"
#include "common/text/detok.h"
#include "tests/unit/text/tiny_vocab.h"

static struct td_text_vocab *vocab;
static struct tiny_ids id;

static int setup(void **state)
{
    struct tiny *t = tiny_hello("gpt-2", &id);
    const td_err e = td_text_vocab_create(&t->src, &vocab);
    free(t);
    return e;
}

static int teardown(void **state)
{
    vocab = td_text_vocab_destroy(vocab);
    return 0;
}

static void push(struct td_text_detok *d, int32_t token, struct td_buf *b)
{
    assert_int_equal(td_text_detok_push(d, token, b), TD_OK);
}

static void expect(struct td_buf *b, const char *text)
{
    assert_int_equal(b->len, strlen(text));
    if (b->len > 0) {
        assert_memory_equal(b->data, text, b->len);
    }
    td_buf_clear(b);
}

static void a_character_in_four_tokens_comes_out_whole(void **state)
{
    struct td_text_detok d;
    struct td_buf b;
    td_buf_init(&b, 1024);
    td_text_detok_init(&d, vocab, true);
    push(&d, 0xf0, &b);
    push(&d, 0x9f, &b);
    push(&d, 0x98, &b);
    expect(&b, "");
    push(&d, 0x80, &b);
    expect(&b, "\xf0\x9f\x98\x80");
    push(&d, id.hello, &b);
    expect(&b, "hello");
    td_buf_fini(&b);
}

static void an_unfinished_character_becomes_one_replacement_at_the_end(void **state)
{
    struct td_text_detok d;
    struct td_buf b;
    td_buf_init(&b, 1024);
    td_text_detok_init(&d, vocab, true);
    push(&d, 0xe2, &b);
    push(&d, 0x82, &b);
    expect(&b, "");
    assert_int_equal(td_text_detok_flush(&d, &b), TD_OK);
    expect(&b, "\xef\xbf\xbd");
    assert_int_equal(td_text_detok_flush(&d, &b), TD_OK);
    expect(&b, "");
    td_buf_fini(&b);
}

static void bytes_that_can_never_be_a_character_are_not_held(void **state)
{
    static const struct {
        const char *bytes, *text;
    } cases[] = {
        {"\x80", "\xef\xbf\xbd"},
        {"\xc0", "\xef\xbf\xbd"},
        {"\xe2\x82x", "\xef\xbf\xbdx"},
        {"\xed\xa0", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xe0\x80", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf4\x90", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf0\x8f", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf0\x9f\x98\xf0\x9f\x98\x80", "\xef\xbf\xbd\xf0\x9f\x98\x80"},
        {"\xf5", "\xef\xbf\xbd"},
    };
    for (size_t i = 0; i < TD_COUNT(cases); i++) {
        struct td_text_detok d;
        struct td_buf b;
        td_buf_init(&b, 1024);
        td_text_detok_init(&d, vocab, true);
        for (const char *p = cases[i].bytes; *p != '\0'; p++) {
            push(&d, (uint8_t)*p, &b);
        }
        assert_int_equal(d.n_held, 0);
        expect(&b, cases[i].text);
        td_buf_fini(&b);
    }
}

static void control_tokens_are_hidden_or_shown(void **state)
{
    struct td_text_detok d;
    struct td_buf b;
    td_buf_init(&b, 1024);
    td_text_detok_init(&d, vocab, true);
    push(&d, id.start, &b);
    push(&d, id.think, &b);
    push(&d, id.end, &b);
    expect(&b, "<think>");
    td_text_detok_init(&d, vocab, false);
    push(&d, id.end, &b);
    expect(&b, "<|im_end|>");
    td_buf_fini(&b);
}

static void an_id_outside_the_vocabulary_is_refused(void **state)
{
    struct td_text_detok d;
    struct td_buf b;
    td_buf_init(&b, 1024);
    td_text_detok_init(&d, vocab, true);
    assert_int_equal(td_text_detok_push(&d, -1, &b), TD_ERR_BAD_REQUEST);
    assert_int_equal(td_text_detok_push(&d, (int32_t)td_text_vocab_size(vocab), &b),
                     TD_ERR_BAD_REQUEST);
    assert_int_equal(b.len, 0);
    td_buf_fini(&b);
}

static void a_full_buffer_changes_nothing(void **state)
{
    struct td_text_detok d;
    struct td_buf small;
    struct td_buf b;
    td_buf_init(&small, 3);
    td_buf_init(&b, 1024);
    td_text_detok_init(&d, vocab, true);
    push(&d, 0xc3, &b);
    assert_int_equal(td_text_detok_push(&d, 0xa9, &small), TD_ERR_FULL);
    push(&d, 0xa9, &b);
    expect(&b, "\xc3\xa9");
    td_buf_fini(&b);
    td_buf_fini(&small);
}

static void a_long_token_of_cut_characters_survives(void **state)
{
    struct tiny *t = tiny_new("gpt-2");
    struct td_text_vocab *v = NULL;
    char bytes[200];
    for (size_t i = 0; i < sizeof bytes;
         i++) { /* begins and ends within a character of three bytes */
        bytes[i] = "\xe2\x82\xac"[(i + 1) % 3];
    }
    const int32_t cut = tiny_piece(t, tiny_map(t, bytes, sizeof bytes), TD_TEXT_NORMAL);
    assert_int_equal(td_text_vocab_create(&t->src, &v), TD_OK);
    struct td_text_detok d;
    struct td_buf b;
    td_buf_init(&b, 4096);
    td_text_detok_init(&d, v, true);
    push(&d, 0xe2, &b);
    push(&d, cut, &b);
    assert_int_equal(b.len, 201 / 3 * 3);
    assert_true(td_utf8_valid((const char *)b.data, b.len));
    for (size_t i = 0; i < b.len; i++) {
        assert_int_equal(b.data[i], (uint8_t) "\xe2\x82\xac"[i % 3]);
    }
    td_buf_fini(&b);
    td_text_vocab_destroy(v);
    free(t);
}

static void every_output_is_valid_utf8_whatever_the_tokens(void **state)
{
    struct td_rng r = {7};
    for (int round = 0; round < 500; round++) {
        struct td_text_detok d;
        struct td_buf b;
        td_buf_init(&b, 1 << 16);
        td_text_detok_init(&d, vocab, (round & 1) != 0);
        for (int i = 0; i < 40; i++) {
            push(&d, (int32_t)td_rng_below(&r, td_text_vocab_size(vocab)), &b);
            assert_true(td_utf8_valid((const char *)b.data, b.len));
            assert_true(d.n_held <= 3);
        }
        assert_int_equal(td_text_detok_flush(&d, &b), TD_OK);
        assert_true(td_utf8_valid((const char *)b.data, b.len));
        td_buf_fini(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_character_in_four_tokens_comes_out_whole),
        cmocka_unit_test(an_unfinished_character_becomes_one_replacement_at_the_end),
        cmocka_unit_test(bytes_that_can_never_be_a_character_are_not_held),
        cmocka_unit_test(control_tokens_are_hidden_or_shown),
        cmocka_unit_test(an_id_outside_the_vocabulary_is_refused),
        cmocka_unit_test(a_full_buffer_changes_nothing),
        cmocka_unit_test(a_long_token_of_cut_characters_survives),
        cmocka_unit_test(every_output_is_valid_utf8_whatever_the_tokens),
    };
    return cmocka_run_group_tests_name("text/detok", tests, setup, teardown);
}
