#include "common/model/tok_data.h"

#include <string.h>

#include "common/model/digest.h"
#include "common/model/file.h"

#define KEY(name) "tokenizer.ggml." name

struct load {
    const struct td_gguf *g;
    struct td_why why;
};

/* An optional string; a key of another kind is an error. */
static td_err load_str(const struct load *l, const char *key, struct td_str *out)
{
    td_err e = td_gguf_get_str(l->g, key, out);

    if (e == TD_ERR_NOT_FOUND) {
        *out = (struct td_str){"", 0};
        return TD_OK;
    }
    return e == TD_OK ? TD_OK : td_why(&l->why, e, "%s is not a string", key);
}

static td_err load_bool(const struct load *l, const char *key, bool absent, bool *out)
{
    td_err e = td_gguf_get_bool(l->g, key, out);

    if (e == TD_ERR_NOT_FOUND) {
        *out = absent;
        return TD_OK;
    }
    return e == TD_OK ? TD_OK : td_why(&l->why, e, "%s is not a boolean", key);
}

static td_err load_id(const struct load *l, const char *key, uint32_t n_tokens, int32_t *out)
{
    uint32_t id = 0;
    td_err e = td_gguf_get_u32(l->g, key, &id);

    *out = -1;
    if (e == TD_ERR_NOT_FOUND) {
        return TD_OK;
    }
    if (e != TD_OK || id >= n_tokens) {
        return td_why(&l->why, TD_ERR_FILE_FORMAT, "%s is not a token id below %u", key, n_tokens);
    }
    *out = (int32_t)id;
    return TD_OK;
}

/* An optional array of exactly n numbers of the given size; NULL without the key. */
static td_err load_numbers(const struct load *l, const char *key, size_t n, bool floats, void **out)
{
    TD_CLEANUP(td_freep) void *a = NULL;
    td_err e;

    *out = NULL;
    if (!td_gguf_has(l->g, key)) {
        return TD_OK;
    }
    a = td_zalloc(n, 4);
    if (a == NULL) {
        return td_why(&l->why, TD_ERR_NO_MEMORY, "out of memory for %s", key);
    }
    e = floats ? td_gguf_read_f32(l->g, key, a, n) : td_gguf_read_i32(l->g, key, a, n);
    if (e != TD_OK) {
        return td_why(&l->why, e, "%s is not an array of %zu numbers, one for each token", key, n);
    }
    *out = TD_STEAL(a);
    return TD_OK;
}

static td_err load_strings(const struct load *l, const char *key, uint32_t max, uint32_t *out_n,
                           const struct td_str **out)
{
    TD_CLEANUP(td_freep) struct td_str *a = NULL;
    enum td_gguf_value type = TD_GGUF_U8;
    size_t n = 0;

    if (td_gguf_get_array(l->g, key, &type, &n) != TD_OK || type != TD_GGUF_STRING) {
        return td_why(&l->why, TD_ERR_FILE_FORMAT, "%s is not an array of strings", key);
    }
    if (n > max) {
        return td_why(&l->why, TD_ERR_FILE_FORMAT, "%s has %zu entries, more than %u", key, n, max);
    }
    a = td_zalloc(n + 1, sizeof *a);
    if (a == NULL) {
        return td_why(&l->why, TD_ERR_NO_MEMORY, "out of memory for %s", key);
    }
    TD_TRY(td_gguf_read_strings(l->g, key, a, n));
    *out_n = (uint32_t)n;
    *out = TD_STEAL(a);
    return TD_OK;
}

static td_err load_tokens(const struct load *l, struct td_model_tokenizer *t)
{
    void *types = NULL;
    void *scores = NULL;

    TD_TRY(load_strings(l, KEY("tokens"), TD_TOK_MAX_TOKENS, &t->n_tokens, &t->tokens));
    if (t->n_tokens == 0) {
        return td_why(&l->why, TD_ERR_FILE_FORMAT, "the vocabulary is empty");
    }
    TD_TRY(load_numbers(l, KEY("token_type"), t->n_tokens, false, &types));
    t->types = types;
    for (uint32_t i = 0; t->types != NULL && i < t->n_tokens; i++) {
        if (t->types[i] < 0 || t->types[i] > 6) {
            return td_why(&l->why, TD_ERR_FILE_FORMAT, "token %u has type %d, which does not exist",
                          i, t->types[i]);
        }
    }
    TD_TRY(load_numbers(l, KEY("scores"), t->n_tokens, true, &scores));
    t->scores = scores;
    return TD_OK;
}

/* A merge is two pieces around one space; a piece itself holds none, since byte-level text spells a
 * space otherwise. */
static td_err load_merges(const struct load *l, struct td_model_tokenizer *t)
{
    if (!td_gguf_has(l->g, KEY("merges"))) {
        return TD_OK;
    }
    TD_TRY(load_strings(l, KEY("merges"), TD_GGUF_MAX_ARRAY, &t->n_merges, &t->merges));
    for (uint32_t i = 0; i < t->n_merges; i++) {
        struct td_str m = t->merges[i];
        const char *space = m.len > 2 ? memchr(m.data + 1, ' ', m.len - 2) : NULL;

        if (space == NULL) {
            return td_why(&l->why, TD_ERR_FILE_FORMAT,
                          "merge %u is not two pieces with a space between", i);
        }
    }
    return TD_OK;
}

void td_tok_data_add_end_id(struct td_model_tokenizer *t, int32_t id)
{
    if (id < 0 || t->n_end_ids == TD_TOK_MAX_END_IDS) {
        return;
    }
    for (uint32_t i = 0; i < t->n_end_ids; i++) {
        if (t->end_ids[i] == id) {
            return;
        }
    }
    t->end_ids[t->n_end_ids++] = id;
}

