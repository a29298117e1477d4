/* Design: a call object stands between one gRPC call and its works, one for each choice. It is freed when its works have all ended;
 * the gRPC call may be over long before: a held prompt stays for whoever takes it, a client may leave. What is said to a client is
 * the tokens; text is made here only to find stop strings.
 */
#define TD_LOG_ROOM "node"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/node/vllm_int.h"
#include "common/node/work.h"
#include "common/text/detok.h"
#include "common/text/stop.h"

#define IDS_MAX    ((size_t)TD_WIRE_MAX_PROMPT * sizeof(uint32_t)) /* bytes of one choice's ids */
#define TEXT_MAX   (1u << 20)                                      /* between two tokens */
#define BUDGET_MAX ((int64_t)24 * 3600 * 1000000)

struct choice {
    struct nd_vllm_call *call; /* borrowed */
    uint32_t index;
    uint64_t ref;      /* of the work; 0: none */
    bool live;         /* the work has not ended */
    bool said;         /* the client has the whole */
    struct td_buf ids; /* of tokens, uint32_t */
    struct td_text_detok detok;
    struct td_text_stop *stop; /* owned; NULL: no stop strings */
    struct td_buf piece, text;
};

struct nd_vllm_call {
    struct nd_vllm *service; /* borrowed */
    struct nd_vllm_call *prev, *next;
    struct td_grpc_call *grpc; /* borrowed; NULL: answered or gone */
    struct td_api_key *key;    /* borrowed; one admission is held while grpc is there */
    char request_id[TD_WIRE_MAX_NAME];
    bool stream;
    enum nd_local_mode mode;
    uint32_t n_prompt, n_choices, n_live, n_said, n_stop, min_tokens;
    uint32_t n_asked_ids, n_stop_ids;
    int32_t stop_ids[TD_SAMPLING_MAX_STOP_IDS]; /* the client's own first: [n_asked_ids] */
    char *stop_texts[TD_TEXT_STOPS_MAX];        /* owned */
    struct choice choices[];
};

/* ---- life ---- */

static void call_free(struct nd_vllm_call *c)
{
    for (uint32_t i = 0; i < c->n_choices; i++) {
        struct choice *ch = &c->choices[i];
        td_text_stop_destroy(ch->stop);
        td_buf_fini(&ch->ids);
        td_buf_fini(&ch->piece);
        td_buf_fini(&ch->text);
    }
    for (uint32_t i = 0; i < c->n_stop; i++) {
        free(c->stop_texts[i]);
    }
    if (c->prev != NULL) {
        c->prev->next = c->next;
    } else {
        c->service->calls = c->next;
    }
    if (c->next != NULL) {
        c->next->prev = c->prev;
    }
    free(c);
}

static void free_if_over(struct nd_vllm_call *c)
{
    if (c->grpc == NULL && c->n_live == 0) {
        call_free(c);
    }
}

/* The client has its answer, or is gone; works may go on. */
static void part(struct nd_vllm_call *c)
{
    uint64_t tokens = c->n_prompt;
    for (uint32_t i = 0; i < c->n_choices; i++) {
        tokens += c->choices[i].ids.len / sizeof(uint32_t);
    }
    td_api_key_done(c->key, tokens);
    c->grpc = NULL;
}

static void cancel_live(struct nd_vllm_call *c)
{
    for (uint32_t i = 0; i < c->n_choices; i++) {
        if (c->choices[i].live) {
            td_node_cancel(c->service->node, c->choices[i].ref); /* on_end follows, later */
        }
    }
}

/* For log lines: the id is the client's, it may hold anything. */
static const char *log_id(const struct nd_vllm_call *c, char out[2 * TD_WIRE_MAX_NAME])
{
    return nd_name_is_plain(c->request_id)
               ? c->request_id
               : td_log_quote(c->request_id, strlen(c->request_id), out, 2 * TD_WIRE_MAX_NAME);
}

static void on_gone(void *arg)
{
    struct nd_vllm_call *c = arg;
    char quoted[2 * TD_WIRE_MAX_NAME];
    TD_LOG(INFO, "outside router gone", "req=%s", log_id(c, quoted));
    part(c);
    cancel_live(c);
    free_if_over(c);
}

static void fail(struct nd_vllm_call *c, td_err err, const char *text)
{
    struct td_grpc_call *grpc = c->grpc;
    part(c);
    td_grpc_fail(grpc, err, text, 1);
    cancel_live(c);
}

/* ---- the answer ---- */

