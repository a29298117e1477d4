/* Design: a non-blocking socket and poll. TLS writes and reads through a BIO of our own, because OpenSSL's own one would end
 * the process by SIGPIPE when the server has gone.
 */
#include "common/io/stream.h"

#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/io/tls_client.h"

#define HOST_MAX_   256
#define POLL_MAX_MS 60000

struct td_stream {
    int fd;
    SSL *ssl; /* owned; NULL: cleartext */
    char why[200];
};

static td_err fail(struct td_stream *s, td_err err, const char *why)
{
    (void)snprintf(s->why, sizeof s->why, "%s", why);
    return err;
}

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
static bool wait_for(int fd, short events, int64_t deadline_us)
{
    struct pollfd p = {.fd = fd, .events = events};
    for (;;) {
        int64_t left_us = deadline_us == TD_NEVER ? INT64_MAX : deadline_us - td_now_us();
        if (left_us <= 0) {
            return false;
        }
        int64_t ms = left_us / 1000;
        if (poll(&p, 1, ms < POLL_MAX_MS ? (int)ms + 1 : POLL_MAX_MS) > 0) {
            return true;
        }
    }
}

/* ---- TCP ---- */

/* One of the host's addresses. */
static td_err dial_one(struct td_stream *s, const struct addrinfo *a, int64_t deadline_us)
{
    int err = 0, one = 1;
    socklen_t len = sizeof err;
    s->fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool ok =
        s->fd >= 0 && (connect(s->fd, a->ai_addr, a->ai_addrlen) == 0 || errno == EINPROGRESS);
    if (ok && !wait_for(s->fd, POLLOUT, deadline_us)) {
        return fail(s, TD_ERR_BUDGET, "no connection in time");
    }
    if (!ok || getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &err, &len) != 0 || err != 0) {
        return fail(s, TD_ERR_PEER_LOST, "connection refused, or no route leads there");
    }
    (void)setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return TD_OK;
}

static td_err dial(struct td_stream *s, const char *host, const char *port, int64_t deadline_us)
{
    struct addrinfo *list = NULL;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    if (getaddrinfo(host, port, &hints, &list) != 0 || list == NULL) {
        return fail(s, TD_ERR_ADDRESS, "the host is unknown");
    }
    td_err err = TD_ERR_PEER_LOST;
    for (const struct addrinfo *a = list; a != NULL && err == TD_ERR_PEER_LOST; a = a->ai_next) {
        if (s->fd >= 0) {
            (void)close(s->fd);
        }
        err = dial_one(s, a, deadline_us);
    }
    freeaddrinfo(list);
    return err;
}

/* ---- TLS ---- */

static int bio_write(BIO *bio, const char *data, int len)
{
    ssize_t n = send((int)(intptr_t)BIO_get_data(bio), data, (size_t)len, MSG_NOSIGNAL);
    BIO_clear_retry_flags(bio);
    if (n < 0 && errno == EAGAIN) {
        BIO_set_retry_write(bio);
    }
    return (int)n;
}

static int bio_read(BIO *bio, char *buf, int cap)
{
    ssize_t n = recv((int)(intptr_t)BIO_get_data(bio), buf, (size_t)cap, 0);
    BIO_clear_retry_flags(bio);
    if (n < 0 && errno == EAGAIN) {
        BIO_set_retry_read(bio);
    }
    return (int)n;
}

static long bio_ctrl(BIO *bio, int what, long number, void *data)
{
    (void)bio;
    (void)number;
    (void)data;
    return what == BIO_CTRL_FLUSH ? 1 : 0;
}

static pthread_once_t bio_once = PTHREAD_ONCE_INIT;
static BIO_METHOD *bio_method; /* for the life of the process; NULL: out of memory */

static void make_bio_method(void)
{
    bio_method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "td_stream");
    if (bio_method != NULL) {
        (void)BIO_meth_set_write(bio_method, bio_write);
        (void)BIO_meth_set_read(bio_method, bio_read);
        (void)BIO_meth_set_ctrl(bio_method, bio_ctrl);
    }
}

