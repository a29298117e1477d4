#include "ctl/doctor_model.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jansson.h>

#include "common/base/mem.h"
#include "common/model/model.h"
#include "common/text/model_vocab.h"
#include "common/text/template.h"
#include "common/text/tokenizer.h"
#include "ctl/log_reason.h"
#include "ctl/output.h"

#define MAX_IDS 256

static const char *reason(const char *logged, td_err err)
{
    return logged[0] != 0 ? logged : td_err_text(err);
}

/* ---- the file ---- */

static struct td_model *open_model(struct ctl_report *r, const char *path)
{
    struct ctl_log_reason logged;
    struct td_model *m = NULL;
    char why[320], size[32], id[17] = "";
    ctl_log_reason_begin(&logged);
    td_err err = td_model_open(path, &m);
    ctl_log_reason_end(&logged, why, sizeof why);
    if (err != TD_OK) {
        const char *remedy =
            err == TD_ERR_NO_FILE ? "check the path and its permissions"
            : err == TD_ERR_FILE_UNSUPPORTED
                ? "use a llama, qwen2, qwen3 or mistral model: GGUF or a Hugging Face folder"
                : "fetch the file again and compare its SHA-256";
        ctl_report_add(r, CTL_V_FAIL, "model file", remedy, "%s: %s", path, reason(why, err));
        return NULL;
    }
    for (int i = 0; i < 8; i++) {
        (void)snprintf(id + 2 * i, 3, "%02x", m->id[i]);
    }
    struct ctl_finding *f = ctl_report_add(
        r, CTL_V_OK, "model file", NULL, "%.*s, %s, identity %s..",
        (int)(m->name.len < 100 ? m->name.len : 100), m->name.data != NULL ? m->name.data : "",
        ctl_format_bytes(m->file_bytes, size, sizeof size), id);
    ctl_finding_value(f, "file_bytes", (double)m->file_bytes);
    return m;
}

static void shape(struct ctl_report *r, const struct td_model *m, struct ctl_model_facts *out)
{
    const struct td_hparams *h = &m->hp;
    char kv[32], window[32] = "";
    if (h->window > 0) {
        (void)snprintf(window, sizeof window, ", window %u", h->window);
    }
    out->weight_bytes = m->weight_bytes;
    out->kv_bytes_per_tok = (uint64_t)h->n_layers * h->n_kv_heads * h->head_dim * 2 * 2;
    struct ctl_finding *f = ctl_report_add(
        r, CTL_V_OK, "architecture", NULL,
        "%s, %u layers, %u wide, %u heads (%u KV), context %u%s; KV takes %s a token",
        td_arch_name(h->arch), h->n_layers, h->n_embd, h->n_heads, h->n_kv_heads, h->n_ctx, window,
        ctl_format_bytes(out->kv_bytes_per_tok, kv, sizeof kv));
    ctl_finding_value(f, "kv_bytes_per_token", (double)out->kv_bytes_per_tok);
}

/* ---- the tokenizer ---- */

/* Text to ids and back; false when it comes back as something else. */
static td_err round_trip(const struct td_text_vocab *v, bool *out_same, size_t *out_n)
{
    static const char text[] = "Hello, world! 12345 gr\xc3\xbc\xc3\x9f \xe4\xb8\x96\xe7\x95\x8c\n";
    struct td_text_segment seg = {.text = text, .len = sizeof text - 1};
    struct td_text_encode_args args = {.segs = &seg, .n_segs = 1};
    TD_CLEANUP(td_text_tokenizer_destroyp) struct td_text_tokenizer *t = NULL;
    int32_t ids[MAX_IDS];
    char back[1024];
    size_t n = 0, at = 0;
    TD_TRY(td_text_tokenizer_create(v, &t));
    TD_TRY(td_text_tokenizer_encode(t, &args, ids, MAX_IDS, &n));
    for (size_t i = 0; i < n && i < MAX_IDS; i++) {
        size_t len = 0;
        const uint8_t *bytes = td_text_vocab_bytes(v, ids[i], &len);
        if (bytes == NULL || at + len >= sizeof back) {
            break;
        }
        memcpy(back + at, bytes, len);
        at += len;
    }
    size_t lead = at > 0 && back[0] == ' ' ? 1 : 0; /* models that put a space in front */
    *out_same = at - lead == sizeof text - 1 && memcmp(back + lead, text, at - lead) == 0;
    *out_n = n;
    return TD_OK;
}

static struct td_text_vocab *tokenizer(struct ctl_report *r, const struct td_model *m)
{
    const struct td_model_tokenizer *t = &m->tok;
    TD_CLEANUP(td_text_vocab_destroyp) struct td_text_vocab *v = NULL;
    char pre[64], why[320];
    struct ctl_log_reason logged;
    bool same = false;
    size_t n = 0;
    (void)snprintf(pre, sizeof pre, "%.*s", (int)(t->pre.len < 63 ? t->pre.len : 63),
                   t->pre.data != NULL ? t->pre.data : "");
    ctl_log_reason_begin(&logged);
    td_err err = td_text_vocab_of_model(t, &v);
    err = err == TD_OK ? round_trip(v, &same, &n) : err;
    ctl_log_reason_end(&logged, why, sizeof why);
    if (err != TD_OK) {
        ctl_report_add(r, CTL_V_FAIL, "tokenizer",
                       "use a model whose pre-tokeniser this version knows (docs), or report it",
                       "pre-tokeniser '%s': %s", pre, reason(why, err));
        return NULL;
    }
    bool covers = td_text_vocab_covers_bytes(v);
    ctl_report_add(r, same ? CTL_V_OK : CTL_V_WARN, "tokenizer",
                   "compare with the model's own tokenizer, and report it",
                   "'%s', %u tokens; a sample text goes to %zu tokens and %s%s", pre, t->n_tokens,
                   n, same ? "back" : "comes back as another",
                   covers ? "" : " (no tokens for some bytes that are no UTF-8)");
    return TD_STEAL(v);
}

