#include <string.h>

#include "common/base/assert.h"
#include "proto/api.h"
#include "proto/api_pb.h"

td_err td_api_drain_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                           struct td_api_drain *out)
{
    ProtobufCMessage *m = NULL;
    TD_TRY(api_unpack(&tandem__v1__drain_request__descriptor, data, len, arena, &m));
    const API(DrainRequest) *r = (const API(DrainRequest) *)(const void *)m;
    *out = (struct td_api_drain){.node = r->node, .why = r->why, .limit_ms = r->limit_ms};
    return TD_OK;
}

td_err td_api_undrain_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                             struct td_api_drain *out)
{
    ProtobufCMessage *m = NULL;
    TD_TRY(api_unpack(&tandem__v1__undrain_request__descriptor, data, len, arena, &m));
    const API(UndrainRequest) *r = (const API(UndrainRequest) *)(const void *)m;
    *out = (struct td_api_drain){.node = r->node, .why = r->why};
    return TD_OK;
}

td_err td_api_watch_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                           struct td_api_watch *out)
{
    ProtobufCMessage *m = NULL;
    TD_TRY(api_unpack(&tandem__v1__watch_events_request__descriptor, data, len, arena, &m));
    const API(WatchEventsRequest) *r = (const API(WatchEventsRequest) *)(const void *)m;
    *out = (struct td_api_watch){.kinds = (const char *const *)r->kinds,
                                 .n_kinds = (uint32_t)r->n_kinds};
    return TD_OK;
}

static void blocks_out(const struct td_api_node *n, API(BlockCounts) * b)
{
    b->free = n->blocks[TD_BLK_FREE];
    b->cached = n->blocks[TD_BLK_CACHED];
    b->reserved = n->blocks[TD_BLK_RESERVED];
    b->filling = n->blocks[TD_BLK_FILLING];
    b->running = n->blocks[TD_BLK_RUNNING];
    b->parked = n->blocks[TD_BLK_PARKED];
    b->quarantined = n->blocks[TD_BLK_QUARANTINED];
}

/* All but its blocks. */
static void node_out(const struct td_api_node *n, API(Node) * m)
{
    m->name = api_text(n->name);
    m->why = api_text(n->why);
    m->epoch = api_text(n->epoch);
    m->numerics = api_text(n->numerics);
    m->address = api_text(n->address);
    m->version = api_text(n->version);
    m->role = (API(NodeRole))n->role; /* the same numbers: asserted below */
    m->state = (API(NodeState))n->state;
    m->queued_requests = n->queued;
    m->running_requests = n->running;
    m->ready = n->ready;
    m->drained = n->drained;
    m->queued_prompt_tokens = n->queued_prompt_tok;
    m->inflight_requests = n->inflight;
    m->dispatched_requests = n->dispatched;
    m->total_blocks = n->n_blocks;
    m->block_tokens = n->block_tok;
    m->layers = n->n_layers;
    m->max_model_len = n->max_model_len;
    m->max_seqs = n->max_seqs;
    m->ranks = n->n_ranks;
    m->prefill_us_per_ktok = n->prefill_us_per_ktok;
    m->decode_step_us = n->decode_step_us;
    m->report_age_us = n->report_age_us;
    m->layout_id = n->layout_id;
    m->numerics_id = n->numerics_id;
}

