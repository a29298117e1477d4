#define TD_LOG_ROOM "node"
#include "common/node/backend.h"

#include <string.h>

#include "common/base/log.h"

static td_err check_cuda(const struct td_backend_params *p)
{
    if (!p->serves_alone) {
        TD_LOG(ERROR, "the cuda backend serves --role both only",
               "reason=\"KV does not travel from or to device memory yet\"");
        return TD_ERR_CONFIG;
    }
    if (strcmp(p->cpu.numerics, "int8") != 0 || p->cpu.isa != TD_ISA_AUTO) {
        TD_LOG(ERROR, "--numerics and --isa choose kernels of the cpu backend",
               "remedy=\"leave them out, or --deterministic\"");
        return TD_ERR_CONFIG;
    }
    return TD_OK;
}

static td_err create_cuda(const struct td_model *model, const struct td_backend_params *p,
                          struct td_engine **out_engine)
{
    TD_TRY(check_cuda(p));
#if TD_WITH_CUDA
    return td_cuda_engine_create(model, &p->cuda, out_engine);
#else
    TD_LOG(ERROR, "this build has no cuda backend",
           "remedy=\"meson setup -Dcuda=enabled, on a machine with nvcc\"");
    return TD_ERR_CONFIG;
#endif
}

td_err td_backend_create(const struct td_model *model, const struct td_backend_params *p,
                         struct td_engine **out_engine)
{
    if (p->backend == TD_BACKEND_CUDA) {
        return create_cuda(model, p, out_engine);
    }
    if (p->cuda.deterministic || p->cuda.device != 0 || p->cuda.kernels != TD_CUDA_KERNELS_AUTO) {
        TD_LOG(ERROR, "--deterministic, --device and --cuda-kernels belong to the cuda backend",
               "reason=\"the cpu backend is deterministic\"");
        return TD_ERR_CONFIG;
    }
    return td_cpu_engine_create(model, &p->cpu, out_engine);
}
