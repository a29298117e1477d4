#include "common/text/split.h"

#include <string.h>

#include "common/base/mem.h"

static const struct td_text_pre pres[] = {
    {"default", TD_TEXT_PRE_GPT2, false, false},
    {"gpt-2", TD_TEXT_PRE_GPT2, false, false},
    {"phi-2", TD_TEXT_PRE_GPT2, false, false},
    {"smollm", TD_TEXT_PRE_SMOLLM, false, false},
    {"starcoder", TD_TEXT_PRE_SMOLLM, false, false},
    {"refact", TD_TEXT_PRE_SMOLLM, false, false},
    {"llama-bpe", TD_TEXT_PRE_LLAMA3, true, true},
    {"llama3", TD_TEXT_PRE_LLAMA3, true, true},
    {"llama-v3", TD_TEXT_PRE_LLAMA3, true, true},
    {"qwen2", TD_TEXT_PRE_QWEN2, false, false},
    {"deepseek-r1-qwen", TD_TEXT_PRE_QWEN2, false, false},
    {"qwen35", TD_TEXT_PRE_QWEN35, false, false},
    {"tekken", TD_TEXT_PRE_TEKKEN, true, true},
};

const struct td_text_pre *td_text_pre_find(const char *name)
{
    const char *want = name[0] == '\0' ? "default" : name;
    for (size_t i = 0; i < TD_COUNT(pres); i++) {
        if (strcmp(pres[i].name, want) == 0) {
            return &pres[i];
        }
    }
    return NULL;
}

/* A character: its bytes and classes. */
struct ch {
    size_t len;
    unsigned cls;
};

static inline struct ch look(const struct td_text_uni *u, const uint8_t *p, const uint8_t *end)
{
    if (*p < 0x80) {
        return (struct ch){1, u->classes[((size_t)u->block[0] << 8) | *p]};
    }
    uint32_t cp;
    const size_t n = td_text_next(p, end, &cp);
    return (struct ch){n, td_text_uni_class(u, cp)};
}

/* End of the run of characters that have any of the classes `with`. */
static inline const uint8_t *run_of(const struct td_text_uni *u, const uint8_t *p,
                                    const uint8_t *end, unsigned with)
{
    while (p < end) {
        const struct ch c = look(u, p, end);
        if ((c.cls & with) == 0) {
            break;
        }
        p += c.len;
    }
    return p;
}

/* End of the run of characters that have none of the classes `without`. */
static inline const uint8_t *run_without(const struct td_text_uni *u, const uint8_t *p,
                                         const uint8_t *end, unsigned without)
{
    while (p < end) {
        const struct ch c = look(u, p, end);
        if ((c.cls & without) != 0) {
            break;
        }
        p += c.len;
    }
    return p;
}

/* Length of the contraction after an apostrophe at p[0], both included; 0 if there is none. Folding
 * case also folds the long s (U+017F) to s. */
static size_t contraction(const uint8_t *p, const uint8_t *end, bool fold)
{
    const size_t left = (size_t)(end - p);
    if (left < 2) {
        return 0;
    }
    const unsigned mask = fold ? 0xdfu : 0xffu;
    const unsigned bit = fold ? 0u : 0x20u;
    const unsigned a = p[1] & mask;
    if (a == ('S' | bit) || a == ('T' | bit) || a == ('M' | bit) || a == ('D' | bit)) {
        return 2;
    }
    if (left < 3) {
        return 0;
    }
    if (fold && p[1] == 0xc5 && p[2] == 0xbf) {
        return 3;
    }
    const unsigned b = p[2] & mask;
    if ((a == ('R' | bit) || a == ('V' | bit)) && b == ('E' | bit)) {
        return 3;
    }
    return a == ('L' | bit) && b == ('L' | bit) ? 3 : 0;
}

/* Whitespace at p that nothing else took: \s+(?!\S)|\s+ - the run, less its last character when a
 * word follows. `stops` are classes that end the text for this purpose. */
