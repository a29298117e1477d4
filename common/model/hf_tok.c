#include "common/model/hf_tok.h"

#include <string.h>

#include "common/base/arena.h"

/* Design: the ids of tokenizer.json may have holes and end before the embedding does, so the arrays
 * are filled by id and what stays empty is an unused piece: no text leads to it, and it says nothing. All
 * strings are copied, so that the parsed file, the largest thing here, can go. */

#define TYPE_NORMAL       1
#define TYPE_CONTROL      3
#define TYPE_USER_DEFINED 4
#define TYPE_UNUSED       5

struct load {
    const struct td_hf_tok_src *src;
    const struct td_why *why;
    struct td_model_tokenizer *t;
    struct td_str *tokens; /* owned by t */
    int32_t *types;        /* owned by t */
    bool nfc;
};

/* ---- JSON ---- */

static bool is_type(const json_t *j, const char *type)
{
    return td_json_is(td_json_get(j, "type"), type);
}

static td_err unsupported(const struct load *l, const char *what, const json_t *v)
{
    return td_why(l->why, TD_ERR_FILE_UNSUPPORTED, "%s %s is not supported", what,
                  td_show(td_json_str(v)).text);
}

static td_err out_of_memory(const struct load *l)
{
    return td_why(l->why, TD_ERR_NO_MEMORY, "out of memory for the tokenizer");
}

/* A copy that lives as long as the tokenizer. */
static td_err keep(const struct load *l, struct td_str s, struct td_str *out)
{
    char *copy = td_arena_alloc(l->t->arena, s.len + 1);

    if (copy == NULL) {
        return out_of_memory(l);
    }
    memcpy(copy, s.data, s.len);
    *out = (struct td_str){copy, s.len};
    return TD_OK;
}

/* ---- vocabulary ---- */

static td_err put_token(struct load *l, struct td_str text, json_int_t id, int32_t type)
{
    if (id < 0 || (uint64_t)id >= l->t->n_tokens) {
        return td_why(l->why, TD_ERR_FILE_FORMAT, "token %s has id %lld, not below vocab_size %u",
                      td_show(text).text, (long long)id, l->t->n_tokens);
    }
    if (l->types[id] != TYPE_UNUSED && (type == TYPE_NORMAL || l->tokens[id].len != text.len ||
                                        memcmp(l->tokens[id].data, text.data, text.len) != 0)) {
        return td_why(l->why, TD_ERR_FILE_FORMAT, "id %lld is used by two tokens", (long long)id);
    }
    if (l->types[id] == TYPE_UNUSED) {
        TD_TRY(keep(l, text, &l->tokens[id]));
    }
    l->types[id] = type;
    return TD_OK;
}

static td_err take_vocab(struct load *l, const json_t *vocab)
{
    const char *piece;
    json_t *id;

    if (!json_is_object(vocab) || json_object_size(vocab) == 0) {
        return td_why(l->why, TD_ERR_FILE_FORMAT, "model.vocab is not a filled object");
    }
    json_object_foreach((json_t *)(uintptr_t)vocab, piece, id)
    {
        if (!json_is_integer(id)) {
            return td_why(l->why, TD_ERR_FILE_FORMAT, "model.vocab: an id is not a whole number");
        }
        TD_TRY(put_token(l, (struct td_str){piece, strlen(piece)}, json_integer_value(id),
                         TYPE_NORMAL));
    }
    return TD_OK;
}

/* Stripping around an added token changes the text; matching it after NFC differs from before only
 * where the token is not ASCII. */
static td_err check_added(const struct load *l, const json_t *j, struct td_str text)
{
    static const char *const flags[] = {"single_word", "lstrip", "rstrip"};

    for (size_t i = 0; i < TD_COUNT(flags); i++) {
        if (td_json_true(j, flags[i])) {
            return td_why(l->why, TD_ERR_FILE_UNSUPPORTED, "added token %s: %s is not supported",
                          td_show(text).text, flags[i]);
        }
    }
    for (size_t i = 0; l->nfc && td_json_true(j, "normalized") && i < text.len; i++) {
        if ((unsigned char)text.data[i] >= 0x80) {
            return td_why(l->why, TD_ERR_FILE_UNSUPPORTED,
                          "added token %s: normalized is not supported", td_show(text).text);
        }
    }
    return TD_OK;
}

