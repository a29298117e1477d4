#include "common/base/config_value.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/mem.h"

#define NAME_MAX_BYTES 64 /* longest name that the nearest-name search compares */

static void *place(const struct td_opt *o, void *config)
{
    return (char *)config + o->offset;
}

static td_err bad(const char *reason, const char **out_reason)
{
    *out_reason = reason;
    return TD_ERR_CONFIG;
}

static td_err set_bool(const char *text, bool *out, const char **out_reason)
{
    static const char *const yes[] = {"true", "yes", "on", "1"};
    static const char *const no[] = {"false", "no", "off", "0"};
    for (size_t i = 0; i < TD_COUNT(yes); i++) {
        if (strcmp(text, yes[i]) == 0 || strcmp(text, no[i]) == 0) {
            *out = strcmp(text, yes[i]) == 0;
            return TD_OK;
        }
    }
    return bad("not true or false", out_reason);
}

/* Binary multiplier of a size suffix, 0 for an unknown one. */
static int64_t size_factor(const char *suffix)
{
    static const char *const names[][3] = {
        {"K", "KB", "KiB"}, {"M", "MB", "MiB"}, {"G", "GB", "GiB"}};
    if (suffix[0] == '\0') {
        return 1;
    }
    for (size_t i = 0; i < TD_COUNT(names); i++) {
        for (size_t j = 0; j < 3; j++) {
            if (strcmp(suffix, names[i][j]) == 0) {
                return (int64_t)1 << (10 * (i + 1));
            }
        }
    }
    return 0;
}

static bool out_of_range(const struct td_opt *o, double v)
{
    return o->min < o->max && !(v >= o->min && v <= o->max);
}

static td_err set_int(const struct td_opt *o, const char *text, int64_t *out,
                      const char **out_reason)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || errno == ERANGE) {
        return bad("not a whole number", out_reason);
    }
    int64_t factor = strcmp(o->unit, "bytes") == 0 ? size_factor(end) : *end == '\0';
    int64_t scaled;
    if (factor == 0) {
        return bad("not a whole number", out_reason);
    }
    if (__builtin_mul_overflow((int64_t)v, factor, &scaled) || out_of_range(o, (double)scaled)) {
        return bad("out of range", out_reason);
    }
    *out = scaled;
    return TD_OK;
}

static td_err set_double(const struct td_opt *o, const char *text, double *out,
                         const char **out_reason)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(v)) {
        return bad("not a number", out_reason);
    }
    if (out_of_range(o, v)) {
        return bad("out of range", out_reason);
    }
    *out = v;
    return TD_OK;
}

static td_err set_enum(const struct td_opt *o, const char *text, int *out, const char **out_reason)
{
    size_t len = strlen(text);
    int index = 0;
    for (const char *c = o->choices;; index++) {
        size_t n = strcspn(c, "|");
        if (n == len && memcmp(c, text, n) == 0) {
            *out = index;
            return TD_OK;
        }
        if (c[n] == '\0') {
            return bad("not one of the choices", out_reason);
        }
        c += n + 1;
    }
}

static td_err set_list(const char *text, struct td_str_list *list, const char **out_reason)
{
    while (*text != '\0') {
        size_t n = strcspn(text, ",");
        if (n > 0) {
            if (list->count == TD_CONFIG_LIST_MAX) {
                return bad("more than 64 items", out_reason);
            }
            char *item = td_zalloc(n + 1, 1);
            if (item == NULL) {
                return TD_ERR_NO_MEMORY;
            }
            memcpy(item, text, n);
            list->items[list->count++] = item;
        }
        text += n + (text[n] == ',');
    }
    return TD_OK;
}

