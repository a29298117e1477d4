#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <utf8proc.h>

#include "common/text/template_priv.h"

struct tv *tr__fail(struct tr *r, const char *fmt, ...)
{
    if (r->err == TD_OK) {
        va_list ap;
        va_start(ap, fmt);
        if (r->err_text != NULL && r->err_cap > 0) {
            (void)vsnprintf(r->err_text, r->err_cap, fmt, ap);
        }
        va_end(ap);
        r->err = TD_ERR_BAD_REQUEST;
    }
    return NULL;
}

void *tr__alloc(struct tr *r, size_t bytes)
{
    if (r->err != TD_OK) {
        return NULL;
    }
    void *p = td_arena_alloc(r->arena, bytes);
    if (p == NULL) {
        /* Refused by the arena's bound (chunks are at most twice what was asked for), or by the system? */
        bool limit = td_arena_used(r->arena) + bytes > TD_TEMPLATE_MAX_MEMORY / 2;
        tr__fail(r, "the template needs too much memory for these messages");
        r->err = limit ? TD_ERR_BAD_REQUEST : TD_ERR_NO_MEMORY;
    }
    return p;
}

bool tr__work(struct tr *r, size_t bytes)
{
    r->steps += bytes / 64;
    return tr__tick(r);
}

bool tr__tick(struct tr *r)
{
    if (++r->steps > TD_TEMPLATE_MAX_STEPS) {
        tr__fail(r, "the template takes too many steps for these messages");
    }
    return r->err == TD_OK;
}

struct tv *tv__new(struct tr *r, enum tv_type type)
{
    struct tv *v = tr__alloc(r, sizeof *v);
    if (v != NULL) {
        v->type = type;
    }
    return v;
}

struct tv *tv__bool(struct tr *r, bool b)
{
    struct tv *v = tv__new(r, TV_BOOL);
    if (v != NULL) {
        v->b = b;
    }
    return v;
}

struct tv *tv__int(struct tr *r, int64_t i)
{
    struct tv *v = tv__new(r, TV_INT);
    if (v != NULL) {
        v->i = i;
    }
    return v;
}

struct tv *tv__float(struct tr *r, double f)
{
    struct tv *v = tv__new(r, TV_FLOAT);
    if (v != NULL) {
        v->f = f;
    }
    return v;
}

struct tv *tv__str(struct tr *r, const char *p, size_t n, bool tainted)
{
    struct tv *v = tv__new(r, TV_STR);
    if (v != NULL) {
        v->s = (struct tv_str){.p = p, .n = n, .tainted = tainted};
    }
    return v;
}

struct tv *tv__cstr(struct tr *r, const char *s)
{
    return tv__str(r, s, strlen(s), false);
}

struct tv *tv__str_part(struct tr *r, const struct tv_str *s, size_t from, size_t n)
{
    struct tv *v = tv__str(r, s->p + from, n, s->tainted);
    if (v != NULL && s->mixed != NULL) {
        v->s.mixed = s->mixed + from;
    }
    return v;
}

struct tv *tv__undefined(struct tr *r, const char *name)
{
    struct tv *v = tv__new(r, TV_UNDEFINED);
    if (v != NULL) {
        v->func = name;
    }
    return v;
}

/* ---- lists and dicts ---- */

struct tv *tv__list(struct tr *r)
{
    return tv__new(r, TV_LIST);
}

bool tv__append(struct tr *r, struct tv *list, struct tv *item)
{
    if (list == NULL || item == NULL) {
        return false;
    }
    if (list->list.n == list->list.cap) {
        size_t cap = list->list.cap == 0 ? 4 : list->list.cap * 2;
        struct tv **v = tr__alloc(r, cap * sizeof(struct tv *));
        if (v == NULL) {
            return false;
        }
        if (list->list.n > 0) {
            memcpy(v, list->list.v, list->list.n * sizeof(struct tv *));
        }
        list->list.v = v;
        list->list.cap = cap;
    }
    list->list.v[list->list.n++] = item;
    return true;
}

struct tv *tv__dict(struct tr *r)
{
    return tv__new(r, TV_DICT);
}

