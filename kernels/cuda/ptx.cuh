// ptx.cuh - one-instruction wrappers: barriers, TMA, wgmma, programmatic launch (sm_90a); mma, ldmatrix, cp.async (sm_80).
// Shapes and meaning are PTX ISA's; shared addresses are 32-bit. No logic here. What sm_80 has no instruction for and needs
// none (programmatic launch, the proxy fence) is empty there.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#define TK_DEV        static __device__ __forceinline__
#define TK_DEV_MEMBER __device__ __forceinline__
// Dynamic shared memory under a name; a macro, so that tests/emulate can put its own in.
#define TK_DYNAMIC_SHARED(name) extern __shared__ unsigned char name[]

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define TK_HOPPER_ASM(text)
#else
#define TK_HOPPER_ASM(text) asm volatile(text ::: "memory")
#endif

#include "kernels/cuda/spin.cuh"

TK_DEV uint32_t smem_u32(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

// ---- mbarrier ----
TK_DEV void bar_init(uint32_t bar, uint32_t n)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(n) : "memory");
}
TK_DEV void bar_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
TK_DEV void bar_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}
TK_DEV void bar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
TK_DEV bool bar_test(uint32_t bar, uint32_t phase)
{
    uint32_t ok;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], "
                 "%2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(ok)
                 : "r"(bar), "r"(phase)
                 : "memory");
    return ok != 0;
}
#ifdef TK_SPIN_MS
TK_DEV void bar_wait(uint32_t bar, uint32_t phase)
{
    spin wait(STUCK_BARRIER, bar << 1 | phase);
    while (!bar_test(bar, phase)) {
        wait.again();
    }
}
#else
TK_DEV void bar_wait(uint32_t bar, uint32_t phase)
{
    asm volatile("{\n.reg .pred p;\nWAIT_%=:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra DONE_%=;\nbra WAIT_%=;\nDONE_%=:\n}" ::"r"(bar),
                 "r"(phase)
                 : "memory");
}
#endif

// ---- TMA ----
TK_DEV uint64_t evict_first()
{
    uint64_t p;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
    return p;
}
TK_DEV uint64_t evict_last()
{
    uint64_t p;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(p));
    return p;
}
TK_DEV void tma_prefetch_map(const CUtensorMap *m)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(m) : "memory");
}
TK_DEV void tma_5d(uint32_t dst, const CUtensorMap *m, uint32_t bar, int c0, int c1, int c2, int c3,
                   int c4, uint64_t pol)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::"
                 "cache_hint "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(dst),
                 "l"(m), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "l"(pol)
                 : "memory");
}
TK_DEV void tma_5d_keep(uint32_t dst, const CUtensorMap *m, uint32_t bar, int c0, int c1, int c2,
                        int c3, int c4)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(dst),
                 "l"(m), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
                 : "memory");
}
TK_DEV void tma_4d(uint32_t dst, const CUtensorMap *m, uint32_t bar, int c0, int c1, int c2, int c3,
                   uint64_t pol)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::"
                 "cache_hint "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(dst),
                 "l"(m), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(pol)
                 : "memory");
}
TK_DEV void tma_4d_prefetch(const CUtensorMap *m, int c0, int c1, int c2, int c3, uint64_t pol)
{
    asm volatile(
        "cp.async.bulk.prefetch.tensor.4d.L2.global.L2::cache_hint [%0, {%1, %2, %3, %4}], "
        "%5;" ::"l"(m),
        "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(pol)
        : "memory");
}
TK_DEV void tma_3d(uint32_t dst, const CUtensorMap *m, uint32_t bar, int c0, int c1, int c2,
                   uint64_t pol)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::"
                 "cache_hint "
                 "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(dst),
                 "l"(m), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "l"(pol)
                 : "memory");
}
TK_DEV void tma_2d(uint32_t dst, const CUtensorMap *m, uint32_t bar, int c0, int c1, uint64_t pol)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::"
                 "cache_hint "
                 "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(dst),
                 "l"(m), "r"(bar), "r"(c0), "r"(c1), "l"(pol)
                 : "memory");
}
TK_DEV void tma_2d_keep(uint32_t dst, const CUtensorMap *m, uint32_t bar, int c0, int c1)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(dst),
                 "l"(m), "r"(bar), "r"(c0), "r"(c1)
                 : "memory");
}
TK_DEV void proxy_fence()
{
    TK_HOPPER_ASM("fence.proxy.async.shared::cta;");
}

