#define TD_LOG_ROOM "io"
#include "common/io/ucx.h"

#include <net/if.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"

#define ADDRESS_MAGIC 0x32524441584b4454u /* "TDKXADR2" */
#define DEVICE_BYTES  64
#define UCX_TEXT      512

/* In front of UCX's own address bytes, whose parser trusts what it is given. */
struct address_head {
    uint64_t magic;
    uint64_t sum;     /* of the place and of the bytes behind this head */
    uint32_t n_bytes; /* behind this head */
    uint32_t reserved;
    struct td_ucx_place place;
};
_Static_assert(sizeof(struct address_head) == 56, "address head is part of the wire");

static pthread_once_t process_once = PTHREAD_ONCE_INIT;
static _Thread_local bool quiet; /* UCX lines of this thread are expected */

td_err td_ucx_error(const char *what, ucs_status_t status)
{
    TD_LOG(WARN, "ucx call failed", "call=%s text=\"%s\"", what, ucs_status_string(status));
    switch ((int)status) {
    case UCS_ERR_NO_MEMORY:
        return TD_ERR_NO_MEMORY;
    case UCS_ERR_INVALID_ADDR:
    case UCS_ERR_NO_DEVICE:
        return TD_ERR_ADDRESS;
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_REJECTED:
        return TD_ERR_PEER_LOST;
    case UCS_ERR_CANCELED:
        return TD_ERR_CANCELLED;
    default:
        return TD_ERR_TRANSPORT;
    }
}

/* UCX prints on stdout, which belongs to the program's own output: its lines become ours. Most of
 * what it calls an error is a peer that died, which we survive. */
static ucs_log_func_rc_t on_ucx_line(const char *file, unsigned line, const char *function,
                                     ucs_log_level_t level, const ucs_log_component_config_t *comp,
                                     const char *format, va_list ap)
{
    char text[UCX_TEXT];
    char quoted[UCX_TEXT * 2];
    if (level > UCS_LOG_LEVEL_WARN || quiet ||
        strcmp(function, "ucp_warn_unused_uct_config") == 0 || /* UCX_TLS left that transport out */
        strcmp(function, "ucp_tag_match_cleanup") == 0) {      /* of a group that is over, unread */
        return UCS_LOG_FUNC_RC_STOP;
    }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    (void)vsnprintf(text, sizeof text, format, ap); /* a cut line is fine */
#pragma GCC diagnostic pop
    (void)td_log_quote(text, strlen(text), quoted, sizeof quoted);
    if (level == UCS_LOG_LEVEL_FATAL) {
        TD_LOG(ERROR, "ucx is about to abort", "text=%s at=%s:%u", quoted, function, line);
    } else {
        TD_LOG(WARN, "ucx says", "text=%s at=%s:%u", quoted, function, line);
    }
    return UCS_LOG_FUNC_RC_STOP;
}

/* UCX installs handlers for these when it is loaded, before main() could say otherwise. They would
 * hide core dumps, and SIGHUP would stop the process for a debugger. */
static void process_setup(void)
{
    static const int ours[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGHUP};
    ucs_log_push_handler(on_ucx_line);
    quiet = true; /* "was not set": the environment had switched it off already */
    for (size_t i = 0; i < TD_COUNT(ours); i++) {
        ucs_debug_disable_signal(ours[i]);
    }
    quiet = false;
    (void)ucs_global_opts_set_value("WARN_UNUSED_ENV_VARS", "n"); /* only noise if it fails */
}

/* ---- which device, and may we ---- */

static bool token_in(const char *list, const char *token)
{
    size_t n = strlen(token);
    for (const char *p = list; *p != '\0';) {
        size_t len = strcspn(p, ",");
        if (len == n && strncmp(p, token, n) == 0) {
            return true;
        }
        p += len + (p[len] == ',');
    }
    return false;
}

bool td_ucx_names(const char *transports, const char *name)
{
    return transports != NULL && transports[0] != '^' && token_in(transports, name);
}

