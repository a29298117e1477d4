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
#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/thread.h"
#include "common/io/drain.h"
#include "common/io/link_keys.h"
#include "common/io/port_file.h"
#include "common/model/model.h"
#include "common/node/backend.h"
#include "common/node/group.h"
#include "common/node/node.h"
#include "common/node/program_int.h"
#include "common/node/rank_node.h"
#include "common/node/vllm.h"

/* What rank 0 may need after its own drain limit, to part from routers. */
#define FOLLOWER_GRACE_US 5000000

struct app {
    const struct td_node_program *prog;
    struct nd_options o;
    enum td_role role;
    char name[128];
    struct td_link_key keys[TD_LINK_MAX_KEYS];
    uint32_t n_keys, port_first, port_last;
    struct td_model *model;
    struct td_engine *engine;
    double model_load_s;
    struct td_loop *loop;
    struct td_otlp_setting trace;
    struct td_otlp *otlp;           /* NULL: no traces */
    struct nd_group *group;         /* NULL: this process computes alone */
    struct td_node *node;           /* NULL in a rank above 0 */
    struct td_rank_node *follower;  /* a rank above 0 */
    struct nd_vllm *engine_service; /* NULL: off */
    void *front;                    /* --role both */
    struct td_drain *drain;
    struct td_signal *hangup;
    bool over;       /* the engine has ended by itself */
    td_err over_why; /* TD_OK: rank 0 has said goodbye */
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

/* A rank above 0 is needed until rank 0 has finished, which says goodbye: then the loop is stopped. */
static void begin_follower_drain(void *arg)
{
    struct app *a = arg;
    td_rank_node_drain(a->follower);
}

static bool follower_is_idle(void *arg)
{
    (void)arg;
    return false;
}

static const struct td_drain_ops follower_drain_ops = {.begin = begin_follower_drain,
                                                       .idle = follower_is_idle};

/* ---- the end of a group ---- */

static void log_end_of_group(const struct app *a, td_err why)
{
    if (why == TD_OK) {
        TD_LOG(INFO, "rank 0 has said goodbye", "node=%s rank=%" PRId64, a->name, a->o.rank);
    } else {
        TD_LOG(ERROR, "the group of ranks is over, ending this process",
               "node=%s rank=%" PRId64 " of=%" PRId64 " reason=%s remedy=\"all its processes end; "
               "start all of them again\"",
               a->name, a->o.rank, a->o.group_size, td_err_code(why));
    }
}

static void end_of_group(struct app *a, td_err why)
{
    if (!a->over) {
        a->over = true;
        a->over_why = why;
        log_end_of_group(a, why);
        td_loop_stop(a->loop);
    }
}

static void on_engine_end(void *arg)
{
    struct app *a = arg;
    end_of_group(a, td_cpu_engine_farewell(a->engine));
}

/* Rank 0's engine may be idle, and would find out at its next step only. A follower's waits for rank 0's word, which may be
 * a goodbye that has come: its engine knows. */
static void on_group_lost(void *arg, td_err why)
{
    struct app *a = arg;
    if (a->o.rank == 0) {
        end_of_group(a, why);
    }
}

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
        if (a->o.rank > 0) {
            (void)snprintf(a->name, sizeof a->name, "%s-rank%" PRId64, names[a->role], a->o.rank);
        }
    }
    return TD_OK;
}

