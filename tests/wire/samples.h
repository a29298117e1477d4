/* samples.h - one example of every message of the wire, with every field set to something telling.
 * The golden files beside this one are their encodings; docs/wire.md quotes some of them. Static
 * data, shared by the golden test and by tests of bounds. */
#ifndef TD_TESTS_WIRE_SAMPLES_H
#define TD_TESTS_WIRE_SAMPLES_H

#include <stddef.h>

#include "proto/wire.h"

struct wire_sample {
    const char *name; /* of golden/<name>.bin and .txt */
    struct td_wire_msg msg;
};
/* All of them; *out_n says how many. */
const struct wire_sample *wire_samples(size_t *out_n);
const struct td_wire_node_info *wire_sample_node_info(void);
const struct td_wire_router_info *wire_sample_router_info(void);

#endif
