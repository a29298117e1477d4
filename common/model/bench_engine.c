#include "common/model/bench_engine.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/rng.h"

#define BLOCK_TOK     16
#define SEQ_BLOCKS    ((TD_BENCH_LONG + TD_BENCH_GEN + BLOCK_TOK) / BLOCK_TOK)
#define STREAM_BLOCKS ((TD_BENCH_SHORT + TD_BENCH_GEN + BLOCK_TOK) / BLOCK_TOK)

_Static_assert(SEQ_BLOCKS <= TD_BENCH_BLOCKS && STREAM_BLOCKS * TD_BENCH_STREAMS <= TD_BENCH_BLOCKS,
               "the pool of a benchmark holds every case");

struct bench {
    struct td_engine *e;
    int32_t tokens[TD_BENCH_LONG];
    td_block_id tables[TD_BENCH_BLOCKS];
};

static td_err wait_step(struct bench *b)
{
    struct td_step_result r;
    struct pollfd fd = {.fd = b->e->ops->event_fd(b->e), .events = POLLIN};
    td_err err = b->e->ops->poll(b->e, &r);
    while (err == TD_ERR_AGAIN) {
        (void)poll(&fd, 1, -1); /* EINTR: asks again */
        err = b->e->ops->poll(b->e, &r);
    }
    for (uint32_t i = 0; err == TD_OK && i < r.n_rows; i++) {
        err = r.rows[i].err;
    }
    return err;
}

static td_err set_slot(struct bench *b, uint32_t slot)
{
    struct td_sampling_state s = {
        .p = {.temperature = 0, .top_p = 1, .repetition_penalty = 1, .max_tokens = 1}};
    return b->e->ops->seq_set(b->e, slot, &s);
}

static td_err step(struct bench *b, const struct td_row *rows, uint32_t n)
{
    td_ticket ticket;
    return b->e->ops->submit(b->e, rows, n, &ticket);
}

/* Fills the cache of one stream with n tokens, sampling after the last. */
static td_err fill(struct bench *b, uint32_t stream, uint32_t first_block, uint32_t n)
{
    uint32_t chunk = b->e->ops->info(b->e)->max_tokens;
    for (uint32_t pos = 0; pos < n; pos += chunk) {
        uint32_t len = n - pos < chunk ? n - pos : chunk;
        struct td_row row = {.pos = pos,
                             .n = len,
                             .tokens = b->tokens + pos,
                             .table = b->tables + first_block,
                             .n_blocks = TD_BENCH_BLOCKS - first_block,
                             .sampling = pos + len == n ? stream : TD_NO_SAMPLE};
        TD_TRY(step(b, &row, 1));
        TD_TRY(wait_step(b));
    }
    return TD_OK;
}

static td_err prefill(struct bench *b, double *out_rate)
{
    TD_TRY(set_slot(b, 0));
    int64_t t = td_now_us();
    TD_TRY(fill(b, 0, 0, TD_BENCH_PREFILL));
    *out_rate = TD_BENCH_PREFILL * 1e6 / (double)(td_now_us() - t);
    return TD_OK;
}

/* One token more for every stream. */
static td_err decode_step(struct bench *b, uint32_t streams, uint32_t blocks, uint32_t pos)
{
    struct td_row rows[TD_BENCH_STREAMS];
    memset(rows, 0, sizeof rows);
    for (uint32_t i = 0; i < streams; i++) {
        rows[i] = (struct td_row){
            .pos = pos, .n = 1, .table = b->tables + i * blocks, .n_blocks = blocks, .sampling = i};
    }
    return step(b, rows, streams);
}

static td_err decode(struct bench *b, uint32_t streams, uint32_t ctx, double *out_rate)
{
    uint32_t blocks = streams == 1 ? SEQ_BLOCKS : STREAM_BLOCKS;
    for (uint32_t i = 0; i < streams; i++) {
        TD_TRY(set_slot(b, i));
        TD_TRY(fill(b, i, i * blocks, ctx));
    }
    int64_t t = td_now_us();
    TD_TRY(decode_step(b, streams, blocks, ctx));
    for (uint32_t i = 1; i < TD_BENCH_GEN; i++) { /* two in flight */
        TD_TRY(decode_step(b, streams, blocks, ctx + i));
        TD_TRY(wait_step(b));
    }
    TD_TRY(wait_step(b));
    *out_rate = streams * TD_BENCH_GEN * 1e6 / (double)(td_now_us() - t);
    return TD_OK;
}

static td_err run_case(struct bench *b, int which, double *out_rate)
{
    switch (which) {
    case 0:
        return prefill(b, out_rate);
    case 1:
        return decode(b, 1, TD_BENCH_SHORT, out_rate);
    case 2:
        return decode(b, 1, TD_BENCH_LONG, out_rate);
    default:
        return decode(b, TD_BENCH_STREAMS, TD_BENCH_SHORT, out_rate);
    }
}

static void cpu_name(char *out, size_t cap)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    (void)snprintf(out, cap, "unknown");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            (void)snprintf(out, cap, "%s", colon[1] == ' ' ? colon + 2 : colon + 1);
            out[strcspn(out, "\n")] = '\0';
            break;
        }
    }
    if (f != NULL) {
        (void)fclose(f);
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

td_err td_bench_engine(struct td_engine *e, uint32_t reps, struct td_bench_result *out)
{
    static const char *const names[TD_BENCH_CASES] = {"prefill_512", "decode_ctx64",
                                                      "decode_ctx1000", "streams_16"};
    const struct td_engine_info *info = e->ops->info(e);
    if (reps == 0 || reps > TD_BENCH_MAX_REPS || info->n_blocks < TD_BENCH_BLOCKS ||
        info->max_rows < TD_BENCH_STREAMS || info->max_slots < TD_BENCH_STREAMS ||
        info->max_model_len < TD_BENCH_LONG + TD_BENCH_GEN || info->layout.block_tok != BLOCK_TOK) {
        return TD_ERR_CONFIG;
    }
    static struct bench b; /* too large for a stack; one benchmark at a time */
    double rates[TD_BENCH_CASES][TD_BENCH_MAX_REPS];
    struct td_rng rng = {1};
    b.e = e;
    for (uint32_t i = 0; i < TD_BENCH_LONG; i++) {
        b.tokens[i] = (int32_t)td_rng_below(&rng, info->n_vocab);
    }
    for (uint32_t i = 0; i < TD_BENCH_BLOCKS; i++) {
        b.tables[i] = i;
    }
    for (uint32_t rep = 0; rep <= reps; rep++) {
        for (int c = 0; c < TD_BENCH_CASES; c++) { /* the first round warms up */
            TD_TRY(run_case(&b, c, &rates[c][rep > 0 ? rep - 1 : 0]));
        }
    }
    out->reps = reps;
    cpu_name(out->cpu, sizeof out->cpu);
    for (int c = 0; c < TD_BENCH_CASES; c++) {
        qsort(rates[c], reps, sizeof rates[c][0], by_value);
        out->cases[c] =
            (struct td_bench_case){names[c], rates[c][reps / 2], rates[c][reps - 1], rates[c][0]};
    }
    return TD_OK;
}

void td_bench_engine_print(const struct td_bench_result *r, FILE *out)
{
    (void)fprintf(out, "cpu: %s\n", r->cpu);
    for (int c = 0; c < TD_BENCH_CASES; c++) {
        const struct td_bench_case *k = &r->cases[c];
        (void)fprintf(out, "%-16s %9.1f tok/s  [%.1f .. %.1f] n=%u\n", k->name, k->median, k->worst,
                      k->best, r->reps);
    }
}
