#include "ctl/health.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/arena.h"
#include "common/base/config.h"
#include "common/base/mem.h"
#include "common/io/grpc_client.h"
#include "ctl/peer.h"
#include "proto/grpc_std.h"

#define ARENA_BYTES (1u << 20)

struct options {
    char *service;
    double timeout_s;
    struct ctl_tls tls;
};

static const struct td_opt opts[] = {
    CTL_OPT("service", STRING, "", "", 0, 0, NULL,
            "readiness (like none), liveness, prefill, decode", service),
    CTL_OPT("timeout", DOUBLE, "5", "s", 0.01, 3600, NULL, "for the answer", timeout_s),
    CTL_TLS_OPTS(tls),
};

const struct td_program ctl_health_program = {
    .name = "tandemctl health",
    .summary = "ask a router or node over gRPC whether it serves",
    .opts = opts,
    .n_opts = TD_COUNT(opts),
    .struct_bytes = sizeof(struct options)};

static enum ctl_exit show(const struct td_grpc_client_answer *a, struct td_arena *arena)
{
    static const char *const words[] = {"UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"};
    const uint8_t *data = NULL;
    size_t len = 0;
    enum td_health status = TD_HEALTH_UNKNOWN;
    if (a->status != TD_GRPC_OK) {
        ctl_say("the answer is status %d: %s", (int)a->status, a->text);
        return CTL_FAILED;
    }
    if (!td_grpc_client_message(a, 0, &data, &len) ||
        td_pb_health_answer_decode(data, len, arena, &status) != TD_OK) {
        ctl_say("the answer is no health check's");
        return CTL_FAILED;
    }
    (void)puts(words[status]);
    return status == TD_HEALTH_SERVING && fflush(stdout) == 0 ? CTL_OK : CTL_FAILED;
}

static enum ctl_exit ask(const struct options *o, const struct ctl_peer *peer,
                         struct td_arena *arena, struct td_buf *message)
{
    struct td_grpc_client_answer answer;
    char why[256];
    if (td_pb_health_ask_encode(message, o->service != NULL ? o->service : "") != TD_OK) {
        ctl_say("out of memory");
        return CTL_FAILED;
    }
    const struct td_grpc_client_call call = {.address = peer->address,
                                             .tls = peer->tls,
                                             .path = "/grpc.health.v1.Health/Check",
                                             .message = message->data,
                                             .len = message->len,
                                             .timeout_us = (int64_t)(o->timeout_s * 1e6)};
    td_err err = td_grpc_client_run(&call, &answer, why, sizeof why);
    if (err != TD_OK) {
        ctl_say("%s: %s", peer->address, why);
        return err == TD_ERR_BAD_REQUEST ? CTL_USAGE : CTL_UNREACHABLE;
    }
    enum ctl_exit status = show(&answer, arena);
    td_grpc_client_answer_fini(&answer);
    return status;
}

enum ctl_exit ctl_health(const void *options, char *const *args)
{
    const struct options *o = options;
    struct ctl_peer peer;
    struct td_buf message;
    enum ctl_exit status = ctl_peer_open("the address", args[0], &o->tls, false, &peer);
    if (status != CTL_OK) {
        return status;
    }
    struct td_arena *arena = td_arena_create(ARENA_BYTES);
    td_buf_init(&message, 4096);
    status = arena != NULL ? ask(o, &peer, arena, &message) : CTL_FAILED;
    td_buf_fini(&message);
    td_arena_destroy(arena);
    ctl_peer_close(&peer);
    return status;
}
