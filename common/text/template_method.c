/* Methods of strings, lists and dicts, and the global functions. Case mapping is Unicode's (utf8proc), strip and split
 * know Unicode blanks as far as ASCII and U+00A0, U+3000 and the U+2000 block.
 */
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include <utf8proc.h>

#include "common/text/template_priv.h"

/* Length of the blank at `at` (0: none). */
static size_t blank_at(const struct tv_str *s, size_t at)
{
    utf8proc_int32_t cp = 0;
    utf8proc_ssize_t n =
        utf8proc_iterate((const utf8proc_uint8_t *)s->p + at, (utf8proc_ssize_t)(s->n - at), &cp);
    if (n <= 0) {
        return 0;
    }
    bool blank = (cp >= 9 && cp <= 13) || (cp >= 28 && cp <= 32) || cp == 0x85 || cp == 0xa0 ||
                 cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
                 cp == 0x202f || cp == 0x205f || cp == 0x3000;
    return blank ? (size_t)n : 0;
}

static size_t back_one(const struct tv_str *s, size_t end)
{
    do {
        end--;
    } while (end > 0 && ((unsigned char)s->p[end] & 0xc0) == 0x80);
    return end;
}

static bool in_set(const struct tv_str *s, size_t at, size_t n, const struct tv *set)
{
    if (set == NULL || set->type != TV_STR) {
        return blank_at(s, at) == n;
    }
    return memmem(set->s.p, set->s.n, s->p + at, n) != NULL;
}

static size_t char_bytes(const struct tv_str *s, size_t at)
{
    size_t n = 1;
    while (at + n < s->n && ((unsigned char)s->p[at + n] & 0xc0) == 0x80) {
        n++;
    }
    return n;
}

static struct tv *strip(struct tr *r, const struct tv *v, const struct tv_args *a, bool left,
                        bool right)
{
    const struct tv *set = ta__get(a, 0, "chars");
    size_t from = 0, to = v->s.n;
    while (left && from < to && in_set(&v->s, from, char_bytes(&v->s, from), set)) {
        from += char_bytes(&v->s, from);
    }
    while (right && to > from) {
        size_t k = back_one(&v->s, to);
        if (!in_set(&v->s, k, to - k, set)) {
            break;
        }
        to = k;
    }
    return tv__str_part(r, &v->s, from, to - from);
}

static struct tv *m_strip(struct tr *r, struct tv *v, const struct tv_args *a)
{
    return strip(r, v, a, true, true);
}

static struct tv *m_lstrip(struct tr *r, struct tv *v, const struct tv_args *a)
{
    return strip(r, v, a, true, false);
}

static struct tv *m_rstrip(struct tr *r, struct tv *v, const struct tv_args *a)
{
    return strip(r, v, a, false, true);
}

/* ---- case ---- */

enum how { HOW_UPPER, HOW_LOWER, HOW_TITLE, HOW_CAPITAL };

static bool is_letter(utf8proc_int32_t cp)
{
    utf8proc_category_t c = utf8proc_category(cp);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

static struct tv *map_case(struct tr *r, const struct tv *v, enum how how)
{
    struct tb b;
    bool start = true;
    tb__init(&b, r);
    for (size_t i = 0; i < v->s.n;) {
        utf8proc_int32_t cp = 0;
        utf8proc_uint8_t text[4];
        utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)v->s.p + i,
                                              (utf8proc_ssize_t)(v->s.n - i), &cp);
        bool tainted = v->s.mixed != NULL ? v->s.mixed[i] != 0 : v->s.tainted;
        if (n <= 0) { /* not UTF-8: the byte stays */
            if (!tb__put_n(&b, v->s.p + i++, 1, tainted)) {
                return NULL;
            }
            continue;
        }
        bool upper = how == HOW_UPPER || (how != HOW_LOWER && start);
        utf8proc_ssize_t m =
            utf8proc_encode_char(upper ? utf8proc_toupper(cp) : utf8proc_tolower(cp), text);
        if (!tr__tick(r) || !tb__put_n(&b, (const char *)text, (size_t)m, tainted)) {
            return NULL;
        }
        start = how == HOW_TITLE ? !is_letter(cp) : false;
        i += (size_t)n;
    }
    return tb__done(&b);
}

