// device.cu - memory, streams, events and graphs behind kernels/tk_device.h.
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/launch.h"
#include "kernels/tk_device.h"

struct tk_graph {
    cudaGraphExec_t exec;
};

extern "C" td_err tk_device_open(int index, struct tk_device_facts *out)
{
    cudaDeviceProp p;
    size_t left = 0, total = 0;
    TK_TRY_CUDA(cudaSetDevice(index));
    TK_TRY_CUDA(cudaGetDeviceProperties(&p, index));
    TK_TRY_CUDA(cudaMemGetInfo(&left, &total));
    snprintf(out->name, sizeof out->name, "%s", p.name);
    out->total_bytes = total;
    out->free_bytes = left;
    out->major = (uint32_t)p.major;
    out->minor = (uint32_t)p.minor;
    return TD_OK;
}

extern "C" td_err tk_device_use(int index)
{
    TK_TRY_CUDA(cudaSetDevice(index));
    return TD_OK;
}

extern "C" td_err tk_mem_alloc(size_t bytes, void **out)
{
    TK_TRY_CUDA(cudaMalloc(out, bytes));
    return TD_OK;
}

extern "C" void tk_mem_free(void *p)
{
    (void)cudaFree(p); // nothing is left to do about a failure here
}

extern "C" td_err tk_host_alloc(size_t bytes, void **out)
{
    TK_TRY_CUDA(cudaMallocHost(out, bytes));
    return TD_OK;
}

extern "C" void tk_host_free(void *p)
{
    (void)cudaFreeHost(p); // likewise
}

extern "C" td_err tk_stream_create(tk_stream *out)
{
    TK_TRY_CUDA(cudaStreamCreateWithFlags(out, cudaStreamNonBlocking));
    return TD_OK;
}

extern "C" void tk_stream_destroy(tk_stream s)
{
    if (s != nullptr) {
        (void)cudaStreamDestroy(s); // likewise
    }
}

extern "C" td_err tk_stream_wait(tk_stream s)
{
    TK_TRY_CUDA(cudaStreamSynchronize(s));
    return TD_OK;
}

extern "C" td_err tk_copy(tk_stream s, void *dst, const void *src, size_t bytes)
{
    TK_TRY_CUDA(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, s));
    return TD_OK;
}

extern "C" td_err tk_copy_rows(tk_stream s, void *dst, size_t dst_pitch, const void *src,
                               size_t src_pitch, size_t width, size_t rows)
{
    TK_TRY_CUDA(
        cudaMemcpy2DAsync(dst, dst_pitch, src, src_pitch, width, rows, cudaMemcpyDefault, s));
    return TD_OK;
}

extern "C" td_err tk_fill(tk_stream s, void *dst, int byte, size_t bytes)
{
    TK_TRY_CUDA(cudaMemsetAsync(dst, byte, bytes, s));
    return TD_OK;
}

extern "C" td_err tk_event_create(tk_event *out)
{
    TK_TRY_CUDA(cudaEventCreateWithFlags(out, cudaEventDisableTiming));
    return TD_OK;
}

extern "C" void tk_event_destroy(tk_event e)
{
    if (e != nullptr) {
        (void)cudaEventDestroy(e); // likewise
    }
}

extern "C" td_err tk_event_record(tk_event e, tk_stream s)
{
    TK_TRY_CUDA(cudaEventRecord(e, s));
    return TD_OK;
}

extern "C" td_err tk_event_wait(tk_event e)
{
    TK_TRY_CUDA(cudaEventSynchronize(e));
    return TD_OK;
}

extern "C" td_err tk_graph_begin(tk_stream s)
{
    TK_TRY_CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    return TD_OK;
}

extern "C" td_err tk_graph_end(tk_stream s, struct tk_graph **out)
{
    cudaGraph_t g = nullptr;
    TK_TRY_CUDA(cudaStreamEndCapture(s, &g));
    struct tk_graph *made = static_cast<struct tk_graph *>(calloc(1, sizeof *made));
    const cudaError_t e =
        made == nullptr ? cudaErrorMemoryAllocation : cudaGraphInstantiate(&made->exec, g, 0);
    (void)cudaGraphDestroy(g); // the executable graph is a copy
    if (e != cudaSuccess) {
        free(made);
        return tk_cuda_fail(e, "cudaGraphInstantiate");
    }
    *out = made;
    return TD_OK;
}

extern "C" td_err tk_graph_run(struct tk_graph *g, tk_stream s)
{
    TK_TRY_CUDA(cudaGraphLaunch(g->exec, s));
    return TD_OK;
}

extern "C" struct tk_graph *tk_graph_destroy(struct tk_graph *g)
{
    if (g != nullptr) {
        (void)cudaGraphExecDestroy(g->exec); // likewise
        free(g);
    }
    return nullptr;
}
