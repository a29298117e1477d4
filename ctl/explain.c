#include "ctl/explain.h"

#include <inttypes.h>
#include <string.h>

#include "ctl/admin.h"
#include "ctl/json_field.h"

#define BAR      48
#define N_STAGES 7
#define MAX_US   (1000ll * 86400 * 1000000) /* more cannot be meant: sums stay far from overflow */

struct options {
    struct ctl_admin admin;
    int format;
};

static const struct td_opt opts[] = {
    CTL_ADMIN_OPTS(admin),
    CTL_OPT("output", ENUM, "table", "", 0, 0, CTL_FORMATS, "or -o: table draws, the others print",
            format),
};

const struct td_program ctl_explain_program = {.name = "tandemctl explain",
                                               .summary =
                                                   "where the time of a finished request went",
                                               .opts = opts,
                                               .n_opts = TD_COUNT(opts),
                                               .struct_bytes = sizeof(struct options)};

struct stage {
    const char *name;
    int64_t from_us, us;
};

/* Absent, negative or absurd times count as 0. */
static int64_t field_us(const json_t *r, const char *name)
{
    int64_t us = 0;
    (void)ctl_field_int(r, name, &us); /* stays 0 without it */
    return us < 0 || us > MAX_US ? 0 : us;
}

/* Fills the stages and returns the time axis' length. */
static int64_t arrange(const json_t *r, struct stage stages[N_STAGES])
{
    int64_t exposed = field_us(r, "transfer_exposed_us"), transfer = field_us(r, "transfer_us");
    int64_t total = field_us(r, "total_us"), at = 0;
    const struct stage row[] = {
        {"router queue", 0, field_us(r, "router_queue_us")},
        {"prefill queue", 0, field_us(r, "prefill_queue_us")},
        {"prefill", 0, field_us(r, "prefill_us")},
        {"transfer", 0, transfer},
        {"  exposed", 0, exposed},
        {"decode queue", 0, field_us(r, "decode_queue_us")},
        {"decode", 0, field_us(r, "decode_us")},
    };
    for (int i = 0; i < N_STAGES; i++) {
        stages[i] = row[i];
        stages[i].from_us = at;
        if (i == 3) { /* ends where its exposed part ends; not counted itself */
            int64_t from = at + exposed - transfer;
            stages[i].from_us = from < 0 ? 0 : from;
        } else {
            at += stages[i].us;
        }
    }
    return at > total ? at : total;
}

static void draw(const struct stage *s, int64_t axis_us, FILE *out)
{
    char bar[BAR + 1], took[32];
    memset(bar, ' ', BAR);
    bar[BAR] = 0;
    if (s->us > 0 && axis_us > 0) {
        int from = (int)((double)s->from_us / (double)axis_us * BAR);
        int n = (int)((double)s->us / (double)axis_us * BAR + 0.5);
        n = n < 1 ? 1 : n > BAR ? BAR : n; /* what took time at all is seen */
        from = from > BAR - n ? BAR - n : from;
        memset(bar + from, '#', (size_t)n);
    }
    (void)fprintf(out, "%-14s %9s  |%s|\n", s->name, ctl_format_us(s->us, took, sizeof took), bar);
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
    ctl_table_cell(t, "%s", strcmp(code, "ok") == 0 ? ctl_field_text(r, "finish", "-") : code);
    for (size_t i = 0; i < TD_COUNT(counts); i++) {
        ctl_table_cell(t, "%" PRId64, field_us(r, counts[i]));
    }
    ctl_table_cell(t, "%s", ctl_field_text(r, "prefill", "-"));
    ctl_table_cell(t, "%s", ctl_field_text(r, "decode", "-"));
    uint64_t bytes = (uint64_t)field_us(r, "kv_bytes");
    ctl_table_cell(t, "%s", ctl_format_bytes(bytes, text, sizeof text));
    ctl_table_cell(t, "%s", ctl_field_text(r, "transport", "-"));
    return ctl_table_print(t, true, out);
}

