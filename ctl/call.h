/* call.h - gRPC calls of commands: tandem.v1.Admin on a router's admin port, and what a status means for a script.
 *
 * What: dials, calls, says on stderr what went wrong and gives the exit status for it.
 * Not: the messages (proto/api_client.h), any other service. Thread: main; blocks.
 * Bounds: those of common/io/grpc_client.h. Failure: CTL_USAGE a wrong address, CTL_UNREACHABLE nobody answers in time or TLS
 * fails, CTL_FAILED the answer is another status than OK, or no gRPC.
 */
#ifndef CTL_CALL_H
#define CTL_CALL_H

#include "common/io/grpc_client.h"
#include "ctl/admin.h"

typedef bool(ctl_call_fn)(void *arg, const uint8_t *data, size_t len);

/* A method of tandem.v1.Admin whose answer is one message; any status is an answer. */
enum ctl_exit ctl_call_ask(const struct ctl_admin *a, const char *method,
                           const struct td_buf *message, struct td_grpc_client_answer *out);
/* The same; any status but OK is a failure. `name`: what is asked for, in front of what is said of a status. */
enum ctl_exit ctl_call_admin(const struct ctl_admin *a, const char *method, const char *name,
                             const struct td_buf *message, struct td_grpc_client_answer *out);
/* A method that answers by a stream without end; on_message as in grpc_client.h. The timeout is of silence: then the server is
 * asked whether it lives, and lost after as long again. */
enum ctl_exit ctl_call_admin_stream(const struct ctl_admin *a, const char *method,
                                    const struct td_buf *message, ctl_call_fn *on_message,
                                    void *arg);
/* Says what a status other than OK is, and frees such an answer. */
enum ctl_exit ctl_call_judge(const char *name, bool quiet, struct td_grpc_client_answer *answer);

#endif
