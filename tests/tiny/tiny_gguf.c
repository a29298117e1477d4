#include "tests/tiny/tiny_gguf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/base/rng.h"
#include "common/model/dequant.h"
#include "common/model/tiny_vocab.h"
#include "tests/tiny/gguf_build.h"
#include "tests/tiny/tiny_quant.h"

/* Spread of the final logits over printable tokens. */
#define LOGIT_STD 3.0
#define EMBD_STD  0.05

static const char chat_template[] =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}";

static const enum td_dtype mix[] = {TD_DTYPE_Q4_1, TD_DTYPE_Q4_K, TD_DTYPE_Q8_0, TD_DTYPE_Q6_K,
                                    TD_DTYPE_Q4_0, TD_DTYPE_F16,  TD_DTYPE_Q5_K, TD_DTYPE_Q5_0,
                                    TD_DTYPE_BF16, TD_DTYPE_Q5_1, TD_DTYPE_F32};

struct writer {
    const struct td_tiny_params *p;
    struct td_gguf_build b;
    struct td_rng rng;
    struct td_tiny_vocab *vocab; /* owned */
    float *row;                  /* owned, one row of values */
    uint8_t *bytes;              /* owned, one matrix as stored */
    int type;                    /* enum td_dtype, or -1 for the mix */
    uint32_t n_mats;             /* matrices so far: where the mix stands */
};

struct td_tiny_params td_tiny_defaults(void)
{
    return (struct td_tiny_params){.seed = 1,
                                   .type = "mix",
                                   .n_layers = 2,
                                   .n_embd = 256,
                                   .n_ffn = 512,
                                   .n_heads = 4,
                                   .n_kv_heads = 2,
                                   .n_ctx = 2048};
}

/* Nearly normal with standard deviation 1: four 16-bit draws added as integers, so exact on every
 * machine. */
static float draw(struct td_rng *r)
{
    uint64_t u = td_rng_next(r);
    int64_t sum = (int64_t)((u & 0xffff) + (u >> 16 & 0xffff) + (u >> 32 & 0xffff) + (u >> 48));

    return (float)(sum - 2 * 65535) * (1.0f / 37837.0f); /* 65536 sqrt(4 / 12) */
}

static enum td_dtype next_type(struct writer *w)
{
    uint32_t i = w->n_mats++;

    return w->type >= 0 ? (enum td_dtype)w->type : mix[i % TD_COUNT(mix)];
}

static void matrix(struct writer *w, const char *name, enum td_dtype dtype, uint32_t rows,
                   uint32_t cols, float std)
{
    const struct td_dtype_info *info = td_dtype_info((uint32_t)dtype);
    size_t row_bytes = (size_t)cols / info->block * info->block_bytes;
    bool vocab = rows == w->vocab->n_tokens;

    for (uint32_t r = 0; r < rows; r++) {
        float s = vocab && !w->vocab->printable[r] ? std * 0.1f : std;

        for (uint32_t c = 0; c < cols; c++) {
            w->row[c] = draw(&w->rng) * s;
        }
        td_tiny_quantize_row(dtype, w->row, cols, w->bytes + r * row_bytes);
    }
    td_gguf_build_tensor(&w->b, name, dtype, 2, (uint64_t[]){cols, rows}, w->bytes,
                         rows * row_bytes);
}

static void vector(struct writer *w, const char *name, uint32_t n, float mean, float std)
{
    for (uint32_t c = 0; c < n; c++) {
        w->row[c] = mean + draw(&w->rng) * std;
    }
    td_gguf_build_tensor(&w->b, name, TD_DTYPE_F32, 1, (uint64_t[]){n}, w->row, n * sizeof(float));
}

static void norm(struct writer *w, const char *name, float scale)
{
    for (uint32_t c = 0; c < w->p->n_embd; c++) {
        w->row[c] = scale * (1 + draw(&w->rng) * 0.1f);
    }
    td_gguf_build_tensor(&w->b, name, TD_DTYPE_F32, 1, (uint64_t[]){w->p->n_embd}, w->row,
                         w->p->n_embd * sizeof(float));
}

static const char *arch_of(const struct td_tiny_params *p)
{
    return p->arch != NULL ? p->arch : "llama";
}

static uint32_t head_dim_of(const struct td_tiny_params *p)
{
    return p->head_dim != 0 ? p->head_dim : p->n_embd / p->n_heads;
}

