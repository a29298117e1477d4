#include "tests/bench/gpu/gpu.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int gpu_failures;

void gpu_cu(cudaError_t e, const char *what, const char *file, int line)
{
    if (e != cudaSuccess) {
        (void)fprintf(stderr, "%s:%d: %s: %s\n", file, line, what, cudaGetErrorString(e));
        exit(2);
    }
}

void gpu_tk(td_err e, const char *what, const char *file, int line)
{
    if (e != TD_OK) {
        (void)fprintf(stderr, "%s:%d: %s: error %d (%s)\n", file, line, what, (int)e,
                      tk_cuda_last_error());
        exit(2);
    }
}

void *gpu_alloc(size_t bytes)
{
    void *p = NULL;
    CU(cudaMalloc(&p, bytes));
    return p;
}

void gpu_free(void *p)
{
    CU(cudaFree(p));
}

void gpu_poison(void *p, size_t bytes)
{
    CU(cudaMemset(p, 0xff, bytes));
}

tk_bf16 *gpu_random_bf16(size_t n, float scale, uint64_t seed)
{
    tk_bf16 *p = gpu_alloc(n * sizeof *p);
    gpu_fill_bf16(p, n, scale, seed);
    return p;
}

void *gpu_upload(const void *src, size_t bytes)
{
    void *p = gpu_alloc(bytes);
    CU(cudaMemcpy(p, src, bytes, cudaMemcpyHostToDevice));
    return p;
}

void gpu_download(void *dst, const void *src, size_t bytes)
{
    CU(cudaDeviceSynchronize());
    CU(cudaMemcpy(dst, src, bytes, cudaMemcpyDeviceToHost));
}