static const uint8_t *spaces(const struct td_text_uni *u, const uint8_t *p, const uint8_t *end,
                             unsigned stops)
{
    const uint8_t *last = p;
    const uint8_t *q = p;
    while (q < end) {
        const struct ch c = look(u, q, end);
        if ((c.cls & TD_TEXT_WS) == 0) {
            return (c.cls & stops) != 0 || last == p ? q : last;
        }
        last = q;
        q += c.len;
    }
    return q;
}

static const uint8_t *split_gpt2(const struct td_text_uni *u, bool lone_digits, const uint8_t *p,
                                 const uint8_t *end)
{
    if (*p == '\'') {
        const size_t n = contraction(p, end, false);
        if (n > 0) {
            return p + n;
        }
    }
    struct ch c = look(u, p, end);
    const uint8_t *q = p;
    if (*p == ' ' && p + 1 < end) {
        const struct ch d = look(u, p + 1, end);
        if ((d.cls & TD_TEXT_WS) == 0 && !(lone_digits && (d.cls & TD_TEXT_N) != 0)) {
            q = p + 1;
            c = d;
        }
    }
    q += c.len;
    if ((c.cls & TD_TEXT_L) != 0) {
        return run_of(u, q, end, TD_TEXT_L);
    }
    if ((c.cls & TD_TEXT_N) != 0) {
        return lone_digits ? q : run_of(u, q, end, TD_TEXT_N);
    }
    if ((c.cls & TD_TEXT_WS) == 0) {
        return run_without(u, q, end, TD_TEXT_L | TD_TEXT_N | TD_TEXT_WS);
    }
    return spaces(u, p, end, lone_digits ? TD_TEXT_N : 0);
}

