/* Design. The text between two special tokens is a run. A run that lies in one segment is used
 * where it lies; only a run over several segments is copied together, since a word may span their
 * border. A run is normalised if the family wants it, cut into words, and each word becomes ids:
 * from the cache, from the vocabulary (ignore_merges), or by merging.
 *
 * The cache is two-way: the two entries of a set share a cache line, a hit in the second swaps
 * them, and an insertion drops the older. It holds only words that give at most four ids, which is
 * nearly all words of real text.
 */
#include "common/text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/rng.h"
#include "common/text/vocab_priv.h"

#define TOKENIZER_MAGIC 0x54544f4bu /* "TTOK" */
#define CACHE_SETS      8192u
#define CACHE_WORD      15u /* longest word in the cache */
#define CACHE_IDS       4u

/* A word, zero-padded, its length in the last byte; its ids, NONE after the last. All zero: empty.
 */
struct entry {
    uint64_t key[2];
    int32_t ids[CACHE_IDS];
};
_Static_assert(sizeof(struct entry) == 32, "two entries share a cache line");

#define NO_ID INT32_MIN

/* Where the ids of one call go. */
struct sink {
    int32_t *ids;
    size_t cap;
    size_t n;
    size_t limit;
};

struct td_text_tokenizer {
    uint32_t magic;
    const struct td_text_vocab *vocab; /* borrowed */
    struct entry *cache;               /* owned; [CACHE_SETS][2] */
    struct td_text_bpe bpe;
    struct td_text_nfc nfc;
    uint8_t *joined; /* owned: a run over several segments */
    size_t cap_joined;
    uint32_t *syms; /* owned: the ids of a long word before and after merging */
    size_t cap_syms;
};

/* The run being collected: either borrowed from one segment or copied to t->joined. */
struct run {
    const uint8_t *p;
    size_t len;
    bool copied;
};

static inline void emit(struct sink *out, int32_t id)
{
    if (out->n < out->cap) {
        out->ids[out->n] = id;
    }
    out->n++;
}

static td_err grow(void *pp, size_t *cap, size_t need, size_t size)
{
    void **p = pp;
    if (need <= *cap) {
        return TD_OK;
    }
    const size_t n = need + need / 2;
    void *q = td_realloc(*p, n * size);
    if (q == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    *p = q;
    *cap = n;
    return TD_OK;
}

/* The symbols of a word: one per byte that has a token. */
static size_t to_symbols(const struct td_text_vocab *v, const uint8_t *w, size_t len, uint32_t *ids)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        ids[n] = v->byte_id[w[i]];
        n += ids[n] != UINT32_MAX;
    }
    return n;
}

static td_err encode_long(struct td_text_tokenizer *t, const uint8_t *w, size_t len,
                          struct sink *out)
{
    if (len > TD_TEXT_WORD_MAX) {
        return TD_ERR_TOO_LARGE;
    }
    TD_TRY(grow(&t->syms, &t->cap_syms, len + 1, sizeof *t->syms));
    size_t n = to_symbols(t->vocab, w, len, t->syms);
    if (n / t->vocab->longest > out->limit) { /* too many ids however it merges */
        return TD_ERR_CONTEXT_LENGTH;
    }
    if (n > 0) {
        TD_TRY(td_text_bpe_large(t->vocab->merges, &t->bpe, t->syms, n, &n));
    }
    for (size_t i = 0; i < n; i++) {
        emit(out, (int32_t)t->syms[i]);
    }
    return TD_OK;
}

/* One word that the cache does not hold. */
static td_err encode_word(struct td_text_tokenizer *t, const uint8_t *w, size_t len,
                          struct sink *out)
{
    const struct td_text_vocab *v = t->vocab;
    if (v->ignore_merges && len <= v->longest) {
        const uint32_t id = td__text_vocab_lookup(v, w, len);
        if (id != UINT32_MAX) {
            emit(out, (int32_t)id);
            return TD_OK;
        }
    }
    if (len > TD_TEXT_SMALL) {
        return encode_long(t, w, len, out);
    }
    uint32_t ids[TD_TEXT_SMALL + 1];
    size_t n = to_symbols(v, w, len, ids);
    n = td_text_bpe_small(v->merges, ids, n);
    for (size_t i = 0; i < n; i++) {
        emit(out, (int32_t)ids[i]);
    }
    return TD_OK;
}

