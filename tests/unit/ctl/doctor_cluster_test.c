/* Judging a cluster from what its router says, without one. */
#include "ctl/doctor_cluster.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "tests/unit/check.h"

static struct ctl_report *report;

static int setup(void **state)
{
    (void)state;
    report = td_zalloc(1, sizeof *report);
    return report != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    free(report);
    return 0;
}

static const struct ctl_finding *found(const char *check)
{
    for (uint32_t i = 0; i < report->n; i++) {
        if (strcmp(report->findings[i].check, check) == 0) {
            return &report->findings[i];
        }
    }
    fail_msg("no check %s", check);
    return NULL;
}

static void assert_found(const char *check, enum ctl_verdict verdict, const char *detail)
{
    const struct ctl_finding *f = found(check);
    assert_int_equal(f->verdict, verdict);
    if (strstr(f->detail, detail) == NULL) {
        fail_msg("%s: %s", check, f->detail);
    }
    assert_true((f->remedy[0] != 0) == (verdict == CTL_V_WARN || verdict == CTL_V_FAIL));
}

static json_t *doc(const char *text)
{
    json_t *j = json_loads(text, 0, NULL);
    assert_non_null(j);
    return j;
}

static void a_router_is_judged_by_version_and_readiness(void **state)
{
    (void)state;
    json_t *j = doc("{\"router\":{\"version\":\"1.0\",\"ready\":true,\"draining\":false}}");
    ctl_cluster_judge_router(report, j, "1.0");
    assert_found("router version", CTL_V_OK, "1.0");
    assert_found("router ready", CTL_V_OK, "at least one");
    json_decref(j);
    report->n = 0;
    j = doc("{\"router\":{\"version\":\"1.1\",\"ready\":false}}");
    ctl_cluster_judge_router(report, j, "1.0");
    assert_found("router version", CTL_V_WARN, "1.1, tandemctl is 1.0");
    assert_found("router ready", CTL_V_FAIL, "no usable pair");
    json_decref(j);
}

#define NODE(name, role, why, layout, blocks)                                                      \
    "{\"name\":\"" name "\",\"role\":\"" role "\",\"why_not\":\"" why                              \
    "\",\"version\":\"1\",\"layout_id\":\"" layout "\",\"numerics_id\":\"n\",\"n_blocks\":100,"    \
    "\"blocks\":{" blocks "}}"

static void nodes_are_judged_by_role_likeness_and_pools(void **state)
{
    (void)state;
    json_t *j = doc("{\"nodes\":[" NODE("p0", "prefill", "", "aa", "\"free\":100") "," NODE(
        "p1", "prefill", "draining", "aa",
        "\"free\":2,\"running\":98") "," NODE("d0", "decode", "not ready", "bb",
                                              "\"free\":80,"
                                              "\"quarantined\":20") "]}");
    ctl_cluster_judge_nodes(report, j);
    assert_found("prefill nodes", CTL_V_WARN, "1 of 2");
    assert_found("decode nodes", CTL_V_FAIL, "0 of 1");
    assert_found("node versions", CTL_V_OK, "1 everywhere");
    assert_found("KV layouts", CTL_V_FAIL, "p0 has aa, d0 has bb");
    assert_found("numerics", CTL_V_OK, "n everywhere");
    assert_found("KV pool of p0", CTL_V_OK, "0.0 % of 100");
    assert_found("KV pool of p1", CTL_V_WARN, "98.0 % of 100");
    assert_found("KV pool of d0", CTL_V_WARN, "quarantined");
    json_decref(j);
    report->n = 0;
    j = doc("{\"nodes\":[" NODE("b", "both", "", "aa", "") ",{}]}");
    ctl_cluster_judge_nodes(report, j); /* fields missing: said, not crashed over */
    assert_found("prefill nodes", CTL_V_OK, "1 of 1");
    assert_found("KV pool of ?", CTL_V_WARN, "unknown");
    json_decref(j);
}

static void a_clock_far_away_is_told_with_its_uncertainty(void **state)
{
    (void)state;
    ctl_cluster_judge_clock(report, "p0", -2000000, 400);
    assert_found("clock of p0", CTL_V_WARN, "2.00 s behind ours, known to 200 us");
    ctl_cluster_judge_clock(report, "p1", 150000, 200000); /* cannot be told apart from right */
    assert_found("clock of p1", CTL_V_OK, "150 ms ahead of ours");
}

static void a_probe_says_what_moved_or_what_failed(void **state)
{
    (void)state;
    json_t *j = doc("{\"ok\":true,\"transport\":\"shm\",\"kv_bytes\":1048576,\"transfer_us\":1000,"
                    "\"transfer_exposed_us\":10,\"ttft_us\":5000}");
    ctl_cluster_judge_probe(report, "p0", "d0", 200, j);
    assert_found(
        "p0 > d0", CTL_V_OK,
        "shm, 1.00 MiB in 1.0 ms, 10 us exposed: at least 1000.00 MiB/s; first token after "
        "5.0 ms");
    (void)json_object_set_new(j, "transfer_exposed_us", json_integer(4000));
    ctl_cluster_judge_probe(report, "p0", "d1", 200, j);
    assert_found("p0 > d1", CTL_V_WARN, "4.0 ms exposed");
    ctl_cluster_judge_probe(report, "b", "b", 200, j);
    assert_found("b > b", CTL_V_OK, "prefills for itself");
    json_decref(j);
    j = doc("{\"ok\":false,\"code\":\"node_lost\",\"text\":\"gone\"}");
    ctl_cluster_judge_probe(report, "p0", "d2", 200, j);
    assert_found("p0 > d2", CTL_V_FAIL, "node_lost: gone");
    json_decref(j);
    ctl_cluster_judge_probe(report, "p0", "d3", 0, NULL);
    assert_found("p0 > d3", CTL_V_FAIL, "not probed");
}

static void without_probes_the_clients_transfers_are_judged(void **state)
{
    (void)state;
    json_t *j = doc("{\"transport\":\"tcp\",\"count\":4,\"bytes\":4194304,\"transfer_us\":8000,"
                    "\"exposed_us\":400}");
    ctl_cluster_judge_transfer(report, "p0", "d0", j);
    assert_found("p0 > d0", CTL_V_OK,
                 "tcp, 1.00 MiB in 2.0 ms, 100 us exposed: at least 500.00 MiB/s");
    assert_true(found("p0 > d0")->values[0].value == 1048576);
    ctl_cluster_judge_transfer(report, "p0", "d1", NULL);
    assert_found("p0 > d1", CTL_V_SKIP, "no request has gone this way yet");
    (void)json_object_set_new(j, "transfer_us", json_integer(0));
    ctl_cluster_judge_transfer(report, "p1", "d0", j);
    assert_found("p1 > d0", CTL_V_OK, "1.00 MiB at once: too little to time");
    json_decref(j);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_router_is_judged_by_version_and_readiness),
        T(nodes_are_judged_by_role_likeness_and_pools),
        T(a_clock_far_away_is_told_with_its_uncertainty),
        T(a_probe_says_what_moved_or_what_failed),
        T(without_probes_the_clients_transfers_are_judged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
