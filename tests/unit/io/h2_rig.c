#include "tests/unit/io/h2_rig.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <nghttp2/nghttp2.h>

#define PASSES    6000
#define PASS_US   1000
#define HEAD_SIZE 9

struct h2_conn *h2_dial(struct td_loop *loop, uint16_t port)
{
    struct h2_conn *c = calloc(1, sizeof *c);
    assert_non_null(c);
    int one = 1; /* frames go out in pieces: they must not wait for each other */
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(port)};
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->loop = loop;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(c->fd, (struct sockaddr *)&sa, sizeof sa), 0);
    assert_int_equal(fcntl(c->fd, F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one), 0);
    assert_int_equal(nghttp2_hd_inflate_new(&c->inflater), 0);
    return c;
}

void h2_hang_up(struct h2_conn *c)
{
    if (c != NULL) {
        (void)close(c->fd);
        nghttp2_hd_inflate_del(c->inflater);
        free(c);
    }
}

void h2_raw(struct h2_conn *c, const void *data, size_t len)
{
    const uint8_t *at = data;
    for (int pass = 0; len > 0 && pass < PASSES; pass++) {
        ssize_t n = send(c->fd, at, len, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN) {
            return; /* the server has closed: the test sees it when it reads */
        }
        at += n > 0 ? n : 0;
        len -= n > 0 ? (size_t)n : 0;
        if (len > 0) {
            td_loop_run_once(c->loop, PASS_US);
        }
    }
}

