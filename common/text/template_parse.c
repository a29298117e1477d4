/* Design: recursive descent in Jinja's order of precedence: ternary, or, and, not, comparison, sum, concatenation (~),
 * product, power (from the left), unary, then postfix (attributes, items, calls, filters, tests). Depth is bounded.
 */
#include <string.h>

#include "common/text/template_priv.h"

struct parser {
    struct td_arena *arena;
    const struct tt_token *t; /* the next one */
    struct tp_error *e;
    unsigned depth, loops; /* loops: around the statement, inside its macro */
    unsigned
        ifs; /* conditions around it: unknown filters and tests fail only when they are reached */
    td_err err; /* of the first failure inside an expression */
};

static struct tx *bad(struct parser *p, const char *what)
{
    if (p->err == TD_OK) {
        p->err = tp__fail(p->e, TD_ERR_FILE_FORMAT, p->t->line, "%s near '%.*s'", what,
                          (int)(p->t->n < 40 ? p->t->n : 40), p->t->s);
    }
    return NULL;
}

static struct tx *node(struct parser *p, enum tx_kind kind)
{
    struct tx *x = TD_ARENA_NEW(p->arena, struct tx);
    if (x == NULL) {
        return bad(p, "template too complex");
    }
    x->kind = kind;
    x->line = p->t->line;
    return x;
}

static bool is_op(const struct parser *p, const char *op)
{
    return p->t->kind == TT_OP && strcmp(p->t->s, op) == 0;
}

static bool is_name(const struct parser *p, const char *name)
{
    return p->t->kind == TT_NAME && strcmp(p->t->s, name) == 0;
}

static bool take_op(struct parser *p, const char *op)
{
    bool yes = is_op(p, op);
    p->t += yes ? 1 : 0;
    return yes;
}

static bool take_name(struct parser *p, const char *name)
{
    bool yes = is_name(p, name);
    p->t += yes ? 1 : 0;
    return yes;
}

static struct tx *parse_expr(struct parser *p);
static struct tx *parse_postfix(struct parser *p);

/* ---- arguments and literals ---- */

static bool add_arg(struct parser *p, struct tx *x, size_t *cap, const char *name, struct tx *value)
{
    if (value == NULL) {
        return false;
    }
    if (x->n_args == *cap) {
        size_t bigger = *cap == 0 ? 4 : *cap * 2;
        struct tx_arg *args = TD_ARENA_ARRAY(p->arena, struct tx_arg, bigger);
        if (args == NULL) {
            bad(p, "template too complex");
            return false;
        }
        if (x->n_args > 0) {
            memcpy(args, x->args, x->n_args * sizeof *args);
        }
        x->args = args;
        *cap = bigger;
    }
    x->args[x->n_args++] = (struct tx_arg){.name = name, .value = value};
    return true;
}

/* After '(': arguments up to ')'. */
static bool parse_args(struct parser *p, struct tx *x)
{
    size_t cap = 0;
    while (!take_op(p, ")")) {
        const char *name = NULL;
        if (p->t->kind == TT_NAME && p->t[1].kind == TT_OP && strcmp(p->t[1].s, "=") == 0) {
            name = p->t->s;
            p->t += 2;
        }
        if (!add_arg(p, x, &cap, name, parse_expr(p))) {
            return false;
        }
        if (!is_op(p, ")") && !take_op(p, ",")) {
            bad(p, "expected , or )");
            return false;
        }
    }
    return true;
}

static struct tx *tuple_node(struct parser *p)
{
    struct tx *x = node(p, TX_LIST);
    if (x != NULL) {
        x->is_tuple = true;
    }
    return x;
}

static struct tx *parse_list(struct parser *p, const char *close)
{
    struct tx *x = node(p, TX_LIST);
    size_t cap = 0;
    while (x != NULL && !take_op(p, close)) {
        if (!add_arg(p, x, &cap, NULL, parse_expr(p))) {
            return NULL;
        }
        if (!is_op(p, close) && !take_op(p, ",")) {
            return bad(p, "expected , or the end of the list");
        }
    }
    return x;
}

