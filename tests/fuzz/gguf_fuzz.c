/* A model file from anywhere: GGUF reader, tokenizer data, architecture table, and what they
 * promise of an open file. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/model/dequant.h"
#include "common/model/model.h"
#include "tests/fuzz/fuzz.h"

/* Refusals log an error line each: not while fuzzing. */
static void silence(void)
{
    static bool done;

    if (!done) {
        td_log_set_fd(open("/dev/null", O_WRONLY | O_CLOEXEC));
        done = true;
    }
}

static void read_last_row(const struct td_weight *w)
{
    float *row = malloc(w->cols * sizeof *row);

    if (row != NULL) {
        td_dequant_row(w->dtype, (const char *)w->data + (w->rows - 1) * w->row_bytes, w->cols,
                       row);
    }
    free(row);
}

static void read_model(const struct td_model *m)
{
    const struct td_layer *last = &m->layers[m->hp.n_layers - 1];
    volatile char sink = 0;

    read_last_row(&m->output);
    read_last_row(&last->wk);
    read_last_row(&last->down);
    for (uint32_t i = 0; i < m->tok.n_tokens; i++) {
        sink = m->tok.tokens[i].len > 0 ? m->tok.tokens[i].data[m->tok.tokens[i].len - 1] : sink;
    }
    for (uint32_t i = 0; i < m->tok.n_merges; i++) {
        sink = m->tok.merges[i].data[m->tok.merges[i].len - 1];
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size > 0 ? size : 1); /* ends where the input ends; aligned to 16 */
    struct td_gguf *g = NULL;
    struct td_model *m = NULL;
    struct td_model_tokenizer t;

    silence();
    if (copy == NULL) {
        return 0;
    }
    if (size > 0) {
        memcpy(copy, data, size);
    }
    if (td_gguf_open_memory(copy, size, &g, NULL, 0) == TD_OK) {
        if (td_tok_data_load(g, &t, NULL, 0) == TD_OK) {
            td_tok_data_fini(&t);
        }
    }
    (void)td_gguf_close(g);
    if (td_model_open_memory(copy, size, "fuzz", &m) == TD_OK) {
        read_model(m);
    }
    (void)td_model_close(m);
    free(copy);
    return 0;
}
