/* OpenTelemetry's environment and our flags become one setting. Part of otlp.h; tested by otlp_test.c. */
#define TD_LOG_ROOM "io"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/io/http_parse.h"
#include "common/io/otlp.h"

/* "" when unset. */
static const char *env(const char *name)
{
    const char *v = getenv(name); // NOLINT(concurrency-mt-unsafe): at boot, nobody sets it
    return v != NULL ? v : "";
}

/* Joins without a doubled slash. */
static void join_url(const char *base, char *out, size_t cap)
{
    size_t n = strlen(base);
    while (n > 0 && base[n - 1] == '/') {
        n--;
    }
    (void)snprintf(out, cap, "%.*s%s", (int)n, base, TD_OTLP_PATH);
}

/* Of one of the exporter's settings, the one for traces first. `out_name` (64 bytes): which variable it was. */
static const char *exporter_env(const char *what, char out_name[64])
{
    (void)snprintf(out_name, 64, "OTEL_EXPORTER_OTLP_TRACES_%s", what);
    const char *v = env(out_name);
    if (v[0] == 0) {
        (void)snprintf(out_name, 64, "OTEL_EXPORTER_OTLP_%s", what);
        v = env(out_name);
    }
    return v;
}

static td_err find_url(const char *endpoint, struct td_otlp_setting *out)
{
    const char *whole = env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
    const char *base = endpoint[0] != 0 ? endpoint : env("OTEL_EXPORTER_OTLP_ENDPOINT");
    if (strlen(whole) >= sizeof out->url || strlen(base) + sizeof TD_OTLP_PATH > sizeof out->url) {
        TD_LOG(ERROR, "trace endpoint is too long", "max=%zu", sizeof out->url - 1);
        return TD_ERR_CONFIG;
    }
    if (endpoint[0] == 0 && whole[0] != 0) {
        (void)snprintf(out->url, sizeof out->url, "%s", whole);
    } else if (base[0] != 0) {
        join_url(base, out->url, sizeof out->url);
    }
    if (endpoint[0] == 0 && strcmp(env("OTEL_SDK_DISABLED"), "true") == 0) {
        out->url[0] = 0;
    }
    return TD_OK;
}

static td_err find_sampler(struct td_otlp_setting *out)
{
    static const struct {
        const char *name;
        double ratio; /* < 0: the argument */
        bool always;
    } known[] = {{"", 1, false},
                 {"parentbased_always_on", 1, false},
                 {"parentbased_always_off", 0, false},
                 {"parentbased_traceidratio", -1, false},
                 {"always_on", 1, true},
                 {"always_off", 0, true},
                 {"traceidratio", -1, true}};
    const char *name = env("OTEL_TRACES_SAMPLER"), *arg = env("OTEL_TRACES_SAMPLER_ARG");
    for (size_t i = 0; i < TD_COUNT(known); i++) {
        if (strcmp(name, known[i].name) != 0) {
            continue;
        }
        char *end = NULL;
        double v = arg[0] != 0 ? strtod(arg, &end) : 1;
        if (known[i].ratio < 0 && ((end != NULL && *end != 0) || !(v >= 0 && v <= 1))) {
            TD_LOG(ERROR, "bad OTEL_TRACES_SAMPLER_ARG", "value=%s remedy=\"0 to 1\"", arg);
            return TD_ERR_CONFIG;
        }
        out->ratio = known[i].ratio < 0 ? v : known[i].ratio;
        out->ratio_always = known[i].always;
        return TD_OK;
    }
    TD_LOG(ERROR, "unknown OTEL_TRACES_SAMPLER", "value=%s", name);
    return TD_ERR_CONFIG;
}

/* ---- how it gets there ---- */

static td_err check_protocol(void)
{
    char name[64];
    const char *v = exporter_env("PROTOCOL", name);
    if (v[0] != 0 && strcmp(v, "http/json") != 0) {
        TD_LOG(
            ERROR, "unsupported trace protocol",
            "variable=%s value=%s remedy=\"http/json: the collector's OTLP port for HTTP, 4318\"",
            name, v);
        return TD_ERR_CONFIG;
    }
    return TD_OK;
}