static struct tx *parse_dict(struct parser *p)
{
    struct tx *x = node(p, TX_DICT);
    size_t cap = 0;
    while (x != NULL && !take_op(p, "}")) {
        if (!add_arg(p, x, &cap, NULL, parse_expr(p))) {
            return NULL;
        }
        if (!take_op(p, ":")) {
            return bad(p, "expected :");
        }
        if (!add_arg(p, x, &cap, NULL, parse_expr(p))) {
            return NULL;
        }
        if (!is_op(p, "}") && !take_op(p, ",")) {
            return bad(p, "expected , or }");
        }
    }
    return x;
}

static struct tx *constant(struct parser *p, enum tv_type type)
{
    struct tx *x = node(p, TX_CONST);
    struct tv *v = x != NULL ? TD_ARENA_NEW(p->arena, struct tv) : NULL;
    if (v == NULL) {
        return bad(p, "template too complex");
    }
    v->type = type;
    x->value = v;
    return x;
}

static struct tx *parse_string(struct parser *p)
{
    struct tx *x = constant(p, TV_STR);
    if (x == NULL) {
        return NULL;
    }
    const struct tt_token *first = p->t++;
    size_t n = first->n;
    for (const struct tt_token *t = p->t; t->kind == TT_STR; t++) {
        n += t->n; /* adjacent literals are one */
    }
    char *all = td_arena_alloc(p->arena, n + 1);
    if (all == NULL) {
        return bad(p, "template too complex");
    }
    memcpy(all, first->s, first->n);
    n = first->n;
    for (; p->t->kind == TT_STR; p->t++) {
        memcpy(all + n, p->t->s, p->t->n);
        n += p->t->n;
    }
    x->value->s = (struct tv_str){.p = all, .n = n};
    return x;
}

static struct tx *parse_word(struct parser *p)
{
    static const struct {
        const char *name;
        enum tv_type type;
        bool b;
    } words[] = {{"true", TV_BOOL, true},   {"True", TV_BOOL, true},  {"false", TV_BOOL, false},
                 {"False", TV_BOOL, false}, {"none", TV_NONE, false}, {"None", TV_NONE, false}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (take_name(p, words[i].name)) {
            struct tx *x = constant(p, words[i].type);
            if (x != NULL) {
                x->value->b = words[i].b;
            }
            return x;
        }
    }
    struct tx *x = node(p, TX_NAME);
    if (x != NULL) {
        x->name = p->t++->s;
    }
    return x;
}

/* After '(': a parenthesised expression or a tuple. */
static struct tx *parse_group(struct parser *p)
{
    if (take_op(p, ")")) {
        return tuple_node(p);
    }
    struct tx *first = parse_expr(p);
    if (first == NULL || take_op(p, ")")) {
        return first;
    }
    struct tx *x = tuple_node(p);
    size_t cap = 0;
    if (x == NULL || !add_arg(p, x, &cap, NULL, first)) {
        return NULL;
    }
    while (take_op(p, ",") && !is_op(p, ")")) {
        if (!add_arg(p, x, &cap, NULL, parse_expr(p))) {
            return NULL;
        }
    }
    return take_op(p, ")") ? x : bad(p, "expected )");
}

static struct tx *parse_primary(struct parser *p)
{
    struct tx *x = NULL;
    switch (p->t->kind) {
    case TT_STR:
        return parse_string(p);
    case TT_INT:
        x = constant(p, TV_INT);
        if (x != NULL) {
            x->value->i = p->t++->i;
        }
        return x;
    case TT_FLOAT:
        x = constant(p, TV_FLOAT);
        if (x != NULL) {
            x->value->f = p->t++->f;
        }
        return x;
    case TT_NAME:
        return parse_word(p);
    case TT_OP:
        if (take_op(p, "(")) {
            return parse_group(p);
        }
        if (take_op(p, "[")) {
            return parse_list(p, "]");
        }
        if (take_op(p, "{")) {
            return parse_dict(p);
        }
        break;
    case TT_END:
    case TT_TEXT:
    case TT_OUT_BEGIN:
    case TT_OUT_END:
    case TT_TAG_BEGIN:
    case TT_TAG_END:
        break;
    }
    return bad(p, "expected an expression");
}

