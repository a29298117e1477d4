/* The public gRPC port through the whole shell: a client of raw frames on one side, a scripted node on the other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/sha.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "tests/unit/io/h2_rig.h"
#include "tests/unit/router/rt_rig.h"

#define ENGINE(method) "/tandem.v1.Engine/" method
#define HEALTH         "/grpc.health.v1.Health/Check"
#define BYTES(text)    (text), sizeof(text) - 1
#define ASK_HI         "\x12\2hi"                         /* text */
#define ASK_ENDLESS    "\x12\2hi\x2a\5\x48\xd0\x0f\x78\1" /* max_tokens 2000, ignore_eos */

static uint8_t body[1u << 20];
static size_t n_body;

static struct h2_conn *connect_to(struct rig *r, uint16_t port)
{
    struct h2_conn *c = h2_dial(r->loop, port);
    h2_hello(c);
    return c;
}

static struct h2_conn *start(struct rig *r)
{
    r->p.grpc = true;
    rig_start(r);
    return connect_to(r, rt_shell_grpc_port(r->shell));
}

static void begin(struct h2_conn *c, uint32_t stream, const char *path, const char *const *more,
                  const char *message, size_t len)
{
    h2_request(c, stream, path, more, 0);
    h2_message(c, stream, message, len, H2_END_STREAM);
}

/* Reads the answer into `body`; its grpc-status. */
static const char *finish(struct h2_conn *c, uint32_t stream)
{
    n_body = h2_answer(c, stream, body, sizeof body);
    return h2_header(c, "grpc-status");
}

static const char *call(struct h2_conn *c, uint32_t stream, const char *path,
                        const char *const *more, const char *message, size_t len)
{
    begin(c, stream, path, more, message, len);
    return finish(c, stream);
}

static bool told(const char *text)
{
    return memmem(body, n_body, text, strlen(text)) != NULL;
}

/* The messages in `body`, of which `what` says how many carry this field (of less than 16, with a length). */
static uint32_t count_messages(uint8_t field, uint32_t *out_with)
{
    uint32_t n = 0;
    *out_with = 0;
    for (size_t at = 0; at < n_body;) {
        size_t len = h2_u32(body + at + 1), i = at + 5;
        assert_true(body[at] == 0 && i + len <= n_body);
        for (size_t end = i + len; i < end;) {
            assert_true(body[i + 1] < 128); /* short messages only */
            *out_with += body[i] == (uint8_t)(field << 3 | 2) ? 1 : 0;
            i += 2u + body[i + 1];
        }
        at = i;
        n++;
    }
    return n;
}

static bool is_idle(void *arg)
{
    return rt_shell_idle(((struct rig *)arg)->shell);
}

static void reset(struct h2_conn *c, uint32_t stream)
{
    static const uint8_t cancel[4] = {0, 0, 0, 8};
    h2_frame_out(c, H2_RST, 0, stream, cancel, sizeof cancel);
}

static void a_delta_comes_for_each_token_and_the_usage_last(void **state)
{
    struct rig *r = *state;
    struct h2_conn *c = start(r);
    static const char *const id[] = {"x-request-id", "mine-1", NULL};
    uint32_t n = 0;
    begin(c, 1, ENGINE("Generate"), id, BYTES(ASK_HI));
    struct rig_work *w = rig_work(r, 0);
    rig_say(r, w, "Hey");
    rig_finish(r, w);
    assert_string_equal(finish(c, 1), "0");
    assert_int_equal(count_messages(2, &n), 5); /* three tokens and the end token, then the usage */
    assert_int_equal(n, 4);
    assert_int_equal(count_messages(3, &n), 5);
    assert_int_equal(n, 1);
    assert_true(told("gen-") && told("H") && told("e") && told("y"));
    rig_until(r, is_idle, r, "idle");
    h2_hang_up(c);
}

