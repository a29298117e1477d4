/* cuda_engine.h - the CUDA backend of engine.h: one model on one accelerator, in bf16.
 *
 * What: weights and the KV pool in device memory; decode rows as one captured graph per batch size,
 * prompt chunks (and, unless deterministic, decode rows beside them) through large products;
 * sampling on the device. pool_base is NULL: nobody but the device reads the pool yet.
 * Weights: BF16, F16 and F32 tensors, made bf16 on the way; quantised ones are refused.
 * GPUs of compute capability 8.0 and later.
 * Shapes: head_dim 64 or 128, all of it turned by rope; at most TK_MAX_GROUP query heads per KV head;
 * n_embd a multiple of 8 (padded to 128), at most 8192; n_ffn a multiple of 64; a window of any size.
 * Numerics: "cuda-bf16-v1": a row of a pure decode step depends on nothing but itself; beside a chunk
 * its products run in another order. "cuda-bf16-v1-det": never; every product has one order. Heads
 * of 64 take the sm_80 kernel for prompts everywhere: "cuda-bf16-v2". The sm_80 kernels add in another
 * order, and the library's products differ from device to device: "cuda-sm80-bf16-v1-cc86" names both.
 * Threads: the loop as engine.h says; one engine thread owns the stream, one waits for finished steps.
 */
#ifndef TD_MODEL_CUDA_ENGINE_H
#define TD_MODEL_CUDA_ENGINE_H

#include <stdbool.h>

#include "common/base/err.h"
#include "common/model/engine.h"

struct td_model;

/* Which kernels: those with Hopper's own instructions (sm_90a) or those for every device from compute capability 8.0 on
 * (sm_80). AUTO: the device decides. A process has one choice: its engines must agree, and
 * on one device one of them may run at a time (tk_chain, tk_layers_run: their blocks wait for each other). */
enum td_cuda_kernels { TD_CUDA_KERNELS_AUTO, TD_CUDA_KERNELS_SM80, TD_CUDA_KERNELS_SM90A };

struct td_cuda_engine_params {
    int device;
    enum td_cuda_kernels kernels;
    bool deterministic;
    double memory_utilization; /* share of the device's memory that this process may fill */
    uint32_t n_blocks;         /* of the KV pool; 0: what memory_utilization leaves */
    uint32_t max_rows, max_tokens, max_slots;
    uint32_t max_model_len; /* 0: the model's */
};

td_err td_cuda_engine_create(const struct td_model *model, const struct td_cuda_engine_params *p,
                             struct td_engine **out_engine) TD_MUST_CHECK;

/* Test and tool hook: as td_cpu_engine_logits. */
td_err td_cuda_engine_logits(struct td_engine *e, const int32_t *tokens, uint32_t n, uint32_t chunk,
                             float *out_logits) TD_MUST_CHECK;

#endif
