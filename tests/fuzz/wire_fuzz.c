/* Encoded messages and identities of a peer. The first byte chooses what the rest is taken for.
 * What decodes must encode, and decode to the same bytes again. */
#include <stdlib.h>
#include <string.h>

#include "proto/wire.h"
#include "tests/fuzz/fuzz.h"

#define ARENA_BYTES (64u << 20)

/* The arena and buffers are kept between inputs, as a process keeps them. */
static struct td_arena *arena;
static struct td_buf once, twice;

static void must(bool ok)
{
    if (!ok) {
        abort();
    }
}

static void message(const uint8_t *data, size_t size)
{
    struct td_wire_msg m, again;
    if (td_wire_decode(data, size, arena, &m) != TD_OK || m.type == TD_WIRE_NONE) {
        return;
    }
    must(td_wire_type_name(m.type)[0] != '\0');
    must(td_wire_encode(&m, &once) == TD_OK);
    must(td_wire_decode(once.data, once.len, arena, &again) == TD_OK);
    must(td_wire_encode(&again, &twice) == TD_OK);
    must(once.len == twice.len && memcmp(once.data, twice.data, once.len) == 0);
}

static void node_info(const uint8_t *data, size_t size)
{
    struct td_wire_node_info i, again;
    if (td_wire_node_info_decode(data, size, arena, &i) == TD_OK) {
        must(td_wire_node_info_encode(&i, &once) == TD_OK);
        must(td_wire_node_info_decode(once.data, once.len, arena, &again) == TD_OK);
    }
}

static void router_info(const uint8_t *data, size_t size)
{
    struct td_wire_router_info i, again;
    if (td_wire_router_info_decode(data, size, arena, &i) == TD_OK) {
        must(td_wire_router_info_encode(&i, &once) == TD_OK);
        must(td_wire_router_info_decode(once.data, once.len, arena, &again) == TD_OK);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const kinds[])(const uint8_t *, size_t) = {message, node_info, router_info};
    if (arena == NULL) {
        arena = td_arena_create(ARENA_BYTES);
        td_buf_init(&once, 2 * TD_WIRE_MAX_BYTES);
        td_buf_init(&twice, 2 * TD_WIRE_MAX_BYTES);
        must(arena != NULL);
    }
    if (size == 0) {
        return 0;
    }
    /* A copy that ends where the input ends, so that a sanitizer sees an over-read. */
    uint8_t *copy = malloc(size);
    must(copy != NULL);
    memcpy(copy, data, size);
    td_arena_reset(arena);
    td_buf_clear(&once);
    td_buf_clear(&twice);
    kinds[copy[0] % 3](copy + 1, size - 1);
    free(copy);
    return 0;
}
