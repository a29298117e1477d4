#include "ctl/watch.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "ctl/call.h"

#define ARENA_BYTES (1u << 20)
#define ASK_MAX     4096

struct options {
    struct ctl_admin admin; /* timeout_s: of silence */
    struct td_str_list kinds;
    int format;
    int64_t count;
};

static const struct td_opt opts[] = {
    CTL_OPT("router", STRING, CTL_ADMIN_DEFAULT, "url", 0, 0, NULL,
            "admin port of a router (TANDEM_ROUTER)", admin.router),
    CTL_OPT("keepalive", DOUBLE, "30", "s", 0.1, 3600, NULL,
            "a router that is silent for so long is asked whether it lives, and lost after as long "
            "again",
            admin.timeout_s),
    CTL_TLS_OPTS(admin.tls),
    CTL_OPT("kinds", LIST, "", "", 0, 0, NULL,
            "only these: node.up, node.lost, node.left, node.drain, node.undrain, request.failed, "
            "request.replayed; none: all",
            kinds),
    CTL_OPT("count", INT, "0", "", 0, 1e9, NULL, "ends after so many events; 0: with the router",
            count),
    CTL_OPT("output", ENUM, "table", "", 0, 0, CTL_FORMATS,
            "or -o: table is a line an event, json a document a line", format),
};

const struct td_program ctl_watch_program = {.name = "tandemctl watch",
                                             .summary = "a router's events as they happen",
                                             .opts = opts,
                                             .n_opts = TD_COUNT(opts),
                                             .struct_bytes = sizeof(struct options)};

/* ---- one event ---- */

static void print_line(const struct td_api_event *e, FILE *out)
{
    const char *const parts[] = {e->node, e->id, e->text};
    char when[32] = "";
    struct tm tm;
    time_t s = (time_t)(e->unix_us / 1000000);
    if (e->unix_us >= 0 && gmtime_r(&s, &tm) != NULL) {
        (void)strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);
    }
    (void)fprintf(out, "%s.%03dZ  ", when, (int)(e->unix_us / 1000 % 1000));
    ctl_print_clean(e->kind, out);
    for (size_t i = 0; i < TD_COUNT(parts); i++) {
        if (parts[i][0] != 0) {
            (void)fputs("  ", out);
            ctl_print_clean(parts[i], out);
        }
    }
    (void)fputc('\n', out);
}

static td_err print_document(const struct td_api_event *e, enum ctl_format format, FILE *out)
{
    json_t *doc = json_pack("{s:I, s:I, s:s, s:s, s:s, s:s}", "seq", (json_int_t)e->seq, "unix_us",
                            (json_int_t)e->unix_us, "kind", e->kind, "node", e->node, "id", e->id,
                            "text", e->text);
    td_err err = doc != NULL ? TD_OK : TD_ERR_NO_MEMORY;
    if (err == TD_OK && format == CTL_YAML) {
        (void)fputs("---\n", out);
        err = ctl_yaml_print(doc, out);
    } else if (err == TD_OK) {
        err = json_dumpf(doc, out, JSON_COMPACT | JSON_ENSURE_ASCII) == 0 ? TD_OK : TD_ERR_IO;
        (void)fputc('\n', out);
    }
    json_decref(doc);
    return err;
}

td_err ctl_watch_print(const struct td_api_event *e, enum ctl_format format, FILE *out)
{
    if (format == CTL_JSON || format == CTL_YAML) {
        TD_TRY(print_document(e, format, out));
    } else {
        print_line(e, out);
    }
    return fflush(out) == 0 ? TD_OK : TD_ERR_IO; /* who reads wants it now */
}

/* ---- the stream ---- */

struct stream {
    const struct options *o;
    struct td_arena *arena; /* owned */
    int64_t n;
    td_err err;
};

static bool on_event(void *arg, const uint8_t *data, size_t len)
{
    struct stream *s = arg;
    struct td_api_event e;
    td_arena_reset(s->arena);
    s->err = td_api_event_decode(data, len, s->arena, &e);
    if (s->err == TD_OK) {
        s->err = ctl_watch_print(&e, (enum ctl_format)s->o->format, stdout);
    }
    return s->err == TD_OK && ++s->n != s->o->count;
}

static enum ctl_exit watch(const struct options *o, const struct td_buf *message)
{
    struct stream s = {.o = o, .arena = td_arena_create(ARENA_BYTES)};
    enum ctl_exit status =
        s.arena != NULL ? ctl_call_admin_stream(&o->admin, "WatchEvents", message, on_event, &s)
                        : CTL_FAILED;
    td_arena_destroy(s.arena);
    if (s.err == TD_ERR_BAD_REQUEST) {
        ctl_say("%s: not the answer of a router of this version", o->admin.router);
    }
    return s.err != TD_OK ? CTL_FAILED : status;
}

enum ctl_exit ctl_watch(const void *options, char *const *args)
{
    const struct options *o = options;
    const struct td_api_watch ask = {.kinds = (const char *const *)o->kinds.items,
                                     .n_kinds = o->kinds.count};
    struct td_buf message;
    (void)args;
    td_buf_init(&message, ASK_MAX);
    enum ctl_exit status = CTL_USAGE;
    if (td_api_watch_encode(&message, &ask) == TD_OK) {
        status = watch(o, &message);
    } else {
        ctl_say("--kinds: too many, or too long");
    }
    td_buf_fini(&message);
    return status;
}
