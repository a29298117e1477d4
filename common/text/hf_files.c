#include "common/text/hf_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <minizip/ioapi.h>
#include <minizip/zip.h>

#include "common/base/mem.h"
#include "common/model/hf_tok.h"
#include "common/text/split.h"
#include "common/text/vocab.h"

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

td_err td_text_hf_tokenizer(const struct td_model_tokenizer *t, struct td_buf *out)
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

td_err td_text_hf_tokenizer_config(const struct td_model_tokenizer *t, uint32_t n_ctx,
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

/* ---- both in one archive ---- */

static voidpf zip_open(voidpf opaque, const void *name, int mode)
{
    (void)name;
    (void)mode;
    return opaque; /* the stream in memory */
}

/* The one date a zip archive can begin with, so that the same tokenizer gives the same bytes. */
static const zip_fileinfo no_date = {.tmz_date = {.tm_year = 1980, .tm_mday = 1}};

static td_err zip_add(zipFile zip, const char *name, const struct td_buf *b)
{
    bool ok = zipOpenNewFileInZip(zip, name, &no_date, NULL, 0, NULL, 0, NULL, Z_DEFLATED,
                                  Z_DEFAULT_COMPRESSION) == ZIP_OK &&
              zipWriteInFileInZip(zip, b->data, (unsigned)b->len) == ZIP_OK &&
              zipCloseFileInZip(zip) == ZIP_OK;
    return ok ? TD_OK : TD_ERR_NO_MEMORY;
}

/* minizip writes to a FILE that is memory. */
static td_err zip_both(const struct td_buf *tokenizer, const struct td_buf *config, FILE *memory)
{
    zlib_filefunc64_def io;
    fill_fopen64_filefunc(&io);
    io.zopen64_file = zip_open;
    io.opaque = memory;
    zipFile zip = zipOpen2_64("memory", APPEND_STATUS_CREATE, NULL, &io);
    if (zip == NULL) {
        (void)fclose(memory);
        return TD_ERR_NO_MEMORY;
    }
    td_err err = zip_add(zip, "tokenizer.json", tokenizer);
    err = err == TD_OK ? zip_add(zip, "tokenizer_config.json", config) : err;
    bool closed = zipClose(zip, NULL) == ZIP_OK; /* and the stream with it */
    return err == TD_OK && !closed ? TD_ERR_NO_MEMORY : err;
}

td_err td_text_hf_zip(const struct td_model_tokenizer *t, uint32_t n_ctx, struct td_buf *out)
{
    struct td_buf tokenizer, config;
    char *data = NULL;
    size_t len = 0;
    td_buf_init(&tokenizer, TD_TEXT_HF_MAX_BYTES);
    td_buf_init(&config, TD_TEXT_HF_MAX_BYTES);
    td_err err = td_text_hf_tokenizer(t, &tokenizer);
    err = err == TD_OK ? td_text_hf_tokenizer_config(t, n_ctx, &config) : err;
    FILE *memory = err == TD_OK ? open_memstream(&data, &len) : NULL;
    if (err == TD_OK) {
        err = memory != NULL ? zip_both(&tokenizer, &config, memory) : TD_ERR_NO_MEMORY;
    }
    err = err == TD_OK ? td_buf_append(out, data, len) : err;
    free(data);
    td_buf_fini(&tokenizer);
    td_buf_fini(&config);
    return err;
}