/* NULL when out of memory. */
static BIO *make_bio(int fd)
{
    (void)pthread_once(&bio_once, make_bio_method);
    BIO *bio = bio_method != NULL ? BIO_new(bio_method) : NULL;
    if (bio != NULL) {
        BIO_set_data(bio, (void *)(intptr_t)fd);
        BIO_set_init(bio, 1);
    }
    return bio;
}

/* After a call of OpenSSL that gave `rc`: TD_OK to try again, or why not. */
static td_err tls_wait(struct td_stream *s, int rc, int64_t deadline_us)
{
    int what = SSL_get_error(s->ssl, rc);
    if (what == SSL_ERROR_WANT_READ || what == SSL_ERROR_WANT_WRITE) {
        return wait_for(s->fd, what == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, deadline_us)
                   ? TD_OK
                   : fail(s, TD_ERR_BUDGET, "no answer in time");
    }
    unsigned long code = ERR_get_error();
    ERR_clear_error();
    bool ended =
        what == SSL_ERROR_ZERO_RETURN || ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
    if (ended && SSL_is_init_finished(s->ssl)) {
        return fail(s, TD_ERR_CLOSED, "the connection was closed");
    }
    if (what == SSL_ERROR_SYSCALL || ended) {
        return fail(s, TD_ERR_PEER_LOST, "the connection was closed");
    }
    td_tls_client_why(s->ssl, code, s->why, sizeof s->why);
    return TD_ERR_PEER_AUTH;
}

static td_err shake_hands(struct td_stream *s, const char *alpn, int64_t deadline_us)
{
    int rc = 0;
    const unsigned char *chosen = NULL;
    unsigned len = 0;
    ERR_clear_error();
    while ((rc = SSL_do_handshake(s->ssl)) != 1) {
        TD_TRY(tls_wait(s, rc, deadline_us));
    }
    SSL_get0_alpn_selected(s->ssl, &chosen, &len);
    return len == (unsigned char)alpn[0] && memcmp(chosen, alpn + 1, len) == 0
               ? TD_OK
               : fail(s, TD_ERR_PEER_AUTH, "the server speaks another protocol here");
}

static td_err begin_tls(struct td_stream *s, const struct td_tls_client *tls, const char *host,
                        const char *alpn, int64_t deadline_us)
{
    s->ssl = td_tls_client_session(tls, host, alpn);
    BIO *bio = s->ssl != NULL ? make_bio(s->fd) : NULL;
    if (bio == NULL) {
        return fail(s, TD_ERR_NO_MEMORY, "out of memory");
    }
    SSL_set_bio(s->ssl, bio, bio);
    return shake_hands(s, alpn, deadline_us);
}

/* ---- the stream ---- */

static td_err open_stream(struct td_stream *s, const char *address, const struct td_tls_client *tls,
                          const char *alpn, int64_t deadline_us)
{
    char host[HOST_MAX_], port[8];
    if (!split_address(address, host, port)) {
        return fail(s, TD_ERR_BAD_REQUEST, "the address is host:port");
    }
    TD_TRY(dial(s, host, port, deadline_us));
    return tls != NULL ? begin_tls(s, tls, host, alpn, deadline_us) : TD_OK;
}

td_err td_stream_open(const char *address, const struct td_tls_client *tls, const char *alpn,
                      int64_t deadline_us, struct td_stream **out_stream, char *err_text,
                      size_t err_cap)
{
    struct td_stream *s = td_zalloc(1, sizeof *s);
    if (s == NULL) {
        (void)snprintf(err_text, err_cap, "out of memory");
        return TD_ERR_NO_MEMORY;
    }
    s->fd = -1;
    td_err err = open_stream(s, address, tls, alpn, deadline_us);
    if (err != TD_OK) {
        (void)snprintf(err_text, err_cap, "%s", s->why);
        td_stream_close(s);
        return err;
    }
    *out_stream = s;
    return TD_OK;
}