static struct tv *m_upper(struct tr *r, struct tv *v, const struct tv_args *a)
{
    (void)a;
    return map_case(r, v, HOW_UPPER);
}

static struct tv *m_lower(struct tr *r, struct tv *v, const struct tv_args *a)
{
    (void)a;
    return map_case(r, v, HOW_LOWER);
}

static struct tv *m_title(struct tr *r, struct tv *v, const struct tv_args *a)
{
    (void)a;
    return map_case(r, v, HOW_TITLE);
}

static struct tv *m_capitalize(struct tr *r, struct tv *v, const struct tv_args *a)
{
    (void)a;
    return map_case(r, v, HOW_CAPITAL);
}

/* ---- search and split ---- */

static struct tv *str_arg(struct tr *r, const struct tv_args *a, size_t i, const char *name)
{
    struct tv *v = ta__get(a, i, name);
    if (v == NULL || v->type != TV_STR) {
        return tr__fail(r, "a string argument is needed");
    }
    return v;
}

static bool has_prefix(const struct tv_str *s, const struct tv_str *p, bool at_end)
{
    return s->n >= p->n && memcmp(s->p + (at_end ? s->n - p->n : 0), p->p, p->n) == 0;
}

static struct tv *affix(struct tr *r, const struct tv *v, const struct tv_args *a, bool at_end)
{
    struct tv *p = ta__get(a, 0, NULL);
    bool yes = false;
    if (p != NULL && p->type == TV_LIST) { /* a tuple: any of them */
        for (size_t i = 0; i < p->list.n && !yes; i++) {
            yes = p->list.v[i]->type == TV_STR && has_prefix(&v->s, &p->list.v[i]->s, at_end);
        }
        return tv__bool(r, yes);
    }
    p = str_arg(r, a, 0, NULL);
    return p != NULL ? tv__bool(r, has_prefix(&v->s, &p->s, at_end)) : NULL;
}

static struct tv *m_startswith(struct tr *r, struct tv *v, const struct tv_args *a)
{
    return affix(r, v, a, false);
}

static struct tv *m_endswith(struct tr *r, struct tv *v, const struct tv_args *a)
{
    return affix(r, v, a, true);
}

static struct tv *m_replace(struct tr *r, struct tv *v, const struct tv_args *a)
{
    struct tv *from = str_arg(r, a, 0, "old"), *to = str_arg(r, a, 1, "new"),
              *max = ta__get(a, 2, "count");
    int64_t left = max != NULL && max->type == TV_INT ? max->i : INT64_MAX;
    struct tb b;
    tb__init(&b, r);
    if (from == NULL || to == NULL) {
        return NULL;
    }
    size_t at = 0;
    while (at <= v->s.n && left > 0 && from->s.n > 0) {
        const char *hit = memmem(v->s.p + at, v->s.n - at, from->s.p, from->s.n);
        if (hit == NULL) {
            break;
        }
        struct tv *part = tv__str_part(r, &v->s, at, (size_t)(hit - v->s.p) - at);
        if (!tr__tick(r) || part == NULL || !tb__add(&b, &part->s) || !tb__add(&b, &to->s)) {
            return NULL;
        }
        at = (size_t)(hit - v->s.p) + from->s.n;
        left--;
    }
    struct tv *tail = tv__str_part(r, &v->s, at, v->s.n - at);
    return tail != NULL && tb__add(&b, &tail->s) ? tb__done(&b) : NULL;
}

static struct tv *split_blank(struct tr *r, const struct tv *v, int64_t max)
{
    struct tv *out = tv__list(r);
    size_t i = 0;
    while (out != NULL && i < v->s.n) {
        size_t n = blank_at(&v->s, i);
        if (n > 0) {
            i += n;
            continue;
        }
        size_t end = i;
        if (max == 0) { /* the rest, with the blanks at its end */
            return tv__append(r, out, tv__str_part(r, &v->s, i, v->s.n - i)) ? out : NULL;
        }
        while (end < v->s.n && blank_at(&v->s, end) == 0) {
            end += char_bytes(&v->s, end);
        }
        if (!tr__tick(r) || !tv__append(r, out, tv__str_part(r, &v->s, i, end - i))) {
            return NULL;
        }
        max--;
        i = end;
    }
    return out;
}

