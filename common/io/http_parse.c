/* Design: the head is kept whole (it is small) and parsed at once when its empty line has arrived;
 * every byte is checked when it arrives, so that a broken head is refused without waiting for its
 * end. The body is copied as it comes.
 */
#include "common/io/http_parse.h"

#include <string.h>

#include "common/base/assert.h"

#define KEEP_BODY ((size_t)64 << 10) /* an idle connection holds no more than this */

void td_http_parser_init(struct td_http_parser *p, const struct td_http_limits *limits)
{
    memset(p, 0, sizeof *p);
    p->limits = *limits;
    td_buf_init(&p->head, limits->max_head + 1);
    td_buf_init(&p->body, limits->max_body + 1);
}

void td_http_parser_fini(struct td_http_parser *p)
{
    td_buf_fini(&p->head);
    td_buf_fini(&p->body);
}

void td_http_parser_next(struct td_http_parser *p)
{
    TD_REQUIRE(p->phase == TD_HTTP_DONE);
    struct td_http_limits limits = p->limits;
    struct td_buf head = p->head, body = p->body;
    td_buf_clear(&head);
    if (body.cap > KEEP_BODY) {
        td_buf_fini(&body);
    }
    td_buf_clear(&body);
    memset(p, 0, sizeof *p);
    p->limits = limits;
    p->head = head;
    p->body = body;
}

static bool broken(struct td_http_parser *p, td_err err, const char *text)
{
    p->phase = TD_HTTP_BROKEN;
    p->err = err;
    p->text = text;
    return false;
}

