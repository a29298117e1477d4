/* Design: a client object stands between one HTTP exchange, or one gRPC call, and the choices (core requests) that
 * answer it. It is freed when its choices have all ended and its job is back; the exchange may be
 * gone long before, or (after an early error) answered before the choices have ended. Nothing here
 * calls the core directly: cancels go through rt__shell_cancel, which waits for the step in
 * progress.
 */
#define TD_LOG_ROOM "router"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/hmac.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/io/http_error.h"
#include "common/text/detok.h"
#include "common/text/stop.h"
#include "proto/api.h"
#include "router/rt_reply.h"
#include "router/rt_shell_int.h"
#include "router/rt_trace.h"

#define CHOICE_TEXT_MAX (32u << 20)
#define EVENT_MAX       (8u << 20)

struct choice {
    struct rt_client *client;
    uint32_t index;
    uint64_t counter; /* in the core; 0: not submitted */
    bool submitted, ended, role_sent;
    bool cancelled; /* the core is, or is about to be, told: once a choice */
    struct td_text_detok detok;
    struct td_text_stop *stop; /* owned */
    struct td_buf piece;       /* characters complete with this token */
    struct td_buf text;        /* ready for the client; all of it when not streaming */
    int32_t *ids;              /* owned; only with return_token_ids: [max_tokens] */
    uint32_t n_ids, n_output, n_prompt;
    enum td_finish finish;
    int64_t first_us, last_us;
};

struct rt_client {
    struct rt_shell *shell; /* borrowed */
    void *x;                /* borrowed: the exchange, or the call; NULL: gone or answered */
    struct rt_client *prev, *next;
    struct td_api_key *key; /* borrowed; one admission is held */
    struct rt_job *job;     /* owned; NULL while it is the worker's */
    bool grpc;              /* x is a call */
    bool chat, at_worker, streaming, starting, failed;
    uint32_t hold; /* frames below us still use the object */
    char request_id[TD_WIRE_MAX_NAME], id[TD_WIRE_MAX_NAME + 16], path[64];
    struct rt_trace trace;
    int64_t created_s, started_us, written_us;
    int64_t ended_us; /* the answer was complete, or the client gone */
    int status;       /* of the answer; 499: gone */
    td_err err;
    struct choice *choices; /* owned */
    uint32_t n_choices, n_live;
    struct rt_reply_usage usage;
    struct td_buf event;
};

/* ---- life ---- */

static void client_free(struct rt_client *c)
{
    struct rt_shell *s = c->shell;
    for (uint32_t i = 0; i < c->n_choices; i++) {
        td_text_stop_destroy(c->choices[i].stop);
        td_buf_fini(&c->choices[i].piece);
        td_buf_fini(&c->choices[i].text);
        free(c->choices[i].ids);
    }
    free(c->choices);
    td_buf_fini(&c->event);
    rt_job_destroy(c->job);
    if (c->prev != NULL) {
        c->prev->next = c->next;
    } else {
        s->clients = c->next;
    }
    if (c->next != NULL) {
        c->next->prev = c->prev;
    }
    s->n_clients--;
    free(c);
}

/* A label for figures: a client's word for a model is one only when we serve it. */
static const char *model_label(const struct rt_client *c)
{
    const char *asked = c->job != NULL ? c->job->api.model : NULL;
    if (asked == NULL) {
        return c->shell->model->names[0];
    }
    return rt_model_serves(c->shell->model, asked) ? asked : "unknown";
}

static void report_trace(const struct rt_client *c, const struct rt_metrics_done *d)
{
    const char *finish[RT_API_MAX_PROMPTS * RT_API_MAX_CHOICES];
    bool parsed = c->job != NULL && c->job->error.err == TD_OK;
    for (uint32_t i = 0; i < c->n_choices; i++) {
        finish[i] = rt_finish_name(c->choices[i].finish);
    }
    struct rt_trace_request t = {.chat = c->chat,
                                 .model = d->model,
                                 .path = c->path,
                                 .response_id = c->id,
                                 .request_id = c->request_id,
                                 .api = parsed ? &c->job->api : NULL,
                                 .sampling = parsed ? &c->job->sampling[0] : NULL,
                                 .start_us = c->started_us,
                                 .end_us = c->ended_us,
                                 .ttft_us = (int64_t)(d->ttft_s * 1e6),
                                 .status = c->status,
                                 .err = c->err,
                                 .finish = finish,
                                 .n_choices = c->n_choices,
                                 .input_tokens = d->n_prompt,
                                 .output_tokens = d->n_output};
    rt_trace_end(&c->shell->p, rt_shell_port(c->shell), &c->trace, &t);
}