static struct tv *m_split(struct tr *r, struct tv *v, const struct tv_args *a)
{
    struct tv *sep = ta__get(a, 0, "sep"), *max = ta__get(a, 1, "maxsplit"), *out = tv__list(r);
    int64_t left = max != NULL && max->type == TV_INT && max->i >= 0 ? max->i : INT64_MAX;
    size_t at = 0;
    if (sep == NULL || sep->type == TV_NONE) {
        return split_blank(r, v, left);
    }
    if (sep->type != TV_STR || sep->s.n == 0) {
        return tr__fail(r, "split needs a separator");
    }
    while (out != NULL && left-- > 0) {
        const char *hit = memmem(v->s.p + at, v->s.n - at, sep->s.p, sep->s.n);
        if (hit == NULL) {
            break;
        }
        if (!tr__tick(r) ||
            !tv__append(r, out, tv__str_part(r, &v->s, at, (size_t)(hit - v->s.p) - at))) {
            return NULL;
        }
        at = (size_t)(hit - v->s.p) + sep->s.n;
    }
    return tv__append(r, out, tv__str_part(r, &v->s, at, v->s.n - at)) ? out : NULL;
}

/* The last place of `sep` in the first `end` bytes, or SIZE_MAX. */
static size_t last_hit(const struct tv_str *s, size_t end, const struct tv_str *sep)
{
    for (size_t k = end >= sep->n ? end - sep->n + 1 : 0; k > 0; k--) {
        if (memcmp(s->p + k - 1, sep->p, sep->n) == 0) {
            return k - 1;
        }
    }
    return SIZE_MAX;
}

static struct tv *m_rsplit(struct tr *r, struct tv *v, const struct tv_args *a)
{
    struct tv *sep = ta__get(a, 0, "sep"), *max = ta__get(a, 1, "maxsplit"), *parts = tv__list(r),
              *out = tv__list(r);
    int64_t left = max != NULL && max->type == TV_INT && max->i >= 0 ? max->i : INT64_MAX;
    size_t end = v->s.n;
    if (sep == NULL || sep->type != TV_STR || sep->s.n == 0 || max == NULL) {
        return m_split(r, v, a);
    }
    while (left-- > 0) {
        size_t hit = last_hit(&v->s, end, &sep->s);
        if (hit == SIZE_MAX) {
            break;
        }
        if (!tr__tick(r) ||
            !tv__append(r, parts, tv__str_part(r, &v->s, hit + sep->s.n, end - hit - sep->s.n))) {
            return NULL;
        }
        end = hit;
    }
    if (!tv__append(r, parts, tv__str_part(r, &v->s, 0, end))) {
        return NULL;
    }
    for (size_t i = parts->list.n; i > 0; i--) {
        if (!tv__append(r, out, parts->list.v[i - 1])) {
            return NULL;
        }
    }
    return out;
}

static struct tv *m_splitlines(struct tr *r, struct tv *v, const struct tv_args *a)
{
    struct tv *keep = ta__get(a, 0, "keepends"), *out = tv__list(r);
    size_t at = 0;
    while (out != NULL && at < v->s.n) {
        size_t end = at;
        while (end < v->s.n && v->s.p[end] != '\n' && v->s.p[end] != '\r') {
            end++;
        }
        size_t next = end < v->s.n ? end + 1 : end;
        next += next < v->s.n && v->s.p[end] == '\r' && v->s.p[next] == '\n' ? 1 : 0;
        size_t stop = keep != NULL && tv__truthy(keep) ? next : end;
        if (!tr__tick(r) || !tv__append(r, out, tv__str_part(r, &v->s, at, stop - at))) {
            return NULL;
        }
        at = next;
    }
    return out;
}

static int64_t chars_before(const struct tv_str *s, size_t at)
{
    int64_t n = 0;
    for (size_t i = 0; i < at; i++) {
        n += ((unsigned char)s->p[i] & 0xc0) != 0x80 ? 1 : 0;
    }
    return n;
}

