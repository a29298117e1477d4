/* cuda_emulate.hpp - runs the sm_80 kernels' own source on a CPU, for tests on machines without a GPU. C++.
 *
 * What: every thread of a block is a fiber; blocks run one after the other, or all at once where they wait for each other. The wrappers of kernels/cuda/ptx.cuh that those
 * kernels use are written out for a warp whose 32 lanes meet (mma, ldmatrix, movmatrix, shuffles); a copy of cp.async arrives
 * at once or when it is waited for; shared memory starts as NaN and is bounded. A seed chooses that, and who runs next at
 * every meeting, so that a missing barrier can show. Not: a model of time, of memory order inside a warp, or of caches;
 * blocks that wait for each other never end. A program error (a deadlock, an address outside) aborts with a message.
 * Owner: the including file, one kernel header per translation unit, this file first. Thread: one.
 */
#ifndef TD_TESTS_EMULATE_H
#define TD_TESTS_EMULATE_H
#define TK_EMULATE

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

using std::max;
using std::min;

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define TK_DEV                  static inline
#define TK_DEV_MEMBER           inline
#define TK_DYNAMIC_SHARED(name) unsigned char *name = emulate::here->shared.data()
#define threadIdx               emulate::here->thread
#define blockIdx                emulate::here->index
#define gridDim                 emulate::here->grid

struct float2 {
    float x, y;
};
struct float4 {
    float x, y, z, w;
};
struct __nv_bfloat16 {
    uint16_t bits;
};

namespace emulate
{

// Of a thread.
constexpr size_t STACK = 32 << 10;
// Bytes at its end that nobody may touch.
constexpr size_t GUARD = 1 << 10;
constexpr unsigned char UNTOUCHED = 0xA5;
struct dim {
    uint32_t x;
};
struct copy {
    uint32_t dst, bytes, group;
    const void *src;
};
struct meeting { /* of a warp's lanes, or of a block's threads */
    uint32_t arrived, round;
    void *arg[32];
};
struct fiber {
    ucontext_t ctx;
    std::unique_ptr<char[]> stack; /* not touched where it is not used */
    bool done;
    uint32_t block, thread;
    uint32_t group; /* cp.async groups committed */
    std::vector<copy> copies;
};
struct block_state {
    dim thread, index, grid;
    std::vector<unsigned char> shared;
    std::vector<fiber> fibers;
    std::vector<meeting> warps;
    meeting all;
    uint32_t live;
};
/* The blocks that run at once, the one whose thread runs now, and threads that can go on. */
inline std::vector<block_state> blocks;
inline block_state *here;
inline std::vector<fiber *> ready;
inline std::vector<fiber *> pollers; /* look again when nobody else can go on, and now and then */
inline std::unordered_map<const uint32_t *, std::vector<fiber *>> waiting; /* for a round to end */
inline std::function<bool()>
    idle; /* what comes to pass by itself, when nobody can go on; false: nothing */
inline uint64_t seed;
inline ucontext_t back;
inline std::function<void()> body;

[[noreturn]] inline void fail(const char *what)
{
    (void)fprintf(stderr, "emulate: %s (block %u, thread %u)\n", what, here->index.x,
                  here->thread.x);
    abort();
}

inline uint32_t draw()
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33);
}

/* Hands the processor to somebody who can run; to the caller of run() when all have ended. */
inline void switch_away()
{
    fiber *me = &here->fibers[here->thread.x];
    if (!pollers.empty() && (ready.empty() || draw() % 64 == 0)) {
        ready.insert(ready.end(), pollers.begin(), pollers.end());
        pollers.clear();
    }
    while (ready.empty() && idle && idle()) {
    }
    if (ready.empty()) {
        for (const block_state &b : blocks) {
            if (b.live > 0) {
                fail("deadlock: threads wait for others that have ended, or for different things");
            }
        }
        swapcontext(&me->ctx, &back);
    }
    const size_t i = draw() % ready.size();
    fiber *next = ready[i];
    ready[i] = ready.back();
    ready.pop_back();
    if (next != me) {
        here = &blocks[next->block];
        here->thread.x = next->thread;
        swapcontext(&me->ctx, &next->ctx);
        here = &blocks[me->block];
        here->thread.x = me->thread;
    }
}

