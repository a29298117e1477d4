#include <math.h>
#include <string.h>

#include "common/base/assert.h"
#include "proto/wire.h"
#include "proto/wire_pb.h"
#define TD_LOG_ROOM "proto"
#include "common/base/log.h"

/* Design. Arrays and strings of the result are protobuf-c's own, already in the arena: nothing is
 * copied twice. Each body has one function from the generated struct to ours; a missing submessage
 * reads as an empty one, whose mandatory parts then fail their check. Features of this build that a
 * `requires` may name: */
static const char *const known_features[] = {"base", "undrain", "hold"};

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            return TD_ERR_PROTOCOL;                                                                \
        }                                                                                          \
    } while (0)

/* ---- parts ---- */

static td_err id_in(const PB(WorkId) * p, struct td_work_id *out)
{
    CHECK(p != NULL && wire_in(WIRE_ATTEMPT, p->attempt) && wire_in(WIRE_CHOICE, p->choice));
    *out = (struct td_work_id){p->router_epoch, p->counter, p->attempt, p->choice};
    return TD_OK;
}

/* An error that this build does not know comes from a newer peer: internal_error. */
static td_err error_in(const PB(Error) * p, td_err *out_code, const char **out_text)
{
    *out_code = TD_OK;
    *out_text = "";
    if (p == NULL) {
        return TD_OK;
    }
    CHECK(p->code <= 0 && wire_text_in(p->text, TD_WIRE_MAX_TEXT, out_text));
    if (p->code != 0) {
        *out_code = td_err_known(p->code) ? (td_err)p->code : TD_ERR_INTERNAL;
    }
    return TD_OK;
}

static td_err ticket_in(const PB(Ticket) * p, struct td_wire_ticket *out)
{
    if (p == NULL) {
        return TD_OK;
    }
    CHECK(wire_in(WIRE_TIME_MS, p->life_ms) &&
          (p->has_nonce == 0 || p->nonce.len == sizeof out->nonce));
    out->p_epoch = p->p_epoch;
    out->d_epoch = p->d_epoch;
    out->life_ms = p->life_ms;
    if (p->has_nonce != 0) {
        memcpy(out->nonce, p->nonce.data, sizeof out->nonce);
    }
    return TD_OK;
}

static bool ids_in(const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0) {
            return wire_in(WIRE_TOKEN_ID, ids[i]);
        }
    }
    return true;
}

static td_err bias_in(const PB(Sampling) * p, struct td_arena *arena,
                      struct td_sampling_params *out)
{
    CHECK(wire_in(WIRE_BIAS, (int64_t)p->n_bias_ids) && p->n_bias_values == p->n_bias_ids);
    if (p->n_bias_ids == 0) {
        return TD_OK;
    }
    struct td_logit_bias *b = TD_ARENA_ARRAY(arena, struct td_logit_bias, p->n_bias_ids);
    if (b == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < p->n_bias_ids; i++) {
        CHECK(wire_in(WIRE_TOKEN_ID, p->bias_ids[i]) &&
              wire_float_in(p->bias_values[i], -1e6f, 1e6f));
        b[i] = (struct td_logit_bias){p->bias_ids[i], p->bias_values[i]};
    }
    out->bias = b;
    out->n_bias = (uint32_t)p->n_bias_ids;
    return TD_OK;
}

static td_err sampling_in(const PB(Sampling) * p, struct td_arena *arena,
                          struct td_sampling_params *out)
{
    CHECK(p != NULL);
    out->temperature = p->has_temperature != 0 ? p->temperature : 1.0f;
    out->top_p = p->has_top_p != 0 ? p->top_p : 1.0f;
    out->min_p = p->min_p;
    out->repetition_penalty = p->has_repetition_penalty != 0 ? p->repetition_penalty : 1.0f;
    out->frequency_penalty = p->frequency_penalty;
    out->presence_penalty = p->presence_penalty;
    CHECK(wire_float_in(out->temperature, 0.0f, 100.0f) && wire_float_in(out->top_p, 0.0f, 1.0f) &&
          wire_float_in(out->min_p, 0.0f, 1.0f) &&
          wire_float_in(out->repetition_penalty, 1e-3f, 1e3f) &&
          wire_float_in(out->frequency_penalty, -100.0f, 100.0f) &&
          wire_float_in(out->presence_penalty, -100.0f, 100.0f));
    CHECK(wire_in(WIRE_TOP_K, p->top_k) && wire_in(WIRE_LOGPROBS, p->logprobs) &&
          wire_in(WIRE_CHOICE, p->choice) && wire_in(WIRE_MAX_TOKENS, p->max_tokens) &&
          wire_in(WIRE_POSITION, p->min_tokens) && wire_in(WIRE_STOP_IDS, (int64_t)p->n_stop_ids) &&
          ids_in(p->stop_ids, p->n_stop_ids));
    out->top_k = p->top_k;
    out->logprobs = p->logprobs;
    out->seed = p->seed;
    out->choice = p->choice;
    out->max_tokens = p->max_tokens;
    out->min_tokens = p->min_tokens;
    out->n_stop_ids = (uint32_t)p->n_stop_ids;
    if (p->n_stop_ids > 0) {
        memcpy(out->stop_ids, p->stop_ids, p->n_stop_ids * sizeof out->stop_ids[0]);
    }
    return bias_in(p, arena, out);
}

