#define TD_LOG_ROOM "node"
#include "common/node/program.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/thread.h"
#include "common/io/drain.h"
#include "common/io/link_keys.h"
#include "common/model/model.h"
#include "common/node/backend.h"
#include "common/node/node.h"
#include "common/node/vllm.h"

struct options {
    char *model, *name, *cluster_key_file, *listen, *admin_host, *kv_device, *kv_transports,
        *kv_port_range, *port_file;
    char *host, *front_admin_host, *api_key_file, *chat_template, *served_name, *numerics;
    char *otlp_endpoint;
    double trace_ratio;
    struct td_str_list served_names;
    char *tls_cert, *tls_key, *tls_client_ca, *admin_tls_cert, *admin_tls_key, *admin_tls_client_ca;
    char *engine_host, *engine_key_file, *engine_tls_cert, *engine_tls_key, *engine_tls_client_ca;
    int64_t admin_port, port, grpc_port, front_admin_port, max_model_len, max_seqs, max_queue,
        batched_tokens, chunk, steps_in_flight, blocks, threads, device, engine_port;
    double drain_s, hold_s, time_scale, budget_s, kv_memory_gib, gpu_share;
    int role, isa, log_level, log_format, backend, cuda_kernels;
    bool trust_network, kv_checksum, grpc, vllm, deterministic, engine_grpc;
};

#define OPT(n, t, d, u, lo, hi, ch, cls, h, f)                                                     \
    {                                                                                              \
        n, TD_OPT_##t, d, u, lo, hi, ch, TD_OPT_##cls, h, offsetof(struct options, f)              \
    }

