#define TD_LOG_ROOM "io"
#include "common/io/xfer_measure.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/io/xfer.h"
#include "common/model/engine.h"

/* Design: the pusher (P) writes its address to a pipe, the lander (D) dials it, lands a table and says so. Then both
 * follow one script: ROUNDS small messages there and back, then pushes until n_messages have left; D answers when its
 * count says that all of them are in place, and P stops the clock. */

#define P_EPOCH      1u
#define D_EPOCH      2u
#define LAND         1u
#define MAX_LAYERS   32
#define PUSHES_AHEAD 2
#define ROUNDS       201 /* odd: the median is one of them */
#define PING_BYTES   64
#define WAIT_MS      100

static const struct td_work_id work = {.counter = 1};

struct pool_engine {
    struct td_engine base;
    struct td_engine_info info;
    void *pool; /* owned, mmap */
    size_t bytes;
};

struct end {
    struct pool_engine engine;
    struct td_xfer *x;
    uint32_t n_blocks, n_layers, n_messages;
    struct td_block_ref *table; /* owned [n_blocks] */
    uint32_t *src;              /* owned [n_blocks] */
    int64_t give_up_us;
};

/* ---- an engine that only owns memory ---- */

static uint32_t all_layers(struct td_engine *e, td_ticket t)
{
    (void)t;
    return ((struct pool_engine *)e)->info.n_layers;
}

static const struct td_engine_info *info(const struct td_engine *e)
{
    return &((const struct pool_engine *)e)->info;
}

static int no_fd(const struct td_engine *e)
{
    (void)e;
    return -1;
}

static void *pool_base(const struct td_engine *e)
{
    return ((const struct pool_engine *)e)->pool;
}

