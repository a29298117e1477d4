#include "ctl/top_draw.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/utf8.h"
#include "ctl/json_field.h"
#include "ctl/output.h"

#define LINE    1024
#define KV_BAR  20
#define RECENT  3 /* seconds that a rate is averaged over: one alone jumps */
#define CELL    64
#define MAX_COL 10

/* What a page has room for; lines past it are dropped. */
struct page {
    const struct ctl_top_screen *s;
    FILE *out;
    unsigned used;
};

enum look { PLAIN, BOLD, DIM, GOOD, WARN, BAD };
static const char *const looks[] = {"", "\033[1m", "\033[2m", "\033[32m", "\033[33m", "\033[31m"};

static bool full(const struct page *p)
{
    return p->s->rows > 0 && p->used >= p->s->rows;
}

static unsigned left(const struct page *p)
{
    return p->s->rows == 0 ? UINT32_MAX : p->s->rows - p->used;
}

/* At most the screen's columns of the text, one for each character; no control characters. */
static void line(struct page *p, enum look look, const char *text)
{
    size_t len = strlen(text);
    unsigned at = 0;
    if (full(p)) {
        return;
    }
    if (p->s->screen) {
        (void)fputs(looks[look], p->out);
    }
    for (size_t i = 0; i < len && at < p->s->columns; at++) {
        size_t n = td_utf8_char_len(text + i, len - i);
        unsigned char c = (unsigned char)text[i];
        bool control =
            c < 0x20 || c == 0x7f || (n == 2 && c == 0xc2 && (unsigned char)text[i + 1] < 0xa0);
        if (n == 0 || control) {
            (void)fputc('?', p->out);
        } else {
            (void)fwrite(text + i, 1, n, p->out);
        }
        i += n > 0 ? n : 1;
    }
    p->used++;
    if (p->s->screen) {
        /* No line end after the last row: it would scroll. */
        (void)fputs(look != PLAIN ? "\033[0m\033[K" : "\033[K", p->out);
        (void)fputs(full(p) ? "" : "\r\n", p->out);
    } else {
        (void)fputc('\n', p->out);
    }
}

static void print(struct page *p, enum look look, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void print(struct page *p, enum look look, const char *fmt, ...)
{
    char text[LINE];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    line(p, look, text);
}

/* ---- numbers ---- */

static double number(const json_t *o, const char *key)
{
    double v = json_number_value(json_object_get(o, key));
    return v > 0 ? v : 0;
}

static int64_t whole(const json_t *o, const char *key)
{
    int64_t v = 0;
    (void)ctl_field_int(o, key, &v); /* stays 0 without it */
    return v > 0 ? v : 0;
}

/* Mean of a field over the last samples, per second. */
static double rate(const json_t *doc, const char *field)
{
    const json_t *names = json_object_get(doc, "sample_fields");
    const json_t *samples = json_object_get(doc, "samples");
    size_t n = json_array_size(samples), column = json_array_size(names);
    for (size_t i = 0; i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));
        column = name != NULL && strcmp(name, field) == 0 ? i : column;
    }
    double sum = 0;
    size_t from = n > RECENT ? n - RECENT : 0;
    for (size_t i = from; i < n; i++) {
        sum += json_number_value(json_array_get(json_array_get(samples, i), column));
    }
    return n > from ? sum / (double)(n - from) : 0;
}

static const char *per_second(double bytes, char *buf, size_t cap)
{
    char text[32];
    (void)snprintf(buf, cap, "%s/s", ctl_format_bytes((uint64_t)(bytes + 0.5), text, sizeof text));
    return buf;
}

/* ---- the summary ---- */

