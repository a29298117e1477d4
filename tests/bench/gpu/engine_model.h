/* engine_model.h - models for the engine's checks and timings: a tiny one from tests/tiny, and one of
 * Llama-3-8B's shape whose tensors all lie over one buffer of random bf16, so that nothing of 16 GB is
 * written anywhere.
 * Owner: whoever made it. Thread: one. Failure: exits the process.
 */
#ifndef GPU_BENCH_ENGINE_MODEL_H
#define GPU_BENCH_ENGINE_MODEL_H

#include "common/base/buf.h"
#include "common/model/model.h"

struct em {
    struct td_model *m;
    struct td_buf file; /* of a tiny one */
    void *random;       /* of a large one */
};

struct em em_tiny(uint32_t n_layers, uint32_t n_embd, uint32_t n_heads, uint32_t n_kv_heads);
struct em em_llama3_8b(void);
/* A file or folder that td_model_open reads. */
struct em em_open(const char *path);
void em_close(struct em *e);

#endif
