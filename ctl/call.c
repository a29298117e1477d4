#include "ctl/call.h"

#include "common/base/clock.h"

enum ctl_exit ctl_call_judge(const char *name, bool quiet, struct td_grpc_client_answer *answer)
{
    if (answer->status == TD_GRPC_OK) {
        return CTL_OK;
    }
    bool late = answer->status == TD_GRPC_DEADLINE_EXCEEDED;
    ctl_say_unless(quiet, "%s: %s (%s)", name, answer->text[0] != 0 ? answer->text : "failed",
                   answer->code[0] != 0 ? answer->code : td_grpc_status_name(answer->status));
    td_grpc_client_answer_fini(answer);
    return late ? CTL_UNREACHABLE : CTL_FAILED;
}

static enum ctl_exit call_admin(const struct ctl_admin *a, const char *method,
                                struct td_grpc_client_call *call, struct td_grpc_client_answer *out)
{
    char path[96], why[256] = "";
    struct ctl_peer peer;
    enum ctl_exit status = ctl_peer_open("--router", a->router, &a->tls, a->quiet, &peer);
    if (status != CTL_OK) {
        return status;
    }
    if (peer.has_path) {
        ctl_say_unless(a->quiet, "--router %s: gRPC knows no path behind the address", a->router);
        ctl_peer_close(&peer);
        return CTL_USAGE;
    }
    (void)snprintf(path, sizeof path, "/tandem.v1.Admin/%s", method);
    call->address = peer.address;
    call->tls = peer.tls;
    call->path = path;
    td_err err = td_grpc_client_run(call, out, why, sizeof why);
    ctl_peer_close(&peer);
    return err == TD_OK ? CTL_OK : ctl_admin_unreachable(a, err, why);
}

enum ctl_exit ctl_call_ask(const struct ctl_admin *a, const char *method,
                           const struct td_buf *message, struct td_grpc_client_answer *out)
{
    struct td_grpc_client_call call = {.message = message->data,
                                       .len = message->len,
                                       .timeout_us = (int64_t)(a->timeout_s * 1e6),
                                       .max_answer = CTL_ADMIN_MAX_BODY};
    return call_admin(a, method, &call, out);
}

enum ctl_exit ctl_call_admin(const struct ctl_admin *a, const char *method, const char *name,
                             const struct td_buf *message, struct td_grpc_client_answer *out)
{
    enum ctl_exit status = ctl_call_ask(a, method, message, out);
    return status == CTL_OK ? ctl_call_judge(name, a->quiet, out) : status;
}

enum ctl_exit ctl_call_admin_stream(const struct ctl_admin *a, const char *method,
                                    const struct td_buf *message, ctl_call_fn *on_message,
                                    void *arg)
{
    struct td_grpc_client_answer answer;
    struct td_grpc_client_call call = {.message = message->data,
                                       .len = message->len,
                                       .timeout_us = TD_NEVER,
                                       .keepalive_us = (int64_t)(a->timeout_s * 1e6),
                                       .on_message = on_message,
                                       .arg = arg};
    enum ctl_exit status = call_admin(a, method, &call, &answer);
    status = status == CTL_OK ? ctl_call_judge(a->router, a->quiet, &answer) : status;
    if (status == CTL_OK) {
        td_grpc_client_answer_fini(&answer);
    }
    return status;
}
