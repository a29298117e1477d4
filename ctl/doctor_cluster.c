#include "ctl/doctor_cluster.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "ctl/doctor_link.h"
#include "ctl/json_field.h"
#include "ctl/output.h"

#define CLOCK_OFF_US  100000 /* logs and traces of a request are in order below */
#define POOL_FULL     0.95
#define QUARANTINED   0.10 /* failures.md: the node calls itself degraded */
#define EXPOSED_SHARE 0.25 /* of the time to the first token */
#define MAX_NODES     256

/* ---- the router and its nodes ---- */

void ctl_cluster_judge_router(struct ctl_report *r, const json_t *live, const char *our_version)
{
    const json_t *router = json_object_get(live, "router");
    const char *version = ctl_field_text(router, "version", "unknown");
    bool same = strcmp(version, our_version) == 0;
    bool draining = json_is_true(json_object_get(router, "draining"));
    bool ready = json_is_true(json_object_get(router, "ready"));
    ctl_report_add(r, same ? CTL_V_OK : CTL_V_WARN, "router version",
                   "use the tandemctl of the router's version", "%s%s%s", version,
                   same ? "" : ", tandemctl is ", same ? "" : our_version);
    ctl_report_add(r, ready && !draining ? CTL_V_OK : CTL_V_FAIL, "router ready",
                   draining ? "start another router before this one has gone"
                            : "start a prefill and a decode node that fit together",
                   "%s",
                   draining ? "draining"
                   : ready  ? "at least one usable pair"
                            : "no usable pair");
}

static void judge_role(struct ctl_report *r, const json_t *nodes, const char *role)
{
    char check[48];
    size_t all = 0, ready = 0;
    for (size_t i = 0; i < json_array_size(nodes); i++) {
        const json_t *n = json_array_get(nodes, i);
        const char *have = ctl_field_text(n, "role", "");
        if (strcmp(have, role) == 0 || strcmp(have, "both") == 0) {
            all++;
            ready += ctl_field_text(n, "why_not", "")[0] == 0 ? 1 : 0;
        }
    }
    (void)snprintf(check, sizeof check, "%s nodes", role);
    ctl_report_add(r,
                   ready == 0    ? CTL_V_FAIL
                   : ready < all ? CTL_V_WARN
                                 : CTL_V_OK,
                   check, "see tandemctl get nodes, and the log of the one that is not ready",
                   "%zu of %zu take work", ready, all);
}

/* Whether all nodes agree on a field; names the first that does not. */
static void judge_same(struct ctl_report *r, const json_t *nodes, const char *check,
                       const char *field, enum ctl_verdict otherwise, const char *remedy)
{
    const json_t *first = json_array_get(nodes, 0);
    const char *value = ctl_field_text(first, field, "unknown");
    for (size_t i = 1; i < json_array_size(nodes); i++) {
        const json_t *n = json_array_get(nodes, i);
        const char *other = ctl_field_text(n, field, "unknown");
        if (strcmp(value, other) != 0) {
            ctl_report_add(r, otherwise, check, remedy, "%s has %s, %s has %s",
                           ctl_field_text(first, "name", "?"), value,
                           ctl_field_text(n, "name", "?"), other);
            return;
        }
    }
    if (first != NULL) {
        ctl_report_add(r, CTL_V_OK, check, NULL, "%s everywhere", value);
    }
}

static void judge_pool(struct ctl_report *r, const json_t *n)
{
    const json_t *b = json_object_get(n, "blocks");
    double all = (double)ctl_field_count(n, "n_blocks");
    double held = all - (double)ctl_field_count(b, "free") - (double)ctl_field_count(b, "cached");
    double lost = (double)ctl_field_count(b, "quarantined");
    char check[96];
    (void)snprintf(check, sizeof check, "KV pool of %s", ctl_field_text(n, "name", "?"));
    if (all <= 0) {
        ctl_report_add(r, CTL_V_WARN, check, "wait for its first report", "size unknown");
        return;
    }
    bool full = held > POOL_FULL * all, bad = lost > QUARANTINED * all;
    struct ctl_finding *f = ctl_report_add(
        r, full || bad ? CTL_V_WARN : CTL_V_OK, check,
        bad ? "a peer vanished while it wrote; the blocks come back when it is fenced"
            : "add decode nodes, or give --kv-memory more",
        "%.1f %% of %.0f blocks in use%s", held > 0 ? 100 * held / all : 0.0, all,
        bad ? ", more than a tenth quarantined" : "");
    ctl_finding_value(f, "used_ratio", held > 0 ? held / all : 0);
}

void ctl_cluster_judge_nodes(struct ctl_report *r, const json_t *live)
{
    const json_t *nodes = json_object_get(live, "nodes");
    judge_role(r, nodes, "prefill");
    judge_role(r, nodes, "decode");
    judge_same(r, nodes, "node versions", "version", CTL_V_WARN,
               "finish the upgrade: mixed versions are for its duration");
    judge_same(r, nodes, "KV layouts", "layout_id", CTL_V_FAIL,
               "nodes of unequal layout never pair: same model, --block-size and KV type");
    judge_same(r, nodes, "numerics", "numerics_id", CTL_V_FAIL,
               "nodes of unequal numerics never pair: same --numerics and backend");
    for (size_t i = 0; i < json_array_size(nodes) && i < MAX_NODES; i++) {
        judge_pool(r, json_array_get(nodes, i));
    }
}

