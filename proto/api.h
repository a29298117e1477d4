/* api.h - the messages of the public gRPC API (tandem.v1) as plain structs, and the only way from and to their bytes.
 *
 * What: requests are checked (depth, counts, text without zero bytes, UTF-8) before protobuf-c sees them, and decoded into
 * an arena; answers are appended to a buffer. Not: ranges of values, which are the request parser's matter.
 * Owner and thread: the caller's; no state. Bounds: a message is unpacked into at most 128 KB and 12 times its length.
 * Failure: TD_ERR_BAD_REQUEST for bytes that are not the message, TD_ERR_NO_MEMORY, TD_ERR_FULL.
 */
#ifndef TD_PROTO_API_H
#define TD_PROTO_API_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/err.h"
#include "proto/wire.h"

struct td_api_sampling {
    bool has_temperature, has_top_p, has_top_k, has_min_p, has_repetition_penalty,
        has_frequency_penalty, has_presence_penalty, has_seed, has_max_tokens, has_min_tokens,
        has_logprobs, ignore_eos;
    float temperature, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty;
    int32_t top_k;
    uint64_t seed;
    uint32_t max_tokens, min_tokens, logprobs;
    const char *const *stop;
    const int32_t *stop_ids;
    const struct td_logit_bias *bias; /* as sent: a repeated id is not merged */
    uint32_t n_stop, n_stop_ids, n_bias;
};

struct td_api_chat_message {
    const char *role, *content;
};

enum td_api_input { TD_API_NO_INPUT, TD_API_TEXT, TD_API_IDS, TD_API_CHAT };

/* Strings are never NULL; absent is "". Everything points into the arena. */
struct td_api_generate {
    const char *model, *request_id, *cache_salt, *adapter;
    enum td_api_input input;
    const char *text;
    const int32_t *ids;
    const struct td_api_chat_message *messages;
    uint32_t n_ids, n_messages;
    struct td_api_sampling sampling;
    bool has_sampling;
    uint32_t n, budget_ms;
    int32_t priority;
};
td_err td_api_generate_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                              struct td_api_generate *out) TD_MUST_CHECK;

struct td_api_tokenize {
    const char *model;
    enum td_api_input input;
    const char *text;
    const struct td_api_chat_message *messages;
    uint32_t n_messages;
    bool add_special;
};
td_err td_api_tokenize_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                              struct td_api_tokenize *out) TD_MUST_CHECK;

struct td_api_detokenize {
    const char *model;
    const int32_t *ids;
    uint32_t n_ids;
};
td_err td_api_detokenize_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                                struct td_api_detokenize *out) TD_MUST_CHECK;
/* CancelRequest and ExplainRequest have the same shape. */
td_err td_api_id_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                        const char **out_id) TD_MUST_CHECK;
td_err td_api_empty_decode(const uint8_t *data, size_t len) TD_MUST_CHECK;

struct td_api_drain {
    const char *node, *why;
    uint32_t limit_ms;
};
td_err td_api_drain_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                           struct td_api_drain *out) TD_MUST_CHECK;

/* limit_ms is 0. */
td_err td_api_undrain_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                             struct td_api_drain *out) TD_MUST_CHECK;

struct td_api_watch {
    const char *const *kinds;
    uint32_t n_kinds;
};
td_err td_api_watch_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                           struct td_api_watch *out) TD_MUST_CHECK;

/* ---- answers ---- */
struct td_api_delta {
    uint32_t choice;
    const char *text; /* may hold zero bytes */
    size_t len;
    const int32_t *ids;
    uint32_t n_ids;
    enum td_finish finish;
    const char *stop_text; /* NULL: none */
};
td_err td_api_delta_encode(struct td_buf *out, const char *id,
                           const struct td_api_delta *d) TD_MUST_CHECK;

struct td_api_usage {
    uint64_t prompt_tokens, completion_tokens, cached_tokens;
};
td_err td_api_usage_encode(struct td_buf *out, const char *id,
                           const struct td_api_usage *u) TD_MUST_CHECK;