/* The whole request's figures, when nothing about it can change any more. */
static void report(const struct rt_client *c)
{
    const struct choice *ch = c->n_choices > 0 ? &c->choices[0] : NULL;
    struct rt_metrics_done d = {.chat = c->chat,
                                .model = model_label(c),
                                .err = c->err,
                                .seconds = (double)(c->ended_us - c->started_us) * 1e-6,
                                .n_prompt = c->usage.prompt_tokens,
                                .n_output = c->usage.completion_tokens};
    if (ch != NULL && ch->n_output > 0) {
        d.ttft_s = (double)(ch->first_us - c->started_us) * 1e-6;
    }
    if (ch != NULL && ch->n_output > 1) {
        d.tpot_s = (double)(ch->last_us - ch->first_us) * 1e-6 / (ch->n_output - 1);
    }
    rt_metrics_request(c->shell->metrics, &d);
    report_trace(c, &d);
}

static void free_if_over(struct rt_client *c)
{
    if (c->x == NULL && !c->at_worker && c->hold == 0 && c->n_live == 0) {
        report(c);
        td_api_key_done(c->key, c->usage.prompt_tokens + c->usage.completion_tokens);
        client_free(c);
    }
}

static void cancel_choice(struct choice *ch, td_err reason)
{
    if (ch->submitted && !ch->ended && !ch->cancelled && ch->counter != 0) {
        ch->cancelled = true;
        rt__shell_cancel(ch->client->shell, ch->counter, reason);
    }
}

/* The cancel of the last live choice may end it before this returns: the object is held meanwhile. */
static void cancel_live(struct rt_client *c, td_err reason)
{
    c->hold++;
    for (uint32_t i = 0; i < c->n_choices; i++) {
        cancel_choice(&c->choices[i], reason);
    }
    c->hold--;
}

static void note_end(struct rt_client *c, int status, td_err err)
{
    c->ended_us = td_now_us();
    c->status = status;
    c->err = err;
    rt_metrics_answer(c->shell->metrics, status, err);
}

static void on_gone(void *arg)
{
    struct rt_client *c = arg;
    c->x = NULL;
    TD_LOG(INFO, "client gone", "req=%s", c->request_id);
    note_end(c, 499, TD_ERR_CANCELLED);
    cancel_live(c, TD_ERR_CANCELLED);
    free_if_over(c);
}

/* The exchange has its answer; the connection lives on without us. */
static void answered(struct rt_client *c, int status, td_err err)
{
    if (c->x == NULL) {
        return; /* gone while the last event was being written: counted as that */
    }
    if (c->grpc) {
        td_grpc_call_on_gone(c->x, NULL, NULL);
    } else {
        td_http_exchange_on_gone(c->x, NULL, NULL);
    }
    c->x = NULL;
    note_end(c, status, err);
}

/* ---- errors ---- */

static td_err write_event(struct rt_client *c)
{
    return c->grpc ? td_grpc_send(c->x, c->event.data, c->event.len)
                   : td_http_stream_write(c->x, c->event.data, c->event.len);
}

static bool send_event(struct rt_client *c)
{
    td_err err = c->x != NULL ? write_event(c) : TD_OK;
    td_buf_clear(&c->event);
    c->written_us = td_now_us();
    return err == TD_OK;
}

/* Ends the stream with what is in c->event. What is not complete, or cannot be written, is cut: a
 * stream left open would look like one that goes on. */
static void end_stream(struct rt_client *c, bool complete, td_err err)
{
    bool sent = complete && send_event(c);
    struct td_http_exchange *x = c->x; /* NULL: gone while it was being written */
    answered(c, 200, err);
    if (x != NULL && sent) {
        td_http_stream_end(x);
    } else if (x != NULL) {
        td_http_stream_abort(x);
    }
}