/* What sets an architecture apart from llama. */
static void extras(struct writer *w, uint32_t l)
{
    uint32_t q = w->p->n_heads * head_dim_of(w->p);
    uint32_t kv = w->p->n_kv_heads * head_dim_of(w->p);
    const struct {
        const char *arch, *name;
        uint32_t n;
        float mean, std;
    } vectors[] = {
        {"qwen2", "attn_q.bias", q, 0, 0.5f},
        {"qwen2", "attn_k.bias", kv, 0, 0.5f},
        {"qwen2", "attn_v.bias", kv, 0, 0.5f},
        {"qwen3", "attn_q_norm.weight", head_dim_of(w->p), 2, 0.2f},
        {"qwen3", "attn_k_norm.weight", head_dim_of(w->p), 1, 0.1f},
    };
    char name[64];

    for (size_t i = 0; i < TD_COUNT(vectors); i++) {
        if (strcmp(arch_of(w->p), vectors[i].arch) == 0) {
            (void)snprintf(name, sizeof name, "blk.%u.%s", l, vectors[i].name);
            vector(w, name, vectors[i].n, vectors[i].mean, vectors[i].std);
        }
    }
}

static void layer(struct writer *w, uint32_t l)
{
    const struct td_tiny_params *p = w->p;
    uint32_t q = p->n_heads * head_dim_of(p);
    uint32_t kv = p->n_kv_heads * head_dim_of(p);
    float in = 1 / sqrtf((float)p->n_embd);
    float inside = 1 / sqrtf((float)p->n_ffn);
    const struct {
        const char *name;
        uint32_t rows, cols;
        float std;
    } mats[] = {
        /* Queries are longer than keys: attention picks, so the answer depends on the prompt. */
        {"attn_q", q, p->n_embd, 3 * in},          {"attn_k", kv, p->n_embd, in},
        {"attn_v", kv, p->n_embd, 2 * in},         {"attn_output", p->n_embd, q, in},
        {"ffn_gate", p->n_ffn, p->n_embd, 2 * in}, {"ffn_up", p->n_ffn, p->n_embd, 2 * in},
        {"ffn_down", p->n_embd, p->n_ffn, inside},
    };
    char name[64];

    (void)snprintf(name, sizeof name, "blk.%u.attn_norm.weight", l);
    norm(w, name, 1);
    (void)snprintf(name, sizeof name, "blk.%u.ffn_norm.weight", l);
    norm(w, name, 1);
    for (size_t i = 0; i < TD_COUNT(mats); i++) {
        (void)snprintf(name, sizeof name, "blk.%u.%s.weight", l, mats[i].name);
        matrix(w, name, next_type(w), mats[i].rows, mats[i].cols, mats[i].std);
    }
    extras(w, l);
}

static void arch_u32(struct writer *w, const char *key, uint32_t v)
{
    char name[96];

    (void)snprintf(name, sizeof name, "%s.%s", arch_of(w->p), key);
    td_gguf_build_u32(&w->b, name, v);
}

static void arch_f32(struct writer *w, const char *key, float v)
{
    char name[96];

    (void)snprintf(name, sizeof name, "%s.%s", arch_of(w->p), key);
    td_gguf_build_f32(&w->b, name, v);
}

static void tensors(struct writer *w)
{
    const struct td_tiny_params *p = w->p;
    bool q8 = w->type < 0 || w->type == TD_DTYPE_Q4_1; /* as in the default model */
    enum td_dtype embd = q8 ? TD_DTYPE_Q8_0 : (enum td_dtype)w->type;
    float to_logits = (float)(LOGIT_STD / EMBD_STD) / sqrtf((float)p->n_embd);

    matrix(w, "token_embd.weight", embd, w->vocab->n_tokens, p->n_embd, (float)EMBD_STD);
    for (uint32_t l = 0; l < p->n_layers; l++) {
        layer(w, l);
    }
    norm(w, "output_norm.weight", to_logits);
    if (p->untied) {
        matrix(w, "output.weight", next_type(w), w->vocab->n_tokens, p->n_embd, (float)EMBD_STD);
    }
}

