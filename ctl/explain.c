#include "ctl/explain.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "ctl/admin.h"
#include "ctl/json_field.h"
#include "ctl/record.h"
#include "ctl/svg.h"
#include "ctl/waterfall.h"

#define BAR 48

struct options {
    struct ctl_admin admin;
    int format;
    char *svg;
};

static const struct td_opt opts[] = {
    CTL_ADMIN_OPTS(admin),
    CTL_OPT("output", ENUM, "table", "", 0, 0, CTL_FORMATS,
            "or -o: table draws, wide with the numbers of each pair, the others print", format),
    CTL_OPT("svg", STRING, "", "path", 0, 0, NULL, "also the waterfall as SVG; - is stdout, alone",
            svg),
};

const struct td_program ctl_explain_program = {
    .name = "tandemctl explain",
    .summary = "where a request's time went, and why it ran where it ran",
    .opts = opts,
    .n_opts = TD_COUNT(opts),
    .struct_bytes = sizeof(struct options)};

/* ---- the waterfall ---- */

static void draw(const struct ctl_bar *s, int64_t axis_us, FILE *out)
{
    static const char fill[CTL_BAR_KINDS] = {'.', '#', '=', 'x'};
    char bar[BAR + 1], took[32], name[32];
    memset(bar, ' ', BAR);
    bar[BAR] = 0;
    if (s->us > 0 && axis_us > 0) {
        int from = (int)((double)s->from_us / (double)axis_us * BAR);
        int n = (int)((double)s->us / (double)axis_us * BAR + 0.5);
        n = n < 1 ? 1 : n > BAR ? BAR : n; /* what took time at all is seen */
        from = from > BAR - n ? BAR - n : from;
        memset(bar + from, fill[s->kind], (size_t)n);
    }
    (void)snprintf(name, sizeof name, "%s", s->name);
    (void)fprintf(out, "%-14s %9s  |%s|\n", name, ctl_format_us(s->us, took, sizeof took), bar);
}

/* One row: who, how it ended, where it ran. */
static td_err print_head(const json_t *r, FILE *out)
{
    static const struct ctl_column columns[] = {{.head = "REQUEST"},
                                                {.head = "END"},
                                                {.head = "PROMPT", .right = true},
                                                {.head = "OUTPUT", .right = true},
                                                {.head = "CACHED", .right = true},
                                                {.head = "ATTEMPTS", .right = true},
                                                {.head = "PREFILL"},
                                                {.head = "DECODE"},
                                                {.head = "KV", .right = true},
                                                {.head = "BY"}};
    static const char *const counts[] = {"prompt_tokens", "output_tokens", "cached_tokens",
                                         "attempts"};
    TD_CLEANUP(ctl_table_destroyp) struct ctl_table *t = NULL;
    char text[32];
    TD_TRY(ctl_table_create(columns, TD_COUNT(columns), &t));
    const char *code = ctl_field_text(r, "code", "ok");
    ctl_table_cell(t, "%s", ctl_field_text(r, "request_id", "-"));
    ctl_table_cell(t, "%s",
                   strcmp(code, "ok") == 0
                       ? ctl_field_text(r, "finish", ctl_field_text(r, "phase", "-"))
                       : code);
    for (size_t i = 0; i < TD_COUNT(counts); i++) {
        ctl_table_cell(t, "%" PRId64, ctl_waterfall_number(r, counts[i]));
    }
    ctl_table_cell(t, "%s", ctl_field_text(r, "prefill", "-"));
    ctl_table_cell(t, "%s", ctl_field_text(r, "decode", "-"));
    uint64_t bytes = (uint64_t)ctl_waterfall_number(r, "kv_bytes");
    ctl_table_cell(t, "%s", ctl_format_bytes(bytes, text, sizeof text));
    ctl_table_cell(t, "%s", ctl_field_text(r, "transport", "-"));
    return ctl_table_print(t, true, out);
}

/* The marks' meaning, and one mark under the time of the first token. */
static void print_waterfall(const json_t *record, FILE *out)
{
    struct ctl_waterfall w;
    char text[3][32];
    ctl_waterfall_make(record, &w);
    (void)fputc('\n', out);
    for (uint32_t i = 0; i < w.n; i++) {
        draw(&w.bars[i], w.axis_us, out);
    }
    int64_t per_token = ctl_waterfall_number(record, "tpot_us");
    (void)fprintf(out,
                  "\n. waits  # computes  = moves KV  x lost\n"
                  "first token after %s, then one each %s (%.1f tokens/s); total %s\n",
                  ctl_format_us(w.first_us, text[0], sizeof text[0]),
                  ctl_format_us(per_token, text[1], sizeof text[1]),
                  per_token > 0 ? 1e6 / (double)per_token : 0.0,
                  ctl_format_us(ctl_waterfall_number(record, "total_us"), text[2], sizeof text[2]));
}

