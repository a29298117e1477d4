/* slots.h - a stack of small integers to borrow: block tables, sampling slots.
 *
 * Owner: one core. Thread: the loop's. Bounds: n, fixed at creation. Failure: take returns 0.
 */
#ifndef TD_NODE_SLOTS_H
#define TD_NODE_SLOTS_H

#include <stdint.h>

struct nd_slots;

struct nd_slots *nd_slots_create(uint32_t n);
struct nd_slots *nd_slots_destroy(struct nd_slots *s);
/* A slot + 1, the lowest given back last; 0: none is free. */
uint32_t nd_slots_take(struct nd_slots *s);
/* Gives slot + 1 back; 0 is fine. */
void nd_slots_give(struct nd_slots *s, uint32_t slot1);
uint32_t nd_slots_free(const struct nd_slots *s);
uint32_t nd_slots_size(const struct nd_slots *s);

#endif
