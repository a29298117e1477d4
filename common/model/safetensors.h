/* safetensors.h - a hostile-proof reader of one safetensors file over a read-only mapping.
 *
 * What: the header (8 bytes of length, JSON) into a table of tensors; every length, type, shape and
 * offset is checked before it is used. Tensor data are views into the mapping. Not: a directory of
 * shards (hf_dir.h), and not an opinion about names and shapes (model.h). Owner: whoever opened it.
 * Thread: open and close on one; the getters are read-only: any. Bounds: TD_ST_MAX_*; a header's
 * size and values are counted before it is parsed. Failure: TD_ERR_NO_FILE, TD_ERR_IO,
 * TD_ERR_NO_MEMORY, TD_ERR_FILE_FORMAT (malformed) or TD_ERR_FILE_UNSUPPORTED (well formed, but this
 * build cannot read it), with a sentence; nothing is logged here.
 */
#ifndef TD_MODEL_SAFETENSORS_H
#define TD_MODEL_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/model/file.h"
#include "common/model/gguf.h"

#define TD_ST_MAX_HEADER  (100u * 1000 * 1000) /* bytes, as the format says */
#define TD_ST_MAX_TENSORS (64u * 1024)
#define TD_ST_MAX_NAME    256 /* bytes */

struct td_safetensors;

td_err td_safetensors_open(const char *path, struct td_safetensors **out_st,
                           const struct td_why *w) TD_MUST_CHECK;
/* The same over bytes that the caller keeps alive and unchanged until close; aligned to 16. */
td_err td_safetensors_open_memory(const void *data, size_t len, struct td_safetensors **out_st,
                                  const struct td_why *w) TD_MUST_CHECK;
struct td_safetensors *td_safetensors_close(struct td_safetensors *st);
TD_DEFINE_CLEANUP(struct td_safetensors, td_safetensors_close)

size_t td_safetensors_n(const struct td_safetensors *st);
/* i < n; in the order of the data. Dimensions are the fastest first, as everywhere here: the file
 * has them the other way round. Types are F32, F16, BF16 and the integers and float64 of gguf.h. */
const struct td_gguf_tensor *td_safetensors_at(const struct td_safetensors *st, size_t i);
/* NULL when there is none of this name. */
const struct td_gguf_tensor *td_safetensors_find(const struct td_safetensors *st,
                                                 struct td_str name);
uint64_t td_safetensors_file_bytes(const struct td_safetensors *st);

#endif
