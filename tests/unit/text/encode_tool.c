/* encode_tool - the C side of tests/text_oracle.py: encode_tool MODEL.gguf < cases > answers
 *
 * A case: u32 segments, then for each u8 allow_special, u32 bytes, text. Its answer: u32 n, n ids
 * (i32), u32 bytes, the ids' text through the streaming detokeniser. All little-endian. Exit status
 * 1 on any failure.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/text/detok.h"
#include "common/text/tokenizer.h"
#include "tests/unit/text/gguf_vocab.h"

#define SEGS_MAX 64

static int get(void *p, size_t n)
{
    return fread(p, 1, n, stdin) == n;
}

static int read_case(struct td_text_segment *segs, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint8_t allow;
        uint32_t len;
        if (!get(&allow, 1) || !get(&len, 4) || len > TD_TEXT_INPUT_MAX) {
            return 0;
        }
        char *text = malloc((size_t)len + 1);
        if (text == NULL || !get(text, len)) {
            free(text);
            return 0;
        }
        segs[i] = (struct td_text_segment){text, len, allow != 0};
    }
    return 1;
}

static int answer(const struct td_text_vocab *v, struct td_text_tokenizer *t,
                  const struct td_text_segment *segs, uint32_t n_segs)
{
    const struct td_text_encode_args args = {segs, n_segs, false, 0};
    size_t n = 0;
    size_t again = 0;
    struct td_buf text;
    struct td_text_detok d;
    td_buf_init(&text, 1u << 30);
    td_text_detok_init(&d, v, false);
    if (td_text_tokenizer_encode(t, &args, NULL, 0, &n) != TD_OK) {
        return 0;
    }
    int32_t *ids = calloc(n + 1, sizeof *ids);
    int ok =
        ids != NULL && td_text_tokenizer_encode(t, &args, ids, n, &again) == TD_OK && again == n;
    for (size_t i = 0; ok && i < n; i++) {
        ok = td_text_detok_push(&d, ids[i], &text) == TD_OK;
    }
    ok = ok && td_text_detok_flush(&d, &text) == TD_OK;
    const uint32_t n32 = (uint32_t)n;
    const uint32_t len32 = (uint32_t)text.len;
    ok = ok && fwrite(&n32, 4, 1, stdout) == 1 && fwrite(ids, 4, n, stdout) == n &&
         fwrite(&len32, 4, 1, stdout) == 1 && fwrite(text.data, 1, text.len, stdout) == text.len;
    td_buf_fini(&text);
    free(ids);
    return ok;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s MODEL.gguf < cases > answers\n", argv[0]);
        return 2;
    }
    struct td_text_vocab *v = test_vocab_from_gguf(argv[1]);
    struct td_text_tokenizer *t = NULL;
    int ok = v != NULL && td_text_tokenizer_create(v, &t) == TD_OK;
    uint32_t n_segs;
    while (ok && get(&n_segs, 4)) {
        struct td_text_segment segs[SEGS_MAX] = {{0}};
        ok = n_segs <= SEGS_MAX && read_case(segs, n_segs) && answer(v, t, segs, n_segs);
        for (size_t i = 0; i < SEGS_MAX; i++) {
            free((void *)(uintptr_t)segs[i].text);
        }
    }
    td_text_tokenizer_destroy(t);
    td_text_vocab_destroy(v);
    return ok ? 0 : 1;
}