bool tv__add(struct tr *r, struct tv *dict, struct tv *key, struct tv *value)
{
    if (dict == NULL || key == NULL || value == NULL) {
        return false;
    }
    if (dict->dict.n == dict->dict.cap) {
        size_t cap = dict->dict.cap == 0 ? 4 : dict->dict.cap * 2;
        struct tv_pair *v = tr__alloc(r, cap * sizeof *v);
        if (v == NULL) {
            return false;
        }
        if (dict->dict.n > 0) {
            memcpy(v, dict->dict.v, dict->dict.n * sizeof *v);
        }
        dict->dict.v = v;
        dict->dict.cap = cap;
    }
    dict->dict.v[dict->dict.n++] = (struct tv_pair){key, value};
    return true;
}

bool tv__put(struct tr *r, struct tv *dict, struct tv *key, struct tv *value)
{
    if (dict == NULL || key == NULL || value == NULL) {
        return false;
    }
    for (size_t i = 0; i < dict->dict.n; i++) {
        if (tv__equal(r, dict->dict.v[i].key, key)) {
            dict->dict.v[i].value = value;
            return true;
        }
    }
    return r->err == TD_OK && tv__add(r, dict, key, value);
}

struct tv *tv__get(const struct tv *dict, const char *key, size_t n)
{
    for (size_t i = 0; i < dict->dict.n; i++) {
        const struct tv *k = dict->dict.v[i].key;
        if (k->type == TV_STR && k->s.n == n && memcmp(k->s.p, key, n) == 0) {
            return dict->dict.v[i].value;
        }
    }
    return NULL;
}

static struct tv *dict_from_json(struct tr *r, const json_t *j)
{
    struct tv *d = tv__dict(r);
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach((json_t *)(uintptr_t)j, key, value)
    {
        if (!tv__add(r, d, tv__str(r, key, strlen(key), true), tv__from_json(r, value))) {
            return NULL; /* keys of a JSON object are unique: no look-up */
        }
    }
    return d;
}

struct tv *tv__from_json(struct tr *r, const json_t *j)
{
    struct tv *list = NULL;
    if (!tr__tick(r)) {
        return NULL;
    }
    switch (json_typeof(j)) {
    case JSON_OBJECT:
        return dict_from_json(r, j);
    case JSON_ARRAY:
        list = tv__list(r);
        for (size_t i = 0; i < json_array_size(j); i++) {
            if (!tv__append(r, list, tv__from_json(r, json_array_get(j, i)))) {
                return NULL;
            }
        }
        return list;
    case JSON_STRING:
        return tv__str(r, json_string_value(j), json_string_length(j), true);
    case JSON_INTEGER:
        return tv__int(r, json_integer_value(j));
    case JSON_REAL:
        return tv__float(r, json_real_value(j));
    case JSON_TRUE:
    case JSON_FALSE:
        return tv__bool(r, json_is_true(j));
    case JSON_NULL:
        break;
    }
    return tv__new(r, TV_NONE);
}

/* ---- properties ---- */

bool tv__truthy(const struct tv *v)
{
    switch (v->type) {
    case TV_UNDEFINED:
    case TV_NONE:
        return false;
    case TV_BOOL:
        return v->b;
    case TV_INT:
        return v->i != 0;
    case TV_FLOAT:
        return v->f != 0;
    case TV_STR:
        return v->s.n > 0;
    case TV_LIST:
        return v->list.n > 0;
    case TV_DICT:
        return v->dict.n > 0 || v->is_namespace;
    case TV_MACRO:
    case TV_FUNC:
    case TV_METHOD:
        break;
    }
    return true;
}

bool tv__number(const struct tv *v, double *out)
{
    if (v->type == TV_INT) {
        *out = (double)v->i;
    } else if (v->type == TV_FLOAT) {
        *out = v->f;
    } else if (v->type == TV_BOOL) {
        *out = v->b ? 1 : 0;
    } else {
        return false;
    }
    return true;
}

static bool equal(struct tr *r, const struct tv *a, const struct tv *b, unsigned depth);

static bool lists_equal(struct tr *r, const struct tv *a, const struct tv *b, unsigned depth)
{
    if (a->list.n != b->list.n) {
        return false;
    }
    for (size_t i = 0; i < a->list.n; i++) {
        if (!equal(r, a->list.v[i], b->list.v[i], depth)) {
            return false;
        }
    }
    return true;
}

