/* Design: a socket, poll and an nghttp2 session; one deadline for everything. A client is as strict with a server as a server
 * with a client: lengths are checked before anything is kept.
 */
#include "common/io/grpc_client.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <nghttp2/nghttp2.h>

#include "common/base/clock.h"
#include "common/base/mem.h"

#define HOST_MAX_ 256
#define READ_MAX  16384
#define MAX_NV    10

struct session {
    const struct td_grpc_client_call *call;
    int64_t deadline_us;
    int fd; /* -1: none */
    nghttp2_session *h2;
    int32_t stream;
    uint8_t prefix[TD_GRPC_PREFIX];
    size_t sent; /* of prefix and message */
    struct td_grpc_reader reader;
    struct td_grpc_client_answer answer;
    int http_status; /* 0: no head yet */
    bool have_status, over;
    td_err err;
    char text[200];
};

static td_err fail(struct session *s, td_err err, const char *text)
{
    if (s->err == TD_OK) {
        s->err = err;
        (void)snprintf(s->text, sizeof s->text, "%s", text);
    }
    s->over = true;
    return err;
}

/* ---- the connection ---- */

/* "host:port" and "[host]:port". */
static bool split_address(const char *address, char host[HOST_MAX_], char port[8])
{
    const char *colon = strrchr(address, ':');
    size_t n = colon != NULL ? (size_t)(colon - address) : 0;
    if (n == 0 || n >= HOST_MAX_ || strlen(colon + 1) > 5 || colon[1] == 0 ||
        strspn(colon + 1, "0123456789") != strlen(colon + 1) ||
        strtoul(colon + 1, NULL, 10) - 1 >= 65535) {
        return false;
    }
    bool braces = address[0] == '[' && address[n - 1] == ']';
    (void)snprintf(host, HOST_MAX_, "%.*s", (int)(braces ? n - 2 : n), address + (braces ? 1 : 0));
    (void)snprintf(port, 8, "%s", colon + 1);
    return host[0] != 0;
}

/* False when the time is over. */
static bool wait_for(struct session *s, short events)
{
    int64_t left_us = s->deadline_us - td_now_us();
    struct pollfd p = {.fd = s->fd, .events = events};
    return left_us > 0 && poll(&p, 1, (int)(left_us / 1000) + 1) > 0;
}

static td_err dial(struct session *s)
{
    char host[HOST_MAX_], port[8];
    struct addrinfo *list = NULL;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    if (!split_address(s->call->address, host, port)) {
        return fail(s, TD_ERR_BAD_REQUEST, "the address is host:port");
    }
    if (getaddrinfo(host, port, &hints, &list) != 0 || list == NULL) {
        return fail(s, TD_ERR_ADDRESS, "the host is unknown");
    }
    s->fd = socket(list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool ok = s->fd >= 0 &&
              (connect(s->fd, list->ai_addr, list->ai_addrlen) == 0 || errno == EINPROGRESS);
    freeaddrinfo(list);
    int err = 0;
    socklen_t len = sizeof err;
    if (ok && !wait_for(s, POLLOUT)) {
        return fail(s, TD_ERR_BUDGET, "no connection in time");
    }
    if (!ok || getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &err, &len) != 0 || err != 0) {
        return fail(s, TD_ERR_PEER_LOST, "connection refused, or no route leads there");
    }
    return TD_OK;
}

/* ---- what nghttp2 says ---- */

static int hex_digit(uint8_t c)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = c != 0 ? strchr(digits, c >= 'A' && c <= 'F' ? c + ('a' - 'A') : c) : NULL;
    return at != NULL ? (int)(at - digits) : -1;
}

/* Percent-decoded; what is no printable ASCII becomes '?': it goes to a terminal. */
static void copy_text(char *out, size_t cap, const uint8_t *value, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len && n + 1 < cap; i++) {
        bool coded = value[i] == '%' && i + 2 < len && hex_digit(value[i + 1]) >= 0 &&
                     hex_digit(value[i + 2]) >= 0;
        int c = coded ? hex_digit(value[i + 1]) * 16 + hex_digit(value[i + 2]) : value[i];
        out[n++] = c >= ' ' && c <= '~' ? (char)c : '?';
        i += coded ? 2 : 0;
    }
    out[n] = 0;
}

static bool is_header(nghttp2_vec name, const char *want)
{
    return name.len == strlen(want) && memcmp(name.base, want, name.len) == 0;
}