static void fail_call(struct rt_client *c, td_err err, const char *text)
{
    struct td_grpc_call *call = c->x;
    answered(c, td_err_http(err), err);
    td_grpc_fail(call, err, text, 1);
}

static void fail(struct rt_client *c, td_err err, const char *text, const char *param)
{
    if (c->failed) {
        return;
    }
    c->failed = true;
    if (c->x != NULL && c->grpc) {
        fail_call(c, err, text);
    } else if (c->x != NULL && !c->streaming) {
        struct td_http_header id = {"x-request-id", c->request_id};
        struct td_http_exchange *x = c->x;
        answered(c, td_err_http(err), err);
        td_http_refuse_with(x, err, text, param, 1, &id, 1);
    } else if (c->x != NULL) {
        td_buf_clear(&c->event);
        end_stream(c,
                   rt_reply_error_event(&c->event, err, text) == TD_OK &&
                       rt_reply_done(&c->event) == TD_OK,
                   err);
    }
    cancel_live(c, err);
}

/* ---- the answer ---- */

static struct rt_reply_head head_of(const struct rt_client *c)
{
    const char *model = c->job->api.model != NULL ? c->job->api.model : c->shell->model->names[0];
    return (struct rt_reply_head){
        .chat = c->chat, .id = c->id, .model = model, .created_s = c->created_s};
}

static const struct rt_reply_usage *usage_in_chunk(const struct rt_client *c)
{
    return c->job->api.continuous_usage ? &c->usage : NULL;
}

static void start_stream(struct rt_client *c)
{
    struct td_http_header headers[] = {{"Cache-Control", "no-cache"},
                                       {"X-Accel-Buffering", "no"},
                                       {"x-request-id", c->request_id}};
    if (!c->streaming && c->x != NULL) {
        c->streaming = true;
        td_http_stream_start(c->x, 200, headers, TD_COUNT(headers),
                             "text/event-stream; charset=utf-8");
    }
}

static const char *stop_reason(const struct choice *ch)
{
    int i = td_text_stop_matched(ch->stop);
    return i >= 0 ? ch->client->job->api.stops[i] : NULL;
}

/* One message, also where nothing is ready but the token. */
static td_err delta(struct rt_client *c, struct choice *ch, const int32_t *ids, uint32_t n_ids)
{
    const struct td_api_delta d = {.choice = ch->index,
                                   .text = (const char *)ch->text.data,
                                   .len = ch->text.len,
                                   .ids = ids,
                                   .n_ids = n_ids,
                                   .finish = ch->finish,
                                   .stop_text = stop_reason(ch)};
    return td_api_delta_encode(&c->event, c->id, &d);
}

/* SSE events, or none when there is nothing to say yet. */
static td_err sse(struct rt_client *c, struct choice *ch, const int32_t *ids, uint32_t n_ids)
{
    struct rt_reply_head h = head_of(c);
    td_err err = TD_OK;
    start_stream(c);
    if (!ch->role_sent && c->chat) {
        err = rt_reply_role(&c->event, &h, ch->index, usage_in_chunk(c));
    }
    ch->role_sent = true;
    bool ids_wanted = c->job->api.return_token_ids && n_ids > 0;
    if (err == TD_OK && (ch->text.len > 0 || ch->finish != TD_FINISH_NONE || ids_wanted)) {
        struct rt_reply_choice r = {.index = ch->index,
                                    .text = (const char *)ch->text.data,
                                    .len = ch->text.len,
                                    .finish = ch->finish,
                                    .stop_reason = stop_reason(ch),
                                    .token_ids = ids,
                                    .n_token_ids = n_ids,
                                    .with_token_ids = c->job->api.return_token_ids};
        err = rt_reply_chunk(&c->event, &h, &r, usage_in_chunk(c));
    }
    return err;
}

/* Sends what is ready of this choice, with the finish reason when it has one. */
static void stream_choice(struct rt_client *c, struct choice *ch, const int32_t *ids,
                          uint32_t n_ids)
{
    if (c->x == NULL || c->failed) {
        return;
    }
    td_err err = c->grpc ? delta(c, ch, ids, n_ids) : sse(c, ch, ids, n_ids);
    td_buf_clear(&ch->text);
    if (err != TD_OK) {
        fail(c, err, "out of memory", NULL);
    } else if (c->event.len > 0) {
        (void)send_event(c); /* a slow reader is cut by the server, which calls on_gone */
    }
}

