/* engine-check: checks and times the CUDA engine (common/model/cuda_engine.h) on the device of this machine.
 *
 * engine-check [--sm_80] PART...   exit status 1 when a check failed. --sm_80: with the kernels for every device from
 * compute capability 8.0 on, on a Hopper GPU too.
 *   check        tiny models with heads of 128 and 64, one with a padded width: logits against the float32 reference on the
 *                processors; the same ids alone and in batches of 2 to 64, by other chunks, again, and resumed
 *   small        every kind of pass on tiny models, for compute-sanitizer
 *   one          a decode step of one sequence of Llama-3-8B's shape
 *   step         a decode step of Llama-3-8B's shape through the engine, greedy and sampled
 *   prefill      prompts of 512, 2,048 and 8,192 tokens
 *   mixed        a chunk of 512 tokens that ends its prompt, alone (also without that end's head and choice) and beside 32
 *                decode rows at 1k, turn by turn
 *   logits MODEL TOKENS OUT    every token's logits: raw int32 in, raw float32 out
 *   greedy MODEL TOKENS OUT    64 ids behind a prompt, by decode steps: raw int32 in and out
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/model/cpu_engine.h"
#include "tests/bench/gpu/engine_model.h"
#include "tests/bench/gpu/engine_seq.h"

enum { MAX_PROMPT = 900, GEN = 24, SEQS = 64, SAMPLES = 40 };
enum { DECODING = 32, MIXED_CTX = 1024 }; /* of mixed steps */

static int failures;
static enum td_cuda_kernels kernels;

static void expect(const char *name, bool ok)
{
    printf("%s %s\n", ok ? "ok  " : "FAIL", name);
    failures += !ok;
}

static struct td_engine *open_engine(const struct td_model *m, bool deterministic, uint32_t rows,
                                     uint32_t tokens, uint32_t len)
{
    const struct td_cuda_engine_params p = {.kernels = kernels,
                                            .deterministic = deterministic,
                                            .memory_utilization = 0.9,
                                            .max_rows = rows,
                                            .max_tokens = tokens,
                                            .max_slots = ES_MAX_SEQS,
                                            .max_model_len = len};
    struct td_engine *e = NULL;
    es_need(td_cuda_engine_create(m, &p, &e), "engine");
    return e;
}

/* ---- logits against the float32 reference ---- */

static uint32_t best_of(const float *l, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++) {
        best = l[i] > l[best] ? i : best;
    }
    return best;
}

static void check_logits(const struct td_model *m, struct td_engine *e, const char *what,
                         uint32_t chunk)
{
    enum { N = 700 };
    const uint32_t vocab = m->hp.n_vocab;
    const struct td_cpu_engine_params p = {.numerics = "f32",
                                           .n_threads = 12,
                                           .n_blocks = 64,
                                           .max_rows = 16,
                                           .max_tokens = 256,
                                           .max_slots = 1};
    struct td_engine *ref = NULL;
    int32_t tokens[N];
    char name[160];
    float *got = malloc((size_t)N * vocab * sizeof *got),
          *want = malloc((size_t)N * vocab * sizeof *want);
    es_need(td_cpu_engine_create(m, &p, &ref), "reference engine");
    es_tokens(vocab, 3, tokens, N);
    es_need(td_cpu_engine_logits(ref, tokens, N, 256, want), "reference logits");
    es_need(td_cuda_engine_logits(e, tokens, N, chunk, got), "logits");
    double d = 0, r = 0;
    uint32_t same = 0;
    for (uint32_t t = 0; t < N; t++) {
        const float *a = got + (size_t)t * vocab, *b = want + (size_t)t * vocab;
        for (uint32_t i = 0; i < vocab; i++) {
            d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
            r += (double)b[i] * b[i];
        }
        same += best_of(a, vocab) == best_of(b, vocab);
    }
    (void)snprintf(name, sizeof name,
                   "%s: logits near float32 by chunks of %u (rel %.1e, best token %u of %u)", what,
                   chunk, sqrt(d / r), same, N);
    expect(name, sqrt(d / r) < 4e-2); /* rounding of bf16 through a tiny model */
    free(got);
    free(want);
    ref->ops->destroy(ref);
}

