/* hf_tok.h - tokenizer.json and the files beside it, as the plain arrays of tok_data.h.
 *
 * What: byte-level BPE (model, added tokens, pre-tokenizer, normalizer, post-processor), the special
 * ids and end tokens of tokenizer_config.json, config.json and generation_config.json, the chat
 * template. Everything that would change ids and is not supported (other models, unknown split
 * patterns, stripping around added tokens, byte fallback) is refused, never guessed. Not: a
 * tokenizer (common/text). Thread: any; pure over parsed JSON. Bounds: TD_TOK_MAX_TOKENS tokens,
 * TD_GGUF_MAX_ARRAY merges, TD_HF_TOK_MAX_BYTES of text. Failure: TD_ERR_FILE_FORMAT,
 * TD_ERR_FILE_UNSUPPORTED or TD_ERR_NO_MEMORY with a sentence.
 */
#ifndef TD_MODEL_HF_TOK_H
#define TD_MODEL_HF_TOK_H

#include <jansson.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/model/file.h"
#include "common/model/tok_data.h"

#define TD_HF_TOK_MAX_BYTES (256u * 1024 * 1024)

/* The split patterns of some families, as their files spell them. */
#define TD_HF_SPLIT_WORDS  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define TD_HF_SPLIT_REST   "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define TD_HF_SPLIT_LLAMA3 TD_HF_SPLIT_WORDS "\\p{N}{1,3}" TD_HF_SPLIT_REST
#define TD_HF_SPLIT_QWEN2  TD_HF_SPLIT_WORDS "\\p{N}" TD_HF_SPLIT_REST
#define TD_HF_SPLIT_QWEN35                                                                         \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"                    \
    "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define TD_HF_SPLIT_TEKKEN                                                                         \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"   \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|"   \
    "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Borrowed for the call; only tokenizer must be there. */
struct td_hf_tok_src {
    const json_t *tokenizer;        /* tokenizer.json */
    const json_t *tokenizer_config; /* or NULL */
    const json_t *config;           /* config.json, or NULL */
    const json_t *generation;       /* generation_config.json, or NULL */
    struct td_str jinja;            /* chat_template.jinja; empty when there is none */
    uint32_t n_vocab; /* rows of the embedding: ids beyond the vocabulary are unused */
};

/* On failure *out is zeroed; td_tok_data_fini() frees it. */
td_err td_hf_tok_load(const struct td_hf_tok_src *src, struct td_model_tokenizer *out,
                      const struct td_why *w) TD_MUST_CHECK;

#endif