static void an_end_on_the_node_becomes_a_status_with_its_code(void **state)
{
    struct rig *r = *state;
    struct h2_conn *c = start(r);
    static const struct {
        td_err err;
        const char *status, *code;
    } rows[] = {{TD_ERR_CONTEXT_LENGTH, "3", "context_length_exceeded"},
                {TD_ERR_INTERNAL, "13", "internal_error"},
                {TD_ERR_BUDGET, "4", "budget_spent"},
                {TD_ERR_POISON, "10", "poison_suspected"}};
    for (uint32_t i = 0; i < TD_COUNT(rows); i++) {
        begin(c, 2 * i + 1, ENGINE("Generate"), NULL, BYTES(ASK_HI));
        rig_end(r, rig_work(r, i), rows[i].err, "as told");
        assert_string_equal(finish(c, 2 * i + 1), rows[i].status);
        assert_string_equal(h2_header(c, "tandem-code"), rows[i].code);
        assert_int_equal(n_body, 0);
    }
    rig_until(r, is_idle, r, "idle");
    h2_hang_up(c);
}

static void a_bad_request_never_reaches_a_node(void **state)
{
    struct rig *r = *state;
    struct h2_conn *c = start(r);
    assert_string_equal(call(c, 1, ENGINE("Generate"), NULL, BYTES("\xff")), "3");
    assert_string_equal(call(c, 3, ENGINE("Generate"), NULL, BYTES("\x12\1\0")), "3");
    assert_string_equal(call(c, 5, ENGINE("Generate"), NULL, BYTES("\x0a\5other" ASK_HI)), "5");
    assert_string_equal(call(c, 7, ENGINE("Generate"), NULL, BYTES(ASK_HI "\x5a\1a")), "12");
    assert_string_equal(call(c, 9, ENGINE("ListModels"), NULL, BYTES("\xff")), "3");
    assert_string_equal(call(c, 11, ENGINE("Cancel"), NULL, BYTES("\xff")), "3");
    assert_string_equal(call(c, 13, ENGINE("Detokenize"), NULL, BYTES("\x12\4\xff\xff\xff\x7f")),
                        "3");
    assert_string_equal(call(c, 15, ENGINE("Nothing"), NULL, BYTES(ASK_HI)), "12");
    assert_int_equal(r->n_works, 0);
    rig_until(r, is_idle, r, "idle");
    h2_hang_up(c);
}

static void models_have_all_their_names(void **state)
{
    struct rig *r = *state;
    struct h2_conn *c = start(r);
    assert_string_equal(call(c, 1, ENGINE("ListModels"), NULL, NULL, 0), "0");
    assert_true(told("tiny") && told("second-name"));
    h2_hang_up(c);
}

static void text_becomes_tokens_and_text_again(void **state)
{
    struct rig *r = *state;
    struct h2_conn *c = start(r);
    assert_string_equal(call(c, 1, ENGINE("Tokenize"), NULL, BYTES("\x12\3Hey")), "0");
    size_t len = body[6]; /* of field 1, packed ids of one or two bytes each */
    assert_true(body[5] == 0x0a && len >= 1 && len < 100);
    char ask[128] = {0x12, (char)len};
    memcpy(ask + 2, body + 7, len);
    assert_string_equal(call(c, 3, ENGINE("Detokenize"), NULL, ask, len + 2), "0");
    assert_true(n_body == 10 && told("Hey"));
    h2_hang_up(c);
}

static void a_client_that_leaves_is_cancelled_on_the_node(void **state)
{
    struct rig *r = *state;
    struct h2_conn *c = start(r);
    begin(c, 1, ENGINE("Generate"), NULL, BYTES(ASK_ENDLESS));
    struct rig_work *w = rig_work(r, 0);
    rig_say(r, w, "a");
    reset(c, 1);
    rig_cancelled(r, w);
    begin(c, 3, ENGINE("Generate"), NULL, BYTES(ASK_ENDLESS));
    w = rig_work(r, 1);
    h2_hang_up(c);
    rig_cancelled(r, w);
    rig_until(r, is_idle, r, "idle");
}