static const struct td_opt opts[] = {
    OPT("model", STRING, "", "path", 0, 0, NULL, BOOT,
        "GGUF file or Hugging Face directory to serve", model),
    OPT("served-model-name", LIST, "", "", 0, 0, NULL, BOOT,
        "names in metrics and, with --role both, for clients", served_names),
    OPT("role", ENUM, "default", "", 0, 0, "default|prefill|decode|both", BOOT,
        "default follows the program; both serves the API alone, without a router", role),
    OPT("name", STRING, "", "", 0, 0, NULL, BOOT,
        "of this node, in logs and at the routers; default role and port", name),
    OPT("cluster-key-file", STRING, "", "path", 0, 0, NULL, BOOT,
        "lines 'key-id secret' shared with routers", cluster_key_file),
    OPT("listen", STRING, "tcp://127.0.0.1:8101", "url", 0, 0, NULL, BOOT,
        "control address; port 0 picks a free one", listen),
    OPT("admin-host", STRING, "127.0.0.1", "address", 0, 0, NULL, BOOT,
        "where probes and Prometheus connect", admin_host),
    OPT("admin-port", INT, "8100", "", 0, 65535, NULL, BOOT,
        "probes and metrics; 0 picks a free one", admin_port),
    OPT("admin-tls-cert", STRING, "", "path", 0, 0, NULL, BOOT,
        "PEM certificate chain for the admin port (with --role both: both), HTTP and gRPC; renewed "
        "files are noticed, or SIGHUP",
        admin_tls_cert),
    OPT("admin-tls-key", STRING, "", "path", 0, 0, NULL, BOOT,
        "PEM key of --admin-tls-cert, no password", admin_tls_key),
    OPT("admin-tls-client-ca", STRING, "", "path", 0, 0, NULL, BOOT,
        "PEM certificates that operators' certificates must come from; probes and the version need "
        "none; empty: nobody needs one",
        admin_tls_client_ca),
    OPT("port-file", STRING, "", "path", 0, 0, NULL, BOOT,
        "writes 'control URL' and 'admin PORT' there when listening", port_file),
    OPT("kv-device", STRING, "lo", "", 0, 0, NULL, BOOT,
        "network device of the data plane (UCX_NET_DEVICES)", kv_device),
    OPT("kv-transports", STRING, "", "", 0, 0, NULL, BOOT,
        "UCX transports (UCX_TLS); empty chooses; with cma in the list, slices on one host are "
        "read "
        "from the sender's memory",
        kv_transports),
    OPT("kv-port-range", STRING, "0", "", 0, 0, NULL, BOOT,
        "TCP ports of the data plane, first-last; 0: any", kv_port_range),
    OPT("kv-trust-network", BOOL, "false", "", 0, 0, NULL, BOOT,
        "allow UCX over TCP beyond loopback: whoever reaches that port can write this process's "
        "memory",
        trust_network),
    OPT("kv-checksum", BOOL, "false", "", 0, 0, NULL, DEBUG, "checksum every slice (tests)",
        kv_checksum),
    OPT("max-model-len", INT, "0", "tokens", 0, 16777216, NULL, BOOT,
        "context limit; 0 is the model's", max_model_len),
    OPT("max-num-seqs", INT, "64", "", 1, 4096, NULL, BOOT, "requests in the batch at once",
        max_seqs),
    OPT("max-queue", INT, "1024", "", 1, 65536, NULL, BOOT, "requests waiting on this node",
        max_queue),
    OPT("max-num-batched-tokens", INT, "0", "tokens", 0, 65536, NULL, BOOT,
        "tokens of one engine step; 0: 512 on processors, 2048 on a GPU", batched_tokens),
    OPT("prefill-chunk", INT, "0", "tokens", 0, 65536, NULL, BOOT,
        "prompt tokens of one request in one step; 0: 256 on processors, 1024 on a GPU, and never "
        "more than a step",
        chunk),
    OPT("steps-in-flight", INT, "0", "", 0, TD_ENGINE_MAX_INFLIGHT, NULL, BOOT,
        "decode steps given to the engine at once: with 2 the next one is planned while one runs; "
        "0: 1 on processors, 2 on a GPU",
        steps_in_flight),
    OPT("backend", ENUM, "cpu", "", 0, 0, "cpu|cuda", BOOT,
        "what computes: processors, or one NVIDIA GPU (with --role both)", backend),
    OPT("device", INT, "0", "", 0, 63, NULL, BOOT, "cuda: which GPU", device),
    OPT("cuda-kernels", ENUM, "auto", "", 0, 0, "auto|sm_80|sm_90a", DEBUG,
        "cuda: kernels for compute capability 8.0 and later, or with Hopper's instructions",
        cuda_kernels),
    OPT("gpu-memory-utilization", DOUBLE, "0.9", "", 0.01, 1, NULL, BOOT,
        "cuda: share of the GPU's memory for weights, work and KV pool", gpu_share),
    OPT("deterministic", BOOL, "false", "", 0, 0, NULL, BOOT,
        "cuda: a row's result never depends on what is computed beside it; slower", deterministic),
    OPT("kv-blocks", INT, "0", "", 0, 16777216, NULL, BOOT,
        "blocks of 16 tokens in the pool; 0: by --kv-memory (cpu), --gpu-memory-utilization (cuda)",
        blocks),
    OPT("kv-memory", DOUBLE, "1", "GiB", 0.001, 4096, NULL, BOOT, "cpu: memory of the KV pool",
        kv_memory_gib),
    OPT("threads", INT, "0", "", 0, 256, NULL, BOOT, "compute threads; 0: one for each core",
        threads),
    OPT("numerics", STRING, "int8", "", 0, 0, NULL, BOOT,
        "int8 (block-exact) or f32 (the slow reference)", numerics),
    OPT("isa", ENUM, "auto", "", 0, 0, "auto|portable|avx2|avx512|amx", DEBUG,
        "instruction set of the kernels", isa),
    OPT("host", STRING, "127.0.0.1", "address", 0, 0, NULL, BOOT,
        "--role both: where clients connect", host),
    OPT("port", INT, "8000", "", 0, 65535, NULL, BOOT, "--role both: HTTP port for clients", port),
    OPT("grpc-port", INT, "8002", "", 0, 65535, NULL, BOOT,
        "--role both: gRPC port for clients; 0 picks a free one", grpc_port),
    OPT("grpc", BOOL, "true", "", 0, 0, NULL, BOOT, "--role both: serve gRPC to clients", grpc),
    OPT("tls-cert", STRING, "", "path", 0, 0, NULL, BOOT, "--role both: see tandem-router --help",
        tls_cert),
    OPT("tls-key", STRING, "", "path", 0, 0, NULL, BOOT, "--role both: see tandem-router --help",
        tls_key),
    OPT("tls-client-ca", STRING, "", "path", 0, 0, NULL, BOOT,
        "--role both: see tandem-router --help", tls_client_ca),
    OPT("router-admin-host", STRING, "127.0.0.1", "address", 0, 0, NULL, BOOT,
        "--role both: admin address of the front", front_admin_host),
    OPT("router-admin-port", INT, "8001", "", 0, 65535, NULL, BOOT,
        "--role both: admin port of the front", front_admin_port),
    OPT("api-key-file", STRING, "", "path", 0, 0, NULL, BOOT,
        "--role both: see tandem-router --help", api_key_file),
    OPT("chat-template", STRING, "", "path", 0, 0, NULL, BOOT,
        "--role both: Jinja file instead of the model's", chat_template),
    OPT("request-timeout", DOUBLE, "600", "s", 0.1, 86400, NULL, BOOT,
        "--role both, --engine-grpc: time budget of a request", budget_s),
    OPT("engine-grpc", BOOL, "false", "", 0, 0, NULL, BOOT,
        "serve vllm.grpc.engine.VllmEngine: outside routers drive this node", engine_grpc),
    OPT("engine-grpc-host", STRING, "127.0.0.1", "address", 0, 0, NULL, BOOT,
        "--engine-grpc: beyond loopback only with a key file or a client CA", engine_host),
    OPT("engine-grpc-port", INT, "50051", "", 0, 65535, NULL, BOOT,
        "--engine-grpc: 0 picks a free one", engine_port),
    OPT("engine-grpc-key-file", STRING, "", "path", 0, 0, NULL, BOOT,
        "--engine-grpc: who may call; lines as of the router's --api-key-file", engine_key_file),
    OPT("engine-grpc-tls-cert", STRING, "", "path", 0, 0, NULL, BOOT,
        "--engine-grpc: certificate chain, PEM; renewed files are noticed", engine_tls_cert),
    OPT("engine-grpc-tls-key", STRING, "", "path", 0, 0, NULL, BOOT, "--engine-grpc: its key, PEM",
        engine_tls_key),
    OPT("engine-grpc-tls-client-ca", STRING, "", "path", 0, 0, NULL, BOOT,
        "--engine-grpc: clients must show a certificate that one of these signed",
        engine_tls_client_ca),
    OPT("drain-timeout", DOUBLE, "120", "s", 0, 3600, NULL, BOOT,
        "after SIGTERM, before running requests are cut", drain_s),
    OPT("handoff-hold", DOUBLE, "30", "s", 0.1, 3600, NULL, BOOT,
        "how long a prompt that an outside router asked for is held for the decode node it chooses",
        hold_s),
    OPT("metrics-compat", BOOL, "true", "", 0, 0, NULL, BOOT, "also serve the vllm:* metric names",
        vllm),
    OPT("otlp-endpoint", STRING, "", "url", 0, 0, NULL, BOOT,
        "OpenTelemetry collector (OTLP over HTTP, JSON), http://host:4318; empty: by "
        "OTEL_EXPORTER_OTLP_ENDPOINT, else no traces",
        otlp_endpoint),
    OPT("trace-sample-ratio", DOUBLE, "-1", "", -1, 1, NULL, BOOT,
        "--role both: share of requests traced, unless the caller has decided; -1: by "
        "OTEL_TRACES_SAMPLER, else all",
        trace_ratio),
    OPT("log-level", ENUM, "info", "", 0, 0, "error|warn|info|debug|trace", BOOT,
        "lines above this level are skipped", log_level),
    OPT("log-format", ENUM, "logfmt", "", 0, 0, "logfmt|json", BOOT, "of log lines", log_format),
    OPT("time-scale", DOUBLE, "1", "", 0.001, 10, NULL, DEBUG,
        "multiplies heartbeats, leases and death bounds (tests)", time_scale),
};