static void summary(struct page *p, const json_t *doc)
{
    const json_t *r = json_object_get(doc, "router"), *t = json_object_get(doc, "recent");
    char a[5][32];
    bool ready = json_is_true(json_object_get(r, "ready"));
    bool draining = json_is_true(json_object_get(r, "draining"));
    print(p, BOLD, "%s on %s %s, up %s: %s%s", ctl_field_text(r, "model", "?"),
          ctl_field_text(r, "name", "?"), ctl_field_text(r, "version", ""),
          ctl_format_us(whole(r, "uptime_us"), a[0], sizeof a[0]),
          draining ? "draining"
          : ready  ? "ready"
                   : "no ready pair",
          p->s->paused ? ", paused" : "");
    if (p->s->trouble[0] != 0) {
        print(p, BAD, "%s", p->s->trouble);
    }
    print(p, PLAIN,
          "requests     %" PRId64 " running, %" PRId64 " waiting, %.1f/s; last minute %" PRId64
          " ok, %" PRId64 " failed",
          whole(r, "running"), whole(r, "queued"), rate(doc, "finished"), whole(t, "finished"),
          whole(t, "failed"));
    print(p, PLAIN, "first token  %s median, %s p95",
          ctl_format_us(whole(t, "ttft_p50_us"), a[0], sizeof a[0]),
          ctl_format_us(whole(t, "ttft_p95_us"), a[1], sizeof a[1]));
    print(p, PLAIN, "per token    %s median, %s p95",
          ctl_format_us(whole(t, "tpot_p50_us"), a[2], sizeof a[2]),
          ctl_format_us(whole(t, "tpot_p95_us"), a[3], sizeof a[3]));
    print(p, PLAIN, "output       %.1f tokens/s; KV moved %s", rate(doc, "tokens"),
          per_second(rate(doc, "kv_bytes"), a[4], sizeof a[4]));
    print(p, PLAIN, "KV in use    prefill %.1f %%, decode %.1f %%", 100 * number(r, "kv_prefill"),
          100 * number(r, "kv_decode"));
}

/* ---- tables ---- */

struct column {
    const char *head;
    unsigned width; /* 0: what the others leave */
    unsigned need;  /* shown on screens at least so wide */
    bool right;
};

/* One line of cells; the first column takes what the others leave. */
static void row(struct page *p, enum look look, const struct column *c, unsigned n,
                char cells[][CELL])
{
    char text[LINE];
    unsigned others = 0, at = 0;
    for (unsigned i = 1; i < n; i++) {
        others += p->s->columns >= c[i].need ? c[i].width + 1 : 0;
    }
    unsigned first = p->s->columns > others + 8 ? p->s->columns - others : 8;
    first = first > 40 ? 40 : first;
    for (unsigned i = 0; i < n && at + CELL + 2 < sizeof text; i++) {
        unsigned width = i == 0 ? first : c[i].width;
        if (i > 0 && p->s->columns < c[i].need) {
            continue;
        }
        int put = snprintf(text + at, sizeof text - at, c[i].right ? "%s%*.*s" : "%s%-*.*s",
                           at > 0 ? " " : "", (int)width, (int)width, cells[i]);
        at += put > 0 ? (unsigned)put : 0;
    }
    while (at > 0 && text[at - 1] == ' ') {
        text[--at] = 0;
    }
    text[at < sizeof text ? at : sizeof text - 1] = 0;
    line(p, look, text);
}

static void heads(struct page *p, const struct column *c, unsigned n)
{
    char cells[MAX_COL][CELL];
    for (unsigned i = 0; i < n; i++) {
        (void)snprintf(cells[i], CELL, "%s", c[i].head);
    }
    line(p, PLAIN, "");
    row(p, DIM, c, n, cells);
}

static const struct column node_columns[] = {
    {"NODE", 0, 0, false}, {"ROLE", 7, 50, false},       {"STATE", 9, 36, false},
    {"RUN", 5, 0, true},   {"WAIT", 5, 28, true},        {"TOKENS", 8, 84, true},
    {"KV", 6, 20, true},   {"POOL", KV_BAR, 100, false}, {"SPEED", 20, 76, true},
};

static double kv_used(const json_t *n)
{
    const json_t *b = json_object_get(n, "blocks");
    double all = number(n, "n_blocks"), free_blk = number(b, "free") + number(b, "cached");
    return all > 0 && all > free_blk ? (all - free_blk) / all : 0;
}

static void bar(double share, char out[CELL])
{
    int full_cells = (int)(share * KV_BAR + 0.5);
    full_cells = share > 0 && full_cells == 0 ? 1 : full_cells > KV_BAR ? KV_BAR : full_cells;
    memset(out, '#', (size_t)full_cells);
    memset(out + full_cells, '.', (size_t)(KV_BAR - full_cells));
    out[KV_BAR] = 0;
}

