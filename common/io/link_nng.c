#include "common/io/link_nng.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/io/link_dns.h"
#include "common/io/link_op.h"
#include "common/io/port_owner.h"
#define TD_LOG_ROOM "link"
#include "common/base/log.h"

/* Design. Each connection has one receive and one send under way at most; what arrives is fed to
 * the session machine, whose actions are then carried out until there are none (pump). Sends asked
 * for between two passes of the loop leave together: they only arm the pump timer. NNG rules (docs:
 * interfaces of NNG 1.5 to 1.12): operations are stopped before their stream is closed; a dialer is
 * made once for each address and kept; nothing of its protocol sockets is used. */

#define READ_BYTES       ((size_t)64 * 1024)
#define DIAL_TIMEOUT_US  2000000 /* scaled */
#define ACCEPT_RETRY_US  100000
#define RESOLVE_EVERY_US 5000000
#define NO_NAME          UINT32_MAX

struct conn {
    struct td_link_nng *n; /* borrowed */
    struct conn *next;     /* in n->conns */
    uint64_t handle;       /* in the session machine */
    nng_stream *stream;    /* owned */
    struct link_op rx, tx;
    struct td_timer *delay; /* owned: ctl.delay */
    const uint8_t *left;    /* of the WRITE under way; the session machine's */
    size_t left_len;
    uint8_t in[READ_BYTES];
};

struct listener {
    struct td_link_nng *n;
    nng_stream_listener *nng; /* owned; NULL: unused */
    struct link_op accept;
    struct td_timer *retry; /* owned */
    char url[TD_LINK_NNG_URL];
};

struct target {
    struct td_link_nng *n;
    bool used;
    char url[TD_LINK_NNG_URL];
    uint32_t name; /* of td_dns, or NO_NAME */
    bool gone;     /* no longer among the name's addresses: kept while its session lives */
    uint64_t session;
    nng_stream_dialer *dialer; /* owned */
    struct link_op dial;
    char refusal[TD_LINK_TEXT]; /* last one logged */
};

struct name {
    uint32_t dns;
    char port[8];
};

struct td_link_nng {
    struct td_loop *loop; /* borrowed */
    struct td_link *link; /* owned */
    const struct td_link_ops *ops;
    void *arg;
    double time_scale;
    struct td_timer *deadline, *pump; /* owned */
    bool pumping, closing;
    int64_t closed_by_us;
    struct conn *conns;     /* owned list */
    struct target *targets; /* owned [n_targets], index = the machine's target */
    uint32_t n_targets;
    uint64_t *sessions; /* owned [n_sessions]: live ones, unordered */
    uint32_t n_sessions, max_sessions;
    struct listener listeners[TD_LINK_NNG_MAX_LISTEN];
    struct td_dns *dns; /* owned; made for the first name */
    int64_t resolve_every_us;
    struct name names[TD_LINK_NNG_MAX_NAMES];
    uint32_t n_names;
    char refusal[TD_LINK_TEXT]; /* last one logged of a peer that dialed us */
};

static void pump(struct td_link_nng *n);

static void ask_pump(struct td_link_nng *n)
{
    if (!n->pumping) {
        td_timer_set(n->pump, 0);
    }
}

static int64_t scaled(const struct td_link_nng *n, int64_t us)
{
    return (int64_t)((double)us * n->time_scale);
}

/* ---- connections ---- */

static void conn_free(struct conn *c)
{
    link_op_stop(&c->rx);
    link_op_stop(&c->tx);
    if (c->stream != NULL) {
        nng_stream_close(c->stream);
        nng_stream_free(c->stream);
    }
    link_op_fini(&c->rx);
    link_op_fini(&c->tx);
    c->delay = td_timer_destroy(c->delay);
    free(c);
}

/* The stream is over, whoever ended it. */
static void conn_close(struct conn *c)
{
    struct td_link_nng *n = c->n;
    struct conn **at = &n->conns;
    uint64_t handle = c->handle;
    while (*at != c) {
        at = &(*at)->next;
    }
    *at = c->next;
    conn_free(c); /* before the machine takes the memory of a WRITE back */
    td_link_conn_closed(n->link, td_now_us(), handle);
    ask_pump(n);
}