/* ---- the chat template ---- */

/* The template's source: the file's, or the model's own. NULL with a finding when it cannot be read. */
static char *source(struct ctl_report *r, const struct td_model *m, const char *path, size_t *out_n)
{
    char *text = td_zalloc(TD_TEMPLATE_MAX_SOURCE + 1, 1);
    if (text == NULL) {
        ctl_report_add(r, CTL_V_FAIL, "chat template", "free memory", "out of memory");
        return NULL;
    }
    if (path[0] == 0) {
        size_t n = m->tok.chat_template.len;
        *out_n = n <= TD_TEMPLATE_MAX_SOURCE ? n : TD_TEMPLATE_MAX_SOURCE;
        memcpy(text, n > 0 ? m->tok.chat_template.data : "", *out_n);
        return text;
    }
    FILE *f = fopen(path, "re");
    if (f == NULL) {
        ctl_report_add(r, CTL_V_FAIL, "chat template", "check the path and its permissions",
                       "%s cannot be opened", path);
        free(text);
        return NULL;
    }
    *out_n = fread(text, 1, TD_TEMPLATE_MAX_SOURCE, f);
    (void)fclose(f);
    return text;
}

static void token_text(const struct td_text_vocab *v, int32_t id, char *buf, size_t cap)
{
    size_t n = 0;
    const uint8_t *b = v != NULL && id >= 0 ? td_text_vocab_bytes(v, id, &n) : NULL;
    (void)snprintf(buf, cap, "%.*s", (int)(b != NULL ? n : 0), b != NULL ? (const char *)b : "");
}

static td_err render(const struct td_template *t, const struct td_text_vocab *v, size_t *out_bytes,
                     char *why, size_t why_cap)
{
    char bos[256], eos[256];
    struct td_template_output out = {0};
    json_t *messages =
        json_pack("[{s:s,s:s},{s:s,s:s},{s:s,s:s}]", "role", "user", "content", "Hi", "role",
                  "assistant", "content", "Hello.", "role", "user", "content", "Bye");
    if (messages == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    token_text(v, v != NULL ? td_text_vocab_bos(v) : -1, bos, sizeof bos);
    token_text(v, v != NULL ? td_text_vocab_eos(v) : -1, eos, sizeof eos);
    struct td_template_args args = {.messages = messages,
                                    .bos_token = bos,
                                    .eos_token = eos,
                                    .add_generation_prompt = 1,
                                    .now_s = (int64_t)time(NULL)};
    td_err err = td_template_render(t, &args, &out, why, why_cap);
    if (err == TD_OK) {
        *out_bytes = out.text.len;
        td_template_output_fini(&out);
    }
    json_decref(messages);
    return err;
}

static void chat_template(struct ctl_report *r, const struct td_model *m, const char *path,
                          const struct td_text_vocab *v)
{
    TD_CLEANUP(td_template_destroyp) struct td_template *t = NULL;
    char why[256] = "";
    size_t len = 0, bytes = 0;
    TD_CLEANUP(td_freep) char *text = source(r, m, path, &len);
    if (text == NULL) {
        return;
    }
    if (len == 0) {
        ctl_report_add(r, CTL_V_WARN, "chat template",
                       "give one with --chat-template; /v1/completions works without",
                       "the model has none: /v1/chat/completions will refuse");
        return;
    }
    td_err err = td_template_compile(text, len, &t, why, sizeof why);
    if (err != TD_OK) {
        ctl_report_add(r, CTL_V_FAIL, "chat template", "give another with --chat-template",
                       "does not compile: %s", reason(why, err));
        return;
    }
    err = render(t, v, &bytes, why, sizeof why);
    if (err != TD_OK) {
        ctl_report_add(r, CTL_V_WARN, "chat template",
                       "give another with --chat-template if clients see this too",
                       "compiles, but refuses user, assistant, user: %s", reason(why, err));
        return;
    }
    ctl_report_add(r, CTL_V_OK, "chat template", NULL,
                   "%zu bytes; three short messages render to %zu bytes", len, bytes);
}

void ctl_doctor_model(struct ctl_report *r, const char *path, const char *template_path,
                      struct ctl_model_facts *out_facts)
{
    *out_facts = (struct ctl_model_facts){0};
    TD_CLEANUP(td_model_closep) struct td_model *m = open_model(r, path);
    if (m == NULL) {
        return;
    }
    shape(r, m, out_facts);
    TD_CLEANUP(td_text_vocab_destroyp) struct td_text_vocab *v = tokenizer(r, m);
    chat_template(r, m, template_path, v);
}
