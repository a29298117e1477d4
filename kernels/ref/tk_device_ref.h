/* tk_device_ref.h - the reference device: the operations of tk_cuda.h, tk_step.h and tk_device.h on the host.
 *
 * What: plain loops over bf16 with float32 sums, at once, in the caller's thread; the oracle of the
 * CUDA engine's logic, for tests on machines without a GPU. Fresh memory is poisoned (every bf16 and
 * float32 of it is NaN). Not: fast, and not bit-equal to the GPU's kernels (their sums have another
 * order); a row does not depend on its neighbours here either.
 * Thread: one at a time. Bounds: TK_REF_MEMORY bytes are told as the device's; nothing enforces it.
 */
#ifndef TK_DEVICE_REF_H
#define TK_DEVICE_REF_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "kernels/tk_cuda.h"

#define TK_REF_MEMORY ((uint64_t)64 << 20)

typedef void (*tk_ref_op)(const void *args);
/* Runs the operation, or keeps it with a copy of its arguments where the stream is captured. */
td_err tk_ref_enqueue(tk_stream s, tk_ref_op run, const void *args, size_t bytes) TD_MUST_CHECK;
/* Test hook: the n-th operation from now fails, once; 0 switches it off. */
void tk_ref_fail_nth(uint32_t n);
/* Test hook: the device's compute capability, 9.0 from the start. The operations stay the same. */
void tk_ref_set_capability(uint32_t major, uint32_t minor);
/* Whether tk_path_set chose Hopper's kernels; true before its first call. */
bool tk_ref_uses_hopper(void);

#endif
