/* Whole Hugging Face directories: each architecture's logits against those of transformers (float32;
 * tests/golden/hf_oracle.py), token ids against those of tokenizers, the int8 engine the same on
 * every instruction set and for every way to cut a prompt. */
#include <math.h>
#include <openssl/sha.h>

#include "common/model/cpu_engine.h"
#include "common/model/model.h"
#include "common/model/ref_f32.h"
#include "common/text/tokenizer.h"
#include "tests/unit/model/golden.h"
#include "tests/unit/model/hf_util.h"
#include "tests/unit/text/gguf_vocab.h"

static const char *const shapes[] = {"tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-mistral"};

static struct td_model *open_dir(const struct hf_dir *d)
{
    struct td_model *m = NULL;

    assert_int_equal(td_model_open(d->path, &m), TD_OK);
    return m;
}

/* ---- logits ---- */

static void compare_logits(const char *shape)
{
    struct hf_dir d = hf_make(shape, 0);
    struct td_model *m = open_dir(&d);
    struct golden_logits g;
    struct td_buf weights;
    uint8_t sha[32];
    char name[64];
    char path[512];
    int32_t *ids = NULL;
    uint32_t n = 0;

    (void)snprintf(name, sizeof name, "hf/%s.bin", shape);
    golden_logits_open(name, &g);
    hf_path(&d, "model.safetensors", path);
    read_whole(path, &weights);
    assert_non_null(SHA256(weights.data, weights.len, sha));
    assert_memory_equal(sha, g.file_sha256, 32); /* the same weights as the oracle had */
    td_buf_fini(&weights);
    while (golden_logits_next(&g, &ids, &n)) {
        struct td_ref_kv kv;
        float *logits = malloc((size_t)n * g.n_vocab * sizeof *logits);

        assert_non_null(logits);
        assert_int_equal(td_ref_kv_init(&kv, m, n), TD_OK);
        assert_int_equal(td_ref_f32_forward(m, &kv, 0, ids, n, false, logits), TD_OK);
        for (uint32_t t = 0; t < n; t++) {
            golden_logits_row(&g, logits + (size_t)t * g.n_vocab);
        }
        td_ref_kv_fini(&kv);
        free(logits);
        free(ids);
    }
    print_message("# %s: largest difference %.2g of a row's largest logit, rms %.2g, best token "
                  "%u of %u\n",
                  shape, g.max_rel, g.max_rms, g.n_same_best, g.n_rows);
    assert_true(g.max_rel <= 1e-4);
    assert_true(g.max_rms <= 1e-4);
    assert_int_equal(g.n_same_best, g.n_rows); /* greedy continuations among them */
    golden_logits_close(&g);
    (void)td_model_close(m);
    hf_remove(&d);
}

static void logits_and_greedy_tokens_equal_those_of_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < TD_COUNT(shapes); i++) {
        compare_logits(shapes[i]);
    }
}

/* ---- token ids ---- */

static void compare_text(struct td_text_tokenizer *tok, const struct td_text_vocab *v,
                         const json_t *j)
{
    const json_t *want = json_object_get(j, "ids");
    struct td_text_segment seg = {.text = json_string_value(json_object_get(j, "text")),
                                  .len = json_string_length(json_object_get(j, "text")),
                                  .allow_special = true};
    struct td_text_encode_args args = {
        .segs = &seg, .n_segs = 1, .add_bos = td_text_vocab_adds_bos(v)};
    int32_t ids[512];
    size_t n = 0;

    assert_int_equal(td_text_tokenizer_encode(tok, &args, ids, TD_COUNT(ids), &n), TD_OK);
    assert_int_equal(n, json_array_size(want));
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(ids[i], json_integer_value(json_array_get(want, i)));
    }
}

static void compare_ids(const char *shape)
{
    struct hf_dir d = hf_make(shape, 0);
    struct td_model *m = open_dir(&d);
    struct td_text_vocab *v = NULL;
    struct td_text_tokenizer *tok = NULL;
    char path[512];
    json_t *golden;
    const json_t *texts;

    (void)snprintf(path, sizeof path, "%s/hf/%s.json", TD_GOLDEN_DIR, shape);
    golden = json_load_file(path, 0, NULL);
    assert_non_null(golden);
    assert_int_equal(m->tok.eos, json_integer_value(json_object_get(golden, "eos")));
    assert_int_equal(m->tok.bos, json_integer_value(json_object_get(golden, "bos")));
    assert_int_equal(test_vocab_from_data(&m->tok, &v), TD_OK);
    assert_int_equal(td_text_tokenizer_create(v, &tok), TD_OK);
    texts = json_object_get(golden, "texts");
    assert_true(json_array_size(texts) >= 9);
    for (size_t i = 0; i < json_array_size(texts); i++) {
        compare_text(tok, v, json_array_get(texts, i));
    }
    (void)td_text_tokenizer_destroy(tok);
    (void)td_text_vocab_destroy(v);
    json_decref(golden);
    (void)td_model_close(m);
    hf_remove(&d);
}

static void token_ids_equal_those_of_tokenizers(void **state)
{
    (void)state;
    for (size_t i = 0; i < TD_COUNT(shapes); i++) {
        compare_ids(shapes[i]);
    }
}

/* ---- the engine ---- */

#define N_PROMPT 330 /* over a chunk's end, several windows long */

