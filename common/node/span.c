#include "common/node/span.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/mem.h"

struct page {
    uint32_t next; /* page + 1; 0: end of the chain */
    uint8_t data[ND_SPAN_PAGE_BYTES - sizeof(uint32_t)];
};
#define PAGE_DATA ((uint32_t)(ND_SPAN_PAGE_BYTES - sizeof(uint32_t)))

struct nd_spans {
    struct page *pages; /* owned [n] */
    uint32_t n, n_free;
    uint32_t free_head; /* page + 1 */
};

struct nd_spans *nd_spans_create(size_t bytes)
{
    size_t n = bytes / PAGE_DATA + 1;
    TD_REQUIRE(n < UINT32_MAX);
    struct nd_spans *s = td_zalloc(1, sizeof *s);
    if (s == NULL) {
        return NULL;
    }
    s->pages = td_zalloc(n, sizeof *s->pages);
    if (s->pages == NULL) {
        return nd_spans_destroy(s);
    }
    s->n = s->n_free = (uint32_t)n;
    for (uint32_t i = 0; i < s->n; i++) {
        s->pages[i].next = i + 1 < s->n ? i + 2 : 0;
    }
    s->free_head = 1;
    return s;
}

struct nd_spans *nd_spans_destroy(struct nd_spans *s)
{
    if (s != NULL) {
        free(s->pages);
        free(s);
    }
    return NULL;
}

td_err nd_spans_put(struct nd_spans *s, const void *data, size_t bytes, struct nd_span *out_span)
{
    size_t need = (bytes + PAGE_DATA - 1) / PAGE_DATA;
    if (need > s->n_free) {
        return TD_ERR_OVERLOADED;
    }
    struct nd_span span = {.bytes = (uint32_t)bytes};
    uint32_t *link = &span.first;
    const uint8_t *src = data;
    for (size_t left = bytes; left > 0;) {
        uint32_t id = s->free_head;
        struct page *p = &s->pages[id - 1];
        size_t part = left < PAGE_DATA ? left : PAGE_DATA;
        s->free_head = p->next;
        s->n_free--;
        memcpy(p->data, src, part);
        *link = id;
        link = &p->next;
        src += part;
        left -= part;
    }
    *link = 0;
    *out_span = span;
    return TD_OK;
}

void nd_spans_read(const struct nd_spans *s, const struct nd_span *span, uint32_t offset,
                   uint32_t bytes, void *dst)
{
    TD_REQUIRE(offset <= span->bytes && bytes <= span->bytes - offset);
    uint32_t id = span->first;
    uint8_t *to = dst;
    while (bytes > 0) {
        const struct page *p = &s->pages[id - 1];
        if (offset >= PAGE_DATA) {
            offset -= PAGE_DATA;
        } else {
            uint32_t part = PAGE_DATA - offset < bytes ? PAGE_DATA - offset : bytes;
            memcpy(to, p->data + offset, part);
            to += part;
            bytes -= part;
            offset = 0;
        }
        id = p->next;
    }
}

void nd_spans_drop(struct nd_spans *s, struct nd_span *span)
{
    for (uint32_t id = span->first; id != 0;) {
        struct page *p = &s->pages[id - 1];
        uint32_t next = p->next;
        p->next = s->free_head;
        s->free_head = id;
        s->n_free++;
        id = next;
    }
    *span = (struct nd_span){0};
}

uint32_t nd_spans_free_pages(const struct nd_spans *s)
{
    return s->n_free;
}

uint32_t nd_spans_pages(const struct nd_spans *s)
{
    return s->n;
}
