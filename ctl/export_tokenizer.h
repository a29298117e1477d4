/* export_tokenizer.h - `tandemctl export-tokenizer DIR --model PATH`: the model's tokenizer as Hugging Face's files.
 *
 * What: writes DIR/tokenizer.json (for `tokenizers`) and DIR/tokenizer_config.json (for `transformers`: class, special
 * tokens, chat template), so that load generators and clients count tokens exactly as the cluster does.
 * Not: weights; a tokenizer of its own: the ids are those of common/text, which tests/text_oracle.py compares.
 * Thread: main. Failure: a line on stderr; a file is written whole or not at all.
 */
#ifndef CTL_EXPORT_TOKENIZER_H
#define CTL_EXPORT_TOKENIZER_H

#include "common/base/buf.h"
#include "common/model/tok_data.h"
#include "ctl/command.h"

extern const struct td_program ctl_export_tokenizer_program;
enum ctl_exit ctl_export_tokenizer(const void *options, char *const *args);

/* The texts of the two files. TD_ERR_FILE_UNSUPPORTED: a pre-tokeniser that this build does not know. */
td_err ctl_tokenizer_json(const struct td_model_tokenizer *t, struct td_buf *out) TD_MUST_CHECK;
/* n_ctx: 0 when not known. */
td_err ctl_tokenizer_config_json(const struct td_model_tokenizer *t, uint32_t n_ctx,
                                 struct td_buf *out) TD_MUST_CHECK;

#endif