static td_err resolve_group(const struct app *a)
{
    const struct nd_group_options o = {.size = a->o.group_size,
                                       .rank = a->o.rank,
                                       .leader = a->o.rank_leader,
                                       .cuda = a->o.backend == 1,
                                       .has_keys = a->o.cluster_key_file[0] != 0,
                                       .numerics_id = td_cpu_engine_numerics_id(a->o.numerics),
                                       .n_ports =
                                           a->port_first > 0 ? a->port_last - a->port_first + 1 : 0,
                                       .data_plane = a->role != TD_ROLE_BOTH};
    return nd_group_check(&o);
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

static td_err open_model(struct app *a)
{
    int64_t start = td_now_us();
    TD_TRY(td_model_open(a->o.model, &a->model));
    a->model_load_s = (double)(td_now_us() - start) * 1e-6;
    return TD_OK;
}

/* All ranks must come to the same terms from the same options; rank 0's are what the others are compared with. */
static struct td_rank_terms terms_of(const struct app *a)
{
    struct td_rank_terms t = {.numerics_id = td_cpu_engine_numerics_id(a->o.numerics),
                              .n_blocks = pool_blocks(a),
                              .max_rows = (uint32_t)a->o.max_seqs,
                              .max_tokens = (uint32_t)a->o.batched_tokens,
                              .max_model_len =
                                  td_model_context(&a->model->hp, (uint32_t)a->o.max_model_len)};
    memcpy(t.model_id, a->model->id, sizeof t.model_id);
    return t;
}

/* Before the others are waited for: what rank 0 refuses, all do, each in its own words. */
static td_err join_group(struct app *a)
{
    TD_TRY(a->o.group_size > 1 ? td_cpu_engine_check_ranks(a->model, (uint32_t)a->o.group_size)
                               : TD_OK);
    const struct td_rank_params p = {.rank = (uint32_t)a->o.rank,
                                     .n = (uint32_t)a->o.group_size,
                                     .listen = a->o.rank_listen,
                                     .leader = a->o.rank_leader,
                                     .name = a->name,
                                     .port_file = a->o.port_file,
                                     .keys = a->keys,
                                     .n_keys = a->n_keys,
                                     .terms = terms_of(a),
                                     .kv_device = a->o.kv_device,
                                     .kv_transports = a->o.kv_transports,
                                     .port_first = a->port_first,
                                     .port_last = a->port_last,
                                     .trust_network = a->o.trust_network,
                                     .join_us = (int64_t)(a->o.rank_join_s * 1e6),
                                     .wait_us = (int64_t)(a->o.rank_wait_s * 1e6)};
    return a->o.group_size > 1 ? nd_group_join(&p, &a->group) : TD_OK;
}

/* Before anybody is told that this node is ready. */
static td_err wait_for_loading(struct app *a)
{
    if (a->group == NULL) {
        return TD_OK;
    }
    td_err err = nd_group_loaded(a->group, (int64_t)(a->o.rank_join_s * 1e6));
    if (err != TD_OK && err != TD_ERR_CANCELLED) {
        log_end_of_group(a, err);
    }
    return err;
}

static struct td_ranks *ranks_of(const struct app *a)
{
    return a->group != NULL ? nd_group_ranks(a->group) : NULL;
}

static struct nd_rank_source source_of(const struct app *a)
{
    return (struct nd_rank_source){.ranks = ranks_of(a), .stats = td_ranks_stats_get};
}

static td_err make_engine(struct app *a)
{
    static const enum td_cpu_isa isas[] = {TD_ISA_AUTO, TD_ISA_PORTABLE, TD_ISA_AVX2, TD_ISA_AVX512,
                                           TD_ISA_AMX};
    int64_t start = td_now_us();
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
                .max_model_len = (uint32_t)a->o.max_model_len,
                .ranks = ranks_of(a)},
        .cuda = {.device = (int)a->o.device,
                 .kernels = (enum td_cuda_kernels)a->o.cuda_kernels, /* same order */
                 .deterministic = a->o.deterministic,
                 .memory_utilization = a->o.gpu_share,
                 .n_blocks = (uint32_t)a->o.blocks,
                 .max_rows = (uint32_t)a->o.max_seqs,
                 .max_tokens = (uint32_t)a->o.batched_tokens,
                 .max_slots = (uint32_t)a->o.max_seqs,
                 .max_model_len = (uint32_t)a->o.max_model_len}};
    TD_FAULT_DELAY(RANK_LOAD);
    TD_TRY(td_backend_create(a->model, &p, &a->engine));
    const struct td_engine_info *info = a->engine->ops->info(a->engine);
    a->model_load_s += (double)(td_now_us() - start) * 1e-6;
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
        .group = source_of(a),
        .ended = on_engine_end,
        .ended_arg = a,
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

