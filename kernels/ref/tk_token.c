/* Steps that are the same code in every table: bias, rope and writing K and V of one token. */
#include <string.h>

#include "kernels/tk_internal.h"

void tk_add_bias(float *x, const float *bias, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        x[i] += bias[i];
    }
}

static void turn(float *a, float *b, const float *cs)
{
    float x0 = *a, x1 = *b;
    *a = x0 * cs[0] - x1 * cs[1];
    *b = x0 * cs[1] + x1 * cs[0];
}

void tk_rope(float *x, const float *cs, uint32_t n_heads, uint32_t head_dim, uint32_t rope_dim,
             enum tk_rope_style style, float scale)
{
    uint32_t half = rope_dim / 2;
    for (uint32_t h = 0; h < n_heads; h++, x += head_dim) {
        for (uint32_t i = 0; i < half; i++) {
            if (style == TK_ROPE_PAIRS) {
                turn(&x[2 * i], &x[2 * i + 1], &cs[2 * i]);
            } else {
                turn(&x[i], &x[i + half], &cs[2 * i]);
            }
        }
        for (uint32_t i = 0; i < head_dim; i++) {
            x[i] *= scale;
        }
    }
}

static uint16_t to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) { /* NaN stays one */
        return (uint16_t)(bits >> 16 | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

void tk_kv_write_bf16(const float *k, const float *v, uint32_t head_dim, uint32_t slot,
                      uint16_t *kblk, uint16_t *vblk)
{
    for (uint32_t d = 0; d < head_dim; d++) {
        kblk[(size_t)d * TK_BLOCK_TOK + slot] = to_bf16(k[d]);
        vblk[(size_t)slot * head_dim + d] = to_bf16(v[d]);
    }
}

void tk_kv_write_f32(const float *k, const float *v, uint32_t head_dim, uint32_t slot, float *kblk,
                     float *vblk)
{
    for (uint32_t d = 0; d < head_dim; d++) {
        kblk[(size_t)d * TK_BLOCK_TOK + slot] = k[d];
        vblk[(size_t)slot * head_dim + d] = v[d];
    }
}
