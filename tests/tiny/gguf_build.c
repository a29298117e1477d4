#include "tests/tiny/gguf_build.h"

#include <string.h>

static void put(struct td_gguf_build *b, struct td_buf *to, const void *data, size_t len)
{
    if (b->err == TD_OK && len > 0) {
        b->err = td_buf_append(to, data, len);
    }
}

static void put_u32(struct td_gguf_build *b, struct td_buf *to, uint32_t v)
{
    put(b, to, &v, sizeof v);
}

static void put_u64(struct td_gguf_build *b, struct td_buf *to, uint64_t v)
{
    put(b, to, &v, sizeof v);
}

static void put_str(struct td_gguf_build *b, struct td_buf *to, const char *s, size_t len)
{
    put_u64(b, to, len);
    put(b, to, s, len);
}

static void pad(struct td_gguf_build *b, struct td_buf *to, uint32_t alignment)
{
    static const uint8_t zero[64];

    while (b->err == TD_OK && to->len % alignment != 0) {
        size_t n = alignment - to->len % alignment;

        put(b, to, zero, n < sizeof zero ? n : sizeof zero);
    }
}

void td_gguf_build_init(struct td_gguf_build *b)
{
    memset(b, 0, sizeof *b);
    b->version = 3;
    b->alignment = 32;
    td_buf_init(&b->kv, TD_GGUF_BUILD_MAX);
    td_buf_init(&b->tensors, TD_GGUF_BUILD_MAX);
    td_buf_init(&b->data, TD_GGUF_BUILD_MAX);
}

void td_gguf_build_fini(struct td_gguf_build *b)
{
    td_buf_fini(&b->kv);
    td_buf_fini(&b->tensors);
    td_buf_fini(&b->data);
}

static void begin_kv(struct td_gguf_build *b, const char *key, uint32_t type)
{
    put_str(b, &b->kv, key, strlen(key));
    put_u32(b, &b->kv, type);
    b->n_kv++;
}

static void begin_array(struct td_gguf_build *b, const char *key, enum td_gguf_value elem, size_t n)
{
    begin_kv(b, key, TD_GGUF_ARRAY);
    put_u32(b, &b->kv, (uint32_t)elem);
    put_u64(b, &b->kv, n);
}

void td_gguf_build_raw(struct td_gguf_build *b, const char *key, uint32_t type, const void *value,
                       size_t len)
{
    begin_kv(b, key, type);
    put(b, &b->kv, value, len);
}

void td_gguf_build_u32(struct td_gguf_build *b, const char *key, uint32_t v)
{
    td_gguf_build_raw(b, key, TD_GGUF_U32, &v, sizeof v);
}

void td_gguf_build_f32(struct td_gguf_build *b, const char *key, float v)
{
    td_gguf_build_raw(b, key, TD_GGUF_F32, &v, sizeof v);
}

void td_gguf_build_bool(struct td_gguf_build *b, const char *key, bool v)
{
    uint8_t byte = v ? 1 : 0;

    td_gguf_build_raw(b, key, TD_GGUF_BOOL, &byte, sizeof byte);
}

void td_gguf_build_str(struct td_gguf_build *b, const char *key, const char *v)
{
    begin_kv(b, key, TD_GGUF_STRING);
    put_str(b, &b->kv, v, strlen(v));
}

void td_gguf_build_strs(struct td_gguf_build *b, const char *key, const struct td_str *v, size_t n)
{
    begin_array(b, key, TD_GGUF_STRING, n);
    for (size_t i = 0; i < n; i++) {
        put_str(b, &b->kv, v[i].data, v[i].len);
    }
}

void td_gguf_build_i32s(struct td_gguf_build *b, const char *key, const int32_t *v, size_t n)
{
    begin_array(b, key, TD_GGUF_I32, n);
    put(b, &b->kv, v, n * sizeof *v);
}

void td_gguf_build_entry(struct td_gguf_build *b, const char *name, uint32_t dtype, uint32_t n_dims,
                         const uint64_t *dims, uint64_t offset)
{
    put_str(b, &b->tensors, name, strlen(name));
    put_u32(b, &b->tensors, n_dims);
    put(b, &b->tensors, dims, n_dims * sizeof *dims);
    put_u32(b, &b->tensors, dtype);
    put_u64(b, &b->tensors, offset);
    b->n_tensors++;
}

void td_gguf_build_tensor(struct td_gguf_build *b, const char *name, enum td_dtype dtype,
                          uint32_t n_dims, const uint64_t *dims, const void *data, size_t len)
{
    pad(b, &b->data, b->alignment);
    td_gguf_build_entry(b, name, (uint32_t)dtype, n_dims, dims, b->data.len);
    put(b, &b->data, data, len);
}

td_err td_gguf_build_finish(struct td_gguf_build *b, struct td_buf *out)
{
    put(b, out, "GGUF", 4);
    put_u32(b, out, b->version);
    put_u64(b, out, b->n_tensors);
    put_u64(b, out, b->n_kv);
    put(b, out, b->kv.data, b->kv.len);
    put(b, out, b->tensors.data, b->tensors.len);
    if (b->n_tensors > 0) {
        pad(b, out, b->alignment);
        put(b, out, b->data.data, b->data.len);
    }
    return b->err;
}