static void finish_call(struct rt_client *c)
{
    const struct td_api_usage u = {.prompt_tokens = c->usage.prompt_tokens,
                                   .completion_tokens = c->usage.completion_tokens,
                                   .cached_tokens = c->usage.cached_tokens};
    td_err err = td_api_usage_encode(&c->event, c->id, &u);
    if (err != TD_OK) {
        fail(c, err, "out of memory", NULL);
        return;
    }
    struct td_grpc_call *call = c->x;
    bool sent = send_event(c); /* else it is reset, and ends like one whose client has gone */
    if (sent) {
        answered(c, 200, TD_OK);
        td_grpc_finish(call, TD_GRPC_OK, NULL, NULL, 0);
    }
}

static void finish_stream(struct rt_client *c)
{
    struct rt_reply_head h = head_of(c);
    if (c->x == NULL) {
        return;
    }
    if (c->grpc) {
        finish_call(c);
        return;
    }
    bool ok = !c->job->api.include_usage || rt_reply_usage_chunk(&c->event, &h, &c->usage) == TD_OK;
    end_stream(c, ok && rt_reply_done(&c->event) == TD_OK, TD_OK);
}

static void finish_whole(struct rt_client *c)
{
    struct rt_reply_head h = head_of(c);
    struct rt_reply_choice *r = td_zalloc(c->n_choices, sizeof *r);
    struct td_buf body;
    td_buf_init(&body, CHOICE_TEXT_MAX * 2);
    td_err err = r != NULL ? TD_OK : TD_ERR_NO_MEMORY;
    for (uint32_t i = 0; err == TD_OK && i < c->n_choices; i++) {
        struct choice *ch = &c->choices[i];
        r[i] = (struct rt_reply_choice){.index = ch->index,
                                        .text = (const char *)ch->text.data,
                                        .len = ch->text.len,
                                        .finish = ch->finish,
                                        .stop_reason = stop_reason(ch),
                                        .token_ids = ch->ids,
                                        .n_token_ids = ch->n_ids,
                                        .with_token_ids = ch->ids != NULL};
    }
    err = err == TD_OK ? rt_reply_whole(&body, &h, r, c->n_choices, &c->usage) : err;
    free(r);
    if (err != TD_OK) {
        fail(c, err, "the answer does not fit into memory", NULL);
    } else {
        struct td_http_header id = {"x-request-id", c->request_id};
        struct td_http_exchange *x = c->x;
        answered(c, 200, TD_OK);
        td_http_respond(x, 200, &id, 1, "application/json", body.data, body.len);
    }
    td_buf_fini(&body);
}

static void finish_answer(struct rt_client *c)
{
    if (c->x == NULL || c->failed) {
        return;
    }
    if (c->job->api.stream) {
        finish_stream(c);
    } else {
        finish_whole(c);
    }
}

/* ---- what the core says ---- */

/* Stop strings are looked for behind the first min_tokens tokens. */
static td_err take_piece(struct choice *ch)
{
    if (ch->n_output > ch->client->job->api.sampling.min_tokens) {
        return td_text_stop_push(ch->stop, ch->piece.data, ch->piece.len, &ch->text);
    }
    return ch->piece.len > 0 ? td_buf_append(&ch->text, ch->piece.data, ch->piece.len) : TD_OK;
}

static td_err take_text(struct choice *ch, const struct rt_action *a)
{
    if (ch->ids != NULL) {
        ch->ids[ch->n_ids++] = a->token;
    }
    /* The token that ended the answer (an end token or a stop id) is not part of its text. */
    if (a->finish != TD_FINISH_STOP) {
        td_buf_clear(&ch->piece);
        TD_TRY(td_text_detok_push(&ch->detok, a->token, &ch->piece));
        TD_TRY(take_piece(ch));
    }
    if (a->finish != TD_FINISH_NONE && td_text_stop_matched(ch->stop) < 0) {
        td_buf_clear(&ch->piece);
        TD_TRY(td_text_detok_flush(&ch->detok, &ch->piece));
        TD_TRY(take_piece(ch));
        TD_TRY(td_text_stop_flush(ch->stop, &ch->text));
    }
    return TD_OK;
}