/* At the worker, and in any order of its answer and of the client's leave. */
static void a_client_that_leaves_while_its_text_is_tokenised_leaves_nothing(void **state)
{
    struct rig *r = *state;
    struct h2_conn *c = start(r);
    static const char *const paths[] = {ENGINE("Generate"), ENGINE("Tokenize"),
                                        ENGINE("Detokenize")};
    for (uint32_t i = 0; i < 90; i++) {
        begin(c, 2 * i + 1, paths[i % 3], NULL, i % 3 == 2 ? "" : ASK_HI, i % 3 == 2 ? 0 : 4);
        rig_passes(r, (int)(i % 4));
        reset(c, 2 * i + 1);
    }
    rig_passes(r, 20);
    for (uint32_t i = 0; i < r->n_works; i++) {
        rig_cancelled(r, &r->works[i]);
    }
    rig_until(r, is_idle, r, "idle");
    assert_string_equal(call(c, 201, ENGINE("Tokenize"), NULL, BYTES(ASK_HI)), "0");
    h2_hang_up(c);
}

static void a_deadline_that_passes_in_the_queue_ends_the_call_and_frees_its_place(void **state)
{
    struct rig *r = *state;
    static const char *const soon[] = {"grpc-timeout", "50m", NULL};
    r->p.max_node_queue = 1;
    r->p.max_queue = 1;
    r->max_seqs = 1;
    struct h2_conn *c = start(r);
    begin(c, 1, ENGINE("Generate"), NULL, BYTES(ASK_HI));
    struct rig_work *w = rig_work(r, 0);
    assert_string_equal(call(c, 3, ENGINE("Generate"), soon, BYTES(ASK_HI)), "4");
    assert_string_equal(h2_header(c, "tandem-code"), "budget_spent");
    begin(c, 5, ENGINE("Generate"), NULL, BYTES(ASK_HI)); /* the one place is free again */
    rig_passes(r, 50);
    assert_string_equal(call(c, 7, ENGINE("Generate"), NULL, BYTES(ASK_HI)), "8");
    assert_true(atoi(h2_header(c, "grpc-retry-pushback-ms")) > 0);
    assert_int_equal(r->n_works, 1);
    rig_finish(r, w);
    assert_string_equal(finish(c, 1), "0");
    rig_finish(r, rig_work(r, 1));
    assert_string_equal(finish(c, 5), "0");
    h2_hang_up(c);
}

static void a_client_that_does_not_read_is_cut_and_cancelled_and_others_go_on(void **state)
{
    struct rig *r = *state;
    static struct h2_frame f;
    r->max_seqs = 32;
    struct h2_conn *deaf = start(r);
    struct h2_conn *c = connect_to(r, rt_shell_grpc_port(r->shell));
    h2_setting(deaf, 4, 0); /* a window of nothing */
    begin(deaf, 1, ENGINE("Generate"), NULL, BYTES(ASK_ENDLESS "\x30\x10"));
    (void)rig_work(r, 15);
    for (uint32_t i = 0; i < 16; i++) { /* 1.4 MB, more than a stream may hold back */
        rig_repeat(r, &r->works[i], rig_byte(r, 'x'), 1900);
    }
    for (uint32_t i = 0; i < 16; i++) {
        rig_cancelled(r, &r->works[i]);
    }
    assert_true(h2_wait(deaf, H2_RST, &f) && f.stream == 1);
    assert_int_equal(h2_u32(f.payload),
                     11); /* ENHANCE_YOUR_CALM: RESOURCE_EXHAUSTED to a client of gRPC */
    begin(c, 1, ENGINE("Generate"), NULL, BYTES(ASK_HI));
    rig_finish(r, rig_work(r, 16));
    assert_string_equal(finish(c, 1), "0");
    rig_until(r, is_idle, r, "idle");
    h2_hang_up(deaf);
    h2_hang_up(c);
}

