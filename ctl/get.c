#include "ctl/get.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ctl/admin.h"
#include "ctl/describe.h"
#include "ctl/json_field.h"
#include "ctl/nodes.h"

struct options {
    struct ctl_admin admin;
    int format;
    int64_t limit;
    double watch_s;
};

#define FORMAT_OPT                                                                                 \
    CTL_OPT("output", ENUM, "table", "", 0, 0, CTL_FORMATS, "or -o: the form of the answer", format)
#define WATCH_OPT                                                                                  \
    CTL_OPT("watch", DOUBLE, "0", "s", 0, 3600, NULL, "ask again after so long; -w: 2; 0: once",   \
            watch_s)

static const struct td_opt nodes_opts[] = {CTL_ADMIN_OPTS(admin), FORMAT_OPT, WATCH_OPT};
static const struct td_opt requests_opts[] = {
    CTL_ADMIN_OPTS(admin), FORMAT_OPT, WATCH_OPT,
    CTL_OPT("limit", INT, "20", "", 0, 1024, NULL, "finished requests shown, newest first", limit)};

#define PROGRAM(n, s, o)                                                                           \
    {                                                                                              \
        .name = n, .summary = s, .opts = o, .n_opts = TD_COUNT(o),                                 \
        .struct_bytes = sizeof(struct options)                                                     \
    }
const struct td_program ctl_get_nodes_program =
    PROGRAM("tandemctl get nodes", "nodes with role, load and KV use", nodes_opts);
const struct td_program ctl_get_requests_program = PROGRAM(
    "tandemctl get requests", "running and finished requests with stage times", requests_opts);
const struct td_program ctl_get_transfers_program =
    PROGRAM("tandemctl get transfers", "KV moved between each pair of nodes", nodes_opts);

/* ---- cells ---- */

static void text_cell(struct ctl_table *t, const json_t *o, const char *key)
{
    ctl_table_cell(t, "%s", ctl_field_text(o, key, "-"));
}

static void int_cell(struct ctl_table *t, const json_t *o, const char *key)
{
    int64_t v = 0;
    if (ctl_field_int(o, key, &v)) {
        ctl_table_cell(t, "%" PRId64, v);
    } else {
        ctl_table_cell(t, "-");
    }
}

static void time_cell(struct ctl_table *t, const json_t *o, const char *key)
{
    char text[32];
    int64_t us = -1;
    (void)ctl_field_int(o, key, &us); /* missing: negative, shown as "-" */
    ctl_table_cell(t, "%s", ctl_format_us(us, text, sizeof text));
}

/* A speed that a node has not measured yet is 0. */
static void speed_cell(struct ctl_table *t, const json_t *o, const char *key)
{
    int64_t us = 0;
    if (ctl_field_int(o, key, &us) && us == 0) {
        ctl_table_cell(t, "-");
    } else {
        time_cell(t, o, key);
    }
}

/* ---- nodes ---- */

static const struct ctl_column node_columns[] = {
    {.head = "NAME"},
    {.head = "ROLE"},
    {.head = "READY"},
    {.head = "RUNNING", .right = true},
    {.head = "QUEUED", .right = true},
    {.head = "KV-USE", .right = true},
    {.head = "EPOCH"},
    {.head = "IN-FLIGHT", .right = true, .wide = true},
    {.head = "DISPATCHED", .right = true, .wide = true},
    {.head = "QUEUED-TOKENS", .right = true, .wide = true},
    {.head = "BLOCKS", .right = true, .wide = true},
    {.head = "CACHED", .right = true, .wide = true},
    {.head = "PREFILL/1K", .right = true, .wide = true},
    {.head = "STEP", .right = true, .wide = true},
};

static const char *readiness(const json_t *n)
{
    if (json_is_true(json_object_get(n, "draining"))) {
        return "draining";
    }
    return json_is_true(json_object_get(n, "ready")) ? "yes" : "no";
}

/* Blocks that some request holds: cached ones can be taken at any time. */
static void kv_cell(struct ctl_table *t, const json_t *n)
{
    const json_t *blocks = json_object_get(n, "blocks");
    int64_t all = 0, free_blk = 0, cached = 0;
    if (!ctl_field_int(n, "n_blocks", &all) || !ctl_field_int(blocks, "free", &free_blk) ||
        !ctl_field_int(blocks, "cached", &cached) || all <= 0) {
        ctl_table_cell(t, "-");
        return;
    }
    double used = (double)(all - free_blk - cached);
    ctl_table_cell(t, "%.1f%%", used <= 0 ? 0.0 : 100 * used / (double)all);
}

static void node_row(struct ctl_table *t, const json_t *n)
{
    text_cell(t, n, "name");
    text_cell(t, n, "role");
    ctl_table_cell(t, "%s", readiness(n));
    int_cell(t, n, "running");
    int_cell(t, n, "queued");
    kv_cell(t, n);
    text_cell(t, n, "epoch");
    int_cell(t, n, "inflight");
    int_cell(t, n, "dispatched");
    int_cell(t, n, "queued_prompt_tokens");
    int_cell(t, n, "n_blocks");
    int_cell(t, json_object_get(n, "blocks"), "cached");
    speed_cell(t, n, "prefill_us_per_ktok");
    speed_cell(t, n, "decode_step_us");
}

