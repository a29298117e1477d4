#include "kernels/tk_internal.h"

#include <math.h>
#include <string.h>

/* 32 values of a file's row: integers and what turns them into weights, before packing. */
struct block32 {
    int32_t q[TK_QK];   /* stored integers, offset already removed where the kind has one */
    float d, d_high, m; /* d_high: scale of k 16..31 where it differs */
};

const struct tk__layout tk__layouts[TK_N_KINDS] = {
    [TK_Q4_OFF] = {true, false, true, false, false, 8, 256 + 32},
    [TK_Q4_MIN] = {true, false, true, true, false, 0, 256 + 64},
    [TK_Q4_MINF] = {true, false, false, true, false, 0, 256 + 128},
    [TK_Q8_F16] = {false, true, true, false, false, 128, 512 + 32},
    [TK_Q8_F32] = {false, true, false, false, false, 128, 512 + 64},
    [TK_Q8_MINF] = {false, false, false, true, false, 0, 512 + 128},
    [TK_Q8_HALVES] = {false, true, false, false, true, 128, 512 + 128},
    [TK_F32] = {false, false, false, false, false, 0, 2048},
};

struct type_info {
    enum tk_wtype type;
    enum tk_kind kind;
    uint32_t block, block_bytes;
};
static const struct type_info types[] = {
    {TK_W_F32, TK_Q8_F32, 1, 4},         {TK_W_F16, TK_Q8_F32, 1, 2},
    {TK_W_BF16, TK_Q8_F32, 1, 2},        {TK_W_Q4_0, TK_Q4_OFF, 32, 18},
    {TK_W_Q4_1, TK_Q4_MIN, 32, 20},      {TK_W_Q5_0, TK_Q8_F16, 32, 22},
    {TK_W_Q5_1, TK_Q8_MINF, 32, 24},     {TK_W_Q8_0, TK_Q8_F16, 32, 34},
    {TK_W_Q4_K, TK_Q4_MINF, 256, 144},   {TK_W_Q5_K, TK_Q8_MINF, 256, 176},
    {TK_W_Q6_K, TK_Q8_HALVES, 256, 210},
};

static const struct type_info *info_of(enum tk_wtype type)
{
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (types[i].type == type) {
            return &types[i];
        }
    }
    return NULL;
}

float tk__f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = (h >> 10) & 31u, man = h & 0x3ffu, bits;
    float f;
    if (exp == 0) { /* zero or subnormal: man * 2^-24, exact */
        f = (float)man * 0x1p-24f;
        return sign ? -f : f;
    }
    bits = sign | (exp == 31 ? 0x7f800000u : (exp + 112) << 23) | man << 13;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint16_t load16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static float half_at(const uint8_t *p)
{
    return tk__f16(load16(p));
}

/* Sixteen bytes of nibbles: low ones are k 0..15, high ones k 16..31. */
static void nibbles16(const uint8_t *p, int32_t *q)
{
    for (int i = 0; i < 16; i++) {
        q[i] = p[i] & 15;
        q[i + 16] = p[i] >> 4;
    }
}

/* The fifth bits of a Q5_0 or Q5_1 block, four bytes. */
static void fifth_bits(const uint8_t *p, int32_t *q)
{
    uint32_t h;
    memcpy(&h, p, sizeof h);
    for (int i = 0; i < TK_QK; i++) {
        q[i] |= (int32_t)((h >> i) & 1u) << 4;
    }
}

static void q5_block(bool has_min, const uint8_t *p, struct block32 *out)
{
    out->d = half_at(p);
    out->m = has_min ? half_at(p + 2) : 0;
    p += has_min ? 4 : 2;
    nibbles16(p + 4, out->q);
    fifth_bits(p, out->q);
    for (int i = 0; i < TK_QK && !has_min; i++) {
        out->q[i] -= 16;
    }
}

/* Sub-block j (0..7) of the six-bit scales and minima of Q4_K and Q5_K. */
static void k_scale_min(const uint8_t *s, uint32_t j, uint32_t *sc, uint32_t *mn)
{
    if (j < 4) {
        *sc = s[j] & 63u;
        *mn = s[j + 4] & 63u;
    } else {
        *sc = (s[j + 4] & 15u) | (uint32_t)(s[j - 4] >> 6) << 4;
        *mn = (uint32_t)(s[j + 4] >> 4) | (uint32_t)(s[j] >> 6) << 4;
    }
}

static void k45_block(bool five, const uint8_t *p, uint32_t j, struct block32 *out)
{
    const uint8_t *high = p + 16, *qs = p + 16 + (five ? 32 : 0) + 32 * (j / 2);
    uint32_t sc, mn;
    k_scale_min(p + 4, j, &sc, &mn);
    out->d = half_at(p) * (float)sc;
    out->m = -(half_at(p + 2) * (float)mn);
    for (int i = 0; i < TK_QK; i++) {
        out->q[i] = (j & 1) != 0 ? qs[i] >> 4 : qs[i] & 15;
        if (five) {
            out->q[i] |= ((high[i] >> j) & 1) << 4;
        }
    }
}