/* ---- postfix ---- */

static struct tx *parse_subscript(struct parser *p, struct tx *obj)
{
    struct tx *x = node(p, TX_ITEM);
    if (x == NULL) {
        return NULL;
    }
    x->a = obj;
    if (!is_op(p, ":")) {
        x->b = parse_expr(p);
        if (x->b == NULL) {
            return NULL;
        }
    }
    if (take_op(p, ":")) {
        x->kind = TX_SLICE;
        if (!is_op(p, "]") && !is_op(p, ":") && (x->c = parse_expr(p)) == NULL) {
            return NULL;
        }
        if (take_op(p, ":") && !is_op(p, "]") && (x->d = parse_expr(p)) == NULL) {
            return NULL;
        }
    }
    return take_op(p, "]") ? x : bad(p, "expected ]");
}

static struct tx *parse_dot(struct parser *p, struct tx *obj)
{
    struct tx *x = node(p, TX_ATTR);
    if (x == NULL || (p->t->kind != TT_NAME && p->t->kind != TT_INT)) {
        return bad(p, "expected a name after '.'");
    }
    x->a = obj;
    if (p->t->kind == TT_INT) { /* a.0 is a[0] */
        x->kind = TX_ITEM;
        x->b = parse_primary(p);
        return x->b != NULL ? x : NULL;
    }
    x->name = p->t++->s;
    return x;
}

static struct tx *parse_filter(struct parser *p, struct tx *obj)
{
    struct tx *x = node(p, TX_FILTER);
    if (x == NULL || p->t->kind != TT_NAME) {
        return bad(p, "expected a filter");
    }
    if (p->ifs == 0 && !tf__known_filter(p->t->s)) {
        return bad(p, "unknown filter");
    }
    x->a = obj;
    x->name = p->t++->s;
    return !take_op(p, "(") || parse_args(p, x) ? x : NULL;
}

/* A test's single argument may come without parentheses: `x is divisibleby 3`. */
static bool starts_argument(const struct parser *p)
{
    if (p->t->kind == TT_STR || p->t->kind == TT_INT || p->t->kind == TT_FLOAT) {
        return true;
    }
    static const char *const words[] = {"and", "or", "else", "if", "is", "not", "in", "recursive"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (is_name(p, words[i])) {
            return false;
        }
    }
    return p->t->kind == TT_NAME || is_op(p, "[") || is_op(p, "{");
}

static struct tx *parse_test(struct parser *p, struct tx *obj)
{
    struct tx *x = node(p, TX_TEST);
    if (x == NULL) {
        return NULL;
    }
    x->a = obj;
    x->negated = take_name(p, "not");
    if (p->t->kind != TT_NAME || (p->ifs == 0 && !tf__known_test(p->t->s))) {
        return bad(p, "unknown test");
    }
    x->name = p->t++->s;
    if (take_op(p, "(")) {
        return parse_args(p, x) ? x : NULL;
    }
    size_t cap = 0;
    if (starts_argument(p) && !add_arg(p, x, &cap, NULL, parse_postfix(p))) {
        return NULL;
    }
    return x;
}

static struct tx *parse_postfix(struct parser *p)
{
    struct tx *x = parse_primary(p);
    while (x != NULL) {
        if (take_op(p, ".")) {
            x = parse_dot(p, x);
        } else if (take_op(p, "[")) {
            x = parse_subscript(p, x);
        } else if (take_op(p, "(")) {
            struct tx *call = node(p, TX_CALL);
            if (call == NULL) {
                return NULL;
            }
            call->a = x;
            x = parse_args(p, call) ? call : NULL;
        } else {
            break;
        }
    }
    return x;
}

