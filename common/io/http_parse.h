/* http_parse.h - a strict HTTP/1.1 request parser: the guard in front of everything a client sends.
 *
 * What: bytes in, at any cut; one request at a time out. It accepts only what this server needs and
 * refuses every form that two parsers may read differently (request smuggling): bare LF or CR, NUL
 * and control bytes, folded headers, a space before the colon, odd or repeated Content-Length,
 * Content-Length beside Transfer-Encoding, any coding but chunked, a missing or repeated Host.
 * Not: a socket, a clock, routing.
 * Pure. Owner and thread: the connection that embeds it. Bounds: struct td_http_limits.
 * Failure: a typed error with its HTTP status (td_err_http); the connection must be closed then.
 */
#ifndef TD_IO_HTTP_PARSE_H
#define TD_IO_HTTP_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"

#define TD_HTTP_MAX_HEADERS  100
#define TD_HTTP_MAX_TARGET   8192
#define TD_HTTP_MAX_METHOD   16
#define TD_HTTP_MAX_TRAILERS 4096 /* bytes of chunk sizes and trailers beside the body */

struct td_http_limits {
    size_t max_head; /* request line and headers */
    size_t max_body;
};

struct td_http_header {
    const char *name; /* lower case */
    const char *value;
};

struct td_http_request {
    const char *method, *path, *query; /* query: after '?', "" when none */
    struct td_http_header headers[TD_HTTP_MAX_HEADERS];
    uint32_t n_headers;
    const uint8_t *body;
    size_t body_len;
    bool keep_alive, expect_continue;
};

enum td_http_phase {
    TD_HTTP_IDLE, /* between requests: no byte of the next one seen */
    TD_HTTP_HEAD,
    TD_HTTP_BODY,
    TD_HTTP_DONE,   /* td_http_parser_request() is valid until td_http_parser_next() */
    TD_HTTP_BROKEN, /* err and text say why */
};

enum td_http_chunk { TD_CHUNK_SIZE, TD_CHUNK_DATA, TD_CHUNK_DATA_END, TD_CHUNK_TRAILER };

struct td_http_parser {
    struct td_http_limits limits;
    enum td_http_phase phase;
    td_err err;
    const char *text;         /* of err; static */
    struct td_buf head, body; /* owned */
    size_t scanned;           /* of head, for the end of the head */
    struct td_http_request request;
    bool chunked, http10;
    uint64_t left; /* of the body, or of the chunk */
    enum td_http_chunk chunk;
    char chunk_line[24];
    size_t chunk_line_len, chunk_overhead, trailer_line;
};

void td_http_parser_init(struct td_http_parser *p, const struct td_http_limits *limits);
void td_http_parser_fini(struct td_http_parser *p);
/* Takes bytes until a request is complete or broken; returns how many it took (the rest belongs to
 * the next request). Look at p->phase afterwards. */
size_t td_http_parser_feed(struct td_http_parser *p, const uint8_t *data, size_t len);
/* After DONE: ready for the next request of the connection. */
void td_http_parser_next(struct td_http_parser *p);
/* True once the head is complete and the body still to come (Expect: 100-continue is answered
 * then). */
bool td_http_parser_wants_continue(const struct td_http_parser *p);
/* Value of a header by its lower-case name, or NULL. */
const char *td_http_header_get(const struct td_http_request *r, const char *name);
/* 0 to 15; -1: no hexadecimal digit. */
int td_http_hex_digit(char c);

#endif
