#include "common/base/config.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "tests/unit/check.h"

struct config {
    int64_t port;
    bool warm;
    char *model;
    int role;
    double ratio;
    struct td_str_list nodes;
};

#define AT(member) .offset = offsetof(struct config, member)
static const struct td_opt opts[] = {
    {"port", TD_OPT_INT, "8000", "", 1, 65535, NULL, TD_OPT_BOOT, "port to listen on", AT(port)},
    {"warm", TD_OPT_BOOL, "true", "", 0, 0, NULL, TD_OPT_RELOAD, "warm up", AT(warm)},
    {"model", TD_OPT_STRING, NULL, "", 0, 0, NULL, TD_OPT_BOOT, "model file", AT(model)},
    {"role", TD_OPT_ENUM, "both", "", 0, 0, "prefill|decode|both", TD_OPT_BOOT, "role", AT(role)},
    {"kv-ratio", TD_OPT_DOUBLE, "0.5", "of memory", 0, 1, NULL, TD_OPT_DEBUG, "share", AT(ratio)},
    {"nodes", TD_OPT_LIST, "a,b", "", 0, 0, NULL, TD_OPT_BOOT, "nodes to dial", AT(nodes)},
};
static const struct td_program program = {.name = "tandem-test",
                                          .summary = "a program of tests",
                                          .args = "OUT",
                                          .opts = opts,
                                          .n_opts = 6,
                                          .struct_bytes = sizeof(struct config)};

static struct config c;
static char captured[16384];

static int clean(void **state)
{
    static const char *const names[] = {"TANDEM_PORT",  "TANDEM_MODEL",    "TANDEM_ROLE",
                                        "TANDEM_WARM",  "TANDEM_NODES",    "TANDEM_CONFIG",
                                        "TANDEM_FAULT", "TANDEM_KV_RATIO", "TANDEM_VERSION"};
    (void)state;
    for (size_t i = 0; i < TD_COUNT(names); i++) {
        (void)unsetenv(names[i]);
    }
    td_config_fini(&program, &c);
    memset(&c, 0, sizeof c);
    td_fault_reset();
    return 0;
}

