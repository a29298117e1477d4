#include <math.h>
#include <string.h>

#include "common/text/template_priv.h"

struct tv *ta__get(const struct tv_args *a, size_t i, const char *name)
{
    size_t at = 0;
    for (size_t k = 0; k < a->n; k++) {
        if (a->names[k] != NULL ? name != NULL && strcmp(a->names[k], name) == 0 : at++ == i) {
            return a->v[k];
        }
    }
    return NULL;
}

bool tx__args(struct tr *r, const struct tx_arg *args, size_t n, struct tv_args *out)
{
    memset(out, 0, sizeof *out);
    if (n == 0) {
        return r->err == TD_OK;
    }
    out->v = tr__alloc(r, n * sizeof(struct tv *));
    out->names = tr__alloc(r, n * sizeof *out->names);
    for (size_t i = 0; out->v != NULL && out->names != NULL && i < n; i++) {
        out->v[i] = tx__eval(r, args[i].value);
        out->names[i] = args[i].name;
        if (out->v[i] == NULL) {
            return false;
        }
        out->n++;
    }
    return r->err == TD_OK;
}

/* ---- arithmetic ---- */

static struct tv *int_op(struct tr *r, enum tx_op op, int64_t a, int64_t b)
{
    int64_t out = 0;
    bool over = false;
    switch ((int)op) {
    case OP_ADD:
        over = __builtin_add_overflow(a, b, &out);
        break;
    case OP_SUB:
        over = __builtin_sub_overflow(a, b, &out);
        break;
    case OP_MUL:
        over = __builtin_mul_overflow(a, b, &out);
        break;
    case OP_FLOORDIV:
    case OP_MOD:
        if (b == 0 || (a == INT64_MIN && b == -1)) {
            return tr__fail(r, "division by zero");
        }
        out = op == OP_MOD ? a % b : a / b;
        if (a % b != 0 && (a % b < 0) != (b < 0)) { /* Python rounds down */
            out = op == OP_MOD ? out + b : out - 1;
        }
        break;
    default:
        return tv__float(r, pow((double)a, (double)b));
    }
    return over ? tr__fail(r, "integer overflow") : tv__int(r, out);
}

static int64_t int_of(const struct tv *v)
{
    return v->type == TV_BOOL ? (int64_t)v->b : v->i;
}

static struct tv *float_op(struct tr *r, enum tx_op op, double a, double b)
{
    switch ((int)op) {
    case OP_ADD:
        return tv__float(r, a + b);
    case OP_SUB:
        return tv__float(r, a - b);
    case OP_MUL:
        return tv__float(r, a * b);
    case OP_POW:
        return tv__float(r, pow(a, b));
    default:
        break;
    }
    if (b == 0) {
        return tr__fail(r, "division by zero");
    }
    if (op == OP_DIV) {
        return tv__float(r, a / b);
    }
    double q = floor(a / b);
    return tv__float(r, op == OP_FLOORDIV ? q : a - q * b);
}

static struct tv *list_add(struct tr *r, const struct tv *a, const struct tv *b)
{
    struct tv *out = tv__list(r);
    if (out != NULL) {
        out->is_tuple = a->is_tuple && b->is_tuple;
    }
    for (size_t i = 0; out != NULL && i < a->list.n + b->list.n; i++) {
        if (!tr__tick(r) ||
            !tv__append(r, out, i < a->list.n ? a->list.v[i] : b->list.v[i - a->list.n])) {
            return NULL;
        }
    }
    return out;
}

static struct tv *repeat(struct tr *r, const struct tv *s, int64_t n)
{
    struct tb b;
    tb__init(&b, r);
    for (int64_t i = 0; i < n; i++) {
        if (!tr__tick(r) || !tb__add(&b, &s->s)) {
            return NULL;
        }
    }
    return tb__done(&b);
}