/* What cannot be written is reset by the server, and `gone` follows. */
static bool send_out(struct nd_vllm_call *c, td_err err)
{
    struct td_buf *out = &c->service->out;
    if (err == TD_OK) {
        err = td_grpc_send(c->grpc, out->data, out->len);
    } else {
        fail(c, err, "the answer does not fit into memory");
    }
    td_buf_clear(out);
    return err == TD_OK;
}

static const uint32_t *ids_of(const struct choice *ch)
{
    return (const uint32_t *)(const void *)ch->ids.data;
}

static uint32_t count_of(const struct choice *ch)
{
    return (uint32_t)(ch->ids.len / sizeof(uint32_t));
}

/* The client's own stop id that ended it, or -1. */
static int64_t stop_id(const struct choice *ch)
{
    const struct nd_vllm_call *c = ch->call;
    uint32_t n = count_of(ch);
    for (uint32_t i = 0; n > 0 && i < c->n_asked_ids; i++) {
        if ((uint32_t)c->stop_ids[i] == ids_of(ch)[n - 1]) {
            return c->stop_ids[i];
        }
    }
    return -1;
}

/* The whole of one choice; the last one ends the call. */
static void say_whole(struct choice *ch, const char *finish, const char *kv_json)
{
    struct nd_vllm_call *c = ch->call;
    int matched = ch->stop != NULL ? td_text_stop_matched(ch->stop) : -1;
    const struct td_vllm_complete whole = {
        .ids = ids_of(ch),
        .n = count_of(ch),
        .index = ch->index,
        .prompt_tokens = c->n_prompt,
        .finish = finish,
        .stop_id = strcmp(finish, "stop") == 0 ? stop_id(ch) : -1,
        .stop_text = matched >= 0 ? c->stop_texts[matched] : NULL,
        .kv_json = kv_json};
    if (c->grpc == NULL || ch->said) {
        return;
    }
    ch->said = true;
    if (!send_out(c, td_vllm_complete_encode(&c->service->out, &whole)) ||
        ++c->n_said < c->n_choices) {
        return;
    }
    struct td_grpc_call *grpc = c->grpc;
    part(c);
    td_grpc_finish(grpc, TD_GRPC_OK, NULL, NULL, 0);
}

static const char *finish_name(enum td_finish finish)
{
    switch (finish) {
    case TD_FINISH_STOP:
        return "stop";
    case TD_FINISH_LENGTH:
        return "length";
    case TD_FINISH_NONE:
    case TD_FINISH_ABORT:
    case TD_FINISH_ERROR:
        break;
    }
    return "abort";
}

/* ---- what the node says of a work ---- */

/* True when the text so far holds a stop string behind the first min_tokens tokens. */
static td_err look_for_stop(struct choice *ch, int32_t token, bool *out_found)
{
    *out_found = false;
    if (ch->stop == NULL) {
        return TD_OK;
    }
    td_buf_clear(&ch->piece);
    td_buf_clear(&ch->text);
    TD_TRY(td_text_detok_push(&ch->detok, token, &ch->piece));
    if (count_of(ch) <= ch->call->min_tokens) {
        return TD_OK;
    }
    TD_TRY(td_text_stop_push(ch->stop, ch->piece.data, ch->piece.len, &ch->text));
    *out_found = td_text_stop_matched(ch->stop) >= 0;
    return TD_OK;
}

/* A prefill node that was not told of min_tokens may have chosen a first token that must not be. */
static bool is_banned(const struct nd_vllm_call *c, const struct nd_local_token *t)
{
    bool first = c->mode == ND_LOCAL_TAKE && t->index == 0 && c->min_tokens > 0;
    for (uint32_t i = 0; first && i < c->n_stop_ids; i++) {
        if (c->stop_ids[i] == t->token) {
            return true;
        }
    }
    return false;
}

static bool say_token(struct choice *ch, const struct nd_local_token *t)
{
    struct nd_vllm_call *c = ch->call;
    uint32_t id = (uint32_t)t->token;
    td_err err = td_buf_append(&ch->ids, &id, sizeof id);
    if (err != TD_OK) {
        fail(c, err, "the answer does not fit into memory");
        return false;
    }
    const struct td_vllm_chunk chunk = {.ids = &id,
                                        .n = 1,
                                        .index = ch->index,
                                        .prompt_tokens = c->n_prompt,
                                        .completion_tokens = count_of(ch)};
    return !c->stream || send_out(c, td_vllm_chunk_encode(&c->service->out, &chunk));
}

