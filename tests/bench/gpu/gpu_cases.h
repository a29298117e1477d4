/* gpu_cases.h - the entry points of the GPU check and bench program's parts. */
#ifndef GPU_BENCH_CASES_H
#define GPU_BENCH_CASES_H

#include "tests/bench/gpu/gpu.h"

extern enum tk_path gpu_path; /* which kernels run */

void gpu_check_decode(void);
void gpu_check_flat(void);
void gpu_check_chain(void);
void gpu_check_chain_small(void);
void gpu_check_layers(void);
void gpu_check_layers_small(void);
void gpu_check_layers_race(void);
void gpu_check_prefill(void);
void gpu_check_pointwise(void);
void gpu_check_product(void);
void gpu_check_model(void);
void gpu_check_sample(void);
void gpu_check_race(void);

void gpu_bench_ceiling(void);
void gpu_bench_flat(void);
void gpu_bench_decode(void);
void gpu_bench_prefill(void);
void gpu_bench_step(void);
void gpu_bench_prompt(void);

/* Candidates, timed beside what runs now (gpu_variants.c). */
void gpu_variants_step(void);
void gpu_variants_layers(void); /* gpu_layers.c */
void gpu_times_layers(void);
/* Hands debugging builds their buffers. */
void gpu_layers_debug(struct tk_layers *l);

#endif