static const char *state_of(const json_t *n, enum look *look)
{
    *look = WARN;
    if (json_is_true(json_object_get(n, "drained"))) {
        return "drained";
    }
    if (json_is_true(json_object_get(n, "draining"))) {
        return "draining";
    }
    bool ready = json_is_true(json_object_get(n, "ready"));
    *look = ready ? PLAIN : BAD;
    return ready ? "ready" : "not ready";
}

static void node_row(struct page *p, const json_t *n)
{
    char cells[MAX_COL][CELL], text[32];
    enum look look;
    int64_t prefill = whole(n, "prefill_us_per_ktok"), step = whole(n, "decode_step_us");
    (void)snprintf(cells[0], CELL, "%s", ctl_field_text(n, "name", "-"));
    (void)snprintf(cells[1], CELL, "%s", ctl_field_text(n, "role", "-"));
    (void)snprintf(cells[2], CELL, "%s", state_of(n, &look));
    (void)snprintf(cells[3], CELL, "%" PRId64, whole(n, "running"));
    (void)snprintf(cells[4], CELL, "%" PRId64, whole(n, "queued"));
    (void)snprintf(cells[5], CELL, "%" PRId64, whole(n, "queued_prompt_tokens"));
    (void)snprintf(cells[6], CELL, "%.1f%%", 100 * kv_used(n));
    bar(kv_used(n), cells[7]);
    if (prefill > 0) {
        (void)snprintf(cells[8], CELL, "%s/1k tokens", ctl_format_us(prefill, text, sizeof text));
    } else if (step > 0) {
        (void)snprintf(cells[8], CELL, "%s/step", ctl_format_us(step, text, sizeof text));
    } else {
        (void)snprintf(cells[8], CELL, "-");
    }
    row(p, look, node_columns, TD_COUNT(node_columns), cells);
}

static enum ctl_top_sort order; /* of the comparison in progress: qsort has no argument */

static int compare_nodes(const void *a, const void *b)
{
    const json_t *x = *(const json_t *const *)a, *y = *(const json_t *const *)b;
    double by_load =
        number(y, "running") + number(y, "queued") - number(x, "running") - number(x, "queued");
    double by_kv = kv_used(y) - kv_used(x);
    double d = order == CTL_TOP_BY_LOAD ? by_load : order == CTL_TOP_BY_KV ? by_kv : 0;
    if (d != 0) {
        return d > 0 ? 1 : -1;
    }
    int role =
        -strcmp(ctl_field_text(x, "role", ""), ctl_field_text(y, "role", "")); /* prefill first */
    return order == CTL_TOP_BY_NAME && role != 0
               ? role
               : strverscmp(ctl_field_text(x, "name", ""), ctl_field_text(y, "name", ""));
}

/* Leaves `reserve` lines for what follows. */
static void nodes(struct page *p, const json_t *doc, unsigned reserve)
{
    const json_t *sorted[CTL_TOP_MAX_NODES], *list = json_object_get(doc, "nodes");
    size_t n = json_array_size(list);
    n = n < CTL_TOP_MAX_NODES ? n : CTL_TOP_MAX_NODES;
    for (size_t i = 0; i < n; i++) {
        sorted[i] = json_array_get(list, i);
    }
    order = p->s->sort;
    /* NOLINTNEXTLINE(bugprone-sizeof-expression): pointers are what is sorted */
    qsort(sorted, n, sizeof *sorted, compare_nodes);
    heads(p, node_columns, TD_COUNT(node_columns));
    for (size_t i = 0; i < n; i++) {
        if (left(p) <= reserve + 1 && i + 1 < n) {
            print(p, DIM, "... and %zu more nodes", n - i);
            return;
        }
        node_row(p, sorted[i]);
    }
    if (n == 0) {
        line(p, BAD, "no node is attached");
    }
}

static const struct column transfer_columns[] = {
    {"TRANSFER", 0, 0, false}, {"BY", 6, 44, false},    {"REQUESTS", 8, 64, true},
    {"KV", 10, 52, true},      {"RATE", 12, 28, true},  {"MEAN", 8, 76, true},
    {"EXPOSED", 8, 88, true},  {"LAST", 12, 100, true},
};

