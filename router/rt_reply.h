/* rt_reply.h - the bodies the router answers with: OpenAI objects, SSE events, errors. Appends JSON
 * to a buffer.
 *
 * Pure. Text must be valid UTF-8 (the detokeniser's is). Bounds and failure: those of td_buf.
 */
#ifndef ROUTER_RT_REPLY_H
#define ROUTER_RT_REPLY_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "proto/wire.h"

struct rt_reply_head { /* the same in every chunk of one answer */
    bool chat;
    const char *id; /* with its prefix chatcmpl- or cmpl- */
    const char *model;
    int64_t created_s;
};

struct rt_reply_usage {
    uint64_t prompt_tokens, completion_tokens, cached_tokens;
};

struct rt_reply_choice {
    uint32_t index;
    const char *text;
    size_t len;
    enum td_finish finish;    /* NONE: null */
    const char *stop_reason;  /* the stop string that ended it, or NULL */
    const int32_t *token_ids; /* only when asked for */
    uint32_t n_token_ids;
    bool with_token_ids;
};

const char *rt_finish_name(enum td_finish f);

/* A whole answer. */
td_err rt_reply_whole(struct td_buf *out, const struct rt_reply_head *h,
                      const struct rt_reply_choice *choices, uint32_t n,
                      const struct rt_reply_usage *u) TD_MUST_CHECK;
/* SSE events, each with its blank line. */
td_err rt_reply_role(struct td_buf *out, const struct rt_reply_head *h, uint32_t index,
                     const struct rt_reply_usage *u) TD_MUST_CHECK;
td_err rt_reply_chunk(struct td_buf *out, const struct rt_reply_head *h,
                      const struct rt_reply_choice *c,
                      const struct rt_reply_usage *u) TD_MUST_CHECK;
td_err rt_reply_usage_chunk(struct td_buf *out, const struct rt_reply_head *h,
                            const struct rt_reply_usage *u) TD_MUST_CHECK;
td_err rt_reply_error_event(struct td_buf *out, td_err err, const char *text) TD_MUST_CHECK;
td_err rt_reply_done(struct td_buf *out) TD_MUST_CHECK;

#endif
