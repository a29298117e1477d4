/* hopper_emulate.hpp - what kernels with Hopper's instructions need besides cuda_emulate.hpp, for kernels whose blocks wait for
 * each other (layers.cuh). C++.
 *
 * What: barriers of shared memory with their counts of bytes, copies by TMA with the 128-byte swizzle, which arrive at once or
 * some time later in any order, wgmma with 8 columns, named barriers, counters and tagged numbers of device memory. A count
 * that goes wrong, a box that is not aligned, and waits that never end abort with a message.
 * Not: memory order (every store is seen at once), proxies, the time between wgmma's start and its end.
 */
#ifndef TD_TESTS_HOPPER_EMULATE_H
#define TD_TESTS_HOPPER_EMULATE_H
#include "tests/emulate/cuda_emulate.hpp"

#include <map>

#define __grid_constant__

struct uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
/* Dimensions from the innermost; strides in bytes of all but that. */
struct alignas(64) CUtensorMap {
    const unsigned char *base;
    uint64_t stride[4];
    uint32_t rank, dim[5], box[5];
};

namespace emulate
{

struct barrier {
    uint32_t count, pending, completed; /* arrivals of a phase; to come; phases */
    int64_t bytes;                      /* expected and not yet here */
};
struct named {
    uint32_t arrived, round;
};
struct group_meeting { /* of a warpgroup */
    uint32_t arrived, round;
    float *d[128];
};
struct flight { /* a copy of TMA */
    uint32_t block, dst, bar;
    const CUtensorMap *map;
    int at[5];
};
inline std::map<std::pair<uint32_t, uint32_t>, barrier> barriers; /* of (block, address) */
inline std::map<std::pair<uint32_t, int>, named> nameds;
inline std::map<std::pair<uint32_t, uint32_t>, group_meeting> groups;
inline std::vector<flight> flights;
inline uint64_t polls; /* since something happened last */

inline void hopper_reset()
{
    barriers.clear();
    nameds.clear();
    groups.clear();
    flights.clear();
    polls = 0;
}

inline barrier &barrier_at(uint32_t block, uint32_t bar)
{
    const auto b = barriers.find({block, bar});
    if (b == barriers.end()) {
        fail("a barrier that was never initialised");
    }
    return b->second;
}
inline uint32_t me()
{
    return here->fibers[here->thread.x].block;
}

inline void try_complete(barrier &b)
{
    if (b.pending == 0 && b.bytes == 0) {
        b.pending = b.count;
        polls = 0;
        end_round(b.completed);
    }
}
inline void arrive(uint32_t bar, uint32_t bytes)
{
    barrier &b = barrier_at(me(), bar);
    if (b.pending == 0) {
        fail("more arrivals at a barrier than it counts");
    }
    b.bytes += bytes;
    b.pending--;
    try_complete(b);
}

/* One row of a box: 128 bytes at most, as the swizzle wants. */
inline void land_row(const flight &f, const int (&i)[5], uint32_t row)
{
    const CUtensorMap &m = *f.map;
    const uint32_t bytes = m.box[0] * 2;
    unsigned char line[128] = {0};
    bool inside = true;
    const unsigned char *src = m.base + (size_t)(f.at[0] + i[0]) * 2;
    for (uint32_t d = 1; d < m.rank; d++) {
        const int64_t x = f.at[d] + i[d];
        inside = inside && x >= 0 && x < (int64_t)m.dim[d];
        src += x * (int64_t)m.stride[d - 1];
    }
    if (inside && f.at[0] >= 0 && (uint32_t)f.at[0] + m.box[0] <= m.dim[0]) {
        memcpy(line, src, bytes);
    } else if (inside) {
        fail("a box that ends inside a row");
    }
    for (uint32_t c = 0; c < bytes; c += 16) {
        const uint32_t to = f.dst + row * 128 + c;
        memcpy(blocks[f.block].shared.data() + (to ^ (to >> 7 & 7) << 4), line + c, 16);
    }
}
inline void land_flight(size_t n)
{
    const flight f = flights[n];
    const CUtensorMap &m = *f.map;
    flights.erase(flights.begin() + (std::ptrdiff_t)n);
    uint32_t row = 0;
    int i[5] = {0};
    const uint32_t b4 = m.rank > 4 ? m.box[4] : 1, b3 = m.rank > 3 ? m.box[3] : 1,
                   b2 = m.rank > 2 ? m.box[2] : 1;
    for (i[4] = 0; i[4] < (int)b4; i[4]++) {
        for (i[3] = 0; i[3] < (int)b3; i[3]++) {
            for (i[2] = 0; i[2] < (int)b2; i[2]++) {
                for (i[1] = 0; i[1] < (int)m.box[1]; i[1]++) {
                    land_row(f, i, row++);
                }
            }
        }
    }
    barrier &b = barrier_at(f.block, f.bar);
    b.bytes -= (int64_t)row * m.box[0] * 2;
    try_complete(b);
}
/* When nobody can go on, something that flies arrives. */
inline bool land_any()
{
    if (flights.empty()) {
        return false;
    }
    land_flight(draw() % flights.size());
    return true;
}
inline void take_off(uint32_t dst, const CUtensorMap *m, uint32_t bar, int c0, int c1, int c2,
                     int c3, int c4)
{
    uint32_t rows = 1;
    for (uint32_t d = 1; d < m->rank; d++) {
        rows *= m->box[d];
    }
    if (dst % 1024 != 0 || dst + rows * 128 > here->shared.size() || m->box[0] != 64) {
        fail("a box of TMA outside shared memory or not aligned");
    }
    flights.push_back({me(), dst, bar, m, {c0, c1, c2, c3, c4}});
    while (!flights.empty() && draw() % 3 == 0) {
        land_flight(draw() % flights.size());
    }
}

/* A round of polling device memory. */
inline void poll()
{
    if (++polls > 3000000) {
        fail("deadlock: everybody polls, nothing happens");
    }
    if (draw() % 8 == 0) {
        (void)land_any();
    }
    look_later();
}

inline float matrix_at(uint64_t desc, uint32_t row, uint32_t k)
{
    if ((desc >> 32 & 0x3fff) != 1024 >> 4 || desc >> 62 != 1) {
        fail("a matrix descriptor that is not known here");
    }
    const uint32_t at = (uint32_t)(desc & 0x3fff) * 16 + row * 128 + k * 2;
    uint16_t v;
    memcpy(&v, here->shared.data() + (at ^ (at >> 7 & 7) << 4), 2);
    return from_bf16(v);
}
inline void wgmma(float (&d)[4], uint64_t a, uint64_t b, bool add)
{
    group_meeting &g = groups[{me(), here->thread.x / 128}];
    g.d[here->thread.x % 128] = d;
    if (++g.arrived < 128) {
        wait_round(g.round);
        return;
    }
    float x[64][16], y[8][16];
    for (uint32_t k = 0; k < 16; k++) {
        for (uint32_t r = 0; r < 64; r++) {
            x[r][k] = matrix_at(a, r, k);
        }
        for (uint32_t r = 0; r < 8; r++) {
            y[r][k] = matrix_at(b, r, k);
        }
    }
    for (uint32_t t = 0; t < 128; t++) {
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t row = t / 32 * 16 + t % 32 / 4 + (i >> 1) * 8,
                           col = 2 * (t % 4) + (i & 1);
            float s = add ? g.d[t][i] : 0.f;
            for (uint32_t k = 0; k < 16; k++) {
                s += x[row][k] * y[col][k];
            }
            g.d[t][i] = s;
        }
    }
    g.arrived = 0;
    end_round(g.round);
}

} // namespace emulate

