#include "ctl/svg.h"

#include <inttypes.h>
#include <string.h>

#include "common/base/utf8.h"
#include "ctl/json_field.h"
#include "ctl/output.h"
#include "ctl/waterfall.h"

#define WIDTH   1080
#define LEFT    132 /* of the axis */
#define RIGHT   740
#define TOP     112
#define ROW     28
#define BAR     16
#define MARKS   8
#define MIN_BAR 2 /* what took time at all is seen */

/* Characters that XML allows and that a viewer shows; anything else becomes '?'. */
static void escaped(const char *s, FILE *out)
{
    size_t len = strlen(s);
    for (size_t at = 0; at < len;) {
        size_t n = td_utf8_char_len(s + at, len - at);
        unsigned char c = (unsigned char)s[at];
        bool control =
            n == 1 ? c < 0x20 || c == 0x7f : n == 2 && c == 0xc2 && (unsigned char)s[at + 1] < 0xa0;
        bool none =
            n == 3 && memcmp(s + at, "\xef\xbf", 2) == 0 && (unsigned char)s[at + 2] >= 0xbe;
        if (n == 0 || control || none) {
            (void)fputc('?', out);
            at += n > 0 ? n : 1;
            continue;
        }
        const char *name = c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : NULL;
        name = c == '"' ? "&quot;" : name;
        if (name != NULL) {
            (void)fputs(name, out);
        } else {
            (void)fwrite(s + at, 1, n, out);
        }
        at += n;
    }
}

/* Words of a record, one after the other, escaped, as one <text>. `cls` is ours. */
static void label(FILE *out, double x, double y, const char *cls, const char *anchor,
                  const char *text)
{
    (void)fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\" text-anchor=\"%s\">", x, y, cls,
                  anchor);
    escaped(text, out);
    (void)fputs("</text>\n", out);
}

static double at(const struct ctl_waterfall *w, int64_t us)
{
    return LEFT + (w->axis_us > 0 ? (double)us / (double)w->axis_us : 0) * (RIGHT - LEFT);
}

static void head(const json_t *r, const struct ctl_waterfall *w, int height, FILE *out)
{
    char text[320], t[3][32];
    const char *id = ctl_field_text(r, "request_id", "-"), *code = ctl_field_text(r, "code", "ok");
    (void)fprintf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                  "viewBox=\"0 0 %d %d\" "
                  "role=\"img\" aria-labelledby=\"t d\">\n<title id=\"t\">Stages of request ",
                  WIDTH, height, WIDTH, height);
    escaped(id, out);
    (void)fputs(
        "</title>\n<style>\n"
        "text{font:13px system-ui,sans-serif;fill:#1b1f24}.h{font-size:18px;font-weight:600}"
        ".s,.a{fill:#57606a}.a{font-size:12px}.p{fill:#fff}.g{stroke:#d0d7de}"
        ".wait{fill:#bf8700}.work{fill:#0969da}.move{fill:#1a7f37}.lost{fill:#cf222e}"
        ".f{stroke:#8250df;stroke-dasharray:4 3;stroke-width:1.5}.ft{fill:#8250df;font-size:12px}\n"
        "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.s,.a{fill:#9198a1}.p{fill:#0d1117}"
        ".g{stroke:#3d444d}.wait{fill:#d29922}.work{fill:#4493f8}.move{fill:#3fb950}"
        ".lost{fill:#f85149}.f{stroke:#ab7df8}.ft{fill:#ab7df8}}\n</style>\n",
        out);
    (void)snprintf(text, sizeof text,
                   "%s prefill, %s decode: first token after %s, whole answer after %s.",
                   ctl_field_text(r, "prefill", "-"), ctl_field_text(r, "decode", "-"),
                   ctl_format_us(w->first_us, t[0], sizeof t[0]),
                   ctl_format_us(ctl_waterfall_number(r, "total_us"), t[1], sizeof t[1]));
    (void)fputs("<desc id=\"d\">", out);
    escaped(text, out);
    (void)fprintf(out, "</desc>\n<rect class=\"p\" width=\"%d\" height=\"%d\"/>\n", WIDTH, height);
    (void)snprintf(text, sizeof text, "Request %.120s", id);
    label(out, 16, 30, "h", "start", text);
    int64_t per_token = ctl_waterfall_number(r, "tpot_us");
    (void)snprintf(
        text, sizeof text,
        "%s; %" PRId64 " prompt and %" PRId64 " output tokens; first token after %s, then "
        "one each %s; total %s",
        strcmp(code, "ok") == 0 ? ctl_field_text(r, "finish", "ended") : code,
        ctl_waterfall_number(r, "prompt_tokens"), ctl_waterfall_number(r, "output_tokens"),
        ctl_format_us(w->first_us, t[0], sizeof t[0]), ctl_format_us(per_token, t[1], sizeof t[1]),
        ctl_format_us(ctl_waterfall_number(r, "total_us"), t[2], sizeof t[2]));
    label(out, 16, 52, "s", "start", text);
    (void)snprintf(
        text, sizeof text, "prefill on %.63s, decode on %.63s; KV %s%s%s; attempts: %" PRId64,
        ctl_field_text(r, "prefill", "-"), ctl_field_text(r, "decode", "-"),
        ctl_format_bytes((uint64_t)ctl_waterfall_number(r, "kv_bytes"), t[0], sizeof t[0]),
        ctl_field_text(r, "transport", "")[0] != 0 ? " by " : "",
        ctl_field_text(r, "transport", ""), ctl_waterfall_number(r, "attempts"));
    label(out, 16, 72, "s", "start", text);
}