static bool is_newline(uint8_t c)
{
    return c == '\r' || c == '\n';
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ at whitespace. */
static const uint8_t *spaces_or_newlines(const struct td_text_uni *u, const uint8_t *p,
                                         const uint8_t *end)
{
    const uint8_t *run = run_of(u, p, end, TD_TEXT_WS);
    for (const uint8_t *q = run; q > p; q--) {
        if (is_newline(q[-1])) {
            return q;
        }
    }
    return spaces(u, p, end, 0);
}

static const uint8_t *split_llama3(const struct td_text_uni *u, unsigned word, size_t max_digits,
                                   const uint8_t *p, const uint8_t *end)
{
    if (*p == '\'') {
        const size_t n = contraction(p, end, true);
        if (n > 0) {
            return p + n;
        }
    }
    const struct ch c = look(u, p, end);
    const uint8_t *q = p + c.len;
    if ((c.cls & word) != 0) {
        return run_of(u, q, end, word);
    }
    if ((c.cls & TD_TEXT_N) != 0) {
        for (size_t n = 1; n < max_digits && q < end; n++) {
            const struct ch d = look(u, q, end);
            if ((d.cls & TD_TEXT_N) == 0) {
                break;
            }
            q += d.len;
        }
        return q;
    }
    struct ch d = {0, TD_TEXT_WS};
    if (q < end) {
        d = look(u, q, end);
        if ((d.cls & word) != 0 && !is_newline(*p)) {
            return run_of(u, q + d.len, end, word);
        }
    }
    const unsigned not_other = word | TD_TEXT_N | TD_TEXT_WS;
    if ((c.cls & TD_TEXT_WS) == 0 || (*p == ' ' && (d.cls & not_other) == 0)) {
        q = run_without(u, q, end, not_other);
        while (q < end && is_newline(*q)) {
            q++;
        }
        return q;
    }
    return spaces_or_newlines(u, p, end);
}

/* What a word of tekken's may hold: letters and marks, capitals only before, small ones only after. */
static bool may_begin(unsigned cls)
{
    return (cls & (TD_TEXT_L | TD_TEXT_M)) != 0 && (cls & TD_TEXT_LOWER) == 0;
}

static bool may_end(unsigned cls)
{
    return (cls & (TD_TEXT_L | TD_TEXT_M)) != 0 && (cls & TD_TEXT_UPPER) == 0;
}

/* Two readings of the word at p: with an end (begin* end+), NULL when it has none; and the run of
 * what may begin one alone. Backing off, the first takes up to the last character that may be
 * both. */
static const uint8_t *tekken_word(const struct td_text_uni *u, const uint8_t *p, const uint8_t *end,
                                  const uint8_t **out_run)
{
    const uint8_t *both = NULL;
    struct ch c = {0, 0};
    while (p < end && may_begin((c = look(u, p, end)).cls)) {
        p += c.len;
        both = may_end(c.cls) ? p : both;
    }
    *out_run = p;
    if (p == end || !may_end(c.cls)) {
        return both;
    }
    while (p < end && may_end((c = look(u, p, end)).cls)) {
        p += c.len;
    }
    return p;
}

/* The two alternatives for words, or NULL. */
static const uint8_t *tekken_letters(const struct td_text_uni *u, const uint8_t *p,
                                     const uint8_t *end)
{
    const struct ch c = look(u, p, end);
    const uint8_t *run = NULL;
    const uint8_t *word;
    if ((c.cls & TD_TEXT_L) != 0) {
        word = tekken_word(u, p, end, &run);
        return word != NULL ? word : run;
    }
    if ((c.cls & TD_TEXT_N) != 0 || *p == '\r' || *p == '\n') {
        return NULL;
    }
    word = tekken_word(u, p + c.len, end, &run);
    if (word != NULL) {
        return word;
    }
    if ((c.cls & TD_TEXT_M) != 0) { /* a mark may also be the word's own beginning */
        const uint8_t *unused;
        return tekken_word(u, p, end, &unused);
    }
    return run > p + c.len ? run : NULL;
}

static const uint8_t *split_tekken(const struct td_text_uni *u, const uint8_t *p,
                                   const uint8_t *end)
{
    const uint8_t *word = tekken_letters(u, p, end);
    const struct ch c = look(u, p, end);
    const unsigned not_other = TD_TEXT_L | TD_TEXT_N | TD_TEXT_WS;
    const uint8_t *q = p + c.len;
    if (word != NULL) {
        return word;
    }
    if ((c.cls & TD_TEXT_N) != 0) {
        return q;
    }
    if ((c.cls & TD_TEXT_WS) == 0 ||
        (*p == ' ' && q < end && (look(u, q, end).cls & not_other) == 0)) {
        q = run_without(u, q, end, not_other);
        while (q < end && (is_newline(*q) || *q == '/')) {
            q++;
        }
        return q;
    }
    return spaces_or_newlines(u, p, end);
}

size_t td_text_split(const struct td_text_uni *u, enum td_text_pre_kind kind, const uint8_t *p,
                     const uint8_t *end)
{
    const uint8_t *q;
    switch (kind) {
    case TD_TEXT_PRE_SMOLLM:
        q = split_gpt2(u, true, p, end);
        break;
    case TD_TEXT_PRE_LLAMA3:
        q = split_llama3(u, TD_TEXT_L, 3, p, end);
        break;
    case TD_TEXT_PRE_QWEN2:
        q = split_llama3(u, TD_TEXT_L, 1, p, end);
        break;
    case TD_TEXT_PRE_QWEN35:
        q = split_llama3(u, TD_TEXT_L | TD_TEXT_M, 1, p, end);
        break;
    case TD_TEXT_PRE_TEKKEN:
        q = split_tekken(u, p, end);
        break;
    case TD_TEXT_PRE_GPT2:
    case TD_TEXT_PRE_KINDS:
    default:
        q = split_gpt2(u, false, p, end);
        break;
    }
    return (size_t)(q - p);
}
