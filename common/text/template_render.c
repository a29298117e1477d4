#define TD_LOG_ROOM "text"
#include "common/text/template.h"

#include <stdlib.h>
#include <string.h>

#include "common/text/template_priv.h"

/* ---- scopes ---- */

static struct tr_scope *push_scope(struct tr *r)
{
    struct tr_scope *s = tr__alloc(r, sizeof *s);
    if (s != NULL) {
        s->up = r->scope;
        r->scope = s;
    }
    return s;
}

static void pop_scope(struct tr *r)
{
    r->scope = r->scope->up;
}

struct tv *tr__lookup(struct tr *r, const char *name)
{
    for (const struct tr_scope *s = r->scope; s != NULL; s = s->up) {
        for (size_t i = s->n; i > 0; i--) {
            if (strcmp(s->vars[i - 1].name, name) == 0) {
                return s->vars[i - 1].value;
            }
        }
    }
    if (tm__is_function(name)) {
        struct tv *f = tv__new(r, TV_FUNC);
        if (f != NULL) {
            f->func = name;
        }
        return f;
    }
    return tv__undefined(r, name);
}

void tr__assign(struct tr *r, const char *name, struct tv *value)
{
    struct tr_scope *s = r->scope;
    if (value == NULL) {
        return;
    }
    for (size_t i = 0; i < s->n; i++) {
        if (strcmp(s->vars[i].name, name) == 0) {
            s->vars[i].value = value;
            return;
        }
    }
    if (s->n == s->cap) {
        size_t cap = s->cap == 0 ? 8 : s->cap * 2;
        void *vars = tr__alloc(r, cap * sizeof *s->vars);
        if (vars == NULL) {
            return;
        }
        if (s->n > 0) {
            memcpy(vars, s->vars, s->n * sizeof *s->vars);
        }
        s->vars = vars;
        s->cap = cap;
    }
    s->vars[s->n].name = name;
    s->vars[s->n++].value = value;
}

/* ---- output ---- */

static void emit(struct tr *r, const struct tv_str *s)
{
    struct tr_sink *k = r->sink;
    if (k->n + s->n > TD_TEMPLATE_MAX_OUTPUT) {
        tr__fail(r, "the rendered prompt is too long");
        return;
    }
    if (k->n + s->n > k->cap) {
        size_t cap = k->cap == 0 ? 1024 : k->cap * 2;
        cap = cap < k->n + s->n ? k->n + s->n : cap;
        char *p = tr__alloc(r, cap);
        uint8_t *t = tr__alloc(r, cap);
        if (p == NULL || t == NULL) {
            return;
        }
        if (k->n > 0) {
            memcpy(p, k->p, k->n);
            memcpy(t, k->taint, k->n);
        }
        k->p = p;
        k->taint = t;
        k->cap = cap;
    }
    r->steps += s->n / 64;
    if (s->n > 0) {
        memcpy(k->p + k->n, s->p, s->n);
        if (s->mixed != NULL) {
            memcpy(k->taint + k->n, s->mixed, s->n);
        } else {
            memset(k->taint + k->n, s->tainted ? 1 : 0, s->n);
        }
    }
    k->n += s->n;
}

static void run(struct tr *r, const struct ts *s);

/* Runs a body in a scope of its own and returns what it wrote. */
static struct tv *capture(struct tr *r, const struct ts *body)
{
    struct tr_sink sink = {.up = r->sink};
    struct tr_scope *scope = r->scope;
    r->sink = &sink;
    if (push_scope(r) != NULL) {
        run(r, body);
    }
    r->scope = scope;
    r->sink = sink.up;
    struct tv *v = r->err == TD_OK ? tv__str(r, sink.p != NULL ? sink.p : "", sink.n, false) : NULL;
    if (v != NULL) {
        v->s.mixed = sink.taint;
    }
    return v;
}

/* ---- statements ---- */

static void run_if(struct tr *r, const struct ts *s)
{
    struct tv *v = tx__eval(r, s->expr);
    if (v != NULL) {
        run(r, tv__truthy(v) ? s->body : s->other);
    }
}

