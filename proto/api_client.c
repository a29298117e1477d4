#include "proto/api_client.h"

#include "common/base/utf8.h"
#include "proto/api_pb.h"
#include "proto/wire_pb.h"

/* ---- generate ---- */

/* protobuf-c's structs are not const; packing does not write. */
static void sampling_out(const struct td_api_sampling *s, API(SamplingParams) * m)
{
#define GIVE(field, FIELD)                                                                         \
    if (s->has_##field) {                                                                          \
        m->field = s->field;                                                                       \
        m->field##__case = TANDEM__V1__SAMPLING_PARAMS__##FIELD##__##FIELD;                        \
    }
    GIVE(temperature, TEMPERATURE)
    GIVE(top_p, TOP_P)
    GIVE(top_k, TOP_K)
    GIVE(min_p, MIN_P)
    GIVE(repetition_penalty, REPETITION_PENALTY)
    GIVE(frequency_penalty, FREQUENCY_PENALTY)
    GIVE(presence_penalty, PRESENCE_PENALTY)
    GIVE(seed, SEED)
    GIVE(max_tokens, MAX_TOKENS)
    GIVE(min_tokens, MIN_TOKENS)
#undef GIVE
    m->stop = (char **)(uintptr_t)s->stop;
    m->n_stop = s->n_stop;
    m->stop_token_ids = (int32_t *)(uintptr_t)s->stop_ids;
    m->n_stop_token_ids = s->n_stop_ids;
    m->ignore_eos = s->ignore_eos;
}

/* Each message is packed alone: an array of them would need a bound of its own. */
static td_err chat_out(const struct td_api_generate *g, struct td_buf *one, struct td_buf *chat)
{
    for (uint32_t i = 0; i < g->n_messages; i++) {
        API(ChatMessage) m = TANDEM__V1__CHAT_MESSAGE__INIT;
        m.role = api_text(g->messages[i].role);
        m.content = api_text(g->messages[i].content);
        td_buf_clear(one);
        TD_TRY(api_pack(&m.base, one));
        TD_TRY(api_put_bytes(chat, 1, one->data, one->len));
    }
    return TD_OK;
}

static td_err put_chat(struct td_buf *out, const struct td_api_generate *g)
{
    struct td_buf one, chat;
    td_buf_init(&one, out->max);
    td_buf_init(&chat, out->max);
    td_err err = chat_out(g, &one, &chat);
    err = err == TD_OK ? api_put_bytes(out, 4, chat.data, chat.len) : err;
    td_buf_fini(&one);
    td_buf_fini(&chat);
    return err;
}

td_err td_api_generate_encode(struct td_buf *out, const struct td_api_generate *g)
{
    API(SamplingParams) sampling = TANDEM__V1__SAMPLING_PARAMS__INIT;
    API(TokenIds) ids = TANDEM__V1__TOKEN_IDS__INIT;
    API(GenerateRequest) r = TANDEM__V1__GENERATE_REQUEST__INIT;
    r.model = api_text(g->model);
    r.request_id = api_text(g->request_id);
    r.cache_salt = api_text(g->cache_salt);
    r.adapter = api_text(g->adapter);
    r.n = g->n;
    r.budget_ms = g->budget_ms;
    r.priority = g->priority;
    if (g->input == TD_API_TEXT) {
        r.input_case = TANDEM__V1__GENERATE_REQUEST__INPUT_TEXT;
        r.text = api_text(g->text);
    } else if (g->input == TD_API_IDS) {
        r.input_case = TANDEM__V1__GENERATE_REQUEST__INPUT_TOKEN_IDS;
        ids.ids = (int32_t *)(uintptr_t)g->ids;
        ids.n_ids = g->n_ids;
        r.token_ids = &ids;
    }
    if (g->has_sampling) {
        sampling_out(&g->sampling, &sampling);
        r.sampling = &sampling;
    }
    TD_TRY(api_pack(&r.base, out));
    return g->input == TD_API_CHAT ? put_chat(out, g) : TD_OK;
}

static enum td_finish finish_in(API(FinishReason) f)
{
    /* The same numbers: asserted below. */
    return (unsigned)f <= TD_FINISH_ERROR ? (enum td_finish)f : TD_FINISH_NONE;
}

