/* engine_steps.h - the steps between the loop and an engine's threads: what every backend of engine.h
 * does alike.
 *
 * What: a ring of submitted steps with copies of their rows, tokens and block tables; the checks of
 * a row; results, their eventfds and the counter of finished layers; the sampling slots.
 * Not: an engine: it computes nothing and starts no thread.
 * Owner: the backend that embeds it. Thread: functions marked loop or engine below; a step belongs
 * to the loop until it is submitted, to the engine until td_steps_finish, then to the loop until the
 * poll after the one that returned it. A slot belongs to the loop unless a step in flight uses it.
 * Bounds: TD_ENGINE_MAX_INFLIGHT steps; max_rows, max_tokens, max_slots of td_engine_info.
 * Failure: TD_ERR_NO_MEMORY, TD_ERR_IO at init; a bad row gets its own error, a bad step is refused.
 */
#ifndef TD_MODEL_ENGINE_STEPS_H
#define TD_MODEL_ENGINE_STEPS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "common/model/engine.h"

#define TD_STEPS_SLOTS (TD_ENGINE_MAX_INFLIGHT + 1)

/* One row as the engine executes it. */
struct td_step_row {
    bool live;        /* passed the checks */
    bool from_engine; /* its token is the slot's last one */
    uint32_t pos, n;
    uint32_t token0;   /* of its tokens in the step's flat list */
    uint32_t sampling; /* slot or TD_NO_SAMPLE */
    uint32_t want, output_pos;
    uint32_t n_blocks;
    td_block_id *table; /* in the step's arena */
};

struct td_step {
    td_ticket ticket;
    uint32_t n_rows, n_tok;
    bool push_layers;
    int32_t *tokens;          /* [max_tokens] */
    struct td_step_row *rows; /* [max_rows] */
    td_block_id *tables;      /* [max_rows][blocks of a sequence] */
    struct td_row_result *results;
    float *all_logits; /* borrowed: tool hook, logits of every token; else NULL */
    int64_t exec_us;   /* the engine's */
};

struct td_sample_slot {
    bool set;
    struct td_sampling_params p; /* p.bias points into bias */
    struct td_logit_bias bias[TD_SAMPLING_MAX_BIAS];
    int32_t *history; /* [max_model_len] prompt, then output */
    uint32_t n_prompt, n_history;
    uint32_t version; /* grows with every set */
    bool has_last;
    int32_t last; /* sampled last */
};

struct td_steps {
    const struct td_engine_info *info; /* borrowed */
    uint32_t blocks_per_seq;
    struct td_step steps[TD_STEPS_SLOTS];
    struct td_sample_slot *slots; /* [max_slots], owned */
    int32_t *history;             /* of all slots, owned */
    atomic_uint tail, done;       /* steps submitted, finished */
    uint32_t polled;              /* loop: steps handed to the loop */
    td_ticket last_ticket;        /* loop */
    atomic_ullong progress;       /* ticket << 16 | layers done */
    int event_fd, layer_fd;       /* owned */
    atomic_bool closed;           /* no step will finish any more */
};

/* The info must be complete and outlive the queue. On failure nothing is left behind but what
 * td_steps_fini takes; it accepts a zeroed struct whose fds are -1. */
td_err td_steps_init(struct td_steps *q, const struct td_engine_info *info) TD_MUST_CHECK;
void td_steps_fini(struct td_steps *q);

/* loop; as td_engine_ops.submit; the caller wakes its engine thread afterwards. */
td_err td_steps_submit(struct td_steps *q, const struct td_row *rows, size_t n_rows,
                       float *all_logits, td_ticket *out) TD_MUST_CHECK;
/* loop; as td_engine_ops.poll. */
td_err td_steps_poll(struct td_steps *q, struct td_step_result *out) TD_MUST_CHECK;
/* any; as td_engine_ops.layers_done. */
uint32_t td_steps_layers_done(struct td_steps *q, td_ticket ticket);
/* loop; as td_engine_ops.seq_set. */
td_err td_steps_slot_set(struct td_steps *q, uint32_t slot,
                         const struct td_sampling_state *s) TD_MUST_CHECK;

/* loop; a tool's: the logits of every token of one sequence from position 0, `chunk` tokens a step, in the pool's first
 * blocks. `submit` submits one row whose logits go to the given place. Waits: no other step may be in flight. */
typedef td_err (*td_steps_submit_fn)(void *engine, const struct td_row *row, float *logits);
td_err td_steps_logits(struct td_steps *q, td_steps_submit_fn submit, void *engine,
                       const int32_t *tokens, uint32_t n, uint32_t chunk,
                       float *out_logits) TD_MUST_CHECK;

/* engine; step number `taken` (counted from 0) if it has been submitted, else NULL. */
struct td_step *td_steps_take(struct td_steps *q, uint32_t taken);
/* engine; the first n layers of the step may be read; wakes the transfer thread where a row asked. */
void td_steps_layer(struct td_steps *q, const struct td_step *s, uint32_t n_layers);
/* engine; the oldest unfinished step is done: all its layers are, and its results are the loop's. */
void td_steps_finish(struct td_steps *q, struct td_step *s);
/* engine; no step will finish any more: once the finished ones are handed out, poll returns TD_ERR_CLOSED, and event_fd
 * stays readable. */
void td_steps_close(struct td_steps *q);
/* FNV-1a of a numerics text: td_engine_info.numerics_id. */
uint64_t td_numerics_id(const char *text);

#endif
