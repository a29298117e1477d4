#define TD_LOG_ROOM "test"
#include "common/base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "tests/unit/check.h"

static int pipe_fds[2];
static char captured[1 << 20];

static int capture(void **state)
{
    (void)state;
    if (pipe(pipe_fds) != 0) {
        return -1;
    }
    td_log_set_fd(pipe_fds[1]);
    td_log_set_level(TD_LOG_DEBUG);
    return 0;
}

static int release(void **state)
{
    (void)state;
    td_log_set_fd(STDERR_FILENO);
    td_log_set_level(TD_LOG_INFO);
    td_log_set_json(false);
    (void)close(pipe_fds[0]);
    return 0;
}

/* Everything logged since capture(), as text. */
static const char *lines(void)
{
    size_t len = 0;
    (void)close(pipe_fds[1]);
    for (;;) {
        ssize_t n = read(pipe_fds[0], captured + len, sizeof captured - 1 - len);
        if (n <= 0) {
            break;
        }
        len += (size_t)n;
    }
    captured[len] = '\0';
    return captured;
}

static size_t count_lines(const char *text)
{
    size_t n = 0;
    for (; *text != '\0'; text++) {
        n += *text == '\n';
    }
    return n;
}

static void a_line_has_time_level_room_message_and_fields(void **state)
{
    int year = 0;
    int day = 0;
    char rest[200] = "";
    (void)state;
    TD_LOG(WARN, "node lost", "node=%s tries=%d", "p0", 3);
    assert_int_equal(
        sscanf(lines(), "ts=%4d-%*2d-%2dT%*2d:%*2d:%*2d.%*3dZ %199[^\n]", &year, &day, rest), 3);
    assert_true(year >= 2024 && day >= 1);
    assert_string_equal(rest, "level=warn room=test msg=\"node lost\" node=p0 tries=3");
}

static void a_message_without_fields_ends_cleanly(void **state)
{
    (void)state;
    TD_LOG(INFO, "ready", "");
    const char *text = lines();
    assert_string_equal(text + strlen(text) - 12, "msg=\"ready\"\n");
}

static void lines_above_the_level_are_skipped(void **state)
{
    (void)state;
    td_log_set_level(TD_LOG_WARN);
    assert_true(td_log_enabled(TD_LOG_ERROR) && td_log_enabled(TD_LOG_WARN));
    assert_false(td_log_enabled(TD_LOG_INFO));
    TD_LOG(INFO, "hidden", "");
    TD_LOG(WARN, "shown", "");
    const char *text = lines();
    assert_int_equal(count_lines(text), 1);
    assert_non_null(strstr(text, "shown"));
}

static void level_names_are_parsed_strictly(void **state)
{
    enum td_log_level level = TD_LOG_INFO;
    (void)state;
    assert_true(td_log_level_parse("error", &level) && level == TD_LOG_ERROR);
    assert_true(td_log_level_parse("trace", &level) && level == TD_LOG_TRACE);
    assert_false(td_log_level_parse("ERROR", &level));
    assert_false(td_log_level_parse("", &level));
    assert_int_equal(level, TD_LOG_TRACE);
}

static void counts_rise_with_each_line_written(void **state)
{
    uint64_t warns = td_log_count(TD_LOG_WARN);
    uint64_t errors = td_log_count(TD_LOG_ERROR);
    (void)state;
    TD_LOG(WARN, "w", "");
    TD_LOG(ERROR, "e", "");
    TD_LOG(ERROR, "e", "");
    assert_true(td_log_count(TD_LOG_WARN) == warns + 1);
    assert_true(td_log_count(TD_LOG_ERROR) == errors + 2);
    (void)lines();
}

static void a_noisy_site_is_silenced_and_owns_up(void **state)
{
    struct td_log_site site = {0};
    (void)state;
    for (int i = 0; i < 50; i++) {
        td_log_write(&site, TD_LOG_WARN, "test", "noise", " i=%d", i);
    }
    assert_int_equal(site.dropped, 30);
    site.window_start_us -= 1000000; /* a second passes */
    td_log_write(&site, TD_LOG_WARN, "test", "noise", " i=%d", 50);
    const char *text = lines();
    assert_int_equal(count_lines(text), 21);
    assert_non_null(strstr(text, "i=19\n"));
    assert_null(strstr(text, "i=20"));
    assert_non_null(strstr(text, "i=50 dropped_lines=30\n"));
}

static void errors_are_never_silenced(void **state)
{
    struct td_log_site site = {0};
    (void)state;
    for (int i = 0; i < 50; i++) {
        td_log_write(&site, TD_LOG_ERROR, "test", "failure", " i=%d", i);
    }
    assert_int_equal(count_lines(lines()), 50);
}