/* ---- the same ids ---- */

struct work {
    const struct td_model *m;
    struct td_engine *e;
    uint32_t len[SEQS];
    int32_t prompt[SEQS][MAX_PROMPT];
    int32_t alone[SEQS][GEN];
};

static void set_slot(struct es_set *s, const struct work *w, uint32_t i, uint32_t n_output)
{
    es_slot(s, i, i % 2 == 0 ? es_greedy() : es_sampled(i), w->prompt[i], w->len[i], w->alone[i],
            n_output);
}

static void run_alone(struct work *w)
{
    struct es_set s = es_make(w->e, SEQS, MAX_PROMPT + GEN, 1);
    for (uint32_t i = 0; i < SEQS; i++) {
        es_tokens(w->m->hp.n_vocab, 50 + i, w->prompt[i], MAX_PROMPT);
        w->len[i] = i == 0 ? 1 : i == 1 ? 257 : 1 + i * 14 % MAX_PROMPT;
        set_slot(&s, w, i, 0);
        w->alone[i][0] = es_prefill(&s, i, w->prompt[i], w->len[i], 1024, true);
        for (uint32_t g = 1; g < GEN; g++) {
            struct td_row row = es_row(&s, i, NULL, 1, true);
            w->alone[i][g] = es_step(w->e, &row, 1).rows[0].ids[0];
        }
    }
    es_drop(&s);
}

/* All at once, by small chunks, decode rows beside chunks; how many sequences differ from alone. */
static uint32_t run_together(struct work *w, uint32_t chunk, bool by_value, uint64_t blocks)
{
    struct es_set s = es_make(w->e, SEQS, MAX_PROMPT + GEN, blocks);
    static int32_t got[SEQS][GEN];
    uint32_t made[SEQS] = {0}, fed[SEQS] = {0}, left = SEQS, bad = 0;
    for (uint32_t i = 0; i < SEQS; i++) {
        set_slot(&s, w, i, 0);
    }
    while (left > 0) {
        struct td_row rows[SEQS];
        uint32_t who[SEQS], n = 0, tokens = 0;
        for (uint32_t i = 0; i < SEQS; i++) {
            uint32_t len = w->len[i] - fed[i] < chunk ? w->len[i] - fed[i] : chunk;
            if (made[i] == GEN || tokens + (len > 0 ? len : 1) > 1024) {
                continue;
            }
            who[n] = i;
            if (len > 0) {
                rows[n++] = es_row(&s, i, w->prompt[i] + fed[i], len, fed[i] + len == w->len[i]);
                fed[i] += len;
                tokens += len;
            } else {
                rows[n++] = es_row(&s, i, by_value ? &got[i][made[i] - 1] : NULL, 1, true);
                tokens++;
            }
        }
        struct td_step_result r = es_step(w->e, rows, n);
        for (uint32_t k = 0; k < n; k++) {
            if (r.rows[k].n_ids == 1) {
                got[who[k]][made[who[k]]++] = r.rows[k].ids[0];
                left -= made[who[k]] == GEN;
            }
        }
    }
    for (uint32_t i = 0; i < SEQS; i++) {
        bad += memcmp(got[i], w->alone[i], sizeof got[i]) != 0;
    }
    es_drop(&s);
    return bad;
}

/* Ids behind the first, of sequences [first, first + rows) in one step each. */
static void decode_group(struct work *w, struct es_set *s, uint32_t first, uint32_t rows,
                         int32_t got[SEQS][GEN])
{
    for (uint32_t g = 1; g < GEN; g++) {
        struct td_row r[SEQS];
        for (uint32_t i = 0; i < rows; i++) {
            r[i] = es_row(s, first + i, NULL, 1, true);
        }
        struct td_step_result result = es_step(w->e, r, rows);
        for (uint32_t i = 0; i < rows; i++) {
            got[first + i][g] = result.rows[i].ids[0];
        }
    }
}