static td_err stages_in(const PB(Stages) * p, struct td_wire_stages *out)
{
    out->transport = "";
    if (p == NULL) {
        return TD_OK;
    }
    out->prefill_queue_us = p->prefill_queue_us;
    out->prefill_us = p->prefill_us;
    out->transfer_us = p->transfer_us;
    out->transfer_exposed_us = p->transfer_exposed_us;
    out->decode_queue_us = p->decode_queue_us;
    out->decode_us = p->decode_us;
    out->kv_bytes = p->kv_bytes;
    out->cached_tokens = p->cached_tokens;
    out->prompt_tokens = p->prompt_tokens;
    out->output_tokens = p->output_tokens;
    CHECK(wire_text_in(p->transport, TD_WIRE_MAX_NAME, &out->transport));
    return TD_OK;
}

static bool feature_known(const char *name)
{
    for (size_t i = 0; i < sizeof known_features / sizeof known_features[0]; i++) {
        if (strcmp(known_features[i], name) == 0) {
            return true;
        }
    }
    return false;
}

static td_err requires_in(char *const *names, size_t n)
{
    CHECK(wire_in(WIRE_REQUIRES, (int64_t)n));
    for (size_t i = 0; i < n; i++) {
        const char *name;
        CHECK(wire_text_in(names[i], TD_WIRE_MAX_NAME, &name));
        if (!feature_known(name)) {
            char quoted[2 * TD_WIRE_MAX_NAME];
            TD_LOG(INFO, "message requires a feature that this build does not know, refusing it",
                   "feature=%s", td_log_quote(name, strlen(name), quoted, sizeof quoted));
            return TD_ERR_UNKNOWN_REQUIRES;
        }
    }
    return TD_OK;
}

static td_err request_in(const PB(Request) * p, struct td_arena *arena, struct td_wire_request *out)
{
    CHECK(p != NULL);
    out->tenant = out->traceparent = out->tracestate = out->request_id = out->adapter = "";
    TD_TRY(id_in(p->id, &out->id));
    TD_TRY(requires_in(p->requires, p->n_requires));
    CHECK(wire_in(WIRE_TIME_MS, p->budget_ms) && wire_in(WIRE_PRIORITY, p->priority) &&
          wire_in(WIRE_KV_GROUP, p->kv_group) && wire_in(WIRE_PROMPT, (int64_t)p->n_prompt) &&
          wire_in(WIRE_POSITION, p->n_replayed) && p->n_replayed < p->n_prompt &&
          ids_in(p->prompt, p->n_prompt));
    CHECK(wire_text_in(p->tenant, TD_WIRE_MAX_NAME, &out->tenant) &&
          wire_text_in(p->traceparent, TD_WIRE_MAX_NAME, &out->traceparent) &&
          wire_text_in(p->tracestate, TD_WIRE_MAX_TEXT, &out->tracestate) &&
          wire_text_in(p->request_id, TD_WIRE_MAX_NAME, &out->request_id) &&
          wire_text_in(p->adapter, TD_WIRE_MAX_NAME, &out->adapter));
    CHECK(wire_hash_in(p->has_cache_salt, &p->cache_salt, out->cache_salt));
    out->budget_ms = p->budget_ms;
    out->priority = p->priority;
    out->kv_group = p->kv_group;
    out->numerics_id = p->numerics_id;
    out->layout_id = p->layout_id;
    out->prompt = p->prompt;
    out->n_prompt = (uint32_t)p->n_prompt;
    out->n_replayed = p->n_replayed;
    return sampling_in(p->sampling, arena, &out->sampling);
}

