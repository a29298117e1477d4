/* gpu-bench: checks and times the CUDA operations on the device of this machine.
 * gpu-bench [--sm_80] PART...   parts as listed below; exit status 1 when a check failed. --sm_80: with the kernels for
 * every device from compute capability 8.0 on, on a Hopper GPU too. */
#include <stdio.h>
#include <string.h>

#include "tests/bench/gpu/gpu_cases.h"

enum tk_path gpu_path;

static const struct part {
    const char *name;
    void (*run)(void);
} parts[] = {
    {"check-pointwise", gpu_check_pointwise},
    {"check-flat", gpu_check_flat},
    {"check-chain", gpu_check_chain},
    {"check-layers", gpu_check_layers},
    {"check-layers-small", gpu_check_layers_small},
    {"check-decode", gpu_check_decode},
    {"check-prefill", gpu_check_prefill},
    {"check-product", gpu_check_product},
    {"check-sample", gpu_check_sample},
    {"check-model", gpu_check_model},
    {"check-race", gpu_check_race},
    {"ceiling", gpu_bench_ceiling},
    {"flat", gpu_bench_flat},
    {"decode", gpu_bench_decode},
    {"attn", gpu_bench_prefill},
    {"step", gpu_bench_step},
    {"prefill", gpu_bench_prompt},
    {"variants-step", gpu_variants_step},
    {"variants-layers", gpu_variants_layers},
    {"times-layers", gpu_times_layers},
};

int main(int argc, char **argv)
{
    const bool plain = argc > 1 && strcmp(argv[1], "--sm_80") == 0;
    TK(tk_path_set(plain ? TK_PATH_SM80 : TK_PATH_AUTO, &gpu_path));
    for (int i = plain ? 2 : 1; i < argc; i++) {
        bool found = false;
        for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
            if (strcmp(argv[i], parts[p].name) == 0) {
                parts[p].run();
                found = true;
            }
        }
        if (!found) {
            (void)fprintf(stderr, "gpu-bench: no part '%s'\n", argv[i]);
            return 2;
        }
    }
    if (gpu_failures != 0) {
        printf("%d checks failed\n", gpu_failures);
    }
    return gpu_failures != 0;
}
