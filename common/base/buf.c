#include "common/base/buf.h"

#include <stdio.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/mem.h"

#define BUF_FIRST 256u

void td_buf_init(struct td_buf *b, size_t max)
{
    *b = (struct td_buf){.max = max};
}

void td_buf_fini(struct td_buf *b)
{
    free(b->data);
    *b = (struct td_buf){.max = b->max};
}

void td_buf_clear(struct td_buf *b)
{
    b->len = 0;
}

td_err td_buf_reserve(struct td_buf *b, size_t len, uint8_t **out)
{
    TD_REQUIRE(b->len <= b->cap || b->cap == 0);
    if (len > b->max || b->len > b->max - len || b->max == SIZE_MAX) {
        return TD_ERR_FULL;
    }
    size_t need = b->len + len;
    if (need > b->cap || b->data == NULL) {
        size_t cap = b->cap > BUF_FIRST ? b->cap : BUF_FIRST;
        while (cap < need && cap <= b->max / 2) {
            cap *= 2;
        }
        if (cap < need || cap > b->max) {
            cap = b->max;
        }
        uint8_t *p = td_realloc(b->data, cap + 1); /* one for td_buf_printf's terminator */
        if (p == NULL) {
            return TD_ERR_NO_MEMORY;
        }
        b->data = p;
        b->cap = cap;
    }
    *out = b->data + b->len;
    return TD_OK;
}

td_err td_buf_append(struct td_buf *b, const void *data, size_t len)
{
    uint8_t *p;
    if (len == 0) {
        return TD_OK;
    }
    TD_TRY(td_buf_reserve(b, len, &p));
    memcpy(p, data, len);
    b->len += len;
    return TD_OK;
}

td_err td_buf_puts(struct td_buf *b, const char *s)
{
    return td_buf_append(b, s, strlen(s));
}

td_err td_buf_printf(struct td_buf *b, const char *fmt, ...)
{
    va_list args;
    uint8_t *p;
    va_start(args, fmt);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    TD_REQUIRE(n >= 0);
    TD_TRY(td_buf_reserve(b, (size_t)n, &p));
    va_start(args, fmt);
    (void)vsnprintf((char *)p, (size_t)n + 1, fmt, args);
    va_end(args);
    b->len += (size_t)n;
    return TD_OK;
}

void td_buf_consume(struct td_buf *b, size_t len)
{
    TD_REQUIRE(len <= b->len);
    if (len > 0) {
        memmove(b->data, b->data + len, b->len - len);
        b->len -= len;
    }
}

/* The escape of one byte, or "" when it needs none; `scratch` holds \u00XX. */
static const char *json_escape(unsigned char c, char scratch[8])
{
    switch (c) {
    case '"':
        return "\\\"";
    case '\\':
        return "\\\\";
    case '\n':
        return "\\n";
    case '\r':
        return "\\r";
    case '\t':
        return "\\t";
    default:
        if (c >= 0x20) {
            return "";
        }
        (void)snprintf(scratch, 8, "\\u%04x", c);
        return scratch;
    }
}

static td_err json_body(struct td_buf *b, const char *s, size_t len)
{
    size_t plain = 0; /* start of the run that needs no escape */
    for (size_t i = 0; i < len; i++) {
        char scratch[8];
        const char *esc = json_escape((unsigned char)s[i], scratch);
        if (esc[0] != '\0') {
            TD_TRY(td_buf_append(b, s + plain, i - plain));
            TD_TRY(td_buf_puts(b, esc));
            plain = i + 1;
        }
    }
    return td_buf_append(b, s + plain, len - plain);
}

td_err td_buf_json_string(struct td_buf *b, const char *s, size_t len)
{
    size_t before = b->len;
    td_err e = td_buf_append(b, "\"", 1);
    if (e == TD_OK) {
        e = json_body(b, s, len);
    }
    if (e == TD_OK) {
        e = td_buf_append(b, "\"", 1);
    }
    if (e != TD_OK) {
        b->len = before; /* contents kept */
    }
    return e;
}
