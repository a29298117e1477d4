#include <string.h>

#include "common/base/assert.h"
#include "proto/wire.h"
#include "proto/wire_pb.h"
#define TD_LOG_ROOM "proto"
#include "common/base/log.h"

/* Design. The generated structs are built on the stack and borrow from ours, so packing allocates
 * nothing but the room in `out`. Tables (tokens, blocks, bias) become packed columns; the columns
 * are laid out in the free part of `out`, behind the place where the packed message will stand. */

#define COLUMN_ALIGN 16u
/* Most bytes of one token in TOKENS (eight of counter ... finish), of one block in TABLE, of one
 * bias entry. */
#define TOKEN_PACKED_MAX 48u
#define BLOCK_PACKED_MAX 12u
#define BIAS_PACKED_MAX  16u
#define FIXED_PACKED_MAX                                                                           \
    16384u /* everything else of a message with columns, prompt and blobs excepted */

struct columns {
    uint8_t *at;
    size_t left;
    size_t packed_max; /* the message in front of them must not grow beyond this */
};

/* Room for `packed_max` bytes of message, and behind it for `bytes` of columns. */
static td_err columns_begin(struct columns *c, struct td_buf *out, size_t packed_max, size_t bytes)
{
    uint8_t *p;
    TD_TRY(td_buf_reserve(out, packed_max + bytes + COLUMN_ALIGN, &p));
    uintptr_t at = ((uintptr_t)p + packed_max + COLUMN_ALIGN - 1) & ~(uintptr_t)(COLUMN_ALIGN - 1);
    *c = (struct columns){.at = (uint8_t *)at, .left = bytes, .packed_max = packed_max};
    return TD_OK;
}

static void *column(struct columns *c, size_t count, size_t size)
{
    size_t bytes = (count * size + COLUMN_ALIGN - 1) & ~(size_t)(COLUMN_ALIGN - 1);
    TD_INSIST(bytes <= c->left);
    void *p = c->at;
    c->at += bytes;
    c->left -= bytes;
    return p;
}

#define COLUMN_BYTES(count, size)                                                                  \
    (((size_t)(count) * (size) + COLUMN_ALIGN - 1) & ~(size_t)(COLUMN_ALIGN - 1))

/* ---- parts: the caller gives the memory ---- */

static PB(WorkId) id_out(const struct td_work_id *id)
{
    PB(WorkId) p = TANDEM__WIRE__V1__WORK_ID__INIT;
    p.has_router_epoch = 1;
    p.router_epoch = id->router_epoch;
    p.has_counter = 1;
    p.counter = id->counter;
    p.has_attempt = id->attempt != 0;
    p.attempt = id->attempt;
    p.has_choice = id->choice != 0;
    p.choice = id->choice;
    return p;
}

static PB(Error) error_out(td_err e, const char *text, char cut[TD_WIRE_MAX_TEXT + 1])
{
    PB(Error) p = TANDEM__WIRE__V1__ERROR__INIT;
    p.has_code = 1;
    p.code = e;
    if (text != NULL && text[0] != '\0') {
        size_t len = strnlen(text, TD_WIRE_MAX_TEXT);
        while (len > 0 && text[len] != '\0' && ((unsigned char)text[len] & 0xc0u) == 0x80u) {
            len--; /* not in the middle of a character */
        }
        memcpy(cut, text, len);
        cut[len] = '\0';
        p.text = cut;
    }
    return p;
}

static PB(Ticket) ticket_out(const struct td_wire_ticket *t)
{
    PB(Ticket) p = TANDEM__WIRE__V1__TICKET__INIT;
    p.has_p_epoch = p.has_d_epoch = p.has_nonce = p.has_life_ms = 1;
    p.p_epoch = t->p_epoch;
    p.d_epoch = t->d_epoch;
    p.nonce = wire_bytes_out(t->nonce, sizeof t->nonce);
    p.life_ms = t->life_ms;
    return p;
}

static PB(Stages) stages_out(const struct td_wire_stages *s)
{
    PB(Stages) p = TANDEM__WIRE__V1__STAGES__INIT;
#define STAGE(field)                                                                               \
    p.has_##field = s->field != 0;                                                                 \
    p.field = s->field
    STAGE(prefill_queue_us);
    STAGE(prefill_us);
    STAGE(transfer_us);
    STAGE(transfer_exposed_us);
    STAGE(decode_queue_us);
    STAGE(decode_us);
    STAGE(kv_bytes);
    STAGE(cached_tokens);
    STAGE(prompt_tokens);
    STAGE(output_tokens);
#undef STAGE
    p.transport = wire_text_out(s->transport);
    return p;
}