static void start_recv(struct conn *c)
{
    nng_iov iov = {.iov_buf = c->in, .iov_len = sizeof c->in};
    (void)nng_aio_set_iov(c->rx.aio, 1, &iov); /* fails for more than eight pieces only */
    link_op_begin(&c->rx);
    nng_stream_recv(c->stream, c->rx.aio);
}

static void on_recv(void *arg)
{
    struct conn *c = arg;
    struct td_link_nng *n = c->n;
    size_t len = nng_aio_count(c->rx.aio);
    if (nng_aio_result(c->rx.aio) != 0 || len == 0 || TD_FAULT(CTL_DROP)) {
        conn_close(c);
        return;
    }
    uint64_t handle = c->handle;
    td_link_conn_bytes(n->link, td_now_us(), handle, c->in, len);
    pump(n);
    for (struct conn *o = n->conns; o != NULL; o = o->next) {
        if (o == c && o->handle == handle) { /* it may have been closed on the way */
            start_recv(c);
            return;
        }
    }
}

static void start_send(struct conn *c)
{
    nng_iov iov = {.iov_buf = (void *)(uintptr_t)c->left, .iov_len = c->left_len};
    (void)nng_aio_set_iov(c->tx.aio, 1, &iov);
    link_op_begin(&c->tx);
    nng_stream_send(c->stream, c->tx.aio);
}

static void on_sent(void *arg)
{
    struct conn *c = arg;
    struct td_link_nng *n = c->n;
    if (nng_aio_result(c->tx.aio) != 0) {
        conn_close(c);
        return;
    }
    size_t sent = nng_aio_count(c->tx.aio);
    TD_INSIST(sent <= c->left_len);
    c->left += sent;
    c->left_len -= sent;
    if (c->left_len > 0) {
        start_send(c);
        return;
    }
    td_link_conn_wrote(n->link, td_now_us(), c->handle);
    pump(n);
}

static void on_delay_over(void *arg)
{
    start_send(arg);
}

static void conn_write(struct conn *c, const uint8_t *bytes, size_t len)
{
    c->left = bytes;
    c->left_len = len;
    int64_t wait = TD_WITH_FAULTS ? td_fault_delay_us(TD_FAULT_CTL_DELAY_ID) : 0;
    if (wait > 0) {
        td_timer_set(c->delay, td_now_us() + wait);
    } else {
        start_send(c);
    }
}

static struct conn *conn_find(struct td_link_nng *n, uint64_t handle)
{
    for (struct conn *c = n->conns; c != NULL; c = c->next) {
        if (c->handle == handle) {
            return c;
        }
    }
    return NULL;
}

/* Takes the stream, whatever comes of it. */
static void conn_open(struct td_link_nng *n, nng_stream *stream, uint32_t target)
{
    uint8_t nonce[TD_LINK_NONCE];
    struct conn *c = td_zalloc(1, sizeof *c);
    td_err e = c != NULL ? TD_OK : TD_ERR_NO_MEMORY;
    if (e == TD_OK) {
        c->n = n;
        c->stream = stream;
        e = link_op_init(&c->rx, n->loop, "link receive", on_recv, c);
    }
    if (e == TD_OK) {
        e = link_op_init(&c->tx, n->loop, "link send", on_sent, c);
    }
    if (e == TD_OK) {
        e = td_timer_create(n->loop, "ctl.delay", on_delay_over, c, &c->delay);
    }
    if (e == TD_OK) {
        td_rng_fill(nonce, sizeof nonce);
        e = td_link_conn_open(n->link, td_now_us(), target, nonce, &c->handle);
    } else if (target != TD_LINK_NO_TARGET) {
        td_link_dial_failed(n->link, td_now_us(), target);
    }
    if (e != TD_OK) {
        TD_LOG(INFO, "a connection cannot be taken, closing it", "err=%s", td_err_code(e));
        if (c != NULL) {
            conn_free(c);
        } else {
            nng_stream_close(stream);
            nng_stream_free(stream);
        }
        return;
    }
    c->next = n->conns;
    n->conns = c;
    start_recv(c);
    ask_pump(n);
}

/* ---- dialing ---- */