/* Prompts whole, each in its step; then so many decode together, and the next ones: what the fast mode promises. */
static uint32_t run_decode_together(struct work *w, uint32_t rows)
{
    struct es_set s = es_make(w->e, SEQS, MAX_PROMPT + GEN, 9);
    uint32_t bad = 0;
    static int32_t got[SEQS][GEN];
    for (uint32_t i = 0; i < SEQS; i++) {
        set_slot(&s, w, i, 0);
        got[i][0] = es_prefill(&s, i, w->prompt[i], w->len[i], 1024, true);
    }
    for (uint32_t i = 0; i < SEQS; i += rows) {
        decode_group(w, &s, i, SEQS - i < rows ? SEQS - i : rows, got);
    }
    for (uint32_t i = 0; i < SEQS; i++) {
        bad += memcmp(got[i], w->alone[i], sizeof got[i]) != 0;
    }
    es_drop(&s);
    return bad;
}

/* After half of the output: the prompt by chunks again, the output by decode kernels, then on. */
static uint32_t run_resumed(struct work *w)
{
    enum { KEPT = GEN / 2 };
    struct es_set s = es_make(w->e, SEQS, MAX_PROMPT + GEN, 5);
    uint32_t bad = 0;
    for (uint32_t i = 0; i < SEQS; i++) {
        int32_t got[GEN];
        set_slot(&s, w, i, KEPT);
        const uint32_t head = w->len[i] - w->len[i] % 64; /* a chunk may end the prompt and go on */
        int32_t rest[64 + KEPT];
        (void)es_prefill(&s, i, w->prompt[i], head, 100, false);
        memcpy(got, w->alone[i], sizeof got);
        memcpy(rest, w->prompt[i] + head, (w->len[i] - head) * sizeof *rest);
        memcpy(rest + (w->len[i] - head), got, KEPT * sizeof *rest);
        struct td_row row = es_row(&s, i, rest, w->len[i] - head + KEPT, true);
        row.output_pos = w->len[i];
        got[KEPT] = es_step(w->e, &row, 1).rows[0].ids[0];
        for (uint32_t g = KEPT + 1; g < GEN; g++) {
            row = es_row(&s, i, NULL, 1, true);
            got[g] = es_step(w->e, &row, 1).rows[0].ids[0];
        }
        bad += memcmp(got, w->alone[i], sizeof got) != 0;
    }
    es_drop(&s);
    return bad;
}

static void expect_same(const char *what, const char *which, uint32_t bad)
{
    char name[160];
    (void)snprintf(name, sizeof name, "%s: %s (%u of %d sequences differ)", what, which, bad, SEQS);
    expect(name, bad == 0);
}

static void check_ids(const struct td_model *m, const char *what)
{
    static struct work w;
    w = (struct work){.m = m, .e = open_engine(m, true, SEQS, 1024, 0)};
    char name[64];
    (void)snprintf(name, sizeof name, "%s deterministic", what);
    check_logits(m, w.e, name, 128);
    run_alone(&w);
    expect_same(name, "64 at once by chunks of 97 = alone, whole", run_together(&w, 97, false, 2));
    expect_same(name, "again, other blocks, tokens by value", run_together(&w, 97, true, 3));
    expect_same(name, "by chunks of 256 = alone, whole", run_together(&w, 256, false, 4));
    expect_same(name, "resumed = uninterrupted", run_resumed(&w));
    w.e->ops->destroy(w.e);
    w.e = open_engine(m, false, SEQS, 1024, 0);
    (void)snprintf(name, sizeof name, "%s fast", what);
    check_logits(m, w.e, name, 1024);
    check_logits(m, w.e, name, 100);
    run_alone(&w);
    /* of 3, the step is one of 4, a row of it empty; each kind of launch that a step of so many rows takes */
    static const uint32_t rows[] = {2, 3, 4, 8, 16, SEQS};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char which[64];
        (void)snprintf(which, sizeof which, "%u decode rows at once = alone", rows[i]);
        expect_same(name, which, run_decode_together(&w, rows[i]));
    }
    printf("     %s: 64 at once by chunks of 97: %u of %d sequences differ (no promise)\n", name,
           run_together(&w, 97, false, 2), SEQS);
    w.e->ops->destroy(w.e);
}

