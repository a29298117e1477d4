/* tiny_vocab.h - a small vocabulary for tests: 256 byte pieces (id == byte), then the words asked
 * for with merges that build them from left to right, then control and user-defined tokens. */
#ifndef TEST_TEXT_TINY_VOCAB_H
#define TEST_TEXT_TINY_VOCAB_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/text/vocab.h"

#define TINY_MAX 2048

struct tiny {
    char text[1 << 16];
    size_t used;
    struct td_text_str pieces[TINY_MAX];
    int32_t types[TINY_MAX];
    struct td_text_str merges[TINY_MAX];
    struct td_text_vocab_src src;
};

/* Bytes in GPT-2's alphabet, written after `used`. */
static inline struct td_text_str tiny_map(struct tiny *t, const char *bytes, size_t len)
{
    struct td_text_str s = {t->text + t->used, 0};
    for (size_t i = 0; i < len; i++) {
        const unsigned b = (uint8_t)bytes[i];
        unsigned cp = b;
        if (b <= 0x20) {
            cp = 0x100 + b;
        } else if (b >= 0x7f && b <= 0xa0) {
            cp = 0x121 + (b - 0x7f);
        } else if (b == 0xad) {
            cp = 0x143;
        }
        if (cp < 0x80) {
            t->text[t->used + s.len++] = (char)cp;
        } else {
            t->text[t->used + s.len++] = (char)(0xc0 | cp >> 6);
            t->text[t->used + s.len++] = (char)(0x80 | (cp & 0x3f));
        }
    }
    t->used += s.len;
    return s;
}

static inline int32_t tiny_piece(struct tiny *t, struct td_text_str s, int32_t type)
{
    t->pieces[t->src.n_tokens] = s;
    t->types[t->src.n_tokens] = type;
    return (int32_t)t->src.n_tokens++;
}

static inline void tiny_merge(struct tiny *t, const char *left, const char *right)
{
    struct td_text_str a = tiny_map(t, left, strlen(left));
    t->text[t->used++] = ' ';
    const struct td_text_str b = tiny_map(t, right, strlen(right));
    t->merges[t->src.n_merges++] = (struct td_text_str){a.ptr, a.len + 1 + b.len};
}

/* A piece of its own and the merge that makes it. */
static inline int32_t tiny_word(struct tiny *t, const char *left, const char *right)
{
    char both[256];
    strcpy(both, left);
    strcat(both, right);
    tiny_merge(t, left, right);
    return tiny_piece(t, tiny_map(t, both, strlen(both)), TD_TEXT_NORMAL);
}

static inline int32_t tiny_special(struct tiny *t, const char *text, int32_t type)
{
    return tiny_piece(t, (struct td_text_str){text, strlen(text)}, type);
}

/* 256 byte pieces; heap-allocated, free() it. */
static inline struct tiny *tiny_new(const char *pre)
{
    struct tiny *t = calloc(1, sizeof *t);
    if (t == NULL) {
        abort();
    }
    t->src = (struct td_text_vocab_src)TD_TEXT_VOCAB_SRC_INIT;
    t->src.pre = pre;
    t->src.pieces = t->pieces;
    t->src.token_type = t->types;
    t->src.merges = t->merges;
    for (int b = 0; b < 256; b++) {
        const char c = (char)b;
        tiny_piece(t, tiny_map(t, &c, 1), TD_TEXT_NORMAL);
    }
    return t;
}

/* Words of "hello world" and a few specials: enough for most tests. */
struct tiny_ids {
    int32_t he, ll, hell, hello, sp_w, or, sp_wor, ld, sp_world, aa, aaaa;
    int32_t start, end, start_user, think;
};

static inline struct tiny *tiny_hello(const char *pre, struct tiny_ids *ids)
{
    struct tiny *t = tiny_new(pre);
    ids->he = tiny_word(t, "h", "e");
    ids->ll = tiny_word(t, "l", "l");
    ids->hell = tiny_word(t, "he", "ll");
    ids->hello = tiny_word(t, "hell", "o");
    ids->sp_w = tiny_word(t, " ", "w");
    ids->or = tiny_word(t, "o", "r");
    ids->sp_wor = tiny_word(t, " w", "or");
    ids->ld = tiny_word(t, "l", "d");
    ids->sp_world = tiny_word(t, " wor", "ld");
    ids->aa = tiny_word(t, "a", "a");
    ids->aaaa = tiny_word(t, "aa", "aa");
    ids->start = tiny_special(t, "<|im_start|>", TD_TEXT_CONTROL);
    ids->end = tiny_special(t, "<|im_end|>", TD_TEXT_CONTROL);
    ids->start_user = tiny_special(t, "<|im_start|>user", TD_TEXT_CONTROL);
    ids->think = tiny_special(t, "<think>", TD_TEXT_USER_DEFINED);
    t->src.bos = ids->start;
    t->src.eos = ids->end;
    return t;
}

#endif
