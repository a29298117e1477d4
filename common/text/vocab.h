/* vocab.h - the immutable vocabulary of a byte-level BPE model: pieces, merges, special tokens,
 * pre-tokeniser.
 *
 * What: built once from plain arrays (whoever reads the model file fills struct td_text_vocab_src),
 * then shared by any number of tokenizers and detokenisers. Answers id -> bytes and who is a
 * control token. Not:  a file reader (common/model), an encoder (tokenizer.h), a template engine
 * (template.h). Owner: its creator, who keeps it alive longer than every tokenizer and detokeniser
 * over it. Thread: any; nothing changes after creation. Bounds: the TD_TEXT_* maxima below; every
 * one is checked and refused, never asserted. Failure: TD_ERR_FILE_FORMAT (malformed or hostile
 * arrays), TD_ERR_FILE_UNSUPPORTED (a pre-tokeniser that this build lacks: splitting text by a
 * wrong rule would give silently wrong ids), TD_ERR_NO_MEMORY.
 */
#ifndef TD_TEXT_VOCAB_H
#define TD_TEXT_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/base/mem.h"

#define TD_TEXT_VOCAB_MAX       (1u << 20)  /* tokens */
#define TD_TEXT_MERGES_MAX      (1u << 22)  /* merge rules */
#define TD_TEXT_PIECE_MAX       4096u       /* bytes of one piece as the file writes it */
#define TD_TEXT_PIECE_BYTES_MAX (16u << 20) /* bytes of all pieces together */
#define TD_TEXT_MERGE_BYTES_MAX (32u << 20) /* bytes of all merge rules together */
#define TD_TEXT_SPECIAL_MAX     512u        /* bytes of one control or user-defined token */
#define TD_TEXT_NO_ID           (-1)

/* Token types, by the numbers of `tokenizer.ggml.token_type`. */
enum td_text_type {
    TD_TEXT_NORMAL = 1,
    TD_TEXT_UNKNOWN = 2,
    TD_TEXT_CONTROL = 3,
    TD_TEXT_USER_DEFINED = 4,
    TD_TEXT_UNUSED = 5,
    TD_TEXT_BYTE = 6,
};

/* A counted string; not terminated. */
struct td_text_str {
    const char *ptr; /* borrowed */
    size_t len;
};

/* Everything is borrowed for the call of td_text_vocab_create only. */
struct td_text_vocab_src {
    size_t n_tokens;
    const struct td_text_str
        *pieces; /* [n_tokens] `tokenizer.ggml.tokens`: normal pieces in GPT-2's byte alphabet */
    const int32_t *token_type; /* [n_tokens] or NULL: all normal */
    size_t n_merges;
    const struct td_text_str *merges; /* [n_merges] "left right", best rank first */
    const char *pre; /* `tokenizer.ggml.pre`; NULL, "" and "default" mean the GPT-2 pattern */
    int64_t bos, eos, eot, pad, unk; /* ids, or TD_TEXT_NO_ID */
    int add_bos;           /* 1, 0, or -1 when the file is silent: then the pre-tokeniser's habit */
    int ignore_merges;     /* a word that is a token is that token: 1, 0, or -1: the same habit */
    int nfc;               /* text is brought to NFC first: 1, 0, or -1: the same habit */
    bool add_space_prefix; /* a run of text that does not start with a space gets one */
};

/* A source with no tokens and every special id absent. */
#define TD_TEXT_VOCAB_SRC_INIT                                                                     \
    {                                                                                              \
        .bos = TD_TEXT_NO_ID, .eos = TD_TEXT_NO_ID, .eot = TD_TEXT_NO_ID, .pad = TD_TEXT_NO_ID,    \
        .unk = TD_TEXT_NO_ID, .add_bos = -1, .ignore_merges = -1, .nfc = -1                        \
    }

struct td_text_vocab;

/* *out_vocab is owned by the caller. A source without tokens, with an id out of range, a piece that
 * is not UTF-8 or too long, or a merge rule over pieces that do not exist is refused. */
td_err td_text_vocab_create(const struct td_text_vocab_src *src,
                            struct td_text_vocab **out_vocab) TD_MUST_CHECK;
struct td_text_vocab *td_text_vocab_destroy(struct td_text_vocab *v);
TD_DEFINE_CLEANUP(struct td_text_vocab, td_text_vocab_destroy)

size_t td_text_vocab_size(const struct td_text_vocab *v);
/* The bytes that token `id` stands for (a control token: its own text); not terminated. NULL when
 * out of range. */
const uint8_t *td_text_vocab_bytes(const struct td_text_vocab *v, int32_t id, size_t *out_len);
/* Longest td_text_vocab_bytes of all tokens. */
size_t td_text_vocab_longest(const struct td_text_vocab *v);
/* Control and unknown tokens: what skip_special hides and what user text can never become. */
bool td_text_vocab_is_control(const struct td_text_vocab *v, int32_t id);
/* Id of the control or user-defined token with exactly this text, or TD_TEXT_NO_ID. */
int32_t td_text_vocab_special(const struct td_text_vocab *v, const char *text, size_t len);
/* Special ids; TD_TEXT_NO_ID when absent. */
int32_t td_text_vocab_bos(const struct td_text_vocab *v);
int32_t td_text_vocab_eos(const struct td_text_vocab *v);
int32_t td_text_vocab_eot(const struct td_text_vocab *v);
int32_t td_text_vocab_pad(const struct td_text_vocab *v);
int32_t td_text_vocab_unk(const struct td_text_vocab *v);
/* Whether a completion's prompt starts with bos (a rendered chat template brings its own). */
bool td_text_vocab_adds_bos(const struct td_text_vocab *v);
/* True when every byte value has a token, so that any bytes survive encode and decode. */
bool td_text_vocab_covers_bytes(const struct td_text_vocab *v);

#endif
