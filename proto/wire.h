/* wire.h - the messages of tandem.wire.v1 as plain structs, and the only way from and to bytes.
 *
 * What: one tagged union. td_wire_decode() unpacks the protobuf, checks every length, count, enum
 * and range against the bounds below and copies into an arena; code behind it may trust what it
 * reads. td_wire_encode() packs. Not: framing, sessions, authentication (common/io/link_session.h).
 * Used by: control link (router <-> node) and data plane (node <-> node: TABLE, RECORD, TAKEN,
 * ABORT). Owner: the caller; pointers inside a decoded message live as long as its arena. Thread:
 * any. Failure: TD_ERR_PROTOCOL for bytes that do not decode or break a bound;
 * TD_ERR_UNKNOWN_REQUIRES when `requires` names a feature this build does not know (the message is
 * still filled up to its id, so that it can be refused); TD_ERR_NO_MEMORY when the arena is full. A
 * message of a type that this build does not know decodes as TD_WIRE_NONE: ignore it. Encoding
 * checks the same bounds (TD_ERR_TOO_LARGE); texts for people are cut to TD_WIRE_MAX_TEXT.
 * Compatibility: proto/README.md.
 */
#ifndef TD_PROTO_WIRE_H
#define TD_PROTO_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/sampling.h"

#define TD_WIRE_VERSION_MIN    1
#define TD_WIRE_VERSION_MAX    1
#define TD_WIRE_MAX_PROMPT     (1u << 20) /* tokens */
#define TD_WIRE_MAX_TOKENS_MSG 4096       /* token entries in one TOKENS message */
#define TD_WIRE_MAX_BLOCKS     (1u << 17) /* of one table */
#define TD_WIRE_MAX_RANKS      64
#define TD_WIRE_MAX_ADDR       4096
#define TD_WIRE_MAX_TEXT       1024
#define TD_WIRE_MAX_NAME       128
#define TD_WIRE_MAX_REQUIRES   16
#define TD_WIRE_MAX_BYTES      (16u << 20) /* of one encoded message */

/* Names one try of one choice of one request, everywhere outside a process. */
struct td_work_id {
    uint64_t router_epoch, counter; /* the request */
    uint32_t attempt;               /* 0, 1, 2: replays */
    uint32_t choice;
};

static inline bool td_work_id_eq(const struct td_work_id *a, const struct td_work_id *b)
{
    return a->router_epoch == b->router_epoch && a->counter == b->counter &&
           a->attempt == b->attempt && a->choice == b->choice;
}

enum td_role { TD_ROLE_PREFILL = 1, TD_ROLE_DECODE = 2, TD_ROLE_BOTH = 3 };
/* States of design.md 6, in the order of the metric tandem_node_kv_blocks{state}. */
enum td_blk_state {
    TD_BLK_FREE,
    TD_BLK_CACHED,
    TD_BLK_RESERVED,
    TD_BLK_FILLING,
    TD_BLK_RUNNING,
    TD_BLK_PARKED,
    TD_BLK_QUARANTINED,
    TD_BLK_STATES
};
enum td_finish {
    TD_FINISH_NONE,
    TD_FINISH_STOP,
    TD_FINISH_LENGTH,
    TD_FINISH_ABORT,
    TD_FINISH_ERROR
};

/* Minted by the router for one (attempt, P, D); D checks it before it answers P and P before it
 * pushes. */
struct td_wire_ticket {
    uint64_t p_epoch, d_epoch;
    uint8_t nonce[16];
    uint32_t life_ms;
};

/* What P and D both need to know about a request. */
struct td_wire_request {
    struct td_work_id id;
    uint32_t budget_ms;                                      /* time left */
    int32_t priority;                                        /* lower runs first */
    const char *tenant, *traceparent, *request_id, *adapter; /* never NULL; "" when absent */
    const char *tracestate;                                  /* the same; up to TD_WIRE_MAX_TEXT */
    uint32_t kv_group;
    uint64_t numerics_id, layout_id;
    uint8_t cache_salt[32]; /* HMAC(server secret, tenant, client salt): root of the block hashes */
    const int32_t *prompt;
    uint32_t n_prompt; /* prompt, then the n_replayed output tokens of earlier attempts */
    uint32_t n_replayed;
    struct td_sampling_params sampling;
};

