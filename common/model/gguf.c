#include "common/model/gguf.h"

#include <string.h>

#include "common/model/gguf_priv.h"

/* Design: one cursor walks the head of the file once. Every read goes through take(), which
 * compares with what is left before it moves, so no offset is ever computed that could wrap; every
 * product of file numbers is a checked multiplication. After the walk nothing in the table can
 * point outside the mapping, and the getters need only check kinds and ranges. Lookups go through
 * arrays of indices sorted by name, which also find duplicates. */

#define GGUF_MAGIC         0x46554747u /* "GGUF" */
#define GGUF_VERSION_SWAP2 0x02000000u
#define GGUF_VERSION_SWAP3 0x03000000u
#define GGUF_MIN_KV        13u /* key length 8, type 4, value 1 */
#define GGUF_MIN_TENSOR    32u /* name length 8, n_dims 4, one dim 8, type 4, offset 8 */

struct parse {
    const uint8_t *at;
    uint64_t left;
    uint64_t string_sum; /* bytes of strings inside arrays so far */
    struct td_why why;
};

/* ---- cursor ---- */

static bool take(struct parse *p, uint64_t n, const uint8_t **out)
{
    if (n > p->left) {
        return false;
    }
    *out = p->at;
    p->at += n;
    p->left -= n;
    return true;
}

static td_err truncated(struct parse *p, const char *what)
{
    return td_why(&p->why, TD_ERR_FILE_FORMAT, "file ends inside %s", what);
}

static td_err take_u32(struct parse *p, const char *what, uint32_t *out)
{
    const uint8_t *b = NULL;

    if (!take(p, 4, &b)) {
        return truncated(p, what);
    }
    memcpy(out, b, 4);
    return TD_OK;
}

static td_err take_u64(struct parse *p, const char *what, uint64_t *out)
{
    const uint8_t *b = NULL;

    if (!take(p, 8, &b)) {
        return truncated(p, what);
    }
    memcpy(out, b, 8);
    return TD_OK;
}

static td_err take_str(struct parse *p, const char *what, uint64_t max, struct td_str *out)
{
    uint64_t n = 0;
    const uint8_t *b = NULL;

    TD_TRY(take_u64(p, what, &n));
    if (n > max) {
        return td_why(&p->why, TD_ERR_FILE_FORMAT, "%s of %llu bytes is longer than %llu", what,
                      (unsigned long long)n, (unsigned long long)max);
    }
    if (!take(p, n, &b)) {
        return truncated(p, what);
    }
    out->data = (const char *)b;
    out->len = (size_t)n;
    return TD_OK;
}

/* ---- metadata ---- */

static td_err parse_type(struct parse *p, enum td_gguf_value *out)
{
    uint32_t t = 0;

    TD_TRY(take_u32(p, "a metadata type", &t));
    if (t >= TD__GGUF_N_VALUES) {
        return td_why(&p->why, TD_ERR_FILE_FORMAT, "metadata type %u does not exist", t);
    }
    *out = (enum td_gguf_value)t;
    return TD_OK;
}

static td_err skip_strings(struct parse *p, uint64_t n)
{
    struct td_str s = {NULL, 0};

    for (uint64_t i = 0; i < n; i++) {
        TD_TRY(take_str(p, "a string of an array", TD_GGUF_MAX_STRING, &s));
        p->string_sum += s.len; /* bounded by the file's size */
        if (p->string_sum > TD_GGUF_MAX_STRING_SUM) {
            return td_why(&p->why, TD_ERR_FILE_FORMAT, "strings inside arrays exceed %u bytes",
                          TD_GGUF_MAX_STRING_SUM);
        }
    }
    return TD_OK;
}

