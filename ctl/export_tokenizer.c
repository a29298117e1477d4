#include "ctl/export_tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/mem.h"
#include "common/model/gguf.h"
#include "common/model/hf_dir.h"
#include "common/model/hf_tok.h"
#include "common/model/model.h"
#include "common/text/split.h"
#include "common/text/vocab.h"
#include "ctl/log_reason.h"

#define MAX_BYTES (256u << 20) /* of a file */

struct options {
    char *model;
};

static const struct td_opt opts[] = {
    CTL_OPT("model", STRING, "", "path", 0, 0, NULL, "GGUF file or Hugging Face directory", model),
};

const struct td_program ctl_export_tokenizer_program = {
    .name = "tandemctl export-tokenizer",
    .summary = "the model's tokenizer as Hugging Face's tokenizer.json and tokenizer_config.json",
    .opts = opts,
    .n_opts = TD_COUNT(opts),
    .struct_bytes = sizeof(struct options)};

/* ---- tokenizer.json ---- */

static td_err put_str(struct td_buf *b, const struct td_str *s)
{
    return td_buf_json_string(b, s->data, s->len);
}

static td_err put_text(struct td_buf *b, const char *text)
{
    return td_buf_json_string(b, text, strlen(text));
}

static const struct td_text_pre *pre_of(const struct td_model_tokenizer *t)
{
    char name[64];
    (void)snprintf(name, sizeof name, "%.*s", (int)(t->pre.len < 63 ? t->pre.len : 63),
                   t->pre.data != NULL ? t->pre.data : "");
    return td_text_pre_find(name);
}

static int32_t type_of(const struct td_model_tokenizer *t, uint32_t i)
{
    return t->types != NULL ? t->types[i] : TD_TEXT_NORMAL;
}

/* Tokens that are found in the text as they stand; special ones are hidden when text is wanted back. */
static td_err put_added(const struct td_model_tokenizer *t, struct td_buf *b)
{
    bool first = true;
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        int32_t type = type_of(t, i);
        bool special = type == TD_TEXT_CONTROL || type == TD_TEXT_UNKNOWN;
        if ((!special && type != TD_TEXT_USER_DEFINED) || t->tokens[i].len == 0) {
            continue;
        }
        TD_TRY(td_buf_printf(b, "%s{\"id\":%u,\"content\":", first ? "" : ",", i));
        TD_TRY(put_str(b, &t->tokens[i]));
        TD_TRY(td_buf_printf(b,
                             ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                             "\"normalized\":false,\"special\":%s}",
                             special ? "true" : "false"));
        first = false;
    }
    return TD_OK;
}

/* The words within which merges are allowed: split.h says each rule as a regular expression. */
static td_err put_pre_tokenizer(enum td_text_pre_kind kind, bool space, struct td_buf *b)
{
    static const char *const patterns[TD_TEXT_PRE_KINDS] = {
        [TD_TEXT_PRE_LLAMA3] = TD_HF_SPLIT_LLAMA3,
        [TD_TEXT_PRE_QWEN2] = TD_HF_SPLIT_QWEN2,
        [TD_TEXT_PRE_QWEN35] = TD_HF_SPLIT_QWEN35,
        [TD_TEXT_PRE_TEKKEN] = TD_HF_SPLIT_TEKKEN,
    };
    const char *prefix = space ? "true" : "false";
    if (kind == TD_TEXT_PRE_GPT2) {
        return td_buf_printf(b,
                             "{\"type\":\"ByteLevel\",\"add_prefix_space\":%s,"
                             "\"trim_offsets\":true,\"use_regex\":true}",
                             prefix);
    }
    TD_TRY(td_buf_puts(b, "{\"type\":\"Sequence\",\"pretokenizers\":["));
    if (patterns[kind] == NULL) {
        TD_TRY(td_buf_puts(b, "{\"type\":\"Digits\",\"individual_digits\":true}"));
    } else {
        TD_TRY(td_buf_puts(b, "{\"type\":\"Split\",\"pattern\":{\"Regex\":"));
        TD_TRY(put_text(b, patterns[kind]));
        TD_TRY(td_buf_puts(b, "},\"behavior\":\"Isolated\",\"invert\":false}"));
    }
    return td_buf_printf(b,
                         ",{\"type\":\"ByteLevel\",\"add_prefix_space\":%s,"
                         "\"trim_offsets\":true,\"use_regex\":%s}]}",
                         prefix, patterns[kind] == NULL ? "true" : "false");
}

