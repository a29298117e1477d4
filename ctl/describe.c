#include "ctl/describe.h"

#include <inttypes.h>
#include <string.h>

#include "ctl/admin.h"
#include "ctl/drain.h"
#include "ctl/explain.h"
#include "ctl/json_field.h"
#include "ctl/output.h"

struct options {
    struct ctl_admin admin;
    int format;
};

static const struct td_opt opts[] = {
    CTL_ADMIN_OPTS(admin),
    CTL_OPT("output", ENUM, "table", "", 0, 0, CTL_FORMATS, "or -o: table is for people", format),
};

#define PROGRAM(n, s)                                                                              \
    {                                                                                              \
        .name = n, .summary = s, .opts = opts, .n_opts = TD_COUNT(opts),                           \
        .struct_bytes = sizeof(struct options)                                                     \
    }
const struct td_program ctl_describe_node_program =
    PROGRAM("tandemctl describe node", "all that is known of one node, with its transfers");
const struct td_program ctl_describe_request_program =
    PROGRAM("tandemctl describe request", "all that is known of one request, with its attempts");

/* ---- lines ---- */

static void head(FILE *out, const char *name)
{
    (void)fprintf(out, "%-18s ", name);
}

static void text_line(FILE *out, const char *name, const json_t *o, const char *key)
{
    const char *s = ctl_field_text(o, key, NULL);
    if (s != NULL) {
        head(out, name);
        ctl_print_clean(s, out);
        (void)fputc('\n', out);
    }
}

enum unit { COUNT, TIME, BYTES, TOKENS };

/* measured: 0 means that nothing was measured yet. */
static void number_line(FILE *out, const char *name, const json_t *o, const char *key,
                        enum unit unit, bool measured)
{
    char text[32];
    int64_t v = 0;
    if (!ctl_field_int(o, key, &v) || (measured && v == 0)) {
        return;
    }
    head(out, name);
    if (unit == TIME) {
        (void)fputs(ctl_format_us(v, text, sizeof text), out);
    } else if (unit == BYTES) {
        (void)fputs(ctl_format_bytes((uint64_t)(v < 0 ? 0 : v), text, sizeof text), out);
    } else {
        (void)fprintf(out, "%" PRId64 "%s", v, unit == TOKENS ? " tokens" : "");
    }
    (void)fputc('\n', out);
}

/* ---- a node ---- */

/* Load and blocks are what the node reported last, up to a second ago. */
static void report_line(FILE *out, const json_t *n)
{
    char text[32];
    int64_t age = -1;
    if (ctl_field_int(n, "report_age_us", &age) && age >= 0) {
        head(out, "Reported:");
        (void)fprintf(out, "%s ago\n", ctl_format_us(age, text, sizeof text));
    }
}

static void state_line(FILE *out, const json_t *n)
{
    const char *why = ctl_field_text(n, "why_not", "");
    bool ready = json_is_true(json_object_get(n, "ready"));
    bool draining = json_is_true(json_object_get(n, "draining"));
    head(out, "State:");
    if (json_is_true(json_object_get(n, "drained"))) {
        (void)fputs("drained: nothing runs there", out);
    } else {
        (void)fputs(draining ? "draining" : ready ? "ready" : "not ready", out);
        if (!draining && why[0] != 0) {
            (void)fputs(", ", out);
            ctl_print_clean(why, out);
        }
    }
    (void)fputc('\n', out);
}

static void kv_lines(FILE *out, const json_t *n)
{
    static const char *const states[] = {"free",    "cached", "reserved",   "filling",
                                         "running", "parked", "quarantined"};
    const json_t *blocks = json_object_get(n, "blocks");
    int64_t all = 0, tok = 0;
    if (!ctl_field_int(n, "n_blocks", &all) || all <= 0) {
        return;
    }
    (void)ctl_field_int(n, "block_tokens", &tok); /* 0: unknown */
    (void)fprintf(out, "\nKV pool            %" PRId64 " blocks", all);
    if (tok > 0) {
        (void)fprintf(out, " of %" PRId64 " tokens, %" PRId64 " tokens in all", tok, all * tok);
    }
    (void)fputc('\n', out);
    for (size_t i = 0; i < TD_COUNT(states); i++) {
        int64_t v = 0;
        if (ctl_field_int(blocks, states[i], &v)) {
            (void)fprintf(out, "  %-16s %8" PRId64 "  %5.1f %%\n", states[i], v,
                          100.0 * (double)v / (double)all);
        }
    }
}

