/* api_pb.h - what the files of the public API share: its generated structs under short names, the check that comes before
 * protobuf-c, unpacking into an arena. Private to this folder.
 *
 * Thread: any, no state.
 */
#ifndef TD_PROTO_API_PB_H
#define TD_PROTO_API_PB_H

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "proto/grpc_health.pb-c.h"
#include "proto/grpc_reflection.pb-c.h"
#include "proto/tandem.pb-c.h"

#define API(name)     Tandem__V1__##name
#define HEALTH(name)  Grpc__Health__V1__##name
#define REFLECT(name) Grpc__Reflection__V1__##name

#define API_MAX_DEPTH  8       /* of messages in messages */
#define API_MAX_FIELDS 1000000 /* in one message, those inside it included */

/* What protobuf-c does not look at: depth, number of fields, strings that hold a zero byte or are no UTF-8. Wire-level
 * mistakes it finds are refused too; the others are protobuf-c's to find. */
td_err api_check(const ProtobufCMessageDescriptor *d, const uint8_t *data,
                 size_t len) TD_MUST_CHECK;
/* Checked and unpacked into the arena: TD_ERR_BAD_REQUEST for a bad message, TD_ERR_NO_MEMORY. */
td_err api_unpack(const ProtobufCMessageDescriptor *d, const uint8_t *data, size_t len,
                  struct td_arena *arena, ProtobufCMessage **out) TD_MUST_CHECK;
/* Without the check, for messages of a bounded depth whose text may hold zero bytes. */
td_err api_unpack_unchecked(const ProtobufCMessageDescriptor *d, const uint8_t *data, size_t len,
                            struct td_arena *arena, ProtobufCMessage **out) TD_MUST_CHECK;
/* The bytes of the last such field of a message, which counts; none: *out_len is 0. False: not a message. */
bool api_find_bytes(const uint8_t *data, size_t len, uint32_t field, const uint8_t **out,
                    size_t *out_len);
td_err api_pack(const ProtobufCMessage *m, struct td_buf *out) TD_MUST_CHECK;
/* protobuf-c's structs are not const; packing does not write. */
char *api_text(const char *s);
/* A field of bytes or text by hand, so that text may hold zero bytes. */
td_err api_put_bytes(struct td_buf *out, uint32_t field, const void *data,
                     size_t len) TD_MUST_CHECK;

#endif
