#include "router/rt_trace.h"

#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "router/rt_core.h"
#include "router/rt_explain.h"

#define DECISION_MAX 12288 /* bytes of an attribute */
#define MAX_ATTRS    32

/* ---- the context ---- */

static bool sampled_here(const struct rt_shell_params *p, const struct td_trace *t,
                         bool from_caller)
{
    return from_caller && !p->trace_ratio_always ? t->sampled
                                                 : td_trace_in_ratio(t, p->trace_ratio);
}

void rt_trace_begin(const struct rt_shell_params *p, const struct td_http_request *r,
                    struct rt_trace *out)
{
    const char *parent = td_http_header_get(r, "traceparent");
    const char *state = td_http_header_get(r, "tracestate");
    memset(out, 0, sizeof *out);
    bool from_caller = parent != NULL && td_trace_parse(parent, &out->own);
    if (from_caller) {
        memcpy(out->parent, out->own.span_id, sizeof out->parent);
        if (state != NULL && td_tracestate_ok(state)) {
            (void)snprintf(out->state, sizeof out->state, "%s", state);
        }
    }
    if (p->otlp != NULL) {
        if (from_caller) {
            td_trace_new_span(&out->own);
        } else {
            td_trace_new(&out->own);
        }
        out->own.sampled = out->recorded = sampled_here(p, &out->own, from_caller);
    }
    out->known = from_caller || p->otlp != NULL;
    if (out->known) {
        td_trace_format(&out->own, out->traceparent);
    }
}

const char *rt_trace_id(const struct rt_trace *t, char out[33])
{
    out[0] = 0;
    if (t->known) {
        td_trace_hex(t->own.trace_id, 16, out);
    }
    return out;
}

/* ---- spans ---- */

static void put_child(struct td_otlp *o, const struct rt_trace *t, struct td_span *s)
{
    s->trace = t->own;
    s->kind = TD_SPAN_INTERNAL;
    s->state = t->state;
    memcpy(s->parent, t->own.span_id, sizeof s->parent);
    td_trace_new_span(&s->trace);
    td_otlp_put(o, s);
}

/* What `explain` says of this request's attempts, as one JSON text. */
static const char *decision_text(const struct rt_core *core, const struct rt_decision_record *d,
                                 struct td_buf *b)
{
    td_err err = td_buf_puts(b, "{");
    err = err == TD_OK ? rt_explain_json(core, d->number, d->submit_us, b) : err;
    err = err == TD_OK ? td_buf_append(b, "}", 2) : err;
    return err == TD_OK ? (const char *)b->data : "";
}

static void put_attempt(struct td_otlp *o, const struct rt_trace *t, const struct rt_core *core,
                        const struct rt_decision_record *d, const struct rt_decision_record *before,
                        uint32_t choice)
{
    int64_t queued_us = before != NULL && before->failed_us != 0 ? before->failed_us : d->submit_us;
    struct td_buf text;
    td_buf_init(&text, DECISION_MAX);
    struct td_attr attrs[8] = {TD_INT("tandem.attempt", d->attempt),
                               TD_INT("tandem.choice", choice)};
    struct td_span s = {
        .name = "queue", .start_us = queued_us, .end_us = d->at_us, .attrs = attrs, .n_attrs = 2};
    put_child(o, t, &s);
    attrs[2] = TD_TEXT("tandem.prefill_node", d->p_name);
    attrs[3] = TD_TEXT("tandem.decode_node", d->d_name);
    attrs[4] = TD_INT("tandem.candidates", d->n_candidates);
    attrs[5] = TD_REAL("tandem.predicted_ttft_seconds", (double)d->predicted_ttft_us * 1e-6);
    attrs[6] = TD_TEXT("tandem.decision", decision_text(core, d, &text));
    if (d->failure != TD_OK) {
        attrs[7] = TD_TEXT("error.type", td_err_code(d->failure));
    }
    s = (struct td_span){.name = "route",
                         .start_us = d->at_us,
                         .end_us = d->at_us,
                         .attrs = attrs,
                         .n_attrs = d->failure != TD_OK ? 8 : 7,
                         .error = d->failure != TD_OK ? td_err_text(d->failure) : NULL};
    put_child(o, t, &s);
    td_buf_fini(&text);
}

