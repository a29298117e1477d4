#include "ctl/doctor.h"

#include "common/base/mem.h"
#include "ctl/doctor_cluster.h"
#include "ctl/doctor_host.h"
#include "ctl/doctor_model.h"
#include "ctl/doctor_net.h"
#include "ctl/report.h"

struct options {
    struct ctl_admin admin;
    bool cluster;
    char *model, *chat_template, *kv_device;
    struct td_str_list listen, transports;
    bool trust_network, json, measure;
    int format;
    int64_t megabytes, probe_tokens;
    double kv_memory_gib;
    struct td_opt_set told;
};

static const struct td_opt opts[] = {
    CTL_OPT(
        "cluster", BOOL, "false", "", 0, 0, NULL,
        "examine a running cluster by its router instead of this machine; --no-measure sends no "
        "request through the pairs",
        cluster),
    CTL_ADMIN_OPTS(admin),
    CTL_OPT("probe-tokens", INT, "128", "", 1, 4096, NULL, "with --cluster: prompt of each request",
            probe_tokens),
    CTL_OPT("model", STRING, "", "path", 0, 0, NULL, "GGUF file to check", model),
    CTL_OPT("chat-template", STRING, "", "path", 0, 0, NULL,
            "Jinja file instead of the model's own template", chat_template),
    CTL_OPT("listen", LIST, "", "", 0, 0, NULL,
            "addresses that must be free, host:port; default: those that programs use by default",
            listen),
    CTL_OPT("kv-device", STRING, "lo", "", 0, 0, NULL, "network device of the data plane",
            kv_device),
    CTL_OPT("kv-transports", LIST, "", "", 0, 0, NULL,
            "transports that must work; default: sm, cma and tcp where there are any, and UCX's "
            "choice",
            transports),
    CTL_OPT("kv-trust-network", BOOL, "false", "", 0, 0, NULL,
            "measure UCX over TCP beyond loopback: open to the network while it lasts",
            trust_network),
    CTL_OPT("kv-memory", DOUBLE, "1", "GiB", 0.001, 4096, NULL,
            "memory of a node's KV pool, as for nodes", kv_memory_gib),
    CTL_OPT("measure", BOOL, "true", "", 0, 0, NULL, "measure the transports", measure),
    CTL_OPT("measure-megabytes", INT, "256", "MiB", 1, 65536, NULL, "moved for each transport",
            megabytes),
    CTL_OPT("json", BOOL, "false", "", 0, 0, NULL, "the same as -o json", json),
    CTL_OPT("output", ENUM, "table", "", 0, 0, CTL_FORMATS,
            "or -o: table prints a line for each check", format),
};

const struct td_program ctl_doctor_program = {
    .name = "tandemctl doctor",
    .summary = "checks this machine and a model, or a running cluster",
    .opts = opts,
    .n_opts = TD_COUNT(opts),
    .struct_bytes = sizeof(struct options),
    .told_offset = offsetof(struct options, told)};

/* Options that would have no effect are refused, or their silence would pass for an answer. TANDEM_ROUTER and its like are for
 * all commands and may stand there. */
static bool has_effect(const struct options *o)
{
    static const struct {
        const char *name;
        bool cluster;
    } rows[] = {{"router", true},
                {"timeout", true},
                {"tls-ca", true},
                {"tls-cert", true},
                {"tls-key", true},
                {"tls-server-name", true},
                {"probe-tokens", true},
                {"model", false},
                {"chat-template", false},
                {"listen", false},
                {"kv-device", false},
                {"kv-transports", false},
                {"kv-memory", false},
                {"kv-trust-network", false},
                {"measure-megabytes", false}};
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        if (rows[i].cluster != o->cluster && td_config_told(&ctl_doctor_program, o, rows[i].name)) {
            ctl_say(o->cluster ? "--%s is of this machine: leave --cluster out, or it"
                               : "--%s is of a running cluster: add --cluster, or leave it out",
                    rows[i].name);
            return false;
        }
    }
    return true;
}

