/* The exporter against a collector that keeps what it gets; and the settings. */
#include "common/io/otlp.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/io/http_server.h"
#include "tests/unit/check.h"

#define GIVE_UP_US 20000000

struct rig {
    struct td_loop *loop;
    struct td_http_server *server;
    struct td_otlp *otlp;
    int status; /* what the collector answers */
    json_t *posts[16];
    uint32_t n_posts;
    uint64_t n_spans; /* in all posts */
};

static json_t *spans_of(json_t *post)
{
    json_t *resource = json_array_get(json_object_get(post, "resourceSpans"), 0);
    json_t *scope = json_array_get(json_object_get(resource, "scopeSpans"), 0);
    return json_object_get(scope, "spans");
}

static void collect(void *arg, struct td_http_exchange *x)
{
    struct rig *r = arg;
    const struct td_http_request *q = td_http_exchange_request(x);
    assert_string_equal(q->method, "POST");
    assert_string_equal(q->path, TD_OTLP_PATH);
    assert_string_equal(td_http_header_get(q, "content-type"), "application/json");
    char why[160];
    json_t *root = NULL;
    assert_int_equal(td_json_parse((const char *)q->body, q->body_len, &root, why, sizeof why),
                     TD_OK);
    r->n_spans += json_array_size(spans_of(root));
    if (r->n_posts < 16) {
        r->posts[r->n_posts++] = root;
    } else {
        json_decref(root);
    }
    td_http_respond(x, r->status, NULL, 0, "application/json", "{}", 2);
}

static int setup(void **state)
{
    struct rig *r = td_zalloc(1, sizeof *r);
    struct td_http_server_params p;
    assert_non_null(r);
    r->status = 200;
    assert_int_equal(td_loop_create(&r->loop), TD_OK);
    td_http_server_defaults(&p);
    p.loop = r->loop;
    p.host = "127.0.0.1";
    p.port = 0;
    p.handler = collect;
    p.arg = r;
    assert_int_equal(td_http_server_create(&p, &r->server), TD_OK);
    *state = r;
    return 0;
}

static int teardown(void **state)
{
    struct rig *r = *state;
    td_otlp_destroy(r->otlp);
    td_http_server_destroy(r->server);
    td_loop_destroy(r->loop);
    for (uint32_t i = 0; i < r->n_posts; i++) {
        json_decref(r->posts[i]);
    }
    free(r);
    return 0;
}

static void start(struct rig *r, uint16_t port, int64_t interval_us)
{
    char url[64];
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%u%s", port, TD_OTLP_PATH);
    struct td_otlp_params p = {.url = url,
                               .service = "tandem-test",
                               .instance = "n\"0",
                               .version = "9",
                               .interval_us = interval_us,
                               .timeout_us = 500000};
    assert_int_equal(td_otlp_create(&p, &r->otlp), TD_OK);
}

static struct td_otlp_stats stats_of(struct rig *r)
{
    struct td_otlp_stats s;
    td_otlp_stats(r->otlp, &s);
    return s;
}

/* Until so many spans have met their fate. */
static struct td_otlp_stats until(struct rig *r, uint64_t n)
{
    int64_t end = td_now_us() + GIVE_UP_US;
    struct td_otlp_stats s = stats_of(r);
    while (s.sent + s.failed + s.dropped < n) {
        td_loop_run_once(r->loop, 10000);
        s = stats_of(r);
        assert_true(td_now_us() < end);
    }
    return s;
}

static const char *text_of(json_t *o, const char *key)
{
    const char *v = json_string_value(json_object_get(o, key));
    return v != NULL ? v : "";
}

static json_t *attr(json_t *span, const char *key)
{
    size_t i = 0;
    json_t *a = NULL;
    json_array_foreach(json_object_get(span, "attributes"), i, a)
    {
        if (strcmp(text_of(a, "key"), key) == 0) {
            return json_object_get(a, "value");
        }
    }
    return NULL;
}