/* Key of a word of at most CACHE_WORD bytes; may read up to `end`, not beyond. */
static inline void make_key(const uint8_t *w, size_t len, const uint8_t *end, uint64_t key[2])
{
    if ((size_t)(end - w) >= 16) {
        memcpy(key, w, 16);
        if (len < 8) {
            key[0] &= (1ull << (len * 8)) - 1;
            key[1] = 0;
        } else {
            key[1] &= (1ull << ((len - 8) * 8)) - 1;
        }
    } else {
        key[0] = 0;
        key[1] = 0;
        memcpy(key, w, len);
    }
    key[1] |= (uint64_t)len << 56;
}

static inline bool emit_entry(const struct entry *e, const uint64_t key[2], struct sink *out)
{
    if (e->key[0] != key[0] || e->key[1] != key[1]) {
        return false;
    }
    for (size_t i = 0; i < CACHE_IDS && e->ids[i] != NO_ID; i++) {
        emit(out, e->ids[i]);
    }
    return true;
}

static td_err encode_cached(struct td_text_tokenizer *t, const uint8_t *w, size_t len,
                            const uint8_t *end, struct sink *out)
{
    uint64_t key[2];
    make_key(w, len, end, key);
    const uint64_t h = td_mix64(key[0] ^ key[1] * 0x9e3779b97f4a7c15ull);
    struct entry *set = t->cache + (h & (CACHE_SETS - 1)) * 2;
    if (emit_entry(&set[0], key, out)) {
        return TD_OK;
    }
    if (emit_entry(&set[1], key, out)) {
        const struct entry hit = set[1];
        set[1] = set[0];
        set[0] = hit;
        return TD_OK;
    }
    struct entry fresh = {{key[0], key[1]}, {NO_ID, NO_ID, NO_ID, NO_ID}};
    int32_t ids[CACHE_WORD];
    struct sink word = {ids, CACHE_WORD, 0, SIZE_MAX};
    TD_TRY(encode_word(t, w, len, &word));
    for (size_t i = 0; i < word.n; i++) {
        emit(out, ids[i]);
    }
    if (word.n <= CACHE_IDS) {
        memcpy(fresh.ids, ids, word.n * sizeof *ids);
        set[1] = set[0];
        set[0] = fresh;
    }
    return TD_OK;
}

static td_err encode_text(struct td_text_tokenizer *t, const uint8_t *p, size_t n, struct sink *out)
{
    const struct td_text_vocab *v = t->vocab;
    const uint8_t *const end = p + n;
    while (p < end) {
        const size_t len = td_text_split(v->uni, v->pre->kind, p, end);
        if (len <= CACHE_WORD) {
            TD_TRY(encode_cached(t, p, len, end, out));
        } else {
            TD_TRY(encode_word(t, p, len, out));
        }
        if (out->n > out->limit) {
            return TD_ERR_CONTEXT_LENGTH;
        }
        p += len;
    }
    return TD_OK;
}

/* Adds text to the run. Only the second piece of a run costs a copy. */
static td_err run_add(struct td_text_tokenizer *t, struct run *r, const uint8_t *p, size_t len)
{
    if (len == 0) {
        return TD_OK;
    }
    if (r->len == 0) {
        *r = (struct run){p, len, false};
        return TD_OK;
    }
    TD_TRY(grow(&t->joined, &t->cap_joined, r->len + len, 1));
    if (!r->copied) {
        memcpy(t->joined, r->p, r->len);
    }
    memcpy(t->joined + r->len, p, len);
    *r = (struct run){t->joined, r->len + len, true};
    return TD_OK;
}

static td_err run_end(struct td_text_tokenizer *t, struct run *r, struct sink *out)
{
    const uint8_t *p = r->p;
    size_t n = r->len;
    if (n == 0) {
        return TD_OK;
    }
    if (t->vocab->nfc) {
        TD_TRY(td_text_nfc(t->vocab->uni, &t->nfc, p, n, &p, &n));
    }
    r->len = 0;
    return encode_text(t, p, n, out);
}

/* The space that add_space_prefix wants before a run that does not begin with one. */
static td_err run_prefix(struct td_text_tokenizer *t, struct run *r, const uint8_t *p, size_t len)
{
    static const uint8_t space = ' ';
    if (t->vocab->add_space_prefix && r->len == 0 && len > 0 && *p != ' ') {
        return run_add(t, r, &space, 1);
    }
    return TD_OK;
}