const struct ctl_column ctl_transfer_columns[CTL_TRANSFER_COLUMNS] = {
    {.head = "PREFILL-NODE"},
    {.head = "DECODE-NODE"},
    {.head = "BY"},
    {.head = "REQUESTS", .right = true},
    {.head = "KV", .right = true},
    {.head = "MEAN-TIME", .right = true},
    {.head = "EXPOSED", .right = true},
    {.head = "LAST", .right = true},
};

void ctl_transfer_row(struct ctl_table *t, const json_t *x)
{
    char text[32];
    int64_t count = 0, bytes = 0, us = 0, exposed = 0, age = -1;
    (void)ctl_field_int(x, "count", &count); /* each stays as it is without the field */
    (void)ctl_field_int(x, "bytes", &bytes);
    (void)ctl_field_int(x, "transfer_us", &us);
    (void)ctl_field_int(x, "exposed_us", &exposed);
    (void)ctl_field_int(x, "age_us", &age);
    count = count > 0 ? count : 1;
    ctl_table_cell(t, "%s", ctl_field_text(x, "prefill", "-"));
    ctl_table_cell(t, "%s", ctl_field_text(x, "decode", "-"));
    ctl_table_cell(t, "%s", ctl_field_text(x, "transport", "-"));
    ctl_table_cell(t, "%" PRId64, count);
    ctl_table_cell(t, "%s", ctl_format_bytes((uint64_t)(bytes < 0 ? 0 : bytes), text, sizeof text));
    ctl_table_cell(t, "%s", ctl_format_us(us / count, text, sizeof text));
    ctl_table_cell(t, "%s", ctl_format_us(exposed / count, text, sizeof text));
    ctl_format_us(age, text, sizeof text);
    ctl_table_cell(t, age < 0 ? "%s" : "%s ago", text);
}

static td_err transfers(FILE *out, const char *name, const json_t *live)
{
    const json_t *list = json_object_get(live, "transfers");
    TD_CLEANUP(ctl_table_destroyp) struct ctl_table *t = NULL;
    bool any = false;
    TD_TRY(ctl_table_create(ctl_transfer_columns, CTL_TRANSFER_COLUMNS, &t));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *x = json_array_get(list, i);
        if (strcmp(ctl_field_text(x, "prefill", ""), name) == 0 ||
            strcmp(ctl_field_text(x, "decode", ""), name) == 0) {
            ctl_transfer_row(t, x);
            any = true;
        }
    }
    if (!any) {
        return TD_OK;
    }
    (void)fputs("\nTransfers\n", out);
    return ctl_table_print(t, false, out);
}

td_err ctl_describe_print_node(const json_t *node, const json_t *live, FILE *out)
{
    if (ctl_field_text(node, "name", NULL) == NULL) {
        return TD_ERR_PROTOCOL;
    }
    text_line(out, "Name:", node, "name");
    text_line(out, "Role:", node, "role");
    state_line(out, node);
    report_line(out, node);
    text_line(out, "Epoch:", node, "epoch");
    text_line(out, "Version:", node, "version");
    text_line(out, "Numerics:", node, "numerics");
    text_line(out, "Numerics id:", node, "numerics_id");
    text_line(out, "KV layout:", node, "layout_id");
    text_line(out, "Admin port:", node, "admin");
    number_line(out, "Context:", node, "max_model_len", TOKENS, false);
    number_line(out, "Processes:", node, "ranks", COUNT, true);
    (void)fputs("\nLoad\n", out);
    number_line(out, "  running:", node, "running", COUNT, false);
    number_line(out, "  waiting:", node, "queued", COUNT, false);
    number_line(out, "  prompt waiting:", node, "queued_prompt_tokens", TOKENS, false);
    number_line(out, "  batch at most:", node, "max_seqs", COUNT, false);
    number_line(out, "  of this router:", node, "inflight", COUNT, false);
    number_line(out, "  sent so far:", node, "dispatched", COUNT, false);
    number_line(out, "  prefill per 1k:", node, "prefill_us_per_ktok", TIME, true);
    number_line(out, "  decode step:", node, "decode_step_us", TIME, true);
    kv_lines(out, node);
    return transfers(out, ctl_field_text(node, "name", ""), live);
}

/* ---- a request ---- */