// As proxy_fence, for device memory: ordinary accesses before and TMA's after, or the reverse.
TK_DEV void proxy_fence_global()
{
    TK_HOPPER_ASM("fence.proxy.async.global;");
}

// ---- programmatic dependent launch ----
TK_DEV void pdl_wait()
{
    TK_HOPPER_ASM("griddepcontrol.wait;");
}
TK_DEV void pdl_launch()
{
    TK_HOPPER_ASM("griddepcontrol.launch_dependents;");
}

// ---- cluster ----
TK_DEV uint32_t cluster_rank()
{
    uint32_t r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
TK_DEV void cluster_arrive()
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
TK_DEV void cluster_arrive_relaxed() // orders nothing: only counts
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
TK_DEV void cluster_wait()
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
TK_DEV uint32_t map_rank(uint32_t addr, uint32_t rank)
{
    uint32_t r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(addr), "r"(rank));
    return r;
}
TK_DEV float ld_cluster(uint32_t addr)
{
    float v;
    asm volatile("ld.shared::cluster.f32 %0, [%1];"
                 : "=f"(v)
                 : "r"(addr)); // no clobber: several in flight
    return v;
}

// ---- counters in global memory ----
TK_DEV void red_release(uint32_t *p)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory");
}
TK_DEV uint32_t ld_acquire(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

// ---- a number with a tag beside it, written and read as one ----
TK_DEV void put_tagged(uint2 *p, float v, uint32_t tag)
{
    asm volatile("st.volatile.global.v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(__float_as_uint(v)),
                 "r"(tag)
                 : "memory");
}
TK_DEV uint2 get_tagged(const uint2 *p) // no clobber: several in flight
{
    uint2 v;
    asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}

TK_DEV uint4 get_tagged2(const uint2 *p) // two neighbours, 16-byte aligned; each is one by itself
{
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

// ---- named barriers ----
TK_DEV void named_sync(int id, int n)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory");
}
TK_DEV void named_arrive(int id, int n)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n) : "memory");
}

// ---- shared memory by address ----
TK_DEV void st_shared(uint32_t addr, uint32_t v)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(addr), "r"(v) : "memory");
}
TK_DEV void st_shared_zero16(uint32_t addr)
{
    asm volatile("st.shared.v4.b32 [%0], {%1,%1,%1,%1};" ::"r"(addr), "r"(0) : "memory");
}

// ---- cp.async: 16 bytes, of which the first `bytes` (16 or 0) come from src and the rest are zeros ----
TK_DEV void cp_async16(uint32_t dst, const void *src, uint32_t bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes)
                 : "memory");
}
TK_DEV void cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> TK_DEV void cp_async_wait() // all groups of this thread but the last N
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// ---- warp matrix ops ----
TK_DEV void ldsm_x4(uint32_t r[4], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}
TK_DEV void ldsm_x4_t(uint32_t r[4], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}
TK_DEV void stsm_x4(uint32_t addr, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(addr),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}
TK_DEV uint32_t transpose8x8(uint32_t a)
{
    uint32_t d;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
    return d;
}
TK_DEV void mma16816(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
TK_DEV uint32_t pack_bf16(float lo, float hi)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}
TK_DEV float exp2_fast(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
TK_DEV float bf16_lo(uint32_t v)
{
    return __uint_as_float(v << 16);
}
TK_DEV float bf16_hi(uint32_t v)
{
    return __uint_as_float(v & 0xffff0000u);
}

// ---- wgmma ----
TK_DEV void wg_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
TK_DEV void wg_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> TK_DEV void wg_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// 128-byte swizzle; sbo and lbo in bytes.
TK_DEV uint64_t wg_desc(uint32_t addr, uint32_t lbo, uint32_t sbo)
{
    return (uint64_t)((addr & 0x3ffff) >> 4) | ((uint64_t)(lbo >> 4) << 16) |
           ((uint64_t)(sbo >> 4) << 32) | ((uint64_t)1 << 62);
}