static void axis(const struct ctl_waterfall *w, int bottom, FILE *out)
{
    int64_t step = ctl_waterfall_step(w->axis_us, MARKS);
    const char *unit = step >= 1000000 ? "s" : step >= 1000 ? "ms" : "us";
    double by = step >= 1000000 ? 1e6 : step >= 1000 ? 1e3 : 1;
    for (int64_t us = 0; us <= w->axis_us && us / step <= MARKS; us += step) {
        char text[48];
        (void)snprintf(text, sizeof text, "%.0f %s", (double)us / by, unit);
        (void)fprintf(out, "<line class=\"g\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>\n",
                      at(w, us), at(w, us), TOP - 8, bottom);
        label(out, at(w, us), TOP - 14, "a", "middle", text);
    }
}

static const char *const kinds[CTL_BAR_KINDS][2] = {
    {"wait", "waits"}, {"work", "computes"}, {"move", "moves KV"}, {"lost", "lost attempt"}};

static void bars(const struct ctl_waterfall *w, FILE *out)
{
    char took[32], right[224];
    for (uint32_t i = 0; i < w->n; i++) {
        const struct ctl_bar *b = &w->bars[i];
        double y = TOP + (double)i * ROW, from = at(w, b->from_us), to = at(w, b->from_us + b->us);
        double width = b->us > 0 && to - from < MIN_BAR ? MIN_BAR : to - from;
        label(out, LEFT - 10, y + BAR - 3, "n", "end", b->name + strspn(b->name, " "));
        if (b->us > 0) {
            (void)fprintf(out,
                          "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" "
                          "rx=\"2\"/>\n",
                          kinds[b->kind][0], from, y, width, BAR);
        }
        (void)snprintf(right, sizeof right, "%s%s%.48s", ctl_format_us(b->us, took, sizeof took),
                       b->where[0] != 0 ? ", " : "", b->where);
        label(out, RIGHT + 12, y + BAR - 3, "s", "start", right);
    }
}

static void first_token(const struct ctl_waterfall *w, int bottom, FILE *out)
{
    char text[64], took[32];
    if (w->first_us <= 0 || w->first_us > w->axis_us) {
        return;
    }
    double x = at(w, w->first_us);
    bool late = x > (LEFT + RIGHT) / 2.0; /* the label goes to the side with room */
    (void)snprintf(text, sizeof text, "first token %s",
                   ctl_format_us(w->first_us, took, sizeof took));
    (void)fprintf(out, "<line class=\"f\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>\n", x, x,
                  TOP - 8, bottom + 4);
    label(out, late ? x - 4 : x + 4, bottom + 16, "ft", late ? "end" : "start", text);
}

static void legend(int y, FILE *out)
{
    double x = LEFT;
    for (int k = 0; k < CTL_BAR_KINDS; k++) {
        (void)fprintf(
            out, "<rect class=\"%s\" x=\"%.1f\" y=\"%d\" width=\"12\" height=\"12\" rx=\"2\"/>\n",
            kinds[k][0], x, y - 10);
        label(out, x + 18, y, "s", "start", kinds[k][1]);
        x += 120;
    }
}

td_err ctl_svg_print(const json_t *record, FILE *out)
{
    struct ctl_waterfall w;
    if (ctl_field_text(record, "request_id", NULL) == NULL ||
        json_object_get(record, "total_us") == NULL) {
        return TD_ERR_PROTOCOL;
    }
    ctl_waterfall_make(record, &w);
    int bottom = TOP + (int)w.n * ROW, height = bottom + 56;
    head(record, &w, height, out);
    axis(&w, bottom, out);
    bars(&w, out);
    first_token(&w, bottom, out);
    legend(bottom + 40, out);
    (void)fputs("</svg>\n", out);
    return TD_OK;
}