static void check_ports(struct ctl_report *r, const struct options *o)
{
    static const char *const usual[] = {"127.0.0.1:8000", "127.0.0.1:8001", "127.0.0.1:8002",
                                        "127.0.0.1:8100", "127.0.0.1:8101"};
    for (uint32_t i = 0; i < o->listen.count; i++) {
        ctl_doctor_port(r, o->listen.items[i], true);
    }
    for (size_t i = 0; o->listen.count == 0 && i < TD_COUNT(usual); i++) {
        ctl_doctor_port(r, usual[i], false);
    }
}

static void check_transports(struct ctl_report *r, const struct options *o, uint64_t kv_bytes)
{
    struct ctl_transfer_params p = {.device = o->kv_device,
                                    .trust_network = o->trust_network,
                                    .megabytes = (uint32_t)o->megabytes,
                                    .kv_bytes_per_tok = kv_bytes};
    if (!o->measure) {
        ctl_report_add(r, CTL_V_SKIP, "ucx", NULL, "not measured");
        return;
    }
    for (uint32_t i = 0; i < o->transports.count; i++) {
        ctl_doctor_transfer(r, &p, o->transports.items[i], true);
    }
    if (o->transports.count == 0) {
        ctl_doctor_transfer(r, &p, "sm", false);
        ctl_doctor_transfer(r, &p, "cma", false);
        ctl_doctor_transfer(r, &p, "tcp", false);
        ctl_doctor_transfer(r, &p, "", true); /* what nodes will use */
    }
}

static void check_all(struct ctl_report *r, const struct options *o)
{
    struct ctl_model_facts facts = {0};
    uint64_t need = 0;
    ctl_doctor_cpu(r);
    ctl_doctor_shm(r);
    ctl_doctor_limits(r);
    if (o->model[0] != 0) {
        ctl_doctor_model(r, o->model, o->chat_template, &facts);
    } else {
        ctl_report_add(r, CTL_V_SKIP, "model file", NULL, "give one with --model");
    }
    if (facts.weight_bytes > 0) {
        /* The weights, mapped and packed for the kernels, the KV pool, and a little for the rest. */
        need = 2 * facts.weight_bytes + (uint64_t)(o->kv_memory_gib * 1073741824.0) + (64u << 20);
    }
    ctl_doctor_memory(r, need);
    check_ports(r, o);
    check_transports(r, o, facts.kv_bytes_per_tok);
}

enum ctl_exit ctl_doctor(const void *options, char *const *args)
{
    const struct options *o = options;
    (void)args;
    if (!has_effect(o)) {
        return CTL_USAGE;
    }
    TD_CLEANUP(td_freep) struct ctl_report *r = td_zalloc(1, sizeof *r);
    if (r == NULL) {
        ctl_say("out of memory");
        return CTL_FAILED;
    }
    enum ctl_format format = o->json ? CTL_JSON : (enum ctl_format)o->format;
    bool document = format == CTL_JSON || format == CTL_YAML;
    r->live = document ? NULL : stdout;
    if (o->cluster) {
        struct ctl_cluster_params p = {
            .admin = &o->admin, .probe = o->measure, .tokens = (uint32_t)o->probe_tokens};
        enum ctl_exit status = ctl_doctor_cluster(r, &p);
        if (status != CTL_OK) {
            return status;
        }
    } else {
        check_all(r, o);
    }
    td_err err = TD_OK;
    if (document) {
        err = ctl_report_json(r, format, stdout);
    } else {
        (void)printf("\n%u ok, %u warnings, %u failed\n", ctl_report_count(r, CTL_V_OK),
                     ctl_report_count(r, CTL_V_WARN), ctl_report_count(r, CTL_V_FAIL));
    }
    return err == TD_OK && !ctl_report_failed(r) ? CTL_OK : CTL_FAILED;
}
