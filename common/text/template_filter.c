/* Filters and tests: one table each, so that an unknown name is refused at compile time. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/text/template_priv.h"

typedef struct tv *(*filter_fn)(struct tr *r, struct tv *v, const struct tv_args *a);

static struct tv *as_method(struct tr *r, struct tv *v, const char *name, const struct tv_args *a)
{
    v = tv__to_str(r, v);
    return v != NULL ? tm__method(r, v, name, a) : NULL;
}

static struct tv *f_trim(struct tr *r, struct tv *v, const struct tv_args *a)
{
    return as_method(r, v, "strip", a);
}

static struct tv *f_upper(struct tr *r, struct tv *v, const struct tv_args *a)
{
    return as_method(r, v, "upper", a);
}

static struct tv *f_lower(struct tr *r, struct tv *v, const struct tv_args *a)
{
    return as_method(r, v, "lower", a);
}

static struct tv *f_title(struct tr *r, struct tv *v, const struct tv_args *a)
{
    return as_method(r, v, "title", a);
}

static struct tv *f_capitalize(struct tr *r, struct tv *v, const struct tv_args *a)
{
    return as_method(r, v, "capitalize", a);
}

static struct tv *f_replace(struct tr *r, struct tv *v, const struct tv_args *a)
{
    return as_method(r, v, "replace", a);
}

static struct tv *f_length(struct tr *r, struct tv *v, const struct tv_args *a)
{
    (void)a;
    if (v->type == TV_DICT) {
        return tv__int(r, (int64_t)v->dict.n);
    }
    struct tv *list = tv__iterate(r, v);
    return list != NULL ? tv__int(r, (int64_t)list->list.n) : NULL;
}

static struct tv *f_tojson(struct tr *r, struct tv *v, const struct tv_args *a)
{
    struct tv *indent = ta__get(a, 99, "indent");
    struct tv *ascii = ta__get(a, 99, "ensure_ascii");
    indent = indent != NULL ? indent : ta__get(a, 0, NULL);
    bool indented = indent != NULL && indent->type == TV_INT && indent->i >= 0;
    int width = indented && indent->i < 64 ? (int)indent->i : 64;
    return tv__to_json(r, v, indented ? width : -1, ascii != NULL && tv__truthy(ascii));
}

static const char *name_of(struct tr *r, const struct tv *v)
{
    if (v == NULL || v->type != TV_STR) {
        tr__fail(r, "a name is needed here");
        return NULL;
    }
    char *s = tr__alloc(r, v->s.n + 1);
    if (s != NULL) {
        memcpy(s, v->s.p, v->s.n);
    }
    return s;
}

static struct tv *f_join(struct tr *r, struct tv *v, const struct tv_args *a)
{
    struct tv *list = tv__iterate(r, v), *sep = ta__get(a, 0, "d"),
              *attr = ta__get(a, 1, "attribute");
    struct tb b;
    tb__init(&b, r);
    sep = sep != NULL ? tv__to_str(r, sep) : tv__cstr(r, "");
    for (size_t i = 0; list != NULL && sep != NULL && i < list->list.n; i++) {
        struct tv *item = list->list.v[i];
        if (attr != NULL) {
            const char *name = name_of(r, attr);
            item = name != NULL ? tx__attr(r, item, name) : NULL;
        }
        item = item != NULL ? tv__to_str(r, item) : NULL;
        if (item == NULL || (i > 0 && !tb__add(&b, &sep->s)) || !tb__add(&b, &item->s)) {
            return NULL;
        }
    }
    return list != NULL ? tb__done(&b) : NULL;
}

static struct tv *f_default(struct tr *r, struct tv *v, const struct tv_args *a)
{
    struct tv *def = ta__get(a, 0, "default_value"), *falsy = ta__get(a, 1, "boolean");
    bool use = v->type == TV_UNDEFINED || (falsy != NULL && tv__truthy(falsy) && !tv__truthy(v));
    return use ? (def != NULL ? def : tv__cstr(r, "")) : v;
}

static struct tv *f_first(struct tr *r, struct tv *v, const struct tv_args *a)
{
    (void)a;
    struct tv *list = tv__iterate(r, v);
    if (list == NULL) {
        return NULL;
    }
    return list->list.n > 0 ? list->list.v[0] : tv__undefined(r, "first");
}

static struct tv *f_last(struct tr *r, struct tv *v, const struct tv_args *a)
{
    (void)a;
    struct tv *list = tv__iterate(r, v);
    if (list == NULL) {
        return NULL;
    }
    return list->list.n > 0 ? list->list.v[list->list.n - 1] : tv__undefined(r, "last");
}

static struct tv *copy_list(struct tr *r, struct tv *v)
{
    struct tv *list = tv__iterate(r, v), *out = tv__list(r);
    for (size_t i = 0; list != NULL && out != NULL && i < list->list.n; i++) {
        if (!tr__tick(r) || !tv__append(r, out, list->list.v[i])) {
            return NULL;
        }
    }
    return list != NULL ? out : NULL;
}

static struct tv *f_list(struct tr *r, struct tv *v, const struct tv_args *a)
{
    (void)a;
    return copy_list(r, v);
}

static struct tv *f_reverse(struct tr *r, struct tv *v, const struct tv_args *a)
{
    (void)a;
    struct tv *out = copy_list(r, v);
    for (size_t i = 0; out != NULL && i < out->list.n / 2; i++) {
        struct tv *t = out->list.v[i];
        out->list.v[i] = out->list.v[out->list.n - 1 - i];
        out->list.v[out->list.n - 1 - i] = t;
    }
    if (out != NULL && v->type == TV_STR) {
        struct tv_args none = {0};
        return f_join(r, out, &none);
    }
    return out;
}

static struct tv *f_string(struct tr *r, struct tv *v, const struct tv_args *a)
{
    (void)a;
    return tv__to_str(r, v);
}

static bool parse_double(const struct tv *v, double *out)
{
    char text[64] = "", *end = NULL;
    if (tv__number(v, out)) {
        return true;
    }
    if (v->type != TV_STR || v->s.n == 0 || v->s.n >= sizeof text) {
        return false;
    }
    memcpy(text, v->s.p, v->s.n);
    *out = strtod(text, &end);
    while (isspace((unsigned char)*end)) {
        end++;
    }
    return *end == 0;
}

static struct tv *f_int(struct tr *r, struct tv *v, const struct tv_args *a)
{
    double d = 0;
    struct tv *def = ta__get(a, 0, "default");
    if (parse_double(v, &d) && fabs(d) < 9e18) {
        return tv__int(r, v->type == TV_INT ? v->i : (int64_t)d);
    }
    return def != NULL ? def : tv__int(r, 0);
}

static struct tv *f_float(struct tr *r, struct tv *v, const struct tv_args *a)
{
    double d = 0;
    struct tv *def = ta__get(a, 0, "default");
    if (parse_double(v, &d)) {
        return tv__float(r, d);
    }
    return def != NULL ? def : tv__float(r, 0);
}

static struct tv *f_abs(struct tr *r, struct tv *v, const struct tv_args *a)
{
    (void)a;
    double d = 0;
    if (!tv__number(v, &d)) {
        return tr__fail(r, "abs needs a number");
    }
    if (v->type == TV_FLOAT) {
        return tv__float(r, fabs(d));
    }
    int64_t i = v->type == TV_BOOL ? (int64_t)v->b : v->i;
    return i == INT64_MIN ? tr__fail(r, "integer overflow") : tv__int(r, i < 0 ? -i : i);
}

static struct tv *f_round(struct tr *r, struct tv *v, const struct tv_args *a)
{
    double d = 0, scale = 1;
    struct tv *digits = ta__get(a, 0, "precision"), *how = ta__get(a, 1, "method");
    if (!tv__number(v, &d)) {
        return tr__fail(r, "round needs a number");
    }
    if (digits != NULL && digits->type == TV_INT) {
        scale = pow(10, (double)digits->i);
    }
    if (how != NULL && tv__is_cstr(how, "ceil")) {
        return tv__float(r, ceil(d * scale) / scale);
    }
    if (how != NULL && tv__is_cstr(how, "floor")) {
        return tv__float(r, floor(d * scale) / scale);
    }
    return v->type == TV_INT && scale >= 1 ? v : tv__float(r, nearbyint(d * scale) / scale);
}

static struct tv *f_same(struct tr *r, struct tv *v, const struct tv_args *a)
{
    (void)r;
    (void)a;
    return v;
}

static struct tv *f_items(struct tr *r, struct tv *v, const struct tv_args *a)
{
    (void)a;
    struct tv *out = tv__list(r);
    if (v->type == TV_UNDEFINED) {
        return out;
    }
    if (v->type != TV_DICT) {
        return tr__fail(r, "items needs a mapping");
    }
    for (size_t i = 0; out != NULL && i < v->dict.n; i++) {
        struct tv *pair = tv__list(r);
        if (!tv__append(r, pair, v->dict.v[i].key) || !tv__append(r, pair, v->dict.v[i].value) ||
            !tv__append(r, out, pair)) {
            return NULL;
        }
        pair->is_tuple = true;
    }
    return out;
}

/* ---- sorting ---- */

