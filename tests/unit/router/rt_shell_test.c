/* The router's shell between real sockets and a scripted node: what a client sees. */
#include "router/rt_shell.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <openssl/sha.h>

#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "router/rt_front.h"
#include "router/rt_model.h"
#include "tests/unit/router/rt_rig.h"

#define CHAT "/v1/chat/completions"
#define COMP "/v1/completions"
#define HI   "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static bool is_idle(void *arg)
{
    return rt_shell_idle(((struct rig *)arg)->shell);
}

static const char *text_at(json_t *event, const char *chat_key)
{
    json_t *c = json_array_get(json_object_get(event, "choices"), 0);
    json_t *from = chat_key != NULL ? json_object_get(c, chat_key) : c;
    return json_string_value(json_object_get(from, chat_key != NULL ? "content" : "text"));
}

static const char *finish_at(json_t *event, unsigned choice)
{
    json_t *c = json_array_get(json_object_get(event, "choices"), choice);
    return json_string_value(json_object_get(c, "finish_reason"));
}

/* All text of choice `index` in the events of a stream, and its finish reason. */
static void collect(const char *body, int index, bool chat, char *out, size_t cap, char finish[16])
{
    json_t *e = NULL;
    out[0] = 0;
    finish[0] = 0;
    for (unsigned i = 0; (e = rig_event(body, i)) != NULL; i++) {
        json_t *c = json_array_get(json_object_get(e, "choices"), 0);
        if (c != NULL && json_integer_value(json_object_get(c, "index")) == index) {
            const char *t = text_at(e, chat ? "delta" : NULL);
            const char *f = finish_at(e, 0);
            (void)strncat(out, t != NULL ? t : "", cap - strlen(out) - 1);
            if (f != NULL) {
                assert_int_equal(finish[0], 0); /* exactly one */
                (void)snprintf(finish, 16, "%s", f);
            }
        }
        json_decref(e);
    }
}

static void a_streamed_chat_begins_with_the_first_token_and_ends_with_done(void **state)
{
    struct rig *r = *state;
    struct rig_client c = {0};
    rig_start(r);
    rig_post(r, &c, CHAT, "{" HI ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
             "x-request-id: abc.1\r\n");
    struct rig_work *w = rig_work(r, 0);
    rig_passes(r, 20);
    assert_false(strstr(c.got, "HTTP") != NULL || recv(c.fd, c.got, 1, MSG_PEEK) > 0);
    rig_say(r, w, "Hey");
    rig_read(r, &c, "\"content\":\"y\"");
    rig_finish(r, w);
    assert_int_equal(rig_answer(r, &c), 200);
    assert_non_null(strstr(c.got, "Content-Type: text/event-stream; charset=utf-8\r\n"));
    assert_non_null(strstr(c.got, "Cache-Control: no-cache\r\n"));
    assert_non_null(strstr(c.got, "X-Accel-Buffering: no\r\n"));
    assert_non_null(strstr(c.got, "Transfer-Encoding: chunked\r\n"));
    assert_non_null(strstr(c.got, "x-request-id: abc.1\r\n"));
    char *body = rig_body(&c), all[64], finish[16];
    json_t *first = rig_event(body, 0), *last = NULL, *e = NULL;
    json_t *delta = json_object_get(json_array_get(json_object_get(first, "choices"), 0), "delta");
    assert_string_equal(json_string_value(json_object_get(delta, "role")), "assistant");
    assert_string_equal(json_string_value(json_object_get(first, "id")), "chatcmpl-abc.1");
    assert_string_equal(json_string_value(json_object_get(first, "model")), "tiny");
    collect(body, 0, true, all, sizeof all, finish);
    assert_string_equal(all, "Hey");
    assert_string_equal(finish, "stop");
    for (unsigned i = 0; (e = rig_event(body, i)) != NULL; i++) {
        json_decref(last);
        last = e;
    }
    json_t *usage = json_object_get(last, "usage");
    assert_int_equal(json_array_size(json_object_get(last, "choices")), 0);
    assert_int_equal(json_integer_value(json_object_get(usage, "completion_tokens")), 4);
    assert_int_equal(json_integer_value(json_object_get(usage, "prompt_tokens")), w->n_prompt);
    assert_string_equal(body + strlen(body) - 14, "data: [DONE]\n\n");
    json_decref(first);
    json_decref(last);
    rig_until(r, is_idle, r, "idle");
    rig_hang_up(&c);
}

static void a_whole_answer_comes_at_the_end_with_usage(void **state)
{
    struct rig *r = *state;
    struct rig_client c = {0};
    rig_start(r);
    rig_post(r, &c, CHAT, "{" HI ",\"model\":\"second-name\",\"return_token_ids\":true}", "");
    struct rig_work *w = rig_work(r, 0);
    assert_int_equal(w->max_tokens, r->model->max_model_len - w->n_prompt);
    assert_true(w->n_stop_ids > 0);
    rig_say(r, w, "ok");
    rig_finish(r, w);
    assert_int_equal(rig_answer(r, &c), 200);
    json_t *j = rig_json(&c), *u = json_object_get(j, "usage");
    json_t *choice = json_array_get(json_object_get(j, "choices"), 0);
    assert_string_equal(json_string_value(json_object_get(j, "object")), "chat.completion");
    assert_string_equal(json_string_value(json_object_get(j, "model")), "second-name");
    assert_string_equal(text_at(j, "message"), "ok");
    assert_string_equal(finish_at(j, 0), "stop");
    assert_int_equal(json_array_size(json_object_get(choice, "token_ids")), 3);
    assert_int_equal(json_integer_value(json_object_get(u, "total_tokens")), w->n_prompt + 3);
    json_t *details = json_object_get(u, "prompt_tokens_details");
    assert_int_equal(json_integer_value(json_object_get(details, "cached_tokens")), 2);
    json_decref(j);
    rig_hang_up(&c);
}

