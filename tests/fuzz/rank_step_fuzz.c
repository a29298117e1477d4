/* A message of rank 0 to a rank of its group. What is believed must lie in the reader's bounds and write the same bytes. */
#include <stdlib.h>
#include <string.h>

#include "common/model/rank_step.h"
#include "tests/fuzz/fuzz.h"

enum { ROWS = 6, TOKENS = 40, LEN = 100, VOCAB = 300, BLOCKS = 20, LAST = 3 };

static const struct td_engine_info info = {.n_layers = 2,
                                           .n_vocab = VOCAB,
                                           .max_model_len = LEN,
                                           .n_blocks = BLOCKS,
                                           .max_rows = ROWS,
                                           .max_tokens = TOKENS};

static void must(bool ok)
{
    if (!ok) {
        abort();
    }
}

static void check_step(const struct td_step *s)
{
    uint32_t n_tok = 0;
    must(s->ticket > LAST && s->n_rows >= 1 && s->n_rows <= ROWS && s->n_tok <= TOKENS);
    for (uint32_t i = 0; i < s->n_rows; i++) {
        const struct td_step_row *r = &s->rows[i];
        must(r->live && r->token0 == n_tok && r->n >= 1 && r->pos < LEN && r->n <= LEN - r->pos);
        must(r->n_blocks * 16 >= r->pos + r->n && r->n_blocks <= (LEN + 15) / 16);
        for (uint32_t b = 0; b < r->n_blocks; b++) {
            must(r->table[b] < BLOCKS);
        }
        n_tok += r->n;
    }
    must(n_tok == s->n_tok);
    for (uint32_t i = 0; i < n_tok; i++) {
        must(s->tokens[i] >= 0 && s->tokens[i] < VOCAB);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) /* NOLINT: libFuzzer's name */
{
    static struct td_steps q = {.event_fd = -1, .layer_fd = -1};
    static uint8_t *back;
    enum td_rank_step_kind kind = TD_RANK_BYE;
    bool every = false;
    if (back == NULL) {
        must(td_steps_init(&q, &info) == TD_OK);
        back = malloc(td_rank_step_cap(&info));
        must(back != NULL);
    }
    uint8_t *exact = malloc(size > 0 ? size : 1);
    must(exact != NULL);
    if (size > 0) {
        memcpy(exact, data, size);
    }
    struct td_step *s = &q.steps[0];
    const char *bad = td_rank_step_read(&q, LAST, exact, size, s, &kind, &every);
    if (bad == NULL && kind == TD_RANK_STEP) {
        check_step(s);
        must(td_rank_step_write(s, every, back) == size && memcmp(back, exact, size) == 0);
    }
    must(bad == NULL || strlen(bad) > 0);
    free(exact);
    return 0;
}
