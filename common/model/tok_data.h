/* tok_data.h - what a model says about its tokenizer and chat template, as plain arrays.
 *
 * What: pieces, types, merges, special ids and flags, checked for kind and range, with two hashes
 * that nodes compare; from a GGUF file here, from a Hugging Face directory in hf_tok.h.
 * Not: a tokenizer: common/text builds one from this; whether merges name known
 * pieces is checked there. Owner: td_model, or a test that opened a file without weights. Thread:
 * any after loading. Strings are views into the file: close it last. Bounds: TD_TOK_MAX_TOKENS
 * pieces, TD_GGUF_MAX_ARRAY merges; bytes as in gguf.h. Failure: TD_ERR_FILE_FORMAT,
 * TD_ERR_FILE_UNSUPPORTED or TD_ERR_NO_MEMORY with a sentence in err_text; not logged here.
 */
#ifndef TD_MODEL_TOK_DATA_H
#define TD_MODEL_TOK_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/err.h"
#include "common/model/file.h"
#include "common/model/gguf.h"

#define TD_TOK_MAX_TOKENS  (1024u * 1024)
#define TD_TOK_MAX_END_IDS 16

/* Everything a tokenizer needs, as the file says it; ids are checked against n_tokens. */
struct td_model_tokenizer {
    struct td_str model;         /* "gpt2": byte-level BPE */
    struct td_str pre;           /* "smollm", "llama-bpe", "qwen2", ...; empty when absent */
    uint32_t n_tokens;           /* equals n_vocab */
    const struct td_str *tokens; /* [n_tokens] pieces, in the file's own escaping */
    const int32_t *
        types; /* [n_tokens] 1 normal 2 unknown 3 control 4 user-defined 5 unused 6 byte, or NULL */
    const float *scores; /* [n_tokens] or NULL */
    uint32_t n_merges;
    const struct td_str *merges;     /* [n_merges] "left right" */
    int32_t bos, eos, eot, unk, pad; /* -1: none */
    uint32_t n_end_ids; /* ids that end an answer: eos, eot, eom and control tokens known to end a
                           turn */
    int32_t end_ids[TD_TOK_MAX_END_IDS];
    bool add_bos, add_eos, add_space_prefix;
    int8_t ignore_merges, nfc;   /* 1, 0, or -1: as `pre` does */
    struct td_str chat_template; /* empty when absent */
    uint8_t tokenizer_hash[32];  /* SHA-256 over model, pre, pieces, types, merges, special ids and
                                    flags */
    uint8_t template_hash[32];   /* SHA-256 of chat_template */
    struct td_arena *arena;      /* owned; what the strings point into unless that is a file */
};

/* Fills *out from the file; on failure *out is zeroed. */
td_err td_tok_data_load(const struct td_gguf *g, struct td_model_tokenizer *out, char *err_text,
                        size_t err_cap) TD_MUST_CHECK;
/* For the readers of other formats: adds an id once, -1 not at all; then, last, the end ids known by
 * name and the hashes. */
void td_tok_data_add_end_id(struct td_model_tokenizer *t, int32_t id);
td_err td_tok_data_finish(struct td_model_tokenizer *t, const struct td_why *w) TD_MUST_CHECK;
/* Frees the arrays; harmless on a zeroed struct. */
void td_tok_data_fini(struct td_model_tokenizer *t);

#endif
