#include "router/rt_place.h"

#include <string.h>

/* Costs assumed of a node that has not measured itself yet. */
#define DEFAULT_PREFILL_US_PER_KTOK 500000u
#define DEFAULT_DECODE_STEP_US      20000u
/* Output length assumed when the client only gave a bound: long bounds are seldom reached. */
#define EXPECTED_OUTPUT_CAP 256u

uint32_t rt_blocks_needed(const struct rt_node *d, uint32_t n_prompt)
{
    return (n_prompt + d->block_tok) / d->block_tok; /* the prompt and at least one token more */
}

static bool avoided(const struct rt_place_request *r, uint64_t epoch)
{
    for (size_t i = 0; i < sizeof r->avoid / sizeof r->avoid[0] && r->avoid[i] != 0; i++) {
        if (r->avoid[i] == epoch) {
            return true;
        }
    }
    return false;
}

static uint32_t free_blocks(const struct rt_node *n)
{
    uint32_t have = n->state.blocks[TD_BLK_FREE] + n->state.blocks[TD_BLK_CACHED];
    return have > n->unreported_blk ? have - n->unreported_blk : 0;
}

static int64_t prefill_cost(const struct rt_node *p, uint64_t tokens)
{
    uint64_t per_ktok = p->state.prefill_us_per_ktok != 0 ? p->state.prefill_us_per_ktok
                                                          : DEFAULT_PREFILL_US_PER_KTOK;
    return (int64_t)(tokens * per_ktok / 1000u);
}

static uint64_t waiting_tokens(const struct rt_node *p)
{
    uint64_t waiting = p->state.queued_prompt_tok + p->unreported_tok;
    return waiting < p->pending_tok ? p->pending_tok : waiting;
}

static int64_t predict_prefill(const struct rt_node *p, uint32_t n_prompt)
{
    return prefill_cost(p, waiting_tokens(p) + n_prompt);
}

static uint64_t step_us(const struct rt_node *d)
{
    return d->state.decode_step_us != 0 ? d->state.decode_step_us : DEFAULT_DECODE_STEP_US;
}

static uint32_t running_on(const struct rt_node *d)
{
    uint32_t reported = d->state.running_requests + d->state.queued_requests;
    return reported > d->inflight ? reported : d->inflight;
}

/* A step's time grows with its rows; until the node says otherwise one row more costs an eighth of
 * a step. */
static int64_t predict_decode(const struct rt_node *d, const struct rt_place_request *r)
{
    uint64_t out = r->max_output < EXPECTED_OUTPUT_CAP ? r->max_output : EXPECTED_OUTPUT_CAP;
    uint64_t step = step_us(d) + step_us(d) * running_on(d) / 8u / (running_on(d) / 8u + 1u);
    return (int64_t)(out * step);
}

static int64_t predict_wait(const struct rt_node *d, uint32_t n_prompt)
{
    uint32_t need = rt_blocks_needed(d, n_prompt), have = free_blocks(d);
    if (have >= need && running_on(d) < d->max_seqs) {
        return 0;
    }
    /* Blocks come back as running works end: assume each gives its share back after an average
     * output. */
    uint32_t missing = have >= need ? 1 : need - have;
    return (int64_t)(missing * step_us(d) * 16u);
}

/* Why this pair cannot run the request at all, or cannot now (OVERLOADED). */
static td_err pair_fits(const struct rt_placer *pl, const struct rt_node *p,
                        const struct rt_node *d, const struct rt_place_request *r)
{
    if (p->layout_id != d->layout_id || p->numerics_id != d->numerics_id) {
        return TD_ERR_NO_PAIR;
    }
    if (p != d && (p->address_len == 0 || d->address_len == 0)) {
        return TD_ERR_NO_PAIR;
    }
    uint32_t ctx = p->max_model_len < d->max_model_len ? p->max_model_len : d->max_model_len;
    if (r->n_prompt >= ctx) {
        return TD_ERR_CONTEXT_LENGTH;
    }
    if (rt_blocks_needed(d, r->n_prompt) > d->n_blocks ||
        rt_blocks_needed(p, r->n_prompt) > p->n_blocks) {
        return TD_ERR_NO_CAPACITY;
    }
    if (p->inflight >= pl->max_node_queue || d->inflight >= d->max_seqs + pl->max_node_queue) {
        return TD_ERR_OVERLOADED;
    }
    return TD_OK;
}

static void score(const struct rt_node *p, const struct rt_node *d,
                  const struct rt_place_request *r, struct rt_candidate *c)
{
    c->waiting_tok = waiting_tokens(p);
    c->free_blk = free_blocks(d);
    c->need_blk = rt_blocks_needed(d, r->n_prompt);
    c->d_run = running_on(d);
    if (c->excluded != TD_OK) {
        return;
    }
    c->prefill_us = predict_prefill(p, r->n_prompt);
    c->wait_us = predict_wait(d, r->n_prompt);
    c->decode_us = predict_decode(d, r);
    /* D's wait runs beside the prefill; only the longer of the two delays the start of decoding. */
    int64_t start = c->prefill_us > c->wait_us ? c->prefill_us : c->wait_us;
    c->score_us = start + c->decode_us;
    c->avoided = avoided(r, p->epoch) || avoided(r, d->epoch);
    if (c->avoided) {
        c->score_us += INT64_C(3600000000); /* only when nothing else is left */
    }
}

/* The refusal that says most: a pair that is merely full beats one that can never fit. */
static td_err worse(td_err a, td_err b)
{
    static const td_err order[] = {TD_ERR_OVERLOADED, TD_ERR_CONTEXT_LENGTH, TD_ERR_NO_CAPACITY,
                                   TD_ERR_NO_PAIR};
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        if (a == order[i] || b == order[i]) {
            return order[i];
        }
    }
    return TD_ERR_NO_NODE;
}