td_err td_api_cancel_encode(struct td_buf *out, bool known) TD_MUST_CHECK;
td_err td_api_tokenize_encode(struct td_buf *out, const int32_t *ids, uint32_t n,
                              uint32_t max_model_len) TD_MUST_CHECK;
td_err td_api_detokenize_encode(struct td_buf *out, const char *text, size_t len) TD_MUST_CHECK;

struct td_api_model {
    const char *id;
    uint32_t max_model_len;
    int64_t created_unix;
};
td_err td_api_models_encode(struct td_buf *out, const struct td_api_model *m,
                            uint32_t n) TD_MUST_CHECK;

enum td_api_node_state { /* numbers of NodeState */
                         TD_API_NODE_UNSPECIFIED = 0,
                         TD_API_NODE_CONNECTING = 1,
                         TD_API_NODE_READY = 2,
                         TD_API_NODE_NOT_READY = 3,
                         TD_API_NODE_DRAINING = 4,
};

struct td_api_node {
    const char *name, *why, *epoch, *numerics, *address, *version;
    enum td_role role;
    enum td_api_node_state state;
    uint32_t queued, running;
    uint32_t blocks[TD_BLK_STATES];
    bool ready, drained;
    uint64_t queued_prompt_tok, dispatched;
    uint32_t inflight, n_blocks, block_tok, n_layers, max_model_len, max_seqs;
    uint32_t n_ranks; /* processes that compute its model together; 0: not said */
    uint32_t prefill_us_per_ktok, decode_step_us;
    uint64_t layout_id, numerics_id;
    int64_t report_age_us; /* -1: not reported yet */
};
td_err td_api_node_encode(struct td_buf *out, const struct td_api_node *n) TD_MUST_CHECK;

struct td_api_stage {
    const char *name, *node;
    uint64_t began_us, took_us;
};
struct td_api_candidate {
    const char *prefill, *decode, *why_not;
    uint64_t predicted_us;
    bool chosen;
};
struct td_api_explain {
    const char *id, *transport;
    uint32_t attempts, n_stages, n_candidates;
    const struct td_api_stage *stages;
    const struct td_api_candidate *candidates;
    uint64_t kv_bytes;
    td_err err;
    const char *text;
    const char *code;  /* decoding only: of the failure, "" without */
    const char *phase; /* of a running request; "" or NULL when it has finished */
    const char *prefill, *decode;
    enum td_finish finish;
    uint32_t n_prompt, n_output;
    uint64_t cached_tok, transfer_us;
    int64_t ttft_us, tpot_us, total_us, ended_unix_us, age_us, deadline_in_us;
};
struct td_api_pair {
    const char *prefill, *decode, *excluded, *why_not;
    bool chosen, avoided;
    int64_t score_us, prefill_us, wait_us, decode_us;
    uint64_t waiting_tok;
    uint32_t free_blk, need_blk, running;
};
struct td_api_skipped {
    const char *node, *why;
};
struct td_api_try {
    uint32_t number;
    int64_t submitted_us, placed_us, failed_us; /* failed_us -1: it did not */
    const char *error, *prefill, *decode;
    int64_t predicted_ttft_us, predicted_us;
    uint32_t pairs_seen, n_pairs, nodes_skipped, n_skipped;
    const struct td_api_pair *pairs;
    const struct td_api_skipped *skipped;
};
#define TD_API_MAX_STAGES     16
#define TD_API_MAX_CANDIDATES 16
td_err td_api_explain_encode(struct td_buf *out, const struct td_api_explain *e) TD_MUST_CHECK;
/* Behind td_api_explain_encode: one more attempt of the same answer. */
td_err td_api_try_encode(struct td_buf *out, const struct td_api_try *t) TD_MUST_CHECK;

td_err td_api_drain_encode(struct td_buf *out, const struct td_api_node *n) TD_MUST_CHECK;

struct td_api_event {
    uint64_t seq;
    int64_t unix_us;
    const char *kind, *node, *id, *text;
};
td_err td_api_event_encode(struct td_buf *out, const struct td_api_event *e) TD_MUST_CHECK;

#endif