static td_err find_file(const char *what, char *out, size_t cap)
{
    char name[64];
    const char *v = exporter_env(what, name);
    if (strlen(v) >= cap) {
        TD_LOG(ERROR, "path is too long", "variable=%s", name);
        return TD_ERR_CONFIG;
    }
    (void)snprintf(out, cap, "%s", v);
    return TD_OK;
}

static bool is_token(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

/* Appends [from, to) with its percent codes undone, and a 0. False: no room, or nothing that a header may hold. */
static bool put_decoded(struct td_otlp_headers *h, uint32_t *used, const char *from, const char *to)
{
    while (from < to) {
        char c = *from++;
        if (c == '%' && to - from >= 2 && td_http_hex_digit(from[0]) >= 0 &&
            td_http_hex_digit(from[1]) >= 0) {
            c = (char)(td_http_hex_digit(from[0]) * 16 + td_http_hex_digit(from[1]));
            from += 2;
        }
        if (c < ' ' || c > '~' || *used + 2 > sizeof h->text) {
            return false;
        }
        h->text[(*used)++] = c;
    }
    h->text[(*used)++] = 0;
    return true;
}

/* "name=value", blanks around both dropped. What we say ourselves may not be said for us. */
static bool take_header(struct td_otlp_headers *h, uint32_t *used, const char *from, const char *to)
{
    static const char *const ours[] = {"host", "connection", "content-type", "content-length",
                                       "transfer-encoding"};
    const char *eq = memchr(from, '=', (size_t)(to - from));
    const char *end = eq;
    if (eq == NULL || h->n == TD_OTLP_MAX_HEADERS) {
        return false;
    }
    for (; from < end && *from == ' '; from++) {
    }
    for (; end > from && end[-1] == ' '; end--) {
    }
    for (const char *p = from; p < end; p++) {
        if (!is_token(*p)) {
            return false;
        }
    }
    h->at[h->n].name = (uint16_t)*used;
    if (from == end || !put_decoded(h, used, from, end)) {
        return false;
    }
    for (size_t i = 0; i < TD_COUNT(ours); i++) {
        if (strcasecmp(h->text + h->at[h->n].name, ours[i]) == 0) {
            return false;
        }
    }
    for (eq++; eq < to && *eq == ' '; eq++) {
    }
    for (; to > eq && to[-1] == ' '; to--) {
    }
    h->at[h->n].value = (uint16_t)*used;
    return put_decoded(h, used, eq, to) && ++h->n > 0;
}

/* "name=value,name=value". Values are keys: they are never logged. */
static td_err find_headers(struct td_otlp_headers *h)
{
    char name[64];
    const char *v = exporter_env("HEADERS", name);
    uint32_t used = 0;
    for (const char *end = NULL; *v != 0; v = *end != 0 ? end + 1 : end) {
        end = strchrnul(v, ',');
        if (end > v && !take_header(h, &used, v, end)) {
            TD_LOG(ERROR, "bad headers for traces",
                   "variable=%s number=%u remedy=\"name=value,name=value; values percent-encoded, "
                   "at most %d, none of HTTP's own\"",
                   name, h->n + 1, TD_OTLP_MAX_HEADERS);
            return TD_ERR_CONFIG;
        }
    }
    return TD_OK;
}

static td_err find_way(const char *endpoint, struct td_otlp_setting *out)
{
    TD_TRY(endpoint[0] == 0 ? check_protocol() : TD_OK);
    TD_TRY(find_file("CERTIFICATE", out->ca, sizeof out->ca));
    TD_TRY(find_file("CLIENT_CERTIFICATE", out->cert, sizeof out->cert));
    TD_TRY(find_file("CLIENT_KEY", out->key, sizeof out->key));
    return find_headers(&out->headers);
}

td_err td_otlp_setting(const char *endpoint, double ratio, const char *service,
                       struct td_otlp_setting *out)
{
    struct td_otlp_setting s = {.ratio = ratio};
    const char *name = env("OTEL_SERVICE_NAME");
    (void)snprintf(s.service, sizeof s.service, "%.127s", name[0] != 0 ? name : service);
    TD_TRY(find_url(endpoint, &s));
    TD_TRY(s.url[0] != 0 ? find_way(endpoint, &s) : TD_OK);
    if (s.url[0] != 0 && ratio < 0) {
        TD_TRY(find_sampler(&s));
    }
    *out = s;
    return TD_OK;
}
