/* main.c - tandem-router: options, signals, and one rt_shell. */
#define TD_LOG_ROOM "router"
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/thread.h"
#include "common/io/drain.h"
#include "common/io/link_keys.h"
#include "common/io/loop.h"
#include "common/io/port_file.h"
#include "router/rt_core.h"
#include "router/rt_shell.h"

struct options {
    char *model, *chat_template, *host, *admin_host, *api_key_file, *cluster_key_file, *name,
        *port_file, *tls_cert, *tls_key, *tls_client_ca, *admin_tls_cert, *admin_tls_key,
        *admin_tls_client_ca;
    struct td_str_list served_names, nodes;
    int64_t port, admin_port, grpc_port, max_model_len, max_requests, queue_size, queue_bytes,
        node_queue, max_body, planned_prefill, planned_decode;
    char *otlp_endpoint;
    double trace_ratio;
    double budget_s, pair_wait_s, ping_s, drain_s, time_scale;
    int policy, log_level, log_format;
    bool resume, strict_pairs, grpc;
};

#define OPT(n, t, d, u, lo, hi, ch, cls, h, f)                                                     \
    {                                                                                              \
        n, TD_OPT_##t, d, u, lo, hi, ch, TD_OPT_##cls, h, offsetof(struct options, f)              \
    }

static const struct td_opt opts[] = {
    OPT("model", STRING, "", "path", 0, 0, NULL, BOOT,
        "GGUF file or Hugging Face directory; only metadata is read here", model),
    OPT("served-model-name", LIST, "", "", 0, 0, NULL, BOOT,
        "names clients may ask for; the first is the default", served_names),
    OPT("chat-template", STRING, "", "path", 0, 0, NULL, BOOT,
        "Jinja file instead of the model's own template", chat_template),
    OPT("max-model-len", INT, "0", "tokens", 0, 16777216, NULL, BOOT,
        "context limit; 0 is the model's", max_model_len),
    OPT("node", LIST, "", "url", 0, 0, NULL, BOOT,
        "control address of a node, tcp://host:8101; repeat for each", nodes),
    OPT("cluster-key-file", STRING, "", "path", 0, 0, NULL, BOOT,
        "lines 'key-id secret' shared with the nodes", cluster_key_file),
    OPT("name", STRING, "router", "", 0, 0, NULL, BOOT, "of this router, in logs and at the nodes",
        name),
    OPT("host", STRING, "127.0.0.1", "address", 0, 0, NULL, BOOT, "where clients connect", host),
    OPT("port", INT, "8000", "", 0, 65535, NULL, BOOT, "HTTP port for clients; 0 picks a free one",
        port),
    OPT("admin-host", STRING, "127.0.0.1", "address", 0, 0, NULL, BOOT,
        "where operators and Prometheus connect", admin_host),
    OPT("admin-port", INT, "8001", "", 0, 65535, NULL, BOOT,
        "admin and metrics port; 0 picks a free one", admin_port),
    OPT("grpc-port", INT, "8002", "", 0, 65535, NULL, BOOT,
        "gRPC port for clients, on --host; 0 picks a free one", grpc_port),
    OPT("grpc", BOOL, "true", "", 0, 0, NULL, BOOT, "serve gRPC", grpc),
    OPT("port-file", STRING, "", "path", 0, 0, NULL, BOOT,
        "writes 'http PORT', 'admin PORT' and 'grpc PORT' there when listening", port_file),
    OPT("api-key-file", STRING, "", "path", 0, 0, NULL, BOOT,
        "lines 'key-id sha256 tenant priority-ceiling requests/s concurrent tokens/min'; empty: "
        "open to all",
        api_key_file),
    OPT("tls-cert", STRING, "", "path", 0, 0, NULL, BOOT,
        "PEM certificate chain for HTTP and gRPC clients; renewed files are noticed, or SIGHUP",
        tls_cert),
    OPT("tls-key", STRING, "", "path", 0, 0, NULL, BOOT, "PEM key of --tls-cert, no password",
        tls_key),
    OPT("tls-client-ca", STRING, "", "path", 0, 0, NULL, BOOT,
        "PEM certificates that clients' certificates must come from; empty: clients show none",
        tls_client_ca),
    OPT("admin-tls-cert", STRING, "", "path", 0, 0, NULL, BOOT,
        "PEM certificate chain for the admin port, HTTP and gRPC; renewed files are noticed, or "
        "SIGHUP",
        admin_tls_cert),
    OPT("admin-tls-key", STRING, "", "path", 0, 0, NULL, BOOT,
        "PEM key of --admin-tls-cert, no password", admin_tls_key),
    OPT("admin-tls-client-ca", STRING, "", "path", 0, 0, NULL, BOOT,
        "PEM certificates that operators' certificates must come from; probes and the version need "
        "none; empty: nobody needs one",
        admin_tls_client_ca),
    OPT("max-concurrent-requests", INT, "4096", "", 1, RT_MAX_REQUESTS, NULL, BOOT,
        "requests known at once, waiting ones included", max_requests),
    OPT("queue-size", INT, "1024", "", 0, 60000, NULL, BOOT,
        "requests waiting in the router before 429", queue_size),
    OPT("queue-bytes", INT, "268435456", "bytes", 0, 1e12, NULL, BOOT,
        "prompt bytes waiting before 429", queue_bytes),
    OPT("node-queue", INT, "64", "", 1, 60000, NULL, BOOT,
        "works on one prefill node before the router keeps them", node_queue),
    OPT("max-payload-size", INT, "16777216", "bytes", 1024, 268435456, NULL, BOOT,
        "largest request body", max_body),
    OPT("request-timeout", DOUBLE, "600", "s", 0.1, 86400, NULL, BOOT, "time budget of a request",
        budget_s),
    OPT("pair-wait", DOUBLE, "10", "s", 0, 600, NULL, BOOT,
        "how long a replay, or a request whose node is lost, waits for a pair", pair_wait_s),
    OPT("sse-ping-interval", DOUBLE, "30", "s", 0, 3600, NULL, BOOT,
        "comment after so much silence in a stream; 0: none", ping_s),
    OPT("drain-timeout", DOUBLE, "120", "s", 0, 3600, NULL, BOOT,
        "after SIGTERM, before running requests are cut", drain_s),
    OPT("policy", ENUM, "queue-linear", "", 0, 0, "queue-linear|round-robin", BOOT,
        "placement of requests on pairs", policy),
    OPT("planned-prefill", INT, "0", "", 0, 256, NULL, BOOT,
        "prefill nodes there should be: tandem_router_planned_nodes; 0: not told", planned_prefill),
    OPT("planned-decode", INT, "0", "", 0, 256, NULL, BOOT,
        "decode nodes there should be: tandem_router_planned_nodes; 0: not told", planned_decode),
    OPT("resume", BOOL, "true", "", 0, 0, NULL, BOOT, "replay a request also after its first token",
        resume),
    OPT("strict-pairs", BOOL, "true", "", 0, 0, NULL, BOOT,
        "refuse a node whose KV layout or numerics differ from the first one's", strict_pairs),
    OPT("otlp-endpoint", STRING, "", "url", 0, 0, NULL, BOOT,
        "OpenTelemetry collector (OTLP over HTTP, JSON), http://host:4318; empty: by "
        "OTEL_EXPORTER_OTLP_ENDPOINT, else no traces",
        otlp_endpoint),
    OPT("trace-sample-ratio", DOUBLE, "-1", "", -1, 1, NULL, BOOT,
        "share of requests traced, unless the caller has decided; -1: by OTEL_TRACES_SAMPLER, "
        "else all",
        trace_ratio),
    OPT("log-level", ENUM, "info", "", 0, 0, "error|warn|info|debug|trace", BOOT,
        "lines above this level are skipped", log_level),
    OPT("log-format", ENUM, "logfmt", "", 0, 0, "logfmt|json", BOOT, "of log lines", log_format),
    OPT("time-scale", DOUBLE, "1", "", 0.001, 10, NULL, DEBUG,
        "multiplies heartbeats and death bounds (tests)", time_scale),
};