/* UCX_TLS syntax: a list, or '^' and a list of what is excluded. */
static bool transport_allowed(const char *transports, const char *name)
{
    if (transports == NULL || transports[0] == '\0') {
        return true;
    }
    if (transports[0] == '^') {
        return !token_in(transports + 1, name);
    }
    return token_in(transports, name) || token_in(transports, "all");
}

static bool shm_allowed(const char *transports)
{
    static const char *const names[] = {"sm", "shm", "mm", "posix", "sysv"};
    for (size_t i = 0; i < TD_COUNT(names); i++) {
        if (transport_allowed(transports, names[i])) {
            return true;
        }
    }
    return false;
}

enum device_kind { DEVICE_UNKNOWN, DEVICE_LOOPBACK, DEVICE_NETWORK, DEVICE_RDMA };

static enum device_kind device_kind(const char *name)
{
    char path[DEVICE_BYTES + sizeof "/sys/class/infiniband/"];
    struct ifreq req = {0};
    enum device_kind kind = DEVICE_UNKNOWN;
    if (strlen(name) < sizeof req.ifr_name) {
        int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        memcpy(req.ifr_name, name, strlen(name) + 1);
        if (fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &req) == 0) {
            kind = (req.ifr_flags & IFF_LOOPBACK) != 0 ? DEVICE_LOOPBACK : DEVICE_NETWORK;
        }
        if (fd >= 0) {
            (void)close(fd);
        }
    }
    (void)snprintf(path, sizeof path, "/sys/class/infiniband/%s", name);
    if (kind == DEVICE_UNKNOWN && name[0] != '\0' && strchr(name, '/') == NULL &&
        access(path, F_OK) == 0) {
        kind = DEVICE_RDMA;
    }
    return kind;
}

static td_err check_one_device(const char *name, bool tcp, bool trust)
{
    char quoted[DEVICE_BYTES * 2];
    enum device_kind kind = strcmp(name, "all") == 0 ? DEVICE_NETWORK : device_kind(name);
    (void)td_log_quote(name, strlen(name), quoted, sizeof quoted);
    if (kind == DEVICE_UNKNOWN) {
        TD_LOG(ERROR, "no such device, see --kv-device", "device=%s", quoted);
        return TD_ERR_ADDRESS;
    }
    if (kind == DEVICE_NETWORK && tcp && !trust) {
        TD_LOG(
            ERROR,
            "KV over TCP beyond loopback lets anyone who reaches the port write this process's "
            "memory: isolate the "
            "network and pass --kv-trust-network, or name another --kv-device or --kv-transports",
            "device=%s", quoted);
        return TD_ERR_CONFIG;
    }
    return TD_OK;
}

/* The next name of a device list, without its port ("mlx5_0:1" is port 1 of mlx5_0), and what follows it; NULL at the end.
 * A name that does not fit is cut, and then names no device. */
static const char *next_device(const char *list, char name[DEVICE_BYTES])
{
    if (*list == '\0') {
        return NULL;
    }
    size_t len = strcspn(list, ",");
    (void)snprintf(name, DEVICE_BYTES, "%.*s", (int)strcspn(list, ",:"), list); /* cut on purpose */
    return list + len + (list[len] == ',');
}

td_err td_ucx_check_device(const char *device, const char *transports, bool trust)
{
    bool tcp = transport_allowed(transports, "tcp");
    char name[DEVICE_BYTES];
    if (transports != NULL && strcmp(transports, "cma") == 0) {
        TD_LOG(ERROR, "cma carries slices only: name what carries messages too",
               "example=--kv-transports=cma,sm");
        return TD_ERR_CONFIG;
    }
    if (device == NULL || device[0] == '\0') {
        TD_LOG(ERROR, "the data plane's device is not named, see --kv-device", "example=lo");
        return TD_ERR_CONFIG;
    }
    for (const char *p = device; (p = next_device(p, name)) != NULL;) {
        TD_TRY(check_one_device(name, tcp, trust));
    }
    return TD_OK;
}

static bool names_rdma(const char *device)
{
    char name[DEVICE_BYTES];
    for (const char *p = device; (p = next_device(p, name)) != NULL;) {
        if (device_kind(name) == DEVICE_RDMA || strcmp(name, "all") == 0) {
            return true;
        }
    }
    return false;
}

