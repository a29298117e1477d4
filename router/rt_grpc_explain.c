/* Design: Explain tells what /debug/request/ID tells (rt_admin.c), as messages: the record of a finished request or the view of
 * a running one, then each attempt that is remembered.
 */
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "proto/api.h"
#include "router/rt_explain.h"
#include "router/rt_shell_int.h"

_Static_assert(RT_DECISION_PAIRS <= TD_API_MAX_CANDIDATES &&
                   RT_DECISION_SKIPPED <= TD_API_MAX_CANDIDATES,
               "what a decision keeps fits into an answer");

static uint32_t kept(uint32_t n, uint32_t max)
{
    return n < max ? n : max;
}

static uint64_t positive(int64_t us)
{
    return us > 0 ? (uint64_t)us : 0;
}

/* The stages of interfaces.md in the order in which they happen; those of the transfer overlap prefill. */
static uint32_t stages_of(const struct rt_history_record *r, struct td_api_stage *out)
{
    const struct td_wire_stages *s = &r->stages;
    const struct {
        const char *name, *node;
        uint64_t took_us;
    } rows[] = {{"router_queue", "", positive(r->queue_us)},
                {"prefill_queue", r->prefill, s->prefill_queue_us},
                {"prefill", r->prefill, s->prefill_us},
                {"transfer_exposed", r->decode, s->transfer_exposed_us},
                {"decode_queue", r->decode, s->decode_queue_us},
                {"decode", r->decode, s->decode_us}};
    uint64_t began_us = 0;
    for (uint32_t i = 0; i < TD_COUNT(rows); i++) {
        out[i] = (struct td_api_stage){.name = rows[i].name,
                                       .node = rows[i].node,
                                       .began_us = began_us,
                                       .took_us = rows[i].took_us};
        began_us += rows[i].took_us;
    }
    return TD_COUNT(rows);
}

static uint32_t candidates_of(const struct rt_shell *s, const struct rt_history_record *r,
                              struct td_api_candidate *out, char why[TD_API_MAX_CANDIDATES][160])
{
    const struct rt_decision_record *d = rt_core_decision(s->core, r->decision);
    const struct rt_nodes *ns = rt_core_nodes(s->core);
    uint32_t n = d == NULL ? 0 : kept(d->n_candidates, RT_DECISION_PAIRS);
    for (uint32_t i = 0; i < n; i++) {
        const struct rt_candidate *k = &d->candidates[i];
        out[i] = (struct td_api_candidate){
            .prefill = rt_nodes_name(ns, k->p_epoch),
            .decode = rt_nodes_name(ns, k->d_epoch),
            .why_not = rt_explain_why_not(d, i, why[i], sizeof why[i]),
            .predicted_us = positive(k->prefill_us + k->wait_us + k->decode_us),
            .chosen = i == 0};
    }
    return n;
}

/* The i-th of a decision; `why` is for its reason. */
static struct td_api_pair pair_of(const struct rt_shell *s, const struct rt_decision_record *r,
                                  uint32_t i, char *why, size_t cap)
{
    const struct rt_nodes *ns = rt_core_nodes(s->core);
    const struct rt_candidate *k = &r->candidates[i];
    return (struct td_api_pair){.prefill = rt_nodes_name(ns, k->p_epoch),
                                .decode = rt_nodes_name(ns, k->d_epoch),
                                .excluded = k->excluded != TD_OK ? td_err_code(k->excluded) : "",
                                .why_not = rt_explain_why_not(r, i, why, cap),
                                .chosen = i == 0,
                                .avoided = k->avoided,
                                .score_us = k->score_us,
                                .prefill_us = k->prefill_us,
                                .wait_us = k->wait_us,
                                .decode_us = k->decode_us,
                                .waiting_tok = k->waiting_tok,
                                .free_blk = k->free_blk,
                                .need_blk = k->need_blk,
                                .running = k->d_run};
}

/* ---- attempts ---- */