/* Lets others run, before the next look at what they may have done. */
inline void look_later()
{
    pollers.push_back(&here->fibers[here->thread.x]);
    switch_away();
}

inline void wait_round(const uint32_t &round)
{
    waiting[&round].push_back(&here->fibers[here->thread.x]);
    switch_away();
}
inline void end_round(uint32_t &round)
{
    round++;
    std::vector<fiber *> &w = waiting[&round];
    ready.insert(ready.end(), w.begin(), w.end());
    w.clear();
}

inline void fiber_main()
{
    /* AddressSanitizer forgets what it knew of a stack of a known size at every switch to it: at the first one only */
    here->fibers[here->thread.x].ctx.uc_stack.ss_size = 0;
    body();
    here->fibers[here->thread.x].done = true;
    here->live--;
    switch_away();
}

/* f over the arguments of a warp's 32 lanes, once all have come. */
template <typename A, typename F> void warp_meet(A &mine, F f)
{
    meeting &w = here->warps[here->thread.x / 32];
    w.arg[here->thread.x % 32] = &mine;
    if (++w.arrived < 32) {
        wait_round(w.round);
        return;
    }
    A *all[32];
    for (int i = 0; i < 32; i++) {
        all[i] = static_cast<A *>(w.arg[i]);
    }
    f(all);
    w.arrived = 0;
    end_round(w.round);
}

inline void check_stacks()
{
    for (const block_state &b : blocks) {
        for (const fiber &f : b.fibers) {
            const char *end = f.stack.get(); /* all alike, and as they were */
            if (static_cast<unsigned char>(*end) != UNTOUCHED ||
                memcmp(end, end + 1, GUARD - 1) != 0) {
                fail("a thread's stack is too small");
            }
        }
    }
}

inline void start_block(block_state &b, uint32_t at, uint32_t index, uint32_t grid,
                        uint32_t threads, size_t shared_bytes)
{
    b.index.x = index;
    b.grid.x = grid;
    b.live = threads;
    b.all = {};
    b.shared.assign(shared_bytes, 0xff);
    b.warps.assign(threads / 32, meeting());
    b.fibers.resize(threads);
    for (uint32_t t = 0; t < threads; t++) {
        fiber &f = b.fibers[t];
        if (f.stack == nullptr) {
            f.stack.reset(new char[STACK]);
        }
        std::fill_n(f.stack.get(), GUARD, UNTOUCHED);
        f.done = false;
        f.block = at;
        f.thread = t;
        f.group = 0;
        f.copies.clear();
        getcontext(&f.ctx);
        f.ctx.uc_stack.ss_sp = f.stack.get();
        f.ctx.uc_stack.ss_size = STACK;
        f.ctx.uc_link = nullptr;
        makecontext(&f.ctx, fiber_main, 0);
        ready.push_back(&f);
    }
}

/* Runs body as a kernel of `grid` blocks, so many at once. */
inline void run(uint32_t grid, uint32_t threads, size_t shared_bytes, uint64_t first_seed,
                const std::function<void()> &kernel, uint32_t at_once = 1)
{
    body = kernel;
    for (uint32_t first = 0; first < grid; first += at_once) {
        const uint32_t n = min(at_once, grid - first);
        seed = first_seed + first;
        ready.clear();
        pollers.clear();
        waiting.clear();
        blocks.resize(n);
        for (uint32_t b = 0; b < n; b++) {
            start_block(blocks[b], b, first + b, grid, threads, shared_bytes);
        }
        fiber *begin = ready[draw() % ready.size()];
        ready.erase(std::find(ready.begin(), ready.end(), begin));
        here = &blocks[begin->block];
        here->thread.x = begin->thread;
        swapcontext(&back, &begin->ctx);
        check_stacks();
    }
}

inline unsigned char *shared_at(uint32_t addr, uint32_t bytes)
{
    if (addr % bytes != 0 || (size_t)addr + bytes > here->shared.size()) {
        fail("shared address outside or not aligned");
    }
    return here->shared.data() + addr;
}