struct td_wire_prefill { /* router -> P */
    struct td_wire_request r;
    struct td_wire_ticket ticket;
    const char *decode_node;
    uint32_t
        hold_ms; /* keep the KV so long for whoever knows the nonce (ticket.d_epoch is 0); 0: for
                         the ticket's pair */
};

enum td_reserve_mode {
    TD_RESERVE_REMOTE = 1,
    TD_RESERVE_LOCAL = 2
}; /* LOCAL: D prefills by itself */

struct td_wire_reserve { /* router -> D */
    struct td_wire_request r;
    enum td_reserve_mode mode;
    struct td_wire_ticket ticket; /* REMOTE */
    const char *prefill_node;
    const uint8_t *p_address; /* UCX worker address of P's rank 0 */
    uint32_t p_address_len;
    struct td_work_id held; /* P's work, when it holds the KV for another router; zero: r.id */
};

struct td_wire_cancel { /* router -> node; legal in every state, idempotent */
    struct td_work_id id;
    td_err reason;
};
struct td_wire_cancel_ack { /* node -> router: no new work, and blocks are given back or quarantined
                             */
    struct td_work_id id;
    bool known;
};

struct td_wire_token {
    struct td_work_id id;
    uint32_t index; /* of the output token, from 0 over all attempts: position = n_prompt + index */
    int32_t token;
    float logprob;
    enum td_finish finish; /* set on the last token of the work */
};
struct td_wire_tokens { /* node -> router: everything one engine step produced for this router */
    uint64_t step;
    uint32_t n;
    const struct td_wire_token *tokens;
};

struct td_wire_stages { /* measured where they happen; 0 when the stage did not occur */
    uint64_t prefill_queue_us, prefill_us, transfer_us, transfer_exposed_us, decode_queue_us,
        decode_us;
    uint64_t kv_bytes, cached_tokens, prompt_tokens, output_tokens;
    const char *transport; /* "" when nothing moved */
};
struct td_wire_end { /* node -> router: the node's last word about this work; no token follows */
    struct td_work_id id;
    td_err err;
    const char *text; /* why, for people */
    struct td_wire_stages stages;
};

struct td_wire_state { /* node -> router; `seq` without gap, else the router asks for a full one */
    uint64_t seq;
    bool full, ready, draining;
    enum td_role role;
    uint32_t queued_requests, running_requests;
    uint64_t queued_prompt_tok; /* not yet computed */
    uint32_t blocks[TD_BLK_STATES];
    uint32_t prefill_us_per_ktok; /* recent cost of 1000 prompt tokens */
    uint32_t decode_step_us;      /* recent cost of a step */
};

struct td_wire_lease { /* PARK (P -> router), LEASE (router or D -> P: renew), PULL (router -> D) */
    struct td_work_id id;
    uint32_t life_ms;
};
struct td_wire_drain { /* router -> node, or node -> router as its announcement */
    uint32_t limit_ms; /* then what still runs is ended; 0: never */
    const char *why;
    bool undo; /* admit again */
};
struct td_wire_go_away {
    td_err reason;
    const char *text;
};
struct td_wire_role_change {
    enum td_role role;
};

/* ---- data plane, node to node ---- */
struct td_block_ref {
    uint32_t index, generation;
};
struct td_wire_table { /* D -> P: push here */
    struct td_work_id id;
    struct td_wire_ticket ticket;
    uint64_t land; /* D's handle: comes back in every slice header */
    uint64_t layout_id;
    uint32_t first_tok,
        n_tok; /* tokens wanted: [first_tok, first_tok + n_tok); the first are cached on D */
    uint32_t n_blocks;
    const struct td_block_ref *blocks; /* of those tokens */
    uint32_t kv_group;
};
struct td_wire_record { /* P -> D: the hand-over; only a record that verifies lets D start */
    struct td_work_id id;
    uint64_t land, p_epoch, d_epoch, layout_id, numerics_id;
    uint32_t n_tok;    /* tokens whose KV was pushed, counted from position 0 */
    uint32_t n_slices; /* layers * chunks posted */
    int32_t first_token;
    float first_logprob;
    enum td_finish finish; /* of the first token */
    uint64_t seed;
    struct td_wire_stages stages;   /* P's part */
    const uint8_t *grammar, *draft; /* state blobs; reserved */
    uint32_t grammar_len, draft_len;
    uint32_t kv_group;
};
struct td_wire_taken { /* D -> P: P may free its copy (OK), or D threw the KV away */
    struct td_work_id id;
    td_err err;
};
struct td_wire_abort { /* either way: this work is over here; stop pushing or waiting */
    struct td_work_id id;
    uint64_t land;
    td_err err;
};

