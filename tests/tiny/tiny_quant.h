/* tiny_quant.h - float32 rows to every supported block format, simply: the inverse of
 * common/model/dequant.h for tests.
 *
 * Not: a good quantiser (no search for the least error). Deterministic on every machine: exactly
 * rounded float operations in a fixed order. Thread: any. Bounds: n is a multiple of the type's
 * block. Failure: none.
 */
#ifndef TD_TESTS_TINY_QUANT_H
#define TD_TESTS_TINY_QUANT_H

#include "common/model/gguf.h"

/* Requires td_dequant_supported(dtype); out has room for n / block * block_bytes. */
void td_tiny_quantize_row(enum td_dtype dtype, const float *x, size_t n, uint8_t *out);

#endif