/* The message of the answer has depth 2 whatever its bytes are, so that protobuf-c may see it unchecked: text may hold zero
 * bytes, which api_check refuses. */
td_err td_api_generated_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                               struct td_api_generated *out)
{
    const uint8_t *delta = NULL, *text = NULL;
    size_t delta_len = 0, text_len = 0;
    ProtobufCMessage *m = NULL;
    TD_TRY(api_unpack_unchecked(&tandem__v1__generate_response__descriptor, data, len, arena, &m));
    const API(GenerateResponse) *r = (const API(GenerateResponse) *)(const void *)m;
    struct td_api_generated g = {.id = r->id};
    if (r->event_case == TANDEM__V1__GENERATE_RESPONSE__EVENT_DELTA) {
        const API(Delta) *d = r->delta;
        if (!api_find_bytes(data, len, 2, &delta, &delta_len) ||
            !api_find_bytes(delta, delta_len, 2, &text, &text_len) ||
            !td_utf8_valid((const char *)text, text_len)) {
            return TD_ERR_BAD_REQUEST;
        }
        g.said = TD_API_SAID_DELTA;
        g.delta = (struct td_api_delta){.choice = d->choice,
                                        .text = (const char *)text,
                                        .len = text_len,
                                        .ids = d->token_ids,
                                        .n_ids = (uint32_t)d->n_token_ids,
                                        .stop_text = d->stop_text};
        g.delta.finish = finish_in(d->finish_reason);
    } else if (r->event_case == TANDEM__V1__GENERATE_RESPONSE__EVENT_USAGE) {
        g.said = TD_API_SAID_USAGE;
        g.usage = (struct td_api_usage){.prompt_tokens = r->usage->prompt_tokens,
                                        .completion_tokens = r->usage->completion_tokens,
                                        .cached_tokens = r->usage->cached_tokens};
    }
    *out = g;
    return TD_OK;
}
_Static_assert((int)TD_FINISH_STOP == (int)TANDEM__V1__FINISH_REASON__FINISH_REASON_STOP &&
                   (int)TD_FINISH_LENGTH == (int)TANDEM__V1__FINISH_REASON__FINISH_REASON_LENGTH &&
                   (int)TD_FINISH_ABORT == (int)TANDEM__V1__FINISH_REASON__FINISH_REASON_ABORT &&
                   (int)TD_FINISH_ERROR == (int)TANDEM__V1__FINISH_REASON__FINISH_REASON_ERROR,
               "reasons have the numbers of the public API");

/* ---- events ---- */

td_err td_api_watch_encode(struct td_buf *out, const struct td_api_watch *w)
{
    API(WatchEventsRequest) r = TANDEM__V1__WATCH_EVENTS_REQUEST__INIT;
    r.kinds = (char **)(uintptr_t)w->kinds;
    r.n_kinds = w->n_kinds;
    return api_pack(&r.base, out);
}

td_err td_api_event_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                           struct td_api_event *out)
{
    ProtobufCMessage *m = NULL;
    TD_TRY(api_unpack(&tandem__v1__event__descriptor, data, len, arena, &m));
    const API(Event) *e = (const API(Event) *)(const void *)m;
    *out = (struct td_api_event){.seq = e->seq,
                                 .unix_us = e->unix_us,
                                 .kind = e->kind,
                                 .node = e->node,
                                 .id = e->id,
                                 .text = e->text};
    return TD_OK;
}

/* ---- nodes ---- */

