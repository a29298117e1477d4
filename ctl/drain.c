#include "ctl/drain.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "ctl/admin.h"
#include "ctl/json_field.h"
#include "ctl/nodes.h"
#include "ctl/output.h"

#define ASK_EVERY_NS 200000000

struct options {
    struct ctl_admin admin;
    int format;
    bool undrain, wait;
    double limit_s, wait_s;
    char *why;
};

static const struct td_opt opts[] = {
    CTL_ADMIN_OPTS(admin),
    CTL_OPT("undrain", BOOL, "false", "", 0, 0, NULL, "take the node back into service", undrain),
    CTL_OPT("wait", BOOL, "false", "", 0, 0, NULL,
            "until nothing runs there any more; with --undrain: until it serves", wait),
    CTL_OPT("wait-timeout", DOUBLE, "600", "s", 0, 86400, NULL, "longest --wait; then status 1",
            wait_s),
    CTL_OPT("limit", DOUBLE, "0", "s", 0, 86400, NULL,
            "then the node ends what still runs, and the router replays it; 0: never", limit_s),
    CTL_OPT("why", STRING, "", "", 0, 0, NULL, "for the logs of router and node", why),
    CTL_OPT("output", ENUM, "table", "", 0, 0, CTL_FORMATS, "or -o: table is one line", format),
};

const struct td_program ctl_drain_program = {
    .name = "tandemctl drain",
    .summary = "take a node out of service, or back: what runs finishes",
    .opts = opts,
    .n_opts = TD_COUNT(opts),
    .struct_bytes = sizeof(struct options)};

const json_t *ctl_drain_find(const json_t *doc, const char *name)
{
    const json_t *list = json_object_get(doc, "nodes"), *found = NULL;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *n = json_array_get(list, i);
        if (strcmp(ctl_field_text(n, "epoch", ""), name) == 0) {
            return n;
        }
        if (strcmp(ctl_field_text(n, "name", ""), name) == 0) {
            found = n;
        }
    }
    return found;
}

bool ctl_drain_done(const json_t *node, bool undrain)
{
    if (undrain) {
        return json_is_true(json_object_get(node, "ready")) &&
               json_is_false(json_object_get(node, "draining"));
    }
    return json_is_true(json_object_get(node, "drained"));
}

static enum ctl_exit ask(const struct options *o, const char *name, json_t **out_node)
{
    const struct td_api_drain d = {
        .node = name, .why = o->why, .limit_ms = (uint32_t)(o->limit_s * 1000 + 0.5)};
    return ctl_nodes_drain(&o->admin, &d, o->undrain, out_node);
}

/* Replaces *node by what the router says of it now; NULL once it has gone. */
static enum ctl_exit look(const struct options *o, const char *epoch, json_t **node)
{
    json_t *doc = NULL;
    enum ctl_exit status = ctl_nodes_list(&o->admin, &doc);
    if (status == CTL_OK) {
        json_t *now = (json_t *)(uintptr_t)ctl_drain_find(doc, epoch);
        json_decref(*node);
        *node = json_incref(now);
        json_decref(doc);
    }
    return status;
}

/* A node that has gone runs nothing; it cannot come back into service by our waiting. */
static enum ctl_exit wait_for(const struct options *o, const char *epoch, json_t **node)
{
    int64_t until = td_now_us() + (int64_t)(o->wait_s * 1e6);
    while (*node != NULL && !ctl_drain_done(*node, o->undrain)) {
        struct timespec nap = {.tv_nsec = ASK_EVERY_NS};
        if (td_now_us() >= until) {
            return CTL_FAILED;
        }
        (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &nap, NULL);
        enum ctl_exit status = look(o, epoch, node);
        if (status != CTL_OK) {
            return status;
        }
    }
    return *node == NULL && o->undrain ? CTL_FAILED : CTL_OK;
}

/* Works there: its last report, or what this router has sent, which the report may not know yet. */
static int64_t works_on(const json_t *node)
{
    int64_t running = 0, queued = 0, ours = 0;
    (void)ctl_field_int(node, "running", &running); /* each is 0 without it */
    (void)ctl_field_int(node, "queued", &queued);
    (void)ctl_field_int(node, "inflight", &ours);
    return running + queued > ours ? running + queued : ours;
}

void ctl_drain_say(const char *name, const json_t *node, bool undrain, FILE *out)
{
    ctl_print_clean(name, out);
    if (node == NULL) {
        (void)fputs(" has gone\n", out);
    } else if (undrain && !ctl_drain_done(node, true)) {
        (void)fputs(" was asked to serve again\n", out); /* it has not answered yet, or cannot */
    } else if (json_is_true(json_object_get(node, "drained"))) {
        (void)fputs(" is drained: nothing runs there\n", out);
    } else if (json_is_true(json_object_get(node, "draining"))) {
        (void)fprintf(out, " is draining: %" PRId64 " requests left\n", works_on(node));
    } else {
        (void)fputs(" is in service\n", out);
    }
}

static enum ctl_exit show(const struct options *o, const char *name, const json_t *node)
{
    td_err err = TD_OK;
    if (o->format == CTL_JSON || o->format == CTL_YAML) {
        json_t *null = json_null();
        const json_t *v = node != NULL ? node : null;
        err = o->format == CTL_JSON ? ctl_json_print(v, stdout) : ctl_yaml_print(v, stdout);
    } else {
        ctl_drain_say(name, node, o->undrain, stdout);
    }
    return err == TD_OK && fflush(stdout) == 0 ? CTL_OK : CTL_FAILED;
}

enum ctl_exit ctl_drain(const void *options, char *const *args)
{
    const struct options *o = options;
    json_t *node = NULL;
    enum ctl_exit status = ask(o, args[0], &node);
    if (status != CTL_OK) {
        return status;
    }
    if (o->wait) {
        char epoch[32];
        (void)snprintf(epoch, sizeof epoch, "%s", ctl_field_text(node, "epoch", args[0]));
        status = wait_for(o, epoch, &node);
    }
    enum ctl_exit shown =
        status == CTL_OK || status == CTL_FAILED ? show(o, args[0], node) : status;
    json_decref(node);
    return status != CTL_OK ? status : shown;
}