/* ---- clocks ---- */

void ctl_cluster_judge_clock(struct ctl_report *r, const char *node, int64_t offset_us,
                             int64_t round_trip_us)
{
    char check[96], off[32], known[32];
    int64_t away = offset_us < 0 ? -offset_us : offset_us;
    (void)snprintf(check, sizeof check, "clock of %s", node);
    ctl_format_us(away, off, sizeof off);
    ctl_format_us(round_trip_us / 2, known, sizeof known);
    bool bad = away > CLOCK_OFF_US + round_trip_us / 2;
    struct ctl_finding *f = ctl_report_add(
        r, bad ? CTL_V_WARN : CTL_V_OK, check,
        "synchronise it (chrony, timesyncd): logs and traces are in the wrong order until then",
        "%s %s ours, known to %s", off, offset_us < 0 ? "behind" : "ahead of", known);
    ctl_finding_value(f, "offset_us", (double)offset_us);
}

static void check_clock(struct ctl_report *r, const struct ctl_admin *ours, const json_t *node)
{
    const char *name = ctl_field_text(node, "name", "?"), *url = ctl_field_text(node, "admin", "");
    struct ctl_admin a = {.router = (char *)(uintptr_t)url,
                          .timeout_s = ours->timeout_s,
                          .tls = ours->tls,
                          .quiet = true};
    char check[96];
    int64_t theirs = 0;
    int http = 0;
    json_t *doc = NULL;
    (void)snprintf(check, sizeof check, "clock of %s", name);
    int64_t before = td_wall_us();
    enum ctl_exit status = url[0] != 0 ? ctl_admin_ask(&a, "/version", &http, &doc) : CTL_FAILED;
    int64_t after = td_wall_us();
    if (status == CTL_OK && ctl_field_int(doc, "unix_us", &theirs)) {
        ctl_cluster_judge_clock(r, name, theirs - (before + after) / 2, after - before);
    } else {
        ctl_report_add(r, CTL_V_SKIP, check, NULL, "its admin port %s is not reachable from here",
                       url[0] != 0 ? url : "(unknown)");
    }
    json_decref(doc);
}

/* ---- pairs ---- */

static void pair_name(char *out, size_t cap, const char *p, const char *d)
{
    (void)snprintf(out, cap, "%.44s > %.44s", p, d);
}

/* "192 KiB in 3.0 ms, 10 us exposed: at least 62 MiB/s" */
static void moved_text(int64_t bytes, int64_t us, int64_t exposed_us, char *out, size_t cap)
{
    char text[4][32];
    ctl_format_bytes((uint64_t)bytes, text[0], sizeof text[0]);
    if (us <= 0) {
        (void)snprintf(out, cap, "%s at once: too little to time, see --probe-tokens", text[0]);
        return;
    }
    ctl_format_us(us, text[1], sizeof text[1]);
    ctl_format_us(exposed_us, text[2], sizeof text[2]);
    ctl_format_bytes((uint64_t)((double)bytes * 1e6 / (double)us), text[3], sizeof text[3]);
    (void)snprintf(out, cap, "%s in %s, %s exposed: at least %s/s", text[0], text[1], text[2],
                   text[3]);
}

/* What moved and how fast; warns when it was not hidden behind the prefill. */
static void say_moved(struct ctl_report *r, const char *check, const json_t *o, int64_t bytes,
                      int64_t us, int64_t exposed_us, int64_t first_us)
{
    char moved[160], took[32], later[64] = "";
    bool shows = first_us > 0 && (double)exposed_us > EXPOSED_SHARE * (double)first_us;
    moved_text(bytes, us, exposed_us, moved, sizeof moved);
    if (first_us > 0) {
        (void)snprintf(later, sizeof later, "; first token after %s",
                       ctl_format_us(first_us, took, sizeof took));
    }
    struct ctl_finding *f = ctl_report_add(
        r, shows ? CTL_V_WARN : CTL_V_OK, check,
        "the transfer is not hidden: compare with tandemctl doctor on both hosts, see transports",
        "%s, %s%s", ctl_field_text(o, "transport", "?"), moved, later);
    ctl_finding_value(f, "kv_bytes", (double)bytes);
    ctl_finding_value(f, "transfer_us", (double)us);
    ctl_finding_value(f, "exposed_us", (double)exposed_us);
    if (us > 0) {
        ctl_finding_value(f, "bytes_per_s", (double)bytes * 1e6 / (double)us);
    }
}

