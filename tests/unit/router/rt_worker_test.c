#include "router/rt_worker.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "tests/unit/router/rt_rig.h"

#define GOOD "{\"prompt\":[\"one\",\"two\"]}"

struct seen {
    struct rt_job *jobs[RT_WORKER_MAX_JOBS + 1];
    uint32_t n, want;
};

static struct seen seen;

static void on_done(void *arg, struct rt_job *job)
{
    struct seen *s = arg;
    s->jobs[s->n++] = job;
}

static bool all_seen(void *arg)
{
    const struct seen *s = arg;
    return s->n >= s->want;
}

static struct rt_job *job(const char *body, void *user)
{
    struct rt_job *j = rt_job_create(false, body, strlen(body), 0, user);
    assert_non_null(j);
    return j;
}

static int setup(void **state)
{
    memset(&seen, 0, sizeof seen);
    return rig_setup(state);
}

static void drop_seen(void)
{
    for (uint32_t i = 0; i < seen.n; i++) {
        rt_job_destroy(seen.jobs[i]);
    }
    seen.n = 0;
}

static void a_job_comes_back_parsed_and_tokenised_on_the_loop(void **state)
{
    struct rig *r = *state;
    struct rt_worker *w = NULL;
    int mark = 0;
    assert_int_equal(rt_worker_create(r->loop, r->model, on_done, &seen, &w), TD_OK);
    assert_int_equal(rt_worker_submit(w, job(GOOD, &mark)), TD_OK);
    seen.want = 1;
    rig_until(r, all_seen, &seen, "the job");
    struct rt_job *j = seen.jobs[0];
    assert_ptr_equal(j->user, &mark);
    assert_int_equal(j->error.err, TD_OK);
    assert_int_equal(j->n_prompts, 2);
    assert_true(j->n_ids[0] > 0 && j->n_ids[1] > 0 && j->ids[1] != NULL);
    assert_int_equal(j->sampling[1].max_tokens, 16);
    drop_seen();
    assert_null(rt_worker_destroy(w));
}

static void a_bad_job_comes_back_with_its_error(void **state)
{
    struct rig *r = *state;
    struct rt_worker *w = NULL;
    static const struct {
        const char *body;
        td_err err;
        const char *param;
    } rows[] = {
        {"{", TD_ERR_BAD_REQUEST, ""},
        {"{\"prompt\":\"x\",\"n\":0}", TD_ERR_BAD_REQUEST, "n"},
        {"{\"prompt\":\"x\",\"model\":\"y\"}", TD_ERR_MODEL_NOT_FOUND, "model"},
        {"{\"prompt\":[\"x\",[123456]]}", TD_ERR_BAD_REQUEST, "prompt"},
        {"{\"prompt\":\"x\",\"max_tokens\":99999}", TD_ERR_CONTEXT_LENGTH, "max_tokens"},
    };
    assert_int_equal(rt_worker_create(r->loop, r->model, on_done, &seen, &w), TD_OK);
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        assert_int_equal(rt_worker_submit(w, job(rows[i].body, NULL)), TD_OK);
    }
    seen.want = TD_COUNT(rows);
    rig_until(r, all_seen, &seen, "the jobs");
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        assert_int_equal(seen.jobs[i]->error.err, rows[i].err);
        assert_string_equal(seen.jobs[i]->error.param, rows[i].param);
        assert_true(seen.jobs[i]->error.text[0] != 0);
    }
    drop_seen();
    rt_worker_destroy(w);
}

static void jobs_come_back_in_order_and_the_ring_is_bounded(void **state)
{
    struct rig *r = *state;
    struct rt_worker *w = NULL;
    assert_int_equal(rt_worker_create(r->loop, r->model, on_done, &seen, &w), TD_OK);
    for (uintptr_t i = 0; i < RT_WORKER_MAX_JOBS; i++) {
        assert_int_equal(rt_worker_submit(w, job("{\"prompt\":[1]}", (void *)(i + 1))), TD_OK);
    }
    struct rt_job *more = job("{\"prompt\":[1]}", NULL);
    assert_int_equal(rt_worker_submit(w, more), TD_ERR_OVERLOADED); /* still the caller's */
    rt_job_destroy(more);
    seen.want = RT_WORKER_MAX_JOBS;
    rig_until(r, all_seen, &seen, "the jobs");
    for (uintptr_t i = 0; i < seen.n; i++) {
        assert_int_equal((uintptr_t)seen.jobs[i]->user, i + 1);
    }
    drop_seen();
    assert_int_equal(rt_worker_submit(w, job("{\"prompt\":[1]}", NULL)), TD_OK);
    rt_worker_destroy(w);
}

static void destruction_drops_the_rest_at_any_time(void **state)
{
    struct rig *r = *state;
    for (int i = 0; i < 50; i++) {
        struct rt_worker *w = NULL;
        assert_int_equal(rt_worker_create(r->loop, r->model, on_done, &seen, &w), TD_OK);
        for (int k = 0; k < i; k++) {
            assert_int_equal(rt_worker_submit(w, job(GOOD, NULL)), TD_OK);
        }
        rt_worker_destroy(w);
        assert_int_equal(seen.n, 0); /* nothing is called back after it */
    }
    assert_null(rt_worker_destroy(NULL));
    assert_null(rt_job_destroy(NULL));
}

static void failing_allocations_are_errors_without_leaks(void **state)
{
    struct rig *r = *state;
    struct rt_worker *w = NULL;
    td_err err = TD_ERR_NO_MEMORY;
    td_log_set_fd(-1);
    for (unsigned n = 1; n < 3; n++) {
        td_mem_fail_nth(n);
        assert_null(rt_job_create(true, "x", 1, 0, NULL));
        td_mem_fail_nth(0);
    }
    for (unsigned n = 1; err != TD_OK && n < 200; n++) {
        td_mem_fail_nth(n);
        err = rt_worker_create(r->loop, r->model, on_done, &seen, &w);
        td_mem_fail_nth(0);
    }
    assert_int_equal(err, TD_OK);
    rt_worker_destroy(w);
    td_log_set_fd(2);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_job_comes_back_parsed_and_tokenised_on_the_loop),
        TEST(a_bad_job_comes_back_with_its_error),
        TEST(jobs_come_back_in_order_and_the_ring_is_bounded),
        TEST(destruction_drops_the_rest_at_any_time),
        TEST(failing_allocations_are_errors_without_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