static td_err make_follower(struct app *a)
{
    const struct td_rank_node_params p = {.loop = a->loop,
                                          .name = a->name,
                                          .model_name = model_name(a),
                                          .role = a->role,
                                          .engine = a->engine,
                                          .group = source_of(a),
                                          .admin_host = a->o.admin_host,
                                          .admin_port = (uint16_t)a->o.admin_port,
                                          .admin_tls = admin_tls(a),
                                          .model_load_s = a->model_load_s,
                                          .ended = on_engine_end,
                                          .arg = a};
    return td_rank_node_create(&p, &a->follower);
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

static bool print_ports(const void *arg, FILE *f)
{
    const struct app *a = arg;
    if (a->follower != NULL) {
        return fprintf(f, "admin %u\n", td_rank_node_admin_port(a->follower)) > 0;
    }
    bool ok = fprintf(f, "control %s\nadmin %u\n", td_node_control_url(a->node),
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
    return ok;
}

static void on_hangup(void *arg)
{
    struct app *a = arg;
    if (a->follower != NULL) {
        td_rank_node_reload_tls(a->follower);
        return;
    }
    td_node_reload_tls(a->node);
    if (a->front != NULL) {
        a->prog->front->reload_tls(a->front);
    }
    if (a->engine_service != NULL) {
        nd_vllm_reload_tls(a->engine_service);
    }
}

static td_err resolve(struct app *a)
{
    TD_TRY(resolve_role(a));
    TD_TRY(resolve_ports(a));
    TD_TRY(resolve_group(a));
    TD_TRY(resolve_keys(a));
    resolve_sizes(a);
    return TD_OK;
}

static td_err make_services(struct app *a)
{
    if (a->o.rank > 0) {
        return make_follower(a);
    }
    TD_TRY(make_otlp(a));
    TD_TRY(make_node(a));
    TD_TRY(make_engine_service(a));
    return make_front(a);
}

/* A follower waits a little longer than rank 0 may: its goodbye comes after its own limit. */
static td_err make_drain(struct app *a)
{
    int64_t limit_us = (int64_t)(a->o.drain_s * 1e6);
    return a->follower != NULL
               ? td_drain_create(a->loop, a->name, limit_us + FOLLOWER_GRACE_US,
                                 &follower_drain_ops, a, &a->drain)
               : td_drain_create(a->loop, a->name, limit_us, &drain_ops, a, &a->drain);
}

static td_err run(struct app *a)
{
    TD_TRY(resolve(a));
    TD_TRY(open_model(a));
    TD_TRY(join_group(a));
    TD_TRY(make_engine(a));
    TD_TRY(wait_for_loading(a));
    TD_TRY(td_loop_create(&a->loop));
    TD_TRY(make_services(a));
    TD_TRY(make_drain(a));
    TD_TRY(td_signal_create(a->loop, SIGHUP, on_hangup, a, &a->hangup));
    if (a->group != NULL) {
        TD_TRY(nd_group_watch(a->group, a->loop, on_group_lost, a));
    }
    TD_TRY(td_port_file_write(a->o.port_file, print_ports, a));
    td_signals_let_through();
    td_loop_run(a->loop);
    td_signals_hold();
    return a->over_why;
}

/* The parts in the other order than they came. */
static void take_down(struct app *a, bool broken)
{
    if (a->front != NULL) {
        a->prog->front->destroy(a->front);
    }
    nd_vllm_destroy(a->engine_service);
    td_node_destroy(a->node);
    td_rank_node_destroy(a->follower);
    td_otlp_destroy(a->otlp);
    td_drain_destroy(a->drain);
    td_signal_destroy(a->hangup);
    nd_group_leave(a->group, broken || a->o.rank > 0);
    td_loop_destroy(a->loop);
    if (a->engine != NULL) {
        a->engine->ops->destroy(a->engine); /* rank 0's says goodbye, unless something is broken */
    }
    nd_group_destroy(a->group);
    td_model_close(a->model);
}

int td_node_program_main(const struct td_node_program *prog, int argc, char **argv)
{
    struct app a = {.prog = prog};
    struct td_program p = {.name = prog->name,
                           .summary = prog->summary,
                           .opts = nd__options,
                           .n_opts = nd__n_options,
                           .struct_bytes = sizeof(struct nd_options)};
    enum td_config_outcome how = td_config_load(&p, argc, argv, &a.o);
    if (how != TD_CONFIG_RUN) {
        return how == TD_CONFIG_EXIT_OK ? 0 : 2;
    }
    td_log_set_level((enum td_log_level)a.o.log_level);
    td_log_set_json(a.o.log_format == 1);
    td_signals_hold();
    td_thread_enter(&td_loop, "nd-loop");
    td_err err = run(&a);
    take_down(&a, err != TD_OK && err != TD_ERR_CANCELLED);
    td_config_fini(&p, &a.o);
    /* A signal that ends the waiting for the others, before or after they have loaded, is the end that was asked for. */
    return err == TD_ERR_CANCELLED ? 0 : td_config_exit_status(err);
}