static bool dicts_equal(struct tr *r, const struct tv *a, const struct tv *b, unsigned depth)
{
    if (a->dict.n != b->dict.n) {
        return false;
    }
    for (size_t i = 0; i < a->dict.n; i++) {
        bool found = false;
        for (size_t k = 0; k < b->dict.n && !found; k++) {
            found = equal(r, a->dict.v[i].key, b->dict.v[k].key, depth) &&
                    equal(r, a->dict.v[i].value, b->dict.v[k].value, depth);
        }
        if (!found) {
            return false;
        }
    }
    return true;
}

/* A template can nest lists as deep as it has steps, and share them: both are bounded here. */
static bool may_descend(struct tr *r, unsigned depth)
{
    if (depth > TD_TEMPLATE_MAX_DEPTH * 2) {
        tr__fail(r, "values too deep to compare");
    }
    return tr__tick(r);
}

static bool equal(struct tr *r, const struct tv *a, const struct tv *b, unsigned depth)
{
    double x = 0, y = 0;
    if (!may_descend(r, depth)) {
        return false;
    }
    if (a->type == TV_INT && b->type == TV_INT) {
        return a->i == b->i;
    }
    if (tv__number(a, &x) && tv__number(b, &y)) {
        return x == y;
    }
    if (a->type != b->type) {
        return false;
    }
    switch (a->type) {
    case TV_UNDEFINED:
    case TV_NONE:
        return true;
    case TV_STR:
        return a->s.n == b->s.n && tr__work(r, a->s.n) && memcmp(a->s.p, b->s.p, a->s.n) == 0;
    case TV_LIST:
        return lists_equal(r, a, b, depth + 1);
    case TV_DICT:
        return dicts_equal(r, a, b, depth + 1);
    case TV_BOOL:
    case TV_INT:
    case TV_FLOAT:
    case TV_MACRO:
    case TV_FUNC:
    case TV_METHOD:
        break;
    }
    return a == b;
}

bool tv__equal(struct tr *r, const struct tv *a, const struct tv *b)
{
    return equal(r, a, b, 0);
}

static int order(bool less, bool more)
{
    return less ? -1 : (more ? 1 : 0);
}

static int compare(struct tr *r, const struct tv *a, const struct tv *b, unsigned depth)
{
    double x = 0, y = 0;
    if (!may_descend(r, depth)) {
        return 2;
    }
    if (a->type == TV_INT && b->type == TV_INT) {
        return order(a->i<b->i, a->i> b->i);
    }
    if (tv__number(a, &x) && tv__number(b, &y)) {
        return order(x<y, x> y);
    }
    if (a->type == TV_STR && b->type == TV_STR) {
        size_t n = a->s.n < b->s.n ? a->s.n : b->s.n;
        int c = tr__work(r, n) ? memcmp(a->s.p, b->s.p, n) : 0;
        return c != 0 ? order(c<0, c> 0) : order(a->s.n<b->s.n, a->s.n> b->s.n);
    }
    if (a->type == TV_LIST && b->type == TV_LIST) {
        for (size_t i = 0; i < a->list.n && i < b->list.n; i++) {
            int c = compare(r, a->list.v[i], b->list.v[i], depth + 1);
            if (c != 0) {
                return c;
            }
        }
        return order(a->list.n<b->list.n, a->list.n> b->list.n);
    }
    return 2;
}

int tv__compare(struct tr *r, const struct tv *a, const struct tv *b)
{
    return compare(r, a, b, 0);
}

const char *tv__type_name(const struct tv *v)
{
    static const char *const names[] = {"undefined", "none", "bool",  "int",      "float", "str",
                                        "list",      "dict", "macro", "function", "method"};
    return names[v->type];
}

bool tv__is_cstr(const struct tv *v, const char *s)
{
    return v->type == TV_STR && v->s.n == strlen(s) && memcmp(v->s.p, s, v->s.n) == 0;
}

/* ---- building strings ---- */

void tb__init(struct tb *b, struct tr *r)
{
    memset(b, 0, sizeof *b);
    b->r = r;
}

static bool tb_room(struct tb *b, size_t n)
{
    if (b->n + n <= b->cap) {
        return b->r->err == TD_OK;
    }
    size_t cap = b->cap == 0 ? 64 : b->cap * 2;
    cap = cap < b->n + n ? b->n + n : cap;
    char *p = tr__alloc(b->r, cap);
    uint8_t *t = tr__alloc(b->r, cap);
    if (p == NULL || t == NULL) {
        return false;
    }
    if (b->n > 0) {
        memcpy(p, b->p, b->n);
        memcpy(t, b->taint, b->n);
    }
    b->p = p;
    b->taint = t;
    b->cap = cap;
    return true;
}