static struct tx *parse_filters(struct parser *p, struct tx *x)
{
    while (x != NULL) {
        if (take_op(p, "|")) {
            x = parse_filter(p, x);
        } else if (take_name(p, "is")) {
            x = parse_test(p, x);
        } else {
            break;
        }
    }
    return x;
}

/* ---- operators ---- */

static struct tx *binary(struct parser *p, enum tx_kind kind, enum tx_op op, struct tx *a,
                         struct tx *b)
{
    struct tx *x = a != NULL && b != NULL ? node(p, kind) : NULL;
    if (x != NULL) {
        x->op = op;
        x->a = a;
        x->b = b;
    }
    return x;
}

/* A sign applies to the primary with its attributes, items and calls; filters and tests to the whole. */
static struct tx *parse_signed(struct parser *p)
{
    if (!is_op(p, "-") && !is_op(p, "+")) {
        return parse_postfix(p);
    }
    enum tx_kind kind = is_op(p, "-") ? TX_NEG : TX_POS;
    if (++p->depth > TD_TEMPLATE_MAX_DEPTH * 4) {
        return bad(p, "expression too deep");
    }
    p->t++;
    struct tx *a = parse_signed(p), *x = a != NULL ? node(p, kind) : NULL;
    p->depth--;
    if (x != NULL) {
        x->a = a;
    }
    return x;
}

static struct tx *parse_unary(struct parser *p)
{
    return parse_filters(p, parse_signed(p));
}

struct op_row {
    const char *s;
    enum tx_op op;
};

static struct tx *parse_level(struct parser *p, const struct op_row *ops, size_t n,
                              struct tx *(*next)(struct parser *))
{
    struct tx *x = next(p);
    for (size_t i = 0; x != NULL && i < n;) {
        if (take_op(p, ops[i].s)) {
            x = binary(p, TX_BINARY, ops[i].op, x, next(p));
            i = 0;
        } else {
            i++;
        }
    }
    return x;
}

static struct tx *parse_pow(struct parser *p)
{
    static const struct op_row ops[] = {{"**", OP_POW}};
    return parse_level(p, ops, 1, parse_unary);
}

static struct tx *parse_mul(struct parser *p)
{
    static const struct op_row ops[] = {
        {"*", OP_MUL}, {"/", OP_DIV}, {"//", OP_FLOORDIV}, {"%", OP_MOD}};
    return parse_level(p, ops, 4, parse_pow);
}

static struct tx *parse_concat(struct parser *p)
{
    static const struct op_row ops[] = {{"~", OP_CONCAT}};
    return parse_level(p, ops, 1, parse_mul);
}

static struct tx *parse_sum(struct parser *p)
{
    static const struct op_row ops[] = {{"+", OP_ADD}, {"-", OP_SUB}};
    return parse_level(p, ops, 2, parse_concat);
}

static bool take_compare(struct parser *p, enum tx_op *out)
{
    static const struct op_row ops[] = {{"==", OP_EQ}, {"!=", OP_NE}, {"<=", OP_LE},
                                        {">=", OP_GE}, {"<", OP_LT},  {">", OP_GT}};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        if (take_op(p, ops[i].s)) {
            *out = ops[i].op;
            return true;
        }
    }
    if (take_name(p, "in")) {
        *out = OP_IN;
        return true;
    }
    if (is_name(p, "not") && p->t[1].kind == TT_NAME && strcmp(p->t[1].s, "in") == 0) {
        p->t += 2;
        *out = OP_NOT_IN;
        return true;
    }
    return false;
}

