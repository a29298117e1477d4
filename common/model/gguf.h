/* gguf.h - a hostile-proof reader of GGUF version 2 and 3 files over a read-only mapping.
 *
 * What: metadata (typed getters, arrays) and the tensor table, every length, type, shape and offset
 * checked before it is used. Strings and tensor data are views into the mapping: no copy, valid
 * until td_gguf_close(). Not: an opinion about models: names and shapes that an architecture
 * demands are checked by model.h. Owner: whoever opened it. Thread: open and close on one; the
 * getters are read-only: any. Bounds: the TD_GGUF_MAX_* below; memory used is at most a few dozen
 * bytes per metadata entry and tensor, and both counts are checked against the bytes left in the
 * file before anything is allocated. Failure: TD_ERR_NO_FILE, TD_ERR_IO, TD_ERR_NO_MEMORY,
 * TD_ERR_FILE_FORMAT (malformed) or TD_ERR_FILE_UNSUPPORTED (well formed, but this build cannot
 * read it), with a sentence for the operator in err_text; nothing is logged here. A file that
 * shrinks while it is mapped ends the process (SIGBUS), as with any mapping: model volumes are
 * read-only.
 */
#ifndef TD_MODEL_GGUF_H
#define TD_MODEL_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/base/mem.h"

#define TD_GGUF_MAX_KV      (64u * 1024)
#define TD_GGUF_MAX_TENSORS (64u * 1024)
#define TD_GGUF_MAX_DIMS    4
#define TD_GGUF_MAX_STRING  (1024u * 1024) /* bytes of one string */
#define TD_GGUF_MAX_STRING_SUM                                                                     \
    (16u * 1024 * 1024) /* bytes of all strings inside arrays (vocabulary, merges) */
#define TD_GGUF_MAX_ARRAY     (4u * 1024 * 1024) /* elements of one array */
#define TD_GGUF_MAX_NAME      128                /* bytes of a tensor's name */
#define TD_GGUF_MAX_KEY       1024               /* bytes of a metadata key */
#define TD_GGUF_MIN_ALIGNMENT 8u
#define TD_GGUF_MAX_ALIGNMENT (1024u * 1024)
#define TD_GGUF_ERR_TEXT      256 /* a good size for err_text */

/* Types of metadata values, with the numbers of the file format. */
enum td_gguf_value {
    TD_GGUF_U8,
    TD_GGUF_I8,
    TD_GGUF_U16,
    TD_GGUF_I16,
    TD_GGUF_U32,
    TD_GGUF_I32,
    TD_GGUF_F32,
    TD_GGUF_BOOL,
    TD_GGUF_STRING,
    TD_GGUF_ARRAY,
    TD_GGUF_U64,
    TD_GGUF_I64,
    TD_GGUF_F64,
};

/* Types of tensor elements, with the numbers of the file format. Those that dequant.h can read are
 * marked there. */
enum td_dtype {
    TD_DTYPE_F32 = 0,
    TD_DTYPE_F16 = 1,
    TD_DTYPE_Q4_0 = 2,
    TD_DTYPE_Q4_1 = 3,
    TD_DTYPE_Q5_0 = 6,
    TD_DTYPE_Q5_1 = 7,
    TD_DTYPE_Q8_0 = 8,
    TD_DTYPE_Q8_1 = 9,
    TD_DTYPE_Q2_K = 10,
    TD_DTYPE_Q3_K = 11,
    TD_DTYPE_Q4_K = 12,
    TD_DTYPE_Q5_K = 13,
    TD_DTYPE_Q6_K = 14,
    TD_DTYPE_Q8_K = 15,
    TD_DTYPE_IQ2_XXS = 16,
    TD_DTYPE_IQ2_XS = 17,
    TD_DTYPE_IQ3_XXS = 18,
    TD_DTYPE_IQ1_S = 19,
    TD_DTYPE_IQ4_NL = 20,
    TD_DTYPE_IQ3_S = 21,
    TD_DTYPE_IQ2_S = 22,
    TD_DTYPE_IQ4_XS = 23,
    TD_DTYPE_I8 = 24,
    TD_DTYPE_I16 = 25,
    TD_DTYPE_I32 = 26,
    TD_DTYPE_I64 = 27,
    TD_DTYPE_F64 = 28,
    TD_DTYPE_IQ1_M = 29,
    TD_DTYPE_BF16 = 30,
};

