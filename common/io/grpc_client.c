/* Design: a stream of bytes (stream.h) and an nghttp2 session; one deadline for everything. A client is as strict with a
 * server as a server with a client: lengths are checked before anything is kept.
 */
#include "common/io/grpc_client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <nghttp2/nghttp2.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/io/stream.h"
#include "common/io/tls.h"

#define READ_MAX 16384
#define MAX_NV   (TD_GRPC_CLIENT_METADATA + 8)
#define MAX_ACKS 64 /* answers to SETTINGS and PING that wait to be sent */

struct session {
    const struct td_grpc_client_call *call;
    size_t max_answer;
    int64_t deadline_us;
    struct td_stream *wire; /* owned */
    nghttp2_session *h2;    /* owned */
    int32_t stream;
    uint8_t prefix[TD_GRPC_PREFIX];
    size_t sent; /* of prefix and message */
    struct td_grpc_reader reader;
    struct td_grpc_client_answer answer;
    int http_status; /* 0: no head yet */
    size_t head_bytes;
    bool is_grpc; /* by its content type */
    bool have_status, enough, over, asked /* whether it lives */, heard /* anything at all */;
    uint32_t closed_by; /* HTTP/2 error code */
    td_err err;
    char text[256];
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

/* ---- what the head and the trailers say ---- */

/* Percent-decoded; what is no printable ASCII becomes '?': it goes to a terminal. */
static void copy_text(char *out, size_t cap, nghttp2_vec value)
{
    size_t n = 0;
    for (size_t i = 0; i < value.len && n + 1 < cap; i++) {
        const uint8_t *at = value.base + i;
        int high = *at == '%' && i + 2 < value.len ? td_http_hex_digit((char)at[1]) : -1;
        int low = high >= 0 ? td_http_hex_digit((char)at[2]) : -1;
        bool coded = low >= 0;
        int c = coded ? high * 16 + low : *at;
        out[n++] = c >= ' ' && c <= '~' ? (char)c : '?';
        i += coded ? 2 : 0;
    }
    out[n] = 0;
}

/* A whole number of at most 9 digits, perhaps negative; false: something else. */
static bool whole(nghttp2_vec value, int64_t *out)
{
    char text[12];
    copy_text(text, sizeof text, value);
    size_t sign = text[0] == '-' ? 1 : 0, digits = strspn(text + sign, "0123456789");
    if (digits == 0 || digits > 9 || sign + digits != value.len) {
        return false;
    }
    *out = strtoll(text, NULL, 10);
    return true;
}

static void take_status(struct session *s, nghttp2_vec value)
{
    int64_t n = 0;
    bool known = whole(value, &n) && n >= 0 && n <= TD_GRPC_UNAUTHENTICATED;
    s->answer.status = known ? (enum td_grpc_status)n : TD_GRPC_UNKNOWN;
    s->have_status = true;
}

static void take_pushback(struct session *s, nghttp2_vec value)
{
    int64_t ms = 0;
    if (whole(value, &ms)) {
        s->answer.retry_ms = ms < 0 ? -1 : ms;
    }
}

static bool is_header(nghttp2_vec name, const char *want)
{
    return name.len == strlen(want) && memcmp(name.base, want, name.len) == 0;
}

static void take_header(struct session *s, nghttp2_vec name, nghttp2_vec value)
{
    struct td_grpc_client_answer *a = &s->answer;
    char type[64];
    int64_t n = 0;
    if (is_header(name, ":status")) {
        s->http_status = whole(value, &n) ? (int)n : -1;
    } else if (is_header(name, "content-type")) {
        copy_text(type, sizeof type, value);
        s->is_grpc = td_grpc_is_content_type(type);
    } else if (is_header(name, "grpc-status")) {
        take_status(s, value);
    } else if (is_header(name, "grpc-message")) {
        copy_text(a->text, sizeof a->text, value);
    } else if (is_header(name, "tandem-code")) {
        copy_text(a->code, sizeof a->code, value);
    } else if (is_header(name, "x-request-id")) {
        copy_text(a->request_id, sizeof a->request_id, value);
    } else if (is_header(name, "grpc-retry-pushback-ms")) {
        take_pushback(s, value);
    }
}

/* ---- what nghttp2 says ---- */

static int on_header(nghttp2_session *h2, const nghttp2_frame *frame, nghttp2_rcbuf *name_buf,
                     nghttp2_rcbuf *value_buf, uint8_t flags, void *arg)
{
    (void)h2;
    (void)flags;
    struct session *s = arg;
    nghttp2_vec name = nghttp2_rcbuf_get_buf(name_buf), value = nghttp2_rcbuf_get_buf(value_buf);
    s->head_bytes +=
        name.len + value.len + 32; /* as HTTP/2 counts; informational heads count too */
    if (s->head_bytes > TD_GRPC_CLIENT_MAX_HEAD) {
        (void)fail(s, TD_ERR_TOO_LARGE, "the answer's headers are too large");
    } else if (frame->hd.stream_id == s->stream) {
        take_header(s, name, value);
    }
    return 0;
}

static td_err keep_message(struct session *s)
{
    uint8_t prefix[TD_GRPC_PREFIX];
    td_grpc_prefix(s->reader.message.len, prefix);
    TD_TRY(td_buf_append(&s->answer.bytes, prefix, sizeof prefix));
    return s->reader.message.len > 0
               ? td_buf_append(&s->answer.bytes, s->reader.message.data, s->reader.message.len)
               : TD_OK;
}

static td_err take_message(struct session *s)
{
    bool more = true;
    if (s->call->on_message != NULL) {
        more = s->call->on_message(s->call->arg, s->reader.message.data, s->reader.message.len);
    } else {
        TD_TRY(keep_message(s));
    }
    s->answer.n_messages++;
    /* Enough: the end of the connection cancels the rest. */
    s->enough = !more || s->answer.n_messages == s->call->max_messages;
    s->over = s->over || s->enough;
    return TD_OK;
}

static int on_data(nghttp2_session *h2, uint8_t flags, int32_t id, const uint8_t *data, size_t len,
                   void *arg)
{
    (void)h2;
    (void)flags;
    struct session *s = arg;
    while (id == s->stream && s->is_grpc && len > 0 && !s->over) {
        size_t used = 0;
        bool complete = false;
        td_err err = td_grpc_reader_feed(&s->reader, data, len, &used, &complete);
        err = err == TD_OK && complete ? take_message(s) : err;
        if (err == TD_ERR_NO_MEMORY) {
            (void)fail(s, err, "out of memory");
        } else if (err != TD_OK) {
            bool large = err == TD_ERR_TOO_LARGE || err == TD_ERR_FULL;
            (void)fail(s, large ? TD_ERR_TOO_LARGE : TD_ERR_PROTOCOL,
                       large ? "the answer is too large" : "the answer's messages are not gRPC's");
        }
        data += used;
        len -= used;
    }
    return 0;
}

static int on_stream_close(nghttp2_session *h2, int32_t id, uint32_t code, void *arg)
{
    (void)h2;
    struct session *s = arg;
    if (id == s->stream) {
        s->over = true;
        s->closed_by = code;
    }
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

/* Names in lower case, values of printable ASCII: nothing that HTTP/2 forbids leaves here. */
static bool is_plain(const char *name, const char *value)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789_-.";
    bool ok = name[0] != 0 && name[strspn(name, allowed)] == 0;
    for (const char *c = value; ok && *c != 0; c++) {
        ok = *c >= ' ' && *c <= '~';
    }
    return ok;
}

static td_err check_metadata(struct session *s)
{
    const struct td_grpc_client_call *c = s->call;
    bool ok = c->n_metadata <= TD_GRPC_CLIENT_METADATA && is_plain("path", c->path);
    ok = ok && (c->key == NULL ||
                (strlen(c->key) <= TD_GRPC_CLIENT_MAX_KEY && is_plain("authorization", c->key)));
    for (uint32_t i = 0; ok && i < c->n_metadata; i++) {
        ok = is_plain(c->metadata[i].name, c->metadata[i].value);
    }
    return ok ? TD_OK
              : fail(s, TD_ERR_BAD_REQUEST,
                     "the key or the metadata is not plain ASCII, or too long");
}

static td_err submit(struct session *s)
{
    const struct td_grpc_client_call *c = s->call;
    char timeout[24], bearer[TD_GRPC_CLIENT_MAX_KEY + 8];
    uint32_t n = 0;
    int64_t ms = c->timeout_us / 1000;
    nghttp2_nv nv[MAX_NV];
    nv[n++] = nv_of(":method", "POST");
    nv[n++] = nv_of(":scheme", c->tls != NULL ? "https" : "http");
    nv[n++] = nv_of(":path", c->path);
    nv[n++] = nv_of(":authority", c->address);
    nv[n++] = nv_of("te", "trailers");
    nv[n++] = nv_of("content-type", "application/grpc");
    if (c->timeout_us != TD_NEVER) {
        (void)snprintf(timeout, sizeof timeout, "%um", ms < 99999999 ? (unsigned)ms : 99999999u);
        nv[n++] = nv_of("grpc-timeout", timeout);
    }
    if (c->key != NULL) {
        (void)snprintf(bearer, sizeof bearer, "Bearer %s", c->key);
        nv[n] = nv_of("authorization", bearer);
        nv[n++].flags = NGHTTP2_NV_FLAG_NO_INDEX;
    }
    for (uint32_t i = 0; i < c->n_metadata; i++) {
        nv[n++] = nv_of(c->metadata[i].name, c->metadata[i].value);
    }
    nghttp2_data_provider body = {.source.ptr = s, .read_callback = on_want_bytes};
    s->stream = nghttp2_submit_request(s->h2, NULL, nv, n, &body, NULL);
    return s->stream > 0 ? TD_OK : fail(s, TD_ERR_NO_MEMORY, "out of memory");
}

static td_err make_session(struct session *s)
{
    static const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, TD_GRPC_CLIENT_MAX_HEAD}};
    nghttp2_session_callbacks *cb = NULL;
    nghttp2_option *option = NULL;
    if (nghttp2_session_callbacks_new(&cb) != 0 || nghttp2_option_new(&option) != 0) {
        nghttp2_session_callbacks_del(cb);
        return fail(s, TD_ERR_NO_MEMORY, "out of memory");
    }
    nghttp2_session_callbacks_set_on_header_callback2(cb, on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cb, on_data);
    nghttp2_session_callbacks_set_on_stream_close_callback(cb, on_stream_close);
    nghttp2_option_set_max_outbound_ack(option, MAX_ACKS);
    int err = nghttp2_session_client_new2(&s->h2, cb, s, option);
    nghttp2_session_callbacks_del(cb);
    nghttp2_option_del(option);
    if (err != 0 ||
        nghttp2_submit_settings(s->h2, NGHTTP2_FLAG_NONE, settings, TD_COUNT(settings)) != 0) {
        return fail(s, TD_ERR_NO_MEMORY, "out of memory");
    }
    return submit(s);
}

