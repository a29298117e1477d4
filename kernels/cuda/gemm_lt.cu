// gemm_lt.cu - large products through cuBLASLt: y[m][n] = x[m][k] W[n][k]^T (+ c).
//
// Shapes: bf16, float32 accumulation, m >= 1; rows of x ldx apart, of y and c ldy apart, W [n][k] contiguous.
// Design: the library is opened at run time, so a build with CUDA runs without it. Per shape one algorithm, never with
//   split-K (its reduction would make a row depend on m); tuned ones are the fastest of the library's first eight.
// Bound by: the matrix units. Measured: see NOTES.md.
#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/launch.h"

namespace
{
constexpr int MAX_PLANS = 128;
constexpr int CANDIDATES = 8;
constexpr int TRIALS = 5;

#define LT_FUNCTIONS(X)                                                                            \
    X(cublasLtCreate)                                                                              \
    X(cublasLtDestroy)                                                                             \
    X(cublasLtMatmul)                                                                              \
    X(cublasLtMatmulDescCreate)                                                                    \
    X(cublasLtMatmulDescDestroy)                                                                   \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatrixLayoutCreate)                                                                  \
    X(cublasLtMatrixLayoutDestroy)                                                                 \
    X(cublasLtMatrixLayoutSetAttribute)                                                            \
    X(cublasLtMatmulPreferenceCreate)                                                              \
    X(cublasLtMatmulPreferenceDestroy)                                                             \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatmulAlgoGetHeuristic)

struct library {
    void *so;
#define LT_MEMBER(f) decltype(&f) f##_;
    LT_FUNCTIONS(LT_MEMBER)
#undef LT_MEMBER
};

struct plan {
    uint32_t m, n, k, ldx, ldy, add;
    uint32_t laid; // rows that the layouts say
    float ms;      // as tuned; 0: not timed
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
};

bool open_library(library *l)
{
    l->so = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    if (l->so == nullptr) {
        return false;
    }
#define LT_LOAD(f)                                                                                 \
    l->f##_ = reinterpret_cast<decltype(&f)>(dlsym(l->so, #f));                                    \
    if (l->f##_ == nullptr) {                                                                      \
        return false;                                                                              \
    }
    LT_FUNCTIONS(LT_LOAD)
#undef LT_LOAD
    return true;
}
} // namespace

struct tk_lt {
    library lib;
    cublasLtHandle_t handle;
    void *workspace; // device, owned
    size_t workspace_bytes;
    int n_plans;
    plan plans[MAX_PLANS];
};