static td_err engine_open(struct pool_engine *e, const struct td_xfer_measure_params *p,
                          uint32_t n_layers)
{
    static const struct td_engine_ops ops = {
        .layers_done = all_layers,
        .info = info,
        .event_fd = no_fd,
        .layer_fd = no_fd,
        .pool_base = pool_base,
    };
    e->base.ops = &ops;
    e->info.layout = (struct td_kv_layout){
        .version = 1,
        .n_layers = n_layers,
        .slice_bytes = p->slice_bytes,
        .block_bytes = (uint64_t)n_layers * p->slice_bytes,
    };
    e->info.n_layers = n_layers;
    e->info.n_blocks = p->n_blocks;
    e->bytes = (size_t)p->n_blocks * e->info.layout.block_bytes;
    e->pool = mmap(NULL, e->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (e->pool == MAP_FAILED) {
        e->pool = NULL;
        TD_LOG(ERROR, "no memory for the pool to measure with", "bytes=%zu", e->bytes);
        return TD_ERR_NO_MEMORY;
    }
    memset(e->pool, 1, e->bytes); /* page faults are not what is measured */
    return TD_OK;
}

/* ---- one end ---- */

static td_err end_open(struct end *e, const struct td_xfer_measure_params *p, uint64_t epoch)
{
    size_t per_layer = (size_t)p->slice_bytes * p->n_blocks;
    size_t fit = TD_XFER_MEASURE_MAX_POOL / 8 / per_layer;
    *e = (struct end){.n_blocks = p->n_blocks, .n_messages = p->n_messages};
    e->n_layers = fit < 1 ? 1 : fit > MAX_LAYERS ? MAX_LAYERS : (uint32_t)fit;
    e->give_up_us = td_now_us() + TD_XFER_MEASURE_LIMIT_S * 1000000ll;
    TD_TRY(engine_open(&e->engine, p, e->n_layers));
    e->table = td_zalloc(p->n_blocks, sizeof *e->table);
    e->src = td_zalloc(p->n_blocks, sizeof *e->src);
    if (e->table == NULL || e->src == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < p->n_blocks; i++) {
        /* A stride through the pool: blocks of one sequence are not neighbours. */
        uint32_t b = (uint32_t)((uint64_t)i * 7919 % p->n_blocks);
        e->table[i] = (struct td_block_ref){b, 1};
        e->src[i] = p->n_blocks - 1 - b;
    }
    struct td_xfer_params x = {
        .epoch = epoch,
        .engine = &e->engine.base,
        .device = p->device,
        .transports = p->transports,
        .trust_network = p->trust_network,
    };
    return td_xfer_create(&x, &e->x);
}

static void end_close(struct end *e)
{
    e->x = td_xfer_destroy(e->x);
    if (e->engine.pool != NULL) {
        (void)munmap(e->engine.pool, e->engine.bytes);
    }
    free(e->table);
    free(e->src);
}

static td_err submit(struct end *e, const struct td_xfer_cmd *c)
{
    return td_xfer_submit(e->x, c);
}

/* Every message carries a number: how much CPU its sender has used, in microseconds. */
static td_err say_number(struct end *e, uint64_t to, int64_t number)
{
    uint8_t text[PING_BYTES] = {0};
    struct td_xfer_cmd c = {
        .type = TD_XFER_SEND, .epoch = to, .bytes = text, .n_bytes = sizeof text};
    memcpy(text, &number, sizeof number);
    return submit(e, &c);
}

static td_err say(struct end *e, uint64_t to)
{
    return say_number(e, to, 0);
}

static int64_t cpu_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* cannot fail on Linux */
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static td_err any_event(struct end *e, struct td_xfer_event *out)
{
    while (!td_xfer_poll(e->x, out)) {
        struct pollfd p = {.fd = td_xfer_event_fd(e->x), .events = POLLIN};
        if (td_now_us() > e->give_up_us) {
            return TD_ERR_STALLED;
        }
        (void)poll(&p, 1, WAIT_MS); /* the deadline above bounds it */
    }
    return TD_OK;
}

/* The next event; one that ends the measurement is an error. */
static td_err next_event(struct end *e, struct td_xfer_event *out)
{
    TD_TRY(any_event(e, out));
    if (out->type == TD_XFER_PEER_LOST || out->type == TD_XFER_LAND_BAD ||
        (out->type == TD_XFER_PUSHED && out->err != TD_OK)) {
        TD_LOG(ERROR, "the measured transfer failed", "event=%d err=%s", (int)out->type,
               td_err_code(out->err));
        return TD_ERR_TRANSPORT;
    }
    return TD_OK;
}

static td_err wait_msg(struct end *e)
{
    struct td_xfer_event ev;
    do {
        TD_TRY(next_event(e, &ev));
    } while (ev.type != TD_XFER_MSG);
    return TD_OK;
}

/* Messages are whole pushes of n_layers. */
static uint32_t n_pushes(const struct end *e)
{
    uint32_t n = (e->n_messages + e->n_layers - 1) / e->n_layers;
    return n < 1 ? 1 : n;
}

/* ---- the lander's script ---- */

static td_err land_all(struct end *e)
{
    struct td_xfer_event ev = {.type = TD_XFER_CLOSED};
    uint32_t want = (n_pushes(e) + 1) * e->n_layers; /* one of them warms up */
    int64_t cpu = 0;
    bool warm = false;
    while (ev.type != TD_XFER_LANDED || ev.n_slices < want) {
        TD_TRY(next_event(e, &ev));
        if (ev.type == TD_XFER_LANDED && !warm && ev.n_slices >= e->n_layers) {
            warm = true;
            cpu = cpu_us();
            TD_TRY(say(e, P_EPOCH));
        }
    }
    return say_number(e, P_EPOCH, cpu_us() - cpu);
}

static td_err lander(struct end *e, const uint8_t *address, size_t n)
{
    struct td_xfer_cmd c = {
        .type = TD_XFER_CONNECT, .epoch = P_EPOCH, .bytes = address, .n_bytes = n};
    struct td_xfer_cmd land = {
        .type = TD_XFER_LAND,
        .epoch = P_EPOCH,
        .land = LAND,
        .id = work,
        .blocks = e->table,
        .n_blocks = e->n_blocks,
        .n_layers = e->n_layers,
    };
    struct td_xfer_event ev;
    TD_TRY(submit(e, &c));
    TD_TRY(submit(e, &land));
    TD_TRY(say(e, P_EPOCH));
    for (int i = 0; i < ROUNDS; i++) {
        TD_TRY(wait_msg(e));
        TD_TRY(say(e, P_EPOCH));
    }
    TD_TRY(land_all(e));
    do { /* until the pusher has gone: closing first would be its loss */
        td_err err = any_event(e, &ev);
        if (err != TD_OK) {
            return err;
        }
    } while (ev.type != TD_XFER_PEER_LOST);
    return TD_OK;
}

/* ---- the pusher's script ---- */

static int by_value(const void *a, const void *b)
{
    int64_t d = *(const int64_t *)a - *(const int64_t *)b;
    return (d > 0) - (d < 0);
}

static td_err ping(struct end *e, struct td_xfer_measure_result *r)
{
    int64_t took[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        int64_t start = td_now_us();
        TD_TRY(say(e, D_EPOCH));
        TD_TRY(wait_msg(e));
        took[i] = td_now_us() - start;
    }
    qsort(took, ROUNDS, sizeof took[0], by_value);
    size_t middle = ROUNDS / 2;
    r->one_way_us = (double)took[middle] / 2;
    return TD_OK;
}

static td_err push(struct end *e, uint32_t n)
{
    struct td_xfer_cmd c = {
        .type = TD_XFER_PUSH,
        .epoch = D_EPOCH,
        .land = LAND,
        .push = n + 1,
        .id = work,
        .blocks = e->table,
        .src = e->src,
        .n_blocks = e->n_blocks,
        .n_layers = e->n_layers,
        .chunk = n,
    };
    return submit(e, &c);
}

static td_err stream(struct end *e, struct td_xfer_measure_result *r)
{
    struct td_xfer_event ev;
    uint32_t total = n_pushes(e);
    uint32_t sent = 0;
    TD_TRY(push(e, total)); /* warms pools and pages up */
    TD_TRY(wait_msg(e));
    int64_t start = td_now_us();
    int64_t cpu = cpu_us();
    int64_t cpu_there;
    for (; sent < total && sent < PUSHES_AHEAD; sent++) {
        TD_TRY(push(e, sent));
    }
    do {
        TD_TRY(next_event(e, &ev));
        if (ev.type == TD_XFER_PUSHED && sent < total && ev.push <= total) {
            TD_TRY(push(e, sent));
            sent++;
        }
    } while (ev.type != TD_XFER_MSG);
    double us = (double)(td_now_us() - start);
    cpu = cpu_us() - cpu;
    memcpy(&cpu_there, ev.bytes, sizeof cpu_there); /* our own lander's, PING_BYTES long */
    double messages = (double)total * e->n_layers;
    r->bytes = (uint64_t)total * e->engine.bytes;
    r->us_per_message = us / messages;
    r->cpu_us_per_message = (double)(cpu + cpu_there) / messages;
    r->gb_per_s = (double)r->bytes / us / 1000;
    (void)snprintf(r->transport, sizeof r->transport, "%s", td_xfer_transport(e->x, D_EPOCH));
    return TD_OK;
}

static td_err pusher(struct end *e, struct td_xfer_measure_result *r)
{
    *r = (struct td_xfer_measure_result){0};
    TD_TRY(wait_msg(e)); /* the table */
    TD_TRY(ping(e, r));
    return stream(e, r);
}

/* ---- processes ---- */

static bool write_all(int fd, const void *data, size_t n)
{
    return write(fd, data, n) == (ssize_t)n; /* less than a pipe's buffer: whole or not at all */
}

/* Reads until the other side closes; false when it was more or less than expected allows. */
static size_t read_all(int fd, void *data, size_t cap)
{
    size_t n = 0;
    ssize_t got;
    while (n < cap && (got = read(fd, (uint8_t *)data + n, cap - n)) > 0) {
        n += (size_t)got;
    }
    return n;
}

static td_err run_pusher(const struct td_xfer_measure_params *p, int address_fd, int result_fd)
{
    struct end e;
    struct td_xfer_measure_result r;
    const uint8_t *address;
    size_t n;
    td_err err = end_open(&e, p, P_EPOCH);
    if (err == TD_OK) {
        td_xfer_address(e.x, &address, &n);
        err = write_all(address_fd, address, n) ? TD_OK : TD_ERR_IO;
    }
    (void)close(address_fd);
    err = err != TD_OK ? err : pusher(&e, &r);
    if (err == TD_OK && !write_all(result_fd, &r, sizeof r)) {
        err = TD_ERR_IO;
    }
    end_close(&e);
    return err;
}

static td_err run_lander(const struct td_xfer_measure_params *p, int address_fd)
{
    struct end e;
    uint8_t address[4096];
    td_err err = end_open(&e, p, D_EPOCH);
    size_t n = read_all(address_fd, address, sizeof address);
    err = err != TD_OK ? err : lander(&e, address, n);
    end_close(&e);
    return err;
}

/* Waits for a child until `until_us`, then kills it. */
static bool reap(pid_t pid, int64_t until_us)
{
    int status = 0;
    struct timespec nap = {.tv_nsec = 10000000};
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (td_now_us() > until_us) {
            (void)kill(pid, SIGKILL);
        }
        (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &nap, NULL);
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static td_err run_both(const struct td_xfer_measure_params *p, int address[2], int result[2],
                       struct td_xfer_measure_result *out)
{
    int64_t until = td_now_us() + (TD_XFER_MEASURE_LIMIT_S + 5) * 1000000ll;
    pid_t push_pid = fork();
    if (push_pid == 0) {
        (void)close(address[0]);
        (void)close(result[0]);
        _exit(run_pusher(p, address[1], result[1]) == TD_OK ? 0 : 1);
    }
    (void)close(address[1]);
    (void)close(result[1]);
    pid_t land_pid = push_pid > 0 ? fork() : -1;
    if (land_pid == 0) {
        _exit(run_lander(p, address[0]) == TD_OK ? 0 : 1);
    }
    bool ok = land_pid > 0 && push_pid > 0 && read_all(result[0], out, sizeof *out) == sizeof *out;
    if (push_pid > 0) {
        ok &= reap(push_pid, ok ? until : 0);
    }
    if (land_pid > 0) {
        ok &= reap(land_pid, ok ? until : 0);
    }
    (void)close(address[0]);
    (void)close(result[0]);
    if (!ok) {
        TD_LOG(ERROR, "the data plane cannot be measured", "device=%s transports=%s", p->device,
               p->transports);
        return TD_ERR_TRANSPORT;
    }
    return TD_OK;
}

td_err td_xfer_measure(const struct td_xfer_measure_params *p, struct td_xfer_measure_result *out)
{
    int address[2];
    int result[2];
    struct td_xfer_measure_result r;
    if (p->slice_bytes == 0 || p->n_blocks == 0 ||
        (uint64_t)p->slice_bytes * p->n_blocks > TD_XFER_MEASURE_MAX_POOL) {
        return TD_ERR_BAD_REQUEST;
    }
    if (pipe2(address, O_CLOEXEC) != 0) {
        TD_LOG(ERROR, "pipe failed", "what=address");
        return TD_ERR_IO;
    }
    if (pipe2(result, O_CLOEXEC) != 0) {
        TD_LOG(ERROR, "pipe failed", "what=result");
        (void)close(address[0]);
        (void)close(address[1]);
        return TD_ERR_IO;
    }
    TD_TRY(run_both(p, address, result, &r));
    r.transport[sizeof r.transport - 1] = '\0';
    *out = r;
    return TD_OK;
}