td_err ctl_explain_print(const json_t *record, FILE *out)
{
    struct stage stages[N_STAGES];
    char text[3][32];
    if (ctl_field_text(record, "request_id", NULL) == NULL) {
        return TD_ERR_PROTOCOL;
    }
    TD_TRY(print_head(record, out));
    (void)fputc('\n', out);
    int64_t axis = arrange(record, stages);
    for (int i = 0; i < N_STAGES; i++) {
        draw(&stages[i], axis, out);
    }
    int64_t per_token = field_us(record, "tpot_us");
    (void)fprintf(out, "\nfirst token after %s, then one each %s (%.1f tokens/s); total %s\n",
                  ctl_format_us(field_us(record, "ttft_us"), text[0], sizeof text[0]),
                  ctl_format_us(per_token, text[1], sizeof text[1]),
                  per_token > 0 ? 1e6 / (double)per_token : 0.0,
                  ctl_format_us(field_us(record, "total_us"), text[2], sizeof text[2]));
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

static enum ctl_exit find(const struct ctl_admin *a, const char *id, int *out_http, json_t **out)
{
    char path[192];
    (void)snprintf(path, sizeof path, "/debug/request/%s", id);
    return ctl_admin_ask(a, path, out_http, out);
}

/* Says whether the request is still running, or unknown. */
static enum ctl_exit say_missing(const struct ctl_admin *a, const char *id)
{
    json_t *doc = NULL;
    enum ctl_exit status = ctl_admin_get(a, "/requests", &doc);
    if (status != CTL_OK) {
        return status;
    }
    const json_t *live = json_object_get(doc, "live");
    const char *phase = NULL;
    for (size_t i = 0; phase == NULL && i < json_array_size(live); i++) {
        const json_t *r = json_array_get(live, i);
        const char *have = ctl_field_text(r, "request_id", "");
        if (strcmp(have, id) == 0 || strcmp(have, bare(id)) == 0) {
            phase = ctl_field_text(r, "phase", "unknown");
        }
    }
    if (phase != NULL) {
        ctl_say("%s is still running, phase %s; see tandemctl get requests", id, phase);
    } else {
        ctl_say("%s remembers no request %s; it keeps the last ones only", a->router, id);
    }
    json_decref(doc);
    return CTL_FAILED;
}

static enum ctl_exit show(const struct options *o, const json_t *record)
{
    enum ctl_format format = (enum ctl_format)o->format;
    td_err err = format == CTL_JSON   ? ctl_json_print(record, stdout)
                 : format == CTL_YAML ? ctl_yaml_print(record, stdout)
                                      : ctl_explain_print(record, stdout);
    if (err != TD_OK) {
        ctl_say("%s: %s", o->admin.router, td_err_text(err));
    }
    return err == TD_OK ? CTL_OK : CTL_FAILED;
}

enum ctl_exit ctl_explain(const void *options, char *const *args)
{
    const struct options *o = options;
    const char *id = args[0];
    int http = 0;
    json_t *record = NULL;
    if (!id_is_plain(id)) {
        ctl_say("'%.128s' is not the id of a request", id);
        return CTL_USAGE;
    }
    enum ctl_exit status = find(&o->admin, id, &http, &record);
    if (status == CTL_OK && http == 404 && bare(id) != id && bare(id)[0] != 0) {
        json_decref(record);
        record = NULL;
        status = find(&o->admin, bare(id), &http, &record);
    }
    if (status != CTL_OK) {
        return status;
    }
    if (http == 404) {
        status = say_missing(&o->admin, id);
    } else if (http != 200) {
        ctl_say("%s answered %d %s", o->admin.router, http, ctl_admin_message(record));
        status = CTL_FAILED;
    } else {
        status = show(o, record);
    }
    json_decref(record);
    return status;
}
