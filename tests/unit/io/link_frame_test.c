#include "common/io/link_frame.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void a_frame_comes_apart_as_it_was_put_together(void **state)
{
    uint8_t bytes[LINK_OVERHEAD + 3] = {0};
    struct link_frame in = {.type = LINK_DATA,
                            .flags = LINK_F_FIRST | LINK_F_LAST,
                            .seq = 7,
                            .ack = 1ull << 40,
                            .len = 3},
                      out;
    (void)state;
    memcpy(link_frame_begin(bytes, &in), "abc", 3);
    size_t size = link_frame_size(bytes, 3);
    assert_int_equal(size, sizeof bytes);
    assert_true(link_frame_parse(bytes, size, &out));
    assert_int_equal(out.type, LINK_DATA);
    assert_int_equal(out.flags, LINK_F_FIRST | LINK_F_LAST);
    assert_true(out.seq == 7 && out.ack == 1ull << 40 && out.len == 3);
    assert_memory_equal(out.payload, "abc", 3);
    assert_ptr_equal(out.mac, bytes + sizeof bytes - TD_MAC_BYTES);
}

static void a_length_outside_the_bounds_is_refused(void **state)
{
    uint8_t len[4];
    (void)state;
    const uint32_t bad[] = {0, 1, LINK_HEADER_BYTES + TD_MAC_BYTES - 1, TD_LINK_MAX_FRAME + 1,
                            UINT32_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        link_put32(len, bad[i]);
        assert_int_equal(link_frame_size(len, TD_LINK_FRAME_PAYLOAD), 0);
    }
    link_put32(len, LINK_HEADER_BYTES + TD_MAC_BYTES + 513);
    assert_int_equal(link_frame_size(len, 512), 0);
    link_put32(len, LINK_HEADER_BYTES + TD_MAC_BYTES + 512);
    assert_int_equal(link_frame_size(len, 512), LINK_OVERHEAD + 512);
}

static void an_unknown_type_or_a_set_reserved_byte_is_refused(void **state)
{
    uint8_t bytes[LINK_OVERHEAD] = {0};
    struct link_frame f = {.type = LINK_BEAT}, out;
    (void)state;
    (void)link_frame_begin(bytes, &f);
    assert_true(link_frame_parse(bytes, sizeof bytes, &out));
    for (int i = 0; i < 2; i++) {
        bytes[4] = i == 0 ? 0 : LINK_FRAME_TYPES;
        assert_false(link_frame_parse(bytes, sizeof bytes, &out));
    }
    bytes[4] = LINK_BEAT;
    bytes[6] = 1;
    assert_false(link_frame_parse(bytes, sizeof bytes, &out));
}

static struct link_hello hello(void)
{
    struct link_hello h = {.version_min = 1,
                           .version_max = 3,
                           .features = 5,
                           .epoch = 6,
                           .session = 7,
                           .received = 8,
                           .peer_epoch = 9,
                           .role = TD_LINK_ROUTER,
                           .key_id = "key-1"};
    memset(h.nonce, 0x5a, sizeof h.nonce);
    return h;
}

static void a_hello_survives_and_more_bytes_behind_it_are_ignored(void **state)
{
    uint8_t bytes[LINK_HELLO_BYTES + 40] = {0};
    struct link_hello h = hello(), out;
    (void)state;
    assert_int_equal(link_hello_write(&h, bytes), LINK_HELLO_BYTES);
    assert_true(link_hello_parse(bytes, sizeof bytes, &out));
    assert_memory_equal(&h.nonce, &out.nonce, TD_LINK_NONCE);
    assert_string_equal(out.key_id, "key-1");
    assert_true(out.version_min == 1 && out.version_max == 3 && out.epoch == 6 &&
                out.session == 7 && out.received == 8 && out.peer_epoch == 9 && out.features == 5);
    for (size_t cut = 0; cut < LINK_HELLO_BYTES; cut++) {
        assert_false(link_hello_parse(bytes, cut, &out));
    }
}

static void a_hello_with_a_wrong_magic_epoch_range_or_key_id_is_refused(void **state)
{
    uint8_t bytes[LINK_HELLO_BYTES];
    struct link_hello out;
    (void)state;
    for (int i = 0; i < 5; i++) {
        struct link_hello h = hello();
        h.epoch = i == 1 ? 0 : 6;
        h.version_min = i == 2 ? 4 : 1;
        if (i == 3) {
            memset(h.key_id, 'k', sizeof h.key_id);
        }
        h.key_id[1] = i == 4 ? '"' : h.key_id[1];
        (void)link_hello_write(&h, bytes);
        bytes[0] ^= i == 0;
        assert_false(link_hello_parse(bytes, sizeof bytes, &out));
    }
}

