/* OpenTelemetry's environment and our flags become one setting. Part of otlp.h; tested by otlp_test.c. */
#define TD_LOG_ROOM "io"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
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

static void find_url(const char *endpoint, struct td_otlp_setting *out)
{
    const char *whole = env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
    const char *base = endpoint[0] != 0 ? endpoint : env("OTEL_EXPORTER_OTLP_ENDPOINT");
    if (endpoint[0] == 0 && whole[0] != 0) {
        (void)snprintf(out->url, sizeof out->url, "%s", whole);
    } else if (base[0] != 0) {
        join_url(base, out->url, sizeof out->url);
    }
    if (endpoint[0] == 0 && strcmp(env("OTEL_SDK_DISABLED"), "true") == 0) {
        out->url[0] = 0;
    }
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

td_err td_otlp_setting(const char *endpoint, double ratio, const char *service,
                       struct td_otlp_setting *out)
{
    struct td_otlp_setting s = {.ratio = ratio};
    const char *name = env("OTEL_SERVICE_NAME");
    (void)snprintf(s.service, sizeof s.service, "%.127s", name[0] != 0 ? name : service);
    find_url(endpoint, &s);
    if (s.url[0] != 0 && ratio < 0) {
        TD_TRY(find_sampler(&s));
    }
    *out = s;
    return TD_OK;
}
