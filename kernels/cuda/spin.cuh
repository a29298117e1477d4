// spin.cuh - a thread's wait for other threads that may be a mistake's victim. Nothing, but in builds with TK_SPIN_MS (a
// debugging aid: gpu-bench-spin): there one that takes longer says so where the host can read it and traps, so that an order
// of events that does not end costs seconds of a device, not minutes. Included by ptx.cuh.
#pragma once

// What a thread waits for, and in `which`: a barrier (its shared address and phase), a stage (of which so many are done), a
// part's or a row's tag.
enum { STUCK_BARRIER = 1, STUCK_DONE, STUCK_PART, STUCK_QKV, STUCK_ROW, STUCK_OUT };

#ifdef TK_SPIN_MS
enum { STUCK_WORDS = 8, STUCK_MOST = 60 };
static __device__ uint32_t
    *stuck_at; // host memory: how many got stuck, then STUCK_WORDS words of each

struct spin {
    uint32_t what, which, seen, rounds;
    uint64_t began;
    TK_DEV_MEMBER spin(uint32_t what_, uint32_t which_)
        : what(what_), which(which_), seen(0), rounds(0), began(0)
    {
    }
    static TK_DEV_MEMBER uint64_t now()
    {
        uint64_t t;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
        return t;
    }
    TK_DEV_MEMBER void tell() const
    {
        const uint32_t words[STUCK_WORDS] = {what, which, seen, blockIdx.x, threadIdx.x, 0, 0, 0};
        if (stuck_at != nullptr) {
            const uint32_t i = atomicAdd_system(stuck_at, 1);
            for (uint32_t w = 0; i < STUCK_MOST && w < STUCK_WORDS; w++) {
                const_cast<volatile uint32_t *>(stuck_at)[1 + i * STUCK_WORDS + w] = words[w];
            }
        }
        __threadfence_system();
    }
    TK_DEV_MEMBER void again()
    {
        if (++rounds % 256 != 0) {
            return;
        }
        began = began == 0 ? now() : began;
        if (now() - began > TK_SPIN_MS * 1000000ull) {
            tell();
            const uint64_t told = now();
            while (now() - told < 100000000ull) { // others are stuck, too: let them say so
            }
            __trap();
        }
    }
};
#else
struct spin {
    uint32_t seen;
    TK_DEV_MEMBER spin(uint32_t, uint32_t) : seen(0)
    {
    }
    TK_DEV_MEMBER void again()
    {
    }
};
#endif