static const struct td_program program = {.name = "tandem-router",
                                          .summary =
                                              "serves the OpenAI API from prefill and decode nodes",
                                          .opts = opts,
                                          .n_opts = TD_COUNT(opts),
                                          .struct_bytes = sizeof(struct options)};

struct app {
    struct options o;
    struct td_loop *loop;
    struct td_otlp_setting trace;
    struct td_otlp *otlp; /* NULL: no traces */
    struct rt_shell *shell;
    struct td_drain *drain;
    struct td_signal *hangup;
};

static void begin_drain(void *arg)
{
    struct app *a = arg;
    rt_shell_drain(a->shell);
}

static bool is_idle(void *arg)
{
    const struct app *a = arg;
    return rt_shell_idle(a->shell);
}

static void say_bye(void *arg)
{
    struct app *a = arg;
    rt_shell_bye(a->shell);
}

static bool is_gone(void *arg)
{
    const struct app *a = arg;
    return rt_shell_gone(a->shell);
}

static const struct td_drain_ops drain_ops = {
    .begin = begin_drain, .idle = is_idle, .bye = say_bye, .gone = is_gone};

static bool print_ports(const void *arg, FILE *f)
{
    const struct app *a = arg;
    return fprintf(f, "http %u\nadmin %u\n", rt_shell_port(a->shell),
                   rt_shell_admin_port(a->shell)) > 0 &&
           (!a->o.grpc || fprintf(f, "grpc %u\n", rt_shell_grpc_port(a->shell)) > 0);
}

