#include "common/model/safetensors.h"

#include <string.h>

#include "common/base/assert.h"
#include "common/model/gguf_priv.h"

/* Design: the header's length is compared with the file before anything is read, its bytes are
 * counted (json.h) before jansson sees them, and each entry must be exactly {dtype, shape,
 * data_offsets}. Sorted by where they begin, the tensors must then cover the data from its first
 * byte to its last, so that nothing overlaps, hides or lies outside. */

#define ST_MAGIC    0x73746e73u
#define LENGTH      8u /* bytes in front of the header */
#define HEADER_JSON ((struct td_json_limits){.depth = 4, .values = 16u * TD_ST_MAX_TENSORS})

struct td_safetensors {
    uint32_t magic;
    struct td_file_map map; /* empty: bytes of the caller */
    const uint8_t *bytes;
    uint64_t len;
    const uint8_t *data; /* behind the header */
    uint64_t data_len;
    size_t n;
    struct td_gguf_tensor *tensors; /* owned [n] in the order of the data */
    uint32_t *by_name;              /* owned [n] indices */
    char *names;                    /* owned */
};

struct parse {
    struct td_safetensors *st;
    const struct td_why *why;
    char *name_at; /* in st->names */
};

/* ---- entries ---- */

static td_err dtype_of(struct parse *p, struct td_shown name, const json_t *j, enum td_dtype *out)
{
    static const enum td_dtype known[] = {TD_DTYPE_F32, TD_DTYPE_F16, TD_DTYPE_BF16, TD_DTYPE_F64,
                                          TD_DTYPE_I8,  TD_DTYPE_I16, TD_DTYPE_I32,  TD_DTYPE_I64};
    const char *text = json_string_value(j);

    if (text == NULL) {
        return td_why(p->why, TD_ERR_FILE_FORMAT, "tensor %s has no dtype", name.text);
    }
    for (size_t i = 0; i < TD_COUNT(known); i++) {
        if (strcmp(text, td_dtype_info((uint32_t)known[i])->name) == 0) {
            *out = known[i];
            return TD_OK;
        }
    }
    return td_why(p->why, TD_ERR_FILE_UNSUPPORTED, "tensor %s has type %s, which is not supported",
                  name.text, td_show((struct td_str){text, strlen(text)}).text);
}

/* Dimensions and how many bytes they make. */
static td_err shape_of(struct parse *p, struct td_shown name, const json_t *j,
                       struct td_gguf_tensor *t)
{
    size_t n = json_array_size(j);
    uint64_t bytes = td_dtype_info((uint32_t)t->dtype)->block_bytes;

    if (!json_is_array(j)) {
        return td_why(p->why, TD_ERR_FILE_FORMAT, "tensor %s has no shape", name.text);
    }
    if (n > TD_GGUF_MAX_DIMS) {
        return td_why(p->why, TD_ERR_FILE_UNSUPPORTED, "tensor %s has %zu dimensions, more than %d",
                      name.text, n, TD_GGUF_MAX_DIMS);
    }
    t->n_dims = (uint32_t)n;
    for (size_t i = 0; i < TD_GGUF_MAX_DIMS; i++) {
        const json_t *d = i < n ? json_array_get(j, n - 1 - i) : NULL;

        t->dims[i] = d == NULL ? 1 : (uint64_t)json_integer_value(d);
        if (d != NULL && (!json_is_integer(d) || json_integer_value(d) < 1 ||
                          __builtin_mul_overflow(bytes, t->dims[i], &bytes))) {
            return td_why(p->why, TD_ERR_FILE_FORMAT, "tensor %s has an impossible shape",
                          name.text);
        }
    }
    t->bytes = bytes;
    return TD_OK;
}

static td_err offsets_of(struct parse *p, struct td_shown name, const json_t *j,
                         struct td_gguf_tensor *t)
{
    const json_t *begin = json_array_get(j, 0);
    const json_t *end = json_array_get(j, 1);
    uint64_t from;
    uint64_t to;

