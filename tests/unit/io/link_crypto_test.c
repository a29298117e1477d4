#include "common/io/link_crypto.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void expect_hex(const uint8_t *data, size_t len, const char *hex)
{
    static const char digits[] = "0123456789abcdef";
    assert_int_equal(strlen(hex), 2 * len);
    for (size_t i = 0; i < len; i++) {
        assert_int_equal(hex[2 * i], digits[data[i] >> 4]);
        assert_int_equal(hex[2 * i + 1], digits[data[i] & 15]);
    }
}

/* FIPS 180-4's example "abc", in pieces. */
static void sha256_of_pieces_is_that_of_the_whole(void **state)
{
    uint8_t out[TD_SHA256_BYTES];
    (void)state;
    td_sha256((struct td_piece[]){{"a", 1}, {"", 0}, {"bc", 2}}, 3, out);
    expect_hex(out, sizeof out, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

/* RFC 4231, test case 2. */
static void hmac_matches_its_published_vector(void **state)
{
    uint8_t out[TD_SHA256_BYTES];
    (void)state;
    assert_int_equal(
        td_hmac_sha256((const uint8_t *)"Jefe", 4,
                       (struct td_piece[]){{"what do ya want ", 16}, {"for nothing?", 12}}, 2, out),
        TD_OK);
    expect_hex(out, sizeof out, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

static void a_prepared_key_gives_the_same_tag_again_and_again(void **state)
{
    uint8_t key[TD_SHA256_BYTES] = {1, 2, 3}, full[TD_SHA256_BYTES], tag[TD_MAC_BYTES];
    struct td_piece p[] = {{"message", 7}};
    struct td_mac *m = NULL;
    (void)state;
    assert_int_equal(td_hmac_sha256(key, sizeof key, p, 1, full), TD_OK);
    assert_int_equal(td_mac_create(&m), TD_OK);
    td_mac_set_key(m, key);
    for (int i = 0; i < 3; i++) {
        td_mac_tag(m, p, 1, tag);
        assert_memory_equal(tag, full, TD_MAC_BYTES);
    }
    key[0] = 9;
    td_mac_set_key(m, key);
    td_mac_tag(m, p, 1, tag);
    assert_memory_not_equal(tag, full, TD_MAC_BYTES);
    m = td_mac_destroy(m);
}

static void secrets_compare_and_wipe(void **state)
{
    uint8_t a[4] = {1, 2, 3, 4}, b[4] = {1, 2, 3, 4}, zero[4] = {0};
    (void)state;
    assert_true(td_equal_secret(a, b, 4));
    b[3] = 5;
    assert_false(td_equal_secret(a, b, 4));
    td_wipe(a, sizeof a);
    assert_memory_equal(a, zero, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_of_pieces_is_that_of_the_whole),
        cmocka_unit_test(hmac_matches_its_published_vector),
        cmocka_unit_test(a_prepared_key_gives_the_same_tag_again_and_again),
        cmocka_unit_test(secrets_compare_and_wipe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