/* Files often name only one end token although their template ends turns with another. */
static void find_end_ids(struct td_model_tokenizer *t)
{
    static const char *const known[] = {"<|im_end|>",      "<|endoftext|>", "<|eot_id|>",
                                        "<|end_of_text|>", "<|eom_id|>",    "<end_of_turn>",
                                        "<|end|>",         "</s>"};

    for (uint32_t i = 0; t->types != NULL && i < t->n_tokens; i++) {
        for (size_t k = 0; t->types[i] == 3 && k < TD_COUNT(known); k++) {
            if (td_str_eq(t->tokens[i], known[k])) {
                td_tok_data_add_end_id(t, (int32_t)i);
            }
        }
    }
}

static td_err load_special(const struct load *l, struct td_model_tokenizer *t)
{
    bool begins = td_str_eq(t->pre, "tekken") || td_str_eq(t->pre, "llama-bpe") ||
                  td_str_eq(t->pre, "llama3") || td_str_eq(t->pre, "llama-v3");
    int32_t eom = -1;

    TD_TRY(load_id(l, KEY("bos_token_id"), t->n_tokens, &t->bos));
    TD_TRY(load_id(l, KEY("eos_token_id"), t->n_tokens, &t->eos));
    TD_TRY(load_id(l, KEY("eot_token_id"), t->n_tokens, &t->eot));
    TD_TRY(load_id(l, KEY("eom_token_id"), t->n_tokens, &eom));
    TD_TRY(load_id(l, KEY("unknown_token_id"), t->n_tokens, &t->unk));
    TD_TRY(load_id(l, KEY("padding_token_id"), t->n_tokens, &t->pad));
    /* Files of those families from before the key existed rely on the default. */
    TD_TRY(load_bool(l, KEY("add_bos_token"), begins, &t->add_bos));
    TD_TRY(load_bool(l, KEY("add_eos_token"), false, &t->add_eos));
    TD_TRY(load_bool(l, KEY("add_space_prefix"), false, &t->add_space_prefix));
    if (t->add_bos && t->bos < 0) {
        return td_why(&l->why, TD_ERR_FILE_FORMAT,
                      "a first token is demanded, but there is no bos_token_id");
    }
    td_tok_data_add_end_id(t, t->eos);
    td_tok_data_add_end_id(t, t->eot);
    td_tok_data_add_end_id(t, eom);
    return TD_OK;
}

static td_err hash_all(struct td_model_tokenizer *t, const struct td_why *w)
{
    struct td_digest d;

    td_digest_begin(&d);
    td_digest_str(&d, t->model);
    td_digest_str(&d, t->pre);
    td_digest_u64(&d, t->n_tokens);
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        td_digest_str(&d, t->tokens[i]);
        td_digest_u64(&d, t->types != NULL ? (uint64_t)t->types[i] : 1);
    }
    td_digest_u64(&d, t->n_merges);
    for (uint32_t i = 0; i < t->n_merges; i++) {
        td_digest_str(&d, t->merges[i]);
    }
    td_digest_bytes(&d, &(int32_t[]){t->bos, t->eos, t->eot, t->unk, t->pad}, 5 * sizeof(int32_t));
    td_digest_u64(&d, (uint64_t)t->add_bos | (uint64_t)t->add_eos << 1 |
                          (uint64_t)t->add_space_prefix << 2);
    if (t->ignore_merges >= 0 || t->nfc >= 0) { /* GGUF files, which do not say, keep their hash */
        td_digest_bytes(&d, &(int8_t[]){t->ignore_merges, t->nfc}, 2);
    }
    if (td_digest_end(&d, t->tokenizer_hash) != TD_OK) {
        return td_why(w, TD_ERR_NO_MEMORY, "out of memory for the tokenizer's hash");
    }
    td_digest_begin(&d);
    td_digest_bytes(&d, t->chat_template.data, t->chat_template.len);
    if (td_digest_end(&d, t->template_hash) != TD_OK) {
        return td_why(w, TD_ERR_NO_MEMORY, "out of memory for the template's hash");
    }
    return TD_OK;
}

td_err td_tok_data_finish(struct td_model_tokenizer *t, const struct td_why *w)
{
    find_end_ids(t);
    return hash_all(t, w);
}

static td_err load_all(const struct load *l, struct td_model_tokenizer *t)
{
    TD_TRY(load_str(l, KEY("model"), &t->model));
    if (t->model.len == 0) {
        return td_why(&l->why, TD_ERR_FILE_FORMAT, "the file has no tokenizer (%s)", KEY("model"));
    }
    TD_TRY(load_str(l, KEY("pre"), &t->pre));
    TD_TRY(load_str(l, "tokenizer.chat_template", &t->chat_template));
    TD_TRY(load_tokens(l, t));
    TD_TRY(load_merges(l, t));
    TD_TRY(load_special(l, t));
    return td_tok_data_finish(t, &l->why);
}

td_err td_tok_data_load(const struct td_gguf *g, struct td_model_tokenizer *out, char *err_text,
                        size_t err_cap)
{
    struct load l = {g, {err_text, err_cap}};
    td_err e;

    memset(out, 0, sizeof *out);
    out->ignore_merges = out->nfc = -1;
    e = load_all(&l, out);
    if (e != TD_OK) {
        td_tok_data_fini(out);
    }
    return e;
}

void td_tok_data_fini(struct td_model_tokenizer *t)
{
    free((void *)(uintptr_t)t->tokens);
    free((void *)(uintptr_t)t->types);
    free((void *)(uintptr_t)t->scores);
    free((void *)(uintptr_t)t->merges);
    (void)td_arena_destroy(t->arena); /* always NULL */
    memset(t, 0, sizeof *t);
}
