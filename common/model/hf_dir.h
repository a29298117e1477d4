/* hf_dir.h - a Hugging Face model directory: its JSON files, its chat template, one table over all
 * of its safetensors shards.
 *
 * What: opens model.safetensors, or the shards that model.safetensors.index.json names, and checks
 * that index and shards agree; reads config.json and, where they exist, generation_config.json,
 * tokenizer_config.json, tokenizer.json and chat_template.jinja. Not: an opinion about what they
 * say (hf_config.h, hf_tok.h, model.h); pickled weights (.bin, .pt) are never looked at. Owner:
 * whoever opened it. Thread: open and close on one; the rest is read-only: any. Bounds:
 * TD_HF_MAX_*. Failure: as safetensors.h, with a sentence that names the file.
 */
#ifndef TD_MODEL_HF_DIR_H
#define TD_MODEL_HF_DIR_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/model/file.h"
#include "common/model/gguf.h"

#define TD_HF_MAX_SHARDS    1024u
#define TD_HF_MAX_CONFIG    (4u * 1024 * 1024)  /* bytes of config.json and the smaller files */
#define TD_HF_MAX_TOKENIZER (64u * 1024 * 1024) /* bytes of tokenizer.json */
#define TD_HF_MAX_INDEX     (16u * 1024 * 1024) /* bytes of the index */
#define TD_HF_MAX_PATH      4096u

struct td_hf_dir;

/* True for a path that names a directory. */
bool td_hf_is_dir(const char *path);

td_err td_hf_dir_open(const char *path, struct td_hf_dir **out_dir,
                      const struct td_why *w) TD_MUST_CHECK;
struct td_hf_dir *td_hf_dir_close(struct td_hf_dir *d);
TD_DEFINE_CLEANUP(struct td_hf_dir, td_hf_dir_close)

/* Borrowed objects; NULL when the directory has no such file, but never for config. */
const json_t *td_hf_dir_config(const struct td_hf_dir *d);
const json_t *td_hf_dir_generation(const struct td_hf_dir *d);
const json_t *td_hf_dir_tokenizer_config(const struct td_hf_dir *d);
const json_t *td_hf_dir_tokenizer(const struct td_hf_dir *d);
/* Frees the parsed tokenizer.json, the only large one. */
void td_hf_dir_drop_tokenizer(struct td_hf_dir *d);
/* chat_template.jinja; empty when there is none. */
struct td_str td_hf_dir_template(const struct td_hf_dir *d);
/* The directory's own name. */
struct td_str td_hf_dir_name(const struct td_hf_dir *d);

/* Tensors of all shards, sorted by name. */
size_t td_hf_dir_n_tensors(const struct td_hf_dir *d);
const struct td_gguf_tensor *td_hf_dir_tensor_at(const struct td_hf_dir *d, size_t i);
const struct td_gguf_tensor *td_hf_dir_tensor(const struct td_hf_dir *d, const char *name);
/* Of all shards together. */
uint64_t td_hf_dir_bytes(const struct td_hf_dir *d);

#endif