static struct tx *parse_compare(struct parser *p)
{
    struct tx *left = parse_sum(p), *all = NULL;
    enum tx_op op = OP_EQ;
    while (left != NULL && take_compare(p, &op)) {
        struct tx *right = parse_sum(p);
        struct tx *one = binary(p, TX_COMPARE, op, left, right);
        all = all == NULL || one == NULL ? one : binary(p, TX_AND, OP_EQ, all, one);
        if (all == NULL) {
            return NULL;
        }
        left = right;
    }
    return all != NULL ? all : left;
}

static struct tx *parse_not(struct parser *p)
{
    if (!take_name(p, "not")) {
        return parse_compare(p);
    }
    if (++p->depth > TD_TEMPLATE_MAX_DEPTH * 4) {
        return bad(p, "expression too deep");
    }
    struct tx *a = parse_not(p), *x = a != NULL ? node(p, TX_NOT) : NULL;
    p->depth--;
    if (x != NULL) {
        x->a = a;
    }
    return x;
}

static struct tx *parse_and(struct parser *p)
{
    struct tx *x = parse_not(p);
    while (x != NULL && take_name(p, "and")) {
        x = binary(p, TX_AND, OP_EQ, x, parse_not(p));
    }
    return x;
}

static struct tx *parse_or(struct parser *p)
{
    struct tx *x = parse_and(p);
    while (x != NULL && take_name(p, "or")) {
        x = binary(p, TX_OR, OP_EQ, x, parse_and(p));
    }
    return x;
}

static struct tx *parse_expr(struct parser *p)
{
    if (++p->depth > TD_TEMPLATE_MAX_DEPTH * 4) {
        return bad(p, "expression too deep");
    }
    struct tx *x = parse_or(p);
    while (x != NULL && take_name(p, "if")) {
        struct tx *pick = node(p, TX_IF);
        if (pick == NULL) {
            return NULL;
        }
        pick->a = x;
        pick->b = parse_or(p);
        if (pick->b == NULL) {
            return NULL;
        }
        if (take_name(p, "else") && (pick->c = parse_expr(p)) == NULL) {
            return NULL;
        }
        x = pick;
    }
    p->depth--;
    return x;
}

/* `a, b` without parentheses is a tuple. */
static struct tx *parse_tuple(struct parser *p)
{
    struct tx *first = parse_expr(p);
    if (first == NULL || !is_op(p, ",")) {
        return first;
    }
    struct tx *x = tuple_node(p);
    size_t cap = 0;
    if (x == NULL || !add_arg(p, x, &cap, NULL, first)) {
        return NULL;
    }
    while (take_op(p, ",") && p->t->kind != TT_TAG_END && p->t->kind != TT_OUT_END) {
        if (!add_arg(p, x, &cap, NULL, parse_expr(p))) {
            return NULL;
        }
    }
    return x;
}

/* ---- statements ---- */

static td_err parse_body(struct parser *p, const char *const *ends, struct ts **out);

static td_err err_of(struct parser *p)
{
    return p->err != TD_OK ? p->err
                           : tp__fail(p->e, TD_ERR_FILE_FORMAT, p->t->line, "malformed statement");
}

static td_err close_tag(struct parser *p)
{
    if (p->t->kind != TT_TAG_END) {
        bad(p, "expected the end of the tag");
        return err_of(p);
    }
    p->t++;
    return TD_OK;
}

/* The body of a macro or a call: a loop around it is not its own. */
static td_err parse_inner(struct parser *p, const char *const *ends, struct ts **out)
{
    unsigned loops = p->loops;
    p->loops = 0;
    TD_TRY(parse_body(p, ends, out));
    p->loops = loops;
    return TD_OK;
}

/* After a body: takes `{% name %}`. */
static td_err end_tag(struct parser *p, const char *name)
{
    if (p->t->kind != TT_TAG_BEGIN) {
        return tp__fail(p->e, TD_ERR_FILE_FORMAT, p->t->line, "missing %s", name);
    }
    p->t++;
    if (!take_name(p, name)) {
        bad(p, "unexpected tag");
        return err_of(p);
    }
    return TD_OK;
}

