/* Design: a gRPC request becomes the JSON object that the same request would be over HTTP, and goes through the same table
 * of fields: one place knows ranges, defaults and what is not served. Only token ids skip the detour, for their number.
 */
#define TD_LOG_ROOM "router"
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "proto/api.h"
#include "router/rt_api.h"

static td_err refuse(struct rt_api_error *error, td_err err, const char *param, const char *text)
{
    memset(error, 0, sizeof *error);
    error->err = err;
    (void)snprintf(error->text, sizeof error->text, "%s", text);
    (void)snprintf(error->param, sizeof error->param, "%s", param);
    return err;
}

/* The members of an object in the making; the first failure sticks. */
struct maker {
    json_t *root;
    const char *failed; /* the first member that could not be set */
};

static void set(struct maker *m, const char *name, json_t *value)
{
    if (json_object_set_new(m->root, name, value) != 0 && m->failed == NULL) {
        m->failed = name;
    }
}

static void set_text(struct maker *m, const char *name, const char *text)
{
    if (text[0] != 0) {
        set(m, name, json_string(text));
    }
}

static void set_float(struct maker *m, const char *name, bool has, float v)
{
    if (has) {
        set(m, name, json_real((double)v)); /* NULL when it is not finite */
    }
}

static void set_int(struct maker *m, const char *name, bool has, int64_t v)
{
    if (has) {
        set(m, name, json_integer(v));
    }
}

/* An element that is missing would change what is asked. */
static void append(struct maker *m, const char *name, json_t *list, json_t *value)
{
    if (json_array_append_new(list, value) != 0 && m->failed == NULL) {
        m->failed = name;
    }
}

static void set_stops(struct maker *m, const struct td_api_sampling *s)
{
    json_t *stop = json_array(), *ids = json_array();
    for (uint32_t i = 0; i < s->n_stop && i <= RT_API_MAX_STOPS; i++) {
        append(m, "stop", stop, json_string(s->stop[i]));
    }
    for (uint32_t i = 0; i < s->n_stop_ids && i <= TD_SAMPLING_MAX_STOP_IDS; i++) {
        append(m, "stop_token_ids", ids, json_integer(s->stop_ids[i]));
    }
    set(m, "stop", stop);
    set(m, "stop_token_ids", ids);
}

static void set_bias(struct maker *m, const struct td_api_sampling *s)
{
    json_t *bias = json_object();
    for (uint32_t i = 0; i < s->n_bias && i <= TD_SAMPLING_MAX_BIAS; i++) {
        char id[16];
        (void)snprintf(id, sizeof id, "%d", s->bias[i].id);
        if (json_object_set_new(bias, id, json_real((double)s->bias[i].bias)) != 0 &&
            m->failed == NULL) {
            m->failed = "logit_bias";
        }
    }
    set(m, "logit_bias", bias);
}

static void set_sampling(struct maker *m, const struct td_api_sampling *s)
{
    set_float(m, "temperature", s->has_temperature, s->temperature);
    set_float(m, "top_p", s->has_top_p, s->top_p);
    set_float(m, "min_p", s->has_min_p, s->min_p);
    set_float(m, "repetition_penalty", s->has_repetition_penalty, s->repetition_penalty);
    set_float(m, "frequency_penalty", s->has_frequency_penalty, s->frequency_penalty);
    set_float(m, "presence_penalty", s->has_presence_penalty, s->presence_penalty);
    set_int(m, "top_k", s->has_top_k, s->top_k);
    set_int(m, "seed", s->has_seed, (int64_t)s->seed);
    set_int(m, "max_tokens", s->has_max_tokens, s->max_tokens);
    set_int(m, "min_tokens", s->has_min_tokens, s->min_tokens);
    set_int(m, "logprobs", s->has_logprobs, s->logprobs);
    set(m, "ignore_eos", json_boolean(s->ignore_eos));
    set_stops(m, s);
    set_bias(m, s);
}

static void set_messages(struct maker *m, const struct td_api_chat_message *list, uint32_t n)
{
    json_t *messages = json_array();
    for (uint32_t i = 0; i < n && i <= RT_API_MAX_MESSAGES; i++) {
        append(m, "messages", messages,
               json_pack("{s:s, s:s}", "role", list[i].role, "content", list[i].content));
    }
    set(m, "messages", messages);
}

