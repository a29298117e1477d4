/* tk_device.h - memory, streams, events and graphs of one accelerator, in C without its headers.
 *
 * What: the few calls around the operations of tk_cuda.h that an engine needs. kernels/cuda/device.cu
 * is the real one; kernels/ref/tk_cuda_ref.c runs everything at once on the host, for tests.
 * Not: an allocator or a queue. Owner: the caller owns what it creates. Thread: any, once
 * tk_device_use was called on it; a stream by one thread at a time. Device pointers and pinned host
 * pointers are distinct: only tk_copy takes both. Failure: TD_ERR_DEVICE, TD_ERR_NO_MEMORY; the
 * library's own words are in tk_cuda_last_error().
 */
#ifndef TK_DEVICE_H
#define TK_DEVICE_H

#include "kernels/tk_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUevent_st *tk_event; /* cudaEvent_t */
struct tk_graph;                     /* captured once, run often */

struct tk_device_facts {
    char name[96];
    uint64_t total_bytes, free_bytes;
    uint32_t major, minor; /* compute capability */
};

/* Makes device `index` current on this thread and tells about it. */
td_err tk_device_open(int index, struct tk_device_facts *out) TD_MUST_CHECK;
/* Makes it current on another thread. */
td_err tk_device_use(int index) TD_MUST_CHECK;

/* Device memory, 256-byte aligned, not zeroed. free accepts NULL. */
td_err tk_mem_alloc(size_t bytes, void **out) TD_MUST_CHECK;
void tk_mem_free(void *p);
/* Host memory that copies run beside the host from and to. free accepts NULL. */
td_err tk_host_alloc(size_t bytes, void **out) TD_MUST_CHECK;
void tk_host_free(void *p);

td_err tk_stream_create(tk_stream *out) TD_MUST_CHECK;
void tk_stream_destroy(tk_stream s);
/* Blocks until everything enqueued has ended. */
td_err tk_stream_wait(tk_stream s);

/* Enqueued; either side may be device or host memory. From pageable host memory the source may be reused on return. */
td_err tk_copy(tk_stream s, void *dst, const void *src, size_t bytes) TD_MUST_CHECK;
/* The same for `rows` rows of `width` bytes, the pitches apart. */
td_err tk_copy_rows(tk_stream s, void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                    size_t width, size_t rows) TD_MUST_CHECK;
td_err tk_fill(tk_stream s, void *dst, int byte, size_t bytes) TD_MUST_CHECK;

td_err tk_event_create(tk_event *out) TD_MUST_CHECK;
void tk_event_destroy(tk_event e);
td_err tk_event_record(tk_event e, tk_stream s) TD_MUST_CHECK;
/* Blocks until the recorded point was reached; at once where nothing was recorded. */
td_err tk_event_wait(tk_event e) TD_MUST_CHECK;

/* Between begin and end, operations on the stream are captured instead of run. */
td_err tk_graph_begin(tk_stream s) TD_MUST_CHECK;
td_err tk_graph_end(tk_stream s, struct tk_graph **out) TD_MUST_CHECK;
td_err tk_graph_run(struct tk_graph *g, tk_stream s) TD_MUST_CHECK;
struct tk_graph *tk_graph_destroy(struct tk_graph *g); /* NULL-safe; returns NULL */

#ifdef __cplusplus
}
#endif
#endif
