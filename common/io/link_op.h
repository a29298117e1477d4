/* link_op.h - one asynchronous NNG operation whose completion runs on the loop.
 *
 * NNG calls back on its own threads; that callback only marks the operation done and rings a
 * doorbell of the loop, where `fn` then runs. At most one operation is under way. Private to
 * link_nng.c.
 * Thread: the loop's.
 * Failure: init only.
 */
#ifndef TD_IO_LINK_OP_H
#define TD_IO_LINK_OP_H

#include <nng/nng.h>
#include <stdbool.h>

#include "common/base/err.h"
#include "common/io/loop.h"

struct link_op {
    nng_aio *aio;         /* owned */
    struct td_wake *wake; /* owned */
    bool busy;            /* begun and not yet seen by fn */
    int done; /* set by NNG's thread (release), taken by the loop (acquire): the result is complete
               */
    td_loop_fn fn;
    void *arg;
};

/* The op must not move in memory until fini. */
td_err link_op_init(struct link_op *op, struct td_loop *loop, const char *name, td_loop_fn fn,
                    void *arg) TD_MUST_CHECK;
/* Stops the operation, waits for NNG's callback, frees. `fn` does not run any more. Safe on zeroed
 * and in fn itself. */
void link_op_fini(struct link_op *op);
/* Stops without freeing, so that several can be stopped before their stream is closed. */
void link_op_stop(struct link_op *op);
/* For the caller that is about to start NNG's operation on op->aio. */
void link_op_begin(struct link_op *op);
/* Translates an NNG error (0 is TD_OK). The caller logs. */
td_err link_nng_err(int rv);

#endif
