/* fault.h - named fault points: tests make a named place fail, delay, drop or flip on its n-th hit.
 *
 * A point is declared in fault_points.h (one X-macro list, printed by --list-fault-points) and
 * asked at a door: if (TD_FAULT(XFER_POST_FAIL)) { e = TD_ERR_TRANSPORT; }
 *     TD_FAULT_DELAY(XFER_SLICE_DELAY);            // sleeps in production shells; never used in
 * pure code Activation: --fault "name=action[:after=N][:times=N][:us=N][:prob=P]" (several, comma
 * separated), builds with -Dfault=true only; otherwise every macro is a constant false and costs
 * nothing. Thread: any. Failure: an unknown name is refused.
 */
#ifndef TD_BASE_FAULT_H
#define TD_BASE_FAULT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

/* X(ENUM, "name", "what it does") - keep sorted by room */
#define TD_FAULT_POINTS(X)                                                                         \
    X(ALLOC_FAIL, "alloc.fail", "the allocation fails")                                            \
    X(CTL_DROP, "ctl.drop", "a received control frame closes its connection unread")               \
    X(CTL_DELAY, "ctl.delay", "sending a control frame waits")                                     \
    X(RT_ADMIT, "rt.admit", "admission refuses as overloaded")                                     \
    X(STEP_PAUSE, "step.pause", "any engine step waits before it runs")                            \
    X(STEP_LAYER_PAUSE, "step.layer.pause", "a layer waits once its K and V are final")            \
    X(STEP_FAIL, "step.fail", "a row of the step fails")                                           \
    X(RANK_JOIN, "rank.join", "the connection of a rank that proved itself closes")                \
    X(RANK_LOAD, "rank.load", "a process waits before it makes its engine")                        \
    X(RANK_EXCHANGE, "rank.exchange", "an exchange, tell or hear of ranks fails")                  \
    X(XFER_POST_FAIL, "xfer.post.fail", "posting a slice fails")                                   \
    X(XFER_SLICE_DELAY, "xfer.slice.delay", "posting a slice waits")                               \
    X(XFER_AT_END, "xfer.at.end", "a chunk's slices are posted only when its last layer is done")  \
    X(XFER_TABLE_DROP, "xfer.table.drop", "the block table is not sent")                           \
    X(XFER_RECORD_DROP, "xfer.record.drop", "the hand-over record is not sent")                    \
    X(XFER_DONE_DELAY, "xfer.done.delay", "a message that follows slices (the record) waits")      \
    X(XFER_ACK_DROP, "xfer.ack.drop", "the acknowledgement of the hand-over is not sent")          \
    X(KV_HEADER_FLIP, "kv.header.flip", "one bit of a slice header flips")                         \
    X(KV_BYTE_FLIP, "kv.byte.flip", "one bit of a slice's payload flips")

enum td_fault_id {
#define TD_FAULT_ENUM(id, name, help) TD_FAULT_##id##_ID,
    TD_FAULT_POINTS(TD_FAULT_ENUM)
#undef TD_FAULT_ENUM
        TD_FAULT_COUNT
};

/* Activates points from a specification; TD_ERR_CONFIG names the first bad part. */
td_err td_fault_configure(const char *spec) TD_MUST_CHECK;
/* True when the point fires now. */
bool td_fault_hit(enum td_fault_id id);
/* Microseconds the point wants to wait now (0: none). The caller waits, or not. */
int64_t td_fault_delay_us(enum td_fault_id id);
/* Hits seen so far. */
uint64_t td_fault_hits(enum td_fault_id id);
const char *td_fault_name(enum td_fault_id id);
const char *td_fault_help(enum td_fault_id id);
void td_fault_reset(void);
/* Sleeps for the delay the point asks for. */
void td_fault_sleep(enum td_fault_id id);

#if TD_WITH_FAULTS
#define TD_FAULT(id)       td_fault_hit(TD_FAULT_##id##_ID)
#define TD_FAULT_DELAY(id) td_fault_sleep(TD_FAULT_##id##_ID)
#else
#define TD_FAULT(id)       (false)
#define TD_FAULT_DELAY(id) ((void)0)
#endif

#endif
