/* Design: two rates decide whether a transfer hides. Prefill makes KV bytes while it computes; the link moves them. As long
 * as the link is faster, a prompt's KV is across soon after its last token; when it is slower, the prompt waits for the
 * difference. Both are measured with one prompt's KV, so that the model's size falls out.
 */
#include "ctl/doctor_link.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/json_field.h"
#include "ctl/output.h"

#define NEARLY_FULL                                                                                \
    0.8 /* of the link's rate: a second prefill node beside this one would not fit */
#define LONG_PROMPT 8192 /* tokens whose cost is told, less when the model's context is shorter */
#define MIN_BYTES   (1 << 20) /* fewer say more of the start than of the rate */

bool ctl_link_take(struct ctl_link *l, const json_t *answer, int64_t layers)
{
    int64_t us = ctl_field_count(answer, "transfer_us"),
            bytes = ctl_field_count(answer, "kv_bytes");
    if (!json_is_true(json_object_get(answer, "ok")) ||
        !json_is_true(json_object_get(answer, "parked")) || bytes == 0) {
        return false;
    }
    (void)snprintf(l->transport, sizeof l->transport, "%s",
                   ctl_field_text(answer, "transport", "?"));
    if (us == 0) { /* below the clock's grain: no figure to take */
        return true;
    }
    if (layers > 0 && (l->slices_us == 0 || us < l->slices_us)) {
        l->slices = layers;
        l->slices_us = us;
    } else if (layers == 0 && (l->us == 0 || us < l->us)) {
        l->bytes = bytes;
        l->us = us;
        l->prompt_tok = ctl_field_count(answer, "prompt_tokens");
        l->prefill_us = ctl_field_count(answer, "prefill_us");
    }
    return true;
}

/* "4.6 GB/s" */
static const char *rate_text(double bytes_per_s, char *buf, size_t cap)
{
    (void)snprintf(buf, cap, bytes_per_s < 1e8 ? "%.1f MB/s" : "%.2f GB/s",
                   bytes_per_s < 1e8 ? bytes_per_s / 1e6 : bytes_per_s / 1e9);
    return buf;
}

static const char *remedy_of(const struct ctl_link *l)
{
    if (l->one_host && strcmp(l->transport, "tcp") == 0) {
        return "both nodes are on one host: let them share memory (--kv-transports; one IPC and "
               "PID "
               "namespace)";
    }
    if (strcmp(l->transport, "tcp") == 0) {
        return "a faster network between these hosts behind --kv-device, RDMA best; nodes of "
               "--role "
               "both move nothing";
    }
    return "run tandemctl doctor on both hosts and compare; give the nodes cores of their own";
}

struct cost {
    double rate, made, used; /* bytes a second of the link, of prefill; their ratio, 0 unknown */
    double bytes_per_tok;
    int64_t tok, us, exposed_us; /* of a long prompt */
};

static struct cost cost_of(const struct ctl_link *l)
{
    double tok = l->prompt_tok > 0 ? (double)l->prompt_tok : 1;
    struct cost c = {.rate = (double)l->bytes * 1e6 / (double)l->us,
                     .bytes_per_tok = (double)l->bytes / tok,
                     .tok = l->max_tok > 0 && l->max_tok < LONG_PROMPT ? l->max_tok : LONG_PROMPT};
    double us = (double)c.tok * c.bytes_per_tok * 1e6 / c.rate;
    if (l->prefill_us > 0) {
        c.made = (double)l->bytes * 1e6 / (double)l->prefill_us;
        c.used = c.made / c.rate;
    }
    c.us = (int64_t)us;
    c.exposed_us = c.used > 1 ? (int64_t)(us * (1 - 1 / c.used)) : 0;
    return c;
}

static void add_values(struct ctl_finding *f, const struct ctl_link *l, const struct cost *c)
{
    ctl_finding_text(f, "transport", l->transport);
    ctl_finding_value(f, "bytes_per_s", c->rate);
    ctl_finding_value(f, "bytes", (double)l->bytes);
    ctl_finding_value(f, "transfer_us", (double)l->us);
    if (l->slices > 0) {
        ctl_finding_value(f, "slice_us", (double)l->slices_us / (double)l->slices);
    }
    ctl_finding_value(f, "kv_bytes_per_token", c->bytes_per_tok);
    ctl_finding_value(f, "prefill_bytes_per_s", c->made);
    ctl_finding_value(f, "used_ratio", c->used);
    ctl_finding_value(f, "prompt_tokens", (double)c->tok);
    ctl_finding_value(f, "prompt_transfer_us", (double)c->us);
    ctl_finding_value(f, "prompt_exposed_us", (double)c->exposed_us);
}

/* "; prefill makes 1.54 GB/s: 31 % of it used" */
static void share_text(const struct cost *c, char *buf, size_t cap)
{
    char made[32];
    buf[0] = 0;
    if (c->made > 0) {
        (void)snprintf(buf, cap, "; prefill makes %s: %.*f %% of it used",
                       rate_text(c->made, made, sizeof made), c->used < 0.01 ? 2 : 0,
                       100 * c->used);
    }
}