/* A copy of cp.async arrives. */
inline void land(const copy &c)
{
    unsigned char *to = shared_at(c.dst, 16);
    memset(to, 0, 16);
    if (c.bytes > 0) {
        memcpy(to, c.src, c.bytes);
    }
}

inline float from_bf16(uint16_t v)
{
    const uint32_t u = (uint32_t)v << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
inline uint16_t to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return (u & 0x7fffffffu) > 0x7f800000u ? (uint16_t)0x7fff
                                           : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

struct load_arg {
    uint32_t *r, addr;
};
/* Four 8 x 8 matrices whose rows lanes 8 m .. name; lane l gets elements (l / 4, 2 (l % 4) + {0, 1}) of each, or of its
 * transpose. */
inline void load_matrices(uint32_t r[4], uint32_t addr, bool transposed)
{
    load_arg mine = {r, addr};
    warp_meet(mine, [transposed](load_arg **all) {
        for (int m = 0; m < 4; m++) {
            uint16_t x[8][8];
            for (int i = 0; i < 8; i++) {
                memcpy(x[i], shared_at(all[8 * m + i]->addr, 16), 16);
            }
            for (int l = 0; l < 32; l++) {
                const int g = l / 4, t = 2 * (l % 4);
                all[l]->r[m] = transposed ? (uint32_t)x[t + 1][g] << 16 | x[t][g]
                                          : (uint32_t)x[g][t + 1] << 16 | x[g][t];
            }
        }
    });
}

struct mma_arg {
    float *d;
    const uint32_t *a;
    uint32_t b0, b1;
};
inline void multiply(mma_arg **all)
{
    float a[16][16], b[16][8];
    for (int l = 0; l < 32; l++) {
        const int g = l / 4, t = 2 * (l % 4);
        for (int i = 0; i < 4; i++) { /* a1, a3: rows + 8; a2, a3: k + 8 */
            for (int e = 0; e < 2; e++) {
                a[g + (i & 1) * 8][t + (i >> 1) * 8 + e] =
                    from_bf16((uint16_t)(all[l]->a[i] >> (16 * e)));
            }
        }
        for (int e = 0; e < 2; e++) {
            b[t + e][g] = from_bf16((uint16_t)(all[l]->b0 >> (16 * e)));
            b[t + 8 + e][g] = from_bf16((uint16_t)(all[l]->b1 >> (16 * e)));
        }
    }
    for (int l = 0; l < 32; l++) {
        for (int i = 0; i < 4; i++) {
            const int row = l / 4 + (i >> 1) * 8, col = 2 * (l % 4) + (i & 1);
            float s = all[l]->d[i];
            for (int k = 0; k < 16; k++) {
                s += a[row][k] * b[k][col];
            }
            all[l]->d[i] = s;
        }
    }
}

template <typename T> T shuffle_xor(T v, int mask)
{
    struct arg {
        T in, out;
    } mine = {v, v};
    warp_meet(mine, [mask](arg **all) {
        for (int l = 0; l < 32; l++) {
            all[l]->out = all[l ^ mask]->in;
        }
    });
    return mine.out;
}

} // namespace emulate

