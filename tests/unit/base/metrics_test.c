#include "common/base/metrics.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "tests/unit/check.h"

static const struct td_metric_desc requests = {.name = "tandem_test_requests_total",
                                               .help = "Requests by code.",
                                               .type = TD_COUNTER,
                                               .labels = {"code"}};
static const struct td_metric_desc depth = {
    .name = "tandem_test_depth", .help = "A gauge with \\ and\nnewline.", .type = TD_GAUGE};
static const double bounds[] = {0.1, 1, 2.5};
static const struct td_metric_desc seconds = {.name = "tandem_test_seconds",
                                              .help = "A histogram.",
                                              .type = TD_HISTOGRAM,
                                              .labels = {"stage"},
                                              .buckets = bounds,
                                              .n_buckets = 3};

static char page[1 << 20];

static const char *scrape(struct td_metrics *m)
{
    struct td_buf b;
    td_buf_init(&b, sizeof page - 1);
    assert_int_equal(td_metrics_write(m, &b), TD_OK);
    memcpy(page, b.data, b.len);
    page[b.len] = '\0';
    td_buf_fini(&b);
    return page;
}

/* One whole line of the page. */
static bool has_line(const char *text, const char *line)
{
    size_t len = strlen(line);
    for (const char *p = strstr(text, line); p != NULL; p = strstr(p + 1, line)) {
        if ((p == text || p[-1] == '\n') && p[len] == '\n') {
            return true;
        }
    }
    return false;
}

static struct td_metric *child(struct td_metric_family *f, const char *value)
{
    return td_metric_child(f, (const char *const[]){value, NULL});
}

static void a_counter_counts_per_label_value(void **state)
{
    (void)state;
    struct td_metrics *m = td_metrics_create();
    struct td_metric_family *f = td_metrics_family(m, &requests);
    td_metric_add(child(f, "200"), 2);
    td_metric_add(child(f, "200"), 3);
    td_metric_add(child(f, "503"), 1);
    const char *text = scrape(m);
    assert_true(has_line(text, "# TYPE tandem_test_requests_total counter"));
    assert_true(has_line(text, "# HELP tandem_test_requests_total Requests by code."));
    assert_true(has_line(text, "tandem_test_requests_total{code=\"200\"} 5"));
    assert_true(has_line(text, "tandem_test_requests_total{code=\"503\"} 1"));
    assert_true(has_line(text, "tandem_metrics_lost_total 0"));
    assert_true(td_metric_value(child(f, "200")) == 5.0);
    assert_null(td_metrics_destroy(m));
}

static void a_gauge_is_set_and_prints_shortest_form(void **state)
{
    static const struct {
        double v;
        const char *text;
    } rows[] = {{0, "0"},
                {0.1, "0.1"},
                {-2.5, "-2.5"},
                {1e21, "1e+21"},
                {INFINITY, "+Inf"},
                {-INFINITY, "-Inf"},
                {NAN, "NaN"},
                {1.0 / 3, "0.33333333333333331"},
                {123456789, "123456789"}};
    (void)state;
    struct td_metrics *m = td_metrics_create();
    struct td_metric *g = td_metric_only(td_metrics_family(m, &depth));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char line[100];
        td_metric_set(g, rows[i].v);
        (void)snprintf(line, sizeof line, "tandem_test_depth %s", rows[i].text);
        assert_true(has_line(scrape(m), line));
    }
    td_metric_set(g, 1);
    td_metric_add(g, 2);
    assert_true(td_metric_value(g) == 3.0);
    assert_true(has_line(page, "# HELP tandem_test_depth A gauge with \\\\ and\\nnewline."));
    (void)td_metrics_destroy(m);
}

static void a_histogram_is_cumulative_with_sum_and_count(void **state)
{
    (void)state;
    struct td_metrics *m = td_metrics_create();
    struct td_metric *h = child(td_metrics_family(m, &seconds), "prefill");
    const double values[] = {0.05, 0.1, 0.5, 2.5, 100};
    for (size_t i = 0; i < 5; i++) {
        td_metric_observe(h, values[i]);
    }
    td_metric_observe(h, NAN); /* ignored */
    const char *text = scrape(m);
    assert_true(has_line(text, "tandem_test_seconds_bucket{stage=\"prefill\",le=\"0.1\"} 2"));
    assert_true(has_line(text, "tandem_test_seconds_bucket{stage=\"prefill\",le=\"1\"} 3"));
    assert_true(has_line(text, "tandem_test_seconds_bucket{stage=\"prefill\",le=\"2.5\"} 4"));
    assert_true(has_line(text, "tandem_test_seconds_bucket{stage=\"prefill\",le=\"+Inf\"} 5"));
    assert_true(has_line(text, "tandem_test_seconds_sum{stage=\"prefill\"} 103.15"));
    assert_true(has_line(text, "tandem_test_seconds_count{stage=\"prefill\"} 5"));
    assert_true(td_metric_value(h) == 5.0);
    (void)td_metrics_destroy(m);
}