uint64_t gpu_rand(uint64_t *state)
{
    uint64_t x = (*state += 0x9e3779b97f4a7c15u);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

void gpu_shuffle(int32_t *out, int32_t n, uint64_t seed)
{
    for (int32_t i = 0; i < n; i++) {
        out[i] = i;
    }
    for (int32_t i = n - 1; i > 0; i--) {
        const int32_t j = (int32_t)(gpu_rand(&seed) % (uint64_t)(i + 1));
        const int32_t t = out[i];
        out[i] = out[j];
        out[j] = t;
    }
}

float gpu_bf16_to_float(tk_bf16 v)
{
    const uint32_t u = (uint32_t)v << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

void gpu_expect(const char *name, bool ok)
{
    printf("%s %s\n", ok ? "ok  " : "FAIL", name);
    (void)fflush(stdout);
    gpu_failures += !ok;
}

bool gpu_close(const char *name, const tk_bf16 *got_dev, uint32_t got_stride, const float *want_dev,
               uint32_t rows, uint32_t cols, double tol)
{
    const size_t n = (size_t)rows * cols;
    tk_bf16 *got = malloc((size_t)rows * got_stride * sizeof *got);
    float *want = malloc(n * sizeof *want);
    if (got == NULL || want == NULL) {
        exit(2);
    }
    gpu_download(got, got_dev, ((size_t)(rows - 1) * got_stride + cols) * sizeof *got);
    gpu_download(want, want_dev, n * sizeof *want);
    double err = 0, ref = 0, worst_row = 0;
    for (uint32_t r = 0; r < rows; r++) {
        double e = 0, w = 0;
        for (uint32_t c = 0; c < cols; c++) {
            const double x = (double)want[(size_t)r * cols + c];
            const double d = (double)gpu_bf16_to_float(got[(size_t)r * got_stride + c]) - x;
            e += d * d;
            w += x * x;
        }
        const double rel = sqrt(e / w);
        worst_row = rel <= worst_row ? worst_row : rel; /* NaN sticks */
        err += e;
        ref += w;
    }
    const double rel = sqrt(err / ref);
    const bool ok = rel <= tol && worst_row <= 4 * tol;
    printf("%s %-52s rel %.2e worst row %.2e\n", ok ? "ok  " : "FAIL", name, rel, worst_row);
    (void)fflush(stdout);
    gpu_failures += !ok;
    free(got);
    free(want);
    return ok;
}

bool gpu_same_bits(const char *name, const void *a_dev, const void *b_dev, size_t bytes)
{
    unsigned char *a = malloc(bytes), *b = malloc(bytes);
    if (a == NULL || b == NULL) {
        exit(2);
    }
    gpu_download(a, a_dev, bytes);
    gpu_download(b, b_dev, bytes);
    size_t diff = 0;
    const size_t look = memcmp(a, b, bytes) != 0 ? bytes : 0;
    for (size_t i = 0; i < look; i++) {
        diff += a[i] != b[i];
    }
    printf("%s %-52s %zu of %zu bytes differ\n", diff == 0 ? "ok  " : "FAIL", name, diff, bytes);
    (void)fflush(stdout);
    gpu_failures += diff != 0;
    free(a);
    free(b);
    return diff == 0;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static struct gpu_time summarise(double *us, int n)
{
    qsort(us, (size_t)n, sizeof *us, by_value);
    const struct gpu_time t = {us[n / 2], us[n / 10], us[n - 1 - n / 10]};
    return t;
}

struct gpu_time gpu_time_graph(gpu_body body, void *ctx, int reps, int samples)
{
    cudaStream_t s;
    cudaGraph_t g;
    cudaGraphExec_t ge;
    cudaEvent_t a, b;
    double us[GPU_MAX_SAMPLES];
    CU(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CU(cudaEventCreate(&a));
    CU(cudaEventCreate(&b));
    CU(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < reps; i++) {
        body(ctx, s, i);
    }
    CU(cudaStreamEndCapture(s, &g));
    CU(cudaGraphInstantiate(&ge, g, 0));
    for (int i = 0; i < 3; i++) {
        CU(cudaGraphLaunch(ge, s));
    }
    CU(cudaStreamSynchronize(s));
    for (int i = 0; i < samples; i++) {
        float ms = 0;
        CU(cudaEventRecord(a, s));
        CU(cudaGraphLaunch(ge, s));
        CU(cudaEventRecord(b, s));
        CU(cudaEventSynchronize(b));
        CU(cudaEventElapsedTime(&ms, a, b));
        us[i] = (double)ms * 1e3 / reps;
    }
    CU(cudaGraphExecDestroy(ge));
    CU(cudaGraphDestroy(g));
    CU(cudaEventDestroy(a));
    CU(cudaEventDestroy(b));
    CU(cudaStreamDestroy(s));
    return summarise(us, samples);
}

struct gpu_time gpu_time_stream(gpu_body body, void *ctx, int samples)
{
    cudaStream_t s;
    cudaEvent_t a, b;
    double us[GPU_MAX_SAMPLES];
    CU(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CU(cudaEventCreate(&a));
    CU(cudaEventCreate(&b));
    for (int i = 0; i < 3; i++) {
        body(ctx, s, i);
    }
    CU(cudaStreamSynchronize(s));
    for (int i = 0; i < samples; i++) {
        float ms = 0;
        CU(cudaEventRecord(a, s));
        body(ctx, s, i);
        CU(cudaEventRecord(b, s));
        CU(cudaEventSynchronize(b));
        CU(cudaEventElapsedTime(&ms, a, b));
        us[i] = (double)ms * 1e3;
    }
    CU(cudaEventDestroy(a));
    CU(cudaEventDestroy(b));
    CU(cudaStreamDestroy(s));
    return summarise(us, samples);
}

void gpu_say(const char *name, struct gpu_time t, double bytes, double flops, const char *extra,
             ...)
{
    printf("{\"name\": \"%s\", \"dtype\": \"bf16\", \"us_median\": %.2f, \"us_p10\": %.2f, "
           "\"us_p90\": %.2f",
           name, t.median, t.p10, t.p90);
    if (bytes > 0) {
        printf(", \"gbps\": %.0f", bytes / t.median / 1e3);
    }
    if (flops > 0) {
        printf(", \"tflops\": %.1f", flops / t.median / 1e6);
    }
    va_list ap;
    va_start(ap, extra);
    (void)vprintf(extra, ap);
    va_end(ap);
    printf("}\n");
    (void)fflush(stdout);
}