static void a_span_arrives_with_all_it_says(void **state)
{
    struct rig *r = *state;
    static const char *const stops[] = {"a", "b\n"};
    const struct td_attr attrs[] = {TD_TEXT("text", "with \"quotes\""), TD_INT("int", -5),
                                    TD_REAL("real", 0.25), TD_TEXTS("texts", stops, 2)};
    struct td_span s = {.name = "prefill",
                        .state = "rojo=1",
                        .kind = TD_SPAN_INTERNAL,
                        .attrs = attrs,
                        .n_attrs = TD_COUNT(attrs),
                        .error = "node lost"};
    char want[64];
    assert_true(
        td_trace_parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", &s.trace));
    memcpy(s.parent, "\1\2\3\4\5\6\7\10", 8);
    start(r, td_http_server_port(r->server), 1000);
    s.start_us = td_now_us();
    s.end_us = s.start_us + 1500;
    int64_t wall = td_wall_us();
    td_otlp_put(r->otlp, &s);
    assert_int_equal(until(r, 1).sent, 1);
    json_t *resource = json_object_get(
        json_array_get(json_object_get(r->posts[0], "resourceSpans"), 0), "resource");
    assert_string_equal(text_of(attr(resource, "service.name"), "stringValue"), "tandem-test");
    assert_string_equal(text_of(attr(resource, "service.instance.id"), "stringValue"), "n\"0");
    json_t *got = json_array_get(spans_of(r->posts[0]), 0);
    assert_string_equal(text_of(got, "traceId"), "0af7651916cd43dd8448eb211c80319c");
    assert_string_equal(text_of(got, "spanId"), "b7ad6b7169203331");
    assert_string_equal(text_of(got, "parentSpanId"), "0102030405060708");
    assert_string_equal(text_of(got, "traceState"), "rojo=1");
    assert_string_equal(text_of(got, "name"), "prefill");
    assert_int_equal(json_integer_value(json_object_get(got, "kind")), 1);
    int64_t began = strtoll(text_of(got, "startTimeUnixNano"), NULL, 10);
    (void)snprintf(want, sizeof want, "%" PRId64, began + 1500000);
    assert_string_equal(text_of(got, "endTimeUnixNano"), want);
    assert_true(llabs(began / 1000 - wall) < 5000000); /* unix time, whatever the machine does */
    assert_string_equal(text_of(attr(got, "text"), "stringValue"), "with \"quotes\"");
    assert_string_equal(text_of(attr(got, "int"), "intValue"), "-5");
    assert_true(json_real_value(json_object_get(attr(got, "real"), "doubleValue")) == 0.25);
    json_t *list = json_object_get(json_object_get(attr(got, "texts"), "arrayValue"), "values");
    assert_string_equal(text_of(json_array_get(list, 1), "stringValue"), "b\n");
    json_t *status = json_object_get(got, "status");
    assert_int_equal(json_integer_value(json_object_get(status, "code")), 2);
    assert_string_equal(text_of(status, "message"), "node lost");
}

static void put_plain(struct rig *r, const char *name)
{
    struct td_span s = {.name = name, .kind = TD_SPAN_SERVER, .start_us = 1, .end_us = 2};
    td_trace_new(&s.trace);
    td_otlp_put(r->otlp, &s);
}

static void many_spans_come_in_few_posts_and_the_rest_at_the_end(void **state)
{
    struct rig *r = *state;
    start(r, td_http_server_port(r->server), 500000);
    for (int i = 0; i < 2 * TD_OTLP_BATCH; i++) {
        put_plain(r, "one");
    }
    assert_int_equal(until(r, 2 * TD_OTLP_BATCH).sent, 2 * TD_OTLP_BATCH);
    assert_true(r->n_posts <= 8);
    assert_int_equal(r->n_spans, 2 * TD_OTLP_BATCH);
}

static void a_full_queue_drops_and_counts(void **state)
{
    struct rig *r = *state;
    start(r, td_http_server_port(r->server), 1000);
    int64_t began = td_now_us();
    /* Nobody runs the collector's loop meanwhile: a post hangs, the ring fills, put returns at once all the same. */
    for (uint32_t i = 0; i < 4 * TD_OTLP_QUEUE; i++) {
        put_plain(r, "one");
    }
    assert_true(stats_of(r).dropped >= TD_OTLP_QUEUE);
    assert_true(td_now_us() - began < GIVE_UP_US);
    char longest[TD_OTLP_MAX_SPAN + 1];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    uint64_t before = stats_of(r).dropped;
    put_plain(r, longest);
    assert_int_equal(stats_of(r).dropped, before + 1);
}

static void a_collector_that_refuses_or_is_dead_costs_only_its_spans(void **state)
{
    struct rig *r = *state;
    td_log_set_fd(-1);
    r->status = 503;
    start(r, td_http_server_port(r->server), 1000);
    put_plain(r, "refused");
    assert_int_equal(until(r, 1).failed, 1);
    r->status = 200;
    put_plain(r, "taken");
    assert_int_equal(until(r, 2).sent, 1);
    td_otlp_destroy(r->otlp);
    start(r, 1, 1000); /* nobody listens there */
    put_plain(r, "lost");
    assert_int_equal(until(r, 1).failed, 1);
    td_log_set_fd(STDERR_FILENO);
}

static void an_endpoint_that_we_do_not_speak_is_refused(void **state)
{
    static const char *const bad[] = {"collector:4318", "", "grpc://x", "https://", "https:/x"};
    struct td_otlp_params p = {.service = "s", .instance = "i", .version = "v"};
    struct td_otlp *o = NULL;
    (void)state;
    td_log_set_fd(-1);
    for (size_t i = 0; i < TD_COUNT(bad); i++) {
        p.url = bad[i];
        assert_int_equal(td_otlp_create(&p, &o), TD_ERR_CONFIG);
    }
    p.url = "https://collector:4318/v1/traces";
    p.ca = "/nonexistent.pem";
    assert_int_equal(td_otlp_create(&p, &o), TD_ERR_NO_FILE);
    p.ca = "/dev/null";
    assert_int_equal(td_otlp_create(&p, &o), TD_ERR_CONFIG);
    td_log_set_fd(STDERR_FILENO);
    assert_null(td_otlp_destroy(NULL));
}

static void clear_env(void)
{
    static const char *const names[] = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
                                        "OTEL_EXPORTER_OTLP_ENDPOINT",
                                        "OTEL_TRACES_SAMPLER",
                                        "OTEL_TRACES_SAMPLER_ARG",
                                        "OTEL_SERVICE_NAME",
                                        "OTEL_SDK_DISABLED",
                                        "OTEL_EXPORTER_OTLP_PROTOCOL",
                                        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
                                        "OTEL_EXPORTER_OTLP_HEADERS",
                                        "OTEL_EXPORTER_OTLP_TRACES_HEADERS"};
    for (size_t i = 0; i < TD_COUNT(names); i++) {
        (void)unsetenv(names[i]);
    }
}

