#include "common/node/vllm_request.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "common/base/json.h"
#include "common/text/stop.h"

static td_err refuse(char why[ND_VLLM_WHY], const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static td_err refuse(char why[ND_VLLM_WHY], const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(why, ND_VLLM_WHY, fmt, ap);
    va_end(ap);
    return TD_ERR_BAD_REQUEST;
}

/* ---- sampling ---- */

/* One number with its range. */
struct range {
    const char *name;
    float value;
    double min, max;
};

static td_err check_ranges(const struct td_sampling_params *s, char why[ND_VLLM_WHY])
{
    const struct range ranges[] = {{"temperature", s->temperature, 0, 100},
                                   {"top_p", s->top_p, 1e-6, 1},
                                   {"min_p", s->min_p, 0, 1},
                                   {"repetition_penalty", s->repetition_penalty, 0.01, 100},
                                   {"frequency_penalty", s->frequency_penalty, -2, 2},
                                   {"presence_penalty", s->presence_penalty, -2, 2}};
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        const struct range *r = &ranges[i];
        if (!((double)r->value >= r->min && (double)r->value <= r->max)) {
            return refuse(why, "%s must be between %g and %g", r->name, r->min, r->max);
        }
    }
    return TD_OK;
}

static td_err read_numbers(const struct nd_vllm_limits *l, const struct td_vllm_sampling *v,
                           struct td_sampling_params *s, char why[ND_VLLM_WHY])
{
    const struct td_model_defaults *d = &l->defaults;
    *s = (struct td_sampling_params){
        .temperature = v->has_temperature ? v->temperature : d->temperature,
        .top_p = v->top_p != 0 ? v->top_p : d->top_p,
        .min_p = v->min_p,
        .repetition_penalty =
            v->repetition_penalty != 0 ? v->repetition_penalty : d->repetition_penalty,
        .frequency_penalty = v->frequency_penalty,
        .presence_penalty = v->presence_penalty,
        .top_k = v->top_k <= INT32_MAX ? (int32_t)v->top_k : 0, /* -1 as a uint32: off, too */
        .seed = (uint64_t)(int64_t)v->seed};
    return check_ranges(s, why);
}

/* The one token that a hold makes counts as the first of the whole request: routers ask for max_tokens 1 there and leave the
 * rest as it was. */
static td_err read_least(const struct td_vllm_sampling *v, enum nd_local_mode mode,
                         struct td_sampling_params *s, char why[ND_VLLM_WHY])
{
    if (v->min_tokens > s->max_tokens && mode != ND_LOCAL_HOLD) {
        return refuse(why, "min_tokens must not exceed max_tokens");
    }
    s->min_tokens = v->min_tokens < s->max_tokens ? v->min_tokens : s->max_tokens;
    return TD_OK;
}

static td_err read_lengths(const struct nd_vllm_limits *l, const struct td_vllm_sampling *v,
                           uint32_t n_prompt, struct td_sampling_params *s, char why[ND_VLLM_WHY])
{
    if (n_prompt == 0) {
        return refuse(why, "the prompt has no tokens");
    }
    if (n_prompt >= l->max_model_len) {
        (void)refuse(why, "this model's maximum context length is %u tokens, the prompt has %u",
                     l->max_model_len, n_prompt);
        return TD_ERR_CONTEXT_LENGTH;
    }
    if (n_prompt >= l->pool_tok) {
        (void)refuse(why, "this node's KV pool holds %" PRIu64 " tokens, the prompt has %u",
                     l->pool_tok, n_prompt);
        return TD_ERR_CONTEXT_LENGTH;
    }
    uint32_t room = l->max_model_len - n_prompt;
    if (v->has_max_tokens && v->max_tokens == 0) {
        return refuse(why, "max_tokens must be at least 1");
    }
    if (v->has_max_tokens && v->max_tokens > room) {
        (void)refuse(why,
                     "this model's maximum context length is %u tokens; the prompt has %u and "
                     "max_tokens asks for %u",
                     l->max_model_len, n_prompt, v->max_tokens);
        return TD_ERR_CONTEXT_LENGTH;
    }
    s->max_tokens = v->has_max_tokens ? v->max_tokens : room;
    return TD_OK;
}

td_err nd_vllm_ids_check(const struct nd_vllm_limits *l, const uint32_t *ids, uint32_t n,
                         char why[ND_VLLM_WHY])
{
    for (uint32_t i = 0; i < n; i++) {
        if (ids[i] >= l->n_vocab) {
            return refuse(why, "token id %u is not in the vocabulary of %u", ids[i], l->n_vocab);
        }
    }
    return TD_OK;
}

static td_err read_ids(const struct nd_vllm_limits *l, const struct td_vllm_sampling *v,
                       struct td_sampling_params *s, char why[ND_VLLM_WHY])
{
    if (v->n_stop_ids > TD_SAMPLING_MAX_STOP_IDS - TD_TOK_MAX_END_IDS) {
        return refuse(why, "stop_token_ids has more than %d ids",
                      TD_SAMPLING_MAX_STOP_IDS - TD_TOK_MAX_END_IDS);
    }
    if (v->n_bias > TD_SAMPLING_MAX_BIAS) {
        return refuse(why, "logit_bias has more than %d ids", TD_SAMPLING_MAX_BIAS);
    }
    TD_TRY(nd_vllm_ids_check(l, v->stop_ids, v->n_stop_ids, why));
    for (uint32_t i = 0; i < v->n_stop_ids; i++) {
        s->stop_ids[s->n_stop_ids++] = (int32_t)v->stop_ids[i];
    }
    for (uint32_t i = 0; !v->ignore_eos && i < l->n_end_ids; i++) {
        s->stop_ids[s->n_stop_ids++] = l->end_ids[i];
    }
    for (uint32_t i = 0; i < v->n_bias; i++) {
        if (v->bias[i].id < 0 || (uint32_t)v->bias[i].id >= l->n_vocab) {
            return refuse(why, "logit_bias: token id %d is not in the vocabulary of %u",
                          v->bias[i].id, l->n_vocab);
        }
        if (!(v->bias[i].bias >= -100 && v->bias[i].bias <= 100)) {
            return refuse(why, "logit_bias must be between -100 and 100");
        }
    }
    s->bias = v->bias;
    s->n_bias = v->n_bias;
    return TD_OK;
}