static void constant_labels_stand_on_every_sample(void **state)
{
    (void)state;
    struct td_metrics *m = td_metrics_create();
    assert_int_equal(td_metrics_const_label(m, "role", "decode"), TD_OK);
    assert_int_equal(td_metrics_const_label(m, "node", "d\"0"), TD_OK);
    td_metric_add(child(td_metrics_family(m, &requests), "200"), 1);
    td_metric_set(td_metric_only(td_metrics_family(m, &depth)), 4);
    const char *text = scrape(m);
    assert_true(has_line(
        text, "tandem_test_requests_total{role=\"decode\",node=\"d\\\"0\",code=\"200\"} 1"));
    assert_true(has_line(text, "tandem_test_depth{role=\"decode\",node=\"d\\\"0\"} 4"));
    for (int i = 0; i < 4; i++) {
        struct td_metrics *fresh = td_metrics_create();
        for (int j = 0; j < TD_METRIC_MAX_LABELS; j++) {
            assert_int_equal(td_metrics_const_label(fresh, "l", "v"), TD_OK);
        }
        assert_int_equal(td_metrics_const_label(fresh, "l", "v"), TD_ERR_FULL);
        (void)td_metrics_destroy(fresh);
    }
    (void)td_metrics_destroy(m);
}

static void label_values_are_escaped_checked_and_cut(void **state)
{
    char longest[300];
    char line[400];
    (void)state;
    struct td_metrics *m = td_metrics_create();
    struct td_metric_family *f = td_metrics_family(m, &requests);
    td_metric_add(child(f, "a\\b\"c\nd\xff"), 1);
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    longest[127] = '\xc3'; /* a character that the cut must not split */
    longest[128] = '\xa9';
    td_metric_add(child(f, longest), 1);
    const char *text = scrape(m);
    assert_true(has_line(text, "tandem_test_requests_total{code=\"a\\\\b\\\"c\\nd?\"} 1"));
    (void)snprintf(line, sizeof line, "tandem_test_requests_total{code=\"%.127s\"} 1", longest);
    assert_true(has_line(text, line));
    (void)td_metrics_destroy(m);
}

static void beyond_a_thousand_children_there_is_one_called_other(void **state)
{
    (void)state;
    struct td_metrics *m = td_metrics_create();
    struct td_metric_family *f = td_metrics_family(m, &requests);
    for (int i = 0; i < 1200; i++) {
        char code[16];
        (void)snprintf(code, sizeof code, "%d", i);
        td_metric_add(child(f, code), 1);
    }
    td_metric_add(child(f, "5"), 1); /* known children still count */
    const char *text = scrape(m);
    assert_true(has_line(text, "tandem_test_requests_total{code=\"other\"} 200"));
    assert_true(has_line(text, "tandem_test_requests_total{code=\"5\"} 2"));
    assert_true(has_line(text, "tandem_test_requests_total{code=\"999\"} 1"));
    assert_null(strstr(text, "code=\"1000\""));
    (void)td_metrics_destroy(m);
}

static void the_same_name_is_the_same_family_and_names_are_sorted(void **state)
{
    (void)state;
    struct td_metrics *m = td_metrics_create();
    struct td_metric_family *f = td_metrics_family(m, &seconds);
    assert_ptr_equal(td_metrics_family(m, &seconds), f);
    (void)td_metrics_family(m, &requests);
    (void)td_metrics_family(m, &depth);
    const char *text = scrape(m);
    const char *first = strstr(text, "# TYPE tandem_test_depth");
    const char *second = strstr(text, "# TYPE tandem_test_requests_total");
    const char *third = strstr(text, "# TYPE tandem_test_seconds");
    assert_true(first != NULL && first < second && second < third);
    (void)td_metrics_destroy(m);
}

