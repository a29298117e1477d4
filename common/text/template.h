/* template.h - chat templates: a subset of Jinja, compiled once, rendered per request into segments.
 *
 * What: the subset that published chat templates use: for (loop.*, else, filters, recursive no), if/elif/else, set (also
 * namespaces and blocks), macro and call, generation tags ignored, expressions with all operators, tests, filters, string
 * and list methods, raise_exception, strftime_now; whitespace control as trim_blocks and lstrip_blocks (what transformers
 * uses).
 * Output is a list of segments for td_text_tokenizer_encode(): text written by the template itself may contain control
 * tokens (allow_special), text that came in with the request never does: each byte carries where it came from, through
 * every filter, slice and concatenation.
 * Not: a general Jinja: no imports, no includes, no files, no attributes of host objects.
 * Owner: the shell; a compiled template is read-only. Thread: any, one render at a time per call (no shared state).
 * Bounds: the TD_TEMPLATE_MAX_*. Failure: TD_ERR_FILE_FORMAT or TD_ERR_FILE_UNSUPPORTED at compile time with line and
 * reason; at render time TD_ERR_BAD_REQUEST (raise_exception, undefined use, a limit), with a text for the client.
 */
#ifndef TD_TEXT_TEMPLATE_H
#define TD_TEXT_TEMPLATE_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/text/tokenizer.h"

#define TD_TEMPLATE_MAX_SOURCE (256u << 10)
#define TD_TEMPLATE_MAX_OUTPUT (32u << 20)
#define TD_TEMPLATE_MAX_STEPS  (4u << 20) /* expressions and statements of one render */
#define TD_TEMPLATE_MAX_DEPTH  64         /* macro calls and nested blocks */
#define TD_TEMPLATE_MAX_MEMORY (256u << 20)

struct td_template;

td_err td_template_compile(const char *source, size_t len, struct td_template **out_template,
                           char *err_text, size_t err_cap) TD_MUST_CHECK;
struct td_template *td_template_destroy(struct td_template *t);
TD_DEFINE_CLEANUP(struct td_template, td_template_destroy)

struct td_template_args {
    json_t *messages;                  /* list of objects; every string in it is the client's */
    json_t *tools;                     /* or NULL */
    json_t *kwargs;                    /* allow-listed extra variables, or NULL */
    const char *bos_token, *eos_token; /* trusted */
    int add_generation_prompt;
    int64_t now_s; /* for strftime_now */
};

struct td_template_output {
    struct td_buf text;
    struct td_text_segment *segs; /* owned; into text */
    size_t n_segs;
};

/* *out is owned by the caller: td_template_output_fini(). err_text gets the reason for the client. */
td_err td_template_render(const struct td_template *t, const struct td_template_args *args,
                          struct td_template_output *out, char *err_text,
                          size_t err_cap) TD_MUST_CHECK;
void td_template_output_fini(struct td_template_output *out);

#endif
