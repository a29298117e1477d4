/* http_error.h - the one shape of an error answer (interfaces.md 1.5), on every port of every process.
 * Thread: loop. Failure: a body that does not fit into memory is cut; the status stands.
 */
#ifndef TD_IO_HTTP_ERROR_H
#define TD_IO_HTTP_ERROR_H

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/io/http_server.h"

/* {"error":{"message","type","param","code"}}; text and param may be NULL. */
td_err td_http_error_json(struct td_buf *out, td_err err, const char *text,
                          const char *param) TD_MUST_CHECK;
/* For td_http_server_params.error_body. */
void td_http_error_body(td_err err, const char *text, struct td_buf *out);
/* Answers with the error's status, object and headers (Retry-After, Allow, ...). */
void td_http_refuse(struct td_http_exchange *x, td_err err, const char *text, const char *param,
                    double retry_s);
/* With headers of the caller's, at most TD_HTTP_REFUSE_EXTRA. */
#define TD_HTTP_REFUSE_EXTRA 12u
void td_http_refuse_with(struct td_http_exchange *x, td_err err, const char *text,
                         const char *param, double retry_s, const struct td_http_header *more,
                         uint32_t n_more);

#endif
