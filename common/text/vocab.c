#define TD_LOG_ROOM "text"
#include "common/text/vocab.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "common/base/rng.h"
#include "common/text/vocab_priv.h"

#define VOCAB_MAGIC 0x54564f43u /* "TVOC" */
#define NONE        UINT32_MAX

/* The byte that a character of GPT-2's byte alphabet stands for, or -1. The alphabet shows the
 * printable bytes of Latin-1 as themselves and the other 68 as U+0100 and up, in their order. */
static int alphabet_byte(uint32_t cp)
{
    if ((cp >= 0x21 && cp <= 0x7e) || (cp >= 0xa1 && cp <= 0xac) || (cp >= 0xae && cp <= 0xff)) {
        return (int)cp;
    }
    if (cp < 0x100 || cp >= 0x144) {
        return -1;
    }
    const int k = (int)cp - 0x100;
    if (k < 0x21) {
        return k; /* 00..20 */
    }
    return k < 0x43 ? k - 0x21 + 0x7f /* 7f..a0 */ : 0xad;
}

/* Translates `s` to bytes at dst (room for s.len). False when a character is outside the alphabet;
 * *out_len is set when all are inside. */
static bool map_piece(struct td_text_str s, uint8_t *dst, size_t *out_len)
{
    const uint8_t *p = (const uint8_t *)s.ptr;
    const uint8_t *const end = p + s.len;
    size_t n = 0;
    while (p < end) {
        uint32_t cp;
        p += td_text_next(p, end, &cp);
        const int b = alphabet_byte(cp);
        if (b < 0) {
            return false;
        }
        dst[n++] = (uint8_t)b;
    }
    *out_len = n;
    return true;
}

static bool is_utf8(struct td_text_str s)
{
    const uint8_t *p = (const uint8_t *)s.ptr;
    const uint8_t *const end = p + s.len;
    while (p < end) {
        uint32_t cp;
        const size_t n = td_text_utf8(p, end, &cp);
        if (n == 0) {
            return false;
        }
        p += n;
    }
    return true;
}

static td_err refuse(const char *what, size_t at)
{
    TD_LOG(ERROR, "vocabulary refused", "what=\"%s\" at=%zu", what, at);
    return TD_ERR_FILE_FORMAT;
}

static uint64_t hash_bytes(const uint8_t *p, size_t n)
{
    uint64_t h = n * 0x9e3779b97f4a7c15ull;
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        h = td_mix64(h ^ w);
    }
    uint64_t w = 0;
    memcpy(&w, p, n);
    return td_mix64(h ^ w);
}

static bool has_bytes(const struct td_text_vocab *v, uint32_t id, const uint8_t *bytes, size_t len)
{
    return v->start[id + 1] - v->start[id] == len &&
           memcmp(v->blob + v->start[id], bytes, len) == 0;
}

uint32_t td__text_vocab_lookup(const struct td_text_vocab *v, const uint8_t *bytes, size_t len)
{
    for (size_t i = (size_t)hash_bytes(bytes, len) & v->dict_mask;; i = (i + 1) & v->dict_mask) {
        const uint32_t id = v->dict[i];
        if (id == NONE || has_bytes(v, id, bytes, len)) {
            return id;
        }
    }
}

/* Enters id under its bytes. A normal piece displaces one of another type; of equals the first
 * stays. */