td_err td_api_node_encode(struct td_buf *out, const struct td_api_node *n)
{
    API(BlockCounts) b = TANDEM__V1__BLOCK_COUNTS__INIT;
    API(Node) m = TANDEM__V1__NODE__INIT;
    API(Node) *one = &m;
    API(ListNodesResponse) r = TANDEM__V1__LIST_NODES_RESPONSE__INIT;
    blocks_out(n, &b);
    node_out(n, &m);
    m.blocks = &b;
    r.nodes = &one;
    r.n_nodes = 1;
    return api_pack(&r.base, out); /* messages one after the other are one message */
}
_Static_assert((int)TD_ROLE_PREFILL == (int)TANDEM__V1__NODE_ROLE__NODE_ROLE_PREFILL &&
                   (int)TD_ROLE_DECODE == (int)TANDEM__V1__NODE_ROLE__NODE_ROLE_DECODE &&
                   (int)TD_ROLE_BOTH == (int)TANDEM__V1__NODE_ROLE__NODE_ROLE_BOTH &&
                   (int)TD_API_NODE_DRAINING == (int)TANDEM__V1__NODE_STATE__NODE_STATE_DRAINING,
               "roles and states have the numbers of the public API");

/* What is known of the request beside its stages and candidates. */
static void record_out(const struct td_api_explain *e, API(ExplainResponse) * r)
{
    r->phase = api_text(e->phase);
    r->prefill_node = api_text(e->prefill);
    r->decode_node = api_text(e->decode);
    r->finish_reason =
        (API(FinishReason))e->finish; /* the same numbers: asserted in api_client.c */
    r->prompt_tokens = e->n_prompt;
    r->output_tokens = e->n_output;
    r->cached_tokens = e->cached_tok;
    r->first_token_us = e->ttft_us;
    r->per_token_us = e->tpot_us;
    r->total_us = e->total_us;
    r->ended_unix_us = e->ended_unix_us;
    r->transfer_us = e->transfer_us;
    r->age_us = e->age_us;
    r->deadline_in_us = e->deadline_in_us;
}

td_err td_api_explain_encode(struct td_buf *out, const struct td_api_explain *e)
{
    API(Stage) stages[TD_API_MAX_STAGES], *stage_list[TD_API_MAX_STAGES];
    API(Candidate) candidates[TD_API_MAX_CANDIDATES], *candidate_list[TD_API_MAX_CANDIDATES];
    API(Failure) failure = TANDEM__V1__FAILURE__INIT;
    API(ExplainResponse) r = TANDEM__V1__EXPLAIN_RESPONSE__INIT;
    TD_REQUIRE(e->n_stages <= TD_API_MAX_STAGES && e->n_candidates <= TD_API_MAX_CANDIDATES);
    for (uint32_t i = 0; i < e->n_stages; i++) {
        stages[i] = (API(Stage))TANDEM__V1__STAGE__INIT;
        stages[i].name = api_text(e->stages[i].name);
        stages[i].node = api_text(e->stages[i].node);
        stages[i].began_us = e->stages[i].began_us;
        stages[i].took_us = e->stages[i].took_us;
        stage_list[i] = &stages[i];
    }
    for (uint32_t i = 0; i < e->n_candidates; i++) {
        candidates[i] = (API(Candidate))TANDEM__V1__CANDIDATE__INIT;
        candidates[i].prefill_node = api_text(e->candidates[i].prefill);
        candidates[i].decode_node = api_text(e->candidates[i].decode);
        candidates[i].predicted_us = e->candidates[i].predicted_us;
        candidates[i].chosen = e->candidates[i].chosen;
        candidates[i].why_not = api_text(e->candidates[i].why_not);
        candidate_list[i] = &candidates[i];
    }
    r.id = api_text(e->id);
    r.attempts = e->attempts;
    r.stages = stage_list;
    r.n_stages = e->n_stages;
    r.candidates = candidate_list;
    r.n_candidates = e->n_candidates;
    r.kv_bytes = e->kv_bytes;
    r.transport = api_text(e->transport);
    failure.code = api_text(td_err_code(e->err));
    failure.message = api_text(e->text);
    failure.retryable = td_err_retryable(e->err);
    r.failure = e->err != TD_OK ? &failure : NULL;
    record_out(e, &r);
    return api_pack(&r.base, out);
}

