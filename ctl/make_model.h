/* make_model.h - `tandemctl make-model --shape SHAPE OUT`: a Hugging Face directory with random
 * weights, for measuring and testing without a download.
 *
 * What: checks OUT (new or empty) and the disk, writes with all cores, shows how far it is. Not: the
 * writer (common/model/random_model.h). Thread: main. Failure: a line on stderr; what was written
 * stays.
 */
#ifndef CTL_MAKE_MODEL_H
#define CTL_MAKE_MODEL_H

#include "ctl/command.h"

extern const struct td_program ctl_make_model_program;
enum ctl_exit ctl_make_model(const void *options, char *const *args);

#endif
