/* xfer_bench - the data plane between two processes of this host, per transport and message size.
 *
 *   xfer_bench [messages [transports...]]     default: 2000, then shared memory, cma beside it, and tcp
 *
 * One CSV line each; `note` says how the message is made up: slices x bytes. */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/log.h"
#include "common/io/xfer_measure.h"

static const struct {
    uint32_t slice_bytes, n_blocks;
} sizes[] = {{12288, 1}, {65536, 1}, {12288, 32}, {65536, 16}, {65536, 64}};

static int one(const char *transports, uint32_t slice_bytes, uint32_t n_blocks, uint32_t messages)
{
    struct td_xfer_measure_result r;
    struct td_xfer_measure_params p = {
        .device = "lo",
        .transports = transports,
        .slice_bytes = slice_bytes,
        .n_blocks = n_blocks,
        .n_messages = messages,
    };
    if (td_xfer_measure(&p, &r) != TD_OK) {
        return 1;
    }
    printf("\"%s\",%s,%u,%.2f,%.2f,%.2f,%.1f,%ux%u\n", transports, r.transport,
           slice_bytes * n_blocks, r.us_per_message, r.gb_per_s, r.cpu_us_per_message, r.one_way_us,
           n_blocks, slice_bytes);
    (void)fflush(stdout);
    return 0;
}

int main(int argc, char **argv)
{
    static const char *const usual[] = {"sm", "sm,cma", "tcp"};
    unsigned long messages = argc > 1 ? strtoul(argv[1], NULL, 10) : 2000;
    int n = argc > 2 ? argc - 2 : 3;
    int failed = 0;
    td_log_set_level(TD_LOG_WARN);
    printf("ucx_tls,transport,message_bytes,us_per_message,gb_per_s,cpu_us_per_message,one_way_us,"
           "note\n");
    (void)fflush(stdout);
    for (int t = 0; t < n; t++) {
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            failed |= one(argc > 2 ? argv[t + 2] : usual[t], sizes[i].slice_bytes,
                          sizes[i].n_blocks, (uint32_t)messages);
        }
    }
    return failed;
}