/* The id that tokenizers gives an added token whatever the file says: that of its piece, or the next
 * one behind the vocabulary. */
static td_err check_added_id(const struct load *l, struct td_str text, const json_t *id,
                             json_int_t *next)
{
    const json_t *vocab = td_json_get(td_json_get(l->src->tokenizer, "model"), "vocab");
    const json_t *known = json_object_getn(vocab, text.data, text.len);
    json_int_t want = known != NULL ? json_integer_value(known) : *next;

    if (json_integer_value(id) != want) {
        return td_why(l->why, TD_ERR_FILE_FORMAT, "added token %s has id %lld, not %lld",
                      td_show(text).text, (long long)json_integer_value(id), (long long)want);
    }
    *next = want >= *next ? want + 1 : *next;
    return TD_OK;
}

static td_err take_added(struct load *l, const json_t *added)
{
    json_int_t next =
        (json_int_t)json_object_size(td_json_get(td_json_get(l->src->tokenizer, "model"), "vocab"));

    if (added != NULL && !json_is_array(added)) {
        return td_why(l->why, TD_ERR_FILE_FORMAT, "added_tokens is not an array");
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *j = json_array_get(added, i);
        const json_t *id = td_json_get(j, "id");
        struct td_str text = td_json_str(td_json_get(j, "content"));

        if (text.len == 0 || id == NULL || !json_is_integer(id)) {
            return td_why(l->why, TD_ERR_FILE_FORMAT, "added token %zu has no content or id", i);
        }
        TD_TRY(check_added(l, j, text));
        TD_TRY(check_added_id(l, text, id, &next));
        TD_TRY(put_token(l, text, json_integer_value(id),
                         td_json_true(j, "special") ? TYPE_CONTROL : TYPE_USER_DEFINED));
    }
    return TD_OK;
}

/* ---- merges ---- */

/* "left right", or since tokenizers 0.20 a pair; pieces hold no space, since byte-level text spells
 * it otherwise. */
static td_err take_merge(struct load *l, const json_t *j, size_t i, struct td_str *out)
{
    struct td_str a = td_json_str(json_is_array(j) ? json_array_get(j, 0) : j);
    struct td_str b = td_json_str(json_array_get(j, 1));
    const char *space = a.len > 0 ? memchr(a.data, ' ', a.len) : NULL;
    char *text;

    if (!json_is_array(j)) {
        return space != NULL && space > a.data && space < a.data + a.len - 1
                   ? keep(l, a, out)
                   : td_why(l->why, TD_ERR_FILE_FORMAT, "merge %zu is not two pieces", i);
    }
    if (json_array_size(j) != 2 || a.len == 0 || b.len == 0 || space != NULL ||
        memchr(b.data, ' ', b.len) != NULL) {
        return td_why(l->why, TD_ERR_FILE_FORMAT, "merge %zu is not two pieces", i);
    }
    text = td_arena_alloc(l->t->arena, a.len + b.len + 1);
    if (text == NULL) {
        return out_of_memory(l);
    }
    memcpy(text, a.data, a.len);
    text[a.len] = ' ';
    memcpy(text + a.len + 1, b.data, b.len);
    *out = (struct td_str){text, a.len + b.len + 1};
    return TD_OK;
}

static td_err take_merges(struct load *l, const json_t *merges)
{
    size_t n = json_array_size(merges);
    struct td_str *list;

    if (!json_is_array(merges) || n > TD_GGUF_MAX_ARRAY) {
        return td_why(l->why, TD_ERR_FILE_FORMAT, "model.merges is not an array of at most %u",
                      TD_GGUF_MAX_ARRAY);
    }
    list = td_zalloc(n + 1, sizeof *list);
    if (list == NULL) {
        return out_of_memory(l);
    }
    l->t->merges = list;
    for (size_t i = 0; i < n; i++) {
        TD_TRY(take_merge(l, json_array_get(merges, i), i, &list[i]));
    }
    l->t->n_merges = (uint32_t)n;
    return TD_OK;
}

