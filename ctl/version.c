#include "ctl/version.h"

#include "common/base/mem.h"
#include "ctl/admin.h"
#include "ctl/json_field.h"
#include "ctl/output.h"

struct options {
    struct ctl_admin admin;
    int format;
    bool client;
};

static const struct td_opt opts[] = {
    CTL_OPT("router", STRING, CTL_ADMIN_DEFAULT, "url", 0, 0, NULL,
            "admin port of a router (TANDEM_ROUTER)", admin.router),
    CTL_OPT("timeout", DOUBLE, "1", "s", 0.01, 600, NULL, "longest wait for its answer",
            admin.timeout_s),
    CTL_TLS_OPTS(admin.tls),
    CTL_OPT("output", ENUM, "table", "", 0, 0, CTL_FORMATS, "or -o: the form of the answer",
            format),
    CTL_OPT("client", BOOL, "false", "", 0, 0, NULL, "ask no router", client),
};

const struct td_program ctl_version_program = {.name = "tandemctl version",
                                               .summary = "the versions of this program and router",
                                               .opts = opts,
                                               .n_opts = TD_COUNT(opts),
                                               .struct_bytes = sizeof(struct options)};

/* A new reference: the router's version as text, or null. */
static json_t *router_version(const struct ctl_admin *a)
{
    int http = 0;
    json_t *doc = NULL;
    if (ctl_admin_ask(a, "/version", &http, &doc) != CTL_OK) {
        return json_null();
    }
    const char *text = http == 200 ? ctl_field_text(doc, "version", NULL) : NULL;
    json_t *v = text != NULL ? json_string(text) : json_null();
    json_decref(doc);
    return v;
}

static void print_lines(const struct options *o, const json_t *router)
{
    (void)printf("tandemctl %s%s\n", TD_VERSION, TD_WITH_FAULTS ? " (fault points)" : "");
    if (json_is_string(router)) {
        (void)printf("router    %.64s (%s)\n", json_string_value(router), o->admin.router);
    }
}

enum ctl_exit ctl_version(const void *options, char *const *args)
{
    const struct options *o = options;
    td_err err = TD_OK;
    (void)args;
    json_t *router = o->client ? json_null() : router_version(&o->admin);
    json_t *doc = json_pack("{s:s,s:b,s:O}", "tandemctl", TD_VERSION, "fault_points",
                            TD_WITH_FAULTS, "router", router);
    if (doc == NULL || router == NULL) {
        err = TD_ERR_NO_MEMORY;
    } else if (o->format == CTL_JSON) {
        err = ctl_json_print(doc, stdout);
    } else if (o->format == CTL_YAML) {
        err = ctl_yaml_print(doc, stdout);
    } else {
        print_lines(o, router);
    }
    json_decref(doc);
    json_decref(router);
    return err == TD_OK ? CTL_OK : CTL_FAILED;
}