/* A connection that ends is lost: the status had not come. A TLS port ends one that begins with anything else. */
static td_err wire_failed(struct session *s, td_err err)
{
    bool lost = err == TD_ERR_CLOSED || err == TD_ERR_PEER_LOST;
    if (lost && !s->heard && s->call->tls == NULL) {
        return fail(s, TD_ERR_PEER_LOST,
                    "the connection was closed at once: does this port want TLS (https://)?");
    }
    return err == TD_ERR_CLOSED ? fail(s, TD_ERR_PEER_LOST,
                                       "the connection was closed before the answer was complete")
                                : fail(s, err, td_stream_why(s->wire));
}

static td_err write_out(struct session *s)
{
    const uint8_t *data = NULL;
    ssize_t n = 0;
    while ((n = nghttp2_session_mem_send(s->h2, &data)) > 0) {
        td_err err = td_stream_write(s->wire, data, (size_t)n, s->deadline_us);
        if (err != TD_OK) {
            return wire_failed(s, err);
        }
    }
    return n == 0 ? TD_OK : fail(s, TD_ERR_NO_MEMORY, "out of memory");
}

/* The server is silent: once it is asked whether it lives. */
static td_err silent(struct session *s)
{
    if (td_now_us() >= s->deadline_us) {
        return fail(s, TD_ERR_BUDGET, "no answer in time");
    }
    if (s->asked) {
        return fail(s, TD_ERR_PEER_LOST, "the server has gone silent");
    }
    s->asked = true;
    return nghttp2_submit_ping(s->h2, NGHTTP2_FLAG_NONE, NULL) == 0
               ? TD_OK
               : fail(s, TD_ERR_NO_MEMORY, "out of memory");
}

