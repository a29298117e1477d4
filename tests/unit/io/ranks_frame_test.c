#include <string.h>

#include "common/base/rng.h"
#include "common/io/ranks_frame.h"
#include "tests/unit/check.h"

static const struct td_rank_terms terms = {.model_id = {0xab, 0xcd},
                                           .numerics_id = 0x1122334455667788u,
                                           .n_blocks = 100,
                                           .max_rows = 8,
                                           .max_tokens = 512,
                                           .max_model_len = 4096};

static void a_frame_is_what_docs_say(void **state)
{
    static const uint8_t golden[] = {23, 0, 0, 0, 6, 0, 0, 0, 'a', 'b', 'c', 0, 0, 0,
                                     0,  0, 0, 0, 0, 0, 0, 0, 0,   0,   0,   0, 0};
    uint8_t frame[64];
    struct rank_frame f;
    (void)state;
    assert_int_equal(rank_frame_write(RANK_READY, "abc", 3, frame), sizeof golden);
    assert_memory_equal(frame, golden, sizeof golden);
    assert_int_equal(rank_frame_size(frame, 3), sizeof golden);
    assert_int_equal(rank_frame_size(frame, 2), 0); /* more than this one may say */
    assert_true(rank_frame_parse(frame, sizeof golden, &f));
    assert_int_equal(f.type, RANK_READY);
    assert_int_equal(f.len, 3);
    assert_ptr_equal(f.payload, frame + 8);
    assert_ptr_equal(f.tag, frame + 11);
}

static void lengths_are_bounded(void **state)
{
    uint8_t len[4];
    (void)state;
    for (uint32_t n = 0; n < RANK_OVERHEAD - RANK_LEN_BYTES; n++) {
        link_put32(len, n);
        assert_int_equal(rank_frame_size(len, RANK_MAX_PAYLOAD), 0);
    }
    link_put32(len, TD_RANK_MAX_FRAME);
    assert_int_equal(rank_frame_size(len, RANK_MAX_PAYLOAD), RANK_MAX_BYTES);
    link_put32(len, TD_RANK_MAX_FRAME + 1);
    assert_int_equal(rank_frame_size(len, SIZE_MAX), 0);
    link_put32(len, UINT32_MAX);
    assert_int_equal(rank_frame_size(len, SIZE_MAX), 0);
}

static void unknown_types_are_refused(void **state)
{
    uint8_t frame[RANK_OVERHEAD];
    struct rank_frame f;
    (void)state;
    for (uint32_t type = 0; type < 256; type++) {
        size_t n = rank_frame_write((uint8_t)type, NULL, 0, frame);
        assert_int_equal(rank_frame_parse(frame, n, &f),
                         type >= RANK_HELLO && type < RANK_FRAME_TYPES);
    }
    (void)rank_frame_write(RANK_HELLO, NULL, 0, frame);
    frame[6] = 1; /* a reserved byte */
    assert_false(rank_frame_parse(frame, sizeof frame, &f));
}

static void hello_comes_back(void **state)
{
    struct rank_hello h = {
        .version_min = 1, .version_max = 3, .rank = 5, .n = 8, .key_id = "2026-11"};
    struct rank_hello back;
    uint8_t bytes[RANK_MAX_HELLO + 1] = {0};
    (void)state;
    td_rng_fill(h.nonce, sizeof h.nonce);
    assert_int_equal(rank_hello_write(&h, bytes), RANK_HELLO_BYTES);
    assert_true(rank_hello_parse(bytes, RANK_HELLO_BYTES, &back));
    assert_int_equal(back.version_min, 1);
    assert_int_equal(back.version_max, 3);
    assert_int_equal(back.rank, 5);
    assert_int_equal(back.n, 8);
    assert_string_equal(back.key_id, "2026-11");
    assert_memory_equal(back.nonce, h.nonce, sizeof h.nonce);
    assert_true(rank_hello_parse(bytes, RANK_MAX_HELLO, &back)); /* a later version says more */
    assert_false(rank_hello_parse(bytes, RANK_MAX_HELLO + 1, &back));
    for (size_t n = 0; n < RANK_HELLO_BYTES; n++) {
        assert_false(rank_hello_parse(bytes, n, &back));
    }
    memset(bytes + 16, 'x', TD_LINK_KEY_ID); /* not terminated */
    assert_false(rank_hello_parse(bytes, RANK_HELLO_BYTES, &back));
    (void)rank_hello_write(&h, bytes);
    bytes[17] = '"';
    assert_false(rank_hello_parse(bytes, RANK_HELLO_BYTES, &back));
    (void)rank_hello_write(&h, bytes);
    bytes[0] ^= 1; /* the magic */
    assert_false(rank_hello_parse(bytes, RANK_HELLO_BYTES, &back));
    h.version_min = 4;
    (void)rank_hello_write(&h, bytes);
    assert_false(rank_hello_parse(bytes, RANK_HELLO_BYTES, &back));
}

