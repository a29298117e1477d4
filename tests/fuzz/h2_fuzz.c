/* A hostile client of the HTTP/2 server and of the calls on it, over a pipe in memory, on a clock of its own. The input is a
 * script: frames with a right length and wrong everything else, bytes that are no frames, whole requests and messages, time
 * that passes, a client that does not read, and what the owners of calls do meanwhile. Whatever happens: what the server
 * writes are frames, its figures never exceed their limits, and nothing is left when the client has gone. */
#include <stdlib.h>
#include <string.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>

#include "common/base/log.h"
#include "common/io/acceptor.h"
#include "common/io/grpc_health.h"
#include "common/io/grpc_reflect.h"
#include "common/io/grpc_server.h"
#include "tests/fuzz/fuzz.h"

#define MAX_STREAMS 8u
#define MAX_UNSENT  16384u
#define MAX_BUFFER  8192u
#define N_HELD      16u
#define OPS_MAX     512
#define FRAME_MAX   16384u
#define HEAD_SIZE   9u

/* ---- the clock (linked with --wrap=td_now_us) ---- */

static int64_t now_us = 1000000;

int64_t __wrap_td_now_us(void); /* NOLINT: the linker's name */
int64_t __wrap_td_now_us(void)  /* NOLINT: the linker's name */
{
    return now_us;
}

/* ---- the script ---- */

struct script {
    const uint8_t *at;
    size_t left;
};

static uint8_t next(struct script *s)
{
    if (s->left == 0) {
        return 0;
    }
    s->left--;
    return *s->at++;
}

static size_t next_bytes(struct script *s, size_t want, uint8_t *out)
{
    size_t n = want < s->left ? want : s->left;
    memcpy(out, s->at, n);
    s->at += n;
    s->left -= n;
    return n;
}

/* Small odd ids, now and then an even or a huge one. */
static uint32_t next_stream(struct script *s)
{
    uint8_t b = next(s);
    return b == 255 ? 0x7fffffff : b >= 240 ? (uint32_t)b - 240 : (uint32_t)b % 16 * 2 + 1;
}

/* ---- the world ---- */

static struct td_loop *loop;
static struct td_acceptor *acceptor;

struct world {
    struct td_grpc_server *server;
    struct td_grpc_health *health;
    struct td_grpc_reflect *reflect;
    struct bufferevent *client; /* owned; NULL: hung up */
    struct td_grpc_call *held[N_HELD];
    uint64_t n_taken, n_done; /* calls that an owner took and that ended, by him or without him */
};

static struct world w;

static void must(bool ok)
{
    if (!ok) {
        abort();
    }
}

/* ---- owners of calls ---- */

static void on_gone(void *arg)
{
    struct td_grpc_call **slot = arg;
    must(*slot != NULL);
    *slot = NULL;
    w.n_done++;
}

static void h_hold(void *arg, struct td_grpc_call *c, const uint8_t *message, size_t len)
{
    (void)arg;
    must(message != NULL || len == 0);
    for (size_t i = 0; i < N_HELD; i++) {
        if (w.held[i] == NULL) {
            w.held[i] = c;
            w.n_taken++;
            td_grpc_call_on_gone(c, on_gone, &w.held[i]);
            return;
        }
    }
    td_grpc_fail(c, TD_ERR_OVERLOADED, NULL, 1);
}

static void h_echo(void *arg, struct td_grpc_call *c, const uint8_t *message, size_t len)
{
    (void)arg;
    if (td_grpc_send(c, message, len) == TD_OK) {
        td_grpc_finish(c, TD_GRPC_OK, NULL, NULL, 0);
    }
}

static void h_chat(void *arg, struct td_grpc_call *c, const uint8_t *message, size_t len)
{
    (void)arg;
    if (message == NULL) {
        td_grpc_finish(c, TD_GRPC_OK, NULL, NULL, 0);
    } else {
        TD_IGNORE(td_grpc_send(c, message, len)); /* a lost call is told by gone */
    }
}

static const struct td_grpc_method methods[] = {
    {.name = "Hold", .handle = h_hold},
    {.name = "Echo", .handle = h_echo, .open = true},
    {.name = "Chat", .handle = h_chat, .client_streams = true},
};

static td_err admit(void *arg, struct td_grpc_call *c)
{
    (void)arg;
    td_grpc_call_set_request_id(c, "fuzz-1");
    return td_http_header_get(td_grpc_call_request(c), "x-api-key") == NULL ? TD_ERR_UNAUTHORIZED
                                                                            : TD_OK;
}

static enum td_health status(void *arg, const char *service)
{
    (void)arg;
    return service[0] == 0 ? TD_HEALTH_SERVING : TD_HEALTH_SERVICE_UNKNOWN;
}