static int on_header(nghttp2_session *h2, const nghttp2_frame *frame, nghttp2_rcbuf *name_buf,
                     nghttp2_rcbuf *value_buf, uint8_t flags, void *arg)
{
    (void)h2;
    (void)flags;
    struct session *s = arg;
    nghttp2_vec name = nghttp2_rcbuf_get_buf(name_buf), value = nghttp2_rcbuf_get_buf(value_buf);
    if (frame->hd.stream_id != s->stream) {
        return 0;
    }
    char number[8] = "";
    if (is_header(name, ":status") || is_header(name, "grpc-status")) {
        copy_text(number, sizeof number, value.base, value.len);
    }
    if (is_header(name, ":status")) {
        s->http_status = (int)strtol(number, NULL, 10);
    } else if (is_header(name, "grpc-status")) {
        s->have_status = number[0] != 0;
        s->answer.status = (enum td_grpc_status)strtol(number, NULL, 10);
    } else if (is_header(name, "grpc-message")) {
        copy_text(s->answer.text, sizeof s->answer.text, value.base, value.len);
    } else if (is_header(name, "tandem-code")) {
        copy_text(s->answer.code, sizeof s->answer.code, value.base, value.len);
    }
    return 0;
}

static td_err keep_message(struct session *s)
{
    uint8_t prefix[TD_GRPC_PREFIX];
    td_grpc_prefix(s->reader.message.len, prefix);
    TD_TRY(td_buf_append(&s->answer.bytes, prefix, sizeof prefix));
    TD_TRY(s->reader.message.len > 0
               ? td_buf_append(&s->answer.bytes, s->reader.message.data, s->reader.message.len)
               : TD_OK);
    s->answer.n_messages++;
    return TD_OK;
}

static int on_data(nghttp2_session *h2, uint8_t flags, int32_t id, const uint8_t *data, size_t len,
                   void *arg)
{
    (void)h2;
    (void)flags;
    struct session *s = arg;
    while (id == s->stream && len > 0 && !s->over) {
        size_t used = 0;
        bool complete = false;
        td_err err = td_grpc_reader_feed(&s->reader, data, len, &used, &complete);
        err = err == TD_OK && complete ? keep_message(s) : err;
        if (err != TD_OK) {
            (void)fail(s, err == TD_ERR_UNSUPPORTED ? TD_ERR_PROTOCOL : err,
                       "the answer is no gRPC, or too large");
            return 0;
        }
        data += used;
        len -= used;
        if (s->call->max_messages > 0 && s->answer.n_messages == s->call->max_messages) {
            s->have_status = s->over =
                true; /* enough: the end of the connection cancels the rest */
        }
    }
    return 0;
}

static int on_stream_close(nghttp2_session *h2, int32_t id, uint32_t code, void *arg)
{
    (void)h2;
    (void)code;
    struct session *s = arg;
    s->over = s->over || id == s->stream;
    return 0;
}

static ssize_t on_want_bytes(nghttp2_session *h2, int32_t id, uint8_t *buf, size_t cap,
                             uint32_t *flags, nghttp2_data_source *source, void *arg)
{
    (void)h2;
    (void)id;
    (void)arg;
    struct session *s = source->ptr;
    size_t n = 0;
    for (; n < cap && s->sent < TD_GRPC_PREFIX; n++) {
        buf[n] = s->prefix[s->sent++];
    }
    size_t left = s->call->len + TD_GRPC_PREFIX - s->sent;
    size_t take = left < cap - n ? left : cap - n;
    if (take > 0) {
        memcpy(buf + n, (const uint8_t *)s->call->message + (s->sent - TD_GRPC_PREFIX), take);
        s->sent += take;
    }
    if (s->sent == s->call->len + TD_GRPC_PREFIX) {
        *flags |= NGHTTP2_DATA_FLAG_EOF;
    }
    return (ssize_t)(n + take);
}

/* ---- the call ---- */

static nghttp2_nv nv_of(const char *name, const char *value)
{
    return (nghttp2_nv){.name = (uint8_t *)(uintptr_t)name,
                        .namelen = strlen(name),
                        .value = (uint8_t *)(uintptr_t)value,
                        .valuelen = strlen(value)};
}

static td_err submit(struct session *s)
{
    char timeout[24], bearer[1100];
    uint32_t n = 0;
    int64_t ms = s->call->timeout_us / 1000;
    nghttp2_nv nv[MAX_NV];
    (void)snprintf(timeout, sizeof timeout, "%um", ms < 99999999 ? (unsigned)ms : 99999999u);
    nv[n++] = nv_of(":method", "POST");
    nv[n++] = nv_of(":scheme", "http");
    nv[n++] = nv_of(":path", s->call->path);
    nv[n++] = nv_of(":authority", s->call->address);
    nv[n++] = nv_of("te", "trailers");
    nv[n++] = nv_of("content-type", "application/grpc");
    nv[n++] = nv_of("grpc-timeout", timeout);
    if (s->call->key != NULL) {
        (void)snprintf(bearer, sizeof bearer, "Bearer %s", s->call->key);
        nv[n++] = nv_of("authorization", bearer);
    }
    nghttp2_data_provider body = {.source.ptr = s, .read_callback = on_want_bytes};
    s->stream = nghttp2_submit_request(s->h2, NULL, nv, n, &body, NULL);
    return s->stream > 0 ? TD_OK : fail(s, TD_ERR_NO_MEMORY, "out of memory");
}

