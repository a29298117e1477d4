/* grpc_server.h - calls: one HTTP/2 stream, its messages, its deadline, its status.
 *
 * What: finds the method, asks the owner whether the caller may call (before anything else is looked at), cuts messages,
 * keeps the deadline, writes messages, status and trailers. Services are tables of methods.
 * Not: the meaning of a message (proto/), HTTP/2 itself (h2_server.h).
 * Owner: a shell. Thread: loop. Bounds: one message of max_message bytes a call, max_buffered of all unhandled requests
 * together, above which the call with the most is refused; TD_GRPC_MAX_SERVICES. Failure: creation fails with an error; a bad call ends with a status.
 */
#ifndef TD_IO_GRPC_SERVER_H
#define TD_IO_GRPC_SERVER_H

#include "common/io/grpc_frame.h"
#include "common/io/h2_server.h"

#define TD_GRPC_MAX_SERVICES 8
#define TD_GRPC_MAX_TRAILERS 6

struct td_grpc_server;
struct td_grpc_call;

struct td_grpc_method {
    const char *name;
    bool open; /* needs no key */
    bool
        client_streams; /* handle is called for each message, and with NULL when the client has ended */
    /* One whole message, valid for the call. Must finish the call, now or later, unless it is told that the call is gone. */
    void (*handle)(void *arg, struct td_grpc_call *c, const uint8_t *message, size_t len);
};

struct td_grpc_service {
    const char *name; /* "tandem.v1.Engine" */
    const struct td_grpc_method *methods;
    uint32_t n_methods;
    void *arg;
};

struct td_grpc_server_params {
    struct td_h2_server_params h2; /* ops and arg are set here */
    size_t max_message, max_buffered;
    /* The same of open methods, which strangers may call: what they hold is not taken from those who have a key. */
    size_t max_open_message, max_open_buffered;
    /* May the caller call this? Not asked for open methods. NULL: everybody may. */
    td_err (*admit)(void *arg, struct td_grpc_call *c);
    const char *admit_text; /* what who may not is told; NULL: the error's text */
    void *arg;
};

void td_grpc_server_defaults(struct td_grpc_server_params *p);
td_err td_grpc_server_create(const struct td_grpc_server_params *p,
                             struct td_grpc_server **out_server) TD_MUST_CHECK;
/* Tells the owners of open calls that they are gone. */
struct td_grpc_server *td_grpc_server_destroy(struct td_grpc_server *s);
/* The table is copied; what it points at must live as long as the server. */
void td_grpc_server_add(struct td_grpc_server *s, const struct td_grpc_service *service);
/* fn hears of the end of every call, once: its status; RESOURCE_EXHAUSTED, as the client sees it, when it was cut because the
 * client did not read; CANCELLED when the client left first. The
 * call answers td_grpc_call_service, _method and _tag then. */
void td_grpc_server_on_end(struct td_grpc_server *s,
                           void (*fn)(void *arg, const struct td_grpc_call *c,
                                      enum td_grpc_status status),
                           void *arg);
struct td_h2_server *td_grpc_server_h2(struct td_grpc_server *s);
/* Names of the services served, in the order of their adding; NULL past the end. */
const char *td_grpc_server_service(const struct td_grpc_server *s, uint32_t i);

/* ---- a call; none of these may be used after finish, fail or gone ---- */
const struct td_http_request *td_grpc_call_request(const struct td_grpc_call *c);
/* The client has shown a certificate that the CA of clients signed. */
bool td_grpc_call_verified(const struct td_grpc_call *c);
const char *td_grpc_call_peer(const struct td_grpc_call *c);
/* Of the table that serves it; "unknown" when none does. */
const char *td_grpc_call_service(const struct td_grpc_call *c);
const char *td_grpc_call_method(const struct td_grpc_call *c);
/* When the client gives up; TD_NEVER when it never does. The server ends the call then. */
int64_t td_grpc_call_deadline(const struct td_grpc_call *c);
/* What the owner wants to remember of the caller. */
void td_grpc_call_set_tag(struct td_grpc_call *c, void *tag);
void *td_grpc_call_tag(const struct td_grpc_call *c);
/* Called once when the call ends without our finish: the client is gone, the deadline passed, the server stops. */
void td_grpc_call_on_gone(struct td_grpc_call *c, void (*fn)(void *arg), void *arg);
/* Sent in front of the first message, and with a status that comes before any; cut to 127 bytes. */
void td_grpc_call_set_request_id(struct td_grpc_call *c, const char *id);
const char *td_grpc_call_request_id(const struct td_grpc_call *c);
/* It may stay open for ever: a drain does not wait for it. */
void td_grpc_call_set_background(struct td_grpc_call *c);
/* Sends the head now: a stream whose first message may be long in coming. */
void td_grpc_start(struct td_grpc_call *c);
/* Errors as of td_h2_write; `gone` follows in a later pass. */
td_err td_grpc_send(struct td_grpc_call *c, const void *message, size_t len) TD_MUST_CHECK;
/* As td_h2_stream_on_empty: after a td_grpc_send; fn may send again, or finish. Not called once the call is finished or gone. */
void td_grpc_call_on_empty(struct td_grpc_call *c, void (*fn)(void *arg), void *arg);
/* text: for people, may be NULL. */
void td_grpc_finish(struct td_grpc_call *c, enum td_grpc_status status, const char *text,
                    const struct td_http_header *trailers, uint32_t n);
/* The status of the error, with its code as trailer `tandem-code`, and `grpc-retry-pushback-ms` where a retry may help
 * (a negative one forbids it elsewhere). text NULL: the error's. */
void td_grpc_fail(struct td_grpc_call *c, td_err err, const char *text, double retry_s);

#endif
