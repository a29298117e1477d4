/* tiny_gguf.h - seeded tiny llama, qwen2 and qwen3 models as GGUF files: what unit, sanitizer, fault and simulator
 * tests run on.
 *
 * What: random weights scaled so that logits have a spread of a few units, greedy answers depend on
 * the prompt, are mostly ASCII and do not end at once; a byte-level BPE vocabulary (tiny_vocab.h)
 * and a ChatML template. The same parameters give the same bytes on every machine. Owner and
 * thread: its test. Bounds: TD_TINY_MAX_*. Failure: TD_ERR_CONFIG for parameters out of range,
 * TD_ERR_NO_MEMORY, TD_ERR_IO.
 */
#ifndef TD_TESTS_TINY_GGUF_H
#define TD_TESTS_TINY_GGUF_H

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/model/gguf.h"

#define TD_TINY_MAX_LAYERS 48
#define TD_TINY_MAX_EMBD   2048
#define TD_TINY_MAX_FFN    8192
#define TD_TINY_MAX_BYTES  (512u * 1024 * 1024)

struct td_tiny_params {
    uint64_t seed;
    const char
        *type; /* a name of td_dtype_info in any case, or "mix": every supported type occurs */
    uint32_t n_layers;
    uint32_t n_embd, n_ffn; /* multiples of 256 unless the type's block is smaller */
    uint32_t n_heads, n_kv_heads, n_ctx;
    bool untied;       /* a separate output matrix */
    const char *arch;  /* NULL: "llama"; "qwen2" adds biases, "qwen3" norms of heads */
    uint32_t window;   /* 0: none */
    uint32_t head_dim; /* 0: n_embd / n_heads */
};

/* seed 1, "mix", 2 layers, 256 wide, 512 inside, 4 heads, 2 KV heads, context 2048, tied. */
struct td_tiny_params td_tiny_defaults(void);

/* Appends the file to *out. */
td_err td_tiny_write(const struct td_tiny_params *p, struct td_buf *out) TD_MUST_CHECK;
td_err td_tiny_write_file(const struct td_tiny_params *p, const char *path) TD_MUST_CHECK;

#endif
