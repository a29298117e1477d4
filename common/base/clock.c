#include "common/base/clock.h"

#include <time.h>

static int64_t read_us(clockid_t id)
{
    struct timespec ts = {0};
    (void)clock_gettime(id, &ts); /* cannot fail for these two clocks */
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

int64_t td_now_us(void)
{
    return read_us(CLOCK_MONOTONIC);
}

int64_t td_wall_us(void)
{
    return read_us(CLOCK_REALTIME);
}
