#include <string.h>

#include "proto/grpc_std.h"
#include "tests/unit/check.h"

static void every_service_and_message_is_in_the_table(void **state)
{
    (void)state;
    static const char *const symbols[] = {
        "tandem.v1.Engine",
        "tandem.v1.Admin.Explain",
        "tandem.v1.SamplingParams.temperature_",
        "tandem.v1.GenerateRequest.input",
        "tandem.v1.FINISH_REASON_STOP",
        "tandem.v1.SamplingParams.LogitBiasEntry",
        "grpc.health.v1.HealthCheckResponse.ServingStatus",
        "grpc.health.v1.HealthCheckResponse.SERVING",
        "grpc.reflection.v1.ServerReflection.ServerReflectionInfo",
        "grpc.reflection.v1alpha.ServerReflectionRequest"};
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        assert_int_not_equal(td_pb_file_by_symbol(symbols[i]), TD_PB_NO_FILE);
    }
    assert_int_equal(td_pb_file_by_symbol("tandem.v1.Eng"), TD_PB_NO_FILE);
    assert_int_equal(td_pb_file_by_symbol(""), TD_PB_NO_FILE);
    assert_int_equal(td_pb_file_by_symbol("tandem.wire.v1.Message"), TD_PB_NO_FILE); /* internal */
}

static void a_file_is_its_descriptor_and_knows_what_it_imports(void **state)
{
    (void)state;
    assert_int_equal(td_pb_n_files, 6);
    for (uint32_t i = 0; i < td_pb_n_files; i++) {
        const struct td_pb_file *f = &td_pb_files[i];
        size_t n = strlen(f->name);
        assert_int_equal(td_pb_file_by_name(f->name), i);
        assert_int_equal(f->data[0], 0x0a); /* name = 1 */
        assert_int_equal(f->data[1], n);
        assert_memory_equal(f->data + 2, f->name, n);
        assert_int_equal(f->data[2 + n], 0x12); /* package = 2 */
        uint8_t after = f->data[2 + n + 2 + f->data[2 + n + 1]];
        bool engine = strcmp(f->name, "vllm_engine.proto") == 0;
        assert_int_equal(after == 0x1a, engine); /* dependency = 3 comes here */
        assert_int_equal(f->n_imports, engine ? 1 : 0);
        if (engine) {
            assert_string_equal(td_pb_files[f->imports[0]].name, "smg_common.proto");
        }
    }
    assert_int_equal(td_pb_file_by_name("wire.proto"), TD_PB_NO_FILE);
}

static void a_reflection_answer_begins_with_its_request(void **state)
{
    (void)state;
    struct td_arena *arena = td_arena_create(1u << 20);
    struct td_reflect_request q;
    struct td_buf out;
    static const uint8_t bytes[] = "\x0a\1h\x3a\1*";
    static const char *const names[] = {"a.B"};
    td_buf_init(&out, 1u << 20);
    assert_int_equal(td_pb_reflect_decode(bytes, 6, arena, &q), TD_OK);
    assert_int_equal(q.ask, TD_REFLECT_SERVICES);
    assert_string_equal(q.host, "h");
    assert_int_equal(td_pb_reflect_services(&out, &q, names, 1), TD_OK);
    assert_memory_equal(out.data, "\x0a\1h\x12\6\x0a\1h\x3a\1*\x32\7\x0a\5\x0a\3a.B", out.len);
    td_buf_clear(&out);
    uint32_t engine = td_pb_file_by_name("vllm_engine.proto"),
             common = td_pb_file_by_name("smg_common.proto");
    assert_int_equal(td_pb_reflect_file(&out, &q, engine), TD_OK);
    assert_true(out.len > td_pb_files[engine].len + td_pb_files[common].len); /* both are in it */
    td_buf_clear(&out);
    assert_int_equal(td_pb_reflect_error(&out, &q, 5, "no"), TD_OK);
    assert_memory_equal(out.data, "\x0a\1h\x12\6\x0a\1h\x3a\1*\x3a\6\x08\5\x12\2no", out.len);
    td_buf_fini(&out);
    td_arena_destroy(arena);
}

static void health_messages_go_both_ways(void **state)
{
    (void)state;
    struct td_arena *arena = td_arena_create(1u << 20);
    struct td_buf out;
    const char *service = NULL;
    td_buf_init(&out, 64);
    assert_int_equal(td_pb_health_decode((const uint8_t *)"\x0a\1a", 3, arena, &service), TD_OK);
    assert_string_equal(service, "a");
    assert_int_equal(td_pb_health_decode((const uint8_t *)"\x0a\2a", 3, arena, &service),
                     TD_ERR_BAD_REQUEST);
    enum td_health status = TD_HEALTH_UNKNOWN;
    assert_int_equal(td_pb_health_answer_decode((const uint8_t *)"\x08\2", 2, arena, &status),
                     TD_OK);
    assert_int_equal(status, TD_HEALTH_NOT_SERVING);
    assert_int_equal(td_pb_health_answer_decode((const uint8_t *)"\x08\7", 2, arena, &status),
                     TD_ERR_BAD_REQUEST);
    assert_int_equal(td_pb_health_ask_encode(&out, "a"), TD_OK);
    assert_memory_equal(out.data, "\x0a\1a", out.len);
    td_buf_clear(&out);
    assert_int_equal(td_pb_health_encode(&out, TD_HEALTH_NOT_SERVING), TD_OK);
    assert_memory_equal(out.data, "\x08\2", out.len);
    td_buf_fini(&out);
    td_arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_service_and_message_is_in_the_table),
        cmocka_unit_test(a_file_is_its_descriptor_and_knows_what_it_imports),
        cmocka_unit_test(a_reflection_answer_begins_with_its_request),
        cmocka_unit_test(health_messages_go_both_ways),
    };
    return cmocka_run_group_tests_name("grpc_std", tests, NULL, NULL);
}