static bool bind_targets(struct tr *r, const struct ts *s, struct tv *v)
{
    if (s->n_names == 1) {
        tr__assign(r, s->names[0], v);
        return r->err == TD_OK;
    }
    struct tv *list = tv__iterate(r, v);
    if (list == NULL || list->list.n != s->n_names) {
        tr__fail(r, "line %u: cannot unpack into %zu names", s->line, s->n_names);
        return false;
    }
    for (size_t i = 0; i < s->n_names; i++) {
        tr__assign(r, s->names[i], list->list.v[i]);
    }
    return r->err == TD_OK;
}

static struct tv *filtered(struct tr *r, const struct ts *s, struct tv *items)
{
    struct tv *out = tv__list(r);
    for (size_t i = 0; s->filter != NULL && out != NULL && i < items->list.n; i++) {
        if (push_scope(r) == NULL || !bind_targets(r, s, items->list.v[i])) {
            return NULL;
        }
        struct tv *yes = tx__eval(r, s->filter);
        pop_scope(r);
        if (yes == NULL || (tv__truthy(yes) && !tv__append(r, out, items->list.v[i]))) {
            return NULL;
        }
    }
    return s->filter != NULL ? out : items;
}

static bool put_loop(struct tr *r, struct tv *loop, const char *name, struct tv *v)
{
    return tv__add(r, loop, tv__cstr(r, name), v);
}

static struct tv *loop_value(struct tr *r, const struct tv *items, size_t i)
{
    size_t n = items->list.n;
    struct tv *loop = tv__dict(r), *none = tv__undefined(r, "loop item");
    bool ok = put_loop(r, loop, "index", tv__int(r, (int64_t)i + 1)) &&
              put_loop(r, loop, "index0", tv__int(r, (int64_t)i)) &&
              put_loop(r, loop, "first", tv__bool(r, i == 0)) &&
              put_loop(r, loop, "last", tv__bool(r, i + 1 == n)) &&
              put_loop(r, loop, "length", tv__int(r, (int64_t)n)) &&
              put_loop(r, loop, "revindex", tv__int(r, (int64_t)(n - i))) &&
              put_loop(r, loop, "revindex0", tv__int(r, (int64_t)(n - i) - 1)) &&
              put_loop(r, loop, "previtem", i > 0 ? items->list.v[i - 1] : none) &&
              put_loop(r, loop, "nextitem", i + 1 < n ? items->list.v[i + 1] : none);
    return ok ? loop : NULL;
}

static void run_for(struct tr *r, const struct ts *s)
{
    struct tv *v = tx__eval(r, s->expr);
    struct tv *items = v != NULL ? tv__iterate(r, v) : NULL;
    items = items != NULL ? filtered(r, s, items) : NULL;
    if (items == NULL) {
        return;
    }
    if (items->list.n == 0) {
        run(r, s->other);
        return;
    }
    for (size_t i = 0; i < items->list.n && r->err == TD_OK; i++) {
        if (push_scope(r) == NULL) {
            return;
        }
        tr__assign(r, "loop", loop_value(r, items, i));
        if (bind_targets(r, s, items->list.v[i])) {
            run(r, s->body);
        }
        pop_scope(r);
        bool leave = r->flow == TR_BREAK;
        r->flow = TR_RUN;
        if (leave) {
            break;
        }
    }
}

static void run_set(struct tr *r, const struct ts *s)
{
    struct tv *v = NULL;
    if (s->kind == TS_SET_BLOCK) {
        v = capture(r, s->body);
        if (v != NULL && s->filter != NULL) {
            r->piped = v;
            v = tx__eval(r, s->filter);
        }
    } else {
        v = tx__eval(r, s->expr);
    }
    if (v == NULL) {
        return;
    }
    if (s->name == NULL) {
        (void)bind_targets(r, s, v);
        return;
    }
    struct tv *ns = tr__lookup(r, s->names[0]);
    if (ns == NULL || ns->type != TV_DICT || !ns->is_namespace) {
        tr__fail(r, "line %u: only attributes of a namespace can be set", s->line);
        return;
    }
    (void)tv__put(r, ns, tv__cstr(r, s->name), v);
}

