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
#include <time.h>

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
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmulAlgoGetIds)                                                                    \
    X(cublasLtMatmulAlgoInit)                                                                      \
    X(cublasLtMatmulAlgoCheck)                                                                     \
    X(cublasLtMatmulAlgoCapGetAttribute)                                                           \
    X(cublasLtMatmulAlgoConfigSetAttribute)

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

static void drop_plan(tk_lt *lt, plan *p)
{
    lt->lib.cublasLtMatmulDescDestroy_(p->desc);
    lt->lib.cublasLtMatrixLayoutDestroy_(p->a);
    lt->lib.cublasLtMatrixLayoutDestroy_(p->b);
    lt->lib.cublasLtMatrixLayoutDestroy_(p->d);
}

extern "C" tk_lt *tk_lt_destroy(tk_lt *lt)
{
    if (lt == nullptr) {
        return nullptr;
    }
    for (int i = 0; i < lt->n_plans; i++) {
        drop_plan(lt, &lt->plans[i]);
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

// The library's first choices without split-K, best first.
static td_err heuristics(tk_lt *lt, plan *q, cublasLtMatmulHeuristicResult_t got[CANDIDATES],
                         int *out_n)
{
    cublasLtMatmulPreference_t pref;
    TRY_LT(lt->lib.cublasLtMatmulPreferenceCreate_(&pref));
    const uint32_t no_split = CUBLASLT_REDUCTION_SCHEME_NONE;
    TRY_LT(lt->lib.cublasLtMatmulPreferenceSetAttribute_(
        pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &lt->workspace_bytes,
        sizeof lt->workspace_bytes));
    TRY_LT(lt->lib.cublasLtMatmulPreferenceSetAttribute_(
        pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &no_split, sizeof no_split));
    const cublasStatus_t st = lt->lib.cublasLtMatmulAlgoGetHeuristic_(
        lt->handle, q->desc, q->a, q->b, q->d, q->d, pref, CANDIDATES, got, out_n);
    (void)lt->lib.cublasLtMatmulPreferenceDestroy_(pref);
    return st == CUBLAS_STATUS_SUCCESS && *out_n > 0 ? TD_OK : TD_ERR_UNSUPPORTED;
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
    cublasLtMatmulHeuristicResult_t got[CANDIDATES];
    int n = 0;
    TD_TRY(heuristics(lt, q, got, &n));
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

// ---- the search over all configurations ----

namespace
{
constexpr int MAX_IDS = 64;
constexpr int MAX_LIST = 700; // tiles or stage counts of an algorithm
constexpr int KEPT = 12;      // configurations that are timed again
constexpr int RUNS = 9;

struct config {
    float us;
    uint32_t id, tile, stages, cluster, swizzle, custom;
    cublasLtMatmulAlgo_t algo;
};

struct search {
    tk_lt *lt;
    tk_stream s;
    const struct tk_lt_product *p;
    const struct tk_lt_search *how;
    plan *q;
    cudaEvent_t begin, end;
    struct timespec started;
    struct tk_lt_found *out;
    config kept[KEPT + 1]; // fastest first
    int n_kept;
};

bool is_late(const search *x)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    const long ms =
        (t.tv_sec - x->started.tv_sec) * 1000 + (t.tv_nsec - x->started.tv_nsec) / 1000000;
    return ms > (long)x->how->budget_ms;
}

// One run with cold operands; false where the library or the device refuses the configuration.
bool time_cold(search *x, const cublasLtMatmulAlgo_t *algo, float *out_us)
{
    float ms = 0;
    bool ok = cudaMemsetAsync(x->how->flush, 0, x->how->flush_bytes, x->s) == cudaSuccess &&
              cudaEventRecord(x->begin, x->s) == cudaSuccess;
    ok = ok && run_plan(x->lt, x->s, x->p, x->q, algo) == TD_OK &&
         cudaEventRecord(x->end, x->s) == cudaSuccess &&
         cudaEventSynchronize(x->end) == cudaSuccess &&
         cudaEventElapsedTime(&ms, x->begin, x->end) == cudaSuccess;
    *out_us = ms * 1e3f;
    return ok;
}

bool median_cold(search *x, const cublasLtMatmulAlgo_t *algo, float *out_us)
{
    float us[RUNS];
    for (int i = 0; i < RUNS; i++) {
        if (!time_cold(x, algo, &us[i])) {
            return false;
        }
        for (int j = i; j > 0 && us[j] < us[j - 1]; j--) {
            const float t = us[j];
            us[j] = us[j - 1];
            us[j - 1] = t;
        }
    }
    *out_us = us[RUNS / 2];
    return true;
}

void keep(search *x, const config &c)
{
    int at = x->n_kept < KEPT ? x->n_kept++ : KEPT;
    for (; at > 0 && c.us < x->kept[at - 1].us; at--) {
        x->kept[at] = x->kept[at - 1];
    }
    x->kept[at] = c;
}

bool set(search *x, cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t what,
         uint32_t v)
{
    return x->lt->lib.cublasLtMatmulAlgoConfigSetAttribute_(algo, what, &v, sizeof v) ==
           CUBLAS_STATUS_SUCCESS;
}

void try_config(search *x, config c)
{
    const uint16_t cluster = (uint16_t)c.cluster;
    cublasLtMatmulHeuristicResult_t r;
    x->out->checked++;
    bool ok =
        set(x, &c.algo, CUBLASLT_ALGO_CONFIG_TILE_ID, c.tile) &&
        set(x, &c.algo, CUBLASLT_ALGO_CONFIG_STAGES_ID, c.stages) &&
        set(x, &c.algo, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, c.custom) &&
        set(x, &c.algo, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, c.swizzle) &&
        set(x, &c.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 1) &&
        set(x, &c.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, CUBLASLT_REDUCTION_SCHEME_NONE) &&
        x->lt->lib.cublasLtMatmulAlgoConfigSetAttribute_(
            &c.algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &cluster, sizeof cluster) ==
            CUBLAS_STATUS_SUCCESS;
    ok = ok &&
         x->lt->lib.cublasLtMatmulAlgoCheck_(x->lt->handle, x->q->desc, x->q->a, x->q->b, x->q->d,
                                             x->q->d, &c.algo, &r) == CUBLAS_STATUS_SUCCESS &&
         r.workspaceSize <= x->lt->workspace_bytes;
    // the first run loads the kernel
    if (ok && time_cold(x, &c.algo, &c.us) && time_cold(x, &c.algo, &c.us)) {
        x->out->timed++;
        keep(x, c);
    }
}

uint32_t list_of(search *x, const cublasLtMatmulAlgo_t *algo,
                 cublasLtMatmulAlgoCapAttributes_t what, uint32_t list[MAX_LIST])
{
    size_t bytes = 0;
    const cublasStatus_t st = x->lt->lib.cublasLtMatmulAlgoCapGetAttribute_(
        algo, what, list, MAX_LIST * sizeof *list, &bytes);
    const uint32_t n = st == CUBLAS_STATUS_SUCCESS ? (uint32_t)(bytes / sizeof *list) : 0;
    if (n == 0) {
        list[0] = 0; // the one that is called undefined
    }
    return n > 0 ? n : 1;
}

uint32_t number_of(search *x, const cublasLtMatmulAlgo_t *algo,
                   cublasLtMatmulAlgoCapAttributes_t what)
{
    uint32_t v = 0;
    size_t bytes = 0;
    return x->lt->lib.cublasLtMatmulAlgoCapGetAttribute_(algo, what, &v, sizeof v, &bytes) ==
                   CUBLAS_STATUS_SUCCESS
               ? v
               : 0;
}

void try_algorithm(search *x, int id)
{
    static const uint32_t clusters[] = {CUBLASLT_CLUSTER_SHAPE_AUTO,  CUBLASLT_CLUSTER_SHAPE_1x1x1,
                                        CUBLASLT_CLUSTER_SHAPE_2x1x1, CUBLASLT_CLUSTER_SHAPE_1x2x1,
                                        CUBLASLT_CLUSTER_SHAPE_2x2x1, CUBLASLT_CLUSTER_SHAPE_4x1x1,
                                        CUBLASLT_CLUSTER_SHAPE_1x4x1};
    uint32_t tiles[MAX_LIST], stages[MAX_LIST];
    config c = {};
    if (x->lt->lib.cublasLtMatmulAlgoInit_(x->lt->handle, CUBLAS_COMPUTE_32F, CUDA_R_32F,
                                           CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF, id,
                                           &c.algo) != CUBLAS_STATUS_SUCCESS) {
        return;
    }
    c.id = (uint32_t)id;
    const uint32_t n_tiles = list_of(x, &c.algo, CUBLASLT_ALGO_CAP_TILE_IDS, tiles),
                   n_stages = list_of(x, &c.algo, CUBLASLT_ALGO_CAP_STAGES_IDS, stages),
                   customs = number_of(x, &c.algo, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX) + 1,
                   swizzles =
                       number_of(x, &c.algo, CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT) != 0 ? 2 : 1;
    // The tile in the innermost loop: what the deadline cuts off is the odd options, of all tiles alike.
    for (c.custom = 0; c.custom < customs; c.custom++) {
        for (c.swizzle = 0; c.swizzle < swizzles; c.swizzle++) {
            for (uint32_t cl = 0; cl < sizeof clusters / sizeof clusters[0]; cl++) {
                for (uint32_t st = 0; st < n_stages; st++) {
                    for (uint32_t t = 0; t < n_tiles && !is_late(x); t++) {
                        c.cluster = clusters[cl];
                        c.stages = stages[st];
                        c.tile = tiles[t];
                        try_config(x, c);
                    }
                }
            }
        }
    }
}

td_err search_all(search *x)
{
    int ids[MAX_IDS], n = 0;
    cublasLtMatmulHeuristicResult_t got[CANDIDATES];
    int n_got = 0;
    TD_TRY(heuristics(x->lt, x->q, got, &n_got));
    for (int i = 0; i < n_got; i++) {
        config c = {};
        c.algo = got[i].algo;
        c.id = UINT32_MAX; // the library's own choice
        if (time_cold(x, &c.algo, &c.us) && time_cold(x, &c.algo, &c.us)) {
            keep(x, c);
        }
    }
    if (!median_cold(x, &got[0].algo, &x->out->first_us)) {
        return TD_ERR_DEVICE;
    }
    TRY_LT(x->lt->lib.cublasLtMatmulAlgoGetIds_(x->lt->handle, CUBLAS_COMPUTE_32F, CUDA_R_32F,
                                                CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF,
                                                MAX_IDS, ids, &n));
    for (int i = n - 1; i >= 0 && !is_late(x); i--) { // Hopper's kernels have the highest ids
        try_algorithm(x, ids[i]);
    }
    const config *best = nullptr;
    for (int i = 0; i < x->n_kept; i++) {
        config *c = &x->kept[i];
        if (median_cold(x, &c->algo, &c->us) && (best == nullptr || c->us < best->us)) {
            best = c;
        }
    }
    if (best == nullptr) {
        return TD_ERR_UNSUPPORTED;
    }
    x->q->algo = best->algo;
    x->q->ms = best->us * 1e-3f;
    x->out->best_us = best->us;
    x->out->id = best->id;
    x->out->tile = best->tile;
    x->out->stages = best->stages;
    x->out->cluster = best->cluster;
    x->out->swizzle = best->swizzle;
    x->out->custom = best->custom;
    return TD_OK;
}
} // namespace

extern "C" td_err tk_lt_search(tk_lt *lt, tk_stream s, const struct tk_lt_product *p,
                               const struct tk_lt_search *how, struct tk_lt_found *out)
{
    plan *q = find_plan(lt, p);
    const bool fresh = q == nullptr;
    if (fresh && lt->n_plans == MAX_PLANS) {
        return TD_ERR_FULL;
    }
    q = fresh ? &lt->plans[lt->n_plans] : q;
    if (fresh) {
        TD_TRY(fill_plan(lt, p, q));
    }
    search *x = static_cast<search *>(calloc(1, sizeof *x));
    if (x == nullptr) {
        return TD_ERR_NO_MEMORY;
    }
    *out = {};
    x->lt = lt;
    x->s = s;
    x->p = p;
    x->how = how;
    x->q = q;
    x->out = out;
    (void)clock_gettime(CLOCK_MONOTONIC, &x->started);
    td_err e = TD_ERR_DEVICE;
    if (cudaEventCreate(&x->begin) == cudaSuccess && cudaEventCreate(&x->end) == cudaSuccess) {
        e = search_all(x);
    }
    if (x->begin != nullptr) {
        (void)cudaEventDestroy(x->begin); // nothing is left to do about a failure here
    }
    if (x->end != nullptr) {
        (void)cudaEventDestroy(x->end); // likewise
    }
    free(x);
    if (e == TD_OK && fresh) {
        lt->n_plans++;
    } else if (fresh) {
        drop_plan(lt, q);
    }
    return e;
}