static td_err encode_segment(struct td_text_tokenizer *t, const struct td_text_segment *seg,
                             struct run *r, struct sink *out)
{
    const uint8_t *p = (const uint8_t *)seg->text;
    const uint8_t *const end = p + seg->len;
    while (p < end) {
        const uint8_t *at = end;
        const struct td_text_special *s =
            td_text_specials_find(t->vocab->specials, seg->allow_special, p, end, &at);
        TD_TRY(run_prefix(t, r, p, (size_t)(at - p)));
        TD_TRY(run_add(t, r, p, (size_t)(at - p)));
        if (s == NULL) {
            break;
        }
        TD_TRY(run_end(t, r, out));
        emit(out, s->id);
        p = at + s->len;
    }
    return TD_OK;
}

static td_err encode_all(struct td_text_tokenizer *t, const struct td_text_encode_args *a,
                         struct sink *out)
{
    struct run r = {NULL, 0, false};
    if (a->add_bos && t->vocab->bos >= 0) {
        emit(out, t->vocab->bos);
    }
    for (size_t i = 0; i < a->n_segs; i++) {
        if (a->segs[i].len > 0) {
            TD_TRY(encode_segment(t, &a->segs[i], &r, out));
        }
    }
    TD_TRY(run_end(t, &r, out));
    return out->n > out->limit ? TD_ERR_CONTEXT_LENGTH : TD_OK;
}

/* Gives back what an unusually long input made the scratch grow to. */
static void shrink(struct td_text_tokenizer *t)
{
    if (t->cap_joined > TD_TEXT_KEEP_BYTES) {
        free(TD_STEAL(t->joined));
        t->cap_joined = 0;
    }
    if (t->cap_syms * sizeof *t->syms > TD_TEXT_KEEP_BYTES) {
        free(TD_STEAL(t->syms));
        t->cap_syms = 0;
    }
    if (t->nfc.cap_bytes > TD_TEXT_KEEP_BYTES ||
        t->nfc.cap_cps * sizeof *t->nfc.cps > TD_TEXT_KEEP_BYTES) {
        td_text_nfc_fini(&t->nfc);
    }
    if (t->bpe.cap * 32 > TD_TEXT_KEEP_BYTES) {
        td_text_bpe_fini(&t->bpe);
    }
}

td_err td_text_tokenizer_encode(struct td_text_tokenizer *t, const struct td_text_encode_args *args,
                                int32_t *out_ids, size_t cap, size_t *out_n)
{
    TD_REQUIRE(t->magic == TOKENIZER_MAGIC && (cap == 0 || out_ids != NULL));
    size_t total = 0;
    for (size_t i = 0; i < args->n_segs; i++) {
        if (args->segs[i].len > TD_TEXT_INPUT_MAX - total) {
            return TD_ERR_TOO_LARGE;
        }
        total += args->segs[i].len;
    }
    struct sink out = {out_ids, cap, 0, args->limit == 0 ? SIZE_MAX : args->limit};
    const td_err e = encode_all(t, args, &out);
    shrink(t);
    if (e == TD_OK) {
        *out_n = out.n;
    }
    return e;
}

td_err td_text_tokenizer_create(const struct td_text_vocab *vocab,
                                struct td_text_tokenizer **out_tokenizer)
{
    struct td_text_tokenizer *t = td_zalloc(1, sizeof *t);
    if (t == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    t->cache = td_zalloc_aligned(64, (size_t)CACHE_SETS * 2 * sizeof *t->cache);
    if (t->cache == NULL) {
        free(t);
        return TD_ERR_NO_MEMORY;
    }
    t->vocab = vocab;
    t->magic = TOKENIZER_MAGIC;
    *out_tokenizer = t;
    return TD_OK;
}

struct td_text_tokenizer *td_text_tokenizer_destroy(struct td_text_tokenizer *t)
{
    if (t == NULL) {
        return NULL;
    }
    t->magic = 0;
    td_text_bpe_fini(&t->bpe);
    td_text_nfc_fini(&t->nfc);
    free(t->joined);
    free(t->syms);
    free(t->cache);
    free(t);
    return NULL;
}