static void a_length_limit_ends_the_answer(void **state)
{
    struct rig *r = *state;
    struct rig_client c = {0};
    rig_start(r);
    rig_post(r, &c, COMP, "{\"prompt\":\"hi\",\"max_tokens\":2}", "");
    struct rig_work *w = rig_work(r, 0);
    rig_say(r, w, "a");
    rig_token(r, w, rig_byte(r, 'b'), TD_FINISH_LENGTH);
    rig_end(r, w, TD_OK, "");
    assert_int_equal(rig_answer(r, &c), 200);
    json_t *j = rig_json(&c);
    assert_string_equal(text_at(j, NULL), "ab");
    assert_string_equal(finish_at(j, 0), "length");
    json_decref(j);
    rig_hang_up(&c);
}

static void a_stop_string_over_several_tokens_is_cut_and_the_node_told(void **state)
{
    struct rig *r = *state;
    char all[64], finish[16];
    rig_start(r);
    for (unsigned stream = 0; stream < 2; stream++) {
        struct rig_client c = {0};
        rig_post(r, &c, COMP,
                 stream ? "{\"prompt\":\"hi\",\"stop\":[\"END\"],\"stream\":true}"
                        : "{\"prompt\":\"hi\",\"stop\":[\"END\"]}",
                 "");
        struct rig_work *w = rig_work(r, stream);
        rig_say(r, w, "aENxEND");
        rig_cancelled(r, w);
        assert_int_equal(rig_answer(r, &c), 200);
        assert_non_null(strstr(c.got, "\"stop_reason\":\"END\""));
        if (stream) {
            collect(rig_body(&c), 0, false, all, sizeof all, finish);
            assert_string_equal(all, "aENx");
            assert_string_equal(finish, "stop");
        } else {
            json_t *j = rig_json(&c);
            assert_string_equal(text_at(j, NULL), "aENx");
            assert_string_equal(finish_at(j, 0), "stop");
            json_decref(j);
        }
        rig_hang_up(&c);
    }
    rig_until(r, is_idle, r, "idle");
}

static void half_a_stop_string_is_held_back_and_given_out_at_the_end(void **state)
{
    struct rig *r = *state;
    struct rig_client c = {0};
    char all[64], finish[16];
    rig_start(r);
    rig_post(r, &c, COMP, "{\"prompt\":\"hi\",\"stop\":\"END\",\"stream\":true}", "");
    struct rig_work *w = rig_work(r, 0);
    rig_say(r, w, "aEN");
    rig_read(r, &c, "\"text\":\"a\"");
    rig_passes(r, 20);
    assert_null(strstr(c.got, "\"text\":\"E"));
    rig_finish(r, w);
    assert_int_equal(rig_answer(r, &c), 200);
    collect(rig_body(&c), 0, false, all, sizeof all, finish);
    assert_string_equal(all, "aEN");
    rig_hang_up(&c);
}

static void half_a_character_is_never_sent(void **state)
{
    struct rig *r = *state;
    struct rig_client c = {0};
    char all[64], finish[16];
    rig_start(r);
    rig_post(r, &c, COMP, "{\"prompt\":\"hi\",\"stream\":true}", "");
    struct rig_work *w = rig_work(r, 0);
    rig_say(r, w, "\xe2\x82\xac\xc3");
    rig_finish(r, w);
    assert_int_equal(rig_answer(r, &c), 200);
    char *body = rig_body(&c);
    assert_null(strstr(body, "\xe2\x82\"")); /* no cut character in any event */
    collect(body, 0, false, all, sizeof all, finish);
    assert_memory_equal(all, "\xe2\x82\xac", 3); /* what is left at the end becomes U+FFFD */
    assert_string_equal(all + 3, "\xef\xbf\xbd");
    rig_hang_up(&c);
}

static void several_choices_stream_side_by_side(void **state)
{
    struct rig *r = *state;
    struct rig_client c = {0};
    char all[64], finish[16];
    rig_start(r);
    rig_post(r, &c, CHAT, "{" HI ",\"n\":2,\"stream\":true,\"seed\":5}", "");
    struct rig_work *a = rig_work(r, 0), *b = rig_work(r, 1);
    assert_true(a->id.choice != b->id.choice && a->seed == 5 && b->seed == 5);
    rig_say(r, b, "b");
    rig_say(r, a, "a1");
    rig_say(r, b, "2");
    rig_finish(r, a);
    rig_read(r, &c, "\"finish_reason\":\"stop\"");
    rig_passes(r, 20);
    assert_null(strstr(c.got, "[DONE]"));
    rig_finish(r, b);
    assert_int_equal(rig_answer(r, &c), 200);
    char *body = rig_body(&c);
    collect(body, (int)a->id.choice, true, all, sizeof all, finish);
    assert_string_equal(all, "a1");
    collect(body, (int)b->id.choice, true, all, sizeof all, finish);
    assert_string_equal(all, "b2");
    assert_string_equal(finish, "stop");
    rig_hang_up(&c);
}