static void note_time(struct rt_client *c, struct choice *ch)
{
    ch->last_us = td_now_us();
    if (ch->n_output == 0) {
        ch->first_us = ch->last_us;
        rt_metrics_streaming_ttft(c->shell->metrics, c->job->api.stream,
                                  (double)(ch->first_us - c->started_us) * 1e-6);
    }
    ch->n_output++;
    c->usage.completion_tokens++;
}

void rt__client_token(const struct rt_action *a)
{
    struct choice *ch = a->user;
    if (ch == NULL || ch->ended || ch->finish != TD_FINISH_NONE) {
        return;
    }
    struct rt_client *c = ch->client;
    note_time(c, ch);
    if (c->failed || c->x == NULL) {
        return;
    }
    td_err err = take_text(ch, a);
    if (err == TD_ERR_BAD_REQUEST) {
        fail(c, TD_ERR_SEQ_FAILED, "a node sent a token outside of the vocabulary", NULL);
        return;
    }
    if (err != TD_OK) {
        fail(c, err, "the answer does not fit into memory", NULL);
        return;
    }
    ch->finish = a->finish;
    if (td_text_stop_matched(ch->stop) >= 0) {
        ch->finish = TD_FINISH_STOP;
        if (a->finish == TD_FINISH_NONE) {
            cancel_choice(ch, TD_OK);
        }
    }
    if (c->job->api.stream) {
        stream_choice(c, ch, &a->token, 1);
    }
}

static void remember(struct rt_client *c, const struct choice *ch, const struct rt_action *a)
{
    struct rt_history_record r = {.counter = a->counter,
                                  .err = a->err,
                                  .finish = a->err == TD_OK ? ch->finish : a->finish,
                                  .attempts = a->attempts,
                                  .n_prompt = ch->n_prompt,
                                  .n_output = a->n_output,
                                  .wall_us = td_wall_us(),
                                  .started_us = c->started_us,
                                  .decision = a->decision,
                                  .queue_us = a->queue_us,
                                  .total_us = td_now_us() - c->started_us,
                                  .stages = a->stages};
    (void)snprintf(r.request_id, sizeof r.request_id, "%s", c->request_id);
    (void)snprintf(r.prefill, sizeof r.prefill, "%s", a->p_name);
    (void)snprintf(r.decode, sizeof r.decode, "%s", a->d_name);
    if (ch->n_output > 0) {
        r.ttft_us = ch->first_us - c->started_us;
        r.tpot_us = ch->n_output > 1 ? (ch->last_us - ch->first_us) / (ch->n_output - 1) : 0;
    }
    rt_history_add(c->shell->history, &r);
    TD_LOG(INFO, "rt_sse end",
           "req=%s code=%s finish=%s tokens=%u ttft_us=%" PRId64 " total_us=%" PRId64
           " transport=%s",
           c->request_id, td_err_code(a->err), rt_finish_name(r.finish), a->n_output, r.ttft_us,
           r.total_us, a->stages.transport != NULL ? a->stages.transport : "");
}

void rt__client_end(const struct rt_action *a)
{
    struct choice *ch = a->user;
    if (ch == NULL || ch->ended) {
        return;
    }
    struct rt_client *c = ch->client;
    ch->ended = true;
    c->n_live--;
    c->hold++;
    c->usage.cached_tokens += a->stages.cached_tokens;
    remember(c, ch, a);
    rt_trace_choice(c->shell->p.otlp, &c->trace, c->shell->core, a->decision, ch->index);
    if (a->err != TD_OK) {
        ch->finish = a->finish;
        fail(c, a->err, a->text, NULL);
    } else if (ch->finish ==
               TD_FINISH_NONE) { /* the core counted the end where no token carried it */
        ch->finish = a->finish;
        if (c->job->api.stream) {
            stream_choice(c, ch, NULL, 0);
        }
    }
    if (c->n_live == 0 && !c->starting) {
        finish_answer(c);
    }
    c->hold--;
    free_if_over(c);
}