static td_err make_session(struct session *s)
{
    nghttp2_session_callbacks *cb = NULL;
    if (nghttp2_session_callbacks_new(&cb) != 0) {
        return fail(s, TD_ERR_NO_MEMORY, "out of memory");
    }
    nghttp2_session_callbacks_set_on_header_callback2(cb, on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cb, on_data);
    nghttp2_session_callbacks_set_on_stream_close_callback(cb, on_stream_close);
    int err = nghttp2_session_client_new(&s->h2, cb, s);
    nghttp2_session_callbacks_del(cb);
    if (err != 0 || nghttp2_submit_settings(s->h2, NGHTTP2_FLAG_NONE, NULL, 0) != 0) {
        return fail(s, TD_ERR_NO_MEMORY, "out of memory");
    }
    return submit(s);
}

static td_err write_out(struct session *s)
{
    const uint8_t *data = NULL;
    ssize_t n = 0;
    while ((n = nghttp2_session_mem_send(s->h2, &data)) > 0) {
        while (n > 0) {
            ssize_t sent = send(s->fd, data, (size_t)n, MSG_NOSIGNAL);
            if (sent < 0 && errno != EAGAIN) {
                return fail(s, TD_ERR_PEER_LOST, "the connection was closed");
            }
            if (sent < 0 && !wait_for(s, POLLOUT)) {
                return fail(s, TD_ERR_BUDGET, "no answer in time");
            }
            data += sent > 0 ? sent : 0;
            n -= sent > 0 ? sent : 0;
        }
    }
    return n == 0 ? TD_OK : fail(s, TD_ERR_NO_MEMORY, "out of memory");
}

static td_err read_in(struct session *s)
{
    uint8_t buf[READ_MAX];
    if (!wait_for(s, POLLIN)) {
        return fail(s, TD_ERR_BUDGET, "no answer in time");
    }
    ssize_t n = recv(s->fd, buf, sizeof buf, 0);
    if (n == 0 || (n < 0 && errno != EAGAIN)) {
        return fail(s, TD_ERR_PEER_LOST,
                    "the connection was closed before the answer was complete");
    }
    if (n > 0 && nghttp2_session_mem_recv(s->h2, buf, (size_t)n) != n) {
        return fail(s, TD_ERR_PROTOCOL, "the answer is not HTTP/2");
    }
    return s->err;
}

static td_err talk(struct session *s)
{
    TD_TRY(dial(s));
    TD_TRY(make_session(s));
    while (!s->over) {
        TD_TRY(write_out(s));
        if (!s->over && nghttp2_session_want_read(s->h2) == 0) {
            return fail(s, TD_ERR_PROTOCOL, "the answer is not HTTP/2");
        }
        TD_TRY(s->over ? TD_OK : read_in(s));
    }
    if (!s->have_status) {
        return fail(s, TD_ERR_PROTOCOL,
                    s->http_status != 0 && s->http_status != 200 ? "the server speaks no gRPC here"
                                                                 : "the answer has no status");
    }
    return s->err;
}

td_err td_grpc_client_run(const struct td_grpc_client_call *call, struct td_grpc_client_answer *out,
                          char *err_text, size_t err_cap)
{
    struct session s = {.call = call, .deadline_us = td_now_us() + call->timeout_us, .fd = -1};
    td_grpc_prefix(call->len, s.prefix);
    td_grpc_reader_init(&s.reader, TD_GRPC_CLIENT_MAX);
    td_buf_init(&s.answer.bytes, TD_GRPC_CLIENT_MAX);
    td_err err = talk(&s);
    if (err == TD_OK) {
        *out = s.answer;
    } else {
        td_buf_fini(&s.answer.bytes);
        (void)snprintf(err_text, err_cap, "%s", s.text);
    }
    td_grpc_reader_fini(&s.reader);
    nghttp2_session_del(s.h2);
    if (s.fd >= 0) {
        (void)close(s.fd);
    }
    return err;
}

bool td_grpc_client_message(const struct td_grpc_client_answer *a, uint32_t i,
                            const uint8_t **out_data, size_t *out_len)
{
    const uint8_t *at = a->bytes.data;
    if (i >= a->n_messages) {
        return false;
    }
    for (;; i--) {
        size_t len = (size_t)at[1] << 24 | (size_t)at[2] << 16 | (size_t)at[3] << 8 | at[4];
        if (i == 0) {
            *out_data = at + TD_GRPC_PREFIX;
            *out_len = len;
            return true;
        }
        at += TD_GRPC_PREFIX + len;
    }
}

void td_grpc_client_answer_fini(struct td_grpc_client_answer *a)
{
    td_buf_fini(&a->bytes);
}
