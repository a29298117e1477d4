#include "ctl/report.h"

#include <stdarg.h>
#include <string.h>

#include <jansson.h>

#include "common/base/mem.h"
#include "common/base/utf8.h"
#include "ctl/output.h"

static const char *const names[] = {"OK", "WARN", "FAIL", "SKIP"};
static const char *const json_names[] = {"ok", "warn", "fail", "skip"};

/* Paths and file contents come in here: what a terminal would obey, and what JSON cannot hold, becomes '?'. */
static void clean(char *text)
{
    size_t len = strlen(text);
    for (size_t at = 0; at < len;) {
        size_t n = td_utf8_char_len(text + at, len - at);
        unsigned char c = (unsigned char)text[at];
        bool control = c < 0x20 || c == 0x7f || (c == 0xc2 && (unsigned char)text[at + 1] < 0xa0);
        if (n == 0 || control) {
            text[at] = '?';
            n = 1;
        }
        at += n;
    }
}

static void print_line(const struct ctl_finding *f, FILE *out)
{
    (void)fprintf(out, "%-4s  %-22s  %s\n", names[f->verdict], f->check, f->detail);
    if (f->remedy[0] != 0) {
        (void)fprintf(out, "      %-22s  -> %s\n", "", f->remedy);
    }
    (void)fflush(out);
}

struct ctl_finding *ctl_report_add(struct ctl_report *r, enum ctl_verdict verdict,
                                   const char *check, const char *remedy, const char *fmt, ...)
{
    static struct ctl_finding spare; /* for what finds no room */
    bool act = verdict == CTL_V_WARN || verdict == CTL_V_FAIL;
    struct ctl_finding *f = &spare;
    va_list ap;
    if (r->n < CTL_REPORT_MAX) {
        f = &r->findings[r->n++];
    } else {
        r->lost++;
    }
    *f = (struct ctl_finding){.verdict = verdict};
    va_start(ap, fmt);
    (void)vsnprintf(f->detail, sizeof f->detail, fmt, ap);
    va_end(ap);
    (void)snprintf(f->check, sizeof f->check, "%s", check);
    (void)snprintf(f->remedy, sizeof f->remedy, "%s", act && remedy != NULL ? remedy : "");
    clean(f->check);
    clean(f->detail);
    clean(f->remedy);
    if (r->live != NULL) {
        print_line(f, r->live);
    }
    return f;
}

static struct ctl_value *next_value(struct ctl_finding *f, const char *name)
{
    static struct ctl_value spare; /* for what finds no room */
    for (uint32_t i = 0; i < CTL_REPORT_VALUES; i++) {
        if (f->values[i].name == NULL) {
            f->values[i].name = name;
            return &f->values[i];
        }
    }
    return &spare;
}

void ctl_finding_value(struct ctl_finding *f, const char *name, double value)
{
    next_value(f, name)->value = value;
}

void ctl_finding_text(struct ctl_finding *f, const char *name, const char *text)
{
    struct ctl_value *v = next_value(f, name);
    (void)snprintf(v->text, sizeof v->text, "%s", text);
    clean(v->text);
}

uint32_t ctl_report_count(const struct ctl_report *r, enum ctl_verdict verdict)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        n += r->findings[i].verdict == verdict;
    }
    return n;
}

bool ctl_report_failed(const struct ctl_report *r)
{
    return ctl_report_count(r, CTL_V_FAIL) > 0 || r->lost > 0;
}

static json_t *finding_json(const struct ctl_finding *f)
{
    json_t *o = json_pack("{s:s,s:s,s:s,s:s}", "check", f->check, "verdict", json_names[f->verdict],
                          "detail", f->detail, "remedy", f->remedy);
    for (uint32_t i = 0; o != NULL && i < CTL_REPORT_VALUES && f->values[i].name != NULL; i++) {
        const struct ctl_value *v = &f->values[i];
        (void)json_object_set_new(o, v->name,
                                  v->text[0] != 0 ? json_string(v->text) : json_real(v->value));
    }
    return o;
}

td_err ctl_report_json(const struct ctl_report *r, enum ctl_format format, FILE *out)
{
    json_t *checks = json_array();
    for (uint32_t i = 0; i < r->n; i++) {
        (void)json_array_append_new(checks, finding_json(&r->findings[i])); /* counted below */
    }
    json_t *doc = json_array_size(checks) != r->n
                      ? NULL
                      : json_pack("{s:b,s:O}", "ok", !ctl_report_failed(r), "checks", checks);
    td_err err = doc != NULL ? ctl_document_print(doc, format, out) : TD_ERR_NO_MEMORY;
    json_decref(doc);
    json_decref(checks);
    return err;
}
