/* stop.h - ends a stream of text at the first of several stop strings.
 *
 * What: text goes in by chunks of any size and comes out as soon as it can no longer be the
 * beginning of a stop string; the held-back rest is the longest suffix that still could be. What is
 * cut does not depend on the chunks: the match that is complete first wins, among those that end at
 * one byte the longest. Not:  a judge of tokens (stop_token_ids, eos): ids are compared where they
 * are sampled. Owner and thread: the stream it serves; created per request. Bounds:
 * TD_TEXT_STOPS_MAX strings of 1 to TD_TEXT_STOP_BYTES_MAX bytes; work is linear in text times
 * strings. Failure: TD_ERR_BAD_REQUEST at creation for an empty, too long or one too many string;
 * that of td_buf on output, after which nothing has changed.
 */
#ifndef TD_TEXT_STOP_H
#define TD_TEXT_STOP_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/text/vocab.h"

#define TD_TEXT_STOPS_MAX      16u
#define TD_TEXT_STOP_BYTES_MAX 1024u

struct td_text_stop;

/* `include`: the stop string itself is part of the output. n == 0 is fine: then text passes
 * through. The strings are copied. */
td_err td_text_stop_create(const struct td_text_str *stops, size_t n, bool include,
                           struct td_text_stop **out_stop) TD_MUST_CHECK;
struct td_text_stop *td_text_stop_destroy(struct td_text_stop *s);
TD_DEFINE_CLEANUP(struct td_text_stop, td_text_stop_destroy)

/* Feeds `len` bytes; appends what may go out. After a match everything is swallowed. */
td_err td_text_stop_push(struct td_text_stop *s, const void *text, size_t len,
                         struct td_buf *out) TD_MUST_CHECK;
/* The stream ended without a match: appends what was held back. */
td_err td_text_stop_flush(struct td_text_stop *s, struct td_buf *out) TD_MUST_CHECK;
/* Index of the stop string that matched, or -1. */
int td_text_stop_matched(const struct td_text_stop *s);
/* Bytes held back now. */
size_t td_text_stop_held(const struct td_text_stop *s);

#endif
