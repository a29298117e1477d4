/* Design: first the source is cut into text, outputs, tags and comments, where the whitespace rules live: trim_blocks drops
 * the newline after a tag or comment, lstrip_blocks the blanks before one that starts its line, '-' strips everything on
 * its side, '+' switches the automatic rule off. Then the inside of outputs and tags is cut into tokens.
 */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static td_err lex_string(struct lexer *x, char quote)
{
    size_t start = ++x->at;
    char *buf = td_arena_alloc(x->arena, x->len - start + 1);
    size_t n = 0;
    if (buf == NULL) {
        return tp__fail(x->e, TD_ERR_NO_MEMORY, x->line, "template too complex");
    }
    while (x->at < x->len && x->src[x->at] != quote) {
        char c = x->src[x->at++];
        if (c == '\\' && x->at < x->len) {
            static const char from[] = "nrtbf\\'\"", to[] = "\n\r\t\b\f\\'\"";
            const char *k = strchr(from, x->src[x->at]);
            c = k != NULL ? to[k - from] : '\\';
            x->at += k != NULL ? 1 : 0;
        } else if (c == '\n') {
            x->line++;
        }
        buf[n++] = c;
    }
    if (x->at >= x->len) {
        return tp__fail(x->e, TD_ERR_FILE_FORMAT, x->line, "string without end");
    }
    x->at++;
    return push(x, TT_STR, buf, n);
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
    char text[64];
    size_t n = 0;
    for (size_t i = start; i < x->at && n < sizeof text - 1; i++) {
        if (x->src[i] != '_') {
            text[n++] = x->src[i];
        }
    }
    text[n] = 0;
    TD_TRY(push(x, is_float ? TT_FLOAT : TT_INT, x->src + start, x->at - start));
    last(x)->i = strtoll(text, NULL, 10);
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

/* {% raw %} ... {% endraw %}: what is between goes out as it stands. Returns true when this tag was one. */
static bool lex_raw(struct lexer *x, td_err *out_err)
{
    size_t i = x->at;
    while (i < x->len && isspace((unsigned char)x->src[i])) {
        i++;
    }
    if (x->len - i < 3 || memcmp(x->src + i, "raw", 3) != 0 ||
        (i + 3 < x->len && isalnum((unsigned char)x->src[i + 3]))) {
        return false;
    }
    const char *begin = strstr(x->src + i, "%}");
    const char *end = begin != NULL ? strstr(begin, "endraw") : NULL;
    const char *open = end;
    while (open != NULL && open > begin && !(open[0] == '{' && open[1] == '%')) {
        open--;
    }
    const char *close = end != NULL ? strstr(end, "%}") : NULL;
    if (begin == NULL || open == NULL || open <= begin || close == NULL) {
        *out_err = tp__fail(x->e, TD_ERR_FILE_FORMAT, x->line, "raw without endraw");
        return true;
    }
    *out_err = push(x, TT_TEXT, begin + 2, (size_t)(open - begin - 2));
    x->at = (size_t)(close + 2 - x->src);
    return true;
}

static td_err lex_tag(struct lexer *x, char kind)
{
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
    td_err err = TD_OK;
    if (lex_raw(x, &err)) {
        return err;
    }
    TD_TRY(push(x, TT_TAG_BEGIN, "", 0));
    return lex_inside(x, "%}", TT_TAG_END);
}

td_err tt__lex(struct td_arena *arena, const char *src, size_t len, struct tt_tokens *out,
               struct tp_error *e)
{
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
