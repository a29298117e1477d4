/* Design: libevent's listener; a connection that is over a cap is closed at once, so that a flood costs an accept each and
 * nothing else.
 */
#define TD_LOG_ROOM "io"
#include "common/io/acceptor.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/listener.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/io/port_owner.h"
#include "common/io/tls.h"

#define ACCEPT_RETRY_US 100000
#define BACKLOG         512
#define MAX_FILES       65536

struct td_acceptor {
    struct td_acceptor_params p;
    char host[64];
    struct evconnlistener *listener; /* owned; NULL: stopped */
    struct td_timer *retry;          /* owned */
    struct td_peer *peers;           /* borrowed from the takers */
    uint32_t open;
    uint64_t refused;
    uint16_t port;
};

static void name_peer(struct td_peer *who, const struct sockaddr *sa)
{
    char text[INET6_ADDRSTRLEN] = "?";
    unsigned port = 0;
    memset(who, 0, sizeof *who);
    if (sa->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)sa;
        (void)inet_ntop(AF_INET, &in->sin_addr, text, sizeof text);
        memcpy(who->address, &in->sin_addr, sizeof in->sin_addr);
        port = ntohs(in->sin_port);
    } else if (sa->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)(const void *)sa;
        (void)inet_ntop(AF_INET6, &in->sin6_addr, text, sizeof text);
        memcpy(who->address, &in->sin6_addr, sizeof in->sin6_addr);
        port = ntohs(in->sin6_port);
    }
    (void)snprintf(who->name, sizeof who->name, "%s:%u", text, port);
}

static bool over_limits(const struct td_acceptor *a, const struct td_peer *fresh)
{
    if (a->open >= a->p.max_connections) {
        return true;
    }
    uint32_t same = 0;
    for (const struct td_peer *p = a->peers;
         a->p.max_per_address < a->p.max_connections && p != NULL; p = p->next) {
        same += memcmp(p->address, fresh->address, sizeof p->address) == 0 ? 1 : 0;
    }
    return same >= a->p.max_per_address;
}

static struct bufferevent *make_plain(const struct td_acceptor *a, evutil_socket_t fd)
{
    return bufferevent_socket_new(td_loop_event_base(a->p.loop), fd, BEV_OPT_CLOSE_ON_FREE);
}

static struct bufferevent *make_tls(const struct td_acceptor *a, evutil_socket_t fd)
{
    SSL *ssl = td_tls_session(a->p.tls, a->p.alpn);
    struct bufferevent *bev =
        ssl != NULL
            ? bufferevent_openssl_socket_new(td_loop_event_base(a->p.loop), fd, ssl,
                                             BUFFEREVENT_SSL_ACCEPTING, BEV_OPT_CLOSE_ON_FREE)
            : NULL;
    if (bev == NULL) {
        SSL_free(ssl);
        return NULL;
    }
    bufferevent_openssl_set_allow_dirty_shutdown(bev,
                                                 1); /* a length or a frame says what is whole */
    return bev;
}

void td_acceptor_say_end(struct bufferevent *bev)
{
    SSL *ssl = bufferevent_openssl_get_ssl(bev);
    if (ssl != NULL) {
        (void)SSL_shutdown(
            ssl); /* one record; a full socket loses it, and the end of TCP still tells */
        ERR_clear_error();
    }
    (void)shutdown(bufferevent_getfd(bev), SHUT_WR);
}

bool td_acceptor_verified(struct bufferevent *bev)
{
    const SSL *ssl = bufferevent_openssl_get_ssl(bev);
    return ssl != NULL && SSL_get0_peer_certificate(ssl) != NULL &&
           SSL_get_verify_result(ssl) == X509_V_OK;
}

void td_acceptor_log_error(struct bufferevent *bev, const struct td_peer *who)
{
    unsigned long code = bufferevent_get_openssl_error(bev);
    const char *reason = code != 0 ? ERR_reason_error_string(code) : NULL;
    if (reason != NULL) {
        TD_LOG(INFO, "TLS failed", "peer=%s reason=\"%s\"", who->name, reason);
    }
}

static struct td_peer *hand_over(struct td_acceptor *a, evutil_socket_t fd,
                                 const struct td_peer *who)
{
    struct bufferevent *bev = a->p.tls != NULL ? make_tls(a, fd) : make_plain(a, fd);
    if (bev == NULL) {
        evutil_closesocket(fd);
        return NULL;
    }
    struct td_peer *taken = a->p.take(a->p.arg, bev, who);
    if (taken == NULL) {
        bufferevent_free(bev);
    }
    return taken;
}

/* Answers go out at once, and a client whose host is gone is noticed also where nothing is written (a watch, an idle
 * connection): after two minutes of silence. */
static void set_options(evutil_socket_t fd)
{
    static const struct {
        int level, name, value;
    } options[] = {{IPPROTO_TCP, TCP_NODELAY, 1},
                   {SOL_SOCKET, SO_KEEPALIVE, 1},
                   {IPPROTO_TCP, TCP_KEEPIDLE, 60},
                   {IPPROTO_TCP, TCP_KEEPINTVL, 15},
                   {IPPROTO_TCP, TCP_KEEPCNT, 4}};
    for (size_t i = 0; i < TD_COUNT(options); i++) {
        (void)setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof(int));
    }
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *sa, int len,
                      void *arg)
{
    (void)l;
    (void)len;
    struct td_acceptor *a = arg;
    struct td_peer who;
    name_peer(&who, sa);
    if (over_limits(a, &who)) {
        a->refused++;
        evutil_closesocket(fd);
        return;
    }
    set_options(fd);
    struct td_peer *taken = hand_over(a, fd, &who);
    if (taken == NULL) {
        a->refused++;
        return;
    }
    td_acceptor_join(a, taken);
}