static bool is_token(uint8_t c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

/* ---- the head ---- */

/* One more byte of the head; false when it can belong to no request we accept. */
static bool head_byte(struct td_http_parser *p, uint8_t c)
{
    const uint8_t *h = p->head.data;
    size_t n = p->head.len;
    uint8_t before = n > 0 ? h[n - 1] : 0;
    if (c == '\n' ? before != '\r' : before == '\r') {
        return broken(p, TD_ERR_BAD_REQUEST, "line ends must be CR LF");
    }
    if (c < 0x20 && c != '\r' && c != '\n' && c != '\t') {
        return broken(p, TD_ERR_BAD_REQUEST, "control byte in the request head");
    }
    if (c == 0x7f) {
        return broken(p, TD_ERR_BAD_REQUEST, "control byte in the request head");
    }
    if (n >= p->limits.max_head) {
        return broken(p, TD_ERR_HEADER_TOO_LARGE, "request head too large");
    }
    if (td_buf_append(&p->head, &c, 1) != TD_OK) {
        return broken(p, TD_ERR_NO_MEMORY, "out of memory");
    }
    return true;
}

static bool head_complete(const struct td_http_parser *p)
{
    const uint8_t *h = p->head.data;
    size_t n = p->head.len;
    return n >= 4 && memcmp(h + n - 4, "\r\n\r\n", 4) == 0;
}

static bool parse_version(struct td_http_parser *p, const char *v)
{
    if (strcmp(v, "HTTP/1.1") == 0) {
        return true;
    }
    if (strcmp(v, "HTTP/1.0") == 0) {
        p->http10 = true;
        return true;
    }
    return broken(p, TD_ERR_BAD_REQUEST, "only HTTP/1.1 is served here");
}

static bool parse_request_line(struct td_http_parser *p, char *line)
{
    char *target = strchr(line, ' ');
    char *version = target != NULL ? strchr(target + 1, ' ') : NULL;
    if (version == NULL || strchr(version + 1, ' ') != NULL) {
        return broken(p, TD_ERR_BAD_REQUEST, "malformed request line");
    }
    *target++ = 0;
    *version++ = 0;
    size_t m = strlen(line);
    if (m == 0 || m > TD_HTTP_MAX_METHOD) {
        return broken(p, TD_ERR_BAD_REQUEST, "malformed method");
    }
    for (size_t i = 0; i < m; i++) {
        if (line[i] < 'A' || line[i] > 'Z') {
            return broken(p, TD_ERR_BAD_REQUEST, "malformed method");
        }
    }
    if (target[0] != '/' || strlen(target) > TD_HTTP_MAX_TARGET || strchr(target, '\t') != NULL) {
        return broken(p, TD_ERR_BAD_REQUEST, "the target must be a path of at most 8 KiB");
    }
    for (const char *t = target; *t != 0; t++) {
        if ((uint8_t)*t >= 0x80) {
            return broken(p, TD_ERR_BAD_REQUEST, "the target must be ASCII");
        }
    }
    char *query = strchr(target, '?');
    if (query != NULL) {
        *query++ = 0;
    }
    p->request.method = line;
    p->request.path = target;
    p->request.query = query != NULL ? query : "";
    return parse_version(p, version);
}

static bool parse_header_line(struct td_http_parser *p, char *line)
{
    struct td_http_request *r = &p->request;
    char *colon = strchr(line, ':');
    if (colon == NULL || colon == line) {
        return broken(p, TD_ERR_BAD_REQUEST, "malformed header line");
    }
    for (char *c = line; c < colon; c++) {
        if (!is_token((uint8_t)*c)) {
            return broken(p, TD_ERR_BAD_REQUEST, "malformed header name");
        }
        if (*c >= 'A' && *c <= 'Z') {
            *c = (char)(*c - 'A' + 'a');
        }
    }
    if (r->n_headers == TD_HTTP_MAX_HEADERS) {
        return broken(p, TD_ERR_HEADER_TOO_LARGE, "too many headers");
    }
    *colon = 0;
    char *value = colon + 1;
    value += strspn(value, " \t");
    size_t n = strlen(value);
    while (n > 0 && (value[n - 1] == ' ' || value[n - 1] == '\t')) {
        value[--n] = 0;
    }
    r->headers[r->n_headers++] = (struct td_http_header){.name = line, .value = value};
    return true;
}

/* The only header of that name; *count says how many there are. */
static const char *only(const struct td_http_request *r, const char *name, uint32_t *count)
{
    const char *value = NULL;
    *count = 0;
    for (uint32_t i = 0; i < r->n_headers; i++) {
        if (strcmp(r->headers[i].name, name) == 0) {
            value = r->headers[i].value;
            (*count)++;
        }
    }
    return value;
}

static bool parse_length(struct td_http_parser *p, const char *v)
{
    uint64_t n = 0;
    size_t digits = strlen(v);
    if (digits == 0 || digits > 18 || strspn(v, "0123456789") != digits) {
        return broken(p, TD_ERR_BAD_REQUEST, "malformed Content-Length");
    }
    for (size_t i = 0; i < digits; i++) {
        n = n * 10 + (uint64_t)(v[i] - '0');
    }
    if (n > p->limits.max_body) {
        return broken(p, TD_ERR_TOO_LARGE, "body too large");
    }
    p->left = n;
    return true;
}

static bool parse_framing(struct td_http_parser *p)
{
    struct td_http_request *r = &p->request;
    uint32_t hosts, lengths, codings;
    (void)only(r, "host", &hosts);
    const char *length = only(r, "content-length", &lengths);
    const char *coding = only(r, "transfer-encoding", &codings);
    if (hosts > 1 || (hosts == 0 && !p->http10)) {
        return broken(p, TD_ERR_BAD_REQUEST, "exactly one Host header is required");
    }
    if (lengths > 1 || codings > 1 || (lengths > 0 && codings > 0)) {
        return broken(p, TD_ERR_BAD_REQUEST, "ambiguous body length");
    }
    if (length != NULL) {
        return parse_length(p, length);
    }
    if (coding != NULL) {
        if (p->http10 || strcasecmp(coding, "chunked") != 0) {
            return broken(p, TD_ERR_BAD_REQUEST, "only Transfer-Encoding: chunked is accepted");
        }
        p->chunked = true;
    }
    return true;
}

static void parse_connection(struct td_http_parser *p)
{
    const char *connection = td_http_header_get(&p->request, "connection");
    const char *expect = td_http_header_get(&p->request, "expect");
    p->request.keep_alive = !p->http10;
    if (connection != NULL && strcasestr(connection, "close") != NULL) {
        p->request.keep_alive = false;
    } else if (connection != NULL && p->http10 && strcasestr(connection, "keep-alive") != NULL) {
        p->request.keep_alive = true;
    }
    p->request.expect_continue = expect != NULL && strcasecmp(expect, "100-continue") == 0;
}

static bool parse_head(struct td_http_parser *p)
{
    static const uint8_t zero = 0;
    if (td_buf_append(&p->head, &zero, 1) != TD_OK) {
        return broken(p, TD_ERR_NO_MEMORY, "out of memory");
    }
    char *line = (char *)p->head.data;
    bool first = true;
    for (;;) {
        char *end = strstr(line, "\r\n");
        if (end == NULL) { /* cannot happen: the head ends with an empty line */
            return broken(p, TD_ERR_BAD_REQUEST, "malformed request head");
        }
        *end = 0;
        if (end == line && !first) {
            break;
        }
        if (!first && (line[0] == ' ' || line[0] == '\t')) {
            return broken(p, TD_ERR_BAD_REQUEST, "folded headers are refused");
        }
        if (!(first ? parse_request_line(p, line) : parse_header_line(p, line))) {
            return false;
        }
        first = false;
        line = end + 2;
    }
    parse_connection(p);
    return parse_framing(p);
}

/* ---- the body ---- */

static void done(struct td_http_parser *p)
{
    p->phase = TD_HTTP_DONE;
    p->request.body = p->body.data;
    p->request.body_len = p->body.len;
}

static bool take_body(struct td_http_parser *p, const uint8_t *data, size_t n)
{
    if (p->body.len + n > p->limits.max_body) {
        return broken(p, TD_ERR_TOO_LARGE, "body too large");
    }
    if (td_buf_append(&p->body, data, n) != TD_OK) {
        return broken(p, TD_ERR_NO_MEMORY, "out of memory");
    }
    p->left -= n;
    return true;
}

int td_http_hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* A chunk-size line is complete in chunk_line, without CR LF. Extensions are refused: nobody needs
 * them. */
static bool chunk_size(struct td_http_parser *p)
{
    uint64_t n = 0;
    if (p->chunk_line_len == 0 || p->chunk_line_len > 8) {
        return broken(p, TD_ERR_BAD_REQUEST, "malformed chunk size");
    }
    for (size_t i = 0; i < p->chunk_line_len; i++) {
        int d = td_http_hex_digit(p->chunk_line[i]);
        if (d < 0) {
            return broken(p, TD_ERR_BAD_REQUEST, "malformed chunk size");
        }
        n = n * 16 + (uint64_t)d;
    }
    if (n > p->limits.max_body - p->body.len) {
        return broken(p, TD_ERR_TOO_LARGE, "body too large");
    }
    p->left = n;
    p->chunk_line_len = 0;
    p->chunk = n > 0 ? TD_CHUNK_DATA : TD_CHUNK_TRAILER;
    p->trailer_line = 0;
    return true;
}

/* One byte of a line of the chunked framing; *out_line is set when the line is complete. */
static bool chunk_line_byte(struct td_http_parser *p, uint8_t c, bool *out_line)
{
    *out_line = false;
    if (++p->chunk_overhead > TD_HTTP_MAX_TRAILERS + p->limits.max_body / 64) {
        return broken(p, TD_ERR_TOO_LARGE, "too much chunk framing");
    }
    bool had_cr = p->chunk_line_len > 0 && p->chunk_line[p->chunk_line_len - 1] == '\r';
    if (c == '\n') {
        if (!had_cr) {
            return broken(p, TD_ERR_BAD_REQUEST, "line ends must be CR LF");
        }
        p->chunk_line_len--;
        *out_line = true;
        return true;
    }
    if (had_cr || (c < 0x20 && c != '\r' && c != '\t')) {
        return broken(p, TD_ERR_BAD_REQUEST, "malformed chunk framing");
    }
    if (p->chunk_line_len == sizeof p->chunk_line) {
        return broken(p, TD_ERR_BAD_REQUEST, "chunk framing line too long");
    }
    p->chunk_line[p->chunk_line_len++] = (char)c;
    return true;
}

static bool chunk_framing(struct td_http_parser *p, uint8_t c)
{
    bool line = false;
    if (!chunk_line_byte(p, c, &line) || !line) {
        return p->phase != TD_HTTP_BROKEN;
    }
    switch (p->chunk) {
    case TD_CHUNK_SIZE:
        return chunk_size(p);
    case TD_CHUNK_DATA_END:
        if (p->chunk_line_len != 0) {
            return broken(p, TD_ERR_BAD_REQUEST, "malformed chunk end");
        }
        p->chunk = TD_CHUNK_SIZE;
        return true;
    case TD_CHUNK_TRAILER:
        if (p->chunk_line_len != 0) {
            return broken(p, TD_ERR_BAD_REQUEST, "trailers are refused");
        }
        done(p);
        return true;
    case TD_CHUNK_DATA:
        break;
    }
    return true;
}

static size_t feed_chunked(struct td_http_parser *p, const uint8_t *data, size_t len)
{
    size_t used = 0;
    while (used < len && p->phase == TD_HTTP_BODY) {
        if (p->chunk != TD_CHUNK_DATA) {
            (void)chunk_framing(p, data[used++]);
            continue;
        }
        size_t n = len - used < p->left ? len - used : (size_t)p->left;
        if (take_body(p, data + used, n) && p->left == 0) {
            p->chunk = TD_CHUNK_DATA_END;
        }
        used += n;
    }
    return used;
}

static size_t feed_body(struct td_http_parser *p, const uint8_t *data, size_t len)
{
    if (p->chunked) {
        return feed_chunked(p, data, len);
    }
    size_t n = len < p->left ? len : (size_t)p->left;
    if (take_body(p, data, n) && p->left == 0) {
        done(p);
    }
    return n;
}

static void head_ends(struct td_http_parser *p)
{
    if (!parse_head(p)) {
        return;
    }
    p->phase = TD_HTTP_BODY;
    if (!p->chunked && p->left == 0) {
        done(p);
    }
}

size_t td_http_parser_feed(struct td_http_parser *p, const uint8_t *data, size_t len)
{
    size_t used = 0;
    while (used < len) {
        if (p->phase == TD_HTTP_DONE || p->phase == TD_HTTP_BROKEN) {
            break;
        }
        if (p->phase == TD_HTTP_BODY) {
            used += feed_body(p, data + used, len - used);
            continue;
        }
        p->phase = TD_HTTP_HEAD;
        if (head_byte(p, data[used++]) && head_complete(p)) {
            head_ends(p);
        }
    }
    return used;
}

bool td_http_parser_wants_continue(const struct td_http_parser *p)
{
    return p->phase == TD_HTTP_BODY && p->request.expect_continue && p->body.len == 0;
}

const char *td_http_header_get(const struct td_http_request *r, const char *name)
{
    for (uint32_t i = 0; i < r->n_headers; i++) {
        if (strcmp(r->headers[i].name, name) == 0) {
            return r->headers[i].value;
        }
    }
    return NULL;
}