static struct ts *statement(struct parser *p, enum ts_kind kind)
{
    struct ts *s = TD_ARENA_NEW(p->arena, struct ts);
    if (s == NULL) {
        bad(p, "template too complex");
        return NULL;
    }
    s->kind = kind;
    s->line = p->t->line;
    return s;
}

/* Names of a for or set target: `a`, `a, b` or `(a, b)`. */
static td_err parse_targets(struct parser *p, struct ts *s)
{
    bool paren = take_op(p, "(");
    s->names = TD_ARENA_ARRAY(p->arena, const char *, 8);
    if (s->names == NULL) {
        bad(p, "template too complex");
        return err_of(p);
    }
    do {
        if (p->t->kind != TT_NAME || s->n_names == 8) {
            bad(p, "expected a name");
            return err_of(p);
        }
        s->names[s->n_names++] = p->t++->s;
    } while (take_op(p, ","));
    if (paren && !take_op(p, ")")) {
        bad(p, "expected )");
        return err_of(p);
    }
    return TD_OK;
}

static td_err parse_if(struct parser *p, struct ts *s)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    for (bool more = true; more;) { /* once for each elif */
        s->expr = parse_expr(p);
        if (s->expr == NULL) {
            return err_of(p);
        }
        TD_TRY(close_tag(p));
        p->ifs++;
        TD_TRY(parse_body(p, ends, &s->body));
        p->ifs--;
        p->t += p->t->kind == TT_TAG_BEGIN ? 1 : 0;
        more = take_name(p, "elif");
        if (more) {
            s->other = statement(p, TS_IF);
            if (s->other == NULL) {
                return err_of(p);
            }
            s = s->other;
        }
    }
    if (take_name(p, "else")) {
        TD_TRY(close_tag(p));
        p->ifs++;
        TD_TRY(parse_body(p, last, &s->other));
        p->ifs--;
        p->t += p->t->kind == TT_TAG_BEGIN ? 1 : 0;
    }
    if (!take_name(p, "endif")) {
        bad(p, "missing endif");
        return err_of(p);
    }
    return close_tag(p);
}

/* What a loop runs over: an expression without `if`, or several with commas. */
static struct tx *parse_items(struct parser *p)
{
    struct tx *first = parse_or(p);
    if (first == NULL || !is_op(p, ",")) {
        return first;
    }
    struct tx *x = tuple_node(p);
    size_t cap = 0;
    if (x == NULL || !add_arg(p, x, &cap, NULL, first)) {
        return NULL;
    }
    while (take_op(p, ",")) {
        if (!add_arg(p, x, &cap, NULL, parse_or(p))) {
            return NULL;
        }
    }
    return x;
}

static td_err parse_for(struct parser *p, struct ts *s)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    static const char *const last[] = {"endfor", NULL};
    TD_TRY(parse_targets(p, s));
    if (!take_name(p, "in") || (s->expr = parse_items(p)) == NULL) {
        bad(p, "expected in");
        return err_of(p);
    }
    if (take_name(p, "if") && (s->filter = parse_expr(p)) == NULL) {
        return err_of(p);
    }
    if (is_name(p, "recursive")) {
        return tp__fail(p->e, TD_ERR_FILE_UNSUPPORTED, p->t->line,
                        "recursive loops are not supported");
    }
    TD_TRY(close_tag(p));
    p->loops++;
    TD_TRY(parse_body(p, ends, &s->body));
    p->loops--;
    p->t += p->t->kind == TT_TAG_BEGIN ? 1 : 0;
    if (take_name(p, "else")) {
        TD_TRY(close_tag(p));
        TD_TRY(parse_body(p, last, &s->other));
        p->t += p->t->kind == TT_TAG_BEGIN ? 1 : 0;
    }
    if (!take_name(p, "endfor")) {
        bad(p, "missing endfor");
        return err_of(p);
    }
    return close_tag(p);
}