static td_err sampling_out(const struct td_sampling_params *s, struct columns *c, PB(Sampling) * p)
{
    if (s->n_bias > TD_SAMPLING_MAX_BIAS || s->n_stop_ids > TD_SAMPLING_MAX_STOP_IDS) {
        return TD_ERR_TOO_LARGE;
    }
    p->has_temperature = p->has_top_p = p->has_min_p = p->has_repetition_penalty = 1;
    p->temperature = s->temperature;
    p->top_p = s->top_p;
    p->min_p = s->min_p;
    p->repetition_penalty = s->repetition_penalty;
    p->has_frequency_penalty = p->has_presence_penalty = p->has_top_k = p->has_logprobs = 1;
    p->frequency_penalty = s->frequency_penalty;
    p->presence_penalty = s->presence_penalty;
    p->top_k = s->top_k;
    p->logprobs = s->logprobs;
    p->has_seed = p->has_choice = p->has_max_tokens = p->has_min_tokens = 1;
    p->seed = s->seed;
    p->choice = s->choice;
    p->max_tokens = s->max_tokens;
    p->min_tokens = s->min_tokens;
    p->n_stop_ids = s->n_stop_ids;
    p->stop_ids = (int32_t *)(uintptr_t)s->stop_ids;
    p->n_bias_ids = p->n_bias_values = s->n_bias;
    p->bias_ids = column(c, s->n_bias, sizeof(int32_t));
    p->bias_values = column(c, s->n_bias, sizeof(float));
    for (uint32_t i = 0; i < s->n_bias; i++) {
        p->bias_ids[i] = s->bias[i].id;
        p->bias_values[i] = s->bias[i].bias;
    }
    return TD_OK;
}

static td_err name_ok(const char *s)
{
    return s == NULL || strnlen(s, TD_WIRE_MAX_NAME + 1) <= TD_WIRE_MAX_NAME ? TD_OK
                                                                             : TD_ERR_TOO_LARGE;
}

/* A request and all it consists of, so that one lifetime covers it. */
struct request_out {
    PB(Request) request;
    PB(WorkId) id;
    PB(Sampling) sampling;
};

static td_err request_out(const struct td_wire_request *r, struct columns *c, struct request_out *o)
{
    static const PB(Request) empty_request = TANDEM__WIRE__V1__REQUEST__INIT;
    static const PB(Sampling) empty_sampling = TANDEM__WIRE__V1__SAMPLING__INIT;
    TD_TRY(name_ok(r->tenant));
    TD_TRY(name_ok(r->traceparent));
    TD_TRY(name_ok(r->request_id));
    TD_TRY(name_ok(r->adapter));
    if (r->n_prompt > TD_WIRE_MAX_PROMPT ||
        (r->tracestate != NULL &&
         strnlen(r->tracestate, TD_WIRE_MAX_TEXT + 1) > TD_WIRE_MAX_TEXT)) {
        return TD_ERR_TOO_LARGE;
    }
    o->id = id_out(&r->id);
    o->sampling = empty_sampling;
    TD_TRY(sampling_out(&r->sampling, c, &o->sampling));
    PB(Request) *p = &o->request;
    *p = empty_request;
    p->id = &o->id;
    p->sampling = &o->sampling;
    p->has_budget_ms = p->has_priority = 1;
    p->budget_ms = r->budget_ms;
    p->priority = r->priority;
    p->tenant = wire_text_out(r->tenant);
    p->traceparent = wire_text_out(r->traceparent);
    p->tracestate = wire_text_out(r->tracestate);
    p->request_id = wire_text_out(r->request_id);
    p->adapter = wire_text_out(r->adapter);
    p->has_kv_group = p->has_numerics_id = p->has_layout_id = p->has_cache_salt = 1;
    p->kv_group = r->kv_group;
    p->numerics_id = r->numerics_id;
    p->layout_id = r->layout_id;
    p->cache_salt = wire_bytes_out(r->cache_salt, sizeof r->cache_salt);
    p->prompt = (int32_t *)(uintptr_t)r->prompt;
    p->n_prompt = r->n_prompt;
    p->has_n_replayed = r->n_replayed != 0;
    p->n_replayed = r->n_replayed;
    return TD_OK;
}