static td_err read_in(struct session *s)
{
    uint8_t buf[READ_MAX];
    size_t n = 0;
    int64_t until_us =
        s->call->keepalive_us > 0 ? td_now_us() + s->call->keepalive_us : s->deadline_us;
    until_us = until_us < s->deadline_us ? until_us : s->deadline_us;
    td_err err = td_stream_read(s->wire, buf, sizeof buf, until_us, &n);
    if (err == TD_ERR_BUDGET) {
        return silent(s);
    }
    if (err != TD_OK) {
        return wire_failed(s, err);
    }
    s->asked = false;
    s->heard = true;
    if (nghttp2_session_mem_recv(s->h2, buf, n) != (ssize_t)n) {
        return fail(s, TD_ERR_PROTOCOL, "the answer is not HTTP/2");
    }
    return s->err;
}

static td_err talk(struct session *s)
{
    td_err err = check_metadata(s);
    if (err != TD_OK) {
        return err;
    }
    int64_t until_us = s->deadline_us;
    if (until_us == TD_NEVER && s->call->keepalive_us > 0) {
        until_us = td_now_us() + s->call->keepalive_us;
    }
    err = td_stream_open(s->call->address, s->call->tls, TD_ALPN_H2, until_us, &s->wire, s->text,
                         sizeof s->text);
    if (err != TD_OK) {
        return s->err = err;
    }
    TD_TRY(make_session(s));
    while (!s->over) {
        TD_TRY(write_out(s));
        if (!s->over && nghttp2_session_want_read(s->h2) == 0) {
            return fail(s, TD_ERR_PROTOCOL, "the answer is not HTTP/2");
        }
        TD_TRY(s->over ? TD_OK : read_in(s));
    }
    return s->err;
}

