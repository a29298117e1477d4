#include "common/base/rng.h"

#include <sys/random.h>
#include <sys/types.h>

#include "common/base/assert.h"

/* getrandom() never returns less than asked for up to this many bytes, signals or not. */
#define RNG_CHUNK 256u

void td_rng_fill(void *out, size_t len)
{
    unsigned char *p = out;
    while (len > 0) {
        size_t n = len < RNG_CHUNK ? len : RNG_CHUNK;
        TD_INSIST(getrandom(p, n, 0) == (ssize_t)n);
        p += n;
        len -= n;
    }
}

uint64_t td_rng_u64_secure(void)
{
    uint64_t v;
    td_rng_fill(&v, sizeof v);
    return v;
}