static td_err parse_array(struct parse *p, struct td__gguf_kv *kv)
{
    const uint8_t *b = NULL;

    TD_TRY(parse_type(p, &kv->elem));
    TD_TRY(take_u64(p, "an array length", &kv->n));
    if (kv->elem == TD_GGUF_ARRAY) {
        return td_why(&p->why, TD_ERR_FILE_UNSUPPORTED,
                      "metadata %s: arrays of arrays are not read", td_show(kv->key).text);
    }
    if (kv->n > TD_GGUF_MAX_ARRAY) {
        return td_why(&p->why, TD_ERR_FILE_FORMAT,
                      "metadata %s: an array of %llu elements is longer than %u",
                      td_show(kv->key).text, (unsigned long long)kv->n, TD_GGUF_MAX_ARRAY);
    }
    kv->value = p->at;
    if (kv->elem == TD_GGUF_STRING) {
        return skip_strings(p, kv->n);
    }
    /* At most MAX_ARRAY * 8: no wrap. */
    return take(p, kv->n * td__gguf_value_bytes[kv->elem], &b) ? TD_OK : truncated(p, "an array");
}

static td_err parse_kv(struct parse *p, struct td__gguf_kv *kv)
{
    struct td_str s = {NULL, 0};

    TD_TRY(take_str(p, "a metadata key", TD_GGUF_MAX_KEY, &kv->key));
    if (kv->key.len == 0) {
        return td_why(&p->why, TD_ERR_FILE_FORMAT, "a metadata key is empty");
    }
    TD_TRY(parse_type(p, &kv->type));
    if (kv->type == TD_GGUF_ARRAY) {
        return parse_array(p, kv);
    }
    if (kv->type == TD_GGUF_STRING) {
        TD_TRY(take_str(p, "a metadata string", TD_GGUF_MAX_STRING, &s));
        kv->value = (const uint8_t *)s.data;
        kv->n = s.len;
        return TD_OK;
    }
    kv->n = 1;
    if (!take(p, td__gguf_value_bytes[kv->type], &kv->value)) {
        return truncated(p, "a metadata value");
    }
    if (kv->type == TD_GGUF_BOOL && kv->value[0] > 1) {
        return td_why(&p->why, TD_ERR_FILE_FORMAT, "metadata %s: a boolean is neither 0 nor 1",
                      td_show(kv->key).text);
    }
    return TD_OK;
}

static int cmp_kv(const void *a, const void *b, void *arg)
{
    const struct td_gguf *g = arg;

    return td__str_cmp(g->kv[*(const uint32_t *)a].key, g->kv[*(const uint32_t *)b].key);
}

static td_err parse_kvs(struct parse *p, struct td_gguf *g)
{
    g->kv = td_zalloc(g->n_kv, sizeof *g->kv);
    g->kv_sorted = td_zalloc(g->n_kv, sizeof *g->kv_sorted);
    if (g->n_kv > 0 && (g->kv == NULL || g->kv_sorted == NULL)) {
        return td_why(&p->why, TD_ERR_NO_MEMORY, "out of memory for %zu metadata entries", g->n_kv);
    }
    for (size_t i = 0; i < g->n_kv; i++) {
        TD_TRY(parse_kv(p, &g->kv[i]));
        g->kv_sorted[i] = (uint32_t)i;
    }
    if (g->n_kv > 1) {
        qsort_r(g->kv_sorted, g->n_kv, sizeof *g->kv_sorted, cmp_kv, g);
    }
    for (size_t i = 1; i < g->n_kv; i++) {
        if (td__str_cmp(g->kv[g->kv_sorted[i - 1]].key, g->kv[g->kv_sorted[i]].key) == 0) {
            return td_why(&p->why, TD_ERR_FILE_FORMAT, "metadata key %s occurs twice",
                          td_show(g->kv[g->kv_sorted[i]].key).text);
        }
    }
    return TD_OK;
}

static td_err parse_alignment(struct parse *p, struct td_gguf *g)
{
    const struct td__gguf_kv *kv = td__gguf_find(g, "general.alignment");

    g->alignment = 32;
    if (kv == NULL) {
        return TD_OK;
    }
    if (kv->type != TD_GGUF_U32) {
        return td_why(&p->why, TD_ERR_FILE_FORMAT,
                      "general.alignment is not a 32-bit unsigned number");
    }
    memcpy(&g->alignment, kv->value, 4);
    if (g->alignment < TD_GGUF_MIN_ALIGNMENT || g->alignment > TD_GGUF_MAX_ALIGNMENT ||
        (g->alignment & (g->alignment - 1)) != 0) {
        return td_why(&p->why, TD_ERR_FILE_FORMAT,
                      "general.alignment %u is not a power of two in [%u, %u]", g->alignment,
                      TD_GGUF_MIN_ALIGNMENT, TD_GGUF_MAX_ALIGNMENT);
    }
    return TD_OK;
}

