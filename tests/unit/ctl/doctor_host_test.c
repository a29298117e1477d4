/* What the doctor makes of given machines. */
#include <string.h>

#include "tests/unit/check.h"

#include "ctl/doctor_host.h"

static struct ctl_report report;

static int fresh(void **state)
{
    (void)state;
    memset(&report, 0, sizeof report);
    return 0;
}

/* The only finding since the last call. */
static const struct ctl_finding *only(enum ctl_verdict verdict)
{
    assert_int_equal(report.n, 1);
    assert_int_equal(report.findings[0].verdict, verdict);
    report.n = 0;
    return &report.findings[0];
}

static const char head[] = "processor\t: 0\nmodel name\t: Some CPU\n";

static const struct ctl_finding *cpu(const char *flags, enum ctl_verdict verdict)
{
    char info[512];
    (void)snprintf(info, sizeof info, "%sflags\t\t: %s\nbugs\t\t: x\n", head, flags);
    ctl_doctor_judge_cpu(&report, info);
    return only(verdict);
}

static void a_cpu_is_judged_by_the_kernels_it_can_run(void **state)
{
    (void)state;
    const struct ctl_finding *f =
        cpu("fpu avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_vnni amx_int8", CTL_V_OK);
    assert_string_equal(f->detail, "Some CPU: AVX-512 with VNNI, and AMX");
    f = cpu("fpu avx2 fma f16c avx512f avx512bw avx512dq avx512vl", CTL_V_OK);
    assert_non_null(strstr(f->detail, "AVX2 (no AVX-512"));
    f = cpu("fpu avx xavx2 avx2x fma f16c", CTL_V_WARN); /* whole words count */
    assert_non_null(strstr(f->detail, "portable"));
    assert_string_not_equal(f->remedy, "");
}

static void a_cpu_of_another_kind_or_none_is_a_warning(void **state)
{
    (void)state;
    ctl_doctor_judge_cpu(&report, "Features\t: fp asimd\n");
    assert_non_null(strstr(only(CTL_V_WARN)->detail, "unnamed CPU"));
    ctl_doctor_judge_cpu(&report, "");
    (void)only(CTL_V_WARN);
}

static void a_container_with_less_than_its_cores_is_told(void **state)
{
    (void)state;
    ctl_doctor_judge_cores(&report, 8, "250000 100000\n");
    const struct ctl_finding *f = only(CTL_V_WARN);
    assert_non_null(strstr(f->detail, "may use 2.5"));
    assert_true(f->values[0].value == 2.5);
    ctl_doctor_judge_cores(&report, 8, "max 100000\n");
    (void)only(CTL_V_OK);
    ctl_doctor_judge_cores(&report, 8, "800000 100000\n");
    (void)only(CTL_V_OK);
    ctl_doctor_judge_cores(&report, 8, "nonsense");
    (void)only(CTL_V_OK);
    ctl_doctor_judge_cores(&report, 8, NULL);
    (void)only(CTL_V_OK);
    ctl_doctor_judge_cores(&report, 1, NULL);
    (void)only(CTL_V_WARN);
}

static void memory_for_no_node_fails_and_for_one_warns(void **state)
{
    (void)state;
    ctl_doctor_judge_memory(&report, 1000, 1001);
    (void)only(CTL_V_FAIL);
    ctl_doctor_judge_memory(&report, 1000, 1000);
    (void)only(CTL_V_WARN);
    ctl_doctor_judge_memory(&report, 1000, 501);
    (void)only(CTL_V_WARN);
    ctl_doctor_judge_memory(&report, 1000, 500);
    (void)only(CTL_V_OK);
    ctl_doctor_judge_memory(&report, 1000, 0); /* no model given */
    (void)only(CTL_V_OK);
    ctl_doctor_judge_memory(&report, UINT64_MAX, UINT64_MAX);
    (void)only(CTL_V_WARN);
}

static void the_shared_memory_that_containers_get_is_a_warning(void **state)
{
    (void)state;
    ctl_doctor_judge_shm(&report, 64ull << 20, 64ull << 20);
    assert_non_null(strstr(only(CTL_V_WARN)->remedy, "--shm-size"));
    ctl_doctor_judge_shm(&report, 1ull << 30, 1ull << 20);
    assert_non_null(strstr(only(CTL_V_WARN)->remedy, "remove what fills it"));
    ctl_doctor_judge_shm(&report, 1ull << 30, 1ull << 29);
    (void)only(CTL_V_OK);
}

static void this_machine_can_be_examined(void **state)
{
    (void)state;
    ctl_doctor_cpu(&report);
    ctl_doctor_memory(&report, 1);
    ctl_doctor_shm(&report);
    ctl_doctor_limits(&report);
    assert_true(report.n >= 5);
    for (uint32_t i = 0; i < report.n; i++) {
        assert_string_not_equal(report.findings[i].detail, "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_cpu_is_judged_by_the_kernels_it_can_run, fresh),
        cmocka_unit_test_setup(a_cpu_of_another_kind_or_none_is_a_warning, fresh),
        cmocka_unit_test_setup(a_container_with_less_than_its_cores_is_told, fresh),
        cmocka_unit_test_setup(memory_for_no_node_fails_and_for_one_warns, fresh),
        cmocka_unit_test_setup(the_shared_memory_that_containers_get_is_a_warning, fresh),
        cmocka_unit_test_setup(this_machine_can_be_examined, fresh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