static td_err blob_in(protobuf_c_boolean has, const ProtobufCBinaryData *b, enum wire_bound bound,
                      const uint8_t **out, uint32_t *out_len)
{
    if (has != 0) {
        CHECK(wire_in(bound, (int64_t)b->len));
        *out = b->data;
        *out_len = (uint32_t)b->len;
    }
    return TD_OK;
}

/* ---- bodies ---- */

static td_err prefill_in(const PB(Prefill) * p, struct td_arena *arena, struct td_wire_prefill *out)
{
    out->decode_node = "";
    TD_TRY(request_in(p->request, arena, &out->r));
    TD_TRY(ticket_in(p->ticket, &out->ticket));
    CHECK(wire_in(WIRE_TIME_MS, p->hold_ms) &&
          wire_text_in(p->decode_node, TD_WIRE_MAX_NAME, &out->decode_node));
    out->hold_ms = p->hold_ms;
    return TD_OK;
}

static td_err reserve_in(const PB(Reserve) * p, struct td_arena *arena, struct td_wire_reserve *out)
{
    out->prefill_node = "";
    TD_TRY(request_in(p->request, arena, &out->r));
    TD_TRY(ticket_in(p->ticket, &out->ticket));
    CHECK(wire_in(WIRE_MODE, (int64_t)p->mode) &&
          wire_text_in(p->prefill_node, TD_WIRE_MAX_NAME, &out->prefill_node));
    if (p->held != NULL) {
        TD_TRY(id_in(p->held, &out->held));
    }
    out->mode = (enum td_reserve_mode)p->mode;
    return blob_in(p->has_p_address, &p->p_address, WIRE_ADDRESS_BYTES, &out->p_address,
                   &out->p_address_len);
}

static td_err cancel_in(const PB(Cancel) * p, struct td_wire_cancel *out)
{
    const char *text;
    TD_TRY(id_in(p->id, &out->id));
    TD_TRY(requires_in(p->requires, p->n_requires));
    return error_in(p->reason, &out->reason, &text);
}

static td_err tokens_in(const PB(Tokens) * p, struct td_arena *arena, struct td_wire_tokens *out)
{
    size_t n = p->n_counter;
    CHECK(wire_in(WIRE_TOKENS, (int64_t)n));
    const size_t columns[] = {p->n_attempt, p->n_choice,  p->n_index,
                              p->n_token,   p->n_logprob, p->n_finish};
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        CHECK(columns[i] == 0 || columns[i] == n);
    }
    struct td_wire_token *t = TD_ARENA_ARRAY(arena, struct td_wire_token, n);
    if (t == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n; i++) {
        t[i].id.router_epoch = p->router_epoch;
        t[i].id.counter = p->counter[i];
        t[i].id.attempt = p->n_attempt > 0 ? p->attempt[i] : 0;
        t[i].id.choice = p->n_choice > 0 ? p->choice[i] : 0;
        t[i].index = p->n_index > 0 ? p->index[i] : 0;
        t[i].token = p->n_token > 0 ? p->token[i] : 0;
        /* A sampled token has a finite logprob; anything else must not reach JSON. */
        t[i].logprob = p->n_logprob > 0 && isfinite(p->logprob[i]) ? p->logprob[i] : 0.0f;
        uint32_t finish = p->n_finish > 0 ? p->finish[i] : 0;
        CHECK(wire_in(WIRE_ATTEMPT, t[i].id.attempt) && wire_in(WIRE_CHOICE, t[i].id.choice) &&
              wire_in(WIRE_POSITION, t[i].index) && wire_in(WIRE_TOKEN_ID, t[i].token) &&
              wire_in(WIRE_FINISH, finish));
        t[i].finish = (enum td_finish)finish;
    }
    *out = (struct td_wire_tokens){.step = p->step, .n = (uint32_t)n, .tokens = t};
    return TD_OK;
}

static td_err end_in(const PB(End) * p, struct td_wire_end *out)
{
    TD_TRY(id_in(p->id, &out->id));
    TD_TRY(error_in(p->error, &out->err, &out->text));
    return stages_in(p->stages, &out->stages);
}