/* Puts bos in front when the model's prompts start with it. */
static td_err put_post_processor(const struct td_model_tokenizer *t, struct td_buf *b)
{
    if (!t->add_bos || t->bos < 0) {
        return td_buf_puts(b, "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
                              "\"trim_offsets\":false,\"use_regex\":true}");
    }
    const struct td_str *bos = &t->tokens[t->bos];
    TD_TRY(
        td_buf_puts(b, "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"));
    TD_TRY(put_str(b, bos));
    TD_TRY(td_buf_puts(b, ",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":["
                          "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},"
                          "{\"Sequence\":{\"id\":\"B\",\"type_id\":1}}],\"special_tokens\":{"));
    TD_TRY(put_str(b, bos));
    TD_TRY(td_buf_puts(b, ":{\"id\":"));
    TD_TRY(put_str(b, bos));
    TD_TRY(td_buf_printf(b, ",\"ids\":[%d],\"tokens\":[", t->bos));
    TD_TRY(put_str(b, bos));
    return td_buf_puts(b, "]}}}");
}

static td_err put_model(const struct td_model_tokenizer *t, bool ignore_merges, struct td_buf *b)
{
    TD_TRY(td_buf_printf(b,
                         "{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
                         "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
                         "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":%s,"
                         "\"vocab\":{",
                         ignore_merges ? "true" : "false"));
    bool first = true;
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        if (t->tokens[i].len == 0) {
            continue; /* an id that no text leads to */
        }
        TD_TRY(td_buf_puts(b, first ? "" : ","));
        TD_TRY(put_str(b, &t->tokens[i]));
        TD_TRY(td_buf_printf(b, ":%u", i));
        first = false;
    }
    TD_TRY(td_buf_puts(b, "},\"merges\":["));
    for (uint32_t i = 0; i < t->n_merges; i++) {
        TD_TRY(i > 0 ? td_buf_puts(b, ",") : TD_OK);
        TD_TRY(put_str(b, &t->merges[i]));
    }
    return td_buf_puts(b, "]}");
}

td_err ctl_tokenizer_json(const struct td_model_tokenizer *t, struct td_buf *out)
{
    const struct td_text_pre *pre = pre_of(t);
    if (pre == NULL) {
        return TD_ERR_FILE_UNSUPPORTED;
    }
    bool ignore = t->ignore_merges < 0 ? pre->ignore_merges : t->ignore_merges == 1;
    bool nfc = t->nfc < 0 ? td_text_pre_normalises(pre->kind) : t->nfc == 1;
    TD_TRY(td_buf_puts(out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,"
                            "\"added_tokens\":["));
    TD_TRY(put_added(t, out));
    TD_TRY(td_buf_printf(
        out, "],\"normalizer\":%s,\"pre_tokenizer\":", nfc ? "{\"type\":\"NFC\"}" : "null"));
    TD_TRY(put_pre_tokenizer(pre->kind, t->add_space_prefix, out));
    TD_TRY(td_buf_puts(out, ",\"post_processor\":"));
    TD_TRY(put_post_processor(t, out));
    TD_TRY(td_buf_puts(out, ",\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
                            "\"trim_offsets\":true,\"use_regex\":true},\"model\":"));
    TD_TRY(put_model(t, ignore, out));
    return td_buf_puts(out, "}\n");
}

/* ---- tokenizer_config.json ---- */

td_err ctl_tokenizer_config_json(const struct td_model_tokenizer *t, uint32_t n_ctx,
                                 struct td_buf *out)
{
    const struct {
        const char *key;
        int32_t id;
    } special[] = {{"bos_token", t->bos},
                   {"eos_token", t->eos},
                   {"unk_token", t->unk},
                   {"pad_token", t->pad >= 0 ? t->pad : t->eos}};
    TD_TRY(td_buf_printf(out,
                         "{\n \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n"
                         " \"clean_up_tokenization_spaces\": false,\n \"add_bos_token\": %s",
                         t->add_bos ? "true" : "false"));
    if (n_ctx > 0) {
        TD_TRY(td_buf_printf(out, ",\n \"model_max_length\": %u", n_ctx));
    }
    for (size_t i = 0; i < TD_COUNT(special); i++) {
        if (special[i].id >= 0) {
            TD_TRY(td_buf_printf(out, ",\n \"%s\": ", special[i].key));
            TD_TRY(put_str(out, &t->tokens[special[i].id]));
        }
    }
    if (t->chat_template.len > 0) {
        TD_TRY(td_buf_puts(out, ",\n \"chat_template\": "));
        TD_TRY(put_str(out, &t->chat_template));
    }
    return td_buf_puts(out, "\n}\n");
}

/* ---- the command ---- */