static void on_dialed(void *arg)
{
    struct target *t = arg;
    struct td_link_nng *n = t->n;
    uint32_t number = (uint32_t)(t - n->targets);
    int rv = nng_aio_result(t->dial.aio);
    if (rv == 0) {
        conn_open(n, nng_aio_get_output(t->dial.aio, 0), number);
    } else if (rv == NNG_ECONNREFUSED || rv == NNG_ENOENT) {
        td_link_dial_refused(n->link, td_now_us(), number);
    } else {
        TD_LOG(DEBUG, "cannot connect, trying again", "url=%s err=\"%s\"", t->url,
               nng_strerror(rv));
        td_link_dial_failed(n->link, td_now_us(), number);
    }
    pump(n);
}

static void dial(struct td_link_nng *n, uint32_t number)
{
    struct target *t = &n->targets[number];
    if (n->closing) {
        return; /* never answered: the machine waits, and is about to go */
    }
    TD_INSIST(t->used);
    nng_aio_set_timeout(t->dial.aio, (nng_duration)(scaled(n, DIAL_TIMEOUT_US) / 1000 + 1));
    link_op_begin(&t->dial);
    nng_stream_dialer_dial(t->dialer, t->dial.aio);
}

/* Frees what is left of a dialer; a connection that came too late is closed. */
static void target_free(struct target *t)
{
    if (t->dial.aio != NULL) {
        bool pending = t->dial.busy;
        link_op_stop(&t->dial);
        if (pending && nng_aio_result(t->dial.aio) == 0) {
            nng_stream *late = nng_aio_get_output(t->dial.aio, 0);
            if (late != NULL) {
                nng_stream_close(late);
                nng_stream_free(late);
            }
        }
    }
    if (t->dialer != NULL) {
        nng_stream_dialer_close(t->dialer);
        nng_stream_dialer_free(t->dialer);
    }
    link_op_fini(&t->dial);
    memset(t, 0, sizeof *t);
}

static td_err target_add(struct td_link_nng *n, const char *url, uint32_t name)
{
    uint32_t number;
    nng_stream_dialer *dialer;
    int rv = nng_stream_dialer_alloc(&dialer, url);
    if (rv != 0) {
        TD_LOG(ERROR, "cannot dial this address", "url=%s err=\"%s\"", url, nng_strerror(rv));
        return link_nng_err(rv) == TD_ERR_NO_MEMORY ? TD_ERR_NO_MEMORY : TD_ERR_ADDRESS;
    }
    (void)nng_stream_dialer_set_bool(dialer, NNG_OPT_TCP_NODELAY,
                                     true); /* ipc has no such option */
    td_err e = td_link_target_add(n->link, td_now_us(), &number);
    if (e != TD_OK) {
        TD_LOG(ERROR, "too many nodes", "url=%s max=%u", url, n->n_targets);
        nng_stream_dialer_free(dialer);
        return e;
    }
    struct target *t = &n->targets[number];
    *t = (struct target){.n = n, .used = true, .name = name, .dialer = dialer};
    (void)snprintf(t->url, sizeof t->url, "%s", url);
    e = link_op_init(&t->dial, n->loop, "link dial", on_dialed, t);
    if (e != TD_OK) {
        td_link_target_remove(n->link, td_now_us(), number);
        target_free(t);
        return e;
    }
    ask_pump(n);
    return TD_OK;
}

static void target_remove(struct td_link_nng *n, uint32_t number)
{
    struct target *t = &n->targets[number];
    TD_LOG(INFO, "a node's address is gone", "url=%s", t->url);
    bool dialing = t->dial.busy;
    td_link_target_remove(n->link, td_now_us(), number);
    target_free(t);
    if (dialing) {
        td_link_dial_failed(n->link, td_now_us(), number);
    }
    ask_pump(n);
}

/* ---- names ---- */