    if (json_array_size(j) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < 0) {
        return td_why(p->why, TD_ERR_FILE_FORMAT, "tensor %s has no data_offsets", name.text);
    }
    from = (uint64_t)json_integer_value(begin);
    to = (uint64_t)json_integer_value(end);
    if (from > to || to > p->st->data_len) {
        return td_why(p->why, TD_ERR_FILE_FORMAT, "tensor %s lies outside of the file", name.text);
    }
    if (to - from != t->bytes) {
        return td_why(p->why, TD_ERR_FILE_FORMAT,
                      "tensor %s has %llu bytes of data for a shape of %llu", name.text,
                      (unsigned long long)(to - from), (unsigned long long)t->bytes);
    }
    t->data = p->st->data + from;
    if ((uintptr_t)t->data % td_dtype_info((uint32_t)t->dtype)->block_bytes != 0) {
        return td_why(p->why, TD_ERR_FILE_UNSUPPORTED, "tensor %s is not aligned", name.text);
    }
    return TD_OK;
}

static td_err take_entry(struct parse *p, const char *key, size_t key_len, const json_t *j,
                         struct td_gguf_tensor *t)
{
    struct td_shown name = td_show((struct td_str){key, key_len});

    if (key_len < 1 || key_len > TD_ST_MAX_NAME) {
        return td_why(p->why, TD_ERR_FILE_FORMAT, "a tensor's name has %zu bytes, not 1 to %d",
                      key_len, TD_ST_MAX_NAME);
    }
    if (!json_is_object(j) || json_object_size(j) != 3) {
        return td_why(p->why, TD_ERR_FILE_FORMAT,
                      "tensor %s is not described by dtype, shape and data_offsets", name.text);
    }
    TD_TRY(dtype_of(p, name, json_object_get(j, "dtype"), &t->dtype));
    TD_TRY(shape_of(p, name, json_object_get(j, "shape"), t));
    TD_TRY(offsets_of(p, name, json_object_get(j, "data_offsets"), t));
    memcpy(p->name_at, key, key_len);
    t->name = (struct td_str){p->name_at, key_len};
    p->name_at += key_len;
    return TD_OK;
}

/* ---- the table ---- */

static int by_data(const void *a, const void *b)
{
    const struct td_gguf_tensor *x = a;
    const struct td_gguf_tensor *y = b;

    return ((uintptr_t)x->data > (uintptr_t)y->data) - ((uintptr_t)x->data < (uintptr_t)y->data);
}

static int by_name(const void *a, const void *b, void *arg)
{
    const struct td_gguf_tensor *tensors = arg;

    return td__str_cmp(tensors[*(const uint32_t *)a].name, tensors[*(const uint32_t *)b].name);
}

/* No hole, no overlap, from the first byte of the data to the last. No tensor is empty, so no two
 * begin at the same place unless they overlap. */
static td_err check_cover(struct parse *p)
{
    struct td_safetensors *st = p->st;
    const uint8_t *at = st->data;

    for (size_t i = 0; i < st->n; i++) {
        const struct td_gguf_tensor *t = &st->tensors[i];

        if (t->data != at) {
            return td_why(p->why, TD_ERR_FILE_FORMAT, "tensor %s %s the one before it",
                          td_show(t->name).text,
                          (const uint8_t *)t->data < at ? "overlaps" : "leaves a hole behind");
        }
        at += t->bytes;
    }
    if (at != st->data + st->data_len) {
        return td_why(p->why, TD_ERR_FILE_FORMAT, "%llu bytes at the end belong to no tensor",
                      (unsigned long long)(st->data + st->data_len - at));
    }
    return TD_OK;
}

static td_err alloc_table(struct parse *p, size_t n, size_t name_bytes)
{
    struct td_safetensors *st = p->st;

    if (n > TD_ST_MAX_TENSORS) {
        return td_why(p->why, TD_ERR_FILE_FORMAT, "%zu tensors, more than %u", n,
                      TD_ST_MAX_TENSORS);
    }
    st->tensors = td_zalloc(n + 1, sizeof *st->tensors);
    st->by_name = td_zalloc(n + 1, sizeof *st->by_name);
    st->names = td_zalloc(name_bytes + 1, 1);
    if (st->tensors == NULL || st->by_name == NULL || st->names == NULL) {
        return td_why(p->why, TD_ERR_NO_MEMORY, "out of memory for %zu tensors", n);
    }
    p->name_at = st->names;
    return TD_OK;
}

static bool is_metadata(const char *key)
{
    return strcmp(key, "__metadata__") == 0;
}

