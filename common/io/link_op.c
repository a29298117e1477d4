#include "common/io/link_op.h"

#include <stddef.h>

#include "common/base/assert.h"
#define TD_LOG_ROOM "io"
#include "common/base/log.h"

/* On a thread of NNG. */
static void on_done(void *arg)
{
    struct link_op *op = arg;
    /* Release: pairs with the loop's acquire, so that NNG's result is seen whole. */
    __atomic_store_n(&op->done, 1, __ATOMIC_RELEASE);
    td_wake_ring(op->wake);
}

static void on_wake(void *arg)
{
    struct link_op *op = arg;
    /* Acquire: see on_done(). A ring without a completion cannot happen, but would be harmless. */
    if (__atomic_exchange_n(&op->done, 0, __ATOMIC_ACQ_REL) == 1) {
        op->busy = false;
        op->fn(op->arg);
    }
}

td_err link_op_init(struct link_op *op, struct td_loop *loop, const char *name, td_loop_fn fn,
                    void *arg)
{
    *op = (struct link_op){.fn = fn, .arg = arg};
    TD_TRY(td_wake_create(loop, name, on_wake, op, &op->wake));
    int rv = nng_aio_alloc(&op->aio, on_done, op);
    if (rv != 0) {
        TD_LOG(ERROR, "cannot allocate an NNG operation", "err=\"%s\"", nng_strerror(rv));
        op->aio = NULL;
        op->wake = td_wake_destroy(op->wake);
        return link_nng_err(rv);
    }
    return TD_OK;
}

void link_op_stop(struct link_op *op)
{
    if (op->aio != NULL) {
        nng_aio_stop(op->aio);
    }
}

void link_op_fini(struct link_op *op)
{
    link_op_stop(op);
    if (op->aio != NULL) {
        nng_aio_free(op->aio);
    }
    op->wake = td_wake_destroy(op->wake);
    op->aio = NULL;
    op->busy = false;
}

void link_op_begin(struct link_op *op)
{
    TD_INSIST(!op->busy);
    op->busy = true;
}

td_err link_nng_err(int rv)
{
    switch (rv) {
    case 0:
        return TD_OK;
    case NNG_ENOMEM:
        return TD_ERR_NO_MEMORY;
    case NNG_ECLOSED:
    case NNG_ECANCELED:
    case NNG_ECONNSHUT:
        return TD_ERR_CLOSED;
    case NNG_EADDRINUSE:
    case NNG_EADDRINVAL:
    case NNG_EINVAL:
    case NNG_EPERM:
        return TD_ERR_ADDRESS;
    default:
        return TD_ERR_TRANSPORT;
    }
}
