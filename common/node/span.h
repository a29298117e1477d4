/* span.h - variable-length arrays (prompts, block tables, addresses) in a fixed store of pages.
 *
 * What: a core allocates at creation only, yet prompts differ in length by four orders of
 * magnitude; a span is a chain of pages, read back piecewise. Not: contiguous memory.
 * Owner: one core; a span belongs to the sequence that put it. Thread: the loop's.
 * Bounds: the store's bytes, fixed at creation. Failure: TD_ERR_OVERLOADED when it is full, nothing
 * kept.
 */
#ifndef TD_NODE_SPAN_H
#define TD_NODE_SPAN_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

#define ND_SPAN_PAGE_BYTES 256u

struct nd_span {    /* zero: empty */
    uint32_t first; /* page + 1 */
    uint32_t bytes;
};

struct nd_spans;

struct nd_spans *nd_spans_create(size_t bytes);
struct nd_spans *nd_spans_destroy(struct nd_spans *s);
/* Copies `bytes` from `data` into the store. */
td_err nd_spans_put(struct nd_spans *s, const void *data, size_t bytes,
                    struct nd_span *out_span) TD_MUST_CHECK;
/* Copies [offset, offset + bytes) of the span to dst; the range lies within it. */
void nd_spans_read(const struct nd_spans *s, const struct nd_span *span, uint32_t offset,
                   uint32_t bytes, void *dst);
/* Gives the pages back and empties the span; empty is fine. */
void nd_spans_drop(struct nd_spans *s, struct nd_span *span);
/* Pages not in use: tests and check(). */
uint32_t nd_spans_free_pages(const struct nd_spans *s);
uint32_t nd_spans_pages(const struct nd_spans *s);

#endif