static td_err state_in(const PB(State) * p, struct td_wire_state *out)
{
    CHECK(wire_in(WIRE_ROLE, (int64_t)p->role) &&
          wire_in(WIRE_STATE_COLUMNS, (int64_t)p->n_blocks));
    out->seq = p->seq;
    out->full = p->full != 0;
    out->ready = p->ready != 0;
    out->draining = p->draining != 0;
    out->role = (enum td_role)p->role;
    out->queued_requests = p->queued_requests;
    out->running_requests = p->running_requests;
    out->queued_prompt_tok = p->queued_prompt_tok;
    for (size_t i = 0; i < p->n_blocks && i < TD_BLK_STATES; i++) {
        out->blocks[i] = p->blocks[i];
    }
    out->prefill_us_per_ktok = p->prefill_us_per_ktok;
    out->decode_step_us = p->decode_step_us;
    return TD_OK;
}

static td_err lease_in(const PB(Lease) * p, struct td_wire_lease *out)
{
    TD_TRY(id_in(p->id, &out->id));
    TD_TRY(requires_in(p->requires, p->n_requires));
    CHECK(wire_in(WIRE_TIME_MS, p->life_ms));
    out->life_ms = p->life_ms;
    return TD_OK;
}

static td_err drain_in(const PB(Drain) * p, struct td_wire_drain *out)
{
    TD_TRY(requires_in(p->requires, p->n_requires));
    CHECK(wire_in(WIRE_TIME_MS, p->limit_ms) && wire_text_in(p->why, TD_WIRE_MAX_TEXT, &out->why));
    out->limit_ms = p->limit_ms;
    out->undo = p->undo != 0;
    return TD_OK;
}

static td_err role_in(const PB(RoleChange) * p, struct td_wire_role_change *out)
{
    TD_TRY(requires_in(p->requires, p->n_requires));
    CHECK(wire_in(WIRE_ROLE, (int64_t)p->role));
    out->role = (enum td_role)p->role;
    return TD_OK;
}

static td_err table_in(const PB(Table) * p, struct td_arena *arena, struct td_wire_table *out)
{
    TD_TRY(id_in(p->id, &out->id));
    TD_TRY(requires_in(p->requires, p->n_requires));
    TD_TRY(ticket_in(p->ticket, &out->ticket));
    CHECK(wire_in(WIRE_POSITION, p->first_tok) && wire_in(WIRE_POSITION, p->n_tok) &&
          wire_in(WIRE_KV_GROUP, p->kv_group) && wire_in(WIRE_BLOCKS, (int64_t)p->n_block_index) &&
          p->n_block_generation == p->n_block_index);
    struct td_block_ref *b = TD_ARENA_ARRAY(arena, struct td_block_ref, p->n_block_index);
    if (b == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < p->n_block_index; i++) {
        b[i] = (struct td_block_ref){p->block_index[i], p->block_generation[i]};
    }
    out->land = p->land;
    out->layout_id = p->layout_id;
    out->first_tok = p->first_tok;
    out->n_tok = p->n_tok;
    out->kv_group = p->kv_group;
    out->n_blocks = (uint32_t)p->n_block_index;
    out->blocks = b;
    return TD_OK;
}

static td_err record_in(const PB(Record) * p, struct td_wire_record *out)
{
    TD_TRY(id_in(p->id, &out->id));
    TD_TRY(requires_in(p->requires, p->n_requires));
    TD_TRY(stages_in(p->stages, &out->stages));
    CHECK(wire_in(WIRE_POSITION, p->n_tok) && wire_in(WIRE_TOKEN_ID, p->first_token) &&
          wire_in(WIRE_FINISH, (int64_t)p->finish) && wire_in(WIRE_KV_GROUP, p->kv_group));
    out->land = p->land;
    out->p_epoch = p->p_epoch;
    out->d_epoch = p->d_epoch;
    out->layout_id = p->layout_id;
    out->numerics_id = p->numerics_id;
    out->n_tok = p->n_tok;
    out->n_slices = p->n_slices;
    out->first_token = p->first_token;
    out->first_logprob = isfinite(p->first_logprob) ? p->first_logprob : 0.0f;
    out->finish = (enum td_finish)p->finish;
    out->seed = p->seed;
    out->kv_group = p->kv_group;
    TD_TRY(blob_in(p->has_grammar, &p->grammar, WIRE_BLOB_BYTES, &out->grammar, &out->grammar_len));
    return blob_in(p->has_draft, &p->draft, WIRE_BLOB_BYTES, &out->draft, &out->draft_len);
}

