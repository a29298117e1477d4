/* Sampling against a host implementation of the same rules, and draws against the distribution. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/tk_step.h"
#include "tests/bench/gpu/gpu_cases.h"

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

static int falling(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x > y ? -1 : x < y;
}

/* The least value that the filters keep. */
static double threshold(const float *l, uint32_t v, const struct tk_sample_row *p)
{
    float *s = malloc(v * sizeof *s);
    uint32_t n = v;
    for (uint32_t i = 0; i < v; i++) {
        s[i] = l[i];
    }
    qsort(s, v, sizeof *s, falling);
    while (p->min_p > 0 && n > 1 &&
           (double)s[n - 1] < (double)s[0] + log((double)p->min_p) * (double)p->temperature) {
        n--;
    }
    if (p->top_k > 0 && (uint32_t)p->top_k < n) {
        n = (uint32_t)p->top_k;
    }
    if (p->top_p > 0 && p->top_p < 1) {
        double total = 0, sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            total += exp((double)(s[i] - s[0]) / (double)p->temperature);
        }
        uint32_t k = 0;
        while (k < n && sum < (double)p->top_p * total) {
            sum += exp((double)(s[k++] - s[0]) / (double)p->temperature);
        }
        n = k;
    }
    double least = (double)s[n - 1];
    free(s);
    return least;
}

static bool plausible(const float *l, uint32_t v, const struct tk_sample_row *p, int32_t token)
{
    const double slack = 2e-3, least = threshold(l, v, p);
    double best = -1e300, mine = -1e300;
    for (uint32_t i = 0; i < v; i++) {
        const double u =
            ((double)(philox(i, p->position, p->choice, p->seed) >> 8) + 0.5) / 16777216.0;
        const double g = (double)l[i] / (double)p->temperature - log(-log(u));
        if ((double)l[i] >= least + slack && g > best) {
            best = g;
        }
        if ((int32_t)i == token) {
            mine = (double)l[i] >= least - slack ? g : -1e300;
        }
    }
    return mine >= best - slack;
}

/* One launch over rows of logits that lie on the host. */
static void run(const float *logits, const struct tk_sample_row *rows, uint32_t n, uint32_t v,
                struct tk_slots slots, struct tk_sampled *got)
{
    const size_t bytes = (size_t)n * v * sizeof *logits;
    float *dev = gpu_upload(logits, bytes), *adjusted = gpu_alloc(bytes);
    struct tk_sample_row *rd = gpu_upload(rows, n * sizeof *rows);
    struct tk_sampled *out = gpu_alloc(n * sizeof *got);
    gpu_poison(out, n * sizeof *got);
    gpu_poison(adjusted, bytes);
    const struct tk_sample a = {.logits = dev,
                                .adjusted = adjusted,
                                .rows = rd,
                                .slots = slots,
                                .out = out,
                                .n_rows = n,
                                .vocab = v,
                                .stride = v};
    TK(tk_sample(NULL, &a));
    gpu_download(got, out, n * sizeof *got);
    gpu_free(dev), gpu_free(adjusted), gpu_free(rd), gpu_free(out);
}

static float *random_logits(uint32_t rows, uint32_t v, uint64_t seed)
{
    float *l = malloc((size_t)rows * v * sizeof *l);
    for (size_t i = 0; i < (size_t)rows * v; i++) {
        l[i] = (float)((double)(gpu_rand(&seed) % 100000) / 100000.0 +
                       (double)(gpu_rand(&seed) % 100000) / 20000.0);
    }
    return l;
}

static struct tk_sample_row plain(float temperature, uint32_t slot, uint32_t flags)
{
    return (struct tk_sample_row){.temperature = temperature,
                                  .repetition = 1,
                                  .slot = slot,
                                  .flags = flags,
                                  .seed = 3,
                                  .live = 1};
}

static void check_rules(void)
{
    enum { ROWS = 12, V = 32003 };
    static const struct {
        float temperature, top_p, min_p;
        int32_t top_k;
        uint64_t seed;
        uint32_t position, choice;
    } rules[ROWS] = {{1.f, 0, 0, 0, 1, 5, 0},         {0.7f, 0.9f, 0, 0, 2, 6, 0},
                     {1.3f, 0, 0, 50, 3, 7, 0},       {1.f, 0, 0.05f, 0, 4, 8, 0},
                     {0.8f, 0.95f, 0, 40, 5, 9, 1},   {1.f, 0.5f, 0.1f, 0, 6, 10, 0},
                     {2.f, 0.99f, 0, 1000, 7, 11, 2}, {0.1f, 0, 0, 0, 8, 12, 0},
                     {1.f, 1e-6f, 0, 0, 9, 13, 0},    {1.f, 0, 0, 1, 10, 14, 0},
                     {1.f, 0.3f, 0, 2, 11, 15, 0},    {1.f, 0.9f, 0.2f, 7, 1ull << 40, 16, 0}};
    struct tk_sample_row rows[ROWS];
    struct tk_sampled got[ROWS];
    char name[64];
    float *l = random_logits(ROWS, V, 21);
    for (int r = 0; r < ROWS; r++) {
        rows[r] = plain(rules[r].temperature, TK_NO_SLOT, 0);
        rows[r].top_p = rules[r].top_p;
        rows[r].min_p = rules[r].min_p;
        rows[r].top_k = rules[r].top_k;
        rows[r].seed = rules[r].seed;
        rows[r].position = rules[r].position;
        rows[r].choice = rules[r].choice;
    }
    run(l, rows, ROWS, V, (struct tk_slots){0}, got);
    for (int r = 0; r < ROWS; r++) {
        (void)snprintf(name, sizeof name, "sample: rules, row %d", r);
        gpu_expect(name, plausible(l + (size_t)r * V, V, &rows[r], got[r].token));
    }
    free(l);
}

