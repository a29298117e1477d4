/* A request's context: what comes in, what the nodes get, what is recorded. Spans: tests/integration/trace_test.py. */
#include "router/rt_trace.h"

#include <string.h>

#include "common/base/mem.h"
#include "tests/unit/check.h"

#define ID     "0af7651916cd43dd8448eb211c80319c"
#define PARENT "00-" ID "-b7ad6b7169203331-0"

static struct td_http_request request(const char *parent, const char *state)
{
    struct td_http_request r = {.method = "POST", .path = "/", .query = ""};
    if (parent != NULL) {
        r.headers[r.n_headers++] = (struct td_http_header){"traceparent", parent};
    }
    if (state != NULL) {
        r.headers[r.n_headers++] = (struct td_http_header){"tracestate", state};
    }
    return r;
}

static void without_an_exporter_the_context_goes_on_as_it_came(void **state)
{
    struct rt_shell_params p = {.trace_ratio = 1};
    struct rt_trace t;
    char id[33];
    (void)state;
    struct td_http_request r = request(PARENT "1", NULL);
    rt_trace_begin(&p, &r, &t);
    assert_true(t.known && !t.recorded);
    assert_string_equal(t.traceparent, PARENT "1");
    assert_string_equal(rt_trace_id(&t, id), ID);
    r = request(NULL, "a=b");
    rt_trace_begin(&p, &r, &t);
    assert_false(t.known);
    assert_string_equal(t.traceparent, "");
    assert_string_equal(rt_trace_id(&t, id), "");
    r = request("00-" ID "-0000000000000000-01", NULL);
    rt_trace_begin(&p, &r, &t);
    assert_string_equal(t.traceparent, "");
}

static void with_one_the_nodes_get_our_span_as_their_parent(void **state)
{
    static int exporter; /* only its being there counts */
    struct rt_shell_params p = {.trace_ratio = 1, .otlp = (struct td_otlp *)(void *)&exporter};
    struct rt_trace t;
    struct td_trace sent;
    (void)state;
    struct td_http_request r = request(PARENT "1", "rojo=1");
    rt_trace_begin(&p, &r, &t);
    assert_true(t.recorded && td_trace_parse(t.traceparent, &sent));
    assert_memory_equal(t.parent, "\xb7\xad\x6b\x71\x69\x20\x33\x31", 8);
    assert_memory_not_equal(sent.span_id, t.parent, 8);
    assert_memory_equal(sent.span_id, t.own.span_id, 8);
    assert_string_equal(t.state, "rojo=1");
    r = request(NULL, "rojo=1"); /* a state without a parent is nobody's */
    rt_trace_begin(&p, &r, &t);
    assert_true(t.recorded && td_trace_parse(t.traceparent, &sent) && sent.sampled);
    assert_memory_equal(t.parent, "\0\0\0\0\0\0\0\0", 8);
    assert_string_equal(t.state, "");
}

static void the_callers_decision_is_kept_unless_the_ratio_is_for_all(void **state)
{
    static int exporter;
    static const struct {
        double ratio;
        bool always;
        const char *parent;
        bool recorded;
    } rows[] = {{1, false, PARENT "0", false}, {0, false, PARENT "1", true},
                {0, true, PARENT "1", false},  {1, true, PARENT "0", true},
                {0, false, NULL, false},       {1, false, NULL, true}};
    (void)state;
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        struct rt_shell_params p = {.trace_ratio = rows[i].ratio,
                                    .trace_ratio_always = rows[i].always,
                                    .otlp = (struct td_otlp *)(void *)&exporter};
        struct rt_trace t;
        struct td_trace sent;
        struct td_http_request r = request(rows[i].parent, NULL);
        rt_trace_begin(&p, &r, &t);
        assert_int_equal(t.recorded, rows[i].recorded);
        assert_true(td_trace_parse(t.traceparent, &sent));
        assert_int_equal(sent.sampled, rows[i].recorded);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_an_exporter_the_context_goes_on_as_it_came),
        cmocka_unit_test(with_one_the_nodes_get_our_span_as_their_parent),
        cmocka_unit_test(the_callers_decision_is_kept_unless_the_ratio_is_for_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