static void write_keys(char path[32])
{
    static const char *const keys[] = {"one", "two"};
    (void)snprintf(path, 32, "/tmp/rt-keys-XXXXXX");
    int fd = mkstemp(path);
    for (size_t k = 0; k < TD_COUNT(keys); k++) {
        uint8_t hash[32];
        char hex[65];
        (void)SHA256((const uint8_t *)keys[k], strlen(keys[k]), hash);
        for (int i = 0; i < 32; i++) {
            (void)snprintf(hex + 2 * i, 3, "%02x", hash[i]);
        }
        assert_true(fd >= 0 && dprintf(fd, "k%zu %s tenant-%zu 0 0 1 0\n", k, hex, k) > 0);
    }
    (void)close(fd);
}

static void a_key_is_asked_for_by_everything_but_health(void **state)
{
    struct rig *r = *state;
    static char longest[2000];
    char path[32];
    write_keys(path);
    memset(longest, 'k', sizeof longest - 1);
    const char *const bearer[] = {"authorization", "Bearer one", NULL};
    const char *const bare[] = {"x-api-key", "two", NULL};
    const char *const bad[][3] = {{NULL},
                                  {"authorization", "one", NULL},
                                  {"authorization", "Bearer three", NULL},
                                  {"x-api-key", "", NULL},
                                  {"x-api-key", longest, NULL}};
    r->p.api_key_file = path;
    struct h2_conn *c = start(r);
    (void)unlink(path);
    uint32_t stream = 1;
    for (size_t i = 0; i < TD_COUNT(bad); i++, stream += 2) {
        assert_string_equal(call(c, stream, ENGINE("ListModels"), bad[i], NULL, 0), "16");
    }
    assert_string_equal(call(c, 101, "/no.Such/Method", NULL, NULL, 0), "16");
    assert_string_equal(call(c, 103, HEALTH, NULL, NULL, 0), "0");
    assert_string_equal(call(c, 105, ENGINE("ListModels"), bearer, NULL, 0), "0");
    assert_string_equal(call(c, 107, ENGINE("ListModels"), bare, NULL, 0), "0");
    h2_hang_up(c);
}

static void cancel_ends_a_generate_of_its_own_tenant_only(void **state)
{
    struct rig *r = *state;
    static struct h2_frame f;
    static const char *const one[] = {"x-api-key", "one", NULL};
    static const char *const two[] = {"x-api-key", "two", NULL};
    char path[32], ask[64];
    write_keys(path);
    r->p.api_key_file = path;
    struct h2_conn *c = start(r);
    struct h2_conn *other = connect_to(r, rt_shell_grpc_port(r->shell));
    (void)unlink(path);
    begin(c, 1, ENGINE("Generate"), one, BYTES(ASK_ENDLESS));
    struct rig_work *w = rig_work(r, 0);
    assert_string_equal(w->tenant, "tenant-0");
    rig_say(r, w, "a");
    assert_true(h2_wait(c, H2_DATA, &f) && f.payload[5] == 0x0a); /* the id, field 1 */
    size_t n = 2u + f.payload[6];
    memcpy(ask, f.payload + 5, n);
    assert_string_equal(call(other, 1, ENGINE("Generate"), one, BYTES(ASK_HI)),
                        "8"); /* one at a time */
    assert_string_equal(call(other, 3, ENGINE("Cancel"), two, ask, n), "0");
    assert_int_equal(n_body, 5); /* known: false is not written */
    assert_string_equal(call(other, 5, ENGINE("Cancel"), one, ask, n), "0");
    assert_true(n_body == 7 && body[6] == 1);
    assert_string_equal(finish(c, 1), "1");
    rig_cancelled(r, w);
    assert_string_equal(call(other, 7, ENGINE("Cancel"), one, ask, n), "0");
    assert_int_equal(n_body, 5);
    rig_until(r, is_idle, r, "idle");
    h2_hang_up(c);
    h2_hang_up(other);
}