static struct tv *m_find(struct tr *r, struct tv *v, const struct tv_args *a)
{
    struct tv *what = str_arg(r, a, 0, NULL);
    if (what == NULL) {
        return NULL;
    }
    const char *hit = what->s.n == 0 ? v->s.p : memmem(v->s.p, v->s.n, what->s.p, what->s.n);
    return tv__int(r, hit != NULL ? chars_before(&v->s, (size_t)(hit - v->s.p)) : -1);
}

static struct tv *m_rfind(struct tr *r, struct tv *v, const struct tv_args *a)
{
    struct tv *what = str_arg(r, a, 0, NULL);
    if (what == NULL) {
        return NULL;
    }
    size_t hit = last_hit(&v->s, v->s.n, &what->s);
    return tv__int(r, hit != SIZE_MAX ? chars_before(&v->s, hit) : -1);
}

static struct tv *m_index(struct tr *r, struct tv *v, const struct tv_args *a)
{
    struct tv *at = m_find(r, v, a);
    return at != NULL && at->i < 0 ? tr__fail(r, "substring not found") : at;
}

static struct tv *m_count(struct tr *r, struct tv *v, const struct tv_args *a)
{
    struct tv *what = str_arg(r, a, 0, NULL);
    int64_t n = 0;
    size_t at = 0;
    while (what != NULL && what->s.n > 0) {
        const char *hit = memmem(v->s.p + at, v->s.n - at, what->s.p, what->s.n);
        if (hit == NULL || !tr__tick(r)) {
            break;
        }
        n++;
        at = (size_t)(hit - v->s.p) + what->s.n;
    }
    return what != NULL ? tv__int(r, n) : NULL;
}

static struct tv *m_join(struct tr *r, struct tv *v, const struct tv_args *a)
{
    struct tv *list = ta__get(a, 0, NULL);
    struct tv *sep[] = {v};
    const char *names[] = {NULL};
    struct tv_args args = {.v = sep, .names = names, .n = 1};
    return list != NULL ? tf__filter(r, "join", list, &args) : tr__fail(r, "join needs a list");
}

static struct tv *all_chars(struct tr *r, const struct tv *v, bool digits)
{
    bool yes = v->s.n > 0;
    for (size_t i = 0; yes && i < v->s.n;) {
        utf8proc_int32_t cp = 0;
        utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)v->s.p + i,
                                              (utf8proc_ssize_t)(v->s.n - i), &cp);
        yes = n > 0 && (digits ? utf8proc_category(cp) == UTF8PROC_CATEGORY_ND : is_letter(cp));
        i += n > 0 ? (size_t)n : 1;
    }
    return tv__bool(r, yes);
}

static struct tv *m_isdigit(struct tr *r, struct tv *v, const struct tv_args *a)
{
    (void)a;
    return all_chars(r, v, true);
}

static struct tv *m_isalpha(struct tr *r, struct tv *v, const struct tv_args *a)
{
    (void)a;
    return all_chars(r, v, false);
}

static struct tv *remove_affix(struct tr *r, struct tv *v, const struct tv_args *a, bool at_end)
{
    struct tv *p = str_arg(r, a, 0, NULL);
    if (p == NULL || !has_prefix(&v->s, &p->s, at_end)) {
        return p != NULL ? v : NULL;
    }
    return tv__str_part(r, &v->s, at_end ? 0 : p->s.n, v->s.n - p->s.n);
}

static struct tv *m_removeprefix(struct tr *r, struct tv *v, const struct tv_args *a)
{
    return remove_affix(r, v, a, false);
}

static struct tv *m_removesuffix(struct tr *r, struct tv *v, const struct tv_args *a)
{
    return remove_affix(r, v, a, true);
}

