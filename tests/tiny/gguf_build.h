/* gguf_build.h - writes GGUF files, valid or deliberately wrong, for tests.
 *
 * What: appends metadata and tensors, then joins them. Nothing is checked: hostile files are made
 * by the same calls. Errors are sticky: the first is kept in `err`, later calls do nothing,
 * td_gguf_build_finish() returns it. Owner and thread: its test. Bounds: TD_GGUF_BUILD_MAX bytes.
 */
#ifndef TD_TESTS_TINY_GGUF_BUILD_H
#define TD_TESTS_TINY_GGUF_BUILD_H

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/model/gguf.h"

#define TD_GGUF_BUILD_MAX (512u * 1024 * 1024)

struct td_gguf_build {
    td_err err;
    uint32_t version;   /* 3 */
    uint32_t alignment; /* 32; what is used for padding, whether or not the metadata says so */
    uint64_t n_kv, n_tensors;
    struct td_buf kv, tensors, data; /* owned */
};

void td_gguf_build_init(struct td_gguf_build *b);
void td_gguf_build_fini(struct td_gguf_build *b);

void td_gguf_build_u32(struct td_gguf_build *b, const char *key, uint32_t v);
void td_gguf_build_f32(struct td_gguf_build *b, const char *key, float v);
void td_gguf_build_bool(struct td_gguf_build *b, const char *key, bool v);
void td_gguf_build_str(struct td_gguf_build *b, const char *key, const char *v);
void td_gguf_build_strs(struct td_gguf_build *b, const char *key, const struct td_str *v, size_t n);
void td_gguf_build_i32s(struct td_gguf_build *b, const char *key, const int32_t *v, size_t n);
/* A value as the file holds it, behind key and type. */
void td_gguf_build_raw(struct td_gguf_build *b, const char *key, uint32_t type, const void *value,
                       size_t len);

/* Data is padded to the alignment; its offset is where it lands. */
void td_gguf_build_tensor(struct td_gguf_build *b, const char *name, enum td_dtype dtype,
                          uint32_t n_dims, const uint64_t *dims, const void *data, size_t len);
/* A table entry alone, as it stands. */
void td_gguf_build_entry(struct td_gguf_build *b, const char *name, uint32_t dtype, uint32_t n_dims,
                         const uint64_t *dims, uint64_t offset);

/* Appends the file to *out. */
td_err td_gguf_build_finish(struct td_gguf_build *b, struct td_buf *out) TD_MUST_CHECK;

#endif
