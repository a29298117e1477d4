/* The guard's table: what a request may look like, and every form that is refused, at every cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "common/io/http_parse.h"

static const struct td_http_limits limits = {.max_head = 16384, .max_body = 65536};

/* Feeds `text` in pieces of `cut` bytes; returns the phase reached and how much was taken. */
static enum td_http_phase run(struct td_http_parser *p, const char *text, size_t len, size_t cut,
                              size_t *taken)
{
    size_t at = 0;
    td_http_parser_init(p, &limits);
    while (at < len && p->phase != TD_HTTP_DONE && p->phase != TD_HTTP_BROKEN) {
        size_t n = len - at < cut ? len - at : cut;
        at += td_http_parser_feed(p, (const uint8_t *)text + at, n);
    }
    *taken = at;
    return p->phase;
}

static const struct {
    const char *what, *text;
    td_err err;
} refused[] = {
    {"bare LF", "GET / HTTP/1.1\nHost: a\n\n", TD_ERR_BAD_REQUEST},
    {"bare LF late", "GET / HTTP/1.1\r\nHost: a\n\r\n", TD_ERR_BAD_REQUEST},
    {"bare CR", "GET / HTTP/1.1\r\nHo\rst: a\r\n\r\n", TD_ERR_BAD_REQUEST},
    {"control byte", "GET / HTTP/1.1\r\nHost: a\x01\r\n\r\n", TD_ERR_BAD_REQUEST},
    {"delete byte", "GET / HTTP/1.1\r\nHost: a\x7f\r\n\r\n", TD_ERR_BAD_REQUEST},
    {"no host", "GET / HTTP/1.1\r\nA: b\r\n\r\n", TD_ERR_BAD_REQUEST},
    {"two hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", TD_ERR_BAD_REQUEST},
    {"space before colon", "GET / HTTP/1.1\r\nHost : a\r\n\r\n", TD_ERR_BAD_REQUEST},
    {"folded header", "GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", TD_ERR_BAD_REQUEST},
    {"no colon", "GET / HTTP/1.1\r\nHost\r\n\r\n", TD_ERR_BAD_REQUEST},
    {"empty name", "GET / HTTP/1.1\r\n: a\r\n\r\n", TD_ERR_BAD_REQUEST},
    {"two lengths", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
     TD_ERR_BAD_REQUEST},
    {"list of lengths", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\nx",
     TD_ERR_BAD_REQUEST},
    {"signed length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\nx",
     TD_ERR_BAD_REQUEST},
    {"negative length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\nx",
     TD_ERR_BAD_REQUEST},
    {"hex length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x1\r\n\r\nx",
     TD_ERR_BAD_REQUEST},
    {"empty length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: \r\n\r\nx", TD_ERR_BAD_REQUEST},
    {"endless length",
     "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\nx",
     TD_ERR_BAD_REQUEST},
    {"length and coding",
     "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nx",
     TD_ERR_BAD_REQUEST},
    {"unknown coding", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
     TD_ERR_BAD_REQUEST},
    {"coding in 1.0", "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
     TD_ERR_BAD_REQUEST},
    {"body too large", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 65537\r\n\r\n",
     TD_ERR_TOO_LARGE},
    {"chunk too large", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n10001\r\n",
     TD_ERR_TOO_LARGE},
    {"chunk size overflow",
     "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n",
     TD_ERR_BAD_REQUEST},
    {"chunk extension",
     "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;a=b\r\nx\r\n0\r\n\r\n",
     TD_ERR_BAD_REQUEST},
    {"chunk without end",
     "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n",
     TD_ERR_BAD_REQUEST},
    {"trailer", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n\r\n",
     TD_ERR_BAD_REQUEST},
    {"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", TD_ERR_BAD_REQUEST},
    {"HTTP/0.9", "GET /\r\n\r\n", TD_ERR_BAD_REQUEST},
    {"HTTP/1.2", "GET / HTTP/1.2\r\nHost: a\r\n\r\n", TD_ERR_BAD_REQUEST},
    {"lower-case method", "get / HTTP/1.1\r\nHost: a\r\n\r\n", TD_ERR_BAD_REQUEST},
    {"two spaces", "GET  / HTTP/1.1\r\nHost: a\r\n\r\n", TD_ERR_BAD_REQUEST},
    {"absolute target", "GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", TD_ERR_BAD_REQUEST},
    {"byte above ASCII in target", "GET /\xc3\xa4 HTTP/1.1\r\nHost: a\r\n\r\n", TD_ERR_BAD_REQUEST},
    {"leading empty line", "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", TD_ERR_BAD_REQUEST},
    {"TLS hello", "\x16\x03\x01\x02", TD_ERR_BAD_REQUEST},
};

static void odd_requests_are_refused_at_every_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < TD_COUNT(refused); i++) {
        for (size_t cut = 1; cut < 64; cut = cut * 2 + 1) {
            struct td_http_parser p;
            size_t taken = 0;
            enum td_http_phase phase =
                run(&p, refused[i].text, strlen(refused[i].text), cut, &taken);
            if (phase != TD_HTTP_BROKEN || p.err != refused[i].err) {
                fail_msg("%s: phase %d err %s", refused[i].what, (int)phase, td_err_code(p.err));
            }
            assert_non_null(p.text);
            td_http_parser_fini(&p);
        }
    }
}

static void a_nul_byte_is_refused(void **state)
{
    (void)state;
    static const char text[] = "GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n";
    struct td_http_parser p;
    size_t taken = 0;
    assert_int_equal(run(&p, text, sizeof text - 1, 100, &taken), TD_HTTP_BROKEN);
    td_http_parser_fini(&p);
}

