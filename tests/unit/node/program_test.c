/* The program of a node: options, exit statuses, ports, the way out. Each run is a child process. */
#include "common/node/program.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/mem.h"
#include "tests/tiny/tiny_gguf.h"
#include "tests/unit/node/shell_rig.h"

#define MAX_ARGS 24

static char dir[64], model[96], keys[96], ports[96], output[96];

static td_err front_create(const struct td_front_params *p, void **out_front)
{
    bool as_told = strcmp(p->name, "both-0") == 0 && strcmp(p->served_names[0], "m1") == 0 &&
                   p->n_served_names == 2 && strncmp(p->node_url, "tcp://127.0.0.1:", 16) == 0 &&
                   p->n_keys == 1 && p->port == 4321 && p->budget_s == 5;
    *out_front = as_told ? malloc(1) : NULL;
    return as_told ? TD_OK : TD_ERR_CONFIG;
}

static void front_destroy(void *front)
{
    free(front);
}

static void front_drain(void *front)
{
    (void)front;
}

static bool front_idle(const void *front)
{
    (void)front;
    return true;
}

static uint16_t front_port(const void *front)
{
    (void)front;
    return 4321;
}

static uint16_t front_admin_port(const void *front)
{
    (void)front;
    return 4322;
}

static uint16_t front_grpc_port(const void *front)
{
    (void)front;
    return 8002;
}

static void front_reload_tls(void *front)
{
    (void)front;
}

static const struct td_front_ops front_ops = {.create = front_create,
                                              .destroy = front_destroy,
                                              .drain = front_drain,
                                              .idle = front_idle,
                                              .port = front_port,
                                              .admin_port = front_admin_port,
                                              .grpc_port = front_grpc_port,
                                              .reload_tls = front_reload_tls};

static const struct td_node_program program = {.name = "tandem-test",
                                               .summary = "a node",
                                               .default_role = TD_ROLE_DECODE,
                                               .prefill = &fake_role_ops,
                                               .decode = &fake_role_ops,
                                               .front = &front_ops};

static pid_t start(const char *const *args)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char *argv[MAX_ARGS + 2] = {(char *)(uintptr_t) "tandem-test"};
        int argc = 1;
        int fd = open(output, O_CREAT | O_TRUNC | O_WRONLY, 0600);
        (void)dup2(fd, 1);
        (void)dup2(fd, 2);
        for (; args[argc - 1] != NULL && argc <= MAX_ARGS; argc++) {
            argv[argc] = (char *)(uintptr_t)args[argc - 1];
        }
        exit(td_node_program_main(&program, argc, argv)); /* exit: so that leaks are found */
    }
    return pid;
}

static int wait_for(pid_t pid)
{
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static const char *said(const char *path)
{
    static char text[1 << 16];
    FILE *f = fopen(path, "r");
    size_t n = f != NULL ? fread(text, 1, sizeof text - 1, f) : 0;
    text[n] = 0;
    if (f != NULL) {
        (void)fclose(f);
    }
    return text;
}

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    (void)fclose(f);
}

static int group_setup(void **state)
{
    struct td_tiny_params p = td_tiny_defaults();
    (void)state;
    p.n_layers = 1;
    (void)snprintf(dir, sizeof dir, "/tmp/node-program-XXXXXX");
    if (mkdtemp(dir) == NULL) {
        return -1;
    }
    (void)snprintf(model, sizeof model, "%s/model.gguf", dir);
    (void)snprintf(keys, sizeof keys, "%s/keys", dir);
    (void)snprintf(ports, sizeof ports, "%s/ports", dir);
    (void)snprintf(output, sizeof output, "%s/output", dir);
    write_file(keys, "k1 0123456789abcdef\n");
    return td_tiny_write_file(&p, model) == TD_OK ? 0 : -1;
}

static int group_teardown(void **state)
{
    (void)state;
    (void)unlink(model);
    (void)unlink(keys);
    (void)unlink(ports);
    (void)unlink(output);
    return rmdir(dir);
}

