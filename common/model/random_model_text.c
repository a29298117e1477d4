/* random_model_text.c - the JSON files of a random model: what a reader of Hugging Face directories
 * expects beside the weights. */
#include <string.h>

#include "common/model/hf_tok.h"
#include "common/model/random_model_priv.h"

/* Both spellings of the files in the field: llama as transformers 5 writes (merges as pairs, the
 * template beside the configuration), the others as transformers 4. */

static const char chat_template[] =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}";

static const struct {
    enum td_arch arch;
    const char *model_type, *class;
    const char *split;
    bool nfc;
} kinds[] = {
    {TD_ARCH_LLAMA, "llama", "LlamaForCausalLM", TD_HF_SPLIT_LLAMA3, false},
    {TD_ARCH_QWEN2, "qwen2", "Qwen2ForCausalLM", TD_HF_SPLIT_QWEN2, true},
    {TD_ARCH_QWEN3, "qwen3", "Qwen3ForCausalLM", TD_HF_SPLIT_QWEN2, true},
    {TD_ARCH_MISTRAL, "mistral", "MistralForCausalLM", TD_HF_SPLIT_TEKKEN, false},
};

static size_t kind_of(const struct td_random_shape *s)
{
    size_t i = 0;

    while (kinds[i].arch != s->arch) {
        i++;
    }
    return i;
}

/* Writes an object and drops it; NULL means that memory ran out while it was made. */
static td_err write_json(const char *dir, const char *name, json_t *j, const struct td_why *w)
{
    char *text = j != NULL ? json_dumps(j, JSON_INDENT(2) | JSON_ENSURE_ASCII) : NULL;
    td_err e = text != NULL ? td__random_write_file(dir, name, text, strlen(text), w)
                            : td_why(w, TD_ERR_NO_MEMORY, "out of memory for %s", name);

    free(text);
    json_decref(j);
    return e;
}

/* ---- config.json ---- */

static json_t *rope(const struct td_random_shape *s)
{
    return s->llama3_rope ? json_pack("{s:s,s:f,s:f,s:f,s:i}", "rope_type", "llama3", "factor", 8.0,
                                      "low_freq_factor", 1.0, "high_freq_factor", 4.0,
                                      "original_max_position_embeddings", 256)
                          : json_null();
}

static json_t *config(const struct td_random_shape *s)
{
    size_t k = kind_of(s);

    return json_pack(
        "{s:[s],s:s,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:f,s:f,s:o,s:s,s:b,s:b,s:s,s:i,s:i,s:f,s:b,"
        "s:o}",
        "architectures", kinds[k].class, "model_type", kinds[k].model_type, "num_hidden_layers",
        (int)s->n_layers, "hidden_size", (int)s->n_embd, "intermediate_size", (int)s->n_ffn,
        "num_attention_heads", (int)s->n_heads, "num_key_value_heads", (int)s->n_kv_heads,
        "head_dim", (int)s->head_dim, "vocab_size", (int)s->n_vocab, "max_position_embeddings",
        (int)s->n_ctx, "rms_norm_eps", s->rms_eps, "rope_theta", s->rope_theta, "rope_scaling",
        rope(s), "hidden_act", "silu", "tie_word_embeddings", (int)s->tied, "attention_bias", 0,
        "torch_dtype", "bfloat16", "bos_token_id", TD_TINY_ENDOFTEXT, "eos_token_id",
        TD_TINY_IM_END, "attention_dropout", 0.0, "use_cache", 1, "sliding_window",
        s->window > 0 ? json_integer((json_int_t)s->window) : json_null());
}

static json_t *generation(void)
{
    return json_pack("{s:i,s:[i,i],s:i}", "bos_token_id", TD_TINY_ENDOFTEXT, "eos_token_id",
                     TD_TINY_IM_END, TD_TINY_ENDOFTEXT, "pad_token_id", TD_TINY_PAD);
}

/* ---- tokenizer.json ---- */

static json_t *text(struct td_str s)
{
    return json_stringn(s.data, s.len);
}

static json_t *vocab_of(const struct td_tiny_vocab *v)
{
    json_t *vocab = json_object();

    for (uint32_t i = 0; i < v->n_tokens; i++) {
        if (json_object_setn_new(vocab, v->tokens[i].data, v->tokens[i].len, json_integer(i)) !=
            0) {
            json_decref(vocab);
            return NULL;
        }
    }
    return vocab;
}