static struct tv *macro_value(struct tr *r, const struct ts *s)
{
    struct tv *m = tv__new(r, TV_MACRO);
    if (m != NULL) {
        m->macro = s;
        m->scope = r->scope;
    }
    return m;
}

struct tv *tr__call_macro(struct tr *r, const struct tv *value, const struct tv_args *args)
{
    const struct ts *macro = value->macro;
    struct tr_scope *caller_scope = r->scope;
    struct tv *caller = tr__lookup(r, "caller");
    if (++r->depth > TD_TEMPLATE_MAX_DEPTH * 8) {
        return tr__fail(r, "macros call each other too deeply");
    }
    r->scope = value->scope; /* it sees the variables of where it stands, not the caller's */
    if (push_scope(r) == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < macro->n_names && r->err == TD_OK; i++) {
        struct tv *v = ta__get(args, i, macro->names[i]);
        if (v == NULL) {
            v = macro->defaults[i] != NULL ? tx__eval(r, macro->defaults[i])
                                           : tv__undefined(r, macro->names[i]);
        }
        tr__assign(r, macro->names[i], v);
    }
    if (caller != NULL && caller->type == TV_MACRO) {
        tr__assign(r, "caller", caller);
    }
    struct tv *out = r->err == TD_OK ? capture(r, macro->body) : NULL;
    r->scope = caller_scope;
    r->depth--;
    return out;
}

static void run_call(struct tr *r, const struct ts *s)
{
    if (push_scope(r) == NULL) {
        return;
    }
    struct tv *block = macro_value(r, s);
    if (block != NULL) {
        block->scope = r->scope->up;
    }
    tr__assign(r, "caller", block);
    struct tv *v = tx__eval(r, s->expr);
    pop_scope(r);
    v = v != NULL ? tv__to_str(r, v) : NULL;
    if (v != NULL) {
        emit(r, &v->s);
    }
}

static void run_output(struct tr *r, const struct ts *s)
{
    struct tv *v = tx__eval(r, s->expr);
    v = v != NULL ? tv__to_str(r, v) : NULL;
    if (v != NULL) {
        emit(r, &v->s);
    }
}

static void run_filter(struct tr *r, const struct ts *s)
{
    struct tv *v = capture(r, s->body);
    r->piped = v;
    v = v != NULL ? tx__eval(r, s->filter) : NULL;
    v = v != NULL ? tv__to_str(r, v) : NULL;
    if (v != NULL) {
        emit(r, &v->s);
    }
}

static void run_one(struct tr *r, const struct ts *s)
{
    struct tv_str text = {.p = s->text, .n = s->n};
    switch (s->kind) {
    case TS_TEXT:
        emit(r, &text);
        break;
    case TS_OUTPUT:
        run_output(r, s);
        break;
    case TS_IF:
        run_if(r, s);
        break;
    case TS_FOR:
        run_for(r, s);
        break;
    case TS_SET:
    case TS_SET_BLOCK:
        run_set(r, s);
        break;
    case TS_MACRO:
        tr__assign(r, s->name, macro_value(r, s));
        break;
    case TS_CALL:
        run_call(r, s);
        break;
    case TS_FILTER:
        run_filter(r, s);
        break;
    case TS_BREAK:
        r->flow = TR_BREAK;
        break;
    case TS_CONTINUE:
        r->flow = TR_CONTINUE;
        break;
    case TS_BLOCK:
        run(r, s->body);
        break;
    }
}

static void run(struct tr *r, const struct ts *s)
{
    if (++r->depth > TD_TEMPLATE_MAX_DEPTH * 8) {
        tr__fail(r, "the template nests too deeply");
        return;
    }
    for (; s != NULL && r->flow == TR_RUN && tr__tick(r); s = s->next) {
        run_one(r, s);
    }
    r->depth--;
}

/* ---- the public face ---- */

#define COMPILE_BYTES (64u << 20)