static void on_resolved(void *arg, unsigned dns, char addrs[][TD_DNS_ADDR], unsigned count,
                        td_err err)
{
    struct td_link_nng *n = arg;
    const struct name *name = NULL;
    for (uint32_t i = 0; i < n->n_names; i++) {
        name = n->names[i].dns == dns ? &n->names[i] : name;
    }
    if (err != TD_OK || name == NULL || n->closing) {
        return;
    }
    for (uint32_t i = 0; i < n->n_targets; i++) {
        if (n->targets[i].used && n->targets[i].name == dns) {
            n->targets[i].gone = true;
        }
    }
    for (unsigned a = 0; a < count; a++) {
        char url[TD_LINK_NNG_URL];
        bool known = false;
        (void)snprintf(url, sizeof url, "tcp://%s:%s", addrs[a], name->port);
        for (uint32_t i = 0; i < n->n_targets; i++) {
            if (n->targets[i].used && strcmp(n->targets[i].url, url) == 0) {
                known = true;
                n->targets[i].gone = false;
            }
        }
        if (!known) {
            (void)target_add(n, url, dns); /* logged; the next round tries again */
        }
    }
    for (uint32_t i = 0; i < n->n_targets; i++) {
        if (n->targets[i].used && n->targets[i].gone && n->targets[i].session == 0) {
            target_remove(n, i);
        }
    }
}

/* "tcp://name:port" with a name that is not numeric: splits it. */
static bool is_named(const char *url, char host[TD_DNS_HOST], char port[8])
{
    uint8_t raw[16];
    const char *start = url + 6, *colon = strrchr(url, ':');
    if (strncmp(url, "tcp://", 6) != 0 || colon == NULL || colon < start || start[0] == '[' ||
        (size_t)(colon - start) >= TD_DNS_HOST || strlen(colon + 1) >= 8) {
        return false;
    }
    memcpy(host, start, (size_t)(colon - start));
    host[colon - start] = '\0';
    memcpy(port, colon + 1, strlen(colon + 1) + 1);
    return host[0] != '\0' && inet_pton(AF_INET, host, raw) != 1;
}

td_err td_link_nng_dial(struct td_link_nng *n, const char *url)
{
    char host[TD_DNS_HOST], port[8];
    unsigned dns;
    td_assert_on(td_loop);
    if (strlen(url) >= TD_LINK_NNG_URL) {
        return TD_ERR_ADDRESS;
    }
    if (!is_named(url, host, port)) {
        return target_add(n, url, NO_NAME);
    }
    if (n->n_names == TD_LINK_NNG_MAX_NAMES) {
        return TD_ERR_FULL;
    }
    if (n->dns == NULL) {
        TD_TRY(td_dns_create(n->loop, n->resolve_every_us, on_resolved, n, &n->dns));
    }
    TD_TRY(td_dns_add(n->dns, host, &dns));
    n->names[n->n_names].dns = dns;
    memcpy(n->names[n->n_names].port, port, sizeof port);
    n->n_names++;
    return TD_OK;
}

/* ---- listening ---- */

static void start_accept(void *arg)
{
    struct listener *li = arg;
    link_op_begin(&li->accept);
    nng_stream_listener_accept(li->nng, li->accept.aio);
}

static void on_accepted(void *arg)
{
    struct listener *li = arg;
    int rv = nng_aio_result(li->accept.aio);
    if (rv == 0) {
        conn_open(li->n, nng_aio_get_output(li->accept.aio, 0), TD_LINK_NO_TARGET);
        start_accept(li);
    } else if (rv != NNG_ECLOSED) {
        TD_LOG(WARN, "cannot accept a connection, trying again", "url=%s err=\"%s\"", li->url,
               nng_strerror(rv));
        td_timer_set(li->retry, td_now_us() + ACCEPT_RETRY_US);
    }
}

/* A socket file that a dead process left behind; one that answers is left alone. */
static bool remove_stale_socket(const char *url)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const char *path = url + 6;
    if (strncmp(url, "ipc://", 6) != 0 || strlen(path) >= sizeof a.sun_path) {
        return false;
    }
    memcpy(a.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool stale =
        fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) != 0 && errno == ECONNREFUSED;
    if (fd >= 0) {
        (void)close(fd);
    }
    return stale && unlink(path) == 0;
}

static void listener_free(struct listener *li)
{
    if (li->accept.aio != NULL) {
        bool pending = li->accept.busy;
        link_op_stop(&li->accept);
        nng_stream *late = pending && nng_aio_result(li->accept.aio) == 0
                               ? nng_aio_get_output(li->accept.aio, 0)
                               : NULL;
        if (late != NULL) {
            nng_stream_close(late);
            nng_stream_free(late);
        }
    }
    if (li->nng != NULL) {
        nng_stream_listener_close(li->nng);
        nng_stream_listener_free(li->nng);
    }
    link_op_fini(&li->accept);
    li->retry = td_timer_destroy(li->retry);
    memset(li, 0, sizeof *li);
}

