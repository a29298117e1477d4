/* gguf_vocab.h - a vocabulary from a GGUF file, for tests and benchmarks. */
#ifndef TEST_TEXT_GGUF_VOCAB_H
#define TEST_TEXT_GGUF_VOCAB_H

#include <stdlib.h>
#include <string.h>

#include "common/model/tok_data.h"
#include "common/text/vocab.h"

static inline struct td_text_str *test_strs(const struct td_str *s, size_t n)
{
    struct td_text_str *out = calloc(n + 1, sizeof *out);
    for (size_t i = 0; out != NULL && i < n; i++) {
        out[i] = (struct td_text_str){s[i].data, s[i].len};
    }
    return out;
}

static inline td_err test_vocab_from_data(const struct td_model_tokenizer *d,
                                          struct td_text_vocab **out_vocab)
{
    struct td_text_str *pieces = test_strs(d->tokens, d->n_tokens);
    struct td_text_str *merges = test_strs(d->merges, d->n_merges);
    char pre[64] = "";
    memcpy(pre, d->pre.data, d->pre.len < sizeof pre ? d->pre.len : sizeof pre - 1);
    const struct td_text_vocab_src src = {
        .n_tokens = d->n_tokens,
        .pieces = pieces,
        .token_type = d->types,
        .n_merges = d->n_merges,
        .merges = merges,
        .pre = pre,
        .bos = d->bos,
        .eos = d->eos,
        .eot = d->eot,
        .pad = d->pad,
        .unk = d->unk,
        .add_bos = d->add_bos,
        .ignore_merges = d->ignore_merges,
        .nfc = d->nfc,
        .add_space_prefix = d->add_space_prefix,
    };
    const td_err e = td_text_vocab_create(&src, out_vocab);
    free(pieces);
    free(merges);
    return e;
}

/* NULL with a line on stderr when it cannot. */
static inline struct td_text_vocab *test_vocab_from_gguf(const char *path)
{
    char why[TD_GGUF_ERR_TEXT] = "";
    struct td_gguf *g = NULL;
    struct td_model_tokenizer data = {0};
    struct td_text_vocab *v = NULL;
    td_err e = td_gguf_open(path, &g, why, sizeof why);
    if (e == TD_OK) {
        e = td_tok_data_load(g, &data, why, sizeof why);
    }
    if (e == TD_OK) {
        e = test_vocab_from_data(&data, &v);
    }
    if (e != TD_OK) {
        fprintf(stderr, "%s: %s %s\n", path, td_err_text(e), why);
    }
    td_tok_data_fini(&data);
    td_gguf_close(g);
    return v;
}

#endif
