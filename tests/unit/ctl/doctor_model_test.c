/* The doctor over tiny models, whole and broken. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/check.h"

#include "common/base/mem.h"
#include "ctl/doctor_model.h"
#include "tests/tiny/tiny_gguf.h"

static struct ctl_report report;
static char folder[] = "/tmp/tandem-doctor-XXXXXX";
static char model[64], other[64];

static int make(void **state)
{
    struct td_tiny_params p = td_tiny_defaults();
    (void)state;
    if (mkdtemp(folder) == NULL) {
        return -1;
    }
    (void)snprintf(model, sizeof model, "%s/tiny.gguf", folder);
    (void)snprintf(other, sizeof other, "%s/other", folder);
    return td_tiny_write_file(&p, model) == TD_OK ? 0 : -1;
}

static int clean_up(void **state)
{
    (void)state;
    (void)unlink(model);
    (void)unlink(other);
    return rmdir(folder);
}

static int fresh(void **state)
{
    (void)state;
    memset(&report, 0, sizeof report);
    return 0;
}

static void write_other(const char *data, size_t n)
{
    FILE *f = fopen(other, "we");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static const struct ctl_finding *last(void)
{
    assert_true(report.n > 0);
    return &report.findings[report.n - 1];
}

static void a_good_model_passes_every_check(void **state)
{
    (void)state;
    struct ctl_model_facts facts;
    ctl_doctor_model(&report, model, "", &facts);
    assert_int_equal(report.n, 4);
    assert_int_equal(ctl_report_count(&report, CTL_V_OK), 4);
    assert_true(facts.weight_bytes > 0);
    assert_int_equal(facts.kv_bytes_per_tok,
                     2 * 2 * 64 * 2 * 2); /* layers, heads, dim, K and V, bf16 */
    assert_non_null(strstr(report.findings[2].detail, "460 tokens"));
}

static void a_file_that_is_no_model_fails_with_the_readers_reason(void **state)
{
    (void)state;
    struct ctl_model_facts facts;
    write_other("hello", 5);
    ctl_doctor_model(&report, other, "", &facts);
    assert_int_equal(report.n, 1);
    assert_int_equal(last()->verdict, CTL_V_FAIL);
    assert_non_null(strstr(last()->detail, "GGUF"));
    assert_int_equal(facts.weight_bytes, 0);
    ctl_doctor_model(&report, "/nonexistent/x.gguf", "", &facts);
    assert_int_equal(last()->verdict, CTL_V_FAIL);
    assert_non_null(strstr(last()->detail, "cannot be opened"));
}

static void a_truncated_model_fails_at_every_length(void **state)
{
    (void)state;
    struct ctl_model_facts facts;
    static char whole[4u << 20];
    FILE *f = fopen(model, "re");
    size_t n = fread(whole, 1, sizeof whole, f);
    (void)fclose(f);
    for (size_t part = 1; part < 8; part++) {
        (void)fresh(NULL);
        write_other(whole, n * part / 8);
        ctl_doctor_model(&report, other, "", &facts);
        assert_int_equal(report.n, 1);
        assert_int_equal(last()->verdict, CTL_V_FAIL);
    }
}

static void another_template_is_used_and_its_faults_are_found(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum ctl_verdict verdict;
        const char *says;
    } rows[] = {
        {"{% for m in messages %}{{ m.content }}{% endfor %}", CTL_V_OK, "render to 11 bytes"},
        {"{% for m in messages %}", CTL_V_FAIL, "does not compile"},
        {"{{ raise_exception('no second turn') }}", CTL_V_WARN, "no second turn"},
        {"", CTL_V_WARN, "has none"},
    };
    struct ctl_model_facts facts;
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        write_other(rows[i].text, strlen(rows[i].text));
        ctl_doctor_model(&report, model, other, &facts);
        assert_int_equal(last()->verdict, rows[i].verdict);
        assert_non_null(strstr(last()->detail, rows[i].says));
    }
    ctl_doctor_model(&report, model, "/nonexistent/template", &facts);
    assert_int_equal(last()->verdict, CTL_V_FAIL);
}

static void a_failed_allocation_is_a_finding(void **state)
{
    (void)state;
    bool whole = false;
    for (unsigned n = 1; !whole && n < 5000; n += n < 40 ? 1 : 37) {
        struct ctl_model_facts facts;
        (void)fresh(NULL);
        td_mem_fail_nth(n);
        ctl_doctor_model(&report, model, "", &facts);
        td_mem_fail_nth(0);
        whole = ctl_report_count(&report, CTL_V_OK) == 4;
        assert_true(report.n > 0 && report.n <= 4);
    }
    assert_true(whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_good_model_passes_every_check, fresh),
        cmocka_unit_test_setup(a_file_that_is_no_model_fails_with_the_readers_reason, fresh),
        cmocka_unit_test_setup(a_truncated_model_fails_at_every_length, fresh),
        cmocka_unit_test_setup(another_template_is_used_and_its_faults_are_found, fresh),
        cmocka_unit_test_setup(a_failed_allocation_is_a_finding, fresh),
    };
    return cmocka_run_group_tests(tests, make, clean_up);
}