static void several_prompts_and_choices_answer_in_order(void **state)
{
    struct rig *r = *state;
    struct rig_client c = {0};
    rig_start(r);
    rig_post(r, &c, COMP, "{\"prompt\":[\"one two three four\",[5,6]],\"n\":2}", "");
    for (unsigned i = 4; i-- > 0;) {
        struct rig_work *w = rig_work(r, i);
        char text[2] = {(char)('a' + i), 0};
        rig_say(r, w, text);
        rig_finish(r, w);
    }
    assert_int_equal(rig_answer(r, &c), 200);
    json_t *j = rig_json(&c), *choices = json_object_get(j, "choices");
    assert_int_equal(json_array_size(choices), 4);
    for (unsigned i = 0; i < 4; i++) {
        json_t *ch = json_array_get(choices, i);
        const char text[2] = {(char)('a' + i), 0};
        assert_int_equal(json_integer_value(json_object_get(ch, "index")), i);
        assert_string_equal(json_string_value(json_object_get(ch, "text")), text);
    }
    json_t *u = json_object_get(j, "usage");
    assert_int_equal(json_integer_value(json_object_get(u, "prompt_tokens")),
                     r->works[0].n_prompt + 2);
    json_decref(j);
    rig_hang_up(&c);
}

static void a_client_that_leaves_is_cancelled_on_the_node(void **state)
{
    struct rig *r = *state;
    rig_start(r);
    for (unsigned stream = 0; stream < 2; stream++) {
        struct rig_client c = {0};
        rig_post(r, &c, CHAT, stream ? "{" HI ",\"n\":2,\"stream\":true}" : "{" HI ",\"n\":2}", "");
        struct rig_work *a = rig_work(r, 2 * stream), *b = rig_work(r, 2 * stream + 1);
        rig_say(r, a, "x");
        if (stream) {
            rig_read(r, &c, "\"content\":\"x\"");
        } else {
            rig_passes(r, 10);
        }
        rig_hang_up(&c);
        rig_cancelled(r, a);
        rig_cancelled(r, b);
        assert_int_equal(a->cancel_reason, TD_ERR_CANCELLED);
        rig_until(r, is_idle, r, "idle");
    }
}

static void a_client_that_does_not_read_is_cut_and_cancelled_and_others_go_on(void **state)
{
    struct rig *r = *state;
    struct rig_client slow, other = {0};
    int little = 4096;
    r->max_seqs = 32;
    rig_start(r);
    rig_dial(r, rt_shell_port(r->shell), &slow);
    assert_int_equal(setsockopt(slow.fd, SOL_SOCKET, SO_RCVBUF, &little, sizeof little), 0);
    rig_post(r, &slow, CHAT, "{" HI ",\"n\":16,\"stream\":true,\"ignore_eos\":true}", "");
    (void)rig_work(r, 15);
    for (uint32_t i = 0; i < 16; i++) { /* some 8 MB of events: more than any socket buffer holds */
        rig_repeat(r, &r->works[i], rig_byte(r, 'x'), 1900);
    }
    rig_post(r, &other, CHAT, "{" HI "}", "");
    struct rig_work *w = rig_work(r, 16);
    for (uint32_t i = 0; i < 16; i++) {
        rig_cancelled(r, &r->works[i]);
    }
    rig_say(r, w, "fine");
    rig_finish(r, w);
    assert_int_equal(rig_answer(r, &other), 200);
    rig_until(r, is_idle, r, "idle");
    rig_hang_up(&slow);
    rig_hang_up(&other);
}

static void a_client_that_leaves_while_queued_ends_at_once(void **state)
{
    struct rig *r = *state;
    struct rig_client first = {0}, c = {0};
    r->p.max_node_queue = 1;
    r->max_seqs = 1;
    rig_start(r);
    rig_post(r, &first, CHAT, "{" HI "}", "");
    struct rig_work *w = rig_work(r, 0);
    rig_post(r, &c, CHAT, "{" HI ",\"n\":3}", "");
    rig_passes(r, 50);
    assert_int_equal(r->n_works, 1); /* the others wait in the router */
    rig_hang_up(&c);
    rig_passes(r, 50);
    rig_finish(r, w);
    assert_int_equal(rig_answer(r, &first), 200);
    rig_until(r, is_idle, r, "idle");
    assert_int_equal(r->n_works, 1);
    rig_hang_up(&first);
}