static td_err take_model(struct load *l, const json_t *model)
{
    static const char *const must_be_empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};

    if (!is_type(model, "BPE")) {
        return unsupported(l, "tokenizer model", td_json_get(model, "type"));
    }
    for (size_t i = 0; i < TD_COUNT(must_be_empty); i++) {
        if (td_json_str(td_json_get(model, must_be_empty[i])).len > 0) {
            return unsupported(l, must_be_empty[i], td_json_get(model, must_be_empty[i]));
        }
    }
    if (td_json_true(model, "byte_fallback") || td_json_get(model, "dropout") != NULL) {
        return td_why(l->why, TD_ERR_FILE_UNSUPPORTED,
                      "byte_fallback and dropout are not supported");
    }
    l->t->ignore_merges = td_json_true(model, "ignore_merges");
    TD_TRY(take_vocab(l, td_json_get(model, "vocab")));
    return take_merges(l, td_json_get(model, "merges"));
}

/* ---- how text is cut ---- */

/* The patterns that common/text has scanners for, and the names it knows them by. */
static const struct {
    const char *pattern, *pre;
} patterns[] = {
    {TD_HF_SPLIT_LLAMA3, "llama-bpe"},
    {TD_HF_SPLIT_QWEN2, "qwen2"},
    {TD_HF_SPLIT_QWEN35, "qwen35"},
    {TD_HF_SPLIT_TEKKEN, "tekken"},
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", "gpt-2"},
};

static td_err split_rule(const struct load *l, const json_t *split, const char **out_pre)
{
    const json_t *regex = td_json_get(td_json_get(split, "pattern"), "Regex");

    if (!td_json_is(td_json_get(split, "behavior"), "Isolated") || td_json_true(split, "invert")) {
        return unsupported(l, "split behavior", td_json_get(split, "behavior"));
    }
    for (size_t i = 0; i < TD_COUNT(patterns); i++) {
        if (td_json_is(regex, patterns[i].pattern)) {
            *out_pre = patterns[i].pre;
            return TD_OK;
        }
    }
    return unsupported(l, "split pattern", regex);
}

/* The steps of a pre-tokenizer or normalizer: itself, or what its Sequence lists. */
static const json_t *step_of(const json_t *j, const char *list, size_t i)
{
    if (is_type(j, "Sequence")) {
        return json_array_get(td_json_get(j, list), i);
    }
    return i == 0 ? j : NULL;
}

/* One of: ByteLevel with its own pattern; digits alone before it; a known Split before a ByteLevel
 * without one. */
static td_err take_pre(struct load *l, const json_t *j)
{
    const json_t *first = step_of(j, "pretokenizers", 0);
    const json_t *second = step_of(j, "pretokenizers", 1);
    const json_t *bytes = is_type(first, "ByteLevel") ? first : second;
    const json_t *regex = td_json_get(bytes, "use_regex");
    bool own_regex = regex == NULL || td_json_true(bytes, "use_regex");
    const char *pre = NULL;

    if (!is_type(bytes, "ByteLevel") || step_of(j, "pretokenizers", bytes == first ? 1 : 2)) {
        return unsupported(l, "pre_tokenizer", td_json_get(first, "type"));
    }
    if (bytes == first) {
        pre = own_regex ? "gpt-2" : NULL;
    } else if (is_type(first, "Split") && !own_regex) {
        TD_TRY(split_rule(l, first, &pre));
    } else if (is_type(first, "Digits") && td_json_true(first, "individual_digits") && own_regex) {
        pre = "smollm";
    }
    if (pre == NULL) {
        return unsupported(l, "pre_tokenizer", td_json_get(first, "type"));
    }
    l->t->pre = (struct td_str){pre, strlen(pre)};
    l->t->add_space_prefix = td_json_true(bytes, "add_prefix_space");
    return TD_OK;
}

