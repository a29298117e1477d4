/* `tandemctl version` as a whole, with its output in a file. */
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "tests/unit/check.h"

#include "ctl/version.h"

static char printed[4096];

/* Runs with stdout in a file, as TAP has the real one. */
static enum ctl_exit run(int argc, char **argv)
{
    static const struct ctl_command commands[] = {
        {"version", "", 0, &ctl_version_program, ctl_version}};
    FILE *file = tmpfile();
    assert_non_null(file);
    (void)fflush(stdout);
    int saved = dup(STDOUT_FILENO);
    assert_true(saved >= 0 && dup2(fileno(file), STDOUT_FILENO) >= 0);
    enum ctl_exit status = ctl_command_run(commands, 1, argc, argv);
    (void)fflush(stdout);
    assert_true(dup2(saved, STDOUT_FILENO) >= 0);
    (void)close(saved);
    rewind(file);
    printed[fread(printed, 1, sizeof printed - 1, file)] = 0;
    (void)fclose(file);
    return status;
}

#define W(text) ((char *)(uintptr_t)(text))

static void alone_it_says_its_own_version(void **state)
{
    (void)state;
    char *argv[] = {W("tandemctl"), W("version"), W("--client")};
    assert_int_equal(run(3, argv), CTL_OK);
    assert_int_equal(strncmp(printed, "tandemctl " TD_VERSION, strlen("tandemctl " TD_VERSION)), 0);
    assert_null(strstr(printed, "router"));
}

static void as_json_and_yaml_the_missing_router_is_null(void **state)
{
    (void)state;
    char *json[] = {W("tandemctl"), W("version"), W("--client"), W("-o"), W("json")};
    assert_int_equal(run(5, json), CTL_OK);
    json_t *doc = json_loads(printed, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(doc, "tandemctl")), TD_VERSION);
    assert_true(json_is_null(json_object_get(doc, "router")));
    json_decref(doc);
    char *yaml[] = {W("tandemctl"), W("version"), W("--client"), W("-oyaml")};
    assert_int_equal(run(4, yaml), CTL_OK);
    assert_non_null(strstr(printed, "\nrouter: null\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone_it_says_its_own_version),
        cmocka_unit_test(as_json_and_yaml_the_missing_router_is_null),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
