#include "common/node/tokens.h"

#include <stdlib.h>

#include "common/base/assert.h"
#include "common/base/mem.h"

struct nd_tokens {
    struct td_wire_token *list; /* owned [cap] */
    uint32_t n, cap;
};

struct nd_tokens *nd_tokens_create(uint32_t cap)
{
    struct nd_tokens *t = td_zalloc(1, sizeof *t);
    if (t == NULL) {
        return NULL;
    }
    t->list = td_zalloc(cap, sizeof *t->list);
    t->cap = cap;
    return t->list != NULL ? t : nd_tokens_destroy(t);
}

struct nd_tokens *nd_tokens_destroy(struct nd_tokens *t)
{
    if (t != NULL) {
        free(t->list);
        free(t);
    }
    return NULL;
}

void nd_tokens_add(struct nd_tokens *t, const struct td_wire_token *token)
{
    TD_REQUIRE(t->n < t->cap);
    t->list[t->n++] = *token;
}

/* Moves the tokens of the first entry's router to `to`, closes the gaps, returns how many. */
static uint32_t take_router(struct nd_tokens *t, struct td_wire_token *to)
{
    uint64_t router = t->list[0].id.router_epoch;
    uint32_t taken = 0;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        if (t->list[i].id.router_epoch == router && taken < TD_WIRE_MAX_TOKENS_MSG) {
            to[taken++] = t->list[i];
        } else {
            t->list[kept++] = t->list[i];
        }
    }
    t->n = kept;
    return taken;
}

void nd_tokens_flush(struct nd_tokens *t, uint64_t step, struct nd_actions *out)
{
    while (t->n > 0) {
        uint64_t router = t->list[0].id.router_epoch;
        uint32_t most = t->n < TD_WIRE_MAX_TOKENS_MSG ? t->n : TD_WIRE_MAX_TOKENS_MSG;
        struct td_wire_token *part = nd_actions_copy(out, NULL, most * sizeof *part);
        if (part == NULL) {
            t->n = 0;
            return;
        }
        uint32_t n = take_router(t, part);
        struct td_wire_msg *m = nd_actions_send(out, router, TD_WIRE_TOKENS);
        m->tokens = (struct td_wire_tokens){.step = step, .n = n, .tokens = part};
    }
}
