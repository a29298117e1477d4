/* Requests of outside routers (VllmEngine): the first byte says the node's role, the rest is a GenerateRequest. What is accepted must
 * be what an engine may be asked, what is refused must say why.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/node/vllm_request.h"
#include "common/text/stop.h"
#include "tests/fuzz/fuzz.h"

#define N_VOCAB 1000u
#define CONTEXT 4096u

static void check(bool ok)
{
    if (!ok) {
        abort();
    }
}

static void check_accepted(enum td_role role, const struct nd_vllm_request *r, uint32_t n_prompt)
{
    const struct td_sampling_params *s = &r->sampling;
    check((role == TD_ROLE_PREFILL) == (r->mode == ND_LOCAL_HOLD));
    check((role == TD_ROLE_DECODE) == (r->mode == ND_LOCAL_TAKE));
    check(r->n_choices >= 1 && r->n_choices <= ND_VLLM_MAX_CHOICES);
    check(s->temperature >= 0 && s->top_p > 0 && s->top_p <= 1 && s->top_k >= 0);
    check(s->min_p >= 0 && s->min_p <= 1 && s->repetition_penalty > 0);
    check(s->max_tokens >= 1 && s->max_tokens <= CONTEXT - n_prompt);
    check(s->min_tokens <= s->max_tokens);
    check(s->n_stop_ids <= TD_SAMPLING_MAX_STOP_IDS && r->n_asked_ids <= s->n_stop_ids);
    check(s->n_bias <= TD_SAMPLING_MAX_BIAS && r->n_stop <= TD_TEXT_STOPS_MAX);
    for (uint32_t i = 0; i < s->n_stop_ids; i++) {
        check(s->stop_ids[i] >= 0 && (uint32_t)s->stop_ids[i] < N_VOCAB);
    }
    for (uint32_t i = 0; i < s->n_bias; i++) {
        check(s->bias[i].id >= 0 && (uint32_t)s->bias[i].id < N_VOCAB);
    }
    for (uint32_t i = 0; i < r->n_stop; i++) {
        check(r->stop[i][0] != 0);
    }
    check(strlen(r->handoff) < sizeof r->handoff);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum td_role roles[] = {TD_ROLE_PREFILL, TD_ROLE_DECODE, TD_ROLE_BOTH};
    static const int32_t end_ids[] = {2};
    static struct td_arena *arena;
    static struct nd_vllm_request r;
    struct td_vllm_generate g;
    struct td_vllm_abort a;
    int32_t rank = 0;
    char why[ND_VLLM_WHY] = "";
    if (size < 1 || size > 65536) {
        return 0;
    }
    if (arena == NULL) {
        arena = td_arena_create(64u << 20);
    }
    check(arena != NULL);
    td_arena_reset(arena);
    TD_IGNORE(td_vllm_abort_decode(data + 1, size - 1, arena, &a));
    TD_IGNORE(td_vllm_loads_decode(data + 1, size - 1, arena, &rank));
    if (td_vllm_generate_decode(data + 1, size - 1, arena, &g) != TD_OK) {
        return 0;
    }
    const struct nd_vllm_limits limits = {.role = roles[data[0] % 3],
                                          .n_vocab = N_VOCAB,
                                          .max_model_len = CONTEXT,
                                          .pool_tok = CONTEXT,
                                          .end_ids = end_ids,
                                          .n_end_ids = 1,
                                          .defaults = TD_MODEL_DEFAULTS_NONE};
    bool ids_fit = nd_vllm_ids_check(&limits, g.ids, g.n_ids, why) == TD_OK;
    check(ids_fit || why[0] != 0);
    uint32_t n_prompt = g.input == TD_VLLM_IDS ? g.n_ids : 1;
    if (nd_vllm_request_read(&limits, &g, n_prompt, &r, why) == TD_OK) {
        check_accepted(limits.role, &r, n_prompt);
    } else {
        check(why[0] != 0);
    }
    return 0;
}