static struct tv *binary(struct tr *r, const struct tx *x)
{
    double p = 0, q = 0;
    struct tv *a = tx__eval(r, x->a), *b = a != NULL ? tx__eval(r, x->b) : NULL;
    if (b == NULL) {
        return NULL;
    }
    if (x->op == OP_CONCAT) {
        return tv__concat(r, a, b);
    }
    if (a->type == TV_STR && b->type == TV_STR && x->op == OP_ADD) {
        return tv__concat(r, a, b);
    }
    if (a->type == TV_LIST && b->type == TV_LIST && x->op == OP_ADD) {
        return list_add(r, a, b);
    }
    if (x->op == OP_MUL && a->type == TV_STR && b->type == TV_INT) {
        return repeat(r, a, b->i);
    }
    if (x->op == OP_MUL && a->type == TV_INT && b->type == TV_STR) {
        return repeat(r, b, a->i);
    }
    bool ints =
        (a->type == TV_INT || a->type == TV_BOOL) && (b->type == TV_INT || b->type == TV_BOOL);
    if (!tv__number(a, &p) || !tv__number(b, &q)) {
        return tr__fail(r, "line %u: unsupported operands %s and %s", x->line, tv__type_name(a),
                        tv__type_name(b));
    }
    if (ints && x->op == OP_POW && q >= 0 && fabs(pow(p, q)) < 9e15) {
        return tv__int(r, (int64_t)pow(p, q));
    }
    return ints && x->op != OP_DIV && x->op != OP_POW ? int_op(r, x->op, int_of(a), int_of(b))
                                                      : float_op(r, x->op, p, q);
}

/* ---- comparison ---- */

static struct tv *contains(struct tr *r, const struct tv *item, struct tv *in, bool want)
{
    if (in->type == TV_STR) {
        if (item->type != TV_STR) {
            return tr__fail(r, "'in <string>' requires a string");
        }
        if (!tr__work(r, in->s.n)) {
            return NULL;
        }
        bool found = item->s.n == 0 || memmem(in->s.p, in->s.n, item->s.p, item->s.n) != NULL;
        return tv__bool(r, found == want);
    }
    struct tv *list = tv__iterate(r, in);
    for (size_t i = 0; list != NULL && i < list->list.n; i++) {
        if (tv__equal(r, list->list.v[i], item)) {
            return tv__bool(r, want);
        }
    }
    return list != NULL ? tv__bool(r, !want) : NULL;
}

static struct tv *compare(struct tr *r, const struct tx *x)
{
    struct tv *a = tx__eval(r, x->a), *b = a != NULL ? tx__eval(r, x->b) : NULL;
    if (b == NULL) {
        return NULL;
    }
    if (x->op == OP_IN || x->op == OP_NOT_IN) {
        return contains(r, a, b, x->op == OP_IN);
    }
    if (x->op == OP_EQ || x->op == OP_NE) {
        return tv__bool(r, tv__equal(r, a, b) == (x->op == OP_EQ));
    }
    int c = tv__compare(r, a, b);
    if (c == 2) {
        return tr__fail(r, "line %u: %s and %s cannot be compared", x->line, tv__type_name(a),
                        tv__type_name(b));
    }
    bool yes =
        x->op == OP_LT ? c < 0 : (x->op == OP_LE ? c <= 0 : (x->op == OP_GT ? c > 0 : c >= 0));
    return tv__bool(r, yes);
}

/* ---- attributes and items ---- */

struct tv *tx__attr(struct tr *r, struct tv *obj, const char *name)
{
    if (obj->type == TV_UNDEFINED) {
        return tr__fail(r, "'%s' is undefined", obj->func != NULL ? obj->func : name);
    }
    if (obj->type == TV_DICT) {
        struct tv *v = tv__get(obj, name, strlen(name));
        if (v != NULL) {
            return v;
        }
    }
    if (tm__has(obj, name)) {
        struct tv *m = tv__new(r, TV_METHOD);
        if (m != NULL) {
            m->func = name;
            m->self = obj;
        }
        return m;
    }
    return tv__undefined(r, name);
}

static size_t str_chars(const struct tv_str *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        n += ((unsigned char)s->p[i] & 0xc0) != 0x80 ? 1 : 0;
    }
    return n;
}

/* Byte offset of the k-th character. */
static size_t str_offset(const struct tv_str *s, size_t k)
{
    size_t i = 0;
    for (; i < s->n; i++) {
        if (((unsigned char)s->p[i] & 0xc0) != 0x80 && k-- == 0) {
            break;
        }
    }
    return i;
}

/* a['name'] of anything but a dict is a.name. */
static struct tv *named_item(struct tr *r, struct tv *obj, const struct tv *key)
{
    size_t n = key->s.n < 127 ? key->s.n : 127;
    char *name = obj->type != TV_DICT ? tr__alloc(r, n + 1) : NULL;
    if (name == NULL) {
        return tv__undefined(r, "item");
    }
    if (n > 0) {
        memcpy(name, key->s.p, n);
    }
    return tx__attr(r, obj, name);
}

