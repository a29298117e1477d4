/* rt_api.h - the OpenAI request bodies, and those of gRPC: JSON or protobuf in, a checked request out.
 *
 * What: /v1/chat/completions and /v1/completions, every field of interfaces.md 1.2 that this
 * version serves; fields that ask for something it does not serve are refused by name (code
 * "unsupported"), fields that change nothing are accepted, unknown ones are accepted and named in
 * the log. Not: rendering, tokenising (rt_prompt.h), answering (rt_reply.h). Pure. Owner and
 * thread: the caller's. Bounds: the RT_API_MAX_* below. Failure: a typed error; `error` says which
 * field and why, fit for the client.
 */
#ifndef ROUTER_RT_API_H
#define ROUTER_RT_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "common/base/arena.h"
#include "common/base/err.h"
#include "common/base/sampling.h"

#define RT_API_MAX_STOPS    16
#define RT_API_MAX_PROMPTS  64
#define RT_API_MAX_CHOICES  16 /* n */
#define RT_API_MAX_MESSAGES 4096
#define RT_API_MAX_TOKENS   (1u << 20)

struct rt_api_error {
    td_err err;
    char text[256];
    char param[64]; /* "" when none */
};

/* One prompt: text, or token ids. */
struct rt_api_prompt {
    const char *text; /* borrowed from root; NULL for ids */
    size_t len;
    int32_t *ids; /* owned; NULL for text */
    uint32_t n_ids;
};

struct rt_api_request {
    bool chat;
    json_t *root;      /* owned; strings below are borrowed from it */
    const char *model; /* NULL: the served default */
    json_t *messages;  /* chat; owned: content flattened to one string each */
    struct rt_api_prompt prompts[RT_API_MAX_PROMPTS];
    uint32_t n_prompts, n_choices;
    struct td_sampling_params sampling; /* max_tokens 0: not given; seed valid if has_seed */
    bool has_seed, has_temperature, has_top_p, has_top_k, has_min_p, has_repetition_penalty;
    struct td_logit_bias *bias; /* owned; sampling.bias points here */
    const char *stops[RT_API_MAX_STOPS];
    uint32_t n_stops;
    bool include_stop, ignore_eos, skip_special, return_token_ids, add_special;
    bool stream, include_usage, continuous_usage;
    const char *cache_salt, *request_id; /* NULL when absent */
    int32_t priority;
    bool add_generation_prompt;
    json_t *template_kwargs; /* borrowed; allow-listed; NULL when absent */
    int64_t budget_us;       /* gRPC: the client's; 0: none */
};

/* Parses and checks one body. On failure *out is zeroed and `error` filled. */
td_err rt_api_parse(bool chat, const void *body, size_t len, struct rt_api_request *out,
                    struct rt_api_error *error) TD_MUST_CHECK;
/* The same from an object already made: takes `root` (NULL: out of memory) and the ids of `prompt`, whatever happens. A prompt
 * with ids comes in front of those in root. */
td_err rt_api_read(bool chat, json_t *root, struct rt_api_prompt *prompt,
                   struct rt_api_request *out, struct rt_api_error *error) TD_MUST_CHECK;
/* rt_api_grpc.c: tandem.v1.GenerateRequest and TokenizeRequest; the arena holds only what is needed meanwhile. */
td_err rt_api_parse_generate(const uint8_t *data, size_t len, struct td_arena *arena,
                             struct rt_api_request *out, struct rt_api_error *error) TD_MUST_CHECK;
td_err rt_api_parse_tokenize(const uint8_t *data, size_t len, struct td_arena *arena,
                             struct rt_api_request *out, struct rt_api_error *error) TD_MUST_CHECK;
void rt_api_request_fini(struct rt_api_request *r);

#endif