/* Rows of `list` as a table; `none` when it is empty. */
static td_err print_list(const json_t *list, const struct ctl_column *columns, uint32_t n_columns,
                         void (*row)(struct ctl_table *, const json_t *), bool wide,
                         const char *none, FILE *out)
{
    TD_CLEANUP(ctl_table_destroyp) struct ctl_table *t = NULL;
    if (!json_is_array(list)) {
        return TD_ERR_PROTOCOL;
    }
    if (json_array_size(list) == 0) {
        (void)fprintf(out, "%s\n", none);
        return TD_OK;
    }
    TD_TRY(ctl_table_create(columns, n_columns, &t));
    for (size_t i = 0; i < json_array_size(list); i++) {
        row(t, json_array_get(list, i));
    }
    return ctl_table_print(t, wide, out);
}

static td_err print_document(const json_t *doc, enum ctl_format format, FILE *out)
{
    return format == CTL_JSON ? ctl_json_print(doc, out) : ctl_yaml_print(doc, out);
}

td_err ctl_get_print_nodes(const json_t *doc, enum ctl_format format, FILE *out)
{
    const json_t *list = json_object_get(doc, "nodes");
    if (!json_is_array(list)) {
        return TD_ERR_PROTOCOL;
    }
    if (format == CTL_JSON || format == CTL_YAML) {
        return print_document(doc, format, out);
    }
    return print_list(list, node_columns, TD_COUNT(node_columns), node_row, format == CTL_WIDE,
                      "no node is attached", out);
}

/* ---- requests ---- */

static const struct ctl_column live_columns[] = {
    {.head = "RUNNING"},
    {.head = "PHASE"},
    {.head = "ATTEMPT", .right = true},
    {.head = "PROMPT", .right = true},
    {.head = "OUTPUT", .right = true},
    {.head = "AGE", .right = true},
    {.head = "DEADLINE-IN", .right = true},
};

#define FAR_US (366ll * 86400 * 1000000) /* a deadline beyond: none */

static void live_row(struct ctl_table *t, const json_t *r)
{
    int64_t left = FAR_US;
    (void)ctl_field_int(r, "deadline_in_us", &left);
    text_cell(t, r, "request_id");
    text_cell(t, r, "phase");
    int_cell(t, r, "attempt");
    int_cell(t, r, "prompt_tokens");
    int_cell(t, r, "output_tokens");
    time_cell(t, r, "age_us");
    if (left < FAR_US) {
        time_cell(t, r, "deadline_in_us");
    } else {
        ctl_table_cell(t, "-");
    }
}

static const struct ctl_column finished_columns[] = {
    {.head = "FINISHED"},
    {.head = "END"},
    {.head = "PROMPT", .right = true},
    {.head = "OUTPUT", .right = true},
    {.head = "QUEUE", .right = true},
    {.head = "PREFILL-Q", .right = true},
    {.head = "PREFILL", .right = true},
    {.head = "EXPOSED", .right = true},
    {.head = "DECODE-Q", .right = true},
    {.head = "DECODE", .right = true},
    {.head = "TTFT", .right = true},
    {.head = "PER-TOKEN", .right = true},
    {.head = "TOTAL", .right = true},
    {.head = "TRANSFER", .right = true, .wide = true},
    {.head = "KV", .right = true, .wide = true},
    {.head = "BY", .wide = true},
    {.head = "ATTEMPTS", .right = true, .wide = true},
    {.head = "PREFILL-NODE", .wide = true},
    {.head = "DECODE-NODE", .wide = true},
};

static void finished_row(struct ctl_table *t, const json_t *r)
{
    static const char *const times[] = {
        "router_queue_us", "prefill_queue_us", "prefill_us", "transfer_exposed_us",
        "decode_queue_us", "decode_us",        "ttft_us",    "tpot_us",
        "total_us",        "transfer_us"};
    char text[32];
    int64_t bytes = -1;
    text_cell(t, r, "request_id");
    const char *code = ctl_field_text(r, "code", "ok");
    ctl_table_cell(t, "%s", strcmp(code, "ok") == 0 ? ctl_field_text(r, "finish", "-") : code);
    int_cell(t, r, "prompt_tokens");
    int_cell(t, r, "output_tokens");
    for (size_t i = 0; i < TD_COUNT(times); i++) {
        time_cell(t, r, times[i]);
    }
    bool known = ctl_field_int(r, "kv_bytes", &bytes) && bytes >= 0;
    ctl_table_cell(t, "%s", known ? ctl_format_bytes((uint64_t)bytes, text, sizeof text) : "-");
    text_cell(t, r, "transport");
    int_cell(t, r, "attempts");
    text_cell(t, r, "prefill");
    text_cell(t, r, "decode");
}