static int bind_listener(struct listener *li, const char *url)
{
    int rv = nng_stream_listener_alloc(&li->nng, url);
    if (rv != 0) {
        li->nng = NULL;
        return rv;
    }
    (void)nng_stream_listener_set_bool(li->nng, NNG_OPT_TCP_NODELAY,
                                       true); /* ipc has no such option */
    rv = nng_stream_listener_listen(li->nng);
    if (rv == NNG_EADDRINUSE && remove_stale_socket(url)) {
        rv = nng_stream_listener_listen(li->nng);
    }
    return rv;
}

/* The address as it is, with the port that the kernel chose. */
static void note_url(struct listener *li, const char *url)
{
    int port = 0;
    const char *colon = strrchr(url, ':');
    if (strncmp(url, "tcp", 3) == 0 && colon != NULL &&
        nng_stream_listener_get_int(li->nng, NNG_OPT_TCP_BOUND_PORT, &port) == 0) {
        (void)snprintf(li->url, sizeof li->url, "%.*s:%d", (int)(colon - url), url, port);
    } else {
        (void)snprintf(li->url, sizeof li->url, "%s", url);
    }
}

td_err td_link_nng_listen(struct td_link_nng *n, const char *url)
{
    struct listener *li = NULL;
    td_assert_on(td_loop);
    for (unsigned i = 0; i < TD_LINK_NNG_MAX_LISTEN && li == NULL; i++) {
        li = n->listeners[i].nng == NULL ? &n->listeners[i] : NULL;
    }
    if (li == NULL) {
        return TD_ERR_FULL;
    }
    li->n = n;
    int rv = strlen(url) < TD_LINK_NNG_URL - 8 ? bind_listener(li, url) : NNG_EADDRINVAL;
    if (rv != 0) {
        const char *port = strrchr(url, ':');
        char owner[64] = "";
        if (rv == NNG_EADDRINUSE && strncmp(url, "tcp", 3) == 0) {
            td_port_owner((uint16_t)strtoul(port + 1, NULL, 10), owner, sizeof owner);
        }
        TD_LOG(ERROR, "cannot listen",
               "option=--listen url=%s err=\"%s\" held_by=\"%s\": choose a free port or 0", url,
               nng_strerror(rv), owner);
        listener_free(li);
        return link_nng_err(rv) == TD_ERR_NO_MEMORY ? TD_ERR_NO_MEMORY : TD_ERR_ADDRESS;
    }
    td_err e = link_op_init(&li->accept, n->loop, "link accept", on_accepted, li);
    if (e == TD_OK) {
        e = td_timer_create(n->loop, "link accept retry", start_accept, li, &li->retry);
    }
    if (e != TD_OK) {
        listener_free(li);
        return e;
    }
    note_url(li, url);
    TD_LOG(INFO, "listening for routers", "url=%s", li->url);
    start_accept(li);
    return TD_OK;
}

const char *td_link_nng_listen_url(const struct td_link_nng *n, unsigned i)
{
    return i < TD_LINK_NNG_MAX_LISTEN && n->listeners[i].nng != NULL ? n->listeners[i].url : "";
}

/* ---- what the session machine wants ---- */

static const char *url_of(const struct td_link_nng *n, uint32_t target)
{
    return target != TD_LINK_NO_TARGET && n->targets[target].used ? n->targets[target].url : "";
}

static void do_up(struct td_link_nng *n, const struct td_link_action *a)
{
    TD_INSIST(n->n_sessions < n->max_sessions);
    n->sessions[n->n_sessions++] = a->session;
    if (a->target != TD_LINK_NO_TARGET && n->targets[a->target].used) {
        n->targets[a->target].session = a->session;
        n->targets[a->target].refusal[0] = '\0';
    } else {
        n->refusal[0] = '\0';
    }
    TD_LOG(INFO, "link up", "peer=%s epoch=%016" PRIx64 " url=%s", a->peer_name, a->peer_epoch,
           url_of(n, a->target));
    if (n->ops->on_up != NULL) {
        n->ops->on_up(n->arg, &(struct td_link_peer){.session = a->session,
                                                     .epoch = a->peer_epoch,
                                                     .name = a->peer_name,
                                                     .url = url_of(n, a->target),
                                                     .info = a->bytes,
                                                     .info_len = a->len});
    }
}