static td_err take_ids(const struct td_api_generate *g, struct rt_api_prompt *out,
                       struct rt_api_error *error)
{
    if (g->n_ids == 0 || g->n_ids > RT_API_MAX_TOKENS) {
        return refuse(error, TD_ERR_BAD_REQUEST, "token_ids",
                      "a token prompt must have 1 to 1048576 ids");
    }
    for (uint32_t i = 0; i < g->n_ids; i++) {
        if (g->ids[i] < 0) {
            return refuse(error, TD_ERR_BAD_REQUEST, "token_ids", "token ids are not negative");
        }
    }
    out->ids = td_zalloc(g->n_ids, sizeof *out->ids);
    if (out->ids == NULL) {
        return refuse(error, TD_ERR_NO_MEMORY, "token_ids", "out of memory");
    }
    memcpy(out->ids, g->ids, g->n_ids * sizeof *out->ids);
    out->n_ids = g->n_ids;
    return TD_OK;
}

/* Takes m->root and the ids of `prompt`, whatever happens. */
static td_err read_made(struct maker *m, bool chat, struct rt_api_prompt *prompt,
                        struct rt_api_request *out, struct rt_api_error *error)
{
    if (m->failed != NULL) {
        json_decref(m->root);
        free(prompt->ids);
        return refuse(error, TD_ERR_BAD_REQUEST, m->failed,
                      "a value that is no finite number, or no room for it");
    }
    return rt_api_read(chat, m->root, prompt, out, error);
}

td_err rt_api_parse_generate(const uint8_t *data, size_t len, struct td_arena *arena,
                             struct rt_api_request *out, struct rt_api_error *error)
{
    struct td_api_generate g;
    struct rt_api_prompt prompt = {0};
    memset(out, 0, sizeof *out);
    td_err err = td_api_generate_decode(data, len, arena, &g);
    if (err != TD_OK) {
        return refuse(error, err, "", "the bytes are not a GenerateRequest");
    }
    if (g.adapter[0] != 0) {
        return refuse(error, TD_ERR_UNSUPPORTED, "adapter", "adapters are not supported");
    }
    if (g.input == TD_API_NO_INPUT) {
        return refuse(error, TD_ERR_BAD_REQUEST, "input", "text, token_ids or chat is required");
    }
    TD_TRY(g.input == TD_API_IDS ? take_ids(&g, &prompt, error) : TD_OK);
    struct maker m = {.root = json_object()};
    set_text(&m, "model", g.model);
    set_text(&m, "request_id", g.request_id);
    set_text(&m, "cache_salt", g.cache_salt);
    set_int(&m, "n", g.n != 0, g.n);
    set_int(&m, "priority", g.priority != 0, g.priority);
    set(&m, "stream", json_true());
    if (g.has_sampling) {
        set_sampling(&m, &g.sampling);
    }
    if (g.input == TD_API_CHAT) {
        set_messages(&m, g.messages, g.n_messages);
    } else if (g.input == TD_API_TEXT) {
        set(&m, "prompt", json_string(g.text));
    }
    err = read_made(&m, g.input == TD_API_CHAT, &prompt, out, error);
    out->budget_us = err == TD_OK ? (int64_t)g.budget_ms * 1000 : 0;
    return err;
}

td_err rt_api_parse_tokenize(const uint8_t *data, size_t len, struct td_arena *arena,
                             struct rt_api_request *out, struct rt_api_error *error)
{
    struct td_api_tokenize t;
    struct rt_api_prompt none = {0};
    memset(out, 0, sizeof *out);
    td_err err = td_api_tokenize_decode(data, len, arena, &t);
    if (err != TD_OK) {
        return refuse(error, err, "", "the bytes are not a TokenizeRequest");
    }
    if (t.input == TD_API_NO_INPUT) {
        return refuse(error, TD_ERR_BAD_REQUEST, "input", "text or chat is required");
    }
    struct maker m = {.root = json_object()};
    set_text(&m, "model", t.model);
    set(&m, "add_special_tokens", json_boolean(t.add_special));
    if (t.input == TD_API_CHAT) {
        set_messages(&m, t.messages, t.n_messages);
    } else {
        set(&m, "prompt", json_string(t.text));
    }
    return read_made(&m, t.input == TD_API_CHAT, &none, out, error);
}