/* Whole or not at all. */
static bool write_file(const char *dir, const char *name, const struct td_buf *b)
{
    char path[4096], tmp[4100];
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= sizeof path) {
        ctl_say("the path is too long: %s", dir);
        return false;
    }
    (void)snprintf(tmp, sizeof tmp, "%s.tmp", path);
    FILE *f = fopen(tmp, "we");
    bool ok = f != NULL && fwrite(b->data, 1, b->len, f) == b->len;
    ok = f != NULL && fclose(f) == 0 && ok;
    ok = ok && rename(tmp, path) == 0;
    if (!ok) {
        ctl_say("cannot write %s: %s", path, strerrordesc_np(errno));
    }
    return ok;
}

static uint32_t context_of(const struct td_gguf *g)
{
    struct td_str arch = {0};
    char key[128];
    uint32_t n = 0;
    if (td_gguf_get_str(g, "general.architecture", &arch) != TD_OK || arch.len > 64) {
        return 0;
    }
    (void)snprintf(key, sizeof key, "%.*s.context_length", (int)arch.len, arch.data);
    return td_gguf_has(g, key) && td_gguf_get_u32(g, key, &n) == TD_OK ? n : 0;
}

static enum ctl_exit export_to(const char *dir, const struct td_model_tokenizer *t, uint32_t n_ctx)
{
    struct td_buf tokenizer, config;
    td_buf_init(&tokenizer, MAX_BYTES);
    td_buf_init(&config, MAX_BYTES);
    td_err err = ctl_tokenizer_json(t, &tokenizer);
    err = err == TD_OK ? ctl_tokenizer_config_json(t, n_ctx, &config) : err;
    bool ok = err == TD_OK;
    if (err == TD_ERR_FILE_UNSUPPORTED) {
        ctl_say("unknown pre-tokeniser \"%.*s\"", (int)t->pre.len, t->pre.data);
    } else if (err != TD_OK) {
        ctl_say("the tokenizer does not fit into memory");
    }
    if (ok && mkdir(dir, 0755) != 0 && errno != EEXIST) {
        ctl_say("cannot make %s: %s", dir, strerrordesc_np(errno));
        ok = false;
    }
    ok = ok && write_file(dir, "tokenizer.json", &tokenizer) &&
         write_file(dir, "tokenizer_config.json", &config);
    if (ok) {
        (void)printf("%s/tokenizer.json: %u tokens, %u merges\n%s/tokenizer_config.json: %s\n", dir,
                     t->n_tokens, t->n_merges, dir,
                     t->chat_template.len > 0 ? "with a chat template" : "without a chat template");
    }
    td_buf_fini(&tokenizer);
    td_buf_fini(&config);
    return ok ? CTL_OK : CTL_FAILED;
}

/* A GGUF file needs no weights for this. */
static enum ctl_exit export_file(const char *path, const char *dir)
{
    struct td_model_tokenizer t;
    TD_CLEANUP(td_gguf_closep) struct td_gguf *g = NULL;
    char why[256];
    td_err err = td_gguf_open(path, &g, why, sizeof why);
    err = err == TD_OK ? td_tok_data_load(g, &t, why, sizeof why) : err;
    if (err != TD_OK) {
        ctl_say("%s: %s", path, why);
        return CTL_FAILED;
    }
    enum ctl_exit status = export_to(dir, &t, context_of(g));
    td_tok_data_fini(&t);
    return status;
}

static bool same_directory(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* What the cluster makes of a directory's own files. */
static enum ctl_exit export_directory(const char *path, const char *dir)
{
    TD_CLEANUP(td_model_closep) struct td_model *m = NULL;
    struct ctl_log_reason logged;
    char why[320];
    if (same_directory(path, dir)) {
        ctl_say("%s is the model's own directory, whose files would be replaced: name another",
                dir);
        return CTL_FAILED;
    }
    ctl_log_reason_begin(&logged);
    td_err err = td_model_open(path, &m);
    ctl_log_reason_end(&logged, why, sizeof why);
    if (err != TD_OK) {
        ctl_say("%s: %s", path, why[0] != 0 ? why : td_err_text(err));
        return CTL_FAILED;
    }
    return export_to(dir, &m->tok, m->hp.n_ctx);
}

enum ctl_exit ctl_export_tokenizer(const void *options, char *const *args)
{
    const struct options *o = options;
    if (o->model[0] == 0) {
        ctl_say("--model is missing");
        return CTL_USAGE;
    }
    return td_hf_is_dir(o->model) ? export_directory(o->model, args[0])
                                  : export_file(o->model, args[0]);
}
