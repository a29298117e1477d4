/* clock.h - time for the shells. Pure code never calls it: it is handed `now`.
 * td_now_us: CLOCK_MONOTONIC in microseconds, the `now` of every state machine. td_wall_us:
 * CLOCK_REALTIME.
 */
#ifndef TD_BASE_CLOCK_H
#define TD_BASE_CLOCK_H

#include <stdint.h>

int64_t td_now_us(void);
int64_t td_wall_us(void);
#define TD_NEVER INT64_MAX /* a deadline that does not exist */

#endif