static struct td_api_node node_in(const API(Node) * n)
{
    static const API(BlockCounts) none = TANDEM__V1__BLOCK_COUNTS__INIT;
    const API(BlockCounts) *b = n->blocks != NULL ? n->blocks : &none;
    bool role_known = (unsigned)n->role <= TD_ROLE_BOTH;
    bool state_known = (unsigned)n->state <= TD_API_NODE_DRAINING;
    struct td_api_node out = {.name = n->name,
                              .why = n->why,
                              .epoch = n->epoch,
                              .numerics = n->numerics,
                              .address = n->address,
                              .version = n->version,
                              .role = role_known ? (enum td_role)n->role : (enum td_role)0,
                              .state = state_known ? (enum td_api_node_state)n->state
                                                   : TD_API_NODE_UNSPECIFIED,
                              .queued = n->queued_requests,
                              .running = n->running_requests,
                              .ready = n->ready != 0,
                              .drained = n->drained != 0,
                              .queued_prompt_tok = n->queued_prompt_tokens,
                              .dispatched = n->dispatched_requests,
                              .inflight = n->inflight_requests,
                              .n_blocks = n->total_blocks,
                              .block_tok = n->block_tokens,
                              .n_layers = n->layers,
                              .max_model_len = n->max_model_len,
                              .max_seqs = n->max_seqs,
                              .n_ranks = n->ranks,
                              .prefill_us_per_ktok = n->prefill_us_per_ktok,
                              .decode_step_us = n->decode_step_us,
                              .report_age_us = n->report_age_us,
                              .layout_id = n->layout_id,
                              .numerics_id = n->numerics_id};
    const uint32_t blocks[TD_BLK_STATES] = {[TD_BLK_FREE] = b->free,
                                            [TD_BLK_CACHED] = b->cached,
                                            [TD_BLK_RESERVED] = b->reserved,
                                            [TD_BLK_FILLING] = b->filling,
                                            [TD_BLK_RUNNING] = b->running,
                                            [TD_BLK_PARKED] = b->parked,
                                            [TD_BLK_QUARANTINED] = b->quarantined};
    for (int i = 0; i < TD_BLK_STATES; i++) {
        out.blocks[i] = blocks[i];
    }
    return out;
}

td_err td_api_nodes_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                           const struct td_api_node **out_nodes, uint32_t *out_n)
{
    ProtobufCMessage *m = NULL;
    TD_TRY(api_unpack(&tandem__v1__list_nodes_response__descriptor, data, len, arena, &m));
    const API(ListNodesResponse) *r = (const API(ListNodesResponse) *)(const void *)m;
    struct td_api_node *list = TD_ARENA_ARRAY(arena, struct td_api_node, r->n_nodes + 1);
    if (list == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < r->n_nodes; i++) {
        list[i] = node_in(r->nodes[i]);
    }
    *out_nodes = list;
    *out_n = (uint32_t)r->n_nodes;
    return TD_OK;
}

td_err td_api_drain_ask_encode(struct td_buf *out, const struct td_api_drain *d, bool undo)
{
    API(DrainRequest) r = TANDEM__V1__DRAIN_REQUEST__INIT;
    API(UndrainRequest) u = TANDEM__V1__UNDRAIN_REQUEST__INIT;
    u.node = r.node = api_text(d->node);
    u.why = r.why = api_text(d->why);
    r.limit_ms = d->limit_ms;
    return api_pack(undo ? &u.base : &r.base, out);
}

td_err td_api_drained_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                             struct td_api_node *out_node)
{
    static const API(Node) none = TANDEM__V1__NODE__INIT;
    ProtobufCMessage *m = NULL;
    TD_TRY(api_unpack(&tandem__v1__drain_response__descriptor, data, len, arena, &m));
    const API(DrainResponse) *r = (const API(DrainResponse) *)(const void *)m;
    *out_node = node_in(r->node != NULL ? r->node : &none);
    return TD_OK;
}

/* ---- explain ---- */

td_err td_api_id_encode(struct td_buf *out, const char *id)
{
    API(ExplainRequest) r = TANDEM__V1__EXPLAIN_REQUEST__INIT;
    r.id = api_text(id);
    return api_pack(&r.base, out);
}