/* A type's name, the elements of a block, the bytes of a block. */
struct td_dtype_info {
    const char *name;
    uint32_t block;
    uint32_t block_bytes;
};
/* NULL for a number that is not in the table. */
const struct td_dtype_info *td_dtype_info(uint32_t dtype);

/* Bytes in the mapping, not terminated; may hold any byte, zero included. */
struct td_str {
    const char *data;
    size_t len;
};

struct td_gguf_tensor {
    struct td_str name;
    enum td_dtype dtype;
    uint32_t n_dims;
    uint64_t
        dims[TD_GGUF_MAX_DIMS]; /* dims[0] is the fastest (a row's length); unused ones are 1 */
    const void *data;           /* in the mapping, aligned to the file's alignment */
    uint64_t bytes;
};

struct td_gguf;

/* err_text (optional, err_cap bytes) gets one sentence on failure. */
td_err td_gguf_open(const char *path, struct td_gguf **out_gguf, char *err_text,
                    size_t err_cap) TD_MUST_CHECK;
/* The same over bytes that the caller keeps alive and unchanged until close; `data` aligned to 16.
 */
td_err td_gguf_open_memory(const void *data, size_t len, struct td_gguf **out_gguf, char *err_text,
                           size_t err_cap) TD_MUST_CHECK;
struct td_gguf *td_gguf_close(struct td_gguf *g);
TD_DEFINE_CLEANUP(struct td_gguf, td_gguf_close)

uint32_t td_gguf_version(const struct td_gguf *g);
/* The whole mapping, and the part of it before the tensor data (header, metadata, tensor table). */
const void *td_gguf_bytes(const struct td_gguf *g, uint64_t *out_len);
uint64_t td_gguf_head_bytes(const struct td_gguf *g);

size_t td_gguf_n_kv(const struct td_gguf *g);
size_t td_gguf_n_tensors(const struct td_gguf *g);
/* i < n. Tensors in the order of the file. */
const struct td_gguf_tensor *td_gguf_tensor_at(const struct td_gguf *g, size_t i);
/* NULL when there is none of this name. */
const struct td_gguf_tensor *td_gguf_tensor(const struct td_gguf *g, const char *name);

/* Getters: TD_ERR_NOT_FOUND without the key, TD_ERR_FILE_FORMAT when the value is of another kind
 * or out of range. Integers of every width and sign are accepted where the value fits; a number for
 * a float is accepted, not the reverse; a boolean must be a boolean. Outputs are untouched on
 * failure. */
bool td_gguf_has(const struct td_gguf *g, const char *key);
td_err td_gguf_get_u32(const struct td_gguf *g, const char *key, uint32_t *out) TD_MUST_CHECK;
td_err td_gguf_get_u64(const struct td_gguf *g, const char *key, uint64_t *out) TD_MUST_CHECK;
td_err td_gguf_get_f32(const struct td_gguf *g, const char *key, float *out) TD_MUST_CHECK;
td_err td_gguf_get_bool(const struct td_gguf *g, const char *key, bool *out) TD_MUST_CHECK;
td_err td_gguf_get_str(const struct td_gguf *g, const char *key, struct td_str *out) TD_MUST_CHECK;

/* An array's element type and length. */
td_err td_gguf_get_array(const struct td_gguf *g, const char *key, enum td_gguf_value *out_type,
                         size_t *out_n) TD_MUST_CHECK;
/* Copies the first n elements; n must equal the array's length, else TD_ERR_FILE_FORMAT. out may be
 * partly written on failure. */
td_err td_gguf_read_strings(const struct td_gguf *g, const char *key, struct td_str *out,
                            size_t n) TD_MUST_CHECK;
td_err td_gguf_read_i32(const struct td_gguf *g, const char *key, int32_t *out,
                        size_t n) TD_MUST_CHECK;
td_err td_gguf_read_f32(const struct td_gguf *g, const char *key, float *out,
                        size_t n) TD_MUST_CHECK;

bool td_str_eq(struct td_str s, const char *z);

#endif
