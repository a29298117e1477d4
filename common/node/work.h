/* work.h - the requests a role core knows: one record for each work id, found by id or by handle,
 * each with one timer; and the memory of those that are over.
 *
 * What: struct nd_work is the first member of the role's own sequence struct; nd_works holds a
 * fixed array of them. It checks a request against the node, keeps its prompt and sampling
 * parameters, arms the one deadline a sequence has, and remembers ended and cancelled ids
 * (tombstones), so that a cancel which overtakes its request, or a table of an ended one, is
 * answered rightly. Not: states, blocks, batches (the roles'). Owner: one core. Thread: the loop's.
 * Bounds: `capacity` works, `prompt_bytes` of prompts, ND_TOMBSTONES. Failure: TD_ERR_OVERLOADED.
 */
#ifndef TD_NODE_WORK_H
#define TD_NODE_WORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/heap.h"
#include "common/base/sampling.h"
#include "common/node/core.h"
#include "common/node/span.h"
#include "proto/wire.h"

#define ND_MAX_WORKS  (1u << 20) /* handles of pushes keep 20 bits for the index */
#define ND_TOMBSTONES 1024u
#define ND_MAX_BUDGET ((int64_t)24 * 3600 * 1000000)
#define ND_REQ_LEN    96

struct nd_work {
    struct td_work_id id;
    struct td_seq_ref ref;     /* index in nd_works, generation */
    struct td_heap_node timer; /* the one deadline of what it waits for */
    int64_t arrived_us;
    int64_t since_us;  /* in its present state */
    int64_t budget_us; /* when the request's time is over */
    uint64_t number;   /* arrival order */
    int32_t priority;
    bool used;
    bool mute;                /* its router is lost: nothing more is sent there */
    char req[ND_REQ_LEN];     /* for log lines */
    char trace[ND_TRACE_LEN]; /* W3C traceparent; "" for none */
    struct nd_span state;     /* W3C tracestate; empty: none */
    uint32_t n_prompt, n_replayed;
    struct nd_span prompt;
    struct td_sampling_params sampling; /* bias is NULL; the list is in `bias` */
    struct nd_span bias;
};

/* Where a replayed request's own output begins in its prompt, for td_row.output_pos; 0: nowhere. */
static inline uint32_t nd_work_output_pos(const struct nd_work *work)
{
    return work->n_replayed > 0 ? work->n_prompt - work->n_replayed : 0;
}

enum nd_grave { ND_GRAVE_NONE, ND_GRAVE_ENDED, ND_GRAVE_CANCELLED, ND_GRAVE_EXPIRED };

struct nd_works;

struct nd_works_params {
    uint32_t capacity;
    size_t work_bytes; /* of the role's struct, which starts with struct nd_work */
    size_t prompt_bytes;
};

td_err nd_works_create(const struct nd_works_params *p, struct nd_works **out_works) TD_MUST_CHECK;
struct nd_works *nd_works_destroy(struct nd_works *w);

/* Whether this node can run the request at all; a refusal holds no block. */
td_err nd_request_check(const struct nd_core_params *p,
                        const struct td_wire_request *r) TD_MUST_CHECK;
/* Whether it may stand in log lines as it is. */
bool nd_name_is_plain(const char *request_id);
/* Opens a record (zeroed beyond struct nd_work) and copies the request into it. TD_ERR_STALE when
 * the id is known already, TD_ERR_OVERLOADED when full. */
td_err nd_works_open(struct nd_works *w, const struct td_wire_request *r, int64_t now_us,
                     struct nd_work **out_work) TD_MUST_CHECK;
/* Ends a record: timer off, prompt gone, its ref stale, its id remembered as ended. */
void nd_works_close(struct nd_works *w, struct nd_work *work);

struct nd_work *nd_works_find(const struct nd_works *w, const struct td_work_id *id);
struct nd_work *nd_works_at(const struct nd_works *w, struct td_seq_ref ref);
/* A nonzero name for {index, generation}; NULL when it is stale or made up. */
uint64_t nd_work_handle(const struct nd_work *work);
struct nd_work *nd_works_by_handle(const struct nd_works *w, uint64_t handle);
/* Record i, or NULL when it is not in use; i < capacity. */
struct nd_work *nd_works_slot(const struct nd_works *w, uint32_t i);
uint32_t nd_works_capacity(const struct nd_works *w);
uint32_t nd_works_count(const struct nd_works *w);

/* Sets the deadline, never beyond the budget unless `past_budget`. */
void nd_works_arm(struct nd_works *w, struct nd_work *work, int64_t deadline_us, bool past_budget);
void nd_works_disarm(struct nd_works *w, struct nd_work *work);
/* A work whose deadline has come (its timer is off now), or NULL. */
struct nd_work *nd_works_due(struct nd_works *w, int64_t now_us);
int64_t nd_works_next_deadline(const struct nd_works *w);

void nd_works_bury(struct nd_works *w, const struct td_work_id *id, enum nd_grave why);
enum nd_grave nd_works_buried(const struct nd_works *w, const struct td_work_id *id);

/* For log lines: the 32 digits of its trace, "" for none; print it with %.32s. */
const char *nd_work_trace(const struct nd_work *work);
/* What every role's last word says: names, times of the door, sizes. */
void nd_work_done(const struct nd_works *w, const struct nd_work *work, struct nd_done *out);
/* Prompt tokens [pos, pos + n) in the actions' arena; NULL when it is full. */
const int32_t *nd_work_tokens(const struct nd_works *w, const struct nd_work *work, uint32_t pos,
                              uint32_t n, struct nd_actions *out);
/* Adds the SEQ_SET of this work's sampling state: prompt, then the replayed output and, when given,
 * the first token. */
void nd_work_seq_set(const struct nd_works *w, const struct nd_work *work, uint32_t slot,
                     const int32_t *first_token, struct nd_actions *out);
/* Gives the prompt's memory back early: it is computed and its sampling slot set. */
void nd_work_drop_prompt(struct nd_works *w, struct nd_work *work);
/* Whether output token `index` with this id ends the output. */
enum td_finish nd_work_finish(const struct nd_work *work, uint32_t max_model_len, uint32_t index,
                              int32_t token);

/* Tokens of output allowed still, the next one included. */
uint32_t nd_work_max_output(const struct nd_work *work, uint32_t max_model_len);

/* Invariants: index, timers and prompt memory add up. */
td_err nd_works_check(const struct nd_works *w) TD_MUST_CHECK;

#endif