static td_err take_table(struct parse *p, json_t *header)
{
    struct td_safetensors *st = p->st;
    const char *key;
    json_t *value;
    size_t name_bytes = 0;

    json_object_foreach(header, key, value)
    {
        name_bytes += strlen(key);
    }
    TD_TRY(alloc_table(p, json_object_size(header), name_bytes));
    json_object_foreach(header, key, value)
    {
        if (is_metadata(key)) {
            continue; /* free text */
        }
        TD_TRY(take_entry(p, key, strlen(key), value, &st->tensors[st->n]));
        st->n++;
    }
    qsort(st->tensors, st->n, sizeof *st->tensors, by_data);
    TD_TRY(check_cover(p));
    for (uint32_t i = 0; i < st->n; i++) {
        st->by_name[i] = i;
    }
    qsort_r(st->by_name, st->n, sizeof *st->by_name, by_name, st->tensors);
    return TD_OK;
}

static td_err parse_all(struct parse *p)
{
    struct td_safetensors *st = p->st;
    TD_CLEANUP(td_json_decrefp) json_t *header = NULL;
    uint64_t len = 0;
    td_err e;

    if (st->len < LENGTH) {
        return td_why(p->why, TD_ERR_FILE_FORMAT, "file ends inside the header's length");
    }
    for (uint32_t i = 0; i < LENGTH; i++) {
        len |= (uint64_t)st->bytes[i] << (8 * i);
    }
    if (len > TD_ST_MAX_HEADER || len > st->len - LENGTH) {
        return td_why(p->why, TD_ERR_FILE_FORMAT,
                      "the header's length %llu is more than the file or %u",
                      (unsigned long long)len, TD_ST_MAX_HEADER);
    }
    if (len < 2 || st->bytes[LENGTH] != '{') {
        return td_why(p->why, TD_ERR_FILE_FORMAT, "the header does not begin with {");
    }
    st->data = st->bytes + LENGTH + len;
    st->data_len = st->len - LENGTH - len;
    e = td_json_parse_limited((const char *)st->bytes + LENGTH, (size_t)len, &HEADER_JSON, &header,
                              p->why->text, p->why->cap);
    if (e != TD_OK) {
        return e == TD_ERR_NO_MEMORY ? e : TD_ERR_FILE_FORMAT;
    }
    return take_table(p, header);
}

/* ---- opening ---- */

static td_err open_take(struct td_file_map *map, const void *data, uint64_t len,
                        struct td_safetensors **out_st, const struct td_why *w)
{
    TD_CLEANUP(td_safetensors_closep) struct td_safetensors *st = td_zalloc(1, sizeof *st);
    struct parse p = {.st = st, .why = w};

    if (st == NULL) {
        td_file_unmap(map);
        return td_why(w, TD_ERR_NO_MEMORY, "out of memory");
    }
    st->map = *map;
    st->bytes = data;
    st->len = len;
    TD_TRY(parse_all(&p));
    st->magic = ST_MAGIC;
    *out_st = TD_STEAL(st);
    return TD_OK;
}

td_err td_safetensors_open(const char *path, struct td_safetensors **out_st, const struct td_why *w)
{
    struct td_file_map map = {NULL, 0};

    TD_TRY(td_file_map(path, UINT64_MAX, &map, w));
    return open_take(&map, map.data, map.len, out_st, w);
}

td_err td_safetensors_open_memory(const void *data, size_t len, struct td_safetensors **out_st,
                                  const struct td_why *w)
{
    struct td_file_map none = {NULL, 0};

    return open_take(&none, data, len, out_st, w);
}

struct td_safetensors *td_safetensors_close(struct td_safetensors *st)
{
    if (st == NULL) {
        return NULL;
    }
    st->magic = 0;
    td_file_unmap(&st->map);
    free(st->tensors);
    free(st->by_name);
    free(st->names);
    free(st);
    return NULL;
}

size_t td_safetensors_n(const struct td_safetensors *st)
{
    TD_REQUIRE(st->magic == ST_MAGIC);
    return st->n;
}

const struct td_gguf_tensor *td_safetensors_at(const struct td_safetensors *st, size_t i)
{
    TD_REQUIRE(i < st->n);
    return &st->tensors[i];
}

const struct td_gguf_tensor *td_safetensors_find(const struct td_safetensors *st,
                                                 struct td_str name)
{
    return td__tensor_find(st->tensors, st->by_name, st->n, name);
}

uint64_t td_safetensors_file_bytes(const struct td_safetensors *st)
{
    return st->len;
}
