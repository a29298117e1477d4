/* hf_files.h - a model's tokenizer as Hugging Face's files: tokenizer.json, tokenizer_config.json, both in a zip archive.
 *
 * What: tokenizer.json is for `tokenizers`, tokenizer_config.json for `transformers` (class, special tokens, chat template),
 * so that clients and routers count tokens exactly as the cluster does. The same tokenizer gives the same bytes.
 * Not: weights; a tokenizer of its own: the ids are those of this folder, which tests/text_oracle.py compares.
 * Thread: any, no state; large vocabularies take a second, so never on a loop. Bounds: TD_TEXT_HF_MAX_BYTES of a file.
 * Failure: TD_ERR_FILE_UNSUPPORTED: a pre-tokeniser that this build does not know; TD_ERR_NO_MEMORY, TD_ERR_FULL.
 */
#ifndef TD_TEXT_HF_FILES_H
#define TD_TEXT_HF_FILES_H

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/model/tok_data.h"

#define TD_TEXT_HF_MAX_BYTES (256u << 20)

td_err td_text_hf_tokenizer(const struct td_model_tokenizer *t, struct td_buf *out) TD_MUST_CHECK;
/* n_ctx: 0 when not known. */
td_err td_text_hf_tokenizer_config(const struct td_model_tokenizer *t, uint32_t n_ctx,
                                   struct td_buf *out) TD_MUST_CHECK;
/* Both files, deflated. */
td_err td_text_hf_zip(const struct td_model_tokenizer *t, uint32_t n_ctx,
                      struct td_buf *out) TD_MUST_CHECK;

#endif