/* ---- CUDA's own ---- */
inline uint2 make_uint2(uint32_t x, uint32_t y)
{
    return {x, y};
}
inline float __uint_as_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
inline uint32_t atomicAdd(uint32_t *p, uint32_t v)
{
    const uint32_t was = *p;
    *p += v;
    emulate::polls = 0;
    return was;
}
inline void __nanosleep(uint32_t)
{
    emulate::poll();
}
inline void __trap()
{
    emulate::fail("trap");
}

/* ---- kernels/cuda/spin.cuh, ptx.cuh, wgmma.cuh ---- */
enum { STUCK_BARRIER = 1, STUCK_DONE, STUCK_PART, STUCK_QKV, STUCK_ROW, STUCK_OUT };
struct spin {
    uint32_t seen, rounds;
    spin(uint32_t, uint32_t) : seen(0), rounds(0)
    {
    }
    void again()
    {
        if (rounds++ > 0) {
            emulate::poll();
        }
    }
};
inline void bar_init(uint32_t bar, uint32_t n)
{
    if (bar % 8 != 0) {
        emulate::fail("a barrier that is not aligned");
    }
    emulate::barriers[{emulate::me(), bar}] = {n, n, 0, 0};
}
inline void bar_init_fence()
{
}
inline void bar_expect(uint32_t bar, uint32_t bytes)
{
    emulate::arrive(bar, bytes);
}
inline void bar_arrive(uint32_t bar)
{
    emulate::arrive(bar, 0);
}
inline bool bar_test(uint32_t bar, uint32_t phase)
{
    return (emulate::barrier_at(emulate::me(), bar).completed & 1) != phase;
}
inline void bar_wait(uint32_t bar, uint32_t phase)
{
    if (emulate::draw() % 16 == 0) {
        (void)emulate::land_any();
    }
    while (!bar_test(bar, phase)) {
        emulate::wait_round(emulate::barrier_at(emulate::me(), bar).completed);
    }
}
inline uint64_t evict_first()
{
    return 0;
}
inline void tma_prefetch_map(const CUtensorMap *m)
{
    if (m->rank == 0 || m->box[0] != 64) {
        emulate::fail("not a map");
    }
}
inline void tma_5d(uint32_t dst, const CUtensorMap *m, uint32_t bar, int c0, int c1, int c2, int c3,
                   int c4, uint64_t)
{
    emulate::take_off(dst, m, bar, c0, c1, c2, c3, c4);
}
inline void tma_4d(uint32_t dst, const CUtensorMap *m, uint32_t bar, int c0, int c1, int c2, int c3,
                   uint64_t)
{
    emulate::take_off(dst, m, bar, c0, c1, c2, c3, 0);
}
inline void tma_2d_keep(uint32_t dst, const CUtensorMap *m, uint32_t bar, int c0, int c1)
{
    emulate::take_off(dst, m, bar, c0, c1, 0, 0, 0);
}
inline void proxy_fence_global()
{
}
inline void pdl_wait()
{
}
inline void pdl_launch()
{
}
inline void red_release(uint32_t *p)
{
    (void)atomicAdd(p, 1);
}
inline uint32_t ld_acquire(const uint32_t *p)
{
    return *p;
}
inline void put_tagged(uint2 *p, float v, uint32_t tag)
{
    memcpy(&p->x, &v, sizeof v);
    p->y = tag;
    emulate::polls = 0;
}
inline uint2 get_tagged(const uint2 *p)
{
    return *p;
}
inline uint4 get_tagged2(const uint2 *p)
{
    if (reinterpret_cast<uintptr_t>(p) % 16 != 0) {
        emulate::fail("two tagged numbers that are not aligned");
    }
    return {p[0].x, p[0].y, p[1].x, p[1].y};
}
inline void named_arrive(int id, uint32_t n)
{
    emulate::named &b = emulate::nameds[{emulate::me(), id}];
    if (++b.arrived == n) {
        b.arrived = 0;
        emulate::end_round(b.round);
    }
}
inline void named_sync(int id, uint32_t n)
{
    emulate::named &b = emulate::nameds[{emulate::me(), id}];
    if (b.arrived + 1 == n) {
        named_arrive(id, n);
        return;
    }
    b.arrived++;
    emulate::wait_round(b.round);
}
inline void wg_fence()
{
}
inline void wg_commit()
{
}
template <int N> void wg_wait()
{
}
inline uint64_t wg_desc(uint32_t addr, uint32_t lbo, uint32_t sbo)
{
    return (uint64_t)((addr & 0x3ffff) >> 4) | (uint64_t)(lbo >> 4) << 16 |
           (uint64_t)(sbo >> 4) << 32 | (uint64_t)1 << 62;
}
inline void wgmma_ss(float (&d)[4], uint64_t a, uint64_t b, int add)
{
    emulate::wgmma(d, a, b, add != 0);
}
inline void wgmma_first(float (&d)[4], uint64_t a, uint64_t b)
{
    emulate::wgmma(d, a, b, false);
}

#endif
