/* drain.h - the way out of a process: SIGTERM or SIGINT begins a drain, the loop stops when nothing runs any more.
 *
 * What: on the first signal it calls begin(), then asks idle() every 20 ms and stops the loop when it is true or the limit has
 * passed, after parting words to the peers (bye(), then gone() every 20 ms, 2 s at most); a second signal stops the loop at
 * once. Not: what draining means; that is begin()'s.
 * Owner: main(). Thread: loop. Failure: of creation only.
 */
#ifndef TD_IO_DRAIN_H
#define TD_IO_DRAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/io/loop.h"

struct td_drain_ops {
    void (*begin)(void *arg);
    bool (*idle)(void *arg);
    void (*bye)(void *arg); /* with gone, or both NULL */
    bool (*gone)(void *arg);
};

struct td_drain;

/* `name` is borrowed: it appears in logs. */
td_err td_drain_create(struct td_loop *loop, const char *name, int64_t limit_us,
                       const struct td_drain_ops *ops, void *arg,
                       struct td_drain **out_drain) TD_MUST_CHECK;
/* Last before the loop: a second signal must not cut the way out. */
struct td_drain *td_drain_destroy(struct td_drain *d);

#endif
