#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "common/base/log.h"
#include "common/text/vocab.h"
#include "tests/unit/text/tiny_vocab.h"

static struct td_text_vocab *make(struct tiny *t)
{
    struct td_text_vocab *v = NULL;
    assert_int_equal(td_text_vocab_create(&t->src, &v), TD_OK);
    return v;
}

static void refused(struct tiny *t, td_err want)
{
    struct td_text_vocab *v = NULL;
    td_log_set_fd(-1); /* the refusal is logged */
    assert_int_equal(td_text_vocab_create(&t->src, &v), want);
    td_log_set_fd(2);
    assert_null(v);
    free(t);
}

static void every_byte_has_its_piece(void **state)
{
    struct tiny_ids id;
    struct tiny *t = tiny_hello("gpt-2", &id);
    struct td_text_vocab *v = make(t);
    size_t len;
    for (int b = 0; b < 256; b++) {
        const uint8_t *p = td_text_vocab_bytes(v, b, &len);
        assert_int_equal(len, 1);
        assert_int_equal(p[0], b);
    }
    assert_true(td_text_vocab_covers_bytes(v));
    assert_memory_equal(td_text_vocab_bytes(v, id.sp_world, &len), " world", 6);
    assert_int_equal(len, 6);
    assert_memory_equal(td_text_vocab_bytes(v, id.end, &len), "<|im_end|>", 10);
    assert_null(td_text_vocab_bytes(v, -1, &len));
    assert_null(td_text_vocab_bytes(v, (int32_t)td_text_vocab_size(v), &len));
    assert_int_equal(td_text_vocab_longest(v), strlen("<|im_start|>user"));
    td_text_vocab_destroy(v);
    free(t);
}

static void special_tokens_are_known_by_kind_and_text(void **state)
{
    struct tiny_ids id;
    struct tiny *t = tiny_hello("smollm", &id);
    t->src.pad = id.end;
    struct td_text_vocab *v = make(t);
    assert_true(td_text_vocab_is_control(v, id.end));
    assert_false(td_text_vocab_is_control(v, id.think));
    assert_false(td_text_vocab_is_control(v, id.hello));
    assert_false(td_text_vocab_is_control(v, -1));
    assert_int_equal(td_text_vocab_special(v, "<|im_end|>", 10), id.end);
    assert_int_equal(td_text_vocab_special(v, "<think>", 7), id.think);
    assert_int_equal(td_text_vocab_special(v, "hello", 5), TD_TEXT_NO_ID);
    assert_int_equal(td_text_vocab_bos(v), id.start);
    assert_int_equal(td_text_vocab_eos(v), id.end);
    assert_int_equal(td_text_vocab_pad(v), id.end);
    assert_int_equal(td_text_vocab_unk(v), TD_TEXT_NO_ID);
    assert_int_equal(td_text_vocab_eot(v), TD_TEXT_NO_ID);
    td_text_vocab_destroy(v);
    free(t);
}

static void a_silent_file_leaves_bos_to_the_family(void **state)
{
    static const struct {
        const char *pre;
        int add_bos;
        bool want;
    } cases[] = {{"llama-bpe", -1, true},
                 {"llama-bpe", 0, false},
                 {"smollm", -1, false},
                 {"smollm", 1, true}};
    for (size_t i = 0; i < TD_COUNT(cases); i++) {
        struct tiny_ids id;
        struct tiny *t = tiny_hello(cases[i].pre, &id);
        t->src.add_bos = cases[i].add_bos;
        struct td_text_vocab *v = make(t);
        assert_int_equal(td_text_vocab_adds_bos(v), cases[i].want);
        td_text_vocab_destroy(v);
        free(t);
    }
}

static void byte_tokens_and_foreign_pieces_are_read(void **state)
{
    struct tiny *t = tiny_new("gpt-2");
    const int32_t byte = tiny_special(t, "<0xE4>", TD_TEXT_BYTE);
    const int32_t raw = tiny_special(t, "\xe4\xb8\xad", TD_TEXT_NORMAL); /* not in the alphabet */
    const int32_t empty = tiny_special(t, "", TD_TEXT_NORMAL);
    struct td_text_vocab *v = make(t);
    size_t len;
    assert_memory_equal(td_text_vocab_bytes(v, byte, &len), "\xe4", 1);
    assert_int_equal(len, 1);
    assert_memory_equal(td_text_vocab_bytes(v, raw, &len), "\xe4\xb8\xad", 3);
    assert_int_equal(len, 3);
    assert_non_null(td_text_vocab_bytes(v, empty, &len));
    assert_int_equal(len, 0);
    td_text_vocab_destroy(v);
    free(t);
}

