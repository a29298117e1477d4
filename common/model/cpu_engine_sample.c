/* cpu_engine_sample.c - from logits to the next token, keyed by (seed, position, choice) only.
 *
 * Order: bias, repetition, frequency and presence penalties, ban of stop ids before min_tokens;
 * then the largest (temperature 0), or temperature, min_p, top_k, top_p and one draw. Equal weights
 * are ordered by id. Sums that decide are binary64 in a fixed order, so every machine draws alike.
 */
#include <math.h>
#include <string.h>

#include "common/base/rng.h"
#include "common/model/cpu_engine_priv.h"

#define GREEDY_BELOW 1e-5f /* of temperature: a division by less overflows */
#define IN_PROMPT    0x80000000u

static bool has_penalties(const struct td_sampling_params *p)
{
    return (p->repetition_penalty != 1.0f && p->repetition_penalty > 0) ||
           p->frequency_penalty != 0 || p->presence_penalty != 0;
}

static bool bans_stop_ids(const struct td_sample_slot *s)
{
    return s->n_history - s->n_prompt < s->p.min_tokens && s->p.n_stop_ids > 0;
}

static void penalise(const struct td_sampling_params *p, uint32_t seen, float *logit)
{
    uint32_t count = seen & ~IN_PROMPT;
    float l = *logit;
    if (p->repetition_penalty > 0 && p->repetition_penalty != 1.0f) {
        l = l > 0 ? l / p->repetition_penalty : l * p->repetition_penalty;
    }
    l -= p->frequency_penalty * (float)count;
    l -= count > 0 ? p->presence_penalty : 0;
    *logit = l;
}

static void penalise_history(const struct td_sample_slot *s, struct td__ce_member *me)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_history; i++) {
        uint32_t id = (uint32_t)s->history[i];
        if (me->count[id] == 0) {
            me->order[n++] = id;
        }
        me->count[id] = i < s->n_prompt ? me->count[id] | IN_PROMPT : me->count[id] + 1;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = me->order[i];
        penalise(&s->p, me->count[id], &me->adjusted[id]);
        me->count[id] = 0;
    }
}

/* The logits that the choice is made from: the given ones, or an adjusted copy. */
static const float *adjust(const struct td__ce *e, const struct td_sample_slot *s,
                           struct td__ce_member *me, const float *logits)
{
    bool penalties = has_penalties(&s->p), bans = bans_stop_ids(s);
    if (!penalties && !bans && s->p.n_bias == 0) {
        return logits;
    }
    memcpy(me->adjusted, logits, e->info.n_vocab * sizeof *logits);
    for (uint32_t i = 0; i < s->p.n_bias; i++) {
        me->adjusted[s->bias[i].id] += s->bias[i].bias;
    }
    if (penalties) {
        penalise_history(s, me);
    }
    for (uint32_t i = 0; bans && i < s->p.n_stop_ids; i++) {
        me->adjusted[s->p.stop_ids[i]] = -INFINITY;
    }
    return me->adjusted;
}

static double uniform(const struct td_sampling_params *p, uint32_t position)
{
    uint64_t k = td_mix64(p->seed + 0x9e3779b97f4a7c15ull * ((uint64_t)position + 1));
    k = td_mix64(k ^ (0xd1b54a32d192ed03ull * ((uint64_t)p->choice + 1)));
    return (double)(k >> 11) * 0x1p-53;
}

/* True when a comes before b: larger weight, then lower id. */
static bool before(const float *w, uint32_t a, uint32_t b)
{
    return w[a] > w[b] || (w[a] == w[b] && a < b);
}

static void sift_down(const float *w, uint32_t *heap, uint32_t n, uint32_t i)
{
    uint32_t id = heap[i];
    for (uint32_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && before(w, heap[child + 1], heap[child])) {
            child++;
        }
        if (!before(w, heap[child], id)) {
            break;
        }
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = id;
}

