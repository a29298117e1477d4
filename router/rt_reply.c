#include "router/rt_reply.h"

#include <inttypes.h>
#include <string.h>

#include "common/io/http_error.h"

const char *rt_finish_name(enum td_finish f)
{
    switch (f) {
    case TD_FINISH_STOP:
        return "stop";
    case TD_FINISH_LENGTH:
        return "length";
    case TD_FINISH_ABORT:
        return "abort";
    case TD_FINISH_ERROR:
        return "error";
    case TD_FINISH_NONE:
        break;
    }
    return "";
}

static td_err text_field(struct td_buf *b, const char *key, const char *s)
{
    TD_TRY(td_buf_printf(b, "\"%s\":", key));
    return s != NULL ? td_buf_json_string(b, s, strlen(s)) : td_buf_puts(b, "null");
}

static td_err head(struct td_buf *b, const struct rt_reply_head *h, const char *object)
{
    TD_TRY(td_buf_puts(b, "{"));
    TD_TRY(text_field(b, "id", h->id));
    TD_TRY(td_buf_printf(b, ",\"object\":\"%s\",\"created\":%" PRId64 ",", object, h->created_s));
    return text_field(b, "model", h->model);
}

static const char *chunk_object(const struct rt_reply_head *h)
{
    return h->chat ? "chat.completion.chunk" : "text_completion";
}

static td_err usage(struct td_buf *b, const struct rt_reply_usage *u)
{
    return td_buf_printf(b,
                         "\"usage\":{\"prompt_tokens\":%" PRIu64 ",\"completion_tokens\":%" PRIu64
                         ",\"total_tokens\":%" PRIu64
                         ",\"prompt_tokens_details\":{\"cached_tokens\":%" PRIu64 "}}",
                         u->prompt_tokens, u->completion_tokens,
                         u->prompt_tokens + u->completion_tokens, u->cached_tokens);
}

static td_err finish_fields(struct td_buf *b, const struct rt_reply_choice *c)
{
    TD_TRY(td_buf_puts(b, ",\"logprobs\":null,"));
    if (c->finish == TD_FINISH_NONE) {
        TD_TRY(td_buf_puts(b, "\"finish_reason\":null"));
    } else {
        TD_TRY(td_buf_printf(b, "\"finish_reason\":\"%s\"", rt_finish_name(c->finish)));
    }
    if (c->stop_reason != NULL) {
        TD_TRY(td_buf_puts(b, ","));
        TD_TRY(text_field(b, "stop_reason", c->stop_reason));
    }
    if (c->with_token_ids) {
        TD_TRY(td_buf_puts(b, ",\"token_ids\":["));
        for (uint32_t i = 0; i < c->n_token_ids; i++) {
            TD_TRY(td_buf_printf(b, "%s%d", i > 0 ? "," : "", c->token_ids[i]));
        }
        TD_TRY(td_buf_puts(b, "]"));
    }
    return TD_OK;
}

static td_err whole_choice(struct td_buf *b, const struct rt_reply_head *h,
                           const struct rt_reply_choice *c)
{
    TD_TRY(td_buf_printf(b, "{\"index\":%u,", c->index));
    if (h->chat) {
        TD_TRY(td_buf_puts(b, "\"message\":{\"role\":\"assistant\",\"content\":"));
        TD_TRY(td_buf_json_string(b, c->text, c->len));
        TD_TRY(td_buf_puts(b, ",\"refusal\":null}"));
    } else {
        TD_TRY(td_buf_puts(b, "\"text\":"));
        TD_TRY(td_buf_json_string(b, c->text, c->len));
    }
    TD_TRY(finish_fields(b, c));
    return td_buf_puts(b, "}");
}

td_err rt_reply_whole(struct td_buf *out, const struct rt_reply_head *h,
                      const struct rt_reply_choice *choices, uint32_t n,
                      const struct rt_reply_usage *u)
{
    TD_TRY(head(out, h, h->chat ? "chat.completion" : "text_completion"));
    TD_TRY(td_buf_puts(out, ",\"choices\":["));
    for (uint32_t i = 0; i < n; i++) {
        TD_TRY(td_buf_puts(out, i > 0 ? "," : ""));
        TD_TRY(whole_choice(out, h, &choices[i]));
    }
    TD_TRY(td_buf_puts(out, "],"));
    TD_TRY(usage(out, u));
    return td_buf_puts(out, "}");
}

static td_err chunk_end(struct td_buf *b, const struct rt_reply_usage *u)
{
    TD_TRY(td_buf_puts(b, "}]"));
    if (u != NULL) {
        TD_TRY(td_buf_puts(b, ","));
        TD_TRY(usage(b, u));
    }
    return td_buf_puts(b, "}\n\n");
}

td_err rt_reply_role(struct td_buf *out, const struct rt_reply_head *h, uint32_t index,
                     const struct rt_reply_usage *u)
{
    TD_TRY(td_buf_puts(out, "data: "));
    TD_TRY(head(out, h, chunk_object(h)));
    TD_TRY(td_buf_printf(
        out,
        ",\"choices\":[{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
        "\"logprobs\":null,\"finish_reason\":null",
        index));
    return chunk_end(out, u);
}

td_err rt_reply_chunk(struct td_buf *out, const struct rt_reply_head *h,
                      const struct rt_reply_choice *c, const struct rt_reply_usage *u)
{
    TD_TRY(td_buf_puts(out, "data: "));
    TD_TRY(head(out, h, chunk_object(h)));
    TD_TRY(td_buf_printf(out, ",\"choices\":[{\"index\":%u,", c->index));
    if (!h->chat) {
        TD_TRY(td_buf_puts(out, "\"text\":"));
        TD_TRY(td_buf_json_string(out, c->text, c->len));
    } else if (c->len > 0) {
        TD_TRY(td_buf_puts(out, "\"delta\":{\"content\":"));
        TD_TRY(td_buf_json_string(out, c->text, c->len));
        TD_TRY(td_buf_puts(out, "}"));
    } else {
        TD_TRY(td_buf_puts(out, "\"delta\":{}"));
    }
    TD_TRY(finish_fields(out, c));
    return chunk_end(out, u);
}

td_err rt_reply_usage_chunk(struct td_buf *out, const struct rt_reply_head *h,
                            const struct rt_reply_usage *u)
{
    TD_TRY(td_buf_puts(out, "data: "));
    TD_TRY(head(out, h, chunk_object(h)));
    TD_TRY(td_buf_puts(out, ",\"choices\":[],"));
    TD_TRY(usage(out, u));
    return td_buf_puts(out, "}\n\n");
}

td_err rt_reply_error_event(struct td_buf *out, td_err err, const char *text)
{
    TD_TRY(td_buf_puts(out, "data: "));
    TD_TRY(td_http_error_json(out, err, text, NULL));
    return td_buf_puts(out, "\n\n");
}

td_err rt_reply_done(struct td_buf *out)
{
    return td_buf_puts(out, "data: [DONE]\n\n");
}