/* ---- the start ---- */

static void make_salt(const struct rt_client *c, uint8_t out[32])
{
    char text[64 + 1 + 256];
    const char *salt = c->job->api.cache_salt != NULL ? c->job->api.cache_salt : "";
    int n = snprintf(text, sizeof text, "%s\n%.256s", c->key->tenant, salt);
    unsigned len = 32;
    memset(out, 0, 32);
    (void)HMAC(EVP_sha256(), c->shell->salt_secret, sizeof c->shell->salt_secret,
               (const uint8_t *)text, (size_t)n, out, &len);
}

static td_err prepare_choice(struct rt_client *c, uint32_t i)
{
    const struct rt_api_request *api = &c->job->api;
    struct choice *ch = &c->choices[i];
    struct td_text_str stops[RT_API_MAX_STOPS];
    uint32_t prompt = i / api->n_choices;
    ch->client = c;
    ch->index = i;
    ch->n_prompt = c->job->n_ids[prompt];
    td_text_detok_init(&ch->detok, c->shell->model->vocab, api->skip_special);
    td_buf_init(&ch->piece, EVENT_MAX);
    td_buf_init(&ch->text, CHOICE_TEXT_MAX);
    for (uint32_t k = 0; k < api->n_stops; k++) {
        stops[k] = (struct td_text_str){.ptr = api->stops[k], .len = strlen(api->stops[k])};
    }
    TD_TRY(td_text_stop_create(stops, api->n_stops, api->include_stop, &ch->stop));
    if (api->return_token_ids) {
        ch->ids = td_zalloc(c->job->sampling[prompt].max_tokens, sizeof *ch->ids);
        return ch->ids != NULL ? TD_OK : TD_ERR_NO_MEMORY;
    }
    return TD_OK;
}

/* The least of ours, the request's and what is left of the client's deadline. */
static int64_t budget_of(const struct rt_client *c)
{
    int64_t budget_us = c->shell->p.budget_us;
    int64_t deadline_us = c->grpc ? td_grpc_call_deadline(c->x) : TD_NEVER;
    if (c->job->api.budget_us > 0 && c->job->api.budget_us < budget_us) {
        budget_us = c->job->api.budget_us;
    }
    if (deadline_us != TD_NEVER && deadline_us - td_now_us() < budget_us) {
        budget_us = deadline_us - td_now_us();
    }
    return budget_us > 0 ? budget_us : 1;
}

static void submit_choice(struct rt_client *c, uint32_t i)
{
    const struct rt_api_request *api = &c->job->api;
    struct choice *ch = &c->choices[i];
    uint32_t prompt = i / api->n_choices;
    int32_t priority =
        api->priority > c->key->priority_ceiling ? api->priority : c->key->priority_ceiling;
    struct rt_submit sub = {.prompt = c->job->ids[prompt],
                            .n_prompt = c->job->n_ids[prompt],
                            .sampling = c->job->sampling[prompt],
                            .priority = td_api_keys_open(c->shell->keys) ? api->priority : priority,
                            .budget_us = budget_of(c),
                            .tenant = c->key->tenant,
                            .traceparent = c->trace.traceparent,
                            .tracestate = c->trace.state,
                            .request_id = c->request_id,
                            .user = ch};
    sub.sampling.choice = i % api->n_choices;
    make_salt(c, sub.cache_salt);
    td_rng_fill(sub.nonce, sizeof sub.nonce);
    ch->submitted = true;
    c->n_live++;
    c->usage.prompt_tokens += i % api->n_choices == 0 ? ch->n_prompt : 0;
    struct rt_event ev = {.type = RT_EV_SUBMIT, .submit = &sub};
    rt__shell_event(c->shell, &ev, &ch->counter);
}