static struct tv *indexed_item(struct tr *r, struct tv *obj, int64_t i)
{
    if (obj->type == TV_STR && !tr__work(r, obj->s.n)) {
        return NULL;
    }
    int64_t n = (int64_t)(obj->type == TV_LIST ? obj->list.n : str_chars(&obj->s));
    i = i < 0 ? i + n : i;
    if (i < 0 || i >= n) {
        return tv__undefined(r, "item");
    }
    if (obj->type == TV_LIST) {
        return obj->list.v[i];
    }
    size_t at = str_offset(&obj->s, (size_t)i), end = str_offset(&obj->s, (size_t)i + 1);
    return tv__str_part(r, &obj->s, at, end - at);
}

static struct tv *item(struct tr *r, const struct tx *x)
{
    struct tv *obj = tx__eval(r, x->a), *key = obj != NULL ? tx__eval(r, x->b) : NULL;
    if (key == NULL) {
        return NULL;
    }
    if (obj->type == TV_UNDEFINED) {
        return tr__fail(r, "'%s' is undefined", obj->func != NULL ? obj->func : "value");
    }
    if (obj->type == TV_DICT) {
        for (size_t i = 0; i < obj->dict.n; i++) {
            if (tv__equal(r, obj->dict.v[i].key, key)) {
                return obj->dict.v[i].value;
            }
        }
    }
    if (key->type == TV_STR) {
        return named_item(r, obj, key);
    }
    if (key->type != TV_INT || (obj->type != TV_LIST && obj->type != TV_STR)) {
        return tv__undefined(r, "item");
    }
    return indexed_item(r, obj, key->i);
}

static bool bound(struct tr *r, const struct tx *x, int64_t def, int64_t *out)
{
    *out = def;
    if (x == NULL) {
        return true;
    }
    struct tv *v = tx__eval(r, x);
    if (v == NULL) {
        return false;
    }
    if (v->type == TV_INT) {
        *out = v->i;
    } else if (v->type != TV_NONE) {
        tr__fail(r, "slice bounds must be integers");
    }
    return r->err == TD_OK;
}

static int64_t clamp(int64_t v, int64_t n, int64_t low, int64_t high)
{
    v = v < 0 ? v + n : v;
    return v < low ? low : (v > high ? high : v);
}

static struct tv *slice_reversed(struct tr *r, struct tv *list, int64_t from, int64_t to,
                                 int64_t step)
{
    struct tv *out = tv__list(r);
    for (int64_t i = from; out != NULL && i > to; i += step) {
        if (!tr__tick(r) || !tv__append(r, out, list->list.v[i])) {
            return NULL;
        }
    }
    return out;
}

static struct tv *join_chars(struct tr *r, struct tv *list)
{
    struct tb b;
    tb__init(&b, r);
    for (size_t i = 0; list != NULL && i < list->list.n; i++) {
        if (!tb__add(&b, &list->list.v[i]->s)) {
            return NULL;
        }
    }
    return list != NULL ? tb__done(&b) : NULL;
}

static struct tv *slice(struct tr *r, const struct tx *x)
{
    struct tv *obj = tx__eval(r, x->a);
    int64_t step = 1, from = 0, to = 0;
    if (obj == NULL || !bound(r, x->d, 1, &step)) {
        return NULL;
    }
    if (obj->type != TV_LIST && obj->type != TV_STR) {
        return tr__fail(r, "line %u: a %s cannot be sliced", x->line, tv__type_name(obj));
    }
    struct tv *list = tv__iterate(r, obj);
    int64_t n = list != NULL ? (int64_t)list->list.n : 0;
    if (list == NULL || step == 0 || step > INT32_MAX || step < -INT32_MAX) {
        return list == NULL ? NULL : tr__fail(r, "slice step must not be zero");
    }
    if (step < 0) {
        bool ok = bound(r, x->b, n - 1, &from) && bound(r, x->c, -n - 1, &to);
        struct tv *out =
            ok ? slice_reversed(r, list, clamp(from, n, -1, n - 1), clamp(to, n, -1, n - 1), step)
               : NULL;
        return out != NULL && obj->type == TV_STR ? join_chars(r, out) : out;
    }
    if (!bound(r, x->b, 0, &from) || !bound(r, x->c, n, &to)) {
        return NULL;
    }
    from = clamp(from, n, 0, n);
    to = clamp(to, n, 0, n);
    struct tv *out = tv__list(r);
    for (int64_t i = from; out != NULL && i < to; i += step) {
        if (!tr__tick(r) || !tv__append(r, out, list->list.v[i])) {
            return NULL;
        }
    }
    return out != NULL && obj->type == TV_STR ? join_chars(r, out) : out;
}

/* ---- the rest ---- */