static td_err take_normalizer(struct load *l, const json_t *j)
{
    const json_t *first = step_of(j, "normalizers", 0);

    if (first != NULL && (!is_type(first, "NFC") || step_of(j, "normalizers", 1) != NULL)) {
        return unsupported(l, "normalizer", td_json_get(first, "type"));
    }
    l->nfc = first != NULL;
    l->t->nfc = l->nfc;
    return TD_OK;
}

/* ---- special ids ---- */

/* Id of a token given by its text, or as {"content": text}; -1 for null. */
static td_err id_by_text(const struct load *l, const char *key, int32_t *out)
{
    const json_t *v = td_json_get(l->src->tokenizer_config, key);
    struct td_str text = td_json_str(json_is_object(v) ? td_json_get(v, "content") : v);

    if (v == NULL) {
        return TD_OK;
    }
    for (uint32_t i = 0; i < l->t->n_tokens; i++) {
        if (l->types[i] != TYPE_UNUSED && l->tokens[i].len == text.len &&
            memcmp(l->tokens[i].data, text.data, text.len) == 0) {
            *out = (int32_t)i;
            return TD_OK;
        }
    }
    return td_why(l->why, TD_ERR_FILE_FORMAT, "%s %s is not in the vocabulary", key,
                  td_show(text).text);
}

static td_err check_id(const struct load *l, const char *key, const json_t *v, int32_t *out)
{
    json_int_t id = json_integer_value(v);

    /* -1 and the like: writers' way of saying none. */
    if (!json_is_integer(v) || (uint64_t)(id < 0 ? 0 : id) >= l->t->n_tokens) {
        return td_why(l->why, TD_ERR_FILE_FORMAT, "%s is not an id below %u", key, l->t->n_tokens);
    }
    *out = id < 0 ? -1 : (int32_t)id;
    return TD_OK;
}

/* Ids of a key that is a number or a list of numbers; the first goes to *out unless it has one. */
static td_err take_end_ids(struct load *l, const json_t *j, int32_t *out)
{
    static const char key[] = "eos_token_id";
    const json_t *v = td_json_get(j, key);
    size_t n = json_is_array(v) ? json_array_size(v) : v != NULL;

    if (n > TD_TOK_MAX_END_IDS) {
        return td_why(l->why, TD_ERR_FILE_FORMAT, "%s has %zu ids, more than %d", key, n,
                      TD_TOK_MAX_END_IDS);
    }
    for (size_t i = 0; i < n; i++) {
        int32_t id = -1;

        TD_TRY(check_id(l, key, json_is_array(v) ? json_array_get(v, i) : v, &id));
        *out = *out < 0 ? id : *out;
        td_tok_data_add_end_id(l->t, id);
    }
    return TD_OK;
}

static td_err take_specials(struct load *l)
{
    struct td_model_tokenizer *t = l->t;
    const json_t *bos = td_json_get(l->src->config, "bos_token_id");

    TD_TRY(id_by_text(l, "bos_token", &t->bos));
    TD_TRY(id_by_text(l, "eos_token", &t->eos));
    TD_TRY(id_by_text(l, "unk_token", &t->unk));
    TD_TRY(id_by_text(l, "pad_token", &t->pad));
    if (l->src->tokenizer_config == NULL && bos != NULL) {
        TD_TRY(check_id(l, "bos_token_id", bos, &t->bos));
    }
    td_tok_data_add_end_id(t, t->eos);
    TD_TRY(take_end_ids(l, l->src->generation, &t->eos));
    return take_end_ids(l, l->src->config, &t->eos);
}

/* Whether a template of the post-processor puts this token's text first (or last). */
static bool template_has(const struct load *l, const json_t *single, bool first, int32_t id)
{
    size_t n = json_array_size(single);
    const json_t *item = n > 0 ? json_array_get(single, first ? 0 : n - 1) : NULL;
    struct td_str text = td_json_str(td_json_get(td_json_get(item, "SpecialToken"), "id"));

    return id >= 0 && text.len > 0 && text.len == l->tokens[id].len &&
           memcmp(text.data, l->tokens[id].data, text.len) == 0;
}

