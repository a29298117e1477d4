/* The JSON files of a Hugging Face directory from anywhere. One input is one object with the members
 * config, generation, tokenizer and tokenizer_config: what is believed is in its bounds, and a
 * tokenizer that opens either makes a vocabulary or is refused by it. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "common/model/hf_config.h"
#include "common/model/hf_tok.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/text/gguf_vocab.h"

static const struct td_json_limits limits = {.depth = 16, .values = 20000};

/* Refusals log an error line each: not while fuzzing. */
static void silence(void)
{
    static bool done;

    if (!done) {
        td_log_set_fd(open("/dev/null", O_WRONLY | O_CLOEXEC));
        done = true;
    }
}

static uint32_t read_config(const json_t *j, const struct td_why *why)
{
    struct td_hf_config c;
    float freqs[TD_MODEL_MAX_HEAD_DIM / 2];

    if (td_hf_config_read(j, &c, why) != TD_OK) {
        return 64;
    }
    TD_INSIST(c.hp.n_layers >= 1 && c.hp.n_layers <= TD_MODEL_MAX_LAYERS);
    TD_INSIST(c.hp.n_heads % c.hp.n_kv_heads == 0 && c.hp.rope_dim == c.hp.head_dim);
    TD_INSIST(c.hp.head_dim % 2 == 0 && c.hp.head_dim <= TD_MODEL_MAX_HEAD_DIM);
    TD_INSIST(c.hp.window < c.hp.n_ctx && c.hp.n_ctx <= TD_MODEL_MAX_CTX);
    td_hf_rope_freqs(&c, freqs);
    for (uint32_t i = 0; i < c.hp.rope_dim / 2; i++) {
        TD_INSIST(freqs[i] >= 0 && freqs[i] <= 1); /* what td_rope_angles() asks for */
    }
    return c.hp.n_vocab;
}

static void read_tokenizer(const json_t *j, uint32_t n_vocab, const struct td_why *why)
{
    struct td_hf_tok_src src = {.tokenizer = json_object_get(j, "tokenizer"),
                                .tokenizer_config = json_object_get(j, "tokenizer_config"),
                                .config = json_object_get(j, "config"),
                                .generation = json_object_get(j, "generation"),
                                .jinja = {"", 0},
                                .n_vocab = n_vocab < 4096 ? n_vocab : 4096};
    struct td_model_tokenizer t;
    struct td_text_vocab *v = NULL;

    if (td_hf_tok_load(&src, &t, why) != TD_OK) {
        TD_INSIST(t.tokens == NULL);
        return;
    }
    for (uint32_t i = 0; i < t.n_end_ids; i++) {
        TD_INSIST(t.end_ids[i] >= 0 && (uint32_t)t.end_ids[i] < t.n_tokens);
    }
    if (test_vocab_from_data(&t, &v) == TD_OK) {
        (void)td_text_vocab_destroy(v);
    }
    td_tok_data_fini(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[TD_GGUF_ERR_TEXT] = "";
    struct td_why why = {text, sizeof text};
    struct td_model_defaults d;
    json_t *j = NULL;

    silence();
    if (td_json_parse_limited((const char *)data, size, &limits, &j, NULL, 0) != TD_OK) {
        return 0;
    }
    read_tokenizer(j, read_config(json_object_get(j, "config"), &why), &why);
    if (td_hf_defaults_read(json_object_get(j, "generation"), &d, &why) == TD_OK) {
        TD_INSIST(d.top_p > 0 && d.top_p <= 1 && d.temperature >= 0);
    }
    json_decref(j);
    return 0;
}
