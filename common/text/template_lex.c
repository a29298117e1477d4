/* Design: newlines become \n, as Jinja does. Then the source is cut into text, outputs, tags and comments, where the whitespace rules live: trim_blocks drops
 * the newline after a tag or comment, lstrip_blocks the blanks before one that starts its line, '-' strips everything on
 * its side, '+' switches the automatic rule off. Then the inside of outputs and tags is cut into tokens.
 */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "common/text/template_priv.h"

struct lexer {
    struct td_arena *arena;
    const char *src;
    size_t len, at;
    unsigned line;
    struct tt_tokens *out;
    struct tp_error *e;
    bool strip_next;   /* the last tag ended with '-' */
    bool newline_next; /* trim_blocks: drop one newline */
};

td_err tp__fail(struct tp_error *e, td_err err, unsigned line, const char *fmt, ...)
{
    char why[160];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    if (e->text != NULL && e->cap > 0) {
        (void)snprintf(e->text, e->cap, "line %u: %s", line, why);
    }
    return err;
}

static td_err push(struct lexer *x, enum tt_kind kind, const char *s, size_t n)
{
    struct tt_tokens *t = x->out;
    if (t->n == t->cap) {
        size_t cap = t->cap == 0 ? 256 : t->cap * 2;
        struct tt_token *list = TD_ARENA_ARRAY(x->arena, struct tt_token, cap);
        if (list == NULL) {
            return tp__fail(x->e, TD_ERR_NO_MEMORY, x->line, "template too complex");
        }
        if (t->n > 0) {
            memcpy(list, t->list, t->n * sizeof *list);
        }
        t->list = list;
        t->cap = cap;
    }
    t->list[t->n++] = (struct tt_token){.kind = kind, .s = s, .n = n, .line = x->line};
    return TD_OK;
}

static struct tt_token *last(struct lexer *x)
{
    return &x->out->list[x->out->n - 1];
}

/* ---- inside of a tag ---- */