static float *engine_logits(const struct td_model *m, const char *numerics, enum td_cpu_isa isa,
                            uint32_t threads, uint32_t chunk)
{
    struct td_cpu_engine_params p = {.numerics = numerics,
                                     .isa = isa,
                                     .n_threads = threads,
                                     .n_blocks = 32,
                                     .max_rows = 4,
                                     .max_tokens = 512,
                                     .max_slots = 4,
                                     .max_model_len = 512};
    struct td_engine *e = NULL;
    float *logits = malloc((size_t)N_PROMPT * m->hp.n_vocab * sizeof *logits);
    int32_t ids[N_PROMPT];
    char text[512];
    FILE *log = catch_log();
    td_err err = td_cpu_engine_create(m, &p, &e);

    caught_log(log, text, sizeof text);
    assert_non_null(logits);
    if (err != TD_OK) { /* this machine lacks the instruction set */
        assert_int_equal(err, TD_ERR_CONFIG);
        free(logits);
        return NULL;
    }
    assert_true(e->ops->info(e)->layout.window == m->hp.window);
    for (int i = 0; i < N_PROMPT; i++) {
        ids[i] = 4 + 37 * i % 451;
    }
    assert_int_equal(td_cpu_engine_logits(e, ids, N_PROMPT, chunk, logits), TD_OK);
    e->ops->destroy(e);
    return logits;
}

static void compare_engines(const char *shape)
{
    static const struct {
        enum td_cpu_isa isa;
        uint32_t threads, chunk;
    } runs[] = {{TD_ISA_AVX2, 1, 330},
                {TD_ISA_AVX512, 1, 330},
                {TD_ISA_AVX512, 1, 1},
                {TD_ISA_AVX2, 2, 17}};
    struct hf_dir d = hf_make(shape, 0);
    struct td_model *m = open_dir(&d);
    size_t bytes = (size_t)N_PROMPT * m->hp.n_vocab * sizeof(float);
    float *want = engine_logits(m, "int8", TD_ISA_PORTABLE, 1, N_PROMPT);

    assert_non_null(want);
    for (size_t i = 0; i < TD_COUNT(runs); i++) {
        float *got = engine_logits(m, "int8", runs[i].isa, runs[i].threads, runs[i].chunk);

        if (got != NULL) {
            assert_memory_equal(got, want, bytes);
        }
        free(got);
    }
    free(want);
    (void)td_model_close(m);
    hf_remove(&d);
}

static void every_instruction_set_and_cut_gives_the_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < TD_COUNT(shapes); i++) {
        compare_engines(shapes[i]);
    }
}

/* The paged float32 engine against the plain reference: windows, biases and head norms mean the same
 * in both. */
static void the_f32_engine_follows_the_reference(void **state)
{
    (void)state;
    for (size_t s = 0; s < TD_COUNT(shapes); s++) {
        struct hf_dir d = hf_make(shapes[s], 0);
        struct td_model *m = open_dir(&d);
        size_t n = (size_t)N_PROMPT * m->hp.n_vocab;
        float *got = engine_logits(m, "f32", TD_ISA_AUTO, 2, 100);
        float *want = malloc(n * sizeof *want);
        int32_t ids[N_PROMPT];
        struct td_ref_kv kv;
        double worst = 0;

        assert_non_null(got);
        assert_non_null(want);
        for (int i = 0; i < N_PROMPT; i++) {
            ids[i] = 4 + 37 * i % 451;
        }
        assert_int_equal(td_ref_kv_init(&kv, m, N_PROMPT), TD_OK);
        assert_int_equal(td_ref_f32_forward(m, &kv, 0, ids, N_PROMPT, false, want), TD_OK);
        for (size_t i = 0; i < n; i++) {
            double diff = fabs((double)got[i] - (double)want[i]);

            worst = diff <= worst ? worst : diff; /* so that a NaN shows */
        }
        print_message("# %s: largest difference %.2g\n", shapes[s], worst);
        assert_true(worst <= 5e-4);
        td_ref_kv_fini(&kv);
        free(got);
        free(want);
        (void)td_model_close(m);
        hf_remove(&d);
    }
}

/* Without the window the far past would count: the same weights, another answer. */
static void a_window_changes_what_lies_behind_it_only(void **state)
{
    struct hf_dir d = hf_make("tiny-mistral", 0);
    struct td_model *with = open_dir(&d);
    struct td_model *without = NULL;
    float *a = engine_logits(with, "int8", TD_ISA_AUTO, 1, N_PROMPT);
    float *b;
    size_t row = with->hp.n_vocab;

    (void)state;
    hf_change(&d, "config.json", "sliding_window", "null");
    without = open_dir(&d);
    b = engine_logits(without, "int8", TD_ISA_AUTO, 1, N_PROMPT);
    assert_int_equal(with->hp.window, 72);
    assert_int_equal(without->hp.window, 0);
    assert_memory_equal(a, b, 72 * row * sizeof *a); /* the first 72 see all before them */
    assert_memory_not_equal(a + 72 * row, b + 72 * row, row * sizeof *a);
    free(a);
    free(b);
    (void)td_model_close(with);
    (void)td_model_close(without);
    hf_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_and_greedy_tokens_equal_those_of_transformers),
        cmocka_unit_test(token_ids_equal_those_of_tokenizers),
        cmocka_unit_test(every_instruction_set_and_cut_gives_the_same_bits),
        cmocka_unit_test(the_f32_engine_follows_the_reference),
        cmocka_unit_test(a_window_changes_what_lies_behind_it_only),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
