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

struct rt_worker {
    const struct rt_model *model;  /* borrowed */
    struct td_text_tokenizer *tok; /* owned; the worker thread's */
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
    return j;
}

struct rt_job *rt_job_destroy(struct rt_job *j)
{
    if (j != NULL) {
        for (uint32_t i = 0; i < RT_API_MAX_PROMPTS; i++) {
            free(j->ids[i]);
        }
        rt_api_request_fini(&j->api);
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

static void work(struct rt_worker *w, struct rt_job *j)
{
    td_err err = rt_api_parse(j->chat, j->body, j->body_len, &j->api, &j->error);
    free(j->body); /* a job lives as long as its request; nothing points into the text */
    j->body = NULL;
    j->body_len = 0;
    if (err != TD_OK) {
        return;
    }
    if (!rt_model_serves(w->model, j->api.model)) {
        j->error.err = TD_ERR_MODEL_NOT_FOUND;
        (void)snprintf(j->error.text, sizeof j->error.text, "The model `%.100s` does not exist",
                       j->api.model);
        (void)snprintf(j->error.param, sizeof j->error.param, "model");
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
        w->done(w->arg, j);
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
    td_err err = td_text_tokenizer_create(model->vocab, &w->tok);
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
        rt_job_destroy(j);
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