/* Bias, penalties, bans, log-probabilities, failed rows and the slots' state, against the host. */
static void check_state(void)
{
    enum { ROWS = 6, V = 5003, SLOTS = 8 };
    struct tk_sample_row rows[ROWS];
    struct tk_sampled got[ROWS];
    float *l = random_logits(ROWS, V, 22);
    int32_t last[SLOTS] = {0, 0, 0, 0, 0, TK_FAILED, 0, 0};
    uint32_t *counts = calloc((size_t)SLOTS * V, sizeof *counts);
    struct tk_sample_bias *bias = calloc((size_t)SLOTS * TK_SLOT_BIAS, sizeof *bias);
    int32_t *stops = calloc((size_t)SLOTS * TK_SLOT_STOPS, sizeof *stops);
    int32_t top[ROWS];
    for (int r = 0; r < ROWS; r++) {
        top[r] = 100 * r + 7;
        l[(size_t)r * V + (uint32_t)top[r]] = 9.f;
        l[(size_t)r * V + (uint32_t)top[r] + 1] = 8.5f; /* the second */
        rows[r] = plain(0, (uint32_t)r, 0);
    }
    rows[0].flags = TK_SAMPLE_LOGPROB;
    rows[1].flags = TK_SAMPLE_BIAS | TK_SAMPLE_LOGPROB;
    rows[1].n_bias = 2;
    bias[1 * TK_SLOT_BIAS] = (struct tk_sample_bias){top[1], -1.f};
    bias[1 * TK_SLOT_BIAS + 1] = (struct tk_sample_bias){17, 100.f};
    rows[2].flags = TK_SAMPLE_PENALTIES;
    rows[2].presence = 1.f;
    counts[2 * V + top[2]] = 3;
    rows[3].flags = TK_SAMPLE_BAN;
    rows[3].n_stops = 1;
    stops[3 * TK_SLOT_STOPS] = top[3];
    l[4 * V + 77] = NAN;
    rows[5].flags = TK_SAMPLE_CHAINED;
    const struct tk_slots s = {gpu_upload(last, sizeof last),
                               gpu_upload(counts, (size_t)SLOTS * V * 4),
                               gpu_upload(bias, SLOTS * TK_SLOT_BIAS * sizeof *bias),
                               gpu_upload(stops, SLOTS * TK_SLOT_STOPS * sizeof *stops)};
    run(l, rows, ROWS, V, s, got);
    double z[2] = {0, 0};
    for (int i = 0; i < V; i++) {
        z[0] += exp((double)l[i]);
        z[1] += exp((double)l[V + i]);
    }
    gpu_expect("sample: the largest and its log-probability",
               got[0].token == top[0] && fabs((double)got[0].logprob - 9.0 + log(z[0])) < 1e-3);
    gpu_expect("sample: bias chooses, the log-probability is of the logits as they came",
               got[1].token == 17 &&
                   fabs((double)got[1].logprob - (double)l[V + 17] + log(z[1])) < 1e-3);
    gpu_expect("sample: presence penalty", got[2].token == top[2] + 1);
    gpu_expect("sample: a banned id is not chosen", got[3].token == top[3] + 1);
    gpu_expect("sample: NaN fails the row", got[4].token == TK_FAILED);
    gpu_expect("sample: a failed slot fails the row fed by it", got[5].token == TK_FAILED);
    gpu_download(last, s.last, sizeof last);
    gpu_download(counts, s.counts, (size_t)SLOTS * V * 4);
    gpu_expect("sample: slots keep what was chosen", last[0] == top[0] && last[2] == top[2] + 1 &&
                                                         counts[2 * V + top[2] + 1] == 1 &&
                                                         counts[2 * V + top[2]] == 3);
    gpu_free(s.last), gpu_free(s.counts), gpu_free(s.bias), gpu_free(s.stops);
    free(l), free(counts), free(bias), free(stops);
}

static void check_frequencies(void)
{
    enum { ROWS = 8192, V = 6 };
    static const float logits[V] = {0.f, 1.f, -1.f, 2.f, 0.5f, -3.f};
    float *l = malloc(sizeof(float) * ROWS * V);
    struct tk_sample_row *rows = calloc(ROWS, sizeof *rows);
    struct tk_sampled *got = malloc(ROWS * sizeof *got);
    double p[V], z = 0, chi = 0;
    int count[V] = {0};
    for (int r = 0; r < ROWS; r++) {
        rows[r] = plain(1.f, TK_NO_SLOT, 0);
        rows[r].position = (uint32_t)r;
        for (int i = 0; i < V; i++) {
            l[r * V + i] = logits[i];
        }
    }
    run(l, rows, ROWS, V, (struct tk_slots){0}, got);
    for (int i = 0; i < V; i++) {
        p[i] = exp((double)logits[i]);
        z += p[i];
    }
    for (int r = 0; r < ROWS; r++) {
        count[got[r].token >= 0 && got[r].token < V ? got[r].token : 0]++;
    }
    for (int i = 0; i < V; i++) {
        const double e = ROWS * p[i] / z;
        chi += (count[i] - e) * (count[i] - e) / e;
    }
    gpu_expect("sample: frequencies follow the softmax",
               chi < 20.5); /* 5 degrees of freedom, one in a thousand */
    free(l), free(rows), free(got);
}

void gpu_check_sample(void)
{
    check_rules();
    check_state();
    check_frequencies();
}
