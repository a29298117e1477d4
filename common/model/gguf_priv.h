/* gguf_priv.h - the open file as gguf.c (parser) and gguf_read.c (getters) share it. Included by no
 * one else. */
#ifndef TD_MODEL_GGUF_PRIV_H
#define TD_MODEL_GGUF_PRIV_H

#include "common/model/file.h"
#include "common/model/gguf.h"

#define TD__GGUF_OPEN     0x47475546u /* magic of an open object */
#define TD__GGUF_N_VALUES 13

struct td__gguf_kv {
    struct td_str key;
    enum td_gguf_value type;
    enum td_gguf_value elem; /* of an array */
    uint64_t n;              /* bytes of a string, elements of an array, else 1 */
    const uint8_t *value;    /* first byte of the value, string or first element */
};

struct td_gguf {
    uint32_t magic;
    uint32_t version;
    const uint8_t *bytes;
    uint64_t len;
    struct td_file_map map; /* empty: bytes of the caller */
    uint64_t head_bytes;
    uint32_t alignment;
    size_t n_kv, n_tensors;
    struct td__gguf_kv *kv;         /* owned [n_kv] */
    struct td_gguf_tensor *tensors; /* owned [n_tensors] */
    uint32_t *kv_sorted;            /* owned, indices by key */
    uint32_t *tensors_sorted;       /* owned, indices by name */
};

/* Bytes of one value of each type; 0 for string and array. */
extern const uint8_t td__gguf_value_bytes[TD__GGUF_N_VALUES];

/* Order of bytes, then of length: the order of kv_sorted and tensors_sorted. */
int td__str_cmp(struct td_str a, struct td_str b);
/* The tensor of this name by its index of names; NULL without. */
const struct td_gguf_tensor *td__tensor_find(const struct td_gguf_tensor *tensors,
                                             const uint32_t *sorted, size_t n, struct td_str name);
/* NULL without the key. */
const struct td__gguf_kv *td__gguf_find(const struct td_gguf *g, const char *key);

#endif
