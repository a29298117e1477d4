/* The work lists of the CUDA attention kernels, on the CPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/tk_cuda.h"

#define ENTRIES(words) ((words) + 1 + TK_MAX_SEQS)

static void plan_lists_chunks_sequence_by_sequence(void **state)
{
    const int32_t lens[] = {1, 256, 257, 0, 1000};
    uint32_t words[1 + TK_MAX_SEQS + 16], n = 0;
    static const uint32_t want[] = {0u << 16, 1u << 16,     2u << 16,     2u << 16 | 1,
                                    4u << 16, 4u << 16 | 1, 4u << 16 | 2, 4u << 16 | 3};
    (void)state;
    assert_int_equal(tk_plan_host(lens, 5, words, sizeof words / sizeof words[0], &n), TD_OK);
    assert_int_equal(n, 8);
    assert_int_equal(words[0], 8);
    assert_memory_equal(ENTRIES(words), want, sizeof want);
    assert_int_equal(words[1], 0);
    assert_int_equal(words[1 + 2], 2);
    assert_int_equal(words[1 + 4], 4);
}

static void plan_of_one_sequence_does_not_depend_on_its_neighbours(void **state)
{
    const int32_t many[] = {700, 3000, 12}, one[] = {3000};
    uint32_t a[1 + TK_MAX_SEQS + 32], b[1 + TK_MAX_SEQS + 32], na = 0, nb = 0;
    (void)state;
    assert_int_equal(tk_plan_host(many, 3, a, sizeof a / sizeof a[0], &na), TD_OK);
    assert_int_equal(tk_plan_host(one, 1, b, sizeof b / sizeof b[0], &nb), TD_OK);
    for (uint32_t i = 0; i < nb; i++) {
        assert_int_equal(ENTRIES(a)[a[1 + 1] + i] & 0xffff, ENTRIES(b)[i] & 0xffff);
    }
}

static void long_sequences_take_chunks_of_twice_the_tokens(void **state)
{
    const int32_t lens[] = {TK_CHUNK_LONG, TK_CHUNK_LONG + 1};
    uint32_t words[1 + TK_MAX_SEQS + 32], n = 0;
    (void)state;
    assert_int_equal(tk_plan_host(lens, 2, words, sizeof words / sizeof words[0], &n), TD_OK);
    assert_int_equal(n, 8 + 5);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t want = i < 8 ? i : 1u << 16 | TK_CHUNK_IS_LONG | (i - 8);
        assert_int_equal(ENTRIES(words)[i], want);
    }
}

static void entries_are_counted_as_the_plan_makes_them(void **state)
{
    uint32_t words[1 + TK_MAX_SEQS + 32], n = 0, most = 0;
    (void)state;
    for (int32_t len = 1; len <= 9000; len++) {
        assert_int_equal(tk_plan_host(&len, 1, words, sizeof words / sizeof words[0], &n), TD_OK);
        assert_int_equal(tk_seq_entries((uint32_t)len), n);
        most = n > most ? n : most;
        assert_int_equal(tk_most_entries((uint32_t)len), most);
    }
}

static void chunks_before_the_window_are_left_out(void **state)
{
    const int32_t lens[] = {1000, 3000, 90};
    static const uint32_t want[] = {2, 3, 1u << 16 | TK_CHUNK_IS_LONG | 4,
                                    1u << 16 | TK_CHUNK_IS_LONG | 5, 2u << 16};
    uint32_t words[1 + TK_MAX_SEQS + 32], n = 0;
    (void)state;
    assert_int_equal(tk_plan_window_host(lens, 3, 488, words, sizeof words / sizeof words[0], &n),
                     TD_OK);
    assert_int_equal(n, 5); /* tokens from 512 of 1000, from 2512 of 3000 */
    assert_memory_equal(ENTRIES(words), want, sizeof want);
    assert_int_equal(words[1 + 1], 2);
}

static void plan_fits_the_words_that_it_asked_for(void **state)
{
    int32_t lens[64];
    uint32_t total = 0, n = 0, seed = 5;
    (void)state;
    for (int i = 0; i < 64; i++) {
        seed = seed * 1664525u + 1013904223u;
        lens[i] = (int32_t)(seed >> 16) % 5000;
        total += (uint32_t)lens[i];
    }
    const size_t words = tk_plan_words(64, total);
    uint32_t *plan = malloc(words * sizeof *plan);
    assert_non_null(plan);
    assert_int_equal(tk_plan_host(lens, 64, plan, words, &n), TD_OK);
    assert_true(1 + TK_MAX_SEQS + n <= words);
    free(plan);
}