static struct tv *attr_path(struct tr *r, struct tv *v, const struct tv *path)
{
    char name[128];
    size_t from = 0;
    if (path->type == TV_INT) {
        return v->type == TV_LIST && path->i >= 0 && (size_t)path->i < v->list.n
                   ? v->list.v[path->i]
                   : tv__undefined(r, "item");
    }
    while (v != NULL && path->type == TV_STR && from <= path->s.n) {
        const char *dot = memchr(path->s.p + from, '.', path->s.n - from);
        size_t n = dot != NULL ? (size_t)(dot - path->s.p) - from : path->s.n - from;
        if (n >= sizeof name) {
            return tr__fail(r, "attribute name too long");
        }
        memcpy(name, path->s.p + from, n);
        name[n] = 0;
        const char *kept = tr__alloc(r, n + 1);
        if (kept == NULL) {
            return NULL;
        }
        memcpy((char *)(uintptr_t)kept, name, n + 1);
        v = v->type == TV_UNDEFINED ? v : tx__attr(r, v, kept);
        from += n + 1;
    }
    return v;
}

static struct tv *fold(struct tr *r, struct tv *key, bool sensitive)
{
    struct tv_args none = {0};
    return key != NULL && key->type == TV_STR && !sensitive ? tm__method(r, key, "lower", &none)
                                                            : key;
}

