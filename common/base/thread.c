#include "common/base/thread.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>

#include "common/base/assert.h"

struct td_role_cap td_loop = {.name = "loop", .id = 1};
struct td_role_cap td_engine_role = {.name = "engine", .id = 2};
struct td_role_cap td_xfer = {.name = "xfer", .id = 3};

static _Thread_local const struct td_role_cap *current;

/* pthread names hold 15 bytes. */
#define THREAD_NAME_BYTES 16

void td_thread_enter(const struct td_role_cap *role, const char *name)
{
    char cut[THREAD_NAME_BYTES];
    TD_REQUIRE(role != NULL && name != NULL);
    current = role;
    (void)snprintf(cut, sizeof cut, "%.15s", name);
    (void)pthread_setname_np(pthread_self(), cut); /* a debugging aid only */
}

void td_thread_check(const struct td_role_cap *role)
{
    TD_REQUIRE(current == NULL || current == role);
}