#define TRY_LT(call)                                                                               \
    do {                                                                                           \
        const cublasStatus_t st_ = (call);                                                         \
        if (st_ != CUBLAS_STATUS_SUCCESS) {                                                        \
            return tk_cuda_fail(cudaErrorUnknown, #call);                                          \
        }                                                                                          \
    } while (0)

extern "C" tk_lt *tk_lt_destroy(tk_lt *lt)
{
    if (lt == nullptr) {
        return nullptr;
    }
    for (int i = 0; i < lt->n_plans; i++) {
        plan *p = &lt->plans[i];
        lt->lib.cublasLtMatmulDescDestroy_(p->desc);
        lt->lib.cublasLtMatrixLayoutDestroy_(p->a);
        lt->lib.cublasLtMatrixLayoutDestroy_(p->b);
        lt->lib.cublasLtMatrixLayoutDestroy_(p->d);
    }
    if (lt->handle != nullptr) {
        lt->lib.cublasLtDestroy_(lt->handle);
    }
    (void)cudaFree(lt->workspace); // nothing is left to do about a failure here
    free(lt);
    return nullptr;
}

extern "C" td_err tk_lt_create(size_t workspace_bytes, tk_lt **out)
{
    tk_lt *lt = static_cast<tk_lt *>(calloc(1, sizeof *lt));
    if (lt == nullptr) {
        return TD_ERR_NO_MEMORY;
    }
    lt->workspace_bytes = workspace_bytes;
    if (!open_library(&lt->lib)) {
        free(lt);
        return TD_ERR_UNSUPPORTED;
    }
    if (lt->lib.cublasLtCreate_(&lt->handle) != CUBLAS_STATUS_SUCCESS ||
        cudaMalloc(&lt->workspace, workspace_bytes) != cudaSuccess) {
        tk_lt_destroy(lt);
        return TD_ERR_DEVICE;
    }
    *out = lt;
    return TD_OK;
}

static plan *find_plan(tk_lt *lt, const struct tk_lt_product *p)
{
    for (int i = 0; i < lt->n_plans; i++) {
        plan *q = &lt->plans[i];
        if (q->m == p->m && q->n == p->n && q->k == p->k && q->ldx == p->ldx && q->ldy == p->ldy &&
            q->add == (p->c != nullptr)) {
            return q;
        }
    }
    return nullptr;
}

// In the library's column-major words: D (n x m, ld ldy) = W^T (k x n, ld k) * X (k x m, ld ldx).
static td_err run_plan(tk_lt *lt, tk_stream s, const struct tk_lt_product *p, plan *q,
                       const cublasLtMatmulAlgo_t *algo)
{
    const float one = 1.f, zero = 0.f;
    TRY_LT(lt->lib.cublasLtMatmul_(lt->handle, q->desc, &one, p->w, q->a, p->x, q->b,
                                   q->add ? &one : &zero, q->add ? p->c : p->y, q->d, p->y, q->d,
                                   algo, lt->workspace, lt->workspace_bytes, s));
    return TD_OK;
}

static td_err time_algo(tk_lt *lt, tk_stream s, const struct tk_lt_product *p, plan *q,
                        const cublasLtMatmulAlgo_t *algo, float *out_ms)
{
    cudaEvent_t a, b;
    TK_TRY_CUDA(cudaEventCreate(&a));
    TK_TRY_CUDA(cudaEventCreate(&b));
    td_err e = run_plan(lt, s, p, q, algo);
    float best = 1e9f;
    for (int i = 0; i < TRIALS && e == TD_OK; i++) {
        float ms = 0;
        (void)cudaEventRecord(a, s);
        e = run_plan(lt, s, p, q, algo);
        (void)cudaEventRecord(b, s);
        if (cudaEventSynchronize(b) != cudaSuccess ||
            cudaEventElapsedTime(&ms, a, b) != cudaSuccess) {
            e = TD_ERR_DEVICE;
        }
        best = ms < best ? ms : best;
    }
    (void)cudaEventDestroy(a);
    (void)cudaEventDestroy(b);
    *out_ms = best;
    return e;
}

static td_err fill_plan(tk_lt *lt, const struct tk_lt_product *p, plan *q)
{
    const cublasOperation_t t = CUBLAS_OP_T;
    q->m = q->laid = p->m;
    q->n = p->n;
    q->k = p->k;
    q->ldx = p->ldx;
    q->ldy = p->ldy;
    q->add = p->c != nullptr;
    TRY_LT(lt->lib.cublasLtMatmulDescCreate_(&q->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    TRY_LT(lt->lib.cublasLtMatmulDescSetAttribute_(q->desc, CUBLASLT_MATMUL_DESC_TRANSA, &t,
                                                   sizeof t));
    TRY_LT(lt->lib.cublasLtMatrixLayoutCreate_(&q->a, CUDA_R_16BF, p->k, p->n, p->k));
    TRY_LT(lt->lib.cublasLtMatrixLayoutCreate_(&q->b, CUDA_R_16BF, p->k, p->m, p->ldx));
    TRY_LT(lt->lib.cublasLtMatrixLayoutCreate_(&q->d, CUDA_R_16BF, p->n, p->m, p->ldy));
    return TD_OK;
}

extern "C" td_err tk_lt_plan(tk_lt *lt, tk_stream s, const struct tk_lt_product *p, bool tune)
{
    if (find_plan(lt, p) != nullptr) {
        return TD_OK;
    }
    if (lt->n_plans == MAX_PLANS) {
        return TD_ERR_FULL;
    }
    plan *q = &lt->plans[lt->n_plans];
    TD_TRY(fill_plan(lt, p, q));
    cublasLtMatmulPreference_t pref;
    TRY_LT(lt->lib.cublasLtMatmulPreferenceCreate_(&pref));
    const uint32_t no_split = CUBLASLT_REDUCTION_SCHEME_NONE;
    TRY_LT(lt->lib.cublasLtMatmulPreferenceSetAttribute_(
        pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &lt->workspace_bytes,
        sizeof lt->workspace_bytes));
    TRY_LT(lt->lib.cublasLtMatmulPreferenceSetAttribute_(
        pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &no_split, sizeof no_split));
    cublasLtMatmulHeuristicResult_t got[CANDIDATES];
    int n = 0;
    const cublasStatus_t st = lt->lib.cublasLtMatmulAlgoGetHeuristic_(
        lt->handle, q->desc, q->a, q->b, q->d, q->d, pref, CANDIDATES, got, &n);
    (void)lt->lib.cublasLtMatmulPreferenceDestroy_(pref);
    if (st != CUBLAS_STATUS_SUCCESS || n == 0) {
        return TD_ERR_UNSUPPORTED;
    }
    int pick = 0;
    float best = 1e9f;
    for (int i = 0; tune && i < n; i++) {
        float ms = 0;
        if (time_algo(lt, s, p, q, &got[i].algo, &ms) == TD_OK && ms < best) {
            best = ms;
            pick = i;
        }
    }
    q->algo = got[pick].algo;
    q->ms = tune ? best : 0.f;
    lt->n_plans++;
    return TD_OK;
}

// Of the plans that cover p's rows the fastest: an algorithm chosen for more rows sometimes wins. Untimed: the fewest rows.
static plan *covering_plan(tk_lt *lt, const struct tk_lt_product *p)
{
    plan *best = nullptr;
    for (int i = 0; i < lt->n_plans; i++) {
        plan *q = &lt->plans[i];
        if (q->m >= p->m && q->n == p->n && q->k == p->k && q->ldx == p->ldx && q->ldy == p->ldy &&
            q->add == (p->c != nullptr) &&
            (best == nullptr || (q->ms != best->ms ? q->ms < best->ms : q->m < best->m))) {
            best = q;
        }
    }
    return best;
}

extern "C" td_err tk_lt_run(tk_lt *lt, tk_stream s, const struct tk_lt_product *p)
{
    plan *q = covering_plan(lt, p);
    if (q == nullptr) {
        return TD_ERR_UNSUPPORTED; // not planned
    }
    if (q->laid !=
        p->m) { // the layouts are read when a product is enqueued: they may change behind it
        const uint64_t cols = p->m;
        TRY_LT(lt->lib.cublasLtMatrixLayoutSetAttribute_(q->b, CUBLASLT_MATRIX_LAYOUT_COLS, &cols,
                                                         sizeof cols));
        TRY_LT(lt->lib.cublasLtMatrixLayoutSetAttribute_(q->d, CUBLASLT_MATRIX_LAYOUT_COLS, &cols,
                                                         sizeof cols));
        q->laid = p->m;
    }
    return run_plan(lt, s, p, q, &q->algo);
}
