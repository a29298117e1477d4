#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "tests/sim/sim.h"

/* Earlier first; events of one moment in the order of their posting. */
static bool before(const struct sim_ev *a, const struct sim_ev *b)
{
    return a->at != b->at ? a->at < b->at : a->seq < b->seq;
}

static void grow(struct sim_ev **list, uint32_t n, uint32_t *cap)
{
    if (n == *cap) {
        *cap = *cap * 2 + 64;
        *list = realloc(*list, *cap * sizeof **list);
        TD_INSIST(*list != NULL);
    }
}

void sim_post(struct sim *s, struct sim_ev ev)
{
    grow(&s->heap, s->n_heap, &s->cap_heap);
    ev.at = ev.at < s->now ? s->now : ev.at;
    ev.seq = ++s->next_seq;
    uint32_t i = s->n_heap++;
    while (i > 0 && before(&ev, &s->heap[(i - 1) / 2])) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = ev;
}

bool sim_pop(struct sim *s, struct sim_ev *out)
{
    if (s->n_heap == 0) {
        return false;
    }
    *out = s->heap[0];
    struct sim_ev last = s->heap[--s->n_heap];
    uint32_t i = 0;
    for (;;) {
        uint32_t kid = 2 * i + 1;
        if (kid >= s->n_heap) {
            break;
        }
        kid += kid + 1 < s->n_heap && before(&s->heap[kid + 1], &s->heap[kid]);
        if (!before(&s->heap[kid], &last)) {
            break;
        }
        s->heap[i] = s->heap[kid];
        i = kid;
    }
    if (s->n_heap > 0) {
        s->heap[i] = last;
    }
    return true;
}

void sim_keep(struct sim_list *l, const struct sim_ev *ev)
{
    grow(&l->list, l->n, &l->cap);
    l->list[l->n++] = *ev;
}

int64_t sim_release(struct sim *s, struct sim_list *l, int64_t at)
{
    for (uint32_t i = 0; i < l->n; i++) {
        l->list[i].at = at;
        sim_post(s, l->list[i]);
    }
    l->n = 0;
    return at;
}

void sim_drop_event(struct sim_ev *ev)
{
    if (ev->type == SIM_EV_PACKET || ev->type == SIM_EV_PLACED) {
        sim_packet_free(ev->data);
    } else {
        free(ev->data);
    }
    ev->data = NULL;
}

void sim_list_fini(struct sim_list *l)
{
    for (uint32_t i = 0; i < l->n; i++) {
        sim_drop_event(&l->list[i]);
    }
    free(l->list);
    *l = (struct sim_list){0};
}

void *sim_copy(const void *src, size_t bytes)
{
    void *p = malloc(bytes + 1);
    TD_INSIST(p != NULL);
    if (bytes > 0) {
        memcpy(p, src, bytes);
    }
    return p;
}

uint64_t sim_below(struct sim *s, uint64_t n)
{
    return td_rng_below(&s->rng, n);
}

bool sim_chance(struct sim *s, uint32_t one_in)
{
    return sim_below(s, one_in) == 0;
}

int64_t sim_between(struct sim *s, int64_t lo, int64_t hi)
{
    return lo + (int64_t)sim_below(s, (uint64_t)(hi - lo) + 1);
}

void sim_fail(struct sim *s, const char *fmt, ...)
{
    if (!s->failed) {
        va_list ap;
        s->failed = true;
        int n = snprintf(s->why, sizeof s->why, "t=%.6f ", (double)s->now / 1e6);
        va_start(ap, fmt);
        (void)vsnprintf(s->why + n, sizeof s->why - (size_t)n, fmt, ap);
        va_end(ap);
    }
}

void sim_trace(struct sim *s, const char *fmt, ...)
{
    if (s->verbose) {
        va_list ap;
        (void)fprintf(stderr, "[%11.6f] ", (double)s->now / 1e6);
        va_start(ap, fmt);
        (void)vfprintf(stderr, fmt, ap);
        va_end(ap);
        (void)fputc('\n', stderr);
    }
}

void sim_hash(struct sim *s, uint64_t v)
{
    s->hash = td_mix64(s->hash * 31 + v);
}

uint64_t sim_hash_bytes(const void *data, size_t len)
{
    const uint8_t *b = data;
    uint64_t h = 0xcbf29ce484222325ull + len;
    for (size_t i = 0; i + 8 <= len; i += 8) {
        uint64_t w;
        memcpy(&w, b + i, 8);
        h = (h ^ w) * 0x100000001b3ull;
        h ^= h >> 29;
    }
    for (size_t i = len & ~(size_t)7; i < len; i++) {
        h = (h ^ b[i]) * 0x100000001b3ull;
    }
    return h;
}
