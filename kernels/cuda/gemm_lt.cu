// gemm_lt.cu - large products through cuBLASLt: y[m][n] = x[m][k] W[n][k]^T (+ c).
//
// Shapes: bf16, float32 accumulation, m >= 1; rows of x ldx apart, of y and c ldy apart, W [n][k] contiguous.
// Design: the library is opened at run time, so a build with CUDA runs without it. Per shape one algorithm, never with
//   split-K (its reduction would make a row depend on m). Tuned: the fastest of the library's first eight and of a short
//   list of configurations that it does not offer first, each timed with cold weights, as a layer's are when their turn
//   comes. The list is of configurations that won a search over all of them, and others of their kind whose tiles fit 544
//   and 576 rows; of a shape only those whose tiles leave the SMs least idle are timed. What a version of the library does
//   not know is left out.
// Bound by: the matrix units. Measured: see NOTES.md.
#include <cublasLt.h>
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/launch.h"

namespace
{
constexpr int MAX_PLANS = 128;
constexpr int CANDIDATES = 8; // of the library's own choice

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
    X(cublasLtMatmulAlgoInit)                                                                      \
    X(cublasLtMatmulAlgoCheck)                                                                     \
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

// The short list: one algorithm (wgmma, weights' rows x tokens), every tile with every cluster and option.
struct tile {
    cublasLtMatmulTile_t id;
    uint32_t n, m; // weights' rows, tokens
};
constexpr tile tiles[] = {
    {CUBLASLT_MATMUL_TILE_128x128, 128, 128}, {CUBLASLT_MATMUL_TILE_128x160, 128, 160},
    {CUBLASLT_MATMUL_TILE_72x192, 72, 192},   {CUBLASLT_MATMUL_TILE_112x192, 112, 192},
    {CUBLASLT_MATMUL_TILE_120x128, 120, 128}, {CUBLASLT_MATMUL_TILE_176x128, 176, 128},
    {CUBLASLT_MATMUL_TILE_128x136, 128, 136}, {CUBLASLT_MATMUL_TILE_128x144, 128, 144},
    {CUBLASLT_MATMUL_TILE_192x136, 192, 136}, {CUBLASLT_MATMUL_TILE_192x144, 192, 144},
    {CUBLASLT_MATMUL_TILE_256x136, 256, 136}, {CUBLASLT_MATMUL_TILE_256x144, 256, 144}};
constexpr cublasLtClusterShape_t clusters[] = {
    CUBLASLT_CLUSTER_SHAPE_1x1x1, CUBLASLT_CLUSTER_SHAPE_2x1x1, CUBLASLT_CLUSTER_SHAPE_1x2x1};
constexpr int ALGORITHM = 66;
constexpr uint32_t N_TILES = sizeof tiles / sizeof tiles[0],
                   N_CLUSTERS = sizeof clusters / sizeof clusters[0], N_CUSTOMS = 2,
                   LISTED = N_TILES * N_CLUSTERS * N_CUSTOMS;

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
    bool loaded[2]
               [LISTED]; // without and with an addend: has run once, so its kernel is on the device
};

