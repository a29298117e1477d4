#include "proto/grpc_std.h"

#include <string.h>

#include "proto/api_pb.h"

td_err td_pb_health_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                           const char **out_service)
{
    ProtobufCMessage *m = NULL;
    TD_TRY(api_unpack(&grpc__health__v1__health_check_request__descriptor, data, len, arena, &m));
    *out_service = ((const HEALTH(HealthCheckRequest) *)(const void *)m)->service;
    return TD_OK;
}

td_err td_pb_health_encode(struct td_buf *out, enum td_health status)
{
    HEALTH(HealthCheckResponse) r = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    r.status = (HEALTH(HealthCheckResponse__ServingStatus))status;
    return api_pack(&r.base, out);
}

td_err td_pb_health_ask_encode(struct td_buf *out, const char *service)
{
    HEALTH(HealthCheckRequest) r = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    r.service = api_text(service);
    return api_pack(&r.base, out);
}

td_err td_pb_health_answer_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                                  enum td_health *out_status)
{
    ProtobufCMessage *m = NULL;
    TD_TRY(api_unpack(&grpc__health__v1__health_check_response__descriptor, data, len, arena, &m));
    int status = (int)((const HEALTH(HealthCheckResponse) *)(const void *)m)->status;
    if (status < 0 || status > TD_HEALTH_SERVICE_UNKNOWN) {
        return TD_ERR_BAD_REQUEST; /* protobuf-c lets any number through */
    }
    *out_status = (enum td_health)status;
    return TD_OK;
}

#define ASK(name) GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##name

td_err td_pb_reflect_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                            struct td_reflect_request *out)
{
    ProtobufCMessage *m = NULL;
    TD_TRY(api_unpack(&grpc__reflection__v1__server_reflection_request__descriptor, data, len,
                      arena, &m));
    const REFLECT(ServerReflectionRequest) *r =
        (const REFLECT(ServerReflectionRequest) *)(const void *)m;
    struct td_reflect_request q = {.host = r->host, .text = "", .data = data, .len = len};
    switch (r->message_request_case) {
    case ASK(FILE_BY_FILENAME):
        q.ask = TD_REFLECT_FILE;
        q.text = r->file_by_filename;
        break;
    case ASK(FILE_CONTAINING_SYMBOL):
        q.ask = TD_REFLECT_SYMBOL;
        q.text = r->file_containing_symbol;
        break;
    case ASK(FILE_CONTAINING_EXTENSION):
        q.ask = TD_REFLECT_EXTENSION;
        q.text = r->file_containing_extension->containing_type;
        q.number = r->file_containing_extension->extension_number;
        break;
    case ASK(ALL_EXTENSION_NUMBERS_OF_TYPE):
        q.ask = TD_REFLECT_EXTENSIONS;
        q.text = r->all_extension_numbers_of_type;
        break;
    case ASK(LIST_SERVICES):
        q.ask = TD_REFLECT_SERVICES;
        q.text = r->list_services;
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST__NOT_SET:
    case _GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST__CASE_IS_INT_SIZE:
        break;
    }
    *out = q;
    return TD_OK;
}

#define FIELD_VALID_HOST 1
#define FIELD_ORIGINAL   2
#define FIELD_FILES      4
#define FIELD_FILE       1 /* of FileDescriptorResponse */

static td_err begin(struct td_buf *out, const struct td_reflect_request *r)
{
    if (r->host[0] != 0) {
        TD_TRY(api_put_bytes(out, FIELD_VALID_HOST, r->host, strlen(r->host)));
    }
    return api_put_bytes(out, FIELD_ORIGINAL, r->data, r->len);
}

td_err td_pb_reflect_services(struct td_buf *out, const struct td_reflect_request *r,
                              const char *const *names, uint32_t n)
{
    TD_TRY(begin(out, r));
    REFLECT(ServerReflectionResponse) m = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
    REFLECT(ListServiceResponse) empty = GRPC__REFLECTION__V1__LIST_SERVICE_RESPONSE__INIT;
    m.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE;
    m.list_services_response = &empty;
    TD_TRY(n == 0 ? api_pack(&m.base, out) : TD_OK);
    for (uint32_t i = 0; i < n; i++) { /* parts of one message merge */
        REFLECT(ServiceResponse) s = GRPC__REFLECTION__V1__SERVICE_RESPONSE__INIT;
        REFLECT(ServiceResponse) *one = &s;
        REFLECT(ListServiceResponse) list = GRPC__REFLECTION__V1__LIST_SERVICE_RESPONSE__INIT;
        s.name = api_text(names[i]);
        list.service = &one;
        list.n_service = 1;
        m.list_services_response = &list;
        TD_TRY(api_pack(&m.base, out));
    }
    return TD_OK;
}

td_err td_pb_reflect_error(struct td_buf *out, const struct td_reflect_request *r, int32_t code,
                           const char *text)
{
    REFLECT(ErrorResponse) e = GRPC__REFLECTION__V1__ERROR_RESPONSE__INIT;
    REFLECT(ServerReflectionResponse) m = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
    TD_TRY(begin(out, r));
    e.error_code = code;
    e.error_message = api_text(text);
    m.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ERROR_RESPONSE;
    m.error_response = &e;
    return api_pack(&m.base, out);
}

td_err td_pb_reflect_extensions(struct td_buf *out, const struct td_reflect_request *r)
{
    REFLECT(ExtensionNumberResponse) e = GRPC__REFLECTION__V1__EXTENSION_NUMBER_RESPONSE__INIT;
    REFLECT(ServerReflectionResponse) m = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
    TD_TRY(begin(out, r));
    e.base_type_name = api_text(r->text);
    m.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ALL_EXTENSION_NUMBERS_RESPONSE;
    m.all_extension_numbers_response = &e;
    return api_pack(&m.base, out);
}

/* None of our files imports another: tests/unit/proto/grpc_std_test.c notices the first that does. */
td_err td_pb_reflect_file(struct td_buf *out, const struct td_reflect_request *r, uint32_t file)
{
    struct td_buf files;
    TD_TRY(begin(out, r));
    td_buf_init(&files, out->max);
    const struct td_pb_file *f = &td_pb_files[file];
    td_err err = api_put_bytes(&files, FIELD_FILE, f->data, f->len);
    for (uint32_t i = 0; err == TD_OK && i < f->n_imports; i++) {
        const struct td_pb_file *other = &td_pb_files[f->imports[i]];
        err = api_put_bytes(&files, FIELD_FILE, other->data, other->len);
    }
    err = err == TD_OK ? api_put_bytes(out, FIELD_FILES, files.data, files.len) : err;
    td_buf_fini(&files);
    return err;
}

uint32_t td_pb_file_by_name(const char *name)
{
    for (uint32_t i = 0; i < td_pb_n_files; i++) {
        if (strcmp(td_pb_files[i].name, name) == 0) {
            return i;
        }
    }
    return TD_PB_NO_FILE;
}

uint32_t td_pb_file_by_symbol(const char *symbol)
{
    for (uint32_t i = 0; i < td_pb_n_symbols; i++) {
        if (strcmp(td_pb_symbols[i].name, symbol) == 0) {
            return td_pb_symbols[i].file;
        }
    }
    return TD_PB_NO_FILE;
}
