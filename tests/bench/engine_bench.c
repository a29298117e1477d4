/* engine_bench - tokens per second of the CPU engine on a model file.
 *
 * engine_bench MODEL.gguf [threads] [reps] [int8|f32] [auto|portable|avx2|avx512]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/bench_engine.h"
#include "common/model/cpu_engine.h"
#include "common/model/model.h"

static enum td_cpu_isa isa_of(const char *name)
{
    return strcmp(name, "portable") == 0 ? TD_ISA_PORTABLE
           : strcmp(name, "avx2") == 0   ? TD_ISA_AVX2
           : strcmp(name, "avx512") == 0 ? TD_ISA_AVX512
                                         : TD_ISA_AUTO;
}

int main(int argc, char **argv)
{
    struct td_model *model = NULL;
    struct td_engine *engine = NULL;
    struct td_bench_result result;
    if (argc < 2) {
        (void)fprintf(stderr, "usage: engine_bench MODEL.gguf [threads] [reps] [int8|f32] [isa]\n");
        return 2;
    }
    struct td_cpu_engine_params p = {.numerics = argc > 4 ? argv[4] : "int8",
                                     .isa = isa_of(argc > 5 ? argv[5] : "auto"),
                                     .n_threads = argc > 2 ? (uint32_t)atoi(argv[2]) : 2,
                                     .n_blocks = TD_BENCH_BLOCKS,
                                     .max_rows = TD_BENCH_STREAMS,
                                     .max_tokens = TD_BENCH_PREFILL,
                                     .max_slots = TD_BENCH_STREAMS,
                                     .max_model_len = 2048};
    td_err err = td_model_open(argv[1], &model);
    if (err == TD_OK) {
        err = td_cpu_engine_create(model, &p, &engine);
    }
    if (err == TD_OK) {
        err = td_bench_engine(engine, argc > 3 ? (uint32_t)atoi(argv[3]) : 5, &result);
    }
    if (err == TD_OK) {
        td_bench_engine_print(&result, stdout);
    } else {
        (void)fprintf(stderr, "engine_bench: %s\n", td_err_text(err));
    }
    if (engine != NULL) {
        engine->ops->destroy(engine);
    }
    (void)td_model_close(model);
    return err == TD_OK ? 0 : 1;
}