static td_err pairs_in(const API(Attempt) * m, struct td_arena *arena, struct td_api_try *t)
{
    struct td_api_pair *list = TD_ARENA_ARRAY(arena, struct td_api_pair, m->n_pairs + 1);
    struct td_api_skipped *skipped = TD_ARENA_ARRAY(arena, struct td_api_skipped, m->n_skipped + 1);
    if (list == NULL || skipped == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < m->n_pairs; i++) {
        const API(WeighedPair) *p = m->pairs[i];
        list[i] = (struct td_api_pair){.prefill = p->prefill_node,
                                       .decode = p->decode_node,
                                       .excluded = p->excluded,
                                       .why_not = p->why_not,
                                       .chosen = p->chosen != 0,
                                       .avoided = p->avoided != 0,
                                       .score_us = p->score_us,
                                       .prefill_us = p->prefill_us,
                                       .wait_us = p->wait_us,
                                       .decode_us = p->decode_us,
                                       .waiting_tok = p->waiting_tokens,
                                       .free_blk = p->free_blocks,
                                       .need_blk = p->needed_blocks,
                                       .running = p->running_requests};
    }
    for (size_t i = 0; i < m->n_skipped; i++) {
        skipped[i] =
            (struct td_api_skipped){.node = m->skipped[i]->node, .why = m->skipped[i]->why};
    }
    t->pairs = list;
    t->n_pairs = (uint32_t)m->n_pairs;
    t->skipped = skipped;
    t->n_skipped = (uint32_t)m->n_skipped;
    return TD_OK;
}

static td_err try_in(const API(Attempt) * m, struct td_arena *arena, struct td_api_try *t)
{
    bool failed = m->failed_us__case == TANDEM__V1__ATTEMPT__FAILED_US__FAILED_US;
    *t = (struct td_api_try){.number = m->number,
                             .submitted_us = m->submitted_us,
                             .placed_us = m->placed_us,
                             .failed_us = failed ? m->failed_us : -1,
                             .error = m->error,
                             .prefill = m->prefill_node,
                             .decode = m->decode_node,
                             .predicted_ttft_us = m->predicted_first_token_us,
                             .predicted_us = m->predicted_us,
                             .pairs_seen = m->pairs_seen,
                             .nodes_skipped = m->nodes_skipped};
    return pairs_in(m, arena, t);
}

static td_err stages_in(const API(ExplainResponse) * r, struct td_arena *arena,
                        struct td_api_explain *out)
{
    struct td_api_stage *list = TD_ARENA_ARRAY(arena, struct td_api_stage, r->n_stages + 1);
    if (list == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < r->n_stages; i++) {
        list[i] = (struct td_api_stage){.name = r->stages[i]->name,
                                        .node = r->stages[i]->node,
                                        .began_us = r->stages[i]->began_us,
                                        .took_us = r->stages[i]->took_us};
    }
    out->stages = list;
    out->n_stages = (uint32_t)r->n_stages;
    return TD_OK;
}

td_err td_api_explained_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                               struct td_api_explain *out, const struct td_api_try **out_tries,
                               uint32_t *out_n)
{
    ProtobufCMessage *m = NULL;
    TD_TRY(api_unpack(&tandem__v1__explain_response__descriptor, data, len, arena, &m));
    const API(ExplainResponse) *r = (const API(ExplainResponse) *)(const void *)m;
    struct td_api_try *tries = TD_ARENA_ARRAY(arena, struct td_api_try, r->n_tries + 1);
    if (tries == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < r->n_tries; i++) {
        TD_TRY(try_in(r->tries[i], arena, &tries[i]));
    }
    struct td_api_explain e = {.id = r->id,
                               .transport = r->transport,
                               .attempts = r->attempts,
                               .kv_bytes = r->kv_bytes,
                               .code = r->failure != NULL ? r->failure->code : "",
                               .text = r->failure != NULL ? r->failure->message : "",
                               .phase = r->phase,
                               .prefill = r->prefill_node,
                               .decode = r->decode_node,
                               .finish = finish_in(r->finish_reason),
                               .n_prompt = r->prompt_tokens,
                               .n_output = r->output_tokens,
                               .cached_tok = r->cached_tokens,
                               .transfer_us = r->transfer_us,
                               .ttft_us = r->first_token_us,
                               .tpot_us = r->per_token_us,
                               .total_us = r->total_us,
                               .ended_unix_us = r->ended_unix_us,
                               .age_us = r->age_us,
                               .deadline_in_us = r->deadline_in_us};
    TD_TRY(stages_in(r, arena, &e));
    *out = e;
    *out_tries = tries;
    *out_n = (uint32_t)r->n_tries;
    return TD_OK;
}
