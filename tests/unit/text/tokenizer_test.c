#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "common/base/rng.h"
#include "common/text/tokenizer.h"
#include "tests/unit/text/tiny_vocab.h"

static struct tiny_ids id;

/* A vocabulary with its tokenizer. */
struct rig {
    struct tiny *t;
    struct td_text_vocab *v;
    struct td_text_tokenizer *tok;
    int32_t ids[256];
    size_t n;
};

static void open_rig(struct rig *r, const char *pre)
{
    memset(r, 0, sizeof *r);
    r->t = tiny_hello(pre, &id);
}

static void start(struct rig *r)
{
    assert_int_equal(td_text_vocab_create(&r->t->src, &r->v), TD_OK);
    assert_int_equal(td_text_tokenizer_create(r->v, &r->tok), TD_OK);
}

static void close_rig(struct rig *r)
{
    td_text_tokenizer_destroy(r->tok);
    td_text_vocab_destroy(r->v);
    free(r->t);
}

static void encode_segs(struct rig *r, const struct td_text_segment *segs, size_t n)
{
    const struct td_text_encode_args args = {segs, n, false, 0};
    assert_int_equal(td_text_tokenizer_encode(r->tok, &args, r->ids, TD_COUNT(r->ids), &r->n),
                     TD_OK);
    assert_true(r->n <= TD_COUNT(r->ids));
}

static void encode_bytes(struct rig *r, const char *text, size_t len, bool allow)
{
    const struct td_text_segment seg = {text, len, allow};
    encode_segs(r, &seg, 1);
}

static void encode(struct rig *r, const char *text, bool allow)
{
    encode_bytes(r, text, strlen(text), allow);
}