struct td_stream *td_stream_close(struct td_stream *s)
{
    if (s != NULL) {
        if (s->ssl != NULL && SSL_is_init_finished(s->ssl)) {
            (void)SSL_shutdown(s->ssl); /* one record; a full socket loses it */
            ERR_clear_error();
        }
        SSL_free(s->ssl);
        if (s->fd >= 0) {
            (void)close(s->fd);
        }
        free(s);
    }
    return NULL;
}

static td_err write_plain(struct td_stream *s, const uint8_t *data, size_t len, int64_t deadline_us,
                          size_t *out_n)
{
    ssize_t n = send(s->fd, data, len, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) {
        return fail(s, TD_ERR_PEER_LOST, "the connection was closed");
    }
    if (n < 0 && !wait_for(s->fd, POLLOUT, deadline_us)) {
        return fail(s, TD_ERR_BUDGET, "no answer in time");
    }
    *out_n = n > 0 ? (size_t)n : 0;
    return TD_OK;
}

/* A server that refuses our certificate says so, and has gone when we write: what it said is still to be read. */
static td_err last_words(struct td_stream *s, td_err err)
{
    char byte = 0;
    if (SSL_read(s->ssl, &byte, 1) <= 0 &&
        ERR_GET_REASON(ERR_peek_error()) >= SSL_AD_REASON_OFFSET) {
        td_tls_client_why(s->ssl, ERR_peek_error(), s->why, sizeof s->why);
        err = TD_ERR_PEER_AUTH;
    }
    ERR_clear_error();
    return err;
}

static td_err write_tls(struct td_stream *s, const uint8_t *data, size_t len, int64_t deadline_us,
                        size_t *out_n)
{
    ERR_clear_error();
    int n = SSL_write(s->ssl, data, len < INT_MAX ? (int)len : INT_MAX);
    *out_n = n > 0 ? (size_t)n : 0;
    td_err err = n > 0 ? TD_OK : tls_wait(s, n, deadline_us);
    return err == TD_ERR_PEER_LOST ? last_words(s, err) : err;
}

td_err td_stream_write(struct td_stream *s, const void *data, size_t len, int64_t deadline_us)
{
    const uint8_t *at = data;
    while (len > 0) {
        size_t n = 0;
        TD_TRY(s->ssl != NULL ? write_tls(s, at, len, deadline_us, &n)
                              : write_plain(s, at, len, deadline_us, &n));
        at += n;
        len -= n;
    }
    return TD_OK;
}

static td_err read_plain(struct td_stream *s, void *buf, size_t cap, int64_t deadline_us,
                         size_t *out_n)
{
    if (!wait_for(s->fd, POLLIN, deadline_us)) {
        return fail(s, TD_ERR_BUDGET, "no answer in time");
    }
    ssize_t n = recv(s->fd, buf, cap, 0);
    if (n == 0) {
        return fail(s, TD_ERR_CLOSED, "the connection was closed");
    }
    if (n < 0 && errno != EAGAIN) {
        return fail(s, TD_ERR_PEER_LOST, "the connection was closed");
    }
    *out_n = n > 0 ? (size_t)n : 0;
    return TD_OK;
}

static td_err read_tls(struct td_stream *s, void *buf, size_t cap, int64_t deadline_us,
                       size_t *out_n)
{
    ERR_clear_error();
    int n = SSL_read(s->ssl, buf, cap < INT_MAX ? (int)cap : INT_MAX);
    *out_n = n > 0 ? (size_t)n : 0;
    return n > 0 ? TD_OK : tls_wait(s, n, deadline_us);
}

td_err td_stream_read(struct td_stream *s, void *buf, size_t cap, int64_t deadline_us,
                      size_t *out_len)
{
    size_t n = 0;
    while (n == 0) {
        TD_TRY(s->ssl != NULL ? read_tls(s, buf, cap, deadline_us, &n)
                              : read_plain(s, buf, cap, deadline_us, &n));
    }
    *out_len = n;
    return TD_OK;
}

const char *td_stream_why(const struct td_stream *s)
{
    return s->why;
}