static void start_choices(struct rt_client *c)
{
    uint32_t n = c->job->n_prompts * c->job->api.n_choices;
    c->choices = td_zalloc(n, sizeof *c->choices);
    if (c->choices == NULL) {
        fail(c, TD_ERR_NO_MEMORY, "out of memory", NULL);
        return;
    }
    c->n_choices = n;
    for (uint32_t i = 0; i < n; i++) {
        td_err err = prepare_choice(c, i);
        if (err != TD_OK) {
            fail(c, err, "the stop strings are not usable", "stop");
            return;
        }
    }
    for (uint32_t i = 0; i < n && !c->failed && c->x != NULL; i++) {
        submit_choice(c, i);
    }
    if (c->n_live == 0) {
        finish_answer(c);
    }
}

static bool clean_id(const char *id)
{
    size_t n = id != NULL ? strlen(id) : 0;
    return n > 0 && n < 100 &&
           strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/") == n;
}

static void set_id(struct rt_client *c, const char *id)
{
    (void)snprintf(c->request_id, sizeof c->request_id, "%s", id);
    (void)snprintf(c->id, sizeof c->id, "%s-%s", c->chat ? "chatcmpl" : "cmpl", id);
}

void rt__client_job_done(void *arg, struct rt_job *job)
{
    (void)arg;
    struct rt_client *c = job->user;
    c->job = job;
    c->at_worker = false;
    c->hold++;
    c->starting = true;
    if (c->x != NULL && job->error.err != TD_OK) {
        fail(c, job->error.err, job->error.text, job->error.param);
    } else if (c->x != NULL) {
        c->chat = job->chat;
        if (clean_id(job->api.request_id) &&
            c->grpc) { /* an echo in logs; the identity stays ours */
            (void)snprintf(c->request_id, sizeof c->request_id, "%s", job->api.request_id);
        } else if (clean_id(job->api.request_id)) {
            set_id(c, job->api.request_id);
        }
        start_choices(c);
    }
    c->starting = false;
    c->hold--;
    free_if_over(c);
}

void rt__request_id(struct rt_shell *s, const struct td_http_request *r, char out[TD_WIRE_MAX_NAME])
{
    const char *given = td_http_header_get(r, "x-request-id");
    if (clean_id(given)) {
        (void)snprintf(out, TD_WIRE_MAX_NAME, "%s", given);
    } else {
        (void)snprintf(out, TD_WIRE_MAX_NAME, "%016" PRIx64 "-%" PRIu64, s->epoch, s->next_id++);
    }
}

static void note_trace(struct rt_client *c, const struct td_http_request *r)
{
    rt_trace_begin(&c->shell->p, r, &c->trace);
    (void)snprintf(c->path, sizeof c->path, "%.63s", r->path);
}

td_err rt__client_admit(struct rt_shell *s, struct td_api_key *key, double *out_retry_s)
{
    if (s->draining) {
        *out_retry_s = 5;
        return TD_ERR_DRAINING;
    }
    td_err err =
        TD_FAULT(RT_ADMIT) ? TD_ERR_OVERLOADED : td_api_key_admit(key, td_now_us(), out_retry_s);
    if (err != TD_OK) {
        TD_LOG(INFO, "rt_admit refused", "key=%s err=%s", key->id, td_err_code(err));
    }
    return err;
}

/* NULL: out of memory, and nothing has been taken. */
static struct rt_client *client_new(struct rt_shell *s, bool chat, const void *body, size_t len)
{
    struct rt_client *c = td_zalloc(1, sizeof *c);
    struct rt_job *job =
        c != NULL ? rt_job_create(chat, body, len, td_wall_us() / 1000000, c) : NULL;
    if (job == NULL) {
        free(c);
        return NULL;
    }
    c->shell = s;
    c->job = job;
    c->chat = chat;
    c->created_s = td_wall_us() / 1000000;
    c->started_us = c->written_us = td_now_us();
    td_buf_init(&c->event, EVENT_MAX);
    c->next = s->clients;
    if (s->clients != NULL) {
        s->clients->prev = c;
    }
    s->clients = c;
    s->n_clients++;
    return c;
}

static void to_worker(struct rt_client *c)
{
    struct rt_job *job = c->job;
    td_err err = rt_worker_submit(c->shell->worker, job);
    c->at_worker = err == TD_OK;
    c->job = err == TD_OK ? NULL : job;
    if (err != TD_OK) {
        fail(c, err, "too many requests are being parsed", NULL);
        free_if_over(c);
    }
}

