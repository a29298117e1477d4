#define TD_LOG_ROOM "router"
#include "router/rt_model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/text/model_vocab.h"

#define COMPLETION_TOKENS 16u

static td_err say(struct rt_api_error *error, td_err err, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static td_err say(struct rt_api_error *error, td_err err, const char *param, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(error->text, sizeof error->text, fmt, ap);
    va_end(ap);
    (void)snprintf(error->param, sizeof error->param, "%s", param);
    error->err = err;
    return err;
}

static td_err read_file(const char *path, char **out, size_t *out_len)
{
    FILE *f = fopen(path, "rbe");
    if (f == NULL) {
        TD_LOG(ERROR, "cannot open the chat template", "path=%s", path);
        return TD_ERR_NO_FILE;
    }
    char *text = td_zalloc(TD_TEMPLATE_MAX_SOURCE + 1, 1);
    size_t n = text != NULL ? fread(text, 1, TD_TEMPLATE_MAX_SOURCE + 1, f) : 0;
    (void)fclose(f);
    if (text == NULL || n > TD_TEMPLATE_MAX_SOURCE) {
        free(text);
        return text == NULL ? TD_ERR_NO_MEMORY : TD_ERR_FILE_FORMAT;
    }
    *out = text;
    *out_len = n;
    return TD_OK;
}

static td_err make_template(struct rt_model *m, const struct rt_model_params *p)
{
    const struct td_model_tokenizer *t = td_model_tokenizer(m->file);
    const char *source = t->chat_template.data;
    size_t len = t->chat_template.len;
    TD_CLEANUP(td_freep) char *own = NULL;
    char why[256] = "";
    memcpy(m->template_hash, t->template_hash, sizeof m->template_hash);
    if (p->chat_template_file != NULL && p->chat_template_file[0] != 0) {
        TD_TRY(read_file(p->chat_template_file, &own, &len));
        source = own;
    }
    if (len == 0) {
        TD_LOG(WARN, "the model has no chat template",
               "path=%s, /v1/chat/completions will refuse: give one with --chat-template", p->path);
        return TD_OK;
    }
    td_err err = td_template_compile(source, len, &m->chat, why, sizeof why);
    if (err != TD_OK) {
        TD_LOG(ERROR, "chat template does not compile",
               "path=%s why=\"%s\": give another with --chat-template", p->path, why);
    }
    return err;
}

td_err rt_model_open(const struct rt_model_params *p, struct rt_model **out_model)
{
    struct rt_model *m = td_zalloc(1, sizeof *m);
    if (m == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    td_err err = td_model_open(p->path, &m->file);
    err = err == TD_OK ? td_text_vocab_of_model(td_model_tokenizer(m->file), &m->vocab) : err;
    err = err == TD_OK ? make_template(m, p) : err;
    if (err != TD_OK) {
        rt_model_close(m);
        return err;
    }
    const struct td_model_tokenizer *t = td_model_tokenizer(m->file);
    m->n_end_ids = t->n_end_ids;
    memcpy(m->end_ids, t->end_ids, sizeof m->end_ids);
    m->max_model_len = m->file->hp.n_ctx;
    if (p->max_model_len != 0 && p->max_model_len < m->max_model_len) {
        m->max_model_len = p->max_model_len;
    }
    if (p->n_names > TD_COUNT(m->names)) {
        TD_LOG(WARN, "too many served names", "n=%u max=%zu, the rest is not served", p->n_names,
               TD_COUNT(m->names));
    }
    for (uint32_t i = 0; i < p->n_names && i < TD_COUNT(m->names); i++) {
        m->names[m->n_names++] = p->names[i];
    }
    *out_model = m;
    return TD_OK;
}

struct rt_model *rt_model_close(struct rt_model *m)
{
    if (m != NULL) {
        td_template_destroy(m->chat);
        td_text_vocab_destroy(m->vocab);
        td_model_close(m->file);
        free(m);
    }
    return NULL;
}

bool rt_model_serves(const struct rt_model *m, const char *name)
{
    if (name == NULL) {
        return true;
    }
    for (uint32_t i = 0; i < m->n_names; i++) {
        if (strcmp(m->names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

/* ---- encoding ---- */

static td_err encode(const struct rt_model *m, struct td_text_tokenizer *tok,
                     const struct td_text_encode_args *args, const char *param, int32_t **out_ids,
                     uint32_t *out_n, struct rt_api_error *error)
{
    /* The encoder stops at `limit`, so more than the context is never written. */
    size_t n = 0, bound = td_text_encode_bound(args), most = (size_t)m->max_model_len + 8;
    size_t cap = bound < most ? bound : most;
    TD_CLEANUP(td_freep) int32_t *ids = td_zalloc(cap + 1, sizeof *ids);
    if (ids == NULL) {
        return say(error, TD_ERR_NO_MEMORY, "", "out of memory");
    }
    td_err err = td_text_tokenizer_encode(tok, args, ids, cap, &n);
    if (err == TD_ERR_CONTEXT_LENGTH || (err == TD_OK && (n > cap || n > m->max_model_len))) {
        return say(error, TD_ERR_CONTEXT_LENGTH, param,
                   "the prompt is longer than the model's context of %u tokens", m->max_model_len);
    }
    if (err != TD_OK) {
        return say(error, err, "", "the prompt cannot be tokenised: %s", td_err_text(err));
    }
    if (n == 0) {
        return say(error, TD_ERR_BAD_REQUEST, param, "the prompt has no tokens");
    }
    *out_n = (uint32_t)n;
    *out_ids = TD_STEAL(ids);
    return TD_OK;
}

static void token_text(const struct rt_model *m, int32_t id, char *buf, size_t cap)
{
    size_t n = 0;
    const uint8_t *b = id >= 0 ? td_text_vocab_bytes(m->vocab, id, &n) : NULL;
    (void)snprintf(buf, cap, "%.*s", (int)(b != NULL ? n : 0), b != NULL ? (const char *)b : "");
}

static td_err encode_chat(const struct rt_model *m, struct td_text_tokenizer *tok,
                          const struct rt_api_request *r, int64_t now_s, int32_t **out_ids,
                          uint32_t *out_n, struct rt_api_error *error)
{
    char bos[256], eos[256], why[256] = "";
    if (m->chat == NULL) {
        return say(error, TD_ERR_UNSUPPORTED, "messages",
                   "this model has no chat template; use /v1/completions");
    }
    token_text(m, td_text_vocab_bos(m->vocab), bos, sizeof bos);
    token_text(m, td_text_vocab_eos(m->vocab), eos, sizeof eos);
    struct td_template_args args = {.messages = r->messages,
                                    .kwargs = r->template_kwargs,
                                    .bos_token = bos,
                                    .eos_token = eos,
                                    .add_generation_prompt = r->add_generation_prompt ? 1 : 0,
                                    .now_s = now_s};
    struct td_template_output out = {0};
    td_err err = td_template_render(m->chat, &args, &out, why, sizeof why);
    if (err != TD_OK) {
        return say(error, err, "messages", "the chat template refuses these messages: %s", why);
    }
    struct td_text_encode_args enc = {
        .segs = out.segs, .n_segs = out.n_segs, .limit = m->max_model_len};
    err = encode(m, tok, &enc, "messages", out_ids, out_n, error);
    td_template_output_fini(&out);
    return err;
}

static td_err copy_ids(const struct rt_model *m, const struct rt_api_prompt *p, int32_t **out_ids,
                       uint32_t *out_n, struct rt_api_error *error)
{
    size_t vocab = td_text_vocab_size(m->vocab);
    for (uint32_t i = 0; i < p->n_ids; i++) {
        if ((size_t)p->ids[i] >= vocab) {
            return say(error, TD_ERR_BAD_REQUEST, "prompt",
                       "token id %d is not in the vocabulary of %zu", p->ids[i], vocab);
        }
    }
    int32_t *ids = td_zalloc(p->n_ids, sizeof *ids);
    if (ids == NULL) {
        return say(error, TD_ERR_NO_MEMORY, "", "out of memory");
    }
    memcpy(ids, p->ids, p->n_ids * sizeof *ids);
    *out_ids = ids;
    *out_n = p->n_ids;
    return TD_OK;
}

td_err rt_model_encode(const struct rt_model *m, struct td_text_tokenizer *tok,
                       const struct rt_model_prompt *prompt, int32_t **out_ids, uint32_t *out_n,
                       struct rt_api_error *error)
{
    const struct rt_api_request *r = prompt->request;
    if (r->chat) {
        return encode_chat(m, tok, r, prompt->now_s, out_ids, out_n, error);
    }
    const struct rt_api_prompt *p = &r->prompts[prompt->index];
    if (p->ids != NULL) {
        return copy_ids(m, p, out_ids, out_n, error);
    }
    struct td_text_segment seg = {.text = p->text, .len = p->len, .allow_special = false};
    struct td_text_encode_args enc = {.segs = &seg,
                                      .n_segs = 1,
                                      .add_bos = r->add_special && td_text_vocab_adds_bos(m->vocab),
                                      .limit = m->max_model_len};
    return encode(m, tok, &enc, "prompt", out_ids, out_n, error);
}

static td_err check_ids(const struct rt_model *m, const struct td_sampling_params *s,
                        struct rt_api_error *error)
{
    size_t vocab = td_text_vocab_size(m->vocab);
    for (uint32_t i = 0; i < s->n_stop_ids; i++) {
        if ((size_t)s->stop_ids[i] >= vocab) {
            return say(error, TD_ERR_BAD_REQUEST, "stop_token_ids",
                       "token id %d is not in the vocabulary", s->stop_ids[i]);
        }
    }
    for (uint32_t i = 0; i < s->n_bias; i++) {
        if ((size_t)s->bias[i].id >= vocab) {
            return say(error, TD_ERR_BAD_REQUEST, "logit_bias",
                       "token id %d is not in the vocabulary", s->bias[i].id);
        }
    }
    return TD_OK;
}

/* What the client left open is as the model's generation_config.json says. */
static void apply_defaults(const struct rt_model *m, const struct rt_api_request *r,
                           struct td_sampling_params *s)
{
    const struct td_model_defaults *d = &m->file->defaults;
    s->temperature = r->has_temperature ? s->temperature : d->temperature;
    s->top_p = r->has_top_p ? s->top_p : d->top_p;
    s->top_k = r->has_top_k ? s->top_k : (int32_t)d->top_k;
    s->min_p = r->has_min_p ? s->min_p : d->min_p;
    if (!r->has_repetition_penalty) {
        s->repetition_penalty = d->repetition_penalty;
    }
}

td_err rt_model_limit(const struct rt_model *m, const struct rt_api_request *r, uint32_t n_prompt,
                      struct td_sampling_params *s, struct rt_api_error *error)
{
    *s = r->sampling;
    apply_defaults(m, r, s);
    TD_TRY(check_ids(m, s, error));
    if (n_prompt >= m->max_model_len) {
        return say(error, TD_ERR_CONTEXT_LENGTH, r->chat ? "messages" : "prompt",
                   "this model's maximum context length is %u tokens, the prompt has %u",
                   m->max_model_len, n_prompt);
    }
    uint32_t room = m->max_model_len - n_prompt;
    if (s->max_tokens > room) {
        return say(error, TD_ERR_CONTEXT_LENGTH, "max_tokens",
                   "this model's maximum context length is %u tokens; the prompt has %u and "
                   "max_tokens asks for %u",
                   m->max_model_len, n_prompt, s->max_tokens);
    }
    if (s->max_tokens ==
        0) { /* not given: a chat may fill the context, a completion has OpenAI's 16 */
        s->max_tokens = r->chat || room < COMPLETION_TOKENS ? room : COMPLETION_TOKENS;
    }
    s->min_tokens = s->min_tokens < s->max_tokens ? s->min_tokens : s->max_tokens;
    for (uint32_t i = 0;
         !r->ignore_eos && i < m->n_end_ids && s->n_stop_ids < TD_SAMPLING_MAX_STOP_IDS; i++) {
        s->stop_ids[s->n_stop_ids++] = m->end_ids[i];
    }
    if (!r->has_seed) {
        s->seed = td_rng_u64_secure();
    }
    return TD_OK;
}
