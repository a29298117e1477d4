/* tiny_vocab.h - a small byte-level BPE vocabulary in the spelling of GPT-2: four control tokens,
 * the 256 bytes, and merges learned from a fixed text by the usual greedy rule, so that English
 * words have pieces of several lengths.
 *
 * Owner: its test. Thread: any after creation. Failure: TD_ERR_NO_MEMORY.
 */
#ifndef TD_MODEL_TINY_VOCAB_H
#define TD_MODEL_TINY_VOCAB_H

#include "common/base/err.h"
#include "common/model/gguf.h"

#define TD_TINY_MAX_MERGES 200
#define TD_TINY_SPECIALS   4
#define TD_TINY_ENDOFTEXT  0
#define TD_TINY_IM_START   1
#define TD_TINY_IM_END     2
#define TD_TINY_PAD        3
#define TD_TINY_MAX_TOKENS (TD_TINY_SPECIALS + 256 + TD_TINY_MAX_MERGES)

struct td_tiny_vocab {
    uint32_t n_tokens, n_merges;
    struct td_str tokens[TD_TINY_MAX_TOKENS];
    int32_t types[TD_TINY_MAX_TOKENS];
    struct td_str merges[TD_TINY_MAX_MERGES];
    bool printable[TD_TINY_MAX_TOKENS]; /* ASCII text: what a tiny model likes to say */
    char *text;                         /* owned: what the strings point into */
};

td_err td_tiny_vocab_create(struct td_tiny_vocab **out_vocab) TD_MUST_CHECK;
struct td_tiny_vocab *td_tiny_vocab_destroy(struct td_tiny_vocab *v);
TD_DEFINE_CLEANUP(struct td_tiny_vocab, td_tiny_vocab_destroy)

#endif