/* ---- what the end means ---- */

static enum td_grpc_status status_of_reset(uint32_t code)
{
    switch (code) {
    case NGHTTP2_REFUSED_STREAM:
        return TD_GRPC_UNAVAILABLE;
    case NGHTTP2_CANCEL:
        return TD_GRPC_CANCELLED;
    case NGHTTP2_ENHANCE_YOUR_CALM:
        return TD_GRPC_RESOURCE_EXHAUSTED;
    case NGHTTP2_INADEQUATE_SECURITY:
        return TD_GRPC_PERMISSION_DENIED;
    default:
        return TD_GRPC_INTERNAL;
    }
}

static enum td_grpc_status status_of_http(int status)
{
    switch (status) {
    case 400:
        return TD_GRPC_INTERNAL;
    case 401:
        return TD_GRPC_UNAUTHENTICATED;
    case 403:
        return TD_GRPC_PERMISSION_DENIED;
    case 404:
        return TD_GRPC_UNIMPLEMENTED;
    case 429:
    case 502:
    case 503:
    case 504:
        return TD_GRPC_UNAVAILABLE;
    default:
        return TD_GRPC_UNKNOWN;
    }
}

static td_err conclude(struct session *s)
{
    struct td_grpc_client_answer *a = &s->answer;
    if (s->enough) {
        a->status = TD_GRPC_OK;
    } else if (s->have_status && a->status == TD_GRPC_OK && !td_grpc_reader_between(&s->reader)) {
        return fail(s, TD_ERR_PROTOCOL, "the answer ends within a message");
    } else if (!s->have_status && s->closed_by != NGHTTP2_NO_ERROR) {
        a->status = status_of_reset(s->closed_by);
        (void)snprintf(a->text, sizeof a->text, "the server has ended the stream (%s)",
                       nghttp2_http2_strerror(s->closed_by));
    } else if (!s->have_status && s->http_status != 0 && s->http_status != 200) {
        a->status = status_of_http(s->http_status);
        (void)snprintf(a->text, sizeof a->text, "HTTP status %d instead of gRPC's", s->http_status);
    } else if (!s->have_status) {
        return fail(s, TD_ERR_PROTOCOL,
                    s->http_status != 0 && !s->is_grpc ? "the server speaks no gRPC here"
                                                       : "the answer has no status");
    }
    return TD_OK;
}

td_err td_grpc_client_run(const struct td_grpc_client_call *call, struct td_grpc_client_answer *out,
                          char *err_text, size_t err_cap)
{
    struct session s = {.call = call,
                        .max_answer = call->max_answer != 0 ? call->max_answer : TD_GRPC_CLIENT_MAX,
                        .deadline_us = call->timeout_us != TD_NEVER ? td_now_us() + call->timeout_us
                                                                    : TD_NEVER};
    td_grpc_prefix(call->len, s.prefix);
    td_grpc_reader_init(&s.reader, s.max_answer);
    td_buf_init(&s.answer.bytes, s.max_answer);
    td_err err = talk(&s);
    err = err == TD_OK ? conclude(&s) : err;
    if (err == TD_OK) {
        *out = s.answer;
    } else {
        td_buf_fini(&s.answer.bytes);
        (void)snprintf(err_text, err_cap, "%s", s.text);
    }
    td_grpc_reader_fini(&s.reader);
    nghttp2_session_del(s.h2);
    td_stream_close(s.wire);
    return err;
}

bool td_grpc_client_message(const struct td_grpc_client_answer *a, uint32_t i,
                            const uint8_t **out_data, size_t *out_len)
{
    const uint8_t *at = a->bytes.data;
    if (i >= a->n_messages || at == NULL) {
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
