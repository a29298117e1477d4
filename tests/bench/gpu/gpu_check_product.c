/* Large products as the engine tunes them, against a float64 reference: row counts of a chunk beside decode rows, where the
 * tuning's short list wins, and fewer rows than were planned for. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/gpu/gpu_cases.h"

#define TOL_PRODUCT 4e-3 /* the output is rounded to bf16 */

static void add_bf16(float *want_dev, const tk_bf16 *c_dev, size_t n)
{
    float *want = malloc(n * sizeof *want);
    tk_bf16 *c = malloc(n * sizeof *c);
    gpu_download(want, want_dev, n * sizeof *want);
    gpu_download(c, c_dev, n * sizeof *c);
    for (size_t i = 0; i < n; i++) {
        want[i] += gpu_bf16_to_float(c[i]);
    }
    CU(cudaMemcpy(want_dev, want, n * sizeof *want, cudaMemcpyHostToDevice));
    free(want);
    free(c);
}

/* Planned for `planned` rows and run with m of them. */
static void check_product(struct tk_lt *lt, struct tk_lt_product p, uint32_t planned)
{
    char name[96];
    const bool add = p.c != NULL;
    const size_t out = (size_t)planned * p.n;
    tk_bf16 *w = gpu_random_bf16((size_t)p.n * p.k, 0.02f, 1),
            *x = gpu_random_bf16((size_t)planned * p.k, 1.f, 2), *c = gpu_random_bf16(out, 1.f, 3),
            *y = gpu_alloc(out * sizeof *y);
    float *want = gpu_alloc(out * sizeof *want);
    p.x = x, p.w = w, p.y = y, p.c = add ? c : NULL, p.ldx = p.k, p.ldy = p.n;
    struct tk_lt_product most = p;
    most.m = planned;
    TK(tk_lt_plan(lt, NULL, &most, true));
    gpu_poison(y, out * sizeof *y);
    TK(tk_lt_run(lt, NULL, &p));
    gpu_ref_product(x, p.k, w, false, p.m, p.n, p.k, want);
    if (add) {
        add_bf16(want, c, (size_t)p.m * p.n);
    }
    (void)snprintf(name, sizeof name, "product %u (planned %u) x %u x %u%s", p.m, planned, p.n, p.k,
                   add ? " added" : "");
    (void)gpu_close(name, y, p.n, want, p.m, p.n, TOL_PRODUCT);
    gpu_free(w), gpu_free(x), gpu_free(c), gpu_free(y), gpu_free(want);
}

void gpu_check_product(void)
{
    static const tk_bf16 any[1]; /* an addend is wanted */
    static const struct {
        uint32_t n, k;
        bool add;
    } shapes[] = {{6144, 4096, false},
                  {4096, 4096, true},
                  {28672, 4096, false},
                  {4096, 14336, true},
                  {1152, 640, true}};
    static const uint32_t rows[][2] = {{512, 512}, {544, 544}, {517, 544},
                                       {576, 576}, {33, 64},   {3, 64}};
    struct tk_lt *lt = NULL;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
            TK(tk_lt_create((size_t)64 << 20,
                            &lt)); /* fresh: no plan of another case serves this one */
            check_product(lt,
                          (struct tk_lt_product){.m = rows[r][0],
                                                 .n = shapes[i].n,
                                                 .k = shapes[i].k,
                                                 .c = shapes[i].add ? any : NULL},
                          rows[r][1]);
            lt = tk_lt_destroy(lt);
        }
    }
}
