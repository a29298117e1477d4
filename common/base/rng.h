/* rng.h - random numbers. td_rng_fill: from the kernel (epochs, nonces). td_mix64: splitmix64's
 * finaliser, the building block of counter-based draws. struct td_rng: a small seeded generator
 * (splitmix64) for tests and the simulator.
 */
#ifndef TD_BASE_RNG_H
#define TD_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

struct td_rng {
    uint64_t state;
};

/* Aborts when the kernel gives no randomness: epochs and nonces must never be guessable. */
void td_rng_fill(void *out, size_t len);
uint64_t td_rng_u64_secure(void);

static inline uint64_t td_mix64(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}
static inline uint64_t td_rng_next(struct td_rng *r)
{
    r->state += 0x9e3779b97f4a7c15ull;
    return td_mix64(r->state);
}
/* Uniform in [0, n); n > 0. */
static inline uint64_t td_rng_below(struct td_rng *r, uint64_t n)
{
    return (uint64_t)(((__uint128_t)td_rng_next(r) * n) >> 64);
}
/* Uniform in [0, 1). */
static inline double td_rng_unit(struct td_rng *r)
{
    return (double)(td_rng_next(r) >> 11) * 0x1.0p-53;
}

#endif