static void plan_refuses_what_does_not_fit(void **state)
{
    const int32_t lens[] = {1024};
    uint32_t words[1 + TK_MAX_SEQS + 3], n = 77;
    (void)state;
    assert_int_equal(tk_plan_host(lens, 1, words, sizeof words / sizeof words[0], &n), TD_ERR_FULL);
    assert_int_equal(tk_plan_host(lens, TK_MAX_SEQS + 1, words, sizeof words / sizeof words[0], &n),
                     TD_ERR_UNSUPPORTED);
    assert_int_equal(n, 77);
}

static void tiles_come_most_keys_first_and_cover_every_row(void **state)
{
    const struct tk_chunk chunks[] = {{0, 300, 0, 0}, {300, 128, 1024, 1}, {428, 1, 0, 2}};
    uint32_t tiles[8], n = 0;
    (void)state;
    assert_int_equal(tk_tiles_host(chunks, 3, tiles, 8, &n), TD_OK);
    assert_int_equal(n, 3 + 1 + 1);
    assert_int_equal(tiles[0], 1u << 16);     /* 9 key tiles */
    assert_int_equal(tiles[1], 0u << 16 | 2); /* 3 */
    assert_int_equal(tiles[2], 0u << 16 | 1); /* 2 */
    assert_int_equal(tiles[3], 0u << 16 | 0); /* 1, ties in order */
    assert_int_equal(tiles[4], 2u << 16 | 0);
}

static void tiles_refuse_a_short_list_and_bad_chunks(void **state)
{
    const struct tk_chunk chunks[] = {{0, 300, 0, 0}}, bad[] = {{0, -1, 0, 0}};
    uint32_t tiles[2], n = 5;
    (void)state;
    assert_int_equal(tk_tiles_host(chunks, 1, tiles, 2, &n), TD_ERR_FULL);
    assert_int_equal(tk_tiles_host(bad, 1, tiles, 2, &n), TD_ERR_UNSUPPORTED);
    assert_int_equal(n, 5);
}

static void slices_hold_header_and_body_and_stay_aligned(void **state)
{
    (void)state;
    assert_int_equal(tk_kv_slice_bytes(8, 128, 0), 65536);
    assert_int_equal(tk_kv_slice_bytes(8, 128, 128), 65536 + 128);
    assert_int_equal(tk_kv_slice_bytes(3, 64, 16) % 128, 0);
}

static void only_hopper_runs_hopper_kernels(void **state)
{
    static const struct {
        uint32_t major, minor;
        enum tk_path wanted;
        td_err err;
        enum tk_path used;
    } rows[] = {
        {9, 0, TK_PATH_AUTO, TD_OK, TK_PATH_SM90A},
        {9, 0, TK_PATH_SM80, TD_OK, TK_PATH_SM80},
        {9, 0, TK_PATH_SM90A, TD_OK, TK_PATH_SM90A},
        {8, 0, TK_PATH_AUTO, TD_OK, TK_PATH_SM80},
        {8, 9, TK_PATH_SM80, TD_OK, TK_PATH_SM80},
        {10, 0, TK_PATH_AUTO, TD_OK, TK_PATH_SM80}, /* sm_90a is not 9.0 "and later" */
        {10, 0, TK_PATH_SM90A, TD_ERR_UNSUPPORTED, TK_PATH_AUTO},
        {8, 0, TK_PATH_SM90A, TD_ERR_UNSUPPORTED, TK_PATH_AUTO},
        {7, 5, TK_PATH_AUTO, TD_ERR_UNSUPPORTED, TK_PATH_AUTO},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        enum tk_path used = TK_PATH_AUTO;
        assert_int_equal(tk_path_for(rows[i].major, rows[i].minor, rows[i].wanted, &used),
                         rows[i].err);
        assert_int_equal(used, rows[i].used);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_hopper_runs_hopper_kernels),
        cmocka_unit_test(plan_lists_chunks_sequence_by_sequence),
        cmocka_unit_test(plan_of_one_sequence_does_not_depend_on_its_neighbours),
        cmocka_unit_test(long_sequences_take_chunks_of_twice_the_tokens),
        cmocka_unit_test(entries_are_counted_as_the_plan_makes_them),
        cmocka_unit_test(chunks_before_the_window_are_left_out),
        cmocka_unit_test(plan_fits_the_words_that_it_asked_for),
        cmocka_unit_test(plan_refuses_what_does_not_fit),
        cmocka_unit_test(tiles_come_most_keys_first_and_cover_every_row),
        cmocka_unit_test(tiles_refuse_a_short_list_and_bad_chunks),
        cmocka_unit_test(slices_hold_header_and_body_and_stay_aligned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
