/* fake_engine.h - an engine for transfer tests: a pool of known bytes and a layer counter that the
 * test turns by hand.
 *
 * Not: computing. submit, poll and seq_set refuse. Owner: the test. Thread: fake_engine_set_layers
 * from the test's, layers_done from the transfer thread.
 */
#ifndef TD_TESTS_IO_FAKE_ENGINE_H
#define TD_TESTS_IO_FAKE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/model/engine.h"

struct fake_engine {
    struct td_engine base;
    struct td_engine_info info;
    uint8_t *pool;   /* owned [n_blocks][n_layers][slice_bytes] */
    uint32_t layers; /* atomic: of the running step, or of every one */
    uint64_t
        running; /* atomic: ticket of the running step; 0: `layers` is what every step has done */
    int fd;
};

bool fake_engine_init(struct fake_engine *e, uint32_t n_blocks, uint32_t n_layers,
                      uint32_t slice_bytes);
void fake_engine_fini(struct fake_engine *e);
void fake_engine_set_layers(struct fake_engine *e, uint32_t layers);
/* Earlier steps are done, later ones not begun. */
void fake_engine_set_step(struct fake_engine *e, td_ticket running, uint32_t layers);
/* What slice (block, layer) of sequence `seed` holds; a stamp per slice plus a running pattern. */
void fake_engine_fill(struct fake_engine *e, uint32_t block, uint32_t layer, uint64_t stamp);
bool fake_engine_holds(const struct fake_engine *e, uint32_t block, uint32_t layer, uint64_t stamp);
void fake_engine_poison(struct fake_engine *e, uint8_t byte);
bool fake_engine_is_poison(const struct fake_engine *e, uint32_t block, uint8_t byte);
size_t fake_engine_bytes(const struct fake_engine *e);

#endif