void rt_trace_choice(struct td_otlp *o, const struct rt_trace *t, const struct rt_core *core,
                     uint64_t last_decision, uint32_t choice)
{
    const struct rt_decision_record *tries[RT_EXPLAIN_TRIES];
    if (o == NULL || !t->recorded) {
        return;
    }
    uint32_t n = rt_explain_tries(core, last_decision, tries);
    for (uint32_t i = 0; i < n; i++) {
        put_attempt(o, t, core, tries[i], i > 0 ? tries[i - 1] : NULL, choice);
    }
}

static uint32_t sampling_attrs(const struct rt_trace_request *r, struct td_attr *a, uint32_t n)
{
    const struct td_sampling_params *s = r->sampling;
    if (s == NULL || r->api == NULL) {
        return n;
    }
    a[n++] = TD_INT("gen_ai.request.max_tokens", s->max_tokens);
    a[n++] = TD_REAL("gen_ai.request.temperature", (double)s->temperature);
    a[n++] = TD_REAL("gen_ai.request.top_p", (double)s->top_p);
    a[n++] = TD_INT("gen_ai.request.top_k", s->top_k);
    a[n++] = TD_REAL("gen_ai.request.frequency_penalty", (double)s->frequency_penalty);
    a[n++] = TD_REAL("gen_ai.request.presence_penalty", (double)s->presence_penalty);
    if (r->api->has_seed) {
        a[n++] = TD_INT("gen_ai.request.seed", s->seed);
    }
    if (r->api->n_choices > 1) {
        a[n++] = TD_INT("gen_ai.request.choice.count", r->api->n_choices);
    }
    if (r->api->n_stops > 0) {
        a[n++] = TD_TEXTS("gen_ai.request.stop_sequences", r->api->stops, r->api->n_stops);
    }
    return n;
}

static uint32_t answer_attrs(const struct rt_trace_request *r, struct td_attr *a, uint32_t n)
{
    a[n++] = TD_INT("http.response.status_code", r->status);
    if (r->err != TD_OK) {
        a[n++] = TD_TEXT("error.type", td_err_code(r->err));
    }
    if (r->n_choices == 0) {
        return n;
    }
    a[n++] = TD_TEXT("gen_ai.response.id", r->response_id);
    a[n++] = TD_TEXT("gen_ai.response.model", r->model);
    a[n++] = TD_TEXTS("gen_ai.response.finish_reasons", r->finish, r->n_choices);
    a[n++] = TD_INT("gen_ai.usage.input_tokens", r->input_tokens);
    a[n++] = TD_INT("gen_ai.usage.output_tokens", r->output_tokens);
    if (r->ttft_us > 0) {
        a[n++] = TD_REAL("gen_ai.latency.time_to_first_token", (double)r->ttft_us * 1e-6);
    }
    a[n++] = TD_REAL("gen_ai.latency.e2e", (double)(r->end_us - r->start_us) * 1e-6);
    return n;
}

void rt_trace_end(const struct rt_shell_params *p, uint16_t port, const struct rt_trace *t,
                  const struct rt_trace_request *r)
{
    char name[160];
    const char *operation = r->chat ? "chat" : "text_completion";
    if (p->otlp == NULL || !t->recorded) {
        return;
    }
    (void)snprintf(name, sizeof name, "%s %.120s", operation, r->model);
    struct td_attr attrs[MAX_ATTRS] = {TD_TEXT("gen_ai.operation.name", operation),
                                       TD_TEXT("gen_ai.provider.name", "tandem"),
                                       TD_TEXT("gen_ai.request.model", r->model),
                                       TD_TEXT("server.address", p->host),
                                       TD_INT("server.port", port),
                                       TD_TEXT("http.request.method", "POST"),
                                       TD_TEXT("url.path", r->path),
                                       TD_TEXT("tandem.request_id", r->request_id)};
    uint32_t n = sampling_attrs(r, attrs, 8);
    n = answer_attrs(r, attrs, n);
    /* A server's span is in error when the fault is ours: OpenTelemetry's rule for HTTP. A stream has sent its 200. */
    bool failed = r->err != TD_OK && r->err != TD_ERR_CANCELLED && td_err_http(r->err) >= 500;
    struct td_span s = {.trace = t->own,
                        .name = name,
                        .state = t->state,
                        .kind = TD_SPAN_SERVER,
                        .start_us = r->start_us,
                        .end_us = r->end_us,
                        .attrs = attrs,
                        .n_attrs = n,
                        .error = failed ? td_err_text(r->err) : NULL};
    memcpy(s.parent, t->parent, sizeof s.parent);
    td_otlp_put(p->otlp, &s);
}