/* Insertion sort: stable, and lists in templates are short; the step limit bounds it. */
static struct tv *sort_by(struct tr *r, struct tv *list, const struct tv *attr, bool reverse,
                          bool sensitive)
{
    size_t n = list->list.n;
    struct tv **keys = tr__alloc(r, (n + 1) * sizeof(struct tv *));
    for (size_t i = 0; keys != NULL && i < n; i++) {
        struct tv *item = list->list.v[i];
        struct tv *key = fold(r, attr != NULL ? attr_path(r, item, attr) : item, sensitive);
        size_t k = i;
        if (key == NULL) {
            return NULL;
        }
        for (; k > 0; k--) {
            int c = tv__compare(r, keys[k - 1], key);
            if (c == 2) {
                return tr__fail(r, "values cannot be sorted");
            }
            if (!tr__tick(r)) {
                return NULL;
            }
            if (reverse ? c >= 0 : c <= 0) {
                break;
            }
            keys[k] = keys[k - 1];
            list->list.v[k] = list->list.v[k - 1];
        }
        keys[k] = key;
        list->list.v[k] = item;
    }
    return keys != NULL ? list : NULL;
}

static bool flag(const struct tv_args *a, size_t i, const char *name)
{
    struct tv *v = ta__get(a, i, name);
    return v != NULL && tv__truthy(v);
}

static struct tv *f_sort(struct tr *r, struct tv *v, const struct tv_args *a)
{
    struct tv *list = copy_list(r, v);
    return list != NULL ? sort_by(r, list, ta__get(a, 2, "attribute"), flag(a, 0, "reverse"),
                                  flag(a, 1, "case_sensitive"))
                        : NULL;
}

static struct tv *f_dictsort(struct tr *r, struct tv *v, const struct tv_args *a)
{
    struct tv *items = f_items(r, v, a), *by = ta__get(a, 1, "by");
    struct tv *index = tv__int(r, by != NULL && tv__is_cstr(by, "value") ? 1 : 0);
    return items != NULL && index != NULL
               ? sort_by(r, items, index, flag(a, 2, "reverse"), flag(a, 0, "case_sensitive"))
               : NULL;
}