struct app {
    const struct td_node_program *prog;
    struct options o;
    enum td_role role;
    char name[128];
    struct td_link_key keys[TD_LINK_MAX_KEYS];
    uint32_t n_keys, port_first, port_last;
    struct td_model *model;
    struct td_engine *engine;
    double model_load_s;
    struct td_loop *loop;
    struct td_otlp_setting trace;
    struct td_otlp *otlp; /* NULL: no traces */
    struct td_node *node;
    struct nd_vllm *engine_service; /* NULL: off */
    void *front;                    /* --role both */
    struct td_drain *drain;
    struct td_signal *hangup;
};

/* ---- drain ---- */

static void begin_drain(void *arg)
{
    struct app *a = arg;
    if (a->engine_service != NULL) {
        nd_vllm_drain(a->engine_service);
    }
    if (a->front != NULL) {
        a->prog->front->drain(
            a->front); /* the front refuses new requests; the node finishes the front's */
    } else {
        td_node_drain(a->node, (int64_t)(a->o.drain_s * 1e6));
    }
}

static bool is_idle(void *arg)
{
    const struct app *a = arg;
    return td_node_idle(a->node) &&
           (a->engine_service == NULL || nd_vllm_idle(a->engine_service)) &&
           (a->front == NULL || a->prog->front->idle(a->front));
}

