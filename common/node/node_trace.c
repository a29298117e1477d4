#include "common/node/node_trace.h"

#include <string.h>

#include "common/base/mem.h"

static void add(struct nd_stage *out, uint32_t *n, const char *name, int64_t from_us, int64_t to_us)
{
    if (from_us > 0 && to_us >= from_us) {
        out[(*n)++] = (struct nd_stage){name, from_us, to_us};
    }
}

/* The first of the two that has happened, else the end. */
static int64_t until(const struct nd_done *d, int64_t at_us)
{
    return at_us != 0 ? at_us : d->ended_us;
}

uint32_t nd_trace_stages(const struct nd_done *d, struct nd_stage out[ND_SPANS])
{
    uint32_t n = 0;
    bool computes = !d->decode || d->local;
    if (computes) {
        add(out, &n, "prefill_queue", d->arrived_us, until(d, d->exec_us));
        add(out, &n, "prefill", d->exec_us, until(d, d->token_us));
    } else {
        add(out, &n, "reserve", d->arrived_us, until(d, d->table_us));
    }
    if (!d->local) {
        add(out, &n, "kv_transfer", d->xfer_first_us,
            d->xfer_last_us != 0 ? d->xfer_last_us : d->ended_us);
    }
    if (d->decode) {
        int64_t ready_us = d->local ? d->token_us : d->record_us;
        add(out, &n, "decode_queue", ready_us, until(d, d->decode_us));
        add(out, &n, "decode", d->decode_us, until(d, d->last_us));
    }
    return n;
}

static void put_stage(struct td_otlp *o, const char *model, const struct nd_done *d,
                      const struct nd_stage *g, bool failed_here)
{
    int64_t exposed = d->xfer_last_us > d->token_us && d->token_us != 0 && !d->decode
                          ? d->xfer_last_us - d->token_us
                          : 0;
    struct td_attr attrs[12] = {
        TD_TEXT("gen_ai.request.model", model), TD_TEXT("tandem.request_id", d->req),
        TD_TEXT("tandem.role", d->decode ? "decode" : "prefill"),
        TD_INT("tandem.attempt", d->id.attempt), TD_INT("tandem.choice", d->id.choice)};
    uint32_t n = 5;
    if (strcmp(g->name, "prefill") == 0) {
        attrs[n++] = TD_INT("gen_ai.usage.input_tokens", d->n_prompt);
    } else if (strcmp(g->name, "decode") == 0) {
        attrs[n++] = TD_INT("gen_ai.usage.output_tokens", d->n_output);
    } else if (strcmp(g->name, "kv_transfer") == 0) {
        attrs[n++] = TD_INT("tandem.kv.bytes", d->kv_bytes);
        attrs[n++] = TD_INT("tandem.kv.slices", d->n_slices);
        attrs[n++] = TD_TEXT("tandem.kv.transport", d->transport);
        attrs[n++] = TD_REAL("tandem.kv.exposed_seconds", (double)exposed * 1e-6);
    }
    if (failed_here) {
        attrs[n++] = TD_TEXT("error.type", td_err_code(d->err));
    }
    struct td_span s = {.name = g->name,
                        .state = d->state,
                        .kind = TD_SPAN_INTERNAL,
                        .start_us = g->start_us,
                        .end_us = g->end_us,
                        .attrs = attrs,
                        .n_attrs = n,
                        .error = failed_here ? td_err_text(d->err) : NULL};
    if (td_trace_parse(d->trace, &s.trace)) {
        memcpy(s.parent, s.trace.span_id, sizeof s.parent);
        td_trace_new_span(&s.trace);
        td_otlp_put(o, &s);
    }
}

void nd_trace_done(struct td_otlp *o, const char *model, const struct nd_done *d)
{
    struct nd_stage stages[ND_SPANS];
    struct td_trace t;
    if (!td_trace_parse(d->trace, &t) || !t.sampled) {
        return;
    }
    uint32_t n = nd_trace_stages(d, stages);
    /* A client that went is nobody's failure. */
    bool failed = d->err != TD_OK && d->err != TD_ERR_CANCELLED;
    for (uint32_t i = 0; i < n; i++) {
        put_stage(o, model, d, &stages[i], failed && i + 1 == n);
    }
}