static const struct {
    const char *what;
    uint32_t n_embd, n_heads, n_kv_heads;
} tiny[] = {{"tiny, heads of 128", 1024, 8, 2},
            {"tiny, heads of 64", 1024, 16, 4},
            {"tiny, heads of 64, 576 padded", 576, 9, 3}};

static void check_all(void)
{
    for (size_t i = 0; i < sizeof tiny / sizeof tiny[0]; i++) {
        struct em m = em_tiny(3, tiny[i].n_embd, tiny[i].n_heads, tiny[i].n_kv_heads);
        check_ids(m.m, tiny[i].what);
        em_close(&m);
    }
}

/* ---- for a tool that slows kernels a hundred times ---- */

enum { SMALL_SEQS = 3, SMALL_CHUNK = 20, SMALL_TOKENS = 64 };

/* A small pool leaves the tool its memory, few tokens leave few row counts to tune products for. */
static struct td_engine *open_small(const struct td_model *m, bool deterministic)
{
    const struct td_cuda_engine_params p = {.kernels = kernels,
                                            .deterministic = deterministic,
                                            .memory_utilization = 0.9,
                                            .n_blocks = 128,
                                            .max_rows = 4,
                                            .max_tokens = SMALL_TOKENS,
                                            .max_slots = SMALL_SEQS,
                                            .max_model_len = 512};
    struct td_engine *e = NULL;
    es_need(td_cuda_engine_create(m, &p, &e), "engine");
    return e;
}

/* Chunks; decode rows, sampled and greedy alone; decode beside a chunk and output that is computed again. What lies before
 * the chunks is the pool's zeros. */
static void small_passes(struct td_engine *e, uint32_t vocab)
{
    static const uint32_t before[SMALL_SEQS] = {0, 30, 300};
    struct es_set s = es_make(e, SMALL_SEQS, 400, 1);
    int32_t tokens[400];
    struct td_row rows[SMALL_SEQS];
    es_tokens(vocab, 3, tokens, 400);
    for (uint32_t k = 0; k < SMALL_SEQS; k++) {
        s.seq[k].pos = before[k];
        es_slot(&s, k, k == 1 ? es_sampled(1) : es_greedy(), tokens, before[k] + SMALL_CHUNK, NULL,
                0);
        rows[k] = es_row(&s, k, tokens, SMALL_CHUNK, true);
    }
    (void)es_step(e, rows, SMALL_SEQS);
    for (uint32_t k = 0; k < SMALL_SEQS; k++) {
        rows[k] = es_row(&s, k, NULL, 1, true);
    }
    (void)es_step(e, rows, SMALL_SEQS);
    rows[0] = es_row(&s, 0, NULL, 1, true);
    (void)es_step(e, rows, 1);
    rows[0] = es_row(&s, 0, NULL, 1, true);
    rows[1] = es_row(&s, 1, tokens, 33, false);
    rows[2] = es_row(&s, 2, tokens, 7, true);
    rows[2].want = TD_WANT_LOGPROBS;
    rows[2].output_pos = rows[2].pos + 2;
    (void)es_step(e, rows, SMALL_SEQS);
    es_drop(&s);
}

/* Every kind of pass once or twice. Says where it is: who reads the log of a run that was killed sees at what. */
static void run_small(void)
{
    for (int i = 0; i < 4; i++) {
        const bool det = i >= 2;
        const uint32_t heads = i % 2 == 0 ? 4 : 8;
        char name[96];
        struct em m = em_tiny(2, 512, heads, heads / 2);
        (void)snprintf(name, sizeof name, "every kind of pass: heads of %u, %s", 512 / heads,
                       det ? "deterministic" : "fast");
        printf("     %s: the engine\n", name);
        (void)fflush(stdout);
        struct td_engine *e = open_small(m.m, det);
        printf("     %s: its passes\n", name);
        (void)fflush(stdout);
        small_passes(e, m.m->hp.n_vocab);
        expect(name, true);
        e->ops->destroy(e);
        em_close(&m);
    }
}

