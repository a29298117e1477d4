/* export_tokenizer.h - `tandemctl export-tokenizer DIR --model PATH`: the model's tokenizer as Hugging Face's files.
 *
 * What: writes DIR/tokenizer.json and DIR/tokenizer_config.json (common/text/hf_files.h).
 * Thread: main. Failure: a line on stderr; a file is written whole or not at all.
 */
#ifndef CTL_EXPORT_TOKENIZER_H
#define CTL_EXPORT_TOKENIZER_H

#include "ctl/command.h"

extern const struct td_program ctl_export_tokenizer_program;
enum ctl_exit ctl_export_tokenizer(const void *options, char *const *args);

#endif
