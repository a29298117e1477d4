/* backend.h - which engine a node runs: the choice between the backends of common/model/engine.h.
 *
 * Not: the engines' own checks. Owner: the program that calls it owns the engine. Thread: the one that
 * starts the node. Failure: TD_ERR_CONFIG with the reason logged where the choice cannot be: a build
 * without that backend, a role it cannot serve, an option of the other one; else what the engine says.
 */
#ifndef TD_NODE_BACKEND_H
#define TD_NODE_BACKEND_H

#include <stdbool.h>

#include "common/model/cpu_engine.h"
#include "common/model/cuda_engine.h"

enum td_backend { TD_BACKEND_CPU, TD_BACKEND_CUDA };

struct td_backend_params {
    enum td_backend backend;
    bool serves_alone; /* --role both: no KV leaves or enters the node */
    struct td_cpu_engine_params cpu;
    struct td_cuda_engine_params cuda;
};

td_err td_backend_create(const struct td_model *model, const struct td_backend_params *p,
                         struct td_engine **out_engine) TD_MUST_CHECK;

#endif