/* Columns of a request stand behind its prompt: at most 5 bytes an id for a legal one, 10 for a
 * negative one, which the peer will refuse. */
static td_err request_columns(struct columns *c, struct td_buf *out,
                              const struct td_wire_request *r, size_t more)
{
    size_t n_bias = r->sampling.n_bias <= TD_SAMPLING_MAX_BIAS ? r->sampling.n_bias : 0;
    size_t n_prompt = r->n_prompt <= TD_WIRE_MAX_PROMPT ? r->n_prompt : 0;
    return columns_begin(c, out, FIXED_PACKED_MAX + n_prompt * 10 + n_bias * BIAS_PACKED_MAX + more,
                         COLUMN_BYTES(n_bias, sizeof(int32_t)) +
                             COLUMN_BYTES(n_bias, sizeof(float)));
}

static td_err finish(PB(Message) * m, struct td_buf *out)
{
    return wire_pack(&m->base, out);
}

static td_err finish_before(const struct columns *c, PB(Message) * m, struct td_buf *out)
{
    TD_INSIST(protobuf_c_message_get_packed_size(&m->base) <= c->packed_max);
    return wire_pack(&m->base, out);
}

/* ---- bodies ---- */

/* What a receiver would do wrongly if it did not know of holds. */
static char hold_name[] = "hold";
static char *hold[] = {hold_name};

static td_err prefill_out(const struct td_wire_prefill *f, PB(Message) * m, struct td_buf *out)
{
    PB(Prefill) p = TANDEM__WIRE__V1__PREFILL__INIT;
    PB(Ticket) ticket = ticket_out(&f->ticket);
    struct request_out r;
    struct columns c;
    TD_TRY(name_ok(f->decode_node));
    TD_TRY(request_columns(&c, out, &f->r, 0));
    TD_TRY(request_out(&f->r, &c, &r));
    p.request = &r.request;
    p.ticket = &ticket;
    p.decode_node = wire_text_out(f->decode_node);
    p.has_hold_ms = f->hold_ms != 0;
    p.hold_ms = f->hold_ms;
    r.request.requires = hold;
    r.request.n_requires = f->hold_ms != 0 ? 1 : 0;
    m->prefill = &p;
    return finish_before(&c, m, out);
}

static td_err reserve_out(const struct td_wire_reserve *f, PB(Message) * m, struct td_buf *out)
{
    PB(Reserve) p = TANDEM__WIRE__V1__RESERVE__INIT;
    PB(Ticket) ticket = ticket_out(&f->ticket);
    PB(WorkId) held = id_out(&f->held);
    struct request_out r;
    struct columns c;
    TD_TRY(name_ok(f->prefill_node));
    if (f->p_address_len > TD_WIRE_MAX_ADDR) {
        return TD_ERR_TOO_LARGE;
    }
    TD_TRY(request_columns(&c, out, &f->r, TD_WIRE_MAX_ADDR));
    TD_TRY(request_out(&f->r, &c, &r));
    p.request = &r.request;
    p.has_mode = 1;
    p.mode = (PB(Reserve__Mode))f->mode;
    p.ticket = &ticket;
    p.prefill_node = wire_text_out(f->prefill_node);
    p.has_p_address = f->p_address_len > 0;
    p.p_address = wire_bytes_out(f->p_address, f->p_address_len);
    p.held = f->held.router_epoch != 0 ? &held : NULL;
    r.request.requires = hold;
    r.request.n_requires = p.held != NULL ? 1 : 0;
    m->reserve = &p;
    return finish_before(&c, m, out);
}

static td_err cancel_out(const struct td_wire_cancel *f, PB(Message) * m, struct td_buf *out)
{
    char cut[TD_WIRE_MAX_TEXT + 1];
    PB(Cancel) p = TANDEM__WIRE__V1__CANCEL__INIT;
    PB(WorkId) id = id_out(&f->id);
    PB(Error) reason = error_out(f->reason, "", cut);
    p.id = &id;
    p.reason = &reason;
    m->cancel = &p;
    return finish(m, out);
}

