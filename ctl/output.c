#include "ctl/output.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/utf8.h"

#define FIRST_CELLS 256u

struct ctl_table {
    const struct ctl_column *columns; /* borrowed */
    uint32_t n_columns;
    size_t n_cells, cap;
    char (*cells)[CTL_CELL]; /* owned [cap], row by row */
    td_err err;
};

/* ---- tables ---- */

td_err ctl_table_create(const struct ctl_column *columns, uint32_t n_columns,
                        struct ctl_table **out_table)
{
    TD_REQUIRE(n_columns > 0 && n_columns <= CTL_TABLE_COLS);
    struct ctl_table *t = td_zalloc(1, sizeof *t);
    if (t == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    t->columns = columns;
    t->n_columns = n_columns;
    *out_table = t;
    return TD_OK;
}

struct ctl_table *ctl_table_destroy(struct ctl_table *t)
{
    if (t != NULL) {
        free(t->cells);
        free(t);
    }
    return NULL;
}

static td_err grow(struct ctl_table *t)
{
    if (t->n_cells == (size_t)CTL_TABLE_ROWS * t->n_columns) {
        return TD_ERR_FULL;
    }
    if (t->n_cells == t->cap) {
        size_t cap = t->cap > 0 ? t->cap * 2 : FIRST_CELLS;
        void *cells = td_realloc(t->cells, cap * sizeof *t->cells);
        if (cells == NULL) {
            return TD_ERR_NO_MEMORY;
        }
        t->cells = cells;
        t->cap = cap;
    }
    return TD_OK;
}

/* Length of the character at s if a terminal just shows it, else 0: C0, DEL and C1 controls, and what is not UTF-8. */
static size_t shown(const char *s, size_t len)
{
    size_t n = td_utf8_char_len(s, len);
    const unsigned char *u = (const unsigned char *)s;
    bool control = n == 1 ? (u[0] < 0x20 || u[0] == 0x7f) : n == 2 && u[0] == 0xc2 && u[1] < 0xa0;
    return control ? 0 : n;
}

/* In place: at most CTL_CELL - 1 bytes, whole characters, no control characters. */
static void clean(char *cell, bool cut)
{
    size_t len = strlen(cell), at = 0;
    while (at < len) {
        size_t n = shown(cell + at, len - at);
        if (n == 0) {
            cell[at] = '?';
            n = 1;
        }
        at += n;
    }
    if (cut && len >= 2) {
        /* A character that the cut halved has become '?' above. */
        cell[len - 2] = cell[len - 1] = '.';
        while (len > 2 && ((unsigned char)cell[len - 3] & 0xc0) == 0x80) {
            memmove(cell + len - 3, cell + len - 2, 3);
            len--;
        }
        if (len > 2 && ((unsigned char)cell[len - 3] & 0xc0) == 0xc0) {
            memmove(cell + len - 3, cell + len - 2, 3);
        }
    }
}

void ctl_print_clean(const char *text, FILE *out)
{
    size_t len = strlen(text);
    for (size_t at = 0; at < len;) {
        size_t n = shown(text + at, len - at);
        if (n == 0) {
            (void)fputc('?', out);
        } else {
            (void)fwrite(text + at, 1, n, out);
        }
        at += n > 0 ? n : 1;
    }
}

void ctl_table_cell(struct ctl_table *t, const char *fmt, ...)
{
    va_list ap;
    td_err err = t->err == TD_OK ? grow(t) : t->err;
    if (err != TD_OK) {
        t->err = err;
        return;
    }
    char *cell = t->cells[t->n_cells++];
    va_start(ap, fmt);
    int n = vsnprintf(cell, CTL_CELL, fmt, ap);
    va_end(ap);
    clean(cell, n >= CTL_CELL);
}

/* Columns of a terminal, one for each character: wide scripts in a request's name are not worth a table of widths. */
static int width(const char *text)
{
    int n = 0;
    for (; *text != 0; text++) {
        n += ((unsigned char)*text & 0xc0) != 0x80;
    }
    return n;
}

static void print_row(const struct ctl_table *t, bool wide, const int *widths, bool head,
                      size_t first, FILE *out)
{
    int blanks = 0; /* owed, so that no line ends in blanks */
    bool begun = false;
    for (uint32_t c = 0; c < t->n_columns; c++) {
        const char *text = head ? t->columns[c].head : t->cells[first + c];
        int pad = widths[c] - width(text);
        if (t->columns[c].wide && !wide) {
            continue;
        }
        blanks += begun ? 2 : 0;
        blanks += t->columns[c].right ? pad : 0;
        (void)fprintf(out, "%*s%s", blanks, "", text);
        blanks = t->columns[c].right ? 0 : pad;
        begun = true;
    }
    (void)fputc('\n', out);
}

td_err ctl_table_print(const struct ctl_table *t, bool wide, FILE *out)
{
    int widths[CTL_TABLE_COLS];
    TD_TRY(t->err);
    TD_REQUIRE(t->n_cells % t->n_columns == 0);
    for (uint32_t c = 0; c < t->n_columns; c++) {
        widths[c] = width(t->columns[c].head);
        for (size_t i = c; i < t->n_cells; i += t->n_columns) {
            int w = width(t->cells[i]);
            widths[c] = w > widths[c] ? w : widths[c];
        }
    }
    print_row(t, wide, widths, true, 0, out);
    for (size_t i = 0; i < t->n_cells; i += t->n_columns) {
        print_row(t, wide, widths, false, i, out);
    }
    return TD_OK;
}

/* ---- JSON and YAML ---- */

td_err ctl_json_print(const json_t *value, FILE *out)
{
    if (json_dumpf(value, out,
                   JSON_INDENT(2) | JSON_ENSURE_ASCII | JSON_ENCODE_ANY |
                       JSON_REAL_PRECISION(15)) != 0) {
        return TD_ERR_NO_MEMORY;
    }
    (void)fputc('\n', out);
    return TD_OK;
}

/* Always in double quotes; what YAML calls not printable, and its own line ends, as escapes. */
static void yaml_string(const char *s, size_t len, FILE *out)
{
    (void)fputc('"', out);
    for (size_t at = 0; at < len;) {
        size_t n = shown(s + at, len - at);
        bool line_end = n == 3 && memcmp(s + at, "\xe2\x80", 2) == 0 && (s[at + 2] & 0xfe) == 0xa8;
        bool bom = n == 3 && memcmp(s + at, "\xef\xbb\xbf", 3) == 0;
        if (n == 0) {
            bool c1 = at + 1 < len && (unsigned char)s[at] == 0xc2;
            at += c1 ? 1 : 0;
            (void)fprintf(out, "\\x%02x", (unsigned char)s[at]);
            n = 1;
        } else if (line_end || bom) {
            (void)fputs(bom ? "\\uFEFF" : s[at + 2] == '\xa8' ? "\\L" : "\\P", out);
        } else {
            (void)fprintf(out, "%s%.*s", s[at] == '"' || s[at] == '\\' ? "\\" : "", (int)n, s + at);
        }
        at += n;
    }
    (void)fputc('"', out);
}

/* A key that every YAML reader takes for the same text: a lower-case word that is no boolean or null. */
static bool plain_key(const char *key)
{
    static const char *const words[] = {"y",    "n",     "yes", "no",  "on",
                                        "true", "false", "off", "null"};
    for (size_t i = 0; i < TD_COUNT(words); i++) {
        if (strcmp(key, words[i]) == 0) {
            return false;
        }
    }
    return key[0] >= 'a' && key[0] <= 'z' &&
           key[strspn(key, "abcdefghijklmnopqrstuvwxyz0123456789_")] == 0;
}

static void yaml_value(const json_t *v, int indent, bool in_list, FILE *out);

static void yaml_scalar(const json_t *v, FILE *out)
{
    switch (json_typeof(v)) {
    case JSON_STRING:
        yaml_string(json_string_value(v), json_string_length(v), out);
        break;
    case JSON_INTEGER:
        (void)fprintf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        break;
    case JSON_REAL:
        (void)fprintf(out, "%.15g", json_real_value(v));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        (void)fputs(json_is_true(v) ? "true" : "false", out);
        break;
    case JSON_OBJECT: /* only empty ones come here */
        (void)fputs("{}", out);
        break;
    case JSON_ARRAY:
        (void)fputs("[]", out);
        break;
    case JSON_NULL:
    default:
        (void)fputs("null", out);
        break;
    }
    (void)fputc('\n', out);
}

static bool has_parts(const json_t *v)
{
    return json_object_size(v) > 0 || json_array_size(v) > 0;
}

static void yaml_object(const json_t *v, int indent, bool in_list, FILE *out)
{
    bool first = true;
    for (void *i = json_object_iter((json_t *)(uintptr_t)v); i != NULL;
         i = json_object_iter_next((json_t *)(uintptr_t)v, i)) {
        const char *key = json_object_iter_key(i);
        const json_t *part = json_object_iter_value(i);
        (void)fprintf(out, "%*s", first && in_list ? 0 : indent, "");
        if (plain_key(key)) {
            (void)fputs(key, out);
        } else {
            yaml_string(key, strlen(key), out);
        }
        (void)fputc(':', out);
        if (has_parts(part)) {
            (void)fputc('\n', out);
            yaml_value(part, json_is_array(part) ? indent : indent + 2, false, out);
        } else {
            (void)fputc(' ', out);
            yaml_scalar(part, out);
        }
        first = false;
    }
}

/* `in_list`: the first line continues one that ends in "- ". */
static void yaml_value(const json_t *v, int indent, bool in_list, FILE *out)
{
    if (!has_parts(v)) {
        yaml_scalar(v, out);
    } else if (json_is_object(v)) {
        yaml_object(v, indent, in_list, out);
    } else {
        for (size_t i = 0; i < json_array_size(v); i++) {
            (void)fprintf(out, "%*s- ", i == 0 && in_list ? 0 : indent, "");
            yaml_value(json_array_get(v, i), indent + 2, true, out);
        }
    }
}

td_err ctl_yaml_print(const json_t *value, FILE *out)
{
    yaml_value(value, 0, false, out);
    return TD_OK;
}

td_err ctl_document_print(const json_t *value, enum ctl_format format, FILE *out)
{
    return format == CTL_YAML ? ctl_yaml_print(value, out) : ctl_json_print(value, out);
}

/* ---- numbers ---- */

const char *ctl_format_us(int64_t us, char *buf, size_t cap)
{
    double x = (double)us;
    if (us < 0) {
        (void)snprintf(buf, cap, "-");
    } else if (us < 1000) {
        (void)snprintf(buf, cap, "%" PRId64 " us", us);
    } else if (us < 1000000) {
        (void)snprintf(buf, cap, x < 99950 ? "%.1f ms" : "%.0f ms", x / 1e3);
    } else if (us < 120000000) {
        (void)snprintf(buf, cap, "%.2f s", x / 1e6);
    } else {
        (void)snprintf(buf, cap, "%.1f min", x / 60e6);
    }
    return buf;
}

const char *ctl_format_bytes(uint64_t bytes, char *buf, size_t cap)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double x = (double)bytes;
    size_t u = 0;
    while (x >= 1024 && u + 1 < TD_COUNT(units)) {
        x /= 1024;
        u++;
    }
    (void)snprintf(buf, cap, u == 0 ? "%.0f %s" : "%.2f %s", x, units[u]);
    return buf;
}
