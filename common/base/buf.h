/* buf.h - a growing byte buffer with a maximum. Failure: TD_ERR_NO_MEMORY or TD_ERR_FULL, contents
 * kept. */
#ifndef TD_BASE_BUF_H
#define TD_BASE_BUF_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

struct td_buf {
    uint8_t *data; /* owned */
    size_t len;
    size_t cap;
    size_t max;
};

void td_buf_init(struct td_buf *b, size_t max);
void td_buf_fini(struct td_buf *b);
void td_buf_clear(struct td_buf *b);
td_err td_buf_append(struct td_buf *b, const void *data, size_t len) TD_MUST_CHECK;
td_err td_buf_puts(struct td_buf *b, const char *s) TD_MUST_CHECK;
td_err td_buf_printf(struct td_buf *b, const char *fmt, ...) TD_MUST_CHECK
    __attribute__((format(printf, 2, 3)));
/* Room for `len` more bytes; *out points at them; the caller adds to b->len what it wrote. */
td_err td_buf_reserve(struct td_buf *b, size_t len, uint8_t **out) TD_MUST_CHECK;
/* Drops the first `len` bytes. */
void td_buf_consume(struct td_buf *b, size_t len);
/* Appends a JSON string literal with quotes: escapes ", \, control bytes; input must be valid
 * UTF-8. */
td_err td_buf_json_string(struct td_buf *b, const char *s, size_t len) TD_MUST_CHECK;

#endif
