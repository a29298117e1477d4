#include "common/model/tiny_vocab.h"

#include <stdio.h>
#include <string.h>

#include "common/base/assert.h"

#define MAX_PIECE   40 /* bytes of a token's text */
#define MAX_SYMBOLS 8192

/* Lower-case words separated by single spaces; only their pair counts matter. */
static const char corpus[] =
    " the cluster answers each request from two kinds of node and the client never sees the seam"
    " the prefill node reads the whole prompt at once and builds the cache layer by layer"
    " the decode node takes the cache and writes the answer one token at a time"
    " when a node dies the router knows which tokens the client has seen and another pair goes on"
    " nothing is lost and nothing is sent twice because every token has a position"
    " a block of the cache has exactly one owner and a deadline whenever it waits for someone"
    " the model in this file is made of random numbers and it knows nothing about the world"
    " what it says is noise but it is always the same noise for the same prompt"
    " that is what a test needs from a model and it is why this one is kept so small"
    " there are words here that come back often like and then the other that with from into"
    " some letters follow others more than chance would have it and the merges find them"
    " shared prefixes of words make shared pieces such as re in on er st an en at or es"
    " streaming sending waiting working running reading writing ending starting making";

struct trainer {
    uint16_t sym[MAX_SYMBOLS]; /* token ids; words are separated by the id of the space */
    size_t n;
    uint32_t counts[TD_TINY_MAX_TOKENS][TD_TINY_MAX_TOKENS]; /* of pairs */
};

/* The spelling of a byte: itself if it is a visible Latin-1 character, else one from U+0100 up. */
static uint32_t byte_char(uint32_t byte)
{
    uint32_t next = 256;

    TD_INSIST(byte < 256);
    for (uint32_t b = 0; b < 256; b++) {
        bool visible = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;

        if (b == byte) {
            return visible ? b : next;
        }
        next += visible ? 0 : 1;
    }
    return next;
}

static size_t put_char(char *out, uint32_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = (char)(0xc0 | c >> 6);
    out[1] = (char)(0x80 | (c & 0x3f));
    return 2;
}

static struct td_str add_text(char **at, const char *a, size_t n_a, const char *b, size_t n_b)
{
    struct td_str s = {*at, n_a + n_b};

    memcpy(*at, a, n_a);
    memcpy(*at + n_a, b, n_b);
    *at += n_a + n_b;
    return s;
}

static void add_base(struct td_tiny_vocab *v, char **at)
{
    static const char *const specials[TD_TINY_SPECIALS] = {"<|endoftext|>", "<|im_start|>",
                                                           "<|im_end|>", "<|pad|>"};

    for (uint32_t i = 0; i < TD_TINY_SPECIALS; i++) {
        v->tokens[i] = add_text(at, specials[i], strlen(specials[i]), "", 0);
        v->types[i] = 3;
    }
    for (uint32_t b = 0; b < 256; b++) {
        char c[2];
        size_t n = put_char(c, byte_char(b));

        v->tokens[TD_TINY_SPECIALS + b] = add_text(at, c, n, "", 0);
        v->types[TD_TINY_SPECIALS + b] = 1;
        v->printable[TD_TINY_SPECIALS + b] = (b >= ' ' && b < 127) || b == '\n';
    }
    v->n_tokens = TD_TINY_SPECIALS + 256;
}

static bool starts_word(uint16_t sym, const bool *spaced)
{
    return spaced[sym];
}

/* The most frequent pair inside a word; ties go to the lower ids. False when no word has two symbols left. */
static bool best_pair(struct trainer *t, uint32_t n_tokens, const bool *spaced, uint16_t *out_a,
                      uint16_t *out_b)
{
    uint32_t best = 0;

    for (uint32_t a = 0; a < n_tokens; a++) {
        memset(t->counts[a], 0, n_tokens * sizeof t->counts[a][0]);
    }
    for (size_t i = 0; i + 1 < t->n; i++) {
        if (!starts_word(t->sym[i + 1], spaced)) {
            t->counts[t->sym[i]][t->sym[i + 1]]++;
        }
    }
    for (uint32_t a = 0; a < n_tokens; a++) {
        for (uint32_t b = 0; b < n_tokens; b++) {
            if (t->counts[a][b] > best) {
                best = t->counts[a][b];
                *out_a = (uint16_t)a;
                *out_b = (uint16_t)b;
            }
        }
    }
    return best > 0;
}

static void replace_pair(struct trainer *t, uint16_t a, uint16_t b, uint16_t joined)
{
    size_t to = 0;

    for (size_t i = 0; i < t->n; i++) {
        if (i + 1 < t->n && t->sym[i] == a && t->sym[i + 1] == b) {
            t->sym[to++] = joined;
            i++;
        } else {
            t->sym[to++] = t->sym[i];
        }
    }
    t->n = to;
}

static void learn_merges(struct td_tiny_vocab *v, struct trainer *t, char **at)
{
    bool spaced[TD_TINY_MAX_TOKENS] = {false};
    uint16_t a = 0;
    uint16_t b = 0;

    spaced[TD_TINY_SPECIALS + ' '] = true;
    for (size_t i = 0; i + 1 < sizeof corpus; i++) {
        t->sym[t->n++] = (uint16_t)(TD_TINY_SPECIALS + (uint8_t)corpus[i]);
    }
    while (v->n_merges < TD_TINY_MAX_MERGES && best_pair(t, v->n_tokens, spaced, &a, &b)) {
        struct td_str x = v->tokens[a];
        struct td_str y = v->tokens[b];
        uint32_t id = v->n_tokens++;
        char spelled[2 * MAX_PIECE + 2];
        int n =
            snprintf(spelled, sizeof spelled, "%.*s %.*s", (int)x.len, x.data, (int)y.len, y.data);

        v->tokens[id] = add_text(at, x.data, x.len, y.data, y.len);
        v->types[id] = 1;
        v->printable[id] = true;
        spaced[id] = spaced[a];
        v->merges[v->n_merges++] = add_text(at, spelled, (size_t)n, "", 0);
        replace_pair(t, a, b, (uint16_t)id);
    }
}

td_err td_tiny_vocab_create(struct td_tiny_vocab **out_vocab)
{
    TD_CLEANUP(td_tiny_vocab_destroyp) struct td_tiny_vocab *v = td_zalloc(1, sizeof *v);
    TD_CLEANUP(td_freep) struct trainer *t = td_zalloc(1, sizeof *t);
    char *at;

    _Static_assert(sizeof corpus < MAX_SYMBOLS, "the corpus fits the trainer");
    if (v == NULL || t == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    v->text = td_zalloc(TD_TINY_MAX_TOKENS, 3 * MAX_PIECE);
    if (v->text == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    at = v->text;
    add_base(v, &at);
    learn_merges(v, t, &at);
    *out_vocab = TD_STEAL(v);
    return TD_OK;
}

struct td_tiny_vocab *td_tiny_vocab_destroy(struct td_tiny_vocab *v)
{
    if (v != NULL) {
        free(v->text);
        free(v);
    }
    return NULL;
}