static void metadata(struct writer *w)
{
    const struct td_tiny_params *p = w->p;
    struct td_gguf_build *b = &w->b;
    char name[64];

    (void)snprintf(name, sizeof name, "tiny %s seed %llu", p->type, (unsigned long long)p->seed);
    td_gguf_build_str(b, "general.architecture", arch_of(p));
    td_gguf_build_str(b, "general.name", name);
    arch_u32(w, "block_count", p->n_layers);
    arch_u32(w, "context_length", p->n_ctx);
    arch_u32(w, "embedding_length", p->n_embd);
    arch_u32(w, "feed_forward_length", p->n_ffn);
    arch_u32(w, "attention.head_count", p->n_heads);
    arch_u32(w, "attention.head_count_kv", p->n_kv_heads);
    arch_f32(w, "attention.layer_norm_rms_epsilon", 1e-5f);
    arch_u32(w, "rope.dimension_count", head_dim_of(p));
    arch_f32(w, "rope.freq_base", 10000);
    arch_u32(w, "vocab_size", w->vocab->n_tokens);
    if (p->head_dim != 0) {
        arch_u32(w, "attention.key_length", p->head_dim);
        arch_u32(w, "attention.value_length", p->head_dim);
    }
    if (p->window != 0) {
        arch_u32(w, "attention.sliding_window", p->window);
    }
    td_gguf_build_str(b, "tokenizer.ggml.model", "gpt2");
    td_gguf_build_str(b, "tokenizer.ggml.pre", "smollm");
    td_gguf_build_strs(b, "tokenizer.ggml.tokens", w->vocab->tokens, w->vocab->n_tokens);
    td_gguf_build_i32s(b, "tokenizer.ggml.token_type", w->vocab->types, w->vocab->n_tokens);
    td_gguf_build_strs(b, "tokenizer.ggml.merges", w->vocab->merges, w->vocab->n_merges);
    td_gguf_build_u32(b, "tokenizer.ggml.bos_token_id", TD_TINY_IM_START);
    td_gguf_build_u32(b, "tokenizer.ggml.eos_token_id", TD_TINY_IM_END);
    td_gguf_build_u32(b, "tokenizer.ggml.unknown_token_id", TD_TINY_ENDOFTEXT);
    td_gguf_build_u32(b, "tokenizer.ggml.padding_token_id", TD_TINY_PAD);
    td_gguf_build_bool(b, "tokenizer.ggml.add_bos_token", false);
    td_gguf_build_bool(b, "tokenizer.ggml.add_space_prefix", false);
    td_gguf_build_str(b, "tokenizer.chat_template", chat_template);
}

/* -2 when there is no such type. */
static int find_type(const char *name)
{
    if (strcasecmp(name, "mix") == 0) {
        return -1;
    }
    for (uint32_t t = 0; t <= TD_DTYPE_BF16; t++) {
        if (td_dequant_supported((enum td_dtype)t) &&
            strcasecmp(td_dtype_info(t)->name, name) == 0) {
            return (int)t;
        }
    }
    return -2;
}

static bool params_ok(const struct td_tiny_params *p, int type)
{
    uint32_t block = type >= 0 ? td_dtype_info((uint32_t)type)->block : 256;

    return type != -2 && p->n_layers >= 1 && p->n_layers <= TD_TINY_MAX_LAYERS && p->n_embd >= 1 &&
           p->n_embd <= TD_TINY_MAX_EMBD && p->n_ffn >= 1 && p->n_ffn <= TD_TINY_MAX_FFN &&
           p->n_embd % block == 0 && p->n_ffn % block == 0 && p->n_heads >= 1 &&
           p->n_embd % p->n_heads == 0 && p->n_kv_heads >= 1 && p->n_heads % p->n_kv_heads == 0 &&
           head_dim_of(p) % 2 == 0 && p->n_heads * head_dim_of(p) <= TD_TINY_MAX_FFN &&
           p->n_heads * head_dim_of(p) % block == 0 && p->n_ctx >= 1;
}

static td_err write_all(struct writer *w, struct td_buf *out)
{
    uint32_t widest = w->p->n_embd > w->p->n_ffn ? w->p->n_embd : w->p->n_ffn;
    uint32_t q = w->p->n_heads * head_dim_of(w->p);

    widest = widest > q ? widest : q;
    TD_TRY(td_tiny_vocab_create(&w->vocab));
    w->row = td_zalloc(widest, sizeof *w->row);
    w->bytes = td_zalloc((size_t)widest + w->vocab->n_tokens, (size_t)w->p->n_embd * sizeof(float));
    if (w->row == NULL || w->bytes == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    metadata(w);
    tensors(w);
    return td_gguf_build_finish(&w->b, out);
}

td_err td_tiny_write(const struct td_tiny_params *p, struct td_buf *out)
{
    struct writer w = {.p = p, .type = find_type(p->type)};
    td_err e;

    if (!params_ok(p, w.type)) {
        return TD_ERR_CONFIG;
    }
    w.rng.state = td_mix64(p->seed);
    td_gguf_build_init(&w.b);
    e = write_all(&w, out);
    td_gguf_build_fini(&w.b);
    w.vocab = td_tiny_vocab_destroy(w.vocab);
    free(w.row);
    free(w.bytes);
    return e;
}

td_err td_tiny_write_file(const struct td_tiny_params *p, const char *path)
{
    struct td_buf buf;
    FILE *f = NULL;
    td_err e;

    td_buf_init(&buf, TD_TINY_MAX_BYTES);
    e = td_tiny_write(p, &buf);
    if (e == TD_OK) {
        f = fopen(path, "wbe");
        e = f != NULL && fwrite(buf.data, 1, buf.len, f) == buf.len ? TD_OK : TD_ERR_IO;
    }
    if (f != NULL && fclose(f) != 0) {
        e = TD_ERR_IO;
    }
    td_buf_fini(&buf);
    return e;
}