static td_err make_otlp(struct app *a)
{
    TD_TRY(td_otlp_setting(a->o.otlp_endpoint, a->o.trace_ratio, "tandem-router", &a->trace));
    struct td_otlp_params p = {.url = a->trace.url,
                               .ca = a->trace.ca,
                               .cert = a->trace.cert,
                               .key = a->trace.key,
                               .headers = &a->trace.headers,
                               .service = a->trace.service,
                               .instance = a->o.name,
                               .version = TD_VERSION};
    return a->trace.url[0] != 0 ? td_otlp_create(&p, &a->otlp) : TD_OK;
}

static td_err make_shell(struct app *a, const struct td_link_key *keys, uint32_t n_keys)
{
    const struct options *o = &a->o;
    static const char *const default_name[] = {"default"};
    bool named = o->served_names.count > 0;
    struct rt_shell_params p = {
        .loop = a->loop,
        .name = o->name,
        .model_path = o->model,
        .chat_template = o->chat_template,
        .served_names = named ? (const char *const *)o->served_names.items : default_name,
        .n_served_names = named ? o->served_names.count : 1,
        .max_model_len = (uint32_t)o->max_model_len,
        .host = o->host,
        .admin_host = o->admin_host,
        .port = (uint16_t)o->port,
        .admin_port = (uint16_t)o->admin_port,
        .grpc_port = (uint16_t)o->grpc_port,
        .grpc = o->grpc,
        .tls_cert = o->tls_cert,
        .tls_key = o->tls_key,
        .tls_client_ca = o->tls_client_ca,
        .admin_tls = {o->admin_tls_cert, o->admin_tls_key, o->admin_tls_client_ca},
        .api_key_file = o->api_key_file,
        .node_urls = (const char *const *)o->nodes.items,
        .n_node_urls = o->nodes.count,
        .keys = keys,
        .n_keys = n_keys,
        .time_scale = o->time_scale,
        .max_requests = (uint32_t)o->max_requests,
        .max_queue = (uint32_t)o->queue_size,
        .max_queue_bytes = (uint64_t)o->queue_bytes,
        .max_node_queue = (uint32_t)o->node_queue,
        .budget_us = (int64_t)(o->budget_s * 1e6),
        .pair_wait_us = (int64_t)(o->pair_wait_s * 1e6),
        .ping_us = (int64_t)(o->ping_s * 1e6),
        .max_body = (size_t)o->max_body,
        .policy = o->policy == 0 ? RT_POLICY_PREDICT : RT_POLICY_ROUND_ROBIN,
        .planned_prefill = (uint32_t)o->planned_prefill,
        .planned_decode = (uint32_t)o->planned_decode,
        .resume = o->resume,
        .otlp = a->otlp,
        .trace_ratio = a->trace.ratio,
        .trace_ratio_always = a->trace.ratio_always,
        .strict_pairs = o->strict_pairs,
    };
    return rt_shell_create(&p, &a->shell);
}

static void on_hangup(void *arg)
{
    const struct app *a = arg;
    rt_shell_reload_tls(a->shell);
}

static td_err run(struct app *a)
{
    struct td_link_key keys[TD_LINK_MAX_KEYS];
    uint32_t n_keys = 0;
    if (a->o.model[0] == 0 || a->o.cluster_key_file[0] == 0 || a->o.nodes.count == 0) {
        TD_LOG(ERROR, "missing option",
               "need=\"--model, --cluster-key-file and at least one --node\"");
        return TD_ERR_CONFIG;
    }
    TD_TRY(td_link_keys_load(a->o.cluster_key_file, keys, &n_keys));
    TD_TRY(td_loop_create(&a->loop));
    TD_TRY(make_otlp(a));
    TD_TRY(make_shell(a, keys, n_keys));
    TD_TRY(td_drain_create(a->loop, a->o.name, (int64_t)(a->o.drain_s * 1e6), &drain_ops, a,
                           &a->drain));
    TD_TRY(td_signal_create(a->loop, SIGHUP, on_hangup, a, &a->hangup));
    TD_TRY(td_port_file_write(a->o.port_file, print_ports, a));
    td_signals_let_through();
    td_loop_run(a->loop);
    td_signals_hold();
    return TD_OK;
}

int main(int argc, char **argv)
{
    struct app a = {0};
    enum td_config_outcome how = td_config_load(&program, argc, argv, &a.o);
    if (how != TD_CONFIG_RUN) {
        return how == TD_CONFIG_EXIT_OK ? 0 : 2;
    }
    td_log_set_level((enum td_log_level)a.o.log_level);
    td_log_set_json(a.o.log_format == 1);
    td_signals_hold();
    td_thread_enter(&td_loop, "rt-loop");
    td_err err = run(&a);
    rt_shell_destroy(a.shell);
    td_otlp_destroy(a.otlp);
    td_drain_destroy(a.drain);
    td_signal_destroy(a.hangup);
    td_loop_destroy(a.loop);
    td_config_fini(&program, &a.o);
    return td_config_exit_status(err);
}
