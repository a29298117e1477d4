/* The screen of top: what is on it, and that it fits any screen. */
#include "ctl/top_draw.h"

#include <stdlib.h>
#include <string.h>

#include "tests/unit/check.h"
#include "tests/unit/ctl/capture.h"

#define NOW                                                                                        \
    "{\"unix_us\":12000000,\"router\":{\"name\":\"r0\",\"model\":\"tiny\",\"version\":\"1.2\","    \
    "\"ready\":true,\"draining\":false,\"queued\":4,\"running\":7,\"uptime_us\":90000000,"         \
    "\"kv_prefill\":0.125,\"kv_decode\":0.5},\"nodes\":["                                          \
    "{\"name\":\"d10\",\"role\":\"decode\",\"ready\":true,\"draining\":false,\"running\":9,"       \
    "\"queued\":1,\"n_blocks\":100,\"blocks\":{\"free\":20,\"cached\":5},\"decode_step_us\":3200}" \
    ","                                                                                            \
    "{\"name\":\"d2\",\"role\":\"decode\",\"ready\":true,\"draining\":true,\"drained\":true,"      \
    "\"n_blocks\":100,\"blocks\":{\"free\":100,\"cached\":0}},"                                    \
    "{\"name\":\"p0\",\"role\":\"prefill\",\"ready\":false,\"draining\":false,\"running\":1,"      \
    "\"queued_prompt_tokens\":345,\"n_blocks\":100,\"blocks\":{\"free\":99,\"cached\":0},"         \
    "\"prefill_us_per_ktok\":81000}],\"recent\":{\"finished\":60,\"failed\":2,\"ttft_p50_us\":"    \
    "9700,\"ttft_p95_us\":33800,\"tpot_p50_us\":3600,\"tpot_p95_us\":5100},\"sample_fields\":["    \
    "\"finished\",\"tokens\",\"kv_bytes\"],\"next\":9,\"samples\":[[99,99,99],[1,10,1048576],"     \
    "[2,20,1048576],[3,30,1048576]],\"transfers\":[{\"prefill\":\"p0\",\"decode\":\"d10\","        \
    "\"transport\":\"shm\",\"count\":4,\"bytes\":4194304,\"transfer_us\":8000,\"exposed_us\":400," \
    "\"age_us\":1500000}]}"
#define BEFORE                                                                                     \
    "{\"unix_us\":10000000,\"transfers\":[{\"prefill\":\"p0\",\"decode\":\"d10\",\"bytes\":"       \
    "2097152}]}"

static char *draw(const char *now, const char *before, struct ctl_top_screen s, td_err want)
{
    json_t *n = json_loads(now, 0, NULL), *b = before != NULL ? json_loads(before, 0, NULL) : NULL;
    assert_non_null(n);
    s.trouble = s.trouble != NULL ? s.trouble : "";
    CAPTURE(text, out, assert_int_equal(ctl_top_draw(n, b, &s, out), want));
    json_decref(n);
    json_decref(b);
    return text;
}

static void assert_holds(const char *text, const char *want)
{
    if (strstr(text, want) == NULL) {
        fail_msg("missing: %s in\n%s", want, text);
    }
}

static void a_wide_page_shows_load_pools_times_and_rates(void **state)
{
    (void)state;
    char *text = draw(NOW, BEFORE, (struct ctl_top_screen){.columns = 120}, TD_OK);
    static const char *const want[] = {
        "tiny on r0 1.2, up 90.00 s: ready\n",
        "requests     7 running, 4 waiting, 2.0/s; last minute 60 ok, 2 failed\n",
        "first token  9.7 ms median, 33.8 ms p95\n",
        "output       20.0 tokens/s; KV moved 1.00 MiB/s\n", /* the last three seconds */
        "KV in use    prefill 12.5 %, decode 50.0 %\n",
        "   9     1        0  75.0% ###############.....          3.2 ms/step\n",
        " drained ",
        " not ready ",
        "     345   1.0% #...................    81.0 ms/1k tokens\n",
        "p0 > d10 ",
        "4.00 MiB   1.00 MiB/s   2.0 ms   100 us   1.50 s ago\n"};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        assert_holds(text, want[i]);
    }
    assert_null(strchr(text, 0x1b)); /* plain */
    free(text);
    text = draw(NOW, NULL, (struct ctl_top_screen){.columns = 120}, TD_OK);
    assert_null(strstr(text, "MiB/s   2.0 ms")); /* no rate from one answer */
    free(text);
}