static void say_bye(void *arg)
{
    struct app *a = arg;
    td_node_bye(a->node);
}

static bool is_gone(void *arg)
{
    const struct app *a = arg;
    return td_node_gone(a->node);
}

static const struct td_drain_ops drain_ops = {
    .begin = begin_drain, .idle = is_idle, .bye = say_bye, .gone = is_gone};

/* ---- options that need a look ---- */

static td_err resolve_role(struct app *a)
{
    static const enum td_role roles[] = {0, TD_ROLE_PREFILL, TD_ROLE_DECODE, TD_ROLE_BOTH};
    a->role = a->o.role == 0 ? a->prog->default_role : roles[a->o.role];
    if (a->o.model[0] == 0) {
        TD_LOG(ERROR, "missing option", "need=--model");
        return TD_ERR_CONFIG;
    }
    if (a->o.name[0] != 0) {
        (void)snprintf(a->name, sizeof a->name, "%.100s", a->o.name);
    } else {
        static const char *const names[] = {"", "prefill", "decode", "both"};
        (void)snprintf(a->name, sizeof a->name, "%s-%" PRId64, names[a->role], a->o.admin_port);
    }
    return TD_OK;
}

static td_err resolve_keys(struct app *a)
{
    if (a->o.cluster_key_file[0] != 0) {
        return td_link_keys_load(a->o.cluster_key_file, a->keys, &a->n_keys);
    }
    if (a->role != TD_ROLE_BOTH) {
        TD_LOG(ERROR, "missing option",
               "need=--cluster-key-file remedy=\"a file with one line: key-id secret\"");
        return TD_ERR_CONFIG;
    }
    td_link_keys_random(&a->keys[0]);
    a->n_keys = 1;
    return TD_OK;
}

/* Sizes left at 0 are the backend's. */
static void resolve_sizes(struct app *a)
{
    bool gpu = a->o.backend == 1;
    if (a->o.batched_tokens == 0) {
        a->o.batched_tokens = gpu ? 2048 : 512;
    }
    if (a->o.chunk == 0) {
        int64_t chunk = gpu ? 1024 : 256;
        int64_t step = a->o.batched_tokens / TD_KV_HASH_TOK * TD_KV_HASH_TOK;
        a->o.chunk = step > 0 && step < chunk ? step : chunk;
    }
    if (a->o.steps_in_flight == 0) {
        a->o.steps_in_flight = gpu ? 2 : 1;
    }
}

static td_err resolve_ports(struct app *a)
{
    char *end = NULL;
    unsigned long first = strtoul(a->o.kv_port_range, &end, 10), last = first;
    if (*end == '-') {
        last = strtoul(end + 1, &end, 10);
    }
    if (*end != 0 || first > 65535 || last > 65535 || last < first) {
        TD_LOG(ERROR, "bad --kv-port-range",
               "value=%s remedy=\"first-last, for example 8110-8199\"", a->o.kv_port_range);
        return TD_ERR_CONFIG;
    }
    a->port_first = (uint32_t)first;
    a->port_last = (uint32_t)last;
    return TD_OK;
}

