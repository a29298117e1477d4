#define TD_LOG_ROOM "router"
#include "router/rt_worker.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/ring.h"
#include "common/text/detok.h"
#include "proto/api.h"

#define ARENA_BYTES (128u << 20)
#define TEXT_MAX    (32u << 20)

struct rt_worker {
    const struct rt_model *model;  /* borrowed */
    struct td_text_tokenizer *tok; /* owned; the worker thread's */
    struct td_arena *arena;        /* owned; the worker thread's: messages being decoded */
    struct td_ring *in, *out;      /* owned; records are struct rt_job * */
    struct td_watch *watch;        /* owned; on out's fd */
    void (*done)(void *arg, struct rt_job *job);
    void *arg;
    pthread_t thread;
    bool started;
    atomic_bool stop;
    uint32_t queued; /* jobs submitted and not given back: keeps `out` from ever being full */
};

struct rt_job *rt_job_create(bool chat, const void *body, size_t len, int64_t now_s, void *user)
{
    struct rt_job *j = td_zalloc(1, sizeof *j);
    uint8_t *copy = td_zalloc(len + 1, 1);
    if (j == NULL || copy == NULL) {
        free(j);
        free(copy);
        return NULL;
    }
    if (len > 0) {
        memcpy(copy, body, len);
    }
    j->chat = chat;
    j->body = copy;
    j->body_len = len;
    j->now_s = now_s;
    j->user = user;
    td_buf_init(&j->text, TEXT_MAX);
    return j;
}

struct rt_job *rt_job_destroy(struct rt_job *j)
{
    if (j != NULL) {
        for (uint32_t i = 0; i < RT_API_MAX_PROMPTS; i++) {
            free(j->ids[i]);
        }
        rt_api_request_fini(&j->api);
        td_buf_fini(&j->text);
        free(j->body);
        free(j);
    }
    return NULL;
}

static td_err work_prompt(struct rt_worker *w, struct rt_job *j, uint32_t i)
{
    const struct rt_model_prompt prompt = {.request = &j->api, .index = i, .now_s = j->now_s};
    TD_TRY(rt_model_encode(w->model, w->tok, &prompt, &j->ids[i], &j->n_ids[i], &j->error));
    return rt_model_limit(w->model, &j->api, j->n_ids[i], &j->sampling[i], &j->error);
}

static td_err refuse_job(struct rt_job *j, td_err err, const char *param, const char *text)
{
    j->error.err = err;
    (void)snprintf(j->error.text, sizeof j->error.text, "%s", text);
    (void)snprintf(j->error.param, sizeof j->error.param, "%s", param);
    return err;
}

static td_err check_model(struct rt_worker *w, struct rt_job *j, const char *name)
{
    char text[160];
    if (rt_model_serves(w->model, name)) {
        return TD_OK;
    }
    (void)snprintf(text, sizeof text, "The model `%.100s` does not exist", name);
    return refuse_job(j, TD_ERR_MODEL_NOT_FOUND, "model", text);
}

static td_err detokenize(struct rt_worker *w, struct rt_job *j)
{
    struct td_api_detokenize d;
    struct td_text_detok detok;
    td_err err = td_api_detokenize_decode(j->body, j->body_len, w->arena, &d);
    if (err != TD_OK) {
        return refuse_job(j, err, "", "the bytes are not a DetokenizeRequest");
    }
    TD_TRY(check_model(w, j, d.model[0] != 0 ? d.model : NULL));
    td_text_detok_init(&detok, w->model->vocab, false);
    for (uint32_t i = 0; err == TD_OK && i < d.n_ids; i++) {
        err = td_text_detok_push(&detok, d.ids[i], &j->text);
    }
    err = err == TD_OK ? td_text_detok_flush(&detok, &j->text) : err;
    return err == TD_OK ? TD_OK
                        : refuse_job(j, err, "token_ids",
                                     err == TD_ERR_BAD_REQUEST ? "a token id outside the vocabulary"
                                                               : "the text does not fit");
}

static td_err parse_body(struct rt_worker *w, struct rt_job *j)
{
    switch (j->what) {
    case RT_JOB_GENERATE:
        return rt_api_parse_generate(j->body, j->body_len, w->arena, &j->api, &j->error);
    case RT_JOB_TOKENIZE:
        return rt_api_parse_tokenize(j->body, j->body_len, w->arena, &j->api, &j->error);
    case RT_JOB_HTTP:
    case RT_JOB_DETOKENIZE:
        break;
    }
    return rt_api_parse(j->chat, j->body, j->body_len, &j->api, &j->error);
}

static void drop_body(struct rt_job *j)
{
    free(j->body); /* a job lives as long as its request; nothing points into the text */
    j->body = NULL;
    j->body_len = 0;
}

