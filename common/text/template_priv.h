/* template_priv.h - what the parts of the template engine share: template_lex.c (source to tokens, whitespace control),
 * template_parse.c (tokens to tree), template_value.c (values, strings with their origin), template_expr.c (expressions),
 * template_filter.c (filters and tests), template_method.c (methods and global functions), template_render.c (statements,
 * output). Not for others.
 *
 * Origin: each byte of a string is either the template's own or the request's ("tainted"). A string is uniform (one flag)
 * or mixed (one byte of flags for each byte of text). Every operation that builds a string carries the flags along.
 */
#ifndef TD_TEXT_TEMPLATE_PRIV_H
#define TD_TEXT_TEMPLATE_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/text/template.h"

/* ---- tokens ---- */
enum tt_kind {
    TT_END,
    TT_TEXT,      /* outside of tags */
    TT_OUT_BEGIN, /* {{ */
    TT_OUT_END,
    TT_TAG_BEGIN, /* {% */
    TT_TAG_END,
    TT_NAME,
    TT_INT,
    TT_FLOAT,
    TT_STR,
    TT_OP,
};
struct tt_token {
    enum tt_kind kind;
    const char *s; /* text, name, operator, or the decoded string; in the compile arena */
    size_t n;
    int64_t i;
    double f;
    unsigned line;
};
struct tt_tokens {
    struct tt_token *list;
    size_t n, cap;
};