/* Moves the best of heap[0, n) to heap[n - 1]; returns its weight. */
static double pop(const float *w, uint32_t *heap, uint32_t n)
{
    uint32_t best = heap[0];
    heap[0] = heap[n - 1];
    sift_down(w, heap, n - 1, 0);
    heap[n - 1] = best;
    return (double)w[best];
}

/* Keeps the first of the ordered candidates; they lie at order[n - 1], order[n - 2], ... Returns
 * how many are kept and their sum. */
static uint32_t keep_best(const struct td_sampling_params *p, const float *w, uint32_t *order,
                          uint32_t n, double total, double *out_sum)
{
    uint32_t most = p->top_k > 0 && (uint32_t)p->top_k < n ? (uint32_t)p->top_k : n, kept = 0;
    bool nucleus = p->top_p < 1.0f;
    double sum = 0;
    for (uint32_t i = n / 2; i-- > 0;) {
        sift_down(w, order, n, i);
    }
    if (nucleus && most < n) { /* top_p is a share of what top_k leaves */
        for (total = 0; kept < most; kept++) {
            total += pop(w, order, n - kept);
        }
        for (kept = 0; kept < most && (kept == 0 || sum < (double)p->top_p * total); kept++) {
            sum += (double)w[order[n - 1 - kept]];
        }
    } else {
        for (; kept < most && (!nucleus || kept == 0 || sum < (double)p->top_p * total); kept++) {
            sum += pop(w, order, n - kept);
        }
    }
    *out_sum = sum;
    return kept;
}

static uint32_t draw(const struct td__ce *e, const struct td_sample_slot *s,
                     struct td__ce_member *me, const float *logits, uint32_t best,
                     uint32_t position)
{
    const struct td_sampling_params *p = &s->p;
    float *w = me->weights;
    uint32_t *order = me->order, n = 0, kept;
    double total = 0, sum, at;
    (void)e->ops->exps(logits, e->info.n_vocab, logits[best], 1.0f / p->temperature, w);
    for (uint32_t i = 0; i < e->info.n_vocab; i++) {
        if (w[i] > 0 && w[i] >= p->min_p) {
            order[n++] = i;
            total += (double)w[i];
        }
    }
    if (n == 0) {
        return best;
    }
    if (p->top_k <= 0 && p->top_p >= 1.0f) { /* in the order of ids */
        at = uniform(p, position) * total;
        for (uint32_t i = 0; i < n; i++) {
            at -= (double)w[order[i]];
            if (at < 0) {
                return order[i];
            }
        }
        return order[n - 1];
    }
    kept = keep_best(p, w, order, n, total, &sum);
    at = uniform(p, position) * sum;
    for (uint32_t i = 0; i < kept; i++) {
        at -= (double)w[order[n - 1 - i]];
        if (at < 0) {
            return order[n - 1 - i];
        }
    }
    return order[n - kept];
}

void td__ce_sample(struct td__ce *e, uint32_t member, struct td_sample_slot *s, float *logits,
                   uint32_t position, uint32_t want, struct td_row_result *out)
{
    struct td__ce_member *me = &e->members[member];
    uint32_t n = e->info.n_vocab;
    s->has_last = false;
    if (!e->ops->all_finite(logits, n)) {
        out->err = TD_ERR_SEQ_FAILED;
        return;
    }
    const float *from = adjust(e, s, me, logits);
    uint32_t id = e->ops->argmax(from, n);
    if (s->p.temperature >= GREEDY_BELOW) {
        id = draw(e, s, me, from, id, position);
    }
    out->n_ids = 1;
    out->ids[0] = (int32_t)id;
    if ((want & TD_WANT_LOGPROBS) != 0) {
        float max = logits[e->ops->argmax(logits, n)];
        float sum = e->ops->exps(logits, n, max, 1, me->weights);
        out->logprobs[0] = logits[id] - max - logf(sum);
    }
    if (s->n_history < e->info.max_model_len) {
        s->history[s->n_history++] = (int32_t)id;
    }
    s->last = (int32_t)id;
    s->has_last = true;
}
