#include "ctl/peer.h"

#include <string.h>

static bool any_given(const struct ctl_tls *t)
{
    const char *const all[] = {t->ca, t->cert, t->key, t->server_name};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i] != NULL && all[i][0] != 0) {
            return true;
        }
    }
    return false;
}

/* "host:port" of "host[:port][/...]"; without a port the scheme's, where one was given. */
static bool set_address(const char *at, bool tls, bool scheme, struct ctl_peer *out)
{
    size_t n = strcspn(at, "/");
    const char *braces = at[0] == '[' ? memchr(at, ']', n) : NULL;
    const char *from = braces != NULL ? braces : at;
    bool has_port = memchr(from, ':', n - (size_t)(from - at)) != NULL;
    int len = snprintf(out->address, sizeof out->address, "%.*s%s", (int)n, at,
                       has_port ? ""
                       : tls    ? ":443"
                                : ":80");
    out->has_path = at[n] != 0;
    return n > 0 && (has_port || scheme) && (size_t)len < sizeof out->address;
}

static bool parse(const char *given, const struct ctl_tls *t, struct ctl_peer *out, bool *out_tls)
{
    static const char *const schemes[] = {"http://", "https://"};
    const char *at = given;
    size_t n = strlen(given);
    *out_tls = any_given(t);
    for (size_t i = 0; i < 2; i++) {
        if (strncmp(given, schemes[i], strlen(schemes[i])) == 0) {
            at = given + strlen(schemes[i]);
            *out_tls = i == 1;
        }
    }
    if (at == given && strstr(given, "://") != NULL) {
        return false;
    }
    while (n > (size_t)(at - given) && given[n - 1] == '/') {
        n--;
    }
    int len = snprintf(out->url, sizeof out->url, "%s%.*s", schemes[*out_tls ? 1 : 0],
                       (int)(n - (size_t)(at - given)), at);
    for (const char *c = given; *c != 0; c++) {
        if (*c <= ' ' || *c > '~') {
            return false;
        }
    }
    return (size_t)len < sizeof out->url &&
           set_address(out->url + strlen(schemes[*out_tls ? 1 : 0]), *out_tls, at != given, out);
}

enum ctl_exit ctl_peer_open(const char *option, const char *given, const struct ctl_tls *tls,
                            bool quiet, struct ctl_peer *out)
{
    char why[256] = "";
    bool by_tls = false;
    *out = (struct ctl_peer){.tls = NULL};
    if (!parse(given, tls, out, &by_tls)) {
        ctl_say_unless(quiet, "%s '%.64s' is not http://host:port, https://host:port or host:port",
                       option, given);
        return CTL_USAGE;
    }
    const struct td_tls_client_params p = {.ca = tls->ca,
                                           .cert = tls->cert,
                                           .key = tls->key,
                                           .server_name = tls->server_name,
                                           .name_option = "--tls-server-name"};
    if (by_tls && td_tls_client_create(&p, &out->tls, why, sizeof why) != TD_OK) {
        ctl_say_unless(quiet, "%s", why);
        return CTL_USAGE;
    }
    return CTL_OK;
}

void ctl_peer_close(struct ctl_peer *p)
{
    p->tls = td_tls_client_destroy(p->tls);
}