static void on_token(void *arg, const struct nd_local_token *t)
{
    struct choice *ch = arg;
    struct nd_vllm_call *c = ch->call;
    bool stopped = false;
    if (c->grpc == NULL || ch->said) {
        return;
    }
    if (is_banned(c, t)) {
        fail(c, TD_ERR_BAD_REQUEST,
             "min_tokens: the prefill node's first token ends the answer; it must be told too");
        return;
    }
    if (!say_token(ch, t)) {
        return;
    }
    td_err err = c->mode != ND_LOCAL_HOLD ? look_for_stop(ch, t->token, &stopped) : TD_OK;
    if (err != TD_OK) {
        fail(c, err, "the answer does not fit into memory");
    } else if (stopped) {
        say_whole(ch, "stop", NULL);
        td_node_cancel(c->service->node, ch->ref);
    }
}

/* The prompt is computed and kept: the answer is the hand-off. */
static void on_held(void *arg, const struct td_handoff *h)
{
    struct choice *ch = arg;
    struct nd_vllm_call *c = ch->call;
    const struct td_node_params *np = &c->service->node->p;
    char text[TD_HANDOFF_MAX_TEXT], json[TD_HANDOFF_MAX_TEXT + 256];
    td_err err = td_handoff_encode(h, np->keys, np->n_keys, text, sizeof text);
    if (c->grpc == NULL) {
        return; /* gone: it is being cancelled */
    }
    if (err == TD_OK && !nd_vllm_handoff_json(text, c->service->engine_id, json, sizeof json)) {
        err = TD_ERR_TOO_LARGE;
    }
    if (err != TD_OK) {
        fail(c, err, "the hand-off does not fit");
        return;
    }
    say_whole(ch, "length", json);
}

static void on_end(void *arg, const struct nd_local_end *e)
{
    struct choice *ch = arg;
    struct nd_vllm_call *c = ch->call;
    char quoted[2 * TD_WIRE_MAX_NAME];
    ch->live = false;
    c->n_live--;
    if (c->grpc != NULL && !ch->said && e->err != TD_OK) {
        TD_LOG(INFO, "outside router's request failed", "req=%s err=%s text=\"%s\"",
               log_id(c, quoted), td_err_code(e->err), e->text);
        fail(c, e->err, e->text);
    } else if (c->grpc != NULL) {
        say_whole(ch, finish_name(e->finish), NULL);
    }
    free_if_over(c);
}

static const struct nd_local_ops work_ops = {
    .on_token = on_token, .on_held = on_held, .on_end = on_end};

/* ---- a request ---- */

struct prompt {
    const int32_t *ids;
    uint32_t n;
};

static td_err tokenise(struct nd_vllm *v, const char *text, struct prompt *out,
                       char why[ND_VLLM_WHY])
{
    const struct td_text_segment seg = {.text = text, .len = strlen(text)};
    const struct td_text_encode_args args = {.segs = &seg,
                                             .n_segs = 1,
                                             .add_bos = td_text_vocab_adds_bos(v->vocab),
                                             .limit = v->limits.max_model_len};
    size_t n = 0, cap = td_text_encode_bound(&args);
    if (seg.len > ND_VLLM_MAX_TEXT) {
        (void)snprintf(why, ND_VLLM_WHY, "text has more than %u bytes: send such a prompt as ids",
                       ND_VLLM_MAX_TEXT);
        return TD_ERR_BAD_REQUEST;
    }
    int32_t *ids = TD_ARENA_ARRAY(v->arena, int32_t, cap + 1);
    TD_TRY(ids != NULL ? td_text_tokenizer_encode(v->tokenizer, &args, ids, cap, &n)
                       : TD_ERR_NO_MEMORY);
    *out = (struct prompt){.ids = ids, .n = (uint32_t)n};
    return TD_OK;
}

static td_err read_prompt(struct nd_vllm *v, const struct td_vllm_generate *g, struct prompt *out,
                          char why[ND_VLLM_WHY])
{
    switch (g->input) {
    case TD_VLLM_TEXT:
        return tokenise(v, g->text, out, why);
    case TD_VLLM_IDS:
        TD_TRY(nd_vllm_ids_check(&v->limits, g->ids, g->n_ids, why));
        *out = (struct prompt){.ids = (const int32_t *)(const void *)g->ids, .n = g->n_ids};
        return TD_OK;
    case TD_VLLM_NO_INPUT:
        break;
    }
    (void)snprintf(why, ND_VLLM_WHY, "tokenized or text is required");
    return TD_ERR_BAD_REQUEST;
}

