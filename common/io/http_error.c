#include "common/io/http_error.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/utf8.h"

#define ERROR_BODY_MAX 65536u
#define TEXT_MAX       1024u
#define RETRY_MAX_S    86400

/* Texts quote what clients and peers sent, cut at any byte: what is no UTF-8 becomes '?', so that
 * the body stays JSON. */
static td_err text_field(struct td_buf *b, const char *key, const char *s)
{
    char clean[TEXT_MAX];
    size_t n = 0, len = s != NULL ? strlen(s) : 0;
    TD_TRY(td_buf_printf(b, "\"%s\":", key));
    if (s == NULL) {
        return td_buf_puts(b, "null");
    }
    for (size_t i = 0; i < len && n + 4 <= sizeof clean;) {
        size_t c = td_utf8_char_len(s + i, len - i);
        memcpy(clean + n, c > 0 ? s + i : "?", c > 0 ? c : 1);
        n += c > 0 ? c : 1;
        i += c > 0 ? c : 1;
    }
    return td_buf_json_string(b, clean, n);
}

static const char *error_type(td_err err)
{
    switch (td_err_http(err)) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 429:
        return "rate_limit_error";
    default:
        return td_err_http(err) >= 500 ? "server_error" : "invalid_request_error";
    }
}

td_err td_http_error_json(struct td_buf *out, td_err err, const char *text, const char *param)
{
    TD_TRY(td_buf_puts(out, "{\"error\":{"));
    TD_TRY(text_field(out, "message", text != NULL && text[0] != 0 ? text : td_err_text(err)));
    TD_TRY(td_buf_printf(out, ",\"type\":\"%s\",", error_type(err)));
    TD_TRY(text_field(out, "param", param != NULL && param[0] != 0 ? param : NULL));
    return td_buf_printf(out, ",\"code\":\"%s\"}}", td_err_code(err));
}

void td_http_error_body(td_err err, const char *text, struct td_buf *out)
{
    TD_IGNORE(td_http_error_json(out, err, text, NULL)); /* a cut body still has its status */
}

void td_http_refuse(struct td_http_exchange *x, td_err err, const char *text, const char *param,
                    double retry_s)
{
    td_http_refuse_with(x, err, text, param, retry_s, NULL, 0);
}

static int retry_after(double s)
{
    return !(s > 1) ? 1 : (s > RETRY_MAX_S ? RETRY_MAX_S : (int)ceil(s));
}

void td_http_refuse_with(struct td_http_exchange *x, td_err err, const char *text,
                         const char *param, double retry_s, const struct td_http_header *more,
                         uint32_t n_more)
{
    struct td_buf body;
    struct td_http_header extra[5 + TD_HTTP_REFUSE_EXTRA];
    uint32_t n = 0;
    char retry[24];
    int status = td_err_http(err);
    TD_REQUIRE(n_more <= TD_HTTP_REFUSE_EXTRA);
    for (uint32_t i = 0; i < n_more; i++) {
        extra[n++] = more[i];
    }
    td_buf_init(&body, ERROR_BODY_MAX);
    TD_IGNORE(td_http_error_json(&body, err, text, param)); /* a cut body still has its status */
    if (status == 401) {
        extra[n++] = (struct td_http_header){"WWW-Authenticate", "Bearer"};
    }
    if (status == 405) {
        extra[n++] = (struct td_http_header){"Allow", "GET, HEAD, POST"};
    }
    if (status == 429 || status == 503) {
        (void)snprintf(retry, sizeof retry, "%d", retry_after(retry_s));
        extra[n++] = (struct td_http_header){"Retry-After", retry};
        extra[n++] = (struct td_http_header){"x-tandem-dropped-reason", td_err_code(err)};
    }
    if (!td_err_retryable(err)) {
        extra[n++] = (struct td_http_header){"x-should-retry", "false"};
    }
    td_http_respond(x, status, extra, n, "application/json", body.data, body.len);
    td_buf_fini(&body);
}
