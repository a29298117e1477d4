#include "proto/api.h"

#include <string.h>

#include "common/base/assert.h"
#include "proto/api_pb.h"

/* ---- requests ---- */

static td_err messages_in(const API(Chat) * chat, struct td_arena *arena,
                          const struct td_api_chat_message **out, uint32_t *out_n)
{
    struct td_api_chat_message *list =
        TD_ARENA_ARRAY(arena, struct td_api_chat_message, chat->n_messages + 1);
    if (list == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < chat->n_messages; i++) {
        list[i] = (struct td_api_chat_message){.role = chat->messages[i]->role,
                                               .content = chat->messages[i]->content};
    }
    *out = list;
    *out_n = (uint32_t)chat->n_messages;
    return TD_OK;
}

#define PRESENT(p, field, FIELD)                                                                   \
    ((p)->field##__case == TANDEM__V1__SAMPLING_PARAMS__##FIELD##__##FIELD)

static td_err sampling_in(const API(SamplingParams) * p, struct td_arena *arena,
                          struct td_api_sampling *out)
{
#define TAKE(field, FIELD)                                                                         \
    out->has_##field = PRESENT(p, field, FIELD);                                                   \
    if (out->has_##field) {                                                                        \
        out->field = p->field;                                                                     \
    }
    TAKE(temperature, TEMPERATURE)
    TAKE(top_p, TOP_P)
    TAKE(top_k, TOP_K)
    TAKE(min_p, MIN_P)
    TAKE(repetition_penalty, REPETITION_PENALTY)
    TAKE(frequency_penalty, FREQUENCY_PENALTY)
    TAKE(presence_penalty, PRESENCE_PENALTY)
    TAKE(seed, SEED)
    TAKE(max_tokens, MAX_TOKENS)
    TAKE(min_tokens, MIN_TOKENS)
    TAKE(logprobs, LOGPROBS)
#undef TAKE
    struct td_logit_bias *bias = TD_ARENA_ARRAY(arena, struct td_logit_bias, p->n_logit_bias + 1);
    if (bias == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < p->n_logit_bias; i++) {
        bias[i] =
            (struct td_logit_bias){.id = p->logit_bias[i]->key, .bias = p->logit_bias[i]->value};
    }
    out->bias = bias;
    out->n_bias = (uint32_t)p->n_logit_bias;
    out->stop = (const char *const *)p->stop;
    out->n_stop = (uint32_t)p->n_stop;
    out->stop_ids = p->stop_token_ids;
    out->n_stop_ids = (uint32_t)p->n_stop_token_ids;
    out->ignore_eos = p->ignore_eos != 0;
    return TD_OK;
}

td_err td_api_generate_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                              struct td_api_generate *out)
{
    ProtobufCMessage *m = NULL;
    TD_TRY(api_unpack(&tandem__v1__generate_request__descriptor, data, len, arena, &m));
    const API(GenerateRequest) *r = (const API(GenerateRequest) *)(const void *)m;
    struct td_api_generate g = {.model = r->model,
                                .request_id = r->request_id,
                                .cache_salt = r->cache_salt,
                                .adapter = r->adapter,
                                .n = r->n,
                                .budget_ms = r->budget_ms,
                                .priority = r->priority,
                                .has_sampling = r->sampling != NULL};
    switch (r->input_case) {
    case TANDEM__V1__GENERATE_REQUEST__INPUT_TEXT:
        g.input = TD_API_TEXT;
        g.text = r->text;
        break;
    case TANDEM__V1__GENERATE_REQUEST__INPUT_TOKEN_IDS:
        g.input = TD_API_IDS;
        g.ids = r->token_ids->ids;
        g.n_ids = (uint32_t)r->token_ids->n_ids;
        break;
    case TANDEM__V1__GENERATE_REQUEST__INPUT_CHAT:
        g.input = TD_API_CHAT;
        TD_TRY(messages_in(r->chat, arena, &g.messages, &g.n_messages));
        break;
    case TANDEM__V1__GENERATE_REQUEST__INPUT__NOT_SET:
    case _TANDEM__V1__GENERATE_REQUEST__INPUT__CASE_IS_INT_SIZE:
        break;
    }
    TD_TRY(r->sampling != NULL ? sampling_in(r->sampling, arena, &g.sampling) : TD_OK);
    *out = g;
    return TD_OK;
}

td_err td_api_tokenize_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                              struct td_api_tokenize *out)
{
    ProtobufCMessage *m = NULL;
    TD_TRY(api_unpack(&tandem__v1__tokenize_request__descriptor, data, len, arena, &m));
    const API(TokenizeRequest) *r = (const API(TokenizeRequest) *)(const void *)m;
    struct td_api_tokenize t = {.model = r->model, .add_special = r->add_special_tokens != 0};
    if (r->input_case == TANDEM__V1__TOKENIZE_REQUEST__INPUT_TEXT) {
        t.input = TD_API_TEXT;
        t.text = r->text;
    } else if (r->input_case == TANDEM__V1__TOKENIZE_REQUEST__INPUT_CHAT) {
        t.input = TD_API_CHAT;
        TD_TRY(messages_in(r->chat, arena, &t.messages, &t.n_messages));
    }
    *out = t;
    return TD_OK;
}