/* ---- context and worker ---- */

static td_err set_option(ucp_config_t *cfg, const char *name, const char *value)
{
    ucs_status_t s = ucp_config_modify(cfg, name, value);
    return s == UCS_OK ? TD_OK : td_ucx_error(name, s);
}

static td_err set_options(ucp_config_t *cfg, const struct td_ucx_params *p)
{
    char range[32];
    TD_TRY(set_option(cfg, "NET_DEVICES",
                      p->device)); /* names network devices only: shared memory stays */
    if (p->transports != NULL && p->transports[0] != '\0') {
        TD_TRY(set_option(cfg, "TLS", p->transports));
    }
    /* Without it error mode peer silently drops shared memory and moves KV by TCP. */
    if (shm_allowed(p->transports)) {
        TD_TRY(set_option(cfg, "MM_ERROR_HANDLING", "y"));
    }
    if (transport_allowed(p->transports, "tcp")) {
        /* 8 KB by default, a system call for each: 2x the CPU time. It must not pass the receiver's buffer, whose
         * default is this size, so that a peer with default settings can still read us. */
        TD_TRY(set_option(cfg, "TX_SEG_SIZE", "64k"));
    }
    if (!names_rdma(p->device)) {
        /* Nothing needs registration then, and the cache for it would hook mmap, munmap and madvise of the whole
         * process (which ThreadSanitizer, for one, does not survive). */
        TD_TRY(set_option(cfg, "RCACHE_ENABLE", "n"));
    }
    /* 20 s by default: how late a dead shared-memory peer would be noticed. */
    TD_TRY(set_option(cfg, "KEEPALIVE_INTERVAL", "1s"));
    if (p->port_first != 0) {
        (void)snprintf(range, sizeof range, "%u-%u", p->port_first, p->port_last);
        TD_TRY(set_option(cfg, "PORT_RANGE", range));
    }
    return TD_OK;
}

/* UCX has said what it has; this says which of our options asked for something else. */
static void log_no_transport(const struct td_ucx_params *p)
{
    char transports[128], device[128];
    const char *asked = p->transports != NULL ? p->transports : "";
    (void)td_log_quote(asked, strlen(asked), transports, sizeof transports);
    (void)td_log_quote(p->device, strlen(p->device), device, sizeof device);
    TD_LOG(ERROR, "UCX has no such data plane, see --kv-transports and --kv-device",
           "transports=%s device=%s, `tandemctl doctor` tries each", transports, device);
}

static td_err open_context(const struct td_ucx_params *p, ucp_context_h *out)
{
    ucp_config_t *cfg = NULL;
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
        .features = (p->tags ? UCP_FEATURE_TAG : UCP_FEATURE_AM) | UCP_FEATURE_WAKEUP,
        .name = "tandem",
    };
    TD_UCX("ucp_config_read", ucp_config_read(NULL, NULL, &cfg));
    td_err e = set_options(cfg, p);
    if (e == TD_OK) {
        ucs_status_t s = ucp_init(&params, cfg, out);
        e = s == UCS_OK ? TD_OK : td_ucx_error("ucp_init", s);
        if (e != TD_OK) {
            log_no_transport(p);
        }
    }
    ucp_config_release(cfg);
    return e;
}

static td_err check_header(ucp_worker_h worker)
{
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER};
    TD_UCX("ucp_worker_query", ucp_worker_query(worker, &attr));
    if (attr.max_am_header < TD_UCX_AM_HEADER) {
        TD_LOG(ERROR, "the transport cannot carry a slice header", "max=%zu need=%d",
               attr.max_am_header, TD_UCX_AM_HEADER);
        return TD_ERR_TRANSPORT;
    }
    return TD_OK;
}

static td_err open_worker(const struct td_ucx_params *p, struct td_ucx *u)
{
    ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_EVENTS,
        .thread_mode = p->tags ? UCS_THREAD_MODE_SERIALIZED : UCS_THREAD_MODE_SINGLE,
        .events = UCP_WAKEUP_RX | UCP_WAKEUP_TX,
    };
    TD_UCX("ucp_worker_create", ucp_worker_create(u->context, &params, &u->worker));
    if (!p->tags) {
        TD_TRY(check_header(u->worker));
    }
    TD_UCX("ucp_worker_get_efd", ucp_worker_get_efd(u->worker, &u->event_fd));
    return TD_OK;
}