static void hostile_pieces_are_refused(void **state)
{
    static char big[TD_TEXT_PIECE_MAX + 1];
    static const struct {
        const char *text;
        int32_t type;
    } cases[] = {
        {"\xff", TD_TEXT_NORMAL},
        {"\xc3", TD_TEXT_CONTROL},
        {"\xed\xa0\x80", TD_TEXT_NORMAL},
        {"x", 0},
        {"x", 7},
        {"x", -1},
        {"x", INT32_MIN},
        {"<0xG0>", TD_TEXT_BYTE},
        {"<0x00", TD_TEXT_BYTE},
        {"", TD_TEXT_BYTE},
        {"<0xa0>", TD_TEXT_BYTE},
    };
    for (size_t i = 0; i < TD_COUNT(cases); i++) {
        struct tiny *t = tiny_new("gpt-2");
        tiny_special(t, cases[i].text, cases[i].type);
        refused(t, TD_ERR_FILE_FORMAT);
    }
    memset(big, 'x', sizeof big);
    struct tiny *t = tiny_new("gpt-2");
    tiny_piece(t, (struct td_text_str){big, sizeof big}, TD_TEXT_NORMAL);
    refused(t, TD_ERR_FILE_FORMAT);
    t = tiny_new("gpt-2");
    tiny_piece(t, (struct td_text_str){big, SIZE_MAX}, TD_TEXT_NORMAL);
    refused(t, TD_ERR_FILE_FORMAT);
    t = tiny_new("gpt-2");
    tiny_piece(t, (struct td_text_str){NULL, 1}, TD_TEXT_NORMAL);
    refused(t, TD_ERR_FILE_FORMAT);
    t = tiny_new("gpt-2");
    tiny_piece(t, (struct td_text_str){big, TD_TEXT_SPECIAL_MAX + 1}, TD_TEXT_CONTROL);
    refused(t, TD_ERR_FILE_FORMAT);
}

static void the_longest_piece_and_special_are_accepted(void **state)
{
    static char big[TD_TEXT_PIECE_MAX];
    memset(big, 'x', sizeof big);
    struct tiny *t = tiny_new("gpt-2");
    tiny_piece(t, (struct td_text_str){big, TD_TEXT_PIECE_MAX}, TD_TEXT_NORMAL);
    tiny_piece(t, (struct td_text_str){big, TD_TEXT_SPECIAL_MAX}, TD_TEXT_CONTROL);
    struct td_text_vocab *v = make(t);
    assert_int_equal(td_text_vocab_longest(v), TD_TEXT_PIECE_MAX);
    td_text_vocab_destroy(v);
    free(t);
}

static void hostile_merges_are_refused(void **state)
{
    static const char *const cases[] = {"",     " ",   "a",     "a ",   " a",
                                        "a  b", "a b", "a b c", "zz a", "a \xff"};
    for (size_t i = 0; i < TD_COUNT(cases); i++) { /* "a b": there is no piece "ab" */
        struct tiny *t = tiny_new("gpt-2");
        t->merges[t->src.n_merges++] = (struct td_text_str){cases[i], strlen(cases[i])};
        refused(t, TD_ERR_FILE_FORMAT);
    }
    struct tiny *t = tiny_new("gpt-2");
    t->merges[t->src.n_merges++] = (struct td_text_str){NULL, 0};
    refused(t, TD_ERR_FILE_FORMAT);
    t = tiny_new("gpt-2");
    t->src.merges = NULL;
    t->src.n_merges = 1;
    refused(t, TD_ERR_FILE_FORMAT);
    t = tiny_new("gpt-2");
    t->src.n_merges = TD_TEXT_MERGES_MAX + 1;
    refused(t, TD_ERR_FILE_FORMAT);
}

static void hostile_counts_and_ids_are_refused(void **state)
{
    static const int64_t bad[] = {256, INT64_MAX, -2, INT64_MIN, 1ll << 32};
    struct tiny *t = tiny_new("gpt-2");
    t->src.n_tokens = 0;
    refused(t, TD_ERR_FILE_FORMAT);
    t = tiny_new("gpt-2");
    t->src.n_tokens = TD_TEXT_VOCAB_MAX + 1;
    refused(t, TD_ERR_FILE_FORMAT);
    t = tiny_new("gpt-2");
    t->src.pieces = NULL;
    refused(t, TD_ERR_FILE_FORMAT);
    for (size_t i = 0; i < TD_COUNT(bad); i++) {
        for (int which = 0; which < 5; which++) {
            t = tiny_new("gpt-2");
            int64_t *ids[] = {&t->src.bos, &t->src.eos, &t->src.eot, &t->src.pad, &t->src.unk};
            *ids[which] = bad[i];
            refused(t, TD_ERR_FILE_FORMAT);
        }
    }
    t = tiny_new("gpt-2"); /* no piece of one byte: nothing could be encoded */
    for (int b = 0; b < 256; b++) {
        t->types[b] = TD_TEXT_UNUSED;
    }
    refused(t, TD_ERR_FILE_FORMAT);
}

