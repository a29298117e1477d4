/* A CUDA engine for the tests of this folder, of engine_util.h's size. Its log is caught: a test prints lines of TAP. */
#ifndef TD_TESTS_CUDA_UTIL_H
#define TD_TESTS_CUDA_UTIL_H

#include "common/model/cuda_engine.h"
#include "tests/unit/model/engine_util.h"

static inline struct td_cuda_engine_params eu_cuda_params(enum td_cuda_kernels kernels,
                                                          bool deterministic)
{
    return (struct td_cuda_engine_params){.kernels = kernels,
                                          .deterministic = deterministic,
                                          .memory_utilization = 0.9,
                                          .n_blocks = EU_BLOCKS,
                                          .max_rows = EU_ROWS,
                                          .max_tokens = EU_TOKENS,
                                          .max_slots = EU_SLOTS,
                                          .max_model_len = EU_MAX_LEN};
}

static inline struct td_engine *eu_cuda_engine(const struct eu_model *m,
                                               enum td_cuda_kernels kernels, bool deterministic)
{
    const struct td_cuda_engine_params p = eu_cuda_params(kernels, deterministic);
    struct td_engine *e = NULL;
    char text[1024];
    FILE *log = catch_log();
    td_err err = td_cuda_engine_create(m->m, &p, &e);
    caught_log(log, text, sizeof text);
    assert_int_equal(err, TD_OK);
    return e;
}

#endif
