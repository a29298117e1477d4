/* Which engine a node may run, and the reason when it may not. */
#include "common/node/backend.h"

#define TD_GOLDEN_DIR "" /* model_util.h names it; no golden file is read here */
#include "tests/unit/model/engine_util.h"

static struct td_backend_params params(enum td_backend backend)
{
    return (struct td_backend_params){
        .backend = backend,
        .serves_alone = true,
        .cpu = eu_params("int8", TD_ISA_AUTO, 1),
        .cuda = {.memory_utilization = 0.9, .max_rows = 1, .max_tokens = 16, .max_slots = 1}};
}

static td_err create(struct td_backend_params p, char *text, size_t cap)
{
    struct eu_model m = eu_model_open("q4_1");
    struct td_engine *e = NULL;
    FILE *log = catch_log();
    td_err err = td_backend_create(m.m, &p, &e);
    caught_log(log, text, cap);
    if (err == TD_OK) {
        e->ops->destroy(e);
    }
    eu_model_close(&m);
    return err;
}

static void the_processors_are_the_default_backend(void **state)
{
    char text[4096];
    assert_int_equal(create(params(TD_BACKEND_CPU), text, sizeof text), TD_OK);
    assert_non_null(strstr(text, "cpu engine ready"));
}

static void options_of_the_other_backend_are_refused(void **state)
{
    char text[4096];
    struct td_backend_params p = params(TD_BACKEND_CPU);
    p.cuda.deterministic = true;
    assert_int_equal(create(p, text, sizeof text), TD_ERR_CONFIG);
    assert_non_null(strstr(text, "--deterministic"));
    p = params(TD_BACKEND_CUDA);
    p.cpu.numerics = "f32";
    assert_int_equal(create(p, text, sizeof text), TD_ERR_CONFIG);
    assert_non_null(strstr(text, "--numerics"));
}

static void a_gpu_serves_alone_until_its_kv_can_travel(void **state)
{
    char text[4096];
    struct td_backend_params p = params(TD_BACKEND_CUDA);
    p.serves_alone = false;
    assert_int_equal(create(p, text, sizeof text), TD_ERR_CONFIG);
    assert_non_null(strstr(text, "--role both only"));
}

/* Either the build lacks it, or the model is refused: q4_1 is quantised, so no device is touched. */
static void a_gpu_that_cannot_be_had_is_an_error_in_words(void **state)
{
    char text[4096];
    td_err err = create(params(TD_BACKEND_CUDA), text, sizeof text);
    assert_true(err == TD_ERR_CONFIG || err == TD_ERR_FILE_UNSUPPORTED);
    assert_non_null(strstr(text, "level=error"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_processors_are_the_default_backend),
        cmocka_unit_test(options_of_the_other_backend_are_refused),
        cmocka_unit_test(a_gpu_serves_alone_until_its_kv_can_travel),
        cmocka_unit_test(a_gpu_that_cannot_be_had_is_an_error_in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
