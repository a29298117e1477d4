#include "common/sched/growth.h"

#include "common/base/assert.h"

void td_growth_seen(struct td_growth *g, uint32_t n_out)
{
    g->len[g->at] = n_out;
    g->at = (g->at + 1) % TD_GROWTH_WINDOW;
    if (g->n < TD_GROWTH_WINDOW) {
        g->n++;
    }
}

uint32_t td_growth_expect(const struct td_growth *g, uint32_t n_out, uint32_t max_out)
{
    if (n_out >= max_out) {
        return max_out;
    }
    uint64_t sum = 0;
    uint32_t longer = 0;
    for (uint32_t i = 0; i < g->n; i++) {
        if (g->len[i] > n_out) {
            sum += g->len[i];
            longer++;
        }
    }
    uint64_t expect = TD_GROWTH_PRIOR;
    if (longer > 0) {
        expect = (sum + longer - 1) / longer;
    } else if (g->n > 0 || n_out >= TD_GROWTH_PRIOR) {
        /* Longer than anything seen: it has half its length still to go. */
        expect = (uint64_t)n_out + n_out / 2;
    }
    if (expect <= n_out) {
        expect = (uint64_t)n_out + 1;
    }
    return expect < max_out ? (uint32_t)expect : max_out;
}

/* Shell sort, longest remainder first: the C library's qsort may allocate. */
static void sort_longest_first(struct td_growth_seq *s, uint32_t n)
{
    uint32_t gap = 1;
    while (gap < n / 3) {
        gap = 3 * gap + 1;
    }
    for (; gap > 0; gap /= 3) {
        for (uint32_t i = gap; i < n; i++) {
            struct td_growth_seq x = s[i];
            uint32_t j = i;
            for (; j >= gap && s[j - gap].remain_tok < x.remain_tok; j -= gap) {
                s[j] = s[j - gap];
            }
            s[j] = x;
        }
    }
}

uint32_t td_growth_peak(struct td_growth_seq *seqs, uint32_t n, uint32_t block_tok)
{
    TD_REQUIRE(block_tok > 0);
    if (n == 0) {
        return 0;
    }
    sort_longest_first(seqs, n);
    uint64_t held = 0;
    uint64_t peak = 0;
    for (uint32_t i = 0; i < n; i++) {
        /* The moment seqs[i] ends: it and all longer ones have grown by its remainder; on average
         * the last block of each is half full. */
        held += seqs[i].held_tok;
        uint64_t tokens = held + (uint64_t)(i + 1) * seqs[i].remain_tok;
        uint64_t halves = 2 * tokens + (uint64_t)(i + 1) * (block_tok - 1);
        uint64_t blocks = (halves + 2 * block_tok - 1) / (2 * block_tok);
        peak = blocks > peak ? blocks : peak;
    }
    return peak < UINT32_MAX ? (uint32_t)peak : UINT32_MAX;
}