static void work(struct rt_worker *w, struct rt_job *j)
{
    td_arena_reset(w->arena);
    if (j->what == RT_JOB_DETOKENIZE) {
        TD_IGNORE(detokenize(w, j)); /* the job has the error */
        drop_body(j);
        return;
    }
    td_err err = parse_body(w, j);
    drop_body(j);
    if (err != TD_OK || check_model(w, j, j->api.model) != TD_OK) {
        return;
    }
    j->chat = j->api.chat;
    if (j->what == RT_JOB_TOKENIZE) {
        const struct rt_model_prompt prompt = {.request = &j->api, .now_s = j->now_s};
        TD_IGNORE(rt_model_encode(w->model, w->tok, &prompt, &j->ids[0], &j->n_ids[0], &j->error));
        return;
    }
    j->n_prompts = j->chat ? 1 : j->api.n_prompts;
    for (uint32_t i = 0; i < j->n_prompts; i++) {
        if (work_prompt(w, j, i) != TD_OK) {
            return;
        }
    }
}

static void *worker_main(void *arg)
{
    struct rt_worker *w = arg;
    (void)pthread_setname_np(pthread_self(), "rt-worker");
    /* acquire: pairs with the release store of rt_worker_destroy */
    while (!atomic_load_explicit(&w->stop, memory_order_acquire)) {
        struct pollfd p = {.fd = td_ring_fd(w->in), .events = POLLIN};
        (void)poll(&p, 1, 1000);
        td_ring_ack(w->in);
        struct rt_job *j = NULL;
        while (!atomic_load_explicit(&w->stop, memory_order_acquire) && td_ring_pop(w->in, &j)) {
            if (j == NULL) {
                break; /* rt_worker_destroy's, between the two looks */
            }
            work(w, j);
            TD_IGNORE(td_ring_push(w->out, &j)); /* never full: `queued` is at most its capacity */
        }
    }
    return NULL;
}

static void on_out(void *arg, unsigned ready)
{
    (void)ready;
    struct rt_worker *w = arg;
    struct rt_job *j = NULL;
    td_ring_ack(w->out);
    while (td_ring_pop(w->out, &j)) {
        w->queued--;
        if (j->done != NULL) {
            j->done(j);
        } else {
            w->done(w->arg, j);
        }
    }
}

td_err rt_worker_create(struct td_loop *loop, const struct rt_model *model,
                        void (*done)(void *arg, struct rt_job *job), void *arg,
                        struct rt_worker **out_worker)
{
    struct rt_worker *w = td_zalloc(1, sizeof *w);
    if (w == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    w->model = model;
    w->done = done;
    w->arg = arg;
    w->arena = td_arena_create(ARENA_BYTES);
    td_err err =
        w->arena != NULL ? td_text_tokenizer_create(model->vocab, &w->tok) : TD_ERR_NO_MEMORY;
    err = err == TD_OK ? td_ring_create(RT_WORKER_MAX_JOBS, sizeof(struct rt_job *), true, &w->in)
                       : err;
    err = err == TD_OK ? td_ring_create(RT_WORKER_MAX_JOBS, sizeof(struct rt_job *), true, &w->out)
                       : err;
    err = err == TD_OK ? td_watch_create(loop, "rt-worker", td_ring_fd(w->out), TD_WATCH_READ,
                                         on_out, w, &w->watch)
                       : err;
    if (err == TD_OK) {
        w->started = pthread_create(&w->thread, NULL, worker_main, w) == 0;
        err = w->started ? TD_OK : TD_ERR_NO_MEMORY;
    }
    if (err != TD_OK) {
        TD_LOG(ERROR, "cannot start the tokenising thread", "err=%s", td_err_code(err));
        rt_worker_destroy(w);
        return err;
    }
    *out_worker = w;
    return TD_OK;
}

static void drop_all(struct td_ring *r)
{
    struct rt_job *j = NULL;
    while (r != NULL && td_ring_pop(r, &j)) {
        if (j != NULL && j->done != NULL) {
            j->done(j);
        } else {
            rt_job_destroy(j);
        }
    }
}

struct rt_worker *rt_worker_destroy(struct rt_worker *w)
{
    if (w == NULL) {
        return NULL;
    }
    if (w->started) {
        /* release: the worker sees everything the loop did before */
        atomic_store_explicit(&w->stop, true, memory_order_release);
        struct rt_job *none = NULL;
        TD_IGNORE(td_ring_push(w->in, &none)); /* wakes it; when full it is awake anyway */
        (void)pthread_join(w->thread, NULL);
    }
    td_watch_destroy(w->watch);
    drop_all(w->in);
    drop_all(w->out);
    td_ring_destroy(w->in);
    td_ring_destroy(w->out);
    td_text_tokenizer_destroy(w->tok);
    td_arena_destroy(w->arena);
    free(w);
    return NULL;
}

td_err rt_worker_submit(struct rt_worker *w, struct rt_job *job)
{
    if (w->queued == RT_WORKER_MAX_JOBS) {
        return TD_ERR_OVERLOADED;
    }
    TD_TRY(td_ring_push(w->in, &job));
    w->queued++;
    return TD_OK;
}