/* ---- tensor table ---- */

static td_err tensor_bytes(struct parse *p, struct td_gguf_tensor *t)
{
    const struct td_dtype_info *d = td_dtype_info(t->dtype);
    uint64_t n = 1;

    for (uint32_t i = 0; i < t->n_dims; i++) {
        if (t->dims[i] == 0) {
            return td_why(&p->why, TD_ERR_FILE_FORMAT, "tensor %s: a dimension is zero",
                          td_show(t->name).text);
        }
        if (__builtin_mul_overflow(n, t->dims[i], &n)) {
            return td_why(&p->why, TD_ERR_FILE_FORMAT,
                          "tensor %s: the product of its dimensions overflows",
                          td_show(t->name).text);
        }
    }
    if (t->dims[0] % d->block != 0) {
        return td_why(&p->why, TD_ERR_FILE_FORMAT,
                      "tensor %s: rows of %llu are not a multiple of %s's block of %u",
                      td_show(t->name).text, (unsigned long long)t->dims[0], d->name, d->block);
    }
    if (__builtin_mul_overflow(n / d->block, (uint64_t)d->block_bytes, &t->bytes)) {
        return td_why(&p->why, TD_ERR_FILE_FORMAT, "tensor %s: its size overflows",
                      td_show(t->name).text);
    }
    return TD_OK;
}

/* *out_offset is relative to the data section, not checked yet. */
static td_err parse_tensor(struct parse *p, struct td_gguf_tensor *t, uint64_t *out_offset)
{
    uint32_t dtype = 0;

    TD_TRY(take_str(p, "a tensor name", TD_GGUF_MAX_NAME, &t->name));
    if (t->name.len == 0) {
        return td_why(&p->why, TD_ERR_FILE_FORMAT, "a tensor name is empty");
    }
    TD_TRY(take_u32(p, "a tensor's number of dimensions", &t->n_dims));
    if (t->n_dims < 1 || t->n_dims > TD_GGUF_MAX_DIMS) {
        return td_why(&p->why, TD_ERR_FILE_FORMAT, "tensor %s: %u dimensions, not 1 to %d",
                      td_show(t->name).text, t->n_dims, TD_GGUF_MAX_DIMS);
    }
    for (uint32_t i = 0; i < TD_GGUF_MAX_DIMS; i++) {
        t->dims[i] = 1;
        if (i < t->n_dims) {
            TD_TRY(take_u64(p, "a tensor's dimensions", &t->dims[i]));
        }
    }
    TD_TRY(take_u32(p, "a tensor's type", &dtype));
    if (td_dtype_info(dtype) == NULL) {
        return td_why(&p->why, TD_ERR_FILE_FORMAT, "tensor %s: type %u does not exist",
                      td_show(t->name).text, dtype);
    }
    t->dtype = (enum td_dtype)dtype;
    TD_TRY(take_u64(p, "a tensor's offset", out_offset));
    return tensor_bytes(p, t);
}

static td_err place_tensor(struct parse *p, const struct td_gguf *g, struct td_gguf_tensor *t,
                           uint64_t offset)
{
    uint64_t room = g->len - g->head_bytes;

    if (offset % g->alignment != 0) {
        return td_why(&p->why, TD_ERR_FILE_FORMAT, "tensor %s: offset %llu is not aligned to %u",
                      td_show(t->name).text, (unsigned long long)offset, g->alignment);
    }
    if (offset > room || t->bytes > room - offset) {
        return td_why(&p->why, TD_ERR_FILE_FORMAT,
                      "tensor %s: %llu bytes at %llu reach past the end of the file",
                      td_show(t->name).text, (unsigned long long)t->bytes,
                      (unsigned long long)offset);
    }
    t->data = g->bytes + g->head_bytes + offset;
    return TD_OK;
}