static void a_challenge_survives_and_cut_ones_are_refused(void **state)
{
    uint8_t bytes[LINK_CHALLENGE_BYTES];
    struct link_challenge c = {.version = 2,
                               .epoch = 3,
                               .session = 4,
                               .received = 5,
                               .role = 2,
                               .resumed = true},
                          out;
    (void)state;
    assert_int_equal(link_challenge_write(&c, bytes), LINK_CHALLENGE_BYTES);
    assert_true(link_challenge_parse(bytes, sizeof bytes, &out));
    assert_true(out.version == 2 && out.epoch == 3 && out.session == 4 && out.received == 5 &&
                out.resumed);
    for (size_t cut = 0; cut < LINK_CHALLENGE_BYTES; cut++) {
        assert_false(link_challenge_parse(bytes, cut, &out));
    }
    bytes[41] = 2;
    assert_false(link_challenge_parse(bytes, sizeof bytes, &out));
}

static void an_identity_checks_its_name(void **state)
{
    uint8_t bytes[1 + TD_LINK_MAX_NAME + 4];
    char name[TD_LINK_MAX_NAME + 1];
    const uint8_t *info;
    size_t info_len;
    (void)state;
    size_t len = link_identity_write("node-1", (const uint8_t *)"info", 4, bytes);
    assert_true(link_identity_parse(bytes, len, name, &info, &info_len));
    assert_string_equal(name, "node-1");
    assert_int_equal(info_len, 4);
    assert_memory_equal(info, "info", 4);
    assert_false(link_identity_parse(bytes, 0, name, &info, &info_len));
    assert_false(link_identity_parse(bytes, 4, name, &info, &info_len));
    bytes[1] = '\n';
    assert_false(link_identity_parse(bytes, len, name, &info, &info_len));
    bytes[0] = TD_LINK_MAX_NAME + 1;
    assert_false(link_identity_parse(bytes, sizeof bytes, name, &info, &info_len));
}

static void a_reason_is_made_printable_and_an_unknown_code_becomes_a_lost_peer(void **state)
{
    uint8_t bytes[4 + TD_LINK_TEXT];
    char text[TD_LINK_TEXT];
    td_err e;
    (void)state;
    size_t len = link_reason_write(TD_ERR_PEER_MODEL, "a\nb", bytes);
    assert_true(link_reason_parse(bytes, len, &e, text));
    assert_int_equal(e, TD_ERR_PEER_MODEL);
    assert_string_equal(text, "a?b");
    link_put32(bytes, (uint32_t)-12345);
    assert_true(link_reason_parse(bytes, len, &e, text));
    assert_int_equal(e, TD_ERR_PEER_LOST);
    assert_false(link_reason_parse(bytes, 3, &e, text));
    assert_false(link_reason_parse(bytes, 4 + TD_LINK_TEXT, &e, text));
}

static void keys_depend_on_the_secret_and_on_every_byte_said(void **state)
{
    struct td_link_key k = {.id = "k", .secret = "0123456789abcdef", .secret_len = 16};
    uint8_t said[2] = {1, 2};
    struct link_keys a, b;
    (void)state;
    assert_int_equal(link_derive_keys(&k, said, 1, said + 1, 1, &a), TD_OK);
    assert_memory_not_equal(a.dialer, a.listener, TD_SHA256_BYTES);
    assert_int_equal(link_derive_keys(&k, said, 2, said + 1, 0, &b),
                     TD_OK); /* same bytes, other border */
    assert_memory_not_equal(a.dialer, b.dialer, TD_SHA256_BYTES);
    k.secret[3] ^= 1;
    assert_int_equal(link_derive_keys(&k, said, 1, said + 1, 1, &b), TD_OK);
    assert_memory_not_equal(a.dialer, b.dialer, TD_SHA256_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_frame_comes_apart_as_it_was_put_together),
        cmocka_unit_test(a_length_outside_the_bounds_is_refused),
        cmocka_unit_test(an_unknown_type_or_a_set_reserved_byte_is_refused),
        cmocka_unit_test(a_hello_survives_and_more_bytes_behind_it_are_ignored),
        cmocka_unit_test(a_hello_with_a_wrong_magic_epoch_range_or_key_id_is_refused),
        cmocka_unit_test(a_challenge_survives_and_cut_ones_are_refused),
        cmocka_unit_test(an_identity_checks_its_name),
        cmocka_unit_test(a_reason_is_made_printable_and_an_unknown_code_becomes_a_lost_peer),
        cmocka_unit_test(keys_depend_on_the_secret_and_on_every_byte_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