static void pieces_and_merges_have_a_maximum_together(void **state)
{
    enum { N_PIECES = TD_TEXT_PIECE_BYTES_MAX / TD_TEXT_PIECE_MAX };
    enum { N_MERGES = TD_TEXT_MERGE_BYTES_MAX / (TD_TEXT_PIECE_MAX + 1) };
    char *big = malloc(TD_TEXT_PIECE_MAX + 1);
    struct td_text_str *strs = calloc(N_PIECES + N_MERGES, sizeof *strs);
    struct tiny *t = tiny_new("gpt-2");
    struct td_text_vocab *v = NULL;
    assert_non_null(big);
    assert_non_null(strs);
    memset(big, 'a', TD_TEXT_PIECE_MAX + 1);
    for (size_t i = 0; i <= N_PIECES; i++) {
        strs[i] = (struct td_text_str){big, TD_TEXT_PIECE_MAX};
    }
    strs[0].len = 1;
    t->src.pieces = strs;
    t->src.token_type = NULL;
    t->src.n_tokens = N_PIECES;
    assert_int_equal(td_text_vocab_create(&t->src, &v), TD_OK);
    v = td_text_vocab_destroy(v);
    strs[0].len = TD_TEXT_PIECE_MAX;
    strs[1].len = 1;
    t->src.n_tokens = N_PIECES + 1;
    td_log_set_fd(-1);
    assert_int_equal(td_text_vocab_create(&t->src, &v), TD_ERR_FILE_FORMAT);
    td_log_set_fd(2);

    /* The rule "a..a a" again and again. */
    t->src.pieces = t->pieces;
    t->src.n_tokens = 256;
    tiny_piece(t, (struct td_text_str){big, TD_TEXT_PIECE_MAX - 1}, TD_TEXT_NORMAL);
    tiny_piece(t, (struct td_text_str){big, TD_TEXT_PIECE_MAX}, TD_TEXT_NORMAL);
    char *rule = malloc(TD_TEXT_PIECE_MAX + 1);
    assert_non_null(rule);
    memset(rule, 'a', TD_TEXT_PIECE_MAX + 1);
    rule[TD_TEXT_PIECE_MAX - 1] = ' ';
    for (size_t i = 0; i <= N_MERGES; i++) {
        strs[i] = (struct td_text_str){rule, TD_TEXT_PIECE_MAX + 1};
    }
    t->src.merges = strs;
    t->src.n_merges = N_MERGES;
    assert_int_equal(td_text_vocab_create(&t->src, &v), TD_OK);
    td_text_vocab_destroy(v);
    t->src.n_merges = N_MERGES + 1;
    refused(t, TD_ERR_FILE_FORMAT);
    free(big);
    free(rule);
    free(strs);
}

static void an_unknown_pre_tokeniser_is_unsupported(void **state)
{
    refused(tiny_new("chatglm-bpe"), TD_ERR_FILE_UNSUPPORTED);
    refused(tiny_new("\xff\n\"evil"), TD_ERR_FILE_UNSUPPORTED);
}

static void creation_survives_any_failing_allocation(void **state)
{
#if TD_WITH_FAULTS
    struct tiny_ids id;
    struct tiny *t = tiny_hello("qwen2", &id);
    for (unsigned nth = 1;; nth++) {
        struct td_text_vocab *v = NULL;
        td_mem_fail_nth(nth);
        const td_err e = td_text_vocab_create(&t->src, &v);
        td_mem_fail_nth(0);
        if (e == TD_OK) {
            td_text_vocab_destroy(v);
            assert_true(nth > 10);
            break;
        }
        assert_int_equal(e, TD_ERR_NO_MEMORY);
        assert_null(v);
    }
    free(t);
#else
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_has_its_piece),
        cmocka_unit_test(special_tokens_are_known_by_kind_and_text),
        cmocka_unit_test(a_silent_file_leaves_bos_to_the_family),
        cmocka_unit_test(byte_tokens_and_foreign_pieces_are_read),
        cmocka_unit_test(hostile_pieces_are_refused),
        cmocka_unit_test(the_longest_piece_and_special_are_accepted),
        cmocka_unit_test(hostile_merges_are_refused),
        cmocka_unit_test(hostile_counts_and_ids_are_refused),
        cmocka_unit_test(pieces_and_merges_have_a_maximum_together),
        cmocka_unit_test(an_unknown_pre_tokeniser_is_unsupported),
        cmocka_unit_test(creation_survives_any_failing_allocation),
    };
    return cmocka_run_group_tests_name("text/vocab", tests, NULL, NULL);
}