static td_err cancel_ack_out(const struct td_wire_cancel_ack *f, PB(Message) * m,
                             struct td_buf *out)
{
    PB(CancelAck) p = TANDEM__WIRE__V1__CANCEL_ACK__INIT;
    PB(WorkId) id = id_out(&f->id);
    p.id = &id;
    p.has_known = 1;
    p.known = f->known;
    m->cancel_ack = &p;
    return finish(m, out);
}

static td_err token_columns(const struct td_wire_tokens *f, struct columns *c, PB(Tokens) * p)
{
    uint32_t n = f->n, attempts = 0, choices = 0, indices = 0, finishes = 0;
    bool logprobs = false;
    p->counter = column(c, n, sizeof(uint64_t));
    p->attempt = column(c, n, sizeof(uint32_t));
    p->choice = column(c, n, sizeof(uint32_t));
    p->index = column(c, n, sizeof(uint32_t));
    p->token = column(c, n, sizeof(int32_t));
    p->logprob = column(c, n, sizeof(float));
    p->finish = column(c, n, sizeof(uint32_t));
    for (uint32_t i = 0; i < n; i++) {
        const struct td_wire_token *t = &f->tokens[i];
        if (t->id.router_epoch != f->tokens[0].id.router_epoch) {
            return TD_ERR_BAD_REQUEST; /* one message is for one router */
        }
        p->counter[i] = t->id.counter;
        attempts |= p->attempt[i] = t->id.attempt;
        choices |= p->choice[i] = t->id.choice;
        indices |= p->index[i] = t->index;
        p->token[i] = t->token;
        p->logprob[i] = t->logprob;
        logprobs = logprobs || t->logprob < 0.0f || t->logprob > 0.0f;
        finishes |= p->finish[i] = (uint32_t)t->finish;
    }
    p->n_counter = p->n_token = n;
    p->n_attempt = attempts != 0 ? n : 0;
    p->n_choice = choices != 0 ? n : 0;
    p->n_index = indices != 0 ? n : 0;
    p->n_logprob = logprobs ? n : 0;
    p->n_finish = finishes != 0 ? n : 0;
    return TD_OK;
}

static td_err tokens_out(const struct td_wire_tokens *f, PB(Message) * m, struct td_buf *out)
{
    PB(Tokens) p = TANDEM__WIRE__V1__TOKENS__INIT;
    struct columns c;
    if (f->n > TD_WIRE_MAX_TOKENS_MSG) {
        return TD_ERR_TOO_LARGE;
    }
    TD_TRY(columns_begin(&c, out, 128 + (size_t)f->n * TOKEN_PACKED_MAX,
                         COLUMN_BYTES(f->n, sizeof(uint64_t)) +
                             6 * COLUMN_BYTES(f->n, sizeof(uint32_t))));
    TD_TRY(token_columns(f, &c, &p));
    p.has_step = 1;
    p.step = f->step;
    p.has_router_epoch = f->n > 0;
    p.router_epoch = f->n > 0 ? f->tokens[0].id.router_epoch : 0;
    m->tokens = &p;
    return finish_before(&c, m, out);
}

static td_err end_out(const struct td_wire_end *f, PB(Message) * m, struct td_buf *out)
{
    char cut[TD_WIRE_MAX_TEXT + 1];
    PB(End) p = TANDEM__WIRE__V1__END__INIT;
    PB(WorkId) id = id_out(&f->id);
    PB(Error) error = error_out(f->err, f->text, cut);
    PB(Stages) stages = stages_out(&f->stages);
    TD_TRY(name_ok(f->stages.transport));
    p.id = &id;
    p.error = &error;
    p.stages = &stages;
    m->end = &p;
    return finish(m, out);
}

static td_err state_out(const struct td_wire_state *f, PB(Message) * m, struct td_buf *out)
{
    PB(State) p = TANDEM__WIRE__V1__STATE__INIT;
    p.has_seq = p.has_full = p.has_ready = p.has_draining = p.has_role = 1;
    p.seq = f->seq;
    p.full = f->full;
    p.ready = f->ready;
    p.draining = f->draining;
    p.role = (PB(Role))f->role;
    p.has_queued_requests = p.has_running_requests = p.has_queued_prompt_tok = 1;
    p.queued_requests = f->queued_requests;
    p.running_requests = f->running_requests;
    p.queued_prompt_tok = f->queued_prompt_tok;
    p.n_blocks = TD_BLK_STATES;
    p.blocks = (uint32_t *)(uintptr_t)f->blocks;
    p.has_prefill_us_per_ktok = p.has_decode_step_us = 1;
    p.prefill_us_per_ktok = f->prefill_us_per_ktok;
    p.decode_step_us = f->decode_step_us;
    m->state = &p;
    return finish(m, out);
}

