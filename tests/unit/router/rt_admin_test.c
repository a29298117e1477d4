/* What operators see and do on the admin port, through the whole shell. */
#include <stdio.h>
#include <string.h>

#include "tests/unit/router/rt_rig.h"

#define CHAT "/v1/chat/completions"
#define HI   "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}"

static json_t *ask(struct rig *r, const char *path, int want)
{
    struct rig_client c = {0};
    assert_int_equal(rig_get(r, rt_shell_admin_port(r->shell), path, &c), want);
    json_t *j = rig_json(&c);
    assert_non_null(j);
    rig_hang_up(&c);
    return j;
}

static const char *str(const json_t *j, const char *key)
{
    const char *s = json_string_value(json_object_get(j, key));
    return s != NULL ? s : "(none)";
}

static int64_t num(const json_t *j, const char *key)
{
    assert_true(json_is_integer(json_object_get(j, key)));
    return json_integer_value(json_object_get(j, key));
}

static void finish_one(struct rig *r, const char *id)
{
    struct rig_client c = {0};
    char extra[64];
    static uint32_t dealt;
    dealt = strcmp(id, "a-1") == 0 ? 0 : dealt;
    (void)snprintf(extra, sizeof extra, "x-request-id: %s\r\n", id);
    rig_post(r, &c, CHAT, HI, extra);
    struct rig_work *w = rig_work(r, dealt++);
    rig_say(r, w, "ok");
    rig_finish(r, w);
    assert_int_equal(rig_answer(r, &c), 200);
    rig_hang_up(&c);
}

static void a_finished_request_is_explained(void **state)
{
    struct rig *r = *state;
    rig_start(r);
    finish_one(r, "a-1");
    json_t *j = ask(r, "/debug/request/a-1", 200);
    assert_string_equal(str(j, "code"), "ok");
    assert_int_equal(num(j, "output_tokens"), 3);
    const json_t *t = json_array_get(json_object_get(j, "tries"), 0);
    const json_t *c = json_array_get(json_object_get(t, "candidates"), 0);
    assert_string_equal(str(t, "prefill"), "n\"1");
    assert_true(json_is_true(json_object_get(c, "chosen")));
    assert_true(num(t, "submitted_us") >= 0 && num(t, "placed_us") >= num(t, "submitted_us"));
    assert_true(num(j, "total_us") >= num(t, "placed_us"));
    json_decref(j);
    json_decref(ask(r, "/debug/request/unknown", 404));
    json_decref(ask(r, "/debug/request/", 404));
}

static void a_running_request_is_explained_too(void **state)
{
    struct rig *r = *state;
    struct rig_client c = {0};
    rig_start(r);
    rig_post(r, &c, CHAT, HI, "x-request-id: live-1\r\n");
    struct rig_work *w = rig_work(r, 0);
    json_t *j = ask(r, "/debug/request/live-1", 200);
    assert_string_equal(str(j, "phase"), "prefill");
    assert_string_equal(str(j, "decode"), "n\"1");
    assert_int_equal(json_array_size(json_object_get(j, "tries")), 1);
    json_decref(j);
    rig_finish(r, w);
    assert_int_equal(rig_answer(r, &c), 200);
    rig_hang_up(&c);
}

static void the_list_of_requests_has_a_limit(void **state)
{
    struct rig *r = *state;
    static const struct {
        const char *query;
        size_t n;
    } cases[] = {
        {"", 2}, {"?limit=1", 1}, {"?limit=0", 0}, {"?a=3&limit=1", 1}, {"?limit=99999", 2}};
    rig_start(r);
    finish_one(r, "a-1");
    finish_one(r, "a-2");
    for (size_t i = 0; i < TD_COUNT(cases); i++) {
        char path[64];
        (void)snprintf(path, sizeof path, "/requests%s", cases[i].query);
        json_t *j = ask(r, path, 200);
        assert_int_equal(json_array_size(json_object_get(j, "finished")), cases[i].n);
        json_decref(j);
    }
}

