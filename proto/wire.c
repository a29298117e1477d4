#include "proto/wire.h"

#include <math.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/utf8.h"
#include "proto/wire_pb.h"
#define TD_LOG_ROOM "proto"
#include "common/base/log.h"

/* Memory that unpacking may take: a fixed part for small messages, and at most so many bytes per
 * byte of message (a packed varint of one byte becomes 4 to 8). Unknown fields cost more than this
 * per byte when there are many of them: a message that consists of them is refused. */
#define ALLOC_BASE     ((size_t)128 * 1024)
#define ALLOC_PER_BYTE 12u

static const struct {
    const char *name;
    int64_t lo, hi;
} bounds[WIRE_BOUND_COUNT] = {
#define BOUND_ROW(name, lo, hi) {#name, (lo), (hi)},
    WIRE_BOUNDS(BOUND_ROW)
#undef BOUND_ROW
};

bool wire_in(enum wire_bound b, int64_t v)
{
    if (v >= bounds[b].lo && v <= bounds[b].hi) {
        return true;
    }
    TD_LOG(DEBUG, "message breaks a bound", "bound=%s value=%lld", bounds[b].name, (long long)v);
    return false;
}

bool wire_float_in(float v, float lo, float hi)
{
    return v >= lo && v <= hi; /* false for NaN */
}

static void *arena_alloc(void *data, size_t size)
{
    struct wire_alloc *a = data;
    if (size > a->left) {
        return NULL;
    }
    void *p = td_arena_alloc(a->arena, size);
    if (p == NULL) {
        a->arena_full = true;
        return NULL;
    }
    a->left -= size;
    return p;
}

static void arena_free(void *data, void *p)
{
    (void)data;
    (void)p;
}

void wire_alloc_init(struct wire_alloc *a, struct td_arena *arena, size_t message_len)
{
    *a = (struct wire_alloc){
        .pb = {.alloc = arena_alloc, .free = arena_free, .allocator_data = a},
        .arena = arena,
        .left = ALLOC_BASE + message_len * ALLOC_PER_BYTE,
    };
}

ProtobufCMessage *wire_unpack(const ProtobufCMessageDescriptor *d, const uint8_t *data, size_t len,
                              struct td_arena *arena, td_err *out_err)
{
    struct wire_alloc a;
    if (len > TD_WIRE_MAX_BYTES) {
        *out_err = TD_ERR_PROTOCOL;
        return NULL;
    }
    wire_alloc_init(&a, arena, len);
    ProtobufCMessage *m = protobuf_c_message_unpack(d, &a.pb, len, data);
    if (m == NULL) {
        *out_err = a.arena_full ? TD_ERR_NO_MEMORY : TD_ERR_PROTOCOL;
    }
    return m;
}

td_err wire_pack(const ProtobufCMessage *m, struct td_buf *out)
{
    size_t size = protobuf_c_message_get_packed_size(m);
    uint8_t *at;
    if (size > TD_WIRE_MAX_BYTES) {
        return TD_ERR_TOO_LARGE;
    }
    TD_TRY(td_buf_reserve(out, size, &at));
    size_t packed = protobuf_c_message_pack(m, at);
    TD_INSIST(packed == size);
    out->len += size;
    return TD_OK;
}

bool wire_text_in(const char *s, size_t max, const char **out)
{
    /* protobuf-c's default for an absent string is NULL. Embedded zeros cut the string, which is
     * harmless. */
    size_t len = s != NULL ? strlen(s) : 0;
    if (len > max || (len > 0 && !td_utf8_valid(s, len))) {
        TD_LOG(DEBUG, "message breaks a bound", "bound=TEXT value=%zu", len);
        return false;
    }
    *out = s != NULL ? s : "";
    return true;
}

bool wire_hash_in(protobuf_c_boolean has, const ProtobufCBinaryData *b, uint8_t out[32])
{
    if (has != 0 && b->len != 32) {
        TD_LOG(DEBUG, "message breaks a bound", "bound=HASH value=%zu", b->len);
        return false;
    }
    if (has != 0) {
        memcpy(out, b->data, 32);
    } else {
        memset(out, 0, 32);
    }
    return true;
}

char *wire_text_out(const char *s)
{
    /* protobuf-c's structs are not const; packing does not write. */
    return s != NULL && s[0] != '\0' ? (char *)(uintptr_t)s : NULL;
}

ProtobufCBinaryData wire_bytes_out(const void *data, size_t len)
{
    return (ProtobufCBinaryData){.len = len, .data = (uint8_t *)(uintptr_t)data};
}

const struct td_work_id *td_wire_id(const struct td_wire_msg *m)
{
    switch (m->type) {
    case TD_WIRE_PREFILL:
        return &m->prefill.r.id;
    case TD_WIRE_RESERVE:
        return &m->reserve.r.id;
    case TD_WIRE_CANCEL:
        return &m->cancel.id;
    case TD_WIRE_CANCEL_ACK:
        return &m->cancel_ack.id;
    case TD_WIRE_END:
        return &m->end.id;
    case TD_WIRE_PARK:
    case TD_WIRE_PULL:
    case TD_WIRE_LEASE:
        return &m->lease.id;
    case TD_WIRE_TABLE:
        return &m->table.id;
    case TD_WIRE_RECORD:
        return &m->record.id;
    case TD_WIRE_TAKEN:
        return &m->taken.id;
    case TD_WIRE_ABORT:
        return &m->abort.id;
    case TD_WIRE_NONE:
    case TD_WIRE_TOKENS:
    case TD_WIRE_STATE:
    case TD_WIRE_STATE_REQUEST:
    case TD_WIRE_DRAIN:
    case TD_WIRE_ROLE:
    case TD_WIRE_GO_AWAY:
    case TD_WIRE_TYPES:
        return NULL;
    }
    return NULL;
}

const char *td_wire_type_name(enum td_wire_type t)
{
    static const char *const type_names[TD_WIRE_TYPES] = {
        [TD_WIRE_NONE] = "none",
        [TD_WIRE_PREFILL] = "prefill",
        [TD_WIRE_RESERVE] = "reserve",
        [TD_WIRE_CANCEL] = "cancel",
        [TD_WIRE_CANCEL_ACK] = "cancel_ack",
        [TD_WIRE_TOKENS] = "tokens",
        [TD_WIRE_END] = "end",
        [TD_WIRE_STATE] = "state",
        [TD_WIRE_STATE_REQUEST] = "state_request",
        [TD_WIRE_PARK] = "park",
        [TD_WIRE_PULL] = "pull",
        [TD_WIRE_LEASE] = "lease",
        [TD_WIRE_DRAIN] = "drain",
        [TD_WIRE_ROLE] = "role",
        [TD_WIRE_GO_AWAY] = "go_away",
        [TD_WIRE_TABLE] = "table",
        [TD_WIRE_RECORD] = "record",
        [TD_WIRE_TAKEN] = "taken",
        [TD_WIRE_ABORT] = "abort",
    };
    return t >= 0 && t < TD_WIRE_TYPES ? type_names[t] : "unknown";
}