/* ---- times ---- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void say(const char *name, double *us, int n, const char *extra)
{
    qsort(us, (size_t)n, sizeof *us, by_value);
    printf("{\"name\": \"%s\", %s, \"us_median\": %.1f, \"us_p10\": %.1f, \"us_p90\": %.1f}\n",
           name, extra, us[n / 2], us[n / 10], us[n - 1 - n / 10]);
    (void)fflush(stdout);
}

/* Steps of `rows` sequences; in_flight 2: the next is submitted while one runs, as the device allows. */
static void time_decode(struct es_set *s, uint32_t rows, uint32_t in_flight, double *us)
{
    struct td_row r[SEQS];
    td_ticket t;
    int64_t last = 0;
    for (int i = 0, done = 0; done < SAMPLES + 4;) {
        if (i < SAMPLES + 4 && i - done < (int)in_flight) {
            for (uint32_t k = 0; k < rows; k++) {
                r[k] = es_row(s, k, NULL, 1, true);
            }
            if (in_flight == 1) {
                last = td_now_us();
            }
            es_need(s->e->ops->submit(s->e, r, rows, &t), "submit");
            i++;
            continue;
        }
        (void)es_wait(s->e);
        int64_t now = td_now_us();
        if (done >= 4) {
            us[done - 4] = (double)(now - last);
        }
        last = now;
        done++;
    }
}

static void decode_case(struct es_set *s, uint32_t rows, uint32_t ctx, bool sampled)
{
    double us[SAMPLES];
    char extra[128];
    for (uint32_t flight = 2; flight >= 1; flight--) {
        for (uint32_t k = 0; k < rows; k++) {
            static const int32_t one[1] = {1};
            s->seq[k].pos = ctx - SAMPLES - 4; /* the last step is at ctx */
            es_slot(s, k, sampled ? es_sampled(k) : es_greedy(), one, 1, one, 1);
        }
        time_decode(s, rows, flight, us);
        (void)snprintf(extra, sizeof extra,
                       "\"B\": %u, \"ctx\": %u, \"sampling\": \"%s\", \"in_flight\": %u", rows, ctx,
                       sampled ? "top_p" : "greedy", flight);
        say("engine_step", us, SAMPLES, extra);
    }
}

static void bench_step(void)
{
    static const uint32_t rows[] = {1, 8, 16, 32, 64};
    struct em m = em_llama3_8b();
    struct td_engine *e = open_engine(m.m, false, SEQS, 4096, 8448);
    struct es_set s = es_make(e, SEQS, 4096, 1);
    int32_t *tokens = malloc(4096 * sizeof *tokens);
    for (uint32_t i = 0; i < SEQS; i++) {
        es_tokens(m.m->hp.n_vocab, i, tokens, 4096);
        (void)es_prefill(&s, i, tokens, 4096, 4096, false);
    }
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        decode_case(&s, rows[i], 1024, false);
    }
    decode_case(&s, 64, 4096, false);
    decode_case(&s, 1, 1024, true);
    decode_case(&s, 64, 1024, true);
    free(tokens);
    es_drop(&s);
    e->ops->destroy(e);
    em_close(&m);
}

/* One sequence only: the shortest look at what a step costs around its kernels. */
static void bench_one(void)
{
    struct em m = em_llama3_8b();
    struct td_engine *e = open_engine(m.m, false, 1, 1024, 2048);
    struct es_set s = es_make(e, 1, 1024, 1);
    int32_t tokens[1024];
    es_tokens(m.m->hp.n_vocab, 1, tokens, 1024);
    (void)es_prefill(&s, 0, tokens, 1024, 1024, false);
    decode_case(&s, 1, 1024, false);
    decode_case(&s, 1, 1024, true);
    es_drop(&s);
    e->ops->destroy(e);
    em_close(&m);
}

static void time_rows(struct es_set *s, struct td_row *rows, uint32_t n, double *us, int samples)
{
    for (int i = 0; i < samples + 2; i++) {
        int64_t start = td_now_us();
        (void)es_step(s->e, rows, n);
        if (i >= 2) {
            us[i - 2] = (double)(td_now_us() - start);
        }
    }
}

