#include "proto/vllm.h"

#include <string.h>

#include "proto/api_pb.h"
#include "proto/smg_common.pb-c.h"
#include "proto/vllm_engine.pb-c.h"

#define VLLM(name) Vllm__Grpc__Engine__##name
#define SMG(name)  Smg__Grpc__Common__##name

/* ---- requests ---- */

/* Whatever asks for something that would change the answer and that is not there. */
static const char *refused_sampling(const VLLM(SamplingParams) * p)
{
    static const char *const constraints[] = {"json_schema",    "regex",       "grammar",
                                              "structural_tag", "json_object", "choice"};
    unsigned first = VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_JSON_SCHEMA;
    unsigned which = p->constraint_case;
    if (which >= first && which - first < sizeof constraints / sizeof constraints[0]) {
        return constraints[which - first];
    }
    if (p->_logprobs_case != VLLM__GRPC__ENGINE__SAMPLING_PARAMS___LOGPROBS__NOT_SET) {
        return "logprobs";
    }
    if (p->_prompt_logprobs_case !=
        VLLM__GRPC__ENGINE__SAMPLING_PARAMS___PROMPT_LOGPROBS__NOT_SET) {
        return "prompt_logprobs";
    }
    bool cut = p->_truncate_prompt_tokens_case !=
               VLLM__GRPC__ENGINE__SAMPLING_PARAMS___TRUNCATE_PROMPT_TOKENS__NOT_SET;
    return cut ? "truncate_prompt_tokens" : NULL;
}

static td_err bias_in(const VLLM(SamplingParams) * p, struct td_arena *arena,
                      struct td_vllm_sampling *out)
{
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
    return TD_OK;
}

static td_err sampling_in(const VLLM(SamplingParams) * p, struct td_arena *arena,
                          struct td_vllm_sampling *out)
{
    *out = (struct td_vllm_sampling){
        .has_temperature =
            p->_temperature_case == VLLM__GRPC__ENGINE__SAMPLING_PARAMS___TEMPERATURE_TEMPERATURE,
        .has_max_tokens =
            p->_max_tokens_case == VLLM__GRPC__ENGINE__SAMPLING_PARAMS___MAX_TOKENS_MAX_TOKENS,
        .has_seed = p->_seed_case == VLLM__GRPC__ENGINE__SAMPLING_PARAMS___SEED_SEED,
        .ignore_eos = p->ignore_eos != 0,
        .skip_special = p->skip_special_tokens != 0,
        .top_p = p->top_p,
        .min_p = p->min_p,
        .frequency_penalty = p->frequency_penalty,
        .presence_penalty = p->presence_penalty,
        .repetition_penalty = p->repetition_penalty,
        .top_k = p->top_k,
        .min_tokens = p->min_tokens,
        .n = p->n,
        .stop = (const char *const *)p->stop,
        .stop_ids = p->stop_token_ids,
        .n_stop = (uint32_t)p->n_stop,
        .n_stop_ids = (uint32_t)p->n_stop_token_ids,
        .refused = refused_sampling(p)};
    out->temperature = out->has_temperature ? p->temperature : 0;
    out->max_tokens = out->has_max_tokens ? p->max_tokens : 0;
    out->seed = out->has_seed ? p->seed : 0;
    return bias_in(p, arena, out);
}

static const char *refused_request(const VLLM(GenerateRequest) * r)
{
    if (r->mm_inputs != NULL || r->n_extra_mm_inputs > 0) {
        return "mm_inputs";
    }
    if (r->media_refs != NULL) {
        return "media_refs";
    }
    if (r->kv_transfer_params != NULL) {
        return "kv_transfer_params";
    }
    bool ranked = r->_data_parallel_rank_case ==
                  VLLM__GRPC__ENGINE__GENERATE_REQUEST___DATA_PARALLEL_RANK_DATA_PARALLEL_RANK;
    return ranked && r->data_parallel_rank != 0 ? "data_parallel_rank" : NULL;
}