static const char *health(struct h2_conn *c, uint32_t stream, const char *service)
{
    char ask[64] = {0x0a, (char)strlen(service)};
    memcpy(ask + 2, service, strlen(service));
    const char *status = call(c, stream, HEALTH, NULL, ask, strlen(service) + 2);
    return strcmp(status, "0") != 0 ? status : body[6] == 1 ? "SERVING" : "NOT_SERVING";
}

static bool is_unready(void *arg)
{
    return !rt_shell_ready(((struct rig *)arg)->shell);
}

static void health_is_what_a_prober_must_know(void **state)
{
    struct rig *r = *state;
    static const char *const names[] = {"",        "readiness", "tandem.v1.Engine",
                                        "prefill", "decode",    "liveness"};
    struct h2_conn *c = start(r);
    uint32_t stream = 1;
    for (size_t i = 0; i < TD_COUNT(names); i++, stream += 2) {
        assert_string_equal(health(c, stream, names[i]), "SERVING");
    }
    assert_string_equal(health(c, 101, "no.Such"), "5");
    rig_state(r, true);
    rig_until(r, is_unready, r, "the node to drain");
    stream = 201;
    for (size_t i = 0; i < TD_COUNT(names); i++, stream += 2) {
        assert_string_equal(health(c, stream, names[i]),
                            strcmp(names[i], "liveness") == 0 ? "SERVING" : "NOT_SERVING");
    }
    assert_string_equal(call(c, 301, ENGINE("Generate"), NULL, BYTES(ASK_HI)), "14");
    h2_hang_up(c);
}

static void a_draining_router_refuses_calls_and_ends_those_that_run(void **state)
{
    struct rig *r = *state;
    struct h2_conn *c = start(r);
    begin(c, 1, ENGINE("Generate"), NULL, BYTES(ASK_HI));
    struct rig_work *w = rig_work(r, 0);
    rt_shell_drain(r->shell);
    assert_string_equal(call(c, 3, ENGINE("Tokenize"), NULL, BYTES(ASK_HI)), "14");
    assert_string_equal(h2_header(c, "tandem-code"), "draining");
    assert_false(rt_shell_idle(r->shell));
    rig_finish(r, w);
    assert_string_equal(finish(c, 1), "0");
    rig_until(r, is_idle, r, "idle");
    h2_hang_up(c);
}

static void the_end_of_the_router_ends_its_calls(void **state)
{
    struct rig *r = *state;
    struct h2_conn *c = start(r);
    begin(c, 1, ENGINE("Generate"), NULL, BYTES(ASK_HI));
    (void)rig_work(r, 0);
    begin(c, 3, ENGINE("Tokenize"), NULL, BYTES(ASK_HI)); /* at the worker, or on its way back */
    rig_passes(r, 2);
    r->shell = rt_shell_destroy(r->shell);
    h2_hang_up(c);
}

static void without_grpc_there_is_no_port(void **state)
{
    struct rig *r = *state;
    rig_start(r);
    assert_int_equal(rt_shell_grpc_port(r->shell), 0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_delta_comes_for_each_token_and_the_usage_last),
        T(an_end_on_the_node_becomes_a_status_with_its_code),
        T(a_bad_request_never_reaches_a_node),
        T(models_have_all_their_names),
        T(text_becomes_tokens_and_text_again),
        T(a_client_that_leaves_is_cancelled_on_the_node),
        T(a_client_that_leaves_while_its_text_is_tokenised_leaves_nothing),
        T(a_deadline_that_passes_in_the_queue_ends_the_call_and_frees_its_place),
        T(a_client_that_does_not_read_is_cut_and_cancelled_and_others_go_on),
        T(a_key_is_asked_for_by_everything_but_health),
        T(cancel_ends_a_generate_of_its_own_tenant_only),
        T(health_is_what_a_prober_must_know),
        T(a_draining_router_refuses_calls_and_ends_those_that_run),
        T(the_end_of_the_router_ends_its_calls),
        T(without_grpc_there_is_no_port),
    };
    return cmocka_run_group_tests_name("rt_grpc", tests, NULL, NULL);
}