static int cmp_tensor_name(const void *a, const void *b, void *arg)
{
    const struct td_gguf *g = arg;

    return td__str_cmp(g->tensors[*(const uint32_t *)a].name,
                       g->tensors[*(const uint32_t *)b].name);
}

static int cmp_tensor_data(const void *a, const void *b, void *arg)
{
    const struct td_gguf *g = arg;
    const uint8_t *x = g->tensors[*(const uint32_t *)a].data;
    const uint8_t *y = g->tensors[*(const uint32_t *)b].data;

    return (x > y) - (x < y);
}

static td_err check_overlap(struct parse *p, struct td_gguf *g)
{
    qsort_r(g->tensors_sorted, g->n_tensors, sizeof *g->tensors_sorted, cmp_tensor_data, g);
    for (size_t i = 1; i < g->n_tensors; i++) {
        const struct td_gguf_tensor *a = &g->tensors[g->tensors_sorted[i - 1]];
        const struct td_gguf_tensor *b = &g->tensors[g->tensors_sorted[i]];

        if ((const uint8_t *)b->data - (const uint8_t *)a->data < (int64_t)a->bytes) {
            return td_why(&p->why, TD_ERR_FILE_FORMAT, "tensors %s and %s overlap",
                          td_show(a->name).text, td_show(b->name).text);
        }
    }
    return TD_OK;
}

static td_err check_names(struct parse *p, struct td_gguf *g)
{
    qsort_r(g->tensors_sorted, g->n_tensors, sizeof *g->tensors_sorted, cmp_tensor_name, g);
    for (size_t i = 1; i < g->n_tensors; i++) {
        struct td_str name = g->tensors[g->tensors_sorted[i]].name;

        if (td__str_cmp(g->tensors[g->tensors_sorted[i - 1]].name, name) == 0) {
            return td_why(&p->why, TD_ERR_FILE_FORMAT, "tensor %s occurs twice",
                          td_show(name).text);
        }
    }
    return TD_OK;
}

/* Where the data section starts; the file may end before it only when there is no tensor. */
static td_err find_data(struct parse *p, struct td_gguf *g)
{
    uint64_t head = g->len - p->left;
    uint64_t start;

    if (g->n_tensors == 0) {
        g->head_bytes = head;
        return TD_OK;
    }
    if (__builtin_add_overflow(head, (uint64_t)g->alignment - 1, &start)) {
        return truncated(p, "the tensor table");
    }
    start &= ~((uint64_t)g->alignment - 1);
    if (start > g->len) {
        return truncated(p, "the padding before the tensor data");
    }
    g->head_bytes = start;
    return TD_OK;
}

static td_err parse_tensors(struct parse *p, struct td_gguf *g)
{
    TD_CLEANUP(td_freep) uint64_t *offsets = td_zalloc(g->n_tensors, sizeof *offsets);

    g->tensors = td_zalloc(g->n_tensors, sizeof *g->tensors);
    g->tensors_sorted = td_zalloc(g->n_tensors, sizeof *g->tensors_sorted);
    if (g->n_tensors > 0 && (offsets == NULL || g->tensors == NULL || g->tensors_sorted == NULL)) {
        return td_why(&p->why, TD_ERR_NO_MEMORY, "out of memory for %zu tensors", g->n_tensors);
    }
    for (size_t i = 0; i < g->n_tensors; i++) {
        TD_TRY(parse_tensor(p, &g->tensors[i], &offsets[i]));
        g->tensors_sorted[i] = (uint32_t)i;
    }
    TD_TRY(find_data(p, g));
    for (size_t i = 0; i < g->n_tensors; i++) {
        TD_TRY(place_tensor(p, g, &g->tensors[i], offsets[i]));
    }
    if (g->n_tensors > 1) {
        TD_TRY(check_overlap(p, g));
        TD_TRY(check_names(p, g));
    }
    return TD_OK;
}