static td_err taken_in(const PB(Taken) * p, struct td_wire_taken *out)
{
    const char *text;
    TD_TRY(id_in(p->id, &out->id));
    return error_in(p->error, &out->err, &text);
}

static td_err abort_in(const PB(Abort) * p, struct td_wire_abort *out)
{
    const char *text;
    TD_TRY(id_in(p->id, &out->id));
    out->land = p->land;
    return error_in(p->error, &out->err, &text);
}

static td_err body_in(const PB(Message) * p, struct td_arena *arena, struct td_wire_msg *out)
{
    switch (out->type) {
    case TD_WIRE_PREFILL:
        return prefill_in(p->prefill, arena, &out->prefill);
    case TD_WIRE_RESERVE:
        return reserve_in(p->reserve, arena, &out->reserve);
    case TD_WIRE_CANCEL:
        return cancel_in(p->cancel, &out->cancel);
    case TD_WIRE_CANCEL_ACK:
        out->cancel_ack.known = p->cancel_ack->known != 0;
        return id_in(p->cancel_ack->id, &out->cancel_ack.id);
    case TD_WIRE_TOKENS:
        return tokens_in(p->tokens, arena, &out->tokens);
    case TD_WIRE_END:
        return end_in(p->end, &out->end);
    case TD_WIRE_STATE:
        return state_in(p->state, &out->state);
    case TD_WIRE_STATE_REQUEST:
        return TD_OK;
    case TD_WIRE_PARK:
    case TD_WIRE_PULL:
    case TD_WIRE_LEASE:
        return lease_in(p->lease, &out->lease); /* one place in the union for all three */
    case TD_WIRE_DRAIN:
        return drain_in(p->drain, &out->drain);
    case TD_WIRE_ROLE:
        return role_in(p->role, &out->role);
    case TD_WIRE_GO_AWAY:
        return error_in(p->go_away->reason, &out->go_away.reason, &out->go_away.text);
    case TD_WIRE_TABLE:
        return table_in(p->table, arena, &out->table);
    case TD_WIRE_RECORD:
        return record_in(p->record, &out->record);
    case TD_WIRE_TAKEN:
        return taken_in(p->taken, &out->taken);
    case TD_WIRE_ABORT:
        return abort_in(p->abort, &out->abort);
    case TD_WIRE_NONE:
    case TD_WIRE_TYPES:
        break;
    }
    return TD_ERR_PROTOCOL;
}

/* The oneof's numbers are enum td_wire_type. */
_Static_assert(PB_MSG(PREFILL) == (int)TD_WIRE_PREFILL && PB_MSG(TOKENS) == (int)TD_WIRE_TOKENS &&
                   PB_MSG(STATE_REQUEST) == (int)TD_WIRE_STATE_REQUEST &&
                   PB_MSG(PARK) == (int)TD_WIRE_PARK && PB_MSG(GO_AWAY) == (int)TD_WIRE_GO_AWAY &&
                   PB_MSG(TABLE) == (int)TD_WIRE_TABLE && PB_MSG(ABORT) == (int)TD_WIRE_ABORT,
               "message numbers are types");

td_err td_wire_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                      struct td_wire_msg *out)
{
    td_err e = TD_OK;
    TD_REQUIRE(arena != NULL && out != NULL);
    memset(out, 0, sizeof *out);
    PB(Message) *p =
        (void *)wire_unpack(&tandem__wire__v1__message__descriptor, data, len, arena, &e);
    if (p == NULL) {
        TD_LOG(DEBUG, "message does not decode", "bytes=%zu err=%s", len, td_err_code(e));
        return e;
    }
    if (p->body_case == PB_MSG(_NOT_SET)) {
        /* A type of a newer version is an unknown field; nothing at all is not a message. */
        return p->base.n_unknown_fields > 0 ? TD_OK : TD_ERR_PROTOCOL;
    }
    out->type = (enum td_wire_type)p->body_case;
    e = body_in(p, arena, out);
    if (e != TD_OK) {
        TD_LOG(DEBUG, "message refused", "type=%s bytes=%zu err=%s", td_wire_type_name(out->type),
               len, td_err_code(e));
    }
    return e;
}
