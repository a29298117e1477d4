/* xfer_rig.h - two ends of the data plane for tests: a node is a fake engine with a td_xfer, its
 * events kept by kind.
 *
 * Waits end by an event, or fail the test after RIG_LIMIT_US (a bound against hanging, not an
 * expectation of time). Owner and thread: the test's.
 */
#ifndef TD_TESTS_IO_XFER_RIG_H
#define TD_TESTS_IO_XFER_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "common/io/xfer.h"
#include "tests/unit/io/fake_engine.h"

#define RIG_LIMIT_US   20000000
#define RIG_MAX_EVENTS 8192
#define RIG_MSG_BYTES  64 /* of a message that are kept */

struct rig_event {
    struct td_xfer_event ev;
    uint8_t head[RIG_MSG_BYTES];
};

struct rig_node {
    struct fake_engine engine;
    struct td_xfer *x;
    uint64_t epoch;
    struct rig_event *log; /* owned [RIG_MAX_EVENTS], in order */
    uint32_t n;
};

struct rig_shape {
    const char *transports;
    uint32_t n_blocks, n_layers, slice_bytes;
    bool checksum;
    uint32_t port_first, port_last;
};

void rig_up(struct rig_node *n, uint64_t epoch, const struct rig_shape *s);
void rig_down(struct rig_node *n);
/* Takes what is waiting. */
void rig_take(struct rig_node *n);
/* First event of this type and handle (of land, push or epoch, by type; 0: any) at or after log
 * position `from`; waits. NULL when none comes. */
const struct rig_event *rig_wait(struct rig_node *n, enum td_xfer_event_type type, uint64_t handle,
                                 uint32_t from);
uint32_t rig_count(const struct rig_node *n, enum td_xfer_event_type type, uint64_t handle);
/* Waits until LANDED of `land` says that many slices. */
bool rig_wait_landed(struct rig_node *n, uint64_t land, uint32_t n_slices);
void rig_submit(struct rig_node *n, const struct td_xfer_cmd *c);

/* d dials p. */
void rig_connect(struct rig_node *d, const struct rig_node *p);
void rig_send(struct rig_node *n, uint64_t epoch, const void *bytes, size_t len);

/* One transfer: d's table (shuffled), p's source blocks (shuffled). */
#define RIG_MAX_TABLE 512
struct rig_job {
    uint64_t land, push, layout;
    struct td_work_id id;
    uint32_t n_blocks, n_layers;
    struct td_block_ref table[RIG_MAX_TABLE];
    uint32_t src[RIG_MAX_TABLE];
};
/* Draws tables from pools of so many blocks and fills p's slices. */
void rig_job_make(struct rig_job *j, uint64_t handle, uint32_t n_blocks, struct rig_node *p,
                  struct rig_node *d, uint64_t seed);
void rig_land(struct rig_node *d, const struct rig_job *j, uint64_t p_epoch);
/* The land, then the table as a message, received by p: what D does before P may push. */
void rig_offer(struct rig_node *d, struct rig_node *p, const struct rig_job *j);
/* Pushes table entries [first, first + n) as chunk `chunk` under handle j->push + chunk. */
void rig_push(struct rig_node *p, const struct rig_job *j, uint64_t d_epoch, uint32_t first,
              uint32_t n, uint32_t chunk, uint64_t ticket);
/* True when every slice of the table holds what p had. */
bool rig_landed_exact(const struct rig_node *d, const struct rig_job *j);

#endif
