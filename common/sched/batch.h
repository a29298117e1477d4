/* batch.h - the ragged-batch planner: which sequences run in the next step, and how many tokens of
 * each. Both roles use it; prefill nodes just have no decode rows.
 *
 * The rule, in this order (stall-free):
 *  1. every decode row, one token each, in a rotating order so that none waits when not all fit.
 *     While a prompt waits, one unit of tokens and one row are kept for it.
 *  2. prompts that have started, then new ones by (td_sched_key, arrival). A prompt gets at most
 *     chunk_tok of a step, cut to a multiple of the unit unless it is its last chunk.
 * So a started prompt moves in every step (its receiver's stall clock runs), at most
 * max_tokens / chunk_tok + 1 prompts are under way, and a waiting one is served in the order of
 * queue.h.
 * Not: blocks, slots, admission (the role's), execution.
 * Owner and thread: the object that embeds it. Bounds: max_rows and max_tokens a step; entries are
 * embedded in what they stand for. Failure: none.
 */
#ifndef TD_SCHED_BATCH_H
#define TD_SCHED_BATCH_H

#include <stdbool.h>
#include <stdint.h>

enum td_batch_kind { TD_BATCH_OUT, TD_BATCH_PREFILL, TD_BATCH_DECODE };

struct td_batch_item { /* zero-initialise */
    enum td_batch_kind kind;
    bool started;      /* prefill: some chunk was planned */
    bool held;         /* decode: sits this step out (it lacks a block); set by the owner */
    int64_t key;       /* prefill: td_sched_key */
    uint64_t number;   /* prefill: arrival order */
    uint32_t todo_tok; /* prefill: tokens not yet planned */
    struct td_batch_item *prev, *next;
};

struct td_batch_params {
    uint32_t max_rows, max_tokens; /* per step */
    uint32_t chunk_tok,
        unit_tok; /* a chunk is a multiple of the unit; unit <= chunk, unit <= max_tokens */
};

struct td_batch_list {
    struct td_batch_item *first, *last;
    uint32_t n;
};

struct td_batch { /* open so that it can be embedded; only batch.c writes it */
    struct td_batch_params p;
    struct td_batch_list prefill, decode;
    uint64_t todo_tok; /* sum over prefill */
};

struct td_batch_row {
    struct td_batch_item *item;
    uint32_t n; /* tokens of this step */
    bool last;  /* prefill: the chunk that ends the prompt; the item has left the batch */
    enum td_batch_kind kind;
};

/* False when the parameters do not fit each other. */
bool td_batch_init(struct td_batch *b, const struct td_batch_params *p);
void td_batch_join_prefill(struct td_batch *b, struct td_batch_item *it, int64_t key,
                           uint64_t number, uint32_t n_tok);
void td_batch_join_decode(struct td_batch *b, struct td_batch_item *it);
/* Not in the batch is fine. */
void td_batch_leave(struct td_batch *b, struct td_batch_item *it);
/* Plans one step into out[cap], decode rows first; returns the number of rows, 0 when nothing runs.
 * Planned prompt tokens count as done. */
uint32_t td_batch_plan(struct td_batch *b, struct td_batch_row *out, uint32_t cap);

#endif
