#include "common/sched/growth.h"

#include "common/base/assert.h"

void td_growth_seen(struct td_growth *g, uint32_t n_out, bool limited)
{
    if (g->n == TD_GROWTH_WINDOW) {
        g->n_limited -= g->limited[g->at];
    } else {
        g->n++;
    }
    g->len[g->at] = n_out;
    g->limited[g->at] = limited;
    g->n_limited += limited;
    g->at = (g->at + 1) % TD_GROWTH_WINDOW;
}

/* Mean of the lengths seen that are longer than n_out, and a quarter more; 0: none is. */
static uint64_t mean_longer(const struct td_growth *g, uint32_t n_out)
{
    uint64_t sum = 0;
    uint64_t longer = 0;
    for (uint32_t i = 0; i < g->n; i++) {
        if (g->len[i] > n_out) {
            sum += g->len[i];
            longer++;
        }
    }
    return longer > 0 ? (sum * 5 / 4 + longer - 1) / longer : 0;
}

uint32_t td_growth_expect(const struct td_growth *g, uint32_t n_out, uint32_t max_out)
{
    if (n_out >= max_out || (g->n >= TD_GROWTH_TRUST && g->n_limited * 2 > g->n)) {
        return max_out;
    }
    uint64_t expect = g->n >= TD_GROWTH_TRUST ? mean_longer(g, n_out) : TD_GROWTH_PRIOR;
    if (expect <= n_out) {
        /* Longer than anything seen: half its length still to go. */
        expect = (uint64_t)n_out + n_out / 2 + 1;
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

/* Blocks of the n longest at the moment the last of them ends. */
static uint64_t blocks_at(const struct td_growth_seq *seqs, uint32_t n, uint32_t block_tok)
{
    uint64_t blocks = 0;
    for (uint32_t i = 0; i < n; i++) {
        blocks += ((uint64_t)seqs[i].held_tok + seqs[n - 1].remain_tok + block_tok - 1) / block_tok;
    }
    return blocks;
}

uint32_t td_growth_peak(struct td_growth_seq *seqs, uint32_t n, uint32_t block_tok)
{
    TD_REQUIRE(block_tok > 0);
    sort_longest_first(seqs, n);
    uint64_t held = 0;
    uint64_t peak = 0;
    for (uint32_t i = 0; i < n; i++) {
        held += seqs[i].held_tok;
        uint64_t blocks;
        if (n <= TD_GROWTH_EXACT) {
            blocks = blocks_at(seqs, i + 1, block_tok);
        } else {
            /* On average the last block of each is half full. */
            uint64_t tokens = held + (uint64_t)(i + 1) * seqs[i].remain_tok;
            uint64_t halves = 2 * tokens + (uint64_t)(i + 1) * (block_tok - 1);
            blocks = (halves + 2 * block_tok - 1) / (2 * block_tok);
        }
        peak = blocks > peak ? blocks : peak;
    }
    return peak < UINT32_MAX ? (uint32_t)peak : UINT32_MAX;
}
