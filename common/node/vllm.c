/* Design: an outside router sees this node as an engine. Everything it may ask that needs no work is answered here, at once, from
 * what the node knows of itself; the tokenizer's archive is made once, before the loop runs, and sent piece by piece as the client
 * takes it.
 */
#define TD_LOG_ROOM "node"
#include "common/node/vllm.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <openssl/sha.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/io/tls.h"
#include "common/node/vllm_int.h"
#include "common/text/hf_files.h"
#include "common/text/model_vocab.h"

#define SERVICE     "vllm.grpc.engine.VllmEngine"
#define ANSWER_MAX  (16u << 20)
#define ARENA_BYTES (64u << 20)
#define ZIP_CHUNK   (256u << 10)

/* ---- answers ---- */

bool nd__vllm_send(struct nd_vllm *v, struct td_grpc_call *call, td_err err)
{
    if (err != TD_OK) {
        td_grpc_fail(call, err, "the answer does not fit into memory", 1);
    } else {
        err = td_grpc_send(call, v->out.data, v->out.len);
    }
    td_buf_clear(&v->out);
    return err == TD_OK;
}

void nd__vllm_answer(struct nd_vllm *v, struct td_grpc_call *call, td_err err)
{
    if (nd__vllm_send(v, call, err)) {
        td_grpc_finish(call, TD_GRPC_OK, NULL, NULL, 0);
    }
}

static bool draining(const struct nd_vllm *v)
{
    return v->node->draining || v->node->held;
}

static void h_health(void *arg, struct td_grpc_call *call, const uint8_t *message, size_t len)
{
    struct nd_vllm *v = arg;
    (void)message;
    (void)len;
    const char *text = draining(v) ? "this node is draining" : "ok";
    nd__vllm_answer(v, call, td_vllm_health_encode(&v->out, !draining(v), text));
}

static const char *architecture(enum td_arch arch)
{
    switch (arch) {
    case TD_ARCH_LLAMA:
        return "LlamaForCausalLM";
    case TD_ARCH_QWEN2:
        return "Qwen2ForCausalLM";
    case TD_ARCH_QWEN3:
        return "Qwen3ForCausalLM";
    case TD_ARCH_MISTRAL:
        return "MistralForCausalLM";
    }
    return "";
}

/* What a request that does not say otherwise samples with, where the model has a word on it. */
static void defaults_json(const struct td_model_defaults *d, char *out, size_t cap)
{
    const struct {
        const char *name;
        double value, none;
    } rows[] = {{"temperature", (double)d->temperature, 1},
                {"top_p", (double)d->top_p, 1},
                {"top_k", d->top_k, 0},
                {"min_p", (double)d->min_p, 0},
                {"repetition_penalty", (double)d->repetition_penalty, 1}};
    size_t n = (size_t)snprintf(out, cap, "{");
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        if (rows[i].value < rows[i].none || rows[i].value > rows[i].none) {
            n += (size_t)snprintf(out + n, cap - n, "%s\"%s\":%.6g", n > 1 ? "," : "", rows[i].name,
                                  rows[i].value);
        }
    }
    (void)snprintf(out + n, cap - n, "}");
}

static void h_model(void *arg, struct td_grpc_call *call, const uint8_t *message, size_t len)
{
    struct nd_vllm *v = arg;
    (void)message;
    (void)len;
    const struct td_model *m = v->node->p.model;
    const struct td_model_tokenizer *t = &m->tok;
    char defaults[256];
    defaults_json(&m->defaults, defaults, sizeof defaults);
    const struct td_vllm_model answer = {.name = v->node->p.model_name,
                                         .type = td_arch_name(m->hp.arch),
                                         .architecture = architecture(m->hp.arch),
                                         .defaults_json = defaults,
                                         .max_model_len = v->limits.max_model_len,
                                         .n_vocab = v->limits.n_vocab,
                                         .end_ids = t->end_ids,
                                         .n_end_ids = t->n_end_ids,
                                         .bos = t->bos >= 0 ? t->bos : 0,
                                         .pad = t->pad >= 0   ? t->pad
                                                : t->eos >= 0 ? t->eos
                                                              : 0};
    nd__vllm_answer(v, call, td_vllm_model_encode(&v->out, &answer));
}