/* Bytes per second of this pair since the earlier answer; negative: not known. */
static double pair_rate(const json_t *now, const json_t *before, const json_t *pair)
{
    const json_t *list = json_object_get(before, "transfers");
    double seconds = (number(now, "unix_us") - number(before, "unix_us")) * 1e-6;
    for (size_t i = 0; i < json_array_size(list) && seconds > 0; i++) {
        const json_t *x = json_array_get(list, i);
        if (strcmp(ctl_field_text(x, "prefill", ""), ctl_field_text(pair, "prefill", "")) == 0 &&
            strcmp(ctl_field_text(x, "decode", ""), ctl_field_text(pair, "decode", "")) == 0) {
            double moved = number(pair, "bytes") - number(x, "bytes");
            return moved > 0 ? moved / seconds : 0;
        }
    }
    return -1;
}

static void transfer_row(struct page *p, const json_t *now, const json_t *before, const json_t *x)
{
    char cells[MAX_COL][CELL], text[40];
    int64_t count = whole(x, "count");
    count = count > 0 ? count : 1;
    double speed = pair_rate(now, before, x);
    (void)snprintf(cells[0], CELL, "%.28s > %.28s", ctl_field_text(x, "prefill", "-"),
                   ctl_field_text(x, "decode", "-"));
    (void)snprintf(cells[1], CELL, "%s", ctl_field_text(x, "transport", "-"));
    (void)snprintf(cells[2], CELL, "%" PRId64, count);
    (void)snprintf(cells[3], CELL, "%s",
                   ctl_format_bytes((uint64_t)whole(x, "bytes"), text, sizeof text));
    (void)snprintf(cells[4], CELL, "%s", speed < 0 ? "-" : per_second(speed, text, sizeof text));
    (void)snprintf(cells[5], CELL, "%s",
                   ctl_format_us(whole(x, "transfer_us") / count, text, sizeof text));
    (void)snprintf(cells[6], CELL, "%s",
                   ctl_format_us(whole(x, "exposed_us") / count, text, sizeof text));
    (void)snprintf(cells[7], CELL, "%s ago", ctl_format_us(whole(x, "age_us"), text, sizeof text));
    row(p, PLAIN, transfer_columns, TD_COUNT(transfer_columns), cells);
}

static void transfers(struct page *p, const json_t *now, const json_t *before)
{
    const json_t *list = json_object_get(now, "transfers");
    size_t n = json_array_size(list);
    if (n == 0 || left(p) < 3) {
        return;
    }
    heads(p, transfer_columns, TD_COUNT(transfer_columns));
    for (size_t i = 0; i < n; i++) {
        if (left(p) <= 1 && i + 1 < n) {
            print(p, DIM, "... and %zu more pairs", n - i);
            return;
        }
        transfer_row(p, now, before, json_array_get(list, i));
    }
}

td_err ctl_top_draw(const json_t *now, const json_t *before, const struct ctl_top_screen *s,
                    FILE *out)
{
    struct ctl_top_screen screen = *s;
    struct page p = {.s = &screen, .out = out};
    if (!json_is_array(json_object_get(now, "nodes")) ||
        !json_is_object(json_object_get(now, "router"))) {
        return TD_ERR_PROTOCOL;
    }
    screen.columns = s->columns < CTL_TOP_MIN_COLUMNS ? CTL_TOP_MIN_COLUMNS : s->columns;
    if (s->screen) {
        (void)fputs("\033[H", out);
    }
    size_t pairs = json_array_size(json_object_get(now, "transfers"));
    /* On a short screen the transfers have a quarter, the nodes come first. */
    unsigned reserve = s->rows > 0 && pairs > 0 ? s->rows / 4 : 0;
    summary(&p, now);
    nodes(&p, now, reserve);
    transfers(&p, now, before);
    if (s->screen && left(&p) >= 2) {
        line(&p, PLAIN, "");
        line(&p, DIM, "q quit  p pause  s sort");
    }
    if (s->screen) {
        (void)fputs("\033[J", out);
    }
    return ferror(out) == 0 ? TD_OK : TD_ERR_IO;
}