/* ---- the placement ---- */

static const struct ctl_column pair_columns[] = {
    {.head = "PREFILL-NODE"},
    {.head = "DECODE-NODE"},
    {.head = "SCORE", .right = true},
    {.head = "PREFILL", .right = true},
    {.head = "KV-WAIT", .right = true},
    {.head = "DECODE", .right = true},
    {.head = "WAITING-TOKENS", .right = true, .wide = true},
    {.head = "FREE-BLOCKS", .right = true, .wide = true},
    {.head = "NEEDED", .right = true, .wide = true},
    {.head = "RUNNING", .right = true, .wide = true},
    {.head = "WHY"},
};

static void pair_row(struct ctl_table *t, const json_t *p)
{
    static const char *const times[] = {"score_us", "prefill_us", "wait_us", "decode_us"};
    static const char *const counts[] = {"waiting_tokens", "free_blocks", "needed_blocks",
                                         "running"};
    bool scored = ctl_field_text(p, "excluded", "")[0] == 0;
    char text[32];
    ctl_table_cell(t, "%s", ctl_field_text(p, "prefill", "-"));
    ctl_table_cell(t, "%s", ctl_field_text(p, "decode", "-"));
    for (size_t i = 0; i < TD_COUNT(times); i++) {
        int64_t us = scored ? ctl_waterfall_number(p, times[i]) : -1;
        ctl_table_cell(t, "%s", ctl_format_us(us, text, sizeof text));
    }
    for (size_t i = 0; i < TD_COUNT(counts); i++) {
        ctl_table_cell(t, "%" PRId64, ctl_waterfall_number(p, counts[i]));
    }
    bool chosen = json_is_true(json_object_get(p, "chosen"));
    ctl_table_cell(t, "%s", chosen ? "chosen" : ctl_field_text(p, "why_not", "-"));
}

static void print_skipped(const json_t *try, FILE *out)
{
    const json_t *list = json_object_get(try, "skipped");
    int64_t all = ctl_waterfall_number(try, "nodes_skipped");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *s = json_array_get(list, i);
        (void)fputs(i == 0 ? "not asked: " : ", ", out);
        ctl_print_clean(ctl_field_text(s, "node", "-"), out);
        (void)fputs(" (", out);
        ctl_print_clean(ctl_field_text(s, "why", "-"), out);
        (void)fputs(")", out);
    }
    if (json_array_size(list) > 0) {
        (void)fprintf(
            out, all > (int64_t)json_array_size(list) ? " and others, %" PRId64 " in all\n" : "\n",
            all);
    }
}

static td_err print_try(const json_t *try, bool wide, FILE *out)
{
    const json_t *pairs = json_object_get(try, "candidates");
    size_t n = json_array_size(pairs);
    TD_CLEANUP(ctl_table_destroyp) struct ctl_table *t = NULL;
    char text[2][32];
    (void)fprintf(
        out,
        "\nattempt %" PRId64 ", placed after %s: lowest predicted completion of %" PRId64
        " pairs; first token predicted %s later\n",
        ctl_waterfall_number(try, "attempt") + 1,
        ctl_format_us(ctl_waterfall_number(try, "placed_us"), text[0], sizeof text[0]),
        ctl_waterfall_number(try, "pairs_seen"),
        ctl_format_us(ctl_waterfall_number(try, "predicted_ttft_us"), text[1], sizeof text[1]));
    TD_TRY(ctl_table_create(pair_columns, TD_COUNT(pair_columns), &t));
    for (size_t i = 0; i < n; i++) {
        pair_row(t, json_array_get(pairs, i));
    }
    TD_TRY(ctl_table_print(t, wide, out));
    if (ctl_waterfall_number(try, "pairs_seen") > (int64_t)n) {
        (void)fprintf(out, "(the best %zu are kept)\n", n);
    }
    print_skipped(try, out);
    if (ctl_field_text(try, "error", "")[0] != 0) {
        (void)fputs("failed after ", out);
        (void)fputs(ctl_format_us(ctl_waterfall_number(try, "failed_us"), text[0], sizeof text[0]),
                    out);
        (void)fputs(": ", out);
        ctl_print_clean(ctl_field_text(try, "error", ""), out);
        (void)fputs("; tried again elsewhere, or ended\n", out);
    }
    return TD_OK;
}

