/* Bytes of a client, at two different cuts: the parser must agree with itself, and never accept a
 * head that a second parser could read differently. The first byte chooses the cut. */
#include <stdlib.h>
#include <string.h>

#include "common/io/http_parse.h"
#include "tests/fuzz/fuzz.h"

#define MUST(expr) ((expr) ? (void)0 : abort())

static size_t run(struct td_http_parser *p, const uint8_t *data, size_t size, size_t cut)
{
    static const struct td_http_limits limits = {.max_head = 2048, .max_body = 4096};
    size_t at = 0;
    td_http_parser_init(p, &limits);
    while (at < size && p->phase != TD_HTTP_DONE && p->phase != TD_HTTP_BROKEN) {
        size_t n = size - at < cut ? size - at : cut;
        size_t used = td_http_parser_feed(p, data + at, n);
        MUST(used <= n);
        at += used;
    }
    return at;
}

static void check_accepted(const struct td_http_parser *p)
{
    const struct td_http_request *r = &p->request;
    unsigned lengths = 0, codings = 0;
    for (uint32_t i = 0; i < r->n_headers; i++) {
        lengths += strcmp(r->headers[i].name, "content-length") == 0 ? 1 : 0;
        codings += strcmp(r->headers[i].name, "transfer-encoding") == 0 ? 1 : 0;
        MUST(strpbrk(r->headers[i].name, " \t\r\n:") == NULL);
        MUST(strpbrk(r->headers[i].value, "\r\n") == NULL);
    }
    MUST(lengths + codings <= 1);
    MUST(r->path[0] == '/' && strlen(r->path) <= TD_HTTP_MAX_TARGET);
    MUST(r->body_len <= p->limits.max_body);
    if (lengths == 1) {
        MUST(strtoull(td_http_header_get(r, "content-length"), NULL, 10) == r->body_len);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct td_http_parser a, b;
    if (size < 1) {
        return 0;
    }
    size_t cut = 1 + data[0] % 37;
    size_t used_a = run(&a, data + 1, size - 1, size), used_b = run(&b, data + 1, size - 1, cut);
    MUST(a.phase == b.phase && used_a == used_b);
    MUST(a.phase != TD_HTTP_BROKEN || (a.err == b.err && a.text != NULL));
    if (a.phase == TD_HTTP_DONE) {
        check_accepted(&a);
        MUST(a.request.body_len == b.request.body_len);
        td_http_parser_next(&a);
    }
    td_http_parser_fini(&a);
    td_http_parser_fini(&b);
    return 0;
}