static void forget(struct td_link_nng *n, uint64_t session)
{
    for (uint32_t i = 0; i < n->n_sessions; i++) {
        if (n->sessions[i] == session) {
            n->sessions[i] = n->sessions[--n->n_sessions];
            break;
        }
    }
    for (uint32_t i = 0; i < n->n_targets; i++) {
        if (n->targets[i].session == session) {
            n->targets[i].session = 0;
        }
    }
}

static void do_lost(struct td_link_nng *n, const struct td_link_action *a)
{
    forget(n, a->session);
    if (a->err == TD_ERR_CLOSED || a->err == TD_ERR_DRAINING) {
        TD_LOG(INFO, "link closed", "peer=%s epoch=%016" PRIx64 " why=\"%s\"", a->peer_name,
               a->peer_epoch, a->text);
    } else {
        TD_LOG(WARN, "link lost", "peer=%s epoch=%016" PRIx64 " err=%s why=\"%s\"", a->peer_name,
               a->peer_epoch, td_err_code(a->err), a->text);
    }
    if (n->ops->on_lost != NULL) {
        n->ops->on_lost(n->arg, a->session, a->peer_epoch, a->err, a->text);
    }
}

/* The same refusal comes again every few seconds: logged once, until it changes or the link comes
 * up. */
static void do_refused(struct td_link_nng *n, const struct td_link_action *a)
{
    bool dialed = a->target != TD_LINK_NO_TARGET && n->targets[a->target].used;
    char *last = dialed ? n->targets[a->target].refusal : n->refusal;
    if (strcmp(last, a->text) != 0) {
        (void)snprintf(last, TD_LINK_TEXT, "%s", a->text);
        TD_LOG(WARN, "link refused", "url=%s by=%s err=%s why=\"%s\"", url_of(n, a->target),
               a->remote ? "peer" : "us", td_err_code(a->err), a->text);
    }
    if (n->ops->on_refused != NULL) {
        n->ops->on_refused(n->arg, url_of(n, a->target), a->err, a->text, a->remote);
    }
}

static void do_attached(struct td_link_nng *n, const struct td_link_action *a, bool attached)
{
    TD_LOG(INFO, attached ? "link resumed" : "link detached", "peer=%s epoch=%016" PRIx64,
           a->peer_name, a->peer_epoch);
    if (n->ops->on_attached != NULL) {
        n->ops->on_attached(n->arg, a->session, a->peer_epoch, attached);
    }
}

static void carry_out(struct td_link_nng *n, const struct td_link_action *a)
{
    struct conn *c;
    switch (a->type) {
    case TD_LINK_DIAL:
        dial(n, a->target);
        break;
    case TD_LINK_WRITE:
        c = conn_find(n, a->conn);
        TD_INSIST(c != NULL);
        conn_write(c, a->bytes, a->len);
        break;
    case TD_LINK_CLOSE:
        c = conn_find(n, a->conn);
        TD_INSIST(c != NULL);
        conn_close(c);
        break;
    case TD_LINK_UP:
        do_up(n, a);
        break;
    case TD_LINK_DETACHED:
        do_attached(n, a, false);
        break;
    case TD_LINK_RESUMED:
        do_attached(n, a, true);
        break;
    case TD_LINK_MESSAGE:
        if (n->ops->on_message != NULL) {
            n->ops->on_message(n->arg, a->session, a->peer_epoch, a->bytes, a->len);
        }
        break;
    case TD_LINK_LOST:
        do_lost(n, a);
        break;
    case TD_LINK_REFUSED:
        do_refused(n, a);
        break;
    }
}

static void pump(struct td_link_nng *n)
{
    struct td_link_action a;
    TD_INSIST(!n->pumping);
    n->pumping = true;
    while (td_link_next(n->link, td_now_us(), &a)) {
        carry_out(n, &a);
    }
    n->pumping = false;
    td_timer_set(n->pump, TD_NEVER);
    td_timer_set(n->deadline, td_link_next_deadline(n->link));
}