static void a_full_queue_is_429_with_retry_after(void **state)
{
    struct rig *r = *state;
    struct rig_client first = {0}, c = {0};
    r->p.max_node_queue = 1;
    r->p.max_queue = 1;
    r->max_seqs = 1;
    rig_start(r);
    rig_post(r, &first, CHAT, "{" HI ",\"n\":2}", "");
    struct rig_work *w = rig_work(r, 0);
    rig_post(r, &c, CHAT, "{" HI "}", "");
    assert_int_equal(rig_answer(r, &c), 429);
    assert_non_null(strstr(c.got, "Retry-After: 1\r\n"));
    assert_non_null(strstr(c.got, "x-tandem-dropped-reason: overloaded\r\n"));
    rig_hang_up(&c);
    rig_finish(r, w);
    rig_finish(r, rig_work(r, 1));
    assert_int_equal(rig_answer(r, &first), 200);
    rig_hang_up(&first);
}

static void an_error_before_the_first_token_is_a_status(void **state)
{
    struct rig *r = *state;
    rig_start(r);
    for (unsigned stream = 0; stream < 2; stream++) {
        struct rig_client c = {0};
        rig_post(r, &c, CHAT, stream ? "{" HI ",\"stream\":true}" : "{" HI "}", "");
        rig_end(r, rig_work(r, stream), TD_ERR_CONTEXT_LENGTH, "too \"long\"");
        assert_int_equal(rig_answer(r, &c), 400);
        json_t *j = rig_json(&c), *e = json_object_get(j, "error");
        assert_string_equal(json_string_value(json_object_get(e, "code")),
                            "context_length_exceeded");
        assert_string_equal(json_string_value(json_object_get(e, "message")), "too \"long\"");
        json_decref(j);
        rig_hang_up(&c);
    }
    rig_until(r, is_idle, r, "idle");
}

static void an_error_after_the_first_token_is_an_event_then_done(void **state)
{
    struct rig *r = *state;
    struct rig_client c = {0};
    rig_start(r);
    rig_post(r, &c, CHAT, "{" HI ",\"stream\":true}", "");
    struct rig_work *w = rig_work(r, 0);
    rig_say(r, w, "x");
    rig_read(r, &c, "\"content\":\"x\"");
    rig_end(r, w, TD_ERR_INTERNAL, "broken");
    assert_int_equal(rig_answer(r, &c), 200);
    char *body = rig_body(&c);
    json_t *e = rig_event(body, 2);
    assert_string_equal(json_string_value(json_object_get(json_object_get(e, "error"), "code")),
                        "internal_error");
    json_decref(e);
    assert_string_equal(body + strlen(body) - 14, "data: [DONE]\n\n");
    rig_until(r, is_idle, r, "idle");
    rig_hang_up(&c);
}

static void one_failed_choice_ends_the_others_too(void **state)
{
    struct rig *r = *state;
    struct rig_client c = {0};
    rig_start(r);
    rig_post(r, &c, CHAT, "{" HI ",\"n\":2}", "");
    struct rig_work *a = rig_work(r, 0), *b = rig_work(r, 1);
    rig_say(r, b, "x");
    rig_end(r, a, TD_ERR_INTERNAL, "broken");
    assert_int_equal(rig_answer(r, &c), 500);
    rig_cancelled(r, b);
    rig_until(r, is_idle, r, "idle");
    rig_hang_up(&c);
}

static void a_lost_node_without_another_is_an_error_within_the_wait(void **state)
{
    struct rig *r = *state;
    struct rig_client c = {0}, d = {0};
    rig_start(r);
    rig_post(r, &c, CHAT, "{" HI "}", "");
    rig_post(r, &d, CHAT, "{" HI ",\"stream\":true}", "");
    (void)rig_work(r, 0);
    rig_say(r, rig_work(r, 1), "x");
    rig_read(r, &d, "\"content\":\"x\"");
    r->node = td_link_nng_destroy(r->node);
    assert_int_equal(rig_answer(r, &c), 503);
    assert_int_equal(rig_answer(r, &d), 200);
    assert_non_null(strstr(d.got, "\"error\":"));
    rig_hang_up(&c);
    assert_int_equal(rig_get(r, rt_shell_port(r->shell), "/readyz", &c), 503);
    rig_hang_up(&c);
    rig_hang_up(&d);
}

static bool is_up_twice(void *arg)
{
    return ((struct rig *)arg)->ups == 2;
}

static void
an_unreadable_message_costs_the_node_its_session_and_the_request_is_replayed(void **state)
{
    struct rig *r = *state;
    struct rig_client c = {0};
    r->p.pair_wait_us = 30000000;
    rig_start(r);
    rig_post(r, &c, CHAT, "{" HI "}", "");
    rig_say(r, rig_work(r, 0), "ab");
    rig_passes(r, 20);
    td_log_set_fd(-1);
    rig_garbage(r);
    rig_until(r, is_up_twice, r, "the router to come back");
    struct rig_work *w = rig_work(r, 1);
    td_log_set_fd(2);
    assert_int_equal(w->id.attempt, 1);
    assert_int_equal(w->n_sent, 2); /* goes on behind what the client has */
    rig_say(r, w, "c");
    rig_finish(r, w);
    assert_int_equal(rig_answer(r, &c), 200);
    json_t *j = rig_json(&c);
    assert_string_equal(text_at(j, "message"), "abc");
    json_decref(j);
    rig_hang_up(&c);
}