/* ---- CUDA's own ---- */
inline void __syncthreads()
{
    using namespace emulate;
    if (++here->all.arrived < here->live) {
        wait_round(here->all.round);
        return;
    }
    here->all.arrived = 0;
    end_round(here->all.round);
}
inline void __syncwarp()
{
    int nothing = 0;
    emulate::warp_meet(nothing, [](int **) {});
}
template <typename T> T __shfl_xor_sync(uint32_t, T v, int mask)
{
    return emulate::shuffle_xor(v, mask);
}
inline bool __any_sync(uint32_t, bool v)
{
    struct arg {
        bool in, out;
    } mine = {v, v};
    emulate::warp_meet(mine, [](arg **all) {
        bool any = false;
        for (int l = 0; l < 32; l++) {
            any = any || all[l]->in;
        }
        for (int l = 0; l < 32; l++) {
            all[l]->out = any;
        }
    });
    return mine.out;
}
template <typename T> T __ldcg(const T *p)
{
    return *p;
}
template <typename T> T __ldg(const T *p)
{
    return *p;
}
template <typename T> void __stcg(T *p, T v)
{
    *p = v;
}
inline float2 make_float2(float x, float y)
{
    return {x, y};
}
inline __nv_bfloat16 __float2bfloat16_rn(float f)
{
    return {emulate::to_bf16(f)};
}
inline float __bfloat162float(__nv_bfloat16 v)
{
    return emulate::from_bf16(v.bits);
}
inline float __fadd_rn(float a, float b)
{
    return a + b;
}
inline float __fmul_rn(float a, float b)
{
    return a * b;
}
inline float __expf(float x)
{
    return expf(x);
}
inline float __fdividef(float a, float b)
{
    return a / b;
}
inline float rsqrtf(float x)
{
    return 1.f / sqrtf(x);
}

/* ---- kernels/cuda/ptx.cuh ---- */
inline uint32_t smem_u32(const void *p)
{
    return (uint32_t)(static_cast<const unsigned char *>(p) - emulate::here->shared.data());
}
inline void st_shared(uint32_t addr, uint32_t v)
{
    memcpy(emulate::shared_at(addr, 4), &v, 4);
}
inline void st_shared_zero16(uint32_t addr)
{
    memset(emulate::shared_at(addr, 16), 0, 16);
}
inline void cp_async16(uint32_t dst, const void *src, uint32_t bytes)
{
    emulate::fiber &f = emulate::here->fibers[emulate::here->thread.x];
    if (reinterpret_cast<uintptr_t>(src) % 16 != 0) {
        emulate::fail("global address of cp.async not aligned");
    }
    const emulate::copy c = {dst, bytes, f.group, src};
    (void)emulate::shared_at(dst, 16);
    if (emulate::draw() % 2 == 0) {
        emulate::land(c);
    } else {
        f.copies.push_back(c);
    }
}
inline void cp_async_commit()
{
    emulate::here->fibers[emulate::here->thread.x].group++;
}
template <int N> void cp_async_wait()
{
    emulate::fiber &f = emulate::here->fibers[emulate::here->thread.x];
    size_t kept = 0;
    for (const emulate::copy &c : f.copies) {
        if (c.group + N < f.group) {
            emulate::land(c);
        } else {
            f.copies[kept++] = c;
        }
    }
    f.copies.resize(kept);
}
inline void proxy_fence()
{
}
inline void ldsm_x4(uint32_t r[4], uint32_t addr)
{
    emulate::load_matrices(r, addr, false);
}
inline void ldsm_x4_t(uint32_t r[4], uint32_t addr)
{
    emulate::load_matrices(r, addr, true);
}
inline uint32_t transpose8x8(uint32_t a)
{
    struct arg {
        uint32_t in, out;
    } mine = {a, 0};
    emulate::warp_meet(mine, [](arg **all) {
        for (int l = 0; l < 32; l++) {
            const int g = l / 4, t = 2 * (l % 4);
            /* lane 4 r + c / 2 holds element (r, c) */
            const uint32_t lo = all[4 * t + g / 2]->in >> (16 * (g & 1)) & 0xffff;
            const uint32_t hi = all[4 * (t + 1) + g / 2]->in >> (16 * (g & 1)) & 0xffff;
            all[l]->out = hi << 16 | lo;
        }
    });
    return mine.out;
}
inline void mma16816(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    emulate::mma_arg mine = {d, a, b0, b1};
    emulate::warp_meet(mine, emulate::multiply);
}
inline uint32_t pack_bf16(float lo, float hi)
{
    return (uint32_t)emulate::to_bf16(hi) << 16 | emulate::to_bf16(lo);
}
inline float exp2_fast(float x)
{
    return exp2f(x);
}
inline float bf16_lo(uint32_t v)
{
    return emulate::from_bf16((uint16_t)v);
}
inline float bf16_hi(uint32_t v)
{
    return emulate::from_bf16((uint16_t)(v >> 16));
}

#endif