static void owner_acts(struct script *s)
{
    static const uint8_t bytes[4096];
    struct td_grpc_call **slot = &w.held[next(s) % N_HELD];
    uint8_t what = next(s);
    struct td_grpc_call *c = *slot;
    if (c == NULL) {
        return;
    }
    if (what < 64) {
        td_grpc_start(c);
    } else if (what < 192) {
        TD_IGNORE(td_grpc_send(c, bytes, (size_t)(what - 64) * 32)); /* gone tells */
    } else {
        *slot = NULL;
        w.n_done++;
        if (what < 224) {
            td_grpc_finish(c, TD_GRPC_OK, NULL, NULL, 0);
        } else {
            td_grpc_fail(c, what < 240 ? TD_ERR_NO_NODE : TD_ERR_POISON, "50 % \xc3\xa4\n", 2);
        }
    }
}

/* ---- the client ---- */

static void say(const void *data, size_t len)
{
    if (w.client != NULL && len > 0) {
        must(bufferevent_write(w.client, data, len) == 0);
    }
}

static void say_frame(uint8_t type, uint8_t flags, uint32_t stream, const void *payload, size_t len)
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
    say(head, sizeof head);
    say(payload, len);
}

static void any_frame(struct script *s)
{
    uint8_t payload[255];
    uint8_t type = next(s) % 12, flags = next(s);
    uint32_t stream = next_stream(s);
    size_t n = next_bytes(s, next(s), payload);
    say_frame(type, flags, stream, payload, n);
}

static size_t put(uint8_t *out, const char *name, const char *value)
{
    size_t n = 0;
    out[n++] = 0; /* HPACK: literal, not indexed, new name */
    out[n++] = (uint8_t)strlen(name);
    memcpy(out + n, name, strlen(name));
    n += strlen(name);
    out[n++] = (uint8_t)strlen(value);
    memcpy(out + n, value, strlen(value));
    return n + strlen(value);
}

static void request(struct script *s)
{
    static const char *const paths[] = {
        "/fuzz.v1.Fuzz/Hold",
        "/fuzz.v1.Fuzz/Echo",
        "/fuzz.v1.Fuzz/Chat",
        "/fuzz.v1.Fuzz/None",
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "*",
    };
    static const char *const timeouts[] = {"1S", "200m", "0n", "99999999H", "1", "-1S", "", "1SS"};
    uint8_t block[512];
    uint32_t stream = next_stream(s);
    uint8_t what = next(s), more = next(s);
    size_t n = put(block, ":method", (more & 64) != 0 ? "GET" : "POST");
    n += put(block + n, ":scheme", "http");
    n += put(block + n, ":authority", "a");
    n += put(block + n, ":path", paths[what % 8]);
    n += put(block + n, "content-type", (more & 32) != 0 ? "text/html" : "application/grpc+proto");
    if ((what & 8) == 0) {
        n += put(block + n, "x-api-key", "k");
    }
    if ((what & 16) != 0) {
        n += put(block + n, "grpc-timeout", timeouts[more % 8]);
    }
    size_t cut = (what & 32) != 0 ? n / 2 : n;
    uint8_t end = (what & 128) != 0 ? 1 : 0;
    say_frame(1, (uint8_t)(end | (cut == n ? 4 : 0)), stream, block, cut);
    if (cut < n) {
        say_frame(9, 4, stream, block + cut, n - cut);
    }
}

static void message(struct script *s)
{
    uint8_t frame[5 + 255];
    uint32_t stream = next_stream(s);
    uint8_t what = next(s), claim = next(s);
    size_t n = next_bytes(s, next(s), frame + 5);
    memset(frame, 0, 5);
    frame[0] = what >> 6;
    frame[4] = (uint8_t)((what & 2) != 0 ? claim : n);
    frame[3] = (what & 4) != 0 ? claim : 0;
    say_frame(0, what & 1, stream, frame, 5 + n);
}

static void flow(struct script *s)
{
    uint8_t what = next(s), amount = next(s);
    uint32_t stream = next_stream(s);
    uint8_t four[4] = {0, 0, amount, next(s)};
    uint8_t six[6] = {0, what % 8, 0, 0, amount, four[3]};
    if (what < 96) {
        say_frame(8, 0, what < 32 ? 0 : stream, four, 4);
    } else if (what < 192) {
        say_frame(4, 0, 0, six, 6);
    } else {
        say_frame(3, 0, stream, four, 4);
    }
}

/* ---- what the server writes ---- */

static void hear(void)
{
    struct evbuffer *in = w.client != NULL ? bufferevent_get_input(w.client) : NULL;
    uint8_t head[HEAD_SIZE];
    while (in != NULL && evbuffer_copyout(in, head, sizeof head) == (ssize_t)sizeof head) {
        size_t len = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
        must(len <= FRAME_MAX && head[3] <= 9 && head[3] != 2 && head[3] != 5);
        if (evbuffer_get_length(in) < sizeof head + len) {
            return;
        }
        must(evbuffer_drain(in, sizeof head + len) == 0);
    }
}