/* `{}` and `{0}` only: what templates use. */
static struct tv *m_format(struct tr *r, struct tv *v, const struct tv_args *a)
{
    struct tb b;
    size_t next = 0;
    tb__init(&b, r);
    for (size_t i = 0; i < v->s.n; i++) {
        char c = v->s.p[i], after = i + 1 < v->s.n ? v->s.p[i + 1] : 0;
        struct tv *one = tv__str_part(r, &v->s, i, 1), *arg = NULL;
        if ((c == '{' || c == '}') && c == after) {
            i++;
        } else if (c == '{') {
            bool digit = after >= '0' && after <= '9';
            arg = ta__get(a, digit ? (size_t)(after - '0') : next++, NULL);
            i += digit ? 2 : 1;
            if (arg == NULL || i >= v->s.n || v->s.p[i] != '}') {
                return tr__fail(r, "format takes {} and {0}, with an argument for each");
            }
            one = tv__to_str(r, arg);
        } else if (c == '}') {
            return tr__fail(r, "single '}' in format");
        }
        if (one == NULL || !tb__add(&b, &one->s)) {
            return NULL;
        }
    }
    return tb__done(&b);
}

/* ---- dicts and lists ---- */

static struct tv *m_items(struct tr *r, struct tv *v, const struct tv_args *a)
{
    return tf__filter(r, "items", v, a);
}

static struct tv *m_keys(struct tr *r, struct tv *v, const struct tv_args *a)
{
    (void)a;
    return tv__iterate(r, v);
}

static struct tv *m_values(struct tr *r, struct tv *v, const struct tv_args *a)
{
    (void)a;
    struct tv *out = tv__list(r);
    for (size_t i = 0; out != NULL && i < v->dict.n; i++) {
        if (!tv__append(r, out, v->dict.v[i].value)) {
            return NULL;
        }
    }
    return out;
}

static struct tv *m_get(struct tr *r, struct tv *v, const struct tv_args *a)
{
    struct tv *key = ta__get(a, 0, NULL), *def = ta__get(a, 1, "default");
    for (size_t i = 0; key != NULL && i < v->dict.n; i++) {
        if (tv__equal(r, v->dict.v[i].key, key)) {
            return v->dict.v[i].value;
        }
    }
    return def != NULL ? def : tv__new(r, TV_NONE);
}

static const struct {
    enum tv_type type;
    const char *name;
    struct tv *(*fn)(struct tr *r, struct tv *v, const struct tv_args *a);
} methods[] = {
    {TV_STR, "strip", m_strip},
    {TV_STR, "lstrip", m_lstrip},
    {TV_STR, "rstrip", m_rstrip},
    {TV_STR, "upper", m_upper},
    {TV_STR, "lower", m_lower},
    {TV_STR, "title", m_title},
    {TV_STR, "capitalize", m_capitalize},
    {TV_STR, "startswith", m_startswith},
    {TV_STR, "endswith", m_endswith},
    {TV_STR, "replace", m_replace},
    {TV_STR, "split", m_split},
    {TV_STR, "rsplit", m_rsplit},
    {TV_STR, "splitlines", m_splitlines},
    {TV_STR, "find", m_find},
    {TV_STR, "format", m_format},
    {TV_STR, "rfind", m_rfind},
    {TV_STR, "index", m_index},
    {TV_STR, "count", m_count},
    {TV_STR, "join", m_join},
    {TV_STR, "isdigit", m_isdigit},
    {TV_STR, "isalpha", m_isalpha},
    {TV_STR, "removeprefix", m_removeprefix},
    {TV_STR, "removesuffix", m_removesuffix},
    {TV_DICT, "items", m_items},
    {TV_DICT, "keys", m_keys},
    {TV_DICT, "values", m_values},
    {TV_DICT, "get", m_get},
};