static td_err lease_out(const struct td_wire_lease *f, PB(Message) * m, struct td_buf *out)
{
    PB(Lease) p = TANDEM__WIRE__V1__LEASE__INIT;
    PB(WorkId) id = id_out(&f->id);
    p.id = &id;
    p.has_life_ms = 1;
    p.life_ms = f->life_ms;
    m->lease = &p; /* PARK, PULL and LEASE share the place in the union */
    return finish(m, out);
}

static td_err drain_out(const struct td_wire_drain *f, PB(Message) * m, struct td_buf *out)
{
    char cut[TD_WIRE_MAX_TEXT + 1];
    PB(Drain) p = TANDEM__WIRE__V1__DRAIN__INIT;
    char undrain[] = "undrain";
    char *names[] = {undrain};
    p.has_limit_ms = 1;
    p.limit_ms = f->limit_ms;
    p.has_undo = p.undo = f->undo;
    p.requires = names;
    p.n_requires = f->undo ? 1 : 0;
    p.why = error_out(TD_OK, f->why, cut).text;
    m->drain = &p;
    return finish(m, out);
}

static td_err role_out(const struct td_wire_role_change *f, PB(Message) * m, struct td_buf *out)
{
    PB(RoleChange) p = TANDEM__WIRE__V1__ROLE_CHANGE__INIT;
    p.has_role = 1;
    p.role = (PB(Role))f->role;
    m->role = &p;
    return finish(m, out);
}

static td_err go_away_out(const struct td_wire_go_away *f, PB(Message) * m, struct td_buf *out)
{
    char cut[TD_WIRE_MAX_TEXT + 1];
    PB(GoAway) p = TANDEM__WIRE__V1__GO_AWAY__INIT;
    PB(Error) reason = error_out(f->reason, f->text, cut);
    p.reason = &reason;
    m->go_away = &p;
    return finish(m, out);
}

static td_err table_out(const struct td_wire_table *f, PB(Message) * m, struct td_buf *out)
{
    PB(Table) p = TANDEM__WIRE__V1__TABLE__INIT;
    PB(WorkId) id = id_out(&f->id);
    PB(Ticket) ticket = ticket_out(&f->ticket);
    struct columns c;
    if (f->n_blocks > TD_WIRE_MAX_BLOCKS) {
        return TD_ERR_TOO_LARGE;
    }
    TD_TRY(columns_begin(&c, out, FIXED_PACKED_MAX + (size_t)f->n_blocks * BLOCK_PACKED_MAX,
                         2 * COLUMN_BYTES(f->n_blocks, sizeof(uint32_t))));
    p.id = &id;
    p.ticket = &ticket;
    p.has_land = p.has_layout_id = p.has_first_tok = p.has_n_tok = p.has_kv_group = 1;
    p.land = f->land;
    p.layout_id = f->layout_id;
    p.first_tok = f->first_tok;
    p.n_tok = f->n_tok;
    p.kv_group = f->kv_group;
    p.n_block_index = p.n_block_generation = f->n_blocks;
    p.block_index = column(&c, f->n_blocks, sizeof(uint32_t));
    p.block_generation = column(&c, f->n_blocks, sizeof(uint32_t));
    for (uint32_t i = 0; i < f->n_blocks; i++) {
        p.block_index[i] = f->blocks[i].index;
        p.block_generation[i] = f->blocks[i].generation;
    }
    m->table = &p;
    return finish_before(&c, m, out);
}