static uint64_t mix_bytes(uint64_t sum, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    for (size_t i = 0; i < n; i++) {
        sum = td_mix64(sum ^ p[i]);
    }
    return sum;
}

static uint64_t address_sum(const struct td_ucx_place *place, const uint8_t *bytes, size_t n)
{
    return mix_bytes(mix_bytes(n, place, sizeof *place), bytes, n);
}

/* A process number means the same process where boot and PID namespace are the same. Without either file (no /proc) the
 * place is drawn at random: nobody is here. */
static void find_place(struct td_ucx_place *out, const void *probe)
{
    char boot[64] = "";
    struct stat ns;
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    bool known =
        f != NULL && fgets(boot, sizeof boot, f) != NULL && stat("/proc/self/ns/pid", &ns) == 0;
    if (f != NULL) {
        (void)fclose(f);
    }
    *out = (struct td_ucx_place){.pid = (uint64_t)getpid(), .probe = (uintptr_t)probe};
    if (!known) {
        td_rng_fill(out->host, sizeof out->host);
        return;
    }
    uint64_t half[2] = {mix_bytes(1, boot, strlen(boot)), mix_bytes(2, boot, strlen(boot))};
    half[0] = mix_bytes(half[0], &ns.st_dev, sizeof ns.st_dev);
    half[1] = mix_bytes(half[1], &ns.st_ino, sizeof ns.st_ino);
    memcpy(out->host, half, sizeof half);
}

static td_err wrap_address(struct td_ucx *u)
{
    ucp_address_t *raw = NULL;
    size_t n = 0;
    TD_UCX("ucp_worker_get_address", ucp_worker_get_address(u->worker, &raw, &n));
    size_t total = sizeof(struct address_head) + n;
    if (total <= TD_UCX_MAX_ADDRESS) {
        u->address = td_zalloc(1, total);
    }
    if (u->address != NULL) {
        const uint8_t *bytes = (const uint8_t *)raw;
        struct address_head head = {ADDRESS_MAGIC, address_sum(&u->place, bytes, n), (uint32_t)n, 0,
                                    u->place};
        memcpy(u->address, &head, sizeof head);
        memcpy(u->address + sizeof head, bytes, n);
        u->address_bytes = total;
    }
    ucp_worker_release_address(u->worker, raw);
    if (total > TD_UCX_MAX_ADDRESS) {
        TD_LOG(ERROR, "worker address is too long, name fewer devices in --kv-device",
               "bytes=%zu max=%d", total, TD_UCX_MAX_ADDRESS);
        return TD_ERR_CONFIG;
    }
    return u->address != NULL ? TD_OK : TD_ERR_NO_MEMORY;
}

/* The pool is registered once, here; on transports that need no registration this costs nothing. */
static td_err register_pool(struct td_ucx *u, const struct td_ucx_params *p)
{
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
        .address = p->pool,
        .length = p->pool_bytes,
    };
    if (p->pool == NULL || p->pool_bytes == 0) {
        return TD_OK;
    }
    TD_UCX("ucp_mem_map", ucp_mem_map(u->context, &params, &u->pool));
    u->registrations++;
    return TD_OK;
}

static td_err open_all(const struct td_ucx_params *p, struct td_ucx *u)
{
    TD_TRY(open_context(p, &u->context));
    TD_TRY(open_worker(p, u));
    TD_TRY(register_pool(u, p));
    find_place(&u->place, p->probe);
    return wrap_address(u);
}

