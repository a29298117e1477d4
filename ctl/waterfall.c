#include "ctl/waterfall.h"

#include <stdio.h>
#include <string.h>

#include "ctl/json_field.h"

#define MAX_US (1000ll * 86400 * 1000000) /* more cannot be meant: sums stay far from overflow */

int64_t ctl_waterfall_number(const json_t *record, const char *name)
{
    int64_t us = 0;
    (void)ctl_field_int(record, name, &us); /* stays 0 without it */
    return us < 0 || us > MAX_US ? 0 : us;
}

static struct ctl_bar *add(struct ctl_waterfall *w, const char *name, enum ctl_bar_kind kind,
                           int64_t from_us, int64_t us)
{
    struct ctl_bar *b = &w->bars[w->n < CTL_BARS ? w->n++ : CTL_BARS - 1];
    *b = (struct ctl_bar){.kind = kind, .from_us = from_us, .us = us};
    (void)snprintf(b->name, sizeof b->name, "%s", name);
    int64_t end = from_us + us;
    w->axis_us = end > w->axis_us ? end : w->axis_us;
    return b;
}

static void add_lost(struct ctl_waterfall *w, const json_t *t, int64_t from, int64_t us)
{
    char name[32];
    (void)snprintf(name, sizeof name, "try %d, lost", (int)ctl_waterfall_number(t, "attempt") + 1);
    struct ctl_bar *b = add(w, name, CTL_BAR_LOST, from, us);
    (void)snprintf(b->where, sizeof b->where, "%s to %s: %s", ctl_field_text(t, "prefill", "-"),
                   ctl_field_text(t, "decode", "-"), ctl_field_text(t, "error", "failed"));
}

/* An attempt that failed: its wait in the router's queue, then what was lost. Returns its end. */
static int64_t add_failed(struct ctl_waterfall *w, const json_t *t, int64_t at)
{
    char name[32];
    int64_t placed = ctl_waterfall_number(t, "placed_us");
    int64_t failed = ctl_waterfall_number(t, "failed_us");
    int64_t attempt = ctl_waterfall_number(t, "attempt") + 1;
    placed = placed > at ? placed : at;
    failed = failed > placed ? failed : placed;
    if (w->n + 10 > CTL_BARS) {
        return failed; /* room for the last attempt's stages */
    }
    (void)snprintf(name, sizeof name, "queue, try %d", (int)attempt);
    (void)add(w, name, CTL_BAR_WAIT, at, placed - at);
    add_lost(w, t, placed, failed - placed);
    return failed;
}

/* Where the last attempt begins to wait. */
static int64_t add_before(struct ctl_waterfall *w, const json_t *record)
{
    const json_t *tries = json_object_get(record, "tries");
    size_t n = json_array_size(tries);
    int64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *t = json_array_get(tries, i);
        int64_t placed = ctl_waterfall_number(t, "placed_us");
        if (i == 0) {
            int64_t submitted = ctl_waterfall_number(t, "submitted_us");
            at = submitted < placed ? submitted : placed;
            (void)add(w, "tokenise", CTL_BAR_WORK, 0, at);
        }
        if (i + 1 < n) {
            at = add_failed(w, t, at);
        }
    }
    return at;
}

static void add_stages(struct ctl_waterfall *w, const json_t *r, int64_t at)
{
    int64_t exposed = ctl_waterfall_number(r, "transfer_exposed_us");
    int64_t transfer = ctl_waterfall_number(r, "transfer_us");
    /* After the first token until the last byte; what of it is longer than the transfer went before its first: the pair's
     * first connection, or decode's room. */
    int64_t waited = exposed > transfer ? exposed - transfer : 0;
    const struct {
        const char *name, *field, *node;
        enum ctl_bar_kind kind;
    } row[] = {
        {"router queue", "router_queue_us", "", CTL_BAR_WAIT},
        {"prefill queue", "prefill_queue_us", "prefill", CTL_BAR_WAIT},
        {"prefill", "prefill_us", "prefill", CTL_BAR_WORK},
        {"KV wait", "transfer_exposed_us", "decode", CTL_BAR_WAIT},
        {"transfer", "transfer_us", "", CTL_BAR_MOVE},
        {"  exposed", "transfer_exposed_us", "", CTL_BAR_MOVE},
        {"decode queue", "decode_queue_us", "decode", CTL_BAR_WAIT},
        {"decode", "decode_us", "decode", CTL_BAR_WORK},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        int64_t us = ctl_waterfall_number(r, row[i].field), from = at;
        if (row[i].kind == CTL_BAR_WAIT && strcmp(row[i].name, "KV wait") == 0) {
            if (waited == 0) {
                continue;
            }
            us = waited;
        }
        us = strcmp(row[i].name, "  exposed") == 0 ? us - waited : us;
        if (strcmp(row[i].name, "transfer") == 0) { /* ends with its exposed part */
            from = at + exposed - waited > transfer ? at + exposed - waited - transfer : 0;
        } else {
            at += us;
        }
        struct ctl_bar *b = add(w, row[i].name, row[i].kind, from, us);
        (void)snprintf(b->where, sizeof b->where, "%s",
                       row[i].node[0] != 0 ? ctl_field_text(r, row[i].node, "") : "");
    }
}

/* A request whose last attempt failed: until when that lasted, and the wait for a pair that never came. */
static void add_failed_end(struct ctl_waterfall *w, const json_t *record)
{
    const json_t *tries = json_object_get(record, "tries");
    size_t n = json_array_size(tries);
    int64_t attempts = ctl_waterfall_number(record, "attempts");
    int64_t total = ctl_waterfall_number(record, "total_us");
    const json_t *last = n > 0 ? json_array_get(tries, n - 1) : NULL;
    int64_t placed = ctl_waterfall_number(last, "placed_us");
    int64_t failed = ctl_waterfall_number(last, "failed_us");
    if (failed == 0 || failed < placed) {
        return;
    }
    add_lost(w, last, placed, failed - placed);
    if (attempts > (int64_t)n && total > failed) {
        (void)add(w, "no pair to retry", CTL_BAR_WAIT, failed, total - failed);
    }
}

void ctl_waterfall_make(const json_t *record, struct ctl_waterfall *out)
{
    memset(out, 0, sizeof *out);
    add_stages(out, record, add_before(out, record));
    add_failed_end(out, record);
    int64_t total = ctl_waterfall_number(record, "total_us");
    out->first_us = ctl_waterfall_number(record, "ttft_us");
    out->axis_us = total > out->axis_us ? total : out->axis_us;
}

int64_t ctl_waterfall_step(int64_t axis_us, int marks)
{
    static const int64_t by[] = {2, 5, 10};
    int64_t ten = 1, step = 1;
    for (int i = 0; axis_us / step > marks; i++) {
        step = ten * by[i % 3];
        ten *= i % 3 == 2 ? 10 : 1;
    }
    return step;
}