static td_err record_out(const struct td_wire_record *f, PB(Message) * m, struct td_buf *out)
{
    PB(Record) p = TANDEM__WIRE__V1__RECORD__INIT;
    PB(WorkId) id = id_out(&f->id);
    PB(Stages) stages = stages_out(&f->stages);
    TD_TRY(name_ok(f->stages.transport));
    p.id = &id;
    p.stages = &stages;
    p.has_land = p.has_p_epoch = p.has_d_epoch = p.has_layout_id = p.has_numerics_id = 1;
    p.land = f->land;
    p.p_epoch = f->p_epoch;
    p.d_epoch = f->d_epoch;
    p.layout_id = f->layout_id;
    p.numerics_id = f->numerics_id;
    p.has_n_tok = p.has_n_slices = p.has_first_token = p.has_first_logprob = 1;
    p.n_tok = f->n_tok;
    p.n_slices = f->n_slices;
    p.first_token = f->first_token;
    p.first_logprob = f->first_logprob;
    p.has_finish = p.has_seed = p.has_kv_group = 1;
    p.finish = (PB(Finish))f->finish;
    p.seed = f->seed;
    p.kv_group = f->kv_group;
    p.has_grammar = f->grammar_len > 0;
    p.grammar = wire_bytes_out(f->grammar, f->grammar_len);
    p.has_draft = f->draft_len > 0;
    p.draft = wire_bytes_out(f->draft, f->draft_len);
    m->record = &p;
    return finish(m, out);
}

static td_err taken_out(const struct td_wire_taken *f, PB(Message) * m, struct td_buf *out)
{
    char cut[TD_WIRE_MAX_TEXT + 1];
    PB(Taken) p = TANDEM__WIRE__V1__TAKEN__INIT;
    PB(WorkId) id = id_out(&f->id);
    PB(Error) error = error_out(f->err, "", cut);
    p.id = &id;
    p.error = &error;
    m->taken = &p;
    return finish(m, out);
}

static td_err abort_out(const struct td_wire_abort *f, PB(Message) * m, struct td_buf *out)
{
    char cut[TD_WIRE_MAX_TEXT + 1];
    PB(Abort) p = TANDEM__WIRE__V1__ABORT__INIT;
    PB(WorkId) id = id_out(&f->id);
    PB(Error) error = error_out(f->err, "", cut);
    p.id = &id;
    p.has_land = 1;
    p.land = f->land;
    p.error = &error;
    m->abort = &p;
    return finish(m, out);
}

static td_err state_request_out(PB(Message) * m, struct td_buf *out)
{
    PB(StateRequest) p = TANDEM__WIRE__V1__STATE_REQUEST__INIT;
    m->state_request = &p;
    return finish(m, out);
}

td_err td_wire_encode(const struct td_wire_msg *m, struct td_buf *out)
{
    PB(Message) p = TANDEM__WIRE__V1__MESSAGE__INIT;
    p.body_case = (PB(Message__BodyCase))m->type;
    switch (m->type) {
    case TD_WIRE_PREFILL:
        return prefill_out(&m->prefill, &p, out);
    case TD_WIRE_RESERVE:
        return reserve_out(&m->reserve, &p, out);
    case TD_WIRE_CANCEL:
        return cancel_out(&m->cancel, &p, out);
    case TD_WIRE_CANCEL_ACK:
        return cancel_ack_out(&m->cancel_ack, &p, out);
    case TD_WIRE_TOKENS:
        return tokens_out(&m->tokens, &p, out);
    case TD_WIRE_END:
        return end_out(&m->end, &p, out);
    case TD_WIRE_STATE:
        return state_out(&m->state, &p, out);
    case TD_WIRE_STATE_REQUEST:
        return state_request_out(&p, out);
    case TD_WIRE_PARK:
    case TD_WIRE_PULL:
    case TD_WIRE_LEASE:
        return lease_out(&m->lease, &p, out);
    case TD_WIRE_DRAIN:
        return drain_out(&m->drain, &p, out);
    case TD_WIRE_ROLE:
        return role_out(&m->role, &p, out);
    case TD_WIRE_GO_AWAY:
        return go_away_out(&m->go_away, &p, out);
    case TD_WIRE_TABLE:
        return table_out(&m->table, &p, out);
    case TD_WIRE_RECORD:
        return record_out(&m->record, &p, out);
    case TD_WIRE_TAKEN:
        return taken_out(&m->taken, &p, out);
    case TD_WIRE_ABORT:
        return abort_out(&m->abort, &p, out);
    case TD_WIRE_NONE:
    case TD_WIRE_TYPES:
        break;
    }
    return TD_ERR_BAD_REQUEST;
}
