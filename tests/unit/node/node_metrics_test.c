/* A node's figures as Prometheus reads them. */
#include "common/node/node_metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/node/node_int.h"
#include "tests/unit/node/shell_rig.h"

static struct td_buf page;

static int setup(void **state)
{
    td_buf_init(&page, 8u << 20);
    return shell_setup(state);
}

static int teardown(void **state)
{
    td_buf_fini(&page);
    return shell_teardown(state);
}

static void scrape(struct shell_rig *r)
{
    td_buf_clear(&page);
    assert_int_equal(nd_metrics_write(r->node->metrics, &page), TD_OK);
    assert_int_equal(td_buf_append(&page, "", 1), TD_OK);
}

/* The sum of all samples of this name that carry `label` ("" for any); -1 when there is none. */
static double value(const char *name, const char *label)
{
    double sum = -1;
    for (const char *line = (const char *)page.data; line != NULL; line = strchr(line, '\n')) {
        line += line[0] == '\n' ? 1 : 0;
        size_t n = strlen(name);
        const char *end = strchr(line, '\n');
        if (end == NULL || strncmp(line, name, n) != 0 || line[n] != '{') {
            continue;
        }
        const char *at = strstr(line, label), *space = end;
        while (*space != ' ') {
            space--;
        }
        if (at != NULL && at < end) {
            sum = (sum < 0 ? 0 : sum) + strtod(space, NULL);
        }
    }
    return sum;
}

static void every_observation_moves_its_figures(void **state)
{
    struct shell_rig *r = *state;
    static const struct {
        enum nd_metric what;
        double v;
        const char *name, *label;
        double want;
    } rows[] = {
        {ND_M_PREFILL_QUEUE_US, 1e6, "tandem_node_prefill_queue_seconds_sum", "", 1},
        {ND_M_PREFILL_US, 2e6, "vllm:request_prefill_time_seconds_sum", "", 2},
        {ND_M_TRANSFER_US, 5e5, "tandem_node_kv_transfer_seconds_sum", "", 0.5},
        {ND_M_TRANSFER_EXPOSED_US, 3e6, "tandem_node_kv_transfer_exposed_seconds_sum", "", 3},
        {ND_M_TRANSFER_BYTES, 1000, "tandem_node_kv_transfer_bytes_sum", "", 1000},
        {ND_M_TRANSFER_BYTES, 0, "tandem_node_kv_transfer_bytes_per_second", "", 0},
        {ND_M_TRANSFER_FAILED, TD_ERR_PEER_LOST, "tandem_node_kv_transfer_failures_total",
         "reason=\"node_lost\"", 1},
        {ND_M_DECODE_QUEUE_US, 4e6, "tandem_node_decode_queue_seconds_sum", "", 4},
        {ND_M_DECODE_US, 5e6, "vllm:request_decode_time_seconds_sum", "", 5},
        {ND_M_TTFT_US, 6e6, "vllm:time_to_first_token_seconds_sum", "", 6},
        {ND_M_ITL_US, 7e6, "vllm:inter_token_latency_seconds_sum", "", 7},
        {ND_M_PROMPT_TOKENS, 8, "vllm:prompt_tokens_total", "", 8},
        {ND_M_OUTPUT_TOKENS, 9, "vllm:generation_tokens_total", "", 9},
        {ND_M_BATCH_TOKENS, 10, "tandem_node_batch_tokens_sum", "", 10},
        {ND_M_BATCH_TOKENS, 0, "vllm:iteration_tokens_total_sum", "", 10},
        {ND_M_CANCELLED, 0, "tandem_node_cancellations_total", "phase=\"queued\"", 1},
        {ND_M_CANCELLED, 3, "tandem_node_cancellations_total", "phase=\"decode\"", 1},
        {ND_M_FINISHED, TD_FINISH_LENGTH, "tandem_node_finished_total", "reason=\"length\"", 1},
        {ND_M_FINISHED, TD_FINISH_STOP, "vllm:request_success_total", "finished_reason=\"stop\"",
         1},
        {ND_M_REFUSED, TD_ERR_NO_CAPACITY, "tandem_node_refused_total", "code=\"no_capacity\"", 1},
        {ND_M_STALE, 1, "tandem_node_stale_total", "", 1},
    };
    shell_start(r);
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        nd_metrics_observe(r->node->metrics, rows[i].what, rows[i].v);
        scrape(r);
        double got = value(rows[i].name, rows[i].label);
        if (got < rows[i].want - 1e-9 || got > rows[i].want + 1e-9) {
            fail_msg("%s{%s}: %g, want %g", rows[i].name, rows[i].label, got, rows[i].want);
        }
    }
}