static void challenge_comes_back(void **state)
{
    struct rank_challenge c = {.version = 2, .nonce = {9, 8, 7}}, back;
    uint8_t bytes[RANK_CHALLENGE_BYTES];
    (void)state;
    assert_int_equal(rank_challenge_write(&c, bytes), RANK_CHALLENGE_BYTES);
    assert_true(rank_challenge_parse(bytes, sizeof bytes, &back));
    assert_int_equal(back.version, 2);
    assert_memory_equal(back.nonce, c.nonce, sizeof c.nonce);
    assert_false(rank_challenge_parse(bytes, sizeof bytes - 1, &back));
    bytes[7] = 1; /* a version of 32 bits */
    assert_false(rank_challenge_parse(bytes, sizeof bytes, &back));
}

static void who_a_rank_is_comes_back(void **state)
{
    static uint8_t address[RANK_MAX_ADDRESS], bytes[RANK_MAX_PAYLOAD];
    struct rank_who who = {.rank = 3, .terms = terms, .name = "node-3", .address = address}, back;
    (void)state;
    td_rng_fill(address, sizeof address);
    who.address_bytes = sizeof address;
    size_t n = rank_prove_write(&who, bytes);
    assert_true(rank_prove_parse(bytes, n, &back));
    assert_memory_equal(&back.terms, &terms, sizeof terms);
    assert_string_equal(back.name, "node-3");
    assert_int_equal(back.address_bytes, sizeof address);
    assert_memory_equal(back.address, address, sizeof address);
    assert_false(rank_prove_parse(bytes, n + 1, &back)); /* an address that is too long */
    assert_false(rank_prove_parse(bytes, RANK_TERMS_BYTES + 7, &back)); /* and none */
    assert_false(rank_prove_parse(bytes, RANK_TERMS_BYTES - 1, &back));
    n = rank_peer_write(&who, bytes);
    assert_true(rank_peer_parse(bytes, n, &back));
    assert_int_equal(back.rank, 3);
    assert_string_equal(back.name, "node-3");
    link_put32(bytes, TD_RANKS_MAX);
    assert_false(rank_peer_parse(bytes, n, &back));
    assert_false(rank_peer_parse(bytes, 3, &back));
}

static void a_loss_comes_back_printable(void **state)
{
    uint8_t bytes[8 + TD_LINK_TEXT];
    char why[TD_LINK_TEXT];
    uint32_t rank;
    td_err e;
    (void)state;
    size_t n = rank_lost_write(2, TD_ERR_STALLED, "no\nanswer", bytes);
    assert_true(rank_lost_parse(bytes, n, &rank, &e, why));
    assert_int_equal(rank, 2);
    assert_int_equal(e, TD_ERR_STALLED);
    assert_string_equal(why, "no?answer");
    assert_false(rank_lost_parse(bytes, 7, &rank, &e, why));
    link_put32(bytes, TD_RANKS_MAX);
    assert_false(rank_lost_parse(bytes, n, &rank, &e, why));
}

static void a_difference_is_named_with_both_values(void **state)
{
    char text[256] = "";
    struct td_rank_terms other = terms;
    (void)state;
    assert_int_equal(rank_terms_compare(&terms, &other, 1, text, sizeof text), TD_OK);
    assert_string_equal(text, "");
    other.max_model_len = 2048;
    assert_int_equal(rank_terms_compare(&terms, &other, 1, text, sizeof text), TD_ERR_CONFIG);
    assert_string_equal(text, "max_model_len differs: rank 0 4096, rank 1 2048");
    other.n_blocks = 1;
    assert_int_equal(rank_terms_compare(&terms, &other, 1, text, sizeof text), TD_ERR_CONFIG);
    assert_string_equal(text, "n_blocks differs: rank 0 100, rank 1 1");
    other.numerics_id = 1;
    assert_int_equal(rank_terms_compare(&terms, &other, 2, text, sizeof text), TD_ERR_PEER_MODEL);
    assert_string_equal(text,
                        "numerics_id differs: rank 0 1122334455667788, rank 2 0000000000000001");
    other.model_id[0] = 0;
    assert_int_equal(rank_terms_compare(&terms, &other, 2, text, sizeof text), TD_ERR_PEER_MODEL);
    assert_string_equal(text,
                        "model_id differs: rank 0 abcd000000000000.., rank 2 00cd000000000000..");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_frame_is_what_docs_say),
        cmocka_unit_test(lengths_are_bounded),
        cmocka_unit_test(unknown_types_are_refused),
        cmocka_unit_test(hello_comes_back),
        cmocka_unit_test(challenge_comes_back),
        cmocka_unit_test(who_a_rank_is_comes_back),
        cmocka_unit_test(a_loss_comes_back_printable),
        cmocka_unit_test(a_difference_is_named_with_both_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
