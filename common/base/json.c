#include "common/base/json.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/base/utf8.h"

/* Design: jansson nests up to 2048 deep and has no limit on values, so both are counted on the raw
 * text first. The scan need not understand JSON: outside strings, an opening bracket starts a level
 * and a value, a comma one more value. For malformed text the numbers mean nothing, but then
 * jansson refuses it, within these limits. */
struct scan {
    struct td_json_limits limits;
    size_t depth;
    size_t values;
    bool in_string;
    bool escaped;
};

enum broken { BROKEN_NONE, BROKEN_DEPTH, BROKEN_VALUES };

/* The limit that this byte breaks. */
static enum broken scan_byte(struct scan *s, char c)
{
    if (s->in_string) {
        if (s->escaped) {
            s->escaped = false;
        } else if (c == '\\') {
            s->escaped = true;
        } else if (c == '"') {
            s->in_string = false;
        }
        return BROKEN_NONE;
    }
    if (c == '"') {
        s->in_string = true;
    } else if (c == '[' || c == '{') {
        s->values++;
        if (++s->depth > s->limits.depth) {
            return BROKEN_DEPTH;
        }
    } else if ((c == ']' || c == '}') && s->depth > 0) {
        s->depth--;
    } else if (c == ',') {
        s->values++;
    }
    return s->values > s->limits.values ? BROKEN_VALUES : BROKEN_NONE;
}

/* Writes the message with everything that is not printable text replaced, since jansson quotes the
 * input in it. */
static void explain(char *err_text, size_t err_cap, int line, int column, const char *what)
{
    if (err_text == NULL || err_cap == 0) {
        return;
    }
    (void)snprintf(err_text, err_cap, "invalid JSON at line %d, column %d: %s", line, column, what);
    size_t len = strlen(err_text);
    for (size_t i = 0; i < len;) {
        size_t n = td_utf8_char_len(err_text + i, len - i);
        if (n == 0 || (n == 1 && ((unsigned char)err_text[i] < 0x20 || err_text[i] == 0x7f))) {
            err_text[i] = '?';
            n = 1;
        }
        i += n;
    }
}

td_err td_json_parse(const char *text, size_t len, json_t **out_json, char *err_text,
                     size_t err_cap)
{
    const struct td_json_limits limits = {TD_JSON_MAX_DEPTH, TD_JSON_MAX_VALUES};
    return td_json_parse_limited(text, len, &limits, out_json, err_text, err_cap);
}

td_err td_json_parse_limited(const char *text, size_t len, const struct td_json_limits *limits,
                             json_t **out_json, char *err_text, size_t err_cap)
{
    struct scan s = {.limits = *limits, .values = 1};
    int line = 1;
    size_t line_start = 0;
    for (size_t i = 0; i < len; i++) {
        enum broken broken = scan_byte(&s, text[i]);
        if (broken != BROKEN_NONE) {
            char what[64];
            bool deep = broken == BROKEN_DEPTH;
            (void)snprintf(what, sizeof what,
                           deep ? "nested deeper than %zu levels" : "more than %zu values",
                           deep ? limits->depth : limits->values);
            explain(err_text, err_cap, line, (int)(i - line_start) + 1, what);
            return TD_ERR_BAD_REQUEST;
        }
        if (text[i] == '\n') {
            line++;
            line_start = i + 1;
        }
    }
    json_error_t e;
    json_t *json = json_loadb(text, len, JSON_REJECT_DUPLICATES, &e);
    if (json == NULL) {
        explain(err_text, err_cap, e.line, e.column, e.text);
        return json_error_code(&e) == json_error_out_of_memory ? TD_ERR_NO_MEMORY
                                                               : TD_ERR_BAD_REQUEST;
    }
    *out_json = json;
    return TD_OK;
}
