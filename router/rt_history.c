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

td_err rt_history_json(const struct rt_history_record *r, struct td_buf *out)
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
                         ",\"ttft_us\":%" PRId64 ",\"tpot_us\":%" PRId64 ",\"total_us\":%" PRId64,
                         td_err_code(r->err), rt_finish_name(r->finish), r->attempts, r->n_prompt,
                         r->n_output, r->queue_us, r->ttft_us, r->tpot_us, r->total_us));
    return td_buf_printf(out,
                         ",\"prefill_queue_us\":%" PRIu64 ",\"prefill_us\":%" PRIu64
                         ",\"transfer_us\":%" PRIu64 ",\"transfer_exposed_us\":%" PRIu64
                         ",\"decode_queue_us\":%" PRIu64 ",\"decode_us\":%" PRIu64
                         ",\"kv_bytes\":%" PRIu64 ",\"cached_tokens\":%" PRIu64
                         ",\"transport\":\"%s\"}",
                         s->prefill_queue_us, s->prefill_us, s->transfer_us, s->transfer_exposed_us,
                         s->decode_queue_us, s->decode_us, s->kv_bytes, s->cached_tokens,
                         s->transport != NULL ? s->transport : "");
}
