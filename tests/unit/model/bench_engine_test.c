#include "common/model/bench_engine.h"

#include "tests/unit/model/engine_util.h"

static struct td_engine *engine_for_bench(const struct eu_model *m, uint32_t blocks)
{
    struct td_cpu_engine_params p = eu_params("int8", TD_ISA_AUTO, 1);
    struct td_engine *e = NULL;
    p.n_blocks = blocks;
    p.max_rows = TD_BENCH_STREAMS;
    p.max_slots = TD_BENCH_STREAMS;
    p.max_model_len = 2048;
    assert_int_equal(td_cpu_engine_create(m->m, &p, &e), TD_OK);
    return e;
}

static void every_case_gives_a_rate(void **state)
{
    struct eu_model m = eu_model_open("q4_1");
    struct td_engine *e = engine_for_bench(&m, TD_BENCH_BLOCKS);
    struct td_bench_result r;
    char text[1024];
    assert_int_equal(td_bench_engine(e, 1, &r), TD_OK);
    for (int i = 0; i < TD_BENCH_CASES; i++) {
        assert_true(r.cases[i].median > 0);
    }
    FILE *f = tmpfile();
    assert_non_null(f);
    td_bench_engine_print(&r, f);
    rewind(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    (void)fclose(f);
    assert_non_null(strstr(text, "cpu: "));
    assert_non_null(strstr(text, "prefill_512"));
    assert_non_null(strstr(text, "streams_16"));
    e->ops->destroy(e);
    eu_model_close(&m);
}

static void an_engine_that_is_too_small_is_refused(void **state)
{
    struct eu_model m = eu_model_open("q4_1");
    struct td_engine *e = engine_for_bench(&m, TD_BENCH_BLOCKS - 1);
    struct td_bench_result r;
    assert_int_equal(td_bench_engine(e, 1, &r), TD_ERR_CONFIG);
    e->ops->destroy(e);
    e = engine_for_bench(&m, TD_BENCH_BLOCKS);
    assert_int_equal(td_bench_engine(e, 0, &r), TD_ERR_CONFIG);
    assert_int_equal(td_bench_engine(e, TD_BENCH_MAX_REPS + 1, &r), TD_ERR_CONFIG);
    e->ops->destroy(e);
    eu_model_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_case_gives_a_rate),
        cmocka_unit_test(an_engine_that_is_too_small_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