struct tv *tx__call(struct tr *r, struct tv *f, const struct tv_args *args, unsigned line)
{
    switch ((int)f->type) {
    case TV_MACRO:
        return tr__call_macro(r, f, args);
    case TV_FUNC:
        return tm__function(r, f->func, args);
    case TV_METHOD:
        return tm__method(r, f->self, f->func, args);
    case TV_UNDEFINED:
        return tr__fail(r, "line %u: '%s' is undefined", line,
                        f->func != NULL ? f->func : "function");
    default:
        return tr__fail(r, "line %u: a %s cannot be called", line, tv__type_name(f));
    }
}

static struct tv *collection(struct tr *r, const struct tx *x)
{
    struct tv *out = x->kind == TX_LIST ? tv__list(r) : tv__dict(r);
    if (out != NULL) {
        out->is_tuple = x->is_tuple;
    }
    for (size_t i = 0; out != NULL && i < x->n_args; i++) {
        struct tv *v = tx__eval(r, x->args[i].value);
        if (x->kind == TX_DICT) {
            struct tv *value = v != NULL ? tx__eval(r, x->args[++i].value) : NULL;
            if (!tv__put(r, out, v, value)) {
                return NULL;
            }
        } else if (!tv__append(r, out, v)) {
            return NULL;
        }
    }
    return out;
}

static struct tv *sign(struct tr *r, const struct tx *x)
{
    struct tv *v = tx__eval(r, x->a);
    double f = 0;
    if (v == NULL || !tv__number(v, &f)) {
        return v == NULL ? NULL
                         : tr__fail(r, "line %u: a %s has no sign", x->line, tv__type_name(v));
    }
    if (v->type == TV_FLOAT) {
        return tv__float(r, x->kind == TX_NEG ? -f : f);
    }
    return x->kind == TX_NEG ? int_op(r, OP_SUB, 0, int_of(v)) : tv__int(r, int_of(v));
}

static struct tv *apply(struct tr *r, const struct tx *x)
{
    struct tv_args args;
    /* A test of an undefined value, and `default`, are what undefined values are for. */
    struct tv *v = x->a != NULL ? tx__eval(r, x->a) : r->piped;
    if (v == NULL || !tx__args(r, x->args, x->n_args, &args)) {
        return NULL;
    }
    if (x->kind == TX_CALL) {
        return tx__call(r, v, &args, x->line);
    }
    if (x->kind == TX_FILTER) {
        return tf__filter(r, x->name, v, &args);
    }
    struct tv *yes = tf__test(r, x->name, v, &args);
    return yes != NULL ? tv__bool(r, tv__truthy(yes) != x->negated) : NULL;
}

static struct tv *logic(struct tr *r, const struct tx *x)
{
    struct tv *a = tx__eval(r, x->kind == TX_IF ? x->b : x->a);
    if (a == NULL) {
        return NULL;
    }
    switch ((int)x->kind) {
    case TX_NOT:
        return tv__bool(r, !tv__truthy(a));
    case TX_AND:
        return tv__truthy(a) ? tx__eval(r, x->b) : a;
    case TX_OR:
        return tv__truthy(a) ? a : tx__eval(r, x->b);
    default: /* TX_IF */
        if (tv__truthy(a)) {
            return tx__eval(r, x->a);
        }
        return x->c != NULL ? tx__eval(r, x->c) : tv__undefined(r, "value");
    }
}

struct tv *tx__eval(struct tr *r, const struct tx *x)
{
    struct tv *v = NULL;
    if (!tr__tick(r) || ++r->depth > TD_TEMPLATE_MAX_DEPTH * 8) {
        return tr__fail(r, "the template nests too deeply");
    }
    switch (x->kind) {
    case TX_CONST:
        v = x->value;
        break;
    case TX_NAME:
        v = tr__lookup(r, x->name);
        break;
    case TX_LIST:
    case TX_DICT:
        v = collection(r, x);
        break;
    case TX_ATTR:
        v = tx__eval(r, x->a);
        v = v != NULL ? tx__attr(r, v, x->name) : NULL;
        break;
    case TX_ITEM:
        v = item(r, x);
        break;
    case TX_SLICE:
        v = slice(r, x);
        break;
    case TX_CALL:
    case TX_FILTER:
    case TX_TEST:
        v = apply(r, x);
        break;
    case TX_NEG:
    case TX_POS:
        v = sign(r, x);
        break;
    case TX_BINARY:
        v = binary(r, x);
        break;
    case TX_COMPARE:
        v = compare(r, x);
        break;
    case TX_NOT:
    case TX_AND:
    case TX_OR:
    case TX_IF:
        v = logic(r, x);
        break;
    }
    r->depth--;
    return v;
}