static void check_figures(void)
{
    struct td_h2_server_stats st;
    td_h2_server_stats(td_grpc_server_h2(w.server), &st);
    must(st.open <= 1 && st.streams <= MAX_STREAMS);
    must(st.unsent_bytes <= MAX_UNSENT);
    must(w.n_taken >= w.n_done && w.n_taken - w.n_done <= N_HELD);
}

/* The loop's own timer is in the past, so that everything due by our clock runs at once. */
static void pass(void)
{
    for (int i = 0; i < 4; i++) {
        td_loop_run_once(loop, -1000000000);
    }
    hear();
    check_figures();
}

/* ---- life ---- */

static struct td_peer *refuse(void *arg, struct bufferevent *bev, const struct td_peer *who)
{
    (void)arg;
    (void)bev;
    (void)who;
    return NULL;
}

static void begin_once(void)
{
    if (loop == NULL) {
        td_log_set_level(TD_LOG_ERROR);
        must(td_loop_create(&loop) == TD_OK);
        struct td_acceptor_params p = {.loop = loop,
                                       .host = "127.0.0.1",
                                       .max_connections = 4,
                                       .max_per_address = 4,
                                       .take = refuse};
        must(td_acceptor_create(&p, &acceptor) == TD_OK);
        td_acceptor_stop(acceptor);
    }
}

static void make_server(void)
{
    struct td_grpc_server_params p;
    td_grpc_server_defaults(&p);
    p.h2.loop = loop;
    p.h2.max_streams = MAX_STREAMS;
    p.h2.max_header_list = 1024;
    p.h2.high_water = MAX_UNSENT / 2;
    p.h2.max_unsent = MAX_UNSENT;
    p.max_message = MAX_BUFFER / 2;
    p.max_buffered = MAX_BUFFER;
    p.max_open_message = MAX_BUFFER / 8;
    p.max_open_buffered = MAX_BUFFER / 4;
    p.admit = admit;
    const struct td_grpc_service service = {
        .name = "fuzz.v1.Fuzz", .methods = methods, .n_methods = 3};
    must(td_grpc_server_create(&p, &w.server) == TD_OK);
    td_grpc_server_add(w.server, &service);
    must(td_grpc_health_create(loop, status, NULL, &w.health) == TD_OK);
    td_grpc_health_add(w.health, w.server);
    must(td_grpc_reflect_create(w.server, true, &w.reflect) == TD_OK);
}

static void connect_client(void)
{
    struct bufferevent *ends[2];
    struct td_peer who = {.name = "fuzz"};
    must(bufferevent_pair_new(td_loop_event_base(loop), BEV_OPT_DEFER_CALLBACKS, ends) == 0);
    w.client = ends[0];
    td_acceptor_join(acceptor, &who);
    must(td_h2_server_adopt(td_grpc_server_h2(w.server), ends[1], &who, acceptor));
    bufferevent_setwatermark(w.client, EV_READ, 0, 65536);
    must(bufferevent_enable(w.client, EV_READ | EV_WRITE) == 0);
}

static void hang_up(void)
{
    if (w.client != NULL) {
        (void)bufferevent_flush(w.client, EV_WRITE,
                                BEV_FINISHED); /* fails when the server has closed */
        bufferevent_free(w.client);
        w.client = NULL;
    }
}

static void one_op(struct script *s)
{
    uint8_t bytes[255];
    switch (next(s) % 12) {
    case 0:
        any_frame(s);
        break;
    case 1:
    case 2:
        request(s);
        break;
    case 3:
        message(s);
        break;
    case 4:
        say(bytes, next_bytes(s, next(s), bytes));
        break;
    case 5:
        flow(s);
        break;
    case 6:
        owner_acts(s);
        break;
    case 7:
        if (w.client != NULL) {
            must((next(s) % 2 == 0 ? bufferevent_disable : bufferevent_enable)(w.client, EV_READ) ==
                 0);
        }
        break;
    case 8:
        now_us += (int64_t)next(s) * 200000;
        break;
    case 9:
        td_h2_server_drain(td_grpc_server_h2(w.server));
        break;
    case 10:
        if (next(s) % 8 == 0) {
            hang_up();
        }
        break;
    default:
        pass();
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct script s = {data, size};
    struct td_h2_server_stats st;
    begin_once();
    memset(&w, 0, sizeof w);
    make_server();
    connect_client();
    if (next(&s) % 8 != 0) {
        say("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
        say_frame(4, 0, 0, NULL, 0);
    }
    for (int i = 0; i < OPS_MAX && s.left > 0; i++) {
        one_op(&s);
    }
    pass();
    hang_up();
    for (int i = 0; i < 8; i++) {
        pass();
    }
    td_h2_server_stats(td_grpc_server_h2(w.server), &st);
    must(st.open == 0 && st.streams == 0 && st.unsent_bytes == 0);
    must(w.n_taken == w.n_done && td_acceptor_open(acceptor) == 0);
    td_grpc_server_destroy(w.server);
    td_grpc_reflect_destroy(w.reflect);
    td_grpc_health_destroy(w.health);
    return 0;
}