static void dict_put(struct td_text_vocab *v, uint32_t id)
{
    const uint8_t *bytes = v->blob + v->start[id];
    const size_t len = v->start[id + 1] - v->start[id];
    size_t i = (size_t)hash_bytes(bytes, len) & v->dict_mask;
    while (v->dict[i] != NONE && !has_bytes(v, v->dict[i], bytes, len)) {
        i = (i + 1) & v->dict_mask;
    }
    if (v->dict[i] == NONE || ((v->type[v->dict[i]] & TD__TEXT_TYPE) != TD_TEXT_NORMAL &&
                               (v->type[id] & TD__TEXT_TYPE) == TD_TEXT_NORMAL)) {
        v->dict[i] = id;
    }
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Writes the bytes of piece i to the blob's end. */
static td_err add_piece(struct td_text_vocab *v, const struct td_text_vocab_src *src, size_t i)
{
    const struct td_text_str s = src->pieces[i];
    const int32_t type = src->token_type == NULL ? TD_TEXT_NORMAL : src->token_type[i];
    uint8_t *dst = v->blob + v->start[i];
    size_t len = s.len;
    if (type < TD_TEXT_NORMAL || type > TD_TEXT_BYTE) {
        return refuse("token type", i);
    }
    if (!is_utf8(s)) {
        return refuse("piece is not UTF-8", i);
    }
    v->type[i] = (uint8_t)type;
    if (type == TD_TEXT_BYTE) {
        const int hi = s.len == 6 ? hex_digit(s.ptr[3]) : -1;
        const int lo = s.len == 6 ? hex_digit(s.ptr[4]) : -1;
        if (hi < 0 || lo < 0 || memcmp(s.ptr, "<0x", 3) != 0 || s.ptr[5] != '>') {
            return refuse("byte token is not <0xHH>", i);
        }
        dst[0] = (uint8_t)(hi * 16 + lo);
        len = 1;
        v->type[i] |= TD__TEXT_MAPPED;
    } else if (type == TD_TEXT_NORMAL && s.len > 0 && map_piece(s, dst, &len)) {
        v->type[i] |= TD__TEXT_MAPPED;
    } else if (len > 0) {
        memcpy(dst, s.ptr, len);
    }
    v->start[i + 1] = v->start[i] + (uint32_t)len;
    v->longest = len > v->longest ? len : v->longest;
    return TD_OK;
}

static td_err add_pieces(struct td_text_vocab *v, const struct td_text_vocab_src *src)
{
    size_t total = 0;
    for (size_t i = 0; i < src->n_tokens; i++) {
        if (src->pieces[i].len > TD_TEXT_PIECE_MAX ||
            (src->pieces[i].len > 0 && src->pieces[i].ptr == NULL)) {
            return refuse("piece too long", i);
        }
        total += src->pieces[i].len; /* no overflow: 2^20 pieces of 2^12 bytes */
        if (total > TD_TEXT_PIECE_BYTES_MAX) {
            return refuse("pieces too long together", i);
        }
    }
    size_t dict_cap = 16;
    while (dict_cap < src->n_tokens * 2) {
        dict_cap *= 2;
    }
    v->blob = td_zalloc(total, 1);
    v->start = td_zalloc(src->n_tokens + 1, sizeof *v->start);
    v->type = td_zalloc(src->n_tokens, sizeof *v->type);
    v->dict = td_zalloc(dict_cap, sizeof *v->dict);
    if (v->blob == NULL || v->start == NULL || v->type == NULL || v->dict == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    memset(v->dict, 0xff, dict_cap * sizeof *v->dict);
    v->dict_mask = dict_cap - 1;
    v->n_tokens = src->n_tokens;
    for (size_t i = 0; i < src->n_tokens; i++) {
        TD_TRY(add_piece(v, src, i));
        if ((v->type[i] & TD__TEXT_MAPPED) != 0) {
            dict_put(v, (uint32_t)i);
        }
    }
    return TD_OK;
}

static td_err find_bytes(struct td_text_vocab *v)
{
    size_t n = 0;
    for (size_t b = 0; b < 256; b++) {
        const uint8_t byte = (uint8_t)b;
        v->byte_id[b] = td__text_vocab_lookup(v, &byte, 1);
        n += v->byte_id[b] != NONE;
    }
    v->covers_bytes = n == 256;
    return n > 0 ? TD_OK : refuse("no piece of one byte", 0);
}

/* One rule "left right" of rank `rank`. `buf` has room for two pieces. */
static td_err add_merge(struct td_text_vocab *v, struct td_text_str rule, uint32_t rank,
                        uint8_t *buf)
{
    const char *space = rule.len > 0 ? memchr(rule.ptr, ' ', rule.len) : NULL;
    if (space == NULL || space == rule.ptr || rule.len > 2 * TD_TEXT_PIECE_MAX + 1) {
        return refuse("merge is not two pieces", rank);
    }
    const struct td_text_str left = {rule.ptr, (size_t)(space - rule.ptr)};
    const struct td_text_str right = {space + 1, rule.len - left.len - 1};
    size_t n_left = 0;
    size_t n_right = 0;
    if (right.len == 0 || !map_piece(left, buf, &n_left) ||
        !map_piece(right, buf + n_left, &n_right)) {
        return refuse("merge is not two pieces", rank);
    }
    const uint32_t a = td__text_vocab_lookup(v, buf, n_left);
    const uint32_t b = td__text_vocab_lookup(v, buf + n_left, n_right);
    const uint32_t ab = td__text_vocab_lookup(v, buf, n_left + n_right);
    if (a == NONE || b == NONE || ab == NONE) {
        return refuse("merge of pieces that do not exist", rank);
    }
    td_text_merges_put(v->merges, a, b, (struct td_text_pair){rank, ab});
    return TD_OK;
}

static td_err add_merges(struct td_text_vocab *v, const struct td_text_vocab_src *src)
{
    TD_TRY(td_text_merges_create(src->n_merges, &v->merges));
    TD_CLEANUP(td_freep) uint8_t *buf = td_zalloc(2, TD_TEXT_PIECE_MAX + 1);
    if (buf == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    size_t total = 0;
    for (size_t i = 0; i < src->n_merges; i++) {
        total += src->merges[i].len;
        if (total > TD_TEXT_MERGE_BYTES_MAX) {
            return refuse("merges too long together", i);
        }
        TD_TRY(add_merge(v, src->merges[i], (uint32_t)i, buf));
    }
    return TD_OK;
}

static bool is_special_type(unsigned type)
{
    return type == TD_TEXT_CONTROL || type == TD_TEXT_UNKNOWN || type == TD_TEXT_USER_DEFINED;
}

static td_err add_specials(struct td_text_vocab *v)
{
    size_t n = 0;
    for (size_t i = 0; i < v->n_tokens; i++) {
        n += is_special_type(v->type[i] & TD__TEXT_TYPE);
    }
    TD_CLEANUP(td_freep) struct td_text_special *list = td_zalloc(n, sizeof *list);
    if (list == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    n = 0;
    for (size_t i = 0; i < v->n_tokens; i++) {
        const unsigned type = v->type[i] & TD__TEXT_TYPE;
        const uint32_t len = v->start[i + 1] - v->start[i];
        if (!is_special_type(type) || len == 0) {
            continue;
        }
        if (len > TD_TEXT_SPECIAL_MAX) {
            return refuse("special token too long", i);
        }
        list[n++] = (struct td_text_special){v->blob + v->start[i], len, (int32_t)i,
                                             type != TD_TEXT_USER_DEFINED};
    }
    return td_text_specials_create(list, n, &v->specials);
}

static td_err special_id(const struct td_text_vocab *v, const char *what, int64_t id,
                         int32_t *out_id)
{
    if (id != TD_TEXT_NO_ID && (id < 0 || (uint64_t)id >= v->n_tokens)) {
        TD_LOG(ERROR, "vocabulary refused", "what=\"%s id out of range\" id=%" PRId64, what, id);
        return TD_ERR_FILE_FORMAT;
    }
    *out_id = (int32_t)id;
    return TD_OK;
}

static td_err set_ids(struct td_text_vocab *v, const struct td_text_vocab_src *src)
{
    TD_TRY(special_id(v, "bos", src->bos, &v->bos));
    TD_TRY(special_id(v, "eos", src->eos, &v->eos));
    TD_TRY(special_id(v, "eot", src->eot, &v->eot));
    TD_TRY(special_id(v, "pad", src->pad, &v->pad));
    TD_TRY(special_id(v, "unk", src->unk, &v->unk));
    v->add_bos = src->add_bos < 0 ? v->pre->add_bos : src->add_bos != 0;
    v->ignore_merges = src->ignore_merges < 0 ? v->pre->ignore_merges : src->ignore_merges != 0;
    v->nfc = src->nfc < 0 ? td_text_pre_normalises(v->pre->kind) : src->nfc != 0;
    v->add_space_prefix = src->add_space_prefix;
    return TD_OK;
}

static td_err build(struct td_text_vocab *v, const struct td_text_vocab_src *src)
{
    v->magic = VOCAB_MAGIC;
    if (src->n_tokens == 0 || src->n_tokens > TD_TEXT_VOCAB_MAX || src->pieces == NULL) {
        return refuse("number of tokens", src->n_tokens);
    }
    if (src->n_merges > TD_TEXT_MERGES_MAX || (src->n_merges > 0 && src->merges == NULL)) {
        return refuse("number of merges", src->n_merges);
    }
    const char *pre = src->pre == NULL ? "" : src->pre;
    v->pre = td_text_pre_find(pre);
    if (v->pre == NULL) {
        char name[64];
        TD_LOG(ERROR, "pre-tokeniser is not supported", "pre=%s",
               td_log_quote(pre, strlen(pre), name, sizeof name));
        return TD_ERR_FILE_UNSUPPORTED;
    }
    TD_TRY(add_pieces(v, src));
    TD_TRY(find_bytes(v));
    TD_TRY(add_merges(v, src));
    TD_TRY(add_specials(v));
    TD_TRY(set_ids(v, src));
    return td_text_uni_create(&v->uni);
}

td_err td_text_vocab_create(const struct td_text_vocab_src *src, struct td_text_vocab **out_vocab)
{
    TD_CLEANUP(td_text_vocab_destroyp) struct td_text_vocab *v = td_zalloc(1, sizeof *v);
    if (v == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    TD_TRY(build(v, src));
    *out_vocab = TD_STEAL(v);
    return TD_OK;
}

struct td_text_vocab *td_text_vocab_destroy(struct td_text_vocab *v)
{
    if (v == NULL) {
        return NULL;
    }
    v->magic = 0;
    td_text_uni_destroy(v->uni);
    td_text_merges_destroy(v->merges);
    td_text_specials_destroy(v->specials);
    free(v->blob);
    free(v->start);
    free(v->type);
    free(v->dict);
    free(v);
    return NULL;
}

size_t td_text_vocab_size(const struct td_text_vocab *v)
{
    return v->n_tokens;
}

const uint8_t *td_text_vocab_bytes(const struct td_text_vocab *v, int32_t id, size_t *out_len)
{
    if (id < 0 || (size_t)id >= v->n_tokens) {
        return NULL;
    }
    *out_len = v->start[id + 1] - v->start[id];
    return v->blob + v->start[id];
}

size_t td_text_vocab_longest(const struct td_text_vocab *v)
{
    return v->longest;
}

bool td_text_vocab_is_control(const struct td_text_vocab *v, int32_t id)
{
    if (id < 0 || (size_t)id >= v->n_tokens) {
        return false;
    }
    const unsigned type = v->type[id] & TD__TEXT_TYPE;
    return type == TD_TEXT_CONTROL || type == TD_TEXT_UNKNOWN;
}

int32_t td_text_vocab_special(const struct td_text_vocab *v, const char *text, size_t len)
{
    const struct td_text_special *s =
        len <= TD_TEXT_SPECIAL_MAX ? td_text_specials_exact(v->specials, (const uint8_t *)text, len)
                                   : NULL;
    return s != NULL ? s->id : TD_TEXT_NO_ID;
}

int32_t td_text_vocab_bos(const struct td_text_vocab *v)
{
    return v->bos;
}

int32_t td_text_vocab_eos(const struct td_text_vocab *v)
{
    return v->eos;
}

int32_t td_text_vocab_eot(const struct td_text_vocab *v)
{
    return v->eot;
}

int32_t td_text_vocab_pad(const struct td_text_vocab *v)
{
    return v->pad;
}

int32_t td_text_vocab_unk(const struct td_text_vocab *v)
{
    return v->unk;
}

bool td_text_vocab_adds_bos(const struct td_text_vocab *v)
{
    return v->add_bos && v->bos >= 0;
}

bool td_text_vocab_covers_bytes(const struct td_text_vocab *v)
{
    return v->covers_bytes;
}