td_err td_vllm_generate_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                               struct td_vllm_generate *out)
{
    ProtobufCMessage *m = NULL;
    TD_TRY(api_unpack(&vllm__grpc__engine__generate_request__descriptor, data, len, arena, &m));
    const VLLM(GenerateRequest) *r = (const VLLM(GenerateRequest) *)(const void *)m;
    struct td_vllm_generate g = {
        .request_id = r->request_id, .stream = r->stream != 0, .refused = refused_request(r)};
    if (r->input_case == VLLM__GRPC__ENGINE__GENERATE_REQUEST__INPUT_TEXT) {
        g.input = TD_VLLM_TEXT;
        g.text = r->text;
    } else if (r->input_case == VLLM__GRPC__ENGINE__GENERATE_REQUEST__INPUT_TOKENIZED) {
        g.input = TD_VLLM_IDS;
        g.ids = r->tokenized->input_ids;
        g.n_ids = (uint32_t)r->tokenized->n_input_ids;
    }
    if (r->_kv_transfer_params_json_case ==
        VLLM__GRPC__ENGINE__GENERATE_REQUEST___KV_TRANSFER_PARAMS_JSON_KV_TRANSFER_PARAMS_JSON) {
        g.kv_json = r->kv_transfer_params_json;
    }
    if (r->sampling_params != NULL) {
        TD_TRY(sampling_in(r->sampling_params, arena, &g.sampling));
    }
    g.refused = g.refused != NULL ? g.refused : g.sampling.refused;
    *out = g;
    return TD_OK;
}

td_err td_vllm_abort_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                            struct td_vllm_abort *out)
{
    ProtobufCMessage *m = NULL;
    TD_TRY(api_unpack(&vllm__grpc__engine__abort_request__descriptor, data, len, arena, &m));
    const VLLM(AbortRequest) *r = (const VLLM(AbortRequest) *)(const void *)m;
    *out = (struct td_vllm_abort){.ids = (const char *const *)r->request_ids,
                                  .n = (uint32_t)r->n_request_ids};
    return TD_OK;
}

td_err td_vllm_loads_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                            int32_t *out_rank)
{
    ProtobufCMessage *m = NULL;
    TD_TRY(api_unpack(&vllm__grpc__engine__get_loads_request__descriptor, data, len, arena, &m));
    const VLLM(GetLoadsRequest) *r = (const VLLM(GetLoadsRequest) *)(const void *)m;
    *out_rank = r->_dp_rank_case == VLLM__GRPC__ENGINE__GET_LOADS_REQUEST___DP_RANK_DP_RANK
                    ? r->dp_rank
                    : 0;
    return TD_OK;
}

/* ---- answers ---- */

/* protobuf-c's structs are not const; packing does not write. */
static uint32_t *ids_of(const uint32_t *ids)
{
    return (uint32_t *)(uintptr_t)ids;
}

td_err td_vllm_chunk_encode(struct td_buf *out, const struct td_vllm_chunk *c)
{
    VLLM(GenerateStreamChunk) m = VLLM__GRPC__ENGINE__GENERATE_STREAM_CHUNK__INIT;
    VLLM(GenerateResponse) r = VLLM__GRPC__ENGINE__GENERATE_RESPONSE__INIT;
    m.token_ids = ids_of(c->ids);
    m.n_token_ids = c->n;
    m.prompt_tokens = c->prompt_tokens;
    m.completion_tokens = c->completion_tokens;
    m.cached_tokens = c->cached_tokens;
    m.index = c->index;
    r.response_case = VLLM__GRPC__ENGINE__GENERATE_RESPONSE__RESPONSE_CHUNK;
    r.chunk = &m;
    return api_pack(&r.base, out);
}

td_err td_vllm_complete_encode(struct td_buf *out, const struct td_vllm_complete *c)
{
    VLLM(GenerateComplete) m = VLLM__GRPC__ENGINE__GENERATE_COMPLETE__INIT;
    VLLM(GenerateResponse) r = VLLM__GRPC__ENGINE__GENERATE_RESPONSE__INIT;
    m.output_ids = ids_of(c->ids);
    m.n_output_ids = c->n;
    m.finish_reason = api_text(c->finish);
    m.prompt_tokens = c->prompt_tokens;
    m.completion_tokens = c->n;
    m.cached_tokens = c->cached_tokens;
    m.index = c->index;
    if (c->stop_text != NULL) {
        m.matched_stop_case = VLLM__GRPC__ENGINE__GENERATE_COMPLETE__MATCHED_STOP_MATCHED_STOP_STR;
        m.matched_stop_str = api_text(c->stop_text);
    } else if (c->stop_id >= 0) {
        m.matched_stop_case = VLLM__GRPC__ENGINE__GENERATE_COMPLETE__MATCHED_STOP_MATCHED_TOKEN_ID;
        m.matched_token_id = (uint32_t)c->stop_id;
    }
    if (c->kv_json != NULL) {
        m._kv_transfer_params_json_case =
            VLLM__GRPC__ENGINE__GENERATE_COMPLETE___KV_TRANSFER_PARAMS_JSON_KV_TRANSFER_PARAMS_JSON;
        m.kv_transfer_params_json = api_text(c->kv_json);
    }
    r.response_case = VLLM__GRPC__ENGINE__GENERATE_RESPONSE__RESPONSE_COMPLETE;
    r.complete = &m;
    return api_pack(&r.base, out);
}

