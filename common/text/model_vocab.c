#include "common/text/model_vocab.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/mem.h"

/* The reader's strings and the tokenizer's have the same shape but other names: copied once, at
 * start. */
static struct td_text_str *strings(const struct td_str *s, uint32_t n)
{
    struct td_text_str *out = td_zalloc((size_t)n + 1, sizeof *out);
    for (uint32_t i = 0; out != NULL && i < n; i++) {
        out[i] = (struct td_text_str){.ptr = s[i].data, .len = s[i].len};
    }
    return out;
}

td_err td_text_vocab_of_model(const struct td_model_tokenizer *t, struct td_text_vocab **out_vocab)
{
    struct td_text_vocab_src src = TD_TEXT_VOCAB_SRC_INIT;
    char pre[64];
    (void)snprintf(pre, sizeof pre, "%.*s", (int)(t->pre.len < 63 ? t->pre.len : 63),
                   t->pre.data != NULL ? t->pre.data : "");
    TD_CLEANUP(td_freep) struct td_text_str *pieces = strings(t->tokens, t->n_tokens);
    TD_CLEANUP(td_freep) struct td_text_str *merges = strings(t->merges, t->n_merges);
    if (pieces == NULL || merges == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    src.n_tokens = t->n_tokens;
    src.pieces = pieces;
    src.token_type = t->types;
    src.n_merges = t->n_merges;
    src.merges = merges;
    src.pre = pre;
    src.bos = t->bos;
    src.eos = t->eos;
    src.eot = t->eot;
    src.pad = t->pad;
    src.unk = t->unk;
    src.add_bos = t->add_bos ? 1 : 0;
    src.add_space_prefix = t->add_space_prefix;
    src.ignore_merges = t->ignore_merges;
    src.nfc = t->nfc;
    return td_text_vocab_create(&src, out_vocab);
}
