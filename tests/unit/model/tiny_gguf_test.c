/* The tests' own tiny models: the same bytes everywhere, and answers worth testing with. */
#include "tests/tiny/tiny_gguf.h"

#include <openssl/sha.h>

#include "common/model/dequant.h"
#include "common/model/ref_f32.h"
#include "tests/unit/model/model_util.h"

#define N_OUT 16

static void the_default_model_is_the_same_bytes_on_every_machine(void **state)
{
    static const char want[] = "8c6d3374f05e6d2b6552cde01ddab4d885d4352ede9334e419d44b06ce3f230e";
    struct td_tiny_params p = td_tiny_defaults();
    struct td_buf file;
    uint8_t sha[32];
    char hex[65];

    (void)state;
    make_tiny(&p, &file);
    assert_non_null(SHA256(file.data, file.len, sha));
    for (size_t i = 0; i < 32; i++) {
        (void)snprintf(hex + 2 * i, 3, "%02x", sha[i]);
    }
    assert_string_equal(hex, want);
    td_buf_fini(&file);
}

static void every_quantisation_occurs_in_the_mix(void **state)
{
    struct td_tiny_params p = td_tiny_defaults();
    struct td_gguf *g = NULL;
    struct td_buf file;
    bool seen[TD_DTYPE_BF16 + 1] = {false};

    (void)state;
    make_tiny(&p, &file);
    assert_int_equal(td_gguf_open_memory(file.data, file.len, &g, NULL, 0), TD_OK);
    for (size_t i = 0; i < td_gguf_n_tensors(g); i++) {
        if (td_gguf_tensor_at(g, i)->n_dims == 2) {
            seen[td_gguf_tensor_at(g, i)->dtype] = true;
        }
    }
    for (uint32_t t = 0; t <= TD_DTYPE_BF16; t++) {
        assert_true(seen[t] == td_dequant_supported((enum td_dtype)t));
    }
    (void)td_gguf_close(g);
    td_buf_fini(&file);
}

static int32_t best_of(const float *logits, uint32_t n)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < n; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return (int32_t)best;
}

static void greedy(const struct td_model *m, const int32_t *prompt, uint32_t n, int32_t *out)
{
    float *logits = malloc(sizeof(float) * m->hp.n_vocab);
    struct td_ref_kv kv;
    int32_t next = 0;

    assert_non_null(logits);
    assert_int_equal(td_ref_kv_init(&kv, m, n + N_OUT), TD_OK);
    for (uint32_t i = 0; i < N_OUT; i++) {
        const int32_t *ids = i == 0 ? prompt : &next;

        assert_int_equal(
            td_ref_f32_forward(m, &kv, i == 0 ? 0 : n + i - 1, ids, i == 0 ? n : 1, true, logits),
            TD_OK);
        next = best_of(logits, m->hp.n_vocab);
        out[i] = next;
    }
    td_ref_kv_fini(&kv);
    free(logits);
}

static uint32_t distinct(const int32_t *ids, uint32_t n)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < n; i++) {
        bool first = true;

        for (uint32_t k = 0; k < i; k++) {
            first = first && ids[k] != ids[i];
        }
        count += first;
    }
    return count;
}

static void greedy_answers_vary_with_the_prompt_and_do_not_end_at_once(void **state)
{
    static const int32_t prompts[3][4] = {{1, 300, 310, 2}, {1, 300, 311, 2}, {270, 280, 290, 300}};
    static const char *const types[] = {"mix", "q4_1"};

    (void)state;
    for (size_t k = 0; k < TD_COUNT(types); k++) {
        struct td_tiny_params p = td_tiny_defaults();
        struct td_model *m = NULL;
        struct td_buf file;
        int32_t out[3][N_OUT];

        p.type = types[k];
        make_tiny(&p, &file);
        assert_int_equal(td_model_open_memory(file.data, file.len, "tiny", &m), TD_OK);
        for (int i = 0; i < 3; i++) {
            greedy(m, prompts[i], 4, out[i]);
            assert_true(distinct(out[i], N_OUT) >= N_OUT / 2);
            for (int t = 0; t < N_OUT; t++) { /* no control token: the answer goes on */
                assert_true(m->tok.types[out[i][t]] == 1);
            }
        }
        assert_memory_not_equal(out[0], out[1], sizeof out[0]);
        assert_memory_not_equal(out[0], out[2], sizeof out[0]);
        (void)td_model_close(m);
        td_buf_fini(&file);
    }
}

static void parameters_out_of_range_are_refused(void **state)
{
    struct td_buf out;
    struct td_tiny_params bad[6];

    (void)state;
    td_buf_init(&out, TD_TINY_MAX_BYTES);
    for (size_t i = 0; i < TD_COUNT(bad); i++) {
        bad[i] = td_tiny_defaults();
    }
    bad[0].type = "q2_k";
    bad[1].n_layers = 0;
    bad[2].n_layers = TD_TINY_MAX_LAYERS + 1;
    bad[3].n_embd = 100;
    bad[4].n_kv_heads = 3;
    bad[5].n_heads = 0;
    for (size_t i = 0; i < TD_COUNT(bad); i++) {
        assert_int_equal(td_tiny_write(&bad[i], &out), TD_ERR_CONFIG);
    }
    td_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_default_model_is_the_same_bytes_on_every_machine),
        cmocka_unit_test(every_quantisation_occurs_in_the_mix),
        cmocka_unit_test(greedy_answers_vary_with_the_prompt_and_do_not_end_at_once),
        cmocka_unit_test(parameters_out_of_range_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
