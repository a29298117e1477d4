/* emulate.h - the sm_80 kernels on the CPU (cuda_emulate.hpp): the launchers that a test calls, in C.
 *
 * They take what tk_cuda.h's launchers take, with maps of the reference device (which fill the plain numbers too), and
 * return when the kernels have ended. seed: in which order threads run; no result may depend on it.
 */
#ifndef TD_TESTS_EMULATE_LAUNCH_H
#define TD_TESTS_EMULATE_LAUNCH_H

#include "kernels/tk_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

td_err emulate_attn_prefill(const struct tk_attn_prefill *p, uint64_t seed);
td_err emulate_attn_decode(const struct tk_attn_decode *p, uint64_t seed);
td_err emulate_flat(const struct tk_flat *p, uint64_t seed);
/* Whole layers: Hopper's kernel, on a device of so many SMs. The work area is the caller's. */
size_t emulate_layers_work_bytes(void);
td_err emulate_layers(const struct tk_layers *l, uint32_t sms, uint64_t seed);

#ifdef __cplusplus
}
#endif
#endif
