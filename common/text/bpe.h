/* bpe.h - merge rules, and the merging of one word.
 *
 * What: the pair (left id, right id) -> {rank, merged id} table, and two ways to merge a word that
 * give the same ids: a scan for up to TD_TEXT_SMALL symbols, a heap with linked symbols above, so
 * that a word of n symbols costs n log n. Always the best rank first, the leftmost among equals, as
 * Hugging Face does. Not:  a splitter (split.h), a piece look-up (vocab.h). Owner: the table
 * belongs to the vocabulary and never changes; the scratch belongs to a tokenizer. Bounds: rules up
 * to TD_TEXT_MERGES_MAX, 16 bytes in a table at most half full; scratch 32 bytes per symbol.
 * Failure: TD_ERR_NO_MEMORY.
 */
#ifndef TD_TEXT_BPE_H
#define TD_TEXT_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

#define TD_TEXT_SMALL   64u
#define TD_TEXT_NO_RANK UINT32_MAX

struct td_text_pair {
    uint32_t rank; /* TD_TEXT_NO_RANK: these two do not merge */
    uint32_t id;
};

struct td_text_merges;

td_err td_text_merges_create(size_t n_rules, struct td_text_merges **out_merges) TD_MUST_CHECK;
struct td_text_merges *td_text_merges_destroy(struct td_text_merges *m);
/* At most n_rules different pairs; a pair seen again takes the later rank. */
void td_text_merges_put(struct td_text_merges *m, uint32_t left, uint32_t right,
                        struct td_text_pair to);
struct td_text_pair td_text_merges_get(const struct td_text_merges *m, uint32_t left,
                                       uint32_t right);

/* Scratch for long words; zero-initialise. */
struct td_text_bpe {
    struct td_text_sym *syms; /* owned */
    uint64_t *heap;           /* owned */
    size_t cap;               /* symbols */
};

void td_text_bpe_fini(struct td_text_bpe *b);

/* Merges ids[0..n) in place, n <= TD_TEXT_SMALL; returns how many are left. */
size_t td_text_bpe_small(const struct td_text_merges *m, uint32_t *ids, size_t n);
/* The same for any n up to TD_TEXT_WORD_MAX. */
td_err td_text_bpe_large(const struct td_text_merges *m, struct td_text_bpe *b, uint32_t *ids,
                         size_t n, size_t *out_n) TD_MUST_CHECK;

#endif