static void h_server(void *arg, struct td_grpc_call *call, const uint8_t *message, size_t len)
{
    struct nd_vllm *v = arg;
    (void)message;
    (void)len;
    static const char *const roles[] = {
        [TD_ROLE_PREFILL] = "kv_producer", [TD_ROLE_DECODE] = "kv_consumer", [TD_ROLE_BOTH] = ""};
    const struct td_node_params *np = &v->node->p;
    const struct td_engine_info *e = np->engine->ops->info(np->engine);
    bool alone = np->role_told == TD_ROLE_BOTH;
    char pairing[64];
    (void)snprintf(pairing, sizeof pairing, "tandem-%016" PRIx64 "-%016" PRIx64,
                   td_kv_layout_id(&e->layout), e->numerics_id);
    const struct td_vllm_server answer = {.active = td_node_local_count(v->node),
                                          .block_tokens = TD_KV_HASH_TOK,
                                          .max_seqs = np->max_seqs,
                                          .paused = draining(v),
                                          .last_request_unix_s = v->last_request_unix_s,
                                          .uptime_s = (double)(td_now_us() - v->started_us) * 1e-6,
                                          .kv_connector = alone ? "" : "NixlConnector",
                                          .kv_role = roles[np->role_told],
                                          .engine_id = alone ? "" : v->engine_id,
                                          .kv_dtype = "bfloat16",
                                          .numerics = e->numerics,
                                          .model_dtype = "bfloat16",
                                          .pairing = alone ? "" : pairing};
    nd__vllm_answer(v, call, td_vllm_server_encode(&v->out, &answer));
}

static void h_loads(void *arg, struct td_grpc_call *call, const uint8_t *message, size_t len)
{
    struct nd_vllm *v = arg;
    struct td_wire_state s;
    int32_t rank = 0;
    td_arena_reset(v->arena);
    if (td_vllm_loads_decode(message, len, v->arena, &rank) != TD_OK || rank != 0) {
        td_grpc_fail(call, TD_ERR_BAD_REQUEST,
                     rank != 0 ? "this engine has one rank, 0" : "not a GetLoadsRequest", 0);
        return;
    }
    nd__state(v->node, &s);
    char now[40];
    time_t at = (time_t)(td_wall_us() / 1000000);
    struct tm utc;
    (void)strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&at, &utc));
    uint32_t all = 0, unused = s.blocks[TD_BLK_FREE] + s.blocks[TD_BLK_CACHED];
    for (size_t i = 0; i < TD_BLK_STATES; i++) {
        all += s.blocks[i];
    }
    const struct td_vllm_load load = {.timestamp = now,
                                      .running = s.running_requests,
                                      .waiting = s.queued_requests,
                                      .used_tokens = (all - unused) * TD_KV_HASH_TOK,
                                      .max_tokens = all * TD_KV_HASH_TOK,
                                      .max_running = v->node->p.max_seqs,
                                      .waiting_tokens = s.queued_prompt_tok,
                                      .usage = all > 0 ? (double)(all - unused) / all : 0};
    nd__vllm_answer(v, call, td_vllm_load_encode(&v->out, &load));
}

/* ---- the tokenizer ---- */

struct download {
    struct nd_vllm *service;
    struct td_grpc_call *call;
    size_t at;
};

static void download_gone(void *arg)
{
    free(arg);
}

/* One piece after the other, each when the one before it has gone out. */
static void download_more(void *arg)
{
    struct download *d = arg;
    struct nd_vllm *v = d->service;
    struct td_grpc_call *call = d->call;
    size_t left = v->zip.len - d->at, n = left < ZIP_CHUNK ? left : ZIP_CHUNK;
    const char *sum = n == left ? v->zip_sha256 : NULL;
    td_err err = td_vllm_tokenizer_encode(&v->out, v->zip.data + d->at, n, sum);
    d->at += n;
    if (err != TD_OK) {
        td_grpc_call_on_gone(call, NULL, NULL);
        free(d);
    }
    if (!nd__vllm_send(v, call, err)) {
        return; /* `gone` follows, unless it failed above */
    }
    if (n < left) {
        td_grpc_call_on_empty(call, download_more, d);
        return;
    }
    td_grpc_finish(call, TD_GRPC_OK, NULL, NULL, 0);
    free(d);
}

