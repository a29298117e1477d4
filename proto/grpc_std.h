/* grpc_std.h - the messages of gRPC's own services, health checking and reflection, as plain values, and the descriptors of
 * every public .proto file, embedded at build time.
 *
 * Owner and thread: the caller's; no state. Bounds: texts of TD_PB_MAX_NAME bytes. Failure: TD_ERR_BAD_REQUEST.
 */
#ifndef TD_PROTO_GRPC_STD_H
#define TD_PROTO_GRPC_STD_H

#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/err.h"

enum td_health { /* numbers of ServingStatus */
                 TD_HEALTH_UNKNOWN = 0,
                 TD_HEALTH_SERVING = 1,
                 TD_HEALTH_NOT_SERVING = 2,
                 TD_HEALTH_SERVICE_UNKNOWN = 3,
};
td_err td_pb_health_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                           const char **out_service) TD_MUST_CHECK;
td_err td_pb_health_encode(struct td_buf *out, enum td_health status) TD_MUST_CHECK;

/* The other way round, for a client. */
td_err td_pb_health_ask_encode(struct td_buf *out, const char *service) TD_MUST_CHECK;
td_err td_pb_health_answer_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                                  enum td_health *out_status) TD_MUST_CHECK;

/* v1 and v1alpha are the same on the wire. */
enum td_reflect_ask {
    TD_REFLECT_NOTHING,
    TD_REFLECT_FILE,       /* by name */
    TD_REFLECT_SYMBOL,     /* the file of a symbol */
    TD_REFLECT_EXTENSION,  /* the file of an extension: we have none */
    TD_REFLECT_EXTENSIONS, /* numbers of all extensions of a type */
    TD_REFLECT_SERVICES,
};
struct td_reflect_request {
    enum td_reflect_ask ask;
    const char *host, *text;
    int32_t number;
    const uint8_t *data; /* borrowed: comes back in the answer */
    size_t len;
};
td_err td_pb_reflect_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                            struct td_reflect_request *out) TD_MUST_CHECK;
/* Each begins with the request, as the protocol asks. */
td_err td_pb_reflect_services(struct td_buf *out, const struct td_reflect_request *r,
                              const char *const *names, uint32_t n) TD_MUST_CHECK;
td_err td_pb_reflect_error(struct td_buf *out, const struct td_reflect_request *r, int32_t code,
                           const char *text) TD_MUST_CHECK;
td_err td_pb_reflect_extensions(struct td_buf *out,
                                const struct td_reflect_request *r) TD_MUST_CHECK;
/* The file and all it imports. */
td_err td_pb_reflect_file(struct td_buf *out, const struct td_reflect_request *r,
                          uint32_t file) TD_MUST_CHECK;

/* ---- descriptors ---- */
struct td_pb_file {
    const char *name;
    const uint8_t *data; /* a FileDescriptorProto */
    uint32_t len;
    const uint32_t *imports; /* [n_imports] files that it needs, directly or not */
    uint32_t n_imports;
};
struct td_pb_symbol {
    const char *name; /* "tandem.v1.Engine.Generate" */
    uint32_t file;
};
#define TD_PB_NO_FILE UINT32_MAX
uint32_t td_pb_file_by_name(const char *name);
uint32_t td_pb_file_by_symbol(const char *symbol);

/* Generated: proto/embed.py. */
extern const struct td_pb_file td_pb_files[];
extern const uint32_t td_pb_n_files;
extern const struct td_pb_symbol td_pb_symbols[];
extern const uint32_t td_pb_n_symbols;

#endif