void rt__client_start(struct rt_shell *s, struct td_http_exchange *x, bool chat,
                      struct td_api_key *key, const char *request_id)
{
    const struct td_http_request *r = td_http_exchange_request(x);
    struct rt_client *c = client_new(s, chat, r->body, r->body_len);
    if (c == NULL) {
        td_api_key_done(key, 0);
        td_http_refuse(x, TD_ERR_NO_MEMORY, "out of memory", NULL, 1);
        return;
    }
    c->x = x;
    c->key = key;
    set_id(c, request_id);
    note_trace(c, r);
    char trace[33];
    TD_LOG(INFO, "rt_http", "req=%s trace=%s peer=%s path=%s bytes=%zu key=%s", c->request_id,
           rt_trace_id(&c->trace, trace), td_http_exchange_peer(x), r->path, r->body_len, key->id);
    td_http_exchange_on_gone(x, on_gone, c);
    to_worker(c);
}

void rt__client_start_call(struct rt_shell *s, struct td_grpc_call *call, struct td_api_key *key,
                           const uint8_t *message, size_t len)
{
    const struct td_http_request *r = td_grpc_call_request(call);
    struct rt_client *c = client_new(s, false, message, len);
    if (c == NULL) {
        td_api_key_done(key, 0);
        td_grpc_fail(call, TD_ERR_NO_MEMORY, NULL, 1);
        return;
    }
    c->x = call;
    c->grpc = true;
    c->key = key;
    c->job->what = RT_JOB_GENERATE;
    (void)snprintf(c->request_id, sizeof c->request_id, "%s", td_grpc_call_request_id(call));
    (void)snprintf(c->id, sizeof c->id, "gen-%016" PRIx64 "-%" PRIu64, s->epoch, s->next_id++);
    note_trace(c, r);
    char trace[33];
    TD_LOG(INFO, "rt_grpc", "req=%s trace=%s id=%s peer=%s bytes=%zu key=%s", c->request_id,
           rt_trace_id(&c->trace, trace), c->id, td_grpc_call_peer(call), len, key->id);
    td_grpc_call_on_gone(call, on_gone, c);
    to_worker(c);
}

bool rt__client_cancel(struct rt_shell *s, const char *id, const struct td_api_key *key)
{
    struct rt_client *c = s->clients;
    while (c != NULL && (c->x == NULL || !c->grpc || strcmp(c->id, id) != 0 ||
                         strcmp(c->key->tenant, key->tenant) != 0)) {
        c = c->next;
    }
    if (c == NULL) {
        return false;
    }
    c->hold++;
    fail(c, TD_ERR_CANCELLED, "cancelled by a call", NULL);
    c->hold--;
    free_if_over(c);
    return true;
}

static void ping(struct rt_client *c, int64_t now_us)
{
    bool wants = c->x != NULL && !c->grpc && !c->at_worker && !c->failed && c->job != NULL &&
                 c->job->api.stream;
    if (wants && now_us - c->written_us >= c->shell->p.ping_us) {
        start_stream(c);
        if (td_buf_puts(&c->event, ": ping\n\n") == TD_OK) {
            (void)send_event(c);
        }
    }
}

/* Each is held one turn ahead: a client lost while it is written to may end others. */
void rt__clients_sweep(struct rt_shell *s, int64_t now_us)
{
    struct rt_client *c = s->p.ping_us > 0 ? s->clients : NULL;
    if (c != NULL) {
        c->hold++;
    }
    while (c != NULL) {
        ping(c, now_us);
        struct rt_client *next = c->next;
        if (next != NULL) {
            next->hold++;
        }
        c->hold--;
        free_if_over(c);
        c = next;
    }
}

void rt__clients_fail(struct rt_shell *s, td_err err, const char *text)
{
    struct rt_client *c = s->clients;
    while (c != NULL) {
        if (c->x == NULL) {
            c = c->next;
            continue;
        }
        c->hold++;
        fail(c, err, text, NULL);
        c->hold--;
        free_if_over(c);
        c = s->clients; /* from the start: others may have ended on the way */
    }
}

void rt__clients_destroy(struct rt_shell *s)
{
    while (s->clients != NULL) {
        client_free(s->clients);
    }
}
