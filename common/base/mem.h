/* mem.h - ownership helpers: cleanup at scope end, and stealing a pointer out of it.
 *
 *   TD_CLEANUP(td_pool_destroyp) struct td_pool *p = NULL;   // destroyed on every return
 *   ...
 *   *out_pool = TD_STEAL(p);                                  // handed over: nothing is destroyed
 *
 * TD_DEFINE_CLEANUP(type, destroy) defines `<destroy>p(type **)` for TD_CLEANUP.
 */
#ifndef TD_BASE_MEM_H
#define TD_BASE_MEM_H

#include <stddef.h>
#include <stdlib.h>

#define TD_CLEANUP(fn) __attribute__((cleanup(fn)))
#define TD_STEAL(p)                                                                                \
    ({                                                                                             \
        __typeof__(p) td_stolen_ = (p);                                                            \
        (p) = NULL;                                                                                \
        td_stolen_;                                                                                \
    })
#define TD_DEFINE_CLEANUP(type, destroy)                                                           \
    static inline void destroy##p(type **p)                                                        \
    {                                                                                              \
        destroy(*p);                                                                               \
    }

static inline void td_freep(void *p)
{
    free(*(void **)p);
}

#define TD_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* calloc with an overflow check and the `alloc.fail` fault point; NULL when out of
 * memory. */
void *td_zalloc(size_t count, size_t size);
/* Zeroed memory aligned to `align` (a power of two, at least 64); free with free(). */
void *td_zalloc_aligned(size_t align, size_t bytes);
char *td_strdup(const char *s);
/* realloc behind the same fault point; the new part is not zeroed. NULL: `p` is still valid. */
void *td_realloc(void *p, size_t bytes);

/* Test hook (builds with faults): the n-th call from now fails, once; 0 switches it off. */
void td_mem_fail_nth(unsigned n);

#endif
