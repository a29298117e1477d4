#include "common/node/slots.h"

#include <stdlib.h>

#include "common/base/assert.h"
#include "common/base/mem.h"

struct nd_slots {
    uint32_t *stack; /* owned [size] */
    uint32_t size, n;
};

struct nd_slots *nd_slots_create(uint32_t n)
{
    struct nd_slots *s = td_zalloc(1, sizeof *s);
    if (s == NULL) {
        return NULL;
    }
    s->stack = td_zalloc(n, sizeof *s->stack);
    if (s->stack == NULL) {
        return nd_slots_destroy(s);
    }
    s->size = s->n = n;
    for (uint32_t i = 0; i < n; i++) {
        s->stack[i] = n - i;
    }
    return s;
}

struct nd_slots *nd_slots_destroy(struct nd_slots *s)
{
    if (s != NULL) {
        free(s->stack);
        free(s);
    }
    return NULL;
}

uint32_t nd_slots_take(struct nd_slots *s)
{
    return s->n > 0 ? s->stack[--s->n] : 0;
}

void nd_slots_give(struct nd_slots *s, uint32_t slot1)
{
    if (slot1 != 0) {
        TD_REQUIRE(s->n < s->size && slot1 <= s->size);
        s->stack[s->n++] = slot1;
    }
}

uint32_t nd_slots_free(const struct nd_slots *s)
{
    return s->n;
}

uint32_t nd_slots_size(const struct nd_slots *s)
{
    return s->size;
}