static struct tv *f_unique(struct tr *r, struct tv *v, const struct tv_args *a)
{
    (void)a;
    struct tv *list = tv__iterate(r, v), *out = tv__list(r);
    for (size_t i = 0; list != NULL && out != NULL && i < list->list.n; i++) {
        bool seen = false;
        for (size_t k = 0; k < out->list.n && !seen && tr__tick(r); k++) {
            seen = tv__equal(r, out->list.v[k], list->list.v[i]);
        }
        if (!seen && !tv__append(r, out, list->list.v[i])) {
            return NULL;
        }
    }
    return list != NULL ? out : NULL;
}

static struct tv *extreme(struct tr *r, struct tv *v, int want)
{
    struct tv *list = tv__iterate(r, v), *best = NULL;
    for (size_t i = 0; list != NULL && i < list->list.n; i++) {
        if (best == NULL || tv__compare(r, list->list.v[i], best) == want) {
            best = list->list.v[i];
        }
    }
    if (list == NULL) {
        return NULL;
    }
    return best != NULL ? best : tv__undefined(r, "item");
}

static struct tv *f_min(struct tr *r, struct tv *v, const struct tv_args *a)
{
    (void)a;
    return extreme(r, v, -1);
}

static struct tv *f_max(struct tr *r, struct tv *v, const struct tv_args *a)
{
    (void)a;
    return extreme(r, v, 1);
}

static struct tv *f_sum(struct tr *r, struct tv *v, const struct tv_args *a)
{
    (void)a;
    struct tv *list = tv__iterate(r, v);
    double sum = 0;
    int64_t whole = 0;
    bool ints = true, over = false;
    for (size_t i = 0; list != NULL && i < list->list.n; i++) {
        double d = 0;
        if (!tr__tick(r) || !tv__number(list->list.v[i], &d) || fabs(d) > 9e15) {
            return tr__fail(r, "sum needs numbers");
        }
        ints = ints && list->list.v[i]->type != TV_FLOAT;
        over = over || (ints && __builtin_add_overflow(whole, (int64_t)d, &whole));
        sum += d;
    }
    if (list == NULL) {
        return NULL;
    }
    if (ints && over) {
        return tr__fail(r, "integer overflow");
    }
    return ints ? tv__int(r, whole) : tv__float(r, sum);
}

/* ---- map, select ---- */

static struct tv_args rest(const struct tv_args *a, size_t skip)
{
    return a->n > skip
               ? (struct tv_args){.v = a->v + skip, .names = a->names + skip, .n = a->n - skip}
               : (struct tv_args){0};
}

/* What map and select run over: nothing gives nothing. */
static struct tv *items_of(struct tr *r, struct tv *v)
{
    return tv__truthy(v) ? tv__iterate(r, v) : tv__list(r);
}

static struct tv *f_map(struct tr *r, struct tv *v, const struct tv_args *a)
{
    struct tv *list = items_of(r, v), *out = tv__list(r), *attr = ta__get(a, 99, "attribute");
    struct tv *def = ta__get(a, 99, "default");
    const char *filter = attr == NULL ? name_of(r, ta__get(a, 0, NULL)) : NULL;
    struct tv_args args = rest(a, 1);
    if (filter != NULL && !tf__known_filter(filter)) {
        return tr__fail(r, "unknown filter '%s'", filter);
    }
    for (size_t i = 0; list != NULL && r->err == TD_OK && i < list->list.n; i++) {
        struct tv *item = attr != NULL ? attr_path(r, list->list.v[i], attr)
                                       : tf__filter(r, filter, list->list.v[i], &args);
        item = item != NULL && item->type == TV_UNDEFINED && def != NULL ? def : item;
        if (!tr__tick(r) || !tv__append(r, out, item)) {
            return NULL;
        }
    }
    return r->err == TD_OK ? out : NULL;
}

static struct tv *choose(struct tr *r, struct tv *v, const struct tv_args *a, bool by_attr,
                         bool want)
{
    struct tv *list = items_of(r, v), *out = tv__list(r);
    size_t used = by_attr ? 1 : 0;
    struct tv *attr = by_attr ? ta__get(a, 0, "attribute") : NULL, *test = ta__get(a, used, NULL);
    const char *name = test != NULL ? name_of(r, test) : NULL;
    struct tv_args args = rest(a, used + 1);
    if (name != NULL && !tf__known_test(name)) {
        return tr__fail(r, "unknown test '%s'", name);
    }
    if (by_attr && attr == NULL) {
        return tr__fail(r, "an attribute is needed here");
    }
    for (size_t i = 0; list != NULL && out != NULL && i < list->list.n; i++) {
        struct tv *item = list->list.v[i],
                  *subject = attr != NULL ? attr_path(r, item, attr) : item;
        struct tv *yes =
            subject != NULL && name != NULL ? tf__test(r, name, subject, &args) : subject;
        if (yes == NULL || !tr__tick(r)) {
            return NULL;
        }
        if (tv__truthy(yes) == want && !tv__append(r, out, item)) {
            return NULL;
        }
    }
    return r->err == TD_OK ? out : NULL;
}

