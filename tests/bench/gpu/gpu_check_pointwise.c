/* Checks of the pointwise operations against the host. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/gpu/gpu_cases.h"
#include "tests/bench/gpu/gpu_kv.h"

#define TOL 4e-3 /* the output is rounded to bf16 */

static void ref_bf16(float *p, size_t n) /* host rounding of a float array to bf16 and back */
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &p[i], 4);
        u = (u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000u;
        memcpy(&p[i], &u, 4);
    }
}

/* What a head of q, k or v is before the rotation. */
static void shaped_head(const tk_bf16 *x, const tk_bf16 *bias, const tk_bf16 *gain, int dim,
                        float *out)
{
    double q = 0;
    for (int i = 0; i < dim; i++) {
        out[i] = gpu_bf16_to_float(x[i]) + (bias != NULL ? gpu_bf16_to_float(bias[i]) : 0.f);
        q += (double)out[i] * (double)out[i];
    }
    for (int i = 0; gain != NULL && i < dim; i++) {
        out[i] *= (float)(1.0 / sqrt(q / dim + 1e-5)) * gpu_bf16_to_float(gain[i]);
    }
}

/* Largest error of a head against `head` turned by cs (cos, then sin; NULL: not turned). */
static double rope_error(const tk_bf16 *got, const float *head, int dim, const float *cs)
{
    double worst = 0;
    for (int j = 0; j < dim / 2; j++) {
        float x = head[j], y = head[j + dim / 2];
        if (cs != NULL) {
            const float u = x * cs[j] - y * cs[dim / 2 + j];
            y = y * cs[j] + x * cs[dim / 2 + j];
            x = u;
        }
        const double e0 = fabs((double)(gpu_bf16_to_float(got[j]) - x)) / (fabs((double)x) + 0.01);
        const double e1 =
            fabs((double)(gpu_bf16_to_float(got[j + dim / 2]) - y)) / (fabs((double)y) + 0.01);
        worst = e0 <= worst ? worst : e0; /* a NaN is kept */
        worst = e1 <= worst ? worst : e1;
    }
    return worst;
}

/* shaped: with biases and norms of the heads. */
static void check_rope(bool shaped)
{
    enum { ROWS = 37, HQ = 6, HKV = 2, DIM = 128, W = (HQ + 2 * HKV) * DIM, TOKS = 700 };
    const int32_t lens[] = {TOKS, TOKS};
    struct gpu_kv c = gpu_kv_make(lens, 2, HKV, DIM, 2, 128, 41);
    tk_bf16 *qkv = gpu_random_bf16((size_t)ROWS * W, 1.f, 12), *before = malloc(ROWS * W * 2),
            *after = malloc(ROWS * W * 2);
    float *cs = malloc(TOKS * DIM * 4);
    int32_t pos[ROWS], tab[ROWS];
    tk_bf16 *extra = gpu_random_bf16(W + 2 * DIM, 1.f, 77), extra_h[W + 2 * DIM];
    gpu_download(extra_h, extra, sizeof extra_h);
    gpu_download(before, qkv, ROWS * W * 2);
    for (int i = 0; i < TOKS; i++) {
        for (int j = 0; j < DIM / 2; j++) {
            const double ang = i * pow(5e5, -2.0 * j / DIM);
            cs[i * DIM + j] = (float)cos(ang);
            cs[i * DIM + DIM / 2 + j] = (float)sin(ang);
        }
    }
    for (int i = 0; i < ROWS; i++) {
        pos[i] = i == 5 ? -1 : i * 18 + 3;
        tab[i] = i & 1;
    }
    float *cs_dev = gpu_upload(cs, TOKS * DIM * 4);
    int32_t *pos_dev = gpu_upload(pos, sizeof pos), *tab_dev = gpu_upload(tab, sizeof tab);
    const struct tk_rope_kv a = {.qkv = qkv,
                                 .cos_sin = cs_dev,
                                 .pos = pos_dev,
                                 .table_of = tab_dev,
                                 .tables = c.tables,
                                 .pool = &c.pool,
                                 .rows = ROWS,
                                 .n_heads = HQ,
                                 .n_kv_heads = HKV,
                                 .head_dim = DIM,
                                 .layer = 1,
                                 .table_stride = c.stride,
                                 .row_stride = W,
                                 .bias = shaped ? extra : NULL,
                                 .q_norm = shaped ? extra + W : NULL,
                                 .k_norm = shaped ? extra + W + DIM : NULL,
                                 .eps = 1e-5f};
    TK(tk_rope_kv(NULL, &a));
    gpu_download(after, qkv, ROWS * W * 2);
    double worst = 0;
    for (int r = 0; r < ROWS; r++) {
        for (int h = 0; h < HQ + 2 * HKV; h++) {
            tk_bf16 got[DIM];
            const tk_bf16 *src = before + r * W + h * DIM;
            memcpy(got, after + r * W + h * DIM, sizeof got);
            if (h >= HQ && pos[r] >= 0) {
                const size_t blk =
                    (size_t)
                        c.tables_h[(uint32_t)tab[r] * c.stride + (uint32_t)pos[r] / TK_BLOCK_TOK];
                gpu_download(
                    got,
                    (char *)c.pool.base + blk * c.pool.slice_bytes * 2 + c.pool.slice_bytes + 128 +
                        ((size_t)(h - HQ) * TK_BLOCK_TOK + (size_t)pos[r] % TK_BLOCK_TOK) * DIM * 2,
                    sizeof got);
            }
            float head[DIM];
            const tk_bf16 *gain = extra_h + W + (h < HQ ? 0 : DIM);
            const bool touched = shaped && pos[r] >= 0;
            shaped_head(src, touched ? extra_h + h * DIM : NULL,
                        touched && h < HQ + HKV ? gain : NULL, DIM, head);
            const double e = rope_error(
                got, head, DIM, pos[r] >= 0 && h < HQ + HKV ? cs + (size_t)pos[r] * DIM : NULL);
            worst = e <= worst ? worst : e;
        }
    }
    gpu_expect(shaped ? "rope + KV write with biases and norms of the heads"
                      : "rope + KV write, shuffled blocks, header, skipped row",
               worst <= 4.1e-3);
    gpu_free(extra), gpu_free(qkv), gpu_free(cs_dev), gpu_free(pos_dev), gpu_free(tab_dev);
    free(before), free(after), free(cs);
    gpu_kv_drop(&c);
}