void ctl_cluster_judge_probe(struct ctl_report *r, const char *prefill, const char *decode,
                             int status, const json_t *answer)
{
    char check[96];
    pair_name(check, sizeof check, prefill, decode);
    if (status != 200) {
        ctl_report_add(r, CTL_V_FAIL, check, "see tandemctl describe node for both",
                       "not probed: %s", ctl_admin_message(answer));
    } else if (!json_is_true(json_object_get(answer, "ok"))) {
        ctl_report_add(r, CTL_V_FAIL, check,
                       "a request fails there: see both nodes' logs, and the ports between their "
                       "hosts (--kv-port-range)",
                       "%s: %s", ctl_field_text(answer, "code", "?"),
                       ctl_field_text(answer, "text", "no reason given"));
    } else if (strcmp(prefill, decode) == 0) {
        ctl_report_add(r, CTL_V_OK, check, NULL, "prefills for itself, nothing moves");
    } else {
        say_moved(r, check, answer, ctl_field_count(answer, "kv_bytes"),
                  ctl_field_count(answer, "transfer_us"),
                  ctl_field_count(answer, "transfer_exposed_us"),
                  ctl_field_count(answer, "ttft_us"));
    }
}

void ctl_cluster_judge_transfer(struct ctl_report *r, const char *prefill, const char *decode,
                                const json_t *row)
{
    char check[96];
    int64_t count = ctl_field_count(row, "count");
    pair_name(check, sizeof check, prefill, decode);
    if (count == 0) {
        ctl_report_add(r, CTL_V_SKIP, check, NULL, "no request has gone this way yet");
        return;
    }
    say_moved(r, check, row, ctl_field_count(row, "bytes") / count,
              ctl_field_count(row, "transfer_us") / count,
              ctl_field_count(row, "exposed_us") / count, 0);
}

static const json_t *transfer_of(const json_t *live, const char *p, const char *d)
{
    const json_t *list = json_object_get(live, "transfers");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *x = json_array_get(list, i);
        if (strcmp(ctl_field_text(x, "prefill", ""), p) == 0 &&
            strcmp(ctl_field_text(x, "decode", ""), d) == 0) {
            return x;
        }
    }
    return NULL;
}

/* Twice where nothing has made the pair's connection before: the first request does. */
static void probe_pair(struct ctl_report *r, const struct ctl_cluster_params *p,
                       const char *prefill, const char *decode, int times)
{
    json_t *body =
        json_pack("{s:s,s:s,s:i}", "prefill", prefill, "decode", decode, "tokens", (int)p->tokens);
    char *text = body != NULL ? json_dumps(body, JSON_COMPACT) : NULL;
    json_t *answer = NULL;
    int http = 0;
    enum ctl_exit status = text != NULL ? CTL_OK : CTL_FAILED;
    for (int i = 0; i < times && status == CTL_OK; i++) {
        json_decref(answer);
        answer = NULL;
        status = ctl_admin_post(p->admin, "/probe", text, &http, &answer);
    }
    ctl_cluster_judge_probe(r, prefill, decode, status == CTL_OK ? http : 0, answer);
    json_decref(answer);
    json_decref(body);
    free(text);
}

static bool takes_part(const json_t *n, const char *role)
{
    return ctl_field_text(n, "why_not", "")[0] == 0 &&
           strcmp(ctl_field_text(n, "role", ""), role) == 0;
}

static void check_pairs(struct ctl_report *r, const struct ctl_cluster_params *p,
                        const json_t *live)
{
    const json_t *nodes = json_object_get(live, "nodes");
    size_t n = json_array_size(nodes), seen = 0;
    for (size_t i = 0; i < n * n; i++) {
        const json_t *a = json_array_get(nodes, i / n), *b = json_array_get(nodes, i % n);
        bool split = takes_part(a, "prefill") && takes_part(b, "decode");
        bool local = a == b && takes_part(a, "both");
        const char *from = ctl_field_text(a, "name", ""), *to = ctl_field_text(b, "name", "");
        if (!split && !local) {
            continue;
        }
        if (++seen > CTL_CLUSTER_PAIRS) {
            continue;
        }
        if (p->probe && split) {
            ctl_link_check(r, p->admin, a, b, p->tokens);
        }
        if (p->probe) {
            probe_pair(r, p, from, to, split ? 1 : 2);
        } else {
            ctl_cluster_judge_transfer(r, from, to, transfer_of(live, from, to));
        }
    }
    if (seen > CTL_CLUSTER_PAIRS) {
        ctl_report_add(r, CTL_V_SKIP, "other pairs", NULL, "%zu more were not looked at",
                       seen - CTL_CLUSTER_PAIRS);
    }
}

enum ctl_exit ctl_doctor_cluster(struct ctl_report *r, const struct ctl_cluster_params *p)
{
    json_t *live = NULL;
    enum ctl_exit status = ctl_admin_get(p->admin, "/live", &live);
    if (status != CTL_OK) {
        return status;
    }
    const json_t *nodes = json_object_get(live, "nodes");
    ctl_cluster_judge_router(r, live, TD_VERSION);
    ctl_cluster_judge_nodes(r, live);
    for (size_t i = 0; i < json_array_size(nodes) && i < MAX_NODES; i++) {
        check_clock(r, p->admin, json_array_get(nodes, i));
    }
    check_pairs(r, p, live);
    json_decref(live);
    return CTL_OK;
}
