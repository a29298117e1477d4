/* tokenizer.h - text to token ids: byte-level BPE, exactly as Hugging Face `tokenizers` does it.
 *
 * What: one object per thread over a shared vocabulary; it keeps scratch memory and a small cache
 * of recent words, so a steady state allocates nothing and English costs one look-up per word. Not:
 * a decoder (detok.h), a template engine. It keeps no text between calls except whole cached words
 * of at most 15 bytes, which no caller can read back. Owner and thread: the one thread that uses
 * it. The vocabulary is borrowed and outlives it. Bounds: TD_TEXT_INPUT_MAX bytes per call,
 * TD_TEXT_WORD_MAX bytes in one word of the pre-tokeniser (work is n log n in it), scratch of at
 * most 32 bytes per byte of the longest word plus 9 per byte of normalised input; above
 * TD_TEXT_KEEP_BYTES it is given back when the call ends. Failure: TD_ERR_TOO_LARGE,
 * TD_ERR_CONTEXT_LENGTH (past `limit`), TD_ERR_NO_MEMORY; the object stays usable.
 *
 * Segments. A prompt is a list of segments. The text of all of them is one text: words may span a
 * border, as if they had been one string. Control tokens are recognised only inside a segment with
 * allow_special (template text), longest match at the leftmost place; in user text "<|im_end|>" is
 * ordinary characters. User-defined tokens, which are words rather than controls, are recognised in
 * both.
 *
 * Invalid UTF-8. Bytes are preserved: a byte that does not belong to a well-formed character counts
 * as one character of the class "neither letter, number nor space" for splitting and becomes its
 * byte's token. If the vocabulary has a token for each byte (td_text_vocab_covers_bytes)
 * decode(encode(x)) == x for any bytes x, and == NFC(x) with a pre-tokeniser that normalises
 * (Qwen2). A byte without a token vanishes, as in Hugging Face and llama.cpp; SmolLM2 lacks 21 of
 * them, all control characters or bytes of no assigned character.
 */
#ifndef TD_TEXT_TOKENIZER_H
#define TD_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/text/vocab.h"

#define TD_TEXT_INPUT_MAX  (64u << 20)
#define TD_TEXT_WORD_MAX   (2u << 20)
#define TD_TEXT_KEEP_BYTES (1u << 20)

struct td_text_segment {
    const char *text; /* borrowed */
    size_t len;
    bool allow_special; /* template text; never set it for what a client sent */
};

struct td_text_tokenizer;

td_err td_text_tokenizer_create(const struct td_text_vocab *vocab,
                                struct td_text_tokenizer **out_tokenizer) TD_MUST_CHECK;
struct td_text_tokenizer *td_text_tokenizer_destroy(struct td_text_tokenizer *t);
TD_DEFINE_CLEANUP(struct td_text_tokenizer, td_text_tokenizer_destroy)

struct td_text_encode_args {
    const struct td_text_segment *segs; /* [n_segs] borrowed */
    size_t n_segs;
    bool add_bos; /* starts with bos, if the vocabulary has one; see td_text_vocab_adds_bos */
    size_t limit; /* more ids than this are an error; 0: no limit */
};

/* Ids that the call can give at most: with this much room a second call is never needed. More than
 * one per byte, because NFC may lengthen text (threefold at worst). */
static inline size_t td_text_encode_bound(const struct td_text_encode_args *args)
{
    size_t bytes = 0;
    for (size_t i = 0; i < args->n_segs; i++) {
        bytes += args->segs[i].len;
    }
    bytes = bytes < TD_TEXT_INPUT_MAX ? bytes : TD_TEXT_INPUT_MAX;
    const size_t bound = bytes * 4 + 2;
    return args->limit != 0 && args->limit < bound ? args->limit : bound;
}

/* Writes the first `cap` ids to out_ids and the count of all ids to *out_n, so *out_n > cap means:
 * call again with more room. cap 0 (out_ids may be NULL) counts. Stops with TD_ERR_CONTEXT_LENGTH
 * as soon as there are more than `limit` ids. On failure *out_n is untouched and out_ids undefined.
 */
td_err td_text_tokenizer_encode(struct td_text_tokenizer *t, const struct td_text_encode_args *args,
                                int32_t *out_ids, size_t cap, size_t *out_n) TD_MUST_CHECK;

#endif