/* "a b", or ["a", "b"]. */
static json_t *merges_of(const struct td_tiny_vocab *v, bool pairs)
{
    json_t *merges = json_array();

    for (uint32_t i = 0; i < v->n_merges; i++) {
        struct td_str m = v->merges[i];
        const char *space = memchr(m.data, ' ', m.len);
        size_t left = space != NULL ? (size_t)(space - m.data) : 0;
        json_t *one = pairs ? json_pack("[o,o]", json_stringn(m.data, left),
                                        json_stringn(m.data + left + 1, m.len - left - 1))
                            : text(m);

        if (json_array_append_new(merges, one) != 0) {
            json_decref(merges);
            return NULL;
        }
    }
    return merges;
}

static json_t *added_of(const struct td_tiny_vocab *v)
{
    json_t *added = json_array();

    for (uint32_t i = 0; i < TD_TINY_SPECIALS; i++) {
        json_t *one =
            json_pack("{s:i,s:o,s:b,s:b,s:b,s:b,s:b}", "id", (int)i, "content", text(v->tokens[i]),
                      "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1);

        if (json_array_append_new(added, one) != 0) {
            json_decref(added);
            return NULL;
        }
    }
    return added;
}

static json_t *byte_level(bool use_regex)
{
    return json_pack("{s:s,s:b,s:b,s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                     "trim_offsets", 1, "use_regex", (int)use_regex);
}

static json_t *pre_tokenizer(const char *split)
{
    return json_pack("{s:s,s:[{s:s,s:{s:s},s:s,s:b},o]}", "type", "Sequence", "pretokenizers",
                     "type", "Split", "pattern", "Regex", split, "behavior", "Isolated", "invert",
                     0, byte_level(false));
}

/* llama puts <|endoftext|> before everything, as its family does. */
static json_t *post_processor(bool bos)
{
    return bos ? json_pack(
                     "{s:s,s:[{s:{s:s,s:i}},{s:{s:s,s:i}}],s:[{s:{s:s,s:i}},{s:{s:s,s:i}}],s:{s:{s:"
                     "s,s:[i],s:[s]}}}",
                     "type", "TemplateProcessing", "single", "SpecialToken", "id", "<|endoftext|>",
                     "type_id", 0, "Sequence", "id", "A", "type_id", 0, "pair", "Sequence", "id",
                     "A", "type_id", 0, "Sequence", "id", "B", "type_id", 1, "special_tokens",
                     "<|endoftext|>", "id", "<|endoftext|>", "ids", TD_TINY_ENDOFTEXT, "tokens",
                     "<|endoftext|>")
               : byte_level(false);
}

static json_t *tokenizer(const struct td_random_shape *s, const struct td_tiny_vocab *v)
{
    size_t k = kind_of(s);
    bool llama = s->arch == TD_ARCH_LLAMA;
    json_t *normalizer = kinds[k].nfc ? json_pack("{s:s}", "type", "NFC") : json_null();

    return json_pack(
        "{s:s,s:n,s:n,s:o,s:o,s:o,s:o,s:o,s:{s:s,s:n,s:n,s:n,s:n,s:b,s:b,s:b,s:o,s:o}}", "version",
        "1.0", "truncation", "padding", "added_tokens", added_of(v), "normalizer", normalizer,
        "pre_tokenizer", pre_tokenizer(kinds[k].split), "post_processor", post_processor(llama),
        "decoder", byte_level(true), "model", "type", "BPE", "dropout", "unk_token",
        "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0,
        "ignore_merges", (int)llama, "vocab", vocab_of(v), "merges", merges_of(v, llama));
}

static json_t *tokenizer_config(const struct td_random_shape *s)
{
    bool beside = s->arch == TD_ARCH_LLAMA; /* the template has a file of its own */

    return json_pack("{s:s,s:s,s:s,s:s,s:i,s:b,s:o*}", "tokenizer_class", "PreTrainedTokenizerFast",
                     "bos_token", "<|endoftext|>", "eos_token", "<|im_end|>", "pad_token",
                     "<|pad|>", "model_max_length", (int)s->n_ctx, "clean_up_tokenization_spaces",
                     0, "chat_template", beside ? NULL : json_string(chat_template));
}

td_err td__random_write_texts(const struct td_random_shape *s, const struct td_tiny_vocab *v,
                              const char *dir, const struct td_why *w)
{
    TD_TRY(write_json(dir, "config.json", config(s), w));
    TD_TRY(write_json(dir, "generation_config.json", generation(), w));
    TD_TRY(write_json(dir, "tokenizer.json", tokenizer(s, v), w));
    TD_TRY(write_json(dir, "tokenizer_config.json", tokenizer_config(s), w));
    return s->arch == TD_ARCH_LLAMA
               ? td__random_write_file(dir, "chat_template.jinja", chat_template,
                                       sizeof chat_template - 1, w)
               : TD_OK;
}
