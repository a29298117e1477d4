#define TD_LOG_ROOM "io"
#include "common/io/drain.h"

#include <signal.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"

#define DRAIN_POLL_US 20000
#define PARTING_US    2000000

struct td_drain {
    struct td_loop *loop; /* borrowed */
    const char *name;
    int64_t limit_us, until_us; /* until: 0 before the first signal */
    const struct td_drain_ops *ops;
    void *arg;
    bool parting;                  /* bye() was called; until_us is its end now */
    struct td_signal *term, *intr; /* owned */
    struct td_timer *timer;        /* owned */
};

static void part(struct td_drain *d)
{
    if (d->ops->bye == NULL) {
        td_loop_stop(d->loop);
        return;
    }
    d->parting = true;
    d->until_us = td_now_us() + PARTING_US;
    d->ops->bye(d->arg);
    td_timer_set(d->timer, td_now_us());
}

static void on_timer(void *arg)
{
    struct td_drain *d = arg;
    if (d->parting) {
        if (d->ops->gone(d->arg) || td_now_us() >= d->until_us) {
            td_loop_stop(d->loop);
        } else {
            td_timer_set(d->timer, td_now_us() + DRAIN_POLL_US);
        }
        return;
    }
    bool idle = d->ops->idle(d->arg);
    if (!idle && td_now_us() < d->until_us) {
        td_timer_set(d->timer, td_now_us() + DRAIN_POLL_US);
        return;
    }
    if (idle) {
        TD_LOG(INFO, "drained", "name=%s", d->name);
    } else {
        TD_LOG(WARN, "drain ended at its limit", "name=%s limit_us=%lld, cutting what runs",
               d->name, (long long)d->limit_us);
    }
    part(d);
}

static void on_signal(void *arg)
{
    struct td_drain *d = arg;
    if (d->until_us != 0) {
        td_loop_stop(d->loop);
        return;
    }
    TD_LOG(INFO, "draining", "name=%s limit_us=%lld", d->name, (long long)d->limit_us);
    d->until_us = td_now_us() + d->limit_us;
    d->ops->begin(d->arg);
    td_timer_set(d->timer, td_now_us());
}

td_err td_drain_create(struct td_loop *loop, const char *name, int64_t limit_us,
                       const struct td_drain_ops *ops, void *arg, struct td_drain **out_drain)
{
    struct td_drain *d = td_zalloc(1, sizeof *d);
    if (d == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    *d =
        (struct td_drain){.loop = loop, .name = name, .limit_us = limit_us, .ops = ops, .arg = arg};
    td_err err = td_timer_create(loop, "drain", on_timer, d, &d->timer);
    err = err == TD_OK ? td_signal_create(loop, SIGTERM, on_signal, d, &d->term) : err;
    err = err == TD_OK ? td_signal_create(loop, SIGINT, on_signal, d, &d->intr) : err;
    if (err != TD_OK) {
        td_drain_destroy(d);
        return err;
    }
    *out_drain = d;
    return TD_OK;
}

struct td_drain *td_drain_destroy(struct td_drain *d)
{
    if (d != NULL) {
        td_signal_destroy(d->term);
        td_signal_destroy(d->intr);
        td_timer_destroy(d->timer);
        free(d);
    }
    return NULL;
}
