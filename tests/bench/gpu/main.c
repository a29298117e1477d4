/* gpu-bench: checks and times the CUDA operations on the device of this machine.
 * gpu-bench PART...   parts as listed below; exit status 1 when a check failed. */
#include <stdio.h>
#include <string.h>

#include "tests/bench/gpu/gpu_cases.h"

static const struct part {
    const char *name;
    void (*run)(void);
} parts[] = {
    {"check-pointwise", gpu_check_pointwise},
    {"check-flat", gpu_check_flat},
    {"check-decode", gpu_check_decode},
    {"check-prefill", gpu_check_prefill},
    {"check-sample", gpu_check_sample},
    {"check-model", gpu_check_model},
    {"check-race", gpu_check_race},
    {"ceiling", gpu_bench_ceiling},
    {"flat", gpu_bench_flat},
    {"decode", gpu_bench_decode},
    {"attn", gpu_bench_prefill},
    {"step", gpu_bench_step},
    {"prefill", gpu_bench_prompt},
};

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
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