static void on_pump(void *arg)
{
    pump(arg);
}

static void on_deadline(void *arg)
{
    struct td_link_nng *n = arg;
    td_link_tick(n->link, td_now_us());
    pump(n);
}

/* ---- the owner's doors ---- */

td_err td_link_nng_send(struct td_link_nng *n, uint64_t session, uint64_t key, const uint8_t *data,
                        size_t len)
{
    td_assert_on(td_loop);
    TD_TRY(td_link_send(n->link, td_now_us(), session, key, data, len));
    ask_pump(n);
    return TD_OK;
}

void td_link_nng_drop(struct td_link_nng *n, uint64_t session, td_err reason)
{
    td_assert_on(td_loop);
    forget(n, session);
    td_link_session_close(n->link, td_now_us(), session, reason);
    ask_pump(n);
}

struct td_link *td_link_nng_core(struct td_link_nng *n)
{
    return n->link;
}

void td_link_nng_close(struct td_link_nng *n, td_err reason)
{
    td_assert_on(td_loop);
    n->closing = true;
    n->closed_by_us = td_now_us() + scaled(n, TD_LINK_T_LINGER_US);
    n->dns = td_dns_destroy(n->dns);
    for (unsigned i = 0; i < TD_LINK_NNG_MAX_LISTEN; i++) {
        listener_free(&n->listeners[i]);
    }
    while (n->n_sessions > 0) {
        td_link_nng_drop(n, n->sessions[0], reason);
    }
}

bool td_link_nng_idle(const struct td_link_nng *n)
{
    return n->closing && (n->conns == NULL || td_now_us() >= n->closed_by_us);
}

/* ---- creation ---- */

static td_err build(struct td_link_nng *n, const struct td_link_nng_params *p)
{
    struct td_link_params link = p->link;
    link.jitter_seed = link.jitter_seed != 0 ? link.jitter_seed : td_rng_u64_secure();
    TD_TRY(td_link_create(&link, &n->link));
    n->n_targets = link.max_targets != 0 ? link.max_targets : 64;
    n->max_sessions = link.max_sessions != 0 ? link.max_sessions : 64;
    n->targets = td_zalloc(n->n_targets, sizeof *n->targets);
    n->sessions = td_zalloc(n->max_sessions, sizeof *n->sessions);
    if (n->targets == NULL || n->sessions == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    TD_TRY(td_timer_create(n->loop, "link deadline", on_deadline, n, &n->deadline));
    return td_timer_create(n->loop, "link pump", on_pump, n, &n->pump);
}

td_err td_link_nng_create(const struct td_link_nng_params *p, struct td_link_nng **out_links)
{
    TD_REQUIRE(p->loop != NULL && p->ops != NULL);
    struct td_link_nng *n = td_zalloc(1, sizeof *n);
    if (n == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    n->loop = p->loop;
    n->ops = p->ops;
    n->arg = p->arg;
    n->time_scale = p->link.time_scale > 0 ? p->link.time_scale : 1.0;
    n->resolve_every_us = p->resolve_every_us > 0 ? p->resolve_every_us : RESOLVE_EVERY_US;
    td_err e = build(n, p);
    if (e != TD_OK) {
        (void)td_link_nng_destroy(n);
        return e;
    }
    *out_links = n;
    return TD_OK;
}

struct td_link_nng *td_link_nng_destroy(struct td_link_nng *n)
{
    if (n == NULL) {
        return NULL;
    }
    TD_REQUIRE(!n->pumping);
    n->dns = td_dns_destroy(n->dns);
    for (unsigned i = 0; i < TD_LINK_NNG_MAX_LISTEN; i++) {
        listener_free(&n->listeners[i]);
    }
    for (uint32_t i = 0; n->targets != NULL && i < n->n_targets; i++) {
        target_free(&n->targets[i]);
    }
    while (n->conns != NULL) {
        struct conn *c = n->conns;
        n->conns = c->next;
        conn_free(c);
    }
    n->deadline = td_timer_destroy(n->deadline);
    n->pump = td_timer_destroy(n->pump);
    n->link = td_link_destroy(n->link);
    free(n->targets);
    free(n->sessions);
    free(n);
    return NULL;
}
