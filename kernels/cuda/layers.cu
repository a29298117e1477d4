// layers.cu - launches the kernel of layers.cuh.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/layers.cuh"

namespace
{

template <int G> td_err launch_layers(tk_stream s, const layers &c, bool pdl)
{
    TD_TRY(tk_prepare(layers_kernel<G>, SMEM));
    tk_launch l(s, tk_device()->sms, THREADS, SMEM, 1, pdl);
    TK_TRY_CUDA(cudaLaunchKernelEx(&l.cfg, layers_kernel<G>, c));
    return TD_OK;
}

} // namespace

extern "C" size_t tk_layers_work_bytes(void)
{
    return WORK_BYTES;
}

extern "C" bool tk_layers_fits(const struct tk_layer *layers, uint32_t n)
{
    const tk_dev *dev = tk_device();
    return tk_uses_hopper() && dev != nullptr && layers_fit(layers, n, dev->sms);
}

extern "C" td_err tk_layers_run(tk_stream s, const struct tk_layers *l)
{
    if (!tk_layers_fits(l->layers, l->n)) {
        return TD_ERR_UNSUPPORTED;
    }
    layers c = {};
    TD_TRY(fill(c, l));
    return c.at.group <= 4 ? launch_layers<4>(s, c, l->pdl) : launch_layers<8>(s, c, l->pdl);
}
