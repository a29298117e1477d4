/* Design: one table names each field with its reader; a reader checks type and range and writes one
 * place. A field that is null counts as absent, as clients expect.
 */
#define TD_LOG_ROOM "router"
#include "router/rt_api.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/mem.h"

struct ctx {
    struct rt_api_request *r;
    struct rt_api_error *error;
};

static td_err refuse(struct ctx *c, td_err err, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static td_err refuse(struct ctx *c, td_err err, const char *param, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(c->error->text, sizeof c->error->text, fmt, ap);
    va_end(ap);
    (void)snprintf(c->error->param, sizeof c->error->param, "%s", param);
    c->error->err = err;
    return err;
}

/* ---- readers of single values ---- */

static td_err read_int(struct ctx *c, const char *name, const json_t *v, int64_t min, int64_t max,
                       int64_t *out)
{
    if (!json_is_integer(v)) {
        return refuse(c, TD_ERR_BAD_REQUEST, name, "'%s' must be an integer", name);
    }
    int64_t n = json_integer_value(v);
    if (n < min || n > max) {
        return refuse(c, TD_ERR_BAD_REQUEST, name, "'%s' must be between %" PRId64 " and %" PRId64,
                      name, min, max);
    }
    *out = n;
    return TD_OK;
}

static td_err read_float(struct ctx *c, const char *name, const json_t *v, double min, double max,
                         float *out)
{
    if (!json_is_number(v)) {
        return refuse(c, TD_ERR_BAD_REQUEST, name, "'%s' must be a number", name);
    }
    double d = json_number_value(v);
    if (!(d >= min && d <= max)) {
        return refuse(c, TD_ERR_BAD_REQUEST, name, "'%s' must be between %g and %g", name, min,
                      max);
    }
    *out = (float)d;
    return TD_OK;
}

static td_err read_bool(struct ctx *c, const char *name, const json_t *v, bool *out)
{
    if (!json_is_boolean(v)) {
        return refuse(c, TD_ERR_BAD_REQUEST, name, "'%s' must be true or false", name);
    }
    *out = json_is_true(v);
    return TD_OK;
}

static td_err read_string(struct ctx *c, const char *name, const json_t *v, size_t max,
                          const char **out)
{
    if (!json_is_string(v)) {
        return refuse(c, TD_ERR_BAD_REQUEST, name, "'%s' must be a string", name);
    }
    if (json_string_length(v) == 0 || json_string_length(v) > max) {
        return refuse(c, TD_ERR_BAD_REQUEST, name, "'%s' must have 1 to %zu bytes", name, max);
    }
    *out = json_string_value(v);
    return TD_OK;
}

/* ---- fields ---- */

static td_err f_model(struct ctx *c, const char *name, json_t *v)
{
    return read_string(c, name, v, 512, &c->r->model);
}

static td_err f_max_tokens(struct ctx *c, const char *name, json_t *v)
{
    int64_t n = 0;
    TD_TRY(read_int(c, name, v, 1, RT_API_MAX_TOKENS, &n));
    bool stronger = strcmp(name, "max_completion_tokens") == 0;
    if (stronger || json_object_get(c->r->root, "max_completion_tokens") == NULL ||
        json_is_null(json_object_get(c->r->root, "max_completion_tokens"))) {
        c->r->sampling.max_tokens = (uint32_t)n;
    }
    return TD_OK;
}

static td_err f_temperature(struct ctx *c, const char *name, json_t *v)
{
    c->r->has_temperature = true;
    return read_float(c, name, v, 0, 100, &c->r->sampling.temperature);
}

static td_err f_top_p(struct ctx *c, const char *name, json_t *v)
{
    c->r->has_top_p = true;
    TD_TRY(read_float(c, name, v, 0, 1, &c->r->sampling.top_p));
    if (c->r->sampling.top_p <= 0) {
        return refuse(c, TD_ERR_BAD_REQUEST, name, "'top_p' must be above 0");
    }
    return TD_OK;
}

static td_err f_top_k(struct ctx *c, const char *name, json_t *v)
{
    int64_t n = 0;
    c->r->has_top_k = true;
    TD_TRY(read_int(c, name, v, -1, INT32_MAX, &n));
    c->r->sampling.top_k = n < 0 ? 0 : (int32_t)n;
    return TD_OK;
}

static td_err f_min_p(struct ctx *c, const char *name, json_t *v)
{
    c->r->has_min_p = true;
    return read_float(c, name, v, 0, 1, &c->r->sampling.min_p);
}

static td_err f_repetition_penalty(struct ctx *c, const char *name, json_t *v)
{
    c->r->has_repetition_penalty = true;
    return read_float(c, name, v, 0.01, 100, &c->r->sampling.repetition_penalty);
}

static td_err f_frequency_penalty(struct ctx *c, const char *name, json_t *v)
{
    return read_float(c, name, v, -2, 2, &c->r->sampling.frequency_penalty);
}

static td_err f_presence_penalty(struct ctx *c, const char *name, json_t *v)
{
    return read_float(c, name, v, -2, 2, &c->r->sampling.presence_penalty);
}

static td_err f_seed(struct ctx *c, const char *name, json_t *v)
{
    int64_t n = 0;
    TD_TRY(read_int(c, name, v, INT64_MIN, INT64_MAX, &n));
    c->r->sampling.seed = (uint64_t)n;
    c->r->has_seed = true;
    return TD_OK;
}

static td_err add_stop(struct ctx *c, const json_t *v)
{
    if (c->r->n_stops == RT_API_MAX_STOPS) {
        return refuse(c, TD_ERR_BAD_REQUEST, "stop", "'stop' takes at most %d strings",
                      RT_API_MAX_STOPS);
    }
    return read_string(c, "stop", v, 1024, &c->r->stops[c->r->n_stops++]);
}

static td_err f_stop(struct ctx *c, const char *name, json_t *v)
{
    (void)name;
    size_t i = 0;
    json_t *item = NULL;
    if (json_is_string(v)) {
        return add_stop(c, v);
    }
    if (!json_is_array(v)) {
        return refuse(c, TD_ERR_BAD_REQUEST, "stop",
                      "'stop' must be a string or a list of strings");
    }
    json_array_foreach(v, i, item)
    {
        TD_TRY(add_stop(c, item));
    }
    return TD_OK;
}

static td_err f_stop_token_ids(struct ctx *c, const char *name, json_t *v)
{
    struct td_sampling_params *s = &c->r->sampling;
    if (!json_is_array(v) || json_array_size(v) > TD_SAMPLING_MAX_STOP_IDS / 2) {
        return refuse(c, TD_ERR_BAD_REQUEST, name, "'%s' must be a list of at most %d ids", name,
                      TD_SAMPLING_MAX_STOP_IDS / 2);
    }
    for (size_t i = 0; i < json_array_size(v); i++) {
        int64_t id = 0;
        TD_TRY(read_int(c, name, json_array_get(v, i), 0, INT32_MAX, &id));
        s->stop_ids[s->n_stop_ids++] = (int32_t)id;
    }
    return TD_OK;
}

static td_err f_min_tokens(struct ctx *c, const char *name, json_t *v)
{
    int64_t n = 0;
    TD_TRY(read_int(c, name, v, 0, RT_API_MAX_TOKENS, &n));
    c->r->sampling.min_tokens = (uint32_t)n;
    return TD_OK;
}

static td_err f_ignore_eos(struct ctx *c, const char *name, json_t *v)
{
    return read_bool(c, name, v, &c->r->ignore_eos);
}

static td_err f_include_stop(struct ctx *c, const char *name, json_t *v)
{
    return read_bool(c, name, v, &c->r->include_stop);
}

static td_err f_skip_special(struct ctx *c, const char *name, json_t *v)
{
    return read_bool(c, name, v, &c->r->skip_special);
}

static td_err f_return_token_ids(struct ctx *c, const char *name, json_t *v)
{
    return read_bool(c, name, v, &c->r->return_token_ids);
}

static td_err f_add_special(struct ctx *c, const char *name, json_t *v)
{
    return read_bool(c, name, v, &c->r->add_special);
}

static td_err f_stream(struct ctx *c, const char *name, json_t *v)
{
    return read_bool(c, name, v, &c->r->stream);
}

static td_err f_stream_options(struct ctx *c, const char *name, json_t *v)
{
    if (!json_is_object(v)) {
        return refuse(c, TD_ERR_BAD_REQUEST, name, "'stream_options' must be an object");
    }
    json_t *usage = json_object_get(v, "include_usage");
    json_t *each = json_object_get(v, "continuous_usage_stats");
    if (usage != NULL && !json_is_null(usage)) {
        TD_TRY(read_bool(c, "stream_options.include_usage", usage, &c->r->include_usage));
    }
    if (each != NULL && !json_is_null(each)) {
        TD_TRY(
            read_bool(c, "stream_options.continuous_usage_stats", each, &c->r->continuous_usage));
    }
    return TD_OK;
}

static td_err f_n(struct ctx *c, const char *name, json_t *v)
{
    int64_t n = 0;
    TD_TRY(read_int(c, name, v, 1, RT_API_MAX_CHOICES, &n));
    c->r->n_choices = (uint32_t)n;
    return TD_OK;
}

static td_err f_cache_salt(struct ctx *c, const char *name, json_t *v)
{
    return read_string(c, name, v, 256, &c->r->cache_salt);
}

static td_err f_request_id(struct ctx *c, const char *name, json_t *v)
{
    return read_string(c, name, v, 100, &c->r->request_id);
}

static td_err f_priority(struct ctx *c, const char *name, json_t *v)
{
    int64_t n = 0;
    TD_TRY(read_int(c, name, v, -1000, 1000, &n));
    c->r->priority = (int32_t)n;
    return TD_OK;
}

static td_err f_add_generation_prompt(struct ctx *c, const char *name, json_t *v)
{
    return read_bool(c, name, v, &c->r->add_generation_prompt);
}

static td_err f_template_kwargs(struct ctx *c, const char *name, json_t *v)
{
    const char *key = NULL;
    json_t *value = NULL;
    if (!json_is_object(v)) {
        return refuse(c, TD_ERR_BAD_REQUEST, name, "'%s' must be an object", name);
    }
    json_object_foreach(v, key, value)
    {
        if (strcmp(key, "enable_thinking") != 0 && strcmp(key, "reasoning_effort") != 0) {
            return refuse(c, TD_ERR_BAD_REQUEST, name,
                          "'%s' accepts enable_thinking and reasoning_effort only", name);
        }
        if (!json_is_boolean(value) && !json_is_string(value)) {
            return refuse(c, TD_ERR_BAD_REQUEST, name, "values of '%s' must be booleans or strings",
                          name);
        }
    }
    c->r->template_kwargs = v;
    return TD_OK;
}

static td_err add_bias(struct ctx *c, const char *key, const json_t *value)
{
    char *end = NULL;
    long id = strtol(key, &end, 10);
    if (*key < '0' || *key > '9' || *end != 0 || id > INT32_MAX) {
        return refuse(c, TD_ERR_BAD_REQUEST, "logit_bias",
                      "keys of 'logit_bias' must be token ids");
    }
    struct td_logit_bias *b = &c->r->bias[c->r->sampling.n_bias++];
    b->id = (int32_t)id;
    return read_float(c, "logit_bias", value, -100, 100, &b->bias);
}

static td_err f_logit_bias(struct ctx *c, const char *name, json_t *v)
{
    const char *key = NULL;
    json_t *value = NULL;
    if (!json_is_object(v) || json_object_size(v) > TD_SAMPLING_MAX_BIAS) {
        return refuse(c, TD_ERR_BAD_REQUEST, name,
                      "'logit_bias' must be an object of at most %d ids", TD_SAMPLING_MAX_BIAS);
    }
    c->r->bias = td_zalloc(json_object_size(v) + 1, sizeof *c->r->bias);
    if (c->r->bias == NULL) {
        return refuse(c, TD_ERR_NO_MEMORY, name, "out of memory");
    }
    json_object_foreach(v, key, value)
    {
        TD_TRY(add_bias(c, key, value));
    }
    c->r->sampling.bias = c->r->bias;
    return TD_OK;
}

/* Fields that ask for something this version does not do; harmless values of them pass. */
static td_err f_unsupported(struct ctx *c, const char *name, json_t *v)
{
    bool harmless = json_is_false(v) || (json_is_array(v) && json_array_size(v) == 0) ||
                    (json_is_integer(v) && json_integer_value(v) == 0) ||
                    (json_is_string(v) && strcmp(json_string_value(v), "none") == 0);
    if (harmless) {
        return TD_OK;
    }
    return refuse(c, TD_ERR_UNSUPPORTED, name, "'%s' is not supported by this server", name);
}

static td_err f_response_format(struct ctx *c, const char *name, json_t *v)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    if (type == NULL) {
        return refuse(c, TD_ERR_BAD_REQUEST, name,
                      "'response_format' must be an object with a type");
    }
    if (strcmp(type, "text") != 0) {
        return refuse(c, TD_ERR_UNSUPPORTED, name, "only response_format type 'text' is supported");
    }
    return TD_OK;
}