static void flags_go_before_the_environment(void **state)
{
    struct td_otlp_setting s;
    (void)state;
    clear_env();
    assert_int_equal(td_otlp_setting("", -1, "svc", &s), TD_OK);
    assert_string_equal(s.url, "");
    assert_string_equal(s.service, "svc");
    (void)setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/", 1);
    (void)setenv("OTEL_SERVICE_NAME", "mine", 1);
    assert_int_equal(td_otlp_setting("", -1, "svc", &s), TD_OK);
    assert_string_equal(s.url, "http://c:4318/v1/traces");
    assert_string_equal(s.service, "mine");
    assert_true(s.ratio == 1 && !s.ratio_always);
    (void)setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://d/x", 1);
    assert_int_equal(td_otlp_setting("", -1, "svc", &s), TD_OK);
    assert_string_equal(s.url, "http://d/x");
    assert_int_equal(td_otlp_setting("http://e:1", 0.5, "svc", &s), TD_OK);
    assert_string_equal(s.url, "http://e:1/v1/traces");
    assert_true(s.ratio == 0.5);
    char longest[2048] = "http://c/"; /* cut, it would be another endpoint */
    memset(longest + strlen(longest), 'x', sizeof longest - strlen(longest) - 1);
    longest[sizeof longest - 1] = 0;
    (void)setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", longest, 1);
    assert_int_equal(td_otlp_setting("", -1, "svc", &s), TD_OK);
    assert_string_equal(s.url, longest);
    td_log_set_fd(-1);
    assert_int_equal(td_otlp_setting(longest, -1, "svc", &s), TD_ERR_CONFIG);
    (void)setenv("OTEL_SDK_DISABLED", "true", 1);
    assert_int_equal(td_otlp_setting("", -1, "svc", &s), TD_OK);
    assert_string_equal(s.url, "");
    clear_env();
}