static td_err set_string(const char *text, char **out)
{
    char *copy = td_strdup(text);
    if (copy == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    free(*out);
    *out = copy;
    return TD_OK;
}

td_err td__opt_set(const struct td_opt *o, const char *text, void *config, const char **out_reason)
{
    void *at = place(o, config);
    TD_REQUIRE(o->type <= TD_OPT_LIST);
    switch (o->type) {
    case TD_OPT_BOOL:
        return set_bool(text, at, out_reason);
    case TD_OPT_INT:
        return set_int(o, text, at, out_reason);
    case TD_OPT_DOUBLE:
        return set_double(o, text, at, out_reason);
    case TD_OPT_STRING:
        return set_string(text, at);
    case TD_OPT_ENUM:
        return set_enum(o, text, at, out_reason);
    case TD_OPT_LIST:
        return set_list(text, at, out_reason);
    }
    return TD_ERR_INTERNAL;
}

void td__opt_clear(const struct td_opt *o, void *config)
{
    if (o->type == TD_OPT_STRING) {
        char **s = place(o, config);
        free(*s);
        *s = NULL;
    } else if (o->type == TD_OPT_LIST) {
        struct td_str_list *list = place(o, config);
        for (uint32_t i = 0; i < list->count; i++) {
            free(list->items[i]);
            list->items[i] = NULL;
        }
        list->count = 0;
    }
}

/* A double-quoted YAML scalar. */
static void print_quoted(const char *s, FILE *out)
{
    (void)fputc('"', out);
    for (; *s != '\0'; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\') {
            (void)fprintf(out, "\\%c", c);
        } else if (c < 0x20 || c == 0x7f) {
            (void)fprintf(out, "\\x%02x", c);
        } else {
            (void)fputc(c, out);
        }
    }
    (void)fputc('"', out);
}

static void print_choice(const struct td_opt *o, int index, FILE *out)
{
    const char *c = o->choices;
    for (int i = 0; i < index && *c != '\0'; i++) {
        c += strcspn(c, "|");
        c += *c == '|';
    }
    (void)fprintf(out, "%.*s", (int)strcspn(c, "|"), c);
}

static void print_list(const struct td_str_list *list, FILE *out)
{
    (void)fputc('[', out);
    for (uint32_t i = 0; i < list->count; i++) {
        (void)fputs(i > 0 ? ", " : "", out);
        print_quoted(list->items[i], out);
    }
    (void)fputc(']', out);
}

void td__opt_print(const struct td_opt *o, const void *config, FILE *out)
{
    const void *at = (const char *)config + o->offset;
    switch (o->type) {
    case TD_OPT_BOOL:
        (void)fputs(*(const bool *)at ? "true" : "false", out);
        break;
    case TD_OPT_INT:
        (void)fprintf(out, "%lld", (long long)*(const int64_t *)at);
        break;
    case TD_OPT_DOUBLE:
        (void)fprintf(out, "%.15g", *(const double *)at);
        break;
    case TD_OPT_STRING:
        print_quoted(*(char *const *)at != NULL ? *(char *const *)at : "", out);
        break;
    case TD_OPT_ENUM:
        print_choice(o, *(const int *)at, out);
        break;
    case TD_OPT_LIST:
        print_list(at, out);
        break;
    }
}

const char *td__opt_kind(const struct td_opt *o)
{
    static const char *const kinds[] = {"", "INT", "NUMBER", "TEXT", "", "A,B,..."};
    return o->type == TD_OPT_ENUM ? o->choices : kinds[o->type];
}

/* Edit distance with insertions, deletions and substitutions; both at most NAME_MAX_BYTES. */
static size_t distance(const char *a, const char *b)
{
    size_t row[NAME_MAX_BYTES + 1];
    size_t len = strlen(b);
    for (size_t j = 0; j <= len; j++) {
        row[j] = j;
    }
    for (size_t i = 0; a[i] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < len; j++) {
            size_t change = diagonal + (a[i] != b[j]);
            size_t gap = (row[j] < row[j + 1] ? row[j] : row[j + 1]) + 1;
            diagonal = row[j + 1];
            row[j + 1] = change < gap ? change : gap;
        }
    }
    return row[len];
}

const char *td__nearest_name(const char *name, const char *const *candidates, size_t n)
{
    const char *best = NULL;
    size_t len = strlen(name);
    size_t best_distance = len / 3 + 2; /* farther away it would be a guess, not a hint */
    for (size_t i = 0; len <= NAME_MAX_BYTES && i < n; i++) {
        size_t d =
            strlen(candidates[i]) <= NAME_MAX_BYTES ? distance(name, candidates[i]) : best_distance;
        if (d < best_distance) {
            best = candidates[i];
            best_distance = d;
        }
    }
    return best;
}