bool tb__put_n(struct tb *b, const char *s, size_t n, bool tainted)
{
    if (!tb_room(b, n)) {
        return false;
    }
    b->r->steps += n / 64;
    if (n > 0) {
        memcpy(b->p + b->n, s, n);
        memset(b->taint + b->n, tainted ? 1 : 0, n);
    }
    b->n += n;
    return true;
}

bool tb__puts(struct tb *b, const char *s)
{
    return tb__put_n(b, s, strlen(s), false);
}

bool tb__add(struct tb *b, const struct tv_str *s)
{
    size_t at = b->n;
    if (!tb__put_n(b, s->p, s->n, s->tainted)) {
        return false;
    }
    if (s->mixed != NULL && s->n > 0) {
        memcpy(b->taint + at, s->mixed, s->n);
    }
    return true;
}

struct tv *tb__done(struct tb *b)
{
    if (b->r->err != TD_OK) {
        return NULL;
    }
    struct tv *v = tv__str(b->r, b->p != NULL ? b->p : "", b->n, false);
    if (v != NULL) {
        v->s.mixed = b->taint;
    }
    return v;
}

struct tv *tv__concat(struct tr *r, struct tv *a, struct tv *b)
{
    struct tb t;
    a = tv__to_str(r, a);
    b = a != NULL ? tv__to_str(r, b) : NULL;
    if (b == NULL) {
        return NULL;
    }
    tb__init(&t, r);
    return tb__add(&t, &a->s) && tb__add(&t, &b->s) ? tb__done(&t) : NULL;
}

/* ---- as text ---- */

/* Python's repr of a float: the shortest digits that read back, always with a point or exponent. */
static void float_text(double f, char out[40])
{
    if (isnan(f) || isinf(f)) {
        (void)snprintf(out, 40, "%s", isnan(f) ? "nan" : (f > 0 ? "inf" : "-inf"));
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        double back = 0;
        (void)snprintf(out, 40, "%.*g", digits, f);
        (void)sscanf(out, "%lf", &back); // NOLINT(cert-err34-c): our own digits
        if (back == f) {
            break;
        }
    }
    double mag = fabs(f);
    if (mag != 0 && (mag >= 1e16 || mag < 1e-4)) {
        return; /* exponent form, as Python */
    }
    if (strchr(out, 'e') != NULL) {
        (void)snprintf(out, 40, "%.0f", f);
    }
    if (strchr(out, '.') == NULL) {
        size_t n = strlen(out);
        (void)snprintf(out + n, 40 - n, ".0");
    }
}

static bool put_repr(struct tb *b, const struct tv *v, unsigned depth);

static bool repr_str(struct tb *b, const struct tv_str *s)
{
    char quote = memchr(s->p, '\'', s->n) != NULL && memchr(s->p, '"', s->n) == NULL ? '"' : '\'';
    if (!tb__put_n(b, &quote, 1, false)) {
        return false;
    }
    for (size_t i = 0; i < s->n; i++) {
        unsigned char c = (unsigned char)s->p[i];
        bool tainted = s->mixed != NULL ? s->mixed[i] != 0 : s->tainted;
        char esc[8] = {(char)c, 0};
        if (c == '\n' || c == '\r' || c == '\t') {
            (void)snprintf(esc, sizeof esc, "\\%c", c == '\n' ? 'n' : (c == '\r' ? 'r' : 't'));
        } else if (c == '\\' || c == (unsigned char)quote) {
            (void)snprintf(esc, sizeof esc, "\\%c", c);
        } else if (c < 0x20 || c == 0x7f) {
            (void)snprintf(esc, sizeof esc, "\\x%02x", c);
        }
        if (!tb__put_n(b, esc, strlen(esc) > 0 ? strlen(esc) : 1, tainted)) {
            return false;
        }
    }
    return tb__put_n(b, &quote, 1, false);
}

static bool repr_list(struct tb *b, const struct tv *v, unsigned depth)
{
    bool ok = tb__puts(b, v->is_tuple ? "(" : "[");
    for (size_t i = 0; ok && i < v->list.n; i++) {
        ok = (i == 0 || tb__puts(b, ", ")) && put_repr(b, v->list.v[i], depth + 1);
    }
    return ok && tb__puts(b, v->is_tuple ? (v->list.n == 1 ? ",)" : ")") : "]");
}