static td_err read_stop(const struct td_vllm_sampling *v, struct nd_vllm_request *out,
                        char why[ND_VLLM_WHY])
{
    if (v->n_stop > TD_TEXT_STOPS_MAX) {
        return refuse(why, "stop has more than %u strings", TD_TEXT_STOPS_MAX);
    }
    for (uint32_t i = 0; i < v->n_stop; i++) {
        size_t n = strlen(v->stop[i]);
        if (n == 0 || n > TD_TEXT_STOP_BYTES_MAX) {
            return refuse(why, "a string of stop must have 1 to %u bytes", TD_TEXT_STOP_BYTES_MAX);
        }
    }
    out->stop = v->stop;
    out->n_stop = v->n_stop;
    return TD_OK;
}

/* ---- who computes what ---- */

static bool is_true(const json_t *root, const char *name)
{
    return json_is_true(json_object_get(root, name));
}

static td_err read_handoff(const json_t *root, struct nd_vllm_request *out, char why[ND_VLLM_WHY])
{
    const json_t *text = json_object_get(root, "handoff");
    if (!json_is_string(text) || json_string_length(text) >= sizeof out->handoff) {
        return refuse(why, "kv_transfer_params_json: pass on what the prefill node answered, as "
                           "it was ('handoff' is missing or malformed)");
    }
    memcpy(out->handoff, json_string_value(text), json_string_length(text) + 1);
    out->mode = ND_LOCAL_TAKE;
    return TD_OK;
}

static td_err read_mode(enum td_role role, const json_t *root, struct nd_vllm_request *out,
                        char why[ND_VLLM_WHY])
{
    bool hold = is_true(root, "do_remote_decode"), take = is_true(root, "do_remote_prefill");
    switch (role) {
    case TD_ROLE_PREFILL:
        if (!hold || take) {
            return refuse(why, "this node only computes prompts: kv_transfer_params_json must be "
                               "{\"do_remote_decode\": true}");
        }
        out->mode = ND_LOCAL_HOLD;
        return TD_OK;
    case TD_ROLE_DECODE:
        if (!take || hold) {
            return refuse(why, "this node only goes on from a computed prompt: "
                               "kv_transfer_params_json must be what the prefill node answered");
        }
        return read_handoff(root, out, why);
    case TD_ROLE_BOTH:
        break;
    }
    out->mode = ND_LOCAL_WHOLE;
    return hold || take ? refuse(why, "kv_transfer_params_json: this node hands nothing off, "
                                      "it serves whole requests")
                        : TD_OK;
}

static td_err read_kv(const struct nd_vllm_limits *l, const char *text, struct nd_vllm_request *out,
                      char why[ND_VLLM_WHY])
{
    json_t *root = NULL;
    char problem[128] = "not an object";
    td_err err = TD_OK;
    if (text != NULL && text[0] != 0) {
        err = td_json_parse(text, strlen(text), &root, problem, sizeof problem);
    }
    if (err == TD_OK && root != NULL && !json_is_object(root)) {
        err = TD_ERR_BAD_REQUEST;
    }
    err = err != TD_OK ? refuse(why, "kv_transfer_params_json is no JSON object: %s", problem)
                       : read_mode(l->role, root, out, why);
    json_decref(root);
    return err;
}

bool nd_vllm_handoff_json(const char *handoff, const char *engine, char *out, size_t cap)
{
    int n = snprintf(out, cap,
                     "{\"do_remote_prefill\":true,\"do_remote_decode\":false,"
                     "\"remote_engine_id\":\"%s\",\"handoff\":\"%s\"}",
                     engine, handoff);
    return n > 0 && (size_t)n < cap;
}

td_err nd_vllm_request_read(const struct nd_vllm_limits *l, const struct td_vllm_generate *g,
                            uint32_t n_prompt, struct nd_vllm_request *out, char why[ND_VLLM_WHY])
{
    memset(out, 0, sizeof *out);
    if (g->refused != NULL) {
        return refuse(why, "%s is not supported", g->refused);
    }
    TD_TRY(read_kv(l, g->kv_json, out, why));
    TD_TRY(read_numbers(l, &g->sampling, &out->sampling, why));
    TD_TRY(read_lengths(l, &g->sampling, n_prompt, &out->sampling, why));
    TD_TRY(read_least(&g->sampling, out->mode, &out->sampling, why));
    TD_TRY(read_ids(l, &g->sampling, &out->sampling, why));
    TD_TRY(read_stop(&g->sampling, out, why));
    out->n_asked_ids = g->sampling.n_stop_ids;
    out->has_seed = g->sampling.has_seed;
    out->n_choices = g->sampling.n != 0 ? g->sampling.n : 1;
    if (out->n_choices > ND_VLLM_MAX_CHOICES) {
        return refuse(why, "n must be 1 to %u", ND_VLLM_MAX_CHOICES);
    }
    if (out->n_choices > 1 && out->mode != ND_LOCAL_WHOLE) {
        return refuse(why, "n must be 1 where a prompt is handed off");
    }
    return TD_OK;
}