/* A whole pool that never holds the prompt bounds its length as the context does: it does not help to ask again. */
static td_err refusal(td_err why)
{
    if (why == TD_ERR_NO_CAPACITY) {
        return TD_ERR_CONTEXT_LENGTH;
    }
    return why == TD_OK ? TD_ERR_NO_NODE : why;
}

struct search {
    struct rt_placer *pl;
    const struct rt_place_request *r;
    struct rt_decision *out;
    int64_t best;
    uint32_t fitting; /* pairs that fit so far */
    td_err why;
    uint32_t worst; /* of the kept candidates, once they are all there */
    bool worst_known;
    uint32_t want; /* round robin, second pass: the pair to take */
    bool picking;
    bool resumable; /* a pair fits but for a link that is down */
};

bool rt_candidate_better(const struct rt_candidate *a, const struct rt_candidate *b)
{
    if ((a->excluded == TD_OK) != (b->excluded == TD_OK)) {
        return a->excluded == TD_OK;
    }
    return a->score_us < b->score_us;
}

static void find_worst(struct search *s)
{
    s->worst = 0;
    for (uint32_t i = 1; i < RT_MAX_CANDIDATES; i++) {
        if (rt_candidate_better(&s->out->candidates[s->worst], &s->out->candidates[i])) {
            s->worst = i;
        }
    }
    s->worst_known = true;
}

/* The best ones stay. Many replace few: the worst is looked for only after it has been replaced. */
static void remember(struct search *s, const struct rt_candidate *c)
{
    struct rt_decision *out = s->out;
    if (out->n_candidates < RT_MAX_CANDIDATES) {
        out->candidates[out->n_candidates] = *c;
    } else {
        if (!s->worst_known) {
            find_worst(s);
        }
        if (rt_candidate_better(c, &out->candidates[s->worst])) {
            out->candidates[s->worst] = *c;
            s->worst_known = false;
        }
    }
    out->n_candidates++;
}

static void choose(struct search *s, struct rt_node *p, struct rt_node *d,
                   const struct rt_candidate *c)
{
    s->out->p = p;
    s->out->d = d;
    s->out->predicted_ttft_us = c->prefill_us;
    s->out->predicted_us = c->score_us;
}

static void rule_out(struct search *s, td_err why)
{
    s->why = s->why == TD_OK ? why : worse(s->why, why);
}

/* A link that is down stands again within a moment, or its node is lost and then not asked for. A request sent there would
 * only fail, again and again, as long as its other node cannot reach this one. */
static void consider_detached(struct search *s, td_err excluded)
{
    if (excluded == TD_OK) {
        s->resumable = true;
    } else {
        rule_out(s, excluded);
    }
}

static void consider(struct search *s, struct rt_node *p, struct rt_node *d)
{
    const struct rt_place_request *r = s->r;
    if ((r->only_p != 0 && r->only_p != p->epoch) || (r->only_d != 0 && r->only_d != d->epoch)) {
        return;
    }
    struct rt_candidate c = {.p_epoch = p->epoch, .d_epoch = d->epoch};
    c.excluded = pair_fits(s->pl, p, d, s->r);
    if (p->detached || d->detached) {
        consider_detached(s, c.excluded);
        return;
    }
    score(p, d, s->r, &c);
    if (s->picking) {
        if (c.excluded == TD_OK && s->fitting++ == s->want) {
            choose(s, p, d, &c);
        }
        return;
    }
    remember(s, &c);
    if (c.excluded != TD_OK) {
        rule_out(s, c.excluded);
        return;
    }
    s->fitting++;
    if (s->pl->policy == RT_POLICY_PREDICT && c.score_us < s->best) {
        s->best = c.score_us;
        choose(s, p, d, &c);
    }
}

static void each_pair(struct search *s, struct rt_nodes *ns)
{
    for (uint32_t i = 0; i < RT_MAX_NODES; i++) {
        struct rt_node *d = &ns->list[i];
        if (!rt_node_willing(d, TD_ROLE_DECODE)) {
            continue;
        }
        if (d->role == TD_ROLE_BOTH) {
            consider(s, d, d);
            continue; /* such a node prefills for itself only */
        }
        for (uint32_t k = 0; k < RT_MAX_NODES; k++) {
            struct rt_node *p = &ns->list[k];
            if (p != d && p->role == TD_ROLE_PREFILL && rt_node_willing(p, TD_ROLE_PREFILL)) {
                consider(s, p, d);
            }
        }
    }
}

static void pick_round_robin(struct search *s, struct rt_nodes *ns)
{
    s->want = s->pl->next++ % s->fitting;
    s->fitting = 0;
    s->picking = true;
    each_pair(s, ns);
}

td_err rt_place(struct rt_placer *pl, struct rt_nodes *ns, const struct rt_place_request *r,
                struct rt_decision *out)
{
    memset(out, 0, sizeof *out);
    struct search s = {.pl = pl, .r = r, .out = out, .best = INT64_MAX, .why = TD_OK};
    each_pair(&s, ns);
    if (s.fitting == 0 && s.resumable && s.why != TD_ERR_OVERLOADED) {
        return r->only_p != 0 || r->only_d != 0 ? TD_ERR_NO_NODE : TD_ERR_OVERLOADED;
    }
    if (s.fitting == 0) {
        return refusal(s.why);
    }
    if (pl->policy == RT_POLICY_ROUND_ROBIN) {
        pick_round_robin(&s, ns);
    }
    return out->p != NULL ? TD_OK : TD_ERR_NO_NODE;
}
