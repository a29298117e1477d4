/* Design: a probe is an ordinary request of the core's, pinned to one pair, with a prompt of arbitrary tokens and two
 * tokens of output: the second one can only come from decode, so its end proves prefill, transfer and decode. Its stage
 * times are the answer. It is never replayed: its failure is the answer, too. A parked one measures the link: decode hears
 * of it when prefill has all KV, so that nothing but the data plane is in the time of its transfer.
 */
#define TD_LOG_ROOM "router"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/io/http_error.h"
#include "router/rt_shell_int.h"

#define PROBE_BUDGET_US 20000000
#define PROBE_OUTPUT    2
#define PROBE_PRIORITY  1000 /* after clients' requests */

struct rt_probe *rt__probe_of(struct rt_shell *s, const struct rt_action *a)
{
    for (uint32_t i = 0; i < RT_MAX_PROBES; i++) {
        if (a->user == &s->probes[i]) {
            return s->probes[i].used ? &s->probes[i] : NULL;
        }
    }
    return NULL;
}

void rt__probe_token(struct rt_probe *p)
{
    p->first_us = p->first_us != 0 ? p->first_us : td_now_us();
}

static td_err text(struct td_buf *b, const char *key, const char *value)
{
    TD_TRY(td_buf_printf(b, "\"%s\":", key));
    return td_buf_json_string(b, value, strlen(value));
}

static td_err result(const struct rt_probe *p, const struct rt_action *a, struct td_buf *b)
{
    const struct td_wire_stages *s = &a->stages;
    TD_TRY(td_buf_printf(b, "{\"ok\":%s,\"code\":\"%s\",", a->err == TD_OK ? "true" : "false",
                         td_err_code(a->err)));
    TD_TRY(text(b, "text", a->err != TD_OK ? a->text : ""));
    TD_TRY(td_buf_puts(b, ","));
    TD_TRY(text(b, "prefill", a->p_name));
    TD_TRY(td_buf_puts(b, ","));
    TD_TRY(text(b, "decode", a->d_name));
    return td_buf_printf(
        b,
        ",\"parked\":%s,\"transport\":\"%s\",\"prompt_tokens\":%u,\"kv_bytes\":%" PRIu64
        ",\"transfer_us\":%" PRIu64 ",\"transfer_exposed_us\":%" PRIu64 ",\"prefill_us\":%" PRIu64
        ",\"ttft_us\":%" PRId64 ",\"total_us\":%" PRId64 "}",
        p->park ? "true" : "false", s->transport != NULL ? s->transport : "", p->n_prompt,
        s->kv_bytes, s->transfer_us, s->transfer_exposed_us, s->prefill_us,
        p->first_us != 0 ? p->first_us - p->started_us : 0, td_now_us() - p->started_us);
}

void rt__probe_end(struct rt_probe *p, const struct rt_action *a)
{
    struct td_http_exchange *x = p->x;
    struct td_buf b;
    p->used = false;
    p->x = NULL;
    if (x == NULL) {
        return;
    }
    td_buf_init(&b, 65536);
    td_err err = result(p, a, &b);
    if (err != TD_OK) {
        td_http_refuse(x, err, "the answer does not fit into memory", NULL, 1);
    } else {
        td_http_respond(x, 200, NULL, 0, "application/json", b.data, b.len);
    }
    td_buf_fini(&b);
}

static void on_gone(void *arg)
{
    struct rt_probe *p = arg;
    p->x = NULL;
    if (p->counter != 0) {
        rt__shell_cancel(p->shell, p->counter, TD_ERR_CANCELLED);
    }
}

static struct rt_probe *take_slot(struct rt_shell *s, struct td_http_exchange *x, uint32_t n_prompt)
{
    for (uint32_t i = 0; i < RT_MAX_PROBES; i++) {
        struct rt_probe *p = &s->probes[i];
        if (!p->used) {
            *p = (struct rt_probe){
                .shell = s, .x = x, .used = true, .started_us = td_now_us(), .n_prompt = n_prompt};
            return p;
        }
    }
    return NULL;
}

/* Arbitrary tokens, each time others, so that no prefix cache shortens the way. */
static int32_t *make_prompt(const struct rt_shell *s, uint32_t n)
{
    uint64_t vocab = td_text_vocab_size(s->model->vocab), first = td_rng_u64_secure();
    int32_t *ids = td_zalloc(n, sizeof *ids);
    for (uint32_t i = 0; ids != NULL && i < n; i++) {
        ids[i] = (int32_t)((first + i * 7u) % vocab);
    }
    return ids;
}

void rt__probe_start(struct rt_shell *s, struct td_http_exchange *x, uint64_t p_epoch,
                     uint64_t d_epoch, uint32_t n_prompt, bool park)
{
    uint32_t room =
        s->model->max_model_len > PROBE_OUTPUT + 1 ? s->model->max_model_len - PROBE_OUTPUT - 1 : 1;
    n_prompt = n_prompt < room ? n_prompt : room;
    TD_CLEANUP(td_freep) int32_t *ids = make_prompt(s, n_prompt);
    struct rt_probe *p = ids != NULL ? take_slot(s, x, n_prompt) : NULL;
    if (p == NULL) {
        td_http_refuse(x, ids != NULL ? TD_ERR_OVERLOADED : TD_ERR_NO_MEMORY,
                       "as many probes as there may be are running", NULL, 1);
        return;
    }
    p->park = park;
    struct rt_submit sub = {.prompt = ids,
                            .n_prompt = n_prompt,
                            .sampling = {.top_p = 1,
                                         .repetition_penalty = 1,
                                         .max_tokens = PROBE_OUTPUT,
                                         .min_tokens = PROBE_OUTPUT},
                            .priority = PROBE_PRIORITY,
                            .budget_us = PROBE_BUDGET_US,
                            .tenant = "",
                            .request_id = "tandem-probe",
                            .only_p = p_epoch,
                            .only_d = d_epoch,
                            .park = park,
                            .user = p};
    td_rng_fill(sub.nonce, sizeof sub.nonce);
    td_rng_fill(sub.cache_salt, sizeof sub.cache_salt);
    TD_LOG(INFO, "probe", "prefill=%016" PRIx64 " decode=%016" PRIx64 " tokens=%u park=%d", p_epoch,
           d_epoch, n_prompt, park);
    struct rt_event ev = {.type = RT_EV_SUBMIT, .submit = &sub};
    td_http_exchange_on_gone(x, on_gone, p);
    /* A refusal has answered, and freed the slot, before this returns. */
    uint64_t counter = 0;
    rt__shell_event(s, &ev, &counter);
    p->counter = counter;
}
