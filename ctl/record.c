#include "ctl/record.h"

#include <string.h>

#include "ctl/call.h"

#define ARENA_BYTES (16u << 20)
#define ASK_MAX     1024

/* ---- attempts ---- */

static json_t *pair_json(const struct td_api_pair *p)
{
    return json_pack("{s:s, s:s, s:b, s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s}",
                     "prefill", p->prefill, "decode", p->decode, "chosen", (int)p->chosen,
                     "excluded", p->excluded, "avoided", (int)p->avoided, "score_us",
                     (json_int_t)p->score_us, "prefill_us", (json_int_t)p->prefill_us, "wait_us",
                     (json_int_t)p->wait_us, "decode_us", (json_int_t)p->decode_us,
                     "waiting_tokens", (json_int_t)p->waiting_tok, "free_blocks",
                     (json_int_t)p->free_blk, "needed_blocks", (json_int_t)p->need_blk, "running",
                     (json_int_t)p->running, "why_not", p->why_not);
}

/* Takes `one`; false when there is none, or no memory. */
static bool append(json_t *list, json_t *one)
{
    return one != NULL && json_array_append_new(list, one) == 0;
}

static json_t *pairs_json(const struct td_api_try *t)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < t->n_pairs && list != NULL; i++) {
        if (!append(list, pair_json(&t->pairs[i]))) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *skipped_json(const struct td_api_try *t)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < t->n_skipped && list != NULL; i++) {
        if (!append(list, json_pack("{s:s, s:s}", "node", t->skipped[i].node, "why",
                                    t->skipped[i].why))) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *try_json(const struct td_api_try *t)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:s, s:s, s:s, s:I, s:I, s:I, s:o, s:I, s:o}", "attempt",
                     (json_int_t)t->number, "submitted_us", (json_int_t)t->submitted_us,
                     "placed_us", (json_int_t)t->placed_us, "failed_us", (json_int_t)t->failed_us,
                     "error", t->error, "prefill", t->prefill, "decode", t->decode,
                     "predicted_ttft_us", (json_int_t)t->predicted_ttft_us, "predicted_us",
                     (json_int_t)t->predicted_us, "pairs_seen", (json_int_t)t->pairs_seen,
                     "candidates", pairs_json(t), "nodes_skipped", (json_int_t)t->nodes_skipped,
                     "skipped", skipped_json(t));
}

static json_t *tries_json(const struct td_api_try *tries, uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < n && list != NULL; i++) {
        if (!append(list, try_json(&tries[i]))) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* ---- the request: in the order and with the names of the router's document ---- */

static json_int_t stage(const struct td_api_explain *e, const char *name)
{
    for (uint32_t i = 0; i < e->n_stages; i++) {
        if (strcmp(e->stages[i].name, name) == 0) {
            return (json_int_t)e->stages[i].took_us;
        }
    }
    return 0;
}

static json_t *finished_json(const struct td_api_explain *e, json_t *tries)
{
    static const char *const reasons[] = {"", "stop", "length", "abort", "error"};
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
                     "s:I, s:I, s:I, "
                     "s:I, s:I, s:I, s:s, s:o}",
                     "request_id", e->id, "prefill", e->prefill, "decode", e->decode, "code",
                     e->code[0] != 0 ? e->code : "ok", "finish", reasons[e->finish], "attempts",
                     (json_int_t)e->attempts, "prompt_tokens", (json_int_t)e->n_prompt,
                     "output_tokens", (json_int_t)e->n_output, "router_queue_us",
                     stage(e, "router_queue"), "ttft_us", (json_int_t)e->ttft_us, "tpot_us",
                     (json_int_t)e->tpot_us, "total_us", (json_int_t)e->total_us, "ended_unix_us",
                     (json_int_t)e->ended_unix_us, "prefill_queue_us", stage(e, "prefill_queue"),
                     "prefill_us", stage(e, "prefill"), "transfer_us", (json_int_t)e->transfer_us,
                     "transfer_exposed_us", stage(e, "transfer_exposed"), "decode_queue_us",
                     stage(e, "decode_queue"), "decode_us", stage(e, "decode"), "kv_bytes",
                     (json_int_t)e->kv_bytes, "cached_tokens", (json_int_t)e->cached_tok,
                     "transport", e->transport, "tries", tries);
}

static json_t *running_json(const struct td_api_explain *e, json_t *tries)
{
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:I, s:o}", "request_id", e->id,
                     "phase", e->phase, "attempt", (json_int_t)e->attempts - 1, "prompt_tokens",
                     (json_int_t)e->n_prompt, "output_tokens", (json_int_t)e->n_output, "age_us",
                     (json_int_t)e->age_us, "deadline_in_us", (json_int_t)e->deadline_in_us,
                     "prefill", e->prefill, "decode", e->decode, "attempts",
                     (json_int_t)e->attempts, "tries", tries);
}

json_t *ctl_record_json(const struct td_api_explain *e, const struct td_api_try *tries, uint32_t n)
{
    json_t *list = tries_json(tries, n); /* json_pack takes it, also when it fails */
    return e->phase[0] != 0 ? running_json(e, list) : finished_json(e, list);
}

/* ---- asking ---- */

static enum ctl_exit take(const struct ctl_admin *a, const struct td_grpc_client_answer *answer,
                          json_t **out_record)
{
    struct td_api_explain e;
    const struct td_api_try *tries = NULL;
    const uint8_t *data = NULL;
    size_t len = 0;
    uint32_t n = 0;
    struct td_arena *arena = td_arena_create(ARENA_BYTES);
    bool ok = arena != NULL && td_grpc_client_message(answer, 0, &data, &len) &&
              td_api_explained_decode(data, len, arena, &e, &tries, &n) == TD_OK;
    json_t *record = ok ? ctl_record_json(&e, tries, n) : NULL;
    td_arena_destroy(arena);
    if (record == NULL) {
        ctl_say("%s: not the answer of a router of this version", a->router);
        return CTL_FAILED;
    }
    *out_record = record;
    return CTL_OK;
}

enum ctl_exit ctl_record_ask(const struct ctl_admin *a, const char *id, json_t **out_record)
{
    struct td_buf message;
    struct td_grpc_client_answer answer;
    td_buf_init(&message, ASK_MAX);
    enum ctl_exit status = CTL_USAGE;
    if (td_api_id_encode(&message, id) == TD_OK) { /* an id of at most 128 bytes fits */
        status = ctl_call_ask(a, "Explain", &message, &answer);
    }
    td_buf_fini(&message);
    if (status != CTL_OK) {
        return status;
    }
    *out_record = NULL;
    if (answer.status != TD_GRPC_OK && answer.status != TD_GRPC_NOT_FOUND) {
        return ctl_call_judge(a->router, a->quiet, &answer);
    }
    status = answer.status == TD_GRPC_OK ? take(a, &answer, out_record) : CTL_OK;
    td_grpc_client_answer_fini(&answer);
    return status;
}