static void a_node_with_another_model_is_refused(void **state)
{
    struct rig *r = *state;
    struct rig_client c = {0};
    r->wrong_model = true;
    td_log_set_fd(-1);
    rig_start(r);
    for (int i = 0; i < 50; i++) {
        rig_passes(r, 5);
        assert_false(rt_shell_ready(r->shell));
    }
    rig_post(r, &c, CHAT, "{" HI "}", "");
    assert_int_equal(rig_answer(r, &c), 503);
    assert_non_null(strstr(c.got, "no_ready_node"));
    rig_hang_up(&c);
    td_log_set_fd(2);
}

static void a_silent_stream_gets_a_comment(void **state)
{
    struct rig *r = *state;
    struct rig_client c = {0};
    r->p.ping_us = 1;
    rig_start(r);
    rig_post(r, &c, CHAT, "{" HI ",\"stream\":true}", "");
    struct rig_work *w = rig_work(r, 0);
    rig_read(r, &c, ": ping\n\n");
    rig_say(r, w, "x");
    rig_finish(r, w);
    assert_int_equal(rig_answer(r, &c), 200);
    assert_non_null(strstr(rig_body(&c), "[DONE]"));
    rig_hang_up(&c);
}

static void a_spent_budget_is_504_and_cancels(void **state)
{
    struct rig *r = *state;
    struct rig_client c = {0};
    r->p.budget_us = 50000;
    rig_start(r);
    rig_post(r, &c, CHAT, "{" HI "}", "");
    struct rig_work *w = rig_work(r, 0);
    assert_int_equal(rig_answer(r, &c), 504);
    rig_cancelled(r, w);
    rig_until(r, is_idle, r, "idle");
    rig_hang_up(&c);
}

static void draining_finishes_what_runs_and_refuses_the_rest(void **state)
{
    struct rig *r = *state;
    struct rig_client c = {0}, other = {0}, probe = {0};
    rig_start(r);
    rig_post(r, &c, CHAT, "{" HI "}", "");
    struct rig_work *w = rig_work(r, 0);
    rig_post(r, &other, COMP, "{\"prompt\":\"x\"}", "Expect: 100-continue\r\nx-pad: 1\r\n");
    struct rig_work *w2 = rig_work(r, 1);
    rt_shell_drain(r->shell);
    assert_false(rt_shell_idle(r->shell));
    assert_int_equal(rig_get(r, rt_shell_admin_port(r->shell), "/readyz", &probe), 503);
    assert_non_null(strstr(probe.got, "draining"));
    rig_hang_up(&probe);
    assert_int_equal(rig_get(r, rt_shell_admin_port(r->shell), "/livez", &probe), 200);
    rig_hang_up(&probe);
    rig_say(r, w, "done");
    rig_finish(r, w);
    assert_int_equal(rig_answer(r, &c), 200);
    rig_finish(r, w2);
    assert_int_equal(rig_answer(r, &other), 200);
    rig_until(r, is_idle, r, "idle");
    rig_hang_up(&c);
    rig_hang_up(&other);
}

static void statuses_of_the_guard_and_the_routes(void **state)
{
    struct rig *r = *state;
    static char big[70000];
    memset(big, 'x', sizeof big - 1);
    static const struct {
        const char *text;
        int status;
        const char *want;
    } rows[] = {
        {"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n", 404, "\"code\":\"not_found\""},
        {"GET /v1/models/other HTTP/1.1\r\nHost: a\r\n\r\n", 404, "model_not_found"},
        {"GET /v1/chat/completions HTTP/1.1\r\nHost: a\r\n\r\n", 405, "Allow: "},
        {"DELETE /health HTTP/1.1\r\nHost: a\r\n\r\n", 405, "method_not_allowed"},
        {"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 70000\r\n\r\n", 413,
         "payload_too_large"},
        {"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}", 415,
         "unsupported_media_type"},
        {"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\n"
         "Content-Length: 2\r\n\r\n{}",
         415, "unsupported_media_type"},
        {"GET /nodes HTTP/1.1\r\nHost: a\r\n\r\n", 404, "not_found"}, /* admin only */
    };
    rig_start(r);
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        struct rig_client c;
        rig_dial(r, rt_shell_port(r->shell), &c);
        rig_send(&c, rows[i].text);
        assert_int_equal(rig_answer(r, &c), rows[i].status);
        if (strstr(c.got, rows[i].want) == NULL) {
            fail_msg("no %s in %s", rows[i].want, c.got);
        }
        rig_hang_up(&c);
    }
    static const struct {
        const char *path, *body;
        int status;
        const char *want;
    } posts[] = {
        {CHAT, "{", 400, "invalid JSON"},
        {CHAT, "{" HI ",\"model\":\"nope\"}", 404, "model_not_found"},
        {CHAT, "{" HI ",\"tools\":[1]}", 400, "\"param\":\"tools\""},
        {COMP, "{\"prompt\":[999999]}", 400, "not in the vocabulary"},
        {COMP, "{\"prompt\":\"x\",\"max_tokens\":100000}", 400, "context_length_exceeded"},
        {COMP, "{\"prompt\":\"\"}", 400, "no tokens"},
    };
    for (size_t i = 0; i < TD_COUNT(posts); i++) {
        struct rig_client c = {0};
        rig_post(r, &c, posts[i].path, posts[i].body, "");
        assert_int_equal(rig_answer(r, &c), posts[i].status);
        if (strstr(c.got, posts[i].want) == NULL) {
            fail_msg("no %s in %s", posts[i].want, c.got);
        }
        rig_hang_up(&c);
    }
    assert_int_equal(r->n_works, 0);
    rig_until(r, is_idle, r, "idle");
}

