#include "common/text/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/mem.h"

#define NIL      UINT32_MAX
#define MIN_SYMS 1024u /* of the scratch, when it is first needed */

/* One rule; left == NIL: empty. */
struct rule {
    uint32_t left, right;
    struct td_text_pair to;
};

struct td_text_merges {
    struct rule *rules; /* owned; [mask + 1] */
    size_t mask;
};

/* A symbol of a long word, linked to its neighbours. */
struct td_text_sym {
    uint32_t id;         /* NIL: merged into its left neighbour */
    uint32_t prev, next; /* NIL at the ends */
    uint32_t rank;       /* of the pair with `next` */
};

static inline size_t slot_of(const struct td_text_merges *m, uint32_t left, uint32_t right)
{
    const uint64_t h = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15ull;
    return (size_t)(h >> 32 ^ h >> 15) & m->mask;
}

td_err td_text_merges_create(size_t n_rules, struct td_text_merges **out_merges)
{
    size_t cap = 16;
    while (cap < n_rules * 2) {
        cap *= 2;
    }
    struct td_text_merges *m = td_zalloc(1, sizeof *m);
    if (m == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    m->rules = td_zalloc(cap, sizeof *m->rules);
    if (m->rules == NULL) {
        free(m);
        return TD_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < cap; i++) {
        m->rules[i].left = NIL;
    }
    m->mask = cap - 1;
    *out_merges = m;
    return TD_OK;
}

struct td_text_merges *td_text_merges_destroy(struct td_text_merges *m)
{
    if (m != NULL) {
        free(m->rules);
        free(m);
    }
    return NULL;
}

void td_text_merges_put(struct td_text_merges *m, uint32_t left, uint32_t right,
                        struct td_text_pair to)
{
    size_t i = slot_of(m, left, right);
    while (m->rules[i].left != NIL && (m->rules[i].left != left || m->rules[i].right != right)) {
        i = (i + 1) & m->mask;
    }
    m->rules[i] = (struct rule){left, right, to};
}

struct td_text_pair td_text_merges_get(const struct td_text_merges *m, uint32_t left,
                                       uint32_t right)
{
    for (size_t i = slot_of(m, left, right);; i = (i + 1) & m->mask) {
        const struct rule *r = &m->rules[i];
        if (r->left == left && r->right == right) {
            return r->to;
        }
        if (r->left == NIL) {
            return (struct td_text_pair){TD_TEXT_NO_RANK, NIL};
        }
    }
}

size_t td_text_bpe_small(const struct td_text_merges *m, uint32_t *ids, size_t n)
{
    TD_REQUIRE(n <= TD_TEXT_SMALL);
    struct td_text_pair pair[TD_TEXT_SMALL]; /* pair[i] joins ids[i] and ids[i + 1] */
    for (size_t i = 0; i + 1 < n; i++) {
        pair[i] = td_text_merges_get(m, ids[i], ids[i + 1]);
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            best = pair[i].rank < pair[best].rank ? i : best;
        }
        if (pair[best].rank == TD_TEXT_NO_RANK) {
            break;
        }
        ids[best] = pair[best].id;
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
        if (best + 1 < n) {
            memmove(pair + best + 1, pair + best + 2, (n - best - 2) * sizeof *pair);
            pair[best] = td_text_merges_get(m, ids[best], ids[best + 1]);
        }
        if (best > 0) {
            pair[best - 1] = td_text_merges_get(m, ids[best - 1], ids[best]);
        }
    }
    return n;
}

void td_text_bpe_fini(struct td_text_bpe *b)
{
    free(b->syms);
    free(b->heap);
    memset(b, 0, sizeof *b);
}

static td_err reserve(struct td_text_bpe *b, size_t n)
{
    if (n <= b->cap) {
        return TD_OK;
    }
    n = n < b->cap * 2 ? b->cap * 2 : n;
    n = n < MIN_SYMS ? MIN_SYMS : n;
    td_text_bpe_fini(b);
    b->syms = td_zalloc(n, sizeof *b->syms);
    /* Every merge takes one entry out and puts at most two in: n - 1 at first, n - 1 merges. */
    b->heap = td_zalloc(n * 2, sizeof *b->heap);
    if (b->syms == NULL || b->heap == NULL) {
        td_text_bpe_fini(b);
        return TD_ERR_NO_MEMORY;
    }
    b->cap = n;
    return TD_OK;
}

