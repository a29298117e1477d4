/* make-model: what it refuses, and that the doctor finds nothing wrong with what it makes. */
#include "ctl/make_model.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "ctl/doctor_model.h"
#include "tests/unit/check.h"

static char folder[] = "/tmp/tandem-make-model-XXXXXX";

static char *fixed(const char *text)
{
    return (char *)(uintptr_t)text; /* never written */
}

/* Runs it with the streams closed to /dev/null: TAP owns them. */
static enum ctl_exit run(const char *shape, const char *dir)
{
    static const struct ctl_command command = {"make-model", "OUT", 1, &ctl_make_model_program,
                                               ctl_make_model};
    char *argv[] = {fixed("tandemctl"), fixed("make-model"), fixed("--shape"), fixed(shape),
                    fixed(dir)};
    int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    int out = dup(1); /* NOLINT: one thread, no exec */
    int err = dup(2); /* NOLINT: the same */

    (void)fflush(stdout);
    assert_true(nowhere >= 0 && out >= 0 && err >= 0);
    assert_true(dup2(nowhere, 1) == 1 && dup2(nowhere, 2) == 2);
    enum ctl_exit status = ctl_command_run(&command, 1, 5, argv);
    (void)fflush(stdout);
    assert_true(dup2(out, 1) == 1 && dup2(err, 2) == 2);
    (void)close(nowhere);
    (void)close(out);
    (void)close(err);
    return status;
}

static int make(void **state)
{
    (void)state;
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int clean_up(void **state)
{
    char command[128];
    (void)state;
    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command); /* NOLINT: a fixed folder of this test */
}

static void a_made_model_passes_the_doctor(void **state)
{
    static const char *const shapes[] = {"tiny-llama", "tiny-qwen3", "tiny-qwen2", "tiny-mistral"};
    (void)state;
    for (size_t i = 0; i < TD_COUNT(shapes); i++) {
        static struct ctl_report report;
        struct ctl_model_facts facts;
        char dir[128];
        memset(&report, 0, sizeof report);
        (void)snprintf(dir, sizeof dir, "%s/%s", folder, shapes[i]);
        assert_int_equal(run(shapes[i], dir), CTL_OK);
        ctl_doctor_model(&report, dir, "", &facts);
        assert_int_equal(report.n, 4);
        assert_int_equal(ctl_report_count(&report, CTL_V_OK), 4);
        assert_non_null(strstr(report.findings[0].detail, shapes[i]));
        assert_non_null(strstr(report.findings[1].detail, shapes[i] + 5)); /* the architecture */
        assert_non_null(strstr(report.findings[2].detail, "512 tokens"));
    }
}

static void what_is_there_is_never_overwritten(void **state)
{
    char dir[64];
    char file[96];
    (void)state;
    (void)snprintf(dir, sizeof dir, "%s/used", folder);
    (void)snprintf(file, sizeof file, "%s/precious", dir);
    assert_int_equal(mkdir(dir, 0755), 0);
    FILE *f = fopen(file, "we");
    assert_non_null(f);
    (void)fclose(f);
    assert_int_equal(run("tiny-llama", dir), CTL_FAILED);
    assert_int_equal(run("tiny-llama", file), CTL_FAILED); /* a file in the place of a folder */
    assert_int_equal(unlink(file), 0);
    assert_int_equal(run("tiny-llama", dir), CTL_OK); /* empty now */
    assert_int_equal(run("tiny-llama", dir), CTL_FAILED);
    assert_int_equal(run("tiny-llama", "/nonexistent/a/b"), CTL_FAILED);
}

static void a_shape_must_be_known(void **state)
{
    (void)state;
    assert_int_equal(run("gpt-5", folder), CTL_USAGE);
    assert_int_equal(run("", folder), CTL_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_made_model_passes_the_doctor),
        cmocka_unit_test(what_is_there_is_never_overwritten),
        cmocka_unit_test(a_shape_must_be_known),
    };
    return cmocka_run_group_tests(tests, make, clean_up);
}
