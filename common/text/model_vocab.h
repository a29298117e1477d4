/* model_vocab.h - the vocabulary of a model that common/model has read.
 *
 * Owner: as of vocab.h. Thread: any. Bounds and failure: those of td_text_vocab_create.
 */
#ifndef TD_TEXT_MODEL_VOCAB_H
#define TD_TEXT_MODEL_VOCAB_H

#include "common/model/tok_data.h"
#include "common/text/vocab.h"

/* t is borrowed for the call. */
td_err td_text_vocab_of_model(const struct td_model_tokenizer *t,
                              struct td_text_vocab **out_vocab) TD_MUST_CHECK;

#endif