/* ---- parts ---- */

static uint32_t pool_blocks(const struct app *a)
{
    if (a->o.blocks > 0) {
        return (uint32_t)a->o.blocks;
    }
    const struct td_hparams *hp = &a->model->hp;
    double block =
        2.0 * 2 * TD_KV_HASH_TOK * hp->n_layers * hp->n_kv_heads * hp->head_dim; /* bf16 K and V */
    double n = a->o.kv_memory_gib * 1073741824.0 / block;
    return n < 2 ? 2 : (n > 16777216 ? 16777216 : (uint32_t)n);
}

static void warn_of_small_pool(const struct td_engine_info *info)
{
    uint64_t pool_tok = (uint64_t)info->n_blocks * info->layout.block_tok;
    if (pool_tok < info->max_model_len) {
        TD_LOG(WARN, "the KV pool is smaller than --max-model-len, longer prompts are refused",
               "pool_tok=%" PRIu64 " max_model_len=%u remedy=\"a smaller --max-model-len, or more "
               "--kv-memory (cpu), --gpu-memory-utilization (cuda) or --kv-blocks\"",
               pool_tok, info->max_model_len);
    }
}

static td_err make_engine(struct app *a)
{
    static const enum td_cpu_isa isas[] = {TD_ISA_AUTO, TD_ISA_PORTABLE, TD_ISA_AVX2, TD_ISA_AVX512,
                                           TD_ISA_AMX};
    int64_t start = td_now_us();
    TD_TRY(td_model_open(a->o.model, &a->model));
    int64_t cores = sysconf(_SC_NPROCESSORS_ONLN);
    struct td_backend_params p = {
        .backend = a->o.backend == 1 ? TD_BACKEND_CUDA : TD_BACKEND_CPU,
        .serves_alone = a->role == TD_ROLE_BOTH,
        .cpu = {.numerics = a->o.numerics,
                .isa = isas[a->o.isa],
                .n_threads = (uint32_t)(a->o.threads > 0 ? a->o.threads : (cores > 0 ? cores : 1)),
                .n_blocks = pool_blocks(a),
                .max_rows = (uint32_t)a->o.max_seqs,
                .max_tokens = (uint32_t)a->o.batched_tokens,
                .max_slots = (uint32_t)a->o.max_seqs,
                .max_model_len = (uint32_t)a->o.max_model_len},
        .cuda = {.device = (int)a->o.device,
                 .kernels = (enum td_cuda_kernels)a->o.cuda_kernels, /* same order */
                 .deterministic = a->o.deterministic,
                 .memory_utilization = a->o.gpu_share,
                 .n_blocks = (uint32_t)a->o.blocks,
                 .max_rows = (uint32_t)a->o.max_seqs,
                 .max_tokens = (uint32_t)a->o.batched_tokens,
                 .max_slots = (uint32_t)a->o.max_seqs,
                 .max_model_len = (uint32_t)a->o.max_model_len}};
    TD_TRY(td_backend_create(a->model, &p, &a->engine));
    const struct td_engine_info *info = a->engine->ops->info(a->engine);
    a->model_load_s = (double)(td_now_us() - start) * 1e-6;
    TD_LOG(INFO, "model loaded", "node=%s path=%s numerics=%s blocks=%u ms=%.0f", a->name,
           a->o.model, info->numerics, info->n_blocks, a->model_load_s * 1e3);
    warn_of_small_pool(info);
    return TD_OK;
}

static const char *model_name(const struct app *a)
{
    return a->o.served_names.count > 0 ? a->o.served_names.items[0] : "default";
}