static void bench_prefill(void)
{
    double us[SAMPLES];
    char extra[64];
    struct em m = em_llama3_8b();
    for (int det = 0; det < 2; det++) {
        struct td_engine *e = open_engine(m.m, det != 0, 1, 8192, 8448);
        struct es_set s = es_make(e, 1, 8192, 1);
        int32_t *tokens = malloc(8192 * sizeof *tokens);
        es_tokens(m.m->hp.n_vocab, 1, tokens, 8192);
        for (uint32_t n = 512; n <= 8192; n *= 4) {
            es_slot(&s, 0, es_greedy(), tokens, n, NULL, 0);
            s.seq[0].pos = 0;
            struct td_row row = es_row(&s, 0, tokens, n, true);
            time_rows(&s, &row, 1, us, 20);
            (void)snprintf(extra, sizeof extra, "\"S\": %u, \"deterministic\": %d", n, det);
            say("engine_prefill", us, 20, extra);
        }
        free(tokens);
        es_drop(&s);
        e->ops->destroy(e);
    }
    em_close(&m);
}

/* Prompts of MIXED_CTX tokens for DECODING sequences and the one whose chunk runs beside them; the tokens of the last. */
static int32_t *mixed_prompts(const struct td_model *m, struct es_set *s)
{
    int32_t *tokens = malloc(MIXED_CTX * sizeof *tokens);
    es_need(tokens != NULL ? TD_OK : TD_ERR_NO_MEMORY, "tokens");
    for (uint32_t i = 0; i <= DECODING; i++) {
        es_tokens(m->hp.n_vocab, i, tokens, MIXED_CTX);
        es_slot(s, i, es_greedy(), tokens, MIXED_CTX, NULL, 0);
        (void)es_prefill(s, i, tokens, MIXED_CTX, MIXED_CTX, false);
    }
    return tokens;
}

/* What is compared. The chunk is the second half of the last prompt. */
static const struct mixed {
    uint32_t rows; /* that decode beside it, at MIXED_CTX */
    bool head;     /* the chunk's last token chooses the next, as a prompt's end does */
} mixed_cases[] = {{0, false}, {0, true}, {DECODING, true}};
enum { MIXED = sizeof mixed_cases / sizeof mixed_cases[0], ALONE = 1 };

static void mixed_step(struct es_set *s, const int32_t *tokens, const struct mixed *c)
{
    const uint32_t half = MIXED_CTX / 2;
    struct td_row rows[DECODING + 1];
    uint32_t n = 0;
    s->seq[DECODING].pos = half;
    rows[n++] = es_row(s, DECODING, tokens + half, half, c->head);
    for (uint32_t i = 0; i < c->rows; i++) {
        s->seq[i].pos = MIXED_CTX;
        rows[n++] = es_row(s, i, tokens + i, 1, true);
    }
    (void)es_step(s->e, rows, n);
}

static void say_mixed(double us[MIXED][SAMPLES], size_t i, bool det)
{
    const struct mixed *c = &mixed_cases[i];
    char extra[192];
    (void)snprintf(extra, sizeof extra,
                   "\"chunk\": %d, \"decode_rows\": %u, \"ctx\": %d, \"head\": %d, "
                   "\"deterministic\": %d, \"to_chunk_alone\": %.4f",
                   MIXED_CTX / 2, c->rows, MIXED_CTX, c->head, det,
                   us[i][SAMPLES / 2] / us[ALONE][SAMPLES / 2]);
    say("engine_mixed", us[i], SAMPLES, extra);
}

static void bench_mixed(void)
{
    static double us[MIXED][SAMPLES];
    struct em m = em_llama3_8b();
    for (int det = 0; det < 2; det++) {
        int64_t start = td_now_us();
        struct td_engine *e = open_engine(m.m, det != 0, SEQS, 1024, 8448);
        printf("{\"name\": \"engine_start\", \"deterministic\": %d, \"seconds\": %.2f}\n", det,
               (double)(td_now_us() - start) / 1e6);
        struct es_set s = es_make(e, DECODING + 1, MIXED_CTX + 64, 1);
        int32_t *tokens = mixed_prompts(m.m, &s);
        /* turn by turn: the card is as warm for one as for the other */
        for (int i = 0; i < SAMPLES + 2; i++) {
            for (size_t k = 0; k < MIXED; k++) {
                start = td_now_us();
                mixed_step(&s, tokens, &mixed_cases[k]);
                us[k][i < 2 ? 0 : i - 2] = (double)(td_now_us() - start);
            }
        }
        for (size_t k = 0; k < MIXED; k++) {
            qsort(us[k], SAMPLES, sizeof us[k][0], by_value);
        }
        for (size_t k = 0; k < MIXED; k++) {
            say_mixed(us, k, det != 0);
        }
        free(tokens);
        es_drop(&s);
        e->ops->destroy(e);
    }
    em_close(&m);
}

