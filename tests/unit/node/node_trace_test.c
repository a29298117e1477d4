/* A work's last word as stages, and as spans only when its trace is sampled. */
#include "common/node/node_trace.h"

#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "tests/unit/check.h"

#define TRACE "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0"

static void assert_stages(const struct nd_done *d, const char *want)
{
    struct nd_stage g[ND_SPANS];
    char got[400] = "";
    uint32_t n = nd_trace_stages(d, g);
    for (uint32_t i = 0; i < n; i++) {
        char one[80];
        (void)snprintf(one, sizeof one, "%s%s %ld-%ld", i > 0 ? ", " : "", g[i].name,
                       (long)g[i].start_us, (long)g[i].end_us);
        (void)strcat(got, one);
    }
    assert_string_equal(got, want);
}

static void each_role_tells_its_own_stages(void **state)
{
    struct nd_done p = {.arrived_us = 10,
                        .exec_us = 20,
                        .token_us = 40,
                        .xfer_first_us = 25,
                        .xfer_last_us = 50,
                        .record_us = 45,
                        .last_us = 40,
                        .ended_us = 60};
    struct nd_done d = {.decode = true,
                        .arrived_us = 10,
                        .table_us = 12,
                        .xfer_first_us = 26,
                        .xfer_last_us = 51,
                        .record_us = 52,
                        .decode_us = 55,
                        .last_us = 90,
                        .ended_us = 91};
    struct nd_done local = {.decode = true,
                            .local = true,
                            .arrived_us = 10,
                            .exec_us = 20,
                            .token_us = 40,
                            .record_us = 40,
                            .decode_us = 41,
                            .last_us = 90,
                            .ended_us = 90};
    (void)state;
    assert_stages(&p, "prefill_queue 10-20, prefill 20-40, kv_transfer 25-50");
    assert_stages(&d, "reserve 10-12, kv_transfer 26-51, decode_queue 52-55, decode 55-90");
    assert_stages(&local, "prefill_queue 10-20, prefill 20-40, decode_queue 40-41, decode 41-90");
}

static void what_did_not_happen_ends_where_the_work_did(void **state)
{
    struct nd_done p = {.arrived_us = 10, .ended_us = 15, .err = TD_ERR_BUDGET};
    struct nd_done d = {.decode = true,
                        .arrived_us = 10,
                        .table_us = 12,
                        .xfer_first_us = 26,
                        .ended_us = 30,
                        .err = TD_ERR_PEER_LOST};
    (void)state;
    assert_stages(&p, "prefill_queue 10-15");
    p.exec_us = 12;
    assert_stages(&p, "prefill_queue 10-12, prefill 12-15");
    assert_stages(&d, "reserve 10-12, kv_transfer 26-30");
}

static void only_a_sampled_trace_makes_spans(void **state)
{
    struct nd_done d = {.arrived_us = 10, .exec_us = 12, .ended_us = 15, .transport = ""};
    struct td_otlp_params p = {
        .url = "http://127.0.0.1:1/v1/traces", .service = "s", .instance = "i", .version = "v"};
    struct td_otlp *o = NULL;
    struct td_otlp_stats s = {0};
    static const struct {
        const char *trace;
        uint64_t spans;
    } rows[] = {{"", 0}, {TRACE "0", 0}, {TRACE "1", 2}, {"00-nonsense-01", 0}};
    (void)state;
    td_log_set_fd(-1);
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        p.interval_us = 1000;
        assert_int_equal(td_otlp_create(&p, &o), TD_OK);
        (void)snprintf(d.trace, sizeof d.trace, "%s", rows[i].trace);
        nd_trace_done(o, "tiny", &d);
        while (rows[i].spans > 0 && s.failed < rows[i].spans) { /* nobody listens on port 1 */
            td_otlp_stats(o, &s);
        }
        td_otlp_stats(o, &s);
        assert_int_equal(s.failed + s.sent + s.dropped, rows[i].spans);
        s = (struct td_otlp_stats){0};
        o = td_otlp_destroy(o);
    }
    td_log_set_fd(STDERR_FILENO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_role_tells_its_own_stages),
        cmocka_unit_test(what_did_not_happen_ends_where_the_work_did),
        cmocka_unit_test(only_a_sampled_trace_makes_spans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
