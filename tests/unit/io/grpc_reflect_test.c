/* Reflection against a client of raw frames; stock clients are in tests/integration/grpc_test.py. */
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/io/grpc_reflect.h"
#include "tests/unit/io/h2_rig.h"

static struct td_loop *loop;
static struct td_grpc_server *server;
static struct td_grpc_reflect *reflect;
static struct h2_conn *conn;
static uint8_t body[65536];

static int setup(void **state)
{
    (void)state;
    td_log_set_level(TD_LOG_ERROR);
    struct td_grpc_server_params p;
    td_grpc_server_defaults(&p);
    assert_int_equal(td_loop_create(&loop), TD_OK);
    p.h2.loop = loop;
    p.h2.host = "127.0.0.1";
    assert_int_equal(td_grpc_server_create(&p, &server), TD_OK);
    assert_int_equal(td_grpc_reflect_create(server, true, &reflect), TD_OK);
    conn = h2_dial(loop, td_h2_server_port(td_grpc_server_h2(server)));
    h2_hello(conn);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    h2_hang_up(conn);
    server = td_grpc_server_destroy(server);
    reflect = td_grpc_reflect_destroy(reflect);
    loop = td_loop_destroy(loop);
    return 0;
}

/* One question of field `field`; true when the answer holds `want`. */
static bool answers(uint32_t stream, const char *version, char field, const char *text,
                    const char *want)
{
    char path[128], message[128];
    (void)snprintf(path, sizeof path, "/grpc.reflection.%s.ServerReflection/ServerReflectionInfo",
                   version);
    int n = snprintf(message, sizeof message, "%c%c%s", (char)(field * 8 + 2), (char)strlen(text),
                     text);
    h2_request(conn, stream, path, NULL, 0);
    h2_message(conn, stream, message, (size_t)n, H2_END_STREAM);
    size_t len = h2_answer(conn, stream, body, sizeof body);
    assert_string_equal(h2_header(conn, "grpc-status"), "0");
    return memmem(body, len, want, strlen(want)) != NULL;
}

static void services_are_listed_in_both_versions(void **state)
{
    (void)state;
    assert_true(answers(1, "v1", 7, "*", "grpc.reflection.v1alpha.ServerReflection"));
    assert_true(answers(3, "v1alpha", 7, "*", "grpc.reflection.v1.ServerReflection"));
}

static void a_file_is_found_by_name_and_by_any_symbol(void **state)
{
    (void)state;
    assert_true(answers(1, "v1", 3, "tandem.proto", "GenerateRequest"));
    assert_true(answers(3, "v1", 4, "tandem.v1.Engine.Generate", "GenerateRequest"));
    assert_true(answers(5, "v1", 4, "tandem.v1.GenerateRequest.model", "GenerateRequest"));
    assert_true(answers(7, "v1", 4, "grpc.health.v1.Health", "HealthCheckRequest"));
}

static void what_is_not_there_is_an_answer_not_an_end(void **state)
{
    (void)state;
    assert_true(answers(1, "v1", 3, "no.proto", "not found"));
    assert_true(answers(3, "v1", 4, "tandem.v1.Nothing", "not found"));
    assert_true(answers(5, "v1", 6, "tandem.v1.Nothing", "not found"));
    assert_true(answers(7, "v1", 6, "tandem.v1.Delta", "tandem.v1.Delta"));
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(services_are_listed_in_both_versions),
        T(a_file_is_found_by_name_and_by_any_symbol),
        T(what_is_not_there_is_an_answer_not_an_end),
    };
    return cmocka_run_group_tests_name("grpc_reflect", tests, NULL, NULL);
}