static void wrong_descriptions_abort(void **state)
{
    static const double down[] = {2, 1};
    struct td_metric_desc bad_name = {.name = "9lives", .help = "", .type = TD_COUNTER};
    struct td_metric_desc bad_label = {
        .name = "x", .help = "", .type = TD_COUNTER, .labels = {"a-b"}};
    struct td_metric_desc le = {.name = "x", .help = "", .type = TD_COUNTER, .labels = {"le"}};
    struct td_metric_desc falling = {
        .name = "x", .help = "", .type = TD_HISTOGRAM, .buckets = down, .n_buckets = 2};
    (void)state;
    struct td_metrics *m = td_metrics_create();
    CHECK_ABORTS((void)td_metrics_family(m, &bad_name));
    CHECK_ABORTS((void)td_metrics_family(m, &bad_label));
    CHECK_ABORTS((void)td_metrics_family(m, &le));
    CHECK_ABORTS((void)td_metrics_family(m, &falling));
    CHECK_ABORTS(td_metric_observe(td_metric_only(td_metrics_family(m, &depth)), 1));
    (void)td_metrics_destroy(m);
}

static void set_depth(void *gauge)
{
    td_metric_set(gauge, 42);
}

static void hooks_run_before_the_page_is_written(void **state)
{
    (void)state;
    struct td_metrics *m = td_metrics_create();
    td_metrics_on_scrape(m, set_depth, td_metric_only(td_metrics_family(m, &depth)));
    assert_true(has_line(scrape(m), "tandem_test_depth 42"));
    (void)td_metrics_destroy(m);
}

static void *hammer(void *arg)
{
    struct td_metrics *m = arg;
    struct td_metric_family *f = td_metrics_family(m, &requests);
    struct td_metric *h = child(td_metrics_family(m, &seconds), "x");
    struct td_metric *g = td_metric_only(td_metrics_family(m, &depth));
    for (int i = 0; i < 5000; i++) {
        td_metric_add(child(f, i % 2 == 0 ? "even" : "odd"), 1);
        td_metric_observe(h, 0.5);
        td_metric_add(g, 1);
    }
    return NULL;
}

static void updates_from_many_threads_add_up(void **state)
{
    pthread_t threads[4];
    (void)state;
    struct td_metrics *m = td_metrics_create();
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, hammer, m), 0);
    }
    (void)scrape(m);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    const char *text = scrape(m);
    assert_true(has_line(text, "tandem_test_requests_total{code=\"even\"} 10000"));
    assert_true(has_line(text, "tandem_test_requests_total{code=\"odd\"} 10000"));
    assert_true(has_line(text, "tandem_test_seconds_sum{stage=\"x\"} 10000"));
    assert_true(has_line(text, "tandem_test_depth 20000"));
    (void)td_metrics_destroy(m);
}

static void out_of_memory_swallows_updates_and_is_counted(void **state)
{
    (void)state;
    struct td_metrics *m = td_metrics_create();
    td_mem_fail_nth(1);
    struct td_metric_family *none = td_metrics_family(m, &requests);
    td_mem_fail_nth(0);
    assert_null(none);
    td_metric_add(child(none, "200"), 1);
    td_metric_set(td_metric_only(none), 1);
    td_metric_observe(td_metric_only(none), 1);
    unsigned failures = 1;
    for (unsigned n = 1; n <= 3; n++, failures++) {
        struct td_metric_family *f = td_metrics_family(m, &seconds);
        td_mem_fail_nth(n);
        td_metric_observe(child(f, "x"), 1);
        td_mem_fail_nth(0);
    }
    char line[64];
    (void)snprintf(line, sizeof line, "tandem_metrics_lost_total %u", failures);
    assert_true(has_line(scrape(m), line));
    (void)td_metrics_destroy(m);
    td_mem_fail_nth(1);
    assert_null(td_metrics_create());
    m = td_metrics_create();
    td_mem_fail_nth(1);
    assert_int_equal(td_metrics_const_label(m, "a", "b"), TD_ERR_NO_MEMORY);
    td_mem_fail_nth(0);
    (void)td_metrics_destroy(m);
}

static void a_page_that_does_not_fit_is_an_error(void **state)
{
    struct td_buf b;
    (void)state;
    struct td_metrics *m = td_metrics_create();
    td_metric_add(child(td_metrics_family(m, &requests), "200"), 1);
    for (size_t max = 1; max < 250; max += 7) {
        td_buf_init(&b, max);
        assert_int_equal(td_metrics_write(m, &b), TD_ERR_FULL);
        td_buf_fini(&b);
    }
    (void)td_metrics_destroy(m);
}

/* ---- the rules of text format 0.0.4, checked by a small reader of it ---- */