static void write_keys(char path[32], const char *limits)
{
    uint8_t hash[32];
    char hex[65];
    (void)SHA256((const uint8_t *)"s3cret", 6, hash);
    for (int i = 0; i < 32; i++) {
        (void)snprintf(hex + 2 * i, 3, "%02x", hash[i]);
    }
    (void)snprintf(path, 32, "/tmp/rt-keys-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0 && dprintf(fd, "k1 %s acme 5 %s\n", hex, limits) > 0);
    (void)close(fd);
}

#define KEY "Authorization: Bearer s3cret\r\n"

static void keys_guard_everything_but_probes(void **state)
{
    struct rig *r = *state;
    struct rig_client c = {0};
    char path[32];
    write_keys(path, "0 1 6000");
    r->p.api_key_file = path;
    rig_start(r);
    (void)unlink(path);
    rig_post(r, &c, CHAT, "{" HI "}", "x-request-id: mine\r\n");
    assert_int_equal(rig_answer(r, &c), 401);
    assert_non_null(strstr(c.got, "WWW-Authenticate: Bearer\r\n"));
    assert_non_null(strstr(c.got, "x-request-id: mine\r\n"));
    assert_non_null(strstr(c.got, "x-should-retry: false\r\n"));
    rig_hang_up(&c);
    assert_int_equal(rig_get(r, rt_shell_port(r->shell), "/nothing", &c), 401);
    rig_hang_up(&c);
    assert_int_equal(rig_get(r, rt_shell_port(r->shell), "/v1/models", &c), 401);
    rig_hang_up(&c);
    assert_int_equal(rig_get(r, rt_shell_port(r->shell), "/metrics", &c), 401);
    rig_hang_up(&c);
    assert_int_equal(rig_get(r, rt_shell_admin_port(r->shell), "/metrics", &c), 200);
    rig_hang_up(&c);
    assert_int_equal(rig_get(r, rt_shell_port(r->shell), "/health", &c), 200);
    rig_hang_up(&c);
    rig_post(r, &c, CHAT, "{" HI ",\"priority\":-3}", KEY);
    struct rig_work *w = rig_work(r, 0);
    assert_string_equal(w->tenant, "acme");
    assert_int_equal(w->priority, 5); /* its ceiling */
    struct rig_client d = {0};
    rig_post(r, &d, CHAT, "{" HI "}", KEY); /* one at a time */
    assert_int_equal(rig_answer(r, &d), 429);
    assert_non_null(strstr(d.got, "rate_limited"));
    assert_non_null(strstr(d.got, "Retry-After: "));
    assert_non_null(strstr(d.got, "x-ratelimit-limit-concurrent: 1\r\n"));
    assert_non_null(strstr(d.got, "x-ratelimit-remaining-concurrent: 0\r\n"));
    assert_non_null(strstr(d.got, "x-ratelimit-limit-tokens: 6000\r\n"));
    assert_non_null(strstr(d.got, "x-request-id: "));
    rig_hang_up(&d);
    rig_finish(r, w);
    assert_int_equal(rig_answer(r, &c), 200);
    rig_hang_up(&c);
    rig_post(r, &c, CHAT, "{" HI "}", KEY); /* the admission came back */
    rig_finish(r, rig_work(r, 1));
    assert_int_equal(rig_answer(r, &c), 200);
    rig_hang_up(&c);
}

static void a_tenant_and_its_salt_root_the_cache(void **state)
{
    struct rig *r = *state;
    static const char *const bodies[] = {"{" HI "}", "{" HI "}", "{" HI ",\"cache_salt\":\"a\"}"};
    rig_start(r);
    for (unsigned i = 0; i < 3; i++) {
        struct rig_client c = {0};
        rig_post(r, &c, CHAT, bodies[i], "");
        rig_finish(r, rig_work(r, i));
        assert_int_equal(rig_answer(r, &c), 200);
        rig_hang_up(&c);
    }
    assert_memory_equal(r->works[0].salt, r->works[1].salt, 32);
    assert_memory_not_equal(r->works[0].salt, r->works[2].salt, 32);
    assert_true(r->works[0].seed != r->works[1].seed); /* none was given */
}

static void a_request_id_that_could_break_a_log_is_replaced(void **state)
{
    struct rig *r = *state;
    struct rig_client c = {0};
    rig_start(r);
    rig_post(r, &c, CHAT, "{" HI "}", "x-request-id: a b\"c\r\n");
    rig_finish(r, rig_work(r, 0));
    assert_int_equal(rig_answer(r, &c), 200);
    assert_null(strstr(c.got, "a b"));
    assert_non_null(strstr(c.got, "x-request-id: "));
    rig_hang_up(&c);
    rig_post(r, &c, CHAT, "{" HI ",\"request_id\":\"from-body\"}", "x-request-id: from-head\r\n");
    rig_finish(r, rig_work(r, 1));
    assert_int_equal(rig_answer(r, &c), 200);
    assert_non_null(strstr(c.got, "x-request-id: from-body\r\n"));
    rig_hang_up(&c);
}

static void the_admin_pages_show_nodes_and_requests(void **state)
{
    struct rig *r = *state;
    struct rig_client c = {0}, a = {0};
    rig_start(r);
    uint16_t admin = rt_shell_admin_port(r->shell);
    rig_post(r, &c, CHAT, "{" HI "}", "x-request-id: seen\r\n");
    struct rig_work *w = rig_work(r, 0);
    assert_int_equal(rig_get(r, admin, "/requests", &a), 200);
    json_t *j = rig_json(&a), *live = json_array_get(json_object_get(j, "live"), 0);
    assert_string_equal(json_string_value(json_object_get(live, "request_id")), "seen");
    assert_string_equal(json_string_value(json_object_get(live, "phase")), "prefill");
    json_decref(j);
    rig_hang_up(&a);
    rig_finish(r, w);
    assert_int_equal(rig_answer(r, &c), 200);
    assert_int_equal(rig_get(r, admin, "/debug/request/seen", &a), 200);
    j = rig_json(&a);
    assert_string_equal(json_string_value(json_object_get(j, "decode")), "n\"1");
    assert_string_equal(json_string_value(json_object_get(j, "transport")), "shm");
    json_decref(j);
    rig_hang_up(&a);
    assert_int_equal(rig_get(r, admin, "/debug/request/unseen", &a), 404);
    rig_hang_up(&a);
    assert_int_equal(rig_get(r, admin, "/nodes", &a), 200);
    j = rig_json(&a);
    json_t *n = json_array_get(json_object_get(j, "nodes"), 0);
    assert_string_equal(json_string_value(json_object_get(n, "role")), "both");
    assert_true(json_is_true(json_object_get(n, "ready")));
    json_decref(j);
    rig_hang_up(&a);
    rig_hang_up(&c);
}

static void models_version_and_probes_answer(void **state)
{
    struct rig *r = *state;
    struct rig_client c = {0};
    static const char *const ok[] = {"/health",   "/v1/health", "/readyz",  "/livez",
                                     "/startupz", "/version",   "/metrics", "/v1/models/tiny"};
    rig_start(r);
    for (size_t i = 0; i < TD_COUNT(ok); i++) {
        assert_int_equal(rig_get(r, rt_shell_port(r->shell), ok[i], &c), 200);
        rig_hang_up(&c);
    }
    assert_int_equal(rig_get(r, rt_shell_port(r->shell), "/v1/models", &c), 200);
    json_t *j = rig_json(&c), *data = json_object_get(j, "data");
    assert_int_equal(json_array_size(data), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(data, 1), "id")),
                        "second-name");
    json_decref(j);
    rig_hang_up(&c);
}