static void a_body_arrives_whole_at_every_cut(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "POST /v1?x=1&y HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\nX-Y:  z \r\n\r\nhello "
        "worldGET",
        "POST /v1?x=1&y HTTP/1.1\r\nHost: a\r\nX-Y:z\r\nTransfer-Encoding: "
        "Chunked\r\n\r\n5\r\nhello\r\n6\r\n "
        "world\r\n0\r\n\r\nGET",
    };
    for (size_t i = 0; i < TD_COUNT(texts); i++) {
        for (size_t cut = 1; cut < 200; cut++) {
            struct td_http_parser p;
            size_t taken = 0;
            assert_int_equal(run(&p, texts[i], strlen(texts[i]), cut, &taken), TD_HTTP_DONE);
            assert_int_equal(taken, strlen(texts[i]) - 3);
            assert_string_equal(p.request.method, "POST");
            assert_string_equal(p.request.path, "/v1");
            assert_string_equal(p.request.query, "x=1&y");
            assert_string_equal(td_http_header_get(&p.request, "x-y"), "z");
            assert_int_equal(p.request.body_len, 11);
            assert_memory_equal(p.request.body, "hello world", 11);
            assert_true(p.request.keep_alive);
            td_http_parser_next(&p);
            assert_int_equal(p.phase, TD_HTTP_IDLE);
            td_http_parser_fini(&p);
        }
    }
}

static void the_head_is_bounded(void **state)
{
    (void)state;
    struct td_http_parser p;
    td_http_parser_init(&p, &limits);
    static const char start[] = "GET / HTTP/1.1\r\nHost: a\r\nA: ";
    (void)td_http_parser_feed(&p, (const uint8_t *)start, sizeof start - 1);
    for (int i = 0; i < 20000 && p.phase == TD_HTTP_HEAD; i++) {
        (void)td_http_parser_feed(&p, (const uint8_t *)"b", 1);
    }
    assert_int_equal(p.err, TD_ERR_HEADER_TOO_LARGE);
    td_http_parser_fini(&p);
    td_http_parser_init(&p, &limits);
    (void)td_http_parser_feed(&p, (const uint8_t *)"GET / HTTP/1.1\r\n", 16);
    for (int i = 0; i < 101; i++) {
        (void)td_http_parser_feed(&p, (const uint8_t *)"a:b\r\n", 5);
    }
    (void)td_http_parser_feed(&p, (const uint8_t *)"\r\n", 2);
    assert_int_equal(p.err, TD_ERR_HEADER_TOO_LARGE);
    td_http_parser_fini(&p);
}

static void chunk_framing_is_bounded(void **state)
{
    (void)state;
    struct td_http_parser p;
    td_http_parser_init(&p, &limits);
    static const char start[] = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    (void)td_http_parser_feed(&p, (const uint8_t *)start, sizeof start - 1);
    for (int i = 0; i < 10000 && p.phase == TD_HTTP_BODY; i++) {
        (void)td_http_parser_feed(&p, (const uint8_t *)"1\r\nx\r\n", 6);
    }
    assert_int_equal(p.phase, TD_HTTP_BROKEN);
    assert_int_equal(p.err, TD_ERR_TOO_LARGE);
    td_http_parser_fini(&p);
}

static void keep_alive_follows_version_and_header(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool keep, want_continue;
    } rows[] = {
        {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", true, false},
        {"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", false, false},
        {"GET / HTTP/1.0\r\n\r\n", false, false},
        {"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", true, false},
        {"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", true,
         true},
    };
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        struct td_http_parser p;
        size_t taken = 0;
        (void)run(&p, rows[i].text, strlen(rows[i].text), 7, &taken);
        assert_int_equal(p.request.keep_alive, rows[i].keep);
        assert_int_equal(td_http_parser_wants_continue(&p), rows[i].want_continue);
        td_http_parser_fini(&p);
    }
}

static void failing_allocations_break_only_the_request(void **state)
{
    (void)state;
    static const char text[] = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
    for (unsigned n = 1; n < 50; n++) {
        struct td_http_parser p;
        size_t taken = 0;
        td_mem_fail_nth(n);
        enum td_http_phase phase = run(&p, text, sizeof text - 1, 9, &taken);
        td_mem_fail_nth(0);
        bool ok = phase == TD_HTTP_DONE;
        assert_true(ok || (phase == TD_HTTP_BROKEN && p.err == TD_ERR_NO_MEMORY));
        td_http_parser_fini(&p);
        if (ok) {
            return;
        }
    }
}

static void a_hexadecimal_digit_is_one_of_22_characters(void **state)
{
    (void)state;
    static const char digits[] = "0123456789abcdefABCDEF";
    for (int c = -128; c < 128; c++) {
        const char *at = c != 0 ? strchr(digits, c) : NULL;
        int want = at == NULL ? -1 : (int)(at - digits) - (at - digits > 15 ? 6 : 0);
        assert_int_equal(td_http_hex_digit((char)c), want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(odd_requests_are_refused_at_every_cut),
        cmocka_unit_test(a_nul_byte_is_refused),
        cmocka_unit_test(a_body_arrives_whole_at_every_cut),
        cmocka_unit_test(the_head_is_bounded),
        cmocka_unit_test(chunk_framing_is_bounded),
        cmocka_unit_test(keep_alive_follows_version_and_header),
        cmocka_unit_test(failing_allocations_break_only_the_request),
        cmocka_unit_test(a_hexadecimal_digit_is_one_of_22_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