static td_err f_best_of(struct ctx *c, const char *name, json_t *v)
{
    int64_t n = 0;
    TD_TRY(read_int(c, name, v, 1, RT_API_MAX_CHOICES, &n));
    json_t *choices = json_object_get(c->r->root, "n");
    if (n != (json_is_integer(choices) ? json_integer_value(choices) : 1)) {
        return refuse(c, TD_ERR_UNSUPPORTED, name, "'best_of' other than n is not supported");
    }
    return TD_OK;
}

static td_err f_chat_template(struct ctx *c, const char *name, json_t *v)
{
    (void)v;
    return refuse(c, TD_ERR_UNSUPPORTED, name, "templates come from the model, not from clients");
}

static td_err f_ignore(struct ctx *c, const char *name, json_t *v)
{
    (void)c;
    (void)name;
    (void)v;
    return TD_OK;
}

/* ---- prompts and messages ---- */

static td_err prompt_ids(struct ctx *c, const json_t *list, struct rt_api_prompt *p)
{
    size_t n = json_array_size(list);
    if (n == 0 || n > RT_API_MAX_TOKENS) {
        return refuse(c, TD_ERR_BAD_REQUEST, "prompt", "a token prompt must have 1 to %u ids",
                      RT_API_MAX_TOKENS);
    }
    p->ids = td_zalloc(n, sizeof *p->ids);
    if (p->ids == NULL) {
        return refuse(c, TD_ERR_NO_MEMORY, "prompt", "out of memory");
    }
    for (size_t i = 0; i < n; i++) {
        int64_t id = 0;
        TD_TRY(read_int(c, "prompt", json_array_get(list, i), 0, INT32_MAX, &id));
        p->ids[p->n_ids++] = (int32_t)id;
    }
    return TD_OK;
}