/* ---- for another oracle ---- */

enum { MAX_TOKENS = 4096 };

struct oracle {
    struct em m;
    struct td_engine *e;
    int32_t *tokens; /* [MAX_TOKENS] */
    uint32_t n;
};

static struct oracle open_oracle(const char *path, const char *in)
{
    struct oracle o = {.m = em_open(path), .tokens = calloc(MAX_TOKENS, sizeof(int32_t))};
    o.e = open_engine(o.m.m, false, 1, MAX_TOKENS, o.m.m->hp.n_ctx < MAX_TOKENS ? 0 : MAX_TOKENS);
    FILE *f = fopen(in, "rb");
    es_need(f != NULL && o.tokens != NULL ? TD_OK : TD_ERR_NO_FILE, in);
    o.n = (uint32_t)fread(o.tokens, sizeof *o.tokens, MAX_TOKENS, f);
    (void)fclose(f);
    return o;
}

static void close_oracle(struct oracle *o, const char *out, const void *data, size_t bytes)
{
    FILE *f = fopen(out, "wb");
    bool ok = f != NULL && fwrite(data, 1, bytes, f) == bytes;
    es_need(f != NULL && fclose(f) == 0 && ok ? TD_OK : TD_ERR_IO, out);
    free(o->tokens);
    o->e->ops->destroy(o->e);
    em_close(&o->m);
}

static void dump_logits(const char *path, const char *in, const char *out)
{
    struct oracle o = open_oracle(path, in);
    const size_t count = (size_t)o.n * o.m.m->hp.n_vocab;
    float *logits = malloc(count * sizeof *logits);
    es_need(logits != NULL ? TD_OK : TD_ERR_NO_MEMORY, "logits");
    es_need(td_cuda_engine_logits(o.e, o.tokens, o.n, o.n, logits), "logits");
    close_oracle(&o, out, logits, count * sizeof *logits);
    free(logits);
}

static void dump_greedy(const char *path, const char *in, const char *out)
{
    enum { MADE = 64 };
    struct oracle o = open_oracle(path, in);
    struct es_set s = es_make(o.e, 1, o.n + MADE, 1);
    int32_t got[MADE];
    es_slot(&s, 0, es_greedy(), o.tokens, o.n, NULL, 0);
    got[0] = es_prefill(&s, 0, o.tokens, o.n, o.n, true);
    for (int i = 1; i < MADE; i++) {
        struct td_row row = es_row(&s, 0, NULL, 1, true);
        got[i] = es_step(o.e, &row, 1).rows[0].ids[0];
    }
    es_drop(&s);
    close_oracle(&o, out, got, sizeof got);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"check", check_all}, {"small", run_small},       {"one", bench_one},
                 {"step", bench_step}, {"prefill", bench_prefill}, {"mixed", bench_mixed}};
    if (argc > 1 && strcmp(argv[1], "--sm_80") == 0) {
        kernels = TD_CUDA_KERNELS_SM80;
        argc--;
        argv++;
    }
    if (argc == 5 && strcmp(argv[1], "logits") == 0) {
        dump_logits(argv[2], argv[3], argv[4]);
        return 0;
    }
    if (argc == 5 && strcmp(argv[1], "greedy") == 0) {
        dump_greedy(argv[2], argv[3], argv[4]);
        return 0;
    }
    for (int i = 1; i < argc; i++) {
        bool found = false;
        for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
            if (strcmp(argv[i], parts[p].name) == 0) {
                parts[p].run();
                found = true;
            }
        }
        if (!found) {
            (void)fprintf(stderr, "engine-check: no part '%s'\n", argv[i]);
            return 2;
        }
    }
    if (failures != 0) {
        printf("%d checks failed\n", failures);
    }
    return failures != 0;
}