td_err td_api_detokenize_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                                struct td_api_detokenize *out)
{
    ProtobufCMessage *m = NULL;
    TD_TRY(api_unpack(&tandem__v1__detokenize_request__descriptor, data, len, arena, &m));
    const API(DetokenizeRequest) *r = (const API(DetokenizeRequest) *)(const void *)m;
    *out = (struct td_api_detokenize){
        .model = r->model, .ids = r->token_ids, .n_ids = (uint32_t)r->n_token_ids};
    return TD_OK;
}

td_err td_api_id_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                        const char **out_id)
{
    ProtobufCMessage *m = NULL;
    TD_TRY(api_unpack(&tandem__v1__cancel_request__descriptor, data, len, arena, &m));
    *out_id = ((const API(CancelRequest) *)(const void *)m)->id;
    return TD_OK;
}

td_err td_api_empty_decode(const uint8_t *data, size_t len)
{
    return api_check(&tandem__v1__list_models_request__descriptor, data, len);
}

/* ---- answers ---- */

static td_err put_event(struct td_buf *out, const char *id, uint32_t field,
                        const struct td_buf *event)
{
    TD_TRY(api_put_bytes(out, 1, id, strlen(id)));
    return api_put_bytes(out, field, event->data, event->len);
}

static API(FinishReason) finish_out(enum td_finish f)
{
    static const API(FinishReason) reasons[] = {
        [TD_FINISH_NONE] = TANDEM__V1__FINISH_REASON__FINISH_REASON_UNSPECIFIED,
        [TD_FINISH_STOP] = TANDEM__V1__FINISH_REASON__FINISH_REASON_STOP,
        [TD_FINISH_LENGTH] = TANDEM__V1__FINISH_REASON__FINISH_REASON_LENGTH,
        [TD_FINISH_ABORT] = TANDEM__V1__FINISH_REASON__FINISH_REASON_ABORT,
        [TD_FINISH_ERROR] = TANDEM__V1__FINISH_REASON__FINISH_REASON_ERROR,
    };
    return reasons[f];
}

td_err td_api_delta_encode(struct td_buf *out, const char *id, const struct td_api_delta *d)
{
    API(Delta) m = TANDEM__V1__DELTA__INIT;
    struct td_buf event;
    m.choice = d->choice;
    m.token_ids = (int32_t *)(uintptr_t)d->ids;
    m.n_token_ids = d->n_ids;
    m.finish_reason = finish_out(d->finish);
    m.stop_text = api_text(d->stop_text);
    td_buf_init(&event, out->max);
    td_err err = api_pack(&m.base, &event);
    err = err == TD_OK && d->len > 0 ? api_put_bytes(&event, 2, d->text, d->len) : err;
    err = err == TD_OK ? put_event(out, id, 2, &event) : err;
    td_buf_fini(&event);
    return err;
}

static uint32_t count(uint64_t n)
{
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

td_err td_api_usage_encode(struct td_buf *out, const char *id, const struct td_api_usage *u)
{
    API(Usage) m = TANDEM__V1__USAGE__INIT;
    API(GenerateResponse) r = TANDEM__V1__GENERATE_RESPONSE__INIT;
    m.prompt_tokens = count(u->prompt_tokens);
    m.completion_tokens = count(u->completion_tokens);
    m.cached_tokens = count(u->cached_tokens);
    r.id = api_text(id);
    r.event_case = TANDEM__V1__GENERATE_RESPONSE__EVENT_USAGE;
    r.usage = &m;
    return api_pack(&r.base, out);
}

td_err td_api_cancel_encode(struct td_buf *out, bool known)
{
    API(CancelResponse) r = TANDEM__V1__CANCEL_RESPONSE__INIT;
    r.known = known;
    return api_pack(&r.base, out);
}

td_err td_api_tokenize_encode(struct td_buf *out, const int32_t *ids, uint32_t n,
                              uint32_t max_model_len)
{
    API(TokenizeResponse) r = TANDEM__V1__TOKENIZE_RESPONSE__INIT;
    r.token_ids = (int32_t *)(uintptr_t)ids;
    r.n_token_ids = n;
    r.max_model_len = max_model_len;
    return api_pack(&r.base, out);
}

td_err td_api_detokenize_encode(struct td_buf *out, const char *text, size_t len)
{
    return len > 0 ? api_put_bytes(out, 1, text, len) : TD_OK;
}

td_err td_api_models_encode(struct td_buf *out, const struct td_api_model *list, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        API(Model) m = TANDEM__V1__MODEL__INIT;
        API(Model) *one = &m;
        API(ListModelsResponse) r = TANDEM__V1__LIST_MODELS_RESPONSE__INIT;
        m.id = api_text(list[i].id);
        m.max_model_len = list[i].max_model_len;
        m.created_unix = list[i].created_unix;
        r.models = &one;
        r.n_models = 1;
        TD_TRY(api_pack(&r.base, out)); /* messages one after the other are one message */
    }
    return TD_OK;
}