static void h_tokenizer(void *arg, struct td_grpc_call *call, const uint8_t *message, size_t len)
{
    struct nd_vllm *v = arg;
    (void)message;
    (void)len;
    struct download *d = td_zalloc(1, sizeof *d);
    if (d == NULL) {
        td_grpc_fail(call, TD_ERR_NO_MEMORY, NULL, 1);
        return;
    }
    *d = (struct download){.service = v, .call = call};
    td_grpc_call_on_gone(call, download_gone, d);
    download_more(d);
}

/* ---- the rest ---- */

/* Nothing to tell yet: the stream is open until the client leaves. */
static void h_kv_events(void *arg, struct td_grpc_call *call, const uint8_t *message, size_t len)
{
    (void)arg;
    (void)message;
    (void)len;
    td_grpc_call_set_background(call);
    td_grpc_start(call);
}

static void h_embed(void *arg, struct td_grpc_call *call, const uint8_t *message, size_t len)
{
    (void)arg;
    (void)message;
    (void)len;
    td_grpc_fail(call, TD_ERR_UNSUPPORTED, "embeddings are not supported", 0);
}

static const struct td_grpc_method methods[] = {
    {.name = "Generate", .handle = nd__vllm_generate},
    {.name = "Embed", .handle = h_embed},
    {.name = "HealthCheck", .open = true, .handle = h_health},
    {.name = "Abort", .handle = nd__vllm_abort},
    {.name = "GetModelInfo", .handle = h_model},
    {.name = "GetServerInfo", .handle = h_server},
    {.name = "GetLoads", .handle = h_loads},
    {.name = "GetTokenizer", .handle = h_tokenizer},
    {.name = "SubscribeKvEvents", .handle = h_kv_events},
};

static enum td_health health_of(void *arg, const char *service)
{
    const struct nd_vllm *v = arg;
    return nd__health(v->node, strcmp(service, SERVICE) == 0 ? "" : service);
}

/* ---- who may call ---- */

static td_err admit(void *arg, struct td_grpc_call *call)
{
    const struct nd_vllm *v = arg;
    struct td_api_key *key = NULL;
    td_err err = td_api_keys_check_request(v->keys, td_grpc_call_request(call), &key);
    td_grpc_call_set_tag(call, key);
    return err;
}

static bool given(const char *option)
{
    return option != NULL && option[0] != 0;
}

static bool is_loopback(const char *host)
{
    return strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0 ||
           strncmp(host, "127.", 4) == 0;
}

static td_err make_guard(struct nd_vllm *v)
{
    const struct nd_vllm_params *p = &v->p;
    if (!is_loopback(p->host) && !given(p->key_file) && !given(p->tls_client_ca)) {
        TD_LOG(ERROR, "the engine service would be open to everybody",
               "host=%s need=\"--engine-grpc-key-file, or --engine-grpc-tls-client-ca\"", p->host);
        return TD_ERR_CONFIG;
    }
    const struct td_tls_params t = {.loop = p->loop,
                                    .cert = p->tls_cert,
                                    .key = p->tls_key,
                                    .client_ca = p->tls_client_ca,
                                    .prefix = "--engine-grpc-tls-",
                                    .poll_us = TD_TLS_POLL_US};
    TD_TRY(td_tls_create_named(&t, &v->tls));
    v->node->service_tls = v->tls;
    return td_api_keys_load(p->key_file, &v->keys);
}

/* ---- life ---- */

static td_err make_text(struct nd_vllm *v)
{
    const struct td_model *m = v->node->p.model;
    uint8_t sum[32];
    TD_TRY(td_text_vocab_of_model(&m->tok, &v->vocab));
    TD_TRY(td_text_tokenizer_create(v->vocab, &v->tokenizer));
    td_err err = td_text_hf_zip(&m->tok, m->hp.n_ctx, &v->zip);
    if (err != TD_OK) {
        TD_LOG(ERROR, "cannot pack the tokenizer", "text=\"%s\"", td_err_text(err));
        return err;
    }
    (void)SHA256(v->zip.data, v->zip.len, sum);
    for (size_t i = 0; i < sizeof sum; i++) {
        (void)snprintf(v->zip_sha256 + 2 * i, 3, "%02x", sum[i]);
    }
    return TD_OK;
}