static const char name_start[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_:";
static const char name_rest[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_:0123456789";

/* Moves past {a="b",...}; false when it breaks a rule. */
static bool skip_labels(const char **at)
{
    const char *p = *at;
    if (*p != '{') {
        return true;
    }
    do {
        p++;
        size_t n = strspn(p, name_rest);
        if (n == 0 || memchr(p, ':', n) != NULL || strncmp(p + n, "=\"", 2) != 0) {
            return false;
        }
        p += n + 2;
        while (*p != '"') {
            if (*p == '\0' || (*p == '\\' && strchr("\\\"n", p[1]) == NULL)) {
                return false;
            }
            p += *p == '\\' ? 2 : 1;
        }
        p++;
    } while (*p == ',');
    *at = p + 1;
    return *p == '}';
}

static void check_sample(const char *line, const char *family)
{
    const char *p = line;
    char *end;
    assert_non_null(strchr(name_start, *p));
    p += strspn(p, name_rest);
    assert_int_equal(strncmp(line, family, strlen(family)), 0);
    size_t suffix = (size_t)(p - line) - strlen(family);
    assert_true(suffix == 0 || strncmp(line + strlen(family), "_sum", suffix) == 0 ||
                strncmp(line + strlen(family), "_count", suffix) == 0 ||
                strncmp(line + strlen(family), "_bucket", suffix) == 0);
    assert_true(skip_labels(&p));
    assert_int_equal(*p, ' ');
    (void)strtod(p + 1, &end);
    assert_true(end != p + 1 && *end == '\0');
}

static void a_full_page_keeps_the_rules_of_the_format(void **state)
{
    char family[128] = "";
    char type[128] = "";
    char *save = NULL;
    int samples = 0;
    (void)state;
    struct td_metrics *m = td_metrics_create();
    assert_int_equal(td_metrics_const_label(m, "model_name", "x{\"}, y\\"), TD_OK);
    td_metric_add(child(td_metrics_family(m, &requests), "a=\"b\",}\n"), 1);
    td_metric_set(td_metric_only(td_metrics_family(m, &depth)), -INFINITY);
    td_metric_observe(child(td_metrics_family(m, &seconds), ""), 1);
    (void)scrape(m);
    assert_int_equal(page[strlen(page) - 1], '\n');
    for (char *l = strtok_r(page, "\n", &save); l != NULL; l = strtok_r(NULL, "\n", &save)) {
        if (sscanf(l, "# HELP %127s", family) == 1) {
            continue;
        }
        if (strncmp(l, "# TYPE ", 7) == 0) {
            char same[128];
            assert_int_equal(sscanf(l, "# TYPE %127s %127s", same, type), 2);
            assert_string_equal(same, family); /* TYPE follows HELP, both before the samples */
            assert_true(strstr("counter gauge histogram", type) != NULL);
            continue;
        }
        check_sample(l, family);
        samples++;
    }
    assert_int_equal(samples, 1 + 1 + 1 + 6);
    (void)td_metrics_destroy(m);
}

static void bucket_sets_ascend(void **state)
{
    static const struct {
        const double *b;
        size_t n;
        double last;
    } sets[] = {
        {td_buckets_ttft, TD_COUNT(td_buckets_ttft), 2560},
        {td_buckets_itl, TD_COUNT(td_buckets_itl), 80},
        {td_buckets_e2e, TD_COUNT(td_buckets_e2e), 7680},
        {td_buckets_tokens, TD_COUNT(td_buckets_tokens), 1000000},
        {td_buckets_transfer_seconds, TD_COUNT(td_buckets_transfer_seconds), 5},
        {td_buckets_transfer_bytes, TD_COUNT(td_buckets_transfer_bytes), 0x1p33},
    };
    (void)state;
    for (size_t i = 0; i < TD_COUNT(sets); i++) {
        for (size_t j = 1; j < sets[i].n; j++) {
            assert_true(sets[i].b[j - 1] < sets[i].b[j]);
        }
        assert_true(sets[i].b[sets[i].n - 1] == sets[i].last);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_counter_counts_per_label_value),
        cmocka_unit_test(a_gauge_is_set_and_prints_shortest_form),
        cmocka_unit_test(a_histogram_is_cumulative_with_sum_and_count),
        cmocka_unit_test(constant_labels_stand_on_every_sample),
        cmocka_unit_test(label_values_are_escaped_checked_and_cut),
        cmocka_unit_test(beyond_a_thousand_children_there_is_one_called_other),
        cmocka_unit_test(the_same_name_is_the_same_family_and_names_are_sorted),
        cmocka_unit_test(wrong_descriptions_abort),
        cmocka_unit_test(hooks_run_before_the_page_is_written),
        cmocka_unit_test(updates_from_many_threads_add_up),
        cmocka_unit_test(out_of_memory_swallows_updates_and_is_counted),
        cmocka_unit_test(a_page_that_does_not_fit_is_an_error),
        cmocka_unit_test(a_full_page_keeps_the_rules_of_the_format),
        cmocka_unit_test(bucket_sets_ascend),
    };
    return cmocka_run_group_tests_name("base/metrics", tests, NULL, NULL);
}