static void a_token_outside_of_the_vocabulary_is_the_nodes_fault(void **state)
{
    struct rig *r = *state;
    struct rig_client c = {0};
    rig_start(r);
    rig_post(r, &c, CHAT, "{" HI "}", "");
    struct rig_work *w = rig_work(r, 0);
    rig_token(r, w, (int32_t)td_text_vocab_size(r->model->vocab), TD_FINISH_NONE);
    assert_int_equal(rig_answer(r, &c), 502);
    assert_non_null(strstr(c.got, "sequence_failed"));
    rig_cancelled(r, w);
    rig_hang_up(&c);
}

static bool is_gone(void *arg)
{
    return rt_shell_gone(((struct rig *)arg)->shell);
}

static bool is_lost(void *arg)
{
    return ((struct rig *)arg)->losts > 0;
}

static void a_router_that_stops_ends_answers_with_an_error(void **state)
{
    struct rig *r = *state;
    struct rig_client a = {0}, b = {0};
    rig_start(r);
    rig_post(r, &a, CHAT, "{" HI ",\"stream\":true}", "");
    rig_say(r, rig_work(r, 0), "x");
    rig_read(r, &a, "\"content\":\"x\"");
    rig_post(r, &b, CHAT, "{" HI "}", "");
    (void)rig_work(r, 1);
    rt_shell_drain(r->shell);
    rt_shell_bye(r->shell);
    rig_until(r, is_gone, r, "parted");
    assert_int_equal(rig_answer(r, &b), 503);
    assert_non_null(strstr(b.got, "\"code\":\"draining\""));
    rig_read(r, &a, "[DONE]");
    assert_non_null(strstr(a.got, "\"code\":\"draining\""));
    rig_until(r, is_lost, r, "the node's loss"); /* told, not timed out: T_dead is far away */
    assert_int_equal(r->losts, 1);
    rig_hang_up(&a);
    rig_hang_up(&b);
}

static void destruction_in_the_middle_of_everything_leaks_nothing(void **state)
{
    struct rig *r = *state;
    struct rig_client a = {0}, b = {0}, c = {0};
    r->silent = true;
    rig_start(r);
    rig_post(r, &a, CHAT, "{" HI ",\"n\":2,\"stream\":true}", "");
    rig_say(r, rig_work(r, 0), "x");
    rig_read(r, &a, "\"content\":\"x\"");
    rig_post(r, &b, CHAT, "{" HI "}", "");
    (void)rig_work(r, 2);
    rig_post(r, &c, CHAT, "{" HI "}", ""); /* perhaps at the worker */
    rig_hang_up(&b);
    rig_passes(r, 3);
    r->shell = rt_shell_destroy(r->shell);
    rig_hang_up(&a);
    rig_hang_up(&c);
}