/* "; KV of 8192 tokens: 781.25 MiB in 164 ms, hidden behind its prefill" */
static void prompt_text(const struct cost *c, char *buf, size_t cap)
{
    char bytes[32], us[32], shows[32];
    ctl_format_bytes((uint64_t)(c->bytes_per_tok * (double)c->tok), bytes, sizeof bytes);
    ctl_format_us(c->us, us, sizeof us);
    ctl_format_us(c->exposed_us, shows, sizeof shows);
    (void)snprintf(buf, cap, "; KV of %" PRId64 " tokens: %s in %s%s%s%s", c->tok, bytes, us,
                   c->made > 0 ? ", " : "", c->exposed_us > 0 ? shows : "",
                   c->made <= 0        ? ""
                   : c->exposed_us > 0 ? " exposed"
                                       : "hidden behind its prefill");
}

void ctl_link_judge(struct ctl_report *r, const char *check, const struct ctl_link *l)
{
    char rate[32], slice[48] = "", share[96], prompt[192];
    if (l->us <= 0 || l->bytes <= 0) {
        ctl_report_add(r, CTL_V_SKIP, check, NULL, "moved faster than it can be timed");
        return;
    }
    struct cost c = cost_of(l);
    if (l->slices > 0) {
        (void)snprintf(slice, sizeof slice, ", %.1f us a slice",
                       (double)l->slices_us / (double)l->slices);
    }
    share_text(&c, share, sizeof share);
    prompt_text(&c, prompt, sizeof prompt);
    struct ctl_finding *f = ctl_report_add(
        r, c.used > NEARLY_FULL ? CTL_V_WARN : CTL_V_OK, check, remedy_of(l), "%s %s%s%s%s%s",
        l->transport, rate_text(c.rate, rate, sizeof rate), slice,
        l->bytes < MIN_BYTES ? " (under 1 MiB moved: see --probe-tokens)" : "", share, prompt);
    add_values(f, l, &c);
}

/* ---- measuring ---- */

/* One parked probe; NULL or an answer that the caller owns, with its status. */
static json_t *ask(const struct ctl_admin *admin, const char *p, const char *d, int64_t tokens,
                   int *out_http)
{
    json_t *body = json_pack("{s:s,s:s,s:I,s:b}", "prefill", p, "decode", d, "tokens",
                             (json_int_t)tokens, "park", 1);
    char *text = body != NULL ? json_dumps(body, JSON_COMPACT) : NULL;
    json_t *answer = NULL;
    if (text == NULL || ctl_admin_post(admin, "/probe", text, out_http, &answer) != CTL_OK) {
        *out_http = 0;
    }
    json_decref(body);
    free(text);
    return answer;
}

/* "10.0.0.1" of "http://10.0.0.1:8100": its length, 0 when there is none. */
static size_t host_of(const char *url, const char **out_host)
{
    const char *at = strstr(url, "://");
    const char *end = at != NULL ? strrchr(at + 3, ':') : NULL;
    *out_host = at != NULL ? at + 3 : url;
    return end != NULL ? (size_t)(end - *out_host) : 0;
}

static bool one_host(const json_t *a, const json_t *b)
{
    const char *x = NULL, *y = NULL;
    size_t n = host_of(ctl_field_text(a, "admin", ""), &x);
    size_t m = host_of(ctl_field_text(b, "admin", ""), &y);
    return n > 0 && n == m && strncmp(x, y, n) == 0;
}

void ctl_link_check(struct ctl_report *r, const struct ctl_admin *admin, const json_t *prefill,
                    const json_t *decode, uint32_t tokens)
{
    const char *p = ctl_field_text(prefill, "name", ""), *d = ctl_field_text(decode, "name", "");
    int64_t layers = ctl_field_count(prefill, "layers"),
            block = ctl_field_count(prefill, "block_tokens");
    struct ctl_link l = {.one_host = one_host(prefill, decode),
                         .max_tok = ctl_field_count(prefill, "max_model_len")};
    struct ctl_link warm = {0};
    char check[128];
    int http = 0;
    (void)snprintf(check, sizeof check, "link %.40s > %.40s", p, d);
    for (int i = 0; i < 1 + CTL_LINK_SHORT + CTL_LINK_LONG; i++) {
        bool is_short = i <= CTL_LINK_SHORT;
        json_t *answer = ask(admin, p, d, is_short ? block : tokens, &http);
        bool taken =
            http == 200 && ctl_link_take(i == 0 ? &warm : &l, answer, is_short ? layers : 0);
        if (!taken) {
            const char *why =
                http != 200 ? ctl_admin_message(answer) : ctl_field_text(answer, "text", "");
            ctl_report_add(
                r, CTL_V_SKIP, check, NULL, "not measured: %s",
                why[0] != 0 ? why : "the router does not know parked probes, or nothing moved");
            json_decref(answer);
            return;
        }
        json_decref(answer);
    }
    ctl_link_judge(r, check, &l);
}