static void a_long_line_is_cut_and_still_one_line(void **state)
{
    char big[5000];
    (void)state;
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    TD_LOG(INFO, "big", "value=%s", big);
    const char *text = lines();
    assert_true(strlen(text) <= TD_LOG_LINE && strlen(text) > TD_LOG_LINE - 100);
    assert_int_equal(count_lines(text), 1);
    assert_int_equal(text[strlen(text) - 1], '\n');
}

static void a_newline_in_a_value_cannot_forge_a_second_line(void **state)
{
    (void)state;
    TD_LOG(INFO, "request", "path=%s", "/x\nts=1 level=error msg=\"forged\"");
    assert_int_equal(count_lines(lines()), 1);
}

static void quoting_escapes_what_could_confuse_a_reader(void **state)
{
    char buf[100];
    (void)state;
    assert_string_equal(td_log_quote("plain", 5, buf, sizeof buf), "\"plain\"");
    assert_string_equal(td_log_quote("a\"b\\c\n\t\r", 8, buf, sizeof buf),
                        "\"a\\\"b\\\\c\\n\\t\\r\"");
    assert_string_equal(td_log_quote("\x01\x7f", 2, buf, sizeof buf), "\"\\u0001\\u007f\"");
    assert_string_equal(td_log_quote("\xff\xc3\xa9", 3, buf, sizeof buf), "\"\\ufffd\xc3\xa9\"");
    assert_string_equal(td_log_quote("", 0, buf, sizeof buf), "\"\"");
}

static void quoting_is_cut_to_fit_and_never_splits_an_escape(void **state)
{
    char buf[100];
    (void)state;
    for (size_t cap = 3; cap < 12; cap++) {
        memset(buf, 'z', sizeof buf);
        (void)td_log_quote("a\nb\n\xc3\xa9", 6, buf, cap);
        assert_true(strlen(buf) < cap);
        assert_int_equal(buf[0], '"');
        assert_int_equal(buf[strlen(buf) - 1], '"');
        assert_true(strlen(buf) < 4 || buf[strlen(buf) - 2] != '\\');
        assert_int_equal(buf[cap], 'z');
    }
    assert_string_equal(td_log_quote("text", 4, buf, 2), "");
}

static const char *json_field(json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    assert_non_null(s);
    return s;
}

static void json_lines_are_json_with_string_values(void **state)
{
    json_t *o;
    char buf[64];
    (void)state;
    td_log_set_json(true);
    TD_LOG(WARN, "node lost", "node=p0 n=%d empty= text=%s", 3,
           td_log_quote("say \"hi\"\n\\", 10, buf, sizeof buf));
    const char *text = lines();
    assert_int_equal(td_json_parse(text, strlen(text), &o, NULL, 0), TD_OK);
    assert_string_equal(json_field(o, "level"), "warn");
    assert_string_equal(json_field(o, "room"), "test");
    assert_string_equal(json_field(o, "msg"), "node lost");
    assert_string_equal(json_field(o, "node"), "p0");
    assert_string_equal(json_field(o, "n"), "3");
    assert_string_equal(json_field(o, "empty"), "");
    assert_string_equal(json_field(o, "text"), "say \"hi\"\n\\");
    json_decref(o);
}

static void json_lines_stay_json_when_cut_or_careless(void **state)
{
    char big[3000];
    (void)state;
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    td_log_set_json(true);
    TD_LOG(WARN, "cut", "first=1 big=%s last=2", big);
    TD_LOG(WARN, "careless", "v=\"open \\q %c", 1);
    TD_LOG(WARN, "bytes", "v=\xff\"x");
    char *save = NULL;
    int n = 0;
    for (char *l = strtok_r((char *)(uintptr_t)lines(), "\n", &save); l != NULL;
         l = strtok_r(NULL, "\n", &save)) {
        json_t *o;
        assert_int_equal(td_json_parse(l, strlen(l), &o, NULL, 0), TD_OK);
        json_decref(o);
        n++;
    }
    assert_int_equal(n, 3);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, capture, release)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_line_has_time_level_room_message_and_fields),
        TEST(a_message_without_fields_ends_cleanly),
        TEST(lines_above_the_level_are_skipped),
        TEST(level_names_are_parsed_strictly),
        TEST(counts_rise_with_each_line_written),
        TEST(a_noisy_site_is_silenced_and_owns_up),
        TEST(errors_are_never_silenced),
        TEST(a_long_line_is_cut_and_still_one_line),
        TEST(a_newline_in_a_value_cannot_forge_a_second_line),
        TEST(quoting_escapes_what_could_confuse_a_reader),
        TEST(quoting_is_cut_to_fit_and_never_splits_an_escape),
        TEST(json_lines_are_json_with_string_values),
        TEST(json_lines_stay_json_when_cut_or_careless),
    };
    return cmocka_run_group_tests_name("base/log", tests, NULL, NULL);
}
