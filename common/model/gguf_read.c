#include "common/model/gguf.h"

#include <string.h>

#include "common/base/assert.h"
#include "common/model/gguf_priv.h"

static const struct td_dtype_info dtypes[] = {
    [TD_DTYPE_F32] = {"F32", 1, 4},
    [TD_DTYPE_F16] = {"F16", 1, 2},
    [TD_DTYPE_Q4_0] = {"Q4_0", 32, 18},
    [TD_DTYPE_Q4_1] = {"Q4_1", 32, 20},
    [TD_DTYPE_Q5_0] = {"Q5_0", 32, 22},
    [TD_DTYPE_Q5_1] = {"Q5_1", 32, 24},
    [TD_DTYPE_Q8_0] = {"Q8_0", 32, 34},
    [TD_DTYPE_Q8_1] = {"Q8_1", 32, 36},
    [TD_DTYPE_Q2_K] = {"Q2_K", 256, 84},
    [TD_DTYPE_Q3_K] = {"Q3_K", 256, 110},
    [TD_DTYPE_Q4_K] = {"Q4_K", 256, 144},
    [TD_DTYPE_Q5_K] = {"Q5_K", 256, 176},
    [TD_DTYPE_Q6_K] = {"Q6_K", 256, 210},
    [TD_DTYPE_Q8_K] = {"Q8_K", 256, 292},
    [TD_DTYPE_IQ2_XXS] = {"IQ2_XXS", 256, 66},
    [TD_DTYPE_IQ2_XS] = {"IQ2_XS", 256, 74},
    [TD_DTYPE_IQ3_XXS] = {"IQ3_XXS", 256, 98},
    [TD_DTYPE_IQ1_S] = {"IQ1_S", 256, 50},
    [TD_DTYPE_IQ4_NL] = {"IQ4_NL", 32, 18},
    [TD_DTYPE_IQ3_S] = {"IQ3_S", 256, 110},
    [TD_DTYPE_IQ2_S] = {"IQ2_S", 256, 82},
    [TD_DTYPE_IQ4_XS] = {"IQ4_XS", 256, 136},
    [TD_DTYPE_I8] = {"I8", 1, 1},
    [TD_DTYPE_I16] = {"I16", 1, 2},
    [TD_DTYPE_I32] = {"I32", 1, 4},
    [TD_DTYPE_I64] = {"I64", 1, 8},
    [TD_DTYPE_F64] = {"F64", 1, 8},
    [TD_DTYPE_IQ1_M] = {"IQ1_M", 256, 56},
    [TD_DTYPE_BF16] = {"BF16", 1, 2},
};

const struct td_dtype_info *td_dtype_info(uint32_t dtype)
{
    return dtype < TD_COUNT(dtypes) && dtypes[dtype].name != NULL ? &dtypes[dtype] : NULL;
}

/* Bytes of one value; 0 for string and array. */
const uint8_t td__gguf_value_bytes[TD__GGUF_N_VALUES] = {
    [TD_GGUF_U8] = 1,     [TD_GGUF_I8] = 1,    [TD_GGUF_U16] = 2, [TD_GGUF_I16] = 2,
    [TD_GGUF_U32] = 4,    [TD_GGUF_I32] = 4,   [TD_GGUF_F32] = 4, [TD_GGUF_BOOL] = 1,
    [TD_GGUF_STRING] = 0, [TD_GGUF_ARRAY] = 0, [TD_GGUF_U64] = 8, [TD_GGUF_I64] = 8,
    [TD_GGUF_F64] = 8,
};

bool td_str_eq(struct td_str s, const char *z)
{
    size_t n = strlen(z);

    return s.len == n && memcmp(s.data, z, n) == 0;
}

int td__str_cmp(struct td_str a, struct td_str b)
{
    int c = memcmp(a.data, b.data, a.len < b.len ? a.len : b.len);

    return c != 0 ? c : (a.len > b.len) - (a.len < b.len);
}

