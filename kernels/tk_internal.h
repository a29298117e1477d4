/* tk_internal.h - what the files of kernels/ share: the tables and the map of a tile. No functions
 * with bodies: a file of one instruction set must not lend code to another. Internal to kernels/.
 */
#ifndef TD_KERNELS_TK_INTERNAL_H
#define TD_KERNELS_TK_INTERNAL_H

#include "kernels/tk.h"

#define TK__NIBBLE_BYTES 256 /* 16 columns x 32 k */
#define TK__BYTE_BYTES   512
#define TK__PANEL_BYTES  ((size_t)TK_PANEL * TK_QK) /* one block of eight rows */

/* Where things lie in a tile of a kind. */
struct tk__layout {
    bool nibbles;
    bool is_signed;  /* stored q ^ 0x80 */
    bool scale_f16;  /* else f32 */
    bool has_min;    /* second scale vector is m */
    bool has_halves; /* second scale vector is d of k 16..31 */
    int32_t offset;  /* subtracted from the stored unsigned value */
    size_t tile_bytes;
};
extern const struct tk__layout tk__layouts[TK_N_KINDS];

extern const struct tk_ops tk__ref_ops;
#if defined(__x86_64__)
extern const struct tk_ops tk__avx2_ops;
extern const struct tk_ops tk__avx512_ops;
#endif

float tk__f16(uint16_t h);

/* Portable pieces that any table may point to. */
void tk__ref_attn_f32(const struct tk_attn *a);
void tk__ref_attn_merge(const struct tk_attn *part, float *sm, float *sl, float *so, bool first);
void tk__ref_gemm(const struct tk_gemm *g, uint32_t tile0, uint32_t n_tiles);

#endif