static td_err make_otlp(struct app *a)
{
    TD_TRY(td_otlp_setting(a->o.otlp_endpoint, a->o.trace_ratio, a->prog->name, &a->trace));
    struct td_otlp_params p = {.url = a->trace.url,
                               .ca = a->trace.ca,
                               .cert = a->trace.cert,
                               .key = a->trace.key,
                               .headers = &a->trace.headers,
                               .service = a->trace.service,
                               .instance = a->name,
                               .version = TD_VERSION};
    return a->trace.url[0] != 0 ? td_otlp_create(&p, &a->otlp) : TD_OK;
}

static struct td_tls_files admin_tls(const struct app *a)
{
    return (struct td_tls_files){a->o.admin_tls_cert, a->o.admin_tls_key, a->o.admin_tls_client_ca};
}

static td_err make_node(struct app *a)
{
    struct td_node_params p = {
        .loop = a->loop,
        .role = a->role == TD_ROLE_PREFILL ? a->prog->prefill : a->prog->decode,
        .role_told = a->role,
        .name = a->name,
        .model_name = model_name(a),
        .engine = a->engine,
        .model = a->model,
        .keys = a->keys,
        .n_keys = a->n_keys,
        .control_url = a->role == TD_ROLE_BOTH ? "tcp://127.0.0.1:0" : a->o.listen,
        .admin_host = a->o.admin_host,
        .admin_port = (uint16_t)a->o.admin_port,
        .admin_tls = admin_tls(a),
        .data_plane = a->role != TD_ROLE_BOTH,
        .kv_device = a->o.kv_device,
        .kv_transports = a->o.kv_transports,
        .kv_port_first = a->port_first,
        .kv_port_last = a->port_last,
        .kv_trust_network = a->o.trust_network,
        .kv_checksum = a->o.kv_checksum,
        .max_seqs = (uint32_t)a->o.max_seqs,
        .max_queue = (uint32_t)a->o.max_queue,
        .max_batched_tokens = (uint32_t)a->o.batched_tokens,
        .chunk_tokens = (uint32_t)a->o.chunk,
        .steps_in_flight = (uint32_t)a->o.steps_in_flight,
        .time_scale = a->o.time_scale,
        .model_load_s = a->model_load_s,
        .otlp = a->otlp,
        .metrics_vllm = a->o.vllm,
        .local = a->o.engine_grpc,
        .hold_s = a->o.hold_s};
    return td_node_create(&p, &a->node);
}

static td_err make_engine_service(struct app *a)
{
    const struct nd_vllm_params p = {.loop = a->loop,
                                     .node = a->node,
                                     .host = a->o.engine_host,
                                     .port = (uint16_t)a->o.engine_port,
                                     .key_file = a->o.engine_key_file,
                                     .tls_cert = a->o.engine_tls_cert,
                                     .tls_key = a->o.engine_tls_key,
                                     .tls_client_ca = a->o.engine_tls_client_ca,
                                     .budget_s = a->o.budget_s};
    return a->o.engine_grpc ? nd_vllm_create(&p, &a->engine_service) : TD_OK;
}

static td_err make_front(struct app *a)
{
    static const char *const default_name[] = {"default"};
    bool named = a->o.served_names.count > 0;
    struct td_front_params p = {.loop = a->loop,
                                .name = a->name,
                                .model_path = a->o.model,
                                .chat_template = a->o.chat_template,
                                .host = a->o.host,
                                .admin_host = a->o.front_admin_host,
                                .api_key_file = a->o.api_key_file,
                                .node_url = td_node_control_url(a->node),
                                .served_names = named ? (const char *const *)a->o.served_names.items
                                                      : default_name,
                                .n_served_names = named ? a->o.served_names.count : 1,
                                .max_model_len = (uint32_t)a->o.max_model_len,
                                .port = (uint16_t)a->o.port,
                                .admin_port = (uint16_t)a->o.front_admin_port,
                                .grpc_port = (uint16_t)a->o.grpc_port,
                                .grpc = a->o.grpc,
                                .tls_cert = a->o.tls_cert,
                                .tls_key = a->o.tls_key,
                                .tls_client_ca = a->o.tls_client_ca,
                                .admin_tls = admin_tls(a),
                                .keys = a->keys,
                                .n_keys = a->n_keys,
                                .time_scale = a->o.time_scale,
                                .budget_s = a->o.budget_s,
                                .otlp = a->otlp,
                                .trace_ratio = a->trace.ratio,
                                .trace_ratio_always = a->trace.ratio_always};
    return a->role == TD_ROLE_BOTH ? a->prog->front->create(&p, &a->front) : TD_OK;
}