static bool repr_dict(struct tb *b, const struct tv *v, unsigned depth)
{
    bool ok = tb__puts(b, "{");
    for (size_t i = 0; ok && i < v->dict.n; i++) {
        ok = (i == 0 || tb__puts(b, ", ")) && put_repr(b, v->dict.v[i].key, depth + 1) &&
             tb__puts(b, ": ") && put_repr(b, v->dict.v[i].value, depth + 1);
    }
    return ok && tb__puts(b, "}");
}

static bool put_plain(struct tb *b, const struct tv *v)
{
    char text[40];
    switch (v->type) {
    case TV_UNDEFINED:
        return true;
    case TV_NONE:
        return tb__puts(b, "None");
    case TV_BOOL:
        return tb__puts(b, v->b ? "True" : "False");
    case TV_INT:
        (void)snprintf(text, sizeof text, "%" PRId64, v->i);
        return tb__puts(b, text);
    case TV_FLOAT:
        float_text(v->f, text);
        return tb__puts(b, text);
    case TV_STR:
        return tb__add(b, &v->s);
    case TV_LIST:
    case TV_DICT:
    case TV_MACRO:
    case TV_FUNC:
    case TV_METHOD:
        break;
    }
    return tb__puts(b, "<function>");
}

static bool put_repr(struct tb *b, const struct tv *v, unsigned depth)
{
    if (depth > TD_TEMPLATE_MAX_DEPTH || !tr__tick(b->r)) {
        tr__fail(b->r, "value too deep");
        return false;
    }
    if (v->type == TV_STR) {
        return repr_str(b, &v->s);
    }
    if (v->type == TV_LIST) {
        return repr_list(b, v, depth);
    }
    return v->type == TV_DICT ? repr_dict(b, v, depth) : put_plain(b, v);
}

struct tv *tv__to_str(struct tr *r, struct tv *v)
{
    struct tb b;
    if (v->type == TV_STR) {
        return v;
    }
    tb__init(&b, r);
    bool ok = v->type == TV_LIST || v->type == TV_DICT ? put_repr(&b, v, 0) : put_plain(&b, v);
    return ok ? tb__done(&b) : NULL;
}

/* ---- iteration ---- */

static size_t char_len(const struct tv_str *s, size_t at)
{
    size_t n = 1;
    while (at + n < s->n && ((unsigned char)s->p[at + n] & 0xc0) == 0x80) {
        n++;
    }
    return n;
}

struct tv *tv__iterate(struct tr *r, struct tv *v)
{
    struct tv *list = NULL;
    switch (v->type) {
    case TV_LIST:
        return v;
    case TV_UNDEFINED:
        return tv__list(r);
    case TV_DICT:
        list = tv__list(r);
        for (size_t i = 0; list != NULL && i < v->dict.n; i++) {
            if (!tv__append(r, list, v->dict.v[i].key)) {
                return NULL;
            }
        }
        return list;
    case TV_STR:
        list = tv__list(r);
        for (size_t i = 0; list != NULL && i < v->s.n;) {
            size_t n = char_len(&v->s, i);
            if (!tr__tick(r) || !tv__append(r, list, tv__str_part(r, &v->s, i, n))) {
                return NULL;
            }
            i += n;
        }
        return list;
    case TV_NONE:
    case TV_BOOL:
    case TV_INT:
    case TV_FLOAT:
    case TV_MACRO:
    case TV_FUNC:
    case TV_METHOD:
        break;
    }
    return tr__fail(r, "'%s' is not iterable", tv__type_name(v));
}

/* ---- JSON ---- */

struct jw {
    struct tb b;
    int indent; /* < 0: one line */
    bool ascii; /* everything else as \\uXXXX */
};

static bool json_value(struct jw *w, const struct tv *v, unsigned depth);

/* The character at `at` as \\uXXXX, or as two of them; its bytes. */
static size_t json_ascii(struct jw *w, const struct tv_str *s, size_t at, bool tainted)
{
    char esc[16];
    utf8proc_int32_t cp = 0;
    utf8proc_ssize_t n =
        utf8proc_iterate((const utf8proc_uint8_t *)s->p + at, (utf8proc_ssize_t)(s->n - at), &cp);
    if (n <= 0) {
        cp = 0xfffd;
        n = 1;
    }
    if (cp > 0xffff) {
        unsigned c = (unsigned)cp - 0x10000;
        (void)snprintf(esc, sizeof esc, "\\u%04x\\u%04x", 0xd800 | c >> 10, 0xdc00 | (c & 0x3ff));
    } else {
        (void)snprintf(esc, sizeof esc, "\\u%04x", (unsigned)cp);
    }
    return tb__put_n(&w->b, esc, strlen(esc), tainted) ? (size_t)n : 0;
}