static void pair_out(const struct td_api_pair *p, API(WeighedPair) * m)
{
    *m = (API(WeighedPair))TANDEM__V1__WEIGHED_PAIR__INIT;
    m->prefill_node = api_text(p->prefill);
    m->decode_node = api_text(p->decode);
    m->chosen = p->chosen;
    m->excluded = api_text(p->excluded);
    m->avoided = p->avoided;
    m->score_us = p->score_us;
    m->prefill_us = p->prefill_us;
    m->wait_us = p->wait_us;
    m->decode_us = p->decode_us;
    m->waiting_tokens = p->waiting_tok;
    m->free_blocks = p->free_blk;
    m->needed_blocks = p->need_blk;
    m->running_requests = p->running;
    m->why_not = api_text(p->why_not);
}

static void try_out(const struct td_api_try *t, API(Attempt) * m)
{
    m->number = t->number;
    m->submitted_us = t->submitted_us;
    m->placed_us = t->placed_us;
    if (t->failed_us >= 0) {
        m->failed_us__case = TANDEM__V1__ATTEMPT__FAILED_US__FAILED_US;
        m->failed_us = t->failed_us;
    }
    m->error = api_text(t->error);
    m->prefill_node = api_text(t->prefill);
    m->decode_node = api_text(t->decode);
    m->predicted_first_token_us = t->predicted_ttft_us;
    m->predicted_us = t->predicted_us;
    m->pairs_seen = t->pairs_seen;
    m->nodes_skipped = t->nodes_skipped;
}

td_err td_api_try_encode(struct td_buf *out, const struct td_api_try *t)
{
    API(WeighedPair) pairs[TD_API_MAX_CANDIDATES], *pair_list[TD_API_MAX_CANDIDATES];
    API(SkippedNode) skipped[TD_API_MAX_CANDIDATES], *skipped_list[TD_API_MAX_CANDIDATES];
    API(Attempt) m = TANDEM__V1__ATTEMPT__INIT;
    API(Attempt) *one = &m;
    API(ExplainResponse) r = TANDEM__V1__EXPLAIN_RESPONSE__INIT;
    TD_REQUIRE(t->n_pairs <= TD_API_MAX_CANDIDATES && t->n_skipped <= TD_API_MAX_CANDIDATES);
    for (uint32_t i = 0; i < t->n_pairs; i++) {
        pair_out(&t->pairs[i], &pairs[i]);
        pair_list[i] = &pairs[i];
    }
    for (uint32_t i = 0; i < t->n_skipped; i++) {
        skipped[i] = (API(SkippedNode))TANDEM__V1__SKIPPED_NODE__INIT;
        skipped[i].node = api_text(t->skipped[i].node);
        skipped[i].why = api_text(t->skipped[i].why);
        skipped_list[i] = &skipped[i];
    }
    try_out(t, &m);
    m.pairs = pair_list;
    m.n_pairs = t->n_pairs;
    m.skipped = skipped_list;
    m.n_skipped = t->n_skipped;
    r.tries = &one;
    r.n_tries = 1;
    return api_pack(&r.base, out); /* messages one after the other are one message */
}

td_err td_api_drain_encode(struct td_buf *out, const struct td_api_node *n)
{
    API(BlockCounts) b = TANDEM__V1__BLOCK_COUNTS__INIT;
    API(Node) m = TANDEM__V1__NODE__INIT;
    API(DrainResponse) r = TANDEM__V1__DRAIN_RESPONSE__INIT;
    blocks_out(n, &b);
    node_out(n, &m);
    m.blocks = &b;
    r.running_requests = n->running;
    r.node = &m;
    return api_pack(&r.base, out);
}

td_err td_api_event_encode(struct td_buf *out, const struct td_api_event *e)
{
    API(Event) m = TANDEM__V1__EVENT__INIT;
    m.seq = e->seq;
    m.unix_us = e->unix_us;
    m.kind = api_text(e->kind);
    m.node = api_text(e->node);
    m.id = api_text(e->id);
    m.text = api_text(e->text);
    return api_pack(&m.base, out);
}
