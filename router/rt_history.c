#include "router/rt_history.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "router/rt_reply.h"

struct rt_history {
    uint64_t n; /* ever added */
    struct rt_history_record ring[RT_HISTORY];
};

struct rt_history *rt_history_create(void)
{
    return td_zalloc(1, sizeof(struct rt_history));
}

struct rt_history *rt_history_destroy(struct rt_history *h)
{
    free(h);
    return NULL;
}

void rt_history_add(struct rt_history *h, const struct rt_history_record *r)
{
    h->ring[h->n++ % RT_HISTORY] = *r;
}

const struct rt_history_record *rt_history_get(const struct rt_history *h, uint32_t back)
{
    if (back >= RT_HISTORY || back >= h->n) {
        return NULL;
    }
    return &h->ring[(h->n - 1 - back) % RT_HISTORY];
}

const struct rt_history_record *rt_history_find(const struct rt_history *h, const char *request_id)
{
    for (uint32_t back = 0; back < RT_HISTORY; back++) {
        const struct rt_history_record *r = rt_history_get(h, back);
        if (r == NULL || strcmp(r->request_id, request_id) == 0) {
            return r;
        }
    }
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* The value that `percent` of the sorted ones do not pass. */
static int64_t at_percent(const int64_t *sorted, uint32_t n, uint32_t percent)
{
    return n > 0 ? sorted[(n * percent + 99) / 100 - 1] : 0;
}

void rt_history_recent(const struct rt_history *h, int64_t since_wall_us,
                       struct rt_history_recent *out)
{
    int64_t ttft[RT_HISTORY], tpot[RT_HISTORY];
    uint32_t n_ttft = 0, n_tpot = 0;
    memset(out, 0, sizeof *out);
    for (uint32_t back = 0; back < RT_HISTORY; back++) {
        const struct rt_history_record *r = rt_history_get(h, back);
        if (r == NULL || r->wall_us < since_wall_us) {
            break;
        }
        out->finished += r->err == TD_OK ? 1 : 0;
        out->failed += r->err == TD_OK ? 0 : 1;
        if (r->n_output > 0) {
            ttft[n_ttft++] = r->ttft_us;
        }
        if (r->n_output > 1) {
            tpot[n_tpot++] = r->tpot_us;
        }
    }
    qsort(ttft, n_ttft, sizeof ttft[0], by_value);
    qsort(tpot, n_tpot, sizeof tpot[0], by_value);
    out->ttft_p50_us = at_percent(ttft, n_ttft, 50);
    out->ttft_p95_us = at_percent(ttft, n_ttft, 95);
    out->tpot_p50_us = at_percent(tpot, n_tpot, 50);
    out->tpot_p95_us = at_percent(tpot, n_tpot, 95);
}

td_err rt_history_json(const struct rt_history_record *r, struct td_buf *out)
{
    TD_TRY(rt_history_fields(r, out));
    return td_buf_puts(out, "}");
}

td_err rt_history_fields(const struct rt_history_record *r, struct td_buf *out)
{
    const struct td_wire_stages *s = &r->stages;
    TD_TRY(td_buf_puts(out, "{\"request_id\":"));
    TD_TRY(td_buf_json_string(out, r->request_id, strlen(r->request_id)));
    TD_TRY(td_buf_puts(out, ",\"prefill\":"));
    TD_TRY(td_buf_json_string(out, r->prefill, strlen(r->prefill)));
    TD_TRY(td_buf_puts(out, ",\"decode\":"));
    TD_TRY(td_buf_json_string(out, r->decode, strlen(r->decode)));
    TD_TRY(td_buf_printf(out,
                         ",\"code\":\"%s\",\"finish\":\"%s\",\"attempts\":%u,"
                         "\"prompt_tokens\":%u,\"output_tokens\":%u,\"router_queue_us\":%" PRId64
                         ",\"ttft_us\":%" PRId64 ",\"tpot_us\":%" PRId64 ",\"total_us\":%" PRId64
                         ",\"ended_unix_us\":%" PRId64,
                         td_err_code(r->err), rt_finish_name(r->finish), r->attempts, r->n_prompt,
                         r->n_output, r->queue_us, r->ttft_us, r->tpot_us, r->total_us,
                         r->wall_us));
    return td_buf_printf(out,
                         ",\"prefill_queue_us\":%" PRIu64 ",\"prefill_us\":%" PRIu64
                         ",\"transfer_us\":%" PRIu64 ",\"transfer_exposed_us\":%" PRIu64
                         ",\"decode_queue_us\":%" PRIu64 ",\"decode_us\":%" PRIu64
                         ",\"kv_bytes\":%" PRIu64 ",\"cached_tokens\":%" PRIu64
                         ",\"transport\":\"%s\"",
                         s->prefill_queue_us, s->prefill_us, s->transfer_us, s->transfer_exposed_us,
                         s->decode_queue_us, s->decode_us, s->kv_bytes, s->cached_tokens,
                         s->transport != NULL ? s->transport : "");
}