static bool json_str(struct jw *w, const struct tv_str *s)
{
    bool ok = tb__puts(&w->b, "\"");
    for (size_t i = 0; ok && i < s->n; i++) {
        unsigned char c = (unsigned char)s->p[i];
        bool tainted = s->mixed != NULL ? s->mixed[i] != 0 : s->tainted;
        if (w->ascii && c >= 0x80) {
            size_t n = json_ascii(w, s, i, tainted);
            ok = n > 0;
            i += n > 0 ? n - 1 : 0;
            continue;
        }
        static const char from[] = "\n\r\t\b\f\\\"", to[] = "nrtbf\\\"";
        const char *k = c != 0 ? strchr(from, c) : NULL;
        char esc[8];
        if (k != NULL) {
            (void)snprintf(esc, sizeof esc, "\\%c", to[k - from]);
        } else if (c < 0x20) {
            (void)snprintf(esc, sizeof esc, "\\u%04x", c);
        } else {
            esc[0] = (char)c;
            esc[1] = 0;
        }
        ok = tb__put_n(&w->b, esc, strlen(esc), tainted);
    }
    return ok && tb__puts(&w->b, "\"");
}

static bool json_break(struct jw *w, unsigned depth)
{
    if (w->indent < 0) {
        return true;
    }
    bool ok = tb__puts(&w->b, "\n");
    for (unsigned i = 0; ok && i < depth * (unsigned)w->indent; i++) {
        ok = tb__puts(&w->b, " ");
    }
    return ok;
}

static const char *json_comma(const struct jw *w)
{
    return w->indent < 0 ? ", " : ",";
}

static bool json_list(struct jw *w, const struct tv *v, unsigned depth)
{
    bool ok = tb__puts(&w->b, "[");
    for (size_t i = 0; ok && i < v->list.n; i++) {
        ok = (i == 0 || tb__puts(&w->b, json_comma(w))) && json_break(w, depth + 1) &&
             json_value(w, v->list.v[i], depth + 1);
    }
    return ok && (v->list.n == 0 || json_break(w, depth)) && tb__puts(&w->b, "]");
}

static bool json_dict(struct jw *w, const struct tv *v, unsigned depth)
{
    bool ok = tb__puts(&w->b, "{");
    for (size_t i = 0; ok && i < v->dict.n; i++) {
        struct tv *key = tv__to_str(w->b.r, v->dict.v[i].key);
        ok = key != NULL && (i == 0 || tb__puts(&w->b, json_comma(w))) &&
             json_break(w, depth + 1) && json_str(w, &key->s) && tb__puts(&w->b, ": ") &&
             json_value(w, v->dict.v[i].value, depth + 1);
    }
    return ok && (v->dict.n == 0 || json_break(w, depth)) && tb__puts(&w->b, "}");
}

static bool json_value(struct jw *w, const struct tv *v, unsigned depth)
{
    if (depth > TD_TEMPLATE_MAX_DEPTH || !tr__tick(w->b.r)) {
        tr__fail(w->b.r, "value too deep for tojson");
        return false;
    }
    switch (v->type) {
    case TV_STR:
        return json_str(w, &v->s);
    case TV_LIST:
        return json_list(w, v, depth);
    case TV_DICT:
        return json_dict(w, v, depth);
    case TV_NONE:
        return tb__puts(&w->b, "null");
    case TV_BOOL:
        return tb__puts(&w->b, v->b ? "true" : "false");
    case TV_INT:
    case TV_FLOAT:
        return put_plain(&w->b, v);
    case TV_UNDEFINED:
    case TV_MACRO:
    case TV_FUNC:
    case TV_METHOD:
        break;
    }
    tr__fail(w->b.r, "a value of type %s has no JSON", tv__type_name(v));
    return false;
}

struct tv *tv__to_json(struct tr *r, struct tv *v, int indent, bool ascii)
{
    struct jw w = {.indent = indent, .ascii = ascii};
    tb__init(&w.b, r);
    return json_value(&w, v, 0) ? tb__done(&w.b) : NULL;
}
