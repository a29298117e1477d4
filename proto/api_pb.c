#include "proto/api_pb.h"

#include <string.h>

#include "common/base/utf8.h"
#include "proto/wire_pb.h"

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

struct cursor {
    const uint8_t *at, *end;
    uint32_t *fields; /* seen so far, of the whole message */
};

static bool take_varint(struct cursor *c, uint64_t *out)
{
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 64 && c->at < c->end; shift += 7) {
        uint8_t b = *c->at++;
        v |= (uint64_t)(b & 0x7f) << shift;
        if ((b & 0x80) == 0) {
            *out = v;
            return true;
        }
    }
    return false;
}

static bool skip(struct cursor *c, size_t n)
{
    if ((size_t)(c->end - c->at) < n) {
        return false;
    }
    c->at += n;
    return true;
}

static bool check_message(const ProtobufCMessageDescriptor *d, struct cursor *c, unsigned depth);

static bool check_bytes(const ProtobufCFieldDescriptor *f, const uint8_t *data, size_t len,
                        uint32_t *fields, unsigned depth)
{
    if (f == NULL) {
        return true; /* unknown */
    }
    if (f->type == PROTOBUF_C_TYPE_STRING) {
        return memchr(data, 0, len) == NULL && td_utf8_valid((const char *)data, len);
    }
    if (f->type == PROTOBUF_C_TYPE_MESSAGE) {
        struct cursor inner = {.at = data, .end = data + len, .fields = fields};
        return depth < API_MAX_DEPTH && check_message(f->descriptor, &inner, depth + 1);
    }
    return true;
}

static bool check_field(const ProtobufCMessageDescriptor *d, struct cursor *c, unsigned depth)
{
    uint64_t tag = 0, len = 0;
    if (!take_varint(c, &tag) || tag >> 3 == 0 || tag >> 3 > UINT32_MAX >> 3) {
        return false;
    }
    switch (tag & 7) {
    case WIRE_VARINT:
        return take_varint(c, &len);
    case WIRE_64:
        return skip(c, 8);
    case WIRE_32:
        return skip(c, 4);
    case WIRE_BYTES:
        break;
    default:
        return false;
    }
    const uint8_t *data = NULL;
    if (!take_varint(c, &len)) {
        return false;
    }
    data = c->at;
    return skip(c, len) &&
           check_bytes(protobuf_c_message_descriptor_get_field(d, (unsigned)(tag >> 3)), data, len,
                       c->fields, depth);
}

static bool check_message(const ProtobufCMessageDescriptor *d, struct cursor *c, unsigned depth)
{
    while (c->at < c->end) {
        if (++*c->fields > API_MAX_FIELDS || !check_field(d, c, depth)) {
            return false;
        }
    }
    return true;
}

td_err api_check(const ProtobufCMessageDescriptor *d, const uint8_t *data, size_t len)
{
    uint32_t fields = 0;
    struct cursor c = {.at = data, .end = data + len, .fields = &fields};
    return len == 0 || check_message(d, &c, 0) ? TD_OK : TD_ERR_BAD_REQUEST;
}

td_err api_unpack(const ProtobufCMessageDescriptor *d, const uint8_t *data, size_t len,
                  struct td_arena *arena, ProtobufCMessage **out)
{
    TD_TRY(api_check(d, data, len));
    return api_unpack_unchecked(d, data, len, arena, out);
}

bool api_find_bytes(const uint8_t *data, size_t len, uint32_t field, const uint8_t **out,
                    size_t *out_len)
{
    struct cursor c = {.at = data, .end = data + len};
    *out = (const uint8_t *)"";
    *out_len = 0;
    while (c.at < c.end) {
        uint64_t tag = 0, n = 0;
        if (!take_varint(&c, &tag)) {
            return false;
        }
        unsigned type = tag & 7;
        if ((type == WIRE_VARINT || type == WIRE_BYTES) && !take_varint(&c, &n)) {
            return false;
        }
        n = type == WIRE_VARINT ? 0 : type == WIRE_64 ? 8 : type == WIRE_32 ? 4 : n;
        const uint8_t *at = c.at;
        if ((type != WIRE_VARINT && type != WIRE_64 && type != WIRE_32 && type != WIRE_BYTES) ||
            !skip(&c, n)) {
            return false;
        }
        if (type == WIRE_BYTES && tag >> 3 == field) {
            *out = at;
            *out_len = n;
        }
    }
    return true;
}

td_err api_unpack_unchecked(const ProtobufCMessageDescriptor *d, const uint8_t *data, size_t len,
                            struct td_arena *arena, ProtobufCMessage **out)
{
    td_err err = TD_OK;
    ProtobufCMessage *m =
        wire_unpack(d, data != NULL ? data : (const uint8_t *)"", len, arena, &err);
    if (m == NULL) {
        return err == TD_ERR_NO_MEMORY ? err : TD_ERR_BAD_REQUEST;
    }
    *out = m;
    return TD_OK;
}

td_err api_pack(const ProtobufCMessage *m, struct td_buf *out)
{
    return wire_pack(m, out);
}

char *api_text(const char *s)
{
    return s != NULL ? (char *)(uintptr_t)s : (char *)(uintptr_t)protobuf_c_empty_string;
}

static uint32_t put_varint(uint8_t *at, uint64_t v)
{
    uint32_t n = 0;
    while (v >= 0x80) {
        at[n++] = (uint8_t)(v | 0x80);
        v >>= 7;
    }
    at[n++] = (uint8_t)v;
    return n;
}

td_err api_put_bytes(struct td_buf *out, uint32_t field, const void *data, size_t len)
{
    uint8_t head[20];
    uint32_t n = put_varint(head, (uint64_t)field << 3 | WIRE_BYTES);
    n += put_varint(head + n, len);
    TD_TRY(td_buf_append(out, head, n));
    return len > 0 ? td_buf_append(out, data, len) : TD_OK;
}
