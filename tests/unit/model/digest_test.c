#include "common/model/digest.h"

#include "tests/unit/model/model_util.h"

static void hash_two(const char *a, const char *b, uint8_t out[32])
{
    struct td_digest d;

    td_digest_begin(&d);
    td_digest_str(&d, (struct td_str){a, strlen(a)});
    td_digest_str(&d, (struct td_str){b, strlen(b)});
    assert_int_equal(td_digest_end(&d, out), TD_OK);
}

static void bytes_in_pieces_give_the_known_sha256(void **state)
{
    /* SHA-256 of "abc", from FIPS 180-2. */
    static const uint8_t abc[32] = {0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea,
                                    0x41, 0x41, 0x40, 0xde, 0x5d, 0xae, 0x22, 0x23,
                                    0xb0, 0x03, 0x61, 0xa3, 0x96, 0x17, 0x7a, 0x9c,
                                    0xb4, 0x10, 0xff, 0x61, 0xf2, 0x00, 0x15, 0xad};
    struct td_digest d;
    uint8_t out[32];

    (void)state;
    td_digest_begin(&d);
    td_digest_bytes(&d, "a", 1);
    td_digest_bytes(&d, "", 0);
    td_digest_bytes(&d, "bc", 2);
    assert_int_equal(td_digest_end(&d, out), TD_OK);
    assert_memory_equal(out, abc, 32);
}

static void moving_a_border_between_strings_changes_the_hash(void **state)
{
    uint8_t a[32];
    uint8_t b[32];

    (void)state;
    hash_two("ab", "c", a);
    hash_two("a", "bc", b);
    assert_memory_not_equal(a, b, 32);
    hash_two("ab", "c", b);
    assert_memory_equal(a, b, 32);
}

static void a_broken_digest_says_so_and_leaves_the_output_alone(void **state)
{
    struct td_digest d = {NULL};
    uint8_t out[32] = {7};

    (void)state;
    td_digest_u64(&d, 1);
    assert_int_equal(td_digest_end(&d, out), TD_ERR_NO_MEMORY);
    assert_int_equal(out[0], 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_in_pieces_give_the_known_sha256),
        cmocka_unit_test(moving_a_border_between_strings_changes_the_hash),
        cmocka_unit_test(a_broken_digest_says_so_and_leaves_the_output_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