enum td_wire_type {
    TD_WIRE_NONE,
    TD_WIRE_PREFILL,
    TD_WIRE_RESERVE,
    TD_WIRE_CANCEL,
    TD_WIRE_CANCEL_ACK,
    TD_WIRE_TOKENS,
    TD_WIRE_END,
    TD_WIRE_STATE,
    TD_WIRE_STATE_REQUEST, /* no body */
    TD_WIRE_PARK,
    TD_WIRE_PULL,
    TD_WIRE_LEASE,
    TD_WIRE_DRAIN,
    TD_WIRE_ROLE,
    TD_WIRE_GO_AWAY,
    TD_WIRE_TABLE,
    TD_WIRE_RECORD,
    TD_WIRE_TAKEN,
    TD_WIRE_ABORT,
    TD_WIRE_TYPES
};

struct td_wire_msg {
    enum td_wire_type type;
    union {
        struct td_wire_prefill prefill;
        struct td_wire_reserve reserve;
        struct td_wire_cancel cancel;
        struct td_wire_cancel_ack cancel_ack;
        struct td_wire_tokens tokens;
        struct td_wire_end end;
        struct td_wire_state state;
        struct td_wire_lease lease; /* PARK, PULL, LEASE */
        struct td_wire_drain drain;
        struct td_wire_role_change role;
        struct td_wire_go_away go_away;
        struct td_wire_table table;
        struct td_wire_record record;
        struct td_wire_taken taken;
        struct td_wire_abort abort;
    };
};

/* Appends the encoded message to `out`. */
td_err td_wire_encode(const struct td_wire_msg *m, struct td_buf *out) TD_MUST_CHECK;
/* Decodes one message; everything it points at is in `arena`. */
td_err td_wire_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                      struct td_wire_msg *out) TD_MUST_CHECK;
/* The id the message is about, or NULL (TOKENS, STATE, ...). */
const struct td_work_id *td_wire_id(const struct td_wire_msg *m);
const char *td_wire_type_name(enum td_wire_type t);

/* ---- identities exchanged while attaching (common/io/link_session.h) ---- */
struct td_wire_rank {
    uint32_t rank, tp, pp, first_layer, n_layers, first_head, n_heads;
    const uint8_t *address; /* data plane (UCX worker address) */
    uint32_t address_len;
};
struct td_wire_layout { /* mirrors common/model/kv_layout.h */
    uint64_t id;
    uint32_t version, group, n_layers, n_kv_heads, head_dim, block_tok, dtype, order, slice_bytes,
        window;
};
struct td_wire_node_info {
    uint64_t epoch;
    const char *name, *version, *model_name, *numerics, *admin_address;
    enum td_role role;
    uint32_t version_min, version_max;
    uint64_t features;
    uint8_t model_id[32], tokenizer_hash[32], template_hash[32];
    struct td_wire_layout layout;
    uint64_t numerics_id;
    uint32_t max_model_len, n_blocks, max_seqs, max_batched_tokens;
    uint32_t n_ranks;
    const struct td_wire_rank *ranks;
};
struct td_wire_router_info {
    uint64_t epoch;
    const char *name, *version;
    uint32_t version_min, version_max;
    uint64_t features;
    uint8_t model_id[32], tokenizer_hash[32],
        template_hash[32]; /* of the file the router tokenises with */
};

td_err td_wire_node_info_encode(const struct td_wire_node_info *i,
                                struct td_buf *out) TD_MUST_CHECK;
td_err td_wire_node_info_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                                struct td_wire_node_info *out) TD_MUST_CHECK;
td_err td_wire_router_info_encode(const struct td_wire_router_info *i,
                                  struct td_buf *out) TD_MUST_CHECK;
td_err td_wire_router_info_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                                  struct td_wire_router_info *out) TD_MUST_CHECK;

#endif