static td_err write_ports(const struct app *a)
{
    char tmp[4096];
    if (a->o.port_file[0] == 0) {
        return TD_OK;
    }
    (void)snprintf(tmp, sizeof tmp, "%s.tmp", a->o.port_file);
    FILE *f = fopen(tmp, "we");
    bool ok = f != NULL && fprintf(f, "control %s\nadmin %u\n", td_node_control_url(a->node),
                                   td_node_admin_port(a->node)) > 0;
    if (ok && a->front != NULL) {
        ok = fprintf(f, "http %u\nrouter-admin %u\n", a->prog->front->port(a->front),
                     a->prog->front->admin_port(a->front)) > 0;
        uint16_t grpc = a->prog->front->grpc_port(a->front);
        ok = ok && (grpc == 0 || fprintf(f, "grpc %u\n", grpc) > 0);
    }
    if (ok && a->engine_service != NULL) {
        ok = fprintf(f, "engine-grpc %u\n", nd_vllm_port(a->engine_service)) > 0;
    }
    ok = f != NULL && fclose(f) == 0 && ok;
    if (!ok || rename(tmp, a->o.port_file) != 0) {
        TD_LOG(ERROR, "cannot write the port file", "path=%s", a->o.port_file);
        return TD_ERR_IO;
    }
    return TD_OK;
}

static void on_hangup(void *arg)
{
    struct app *a = arg;
    td_node_reload_tls(a->node);
    if (a->front != NULL) {
        a->prog->front->reload_tls(a->front);
    }
    if (a->engine_service != NULL) {
        nd_vllm_reload_tls(a->engine_service);
    }
}

static td_err run(struct app *a)
{
    TD_TRY(resolve_role(a));
    TD_TRY(resolve_keys(a));
    TD_TRY(resolve_ports(a));
    resolve_sizes(a);
    TD_TRY(make_engine(a));
    TD_TRY(td_loop_create(&a->loop));
    TD_TRY(make_otlp(a));
    TD_TRY(make_node(a));
    TD_TRY(make_engine_service(a));
    TD_TRY(make_front(a));
    TD_TRY(
        td_drain_create(a->loop, a->name, (int64_t)(a->o.drain_s * 1e6), &drain_ops, a, &a->drain));
    TD_TRY(td_signal_create(a->loop, SIGHUP, on_hangup, a, &a->hangup));
    TD_TRY(write_ports(a));
    td_signals_let_through();
    td_loop_run(a->loop);
    td_signals_hold();
    return TD_OK;
}

int td_node_program_main(const struct td_node_program *prog, int argc, char **argv)
{
    struct app a = {.prog = prog};
    struct td_program p = {.name = prog->name,
                           .summary = prog->summary,
                           .opts = opts,
                           .n_opts = TD_COUNT(opts),
                           .struct_bytes = sizeof(struct options)};
    enum td_config_outcome how = td_config_load(&p, argc, argv, &a.o);
    if (how != TD_CONFIG_RUN) {
        return how == TD_CONFIG_EXIT_OK ? 0 : 2;
    }
    td_log_set_level((enum td_log_level)a.o.log_level);
    td_log_set_json(a.o.log_format == 1);
    td_signals_hold();
    td_thread_enter(&td_loop, "nd-loop");
    td_err err = run(&a);
    if (a.front != NULL) {
        prog->front->destroy(a.front);
    }
    nd_vllm_destroy(a.engine_service);
    td_node_destroy(a.node);
    td_otlp_destroy(a.otlp);
    td_drain_destroy(a.drain);
    td_signal_destroy(a.hangup);
    td_loop_destroy(a.loop);
    if (a.engine != NULL) {
        a.engine->ops->destroy(a.engine);
    }
    td_model_close(a.model);
    td_config_fini(&p, &a.o);
    return td_config_exit_status(err);
}