static td_err make_server(struct nd_vllm *v)
{
    struct td_grpc_server_params p;
    td_grpc_server_defaults(&p);
    p.h2.loop = v->p.loop;
    p.h2.host = v->p.host;
    p.h2.port = v->p.port;
    p.h2.tls = v->tls;
    p.admit = admit;
    p.arg = v;
    TD_TRY(td_grpc_server_create(&p, &v->server));
    nd__count_calls(v->node, v->server);
    const struct td_grpc_service service = {
        .name = SERVICE, .methods = methods, .n_methods = TD_COUNT(methods), .arg = v};
    td_grpc_server_add(v->server, &service);
    TD_TRY(td_grpc_health_create(v->p.loop, health_of, v, &v->health));
    td_grpc_health_add(v->health, v->server);
    return td_grpc_reflect_create(v->server, false, &v->reflect);
}

static td_err make_all(struct nd_vllm *v)
{
    const struct td_node_params *np = &v->node->p;
    const struct td_engine_info *e = np->engine->ops->info(np->engine);
    td_buf_init(&v->out, ANSWER_MAX);
    td_buf_init(&v->zip, TD_TEXT_HF_MAX_BYTES);
    v->started_us = td_now_us();
    (void)snprintf(v->engine_id, sizeof v->engine_id, "%016" PRIx64, v->node->epoch);
    v->limits = (struct nd_vllm_limits){.role = np->role_told,
                                        .n_vocab = e->n_vocab,
                                        .max_model_len = e->max_model_len,
                                        .pool_tok = (uint64_t)e->n_blocks * e->layout.block_tok,
                                        .end_ids = np->model->tok.end_ids,
                                        .n_end_ids = np->model->tok.n_end_ids,
                                        .defaults = np->model->defaults};
    TD_TRY(make_guard(v));
    v->arena = td_arena_create(ARENA_BYTES);
    TD_TRY(v->arena != NULL ? make_text(v) : TD_ERR_NO_MEMORY);
    TD_TRY(make_server(v));
    TD_LOG(INFO, "engine service listens", "node=%s host=%s port=%u tls=%s keys=%s", v->node->name,
           v->p.host, nd_vllm_port(v), v->tls != NULL ? "on" : "off",
           td_api_keys_open(v->keys) ? "none" : "file");
    return TD_OK;
}

td_err nd_vllm_create(const struct nd_vllm_params *p, struct nd_vllm **out_service)
{
    struct nd_vllm *v = td_zalloc(1, sizeof *v);
    if (v == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    v->p = *p;
    v->node = p->node;
    td_err err = make_all(v);
    if (err != TD_OK) {
        nd_vllm_destroy(v);
        return err;
    }
    *out_service = v;
    return TD_OK;
}

struct nd_vllm *nd_vllm_destroy(struct nd_vllm *v)
{
    if (v != NULL) {
        td_grpc_server_destroy(v->server);
        nd__vllm_calls_destroy(v);
        td_grpc_health_destroy(v->health);
        td_grpc_reflect_destroy(v->reflect);
        v->node->service_tls = NULL;
        td_tls_destroy(v->tls);
        td_api_keys_destroy(v->keys);
        td_text_tokenizer_destroy(v->tokenizer);
        td_text_vocab_destroy(v->vocab);
        td_arena_destroy(v->arena);
        td_buf_fini(&v->out);
        td_buf_fini(&v->zip);
        free(v);
    }
    return NULL;
}

uint16_t nd_vllm_port(const struct nd_vllm *v)
{
    return td_h2_server_port(td_grpc_server_h2(v->server));
}

void nd_vllm_drain(struct nd_vllm *v)
{
    td_h2_server_drain(td_grpc_server_h2(v->server));
}

bool nd_vllm_idle(const struct nd_vllm *v)
{
    return td_h2_server_busy(td_grpc_server_h2(v->server)) == 0;
}

void nd_vllm_reload_tls(struct nd_vllm *v)
{
    if (v->tls != NULL) {
        TD_IGNORE(td_tls_reload(v->tls)); /* logged there; the old ones stay */
    }
}
