/* The router's figures as Prometheus reads them, from a router that has served one request. */
#include "router/rt_metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "router/rt_shell_int.h"
#include "tests/unit/router/rt_rig.h"

#define CHAT "/v1/chat/completions"
#define HI   "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static struct td_buf page;

static void scrape(struct rig *r)
{
    td_buf_clear(&page);
    assert_int_equal(rt_metrics_write(r->shell->metrics, &page), TD_OK);
    assert_int_equal(td_buf_append(&page, "", 1), TD_OK);
}

/* The value of the first sample whose line starts with `head`; -1 when there is none. */
static double value(const char *head)
{
    for (const char *line = (const char *)page.data; line != NULL; line = strchr(line, '\n')) {
        line += line[0] == '\n' ? 1 : 0;
        if (strncmp(line, head, strlen(head)) == 0) {
            const char *space = strchr(line, '\n');
            for (; space != NULL && *space != ' '; space--) {
            }
            return space != NULL ? strtod(space, NULL) : -1;
        }
    }
    return -1;
}

static int setup(void **state)
{
    td_buf_init(&page, 8u << 20);
    return rig_setup(state);
}

static int teardown(void **state)
{
    td_buf_fini(&page);
    return rig_teardown(state);
}

static void one_request_moves_every_figure_of_success(void **state)
{
    struct rig *r = *state;
    struct rig_client c = {0};
    static const char *const names[] = {
        "tandem_router_ready_nodes{",
        "tandem_router_requests_total{",
        "tandem_router_admissions_total{",
        "tandem_router_disagg_decisions_total{",
        "tandem_router_scheduler_attempts_total{",
        "tandem_router_request_seconds_count{",
        "tandem_router_time_to_first_token_seconds_count{",
        "tandem_router_inter_token_latency_seconds_count{",
        "tandem_router_prompt_tokens_count{",
        "tandem_router_output_tokens_count{",
        "tandem_router_queue_seconds_count{",
        "tandem_router_predictor_error_seconds_count{",
        "tandem_router_connections{",
        "tandem_router_uptime_seconds{",
    };
    rig_start(r);
    rig_post(r, &c, CHAT, "{" HI ",\"stream\":true}", "");
    struct rig_work *w = rig_work(r, 0);
    scrape(r);
    assert_true(value("tandem_router_running_requests{") == 1);
    assert_true(value("tandem_router_queued_requests{") == 0);
    assert_true(value("tandem_router_node_inflight_requests{") == 1);
    rig_say(r, w, "abc");
    rig_finish(r, w);
    assert_int_equal(rig_answer(r, &c), 200);
    rig_passes(r, 5);
    scrape(r);
    for (size_t i = 0; i < TD_COUNT(names); i++) {
        if (!(value(names[i]) > 0)) {
            fail_msg("%s: %g", names[i], value(names[i]));
        }
    }
    assert_non_null(strstr((const char *)page.data, "code=\"200\""));
    assert_non_null(strstr((const char *)page.data, "decision=\"decode-only\""));
    assert_non_null(strstr((const char *)page.data, "outcome=\"dispatched\""));
    assert_non_null(strstr((const char *)page.data, "streaming=\"true\""));
    assert_non_null(strstr((const char *)page.data, "model_name=\"tiny\""));
    assert_true(value("tandem_router_output_tokens_sum{") == 4);
    assert_true(value("tandem_router_running_requests{") == 0);
    rig_hang_up(&c);
}

static void every_observation_of_the_core_has_a_name(void **state)
{
    struct rig *r = *state;
    static const struct {
        enum rt_metric what;
        double v;
        const char *line;
    } rows[] = {
        {RT_M_ADMITTED, 1, "outcome=\"dispatched\"} 1"},
        {RT_M_REFUSED, TD_ERR_OVERLOADED, "outcome=\"rejected_capacity\"} 1"},
        {RT_M_REFUSED, TD_ERR_CONTEXT_LENGTH, "outcome=\"rejected_capacity\"} 2"},
        {RT_M_REFUSED, TD_ERR_NO_NODE, "outcome=\"rejected_no_node\"} 1"},
        {RT_M_REFUSED, TD_ERR_BUDGET, "outcome=\"expired\"} 1"},
        {RT_M_REFUSED, TD_ERR_CANCELLED, "outcome=\"cancelled\"} 1"},
        {RT_M_DECISION, 1, "decision=\"prefill-decode\"} 1"},
        {RT_M_QUEUE_US, 2e6, "tandem_router_queue_seconds_sum{model_name=\"tiny\"} 2"},
        {RT_M_ITL_US, 3e6, "tandem_router_inter_token_latency_seconds_sum{model_name=\"tiny\"} 3"},
        {RT_M_REQUEST_US, 4e6, "tandem_router_request_seconds_sum{model_name=\"tiny\"} 4"},
        {RT_M_TTFT_ERROR_US, 5e6,
         "tandem_router_predictor_error_seconds_sum{model_name=\"tiny\"} 5"},
        {RT_M_RETRY, TD_ERR_PEER_LOST, "reason=\"node_lost\"} 1"},
        {RT_M_STALE_TOKEN, 1, "tandem_router_stale_tokens_total{model_name=\"tiny\"} 1"},
        {RT_M_PROMPT_TOKENS, 6, "tandem_router_prompt_tokens_sum{model_name=\"tiny\"} 6"},
        {RT_M_OUTPUT_TOKENS, 7, "tandem_router_output_tokens_sum{model_name=\"tiny\"} 7"},
        {RT_M_TTFT_US, 1, "tandem_router_uptime_seconds"}, /* measured elsewhere: no change */
    };
    rig_start(r);
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        rt_metrics_observe(r->shell->metrics, rows[i].what, rows[i].v);
        scrape(r);
        if (strstr((const char *)page.data, rows[i].line) == NULL) {
            fail_msg("no line with %s in\n%s", rows[i].line, (const char *)page.data);
        }
    }
    rt_metrics_answer(r->shell->metrics, 429, TD_ERR_RATE_LIMITED);
    rt_metrics_streaming_ttft(r->shell->metrics, false, 0.5);
    scrape(r);
    assert_non_null(strstr((const char *)page.data, "code=\"429\"} 1"));
    assert_non_null(strstr((const char *)page.data, "error_code=\"rate_limited\"} 1"));
    assert_non_null(strstr((const char *)page.data, "streaming=\"false\"} 0.5"));
}

static void creation_survives_failing_allocations(void **state)
{
    struct rig *r = *state;
    struct rt_metrics *m = NULL;
    td_err err = TD_ERR_NO_MEMORY;
    rig_start(r);
    for (unsigned n = 1; err != TD_OK && n < 1000; n++) {
        td_mem_fail_nth(n);
        err = rt_metrics_create(r->shell, &m);
        td_mem_fail_nth(0);
    }
    assert_int_equal(err, TD_OK);
    assert_null(rt_metrics_destroy(m));
    assert_null(rt_metrics_destroy(NULL));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(one_request_moves_every_figure_of_success),
        TEST(every_observation_of_the_core_has_a_name),
        TEST(creation_survives_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
