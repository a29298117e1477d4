/* Text from clients and vocabularies from files. The first byte says which:
 *   'E' pre segments    encode, decode and stop-match with a sound vocabulary. `pre` picks the pre-tokeniser; segments
 *                       are separated by zero bytes and alternate between user and template text.
 *   'V' parts           build a vocabulary: a part is its kind ('p' a piece, 'm' a merge), for a piece its type as a
 *                       digit, then text up to a zero byte. If it is accepted it must encode and decode.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/utf8.h"
#include "common/text/detok.h"
#include "common/text/stop.h"
#include "common/text/tokenizer.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/text/tiny_vocab.h"

#define SEGS_MAX 16
#define IDS_MAX  (1u << 17)

static const char *const pres[] = {"gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "tekken"};
static int32_t ids[IDS_MAX];

static void check(bool ok)
{
    if (!ok) {
        abort();
    }
}

static struct td_text_tokenizer *make(const struct td_text_vocab_src *src, struct td_text_vocab **v)
{
    struct td_text_tokenizer *t = NULL;
    if (td_text_vocab_create(src, v) == TD_OK) {
        check(td_text_tokenizer_create(*v, &t) == TD_OK);
    }
    return t;
}

/* The ids give back valid UTF-8, and with `bytes` exactly these. */
static void check_decode(const struct td_text_vocab *v, size_t n, const uint8_t *bytes, size_t len)
{
    struct td_text_detok d;
    struct td_buf b;
    size_t at = 0;
    td_buf_init(&b, 1u << 24);
    td_text_detok_init(&d, v, false);
    for (size_t i = 0; i < n; i++) {
        size_t piece = 0;
        const uint8_t *p = td_text_vocab_bytes(v, ids[i], &piece);
        check(p != NULL && td_text_detok_push(&d, ids[i], &b) == TD_OK && d.n_held <= 3);
        check(bytes == NULL || (piece <= len - at && memcmp(bytes + at, p, piece) == 0));
        at += piece;
    }
    check(bytes == NULL || at == len);
    check(td_text_detok_flush(&d, &b) == TD_OK);
    check(b.len == 0 || td_utf8_valid((const char *)b.data, b.len));
    td_buf_fini(&b);
}

static size_t encode(struct td_text_tokenizer *t, const struct td_text_segment *segs, size_t n_segs)
{
    const struct td_text_encode_args args = {segs, n_segs, false, 0};
    size_t n = 0;
    size_t again = 0;
    check(td_text_tokenizer_encode(t, &args, NULL, 0, &n) == TD_OK && n <= IDS_MAX);
    check(td_text_tokenizer_encode(t, &args, ids, IDS_MAX, &again) == TD_OK && again == n);
    return n;
}

/* Stop strings from the beginning of the text; byte by byte and at once must cut alike. */
static void stop(const uint8_t *text, size_t len)
{
    const size_t first = len / 4 < 5 ? len / 4 : 5;
    const struct td_text_str stops[2] = {{(const char *)text, first},
                                         {(const char *)text + first, first}};
    struct td_text_stop *one = NULL;
    struct td_text_stop *all = NULL;
    struct td_buf a;
    struct td_buf b;
    if (td_text_stop_create(stops, 2, false, &one) != TD_OK) {
        return;
    }
    check(td_text_stop_create(stops, 2, false, &all) == TD_OK);
    td_buf_init(&a, 1u << 20);
    td_buf_init(&b, 1u << 20);
    text += 2 * first;
    len -= 2 * first;
    for (size_t i = 0; i < len; i++) {
        check(td_text_stop_push(one, text + i, 1, &a) == TD_OK);
    }
    check(td_text_stop_push(all, text, len, &b) == TD_OK);
    check(td_text_stop_held(one) == td_text_stop_held(all));
    check(td_text_stop_flush(one, &a) == TD_OK && td_text_stop_flush(all, &b) == TD_OK);
    check(td_text_stop_matched(one) == td_text_stop_matched(all));
    check(a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0));
    td_buf_fini(&a);
    td_buf_fini(&b);
    td_text_stop_destroy(one);
    td_text_stop_destroy(all);
}

