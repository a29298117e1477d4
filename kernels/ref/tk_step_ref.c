/* tk_step_ref.c - the operations of tk_step.h on the host, by sorting. See tk_device_ref.h. */
#include "kernels/tk_step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ref/tk_device_ref.h"

/* First of Philox4x32-10's four words. */
static uint32_t philox(uint32_t c0, uint32_t c1, uint32_t c2, uint64_t seed)
{
    uint32_t x[4] = {c0, c1, c2, 0}, k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int r = 0; r < 10; r++) {
        const uint64_t a = (uint64_t)0xD2511F53u * x[0], b = (uint64_t)0xCD9E8D57u * x[2];
        const uint32_t y0 = (uint32_t)(b >> 32) ^ x[1] ^ k0, y2 = (uint32_t)(a >> 32) ^ x[3] ^ k1;
        x[0] = y0, x[1] = (uint32_t)b, x[2] = y2, x[3] = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return x[0];
}

static float penalised(float x, uint32_t seen, const struct tk_sample_row *p)
{
    const uint32_t count = seen & ~TK_IN_PROMPT;
    if (p->repetition > 0 && p->repetition != 1.f) {
        x = x > 0 ? x / p->repetition : x * p->repetition;
    }
    x -= p->frequency * (float)count;
    return count > 0 ? x - p->presence : x;
}

static void adjust(const struct tk_sample *a, const struct tk_sample_row *p, float *x)
{
    for (uint32_t i = 0; (p->flags & TK_SAMPLE_BIAS) != 0 && i < p->n_bias; i++) {
        const struct tk_sample_bias *b = &a->slots.bias[(size_t)p->slot * TK_SLOT_BIAS + i];
        x[b->id] += b->bias;
    }
    for (uint32_t i = 0; (p->flags & TK_SAMPLE_PENALTIES) != 0 && i < a->vocab; i++) {
        const uint32_t seen = a->slots.counts[(size_t)p->slot * a->vocab + i];
        x[i] = seen != 0 ? penalised(x[i], seen, p) : x[i];
    }
    for (uint32_t i = 0; (p->flags & TK_SAMPLE_BAN) != 0 && i < p->n_stops; i++) {
        x[a->slots.stops[(size_t)p->slot * TK_SLOT_STOPS + i]] = -INFINITY;
    }
}

static uint32_t largest(const float *x, uint32_t n)
{
    uint32_t at = 0;
    for (uint32_t i = 1; i < n; i++) {
        at = x[i] > x[at] ? i : at;
    }
    return at;
}

static int falling(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x > y ? -1 : x < y;
}

/* The least value that min_p, top_k and top_p keep; sorted is scratch. */
static float least_kept(const float *x, uint32_t n, const struct tk_sample_row *p, float *sorted)
{
    memcpy(sorted, x, n * sizeof *x);
    qsort(sorted, n, sizeof *sorted, falling);
    const float max = sorted[0];
    uint32_t kept = n;
    while (p->min_p > 0 && kept > 1 && sorted[kept - 1] < max + logf(p->min_p) * p->temperature) {
        kept--;
    }
    kept = p->top_k > 0 && (uint32_t)p->top_k < kept ? (uint32_t)p->top_k : kept;
    if (p->top_p > 0 && p->top_p < 1) {
        double total = 0, sum = 0;
        uint32_t k = 0;
        for (uint32_t i = 0; i < kept; i++) {
            total += exp((double)(sorted[i] - max) / (double)p->temperature);
        }
        while (k < kept && sum < (double)p->top_p * total) {
            sum += exp((double)(sorted[k++] - max) / (double)p->temperature);
        }
        kept = k;
    }
    return sorted[kept - 1];
}

static uint32_t draw(const float *x, uint32_t n, const struct tk_sample_row *p, float *sorted)
{
    const float least = least_kept(x, n, p, sorted);
    float best = -INFINITY;
    uint32_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        const float u =
            ((float)(philox(i, p->position, p->choice, p->seed) >> 8) + 0.5f) * 0x1p-24f;
        const float g = x[i] / p->temperature - logf(-logf(u));
        if (x[i] >= least && g > best) {
            best = g;
            at = i;
        }
    }
    return at;
}

static void keep(const struct tk_slots *slots, const struct tk_sample_row *p, uint32_t vocab,
                 struct tk_sampled got, struct tk_sampled *out)
{
    if ((p->flags & TK_SAMPLE_CHAINED) != 0 && slots->last[p->slot] < 0) {
        got = (struct tk_sampled){TK_FAILED, 0};
    }
    *out = got;
    if (p->slot != TK_NO_SLOT) {
        slots->last[p->slot] = got.token;
        if ((p->flags & TK_SAMPLE_PENALTIES) != 0 && got.token >= 0) {
            slots->counts[(size_t)p->slot * vocab + (uint32_t)got.token]++;
        }
    }
}