static td_err parse_set(struct parser *p, struct ts *s)
{
    static const char *const ends[] = {"endset", NULL};
    TD_TRY(parse_targets(p, s));
    if (take_op(p, ".")) { /* ns.name = ... */
        if (p->t->kind != TT_NAME || s->n_names != 1) {
            bad(p, "expected a name");
            return err_of(p);
        }
        s->name = p->t++->s;
    }
    if (take_op(p, "=")) {
        s->expr = parse_tuple(p);
        return s->expr != NULL ? close_tag(p) : err_of(p);
    }
    s->kind = TS_SET_BLOCK;
    while (take_op(p, "|")) {
        s->filter = parse_filter(p, s->filter);
        if (s->filter == NULL) {
            return err_of(p);
        }
    }
    TD_TRY(close_tag(p));
    TD_TRY(parse_body(p, ends, &s->body));
    TD_TRY(end_tag(p, "endset"));
    return close_tag(p);
}

/* After '(': parameters with defaults. */
static td_err parse_params(struct parser *p, struct ts *s)
{
    s->names = TD_ARENA_ARRAY(p->arena, const char *, 32);
    s->defaults = TD_ARENA_ARRAY(p->arena, struct tx *, 32);
    if (s->names == NULL || s->defaults == NULL) {
        bad(p, "template too complex");
        return err_of(p);
    }
    while (!take_op(p, ")")) {
        if (p->t->kind != TT_NAME || s->n_names == 32) {
            bad(p, "expected a parameter");
            return err_of(p);
        }
        s->names[s->n_names] = p->t++->s;
        if (take_op(p, "=") && (s->defaults[s->n_names] = parse_expr(p)) == NULL) {
            return err_of(p);
        }
        s->n_names++;
        if (!is_op(p, ")") && !take_op(p, ",")) {
            bad(p, "expected , or )");
            return err_of(p);
        }
    }
    return TD_OK;
}

static td_err parse_macro(struct parser *p, struct ts *s)
{
    static const char *const ends[] = {"endmacro", NULL};
    if (p->t->kind != TT_NAME) {
        bad(p, "expected a macro name");
        return err_of(p);
    }
    s->name = p->t++->s;
    if (!take_op(p, "(")) {
        bad(p, "expected (");
        return err_of(p);
    }
    TD_TRY(parse_params(p, s));
    TD_TRY(close_tag(p));
    TD_TRY(parse_inner(p, ends, &s->body));
    TD_TRY(end_tag(p, "endmacro"));
    (void)(p->t->kind == TT_NAME && p->t++);
    return close_tag(p);
}

static td_err parse_call(struct parser *p, struct ts *s)
{
    static const char *const ends[] = {"endcall", NULL};
    if (take_op(p, "(")) {
        TD_TRY(parse_params(p, s));
    }
    s->expr = parse_postfix(p);
    if (s->expr == NULL || s->expr->kind != TX_CALL) {
        bad(p, "expected a call");
        return err_of(p);
    }
    s->name = "caller";
    TD_TRY(close_tag(p));
    TD_TRY(parse_inner(p, ends, &s->body));
    TD_TRY(end_tag(p, "endcall"));
    return close_tag(p);
}

static td_err parse_filter_block(struct parser *p, struct ts *s)
{
    static const char *const ends[] = {"endfilter", NULL};
    do {
        s->filter = parse_filter(p, s->filter);
        if (s->filter == NULL) {
            return err_of(p);
        }
    } while (take_op(p, "|"));
    TD_TRY(close_tag(p));
    TD_TRY(parse_body(p, ends, &s->body));
    TD_TRY(end_tag(p, "endfilter"));
    return close_tag(p);
}

