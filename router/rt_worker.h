/* rt_worker.h - one thread beside the loop for what may take long: parsing, rendering, tokenising a
 * request.
 *
 * What: jobs go in and come back done, in order, through two bounded rings; the loop is woken when
 * one is ready. Not: a pool. Owner: router shell; a job belongs to the worker from submit until
 * `done` is called with it on the loop. Thread: submit and done on the loop; the work itself on the
 * worker's. Bounds: RT_WORKER_MAX_JOBS. Failure: TD_ERR_OVERLOADED when the ring is full.
 */
#ifndef ROUTER_RT_WORKER_H
#define ROUTER_RT_WORKER_H

#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/io/loop.h"
#include "router/rt_api.h"
#include "router/rt_model.h"

#define RT_WORKER_MAX_JOBS 1024

enum rt_job_what {
    RT_JOB_HTTP,       /* an OpenAI body */
    RT_JOB_GENERATE,   /* the others: messages of tandem.v1 */
    RT_JOB_TOKENIZE,   /* only ids[0] */
    RT_JOB_DETOKENIZE, /* only text */
};

struct rt_job {
    /* in */
    enum rt_job_what what;
    bool chat; /* RT_JOB_GENERATE: set when parsed */
    void (*done)(
        struct rt_job
            *job); /* instead of the worker's, also for a job dropped at the end; NULL: that one */
    uint8_t *body; /* owned: copied from the client's request; NULL once parsed */
    size_t body_len;
    int64_t now_s;
    void *user;
    /* out */
    struct rt_api_request api;
    struct rt_api_error error;        /* err TD_OK: all of the below are set */
    int32_t *ids[RT_API_MAX_PROMPTS]; /* owned, one for each prompt */
    uint32_t n_ids[RT_API_MAX_PROMPTS];
    struct td_sampling_params sampling[RT_API_MAX_PROMPTS];
    uint32_t n_prompts;
    struct td_buf text; /* owned */
};

/* A job with a copy of the body; NULL when out of memory. */
struct rt_job *rt_job_create(bool chat, const void *body, size_t len, int64_t now_s, void *user);
struct rt_job *rt_job_destroy(struct rt_job *j);

struct rt_worker;
td_err rt_worker_create(struct td_loop *loop, const struct rt_model *model,
                        void (*done)(void *arg, struct rt_job *job), void *arg,
                        struct rt_worker **out_worker) TD_MUST_CHECK;
/* Finishes the job in progress, drops the rest. */
struct rt_worker *rt_worker_destroy(struct rt_worker *w);
td_err rt_worker_submit(struct rt_worker *w, struct rt_job *job) TD_MUST_CHECK;

#endif