static void samplers_have_their_usual_names(void **state)
{
    static const struct {
        const char *name, *arg;
        td_err err;
        double ratio;
        bool always;
    } rows[] = {{"always_on", "", TD_OK, 1, true},
                {"always_off", "", TD_OK, 0, true},
                {"parentbased_always_off", "", TD_OK, 0, false},
                {"traceidratio", "0.1", TD_OK, 0.1, true},
                {"parentbased_traceidratio", "0.25", TD_OK, 0.25, false},
                {"parentbased_traceidratio", "2", TD_ERR_CONFIG, 0, false},
                {"traceidratio", "much", TD_ERR_CONFIG, 0, false},
                {"jaeger_remote", "", TD_ERR_CONFIG, 0, false}};
    (void)state;
    clear_env();
    td_log_set_fd(-1);
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        struct td_otlp_setting s = {0};
        (void)setenv("OTEL_TRACES_SAMPLER", rows[i].name, 1);
        (void)setenv("OTEL_TRACES_SAMPLER_ARG", rows[i].arg, 1);
        assert_int_equal(td_otlp_setting("http://c:1", -1, "svc", &s), rows[i].err);
        assert_true(s.ratio == rows[i].ratio && s.ratio_always == rows[i].always);
    }
    td_log_set_fd(STDERR_FILENO);
    clear_env();
}

static void a_protocol_that_we_do_not_speak_is_refused_by_name(void **state)
{
    (void)state;
    struct td_otlp_setting s = {0};
    clear_env();
    (void)setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318", 1);
    (void)setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", 1);
    assert_int_equal(td_otlp_setting("", -1, "svc", &s), TD_OK);
    int ends[2];
    char log[512] = "";
    assert_int_equal(pipe(ends), 0); /* NOLINT: one thread, no exec */
    td_log_set_fd(ends[1]);
    (void)setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc", 1);
    assert_int_equal(td_otlp_setting("", -1, "svc", &s), TD_ERR_CONFIG);
    td_log_set_fd(STDERR_FILENO);
    assert_true(read(ends[0], log, sizeof log - 1) > 0);
    assert_non_null(strstr(log, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL value=grpc"));
    (void)close(ends[0]);
    (void)close(ends[1]);
    assert_int_equal(td_otlp_setting("http://e:1", -1, "svc", &s), TD_OK); /* the flag's own */
    clear_env();
}

static void headers_are_read_with_their_codes_and_bounded(void **state)
{
    static const char *const bad[] = {
        "novalue", "=x", "a b=c", "x=a%0d%0aHost: y", "Host=evil", "content-length=0", "x=\x7f"};
    (void)state;
    struct td_otlp_setting s = {0};
    clear_env();
    td_log_set_fd(-1);
    (void)setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318", 1);
    (void)setenv("OTEL_EXPORTER_OTLP_HEADERS", " api-key = a%20b%2Cc== ,,x-tenant=7,x-odd=5%", 1);
    assert_int_equal(td_otlp_setting("", -1, "svc", &s), TD_OK);
    const char *text = s.headers.text;
    assert_int_equal(s.headers.n, 3);
    assert_string_equal(text + s.headers.at[0].name, "api-key");
    assert_string_equal(text + s.headers.at[0].value, "a b,c==");
    assert_string_equal(text + s.headers.at[1].name, "x-tenant");
    assert_string_equal(text + s.headers.at[2].value, "5%");
    (void)setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "k=v", 1); /* goes first */
    assert_int_equal(td_otlp_setting("", -1, "svc", &s), TD_OK);
    assert_int_equal(s.headers.n, 1);
    for (size_t i = 0; i < TD_COUNT(bad); i++) {
        (void)setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", bad[i], 1);
        assert_int_equal(td_otlp_setting("", -1, "svc", &s), TD_ERR_CONFIG);
    }
    char many[16384] = "";
    for (size_t i = 0; i <= TD_OTLP_MAX_HEADERS; i++) {
        (void)strcat(many, "k=v,");
    }
    (void)setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", many, 1);
    assert_int_equal(td_otlp_setting("", -1, "svc", &s), TD_ERR_CONFIG);
    memset(many, 'v', sizeof many - 1);
    memcpy(many, "k=", 2);
    (void)setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", many, 1);
    assert_int_equal(td_otlp_setting("", -1, "svc", &s), TD_ERR_CONFIG);
    td_log_set_fd(STDERR_FILENO);
    clear_env();
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_span_arrives_with_all_it_says),
        TEST(many_spans_come_in_few_posts_and_the_rest_at_the_end),
        TEST(a_full_queue_drops_and_counts),
        TEST(a_collector_that_refuses_or_is_dead_costs_only_its_spans),
        cmocka_unit_test(an_endpoint_that_we_do_not_speak_is_refused),
        cmocka_unit_test(flags_go_before_the_environment),
        cmocka_unit_test(samplers_have_their_usual_names),
        cmocka_unit_test(a_protocol_that_we_do_not_speak_is_refused_by_name),
        cmocka_unit_test(headers_are_read_with_their_codes_and_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