static struct tv *f_select(struct tr *r, struct tv *v, const struct tv_args *a)
{
    return choose(r, v, a, false, true);
}

static struct tv *f_reject(struct tr *r, struct tv *v, const struct tv_args *a)
{
    return choose(r, v, a, false, false);
}

static struct tv *f_selectattr(struct tr *r, struct tv *v, const struct tv_args *a)
{
    return choose(r, v, a, true, true);
}

static struct tv *f_rejectattr(struct tr *r, struct tv *v, const struct tv_args *a)
{
    return choose(r, v, a, true, false);
}

/* ---- text ---- */

static struct tv *f_indent(struct tr *r, struct tv *v, const struct tv_args *a)
{
    struct tv *width = ta__get(a, 0, "width"), *s = tv__to_str(r, v);
    int64_t n = width != NULL && width->type == TV_INT ? width->i : 4;
    bool first = flag(a, 1, "first"), blank = flag(a, 2, "blank"), line_start = first;
    struct tb b;
    tb__init(&b, r);
    for (size_t i = 0; s != NULL && i < s->s.n; i++) {
        struct tv_str one = {.p = s->s.p + i,
                             .n = 1,
                             .tainted = s->s.mixed != NULL ? s->s.mixed[i] != 0 : s->s.tainted};
        for (int64_t k = 0; line_start && (blank || s->s.p[i] != '\n') && k < n; k++) {
            if (!tb__puts(&b, " ")) {
                return NULL;
            }
        }
        line_start = s->s.p[i] == '\n';
        if (!tb__add(&b, &one)) {
            return NULL;
        }
    }
    return s != NULL ? tb__done(&b) : NULL;
}

static struct tv *f_escape(struct tr *r, struct tv *v, const struct tv_args *a)
{
    (void)a;
    struct tv *s = tv__to_str(r, v);
    struct tb b;
    tb__init(&b, r);
    for (size_t i = 0; s != NULL && i < s->s.n; i++) {
        static const char from[] = "&<>\"'";
        static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
        bool tainted = s->s.mixed != NULL ? s->s.mixed[i] != 0 : s->s.tainted;
        const char *k = s->s.p[i] != 0 ? strchr(from, s->s.p[i]) : NULL;
        const char *text = k != NULL ? to[k - from] : s->s.p + i;
        if (!tb__put_n(&b, text, k != NULL ? strlen(text) : 1, tainted)) {
            return NULL;
        }
    }
    return s != NULL ? tb__done(&b) : NULL;
}

static const struct {
    const char *name;
    filter_fn fn;
} filters[] = {
    {"trim", f_trim},
    {"upper", f_upper},
    {"lower", f_lower},
    {"title", f_title},
    {"capitalize", f_capitalize},
    {"replace", f_replace},
    {"length", f_length},
    {"count", f_length},
    {"tojson", f_tojson},
    {"join", f_join},
    {"default", f_default},
    {"d", f_default},
    {"first", f_first},
    {"last", f_last},
    {"list", f_list},
    {"reverse", f_reverse},
    {"string", f_string},
    {"int", f_int},
    {"float", f_float},
    {"abs", f_abs},
    {"round", f_round},
    {"safe", f_same},
    {"items", f_items},
    {"sort", f_sort},
    {"dictsort", f_dictsort},
    {"unique", f_unique},
    {"min", f_min},
    {"max", f_max},
    {"sum", f_sum},
    {"map", f_map},
    {"select", f_select},
    {"reject", f_reject},
    {"selectattr", f_selectattr},
    {"rejectattr", f_rejectattr},
    {"indent", f_indent},
    {"escape", f_escape},
    {"e", f_escape},
};

