#include "ctl/admin.h"

#include <string.h>

#include "common/base/json.h"
#include "common/io/http_client.h"

enum ctl_exit ctl_admin_unreachable(const struct ctl_admin *a, td_err err, const char *why)
{
    bool reached = err == TD_ERR_PROTOCOL || err == TD_ERR_TOO_LARGE || err == TD_ERR_NO_MEMORY;
    if (err == TD_ERR_BAD_REQUEST) {
        ctl_say_unless(a->quiet, "--router %s: %s", a->router, why);
        return CTL_USAGE;
    }
    if (reached) {
        ctl_say_unless(a->quiet, "%s: %s; is it the admin port of a router?", a->router, why);
        return CTL_FAILED;
    }
    ctl_say_unless(
        a->quiet,
        "cannot reach a router at %s: %s; give its admin port by --router or TANDEM_ROUTER",
        a->router, why);
    return CTL_UNREACHABLE;
}

enum ctl_exit ctl_admin_ask(const struct ctl_admin *a, const char *path, int *out_status,
                            json_t **out_json)
{
    return ctl_admin_post(a, path, NULL, out_status, out_json);
}

/* One question to the peer. */
static enum ctl_exit ask(const struct ctl_admin *a, const struct ctl_peer *peer, const char *path,
                         const char *text, int *out_status, json_t **out_json)
{
    char url[TD_HTTP_CLIENT_MAX_URL], why[160] = "", wrong[256] = "";
    struct td_http_client_answer answer;
    const struct td_http_client_body body = {.type = "application/json", .text = text};
    const struct td_http_client_request request = {.url = url,
                                                   .body = text != NULL ? &body : NULL,
                                                   .timeout_us = (int64_t)(a->timeout_s * 1e6),
                                                   .max_body = CTL_ADMIN_MAX_BODY,
                                                   .tls = peer->tls};
    (void)snprintf(url, sizeof url, "%s%s", peer->url, path); /* a path of ours is short */
    td_err err = td_http_client_run(&request, &answer, why, sizeof why);
    if (err != TD_OK) {
        return ctl_admin_unreachable(a, err, why);
    }
    err = td_json_parse((const char *)answer.body.data, answer.body.len, out_json, wrong,
                        sizeof wrong);
    if (err != TD_OK) {
        ctl_say_unless(
            a->quiet,
            "%s answered %d with something else than JSON; is it the admin port of a router?", url,
            answer.status);
    }
    *out_status = answer.status;
    td_http_client_answer_fini(&answer);
    return err == TD_OK ? CTL_OK : CTL_FAILED;
}

enum ctl_exit ctl_admin_post(const struct ctl_admin *a, const char *path, const char *text,
                             int *out_status, json_t **out_json)
{
    struct ctl_peer peer;
    enum ctl_exit status = ctl_peer_open("--router", a->router, &a->tls, a->quiet, &peer);
    if (status == CTL_OK) {
        status = ask(a, &peer, path, text, out_status, out_json);
        ctl_peer_close(&peer);
    }
    return status;
}

const char *ctl_admin_message(const json_t *json)
{
    const char *text =
        json_string_value(json_object_get(json_object_get(json, "error"), "message"));
    return text != NULL ? text : "";
}

enum ctl_exit ctl_admin_get(const struct ctl_admin *a, const char *path, json_t **out_json)
{
    int http = 0;
    json_t *json = NULL;
    enum ctl_exit status = ctl_admin_ask(a, path, &http, &json);
    if (status != CTL_OK) {
        return status;
    }
    if (http != 200) {
        ctl_say_unless(a->quiet, "%s%s answered %d %s; is it the admin port of a router?",
                       a->router, path, http, ctl_admin_message(json));
        json_decref(json);
        return CTL_FAILED;
    }
    *out_json = json;
    return CTL_OK;
}
