/* wire_pb.h - what the files of proto/ share: the generated structs under short names, the bounds
 * of every field, and the arena allocator given to protobuf-c. Private to this folder; the only
 * file that includes *.pb-c.h.
 *
 * Bounds: one row per kind of number or count below; decoding refuses what is outside with
 * TD_ERR_PROTOCOL.
 * Thread: any, no state.
 */
#ifndef TD_PROTO_WIRE_PB_H
#define TD_PROTO_WIRE_PB_H

#include <stdint.h>

#include "proto/wire.h"
#include "proto/wire.pb-c.h"

#define PB(name)         Tandem__Wire__V1__##name
#define PB_MSG(constant) TANDEM__WIRE__V1__MESSAGE__BODY_##constant

/* X(name, lowest, highest) */
#define WIRE_BOUNDS(X)                                                                             \
    X(ATTEMPT, 0, 15)                                                                              \
    X(CHOICE, 0, 1023)                                                                             \
    X(TIME_MS, 0, 7 * 86400000LL)                                                                  \
    X(PRIORITY, -(1 << 30), 1 << 30)                                                               \
    X(KV_GROUP, 0, 15)                                                                             \
    X(PROMPT, 1, TD_WIRE_MAX_PROMPT)                                                               \
    X(POSITION, 0, TD_WIRE_MAX_PROMPT)                                                             \
    X(TOKEN_ID, 0, 1 << 24)                                                                        \
    X(TOP_K, 0, 1 << 24)                                                                           \
    X(LOGPROBS, 0, 64)                                                                             \
    X(MAX_TOKENS, 1, TD_WIRE_MAX_PROMPT)                                                           \
    X(STOP_IDS, 0, TD_SAMPLING_MAX_STOP_IDS)                                                       \
    X(BIAS, 0, TD_SAMPLING_MAX_BIAS)                                                               \
    X(TOKENS, 0, TD_WIRE_MAX_TOKENS_MSG)                                                           \
    X(FINISH, TD_FINISH_NONE, TD_FINISH_ERROR)                                                     \
    X(MODE, TD_RESERVE_REMOTE, TD_RESERVE_LOCAL)                                                   \
    X(ROLE, TD_ROLE_PREFILL, TD_ROLE_BOTH)                                                         \
    X(STATE_COLUMNS, 0, 64)                                                                        \
    X(BLOCKS, 0, TD_WIRE_MAX_BLOCKS)                                                               \
    X(REQUIRES, 0, TD_WIRE_MAX_REQUIRES)                                                           \
    X(ADDRESS_BYTES, 0, TD_WIRE_MAX_ADDR)                                                          \
    X(BLOB_BYTES, 0, 1 << 20)                                                                      \
    X(RANKS, 0, TD_WIRE_MAX_RANKS)                                                                 \
    X(PARALLEL, 0, TD_WIRE_MAX_RANKS)                                                              \
    X(LAYERS, 0, 4096)                                                                             \
    X(HEADS, 0, 4096)                                                                              \
    X(HEAD_DIM, 0, 4096)                                                                           \
    X(BLOCK_TOK, 0, 4096)                                                                          \
    X(LAYOUT_CODE, 0, 255)                                                                         \
    X(SLICE_BYTES, 0, 1 << 30)                                                                     \
    X(WINDOW, 0, 1 << 24)

enum wire_bound {
#define WIRE_BOUND_ENUM(name, lo, hi) WIRE_##name,
    WIRE_BOUNDS(WIRE_BOUND_ENUM)
#undef WIRE_BOUND_ENUM
        WIRE_BOUND_COUNT
};

/* True when v lies inside the bound; else says so in the debug log. */
bool wire_in(enum wire_bound b, int64_t v);
bool wire_float_in(float v, float lo, float hi);

/* The arena as protobuf-c's allocator, with a cap for one unpacking so that a hostile message costs
 * memory in proportion to its length. free is a no-op: the arena frees all at once. */
struct wire_alloc {
    ProtobufCAllocator pb;
    struct td_arena *arena;
    size_t left;
    bool arena_full;
};
void wire_alloc_init(struct wire_alloc *a, struct td_arena *arena, size_t message_len);
/* Unpacks a message, or NULL with *out_err set. */
ProtobufCMessage *wire_unpack(const ProtobufCMessageDescriptor *d, const uint8_t *data, size_t len,
                              struct td_arena *arena, td_err *out_err);
/* Appends the packed message; TD_ERR_TOO_LARGE above TD_WIRE_MAX_BYTES. */
td_err wire_pack(const ProtobufCMessage *m, struct td_buf *out);

/* Strings: absent is "", too long or not UTF-8 is refused. */
bool wire_text_in(const char *s, size_t max, const char **out);
/* 32-byte hashes: absent is zero. */
bool wire_hash_in(protobuf_c_boolean has, const ProtobufCBinaryData *b, uint8_t out[32]);
/* For encoding: NULL for "", so that it takes no byte. */
char *wire_text_out(const char *s);
ProtobufCBinaryData wire_bytes_out(const void *data, size_t len);

#endif
