#include "router/rt_explain.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

uint32_t rt_explain_tries(const struct rt_core *c, uint64_t last,
                          const struct rt_decision_record *out[RT_EXPLAIN_TRIES])
{
    const struct rt_decision_record *back[RT_EXPLAIN_TRIES];
    uint32_t n = 0;
    const struct rt_decision_record *r = rt_core_decision(c, last);
    while (r != NULL && n < RT_EXPLAIN_TRIES) {
        back[n++] = r;
        r = rt_core_decision(c, r->previous);
    }
    for (uint32_t i = 0; i < n; i++) {
        out[i] = back[n - 1 - i];
    }
    return n;
}

static const char *why_excluded(td_err err)
{
    switch ((int)err) {
    case TD_ERR_NO_PAIR:
        return "another KV layout or numerics, or no data plane";
    case TD_ERR_CONTEXT_LENGTH:
        return "the prompt does not fit its context";
    case TD_ERR_NO_CAPACITY:
        return "its whole pool is too small for the prompt";
    case TD_ERR_OVERLOADED:
        return "full: as many requests wait there as the router allows";
    default:
        return td_err_text(err);
    }
}

/* The part of the prediction that cost this pair the most against the chosen one. */
const char *rt_explain_why_not(const struct rt_decision_record *r, uint32_t i, char *buf,
                               size_t cap)
{
    const struct rt_candidate *a = &r->candidates[i], *won = &r->candidates[0];
    int64_t a_start = a->prefill_us > a->wait_us ? a->prefill_us : a->wait_us;
    int64_t w_start = won->prefill_us > won->wait_us ? won->prefill_us : won->wait_us;
    int64_t start = a_start - w_start, decode = a->decode_us - won->decode_us;
    int64_t behind = a->score_us - won->score_us;
    buf[0] = 0;
    if (i == 0) {
        return buf;
    }
    if (a->excluded != TD_OK) {
        (void)snprintf(buf, cap, "%s", why_excluded(a->excluded));
    } else if (a->avoided && !won->avoided) {
        (void)snprintf(buf, cap, "an earlier attempt of this request failed there");
    } else if (behind == 0) {
        (void)snprintf(buf, cap, "as good: the first one found is taken");
    } else if (behind < 0) {
        (void)snprintf(buf, cap, "better by %.1f ms, but the policy takes turns",
                       (double)-behind * 1e-3);
    } else if (decode >= start) {
        (void)snprintf(buf, cap, "%.1f ms later: slower decode steps (%u requests there)",
                       (double)behind * 1e-3, a->d_run);
    } else if (a->wait_us > a->prefill_us) {
        (void)snprintf(buf, cap, "%.1f ms later: waits for KV blocks (%u free, %u needed)",
                       (double)behind * 1e-3, a->free_blk, a->need_blk);
    } else if (a->waiting_tok > won->waiting_tok) {
        (void)snprintf(buf, cap, "%.1f ms later: %" PRIu64 " prompt tokens wait there already",
                       (double)behind * 1e-3, a->waiting_tok);
    } else {
        (void)snprintf(buf, cap, "%.1f ms later: slower prefill", (double)behind * 1e-3);
    }
    return buf;
}

static td_err text(struct td_buf *out, const char *key, const char *value)
{
    TD_TRY(td_buf_printf(out, "\"%s\":", key));
    return td_buf_json_string(out, value, strlen(value));
}

static td_err candidate_json(const struct rt_core *c, const struct rt_decision_record *r,
                             uint32_t i, struct td_buf *out)
{
    const struct rt_nodes *ns = rt_core_nodes(c);
    const struct rt_candidate *a = &r->candidates[i];
    char why[160];
    TD_TRY(td_buf_puts(out, i > 0 ? ",{" : "{"));
    TD_TRY(text(out, "prefill", rt_nodes_name(ns, a->p_epoch)));
    TD_TRY(td_buf_puts(out, ","));
    TD_TRY(text(out, "decode", rt_nodes_name(ns, a->d_epoch)));
    TD_TRY(td_buf_printf(
        out,
        ",\"chosen\":%s,\"excluded\":\"%s\",\"avoided\":%s,\"score_us\":%" PRId64
        ",\"prefill_us\":%" PRId64 ",\"wait_us\":%" PRId64 ",\"decode_us\":%" PRId64
        ",\"waiting_tokens\":%" PRIu64 ",\"free_blocks\":%u,\"needed_blocks\":%u,\"running\":%u,",
        i == 0 ? "true" : "false", a->excluded != TD_OK ? td_err_code(a->excluded) : "",
        a->avoided ? "true" : "false", a->score_us, a->prefill_us, a->wait_us, a->decode_us,
        a->waiting_tok, a->free_blk, a->need_blk, a->d_run));
    TD_TRY(text(out, "why_not", rt_explain_why_not(r, i, why, sizeof why)));
    return td_buf_puts(out, "}");
}

static td_err try_json(const struct rt_core *c, const struct rt_decision_record *r,
                       int64_t origin_us, struct td_buf *out)
{
    uint32_t pairs = r->n_candidates < RT_DECISION_PAIRS ? r->n_candidates : RT_DECISION_PAIRS;
    uint32_t skipped = r->n_skipped < RT_DECISION_SKIPPED ? r->n_skipped : RT_DECISION_SKIPPED;
    TD_TRY(td_buf_printf(out, "{\"attempt\":%u,\"submitted_us\":%" PRId64 ",\"placed_us\":%" PRId64,
                         r->attempt, r->submit_us - origin_us, r->at_us - origin_us));
    TD_TRY(td_buf_printf(out, ",\"failed_us\":%" PRId64 ",\"error\":\"%s\",",
                         r->failed_us != 0 ? r->failed_us - origin_us : -1,
                         r->failed_us != 0 ? td_err_code(r->failure) : ""));
    TD_TRY(text(out, "prefill", r->p_name));
    TD_TRY(td_buf_puts(out, ","));
    TD_TRY(text(out, "decode", r->d_name));
    TD_TRY(td_buf_printf(out,
                         ",\"predicted_ttft_us\":%" PRId64 ",\"predicted_us\":%" PRId64
                         ",\"pairs_seen\":%u,\"candidates\":[",
                         r->predicted_ttft_us, r->predicted_us, r->n_candidates));
    for (uint32_t i = 0; i < pairs; i++) {
        TD_TRY(candidate_json(c, r, i, out));
    }
    TD_TRY(td_buf_printf(out, "],\"nodes_skipped\":%u,\"skipped\":[", r->n_skipped));
    for (uint32_t i = 0; i < skipped; i++) {
        TD_TRY(td_buf_puts(out, i > 0 ? ",{" : "{"));
        TD_TRY(text(out, "node", r->skipped[i].name));
        TD_TRY(td_buf_puts(out, ","));
        TD_TRY(text(out, "why", r->skipped[i].why));
        TD_TRY(td_buf_puts(out, "}"));
    }
    return td_buf_puts(out, "]}");
}

td_err rt_explain_json(const struct rt_core *c, uint64_t last, int64_t origin_us,
                       struct td_buf *out)
{
    const struct rt_decision_record *tries[RT_EXPLAIN_TRIES];
    uint32_t n = rt_explain_tries(c, last, tries);
    TD_TRY(td_buf_puts(out, "\"tries\":["));
    for (uint32_t i = 0; i < n; i++) {
        TD_TRY(i > 0 ? td_buf_puts(out, ",") : TD_OK);
        TD_TRY(try_json(c, tries[i], origin_us, out));
    }
    return td_buf_puts(out, "]");
}