static void options_decide_the_exit_status_before_anything_starts(void **state)
{
    (void)state;
    const struct {
        const char *args[8];
        int status;
        const char *want;
    } rows[] = {
        {{"--help"}, 0, "--cluster-key-file"},
        {{"--version"}, 0, "tandem-test"},
        {{"--print-config"}, 0, "max-num-seqs"},
        {{"--no-such-option", "1"}, 2, "no-such-option"},
        {{"--modle", "x"}, 2, "did you mean model"}, /* the nearest name */
        {{"--role", "poet"}, 2, "role"},
        {{"--admin-port", "70000"}, 2, "admin-port"},
        {{"--max-num-seqs", "many"}, 2, "max-num-seqs"},
        {{NULL}, 2, "--model"},
        {{"--model", model}, 2, "--cluster-key-file"},
        {{"--model", model, "--cluster-key-file", "/nonexistent"}, 1, "/nonexistent"},
        {{"--model", "/nonexistent", "--cluster-key-file", keys}, 1, "/nonexistent"},
        {{"--model", keys, "--cluster-key-file", keys}, 1, keys}, /* not a GGUF file */
        {{"--model", model, "--cluster-key-file", model}, 2, "cluster key file is wrong"},
        {{"--model", model, "--cluster-key-file", keys, "--kv-port-range", "9-8"},
         2,
         "kv-port-range"},
        {{"--model", model, "--cluster-key-file", keys, "--kv-port-range", "x"},
         2,
         "kv-port-range"},
        {{"--model", model, "--cluster-key-file", keys, "--kv-port-range", "1-70000"},
         2,
         "kv-port-range"},
        {{"--model", model, "--cluster-key-file", keys, "--prefill-chunk", "17"}, 2, "multiple"},
        {{"--model", model, "--role", "both", "--port", "1"}, 2, ""}, /* the front refuses */
        {{"--model", model, "--cluster-key-file", keys, "--rank", "1"},
         2,
         "--tensor-parallel-size"},
        {{"--model", model, "--role", "both", "--tensor-parallel-size", "2"},
         2,
         "--cluster-key-file"},
        {{"--model", model, "--cluster-key-file", keys, "--tensor-parallel-size=2", "--rank=1"},
         2,
         "--rank-leader"},
    };
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        const char *args[MAX_ARGS + 1] = {0};
        size_t n = 0;
        for (; rows[i].args[n] != NULL && n < 8; n++) {
            args[n] = rows[i].args[n];
        }
        if (n > 2) { /* what starts must not meet another node */
            args[n++] = "--admin-port=0";
            args[n++] = "--listen=tcp://127.0.0.1:0";
            args[n++] = "--kv-blocks=16";
            args[n++] = "--threads=1";
        }
        int status = wait_for(start(args));
        if (status != rows[i].status || strstr(said(output), rows[i].want) == NULL) {
            fail_msg("row %zu: status %d, want %d and '%s' in:\n%s", i, status, rows[i].status,
                     rows[i].want, said(output));
        }
    }
}

/* Polls: the child tells by the port file that it listens. */
static bool listens(pid_t pid)
{
    for (int i = 0; i < 2000; i++) {
        if (strstr(said(ports), "admin ") != NULL) {
            return true;
        }
        if (waitpid(pid, NULL, WNOHANG) != 0) {
            return false;
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    return false;
}

static void a_node_that_serves_alone_writes_its_ports_and_ends_on_sigterm(void **state)
{
    (void)state;
    const char *args[] = {"--model",
                          model,
                          "--role",
                          "both",
                          "--served-model-name",
                          "m1,m2",
                          "--port",
                          "4321",
                          "--admin-port",
                          "0",
                          "--name",
                          "both-0",
                          "--port-file",
                          ports,
                          "--kv-blocks",
                          "16",
                          "--threads",
                          "1",
                          "--request-timeout",
                          "5",
                          "--drain-timeout",
                          "20",
                          NULL};
    (void)unlink(ports);
    pid_t pid = start(args);
    if (!listens(pid)) {
        fail_msg("does not listen: %s", said(output));
    }
    const char *text = said(ports);
    assert_non_null(strstr(text, "control tcp://127.0.0.1:"));
    assert_non_null(strstr(text, "http 4321\n"));
    assert_non_null(strstr(text, "router-admin 4322\n"));
    assert_int_equal(kill(pid, SIGTERM), 0);
    if (wait_for(pid) != 0) {
        fail_msg("%s", said(output));
    }
    assert_non_null(strstr(said(output), "drain"));
}

static void a_port_file_that_cannot_be_written_ends_the_start(void **state)
{
    (void)state;
    const char *args[] = {"--model",
                          model,
                          "--role",
                          "both",
                          "--served-model-name",
                          "m1,m2",
                          "--port",
                          "4321",
                          "--admin-port",
                          "0",
                          "--name",
                          "both-0",
                          "--port-file",
                          "/nonexistent/ports",
                          "--kv-blocks",
                          "16",
                          "--threads",
                          "1",
                          "--request-timeout",
                          "5",
                          NULL};
    assert_int_equal(wait_for(start(args)), 1);
    assert_non_null(strstr(said(output), "port file"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_decide_the_exit_status_before_anything_starts),
        cmocka_unit_test(a_node_that_serves_alone_writes_its_ports_and_ends_on_sigterm),
        cmocka_unit_test(a_port_file_that_cannot_be_written_ends_the_start),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