bool tm__has(const struct tv *self, const char *name)
{
    for (size_t i = 0; i < TD_COUNT(methods); i++) {
        if (methods[i].type == self->type && strcmp(methods[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

struct tv *tm__method(struct tr *r, struct tv *self, const char *name, const struct tv_args *args)
{
    if (self->type == TV_STR && !tr__work(r, self->s.n)) {
        return NULL;
    }
    for (size_t i = 0; i < TD_COUNT(methods); i++) {
        if (methods[i].type == self->type && strcmp(methods[i].name, name) == 0) {
            return methods[i].fn(r, self, args);
        }
    }
    return tr__fail(r, "a %s has no method '%s'", tv__type_name(self), name);
}

/* ---- global functions ---- */

static struct tv *g_raise(struct tr *r, const struct tv_args *a)
{
    struct tv *why = ta__get(a, 0, NULL);
    why = why != NULL ? tv__to_str(r, why) : NULL;
    return tr__fail(r, "%.*s", why != NULL ? (int)(why->s.n < 200 ? why->s.n : 200) : 9,
                    why != NULL ? why->s.p : "exception");
}

static struct tv *g_range(struct tr *r, const struct tv_args *a)
{
    int64_t v[3] = {0, 0, 1};
    size_t n = 0;
    for (; n < 3 && ta__get(a, n, NULL) != NULL; n++) {
        if (ta__get(a, n, NULL)->type != TV_INT) {
            return tr__fail(r, "range needs integers");
        }
        v[n] = ta__get(a, n, NULL)->i;
    }
    int64_t from = n > 1 ? v[0] : 0, to = n > 1 ? v[1] : v[0], step = v[2];
    struct tv *out = tv__list(r);
    if (n == 0 || step == 0 || step > INT32_MAX || step < -INT32_MAX || from > INT32_MAX ||
        to > INT32_MAX || from < -INT32_MAX || to < -INT32_MAX) {
        return tr__fail(r, "range out of bounds");
    }
    for (int64_t i = from; out != NULL && (step > 0 ? i < to : i > to); i += step) {
        if (!tr__tick(r) || !tv__append(r, out, tv__int(r, i))) {
            return NULL;
        }
    }
    return out;
}

static struct tv *make_dict(struct tr *r, const struct tv_args *a, bool is_namespace)
{
    struct tv *d = tv__dict(r), *base = ta__get(a, 0, NULL);
    for (size_t i = 0; d != NULL && base != NULL && base->type == TV_DICT && i < base->dict.n;
         i++) {
        if (!tv__put(r, d, base->dict.v[i].key, base->dict.v[i].value)) {
            return NULL;
        }
    }
    for (size_t i = 0; d != NULL && i < a->n; i++) {
        if (a->names[i] != NULL && !tv__put(r, d, tv__cstr(r, a->names[i]), a->v[i])) {
            return NULL;
        }
    }
    if (d != NULL) {
        d->is_namespace = is_namespace;
    }
    return d;
}

static struct tv *g_namespace(struct tr *r, const struct tv_args *a)
{
    return make_dict(r, a, true);
}

static struct tv *g_dict(struct tr *r, const struct tv_args *a)
{
    return make_dict(r, a, false);
}

static struct tv *g_strftime_now(struct tr *r, const struct tv_args *a)
{
    struct tv *fmt = str_arg(r, a, 0, NULL);
    char format[128] = "", *out = tr__alloc(r, 256);
    time_t now = (time_t)r->now_s;
    struct tm tm;
    if (fmt == NULL || out == NULL || fmt->s.n >= sizeof format || gmtime_r(&now, &tm) == NULL) {
        return tr__fail(r, "strftime_now needs a short format");
    }
    memcpy(format, fmt->s.p, fmt->s.n);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored                                                                     \
    "-Wformat-nonliteral" /* the format is the template's, the buffer is bounded */
    size_t n = strftime(out, 256, format, &tm);
#pragma GCC diagnostic pop
    return tv__str(r, out, n, fmt->s.tainted || fmt->s.mixed != NULL);
}

static const struct {
    const char *name;
    struct tv *(*fn)(struct tr *r, const struct tv_args *a);
} functions[] = {
    {"raise_exception", g_raise},     {"range", g_range},
    {"namespace", g_namespace},       {"dict", g_dict},
    {"strftime_now", g_strftime_now},
};

bool tm__is_function(const char *name)
{
    for (size_t i = 0; i < TD_COUNT(functions); i++) {
        if (strcmp(functions[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

struct tv *tm__function(struct tr *r, const char *name, const struct tv_args *args)
{
    for (size_t i = 0; i < TD_COUNT(functions); i++) {
        if (strcmp(functions[i].name, name) == 0) {
            return functions[i].fn(r, args);
        }
    }
    return tr__fail(r, "unknown function '%s'", name);
}
