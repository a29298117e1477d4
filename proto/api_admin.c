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
    m->prefill_us_per_ktok = n->prefill_us_per_ktok;
    m->decode_step_us = n->decode_step_us;
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
    return api_pack(&r.base, out);
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