static bool all_finite(const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) {
            return false;
        }
    }
    return true;
}

static struct tk_sampled choose(const struct tk_sample *a, const struct tk_sample_row *p,
                                const float *x, float *work, float *sorted)
{
    struct tk_sampled got = {TK_FAILED, 0};
    if (!all_finite(x, a->vocab)) {
        return got;
    }
    memcpy(work, x, a->vocab * sizeof *x);
    adjust(a, p, work);
    got.token =
        (int32_t)(p->temperature > 0 ? draw(work, a->vocab, p, sorted) : largest(work, a->vocab));
    if ((p->flags & TK_SAMPLE_LOGPROB) != 0) {
        const float max = x[largest(x, a->vocab)];
        float sum = 0;
        for (uint32_t i = 0; i < a->vocab; i++) {
            sum += expf(x[i] - max);
        }
        got.logprob = x[got.token] - max - logf(sum);
    }
    return got;
}

static void do_sample(const void *args)
{
    const struct tk_sample *a = args;
    float *work = malloc(2 * (size_t)a->vocab * sizeof *work);
    for (uint32_t r = 0; work != NULL && r < a->n_rows; r++) {
        const struct tk_sample_row *p = &a->rows[r];
        if (p->live != 0) {
            struct tk_sampled got =
                choose(a, p, a->logits + (size_t)r * a->stride, work, work + a->vocab);
            keep(&a->slots, p, a->vocab, got, &a->out[r]);
        }
    }
    free(work);
}

td_err tk_sample(tk_stream s, const struct tk_sample *a)
{
    return a->n_rows == 0 || a->vocab == 0 || a->vocab > TK_MAX_VOCAB || a->stride < a->vocab
               ? TD_ERR_UNSUPPORTED
               : tk_ref_enqueue(s, do_sample, a, sizeof *a);
}

static void do_greedy(const void *args)
{
    const struct tk_greedy *a = args;
    for (uint32_t r = 0; r < a->n_rows; r++) {
        const struct tk_sample_row *p = &a->rows[r];
        if (p->live != 0) {
            const bool ok = isfinite(a->best_val[r]);
            keep(&a->slots, p, 0, (struct tk_sampled){ok ? a->best_idx[r] : TK_FAILED, 0},
                 &a->out[r]);
        }
    }
}

td_err tk_greedy(tk_stream s, const struct tk_greedy *a)
{
    return a->n_rows == 0 || a->n_rows > TK_MAX_ROWS || a->parts != 1
               ? TD_ERR_UNSUPPORTED
               : tk_ref_enqueue(s, do_greedy, a, sizeof *a);
}

struct take_args {
    int32_t *tokens;
    const int32_t *slot, *last;
    uint32_t n;
};

static void do_take(const void *args)
{
    const struct take_args *t = args;
    for (uint32_t i = 0; i < t->n; i++) {
        if (t->slot[i] >= 0) {
            const int32_t token = t->last[t->slot[i]];
            t->tokens[i] = token < 0 ? 0 : token;
        }
    }
}

td_err tk_take_tokens(tk_stream s, int32_t *tokens, const int32_t *slot, const int32_t *last,
                      uint32_t n)
{
    const struct take_args t = {tokens, slot, last, n};
    return n == 0 ? TD_ERR_UNSUPPORTED : tk_ref_enqueue(s, do_take, &t, sizeof t);
}

struct gather_args {
    const tk_bf16 *h;
    const int32_t *at;
    tk_bf16 *out;
    uint32_t n, dim;
};

static void do_gather(const void *args)
{
    const struct gather_args *g = args;
    for (uint32_t i = 0; i < g->n; i++) {
        memcpy(g->out + (size_t)i * g->dim, g->h + (size_t)g->at[i] * g->dim,
               g->dim * sizeof *g->h);
    }
}

td_err tk_gather_rows(tk_stream s, const tk_bf16 *h, const int32_t *at, tk_bf16 *out, uint32_t n,
                      uint32_t dim)
{
    const struct gather_args g = {h, at, out, n, dim};
    return n == 0 || dim % 8 != 0 ? TD_ERR_UNSUPPORTED : tk_ref_enqueue(s, do_gather, &g, sizeof g);
}

struct count_args {
    const int32_t *ids;
    uint32_t n, n_prompt;
    uint32_t *counts;
};

static void do_count(const void *args)
{
    const struct count_args *c = args;
    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t *at = &c->counts[c->ids[i]];
        *at = i < c->n_prompt ? *at | TK_IN_PROMPT : *at + 1;
    }
}

td_err tk_count_tokens(tk_stream s, const int32_t *ids, uint32_t n, uint32_t n_prompt,
                       uint32_t *counts)
{
    const struct count_args c = {ids, n, n_prompt, counts};
    return n == 0 ? TD_OK : tk_ref_enqueue(s, do_count, &c, sizeof c);
}