static void q6k_block(const uint8_t *p, uint32_t j, struct block32 *out)
{
    uint32_t half = j / 4, part = j % 4;
    const uint8_t *low = p + 64 * half + 32 * (part & 1), *high = p + 128 + 32 * half;
    const int8_t *sc = (const int8_t *)p + 192 + 8 * half + 2 * part;
    float d = half_at(p + 208);
    out->d = d * (float)sc[0];
    out->d_high = d * (float)sc[1];
    for (int i = 0; i < TK_QK; i++) {
        int32_t lo = part >= 2 ? low[i] >> 4 : low[i] & 15;
        out->q[i] = (lo | ((high[i] >> (2 * part)) & 3) << 4) - 32;
    }
}

static float float_at(enum tk_wtype type, const uint8_t *row, uint32_t i)
{
    uint32_t bits;
    float f;
    if (type == TK_W_F16) {
        return half_at(row + 2 * (size_t)i);
    }
    if (type == TK_W_BF16) {
        bits = (uint32_t)load16(row + 2 * (size_t)i) << 16;
        memcpy(&f, &bits, sizeof f);
        return f;
    }
    memcpy(&f, row + 4 * (size_t)i, sizeof f);
    return f;
}

/* Float weights in int8 numerics: the rule for activations (NUMERICS.md). */
static void requantise(enum tk_wtype type, const uint8_t *row, uint32_t b, struct block32 *out)
{
    float amax = 0;
    for (uint32_t i = 0; i < TK_QK; i++) {
        float x = fabsf(float_at(type, row, b * TK_QK + i));
        amax = x > amax ? x : amax;
    }
    bool tiny = !(amax >= 1e-30f && amax <= 3.4e38f);
    float id = tiny ? 0 : 127.0f / amax;
    out->d = tiny ? 0 : amax / 127.0f;
    for (uint32_t i = 0; i < TK_QK; i++) {
        float v = float_at(type, row, b * TK_QK + i) * id;
        out->q[i] = tiny || !(fabsf(v) < 127.5f) ? 0 : (int32_t)rintf(v); /* NaN gives 0 */
    }
}

/* Block b (of 32) of a row. */
static void read_block(enum tk_wtype type, const uint8_t *row, uint32_t b, struct block32 *out)
{
    const uint8_t *p = row;
    memset(out, 0, sizeof *out);
    switch (type) {
    case TK_W_Q4_0:
        p += 18 * (size_t)b;
        out->d = half_at(p);
        nibbles16(p + 2, out->q);
        for (int i = 0; i < TK_QK; i++) {
            out->q[i] -= 8;
        }
        break;
    case TK_W_Q4_1:
        p += 20 * (size_t)b;
        out->d = half_at(p);
        out->m = half_at(p + 2);
        nibbles16(p + 4, out->q);
        break;
    case TK_W_Q5_0:
        q5_block(false, p + 22 * (size_t)b, out);
        break;
    case TK_W_Q5_1:
        q5_block(true, p + 24 * (size_t)b, out);
        break;
    case TK_W_Q8_0:
        p += 34 * (size_t)b;
        out->d = half_at(p);
        for (int i = 0; i < TK_QK; i++) {
            out->q[i] = (int8_t)p[2 + i];
        }
        break;
    case TK_W_Q4_K:
        k45_block(false, p + 144 * (size_t)(b / 8), b % 8, out);
        break;
    case TK_W_Q5_K:
        k45_block(true, p + 176 * (size_t)(b / 8), b % 8, out);
        break;
    case TK_W_Q6_K:
        q6k_block(p + 210 * (size_t)(b / 8), b % 8, out);
        break;
    case TK_W_F32:
    case TK_W_F16:
    case TK_W_BF16:
        requantise(type, row, b, out);
        break;
    }
}

/* Values of a block as the file defines them: d*q + m in two roundings. */
static void block_values(enum tk_wtype type, const uint8_t *row, uint32_t b, float *out)
{
    struct block32 blk;
    if (type == TK_W_F32 || type == TK_W_F16 || type == TK_W_BF16) {
        for (uint32_t i = 0; i < TK_QK; i++) {
            out[i] = float_at(type, row, b * TK_QK + i);
        }
        return;
    }
    read_block(type, row, b, &blk);
    for (uint32_t i = 0; i < TK_QK; i++) {
        float d = type == TK_W_Q6_K && i >= 16 ? blk.d_high : blk.d;
        out[i] = d * (float)blk.q[i] + blk.m;
    }
}

void tk_dequant(enum tk_wtype type, const void *row, uint32_t n, float *out)
{
    for (uint32_t b = 0; b < n / TK_QK; b++) {
        block_values(type, row, b, out + (size_t)b * TK_QK);
    }
}

