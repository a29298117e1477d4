#include "ctl/export_tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/mem.h"
#include "common/model/gguf.h"
#include "common/model/hf_dir.h"
#include "common/model/model.h"
#include "common/text/hf_files.h"
#include "ctl/log_reason.h"

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
    td_buf_init(&tokenizer, TD_TEXT_HF_MAX_BYTES);
    td_buf_init(&config, TD_TEXT_HF_MAX_BYTES);
    td_err err = td_text_hf_tokenizer(t, &tokenizer);
    err = err == TD_OK ? td_text_hf_tokenizer_config(t, n_ctx, &config) : err;
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
