/* small_model.h - a minimal llama file (one layer, 32 wide, three tokens) with one thing wrong:
 * what model_test.c and tok_data_test.c refuse. */
#ifndef TD_TESTS_UNIT_MODEL_SMALL_MODEL_H
#define TD_TESTS_UNIT_MODEL_SMALL_MODEL_H

#include "tests/unit/model/model_util.h"

/* What differs from the valid file. A key or tensor named in `drop` is left out; `u32_key` gets
 * another number. */
struct change {
    const char *drop;
    const char *u32_key;
    uint32_t u32;
    const char *f32_key;
    float f32;
    const char *str_key;
    const char *str;
    const char *tensor; /* gets these dimensions and type */
    uint64_t d0, d1;
    enum td_dtype dtype;
    void (*extra)(struct td_gguf_build *b);
};

static inline bool is(const char *name, const char *other)
{
    return other != NULL && strcmp(name, other) == 0;
}

static inline void small_u32(struct td_gguf_build *b, const struct change *c, const char *key,
                             uint32_t v)
{
    if (!is(key, c->drop)) {
        td_gguf_build_u32(b, key, is(key, c->u32_key) ? c->u32 : v);
    }
}

static inline void small_f32(struct td_gguf_build *b, const struct change *c, const char *key,
                             float v)
{
    if (!is(key, c->drop)) {
        td_gguf_build_f32(b, key, is(key, c->f32_key) ? c->f32 : v);
    }
}

static inline void small_str(struct td_gguf_build *b, const struct change *c, const char *key,
                             const char *v)
{
    if (!is(key, c->drop)) {
        td_gguf_build_str(b, key, is(key, c->str_key) ? c->str : v);
    }
}

static inline void small_tensor(struct td_gguf_build *b, const struct change *c, const char *name,
                                uint64_t d0, uint64_t d1)
{
    static const float ones[64 * 64] = {1, 1, 1};
    bool changed = is(name, c->tensor);
    uint64_t dims[2] = {changed ? c->d0 : d0, changed ? c->d1 : d1};
    enum td_dtype dtype = changed ? c->dtype : TD_DTYPE_F32;
    const struct td_dtype_info *info = td_dtype_info((uint32_t)dtype);

    if (!is(name, c->drop)) {
        td_gguf_build_tensor(b, name, dtype, d1 == 1 && !changed ? 1 : 2, dims, ones,
                             dims[0] * dims[1] / info->block * info->block_bytes);
    }
}

static inline void small_tokenizer(struct td_gguf_build *b, const struct change *c)
{
    static const struct td_str tokens[] = {{"<|im_end|>", 10}, {"a", 1}, {"ab", 2}};
    static const struct td_str merges[] = {{"a b", 3}};
    static const int32_t types[] = {3, 1, 1};

    small_str(b, c, "tokenizer.ggml.model", "gpt2");
    small_str(b, c, "tokenizer.ggml.pre", "smollm");
    small_str(b, c, "tokenizer.chat_template", "{{ messages }}");
    if (!is("tokenizer.ggml.tokens", c->drop)) {
        td_gguf_build_strs(b, "tokenizer.ggml.tokens", tokens, 3);
    }
    if (!is("tokenizer.ggml.token_type", c->drop)) {
        td_gguf_build_i32s(b, "tokenizer.ggml.token_type", types, 3);
    }
    if (!is("tokenizer.ggml.merges", c->drop)) {
        td_gguf_build_strs(b, "tokenizer.ggml.merges", merges, 1);
    }
    small_u32(b, c, "tokenizer.ggml.bos_token_id", 1);
    small_u32(b, c, "tokenizer.ggml.eos_token_id", 2);
}

static inline void small_model(const struct change *c, struct td_buf *out)
{
    struct td_gguf_build b;

    td_gguf_build_init(&b);
    small_str(&b, c, "general.architecture", "llama");
    small_u32(&b, c, "llama.block_count", 1);
    small_u32(&b, c, "llama.context_length", 64);
    small_u32(&b, c, "llama.embedding_length", 32);
    small_u32(&b, c, "llama.feed_forward_length", 64);
    small_u32(&b, c, "llama.attention.head_count", 4);
    small_u32(&b, c, "llama.attention.head_count_kv", 2);
    small_f32(&b, c, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    small_u32(&b, c, "llama.rope.dimension_count", 8);
    small_f32(&b, c, "llama.rope.freq_base", 10000);
    small_tokenizer(&b, c);
    small_tensor(&b, c, "token_embd.weight", 32, 3);
    small_tensor(&b, c, "output_norm.weight", 32, 1);
    small_tensor(&b, c, "blk.0.attn_norm.weight", 32, 1);
    small_tensor(&b, c, "blk.0.attn_q.weight", 32, 32);
    small_tensor(&b, c, "blk.0.attn_k.weight", 32, 16);
    small_tensor(&b, c, "blk.0.attn_v.weight", 32, 16);
    small_tensor(&b, c, "blk.0.attn_output.weight", 32, 32);
    small_tensor(&b, c, "blk.0.ffn_norm.weight", 32, 1);
    small_tensor(&b, c, "blk.0.ffn_gate.weight", 32, 64);
    small_tensor(&b, c, "blk.0.ffn_up.weight", 32, 64);
    small_tensor(&b, c, "blk.0.ffn_down.weight", 64, 32);
    if (c->extra != NULL) {
        c->extra(&b);
    }
    td_buf_init(out, TD_GGUF_BUILD_MAX);
    assert_int_equal(td_gguf_build_finish(&b, out), TD_OK);
    td_gguf_build_fini(&b);
}

#endif
