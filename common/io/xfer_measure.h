/* xfer_measure.h - how fast the data plane moves slices between two processes of this host.
 *
 * What: two child processes, each with a td_xfer of its own and a small pool; one pushes, the other lands; the figures
 * are those of the real path (rings, threads, headers, scatter lists), not of UCX alone.
 * Not: a benchmark of the network (both ends are here); tests/bench/xfer_bench.c prints a table with it, `tandemctl
 * doctor` compares it with a floor.
 * Thread: call it from a process that has no other thread and no UCX object yet (it forks). Bounds: pools of at most
 * TD_XFER_MEASURE_MAX_POOL bytes, TD_XFER_MEASURE_LIMIT_S seconds. Failure: an error, logged; children never outlive the
 * call.
 */
#ifndef TD_IO_XFER_MEASURE_H
#define TD_IO_XFER_MEASURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

#define TD_XFER_MEASURE_MAX_POOL (512u << 20)
#define TD_XFER_MEASURE_LIMIT_S  60

struct td_xfer_measure_params {
    const char *device; /* as in td_xfer_params */
    const char *transports;
    bool trust_network;
    uint32_t slice_bytes; /* a block's share of one layer */
    uint32_t n_blocks;    /* slices gathered in one message */
    uint32_t n_messages;  /* to be timed */
};

struct td_xfer_measure_result {
    char transport[16];
    uint64_t bytes; /* moved while the clock ran */
    double
        us_per_message; /* in a stream of messages, until the receiver has said that all of it landed */
    double gb_per_s;
    double
        cpu_us_per_message; /* of both processes, all threads: what it takes from the computing */
    double one_way_us;      /* half a round trip of a 64-byte message from loop to loop, median */
};

td_err td_xfer_measure(const struct td_xfer_measure_params *p,
                       struct td_xfer_measure_result *out) TD_MUST_CHECK;

#endif