/* Everything of the request that outlives the message. */
static td_err call_fill(struct nd_vllm_call *c, const struct nd_vllm_request *r, bool skip_special)
{
    struct td_text_str stops[TD_TEXT_STOPS_MAX];
    for (uint32_t i = 0; i < r->n_stop; i++) {
        c->stop_texts[i] = td_strdup(r->stop[i]);
        if (c->stop_texts[i] == NULL) {
            return TD_ERR_NO_MEMORY;
        }
        c->n_stop++;
        stops[i] = (struct td_text_str){.ptr = c->stop_texts[i], .len = strlen(c->stop_texts[i])};
    }
    c->n_asked_ids = r->n_asked_ids;
    c->n_stop_ids = r->sampling.n_stop_ids;
    c->min_tokens = r->sampling.min_tokens;
    memcpy(c->stop_ids, r->sampling.stop_ids, sizeof c->stop_ids);
    for (uint32_t i = 0; i < c->n_choices; i++) {
        struct choice *ch = &c->choices[i];
        td_text_detok_init(&ch->detok, c->service->vocab, skip_special);
        TD_TRY(c->n_stop > 0 ? td_text_stop_create(stops, c->n_stop, false, &ch->stop) : TD_OK);
    }
    return TD_OK;
}

static struct nd_vllm_call *call_new(struct nd_vllm *v, struct td_grpc_call *grpc,
                                     const struct td_vllm_generate *g,
                                     const struct nd_vllm_request *r)
{
    struct nd_vllm_call *c = td_zalloc(1, sizeof *c + (size_t)r->n_choices * sizeof c->choices[0]);
    if (c == NULL) {
        return NULL;
    }
    c->service = v;
    c->grpc = grpc;
    c->key = td_grpc_call_tag(grpc);
    c->stream = g->stream;
    c->mode = r->mode;
    c->n_choices = r->n_choices;
    (void)snprintf(c->request_id, sizeof c->request_id, "%s", g->request_id);
    for (uint32_t i = 0; i < c->n_choices; i++) {
        struct choice *ch = &c->choices[i];
        ch->call = c;
        ch->index = i;
        td_buf_init(&ch->ids, IDS_MAX);
        td_buf_init(&ch->piece, TEXT_MAX);
        td_buf_init(&ch->text, TEXT_MAX);
    }
    c->next = v->calls;
    if (v->calls != NULL) {
        v->calls->prev = c;
    }
    v->calls = c;
    if (call_fill(c, r, g->sampling.skip_special) != TD_OK) {
        call_free(c);
        return NULL;
    }
    return c;
}

static uint32_t budget_ms(const struct nd_vllm *v, const struct td_grpc_call *grpc)
{
    int64_t us = (int64_t)(v->p.budget_s * 1e6), deadline = td_grpc_call_deadline(grpc);
    if (deadline != TD_NEVER && deadline - td_now_us() < us) {
        us = deadline - td_now_us();
    }
    us = us < BUDGET_MAX ? us : BUDGET_MAX;
    return us > 1000 ? (uint32_t)(us / 1000) : 1;
}

static td_err submit(struct nd_vllm_call *c, struct nd_local_request *r, uint64_t seed)
{
    for (uint32_t i = 0; i < c->n_choices; i++) {
        struct choice *ch = &c->choices[i];
        r->sampling.choice = i;
        r->sampling.seed = seed;
        TD_TRY(td_node_submit(c->service->node, r, &work_ops, ch, &ch->ref));
        ch->live = true;
        c->n_live++;
    }
    return TD_OK;
}

/* What the node says at once of a request that was read; NULL: the error's own text. */
static const char *refusal(enum nd_local_mode mode, td_err err)
{
    if (mode == ND_LOCAL_TAKE && err == TD_ERR_BAD_REQUEST) {
        return "this hand-off is of another prompt: send the token ids that the prefill node got";
    }
    return mode == ND_LOCAL_TAKE && err == TD_ERR_PEER_MODEL
               ? "this hand-off is of a node with another KV layout or numerics "
                 "(GetServerInfo's pairing_protocol differs)"
               : NULL;
}