void td_acceptor_join(struct td_acceptor *a, struct td_peer *who)
{
    who->prev = NULL;
    who->next = a->peers;
    if (a->peers != NULL) {
        a->peers->prev = who;
    }
    a->peers = who;
    a->open++;
}

void td_acceptor_left(struct td_acceptor *a, struct td_peer *who)
{
    if (who->prev != NULL) {
        who->prev->next = who->next;
    } else {
        a->peers = who->next;
    }
    if (who->next != NULL) {
        who->next->prev = who->prev;
    }
    a->open--;
}

static void on_retry(void *arg)
{
    struct td_acceptor *a = arg;
    if (a->listener != NULL) {
        (void)evconnlistener_enable(a->listener);
    }
}

/* Out of descriptors: the waiting connection stays, so without a pause this would come again at
 * once, for ever. */
static void on_error(struct evconnlistener *l, void *arg)
{
    struct td_acceptor *a = arg;
    TD_LOG(WARN, "cannot accept a connection, trying again", "host=%s port=%u errno=%d (%s)",
           a->host, (unsigned)a->port, errno, strerrordesc_np(errno));
    (void)evconnlistener_disable(l);
    td_timer_set(a->retry, td_now_us() + ACCEPT_RETRY_US);
}

/* Shells give 1024 descriptors, one for each client. */
static void raise_file_limit(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < MAX_FILES && r.rlim_cur < r.rlim_max) {
        r.rlim_cur = r.rlim_max < MAX_FILES ? r.rlim_max : MAX_FILES;
        (void)setrlimit(RLIMIT_NOFILE, &r);
    }
}

static td_err resolve(const char *host, uint16_t port, struct sockaddr_storage *out, int *out_len)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)out;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)out;
    memset(out, 0, sizeof *out);
    if (strcmp(host, "localhost") == 0) {
        host = "127.0.0.1";
    }
    if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        *out_len = sizeof *v4;
        return TD_OK;
    }
    if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
        *out_len = sizeof *v6;
        return TD_OK;
    }
    TD_LOG(ERROR, "listen address must be a numeric address", "host=%s", host);
    return TD_ERR_ADDRESS;
}

static uint16_t bound_port(int fd)
{
    struct sockaddr_in6 sa = {
        0}; /* an IPv4 address is shorter and has its port at the same place */
    socklen_t len = sizeof sa;
    if (getsockname(fd, (struct sockaddr *)&sa, &len) != 0) {
        return 0;
    }
    return ntohs(sa.sin6_port);
}

static void log_cannot_listen(const struct td_acceptor_params *p, int error)
{
    char owner[64] = "";
    if (error == EADDRINUSE) {
        td_port_owner(p->port, owner, sizeof owner);
    }
    TD_LOG(ERROR, "cannot listen",
           "option=%s host=%s port=%u errno=%d (%s) held_by=\"%s\": choose a free port or 0",
           p->option != NULL ? p->option : "", p->host, (unsigned)p->port, error,
           strerrordesc_np(error), owner);
}

td_err td_acceptor_create(const struct td_acceptor_params *p, struct td_acceptor **out_acceptor)
{
    struct sockaddr_storage sa;
    int len = 0;
    TD_TRY(resolve(p->host, p->port, &sa, &len));
    struct td_acceptor *a = td_zalloc(1, sizeof *a);
    if (a == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    a->p = *p;
    (void)snprintf(a->host, sizeof a->host, "%s", p->host);
    a->p.host = a->host;
    (void)signal(SIGPIPE, SIG_IGN);
    raise_file_limit();
    if (td_timer_create(p->loop, "accept", on_retry, a, &a->retry) != TD_OK) {
        td_acceptor_destroy(a);
        return TD_ERR_NO_MEMORY;
    }
    a->listener =
        evconnlistener_new_bind(td_loop_event_base(p->loop), on_accept, a,
                                LEV_OPT_CLOSE_ON_FREE | LEV_OPT_REUSEABLE | LEV_OPT_CLOSE_ON_EXEC,
                                BACKLOG, (struct sockaddr *)&sa, len);
    if (a->listener == NULL) {
        log_cannot_listen(p, errno);
        td_acceptor_destroy(a);
        return TD_ERR_ADDRESS;
    }
    a->port = bound_port(evconnlistener_get_fd(a->listener));
    evconnlistener_set_error_cb(a->listener, on_error);
    *out_acceptor = a;
    return TD_OK;
}

struct td_acceptor *td_acceptor_destroy(struct td_acceptor *a)
{
    if (a != NULL) {
        td_acceptor_stop(a);
        td_timer_destroy(a->retry);
        free(a);
    }
    return NULL;
}

uint16_t td_acceptor_port(const struct td_acceptor *a)
{
    return a->port;
}

void td_acceptor_stop(struct td_acceptor *a)
{
    if (a->listener != NULL) {
        evconnlistener_free(a->listener);
        a->listener = NULL;
    }
}

uint32_t td_acceptor_open(const struct td_acceptor *a)
{
    return a->open;
}

uint64_t td_acceptor_refused(const struct td_acceptor *a)
{
    return a->refused;
}
