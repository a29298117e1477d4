/* vocab_priv.h - the vocabulary's body, for the files of common/text that encode with it. Nobody
 * else includes it. */
#ifndef TD_TEXT_VOCAB_PRIV_H
#define TD_TEXT_VOCAB_PRIV_H

#include "common/text/bpe.h"
#include "common/text/special.h"
#include "common/text/split.h"
#include "common/text/unicode.h"
#include "common/text/vocab.h"

struct td_text_vocab {
    uint32_t magic;
    const struct td_text_pre *pre;     /* static */
    struct td_text_uni *uni;           /* owned */
    struct td_text_merges *merges;     /* owned */
    struct td_text_specials *specials; /* owned */
    size_t n_tokens;
    uint8_t *blob;   /* owned: the bytes of all tokens, one after the other */
    uint32_t *start; /* owned; [n_tokens + 1] offsets in blob */
    uint8_t *type;   /* owned; [n_tokens] enum td_text_type | TD__TEXT_* */
    uint32_t *dict;  /* owned; [dict_mask + 1] ids by the hash of their bytes; UINT32_MAX: empty */
    size_t dict_mask;
    uint32_t byte_id[256]; /* id of the one-byte piece, or UINT32_MAX */
    size_t longest;
    int32_t bos, eos, eot, pad, unk;
    bool add_bos, ignore_merges, nfc;
    bool add_space_prefix;
    bool covers_bytes;
};

#define TD__TEXT_TYPE   0x0f
#define TD__TEXT_MAPPED 0x10 /* its bytes are in the dictionary: merges may use it */

/* The id whose bytes these are, among the pieces that merges may use, or UINT32_MAX. */
uint32_t td__text_vocab_lookup(const struct td_text_vocab *v, const uint8_t *bytes, size_t len);

#endif