td_err ctl_get_print_requests(json_t *doc, uint32_t limit, enum ctl_format format, FILE *out)
{
    json_t *live = json_object_get(doc, "live"), *finished = json_object_get(doc, "finished");
    if (!json_is_array(live) || !json_is_array(finished)) {
        return TD_ERR_PROTOCOL;
    }
    while (json_array_size(finished) > limit) {
        (void)json_array_remove(finished, json_array_size(finished) - 1); /* exists: cannot fail */
    }
    if (format == CTL_JSON || format == CTL_YAML) {
        return print_document(doc, format, out);
    }
    bool wide = format == CTL_WIDE;
    TD_TRY(print_list(live, live_columns, TD_COUNT(live_columns), live_row, wide,
                      "no request is running", out));
    if (limit == 0) {
        return TD_OK;
    }
    (void)fputc('\n', out);
    return print_list(finished, finished_columns, TD_COUNT(finished_columns), finished_row, wide,
                      "no request has finished yet", out);
}

/* ---- transfers ---- */

td_err ctl_get_print_transfers(json_t *doc, enum ctl_format format, FILE *out)
{
    json_t *list = json_object_get(doc, "transfers");
    if (!json_is_array(list)) {
        return TD_ERR_PROTOCOL;
    }
    if (format == CTL_JSON || format == CTL_YAML) {
        json_t *only = json_pack("{s:O}", "transfers", list);
        td_err err = only != NULL ? print_document(only, format, out) : TD_ERR_NO_MEMORY;
        json_decref(only);
        return err;
    }
    return print_list(list, ctl_transfer_columns, CTL_TRANSFER_COLUMNS, ctl_transfer_row,
                      format == CTL_WIDE, "no KV has moved yet", out);
}

/* ---- commands ---- */

/* What is asked for, and how the answer is printed. */
struct kind {
    const char *path; /* with room for the limit; NULL: ctl_nodes_list */
    td_err (*print)(const struct options *o, json_t *doc);
};

static td_err print_nodes(const struct options *o, json_t *doc)
{
    return ctl_get_print_nodes(doc, (enum ctl_format)o->format, stdout);
}

static td_err print_requests(const struct options *o, json_t *doc)
{
    return ctl_get_print_requests(doc, (uint32_t)o->limit, (enum ctl_format)o->format, stdout);
}

static td_err print_transfers(const struct options *o, json_t *doc)
{
    return ctl_get_print_transfers(doc, (enum ctl_format)o->format, stdout);
}

static enum ctl_exit ask(const struct options *o, const struct kind *k, json_t **out_doc)
{
    char path[64];
    if (k->path == NULL) {
        return ctl_nodes_list(&o->admin, out_doc);
    }
    (void)snprintf(path, sizeof path, "%s%" PRId64, k->path, o->limit);
    return ctl_admin_get(&o->admin, path, out_doc);
}

static enum ctl_exit ask_and_print(const struct options *o, const struct kind *k, bool again)
{
    json_t *doc = NULL;
    enum ctl_exit status = ask(o, k, &doc);
    if (status != CTL_OK) {
        return status;
    }
    if (o->watch_s > 0 && isatty(STDOUT_FILENO) != 0) {
        (void)fputs("\033[H\033[2J", stdout);
    } else if (again) {
        (void)fputs(o->format == CTL_YAML ? "---\n" : "\n", stdout);
    }
    td_err err = k->print(o, doc);
    json_decref(doc);
    if (err != TD_OK) {
        ctl_say("%s: %s", o->admin.router,
                err == TD_ERR_PROTOCOL ? "not the answer of a router of this version"
                                       : td_err_text(err));
    } else if (fflush(stdout) != 0) {
        err = TD_ERR_IO; /* the reader has gone */
    }
    return err == TD_OK ? CTL_OK : CTL_FAILED;
}

static enum ctl_exit get(const struct options *o, const struct kind *k)
{
    struct timespec nap = {.tv_sec = (time_t)o->watch_s,
                           .tv_nsec = (long)((o->watch_s - (double)(time_t)o->watch_s) * 1e9)};
    enum ctl_exit status = ask_and_print(o, k, false);
    while (status == CTL_OK && o->watch_s > 0) {
        (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &nap, NULL);
        status = ask_and_print(o, k, true);
    }
    return status;
}

enum ctl_exit ctl_get_nodes(const void *options, char *const *args)
{
    static const struct kind nodes = {NULL, print_nodes};
    (void)args;
    return get(options, &nodes);
}

enum ctl_exit ctl_get_requests(const void *options, char *const *args)
{
    static const struct kind requests = {"/requests?limit=", print_requests};
    (void)args;
    return get(options, &requests);
}

/* No sample is so late: only what stands beside the samples is wanted. */
enum ctl_exit ctl_get_transfers(const void *options, char *const *args)
{
    static const struct kind transfers = {"/live?since=9000000000000000000&limit=",
                                          print_transfers};
    (void)args;
    return get(options, &transfers);
}