bool tf__known_filter(const char *name)
{
    for (size_t i = 0; i < TD_COUNT(filters); i++) {
        if (strcmp(filters[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* An undefined value is an empty text or list to the others. */
static bool takes_undefined(const char *name)
{
    static const char *const not_these[] = {"tojson", "int",      "float", "abs",
                                            "round",  "dictsort", "safe"};
    for (size_t i = 0; i < TD_COUNT(not_these); i++) {
        if (strcmp(not_these[i], name) == 0) {
            return false;
        }
    }
    return true;
}

struct tv *tf__filter(struct tr *r, const char *name, struct tv *v, const struct tv_args *args)
{
    if (v->type == TV_UNDEFINED && !takes_undefined(name)) {
        return tr__fail(r, "'%s' is undefined", v->func != NULL ? v->func : "value");
    }
    if (v->type == TV_STR && !tr__work(r, v->s.n)) {
        return NULL;
    }
    for (size_t i = 0; i < TD_COUNT(filters); i++) {
        if (strcmp(filters[i].name, name) == 0) {
            return filters[i].fn(r, v, args);
        }
    }
    return tr__fail(r, "unknown filter '%s'", name);
}

/* ---- tests ---- */

typedef bool (*test_fn)(struct tr *r, const struct tv *v, const struct tv *arg);

static bool t_defined(struct tr *r, const struct tv *v, const struct tv *arg)
{
    (void)r;
    (void)arg;
    return v->type != TV_UNDEFINED;
}

static bool t_undefined(struct tr *r, const struct tv *v, const struct tv *arg)
{
    return !t_defined(r, v, arg);
}

static bool t_none(struct tr *r, const struct tv *v, const struct tv *arg)
{
    (void)r;
    (void)arg;
    return v->type == TV_NONE;
}

static bool t_string(struct tr *r, const struct tv *v, const struct tv *arg)
{
    (void)r;
    (void)arg;
    return v->type == TV_STR;
}

static bool t_number(struct tr *r, const struct tv *v, const struct tv *arg)
{
    (void)r;
    (void)arg;
    return v->type == TV_INT || v->type == TV_FLOAT || v->type == TV_BOOL;
}

static bool t_integer(struct tr *r, const struct tv *v, const struct tv *arg)
{
    (void)r;
    (void)arg;
    return v->type == TV_INT;
}

static bool t_float(struct tr *r, const struct tv *v, const struct tv *arg)
{
    (void)r;
    (void)arg;
    return v->type == TV_FLOAT;
}

static bool t_boolean(struct tr *r, const struct tv *v, const struct tv *arg)
{
    (void)r;
    (void)arg;
    return v->type == TV_BOOL;
}

static bool t_true(struct tr *r, const struct tv *v, const struct tv *arg)
{
    (void)r;
    (void)arg;
    return v->type == TV_BOOL && v->b;
}

static bool t_false(struct tr *r, const struct tv *v, const struct tv *arg)
{
    (void)r;
    (void)arg;
    return v->type == TV_BOOL && !v->b;
}

static bool t_mapping(struct tr *r, const struct tv *v, const struct tv *arg)
{
    (void)r;
    (void)arg;
    return v->type == TV_DICT;
}

static bool t_sequence(struct tr *r, const struct tv *v, const struct tv *arg)
{
    (void)r;
    (void)arg;
    return v->type == TV_LIST || v->type == TV_STR || v->type == TV_DICT || v->type == TV_UNDEFINED;
}

static bool t_callable(struct tr *r, const struct tv *v, const struct tv *arg)
{
    (void)r;
    (void)arg;
    return v->type == TV_MACRO || v->type == TV_FUNC || v->type == TV_METHOD;
}

static bool t_odd(struct tr *r, const struct tv *v, const struct tv *arg)
{
    (void)r;
    (void)arg;
    return v->type == TV_INT && v->i % 2 != 0;
}

static bool t_even(struct tr *r, const struct tv *v, const struct tv *arg)
{
    (void)r;
    (void)arg;
    return v->type == TV_INT && v->i % 2 == 0;
}

static bool t_divisibleby(struct tr *r, const struct tv *v, const struct tv *arg)
{
    if (arg == NULL || arg->type != TV_INT || arg->i == 0 || v->type != TV_INT) {
        tr__fail(r, "divisibleby needs integers");
        return false;
    }
    return arg->i != -1 ? v->i % arg->i == 0 : true;
}

static bool t_eq(struct tr *r, const struct tv *v, const struct tv *arg)
{
    return arg != NULL && tv__equal(r, v, arg);
}

static bool t_sameas(struct tr *r, const struct tv *v, const struct tv *arg)
{
    return arg != NULL && v->type == arg->type && tv__equal(r, v, arg);
}

static bool t_ne(struct tr *r, const struct tv *v, const struct tv *arg)
{
    return !t_eq(r, v, arg);
}

static bool order_test(struct tr *r, const struct tv *v, const struct tv *arg, int a, int b)
{
    int c = arg != NULL ? tv__compare(r, v, arg) : 2;
    if (c == 2) {
        tr__fail(r, "values cannot be compared");
    }
    return c == a || c == b;
}

static bool t_lt(struct tr *r, const struct tv *v, const struct tv *arg)
{
    return order_test(r, v, arg, -1, -1);
}

static bool t_le(struct tr *r, const struct tv *v, const struct tv *arg)
{
    return order_test(r, v, arg, -1, 0);
}

static bool t_gt(struct tr *r, const struct tv *v, const struct tv *arg)
{
    return order_test(r, v, arg, 1, 1);
}

static bool t_ge(struct tr *r, const struct tv *v, const struct tv *arg)
{
    return order_test(r, v, arg, 1, 0);
}

static bool t_in(struct tr *r, const struct tv *v, const struct tv *arg)
{
    if (arg != NULL && arg->type == TV_STR) {
        return v->type == TV_STR &&
               (v->s.n == 0 || memmem(arg->s.p, arg->s.n, v->s.p, v->s.n) != NULL);
    }
    struct tv *list = arg != NULL ? tv__iterate(r, (struct tv *)(uintptr_t)arg) : NULL;
    for (size_t i = 0; list != NULL && i < list->list.n; i++) {
        if (tv__equal(r, list->list.v[i], v)) {
            return true;
        }
    }
    return false;
}

/* As str.islower and str.isupper: some character has a case, and none the other one. */
static bool case_test(struct tr *r, const struct tv *v, const char *same, const char *other)
{
    struct tv_args none = {0};
    struct tv *s = tv__to_str(r, (struct tv *)(uintptr_t)v);
    struct tv *a = s != NULL ? tm__method(r, s, same, &none) : NULL;
    struct tv *b = a != NULL ? tm__method(r, s, other, &none) : NULL;
    return b != NULL && tv__equal(r, s, a) && !tv__equal(r, s, b);
}

static bool t_lower(struct tr *r, const struct tv *v, const struct tv *arg)
{
    (void)arg;
    return case_test(r, v, "lower", "upper");
}

static bool t_upper(struct tr *r, const struct tv *v, const struct tv *arg)
{
    (void)arg;
    return case_test(r, v, "upper", "lower");
}

static const struct {
    const char *name;
    test_fn fn;
} tests[] = {
    {"defined", t_defined},
    {"undefined", t_undefined},
    {"none", t_none},
    {"string", t_string},
    {"number", t_number},
    {"integer", t_integer},
    {"float", t_float},
    {"boolean", t_boolean},
    {"true", t_true},
    {"false", t_false},
    {"mapping", t_mapping},
    {"sequence", t_sequence},
    {"iterable", t_sequence},
    {"callable", t_callable},
    {"odd", t_odd},
    {"even", t_even},
    {"divisibleby", t_divisibleby},
    {"equalto", t_eq},
    {"eq", t_eq},
    {"ne", t_ne},
    {"lt", t_lt},
    {"lessthan", t_lt},
    {"le", t_le},
    {"gt", t_gt},
    {"greaterthan", t_gt},
    {"ge", t_ge},
    {"in", t_in},
    {"sameas", t_sameas},
    {"lower", t_lower},
    {"upper", t_upper},
};

bool tf__known_test(const char *name)
{
    for (size_t i = 0; i < TD_COUNT(tests); i++) {
        if (strcmp(tests[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

struct tv *tf__test(struct tr *r, const char *name, struct tv *v, const struct tv_args *args)
{
    for (size_t i = 0; i < TD_COUNT(tests); i++) {
        if (strcmp(tests[i].name, name) == 0) {
            bool yes = tests[i].fn(r, v, ta__get(args, 0, NULL));
            return r->err == TD_OK ? tv__bool(r, yes) : NULL;
        }
    }
    return tr__fail(r, "unknown test '%s'", name);
}