/* \xHH, \uHHHH, \UHHHHHHHH: the code point, and the digits eaten; 0 when it is none of these. */
static size_t hex_escape(const char *p, size_t left, utf8proc_int32_t *out)
{
    size_t digits = p[0] == 'x' ? 2 : (p[0] == 'u' ? 4 : (p[0] == 'U' ? 8 : 0));
    uint32_t cp = 0;
    if (digits == 0 || left < digits + 1) {
        return 0;
    }
    for (size_t i = 1; i <= digits; i++) {
        int c = tolower((unsigned char)p[i]);
        if (!isxdigit(c)) {
            return 0;
        }
        cp = cp << 4 | (uint32_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    if (cp > 0x10ffff || !utf8proc_codepoint_valid((utf8proc_int32_t)cp)) {
        return 0;
    }
    *out = (utf8proc_int32_t)cp;
    return digits + 1;
}

/* After a backslash: Python's escapes; anything else leaves the backslash. Writes at most as much as it reads. */
static size_t lex_escape(struct lexer *x, char *out)
{
    static const char from[] = "nrtbfav0\\'\"", to[] = "\n\r\t\b\f\a\v\0\\'\"";
    const char *k = x->at < x->len && x->src[x->at] != 0 ? strchr(from, x->src[x->at]) : NULL;
    utf8proc_int32_t cp = 0;
    if (k != NULL) {
        *out = to[k - from];
        x->at++;
        return 1;
    }
    size_t eaten = x->at < x->len ? hex_escape(x->src + x->at, x->len - x->at, &cp) : 0;
    if (eaten > 0) {
        x->at += eaten;
        return (size_t)utf8proc_encode_char(cp, (utf8proc_uint8_t *)out);
    }
    *out = '\\';
    return 1;
}

static td_err lex_string(struct lexer *x, char quote)
{
    size_t start = ++x->at, end = start, n = 0;
    while (end < x->len && x->src[end] != quote) {
        end += x->src[end] == '\\' ? 2 : 1;
    }
    if (end >= x->len) {
        return tp__fail(x->e, TD_ERR_FILE_FORMAT, x->line, "string without end");
    }
    char *buf = td_arena_alloc(x->arena, end - start + 1);
    if (buf == NULL) {
        return tp__fail(x->e, TD_ERR_NO_MEMORY, x->line, "template too complex");
    }
    while (x->at < end) {
        char c = x->src[x->at++];
        if (c == '\\') {
            n += lex_escape(x, buf + n);
        } else {
            x->line += c == '\n' ? 1 : 0;
            buf[n++] = c;
        }
    }
    x->at = end + 1;
    return push(x, TT_STR, buf, n);
}

static bool lex_exponent(struct lexer *x)
{
    size_t k = x->at + 1;
    if (x->at >= x->len || (x->src[x->at] != 'e' && x->src[x->at] != 'E')) {
        return false;
    }
    k += k < x->len && (x->src[k] == '+' || x->src[k] == '-') ? 1 : 0;
    if (k >= x->len || !isdigit((unsigned char)x->src[k])) {
        return false;
    }
    while (k < x->len && isdigit((unsigned char)x->src[k])) {
        k++;
    }
    x->at = k;
    return true;
}

static td_err lex_number(struct lexer *x)
{
    size_t start = x->at;
    bool is_float = false;
    while (x->at < x->len && (isdigit((unsigned char)x->src[x->at]) || x->src[x->at] == '_')) {
        x->at++;
    }
    if (x->at + 1 < x->len && x->src[x->at] == '.' && isdigit((unsigned char)x->src[x->at + 1])) {
        is_float = true;
        for (x->at++; x->at < x->len && isdigit((unsigned char)x->src[x->at]); x->at++) {
        }
    }
    is_float = lex_exponent(x) || is_float;
    char text[64];
    size_t n = 0;
    for (size_t i = start; i < x->at && n < sizeof text - 1; i++) {
        if (x->src[i] != '_') {
            text[n++] = x->src[i];
        }
    }
    text[n] = 0;
    errno = 0;
    int64_t value = is_float ? 0 : strtoll(text, NULL, 10);
    if (errno != 0 || n == sizeof text - 1) {
        return tp__fail(x->e, TD_ERR_FILE_UNSUPPORTED, x->line, "number too large");
    }
    TD_TRY(push(x, is_float ? TT_FLOAT : TT_INT, x->src + start, x->at - start));
    last(x)->i = value;
    last(x)->f = strtod(text, NULL);
    return TD_OK;
}

static td_err lex_name(struct lexer *x)
{
    size_t start = x->at;
    while (x->at < x->len && (isalnum((unsigned char)x->src[x->at]) || x->src[x->at] == '_')) {
        x->at++;
    }
    char *name = td_arena_alloc(x->arena, x->at - start + 1);
    if (name == NULL) {
        return tp__fail(x->e, TD_ERR_NO_MEMORY, x->line, "template too complex");
    }
    memcpy(name, x->src + start, x->at - start);
    return push(x, TT_NAME, name, x->at - start);
}

static td_err lex_op(struct lexer *x)
{
    static const char *const ops[] = {"==", "!=", "<=", ">=", "//", "**", "+", "-", "*",
                                      "/",  "%",  "~",  "<",  ">",  "=",  "(", ")", "[",
                                      "]",  "{",  "}",  ",",  ".",  ":",  "|"};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        size_t n = strlen(ops[i]);
        if (x->len - x->at >= n && memcmp(x->src + x->at, ops[i], n) == 0) {
            x->at += n;
            return push(x, TT_OP, ops[i], n);
        }
    }
    return tp__fail(x->e, TD_ERR_FILE_FORMAT, x->line, "unexpected character 0x%02x",
                    (unsigned char)x->src[x->at]);
}

static bool at_close(const struct lexer *x, const char *close, size_t *out_skip, char *out_mod)
{
    const char *p = x->src + x->at;
    size_t left = x->len - x->at;
    *out_mod = 0;
    if (left >= 3 && (p[0] == '-' || p[0] == '+') && p[1] == close[0] && p[2] == close[1]) {
        *out_skip = 3;
        *out_mod = p[0];
        return true;
    }
    *out_skip = 2;
    return left >= 2 && p[0] == close[0] && p[1] == close[1];
}

static td_err lex_inside(struct lexer *x, const char *close, enum tt_kind end)
{
    unsigned braces = 0;
    while (x->at < x->len) {
        char c = x->src[x->at], mod = 0;
        size_t skip = 0;
        if (braces == 0 && at_close(x, close, &skip, &mod)) {
            x->at += skip;
            x->strip_next = mod == '-';
            x->newline_next = end == TT_TAG_END && mod != '+';
            return push(x, end, "", 0);
        }
        if (isspace((unsigned char)c)) {
            x->line += c == '\n' ? 1 : 0;
            x->at++;
        } else if (c == '"' || c == '\'') {
            TD_TRY(lex_string(x, c));
        } else if (isdigit((unsigned char)c)) {
            TD_TRY(lex_number(x));
        } else if (isalpha((unsigned char)c) || c == '_') {
            TD_TRY(lex_name(x));
        } else {
            braces += c == '{' ? 1 : 0;
            braces -= c == '}' && braces > 0 ? 1 : 0;
            TD_TRY(lex_op(x));
        }
    }
    return tp__fail(x->e, TD_ERR_FILE_FORMAT, x->line, "tag without end");
}

/* ---- outside ---- */

static size_t find_open(const struct lexer *x)
{
    for (size_t i = x->at; i + 1 < x->len; i++) {
        if (x->src[i] == '{' &&
            (x->src[i + 1] == '{' || x->src[i + 1] == '%' || x->src[i + 1] == '#')) {
            return i;
        }
    }
    return x->len;
}

/* Where the text before a tag ends after lstrip_blocks or '-'. */
static size_t text_end(const struct lexer *x, size_t begin, size_t open, char kind, char mod)
{
    size_t end = open;
    if (mod == '-') {
        while (end > begin && isspace((unsigned char)x->src[end - 1])) {
            end--;
        }
        return end;
    }
    if (kind == '{' || mod == '+') {
        return end;
    }
    size_t k = end;
    while (k > begin && (x->src[k - 1] == ' ' || x->src[k - 1] == '\t')) {
        k--;
    }
    bool line_start = k == 0 || x->src[k - 1] == '\n';
    return line_start ? k : end;
}

static void skip_after_tag(struct lexer *x)
{
    if (x->strip_next) {
        while (x->at < x->len && isspace((unsigned char)x->src[x->at])) {
            x->line += x->src[x->at++] == '\n' ? 1 : 0;
        }
    } else if (x->newline_next && x->at < x->len && x->src[x->at] == '\n') {
        x->at++;
        x->line++;
    }
    x->strip_next = x->newline_next = false;
}

static td_err lex_comment(struct lexer *x)
{
    for (; x->at + 1 < x->len; x->at++) {
        x->line += x->src[x->at] == '\n' ? 1 : 0;
        if (x->src[x->at] == '#' && x->src[x->at + 1] == '}') {
            char before = x->src[x->at - 1];
            x->at += 2;
            x->strip_next = before == '-';
            x->newline_next = before != '+';
            return TD_OK;
        }
    }
    return tp__fail(x->e, TD_ERR_FILE_FORMAT, x->line, "comment without end");
}

/* `{%`, a sign, blanks, the word, blanks, a sign, `%}` at `at`: where it ends, or 0. */
static size_t word_tag(const struct lexer *x, size_t at, const char *word, char *out_before,
                       char *out_after)
{
    size_t n = strlen(word);
    at += 2;
    *out_before = at < x->len && (x->src[at] == '-' || x->src[at] == '+') ? x->src[at++] : 0;
    while (at < x->len && isspace((unsigned char)x->src[at])) {
        at++;
    }
    if (x->len - at < n || memcmp(x->src + at, word, n) != 0) {
        return 0;
    }
    at += n;
    while (at < x->len && isspace((unsigned char)x->src[at])) {
        at++;
    }
    *out_after = at < x->len && (x->src[at] == '-' || x->src[at] == '+') ? x->src[at++] : 0;
    return x->len - at >= 2 && memcmp(x->src + at, "%}", 2) == 0 ? at + 2 : 0;
}

/* {% raw %} ... {% endraw %}: what is between goes out as it stands, but for the whitespace rules of the two tags.
 * Returns true when the tag at `open` was one. */
static bool lex_raw(struct lexer *x, size_t open, td_err *out_err)
{
    char before = 0, after = 0, end_before = 0, end_after = 0;
    size_t begin = word_tag(x, open, "raw", &before, &after), k = begin, end = 0;
    if (begin == 0) {
        return false;
    }
    for (; k + 1 < x->len && end == 0; k++) {
        if (x->src[k] == '{' && x->src[k + 1] == '%') {
            end = word_tag(x, k, "endraw", &end_before, &end_after);
        }
    }
    if (end == 0) {
        *out_err = tp__fail(x->e, TD_ERR_FILE_FORMAT, x->line, "raw without endraw");
        return true;
    }
    k--; /* where endraw's tag opens */
    while (after == '-' && begin < k && isspace((unsigned char)x->src[begin])) {
        begin++;
    }
    size_t stop = text_end(x, begin, k, '%', end_before);
    *out_err = stop > begin ? push(x, TT_TEXT, x->src + begin, stop - begin) : TD_OK;
    for (size_t i = open; i < end; i++) {
        x->line += x->src[i] == '\n' ? 1 : 0;
    }
    x->at = end;
    x->strip_next = end_after == '-';
    x->newline_next = end_after != '+';
    return true;
}

static td_err lex_tag(struct lexer *x, char kind)
{
    td_err err = TD_OK;
    if (kind == '%' && lex_raw(x, x->at, &err)) {
        return err;
    }
    x->at += 2;
    if (x->at < x->len && (x->src[x->at] == '-' || x->src[x->at] == '+')) {
        x->at++;
    }
    if (kind == '#') {
        return lex_comment(x);
    }
    if (kind == '{') {
        TD_TRY(push(x, TT_OUT_BEGIN, "", 0));
        return lex_inside(x, "}}", TT_OUT_END);
    }
    TD_TRY(push(x, TT_TAG_BEGIN, "", 0));
    return lex_inside(x, "%}", TT_TAG_END);
}

/* \r\n and \r become \n, in place; the new length. */
static size_t unify_newlines(char *src, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        char c = src[i]; /* src[n] may be src[i] */
        src[n++] = c == '\r' ? '\n' : c;
        i += c == '\r' && i + 1 < len && src[i + 1] == '\n' ? 1 : 0;
    }
    return n;
}

td_err tt__lex(struct td_arena *arena, char *src, size_t len, struct tt_tokens *out,
               struct tp_error *e)
{
    len = unify_newlines(src, len);
    /* One newline at the end of the source does not belong to the template (keep_trailing_newline is off). */
    len -= len > 0 && src[len - 1] == '\n' ? 1 : 0;
    struct lexer x = {.arena = arena, .src = src, .len = len, .line = 1, .out = out, .e = e};
    while (x.at < x.len) {
        skip_after_tag(&x);
        size_t begin = x.at, open = find_open(&x);
        char kind = open < x.len ? x.src[open + 1] : 0;
        char mod = open + 2 < x.len ? x.src[open + 2] : 0;
        size_t end = open < x.len ? text_end(&x, begin, open, kind, mod) : open;
        if (end > begin) {
            TD_TRY(push(&x, TT_TEXT, x.src + begin, end - begin));
        }
        for (size_t i = begin; i < open; i++) {
            x.line += x.src[i] == '\n' ? 1 : 0;
        }
        x.at = open;
        if (open < x.len) {
            TD_TRY(lex_tag(&x, kind));
        }
    }
    return push(&x, TT_END, "", 0);
}