static void the_live_figures_show_nodes_recent_times_and_samples(void **state)
{
    struct rig *r = *state;
    rig_start(r);
    finish_one(r, "a-1");
    json_t *j = ask(r, "/live", 200);
    const json_t *n = json_array_get(json_object_get(j, "nodes"), 0);
    assert_string_equal(str(n, "name"), "n\"1");
    assert_string_equal(str(n, "numerics"), "test");
    assert_string_equal(str(n, "why_not"), "");
    assert_true(num(n, "report_age_us") >= 0);
    assert_string_equal(str(json_object_get(j, "router"), "model"), "tiny");
    assert_int_equal(num(json_object_get(j, "recent"), "finished"), 1);
    assert_true(num(json_object_get(j, "recent"), "ttft_p95_us") > 0);
    assert_true(json_is_array(json_object_get(j, "samples")));
    assert_true(json_is_array(json_object_get(j, "transfers")));
    json_decref(j);
}

static void the_live_page_is_served_under_its_policy(void **state)
{
    struct rig *r = *state;
    static const char *const paths[] = {"/", "/ui"};
    rig_start(r);
    for (size_t i = 0; i < TD_COUNT(paths); i++) {
        struct rig_client c = {0};
        assert_int_equal(rig_get(r, rt_shell_admin_port(r->shell), paths[i], &c), 200);
        assert_non_null(strstr(c.got, "Content-Type: text/html; charset=utf-8\r\n"));
        assert_non_null(strstr(c.got, "content-security-policy: default-src 'none'; script-src"));
        assert_non_null(strstr(c.got, "x-content-type-options: nosniff\r\n"));
        assert_non_null(strstr(c.got, "</html>"));
        rig_hang_up(&c);
    }
    struct rig_client c = {0};
    assert_int_equal(rig_get(r, rt_shell_port(r->shell), "/", &c), 404); /* not public */
    rig_hang_up(&c);
}

static void send_post(struct rig *r, const char *path, const char *body, const char *head,
                      struct rig_client *c)
{
    char text[1024];
    (void)snprintf(text, sizeof text,
                   "POST %s HTTP/1.1\r\nHost: h:1\r\n%sContent-Length: %zu\r\n\r\n%s", path, head,
                   strlen(body), body);
    rig_dial(r, rt_shell_admin_port(r->shell), c);
    rig_send(c, text);
}

static int post(struct rig *r, const char *body, const char *head, struct rig_client *c)
{
    send_post(r, "/drain", body, head, c);
    return rig_answer(r, c);
}

#define JSON_HEAD "Content-Type: application/json\r\n"

static void a_drain_takes_the_node_out_and_back(void **state)
{
    struct rig *r = *state;
    struct rig_client c = {0};
    rig_start(r);
    assert_int_equal(post(r, "{\"node\":\"n\\\"1\",\"why\":\"upgrade\"}", JSON_HEAD, &c), 200);
    json_t *j = rig_json(&c);
    assert_true(json_is_true(json_object_get(j, "draining")));
    char epoch[64];
    (void)snprintf(epoch, sizeof epoch, "{\"node\":\"%s\",\"undo\":true}", str(j, "epoch"));
    json_decref(j);
    rig_hang_up(&c);
    assert_int_equal(rig_get(r, rt_shell_port(r->shell), "/health", &c), 503);
    rig_hang_up(&c);
    assert_int_equal(post(r, epoch, JSON_HEAD, &c), 200); /* by its epoch */
    rig_hang_up(&c);
    assert_int_equal(rig_get(r, rt_shell_port(r->shell), "/health", &c), 200);
    rig_hang_up(&c);
    finish_one(r, "a-1");
}

