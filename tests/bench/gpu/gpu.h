/* gpu.h - what the GPU check and bench programs share: device buffers, random data, references, timing, JSON lines.
 *
 * What: helpers of one process that exits on the first CUDA failure, with the line; nothing here is product code.
 * Not: a test framework; a check prints one line and counts failures.
 * Thread: one. Bounds: GPU_MAX_SAMPLES samples of a timing.
 */
#ifndef GPU_BENCH_GPU_H
#define GPU_BENCH_GPU_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/tk_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GPU_MAX_SAMPLES 200

#define CU(call) gpu_cu((call), #call, __FILE__, __LINE__)
#define TK(call) gpu_tk((call), #call, __FILE__, __LINE__)
void gpu_cu(cudaError_t e, const char *what, const char *file, int line);
void gpu_tk(td_err e, const char *what, const char *file, int line);

/* ---- memory and data (deterministic in seed) ---- */
void *gpu_alloc(size_t bytes);
void gpu_free(void *p);
void gpu_poison(void *p, size_t bytes); /* every bf16 and float32 in it is NaN */
tk_bf16 *gpu_random_bf16(size_t n, float scale, uint64_t seed);
void gpu_fill_bf16(tk_bf16 *p, size_t n, float scale, uint64_t seed);
void *gpu_upload(const void *src, size_t bytes);
void gpu_download(void *dst, const void *src, size_t bytes);
uint64_t gpu_rand(uint64_t *state); /* splitmix64 */
/* A shuffled permutation of 0 .. n - 1. */
void gpu_shuffle(int32_t *out, int32_t n, uint64_t seed);
float gpu_bf16_to_float(tk_bf16 v);

/* ---- references: naive, float64 inside ---- */
struct gpu_ref_row {
    int32_t table, visible, from; /* block table row; keys from .. visible - 1 */
};
void gpu_ref_attn(const tk_bf16 *q, uint32_t q_stride, const struct gpu_ref_row *rows_dev,
                  uint32_t rows, uint32_t n_heads, const struct tk_kv_pool *pool, uint32_t layer,
                  const int32_t *tables, uint32_t table_stride, float scale, float *out_dev);
/* out[r][n] (float32) = x[r] . W[n], W plain or tiled */
void gpu_ref_product(const tk_bf16 *x, uint32_t ldx, const tk_bf16 *w, bool tiled, uint32_t rows,
                     uint32_t n, uint32_t k, float *out_dev);
/* Reads every byte once; a ceiling. */
void gpu_read_sweep(tk_stream s, const void *p, size_t bytes, void *sink);

/* ---- comparing ---- */
/* ||a - b|| / ||b|| and the failure count; NaN never passes. */
extern int gpu_failures;
bool gpu_close(const char *name, const tk_bf16 *got_dev, uint32_t got_stride, const float *want_dev,
               uint32_t rows, uint32_t cols, double tol);
bool gpu_same_bits(const char *name, const void *a_dev, const void *b_dev, size_t bytes);
void gpu_expect(const char *name, bool ok);

/* ---- timing ---- */
struct gpu_time {
    double median, p10, p90; /* us */
};
typedef void (*gpu_body)(void *ctx, tk_stream s, int i);
/* Captures body(0 .. reps - 1) into a graph, replays it; time per body. */
struct gpu_time gpu_time_graph(gpu_body body, void *ctx, int reps, int samples);
/* Times the body on the stream as it is, between events. */
struct gpu_time gpu_time_stream(gpu_body body, void *ctx, int samples);
/* Extra: further JSON members, beginning with a comma, or "". */
void gpu_say(const char *name, struct gpu_time t, double bytes, double flops, const char *extra,
             ...) __attribute__((format(printf, 5, 6)));

#ifdef __cplusplus
}
#endif
#endif