td_err td_template_compile(const char *source, size_t len, struct td_template **out_template,
                           char *err_text, size_t err_cap)
{
    struct tp_error e = {.text = err_text, .cap = err_cap};
    struct tt_tokens tokens = {0};
    if (len > TD_TEMPLATE_MAX_SOURCE) {
        return tp__fail(&e, TD_ERR_FILE_FORMAT, 0, "template larger than %u bytes",
                        TD_TEMPLATE_MAX_SOURCE);
    }
    struct td_template *t = td_zalloc(1, sizeof *t);
    if (t == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    t->arena = td_arena_create(COMPILE_BYTES);
    char *copy = t->arena != NULL ? td_arena_alloc(t->arena, len + 1) : NULL;
    td_err err = copy != NULL ? TD_OK : TD_ERR_NO_MEMORY;
    if (err == TD_OK) {
        memcpy(copy, source, len);
        err = tt__lex(t->arena, copy, len, &tokens, &e);
    }
    err = err == TD_OK ? tp__parse(t->arena, &tokens, &t->root, &e) : err;
    if (err != TD_OK) {
        td_template_destroy(t);
        return err;
    }
    *out_template = t;
    return TD_OK;
}

struct td_template *td_template_destroy(struct td_template *t)
{
    if (t != NULL) {
        td_arena_destroy(t->arena);
        free(t);
    }
    return NULL;
}

static void set_globals(struct tr *r, const struct td_template_args *a)
{
    const char *key = NULL;
    json_t *value = NULL;
    tr__assign(r, "messages", a->messages != NULL ? tv__from_json(r, a->messages) : tv__list(r));
    if (a->tools != NULL) {
        tr__assign(r, "tools", tv__from_json(r, a->tools));
    } else {
        tr__assign(r, "tools", tv__new(r, TV_NONE));
    }
    tr__assign(r, "documents", tv__new(r, TV_NONE));
    tr__assign(r, "bos_token", tv__cstr(r, a->bos_token != NULL ? a->bos_token : ""));
    tr__assign(r, "eos_token", tv__cstr(r, a->eos_token != NULL ? a->eos_token : ""));
    tr__assign(r, "add_generation_prompt", tv__bool(r, a->add_generation_prompt != 0));
    if (a->kwargs != NULL) {
        json_object_foreach(a->kwargs, key, value)
        {
            tr__assign(r, key, tv__from_json(r, value));
        }
    }
}

/* Cuts the text where its origin changes. */
static td_err make_segments(const struct tr_sink *k, struct td_template_output *out)
{
    size_t n = 0;
    for (size_t i = 0; i < k->n; i++) {
        n += i == 0 || k->taint[i] != k->taint[i - 1] ? 1 : 0;
    }
    out->segs = td_zalloc(n + 1, sizeof *out->segs);
    if (out->segs == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    TD_TRY(td_buf_append(&out->text, k->p, k->n));
    for (size_t i = 0; i < k->n; i++) {
        if (i == 0 || k->taint[i] != k->taint[i - 1]) {
            out->segs[out->n_segs++] = (struct td_text_segment){
                .text = (const char *)out->text.data + i, .allow_special = k->taint[i] == 0};
        }
        out->segs[out->n_segs - 1].len++;
    }
    return TD_OK;
}

td_err td_template_render(const struct td_template *t, const struct td_template_args *args,
                          struct td_template_output *out, char *err_text, size_t err_cap)
{
    struct tr_sink sink = {0};
    struct tr r = {.now_s = args->now_s, .err_text = err_text, .err_cap = err_cap, .sink = &sink};
    memset(out, 0, sizeof *out);
    td_buf_init(&out->text, TD_TEMPLATE_MAX_OUTPUT + 1);
    r.arena = td_arena_create(TD_TEMPLATE_MAX_MEMORY);
    if (r.arena == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    if (push_scope(&r) != NULL) {
        set_globals(&r, args);
        run(&r, t->root);
    }
    td_err err = r.err;
    if (err == TD_OK) {
        err = make_segments(&sink, out);
    }
    td_arena_destroy(r.arena);
    if (err != TD_OK) {
        td_template_output_fini(out);
    }
    return err;
}

void td_template_output_fini(struct td_template_output *out)
{
    td_buf_fini(&out->text);
    free(out->segs);
    memset(out, 0, sizeof *out);
}