void h2_hello(struct h2_conn *c)
{
    h2_raw(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
    h2_frame_out(c, H2_SETTINGS, 0, 0, NULL, 0);
}

void h2_frame_out(struct h2_conn *c, uint8_t type, uint8_t flags, uint32_t stream,
                  const void *payload, size_t len)
{
    uint8_t head[HEAD_SIZE] = {(uint8_t)(len >> 16),
                               (uint8_t)(len >> 8),
                               (uint8_t)len,
                               type,
                               flags,
                               (uint8_t)(stream >> 24),
                               (uint8_t)(stream >> 16),
                               (uint8_t)(stream >> 8),
                               (uint8_t)stream};
    h2_raw(c, head, sizeof head);
    if (len > 0) {
        h2_raw(c, payload, len);
    }
}

void h2_setting(struct h2_conn *c, uint16_t id, uint32_t value)
{
    uint8_t entry[6] = {(uint8_t)(id >> 8),     (uint8_t)id,           (uint8_t)(value >> 24),
                        (uint8_t)(value >> 16), (uint8_t)(value >> 8), (uint8_t)value};
    h2_frame_out(c, H2_SETTINGS, 0, 0, entry, sizeof entry);
}

/* HPACK's integer with a prefix of 7 bits, the high bit (Huffman) clear. */
static size_t put_text(uint8_t *out, const char *text)
{
    size_t len = strlen(text), n = 0;
    if (len < 127) {
        out[n++] = (uint8_t)len;
    } else {
        size_t rest = len - 127;
        out[n++] = 127;
        for (; rest >= 128; rest /= 128) {
            out[n++] = (uint8_t)(rest % 128 + 128);
        }
        out[n++] = (uint8_t)rest;
    }
    memcpy(out + n, text, len);
    return n + len;
}

size_t h2_block(uint8_t *out, size_t cap, const char *const *fields)
{
    size_t n = 0;
    for (size_t i = 0; fields[i] != NULL; i += 2) {
        assert_true(n + strlen(fields[i]) + strlen(fields[i + 1]) + 16 < cap);
        out[n++] = 0; /* literal, not indexed, new name */
        n += put_text(out + n, fields[i]);
        n += put_text(out + n, fields[i + 1]);
    }
    return n;
}

void h2_request(struct h2_conn *c, uint32_t stream, const char *path, const char *const *more,
                uint8_t flags)
{
    static uint8_t block[65536];
    const char *const fields[] = {
        ":authority", "a",        ":method", "POST",         ":scheme",
        "http",       ":path",    path,      "content-type", "application/grpc",
        "te",         "trailers", NULL};
    size_t n = h2_block(block, sizeof block, fields);
    if (more != NULL) {
        n += h2_block(block + n, sizeof block - n, more);
    }
    h2_frame_out(c, H2_HEADERS, (uint8_t)(flags | H2_END_HEAD), stream, block, n);
}

void h2_message(struct h2_conn *c, uint32_t stream, const void *data, size_t len, uint8_t flags)
{
    static uint8_t frame[H2_MAX_FRAME];
    assert_true(len + 5 <= sizeof frame);
    memset(frame, 0, 5);
    frame[3] = (uint8_t)(len >> 8);
    frame[4] = (uint8_t)len;
    if (len > 0) {
        memcpy(frame + 5, data, len);
    }
    h2_frame_out(c, H2_DATA, flags, stream, frame, len + 5);
}

uint32_t h2_u32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void decode_block(struct h2_conn *c, const struct h2_frame *f)
{
    const uint8_t *at = f->payload;
    size_t left = f->len;
    size_t n = 0;
    c->headers[0] = 0;
    for (;;) {
        nghttp2_nv nv;
        int flags = 0;
        ssize_t used = nghttp2_hd_inflate_hd2(c->inflater, &nv, &flags, at, left, 1);
        assert_true(used >= 0);
        at += used;
        left -= (size_t)used;
        if ((flags & NGHTTP2_HD_INFLATE_EMIT) != 0) {
            n += (size_t)snprintf(c->headers + n, sizeof c->headers - n, "%.*s: %.*s\n",
                                  (int)nv.namelen, (const char *)nv.name, (int)nv.valuelen,
                                  (const char *)nv.value);
            assert_true(n < sizeof c->headers);
        }
        if ((flags & NGHTTP2_HD_INFLATE_FINAL) != 0) {
            nghttp2_hd_inflate_end_headers(c->inflater);
            return;
        }
        assert_true(used > 0 || (flags & NGHTTP2_HD_INFLATE_EMIT) != 0);
    }
}

static bool cut_frame(struct h2_conn *c, struct h2_frame *out)
{
    if (c->n_in < HEAD_SIZE) {
        return false;
    }
    uint32_t len = h2_u32(c->in) >> 8;
    assert_true(len <= H2_MAX_FRAME);
    if (c->n_in < HEAD_SIZE + len) {
        return false;
    }
    out->len = len;
    out->type = c->in[3];
    out->flags = c->in[4];
    out->stream = h2_u32(c->in + 5) & 0x7fffffff;
    memcpy(out->payload, c->in + HEAD_SIZE, len);
    c->n_in -= HEAD_SIZE + len;
    memmove(c->in, c->in + HEAD_SIZE + len, c->n_in);
    if (out->type == H2_HEADERS) {
        assert_true((out->flags & H2_END_HEAD) != 0);
        decode_block(c, out);
    }
    return true;
}

bool h2_next(struct h2_conn *c, struct h2_frame *out)
{
    for (int pass = 0; pass < PASSES; pass++) {
        if (cut_frame(c, out)) {
            return true;
        }
        if (c->closed) {
            return false;
        }
        td_loop_run_once(c->loop, PASS_US);
        ssize_t n = recv(c->fd, c->in + c->n_in, sizeof c->in - c->n_in, 0);
        c->n_in += n > 0 ? (size_t)n : 0;
        c->closed = n == 0 || (n < 0 && errno != EAGAIN);
    }
    fail_msg("the server said nothing");
    return false;
}

bool h2_wait(struct h2_conn *c, enum h2_frame_type type, struct h2_frame *out)
{
    while (h2_next(c, out)) {
        if (out->type == type) {
            return true;
        }
    }
    return false;
}

int64_t h2_until_closed(struct h2_conn *c)
{
    static struct h2_frame f;
    int64_t code = -1;
    while (h2_next(c, &f)) {
        code = f.type == H2_GOAWAY ? h2_u32(f.payload + 4) : code;
    }
    return code;
}

void h2_until(struct td_loop *loop, bool (*cond)(void *arg), void *arg)
{
    for (int pass = 0; pass < PASSES; pass++) {
        if (cond(arg)) {
            return;
        }
        td_loop_run_once(loop, PASS_US);
    }
    fail_msg("it did not happen");
}

const char *h2_header(const struct h2_conn *c, const char *name)
{
    static char value[4096];
    char want[128];
    int n = snprintf(want, sizeof want, "%s: ", name);
    const char *at = c->headers;
    value[0] = 0;
    while (at != NULL && *at != 0) {
        if (strncmp(at, want, (size_t)n) == 0) {
            (void)snprintf(value, sizeof value, "%.*s", (int)strcspn(at + n, "\n"), at + n);
            break;
        }
        at = strchr(at, '\n');
        at = at != NULL ? at + 1 : NULL;
    }
    return value;
}

size_t h2_answer(struct h2_conn *c, uint32_t stream, uint8_t *body, size_t cap)
{
    static struct h2_frame f;
    size_t n = 0;
    for (;;) {
        assert_true(h2_next(c, &f));
        if (f.stream != stream) {
            continue;
        }
        if (f.type == H2_DATA) {
            assert_true(n + f.len <= cap);
            memcpy(body + n, f.payload, f.len);
            n += f.len;
        }
        if (f.type == H2_RST || (f.flags & H2_END_STREAM) != 0) {
            return n;
        }
    }
}