/* Heap entries are rank << 32 | position of the left symbol, so that the smallest is the best rank,
 * leftmost. */
static void sift_down(uint64_t *heap, size_t n, size_t i)
{
    const uint64_t v = heap[i];
    for (size_t c; (c = 2 * i + 1) < n; i = c) {
        c += c + 1 < n && heap[c + 1] < heap[c];
        if (heap[c] >= v) {
            break;
        }
        heap[i] = heap[c];
    }
    heap[i] = v;
}

static void sift_up(uint64_t *heap, size_t i)
{
    const uint64_t v = heap[i];
    while (i > 0 && heap[(i - 1) / 2] > v) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = v;
}

/* Looks the pair at position `at` up again; returns whether it has a rank. */
static int rank_pair(const struct td_text_merges *m, struct td_text_sym *s, uint32_t at)
{
    const uint32_t next = s[at].next;
    s[at].rank = next == NIL ? TD_TEXT_NO_RANK : td_text_merges_get(m, s[at].id, s[next].id).rank;
    return s[at].rank != TD_TEXT_NO_RANK;
}

static size_t fill_heap(const struct td_text_merges *m, struct td_text_bpe *b, const uint32_t *ids,
                        size_t n)
{
    size_t n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        b->syms[i] = (struct td_text_sym){ids[i], i == 0 ? NIL : (uint32_t)i - 1,
                                          i + 1 == n ? NIL : (uint32_t)i + 1, TD_TEXT_NO_RANK};
    }
    for (size_t i = 0; i < n; i++) {
        if (rank_pair(m, b->syms, (uint32_t)i)) {
            b->heap[n_heap++] = (uint64_t)b->syms[i].rank << 32 | i;
        }
    }
    for (size_t i = n_heap / 2; i-- > 0;) {
        sift_down(b->heap, n_heap, i);
    }
    return n_heap;
}

/* Joins the symbol at `at` with its right neighbour. */
static void join(const struct td_text_merges *m, struct td_text_sym *s, uint32_t at)
{
    const uint32_t gone = s[at].next;
    s[at].id = td_text_merges_get(m, s[at].id, s[gone].id).id;
    s[at].next = s[gone].next;
    if (s[at].next != NIL) {
        s[s[at].next].prev = at;
    }
    s[gone].id = NIL;
    s[gone].rank = TD_TEXT_NO_RANK;
}

td_err td_text_bpe_large(const struct td_text_merges *m, struct td_text_bpe *b, uint32_t *ids,
                         size_t n, size_t *out_n)
{
    TD_REQUIRE(n > 0 && n < NIL);
    TD_TRY(reserve(b, n));
    struct td_text_sym *const s = b->syms;
    size_t n_heap = fill_heap(m, b, ids, n);
    while (n_heap > 0) {
        const uint64_t top = b->heap[0];
        b->heap[0] = b->heap[--n_heap];
        if (n_heap > 0) {
            sift_down(b->heap, n_heap, 0);
        }
        const uint32_t at = (uint32_t)top;
        if (s[at].rank != (uint32_t)(top >> 32)) {
            continue; /* the pair changed since: it has its own entry if it has a rank */
        }
        join(m, s, at);
        const uint32_t again[2] = {at, s[at].prev};
        for (size_t i = 0; i < 2; i++) {
            if (again[i] != NIL && rank_pair(m, s, again[i])) {
                b->heap[n_heap] = (uint64_t)s[again[i]].rank << 32 | again[i];
                sift_up(b->heap, n_heap++);
            }
        }
    }
    size_t out = 0;
    for (uint32_t i = 0; i != NIL; i = s[i].next) {
        ids[out++] = s[i].id;
    }
    *out_n = out;
    return TD_OK;
}
