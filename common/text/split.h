/* split.h - pre-tokenisers: cut text into the words within which BPE merges.
 *
 * What: hand-written scanners for the split patterns of the model families. Each call finds one
 * word and looks twice at no byte but those of a whitespace run; the result is that of the regular
 * expression as Hugging Face runs it:
 *
 *   gpt2:   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 *   smollm: every \p{N} alone, then gpt2 on what lies between.
 *
 *   llama3: (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}
 *           | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 *
 *   qwen2:  llama3 with \p{N} alone; the text is NFC first.
 *
 *   tekken: [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+
 *           |[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}
 *           | ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
 *
 *   qwen35: llama3 with \p{N} alone and marks as letters: [\p{L}\p{M}]+, [^\s\p{L}\p{M}\p{N}]+.
 *
 * Not:  a general regular expression engine: there is nothing a prompt could make it backtrack
 * over. Thread: any; pure. Bounds: none of its own. Failure: none; a stray byte is a character of
 * no class.
 */
#ifndef TD_TEXT_SPLIT_H
#define TD_TEXT_SPLIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/text/unicode.h"

enum td_text_pre_kind {
    TD_TEXT_PRE_GPT2,
    TD_TEXT_PRE_SMOLLM,
    TD_TEXT_PRE_LLAMA3,
    TD_TEXT_PRE_QWEN2,
    TD_TEXT_PRE_QWEN35,
    TD_TEXT_PRE_TEKKEN,
    TD_TEXT_PRE_KINDS
};

/* How a family of models treats text around BPE. */
struct td_text_pre {
    const char *name; /* the name it was found by, static */
    enum td_text_pre_kind kind;
    bool ignore_merges; /* a word that is a token is that token, whatever the merges say */
    bool add_bos;       /* when the file does not say */
};

/* The rules of `name` (a value of tokenizer.ggml.pre; "" is "default"); NULL when this build does
 * not know it. */
const struct td_text_pre *td_text_pre_find(const char *name);

/* NFC before splitting? */
static inline bool td_text_pre_normalises(enum td_text_pre_kind k)
{
    return k == TD_TEXT_PRE_QWEN2;
}

/* Bytes of the word at the start of [p, end); requires p < end; never 0. */
size_t td_text_split(const struct td_text_uni *u, enum td_text_pre_kind kind, const uint8_t *p,
                     const uint8_t *end);

#endif