td_err ctl_explain_print(const json_t *record, bool wide, FILE *out)
{
    const json_t *tries = json_object_get(record, "tries");
    if (ctl_field_text(record, "request_id", NULL) == NULL) {
        return TD_ERR_PROTOCOL;
    }
    const char *phase = ctl_field_text(record, "phase", NULL);
    TD_TRY(print_head(record, out));
    if (phase == NULL) {
        print_waterfall(record, out);
    } else {
        (void)fputs("\nstill running; its waterfall comes with its end\n", out);
    }
    for (size_t i = 0; i < json_array_size(tries); i++) {
        TD_TRY(print_try(json_array_get(tries, i), wide, out));
    }
    if (json_is_array(tries) && json_array_size(tries) == 0) {
        (void)fputs("\nthe router no longer remembers where it could have run\n", out);
    }
    return TD_OK;
}

/* ---- the command ---- */

/* Ids are what a router makes of X-Request-ID: letters, digits and a few signs. */
static bool id_is_plain(const char *id)
{
    size_t n = strlen(id);
    return n > 0 && n <= 128 &&
           id[strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:/-")] ==
               0;
}

/* Without the words that an answer's id starts with; the same pointer when there are none. */
static const char *bare(const char *id)
{
    static const char *const words[] = {"chatcmpl-", "cmpl-"};
    for (size_t i = 0; i < TD_COUNT(words); i++) {
        if (strncmp(id, words[i], strlen(words[i])) == 0) {
            return id + strlen(words[i]);
        }
    }
    return id;
}

/* The SVG goes to a file, whole or not at all. */
static enum ctl_exit write_svg(const char *path, const json_t *record)
{
    bool to_stdout = strcmp(path, "-") == 0;
    FILE *f = to_stdout ? stdout : fopen(path, "we");
    if (f == NULL) {
        ctl_say("cannot write %s: %s", path, strerrordesc_np(errno));
        return CTL_FAILED;
    }
    td_err err = ctl_svg_print(record, f);
    bool written = fflush(f) == 0 && ferror(f) == 0;
    written = (to_stdout || fclose(f) == 0) && written;
    if (err == TD_ERR_PROTOCOL) {
        ctl_say("the request is still running: no waterfall yet");
    } else if (!written) {
        ctl_say("cannot write %s", path);
    }
    if (!to_stdout && (err != TD_OK || !written)) {
        (void)remove(path);
    }
    return err == TD_OK && written ? CTL_OK : CTL_FAILED;
}

static enum ctl_exit show(const struct options *o, const json_t *record)
{
    enum ctl_format format = (enum ctl_format)o->format;
    if (o->svg != NULL && o->svg[0] != 0) {
        enum ctl_exit status = write_svg(o->svg, record);
        if (status != CTL_OK || strcmp(o->svg, "-") == 0) {
            return status;
        }
    }
    td_err err = format == CTL_JSON   ? ctl_json_print(record, stdout)
                 : format == CTL_YAML ? ctl_yaml_print(record, stdout)
                                      : ctl_explain_print(record, format == CTL_WIDE, stdout);
    if (err != TD_OK) {
        ctl_say("%s: %s", o->admin.router, td_err_text(err));
    }
    return err == TD_OK ? CTL_OK : CTL_FAILED;
}

enum ctl_exit ctl_explain_find(const struct ctl_admin *a, const char *id, json_t **out_record)
{
    json_t *record = NULL;
    if (!id_is_plain(id)) {
        ctl_say("'%.128s' is not the id of a request", id);
        return CTL_USAGE;
    }
    enum ctl_exit status = ctl_record_ask(a, id, &record);
    if (status == CTL_OK && record == NULL && bare(id) != id && bare(id)[0] != 0) {
        status = ctl_record_ask(a, bare(id), &record);
    }
    if (status == CTL_OK && record == NULL) {
        ctl_say("%s remembers no request %s; it keeps the last ones only", a->router, id);
        return CTL_FAILED;
    }
    if (status == CTL_OK) {
        *out_record = record;
    }
    return status;
}

enum ctl_exit ctl_explain(const void *options, char *const *args)
{
    const struct options *o = options;
    json_t *record = NULL;
    enum ctl_exit status = ctl_explain_find(&o->admin, args[0], &record);
    if (status == CTL_OK) {
        status = show(o, record);
        json_decref(record);
    }
    return status;
}
