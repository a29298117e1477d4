/* vllm.h - the messages of vllm.grpc.engine.VllmEngine as plain structs, and the only way from and to their bytes.
 *
 * What: what routers of the field ask an engine, and its answers (vllm_engine.proto). Requests are checked as in api.h.
 * Not: what values mean (common/node/vllm_request.h). Owner and thread: the caller's; no state. Bounds: those of api.h.
 * Failure: TD_ERR_BAD_REQUEST for bytes that are not the message, TD_ERR_NO_MEMORY, TD_ERR_FULL.
 */
#ifndef TD_PROTO_VLLM_H
#define TD_PROTO_VLLM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/sampling.h"

/* As sent: 0 is "not said" for top_p, repetition_penalty and n. */
struct td_vllm_sampling {
    bool has_temperature, has_max_tokens, has_seed, ignore_eos, skip_special;
    float temperature, top_p, min_p, frequency_penalty, presence_penalty, repetition_penalty;
    uint32_t top_k, max_tokens, min_tokens, n;
    int32_t seed;
    const char *const *stop;
    const uint32_t *stop_ids;
    const struct td_logit_bias *bias;
    uint32_t n_stop, n_stop_ids, n_bias;
    const char *refused; /* a field that was sent and that no version of ours serves; NULL: none */
};

enum td_vllm_input { TD_VLLM_NO_INPUT, TD_VLLM_TEXT, TD_VLLM_IDS };

/* Everything points into the arena. */
struct td_vllm_generate {
    const char *request_id; /* "" when absent */
    enum td_vllm_input input;
    const char *text;
    const uint32_t *ids;
    uint32_t n_ids;
    struct td_vllm_sampling sampling; /* all zero when absent */
    bool stream;
    const char *kv_json; /* NULL: absent */
    const char *refused; /* as above, or the sampling's */
};
td_err td_vllm_generate_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                               struct td_vllm_generate *out) TD_MUST_CHECK;

struct td_vllm_abort {
    const char *const *ids;
    uint32_t n;
};
td_err td_vllm_abort_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                            struct td_vllm_abort *out) TD_MUST_CHECK;
/* *out_rank: 0 when absent. */
td_err td_vllm_loads_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                            int32_t *out_rank) TD_MUST_CHECK;

/* ---- answers; each appends one message ---- */

/* New tokens of one choice; the counts are of all so far. */
struct td_vllm_chunk {
    const uint32_t *ids;
    uint32_t n, index, prompt_tokens, completion_tokens, cached_tokens;
};
td_err td_vllm_chunk_encode(struct td_buf *out, const struct td_vllm_chunk *c) TD_MUST_CHECK;

struct td_vllm_complete {
    const uint32_t *ids; /* all of them */
    uint32_t n, index, prompt_tokens, cached_tokens;
    const char *finish;
    int64_t stop_id;       /* which id ended it; -1: none */
    const char *stop_text; /* which stop string; NULL: none */
    const char *kv_json;   /* NULL: none */
};
td_err td_vllm_complete_encode(struct td_buf *out, const struct td_vllm_complete *c) TD_MUST_CHECK;

td_err td_vllm_health_encode(struct td_buf *out, bool healthy, const char *text) TD_MUST_CHECK;

struct td_vllm_model {
    const char *name, *type, *architecture, *defaults_json;
    uint32_t max_model_len, n_vocab, n_end_ids;
    const int32_t *end_ids;
    int32_t bos, pad;
};
td_err td_vllm_model_encode(struct td_buf *out, const struct td_vllm_model *m) TD_MUST_CHECK;

struct td_vllm_server {
    uint32_t active, block_tokens, max_seqs;
    bool paused;
    double last_request_unix_s, uptime_s;
    const char *kv_connector, *kv_role, *engine_id, *kv_dtype, *numerics, *model_dtype, *pairing;
};
td_err td_vllm_server_encode(struct td_buf *out, const struct td_vllm_server *s) TD_MUST_CHECK;

struct td_vllm_load {
    const char *timestamp; /* ISO 8601 */
    uint32_t running, waiting, used_tokens, max_tokens, max_running;
    uint64_t waiting_tokens;
    double usage; /* of the KV pool, 0 to 1 */
};
td_err td_vllm_load_encode(struct td_buf *out, const struct td_vllm_load *l) TD_MUST_CHECK;

/* sha256: hex, of the last chunk; NULL on the others. */
td_err td_vllm_tokenizer_encode(struct td_buf *out, const void *data, size_t len,
                                const char *sha256) TD_MUST_CHECK;

#endif