/* ---- opening ---- */

static td_err parse_header(struct parse *p, struct td_gguf *g)
{
    uint32_t magic = 0;
    uint64_t n_tensors = 0;
    uint64_t n_kv = 0;

    TD_TRY(take_u32(p, "the header", &magic));
    if (magic != GGUF_MAGIC) {
        return td_why(&p->why, TD_ERR_FILE_FORMAT, "not a GGUF file");
    }
    TD_TRY(take_u32(p, "the header", &g->version));
    if (g->version == GGUF_VERSION_SWAP2 || g->version == GGUF_VERSION_SWAP3) {
        return td_why(&p->why, TD_ERR_FILE_UNSUPPORTED, "a big-endian GGUF file is not read");
    }
    if (g->version < 2 || g->version > 3) {
        return td_why(&p->why, TD_ERR_FILE_UNSUPPORTED, "GGUF version %u is not read, only 2 and 3",
                      g->version);
    }
    TD_TRY(take_u64(p, "the header", &n_tensors));
    TD_TRY(take_u64(p, "the header", &n_kv));
    if (n_kv > TD_GGUF_MAX_KV || n_tensors > TD_GGUF_MAX_TENSORS) {
        return td_why(&p->why, TD_ERR_FILE_FORMAT,
                      "%llu metadata entries and %llu tensors, at most %u and %u",
                      (unsigned long long)n_kv, (unsigned long long)n_tensors, TD_GGUF_MAX_KV,
                      TD_GGUF_MAX_TENSORS);
    }
    if (n_kv * GGUF_MIN_KV + n_tensors * GGUF_MIN_TENSOR > p->left) {
        return truncated(p, "the metadata: it is too short for its counts");
    }
    g->n_kv = (size_t)n_kv;
    g->n_tensors = (size_t)n_tensors;
    return TD_OK;
}

static td_err parse_all(struct td_gguf *g, char *err_text, size_t err_cap)
{
    struct parse p = {.at = g->bytes, .left = g->len, .why = {err_text, err_cap}};

    TD_TRY(parse_header(&p, g));
    TD_TRY(parse_kvs(&p, g));
    TD_TRY(parse_alignment(&p, g));
    TD_TRY(parse_tensors(&p, g));
    g->magic = TD__GGUF_OPEN;
    return TD_OK;
}

td_err td_gguf_open_memory(const void *data, size_t len, struct td_gguf **out_gguf, char *err_text,
                           size_t err_cap)
{
    TD_CLEANUP(td_gguf_closep) struct td_gguf *g = td_zalloc(1, sizeof *g);

    if (g == NULL) {
        struct parse p = {.why = {err_text, err_cap}};

        return td_why(&p.why, TD_ERR_NO_MEMORY, "out of memory");
    }
    g->bytes = data;
    g->len = len;
    TD_TRY(parse_all(g, err_text, err_cap));
    *out_gguf = TD_STEAL(g);
    return TD_OK;
}

td_err td_gguf_open(const char *path, struct td_gguf **out_gguf, char *err_text, size_t err_cap)
{
    TD_CLEANUP(td_gguf_closep) struct td_gguf *g = td_zalloc(1, sizeof *g);
    struct td_why why = {err_text, err_cap};

    if (g == NULL) {
        return td_why(&why, TD_ERR_NO_MEMORY, "out of memory");
    }
    TD_TRY(td_file_map(path, UINT64_MAX, &g->map, &why));
    g->bytes = g->map.data;
    g->len = g->map.len;
    TD_TRY(parse_all(g, err_text, err_cap));
    *out_gguf = TD_STEAL(g);
    return TD_OK;
}

struct td_gguf *td_gguf_close(struct td_gguf *g)
{
    if (g == NULL) {
        return NULL;
    }
    g->magic = 0;
    td_file_unmap(&g->map);
    free(g->kv);
    free(g->kv_sorted);
    free(g->tensors);
    free(g->tensors_sorted);
    free(g);
    return NULL;
}
