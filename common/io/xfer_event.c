#define TD_LOG_ROOM "io"
#include <stdlib.h>

#include "common/base/assert.h"
#include "common/io/xfer_int.h"

/* Design: an event lives in the object it is about (or in the command that asked), so emitting one
 * allocates nothing. Nodes wait in order in `backlog` until the ring has room; a LANDED that still
 * waits is updated in place, which is how progress coalesces. When the backlog grows,
 * td__xf_backlogged() stops receiving and commands: the peers feel it, the process does not grow.
 */

void td__xf_event(struct td_xfer *x, struct xf_node *n)
{
    if (n->queued) {
        return;
    }
    n->queued = true;
    n->next = NULL;
    *x->backlog_tail = n;
    x->backlog_tail = &n->next;
    x->backlog_len++;
}

static struct xf_node *pop(struct td_xfer *x)
{
    struct xf_node *n = x->backlog;
    x->backlog = n->next;
    if (x->backlog == NULL) {
        x->backlog_tail = &x->backlog;
    }
    x->backlog_len--;
    n->queued = false;
    return n;
}

void td__xf_events_flush(struct td_xfer *x)
{
    /* Room is asked for first: once pushed, a message (and the node in it) is the loop's. Only we
     * push, so room stays. */
    while (x->backlog != NULL && td_ring_count(x->events) < XF_RING_EVENTS) {
        struct xf_node *n = pop(x);
        void *drop = n->drop; /* may be what contains n */
        struct xf_record r = {n->ev, n->give};
        TD_INSIST(td_ring_push(x->events, &r) == TD_OK);
        free(drop);
    }
}

bool td__xf_backlogged(const struct td_xfer *x)
{
    return x->backlog_len >= XF_MAX_BACKLOG ||
           __atomic_load_n(&x->msg_bytes, __ATOMIC_RELAXED) >= XF_MAX_MSG_BYTES;
}

void td__xf_events_discard(struct td_xfer *x)
{
    while (x->backlog != NULL) {
        struct xf_node *n = pop(x);
        void *give = n->give;
        void *drop = n->drop;
        free(give);
        if (drop != give) {
            free(drop);
        }
    }
}
