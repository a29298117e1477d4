/* rank_step.h - the step that rank 0 tells the other ranks of its group, as bytes.
 *
 * What: writes a checked step or the goodbye; reads one that came from elsewhere, every field checked against the
 * reader's own limits. Not: transport (ranks.h), and not sampling: only rank 0 samples, so ids, slots and settings stay there.
 * Owner and thread: the engine's. Bounds: td_rank_step_cap(). Failure: a message that does not fit is refused with the
 * name of the first field that is wrong; what was read until then is left in the step, which nobody may run.
 * The bytes: docs/wire.md, section 5.
 */
#ifndef TD_MODEL_RANK_STEP_H
#define TD_MODEL_RANK_STEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/model/engine_steps.h"

#define TD_RANK_STEP_VERSION 1 /* of these messages and of the exchanges of a step */

enum td_rank_step_kind { TD_RANK_STEP = 1, TD_RANK_BYE = 2 };

/* Bytes of the longest message under these limits. */
size_t td_rank_step_cap(const struct td_engine_info *info);
/* The live rows of a step whose tokens lie without gaps; every_logit: the LM head for every token. */
size_t td_rank_step_write(const struct td_step *s, bool every_logit, uint8_t *out);
size_t td_rank_step_write_bye(uint8_t *out);

/* Reads n bytes of any alignment. `last`: ticket of the step before. A TD_RANK_STEP fills ticket, n_rows, n_tok, rows,
 * tokens and tables of `out` as those of a submitted step; a row that samples has sampling 0, else TD_NO_SAMPLE; of
 * `want` it has TD_KV_LANDED. NULL, or the field that is wrong: *out_kind and *out_every_logit are untouched then. */
const char *td_rank_step_read(const struct td_steps *q, td_ticket last, const uint8_t *data,
                              size_t n, struct td_step *out, enum td_rank_step_kind *out_kind,
                              bool *out_every_logit);

#endif