td_err tk_pack_plan(const struct tk_weight *w, bool f32, struct tk_packed *out)
{
    const struct type_info *t = info_of(w->type);
    if (t == NULL || w->n == 0 || w->k == 0 || w->k > TK_MAX_K || w->k % TK_QK != 0 ||
        w->k % t->block != 0) {
        return TD_ERR_FILE_UNSUPPORTED;
    }
    if (w->row_bytes < (size_t)(w->k / t->block) * t->block_bytes) {
        return TD_ERR_FILE_FORMAT;
    }
    out->kind = f32 ? TK_F32 : t->kind;
    out->n = w->n;
    out->k = w->k;
    out->n_tiles = (w->n + TK_LANES - 1) / TK_LANES;
    out->tile_bytes = tk__layouts[out->kind].tile_bytes;
    out->data = NULL;
    return TD_OK;
}

size_t tk_packed_bytes(const struct tk_packed *p)
{
    return (size_t)p->n_tiles * (p->k / TK_QK) * p->tile_bytes;
}

static void put_scale(const struct tk__layout *l, uint8_t *tile, uint32_t which, uint32_t c,
                      float value, uint16_t half)
{
    uint8_t *base = tile + (l->nibbles ? TK__NIBBLE_BYTES : TK__BYTE_BYTES);
    if (l->scale_f16) {
        memcpy(base + (which * TK_LANES + c) * sizeof half, &half, sizeof half);
    } else {
        memcpy(base + (which * TK_LANES + c) * sizeof value, &value, sizeof value);
    }
}

/* Four stored values as the four bytes of a word. */
static uint32_t word_of(const int32_t *q, int32_t offset)
{
    uint32_t w = 0;
    for (int i = 0; i < 4; i++) {
        w |= (uint32_t)(uint8_t)(q[i] + offset) << (8 * i);
    }
    return w;
}

/* Column c of a tile: a word for each vector. */
static void put_column(const struct tk__layout *l, uint8_t *tile, uint32_t c,
                       const struct block32 *blk)
{
    uint32_t words = l->nibbles ? 4 : 8;
    for (uint32_t j = 0; j < words; j++) {
        uint32_t w;
        if (l->nibbles) {
            w = word_of(blk->q + 8 * j, l->offset) | word_of(blk->q + 8 * j + 4, l->offset) << 4;
        } else {
            w = word_of(blk->q + 4 * j, l->offset);
        }
        memcpy(tile + 64 * j + 4 * c, &w, sizeof w);
    }
}

static void pack_tile(const struct tk_weight *w, const struct tk_packed *p, uint32_t t, uint32_t b,
                      uint8_t *tile)
{
    const struct tk__layout *l = &tk__layouts[p->kind];
    const struct type_info *info = info_of(w->type);
    memset(tile, 0, p->tile_bytes);
    for (uint32_t c = 0; c < TK_LANES; c++) {
        uint32_t col = t * TK_LANES + c;
        struct block32 blk = {.d = 0};
        uint16_t half_d = 0, half_m = 0;
        if (col < w->n) {
            const uint8_t *row = (const uint8_t *)w->data + (size_t)col * w->row_bytes;
            read_block(w->type, row, b, &blk);
            if (l->scale_f16) { /* 32-value blocks that start with their f16 scale */
                half_d = load16(row + (size_t)b * info->block_bytes);
                half_m = load16(row + (size_t)b * info->block_bytes + 2);
            }
        }
        put_column(l, tile, c, &blk);
        put_scale(l, tile, 0, c, blk.d, half_d);
        if (l->has_min) {
            put_scale(l, tile, 1, c, blk.m, half_m);
        } else if (l->has_halves) {
            put_scale(l, tile, 1, c, blk.d_high, 0);
        }
    }
}

static void pack_tile_f32(const struct tk_weight *w, uint32_t t, uint32_t b, float *tile)
{
    for (uint32_t c = 0; c < TK_LANES; c++) {
        uint32_t col = t * TK_LANES + c;
        float v[TK_QK] = {0};
        if (col < w->n) {
            block_values(w->type, (const uint8_t *)w->data + (size_t)col * w->row_bytes, b, v);
        }
        for (uint32_t i = 0; i < TK_QK; i++) {
            tile[i * TK_LANES + c] = v[i];
        }
    }
}

void tk_pack(const struct tk_weight *w, const struct tk_packed *p, uint32_t tile0, uint32_t n_tiles)
{
    uint32_t kb = p->k / TK_QK;
    for (uint32_t t = tile0; t < tile0 + n_tiles; t++) {
        for (uint32_t b = 0; b < kb; b++) {
            uint8_t *tile = p->data + ((size_t)t * kb + b) * p->tile_bytes;
            if (p->kind == TK_F32) {
                pack_tile_f32(w, t, b, (float *)(void *)tile);
            } else {
                pack_tile(w, p, t, b, tile);
            }
        }
    }
}