static void check_norm(uint32_t rows, uint32_t dim, bool add)
{
    char name[96];
    const size_t n = (size_t)rows * dim;
    tk_bf16 *h = gpu_random_bf16(n, 1.f, 1), *ad = gpu_random_bf16(n, 1.f, 2),
            *g = gpu_random_bf16(dim, 1.f, 3);
    tk_bf16 *out = gpu_alloc(n * 2), *hh = malloc(n * 2), *ah = malloc(n * 2),
            *gh = malloc(dim * 2u);
    float *want = malloc(n * 4);
    gpu_download(hh, h, n * 2), gpu_download(ah, ad, n * 2), gpu_download(gh, g, dim * 2u);
    gpu_poison(out, n * 2);
    TK(tk_rmsnorm(NULL, h, add ? ad : NULL, g, out, rows, dim, dim, 1e-5f));
    for (uint32_t r = 0; r < rows; r++) {
        double ss = 0;
        for (uint32_t i = 0; i < dim; i++) {
            float v = gpu_bf16_to_float(hh[(size_t)r * dim + i]) +
                      (add ? gpu_bf16_to_float(ah[(size_t)r * dim + i]) : 0);
            ref_bf16(&v, 1);
            want[(size_t)r * dim + i] = v;
            ss += (double)v * (double)v;
        }
        for (uint32_t i = 0; i < dim; i++) {
            want[(size_t)r * dim + i] *=
                (float)(1 / sqrt(ss / dim + 1e-5)) * gpu_bf16_to_float(gh[i]);
        }
    }
    float *wd = gpu_upload(want, n * 4);
    (void)snprintf(name, sizeof name, "rmsnorm %u x %u%s", rows, dim, add ? " + residual" : "");
    (void)gpu_close(name, out, dim, wd, rows, dim, TOL);
    gpu_free(h), gpu_free(ad), gpu_free(g), gpu_free(out), gpu_free(wd);
    free(hh), free(ah), free(gh), free(want);
}

static void check_swiglu_kernel(uint32_t rows, uint32_t ffn, bool inter)
{
    const size_t n = (size_t)rows * ffn;
    tk_bf16 *gu = gpu_random_bf16(2 * n, 1.5f, 1), *out = gpu_alloc(n * 2), *h = malloc(4 * n);
    float *want = malloc(n * 4);
    gpu_download(h, gu, 4 * n);
    gpu_poison(out, n * 2);
    TK(tk_swiglu(NULL, gu, out, rows, ffn, inter));
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t i = 0; i < ffn; i++) {
            const tk_bf16 *row = h + (size_t)r * 2 * ffn;
            const float g = gpu_bf16_to_float(inter ? row[i / 8 * 16 + i % 8] : row[i]);
            const float u = gpu_bf16_to_float(inter ? row[i / 8 * 16 + 8 + i % 8] : row[ffn + i]);
            want[(size_t)r * ffn + i] = g / (1.f + expf(-g)) * u;
        }
    }
    float *wd = gpu_upload(want, n * 4);
    (void)gpu_close(inter ? "swiglu, interleaved" : "swiglu, halves", out, ffn, wd, rows, ffn, TOL);
    gpu_free(gu), gpu_free(out), gpu_free(wd);
    free(h), free(want);
}

void gpu_check_pointwise(void)
{
    check_rope(false);
    check_rope(true);
    check_norm(5, 4096, false);
    check_norm(3, 576, true);
    check_norm(9, 8192, true);
    check_swiglu_kernel(7, 1536, false);
    check_swiglu_kernel(7, 14336, true);
}
