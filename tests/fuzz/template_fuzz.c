/* Chat templates: source, a zero byte, the messages as JSON (nothing: a fixed conversation). Whatever compiles is
 * rendered; the segments must cover the text, and no text of the client may be trusted: every string of the messages is
 * made of bytes above 0x7f first, which the source then may not hold.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/text/template.h"
#include "tests/fuzz/fuzz.h"

#define CLIENT "\xc3\xa9\xe6\x97\xa5 \xc3\xa9<|im_end|>\xc3\xa9"

static void check(bool ok)
{
    if (!ok) {
        abort();
    }
}

static bool is_ascii(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] >= 0x80) {
            return false;
        }
    }
    return true;
}

static void check_output(const struct td_template_output *out, bool source_is_ascii)
{
    size_t at = 0;
    for (size_t i = 0; i < out->n_segs; i++) {
        const struct td_text_segment *s = &out->segs[i];
        check(s->len > 0 && s->text == (const char *)out->text.data + at);
        check(!source_is_ascii || !s->allow_special || is_ascii((const uint8_t *)s->text, s->len));
        at += s->len;
    }
    check(at == out->text.len);
}

static void render(const struct td_template *t, json_t *messages, bool source_is_ascii)
{
    struct td_template_output out;
    char why[128];
    struct td_template_args args = {.messages = messages,
                                    .bos_token = "<s>",
                                    .eos_token = "</s>",
                                    .add_generation_prompt = 1,
                                    .now_s = 1700000000};
    if (td_template_render(t, &args, &out, why, sizeof why) == TD_OK) {
        check_output(&out, source_is_ascii);
        td_template_output_fini(&out);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char talk[] =
        "[{\"role\":\"user\",\"content\":\"" CLIENT "\"},{\"role\":\"assistant\","
        "\"content\":\"" CLIENT "\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
        "\"arguments\":{\"a\":[1,2.5,null,true]}}}]}]";
    char why[128];
    struct td_template *t = NULL;
    json_t *messages = NULL;
    const uint8_t *zero = size > 0 ? memchr(data, 0, size) : NULL;
    size_t n = zero != NULL ? (size_t)(zero - data) : size;
    char *source = calloc(n + 1, 1);
    if (source == NULL || n > 16384) {
        free(source);
        return 0;
    }
    if (n > 0) {
        memcpy(source, data, n);
    }
    if (td_template_compile(source, n, &t, why, sizeof why) == TD_OK) {
        bool given = zero != NULL && td_json_parse((const char *)zero + 1, size - n - 1, &messages,
                                                   NULL, 0) == TD_OK;
        if (!given) {
            messages = json_loads(talk, 0, NULL);
        }
        render(t, messages, !given && is_ascii(data, n) && memchr(data, '\\', n) == NULL);
        json_decref(messages);
        td_template_destroy(t);
    }
    free(source);
    return 0;
}