static td_err one_prompt(struct ctx *c, const json_t *v)
{
    if (c->r->n_prompts == RT_API_MAX_PROMPTS) {
        return refuse(c, TD_ERR_BAD_REQUEST, "prompt", "at most %d prompts in one request",
                      RT_API_MAX_PROMPTS);
    }
    struct rt_api_prompt *p = &c->r->prompts[c->r->n_prompts++];
    if (json_is_string(v)) {
        p->text = json_string_value(v);
        p->len = json_string_length(v);
        return TD_OK;
    }
    if (json_is_array(v)) {
        return prompt_ids(c, v, p);
    }
    return refuse(c, TD_ERR_BAD_REQUEST, "prompt",
                  "'prompt' must be text, token ids, or a list of either");
}

static td_err f_prompt(struct ctx *c, const char *name, json_t *v)
{
    (void)name;
    bool list =
        json_is_array(v) && json_array_size(v) > 0 && !json_is_integer(json_array_get(v, 0));
    if (!list) {
        return one_prompt(c, v);
    }
    for (size_t i = 0; i < json_array_size(v); i++) {
        TD_TRY(one_prompt(c, json_array_get(v, i)));
    }
    return TD_OK;
}

static bool known_role(const char *role)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    for (size_t i = 0; role != NULL && i < TD_COUNT(roles); i++) {
        if (strcmp(role, roles[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* A list of {"type":"text"} parts becomes one string, its parts joined by newlines. */
static td_err flatten(struct ctx *c, const json_t *parts, json_t **out)
{
    size_t i = 0, len = 0;
    json_t *part = NULL;
    TD_CLEANUP(td_freep) char *text = NULL;
    json_array_foreach(parts, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *t = json_object_get(part, "text");
        if (type == NULL || strcmp(type, "text") != 0 || !json_is_string(t)) {
            return refuse(c, TD_ERR_UNSUPPORTED, "messages",
                          "only content parts of type 'text' are supported");
        }
        size_t n = json_string_length(t);
        char *grown = realloc(text, len + n + 2);
        if (grown == NULL) {
            return refuse(c, TD_ERR_NO_MEMORY, "messages", "out of memory");
        }
        text = grown;
        if (i > 0) {
            text[len++] = '\n';
        }
        memcpy(text + len, json_string_value(t), n);
        len += n;
    }
    *out = json_stringn(text != NULL ? text : "", len);
    return *out != NULL ? TD_OK : refuse(c, TD_ERR_NO_MEMORY, "messages", "out of memory");
}

static td_err one_message(struct ctx *c, size_t i, const json_t *m)
{
    const char *role = json_string_value(json_object_get(m, "role"));
    if (!known_role(role)) {
        return refuse(c, TD_ERR_BAD_REQUEST, "messages",
                      "messages[%zu].role must be system, developer, user, assistant or tool", i);
    }
    json_t *content = json_object_get(m, "content"), *flat = NULL;
    bool assistant = strcmp(role, "assistant") == 0;
    if (json_is_string(content)) {
        flat = json_incref(content);
    } else if (json_is_array(content)) {
        TD_TRY(flatten(c, content, &flat));
    } else if (assistant && (content == NULL || json_is_null(content))) {
        flat = json_string("");
    } else {
        return refuse(c, TD_ERR_BAD_REQUEST, "messages",
                      "messages[%zu].content must be a string or a list of parts", i);
    }
    json_t *copy = json_copy((json_t *)(uintptr_t)m);
    if (copy == NULL || json_object_set_new(copy, "content", flat) != 0 ||
        json_array_append_new(c->r->messages, copy) != 0) {
        return refuse(c, TD_ERR_NO_MEMORY, "messages", "out of memory");
    }
    return TD_OK;
}

static td_err f_messages(struct ctx *c, const char *name, json_t *v)
{
    if (!json_is_array(v) || json_array_size(v) == 0 || json_array_size(v) > RT_API_MAX_MESSAGES) {
        return refuse(c, TD_ERR_BAD_REQUEST, name, "'messages' must be a list of 1 to %d messages",
                      RT_API_MAX_MESSAGES);
    }
    c->r->messages = json_array();
    for (size_t i = 0; c->r->messages != NULL && i < json_array_size(v); i++) {
        TD_TRY(one_message(c, i, json_array_get(v, i)));
    }
    return c->r->messages != NULL ? TD_OK : refuse(c, TD_ERR_NO_MEMORY, name, "out of memory");
}

/* ---- the table ---- */

#define CHAT 1u
#define COMP 2u
#define ALL  (CHAT | COMP)

static const struct field {
    const char *name;
    unsigned where;
    td_err (*read)(struct ctx *c, const char *name, json_t *v);
} fields[] = {
    {"model", ALL, f_model},
    {"messages", CHAT, f_messages},
    {"prompt", COMP, f_prompt},
    {"max_tokens", ALL, f_max_tokens},
    {"max_completion_tokens", ALL, f_max_tokens},
    {"temperature", ALL, f_temperature},
    {"top_p", ALL, f_top_p},
    {"top_k", ALL, f_top_k},
    {"min_p", ALL, f_min_p},
    {"repetition_penalty", ALL, f_repetition_penalty},
    {"frequency_penalty", ALL, f_frequency_penalty},
    {"presence_penalty", ALL, f_presence_penalty},
    {"seed", ALL, f_seed},
    {"stop", ALL, f_stop},
    {"stop_token_ids", ALL, f_stop_token_ids},
    {"min_tokens", ALL, f_min_tokens},
    {"ignore_eos", ALL, f_ignore_eos},
    {"include_stop_str_in_output", ALL, f_include_stop},
    {"skip_special_tokens", ALL, f_skip_special},
    {"return_token_ids", ALL, f_return_token_ids},
    {"add_special_tokens", ALL, f_add_special},
    {"stream", ALL, f_stream},
    {"stream_options", ALL, f_stream_options},
    {"n", ALL, f_n},
    {"best_of", COMP, f_best_of},
    {"logit_bias", ALL, f_logit_bias},
    {"cache_salt", ALL, f_cache_salt},
    {"request_id", ALL, f_request_id},
    {"rid", ALL, f_request_id},
    {"priority", ALL, f_priority},
    {"add_generation_prompt", CHAT, f_add_generation_prompt},
    {"chat_template_kwargs", CHAT, f_template_kwargs},
    {"chat_template", CHAT, f_chat_template},
    {"response_format", ALL, f_response_format},
    {"tools", CHAT, f_unsupported},
    {"tool_choice", CHAT, f_unsupported},
    {"functions", CHAT, f_unsupported},
    {"logprobs", ALL, f_unsupported},
    {"top_logprobs", ALL, f_unsupported},
    {"prompt_logprobs", ALL, f_unsupported},
    {"echo", COMP, f_unsupported},
    {"suffix", COMP, f_unsupported},
    {"guided_json", ALL, f_unsupported},
    {"structured_outputs", ALL, f_unsupported},
    {"kv_transfer_params", ALL, f_unsupported},
    {"user", ALL, f_ignore},
    {"metadata", ALL, f_ignore},
    {"store", ALL, f_ignore},
    {"service_tier", ALL, f_ignore},
    {"parallel_tool_calls", CHAT, f_ignore},
};

static td_err read_field(struct ctx *c, const char *key, json_t *v, unsigned where)
{
    if (json_is_null(v)) {
        return TD_OK;
    }
    for (size_t i = 0; i < TD_COUNT(fields); i++) {
        if ((fields[i].where & where) != 0 && strcmp(fields[i].name, key) == 0) {
            return fields[i].read(c, key, v);
        }
    }
    char quoted[96];
    TD_LOG(DEBUG, "unknown request field, ignoring", "field=%s",
           td_log_quote(key, strlen(key), quoted, sizeof quoted));
    return TD_OK;
}

static td_err check_whole(struct ctx *c)
{
    struct rt_api_request *r = c->r;
    if (r->chat && r->messages == NULL) {
        return refuse(c, TD_ERR_BAD_REQUEST, "messages", "'messages' is required");
    }
    if (!r->chat && r->n_prompts == 0) {
        return refuse(c, TD_ERR_BAD_REQUEST, "prompt", "'prompt' is required");
    }
    if (r->n_prompts * r->n_choices > RT_API_MAX_PROMPTS) {
        return refuse(c, TD_ERR_BAD_REQUEST, "n", "prompts times n must be at most %d",
                      RT_API_MAX_PROMPTS);
    }
    if (r->sampling.max_tokens != 0 && r->sampling.min_tokens > r->sampling.max_tokens) {
        return refuse(c, TD_ERR_BAD_REQUEST, "min_tokens",
                      "'min_tokens' must not exceed max_tokens");
    }
    return TD_OK;
}

static void defaults(struct rt_api_request *r, bool chat)
{
    memset(r, 0, sizeof *r);
    r->chat = chat;
    r->n_choices = 1;
    r->skip_special = true;
    r->add_special = true;
    r->add_generation_prompt = true;
    r->sampling =
        (struct td_sampling_params){.temperature = 1, .top_p = 1, .repetition_penalty = 1};
}

static td_err read_all(struct ctx *c, bool chat)
{
    const char *key = NULL;
    json_t *value = NULL;
    if (!json_is_object(c->r->root)) {
        return refuse(c, TD_ERR_BAD_REQUEST, "", "the body must be a JSON object");
    }
    json_object_foreach(c->r->root, key, value)
    {
        TD_TRY(read_field(c, key, value, chat ? CHAT : COMP));
    }
    return check_whole(c);
}

static td_err give(struct ctx *c, td_err err)
{
    if (err != TD_OK) {
        rt_api_request_fini(c->r);
        memset(c->r, 0, sizeof *c->r);
    }
    return err;
}

td_err rt_api_parse(bool chat, const void *body, size_t len, struct rt_api_request *out,
                    struct rt_api_error *error)
{
    struct ctx c = {.r = out, .error = error};
    memset(error, 0, sizeof *error);
    defaults(out, chat);
    td_err err =
        td_json_parse(body != NULL ? body : "", len, &out->root, error->text, sizeof error->text);
    error->err = err;
    return give(&c, err == TD_OK ? read_all(&c, chat) : err);
}

td_err rt_api_read(bool chat, json_t *root, struct rt_api_prompt *prompt,
                   struct rt_api_request *out, struct rt_api_error *error)
{
    struct ctx c = {.r = out, .error = error};
    memset(error, 0, sizeof *error);
    defaults(out, chat);
    out->root = root;
    if (prompt->ids != NULL) {
        out->prompts[out->n_prompts++] = *prompt;
    }
    td_err err =
        root != NULL ? read_all(&c, chat) : refuse(&c, TD_ERR_NO_MEMORY, "", "out of memory");
    return give(&c, err);
}

void rt_api_request_fini(struct rt_api_request *r)
{
    for (uint32_t i = 0; i < r->n_prompts; i++) {
        free(r->prompts[i].ids);
    }
    free(r->bias);
    json_decref(r->messages);
    json_decref(r->root);
    r->messages = r->root = NULL;
    r->n_prompts = 0;
    r->bias = NULL;
}