static td_err start(struct nd_vllm *v, struct td_grpc_call *grpc, const struct td_vllm_generate *g,
                    char why[ND_VLLM_WHY])
{
    struct nd_vllm_request r;
    struct prompt prompt = {0};
    struct td_handoff handoff;
    const struct td_node_params *np = &v->node->p;
    TD_TRY(read_prompt(v, g, &prompt, why));
    TD_TRY(nd_vllm_request_read(&v->limits, g, prompt.n, &r, why));
    if (r.mode == ND_LOCAL_TAKE) {
        (void)snprintf(why, ND_VLLM_WHY, "kv_transfer_params_json: not a hand-off of this cluster");
        TD_TRY(td_handoff_decode(r.handoff, strlen(r.handoff), np->keys, np->n_keys, &handoff));
        why[0] = 0;
    }
    struct nd_vllm_call *c = call_new(v, grpc, g, &r);
    if (c == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    c->n_prompt = prompt.n;
    const struct td_http_request *http = td_grpc_call_request(grpc);
    struct nd_local_request work = {.mode = r.mode,
                                    .request_id = c->request_id,
                                    .traceparent = td_http_header_get(http, "traceparent"),
                                    .tracestate = td_http_header_get(http, "tracestate"),
                                    .budget_ms = budget_ms(v, grpc),
                                    .prompt = prompt.ids,
                                    .n_prompt = prompt.n,
                                    .sampling = r.sampling,
                                    .handoff = r.mode == ND_LOCAL_TAKE ? &handoff : NULL};
    td_grpc_call_on_gone(grpc, on_gone, c);
    td_err err = submit(c, &work, r.has_seed ? r.sampling.seed : td_rng_u64_secure());
    if (err != TD_OK) { /* choices that were taken end by themselves */
        fail(c, err, refusal(r.mode, err));
        free_if_over(c);
    }
    return TD_OK;
}

void nd__vllm_generate(void *arg, struct td_grpc_call *call, const uint8_t *message, size_t len)
{
    struct nd_vllm *v = arg;
    struct td_vllm_generate g;
    struct td_api_key *key = td_grpc_call_tag(call);
    char why[ND_VLLM_WHY] = "", quoted[2 * ND_VLLM_WHY];
    double retry_s = 1;
    td_err err = td_api_key_admit(key, td_now_us(), &retry_s);
    if (err != TD_OK) {
        td_grpc_fail(call, err, NULL, retry_s);
        return;
    }
    v->last_request_unix_s = (double)td_wall_us() * 1e-6;
    td_arena_reset(v->arena);
    err = td_vllm_generate_decode(message, len, v->arena, &g);
    if (err == TD_OK && strlen(g.request_id) >= TD_WIRE_MAX_NAME) {
        (void)snprintf(why, sizeof why, "request_id has more than %d bytes", TD_WIRE_MAX_NAME - 1);
        err = TD_ERR_BAD_REQUEST;
    }
    err = err == TD_OK ? start(v, call, &g, why) : err;
    if (err != TD_OK) {
        TD_LOG(INFO, "outside router's request refused", "err=%s text=%s", td_err_code(err),
               td_log_quote(why, strlen(why), quoted, sizeof quoted));
        td_api_key_done(key, 0);
        td_grpc_fail(call, err, why[0] != 0 ? why : NULL, 1);
    }
}

/* ---- abort ---- */

static void abort_call(struct nd_vllm_call *c)
{
    for (uint32_t i = 0; i < c->n_choices; i++) {
        say_whole(&c->choices[i], "abort", NULL);
    }
    cancel_live(c); /* also what is held after its answer */
}

void nd__vllm_abort(void *arg, struct td_grpc_call *call, const uint8_t *message, size_t len)
{
    struct nd_vllm *v = arg;
    struct td_vllm_abort a;
    const struct td_api_key *key = td_grpc_call_tag(call);
    td_arena_reset(v->arena);
    if (td_vllm_abort_decode(message, len, v->arena, &a) != TD_OK) {
        td_grpc_fail(call, TD_ERR_BAD_REQUEST, "not an AbortRequest", 0);
        return;
    }
    for (uint32_t i = 0; i < a.n; i++) {
        for (struct nd_vllm_call *c = v->calls; c != NULL; c = c->next) {
            if (c->key == key && c->request_id[0] != 0 && strcmp(c->request_id, a.ids[i]) == 0) {
                abort_call(c); /* frees nothing: that comes with on_end */
            }
        }
    }
    nd__vllm_answer(v, call, TD_OK); /* AbortResponse is empty */
}

void nd__vllm_calls_destroy(struct nd_vllm *v)
{
    while (v->calls != NULL) {
        struct nd_vllm_call *c = v->calls;
        for (uint32_t i = 0; i < c->n_choices; i++) {
            if (c->choices[i].live) {
                td_node_detach(v->node, c->choices[i].ref);
            }
        }
        call_free(c);
    }
}
