/* rope.h - rotary position embedding: frequencies and the cosine and sine of every position, the
 * same bits on every machine.
 *
 * Why not libm: its pow, sin and cos choose code by instruction set at run time, so two nodes could
 * disagree in the last bit and with it in a cached key. These use additions, multiplications and
 * divisions only, in a fixed order. Thread: any; pure functions. Bounds: positions below 2^24.
 * Failure: none; accuracy is 1 ulp of float32.
 */
#ifndef TD_MODEL_ROPE_H
#define TD_MODEL_ROPE_H

#include <stdint.h>

#define TD_ROPE_MAX_POS (1u << 24)

/* theta ^ (-2 i / rope_dim) for i < rope_dim / 2. theta >= 1, rope_dim even. */
void td_rope_freqs(float theta, uint32_t rope_dim, float *out_freq);
/* Cosine and sine of pos * freq[i], i < half. pos < TD_ROPE_MAX_POS, 0 <= freq <= 1. */
void td_rope_angles(const float *freq, uint32_t half, uint32_t pos, float *out_cos, float *out_sin);

#endif
