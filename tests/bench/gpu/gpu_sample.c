/* Sampling against a host implementation of the same rules, and draws against the distribution. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/gpu/gpu_cases.h"

static uint32_t philox(uint32_t c0, uint32_t c1, uint64_t seed)
{
    uint32_t x[4] = {c0, c1, 0, 0}, k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
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
    if (p->top_k > 0 && (uint32_t)p->top_k < v) {
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
    if (p->min_p > 0) {
        least = fmax(least, (double)s[0] + log((double)p->min_p) * (double)p->temperature);
    }
    free(s);
    return least;
}

static bool plausible(const float *l, uint32_t v, const struct tk_sample_row *p, int32_t token)
{
    const double slack = 2e-3, least = threshold(l, v, p);
    double best = -1e300, mine = -1e300;
    for (uint32_t i = 0; i < v; i++) {
        const double u = ((double)(philox(i, p->position, p->seed) >> 8) + 0.5) / 16777216.0;
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

static void check_rules(void)
{
    enum { ROWS = 12, V = 32003 };
    static const struct tk_sample_row rows[ROWS] = {
        {1.f, 0, 0, 0, 1, 5, 0},         {0.7f, 0.9f, 0, 0, 2, 6, 0},
        {1.3f, 0, 0, 50, 3, 7, 0},       {1.f, 0, 0.05f, 0, 4, 8, 0},
        {0.8f, 0.95f, 0, 40, 5, 9, 0},   {1.f, 0.5f, 0.1f, 0, 6, 10, 0},
        {2.f, 0.99f, 0, 1000, 7, 11, 0}, {0.1f, 0, 0, 0, 8, 12, 0},
        {1.f, 1e-6f, 0, 0, 9, 13, 0},    {1.f, 0, 0, 1, 10, 14, 0},
        {1.f, 0.3f, 0, 2, 11, 15, 0},    {1.f, 0.9f, 0.2f, 7, 1ull << 40, 16, 0}};
    float *l = malloc((size_t)ROWS * V * sizeof *l);
    int32_t got[ROWS];
    uint64_t seed = 21;
    char name[64];
    for (size_t i = 0; i < (size_t)ROWS * V; i++) {
        l[i] = (float)((double)(gpu_rand(&seed) % 100000) / 100000.0 +
                       (double)(gpu_rand(&seed) % 100000) / 20000.0);
    }
    float *dev = gpu_upload(l, (size_t)ROWS * V * sizeof *l);
    struct tk_sample_row *rd = gpu_upload(rows, sizeof rows);
    int32_t *tok = gpu_alloc(sizeof got);
    gpu_poison(tok, sizeof got);
    TK(tk_sample(NULL, dev, V, V, rd, ROWS, tok));
    gpu_download(got, tok, sizeof got);
    for (int r = 0; r < ROWS; r++) {
        (void)snprintf(name, sizeof name, "sample: rules, row %d", r);
        gpu_expect(name, plausible(l + (size_t)r * V, V, &rows[r], got[r]));
    }
    gpu_free(dev), gpu_free(rd), gpu_free(tok);
    free(l);
}

static void check_frequencies(void)
{
    enum { ROWS = 8192, V = 6 };
    static const float logits[V] = {0.f, 1.f, -1.f, 2.f, 0.5f, -3.f};
    float *l = malloc(sizeof(float) * ROWS * V);
    struct tk_sample_row *rows = calloc(ROWS, sizeof *rows);
    int32_t *got = malloc(ROWS * sizeof *got);
    double p[V], z = 0, chi = 0;
    int count[V] = {0};
    for (int r = 0; r < ROWS; r++) {
        rows[r] = (struct tk_sample_row){1.f, 0, 0, 0, 99, (uint32_t)r, 0};
        for (int i = 0; i < V; i++) {
            l[r * V + i] = logits[i];
        }
    }
    float *dev = gpu_upload(l, sizeof(float) * ROWS * V);
    struct tk_sample_row *rd = gpu_upload(rows, ROWS * sizeof *rows);
    int32_t *tok = gpu_alloc(ROWS * sizeof *got);
    TK(tk_sample(NULL, dev, V, V, rd, ROWS, tok));
    gpu_download(got, tok, ROWS * sizeof *got);
    for (int i = 0; i < V; i++) {
        p[i] = exp((double)logits[i]);
        z += p[i];
    }
    for (int r = 0; r < ROWS; r++) {
        count[got[r] >= 0 && got[r] < V ? got[r] : 0]++;
    }
    for (int i = 0; i < V; i++) {
        const double e = ROWS * p[i] / z;
        chi += (count[i] - e) * (count[i] - e) / e;
    }
    gpu_expect("sample: frequencies follow the softmax",
               chi < 20.5); /* 5 degrees of freedom, one in a thousand */
    gpu_free(dev), gpu_free(rd), gpu_free(tok);
    free(l), free(rows), free(got);
}

void gpu_check_sample(void)
{
    check_rules();
    check_frequencies();
}
