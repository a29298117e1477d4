/* bench_engine.h - measures an engine: prefill, decode at two contexts, many streams.
 *
 * What: the core of `tandemctl bench engine` and tests/bench/engine_bench. Works on any backend
 * through engine.h: random tokens, greedy sampling in the engine, two steps in flight as in
 * production. Not: a comparison: run peers interleaved and report ratios (performance.md 8).
 * Thread: the caller plays the loop. Failure: TD_ERR_CONFIG when the engine is too small
 * (TD_BENCH_* below), or what the engine answers.
 */
#ifndef TD_MODEL_BENCH_ENGINE_H
#define TD_MODEL_BENCH_ENGINE_H

#include <stdio.h>

#include "common/base/err.h"
#include "common/model/engine.h"

#define TD_BENCH_PREFILL  512
#define TD_BENCH_STREAMS  16
#define TD_BENCH_GEN      64   /* tokens generated per sample */
#define TD_BENCH_LONG     1000 /* the longer context */
#define TD_BENCH_SHORT    64
#define TD_BENCH_MAX_REPS 64
/* Blocks, rows, tokens and slots that an engine needs for every case. */
#define TD_BENCH_BLOCKS 160

struct td_bench_case {
    const char *name;           /* "prefill_512", "decode_ctx64", "decode_ctx1000", "streams_16" */
    double median, best, worst; /* tokens per second */
};

#define TD_BENCH_CASES 4
struct td_bench_result {
    char cpu[64]; /* of /proc/cpuinfo */
    uint32_t reps;
    struct td_bench_case cases[TD_BENCH_CASES];
};

/* Each case once to warm up, then `reps` times (1 .. TD_BENCH_MAX_REPS), interleaved. */
td_err td_bench_engine(struct td_engine *e, uint32_t reps,
                       struct td_bench_result *out) TD_MUST_CHECK;
/* One line per case. */
void td_bench_engine_print(const struct td_bench_result *r, FILE *out);

#endif
