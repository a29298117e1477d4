#include "common/base/arena.h"

#include <stdint.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/mem.h"

#define ARENA_ALIGN 16u
#define ARENA_CHUNK ((size_t)64 * 1024)

struct chunk {
    struct chunk *next; /* owned */
    size_t size;
    size_t used;
    _Alignas(ARENA_ALIGN) unsigned char data[];
};

struct td_arena {
    struct chunk *first;   /* owned list, kept across resets */
    struct chunk *current; /* allocations come from here or later */
    size_t max_bytes;
    size_t reserved; /* bytes in chunks */
    size_t used;     /* bytes handed out since the last reset */
};

struct td_arena *td_arena_create(size_t max_bytes)
{
    struct td_arena *a = td_zalloc(1, sizeof *a);
    if (a != NULL) {
        a->max_bytes = max_bytes;
    }
    return a;
}

struct td_arena *td_arena_destroy(struct td_arena *a)
{
    if (a != NULL) {
        struct chunk *next;
        for (struct chunk *c = a->first; c != NULL; c = next) {
            next = c->next;
            free(c);
        }
        free(a);
    }
    return NULL;
}

/* Appends a chunk of at least `bytes` behind the last one. */
static struct chunk *grow(struct td_arena *a, size_t bytes)
{
    size_t left = a->max_bytes - a->reserved;
    size_t size = bytes > ARENA_CHUNK ? bytes : ARENA_CHUNK;
    if (bytes > left) {
        return NULL;
    }
    if (size > left) {
        size = left;
    }
    struct chunk *c = td_zalloc(1, sizeof *c + size);
    if (c == NULL) {
        return NULL;
    }
    struct chunk **tail = &a->first;
    while (*tail != NULL) {
        tail = &(*tail)->next;
    }
    c->size = size;
    a->reserved += size;
    *tail = c;
    return c;
}

void *td_arena_alloc(struct td_arena *a, size_t bytes)
{
    TD_REQUIRE(a != NULL);
    if (bytes > a->max_bytes) {
        return NULL;
    }
    size_t want = bytes;
    size_t rounded = (bytes + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
    struct chunk *c = a->current;
    while (c != NULL && c->size - c->used < want) {
        c = c->next;
    }
    if (c == NULL) {
        c = grow(a, want);
        if (c == NULL) {
            return NULL;
        }
    }
    unsigned char *p = c->data + c->used;
    c->used += rounded <= c->size - c->used ? rounded : c->size - c->used;
    a->used += want;
    a->current = c;
    return memset(p, 0, want);
}

void *td_arena_copy(struct td_arena *a, const void *src, size_t bytes)
{
    void *p = td_arena_alloc(a, bytes);
    if (p != NULL && bytes > 0) {
        memcpy(p, src, bytes);
    }
    return p;
}

void td_arena_reset(struct td_arena *a)
{
    for (struct chunk *c = a->first; c != NULL; c = c->next) {
        c->used = 0;
    }
    a->current = a->first;
    a->used = 0;
}

size_t td_arena_used(const struct td_arena *a)
{
    return a->used;
}
