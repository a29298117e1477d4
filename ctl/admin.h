/* admin.h - a question to a router's admin port, answered as JSON.
 *
 * What: joins --router and a path, asks, parses; says on stderr what went wrong and gives the exit status for it.
 * Not: knowledge of any answer's shape. Thread: main; blocks. Bounds: CTL_ADMIN_MAX_BODY; json.h's limits. Failure:
 * CTL_USAGE the URL is wrong, CTL_UNREACHABLE nobody answers, CTL_FAILED the answer is an error or not JSON.
 */
#ifndef CTL_ADMIN_H
#define CTL_ADMIN_H

#include <jansson.h>

#include "ctl/command.h"
#include "ctl/peer.h"

#define CTL_ADMIN_MAX_BODY (16u << 20)
#define CTL_ADMIN_DEFAULT  "http://127.0.0.1:8001"

/* The options of every command that asks a router. */
struct ctl_admin {
    char *router;
    double timeout_s;
    struct ctl_tls tls;
    bool quiet; /* says nothing: the status tells */
};
#define CTL_ADMIN_OPTS(field)                                                                      \
    CTL_OPT("router", STRING, CTL_ADMIN_DEFAULT, "url", 0, 0, NULL,                                \
            "admin port of a router (TANDEM_ROUTER)", field.router),                               \
        CTL_OPT("timeout", DOUBLE, "10", "s", 0.01, 600, NULL, "longest wait for an answer",       \
                field.timeout_s),                                                                  \
        CTL_TLS_OPTS(field.tls)

/* *out_json: a new reference, whatever the status; untouched on failure. */
enum ctl_exit ctl_admin_ask(const struct ctl_admin *a, const char *path, int *out_status,
                            json_t **out_json);
/* The same; any status but 200 is a failure. */
enum ctl_exit ctl_admin_get(const struct ctl_admin *a, const char *path, json_t **out_json);
/* POSTs a JSON text. Any status is an answer. */
enum ctl_exit ctl_admin_post(const struct ctl_admin *a, const char *path, const char *text,
                             int *out_status, json_t **out_json);
/* Says why a router could not be asked; err as of http_client.h and grpc_client.h. */
enum ctl_exit ctl_admin_unreachable(const struct ctl_admin *a, td_err err, const char *why);
/* The message of an error object (interfaces.md 1.5), or "". Borrowed. */
const char *ctl_admin_message(const json_t *json);

#endif
