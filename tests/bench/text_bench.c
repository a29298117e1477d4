/* text_bench - tokenizer throughput: text_bench MODEL.gguf FILE...
 *
 * Encodes each file five times with one tokenizer on one thread and prints the best: MiB/s and million tokens/s. Cold: a
 * fresh tokenizer, so that its word cache is empty. Then the worst case, one word of a megabyte, and decoding.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/text/detok.h"
#include "common/text/tokenizer.h"
#include "tests/unit/text/gguf_vocab.h"

#define ROUNDS 5

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static char *read_all(const char *path, size_t *out_len)
{
    FILE *f = fopen(path, "rbe");
    char *p = malloc(TD_TEXT_INPUT_MAX);
    if (f == NULL || p == NULL) {
        fprintf(stderr, "%s: cannot be read\n", path);
        exit(1);
    }
    *out_len = fread(p, 1, TD_TEXT_INPUT_MAX, f);
    fclose(f);
    return p;
}

static double seconds_of(struct td_text_tokenizer *t, const struct td_text_segment *seg,
                         int32_t *ids, size_t *out_n)
{
    const struct td_text_encode_args args = {seg, 1, false, 0};
    const double start = now();
    if (td_text_tokenizer_encode(t, &args, ids, seg->len + 1, out_n) != TD_OK) {
        exit(1);
    }
    return now() - start;
}

static void line(const char *what, size_t bytes, size_t n, double s)
{
    printf("%-28s %9zu bytes %8zu tokens %8.1f MiB/s %7.2f M tokens/s\n", what, bytes, n,
           (double)bytes / s / (1 << 20), (double)n / s * 1e-6);
}

static double decode(const struct td_text_vocab *v, const int32_t *ids, size_t n)
{
    struct td_text_detok d;
    struct td_buf b;
    td_buf_init(&b, 1u << 30);
    td_text_detok_init(&d, v, true);
    const double start = now();
    for (size_t i = 0; i < n; i++) {
        if (td_text_detok_push(&d, ids[i], &b) != TD_OK) {
            exit(1);
        }
    }
    const double s = now() - start;
    td_buf_fini(&b);
    return s;
}

static void bench(const struct td_text_vocab *v, const char *name, const char *text, size_t len)
{
    const struct td_text_segment seg = {text, len, false};
    int32_t *ids = calloc(len + 1, sizeof *ids);
    double cold = 1e9;
    double warm = 1e9;
    double back = 1e9;
    size_t n = 0;
    char what[64];
    for (int i = 0; ids != NULL && i < ROUNDS; i++) {
        struct td_text_tokenizer *t = NULL;
        if (td_text_tokenizer_create(v, &t) != TD_OK) {
            exit(1);
        }
        const double a = seconds_of(t, &seg, ids, &n);
        const double b = seconds_of(t, &seg, ids, &n);
        const double c = decode(v, ids, n);
        cold = a < cold ? a : cold;
        warm = b < warm ? b : warm;
        back = c < back ? c : back;
        td_text_tokenizer_destroy(t);
    }
    const char *slash = strrchr(name, '/');
    snprintf(what, sizeof what, "%.20s cold", slash != NULL ? slash + 1 : name);
    line(what, len, n, cold);
    line("  warm", len, n, warm);
    line("  decode", len, n, back);
    free(ids);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL.gguf FILE...\n", argv[0]);
        return 2;
    }
    const double start = now();
    struct td_text_vocab *v = test_vocab_from_gguf(argv[1]);
    if (v == NULL) {
        return 1;
    }
    printf("%s: %zu tokens, loaded in %.0f ms\n", argv[1], td_text_vocab_size(v),
           (now() - start) * 1e3);
    for (int i = 2; i < argc; i++) {
        size_t len;
        char *text = read_all(argv[i], &len);
        bench(v, argv[i], text, len);
        free(text);
    }
    const size_t len = 1u << 20;
    char *word = malloc(len);
    if (word != NULL) {
        memset(word, 'a', len);
        bench(v, "one word of a's", word, len);
    }
    free(word);
    td_text_vocab_destroy(v);
    return 0;
}
