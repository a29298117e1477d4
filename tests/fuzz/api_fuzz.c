/* Request bodies: the first byte says chat ('c') or completion, the rest is the body. What is accepted must keep its
 * promises, what is refused must say why and leave nothing behind.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/utf8.h"
#include "router/rt_api.h"
#include "tests/fuzz/fuzz.h"

static struct rt_api_request req;

static void check(bool ok)
{
    if (!ok) {
        abort();
    }
}

static void check_accepted(void)
{
    const struct td_sampling_params *s = &req.sampling;
    check(req.chat ? json_array_size(req.messages) > 0 : req.n_prompts > 0);
    check(req.n_choices >= 1 && req.n_choices <= RT_API_MAX_CHOICES);
    check(req.n_prompts * req.n_choices <= RT_API_MAX_PROMPTS);
    check(s->temperature >= 0 && s->top_p > 0 && s->top_p <= 1 && s->top_k >= 0);
    check(s->n_stop_ids <= TD_SAMPLING_MAX_STOP_IDS && s->n_bias <= TD_SAMPLING_MAX_BIAS);
    check(s->max_tokens == 0 || s->min_tokens <= s->max_tokens);
    for (uint32_t i = 0; i < req.n_stops; i++) {
        check(req.stops[i][0] != 0);
    }
    for (uint32_t i = 0; i < req.n_prompts; i++) {
        const struct rt_api_prompt *p = &req.prompts[i];
        check((p->text != NULL) != (p->ids != NULL));
        check(p->text == NULL || p->len == 0 || td_utf8_valid(p->text, p->len));
        for (uint32_t k = 0; p->ids != NULL && k < p->n_ids; k++) {
            check(p->ids[k] >= 0);
        }
    }
    for (size_t i = 0; i < json_array_size(req.messages); i++) {
        const json_t *m = json_array_get(req.messages, i);
        check(json_is_string(json_object_get(m, "content")));
        check(json_is_string(json_object_get(m, "role")));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool silent;
    struct rt_api_error error;
    if (!silent) { /* unknown fields are logged */
        td_log_set_fd(open("/dev/null", O_WRONLY | O_CLOEXEC));
        silent = true;
    }
    if (size < 1 || size > 65536) {
        return 0;
    }
    uint8_t *body = calloc(size, 1); /* ends where the body ends */
    if (body == NULL) {
        return 0;
    }
    memcpy(body, data + 1, size - 1);
    uint8_t *exact = size > 1 ? realloc(body, size - 1) : body;
    body = exact != NULL ? exact : body;
    if (rt_api_parse(data[0] == 'c', body, size - 1, &req, &error) == TD_OK) {
        check(error.err == TD_OK);
        check_accepted();
    } else {
        check(error.err != TD_OK && error.text[0] != 0 && req.root == NULL && req.bias == NULL);
    }
    rt_api_request_fini(&req);
    free(body);
    return 0;
}