td_err td_ucx_open(const struct td_ucx_params *p, struct td_ucx *out)
{
    struct td_ucx u = {.event_fd = -1};
    sigset_t all;
    sigset_t old;
    TD_TRY(td_ucx_check_device(p->device, p->transports, p->trust_network));
    (void)pthread_once(&process_once, process_setup);
    /* UCX starts a thread of its own here; signals are for the main thread. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    td_err e = open_all(p, &u);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (e != TD_OK) {
        td_ucx_close(&u);
        return e;
    }
    *out = u;
    return TD_OK;
}

void td_ucx_close(struct td_ucx *u)
{
    if (u->pool != NULL) {
        (void)ucp_mem_unmap(u->context, u->pool); /* nothing to do about a failure */
    }
    if (u->worker != NULL) {
        ucp_worker_destroy(u->worker);
    }
    if (u->context != NULL) {
        ucp_cleanup(u->context);
    }
    free(u->address);
    *u = (struct td_ucx){.event_fd = -1};
}

/* ---- endpoints ---- */

static bool unwrap(const uint8_t *address, size_t n, const ucp_address_t **out)
{
    struct address_head head;
    if (address == NULL || n < sizeof head || n > TD_UCX_MAX_ADDRESS) {
        return false;
    }
    memcpy(&head, address, sizeof head);
    const uint8_t *bytes = address + sizeof head;
    if (head.magic != ADDRESS_MAGIC || head.n_bytes != n - sizeof head || head.reserved != 0 ||
        head.sum != address_sum(&head.place, bytes, head.n_bytes)) {
        return false;
    }
    *out = (const ucp_address_t *)bytes;
    return true;
}

bool td_ucx_address_ok(const uint8_t *address, size_t n)
{
    const ucp_address_t *raw;
    return unwrap(address, n, &raw);
}

bool td_ucx_place_here(const struct td_ucx *u, const uint8_t *address, size_t n,
                       struct td_ucx_place *out)
{
    const ucp_address_t *raw;
    struct address_head head;
    if (!unwrap(address, n, &raw)) {
        return false;
    }
    memcpy(&head, address, sizeof head);
    *out = head.place;
    return memcmp(head.place.host, u->place.host, sizeof head.place.host) == 0;
}

td_err td_ucx_connect(struct td_ucx *u, const uint8_t *address, size_t n,
                      ucp_err_handler_t on_error, ucp_ep_h *out_ep)
{
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = on_error,
    };
    if (!unwrap(address, n, &params.address)) {
        TD_LOG(WARN, "not a data plane address, ignoring", "bytes=%zu", n);
        return TD_ERR_ADDRESS;
    }
    TD_UCX("ucp_ep_create", ucp_ep_create(u->worker, &params, out_ep));
    return TD_OK;
}

static const char *transport_name(const char *tl)
{
    static const struct {
        const char *prefix, *name;
    } names[] = {
        {"posix/", "shm"}, {"sysv/", "shm"}, {"xpmem/", "shm"}, {"tcp/", "tcp"},
        {"self/", "self"}, {"rc_", "rdma"},  {"dc_", "rdma"},   {"ud_", "rdma"},
    };
    for (size_t i = 0; i < TD_COUNT(names); i++) {
        if (strncmp(tl, names[i].prefix, strlen(names[i].prefix)) == 0) {
            return names[i].name;
        }
    }
    return "other";
}

/* UCX 1.13 has no query for it. The printed lanes name the transport of active messages, which
 * carry every byte of the message path: "lane[0]:  2:posix/memory.0 md[1] -> ... rma_bw#0 am
 * am_bw#0". */
const char *td_ucx_transport(ucp_ep_h ep)
{
    const char *name = "";
    char *text = NULL;
    char *save = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (f == NULL) {
        return name;
    }
    ucp_ep_print_info(ep, f);
    if (fclose(f) == 0) {
        for (char *line = strtok_r(text, "\n", &save); line != NULL;
             line = strtok_r(NULL, "\n", &save)) {
            char *lane = strstr(line, "lane[");
            size_t end = strlen(line);
            bool am =
                strstr(line, " am ") != NULL || (end >= 3 && strcmp(line + end - 3, " am") == 0);
            char *tl = lane != NULL ? strchr(lane + strcspn(lane, ":") + 1, ':') : NULL;
            if (am && tl != NULL) {
                name = transport_name(tl + 1);
                break;
            }
        }
    }
    free(text);
    return name;
}