static void a_scrape_shows_what_the_node_is_doing(void **state)
{
    struct shell_rig *r = *state;
    fake_role.state.running_requests = 3;
    fake_role.state.queued_requests = 2;
    fake_role.state.queued_prompt_tok = 77;
    fake_role.n_work = 5;
    fake_role.counts = (struct nd_counts){.blocks = 2, .transfer = 1, .pending_tok = 256};
    shell_start(r);
    shell_attach(r, 0);
    shell_reaches(r, &r->routers[0].n_states, 1, "the first state");
    nd_metrics_step(r->node->metrics, 2000000);
    nd_metrics_send_failed(r->node->metrics);
    nd_metrics_request_bytes(r->node->metrics, 100);
    scrape(r);
    assert_true(value("tandem_node_kv_blocks", "state=\"free\"") == 60);
    assert_true(value("tandem_node_kv_blocks", "state=\"running\"") == 4);
    assert_true(value("tandem_node_kv_blocks", "") == 64); /* the states sum to the pool */
    assert_true(value("tandem_node_kv_usage_ratio", "") == 4.0 / 64);
    assert_true(value("tandem_node_queued_prompt_tokens", "") == 77);
    assert_true(value("tandem_node_inflight_requests", "") == 5);
    assert_true(value("tandem_node_routers", "") == 1);
    assert_true(value("tandem_node_uptime_seconds", "") > 0);
    assert_true(value("tandem_node_step_seconds_sum", "") == 2);
    assert_true(value("tandem_node_send_failures_total", "") == 1);
    assert_true(value("tandem_node_request_bytes_total", "") == 100);
    assert_true(value("tandem_node_response_bytes_total", "") > 0);
    assert_true(value("vllm:num_requests_running", "") == 2); /* the third waits for its KV */
    assert_true(value("vllm:num_requests_waiting", "") == 3);
    assert_true(value("vllm:num_requests_waiting_by_reason", "reason=\"capacity\"") == 2);
    assert_true(value("vllm:num_requests_waiting_by_reason", "reason=\"deferred\"") == 1);
    assert_true(value("tandem_node_decode_prealloc_queue_requests", "") == 2);
    assert_true(value("tandem_node_decode_transfer_queue_requests", "") == 1);
    assert_true(value("tandem_node_pending_prealloc_token_ratio", "") == 256.0 / (64 * 16));
    assert_true(value("vllm:cache_config_info", "block_size=\"16\"") == 1);
    assert_true(value("vllm:engine_sleep_state", "sleep_state=\"awake\"") == 1);
    assert_true(value("vllm:engine_sleep_state", "") == 1);
    assert_true(value("tandem_node_uptime_seconds", "model_name=\"tiny\"") > 0);
    assert_true(value("tandem_node_uptime_seconds", "role=\"decode\"") > 0);
    assert_true(value("tandem_node_uptime_seconds", "node=\"d0\"") > 0);
}

static void a_works_end_moves_the_figures_of_its_role(void **state)
{
    struct shell_rig *r = *state;
    struct nd_done p = {.arrived_us = 1000000,
                        .table_us = 1500000,
                        .exec_us = 2000000,
                        .token_us = 4000000,
                        .last_us = 4000000,
                        .ended_us = 6000000,
                        .xfer_first_us = 3000000,
                        .xfer_last_us = 5000000,
                        .record_us = 5000000,
                        .n_prompt = 100,
                        .n_output = 1,
                        .max_tokens = 5,
                        .n_slices = 12,
                        .kv_bytes = 4096,
                        .transport = "shm"};
    struct nd_done d = p;
    d.decode = true;
    d.exec_us = d.token_us = 0;
    d.decode_us = 5500000;
    d.last_us = 9000000;
    d.ended_us = 9000000;
    d.n_output = 5;
    shell_start(r);
    nd_metrics_done(r->node->metrics, &p);
    scrape(r);
    assert_true(value("tandem_node_kv_transfer_bootstrap_seconds_sum", "") == 0.5);
    assert_true(value("tandem_node_kv_transfer_alloc_seconds_count", "") == 0);
    assert_true(value("vllm:nixl_xfer_time_seconds_sum", "engine=\"0\"") == 2);
    assert_true(value("vllm:nixl_num_descriptors_sum", "") == 12);
    assert_true(value("vllm:prompt_tokens_by_source_total", "source=\"local_compute\"") == 100);
    assert_true(value("vllm:external_prefix_cache_queries_total", "") == 0);
    assert_true(value("vllm:request_inference_time_seconds_sum", "") == 2);
    assert_true(value("vllm:e2e_request_latency_seconds_sum", "") == 5);
    assert_true(value("vllm:request_time_per_output_token_seconds_count", "") == 0);
    nd_metrics_done(r->node->metrics, &d);
    scrape(r);
    assert_true(value("tandem_node_kv_transfer_alloc_seconds_sum", "") == 0.5);
    assert_true(value("tandem_node_kv_transfer_bootstrap_seconds_count", "") == 1);
    assert_true(value("vllm:external_prefix_cache_queries_total", "") == 100);
    assert_true(value("vllm:external_prefix_cache_hits_total", "") == 100);
    assert_true(value("vllm:prompt_tokens_by_source_total", "external_kv_transfer") == 100);
    assert_true(value("vllm:request_time_per_output_token_seconds_sum", "") == 1);
    assert_true(value("vllm:request_inference_time_seconds_sum", "") == 5.5);
    assert_true(value("vllm:request_generation_tokens_sum", "") == 6);
    assert_true(value("vllm:request_params_max_tokens_sum", "") == 10);
    assert_true(value("vllm:request_max_num_generation_tokens_sum", "") == 6);
    assert_true(value("vllm:request_params_n_sum", "") == 2);
}

