/* memory.h - an arena to decode into and a buffer to encode into, for the tests of public messages.
 *
 * Included by one test program, whose group has `setup` and `teardown`. Not: the code under test. Owner: that program.
 */
#ifndef TD_TESTS_UNIT_PROTO_MEMORY_H
#define TD_TESTS_UNIT_PROTO_MEMORY_H

#include "common/base/arena.h"
#include "common/base/buf.h"

static struct td_arena *arena;
static struct td_buf out;

static int setup(void **state)
{
    (void)state;
    arena = td_arena_create(64u << 20);
    td_buf_init(&out, 1u << 20);
    return arena != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    arena = td_arena_destroy(arena);
    td_buf_fini(&out);
    return 0;
}

#endif