td_err td_vllm_health_encode(struct td_buf *out, bool healthy, const char *text)
{
    VLLM(HealthCheckResponse) m = VLLM__GRPC__ENGINE__HEALTH_CHECK_RESPONSE__INIT;
    m.healthy = healthy;
    m.message = api_text(text);
    return api_pack(&m.base, out);
}

td_err td_vllm_model_encode(struct td_buf *out, const struct td_vllm_model *m)
{
    VLLM(GetModelInfoResponse) r = VLLM__GRPC__ENGINE__GET_MODEL_INFO_RESPONSE__INIT;
    char *architecture = api_text(m->architecture);
    r.model_path = api_text(m->name);
    r.served_model_name = api_text(m->name);
    r.is_generation = 1;
    r.max_context_length = m->max_model_len;
    r.vocab_size = m->n_vocab;
    r.model_type = api_text(m->type);
    r.architectures = &architecture;
    r.n_architectures = 1;
    r.eos_token_ids = (int32_t *)(uintptr_t)m->end_ids;
    r.n_eos_token_ids = m->n_end_ids;
    r.pad_token_id = m->pad;
    r.bos_token_id = m->bos;
    r.max_req_input_len = (int32_t)m->max_model_len - 1;
    r.default_sampling_params_json = api_text(m->defaults_json);
    return api_pack(&r.base, out);
}

td_err td_vllm_server_encode(struct td_buf *out, const struct td_vllm_server *s)
{
    VLLM(GetServerInfoResponse) r = VLLM__GRPC__ENGINE__GET_SERVER_INFO_RESPONSE__INIT;
    r.active_requests = s->active;
    r.is_paused = s->paused;
    r.last_receive_timestamp = s->last_request_unix_s;
    r.uptime_seconds = s->uptime_s;
    r.server_type = api_text("tandem");
    r.kv_connector = api_text(s->kv_connector);
    r.kv_role = api_text(s->kv_role);
    r.kv_engine_id = api_text(s->engine_id);
    r.data_parallel_size = 1;
    r.kv_cache_dtype = api_text(s->kv_dtype);
    r.block_size = (int32_t)s->block_tokens;
    r.attention_backend = api_text(s->numerics);
    r.model_dtype = api_text(s->model_dtype);
    r.pairing_protocol = api_text(s->pairing);
    r.max_num_seqs = (int32_t)s->max_seqs;
    return api_pack(&r.base, out);
}

static int32_t as_int32(uint64_t v)
{
    return v < INT32_MAX ? (int32_t)v : INT32_MAX;
}

td_err td_vllm_load_encode(struct td_buf *out, const struct td_vllm_load *l)
{
    VLLM(SchedulerLoad) m = VLLM__GRPC__ENGINE__SCHEDULER_LOAD__INIT;
    VLLM(SchedulerLoad) *one = &m;
    VLLM(GetLoadsResponse) r = VLLM__GRPC__ENGINE__GET_LOADS_RESPONSE__INIT;
    m.num_running_reqs = as_int32(l->running);
    m.num_waiting_reqs = as_int32(l->waiting);
    m.num_total_reqs = as_int32((uint64_t)l->running + l->waiting);
    m.num_used_tokens = as_int32(l->used_tokens);
    m.max_total_num_tokens = as_int32(l->max_tokens);
    m.token_usage = l->usage;
    m.utilization = l->max_running > 0 ? (double)l->running / l->max_running : 0;
    m.max_running_requests = as_int32(l->max_running);
    m.num_waiting_uncached_tokens = as_int32(l->waiting_tokens);
    r.timestamp = api_text(l->timestamp);
    r.version = api_text(TD_VERSION);
    r.dp_rank_count = 1;
    r.loads = &one;
    r.n_loads = 1;
    return api_pack(&r.base, out);
}

td_err td_vllm_tokenizer_encode(struct td_buf *out, const void *data, size_t len,
                                const char *sha256)
{
    SMG(GetTokenizerChunk) m = SMG__GRPC__COMMON__GET_TOKENIZER_CHUNK__INIT;
    m.data = (ProtobufCBinaryData){.len = len, .data = (uint8_t *)(uintptr_t)data};
    m.sha256 = api_text(sha256);
    return api_pack(&m.base, out);
}
