/* dequant.h - what a stored weight is worth: rows of every supported type as float32, and the two
 * half formats.
 *
 * What: the definition of each block format, written plainly; the oracle that packed kernels are
 * tested against. Values equal those of ggml's reference functions bit for bit. Not: fast. Engines
 * repack weights and never call this per token. Thread: any; pure functions. Bounds: n is a
 * multiple of the type's block. Failure: none.
 */
#ifndef TD_MODEL_DEQUANT_H
#define TD_MODEL_DEQUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/model/gguf.h"

/* F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K. */
bool td_dequant_supported(enum td_dtype dtype);
/* Requires a supported type and n a multiple of its block; src need not be aligned. */
void td_dequant_row(enum td_dtype dtype, const void *src, size_t n, float *out);

/* The eight 6-bit scales and minima of a Q4_K or Q5_K block; packed is its 12 bytes. */
void td_dequant_k_scales(const uint8_t packed[12], uint8_t out_scale[8], uint8_t out_min[8]);

/* IEEE half and bfloat16. To half precision: round to nearest even, overflow to infinity, NaN kept
 * quiet. */
float td_f16_to_f32(uint16_t h);
uint16_t td_f32_to_f16(float f);
float td_bf16_to_f32(uint16_t h);
uint16_t td_f32_to_bf16(float f);

#endif