static void a_failed_end_is_counted_as_what_it_was(void **state)
{
    struct shell_rig *r = *state;
    struct nd_done d = {.arrived_us = 1000000,
                        .table_us = 1500000,
                        .token_us = 2000000,
                        .ended_us = 3000000,
                        .err = TD_ERR_LEASE,
                        .kv_bytes = 10,
                        .transport = ""};
    shell_start(r);
    nd_metrics_done(r->node->metrics, &d); /* KV that nobody took; the record had not gone out */
    d.record_us = 2500000;
    nd_metrics_done(r->node->metrics, &d);
    d.err = TD_ERR_CANCELLED; /* nobody's failure */
    nd_metrics_done(r->node->metrics, &d);
    d = (struct nd_done){.decode = true, .err = TD_ERR_NO_CAPACITY, .preempted = true};
    nd_metrics_done(r->node->metrics, &d);
    scrape(r);
    assert_true(value("tandem_node_kv_expired_requests_total", "") == 2);
    assert_true(value("tandem_node_kv_transfer_notify_failures_total", "") == 1);
    assert_true(value("vllm:nixl_num_kv_expired_reqs_total", "") == 2);
    assert_true(value("vllm:nixl_num_failed_notifications_total", "") == 1);
    assert_true(value("vllm:num_preemptions_total", "") == 1);
    assert_true(value("vllm:e2e_request_latency_seconds_count", "") == 0);
    assert_true(value("vllm:nixl_bytes_transferred_count", "") == 0);
}

static void the_other_names_can_be_left_out(void **state)
{
    struct shell_rig *r = *state;
    r->p.metrics_vllm = false;
    shell_start(r);
    for (int what = 0; what < ND_METRICS; what++) {
        nd_metrics_observe(r->node->metrics, (enum nd_metric)what, 1);
    }
    scrape(r);
    assert_null(strstr((const char *)page.data, "vllm:"));
    assert_true(value("tandem_node_batch_tokens_sum", "") == 1);
}

static void bytes_are_counted_by_the_name_of_their_transport(void **state)
{
    struct shell_rig *r = *state;
    static const char one[] = "shm", same[] = "shm", other[] = "tcp";
    struct td_xfer_event ev = {.type = TD_XFER_PUSHED, .n_bytes = 10, .transport = one};
    shell_start(r);
    nd_metrics_xfer(r->node->metrics, &ev);
    ev.transport = same; /* another address, the same name */
    nd_metrics_xfer(r->node->metrics, &ev);
    ev.transport = other;
    nd_metrics_xfer(r->node->metrics, &ev);
    ev.transport = NULL;
    nd_metrics_xfer(r->node->metrics, &ev);
    ev = (struct td_xfer_event){.type = TD_XFER_LANDED, .n_bytes = 10, .transport = one};
    nd_metrics_xfer(r->node->metrics, &ev);
    scrape(r);
    assert_true(value("tandem_node_kv_transfer_transport_bytes_total", "transport=\"shm\"") == 20);
    assert_true(value("tandem_node_kv_transfer_transport_bytes_total", "transport=\"tcp\"") == 10);
    assert_true(value("tandem_node_kv_transfer_transport_bytes_total", "") == 30);
}

static void calls_are_counted_by_method_and_status(void **state)
{
    struct shell_rig *r = *state;
    shell_start(r);
    nd_metrics_call(r->node->metrics, "a.B", "Go", TD_GRPC_OK);
    nd_metrics_call(r->node->metrics, "a.B", "Go", TD_GRPC_OK);
    nd_metrics_call(r->node->metrics, "unknown", "unknown", TD_GRPC_UNIMPLEMENTED);
    scrape(r);
    assert_true(value("tandem_node_grpc_requests_total", "grpc_code=\"OK\"") == 2);
    assert_true(value("tandem_node_grpc_requests_total", "grpc_code=\"UNIMPLEMENTED\"") == 1);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_observation_moves_its_figures),
        TEST(a_scrape_shows_what_the_node_is_doing),
        TEST(a_works_end_moves_the_figures_of_its_role),
        TEST(a_failed_end_is_counted_as_what_it_was),
        TEST(the_other_names_can_be_left_out),
        TEST(bytes_are_counted_by_the_name_of_their_transport),
        TEST(calls_are_counted_by_method_and_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
