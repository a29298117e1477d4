#include "ctl/top.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "ctl/admin.h"
#include "ctl/json_field.h"
#include "ctl/output.h"
#include "ctl/term.h"
#include "ctl/top_draw.h"

#define PLAIN_COLUMNS 120
#define SAMPLES       10 /* seconds of samples asked for */
#define PATIENCE_S    2  /* keys wait for an answer so long at most */

struct options {
    struct ctl_admin admin;
    int format, sort;
    double every_s;
    bool once;
};

static const struct td_opt opts[] = {
    CTL_ADMIN_OPTS(admin),
    CTL_OPT("every", DOUBLE, "1", "s", 0.1, 3600, NULL, "ask again after so long", every_s),
    CTL_OPT("once", BOOL, "false", "", 0, 0, NULL, "one answer as plain text, for a pipe", once),
    CTL_OPT("sort", ENUM, "name", "", 0, 0, CTL_TOP_SORT_NAMES,
            "order of the nodes; key s changes it", sort),
    CTL_OPT("output", ENUM, "table", "", 0, 0, CTL_FORMATS,
            "or -o: json and yaml print the router's document, once", format),
};

const struct td_program ctl_top_program = {.name = "tandemctl top",
                                           .summary = "nodes, queues, KV pools, transfers, live",
                                           .opts = opts,
                                           .n_opts = TD_COUNT(opts),
                                           .struct_bytes = sizeof(struct options)};

struct top {
    const struct options *o;
    struct ctl_admin admin;
    json_t *now, *before; /* owned; the last two answers */
    struct ctl_top_screen s;
    bool quit;
};

/* Takes a new answer; the last one becomes the earlier one. */
static enum ctl_exit ask(struct top *t)
{
    int64_t next = 0;
    char path[64];
    json_t *doc = NULL;
    (void)ctl_field_int(t->now, "next", &next); /* 0 without an answer yet */
    (void)snprintf(path, sizeof path, "/live?since=%" PRId64, next > SAMPLES ? next - SAMPLES : 0);
    enum ctl_exit status = ctl_admin_get(&t->admin, path, &doc);
    if (status == CTL_OK) {
        json_decref(t->before);
        t->before = t->now;
        t->now = doc;
    }
    return status;
}

/* Into memory first: the screen gets a whole picture at once. */
static td_err draw(struct top *t)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (f == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    td_err err = ctl_top_draw(t->now, t->before, &t->s, f);
    if (fclose(f) != 0 && err == TD_OK) {
        err = TD_ERR_NO_MEMORY;
    }
    if (err == TD_OK && (fwrite(text, 1, n, stdout) != n || fflush(stdout) != 0)) {
        err = TD_ERR_IO; /* the reader has gone */
    }
    free(text);
    return err;
}

static enum ctl_exit say(const struct top *t, td_err err)
{
    if (err != TD_OK) {
        ctl_say("%s: %s", t->o->admin.router,
                err == TD_ERR_PROTOCOL ? "not the answer of a router of this version"
                                       : td_err_text(err));
    }
    return err == TD_OK ? CTL_OK : CTL_FAILED;
}

/* ---- without a terminal ---- */

static unsigned plain_columns(void)
{
    const char *text = getenv("COLUMNS"); /* NOLINT(concurrency-mt-unsafe): one thread */
    long n = text != NULL ? strtol(text, NULL, 10) : 0;
    return n >= CTL_TOP_MIN_COLUMNS && n <= 1000 ? (unsigned)n : PLAIN_COLUMNS;
}

static enum ctl_exit plain(struct top *t)
{
    struct timespec nap = {.tv_sec = (time_t)t->o->every_s,
                           .tv_nsec =
                               (long)((t->o->every_s - (double)(time_t)t->o->every_s) * 1e9)};
    t->s.columns = plain_columns();
    enum ctl_exit status = say(t, draw(t));
    while (status == CTL_OK && !t->o->once) {
        (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &nap, NULL);
        status = ask(t);
        if (status == CTL_OK) {
            (void)fputc('\n', stdout);
            status = say(t, draw(t));
        }
    }
    return status;
}

/* ---- on a terminal ---- */

static void on_key(struct top *t, int key)
{
    if (key == 'q' || key == 'Q' || key < 0) {
        t->quit = true;
    } else if (key == 'p' || key == ' ') {
        t->s.paused = !t->s.paused;
    } else if (key == 's') {
        t->s.sort = (enum ctl_top_sort)((t->s.sort + 1) % CTL_TOP_SORTS);
    }
}

/* Draws, and takes keys until the next answer is due; a key or a new size draws again at once. */
static td_err watch(struct top *t, int64_t until_us)
{
    int64_t now_us;
    while (!t->quit && (now_us = td_now_us()) < until_us) {
        ctl_term_size(STDOUT_FILENO, &t->s.columns, &t->s.rows);
        t->s.rows = t->s.rows > 0 ? t->s.rows : 24;
        t->s.columns = t->s.columns > 0 ? t->s.columns : 80;
        TD_TRY(draw(t));
        int key = ctl_term_key(until_us - now_us);
        if (key != 0) {
            on_key(t, key);
        }
    }
    return TD_OK;
}

static enum ctl_exit on_screen(struct top *t)
{
    td_err err = TD_OK;
    t->admin.quiet = true; /* a line on stderr would tear the screen: it stands there instead */
    t->admin.timeout_s = t->admin.timeout_s < PATIENCE_S ? t->admin.timeout_s : PATIENCE_S;
    while (err == TD_OK && !t->quit) {
        err = watch(t, td_now_us() + (int64_t)(t->o->every_s * 1e6));
        if (err == TD_OK && !t->quit && !t->s.paused) {
            t->s.trouble = ask(t) == CTL_OK ? "" : "the router does not answer, asking again";
        }
    }
    ctl_term_close();
    return say(t, err);
}

enum ctl_exit ctl_top(const void *options, char *const *args)
{
    struct top t = {.o = options};
    t.admin = t.o->admin;
    (void)args;
    t.s.sort = (enum ctl_top_sort)t.o->sort;
    t.s.trouble = "";
    enum ctl_exit status = ask(&t);
    if (status == CTL_OK && (t.o->format == CTL_JSON || t.o->format == CTL_YAML)) {
        status = say(&t, ctl_document_print(t.now, (enum ctl_format)t.o->format, stdout));
    } else if (status == CTL_OK && !t.o->once &&
               ctl_term_open(STDIN_FILENO, STDOUT_FILENO) == TD_OK) {
        t.s.screen = true;
        status = on_screen(&t);
    } else if (status == CTL_OK) {
        status = plain(&t);
    }
    json_decref(t.now);
    json_decref(t.before);
    return status;
}
