/* bench.h - `tandemctl bench engine`: how fast this machine runs a model.
 *
 * What: td_bench_engine() (common/model/bench_engine.h) over the CPU backend with its result as lines or JSON; says on
 * stderr what it is doing, every second on a terminal.
 * Not: a comparison with other programs. Thread: main, one more that shows the time, the engine's.
 */
#ifndef CTL_BENCH_H
#define CTL_BENCH_H

#include <stdio.h>

#include "common/model/bench_engine.h"
#include "ctl/command.h"
#include "ctl/output.h"

extern const struct td_program ctl_bench_engine_program;
enum ctl_exit ctl_bench_engine(const void *options, char *const *args);

struct ctl_bench_setup {
    const char *model;
    uint8_t model_id[32];
    uint32_t threads;
    const char *numerics, *isa;
};
td_err ctl_bench_json(const struct ctl_bench_setup *s, const struct td_bench_result *r,
                      enum ctl_format format, FILE *out) TD_MUST_CHECK;

#endif
