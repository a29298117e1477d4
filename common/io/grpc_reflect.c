#define TD_LOG_ROOM "io"
#include "common/io/grpc_reflect.h"

#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "proto/grpc_std.h"

#define ARENA_BYTES (1u << 20)
#define ANSWER_MAX  (4u << 20)

struct td_grpc_reflect {
    struct td_grpc_server *server; /* borrowed */
    struct td_arena *arena;        /* owned */
    struct td_grpc_method method;
};

static td_err list_services(const struct td_grpc_reflect *r, const struct td_reflect_request *q,
                            struct td_buf *out)
{
    const char *names[TD_GRPC_MAX_SERVICES];
    uint32_t n = 0;
    while (n < TD_GRPC_MAX_SERVICES && td_grpc_server_service(r->server, n) != NULL) {
        names[n] = td_grpc_server_service(r->server, n);
        n++;
    }
    return td_pb_reflect_services(out, q, names, n);
}

static td_err answer(const struct td_grpc_reflect *r, const struct td_reflect_request *q,
                     struct td_buf *out)
{
    uint32_t file = TD_PB_NO_FILE;
    switch (q->ask) {
    case TD_REFLECT_SERVICES:
        return list_services(r, q, out);
    case TD_REFLECT_FILE:
        file = td_pb_file_by_name(q->text);
        break;
    case TD_REFLECT_SYMBOL:
        file = td_pb_file_by_symbol(q->text);
        break;
    case TD_REFLECT_EXTENSIONS:
        if (td_pb_file_by_symbol(q->text) != TD_PB_NO_FILE) {
            return td_pb_reflect_extensions(out, q);
        }
        break;
    case TD_REFLECT_EXTENSION:
        break;
    case TD_REFLECT_NOTHING:
        return td_pb_reflect_error(out, q, TD_GRPC_INVALID_ARGUMENT,
                                   "the request asks for nothing");
    }
    return file != TD_PB_NO_FILE ? td_pb_reflect_file(out, q, file)
                                 : td_pb_reflect_error(out, q, TD_GRPC_NOT_FOUND, "not found");
}

static void h_info(void *arg, struct td_grpc_call *call, const uint8_t *message, size_t len)
{
    struct td_grpc_reflect *r = arg;
    struct td_reflect_request q;
    struct td_buf b;
    if (message == NULL) {
        td_grpc_finish(call, TD_GRPC_OK, NULL, NULL, 0);
        return;
    }
    td_arena_reset(r->arena);
    td_err err = td_pb_reflect_decode(message, len, r->arena, &q);
    if (err != TD_OK) {
        td_grpc_fail(call, err, "not a ServerReflectionRequest", 0);
        return;
    }
    td_buf_init(&b, ANSWER_MAX);
    err = answer(r, &q, &b);
    if (err != TD_OK) {
        td_grpc_fail(call, err, NULL, 0);
    } else {
        TD_IGNORE(td_grpc_send(call, b.data, b.len)); /* a client that does not read is reset */
    }
    td_buf_fini(&b);
}

td_err td_grpc_reflect_create(struct td_grpc_server *server, bool open,
                              struct td_grpc_reflect **out_reflect)
{
    struct td_grpc_reflect *r = td_zalloc(1, sizeof *r);
    if (r == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    r->server = server;
    r->method = (struct td_grpc_method){
        .name = "ServerReflectionInfo", .open = open, .client_streams = true, .handle = h_info};
    r->arena = td_arena_create(ARENA_BYTES);
    if (r->arena == NULL) {
        return td_grpc_reflect_destroy(r) == NULL ? TD_ERR_NO_MEMORY : TD_OK;
    }
    struct td_grpc_service service = {.name = "grpc.reflection.v1.ServerReflection",
                                      .methods = &r->method,
                                      .n_methods = 1,
                                      .arg = r};
    td_grpc_server_add(server, &service);
    service.name = "grpc.reflection.v1alpha.ServerReflection";
    td_grpc_server_add(server, &service);
    *out_reflect = r;
    return TD_OK;
}

struct td_grpc_reflect *td_grpc_reflect_destroy(struct td_grpc_reflect *r)
{
    if (r != NULL) {
        td_arena_destroy(r->arena);
        free(r);
    }
    return NULL;
}