static void what_may_not_or_cannot_drain_is_refused(void **state)
{
    struct rig *r = *state;
    static const struct {
        const char *body, *head;
        int status;
    } cases[] = {
        {"{\"node\":\"x\"}", JSON_HEAD, 404},
        {"{\"node\":\"0123456789abcdef\"}", JSON_HEAD, 404},
        {"{}", JSON_HEAD, 400},
        {"[]", JSON_HEAD, 400},
        {"{", JSON_HEAD, 400},
        {"{\"node\":1}", JSON_HEAD, 400},
        {"{\"node\":\"n\\\"1\",\"limit_ms\":-1}", JSON_HEAD, 400},
        {"{\"node\":\"n\\\"1\",\"limit_ms\":86400001}", JSON_HEAD, 400},
        {"{\"node\":\"n\\\"1\",\"limit_ms\":\"5\"}", JSON_HEAD, 400},
        {"{\"node\":\"n\\\"1\",\"why\":5}", JSON_HEAD, 400},
        {"{\"node\":\"n\\\"1\",\"undo\":\"yes\"}", JSON_HEAD, 400}, /* not a drain instead */
        {"{\"node\":\"n\\\"1\"}", "", 415},
        {"{\"node\":\"n\\\"1\"}", "Content-Type: text/plain\r\n", 415},
        {"{\"node\":\"n\\\"1\"}", JSON_HEAD "Origin: http://evil.example\r\n", 403},
        {"{\"node\":\"n\\\"1\"}", JSON_HEAD "Origin: null\r\n", 403},
    };
    rig_start(r);
    for (size_t i = 0; i < TD_COUNT(cases); i++) {
        struct rig_client c = {0};
        assert_int_equal(post(r, cases[i].body, cases[i].head, &c), cases[i].status);
        rig_hang_up(&c);
    }
    struct rig_client c = {0};
    assert_int_equal(rig_get(r, rt_shell_admin_port(r->shell), "/drain", &c), 405);
    rig_hang_up(&c);
    assert_int_equal(rig_get(r, rt_shell_port(r->shell), "/live", &c), 404); /* not public */
    rig_hang_up(&c);
    assert_int_equal(rig_get(r, rt_shell_port(r->shell), "/health", &c), 200);
    rig_hang_up(&c);
    assert_int_equal(post(r, "{\"node\":\"n\\\"1\"}", JSON_HEAD "Origin: http://h:1\r\n", &c), 200);
    rig_hang_up(&c);
}

static void a_query_that_is_no_number_is_refused_with_its_name(void **state)
{
    static const char *const bad[] = {"/live?since=abc",
                                      "/requests?limit=%ff",
                                      "/requests?limit=",
                                      "/live?since=-1",
                                      "/live?since=99999999999999999999",
                                      "/requests?x=1&limit=5x"};
    struct rig *r = *state;
    rig_start(r);
    for (size_t i = 0; i < TD_COUNT(bad); i++) {
        struct rig_client c = {0};
        assert_int_equal(rig_get(r, rt_shell_admin_port(r->shell), bad[i], &c), 400);
        assert_non_null(strstr(c.got, "must be a whole number"));
        rig_hang_up(&c);
    }
    json_decref(ask(r, "/requests?x=y&limit=5", 200));
    json_decref(ask(r, "/live?since=18446744073709551615", 200));
}

#define PAIR "{\"prefill\":\"n\\\"1\",\"decode\":\"n\\\"1\",\"tokens\":20}"

static void a_probe_runs_through_its_pair_and_answers_with_the_times(void **state)
{
    struct rig *r = *state;
    struct rig_client c = {0};
    rig_start(r);
    send_post(r, "/probe", PAIR, JSON_HEAD, &c);
    struct rig_work *w = rig_work(r, 0);
    assert_int_equal(w->n_prompt, 20);
    assert_int_equal(w->max_tokens, 2);
    assert_int_equal(w->n_stop_ids, 0); /* nothing ends it early */
    rig_say(r, w, "ok");
    rig_end(r, w, TD_OK, "");
    assert_int_equal(rig_answer(r, &c), 200);
    json_t *j = rig_json(&c);
    assert_true(json_is_true(json_object_get(j, "ok")));
    assert_string_equal(str(j, "decode"), "n\"1");
    assert_int_equal(num(j, "prompt_tokens"), 20);
    assert_true(num(j, "total_us") >= num(j, "ttft_us") && num(j, "ttft_us") > 0);
    json_decref(j);
    rig_hang_up(&c);
    j = ask(r, "/requests", 200); /* it is nobody's request */
    assert_int_equal(json_array_size(json_object_get(j, "finished")), 0);
    json_decref(j);
}

