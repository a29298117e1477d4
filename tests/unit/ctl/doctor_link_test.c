/* Judging the raw link of a pair from the answers of parked probes. */
#include "ctl/doctor_link.h"

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

static double value(const char *name)
{
    const struct ctl_finding *f = &report->findings[report->n - 1];
    for (uint32_t i = 0; i < CTL_REPORT_VALUES; i++) {
        if (f->values[i].name != NULL && strcmp(f->values[i].name, name) == 0) {
            return f->values[i].value;
        }
    }
    fail_msg("no value %s", name);
    return 0;
}

/* 100 MB of 1,000 tokens in 20 ms: 5 GB/s. */
static const struct ctl_link shm = {.transport = "shm",
                                    .bytes = 100000000,
                                    .us = 20000,
                                    .slices = 30,
                                    .slices_us = 300,
                                    .prompt_tok = 1000,
                                    .prefill_us = 65000,
                                    .max_tok = 32768};

static const struct ctl_finding *judged(const struct ctl_link *l)
{
    ctl_link_judge(report, "link p > d", l);
    return &report->findings[report->n - 1];
}

static void assert_says(const struct ctl_finding *f, const char *what)
{
    if (strstr(f->detail, what) == NULL && strstr(f->remedy, what) == NULL) {
        fail_msg("no \"%s\" in: %s -> %s", what, f->detail, f->remedy);
    }
}

static void a_link_faster_than_prefill_is_told_with_its_share(void **state)
{
    (void)state;
    const struct ctl_finding *f = judged(&shm);
    assert_int_equal(f->verdict, CTL_V_OK);
    assert_says(f, "shm 5.00 GB/s, 10.0 us a slice; prefill makes 1.54 GB/s: 31 % of it used");
    assert_says(f, "KV of 8192 tokens: 781.25 MiB in 164 ms, hidden behind its prefill");
    assert_true(value("bytes_per_s") == 5e9 && value("slice_us") == 10);
    assert_true(value("kv_bytes_per_token") == 1e5 && value("prompt_exposed_us") == 0);
    assert_string_equal(f->values[0].text, "shm");
}

static void a_link_slower_than_prefill_says_what_a_prompt_waits_and_what_to_do(void **state)
{
    (void)state;
    struct ctl_link l = shm;
    (void)snprintf(l.transport, sizeof l.transport, "tcp");
    l.us = 130000; /* twice as long as the prefill: half of it shows */
    const struct ctl_finding *f = judged(&l);
    assert_int_equal(f->verdict, CTL_V_WARN);
    assert_says(f, "200 % of it used");
    assert_says(f, "in 1.06 s, 532 ms exposed");
    assert_says(f, "--kv-device");
    l.one_host = true;
    assert_says(judged(&l), "share memory");
    (void)snprintf(l.transport, sizeof l.transport, "cma");
    assert_says(judged(&l), "on both hosts");
    l.us = 55000; /* 85 %: nothing shows yet, but nothing more fits */
    f = judged(&l);
    assert_int_equal(f->verdict, CTL_V_WARN);
    assert_says(f, "hidden");
}

static void a_short_context_and_a_small_probe_are_said(void **state)
{
    (void)state;
    struct ctl_link l = shm;
    l.max_tok = 512;
    l.bytes = 500000;
    l.slices = 0;
    l.prefill_us = 0; /* unknown: no share, no verdict over it */
    const struct ctl_finding *f = judged(&l);
    assert_int_equal(f->verdict, CTL_V_OK);
    assert_says(f, "25.0 MB/s (under 1 MiB moved: see --probe-tokens)");
    assert_says(f, "KV of 512 tokens");
    assert_null(strstr(f->detail, "prefill makes"));
    l.us = 0;
    assert_int_equal(judged(&l)->verdict, CTL_V_SKIP);
}

static bool take(struct ctl_link *l, const char *fields, int64_t layers)
{
    char text[400];
    (void)snprintf(text, sizeof text, "{\"ok\":true,\"transport\":\"tcp\",%s}", fields);
    json_t *j = json_loads(text, 0, NULL);
    assert_non_null(j);
    bool ok = ctl_link_take(l, j, layers);
    json_decref(j);
    return ok;
}

#define PARKED "\"parked\":true,\"prompt_tokens\":40,\"prefill_us\":9,"

static void the_fastest_probe_counts_and_no_other_kind_of_answer(void **state)
{
    (void)state;
    struct ctl_link l = {0};
    assert_false(take(&l, "\"kv_bytes\":5,\"transfer_us\":3", 0)); /* a router that cannot park */
    assert_false(take(&l, PARKED "\"kv_bytes\":0,\"transfer_us\":3", 0));
    assert_true(take(&l, PARKED "\"kv_bytes\":500,\"transfer_us\":30", 0));
    assert_true(take(&l, PARKED "\"kv_bytes\":500,\"transfer_us\":20", 0));
    assert_true(take(&l, PARKED "\"kv_bytes\":500,\"transfer_us\":40", 0));
    assert_true(take(&l, PARKED "\"kv_bytes\":500,\"transfer_us\":0", 0)); /* not timed */
    assert_int_equal(l.us, 20);
    assert_int_equal(l.bytes, 500);
    assert_int_equal(l.prompt_tok, 40);
    assert_int_equal(l.slices, 0);
    assert_true(take(&l, PARKED "\"kv_bytes\":50,\"transfer_us\":7", 3));
    assert_true(take(&l, PARKED "\"kv_bytes\":50,\"transfer_us\":6", 3));
    assert_int_equal(l.slices_us, 6);
    assert_int_equal(l.bytes, 500);
    assert_string_equal(l.transport, "tcp");
    assert_false(ctl_link_take(&l, NULL, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_link_faster_than_prefill_is_told_with_its_share, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            a_link_slower_than_prefill_says_what_a_prompt_waits_and_what_to_do, setup, teardown),
        cmocka_unit_test_setup_teardown(a_short_context_and_a_small_probe_are_said, setup,
                                        teardown),
        cmocka_unit_test(the_fastest_probe_counts_and_no_other_kind_of_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
