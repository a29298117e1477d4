/* kernels_util.h - what the kernel tests share: seeded data, random weights in every file format,
 * buffers that start poisoned. Test code: failures abort. */
#ifndef TD_TESTS_KERNELS_UTIL_H
#define TD_TESTS_KERNELS_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "kernels/tk.h"

static const enum tk_wtype ku_types[] = {TK_W_F32,  TK_W_F16,  TK_W_Q4_0, TK_W_Q4_1,
                                         TK_W_Q5_0, TK_W_Q5_1, TK_W_Q8_0, TK_W_Q4_K,
                                         TK_W_Q5_K, TK_W_Q6_K, TK_W_BF16};
#define KU_N_TYPES (sizeof ku_types / sizeof ku_types[0])

static const enum tk_isa ku_isas[] = {TK_ISA_AVX2, TK_ISA_AVX512};
#define KU_N_ISAS (sizeof ku_isas / sizeof ku_isas[0])

static inline void *ku_alloc(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);
    assert_non_null(p);
    memset(p, 0xab, (bytes + 127) / 64 * 64);
    return p;
}

static inline float ku_float(struct td_rng *r, float scale)
{
    return (float)(td_rng_unit(r) * 2 - 1) * scale;
}

/* Roughly normal, with an outlier now and then, as activations are. */
static inline float ku_activation(struct td_rng *r)
{
    float x = ku_float(r, 1) + ku_float(r, 1) + ku_float(r, 1);
    return td_rng_below(r, 97) == 0 ? x * 30 : x;
}

static inline uint16_t ku_half(struct td_rng *r)
{
    /* sign, exponent 2^-8 .. 2^-1, any mantissa */
    uint64_t bits = td_rng_next(r);
    return (uint16_t)((bits & 0x83ffu) | (7 + (bits >> 16) % 8) << 10);
}

static inline size_t ku_row_bytes(enum tk_wtype type, uint32_t k)
{
    switch (type) {
    case TK_W_F32:
        return 4 * (size_t)k;
    case TK_W_F16:
    case TK_W_BF16:
        return 2 * (size_t)k;
    case TK_W_Q4_0:
        return 18 * (size_t)k / 32;
    case TK_W_Q4_1:
        return 20 * (size_t)k / 32;
    case TK_W_Q5_0:
        return 22 * (size_t)k / 32;
    case TK_W_Q5_1:
        return 24 * (size_t)k / 32;
    case TK_W_Q8_0:
        return 34 * (size_t)k / 32;
    case TK_W_Q4_K:
        return 144 * (size_t)k / 256;
    case TK_W_Q5_K:
        return 176 * (size_t)k / 256;
    case TK_W_Q6_K:
        return 210 * (size_t)k / 256;
    }
    return 0;
}

/* Positions of the f16 values in a block of `bytes`, or none. */
static inline void ku_put_halves(enum tk_wtype type, struct td_rng *r, uint8_t *row, size_t bytes)
{
    size_t step = 0, at[2] = {0, 0}, n = 0;
    switch (type) {
    case TK_W_F16:
        step = 2, n = 1;
        break;
    case TK_W_Q4_0:
        step = 18, n = 1;
        break;
    case TK_W_Q4_1:
        step = 20, n = 2, at[1] = 2;
        break;
    case TK_W_Q5_0:
        step = 22, n = 1;
        break;
    case TK_W_Q5_1:
        step = 24, n = 2, at[1] = 2;
        break;
    case TK_W_Q8_0:
        step = 34, n = 1;
        break;
    case TK_W_Q4_K:
        step = 144, n = 2, at[1] = 2;
        break;
    case TK_W_Q5_K:
        step = 176, n = 2, at[1] = 2;
        break;
    case TK_W_Q6_K:
        step = 210, n = 1, at[0] = 208;
        break;
    case TK_W_F32:
    case TK_W_BF16:
        break;
    }
    for (size_t b = 0; step != 0 && b + step <= bytes; b += step) {
        for (size_t i = 0; i < n; i++) {
            uint16_t h = ku_half(r);
            memcpy(row + b + at[i], &h, sizeof h);
        }
    }
}

static inline struct tk_weight ku_weight(enum tk_wtype type, uint32_t n, uint32_t k,
                                         struct td_rng *r)
{
    size_t bytes = ku_row_bytes(type, k);
    uint8_t *data = ku_alloc(bytes * n);
    for (size_t i = 0; i < bytes * n; i++) {
        data[i] = (uint8_t)td_rng_next(r);
    }
    for (uint32_t row = 0; row < n; row++) {
        uint8_t *p = data + row * bytes;
        ku_put_halves(type, r, p, bytes);
        for (uint32_t i = 0; i < k && (type == TK_W_F32 || type == TK_W_BF16); i++) {
            float f = ku_float(r, 0.2f);
            if (type == TK_W_F32) {
                memcpy(p + 4 * (size_t)i, &f, 4);
            } else {
                memcpy(p + 2 * (size_t)i, (uint8_t *)&f + 2, 2);
            }
        }
    }
    return (struct tk_weight){type, n, k, data, bytes};
}

static inline struct tk_packed ku_pack(const struct tk_weight *w, bool f32)
{
    struct tk_packed p;
    assert_int_equal(tk_pack_plan(w, f32, &p), TD_OK);
    p.data = ku_alloc(tk_packed_bytes(&p) + 8192);
    tk_pack(w, &p, 0, p.n_tiles);
    return p;
}

/* Room for `rows` rows of k, in panels. */
static inline struct tk_act ku_act(uint32_t rows, uint32_t k)
{
    size_t padded = (rows + TK_PANEL - 1) / TK_PANEL * TK_PANEL;
    return (struct tk_act){k, ku_alloc(padded * k),
                           ku_alloc(padded * k / 32 * sizeof(struct tk_qblk)), NULL};
}

static inline void ku_act_free(struct tk_act *a)
{
    free(a->q);
    free(a->b);
}

#endif
