/* random_model_priv.h - what random_model.c (weights) and random_model_text.c (JSON files) share.
 * Included by no one else. */
#ifndef TD_MODEL_RANDOM_MODEL_PRIV_H
#define TD_MODEL_RANDOM_MODEL_PRIV_H

#include "common/base/buf.h"
#include "common/model/random_model.h"
#include "common/model/tiny_vocab.h"

/* Writes a whole file of the directory. */
td_err td__random_write_file(const char *dir, const char *name, const void *data, size_t len,
                             const struct td_why *w) TD_MUST_CHECK;
/* Everything but the weights. */
td_err td__random_write_texts(const struct td_random_shape *s, const struct td_tiny_vocab *v,
                              const char *dir, const struct td_why *w) TD_MUST_CHECK;

#endif