static void creation_fails_cleanly(void **state)
{
    struct rig *r = *state;
    struct rt_shell *none = NULL;
    td_log_set_fd(-1);
    r->urls[0] = "tcp://127.0.0.1:1";
    r->p.name = "two words"; /* no node would take it */
    assert_int_equal(rt_shell_create(&r->p, &none), TD_ERR_CONFIG);
    r->p.name = "r1";
    r->p.model_path = "/nonexistent.gguf";
    assert_int_equal(rt_shell_create(&r->p, &none), TD_ERR_NO_FILE);
    r->p.model_path = r->model_path;
    r->p.host = "not an address";
    assert_int_not_equal(rt_shell_create(&r->p, &none), TD_OK);
    r->p.host = "127.0.0.1";
    r->p.api_key_file = "/nonexistent.keys";
    assert_int_equal(rt_shell_create(&r->p, &none), TD_ERR_NO_FILE);
    r->p.api_key_file = NULL;
    r->urls[0] = "nonsense";
    assert_int_not_equal(rt_shell_create(&r->p, &none), TD_OK);
    r->urls[0] = "tcp://127.0.0.1:1";
    td_err err = TD_ERR_NO_MEMORY;
    unsigned n = 1;
    for (; err != TD_OK && n < 2000; n++) {
        td_mem_fail_nth(n);
        err = rt_shell_create(&r->p, &r->shell);
        td_mem_fail_nth(0);
    }
    assert_int_equal(err, TD_OK);
    assert_true(n > 10);
    td_log_set_fd(2);
}

static void the_front_of_a_node_is_the_same_shell(void **state)
{
    struct rig *r = *state;
    struct rig_client c = {0};
    void *front = NULL;
    struct td_front_params f = {.loop = r->loop,
                                .name = "both",
                                .model_path = r->model_path,
                                .chat_template = "",
                                .host = "127.0.0.1",
                                .admin_host = "127.0.0.1",
                                .api_key_file = "",
                                .node_url = "tcp://127.0.0.1:1",
                                .served_names = r->p.served_names,
                                .n_served_names = 1,
                                .keys = &r->key,
                                .n_keys = 1,
                                .time_scale = 1,
                                .budget_s = 5};
    assert_int_equal(rt_front_ops.create(&f, &front), TD_OK);
    assert_true(rt_front_ops.idle(front));
    assert_int_equal(rig_get(r, rt_front_ops.port(front), "/v1/models", &c), 200);
    rig_hang_up(&c);
    assert_int_equal(rig_get(r, rt_front_ops.admin_port(front), "/nodes", &c), 200);
    rig_hang_up(&c);
    rt_front_ops.drain(front);
    assert_int_equal(rig_get(r, rt_front_ops.admin_port(front), "/readyz", &c), 503);
    rig_hang_up(&c);
    rt_front_ops.destroy(front);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, rig_setup, rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_streamed_chat_begins_with_the_first_token_and_ends_with_done),
        TEST(a_whole_answer_comes_at_the_end_with_usage),
        TEST(a_length_limit_ends_the_answer),
        TEST(a_stop_string_over_several_tokens_is_cut_and_the_node_told),
        TEST(half_a_stop_string_is_held_back_and_given_out_at_the_end),
        TEST(half_a_character_is_never_sent),
        TEST(several_choices_stream_side_by_side),
        TEST(several_prompts_and_choices_answer_in_order),
        TEST(a_client_that_leaves_is_cancelled_on_the_node),
        TEST(a_client_that_does_not_read_is_cut_and_cancelled_and_others_go_on),
        TEST(a_client_that_leaves_while_queued_ends_at_once),
        TEST(a_full_queue_is_429_with_retry_after),
        TEST(an_error_before_the_first_token_is_a_status),
        TEST(an_error_after_the_first_token_is_an_event_then_done),
        TEST(one_failed_choice_ends_the_others_too),
        TEST(a_lost_node_without_another_is_an_error_within_the_wait),
        TEST(an_unreadable_message_costs_the_node_its_session_and_the_request_is_replayed),
        TEST(a_node_with_another_model_is_refused),
        TEST(a_silent_stream_gets_a_comment),
        TEST(a_spent_budget_is_504_and_cancels),
        TEST(draining_finishes_what_runs_and_refuses_the_rest),
        TEST(statuses_of_the_guard_and_the_routes),
        TEST(keys_guard_everything_but_probes),
        TEST(a_tenant_and_its_salt_root_the_cache),
        TEST(a_request_id_that_could_break_a_log_is_replaced),
        TEST(the_admin_pages_show_nodes_and_requests),
        TEST(models_version_and_probes_answer),
        TEST(a_token_outside_of_the_vocabulary_is_the_nodes_fault),
        TEST(a_router_that_stops_ends_answers_with_an_error),
        TEST(destruction_in_the_middle_of_everything_leaks_nothing),
        TEST(creation_fails_cleanly),
        TEST(the_front_of_a_node_is_the_same_shell),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
