#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/text/split.h"

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

/* Joins the words by '|' (which no case contains). */
static void check(enum td_text_pre_kind kind, const char *text, const char *want)
{
    char got[512];
    size_t n = 0;
    const uint8_t *p = (const uint8_t *)text;
    const uint8_t *const end = p + strlen(text);
    while (p < end) {
        const size_t len = td_text_split(uni, kind, p, end);
        assert_true(len > 0 && len <= (size_t)(end - p));
        memcpy(got + n, p, len);
        n += len;
        p += len;
        if (p < end) {
            got[n++] = '|';
        }
    }
    got[n] = '\0';
    assert_string_equal(got, want);
}

struct split_case {
    const char *text, *words;
};

static void check_all(enum td_text_pre_kind kind, const struct split_case *c, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        check(kind, c[i].text, c[i].words);
    }
}

static void gpt2_words(void **state)
{
    static const struct split_case cases[] = {
        {"Hello world", "Hello| world"},
        {"it's we'll I'd've", "it|'s| we|'ll| I|'d|'ve"},
        {"IT'S", "IT|'|S"},
        {"a  b", "a| | b"},
        {"a \n b", "a| \n| b"},
        {"a\n\nb", "a|\n|\n|b"},
        {"tail  ", "tail|  "},
        {"  ", "  "},
        {"x 1234 y", "x| 1234| y"},
        {"a1b", "a|1|b"},
        {"!?... 'tis", "!?...| '|tis"},
        {" !!", " !!"},
        {"a\tb", "a|\t|b"},
        {"\xc2\xa0x", "\xc2\xa0|x"},
        {"na\xc3\xafve \xe4\xb8\xad\xe6\x96\x87", "na\xc3\xafve| \xe4\xb8\xad\xe6\x96\x87"},
        {"a\xff"
         "b",
         "a|\xff|b"},
        {"e\xcc\x81", "e|\xcc\x81"},
        {"'", "'"},
        {"'l", "'|l"},
        {"1'2", "1|'|2"},
    };
    check_all(TD_TEXT_PRE_GPT2, cases, TD_COUNT(cases));
}

static void smollm_words_have_lone_digits(void **state)
{
    static const struct split_case cases[] = {
        {"x 1234 y", "x| |1|2|3|4| y"},
        {"a  1", "a|  |1"},
        {"a  b", "a| | b"},
        {"1 ", "1| "},
        {"12\n\n3", "1|2|\n\n|3"},
        {"v2.5\xc2\xb2", "v|2|.|5|\xc2\xb2"},
        {" !1", " !|1"},
        {"it's 5", "it|'s| |5"},
    };
    check_all(TD_TEXT_PRE_SMOLLM, cases, TD_COUNT(cases));
}

static void llama3_words(void **state)
{
    static const struct split_case cases[] = {
        {"Hello world", "Hello| world"},
        {"IT'S 'Ll", "IT|'S| '|Ll"},
        {"we'LL'd", "we|'LL|'d"},
        {"x'\xc5\xbfy", "x|'\xc5\xbf|y"},
        {"12345", "123|45"},
        {"a 1", "a| |1"},
        {"a\n\nb", "a|\n\n|b"},
        {"a \n \n  b", "a| \n \n| | b"},
        {"x\tb", "x|\tb"},
        {"x\t\tb", "x|\t|\tb"},
        {"end.\n\n\tx", "end|.\n\n|\tx"},
        {" ...\r\nx", " ...\r\n|x"},
        {"(foo)", "(foo|)"},
        {"\nfoo", "\n|foo"},
        {"tail  ", "tail|  "},
        {"a  !b", "a| | !|b"},
        {"$100", "$|100"},
        {"a\n", "a|\n"},
        {"\xc2\xa0x", "\xc2\xa0x"},
        {"e\xcc\x81", "e|\xcc\x81"},
        {"'s", "'s"},
        {"'x", "'x"},
    };
    check_all(TD_TEXT_PRE_LLAMA3, cases, TD_COUNT(cases));
}

static void qwen_words(void **state)
{
    static const struct split_case qwen2[] = {
        {"12345", "1|2|3|4|5"},
        {"a1 2", "a|1| |2"},
        {"x\n\n  y", "x|\n\n| | y"},
        {"e\xcc\x81x", "e|\xcc\x81x"},
    };
    static const struct split_case qwen35[] = {
        {"12", "1|2"},
        {"e\xcc\x81x", "e\xcc\x81x"},
        {"!\xcc\x81", "!\xcc\x81"},
        {"\xcc\x81 ?\xcc\x81", "\xcc\x81| ?|\xcc\x81"},
    };
    check_all(TD_TEXT_PRE_QWEN2, qwen2, TD_COUNT(qwen2));
    check_all(TD_TEXT_PRE_QWEN35, qwen35, TD_COUNT(qwen35));
}