static enum td_config_outcome load(size_t n, const char *const *args)
{
    char *argv[32] = {(char *)(uintptr_t) "tandem-test"};
    assert_true(n < 31);
    for (size_t i = 0; i < n; i++) {
        argv[i + 1] = (char *)(uintptr_t)args[i];
    }
    td_config_fini(&program, &c);
    return td_config_load(&program, (int)n + 1, argv, &c);
}
#define LOAD(...)                                                                                  \
    load(sizeof((const char *const[]){NULL, ##__VA_ARGS__}) / sizeof(char *) - 1,                  \
         (const char *const[]){NULL, ##__VA_ARGS__} + 1)

/* What the program printed on stdout while loading. */
static const char *output_of(const char *flag, enum td_config_outcome want)
{
    FILE *f = tmpfile();
    int saved = dup(STDOUT_FILENO);
    assert_true(f != NULL && saved >= 0);
    (void)fflush(stdout);
    (void)dup2(fileno(f), STDOUT_FILENO);
    enum td_config_outcome got = LOAD(flag, "--port", "81");
    (void)fflush(stdout);
    (void)dup2(saved, STDOUT_FILENO);
    (void)close(saved);
    rewind(f);
    captured[fread(captured, 1, sizeof captured - 1, f)] = '\0';
    (void)fclose(f);
    assert_int_equal(got, want);
    return captured;
}

/* A config file with this text; the caller unlinks it. */
static void write_file(char *path, const char *text)
{
    strcpy(path, "/tmp/tandem-config-test-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    (void)close(fd);
}

static void defaults_fill_the_struct(void **state)
{
    (void)state;
    assert_int_equal(LOAD(), TD_CONFIG_RUN);
    assert_int_equal(c.port, 8000);
    assert_true(c.warm);
    assert_null(c.model);
    assert_int_equal(c.role, 2);
    assert_true(c.ratio == 0.5);
    assert_int_equal(c.nodes.count, 2);
    assert_string_equal(c.nodes.items[1], "b");
}

static void the_command_line_wins_over_environment_over_file(void **state)
{
    char path[64];
    (void)state;
    write_file(path, "port: 1001\nkv-ratio: 0.1\nmodel: file.gguf\nnodes: [f1, f2, f3]\n");
    (void)setenv("TANDEM_PORT", "1002", 1);
    (void)setenv("TANDEM_KV_RATIO", "0.2", 1);
    assert_int_equal(LOAD("--config", path, "--port=1003"), TD_CONFIG_RUN);
    assert_int_equal(c.port, 1003);
    assert_true(c.ratio == 0.2);
    assert_string_equal(c.model, "file.gguf");
    assert_int_equal(c.nodes.count, 3);
    (void)unlink(path);
}

static void the_environment_may_name_the_file(void **state)
{
    char path[64];
    (void)state;
    write_file(path, "port: 1001\n");
    (void)setenv("TANDEM_CONFIG", path, 1);
    assert_int_equal(LOAD(), TD_CONFIG_RUN);
    assert_int_equal(c.port, 1001);
    (void)unlink(path);
}

static void a_list_of_a_later_source_replaces_the_earlier_one(void **state)
{
    (void)state;
    (void)setenv("TANDEM_NODES", "e1,e2,e3", 1);
    assert_int_equal(LOAD(), TD_CONFIG_RUN);
    assert_int_equal(c.nodes.count, 3);
    assert_int_equal(LOAD("--nodes", "x", "--nodes=y,z"), TD_CONFIG_RUN);
    assert_int_equal(c.nodes.count, 3);
    assert_string_equal(c.nodes.items[0], "x");
    assert_string_equal(c.nodes.items[2], "z");
}

static void bool_flags_take_no_value_or_one_after_equals(void **state)
{
    (void)state;
    assert_int_equal(LOAD("--no-warm"), TD_CONFIG_RUN);
    assert_false(c.warm);
    assert_int_equal(LOAD("--no-warm", "--warm"), TD_CONFIG_RUN);
    assert_true(c.warm);
    assert_int_equal(LOAD("--warm=false"), TD_CONFIG_RUN);
    assert_false(c.warm);
    assert_int_equal(LOAD("--no-warm=true"), TD_CONFIG_EXIT_BAD);
    assert_int_equal(LOAD("--no-port"), TD_CONFIG_EXIT_BAD);
}

static void bad_command_lines_are_refused_with_one_error(void **state)
{
    static const char *const bad[][2] = {
        {"--prot", "1"},
        {"--port"},
        {"--port", "0"},
        {"--port", "70000"},
        {"--port", "x"},
        {"--role", "cook"},
        {"--kv-ratio=1.5"},
        {"positional"},
        {"-p"},
        {"--"},
        {"--help=maybe"},
        {"--fault=nope"},
        {"--config=/none"},
        {"--port="},
        {""},
    };
    (void)state;
    for (size_t i = 0; i < TD_COUNT(bad); i++) {
        uint64_t errors = td_log_count(TD_LOG_ERROR);
        assert_int_equal(load(bad[i][1] != NULL ? 2 : 1, bad[i]), TD_CONFIG_EXIT_BAD);
        assert_true(td_log_count(TD_LOG_ERROR) == errors + 1);
        assert_null(c.nodes.items[0]); /* nothing is left to free */
    }
}

static void too_many_flags_are_refused(void **state)
{
    static char *argv[300];
    (void)state;
    for (int i = 0; i < 300; i++) {
        argv[i] = (char *)(uintptr_t) "--warm";
    }
    assert_int_equal(td_config_load(&program, 257, argv, &c), TD_CONFIG_RUN);
    td_config_fini(&program, &c);
    assert_int_equal(td_config_load(&program, 258, argv, &c), TD_CONFIG_EXIT_BAD);
}

static void foreign_variables_and_service_links_are_ignored(void **state)
{
    (void)state;
    (void)setenv("TANDEM_PORT", "tcp://10.0.0.1:8000", 1);
    (void)setenv("TANDEM_VERSION", "1.2.3", 1);
    assert_int_equal(LOAD(), TD_CONFIG_RUN);
    assert_int_equal(c.port, 8000);
    (void)setenv("TANDEM_PORT", "udp", 1);
    assert_int_equal(LOAD(), TD_CONFIG_EXIT_BAD);
}

static td_err yaml(const char *text)
{
    td_config_fini(&program, &c);
    assert_int_equal(td_config_defaults(&program, &c), TD_OK);
    return td_config_yaml(&program, text, strlen(text), &c);
}

static void yaml_takes_one_flat_mapping(void **state)
{
    (void)state;
    assert_int_equal(yaml("# comment\n---\nport: 1\nwarm: off\nnodes: x,y\nrole: \"decode\"\n"),
                     TD_OK);
    assert_int_equal(c.port, 1);
    assert_false(c.warm);
    assert_int_equal(c.role, 1);
    assert_int_equal(c.nodes.count, 2);
    assert_int_equal(yaml(""), TD_OK);
    assert_int_equal(yaml("# nothing\n"), TD_OK);
    assert_int_equal(yaml("nodes: []\n"), TD_OK);
    assert_int_equal(c.nodes.count, 0);
}

static void hostile_yaml_is_refused(void **state)
{
    static const char *const bad[] = {
        "- a\n",
        "port\n",
        "port: {a: 1}\n",
        "port: [1]\n",
        "nodes: [[a]]\n",
        "nodes: [{a: b}]\n",
        "port: 1\nport: 2\n",
        "prot: 1\n",
        "port: 99999\n",
        "port: &a 1\nmodel: *a\n",
        "*a : 1\n",
        "? [a]\n: 1\n",
        "port: 1\n---\nport: 2\n",
        "port: 1\n...\ntrailing: [",
        "port: \"unterminated\n",
        "model: \"nul \\0 byte\"\n",
        "\"po\\0rt\": 1\n",
        "\xff\xfe\xfd",
        "port: 1\n\tmodel: x\n",
        "config: other.yaml\n",
        "%YAML 9.9\n---\nport: 1\n",
    };
    (void)state;
    for (size_t i = 0; i < TD_COUNT(bad); i++) {
        uint64_t errors = td_log_count(TD_LOG_ERROR);
        assert_int_equal(yaml(bad[i]), TD_ERR_CONFIG);
        assert_true(td_log_count(TD_LOG_ERROR) > errors);
    }
}

static void yaml_size_and_entries_are_bounded(void **state)
{
    size_t big = (size_t)256 * 1024;
    (void)state;
    char *text = malloc(big + 2);
    assert_non_null(text);
    memset(text, ' ', big + 1);
    text[big + 1] = '\0';
    text[0] = '#';
    assert_int_equal(yaml(text), TD_ERR_CONFIG); /* one byte too many */
    text[big] = '\0';
    assert_int_equal(yaml(text), TD_OK);
    memset(text, ',', big);
    memcpy(text, "nodes: [a", 9);
    for (size_t i = 9; i + 1 < big; i += 2) {
        text[i + 1] = 'a';
    }
    text[big - 1] = ']';
    assert_int_equal(yaml(text), TD_ERR_CONFIG);
    free(text);
}

static void print_config_can_be_loaded_again(void **state)
{
    struct config first;
    char path[64];
    char text[sizeof captured];
    (void)state;
    strcpy(text, output_of("--print-config", TD_CONFIG_EXIT_OK));
    assert_non_null(strstr(text, "# port to listen on [at boot]\nport: 81\n"));
    assert_non_null(strstr(text, "# model: \"\"\n"));
    assert_non_null(strstr(text, "# share, in of memory [for debugging]\nkv-ratio: 0.5\n"));
    write_file(path, text);
    assert_int_equal(LOAD("--config", path), TD_CONFIG_RUN);
    first = c;
    assert_int_equal(first.port, 81);
    assert_int_equal(first.role, 2);
    assert_null(first.model);
    assert_int_equal(first.nodes.count, 2);
    (void)unlink(path);
}

static void questions_are_answered_on_stdout(void **state)
{
    (void)state;
    assert_non_null(strstr(output_of("--help", TD_CONFIG_EXIT_OK), "--role prefill|decode|both"));
    assert_non_null(strstr(captured, "--print-config"));
    assert_non_null(strstr(captured, "usage: tandem-test OUT [--flag value]...\n"));
    assert_string_equal(output_of("-h", TD_CONFIG_EXIT_OK), captured);
    assert_string_equal(output_of("--version", TD_CONFIG_EXIT_OK),
                        "tandem-test " TD_VERSION " (fault points)\n");
    assert_string_equal(output_of("--check-config", TD_CONFIG_EXIT_OK),
                        "tandem-test: configuration ok\n");
    assert_non_null(strstr(output_of("--list-fault-points", TD_CONFIG_EXIT_OK), "xfer.post.fail"));
    assert_int_equal(LOAD("--check-config", "--port", "x"), TD_CONFIG_EXIT_BAD);
}

static void options_that_cannot_be_used_end_a_program_with_2(void **state)
{
    (void)state;
    assert_int_equal(td_config_exit_status(TD_OK), 0);
    assert_int_equal(td_config_exit_status(TD_ERR_CONFIG), 2);
    assert_int_equal(td_config_exit_status(TD_ERR_ADDRESS), 1);
}

static void faults_are_armed_from_the_command_line(void **state)
{
    (void)state;
    assert_int_equal(LOAD("--fault", "ctl.drop=fail:times=1"), TD_CONFIG_RUN);
    assert_true(TD_FAULT(CTL_DROP));
    (void)setenv("TANDEM_FAULT", "ctl.drop=fail:times=1", 1);
    td_fault_reset();
    assert_int_equal(LOAD(), TD_CONFIG_RUN);
    assert_true(TD_FAULT(CTL_DROP));
}

static void every_failing_allocation_is_an_orderly_end(void **state)
{
    char path[64];
    unsigned n = 0;
    enum td_config_outcome outcome = TD_CONFIG_EXIT_BAD;
    (void)state;
    write_file(path, "nodes: [one, two]\nmodel: x\n");
    while (outcome != TD_CONFIG_RUN) {
        n++;
        td_mem_fail_nth(n);
        outcome = LOAD("--config", path, "--nodes", "y,z");
        td_mem_fail_nth(0);
    }
    assert_true(n > 8);
    assert_int_equal(c.nodes.count, 2);
    (void)unlink(path);
}

static void a_program_may_ask_what_the_command_line_told(void **state)
{
    struct {
        int64_t port, other;
        struct td_opt_set told;
    } o;
    static const struct td_opt rows[] = {
        {"port", TD_OPT_INT, "1", "", 0, 9, NULL, TD_OPT_BOOT, "a port", 0},
        {"other", TD_OPT_INT, "1", "", 0, 9, NULL, TD_OPT_BOOT, "another", sizeof(int64_t)}};
    const struct td_program p = {.name = "told",
                                 .opts = rows,
                                 .n_opts = 2,
                                 .struct_bytes = sizeof o,
                                 .told_offset = 2 * sizeof(int64_t)};
    char *argv[] = {(char *)(uintptr_t) "told", (char *)(uintptr_t) "--other=1"};
    (void)state;
    (void)setenv("TANDEM_PORT", "2", 1);
    assert_int_equal(td_config_load(&p, 2, argv, &o), TD_CONFIG_RUN);
    assert_int_equal(o.port, 2);
    assert_false(td_config_told(&p, &o, "port")); /* the environment is no command line */
    assert_true(td_config_told(&p, &o, "other")); /* also when it tells the default */
    td_config_fini(&p, &o);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, clean, clean)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(defaults_fill_the_struct),
        TEST(the_command_line_wins_over_environment_over_file),
        TEST(the_environment_may_name_the_file),
        TEST(a_program_may_ask_what_the_command_line_told),
        TEST(a_list_of_a_later_source_replaces_the_earlier_one),
        TEST(bool_flags_take_no_value_or_one_after_equals),
        TEST(bad_command_lines_are_refused_with_one_error),
        TEST(too_many_flags_are_refused),
        TEST(foreign_variables_and_service_links_are_ignored),
        TEST(yaml_takes_one_flat_mapping),
        TEST(hostile_yaml_is_refused),
        TEST(yaml_size_and_entries_are_bounded),
        TEST(print_config_can_be_loaded_again),
        TEST(questions_are_answered_on_stdout),
        TEST(options_that_cannot_be_used_end_a_program_with_2),
        TEST(faults_are_armed_from_the_command_line),
        TEST(every_failing_allocation_is_an_orderly_end),
    };
    return cmocka_run_group_tests_name("base/config", tests, NULL, NULL);
}
