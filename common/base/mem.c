#include "common/base/mem.h"

#include <stdbool.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/fault.h"

#if TD_WITH_FAULTS
/* Relaxed: a test's countdown; nothing else is published through it. */
static unsigned fail_countdown;

static bool must_fail(void)
{
    unsigned n = __atomic_load_n(&fail_countdown, __ATOMIC_RELAXED);
    while (n > 0) {
        if (__atomic_compare_exchange_n(&fail_countdown, &n, n - 1, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
            if (n == 1) {
                return true;
            }
            break;
        }
    }
    return TD_FAULT(ALLOC_FAIL);
}

void td_mem_fail_nth(unsigned n)
{
    __atomic_store_n(&fail_countdown, n, __ATOMIC_RELAXED);
}
#else
static bool must_fail(void)
{
    return false;
}

void td_mem_fail_nth(unsigned n)
{
    (void)n; /* builds without faults have no failing allocator */
}
#endif

void *td_zalloc(size_t count, size_t size)
{
    size_t bytes;
    /* Checked here, since ASan takes an overflow inside calloc for a bug instead of failing it. */
    if (__builtin_mul_overflow(count, size, &bytes) || must_fail()) {
        return NULL;
    }
    return calloc(1, bytes > 0 ? bytes : 1);
}

void *td_zalloc_aligned(size_t align, size_t bytes)
{
    void *p = NULL;
    TD_REQUIRE(align >= 64 && (align & (align - 1)) == 0);
    if (must_fail() || posix_memalign(&p, align, bytes > 0 ? bytes : 1) != 0) {
        return NULL;
    }
    return memset(p, 0, bytes);
}

char *td_strdup(const char *s)
{
    size_t bytes = strlen(s) + 1;
    char *copy = td_zalloc(bytes, 1);
    return copy != NULL ? memcpy(copy, s, bytes) : NULL;
}

void *td_realloc(void *p, size_t bytes)
{
    return must_fail() ? NULL : realloc(p, bytes > 0 ? bytes : 1);
}