/* Expected words are those of Hugging Face tokenizers for the pattern. */
static void tekken_words_go_by_case(void **state)
{
    static const struct split_case cases[] = {
        {"Hello World", "Hello| World"},
        {"HelloWorld", "Hello|World"},
        {"HELLOWorld", "HELLOWorld"},
        {"HTTPServer", "HTTPServer"},
        {"it's I'M", "it|'s| I|'M"},
        {"x 1234", "x| |1|2|3|4"},
        {"path//to/\n/a", "path|//|to|/\n/|a"},
        {"  two\n\n x", " | two|\n\n| x"},
        {"!abc !!abc", "!abc| !!|abc"},
        {"\307\205A", "\307\205A"},
        {"A\314\201B", "A\314\201|B"},
        {"\314\201ABC", "\314\201|ABC"},
        {" \314\201a", " \314\201a"},
        {"\344\270\226A\347\225\214b", "\344\270\226A\347\225\214b"},
        {"\tTab", "\tTab"},
        {"a\312\260B", "a\312\260|B"},
    };
    check_all(TD_TEXT_PRE_TEKKEN, cases, TD_COUNT(cases));
}

static void words_cover_any_bytes_without_gap(void **state)
{
    struct td_rng r = {9};
    static const char *const parts[] = {"a",
                                        " ",
                                        "\n",
                                        "\r",
                                        "'",
                                        "s",
                                        "1",
                                        "!",
                                        "A",
                                        "/",
                                        "\xc2\xa0",
                                        "\xff",
                                        "\xe4\xb8\xad",
                                        "\xf0\x9f\x98",
                                        "\xcc\x81",
                                        "\xc5\xbf"};
    for (int round = 0; round < 20000; round++) {
        uint8_t text[64];
        size_t n = 0;
        for (size_t k = 1 + (size_t)td_rng_below(&r, 12); k > 0; k--) {
            const char *s = parts[td_rng_below(&r, TD_COUNT(parts))];
            memcpy(text + n, s, strlen(s));
            n += strlen(s);
        }
        uint8_t *exact = malloc(n); /* so that a sanitizer sees a read beyond the end */
        assert_non_null(exact);
        memcpy(exact, text, n);
        for (int kind = 0; kind < TD_TEXT_PRE_KINDS; kind++) {
            for (size_t at = 0; at < n;) {
                const size_t len =
                    td_text_split(uni, (enum td_text_pre_kind)kind, exact + at, exact + n);
                assert_true(len > 0 && len <= n - at);
                at += len;
            }
        }
        free(exact);
    }
}

static void names_of_the_model_files_are_known_and_others_refused(void **state)
{
    assert_int_equal(td_text_pre_find("smollm")->kind, TD_TEXT_PRE_SMOLLM);
    assert_int_equal(td_text_pre_find("gpt-2")->kind, TD_TEXT_PRE_GPT2);
    assert_int_equal(td_text_pre_find("")->kind, TD_TEXT_PRE_GPT2);
    assert_int_equal(td_text_pre_find("qwen2")->kind, TD_TEXT_PRE_QWEN2);
    assert_true(td_text_pre_find("llama-bpe")->ignore_merges);
    assert_true(td_text_pre_find("llama-bpe")->add_bos);
    assert_true(td_text_pre_find("tekken")->ignore_merges);
    assert_null(td_text_pre_find("chatglm-bpe"));
    assert_true(td_text_pre_normalises(TD_TEXT_PRE_QWEN2));
    assert_false(td_text_pre_normalises(TD_TEXT_PRE_LLAMA3));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_words),
        cmocka_unit_test(smollm_words_have_lone_digits),
        cmocka_unit_test(llama3_words),
        cmocka_unit_test(qwen_words),
        cmocka_unit_test(tekken_words_go_by_case),
        cmocka_unit_test(words_cover_any_bytes_without_gap),
        cmocka_unit_test(names_of_the_model_files_are_known_and_others_refused),
    };
    return cmocka_run_group_tests_name("text/split", tests, setup, teardown);
}