static void attempts(FILE *out, const json_t *record)
{
    const json_t *tries = json_object_get(record, "tries");
    char text[32];
    if (json_array_size(tries) > 0) {
        (void)fputs("\nAttempts\n", out);
    }
    for (size_t i = 0; i < json_array_size(tries); i++) {
        const json_t *t = json_array_get(tries, i);
        int64_t placed = 0, failed = -1, pairs = 0;
        (void)ctl_field_int(t, "placed_us", &placed); /* each stays as it is without the field */
        (void)ctl_field_int(t, "failed_us", &failed);
        (void)ctl_field_int(t, "pairs_seen", &pairs);
        (void)fprintf(out, "  %zu. after %s on ", i + 1, ctl_format_us(placed, text, sizeof text));
        ctl_print_clean(ctl_field_text(t, "prefill", "-"), out);
        (void)fputs(" and ", out);
        ctl_print_clean(ctl_field_text(t, "decode", "-"), out);
        (void)fprintf(out, ", one of %" PRId64 " pairs", pairs);
        if (failed >= 0) {
            (void)fprintf(out, "; failed after %s: ", ctl_format_us(failed, text, sizeof text));
            ctl_print_clean(ctl_field_text(t, "error", "-"), out);
        }
        (void)fputc('\n', out);
    }
}

td_err ctl_describe_print_request(const json_t *r, FILE *out)
{
    if (ctl_field_text(r, "request_id", NULL) == NULL) {
        return TD_ERR_PROTOCOL;
    }
    text_line(out, "Request:", r, "request_id");
    text_line(out, "Phase:", r, "phase");
    text_line(out, "Code:", r, "code");
    text_line(out, "Finish:", r, "finish");
    text_line(out, "Prefill node:", r, "prefill");
    text_line(out, "Decode node:", r, "decode");
    number_line(out, "Prompt:", r, "prompt_tokens", TOKENS, false);
    number_line(out, "  of them cached:", r, "cached_tokens", TOKENS, false);
    number_line(out, "Output:", r, "output_tokens", TOKENS, false);
    number_line(out, "Age:", r, "age_us", TIME, false);
    number_line(out, "Time left:", r, "deadline_in_us", TIME, false);
    if (json_object_get(r, "total_us") != NULL) {
        (void)fputs("\nTimes\n", out);
    }
    number_line(out, "  router queue:", r, "router_queue_us", TIME, false);
    number_line(out, "  prefill queue:", r, "prefill_queue_us", TIME, false);
    number_line(out, "  prefill:", r, "prefill_us", TIME, false);
    number_line(out, "  transfer:", r, "transfer_us", TIME, false);
    number_line(out, "  exposed:", r, "transfer_exposed_us", TIME, false);
    number_line(out, "  decode queue:", r, "decode_queue_us", TIME, false);
    number_line(out, "  decode:", r, "decode_us", TIME, false);
    number_line(out, "  first token:", r, "ttft_us", TIME, false);
    number_line(out, "  per token:", r, "tpot_us", TIME, false);
    number_line(out, "  total:", r, "total_us", TIME, false);
    (void)fputc('\n', out);
    number_line(out, "KV moved:", r, "kv_bytes", BYTES, false);
    text_line(out, "  by:", r, "transport");
    attempts(out, r);
    return TD_OK;
}

/* ---- the commands ---- */

static enum ctl_exit said(const struct options *o, td_err err)
{
    if (err != TD_OK) {
        ctl_say("%s: %s", o->admin.router,
                err == TD_ERR_PROTOCOL ? "not the answer of a router of this version"
                                       : td_err_text(err));
    }
    return err == TD_OK && fflush(stdout) == 0 ? CTL_OK : CTL_FAILED;
}

enum ctl_exit ctl_describe_node(const void *options, char *const *args)
{
    const struct options *o = options;
    json_t *live = NULL;
    enum ctl_exit status = ctl_admin_get(&o->admin, "/live", &live);
    if (status != CTL_OK) {
        return status;
    }
    const json_t *node = ctl_drain_find(live, args[0]);
    if (node == NULL) {
        ctl_say("no node %s is attached to %s; see tandemctl get nodes", args[0], o->admin.router);
        status = CTL_FAILED;
    } else {
        status = said(o, o->format == CTL_JSON   ? ctl_json_print(node, stdout)
                         : o->format == CTL_YAML ? ctl_yaml_print(node, stdout)
                                                 : ctl_describe_print_node(node, live, stdout));
    }
    json_decref(live);
    return status;
}

enum ctl_exit ctl_describe_request(const void *options, char *const *args)
{
    const struct options *o = options;
    json_t *record = NULL;
    enum ctl_exit status = ctl_explain_find(&o->admin, args[0], &record);
    if (status == CTL_OK) {
        status = said(o, o->format == CTL_JSON   ? ctl_json_print(record, stdout)
                         : o->format == CTL_YAML ? ctl_yaml_print(record, stdout)
                                                 : ctl_describe_print_request(record, stdout));
        json_decref(record);
    }
    return status;
}