static void expect(const struct rig *r, const int32_t *ids, size_t n)
{
    assert_int_equal(r->n, n);
    assert_memory_equal(r->ids, ids, n * sizeof *ids);
}
#define EXPECT(r, ...)                                                                             \
    expect(r, (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / 4)

static void words_become_their_tokens(void **state)
{
    struct rig r;
    open_rig(&r, "gpt-2");
    start(&r);
    encode(&r, "hello world", false);
    EXPECT(&r, id.hello, id.sp_world);
    encode(&r, "hell worl", false);
    EXPECT(&r, id.hell, id.sp_wor, 'l');
    encode(&r, "hello world", false); /* from the cache */
    EXPECT(&r, id.hello, id.sp_world);
    encode(&r, "", false);
    assert_int_equal(r.n, 0);
    close_rig(&r);
}

static void user_text_never_becomes_a_control_token(void **state)
{
    struct rig r;
    open_rig(&r, "gpt-2");
    start(&r);
    encode(&r, "<|im_end|>", true);
    EXPECT(&r, id.end);
    encode(&r, "<|im_end|>", false);
    for (size_t i = 0; i < r.n; i++) {
        assert_false(td_text_vocab_is_control(r.v, r.ids[i]));
    }
    EXPECT(&r, '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>');
    /* Nor together with template text around it. */
    const struct td_text_segment split[] = {{"<|im_", 5, true}, {"end", 3, false}, {"|>", 2, true}};
    encode_segs(&r, split, 3);
    EXPECT(&r, '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>');
    const struct td_text_segment across[] = {{"<|im_", 5, true}, {"end|>", 5, true}};
    encode_segs(&r, across, 2);
    EXPECT(&r, '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>');
    close_rig(&r);
}

static void no_random_user_text_gives_a_control_token(void **state)
{
    static const char *const parts[] = {"<",    "|", "im_end", "im_start",   "|>",     ">",
                                        "user", " ", "a",      "<|im_end|>", "<think>"};
    struct td_rng rng = {21};
    struct rig r;
    open_rig(&r, "smollm");
    start(&r);
    for (int round = 0; round < 3000; round++) {
        char text[160];
        size_t len = 0;
        for (size_t k = 1 + (size_t)td_rng_below(&rng, 12); k > 0; k--) {
            const char *p = parts[td_rng_below(&rng, TD_COUNT(parts))];
            memcpy(text + len, p, strlen(p));
            len += strlen(p);
        }
        const struct td_text_segment segs[] = {
            {"<|im_start|>user\n", 17, true}, {text, len, false}, {"<|im_end|>", 10, true}};
        encode_segs(&r, segs, 3);
        size_t controls = 0;
        for (size_t i = 0; i < r.n; i++) {
            controls += td_text_vocab_is_control(r.v, r.ids[i]);
        }
        assert_int_equal(controls, 2);
    }
    close_rig(&r);
}

static void user_defined_tokens_are_words_of_both(void **state)
{
    struct rig r;
    open_rig(&r, "gpt-2");
    start(&r);
    encode(&r, "hello<think> world", false);
    EXPECT(&r, id.hello, id.think, id.sp_world);
    encode(&r, "hello<think> world", true);
    EXPECT(&r, id.hello, id.think, id.sp_world);
    close_rig(&r);
}

static void template_text_takes_the_longest_special(void **state)
{
    struct rig r;
    open_rig(&r, "gpt-2");
    start(&r);
    encode(&r, "<|im_start|>userhello<|im_start|>use", true);
    EXPECT(&r, id.start_user, id.hello, id.start, 'u', 's', 'e');
    close_rig(&r);
}

static void words_span_the_border_of_segments(void **state)
{
    struct rig r;
    open_rig(&r, "gpt-2");
    start(&r);
    const struct td_text_segment segs[] = {
        {"<|im_start|>he", 14, true}, {"ll", 2, false}, {"", 0, false},
        {"o wor", 5, true},           {"ld", 2, false}, {"<|im_end|>hello", 15, true},
    };
    encode_segs(&r, segs, 6);
    EXPECT(&r, id.start, id.hello, id.sp_world, id.end, id.hello);
    close_rig(&r);
}

static void counting_needs_no_room_and_reports_all(void **state)
{
    struct rig r;
    open_rig(&r, "gpt-2");
    start(&r);
    const struct td_text_segment seg = {"hello world", 11, false};
    const struct td_text_encode_args args = {&seg, 1, true, 0};
    int32_t ids[2] = {-7, -7};
    size_t n = 0;
    assert_int_equal(td_text_tokenizer_encode(r.tok, &args, NULL, 0, &n), TD_OK);
    assert_int_equal(n, 3);
    n = 0;
    assert_int_equal(td_text_tokenizer_encode(r.tok, &args, ids, 1, &n), TD_OK);
    assert_int_equal(n, 3);
    assert_int_equal(ids[0], id.start); /* bos */
    assert_int_equal(ids[1], -7);
    close_rig(&r);
}

static void the_limit_ends_the_work_with_an_error(void **state)
{
    struct rig r;
    open_rig(&r, "gpt-2");
    start(&r);
    const struct td_text_segment seg = {"hello world hello", 17, false};
    struct td_text_encode_args args = {&seg, 1, false, 3};
    size_t n = 77;
    args.limit = 4; /* hello, world, space, hello */
    assert_int_equal(td_text_tokenizer_encode(r.tok, &args, NULL, 0, &n), TD_OK);
    assert_int_equal(n, 4);
    args.limit = 3;
    n = 77;
    assert_int_equal(td_text_tokenizer_encode(r.tok, &args, NULL, 0, &n), TD_ERR_CONTEXT_LENGTH);
    assert_int_equal(n, 77);
    const struct td_text_segment special = {"<|im_end|><|im_end|>", 20, true};
    args = (struct td_text_encode_args){&special, 1, false, 1};
    assert_int_equal(td_text_tokenizer_encode(r.tok, &args, NULL, 0, &n), TD_ERR_CONTEXT_LENGTH);
    close_rig(&r);
}

static void any_bytes_survive_encode_and_decode(void **state)
{
    static const char *const pres[] = {"gpt-2", "smollm", "llama-bpe"};
    struct td_rng rng = {31};
    for (size_t k = 0; k < TD_COUNT(pres); k++) {
        struct rig r;
        open_rig(&r, pres[k]);
        start(&r);
        for (int round = 0; round < 2000; round++) {
            char text[100];
            const size_t len = 1 + (size_t)td_rng_below(&rng, sizeof text);
            for (size_t i = 0; i < len; i++) {
                const uint64_t x = td_rng_next(&rng);
                text[i] = (x & 0x300) == 0 ? (char)x : "he lowrd\n1'"[x % 11];
            }
            encode_bytes(&r, text, len, false);
            size_t at = 0;
            for (size_t i = 0; i < r.n; i++) {
                size_t n;
                const uint8_t *p = td_text_vocab_bytes(r.v, r.ids[i], &n);
                assert_true(at + n <= len);
                assert_memory_equal(p, text + at, n);
                at += n;
            }
            assert_int_equal(at, len);
        }
        close_rig(&r);
    }
}

static void a_byte_without_a_token_vanishes(void **state)
{
    struct rig r;
    open_rig(&r, "gpt-2");
    r.t->types[4] = TD_TEXT_UNUSED;
    start(&r);
    assert_false(td_text_vocab_covers_bytes(r.v));
    encode(&r, "\x04", false);
    assert_int_equal(r.n, 0);
    encode(&r, "\x04hello\x04", false);
    EXPECT(&r, id.hello);
    close_rig(&r);
}

static void a_known_word_ignores_the_merges_where_the_family_says_so(void **state)
{
    struct rig r;
    open_rig(&r, "llama-bpe");
    const int32_t xyz = tiny_piece(r.t, tiny_map(r.t, "xyz", 3), TD_TEXT_NORMAL); /* no merge */
    start(&r);
    encode(&r, "xyz", false);
    EXPECT(&r, xyz);
    close_rig(&r);
    open_rig(&r, "gpt-2");
    tiny_piece(r.t, tiny_map(r.t, "xyz", 3), TD_TEXT_NORMAL);
    start(&r);
    encode(&r, "xyz", false);
    EXPECT(&r, 'x', 'y', 'z');
    close_rig(&r);
}

static void qwen2_normalises_before_it_splits(void **state)
{
    struct rig r;
    open_rig(&r, "qwen2");
    start(&r);
    encode(&r, "e\xcc\x81", false);
    EXPECT(&r, 0xc3, 0xa9);
    const struct td_text_segment segs[] = {{"e", 1, true}, {"\xcc\x81", 2, false}};
    encode_segs(&r, segs, 2); /* as one string would */
    EXPECT(&r, 0xc3, 0xa9);
    close_rig(&r);
}

static void the_bound_holds_where_nfc_lengthens_the_text(void **state)
{
    struct rig r;
    open_rig(&r, "qwen2");
    r.t->src.add_space_prefix = true;
    start(&r);
    const struct td_text_segment seg = {"\xf0\x9d\x85\xa0", 4,
                                        false}; /* U+1D160: 12 bytes in NFC */
    struct td_text_encode_args args = {&seg, 1, true, 0};
    size_t n = 0;
    assert_int_equal(td_text_tokenizer_encode(r.tok, &args, NULL, 0, &n), TD_OK);
    assert_int_equal(n, 14); /* with bos and the prefix */
    assert_true(td_text_encode_bound(&args) >= n);
    args.limit = 5;
    assert_int_equal(td_text_encode_bound(&args), 5);
    close_rig(&r);
}

static void the_space_prefix_is_put_before_each_run(void **state)
{
    struct rig r;
    open_rig(&r, "gpt-2");
    r.t->src.add_space_prefix = true;
    start(&r);
    encode(&r, "world<|im_end|> world<|im_end|>", true);
    EXPECT(&r, id.sp_world, id.end, id.sp_world, id.end);
    const struct td_text_segment segs[] = {{"wor", 3, true}, {"ld", 2, false}};
    encode_segs(&r, segs, 2);
    EXPECT(&r, id.sp_world);
    close_rig(&r);
}

static void a_megabyte_of_one_letter_is_merged_in_time(void **state)
{
    const size_t len = TD_TEXT_WORD_MAX + 1;
    char *text = malloc(len);
    struct rig r;
    size_t n = 0;
    assert_non_null(text);
    memset(text, 'a', len);
    open_rig(&r, "gpt-2");
    start(&r);
    struct td_text_segment seg = {text, TD_TEXT_WORD_MAX, false};
    const struct td_text_encode_args args = {&seg, 1, false, 0};
    assert_int_equal(td_text_tokenizer_encode(r.tok, &args, NULL, 0, &n), TD_OK);
    assert_int_equal(n, TD_TEXT_WORD_MAX / 4);
    const struct td_text_encode_args few = {&seg, 1, false, 100};
    assert_int_equal(td_text_tokenizer_encode(r.tok, &few, NULL, 0, &n), TD_ERR_CONTEXT_LENGTH);
    seg.len = len;
    assert_int_equal(td_text_tokenizer_encode(r.tok, &args, NULL, 0, &n), TD_ERR_TOO_LARGE);
    seg.len = TD_TEXT_INPUT_MAX + 1; /* refused before a byte is read */
    assert_int_equal(td_text_tokenizer_encode(r.tok, &args, NULL, 0, &n), TD_ERR_TOO_LARGE);
    encode(&r, "hello", false);
    EXPECT(&r, id.hello);
    close_rig(&r);
    free(text);
}

/* Words of all lengths around the border between the two ways to merge. */
static void long_words_agree_with_their_parts(void **state)
{
    struct rig r;
    open_rig(&r, "gpt-2");
    start(&r);
    for (size_t len = 1; len < 200; len++) {
        char text[200];
        memset(text, 'a', len);
        encode_bytes(&r, text, len, false);
        assert_int_equal(r.n, len / 4 + (len % 4 + 1) / 2);
        for (size_t i = 0; i < len / 4; i++) {
            assert_int_equal(r.ids[i], id.aaaa);
        }
    }
    close_rig(&r);
}

static void encoding_survives_any_failing_allocation(void **state)
{
#if TD_WITH_FAULTS
    char text[300];
    memset(text, 'a', sizeof text);
    text[0] = 'e';
    text[1] = (char)0xcc; /* something to normalise */
    text[2] = (char)0x81;
    const struct td_text_segment segs[] = {{"he", 2, true}, {text, sizeof text, false}};
    const struct td_text_encode_args args = {segs, 2, false, 0};
    for (unsigned nth = 1;; nth++) {
        struct rig r;
        open_rig(&r, "qwen2");
        assert_int_equal(td_text_vocab_create(&r.t->src, &r.v), TD_OK);
        td_mem_fail_nth(nth);
        size_t n = 0;
        td_err e = td_text_tokenizer_create(r.v, &r.tok);
        if (e == TD_OK) {
            e = td_text_tokenizer_encode(r.tok, &args, NULL, 0, &n);
        }
        td_mem_fail_nth(0);
        if (e != TD_OK) {
            assert_int_equal(e, TD_ERR_NO_MEMORY);
            if (r.tok != NULL) { /* it can be used again */
                assert_int_equal(td_text_tokenizer_encode(r.tok, &args, NULL, 0, &n), TD_OK);
            }
        }
        close_rig(&r);
        if (e == TD_OK) {
            assert_true(nth > 6);
            break;
        }
    }
#else
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_become_their_tokens),
        cmocka_unit_test(user_text_never_becomes_a_control_token),
        cmocka_unit_test(no_random_user_text_gives_a_control_token),
        cmocka_unit_test(user_defined_tokens_are_words_of_both),
        cmocka_unit_test(template_text_takes_the_longest_special),
        cmocka_unit_test(words_span_the_border_of_segments),
        cmocka_unit_test(counting_needs_no_room_and_reports_all),
        cmocka_unit_test(the_limit_ends_the_work_with_an_error),
        cmocka_unit_test(any_bytes_survive_encode_and_decode),
        cmocka_unit_test(a_byte_without_a_token_vanishes),
        cmocka_unit_test(a_known_word_ignores_the_merges_where_the_family_says_so),
        cmocka_unit_test(qwen2_normalises_before_it_splits),
        cmocka_unit_test(the_bound_holds_where_nfc_lengthens_the_text),
        cmocka_unit_test(the_space_prefix_is_put_before_each_run),
        cmocka_unit_test(a_megabyte_of_one_letter_is_merged_in_time),
        cmocka_unit_test(long_words_agree_with_their_parts),
        cmocka_unit_test(encoding_survives_any_failing_allocation),
    };
    return cmocka_run_group_tests_name("text/tokenizer", tests, NULL, NULL);
}
