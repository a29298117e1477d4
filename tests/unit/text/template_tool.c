/* The C side of tests/template_oracle.py:
 *   template_tool SOURCE --print             the template's text (SOURCE: a template, or a GGUF file with one)
 *   template_tool SOURCE CONTEXTS            renders it with each context of a JSON list; prints a JSON list of
 *                                            {"text": ...}, {"error": ...}; exit 2 when it does not compile
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "common/base/log.h"
#include "common/model/model.h"
#include "common/text/template.h"

#define NOW_S 1700000000

static char *read_file(const char *path, size_t *out_len)
{
    FILE *f = fopen(path, "rb");
    char *text = calloc(1, (16u << 20) + 1);
    if (f == NULL || text == NULL) {
        (void)fprintf(stderr, "cannot read %s\n", path);
        exit(1);
    }
    *out_len = fread(text, 1, 16u << 20, f);
    (void)fclose(f);
    return text;
}

static char *read_source(const char *path, size_t *out_len)
{
    size_t n = strlen(path);
    if (n < 5 || strcmp(path + n - 5, ".gguf") != 0) {
        return read_file(path, out_len);
    }
    struct td_model *m = NULL;
    if (td_model_open(path, &m) != TD_OK) {
        exit(1);
    }
    const struct td_str *t = &td_model_tokenizer(m)->chat_template;
    char *text = calloc(1, t->len + 1);
    if (text == NULL) {
        exit(1);
    }
    memcpy(text, t->data, t->len);
    *out_len = t->len;
    td_model_close(m);
    return text;
}

static json_t *extra(json_t *ctx)
{
    json_t *kwargs = json_copy(ctx);
    static const char *const own[] = {"messages", "tools", "bos_token", "eos_token",
                                      "add_generation_prompt"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        (void)json_object_del(kwargs, own[i]);
    }
    return kwargs;
}

static json_t *render(const struct td_template *t, json_t *ctx)
{
    struct td_template_output out = {0};
    char why[512] = "";
    json_t *kwargs = extra(ctx), *tools = json_object_get(ctx, "tools");
    struct td_template_args args = {
        .messages = json_object_get(ctx, "messages"),
        .tools = json_is_null(tools) ? NULL : tools,
        .kwargs = kwargs,
        .bos_token = json_string_value(json_object_get(ctx, "bos_token")),
        .eos_token = json_string_value(json_object_get(ctx, "eos_token")),
        .add_generation_prompt = json_is_true(json_object_get(ctx, "add_generation_prompt")),
        .now_s = NOW_S};
    td_err err = td_template_render(t, &args, &out, why, sizeof why);
    json_t *r = err == TD_OK
                    ? json_pack("{s:s%}", "text", (const char *)out.text.data, out.text.len)
                    : json_pack("{s:s}", "error", why);
    if (err == TD_OK) {
        td_template_output_fini(&out);
    }
    json_decref(kwargs);
    return r != NULL ? r : json_pack("{s:s}", "error", "output is not UTF-8");
}

int main(int argc, char **argv)
{
    size_t n = 0, m = 0, i = 0;
    char why[256] = "";
    struct td_template *t = NULL;
    json_t *ctx = NULL, *all = json_array();
    if (argc != 3) {
        (void)fprintf(stderr, "usage: template_tool SOURCE --print|CONTEXTS\n");
        return 1;
    }
    td_log_set_level(TD_LOG_ERROR);
    char *source = read_source(argv[1], &n);
    if (strcmp(argv[2], "--print") == 0) {
        return fwrite(source, 1, n, stdout) == n ? 0 : 1;
    }
    if (td_template_compile(source, n, &t, why, sizeof why) != TD_OK) {
        (void)printf("%s\n", why);
        return 2;
    }
    char *text = read_file(argv[2], &m);
    json_t *contexts = json_loadb(text, m, 0, NULL);
    json_array_foreach(contexts, i, ctx)
    {
        (void)json_array_append_new(all, render(t, ctx));
    }
    (void)json_dumpf(all, stdout, JSON_COMPACT);
    json_decref(all);
    json_decref(contexts);
    td_template_destroy(t);
    free(source);
    free(text);
    return 0;
}