static td_err put_try(const struct rt_shell *s, const struct rt_decision_record *r,
                      int64_t origin_us, struct td_buf *b)
{
    struct td_api_pair pairs[RT_DECISION_PAIRS];
    struct td_api_skipped skipped[RT_DECISION_SKIPPED];
    char why[RT_DECISION_PAIRS][160];
    bool failed = r->failed_us != 0;
    struct td_api_try t = {.number = r->attempt,
                           .submitted_us = r->submit_us - origin_us,
                           .placed_us = r->at_us - origin_us,
                           .failed_us = failed ? r->failed_us - origin_us : -1,
                           .error = failed ? td_err_code(r->failure) : "",
                           .prefill = r->p_name,
                           .decode = r->d_name,
                           .predicted_ttft_us = r->predicted_ttft_us,
                           .predicted_us = r->predicted_us,
                           .pairs_seen = r->n_candidates,
                           .n_pairs = kept(r->n_candidates, RT_DECISION_PAIRS),
                           .nodes_skipped = r->n_skipped,
                           .n_skipped = kept(r->n_skipped, RT_DECISION_SKIPPED),
                           .pairs = pairs,
                           .skipped = skipped};
    for (uint32_t i = 0; i < t.n_pairs; i++) {
        pairs[i] = pair_of(s, r, i, why[i], sizeof why[i]);
    }
    for (uint32_t i = 0; i < t.n_skipped; i++) {
        skipped[i] = (struct td_api_skipped){r->skipped[i].name, r->skipped[i].why};
    }
    return td_api_try_encode(b, &t);
}

static td_err put_tries(const struct rt_shell *s, uint64_t last, int64_t origin_us,
                        struct td_buf *b)
{
    const struct rt_decision_record *tries[RT_EXPLAIN_TRIES];
    uint32_t n = rt_explain_tries(s->core, last, tries);
    for (uint32_t i = 0; i < n; i++) {
        TD_TRY(put_try(s, tries[i], origin_us, b));
    }
    return TD_OK;
}

/* ---- the request ---- */

static td_err put_finished(const struct rt_shell *s, const struct rt_history_record *r,
                           struct td_buf *b)
{
    struct td_api_stage stages[TD_API_MAX_STAGES];
    struct td_api_candidate candidates[TD_API_MAX_CANDIDATES];
    char why[TD_API_MAX_CANDIDATES][160];
    const struct td_api_explain e = {.id = r->request_id,
                                     .transport = r->stages.transport,
                                     .attempts = r->attempts,
                                     .n_stages = stages_of(r, stages),
                                     .stages = stages,
                                     .n_candidates = candidates_of(s, r, candidates, why),
                                     .candidates = candidates,
                                     .kv_bytes = r->stages.kv_bytes,
                                     .err = r->err,
                                     .text = td_err_text(r->err),
                                     .prefill = r->prefill,
                                     .decode = r->decode,
                                     .finish = r->finish,
                                     .n_prompt = r->n_prompt,
                                     .n_output = r->n_output,
                                     .cached_tok = r->stages.cached_tokens,
                                     .transfer_us = r->stages.transfer_us,
                                     .ttft_us = r->ttft_us,
                                     .tpot_us = r->tpot_us,
                                     .total_us = r->total_us,
                                     .ended_unix_us = r->wall_us};
    TD_TRY(td_api_explain_encode(b, &e));
    return put_tries(s, r->decision, r->started_us, b);
}

static td_err put_running(const struct rt_shell *s, const struct rt_request_view *v,
                          struct td_buf *b)
{
    const struct rt_decision_record *d = rt_core_decision(s->core, v->decision);
    const struct td_api_explain e = {.id = v->request_id,
                                     .attempts = v->id.attempt + 1,
                                     .phase = rt__phase_name(v->phase),
                                     .prefill = d != NULL ? d->p_name : "",
                                     .decode = d != NULL ? d->d_name : "",
                                     .n_prompt = v->n_prompt,
                                     .n_output = v->n_output,
                                     .age_us = td_now_us() - v->since_us,
                                     .deadline_in_us = v->deadline_us - td_now_us()};
    TD_TRY(td_api_explain_encode(b, &e));
    return put_tries(s, v->decision, v->since_us, b);
}

td_err rt__grpc_explain(const struct rt_shell *s, const char *id, struct td_buf *b)
{
    const struct rt_history_record *r = rt_history_find(s->history, id);
    struct rt_request_view v;
    if (r != NULL) {
        return put_finished(s, r, b);
    }
    return rt_core_request_named(s->core, id, &v) ? put_running(s, &v, b) : TD_ERR_NOT_FOUND;
}