/* {% generation %} marks the assistant's part for training: the body as it is. */
static td_err parse_generation(struct parser *p, struct ts *s)
{
    static const char *const ends[] = {"endgeneration", NULL};
    TD_TRY(close_tag(p));
    TD_TRY(parse_body(p, ends, &s->body));
    TD_TRY(end_tag(p, "endgeneration"));
    return close_tag(p);
}

static td_err parse_leave(struct parser *p, struct ts *s)
{
    (void)s;
    if (p->loops == 0) {
        bad(p, "break or continue outside of a loop");
        return err_of(p);
    }
    return close_tag(p);
}

static const struct {
    const char *name;
    enum ts_kind kind;
    td_err (*parse)(struct parser *p, struct ts *s);
} tags[] = {
    {"if", TS_IF, parse_if},
    {"for", TS_FOR, parse_for},
    {"set", TS_SET, parse_set},
    {"macro", TS_MACRO, parse_macro},
    {"call", TS_CALL, parse_call},
    {"filter", TS_FILTER, parse_filter_block},
    {"break", TS_BREAK, parse_leave},
    {"continue", TS_CONTINUE, parse_leave},
    {"generation", TS_BLOCK, parse_generation},
};

static td_err parse_tag(struct parser *p, struct ts **out)
{
    for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++) {
        if (take_name(p, tags[i].name)) {
            *out = statement(p, tags[i].kind);
            return *out != NULL ? tags[i].parse(p, *out) : err_of(p);
        }
    }
    return tp__fail(p->e, TD_ERR_FILE_UNSUPPORTED, p->t->line, "unknown tag '%.*s'",
                    (int)(p->t->n < 40 ? p->t->n : 40), p->t->s);
}

static td_err parse_one(struct parser *p, struct ts **out)
{
    if (p->t->kind == TT_TEXT) {
        *out = statement(p, TS_TEXT);
        if (*out == NULL) {
            return err_of(p);
        }
        (*out)->text = p->t->s;
        (*out)->n = p->t++->n;
        return TD_OK;
    }
    if (p->t->kind == TT_OUT_BEGIN) {
        p->t++;
        *out = statement(p, TS_OUTPUT);
        if (*out == NULL || ((*out)->expr = parse_tuple(p)) == NULL) {
            return err_of(p);
        }
        if (p->t->kind != TT_OUT_END) {
            bad(p, "expected }}");
            return err_of(p);
        }
        p->t++;
        return TD_OK;
    }
    p->t++; /* TT_TAG_BEGIN */
    return parse_tag(p, out);
}

static bool at_end(const struct parser *p, const char *const *ends)
{
    if (p->t->kind == TT_END) {
        return true;
    }
    for (size_t i = 0; ends != NULL && ends[i] != NULL && p->t->kind == TT_TAG_BEGIN; i++) {
        if (p->t[1].kind == TT_NAME && strcmp(p->t[1].s, ends[i]) == 0) {
            return true;
        }
    }
    return false;
}

static td_err parse_body(struct parser *p, const char *const *ends, struct ts **out)
{
    struct ts **tail = out;
    if (++p->depth > TD_TEMPLATE_MAX_DEPTH * 4) {
        bad(p, "blocks too deep");
        return err_of(p);
    }
    while (!at_end(p, ends)) {
        struct ts *one = NULL;
        TD_TRY(parse_one(p, &one));
        if (one == NULL) {
            return err_of(p);
        }
        *tail = one;
        tail = &one->next;
    }
    p->depth--;
    return TD_OK;
}

td_err tp__parse(struct td_arena *arena, const struct tt_tokens *tokens, struct ts **out,
                 struct tp_error *e)
{
    struct parser p = {.arena = arena, .t = tokens->list, .e = e};
    *out = NULL;
    TD_TRY(parse_body(&p, NULL, out));
    return p.t->kind == TT_END ? TD_OK
                               : tp__fail(e, TD_ERR_FILE_FORMAT, p.t->line, "unexpected end tag");
}
