#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/assert.h"
#include "common/base/mem.h"
#include "common/io/ranks_int.h"

#define LINGER_US   1000000
#define OUT_MAX     (TD_RANKS_MAX * RANK_MAX_BYTES) /* a PEER for everybody, and some */
#define KEEP_IDLE_S 5
#define KEEP_STEP_S 2
#define KEEP_TRIES  3

/* A host that has gone without a word is noticed after about 11 s. */
static void keep_alive(int fd)
{
    int on = 1, idle = KEEP_IDLE_S, step = KEEP_STEP_S, tries = KEEP_TRIES;
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &step, sizeof step);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof tries);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void td__rk_conn_open(struct rk_conn *c, int fd, enum rk_state state)
{
    *c = (struct rk_conn){.fd = fd, .state = state, .rank = RK_NONE};
    td_buf_init(&c->out, OUT_MAX);
    keep_alive(fd);
}

void td__rk_conn_close(struct rk_conn *c)
{
    if (c->state != RK_FREE) {
        (void)close(c->fd);
    }
    c->mac_in = td_mac_destroy(c->mac_in);
    c->mac_out = td_mac_destroy(c->mac_out);
    free(c->address);
    td_buf_fini(&c->out);
    *c = (struct rk_conn){.fd = -1, .state = RK_FREE, .rank = RK_NONE};
}

/* Before the peer has proved itself it may make us keep a HELLO's length only. */
static size_t max_payload(const struct rk_conn *c)
{
    return c->state == RK_HELLO ? RANK_MAX_HELLO : RANK_MAX_PAYLOAD;
}

enum rk_read td__rk_conn_read(struct rk_conn *c, struct rank_frame *out)
{
    for (;;) {
        size_t want = RANK_LEN_BYTES;
        if (c->in_len >= RANK_LEN_BYTES) {
            want = rank_frame_size(c->in, max_payload(c));
            if (want == 0) {
                return RK_READ_BAD;
            }
        }
        if (c->in_len == want) { /* not while it is only the length: a frame is longer */
            c->in_len = 0;
            return rank_frame_parse(c->in, want, out) ? RK_READ_FRAME : RK_READ_BAD;
        }
        ssize_t n = recv(c->fd, c->in + c->in_len, want - c->in_len, MSG_DONTWAIT);
        if (n > 0) {
            c->in_len += (size_t)n;
        } else if (n == 0) {
            return RK_READ_CLOSED;
        } else if (errno != EINTR) {
            return errno == EAGAIN || errno == EWOULDBLOCK ? RK_READ_NOTHING : RK_READ_CLOSED;
        }
    }
}

static void make_tag(struct td_mac *mac, uint64_t count, const uint8_t *frame, size_t len,
                     uint8_t out[TD_MAC_BYTES])
{
    uint8_t number[8];
    link_put64(number, count);
    td_mac_tag(mac, (struct td_piece[]){{number, sizeof number}, {frame, len}}, 2, out);
}

bool td__rk_conn_verify(struct rk_conn *c, const struct rank_frame *f)
{
    uint8_t tag[TD_MAC_BYTES];
    if (!c->keyed) {
        return false;
    }
    make_tag(c->mac_in, c->count_in++, c->in, RANK_HEAD_BYTES + f->len, tag);
    return td_equal_secret(tag, f->tag, sizeof tag);
}

bool td__rk_conn_put(struct rk_conn *c, uint8_t type, const void *payload, size_t len)
{
    uint8_t *at;
    if (td_buf_reserve(&c->out, RANK_OVERHEAD + len, &at) != TD_OK) {
        return false;
    }
    size_t size = rank_frame_write(type, payload, len, at);
    if (c->keyed) {
        make_tag(c->mac_out, c->count_out++, at, size - TD_MAC_BYTES, at + size - TD_MAC_BYTES);
    }
    c->out.len += size;
    return true;
}

bool td__rk_conn_flush(struct rk_conn *c)
{
    while (c->out.len > 0) {
        ssize_t n = send(c->fd, c->out.data, c->out.len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) {
            td_buf_consume(&c->out, (size_t)n);
        } else if (n < 0 && errno != EINTR) {
            return errno == EAGAIN || errno == EWOULDBLOCK;
        }
    }
    return true;
}

bool td__rk_conn_set_keys(struct rk_conn *c, const uint8_t *challenge, size_t len, bool dialer)
{
    struct td_piece hello = {c->hello_bytes, c->hello_len}, answer = {challenge, len};
    if (link_set_macs(&c->mac_in, &c->mac_out, c->key, &hello, &answer, dialer) != TD_OK) {
        return false;
    }
    c->count_in = c->count_out = 0;
    c->keyed = true;
    return true;
}

void td__rk_conn_refuse(struct rk_conn *c, td_err e, const char *why, int64_t now_us)
{
    uint8_t reason[4 + TD_LINK_TEXT];
    size_t n = link_reason_write(e, why, reason);
    if (td__rk_conn_put(c, RANK_REFUSE, reason, n)) {
        (void)td__rk_conn_flush(
            c); /* an empty socket buffer takes it, or the dialer is beyond help */
    }
    (void)shutdown(c->fd, SHUT_WR);
    c->state = RK_LINGER;
    c->deadline_us = now_us + LINGER_US;
}