struct tp_error { /* of compilation */
    char *text;
    size_t cap;
};
td_err tp__fail(struct tp_error *e, td_err err, unsigned line, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Unifies the newlines of src in place; tokens point into it. */
td_err tt__lex(struct td_arena *arena, char *src, size_t len, struct tt_tokens *out,
               struct tp_error *e) TD_MUST_CHECK;

/* ---- tree ---- */
enum tx_kind {
    TX_CONST,
    TX_NAME,
    TX_LIST,
    TX_DICT,
    TX_ATTR,  /* a.name */
    TX_ITEM,  /* a[b] */
    TX_SLICE, /* a[b:c:d] */
    TX_CALL,
    TX_FILTER, /* a|name(args) */
    TX_TEST,   /* a is name(args) */
    TX_NOT,
    TX_NEG,
    TX_POS,
    TX_BINARY,
    TX_COMPARE, /* a op b; chains become TX_AND */
    TX_AND,
    TX_OR,
    TX_IF, /* a if b else c */
};
enum tx_op {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_CONCAT,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN,
};

struct tv;
struct tx_arg {
    const char *name; /* NULL: positional */
    struct tx *value;
};
struct tx {
    enum tx_kind kind;
    enum tx_op op;
    unsigned line;
    const char *name; /* NAME, ATTR, FILTER, TEST */
    bool negated;     /* TEST */
    bool is_tuple;    /* LIST */
    struct tx *a, *b, *c, *d;
    struct tx_arg
        *args; /* CALL, FILTER, TEST; LIST values; DICT: key in args[2i], value in args[2i+1] */
    size_t n_args;
    struct tv *value; /* CONST */
};

enum ts_kind {
    TS_TEXT,
    TS_OUTPUT,
    TS_IF,
    TS_FOR,
    TS_SET,
    TS_SET_BLOCK,
    TS_MACRO,
    TS_CALL,
    TS_FILTER,
    TS_BREAK,
    TS_CONTINUE,
    TS_BLOCK
};
struct ts {
    enum ts_kind kind;
    unsigned line;
    struct ts *next;
    const char *text;
    size_t n;
    struct tx *expr;      /* OUTPUT, IF condition, FOR iterable, SET value, CALL */
    struct tx *filter;    /* FOR ... if; FILTER */
    const char **names;   /* FOR targets, SET targets, MACRO parameters */
    struct tx **defaults; /* MACRO */
    size_t n_names;
    const char *name;        /* MACRO; SET: attribute of a namespace */
    struct ts *body, *other; /* IF: else part (may start with another IF); FOR: else */
    bool recursive;
};

struct td_template {
    struct td_arena *arena; /* owned: everything below */
    struct ts *root;
};
td_err tp__parse(struct td_arena *arena, const struct tt_tokens *tokens, struct ts **out,
                 struct tp_error *e) TD_MUST_CHECK;

/* ---- values ---- */
enum tv_type {
    TV_UNDEFINED,
    TV_NONE,
    TV_BOOL,
    TV_INT,
    TV_FLOAT,
    TV_STR,
    TV_LIST,
    TV_DICT,
    TV_MACRO,
    TV_FUNC,
    TV_METHOD
};

struct tv_str {
    const char *p;
    size_t n;
    const uint8_t *mixed; /* NULL: all bytes are `tainted` */
    bool tainted;
};
struct tv_pair {
    struct tv *key, *value;
};
struct tv {
    enum tv_type type;
    bool is_namespace, is_tuple;
    union {
        bool b;
        int64_t i;
        double f;
        struct tv_str s;
        struct {
            struct tv **v;
            size_t n, cap;
        } list;
        struct {
            struct tv_pair *v;
            size_t n, cap;
        } dict;
        const struct ts *macro;
        const char *func; /* FUNC, METHOD, UNDEFINED: the name */
    };
    struct tv *self;        /* METHOD: the object */
    struct tr_scope *scope; /* MACRO: where it was defined */
};

struct tr_scope {
    struct tr_scope *up;
    struct {
        const char *name;
        struct tv *value;
    } * vars;
    size_t n, cap;
};

struct tr_sink { /* where output goes: the answer, or a block of a set, macro or call */
    struct tr_sink *up;
    char *p;
    uint8_t *taint;
    size_t n, cap;
};

struct tr { /* one render */
    struct td_arena *arena;
    struct tr_scope *scope;
    struct tr_sink *sink;
    struct tv *piped; /* what a block's first filter works on */
    uint64_t steps;
    unsigned depth;
    int64_t now_s;
    td_err err;
    char *err_text;
    size_t err_cap;
    enum { TR_RUN, TR_BREAK, TR_CONTINUE } flow;
};

/* Sets the error once; returns NULL for convenience. */
struct tv *tr__fail(struct tr *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void *tr__alloc(struct tr *r, size_t bytes);
/* One more expression or statement; false when the limit is reached. */
bool tr__tick(struct tr *r);
/* So many bytes were looked at or moved: 64 of them count as a step. */
bool tr__work(struct tr *r, size_t bytes);

struct tv *tv__new(struct tr *r, enum tv_type type);
struct tv *tv__bool(struct tr *r, bool b);
struct tv *tv__int(struct tr *r, int64_t i);
struct tv *tv__float(struct tr *r, double f);
struct tv *tv__str(struct tr *r, const char *p, size_t n, bool tainted);
struct tv *tv__str_part(struct tr *r, const struct tv_str *s, size_t from, size_t n);
struct tv *tv__cstr(struct tr *r, const char *s);
struct tv *tv__list(struct tr *r);
bool tv__append(struct tr *r, struct tv *list, struct tv *item);
struct tv *tv__dict(struct tr *r);
bool tv__put(struct tr *r, struct tv *dict, struct tv *key, struct tv *value);
/* A key that is not there yet. */
bool tv__add(struct tr *r, struct tv *dict, struct tv *key, struct tv *value);
struct tv *tv__get(const struct tv *dict, const char *key, size_t n); /* NULL when absent */
struct tv *tv__undefined(struct tr *r, const char *name);
struct tv *tv__from_json(struct tr *r, const json_t *j);
bool tv__truthy(const struct tv *v);
/* Both count steps and stop (false, 2) at the limits. */
bool tv__equal(struct tr *r, const struct tv *a, const struct tv *b);
/* -1, 0, 1; 2 when they cannot be compared. */
int tv__compare(struct tr *r, const struct tv *a, const struct tv *b);
/* str(v) as Python writes it. */
struct tv *tv__to_str(struct tr *r, struct tv *v);
const char *tv__type_name(const struct tv *v);
bool tv__is_cstr(const struct tv *v, const char *s);
struct tv *tv__concat(struct tr *r, struct tv *a, struct tv *b);
bool tv__number(const struct tv *v, double *out);
/* The items a for loop would see, as a list; NULL after an error. */
struct tv *tv__iterate(struct tr *r, struct tv *v);
struct tv *tv__to_json(struct tr *r, struct tv *v, int indent, bool ascii);

/* A string being built. */
struct tb {
    struct tr *r;
    char *p;
    uint8_t *taint;
    size_t n, cap;
};
void tb__init(struct tb *b, struct tr *r);
bool tb__add(struct tb *b, const struct tv_str *s);
bool tb__puts(struct tb *b, const char *s);
bool tb__put_n(struct tb *b, const char *s, size_t n, bool tainted);
struct tv *tb__done(struct tb *b);

/* ---- evaluation ---- */
struct tv_args {
    struct tv **v;
    const char **names; /* NULL entries: positional */
    size_t n;
};
/* The i-th positional argument or the one of that name; NULL when absent. */
struct tv *ta__get(const struct tv_args *a, size_t i, const char *name);
struct tv *tx__eval(struct tr *r, const struct tx *x);
bool tx__args(struct tr *r, const struct tx_arg *args, size_t n, struct tv_args *out);
struct tv *tx__call(struct tr *r, struct tv *f, const struct tv_args *args, unsigned line);
struct tv *tx__attr(struct tr *r, struct tv *obj, const char *name);
struct tv *tf__filter(struct tr *r, const char *name, struct tv *v, const struct tv_args *args);
/* NULL after an error. */
struct tv *tf__test(struct tr *r, const char *name, struct tv *v, const struct tv_args *args);
bool tf__known_filter(const char *name);
bool tf__known_test(const char *name);
struct tv *tm__method(struct tr *r, struct tv *self, const char *name, const struct tv_args *args);
bool tm__has(const struct tv *self, const char *name);
struct tv *tm__function(struct tr *r, const char *name, const struct tv_args *args);
bool tm__is_function(const char *name);
struct tv *tr__call_macro(struct tr *r, const struct tv *value, const struct tv_args *args);

struct tv *tr__lookup(struct tr *r, const char *name);
void tr__assign(struct tr *r, const char *name, struct tv *value);

#endif