static void take_post_processor(struct load *l, const json_t *j)
{
    const json_t *config = l->src->tokenizer_config;
    const json_t *add_bos = td_json_get(config, "add_bos_token");
    const json_t *add_eos = td_json_get(config, "add_eos_token");

    for (size_t i = 0; step_of(j, "processors", i) != NULL; i++) {
        const json_t *step = step_of(j, "processors", i);

        if (is_type(step, "TemplateProcessing")) {
            l->t->add_bos = template_has(l, td_json_get(step, "single"), true, l->t->bos);
            l->t->add_eos = template_has(l, td_json_get(step, "single"), false, l->t->eos);
        }
    }
    l->t->add_bos = json_is_boolean(add_bos) ? json_is_true(add_bos) : l->t->add_bos;
    l->t->add_eos = json_is_boolean(add_eos) ? json_is_true(add_eos) : l->t->add_eos;
    l->t->add_bos = l->t->add_bos && l->t->bos >= 0;
    l->t->add_eos = l->t->add_eos && l->t->eos >= 0;
}

/* ---- template ---- */

/* A string, or a list of {name, template} of which "default" counts, else the first. The file
 * chat_template.jinja goes first. */
static td_err take_template(struct load *l)
{
    const json_t *v = td_json_get(l->src->tokenizer_config, "chat_template");
    struct td_str text = l->src->jinja;

    for (size_t i = 0; text.len == 0 && i < json_array_size(v); i++) {
        const json_t *j = json_array_get(v, i);

        if (td_json_is(td_json_get(j, "name"), "default")) {
            text = td_json_str(td_json_get(j, "template"));
        }
    }
    if (text.len == 0) {
        text = td_json_str(json_is_array(v) ? td_json_get(json_array_get(v, 0), "template") : v);
    }
    return keep(l, text, &l->t->chat_template);
}

static td_err load_all(struct load *l)
{
    static const char *const named = "gpt2"; /* byte-level BPE, in the words of tok_data.h */
    const json_t *j = l->src->tokenizer;
    struct td_model_tokenizer *t = l->t;

    t->arena = td_arena_create(TD_HF_TOK_MAX_BYTES);
    t->tokens = l->tokens = td_zalloc(l->src->n_vocab, sizeof *l->tokens);
    t->types = l->types = td_zalloc(l->src->n_vocab, sizeof *l->types);
    if (t->arena == NULL || l->tokens == NULL || l->types == NULL) {
        return out_of_memory(l);
    }
    t->n_tokens = l->src->n_vocab;
    t->model = (struct td_str){named, strlen(named)};
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        l->types[i] = TYPE_UNUSED;
        l->tokens[i] = (struct td_str){"", 0};
    }
    TD_TRY(take_normalizer(l, td_json_get(j, "normalizer")));
    TD_TRY(take_pre(l, td_json_get(j, "pre_tokenizer")));
    TD_TRY(take_model(l, td_json_get(j, "model")));
    TD_TRY(take_added(l, td_json_get(j, "added_tokens")));
    TD_TRY(take_specials(l));
    take_post_processor(l, td_json_get(j, "post_processor"));
    TD_TRY(take_template(l));
    return td_tok_data_finish(t, l->why);
}

td_err td_hf_tok_load(const struct td_hf_tok_src *src, struct td_model_tokenizer *out,
                      const struct td_why *w)
{
    struct load l = {.src = src, .why = w, .t = out};
    td_err e;

    memset(out, 0, sizeof *out);
    out->bos = out->eos = out->eot = out->unk = out->pad = -1;
    if (src->n_vocab < 1 || src->n_vocab > TD_TOK_MAX_TOKENS) {
        return td_why(w, TD_ERR_FILE_FORMAT, "vocab_size %u is not 1 to %u", src->n_vocab,
                      TD_TOK_MAX_TOKENS);
    }
    e = load_all(&l);
    if (e != TD_OK) {
        td_tok_data_fini(out);
    }
    return e;
}