#define TRY_LT(call)                                                                               \
    do {                                                                                           \
        const cublasStatus_t st_ = (call);                                                         \
        if (st_ != CUBLAS_STATUS_SUCCESS) {                                                        \
            return tk_cuda_fail(cudaErrorUnknown, #call);                                          \
        }                                                                                          \
    } while (0)

// What of it was made; the slot is as new.
static void drop_plan(tk_lt *lt, plan *p)
{
    if (p->desc != nullptr) {
        lt->lib.cublasLtMatmulDescDestroy_(p->desc);
    }
    const cublasLtMatrixLayout_t layouts[] = {p->a, p->b, p->d};
    for (cublasLtMatrixLayout_t layout : layouts) {
        if (layout != nullptr) {
            lt->lib.cublasLtMatrixLayoutDestroy_(layout);
        }
    }
    *p = {};
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

namespace
{
constexpr int FINALISTS = 6;         // candidates that are timed again ..
constexpr int RUNS = 5;              // .. so often
constexpr uint32_t MANY_ROWS = 1536; // beyond, tiles hardly differ and a run takes long ..
constexpr int FEW_FINALISTS = 4, FEW_RUNS = 3;
constexpr float NEAR = 1.1f,
                NEAR_OF_MANY = 1.02f; // the cost of a listed tile that is timed, times the least

struct candidate {
    cublasLtMatmulAlgo_t algo;
    float us;
    bool *loaded;
};

struct tuning {
    tk_lt *lt;
    tk_stream s;
    const struct tk_lt_product *p;
    plan *q;
    cudaEvent_t begin, end;
    int n;
    candidate list[CANDIDATES + LISTED];
};

// One run with cold operands: what the workspace held and holds fills L2. Infinity where the library or the device refuses.
float time_cold(tuning *t, const candidate *c)
{
    float ms = 0;
    const bool ok =
        cudaMemsetAsync(t->lt->workspace, 0, t->lt->workspace_bytes, t->s) == cudaSuccess &&
        cudaEventRecord(t->begin, t->s) == cudaSuccess &&
        run_plan(t->lt, t->s, t->p, t->q, &c->algo) == TD_OK &&
        cudaEventRecord(t->end, t->s) == cudaSuccess &&
        cudaEventSynchronize(t->end) == cudaSuccess &&
        cudaEventElapsedTime(&ms, t->begin, t->end) == cudaSuccess;
    return ok ? ms * 1e3f : INFINITY;
}

float median_cold(tuning *t, const candidate *c, int runs)
{
    float us[RUNS];
    for (int i = 0; i < runs; i++) {
        const float now = time_cold(t, c);
        int j = i;
        for (; j > 0 && now < us[j - 1]; j--) {
            us[j] = us[j - 1];
        }
        us[j] = now;
    }
    return us[runs / 2];
}

// Rounds of all SMs that a tile takes, times its size: what a product of equally good tiles costs.
float cost_of(const tile &x, const struct tk_lt_product *p, uint32_t sms)
{
    const uint32_t blocks = ((p->n + x.n - 1) / x.n) * ((p->m + x.m - 1) / x.m);
    return (float)((blocks + sms - 1) / sms) * (float)(x.n * x.m);
}

template <typename T>
bool set(const tk_lt *lt, cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t what,
         T v)
{
    return lt->lib.cublasLtMatmulAlgoConfigSetAttribute_(algo, what, &v, sizeof v) ==
           CUBLAS_STATUS_SUCCESS;
}

// One configuration of the list; false where this library or this device does not have it.
bool configure(const tk_lt *lt, const plan *q, const tile &x, uint32_t cluster, uint32_t custom,
               cublasLtMatmulAlgo_t *algo)
{
    cublasLtMatmulHeuristicResult_t r;
    return lt->lib.cublasLtMatmulAlgoInit_(lt->handle, CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF,
                                           CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF, ALGORITHM,
                                           algo) == CUBLAS_STATUS_SUCCESS &&
           set(lt, algo, CUBLASLT_ALGO_CONFIG_TILE_ID, (uint32_t)x.id) &&
           set(lt, algo, CUBLASLT_ALGO_CONFIG_STAGES_ID,
               (uint32_t)CUBLASLT_MATMUL_STAGES_64xAUTO) &&
           set(lt, algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, (uint16_t)clusters[cluster]) &&
           set(lt, algo, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, custom) &&
           set(lt, algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 1) &&
           set(lt, algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
               (uint32_t)CUBLASLT_REDUCTION_SCHEME_NONE) &&
           lt->lib.cublasLtMatmulAlgoCheck_(lt->handle, q->desc, q->a, q->b, q->d, q->d, algo,
                                            &r) == CUBLAS_STATUS_SUCCESS &&
           r.workspaceSize <= lt->workspace_bytes;
}

// The list's tiles that leave the least of the device idle, in every form that the library takes.
void add_listed(tuning *t, uint32_t sms)
{
    float least = INFINITY;
    for (const tile &x : tiles) {
        least = fminf(least, cost_of(x, t->p, sms));
    }
    const float most = least * (t->p->m > MANY_ROWS ? NEAR_OF_MANY : NEAR);
    for (uint32_t i = 0; i < LISTED; i++) {
        const tile &x = tiles[i / (N_CLUSTERS * N_CUSTOMS)];
        candidate *c = &t->list[t->n];
        if (cost_of(x, t->p, sms) <= most &&
            configure(t->lt, t->q, x, i / N_CUSTOMS % N_CLUSTERS, i % N_CUSTOMS, &c->algo)) {
            c->loaded = &t->lt->loaded[t->q->add][i];
            t->n++;
        }
    }
}

// Every candidate once, the fastest few again; the fastest of these becomes the plan's.
td_err choose(tuning *t)
{
    bool fresh[CANDIDATES] = {};
    for (int i = 0; i < t->n; i++) {
        candidate *c = &t->list[i];
        bool *loaded = c->loaded != nullptr ? c->loaded : &fresh[i];
        if (!*loaded) {
            *loaded = true;
            (void)time_cold(t, c); // a kernel's first run brings it to the device
        }
        c->us = time_cold(t, c);
        const candidate now = *c;
        int j = i;
        for (; j > 0 && now.us < t->list[j - 1].us; j--) {
            t->list[j] = t->list[j - 1];
        }
        t->list[j] = now;
    }
    float best = INFINITY;
    const bool many = t->p->m > MANY_ROWS;
    for (int i = 0; i < t->n && i < (many ? FEW_FINALISTS : FINALISTS); i++) {
        const float us = median_cold(t, &t->list[i], many ? FEW_RUNS : RUNS);
        if (us < best) {
            best = us;
            t->q->algo = t->list[i].algo;
        }
    }
    t->q->ms = best * 1e-3f;
    return best < INFINITY ? TD_OK : TD_ERR_DEVICE;
}

td_err tune_plan(tk_lt *lt, tk_stream s, const struct tk_lt_product *p, plan *q,
                 const cublasLtMatmulHeuristicResult_t *got, int n)
{
    const tk_dev *dev = tk_device();
    tuning *t = static_cast<tuning *>(calloc(1, sizeof *t));
    if (t == nullptr || dev == nullptr) {
        free(t);
        return dev == nullptr ? TD_ERR_DEVICE : TD_ERR_NO_MEMORY;
    }
    t->lt = lt;
    t->s = s;
    t->p = p;
    t->q = q;
    for (; t->n < n; t->n++) {
        t->list[t->n].algo = got[t->n].algo;
    }
    add_listed(t, dev->sms);
    td_err e = TD_ERR_DEVICE;
    if (cudaEventCreate(&t->begin) == cudaSuccess && cudaEventCreate(&t->end) == cudaSuccess) {
        e = choose(t);
    }
    if (t->begin != nullptr) {
        (void)cudaEventDestroy(t->begin); // nothing is left to do about a failure here
    }
    if (t->end != nullptr) {
        (void)cudaEventDestroy(t->end); // likewise
    }
    free(t);
    return e;
}
} // namespace

extern "C" td_err tk_lt_plan(tk_lt *lt, tk_stream s, const struct tk_lt_product *p, bool tune)
{
    if (find_plan(lt, p) != nullptr) {
        return TD_OK;
    }
    if (lt->n_plans == MAX_PLANS) {
        return TD_ERR_FULL;
    }
    plan *q = &lt->plans[lt->n_plans];
    cublasLtMatmulHeuristicResult_t got[CANDIDATES];
    int n = 0;
    td_err e = fill_plan(lt, p, q);
    if (e == TD_OK) {
        e = heuristics(lt, q, got, &n);
    }
    if (e == TD_OK) {
        q->algo = got[0].algo;
        e = tune ? tune_plan(lt, s, p, q, got, n) : TD_OK;
    }
    if (e != TD_OK) {
        drop_plan(lt, q);
        return e;
    }
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