static void encode_input(const uint8_t *p, size_t len)
{
    static struct td_text_vocab *vocab[TD_COUNT(pres)];
    static struct td_text_tokenizer *tokenizer[TD_COUNT(pres)];
    struct td_text_segment segs[SEGS_MAX];
    size_t n_segs = 0;
    const size_t k = p[0] % TD_COUNT(pres);
    if (vocab[k] == NULL) {
        struct tiny_ids id;
        struct tiny *t = tiny_hello(pres[k], &id);
        tokenizer[k] = make(&t->src, &vocab[k]);
        free(t);
    }
    p++;
    len--;
    stop(p, len);
    const struct td_text_segment whole = {(const char *)p, len, false};
    size_t n = encode(tokenizer[k], &whole, 1);
    for (size_t i = 0; i < n; i++) {
        check(!td_text_vocab_is_control(vocab[k], ids[i]));
    }
    check_decode(vocab[k], n, strcmp(pres[k], "qwen2") == 0 ? NULL : p, len);
    const uint8_t *const end = p + len;
    while (n_segs < SEGS_MAX && p <= end) {
        const uint8_t *zero = p < end ? memchr(p, 0, (size_t)(end - p)) : NULL;
        const uint8_t *to = zero != NULL ? zero : end;
        segs[n_segs] = (struct td_text_segment){(const char *)p, (size_t)(to - p), n_segs % 2 == 1};
        n_segs++;
        p = to + 1;
    }
    n = encode(tokenizer[k], segs, n_segs);
    check_decode(vocab[k], n, NULL, 0);
}

static void build_input(const uint8_t *p, size_t len)
{
    static const char text[] = "hello world 123 <|im_end|> \xc3\xa9\xf0\x9f\x98\x80\n\n'll";
    struct tiny *t = tiny_new("smollm");
    const uint8_t *const end = p + len;
    if (len > 0 && p[0] == '-') {
        t->src.n_tokens = 0; /* the file's pieces only */
        p++;
    }
    while (p < end) {
        const uint8_t *zero = memchr(p, 0, (size_t)(end - p));
        const uint8_t *to = zero != NULL ? zero : end;
        const size_t n = (size_t)(to - p);
        if (n >= 2 && p[0] == 'p' && t->src.n_tokens < TINY_MAX) {
            tiny_piece(t, (struct td_text_str){(const char *)p + 2, n - 2}, p[1] - '0');
        } else if (n >= 1 && p[0] == 'm' && t->src.n_merges < TINY_MAX) {
            t->merges[t->src.n_merges++] = (struct td_text_str){(const char *)p + 1, n - 1};
        }
        p = to + 1;
    }
    struct td_text_vocab *v = NULL;
    struct td_text_tokenizer *tok = make(&t->src, &v);
    if (tok != NULL) {
        const struct td_text_segment seg[2] = {{text, sizeof text - 1, true},
                                               {text, sizeof text - 1, false}};
        check_decode(v, encode(tok, seg, 2), NULL, 0);
    }
    td_text_tokenizer_destroy(tok);
    td_text_vocab_destroy(v);
    free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool silent;
    if (!silent) { /* refusals are logged */
        td_log_set_fd(open("/dev/null", O_WRONLY | O_CLOEXEC));
        silent = true;
    }
    uint8_t *copy = malloc(size + 1); /* ends where the input ends */
    if (copy == NULL || size < 2 || size > IDS_MAX / 2) {
        free(copy);
        return 0;
    }
    memcpy(copy, data, size);
    uint8_t *exact = realloc(copy, size);
    copy = exact != NULL ? exact : copy;
    if (copy[0] == 'V') {
        build_input(copy + 1, size - 1);
    } else {
        encode_input(copy + 1, size - 1);
    }
    free(copy);
    return 0;
}