static void nodes_come_in_the_order_asked_for(void **state)
{
    (void)state;
    static const struct {
        enum ctl_top_sort sort;
        const char *names[3];
    } cases[] = {{CTL_TOP_BY_NAME, {"\np0 ", "\nd2 ", "\nd10 "}},
                 {CTL_TOP_BY_LOAD, {"\nd10 ", "\np0 ", "\nd2 "}},
                 {CTL_TOP_BY_KV, {"\nd10 ", "\np0 ", "\nd2 "}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text =
            draw(NOW, NULL, (struct ctl_top_screen){.columns = 100, .sort = cases[i].sort}, TD_OK);
        const char *at = text;
        for (int k = 0; k < 3; k++) {
            at = strstr(at, cases[i].names[k]);
            assert_non_null(at);
        }
        free(text);
    }
}

/* Columns used by the widest line, without control sequences, and the number of lines. */
static void measure(const char *text, unsigned *wide, unsigned *lines)
{
    unsigned at = 0;
    *wide = 0;
    *lines = 1;
    for (const char *p = text; *p != 0; p++) {
        if (*p == 0x1b) {
            p += strcspn(p, "ABCDHJKhlm");
        } else if (*p == '\n') {
            (*lines)++;
            at = 0;
        } else if (*p != '\r' && ((unsigned char)*p & 0xc0) != 0x80) {
            at++;
            *wide = at > *wide ? at : *wide;
        }
    }
}

static void every_screen_is_filled_and_never_overrun(void **state)
{
    (void)state;
    char many[65536] = "{\"router\":{},\"nodes\":[", one[256];
    for (int i = 0; i < 200; i++) {
        (void)snprintf(one, sizeof one,
                       "%s{\"name\":\"a-very-long-name-of-a-node-%d\",\"role\":\"prefill\"}",
                       i > 0 ? "," : "", i);
        (void)strcat(many, one);
    }
    (void)strcat(many, "],\"transfers\":[{\"prefill\":\"p\",\"decode\":\"d\"},{},{},{},{},{},{}]}");
    const char *docs[] = {NOW, many};
    for (unsigned columns = 20; columns < 200; columns += 7) {
        for (unsigned rows = 1; rows < 60; rows += 3) {
            for (int d = 0; d < 2; d++) {
                unsigned wide = 0, lines = 0;
                char *text = draw(docs[d], BEFORE,
                                  (struct ctl_top_screen){.columns = columns,
                                                          .rows = rows,
                                                          .screen = true,
                                                          .trouble = d == 0 ? "lost" : ""},
                                  TD_OK);
                measure(text, &wide, &lines);
                assert_true(wide <= columns);
                assert_true(lines <= rows);
                free(text);
            }
        }
    }
    char *text =
        draw(many, NULL, (struct ctl_top_screen){.columns = 80, .rows = 24, .screen = true}, TD_OK);
    assert_holds(text, "more nodes");
    assert_holds(text, "more pairs");
    free(text);
}

static void hostile_and_missing_fields_are_survived(void **state)
{
    (void)state;
    char *text =
        draw("{\"router\":{\"model\":\"\\u001b[2J\"},\"nodes\":[5,{\"name\":\"a\\nb\\u009b\"}],"
             "\"samples\":[[1],7],\"sample_fields\":[3,\"tokens\"],\"transfers\":[null]}",
             "[]", (struct ctl_top_screen){.columns = 80}, TD_OK);
    assert_null(strchr(text, 0x1b));
    assert_holds(text, "a?b?");
    free(text);
    free(draw("{}", NULL, (struct ctl_top_screen){.columns = 80}, TD_ERR_PROTOCOL));
    free(draw("{\"nodes\":[]}", NULL, (struct ctl_top_screen){.columns = 80}, TD_ERR_PROTOCOL));
    text = draw("{\"router\":{},\"nodes\":[]}", NULL,
                (struct ctl_top_screen){.columns = 80, .paused = true}, TD_OK);
    assert_holds(text, "no node is attached");
    assert_holds(text, "no ready pair, paused");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wide_page_shows_load_pools_times_and_rates),
        cmocka_unit_test(nodes_come_in_the_order_asked_for),
        cmocka_unit_test(every_screen_is_filled_and_never_overrun),
        cmocka_unit_test(hostile_and_missing_fields_are_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
