#include "ctl/doctor_net.h"

#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/io/port_owner.h"
#include "common/io/xfer_measure.h"
#include "ctl/log_reason.h"

#define SLICE_BYTES  65536u
#define SLICES       16u
#define SLOW_SHM_GBS 0.5
#define SLOW_TCP_GBS 0.1

/* ---- ports ---- */

bool ctl_doctor_split(const char *address, char *host, size_t host_cap, char *port, size_t port_cap)
{
    const char *scheme = strstr(address, "://");
    const char *a = scheme != NULL ? scheme + 3 : address;
    size_t len = strcspn(a, "/");
    bool v6 = a[0] == '[';
    const char *close_bracket = v6 ? memchr(a, ']', len) : NULL;
    const char *colon = memrchr(a, ':', len);
    const char *number = colon != NULL ? colon + 1 : a;
    size_t host_len = colon != NULL ? (size_t)(colon - a) : 0;
    if (v6 && (close_bracket == NULL || colon != close_bracket + 1)) {
        return false;
    }
    if (!v6 && colon != NULL && memchr(a, ':', host_len) != NULL) {
        return false; /* an IPv6 address without brackets: where would the port be? */
    }
    const char *first = v6 ? a + 1 : a;
    host_len -= v6 ? 2 : 0;
    size_t digits = len - (size_t)(number - a);
    if (digits == 0 || digits > 5 || strspn(number, "0123456789") < digits ||
        strtol(number, NULL, 10) > 65535 || host_len >= host_cap || digits >= port_cap ||
        (colon != NULL && host_len == 0)) {
        return false;
    }
    (void)snprintf(host, host_cap, "%.*s", (int)host_len, host_len > 0 ? first : "");
    if (host_len == 0) {
        (void)snprintf(host, host_cap, "127.0.0.1");
    }
    (void)snprintf(port, port_cap, "%.*s", (int)digits, number);
    return true;
}

/* 0, or the errno of what failed. */
static int try_listen(const struct addrinfo *ai)
{
    int on = 1;
    int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return errno;
    }
    int rc = setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    rc = rc == 0 ? bind(fd, ai->ai_addr, ai->ai_addrlen) : rc;
    rc = rc == 0 ? listen(fd, 1) : rc;
    int error = rc == 0 ? 0 : errno;
    (void)close(fd);
    return error;
}

static void say_in_use(struct ctl_report *r, const char *check, const char *port, bool asked)
{
    char owner[64];
    td_port_owner((uint16_t)strtol(port, NULL, 10), owner, sizeof owner);
    bool ours = strncmp(owner, "tandem-", 7) == 0;
    ctl_report_add(r, asked ? CTL_V_FAIL : CTL_V_WARN, check,
                   "stop what listens there (ss -ltnp), or choose another port", "in use%s%s%s",
                   owner[0] != 0 ? " by " : "", owner, ours ? ": a cluster runs here" : "");
}

static void judge_port(struct ctl_report *r, const char *check, const char *host, int error)
{
    if (error == 0) {
        ctl_report_add(r, CTL_V_OK, check, NULL, "free");
    } else if (error == EACCES) {
        ctl_report_add(r, CTL_V_FAIL, check, "choose a port above 1023", "not permitted");
    } else if (error == EADDRNOTAVAIL) {
        ctl_report_add(r, CTL_V_FAIL, check, "see `ip address` for the addresses of this host",
                       "%s is no address of this host", host);
    } else {
        ctl_report_add(r, CTL_V_FAIL, check, "choose another address", "%s",
                       strerrordesc_np(error));
    }
}

void ctl_doctor_port(struct ctl_report *r, const char *address, bool asked)
{
    char host[256], port[8], check[320];
    struct addrinfo *found = NULL;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    if (!ctl_doctor_split(address, host, sizeof host, port, sizeof port)) {
        ctl_report_add(r, CTL_V_FAIL, "port", "write host:port", "'%s' is no address", address);
        return;
    }
    (void)snprintf(check, sizeof check, "port %s:%s", host, port);
    int rc = getaddrinfo(host, port, &hints, &found);
    if (rc != 0) {
        ctl_report_add(r, CTL_V_FAIL, check, "check the name", "%s", gai_strerror(rc));
        return;
    }
    int error = try_listen(found);
    freeaddrinfo(found);
    if (error == EADDRINUSE) {
        say_in_use(r, check, port, asked);
    } else {
        judge_port(r, check, host, error);
    }
}

/* ---- the data plane ---- */

static void judge_transfer(struct ctl_report *r, const struct ctl_transfer_params *p,
                           const char *check, const struct td_xfer_measure_result *m)
{
    char meaning[64] = "";
    bool tcp = strcmp(m->transport, "tcp") == 0;
    bool slow = m->gb_per_s < (tcp ? SLOW_TCP_GBS : SLOW_SHM_GBS);
    if (p->kv_bytes_per_tok > 0) {
        (void)snprintf(meaning, sizeof meaning, ", KV of %.0f prompt tokens/s",
                       m->gb_per_s * 1e9 / (double)p->kv_bytes_per_tok);
    }
    struct ctl_finding *f = ctl_report_add(
        r, slow ? CTL_V_WARN : CTL_V_OK, check,
        "is the machine busy? otherwise see the limits of the container (CPU share, seccomp)",
        "%s on %s: %.2f GB/s, %.1f us one way%s", m->transport, p->device, m->gb_per_s,
        m->one_way_us, meaning);
    ctl_finding_value(f, "gb_per_s", m->gb_per_s);
    ctl_finding_value(f, "one_way_us", m->one_way_us);
    ctl_finding_value(f, "us_per_message", m->us_per_message);
}

void ctl_doctor_transfer(struct ctl_report *r, const struct ctl_transfer_params *p,
                         const char *transports, bool must)
{
    bool cma = strcmp(transports, "cma") == 0; /* moves slices only */
    struct td_xfer_measure_params params = {
        .device = p->device,
        .transports = cma ? "sm,cma" : transports,
        .trust_network = p->trust_network,
        .slice_bytes = SLICE_BYTES,
        .n_blocks = SLICES,
        .n_messages = p->megabytes,
    };
    struct td_xfer_measure_result result;
    struct ctl_log_reason logged;
    char check[64], why[320];
    (void)snprintf(check, sizeof check, "ucx %s", transports[0] != 0 ? transports : "default");
    (void)fflush(stdout); /* the children shall not have it too */
    ctl_log_reason_begin(&logged);
    td_err err = td_xfer_measure(&params, &result);
    ctl_log_reason_end(&logged, why, sizeof why);
    if (err == TD_OK && cma && strcmp(result.transport, "cma") != 0) {
        ctl_report_add(
            r, must ? CTL_V_FAIL : CTL_V_WARN, check,
            "both processes need one user, one PID namespace, and kernel.yama.ptrace_scope=0 "
            "or CAP_SYS_PTRACE",
            "one process may not read another's memory; %s is used", result.transport);
        return;
    }
    if (err == TD_OK) {
        judge_transfer(r, p, check, &result);
        return;
    }
    ctl_report_add(r, must ? CTL_V_FAIL : CTL_V_WARN, check,
                   "check --kv-device (`ip link`, or an RDMA device); TCP beyond loopback needs "
                   "--kv-trust-network",
                   "cannot move KV on %s: %s", p->device, why[0] != 0 ? why : td_err_text(err));
}
