#include "kernels/tk_internal.h"

#if defined(__x86_64__)
#include <cpuid.h>

#define CPUID1_ECX_FMA     (1u << 12)
#define CPUID1_ECX_OSXSAVE (1u << 27)
#define CPUID1_ECX_F16C    (1u << 29)
#define CPUID7_EBX_AVX2    (1u << 5)
#define CPUID7_EBX_AVX512  (1u << 16 | 1u << 17 | 1u << 30 | 1u << 31) /* F, DQ, BW, VL */
#define CPUID7_ECX_VNNI    (1u << 11)
#define XCR0_YMM           0x06u
#define XCR0_ZMM           0xe6u

static uint32_t xcr0(void)
{
    uint32_t eax, edx;
    __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    return eax;
}

/* Both the CPU has the instructions and the system saves the registers. */
static bool cpu_has(enum tk_isa isa)
{
    uint32_t a, b, c, d, b7, c7;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & CPUID1_ECX_OSXSAVE) == 0) {
        return false;
    }
    bool base = (c & CPUID1_ECX_FMA) != 0 && (c & CPUID1_ECX_F16C) != 0;
    if (__get_cpuid_count(7, 0, &a, &b7, &c7, &d) == 0) {
        return false;
    }
    if (!base || (b7 & CPUID7_EBX_AVX2) == 0 || (xcr0() & XCR0_YMM) != XCR0_YMM) {
        return false;
    }
    return isa == TK_ISA_AVX2 || ((b7 & CPUID7_EBX_AVX512) == CPUID7_EBX_AVX512 &&
                                  (c7 & CPUID7_ECX_VNNI) != 0 && (xcr0() & XCR0_ZMM) == XCR0_ZMM);
}

const struct tk_ops *tk_select(enum tk_isa isa)
{
    if (isa != TK_ISA_REF && isa != TK_ISA_AVX2 && cpu_has(TK_ISA_AVX512)) {
        return &tk__avx512_ops;
    }
    if (isa != TK_ISA_REF && isa != TK_ISA_AVX512 && cpu_has(TK_ISA_AVX2)) {
        return &tk__avx2_ops;
    }
    return isa == TK_ISA_AUTO || isa == TK_ISA_REF ? &tk__ref_ops : NULL;
}
#else
const struct tk_ops *tk_select(enum tk_isa isa)
{
    return isa == TK_ISA_AUTO || isa == TK_ISA_REF ? &tk__ref_ops : NULL;
}
#endif

size_t tk_attn_scratch(uint32_t head_dim, uint32_t nq)
{
    /* Scores of a chunk, and its K or V widened to f32. */
    return (size_t)nq * TK_CHUNK_TOK + (size_t)TK_CHUNK_TOK * head_dim;
}