const struct td__gguf_kv *td__gguf_find(const struct td_gguf *g, const char *key)
{
    struct td_str want = {key, strlen(key)};
    size_t lo = 0;
    size_t hi = g->n_kv;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = td__str_cmp(g->kv[g->kv_sorted[mid]].key, want);

        if (c == 0) {
            return &g->kv[g->kv_sorted[mid]];
        }
        if (c < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return NULL;
}

uint32_t td_gguf_version(const struct td_gguf *g)
{
    TD_REQUIRE(g->magic == TD__GGUF_OPEN);
    return g->version;
}

const void *td_gguf_bytes(const struct td_gguf *g, uint64_t *out_len)
{
    *out_len = g->len;
    return g->bytes;
}

uint64_t td_gguf_head_bytes(const struct td_gguf *g)
{
    return g->head_bytes;
}

size_t td_gguf_n_kv(const struct td_gguf *g)
{
    return g->n_kv;
}

size_t td_gguf_n_tensors(const struct td_gguf *g)
{
    return g->n_tensors;
}

const struct td_gguf_tensor *td_gguf_tensor_at(const struct td_gguf *g, size_t i)
{
    TD_REQUIRE(i < g->n_tensors);
    return &g->tensors[i];
}

const struct td_gguf_tensor *td__tensor_find(const struct td_gguf_tensor *tensors,
                                             const uint32_t *sorted, size_t n, struct td_str name)
{
    size_t lo = 0;
    size_t hi = n;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const struct td_gguf_tensor *t = &tensors[sorted[mid]];
        int c = td__str_cmp(t->name, name);

        if (c == 0) {
            return t;
        }
        if (c < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return NULL;
}

const struct td_gguf_tensor *td_gguf_tensor(const struct td_gguf *g, const char *name)
{
    struct td_str want = {name, strlen(name)};
    return td__tensor_find(g->tensors, g->tensors_sorted, g->n_tensors, want);
}

bool td_gguf_has(const struct td_gguf *g, const char *key)
{
    return td__gguf_find(g, key) != NULL;
}

/* An integer of any width as sign and magnitude range: false when `type` is no integer. */
static bool read_int(enum td_gguf_value type, const uint8_t *v, int64_t *out, bool *out_huge)
{
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
    } x = {.u64 = 0};

    *out_huge = false;
    if (type == TD_GGUF_BOOL || td__gguf_value_bytes[type] == 0) {
        return false;
    }
    memcpy(&x, v, td__gguf_value_bytes[type]);
    switch ((int)type) {
    case TD_GGUF_U8:
        *out = x.u8;
        return true;
    case TD_GGUF_I8:
        *out = x.i8;
        return true;
    case TD_GGUF_U16:
        *out = x.u16;
        return true;
    case TD_GGUF_I16:
        *out = x.i16;
        return true;
    case TD_GGUF_U32:
        *out = x.u32;
        return true;
    case TD_GGUF_I32:
        *out = x.i32;
        return true;
    case TD_GGUF_U64:
        *out_huge = x.u64 > INT64_MAX;
        *out = (int64_t)x.u64;
        return true;
    case TD_GGUF_I64:
        *out = x.i64;
        return true;
    default:
        return false;
    }
}

td_err td_gguf_get_u64(const struct td_gguf *g, const char *key, uint64_t *out)
{
    const struct td__gguf_kv *kv = td__gguf_find(g, key);
    int64_t v = 0;
    bool huge = false;

    if (kv == NULL) {
        return TD_ERR_NOT_FOUND;
    }
    if (!read_int(kv->type, kv->value, &v, &huge) || (v < 0 && !huge)) {
        return TD_ERR_FILE_FORMAT;
    }
    *out = (uint64_t)v;
    return TD_OK;
}

td_err td_gguf_get_u32(const struct td_gguf *g, const char *key, uint32_t *out)
{
    uint64_t v = 0;

    TD_TRY(td_gguf_get_u64(g, key, &v));
    if (v > UINT32_MAX) {
        return TD_ERR_FILE_FORMAT;
    }
    *out = (uint32_t)v;
    return TD_OK;
}

static bool read_float(enum td_gguf_value type, const uint8_t *v, float *out)
{
    int64_t i = 0;
    bool huge = false;
    double d;

    if (type == TD_GGUF_F32) {
        memcpy(out, v, 4);
        return true;
    }
    if (type == TD_GGUF_F64) {
        memcpy(&d, v, 8);
        *out = (float)d;
        return true;
    }
    if (!read_int(type, v, &i, &huge) || huge) {
        return false;
    }
    *out = (float)i;
    return true;
}

td_err td_gguf_get_f32(const struct td_gguf *g, const char *key, float *out)
{
    const struct td__gguf_kv *kv = td__gguf_find(g, key);

    if (kv == NULL) {
        return TD_ERR_NOT_FOUND;
    }
    return read_float(kv->type, kv->value, out) ? TD_OK : TD_ERR_FILE_FORMAT;
}

td_err td_gguf_get_bool(const struct td_gguf *g, const char *key, bool *out)
{
    const struct td__gguf_kv *kv = td__gguf_find(g, key);

    if (kv == NULL) {
        return TD_ERR_NOT_FOUND;
    }
    if (kv->type != TD_GGUF_BOOL) {
        return TD_ERR_FILE_FORMAT;
    }
    *out = kv->value[0] != 0;
    return TD_OK;
}

td_err td_gguf_get_str(const struct td_gguf *g, const char *key, struct td_str *out)
{
    const struct td__gguf_kv *kv = td__gguf_find(g, key);

    if (kv == NULL) {
        return TD_ERR_NOT_FOUND;
    }
    if (kv->type != TD_GGUF_STRING) {
        return TD_ERR_FILE_FORMAT;
    }
    *out = (struct td_str){(const char *)kv->value, (size_t)kv->n};
    return TD_OK;
}

td_err td_gguf_get_array(const struct td_gguf *g, const char *key, enum td_gguf_value *out_type,
                         size_t *out_n)
{
    const struct td__gguf_kv *kv = td__gguf_find(g, key);

    if (kv == NULL) {
        return TD_ERR_NOT_FOUND;
    }
    if (kv->type != TD_GGUF_ARRAY) {
        return TD_ERR_FILE_FORMAT;
    }
    *out_type = kv->elem;
    *out_n = (size_t)kv->n;
    return TD_OK;
}

/* The array of this key with exactly n elements. */
static td_err find_array(const struct td_gguf *g, const char *key, size_t n,
                         const struct td__gguf_kv **out)
{
    const struct td__gguf_kv *kv = td__gguf_find(g, key);

    if (kv == NULL) {
        return TD_ERR_NOT_FOUND;
    }
    if (kv->type != TD_GGUF_ARRAY || kv->n != n) {
        return TD_ERR_FILE_FORMAT;
    }
    *out = kv;
    return TD_OK;
}

td_err td_gguf_read_strings(const struct td_gguf *g, const char *key, struct td_str *out, size_t n)
{
    const struct td__gguf_kv *kv = NULL;
    const uint8_t *at;

    TD_TRY(find_array(g, key, n, &kv));
    if (kv->elem != TD_GGUF_STRING) {
        return TD_ERR_FILE_FORMAT;
    }
    at = kv->value;
    for (size_t i = 0; i < n; i++) { /* lengths were checked by skip_strings() */
        uint64_t len;

        memcpy(&len, at, 8);
        out[i] = (struct td_str){(const char *)at + 8, (size_t)len};
        at += 8 + len;
    }
    return TD_OK;
}

td_err td_gguf_read_i32(const struct td_gguf *g, const char *key, int32_t *out, size_t n)
{
    const struct td__gguf_kv *kv = NULL;
    int64_t v = 0;
    bool huge = false;

    TD_TRY(find_array(g, key, n, &kv));
    for (size_t i = 0; i < n; i++) {
        if (!read_int(kv->elem, kv->value + i * td__gguf_value_bytes[kv->elem], &v, &huge) ||
            huge || v < INT32_MIN || v > INT32_MAX) {
            return TD_ERR_FILE_FORMAT;
        }
        out[i] = (int32_t)v;
    }
    return TD_OK;
}

td_err td_gguf_read_f32(const struct td_gguf *g, const char *key, float *out, size_t n)
{
    const struct td__gguf_kv *kv = NULL;

    TD_TRY(find_array(g, key, n, &kv));
    for (size_t i = 0; i < n; i++) {
        if (!read_float(kv->elem, kv->value + i * td__gguf_value_bytes[kv->elem], &out[i])) {
            return TD_ERR_FILE_FORMAT;
        }
    }
    return TD_OK;
}