static void a_probe_that_fails_says_why_and_is_not_tried_again(void **state)
{
    struct rig *r = *state;
    struct rig_client c = {0};
    rig_start(r);
    send_post(r, "/probe", PAIR, JSON_HEAD, &c);
    rig_end(r, rig_work(r, 0), TD_ERR_STALLED, "nothing moved");
    assert_int_equal(rig_answer(r, &c), 200);
    json_t *j = rig_json(&c);
    assert_true(json_is_false(json_object_get(j, "ok")));
    assert_string_equal(str(j, "code"), td_err_code(TD_ERR_STALLED));
    assert_string_equal(str(j, "text"), "nothing moved");
    json_decref(j);
    rig_hang_up(&c);
    rig_passes(r, 20);
    assert_int_equal(r->n_works, 1);
    rig_state(r, true); /* drained: no pair */
    rig_passes(r, 50);
    send_post(r, "/probe", PAIR, JSON_HEAD, &c);
    assert_int_equal(rig_answer(r, &c), 200);
    j = rig_json(&c);
    assert_true(json_is_false(json_object_get(j, "ok")));
    json_decref(j);
    rig_hang_up(&c);
}

static bool was_cancelled(void *arg)
{
    return ((struct rig_work *)arg)->cancelled;
}

static void a_probe_whose_asker_leaves_is_cancelled_and_their_number_is_bounded(void **state)
{
    struct rig *r = *state;
    struct rig_client c[5] = {{0}};
    rig_start(r);
    for (uint32_t i = 0; i < 4; i++) {
        send_post(r, "/probe", PAIR, JSON_HEAD, &c[i]);
        (void)rig_work(r, i);
    }
    send_post(r, "/probe", PAIR, JSON_HEAD, &c[4]);
    assert_int_equal(rig_answer(r, &c[4]), 429);
    rig_hang_up(&c[4]);
    for (uint32_t i = 0; i < 4; i++) {
        rig_hang_up(&c[i]);
        rig_until(r, was_cancelled, rig_work(r, i), "the cancel");
    }
    static const char *const bad[] = {"{}", "{\"prefill\":\"n\\\"1\",\"decode\":5}",
                                      "{\"prefill\":\"a\",\"decode\":\"b\",\"tokens\":5000}",
                                      "{\"prefill\":\"a\",\"decode\":\"b\",\"park\":1}"};
    for (size_t i = 0; i < TD_COUNT(bad); i++) {
        send_post(r, "/probe", bad[i], JSON_HEAD, &c[0]);
        assert_int_equal(rig_answer(r, &c[0]), 400);
        rig_hang_up(&c[0]);
    }
    send_post(r, "/probe", "{\"prefill\":\"a\",\"decode\":\"b\"}", JSON_HEAD, &c[0]);
    assert_int_equal(rig_answer(r, &c[0]), 404);
    rig_hang_up(&c[0]);
    send_post(r, "/probe", PAIR, "", &c[0]);
    assert_int_equal(rig_answer(r, &c[0]), 415);
    rig_hang_up(&c[0]);
}

#define T(f) cmocka_unit_test_setup_teardown(f, rig_setup, rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_finished_request_is_explained),
        T(a_running_request_is_explained_too),
        T(the_list_of_requests_has_a_limit),
        T(the_live_figures_show_nodes_recent_times_and_samples),
        T(the_live_page_is_served_under_its_policy),
        T(a_drain_takes_the_node_out_and_back),
        T(a_query_that_is_no_number_is_refused_with_its_name),
        T(a_probe_runs_through_its_pair_and_answers_with_the_times),
        T(a_probe_that_fails_says_why_and_is_not_tried_again),
        T(a_probe_whose_asker_leaves_is_cancelled_and_their_number_is_bounded),
        T(what_may_not_or_cannot_drain_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
