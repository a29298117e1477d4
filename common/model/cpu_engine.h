/* cpu_engine.h - the CPU backend of engine.h, alone or as one rank of a tensor-parallel group.
 *
 * numerics: "int8" (default: block-exact int8 activations, bit-equal on every instruction set) or "f32" (the float32
 * reference, the oracle; slow). isa: 0 chooses by cpuid and xgetbv; a named one is for tests.
 */
#ifndef TD_MODEL_CPU_ENGINE_H
#define TD_MODEL_CPU_ENGINE_H

#include "common/base/err.h"
#include "common/model/engine.h"

struct td_ranks; /* common/model/ranks.h */
struct td_model; /* weights and hyper-parameters read from a file: common/model/model.h */

enum td_cpu_isa { TD_ISA_AUTO, TD_ISA_PORTABLE, TD_ISA_AVX2, TD_ISA_AVX512, TD_ISA_AMX };

struct td_cpu_engine_params {
    const char *numerics; /* "int8" or "f32" */
    enum td_cpu_isa isa;
    uint32_t n_threads; /* compute threads, 1.. */
    uint32_t n_blocks;  /* of the KV pool */
    uint32_t max_rows, max_tokens, max_slots;
    uint32_t max_model_len; /* 0: the model's */
    struct td_ranks *
        ranks; /* borrowed; NULL: this process computes alone. Rank 0 is the engine that the others help;
                               theirs take no steps (submit: TD_ERR_UNSUPPORTED) and follow until rank 0 says goodbye:
                               then poll returns TD_ERR_CLOSED and td_cpu_engine_farewell() is TD_OK */
};

td_err td_cpu_engine_create(const struct td_model *model, const struct td_cpu_engine_params *p,
                            struct td_engine **out_engine) TD_MUST_CHECK;

/* Why an engine of a group has ended: TD_OK by rank 0's goodbye (destroy of rank 0's engine), else what broke.
 * TD_ERR_AGAIN: it has not. Any thread. */
td_err td_cpu_engine_farewell(const struct td_engine *e);

/* Whether n ranks can compute this model together, before they find each other. TD_ERR_CONFIG, TD_ERR_FILE_UNSUPPORTED: no, and
 * the log says why. Any thread. */
td_err td_cpu_engine_check_ranks(const struct td_model *model, uint32_t n) TD_MUST_CHECK;

/* What an engine of these numerics will say in td_engine_info, before there is one; 0: no such numerics. Any thread. */
uint64_t td_cpu_engine_numerics_id(const char *numerics);

/* Test and tool hook: logits of every token of one prompt, [n][n_vocab] row major, computed by this engine with the
 * given chunk size, blocks taken from the start of the pool. No step may be in flight. */
td_err td_cpu_engine_logits(struct td_engine *e, const int32_t *tokens, uint32_t n, uint32_t chunk,
                            float *out_logits) TD_MUST_CHECK;

#endif
