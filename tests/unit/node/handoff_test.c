/* The hand-off's text: what comes back, and what is refused. */
#include "common/node/handoff.h"

#include <string.h>

#include "common/base/log.h"
#include "tests/unit/check.h"

static const struct td_link_key keys[2] = {
    {.id = "new", .secret = "0123456789abcdef-new", .secret_len = 20},
    {.id = "old", .secret = "0123456789abcdef-old", .secret_len = 20}};

static struct td_handoff example(uint32_t address_len)
{
    struct td_handoff h = {.p_epoch = 0x1122334455667788,
                           .id = {0x99aabbccddeeff01, 4097, 2, 3},
                           .hold_ms = 30000,
                           .n_prompt = 77,
                           .prompt_hash = 0x0102030405060708,
                           .layout_id = 0xfffffffffffffffe,
                           .numerics_id = 5,
                           .seed = 6,
                           .address_len = address_len};
    for (unsigned i = 0; i < sizeof h.nonce; i++) {
        h.nonce[i] = (uint8_t)(200 + i);
    }
    for (uint32_t i = 0; i < address_len; i++) {
        h.address[i] = (uint8_t)(i * 7);
    }
    return h;
}

static size_t encode(const struct td_handoff *h, char text[TD_HANDOFF_MAX_TEXT])
{
    assert_int_equal(td_handoff_encode(h, keys, 2, text, TD_HANDOFF_MAX_TEXT), TD_OK);
    return strlen(text);
}

static void every_field_comes_back(void **state)
{
    static const uint32_t sizes[] = {1, 300, TD_WIRE_MAX_ADDR};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct td_handoff h = example(sizes[i]);
        struct td_handoff back = {0};
        char text[TD_HANDOFF_MAX_TEXT];
        size_t len = encode(&h, text);
        assert_int_equal(td_handoff_decode(text, len, keys, 2, &back), TD_OK);
        assert_int_equal(back.p_epoch, h.p_epoch);
        assert_true(td_work_id_eq(&back.id, &h.id));
        assert_memory_equal(back.nonce, h.nonce, sizeof h.nonce);
        assert_int_equal(back.hold_ms, h.hold_ms);
        assert_int_equal(back.n_prompt, h.n_prompt);
        assert_int_equal(back.prompt_hash, h.prompt_hash);
        assert_int_equal(back.layout_id, h.layout_id);
        assert_int_equal(back.numerics_id, h.numerics_id);
        assert_int_equal(back.seed, h.seed);
        assert_int_equal(back.address_len, h.address_len);
        assert_memory_equal(back.address, h.address, sizeof h.address);
    }
}

static void the_text_of_version_one_never_changes(void **state)
{
    static const char want[] = "018877665544332211"
                               "01ffeeddccbbaa99011000000000000002000000"
                               "03000000"
                               "c8c9cacbcccdcecfd0d1d2d3d4d5d6d7"
                               "30750000"
                               "4d000000"
                               "0807060504030201"
                               "feffffffffffffff"
                               "0500000000000000"
                               "0600000000000000"
                               "0300"
                               "00070e";
    (void)state;
    struct td_handoff h = example(3);
    char text[TD_HANDOFF_MAX_TEXT];
    size_t len = encode(&h, text);
    assert_int_equal(len, strlen(want) + 32);
    assert_memory_equal(text, want, strlen(want));
}

static void a_key_that_is_being_rotated_still_verifies(void **state)
{
    (void)state;
    struct td_handoff h = example(9);
    struct td_handoff back;
    char text[TD_HANDOFF_MAX_TEXT];
    assert_int_equal(td_handoff_encode(&h, &keys[1], 1, text, sizeof text), TD_OK);
    assert_int_equal(td_handoff_decode(text, strlen(text), keys, 2, &back), TD_OK);
    assert_int_equal(td_handoff_decode(text, strlen(text), keys, 1, &back), TD_ERR_FORBIDDEN);
    assert_int_equal(td_handoff_decode(text, strlen(text), keys, 0, &back), TD_ERR_FORBIDDEN);
}

static void every_truncation_is_refused_and_leaves_the_output_alone(void **state)
{
    (void)state;
    struct td_handoff h = example(20);
    struct td_handoff back = {.p_epoch = 1};
    char text[TD_HANDOFF_MAX_TEXT];
    size_t len = encode(&h, text);
    for (size_t n = 0; n < len; n++) {
        td_err e = td_handoff_decode(text, n, keys, 2, &back);
        assert_true(e == TD_ERR_BAD_REQUEST || e == TD_ERR_FORBIDDEN);
    }
    memcpy(text + len, "00", 3);
    assert_int_equal(td_handoff_decode(text, len + 2, keys, 2, &back), TD_ERR_FORBIDDEN);
    assert_int_equal(back.p_epoch, 1);
}

static void every_flipped_bit_is_refused(void **state)
{
    static const char digits[] = "0123456789abcdef";
    (void)state;
    struct td_handoff h = example(20);
    struct td_handoff back;
    char text[TD_HANDOFF_MAX_TEXT];
    size_t len = encode(&h, text);
    for (size_t i = 0; i < len; i++) {
        char was = text[i];
        size_t value = (size_t)(strchr(digits, was) - digits);
        for (unsigned bit = 0; bit < 4; bit++) {
            text[i] = digits[value ^ 1u << bit];
            td_err e = td_handoff_decode(text, len, keys, 2, &back);
            assert_int_equal(e, i < 2 ? TD_ERR_BAD_REQUEST : TD_ERR_FORBIDDEN);
        }
        text[i] = 'G';
        assert_int_equal(td_handoff_decode(text, len, keys, 2, &back), TD_ERR_BAD_REQUEST);
        text[i] = was;
    }
}

static void what_is_out_of_range_is_neither_written_nor_read(void **state)
{
    (void)state;
    struct td_handoff bad[7];
    char text[TD_HANDOFF_MAX_TEXT];
    for (int i = 0; i < 7; i++) {
        bad[i] = example(8);
    }
    bad[0].p_epoch = 0;
    bad[1].id.router_epoch = 0;
    bad[2].hold_ms = 0;
    bad[3].hold_ms = UINT32_MAX;
    bad[4].n_prompt = 0;
    bad[5].n_prompt = TD_WIRE_MAX_PROMPT + 1;
    bad[6].address_len = 0;
    for (int i = 0; i < 7; i++) {
        assert_int_equal(td_handoff_encode(&bad[i], keys, 2, text, sizeof text),
                         TD_ERR_BAD_REQUEST);
    }
    struct td_handoff h = example(8);
    size_t len = encode(&h, text);
    assert_int_equal(td_handoff_encode(&h, keys, 2, text, len), TD_ERR_TOO_LARGE);
    assert_int_equal(td_handoff_encode(&h, keys, 2, text, len + 1), TD_OK);
    assert_int_equal(td_handoff_encode(&h, keys, 0, text, sizeof text), TD_ERR_BAD_REQUEST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_comes_back),
        cmocka_unit_test(the_text_of_version_one_never_changes),
        cmocka_unit_test(a_key_that_is_being_rotated_still_verifies),
        cmocka_unit_test(every_truncation_is_refused_and_leaves_the_output_alone),
        cmocka_unit_test(every_flipped_bit_is_refused),
        cmocka_unit_test(what_is_out_of_range_is_neither_written_nor_read),
    };
    td_log_set_level(TD_LOG_ERROR);
    return cmocka_run_group_tests_name("node/handoff", tests, NULL, NULL);
}
