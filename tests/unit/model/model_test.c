#include "common/model/model.h"

#include <math.h>
#include <openssl/sha.h>

#include "common/model/rope.h"
#include "tests/unit/model/small_model.h"

static void the_small_model_opens_with_its_numbers(void **state)
{
    struct td_model *m = NULL;
    struct td_buf file;

    (void)state;
    small_model(&(struct change){0}, &file);
    assert_int_equal(td_model_open_memory(file.data, file.len, "small", &m), TD_OK);
    assert_int_equal(m->hp.n_layers, 1);
    assert_int_equal(m->hp.n_embd, 32);
    assert_int_equal(m->hp.n_ffn, 64);
    assert_int_equal(m->hp.n_heads, 4);
    assert_int_equal(m->hp.n_kv_heads, 2);
    assert_int_equal(m->hp.head_dim, 8);
    assert_int_equal(m->hp.n_vocab, 3);
    assert_int_equal(m->hp.rope_style, TD_ROPE_PAIRS);
    assert_true(m->hp.tied_embedding);
    assert_ptr_equal(m->output.data, m->token_embd.data);
    assert_int_equal(m->layers[0].down.rows, 32);
    assert_int_equal(m->layers[0].down.cols, 64);
    assert_int_equal(m->layers[0].down.row_bytes, 256);
    assert_true(m->rope_freq[0] == 1);
    (void)td_model_close(m);
    td_buf_fini(&file);
}

static void a_tiny_model_of_each_type_opens(void **state)
{
    static const char *const types[] = {"mix",  "f32",  "f16",  "bf16", "q4_0", "q4_1",
                                        "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k"};

    (void)state;
    for (size_t i = 0; i < TD_COUNT(types); i++) {
        struct td_tiny_params p = td_tiny_defaults();
        struct td_model *m = NULL;
        struct td_buf file;

        p.type = types[i];
        p.untied = i % 2 == 0;
        make_tiny(&p, &file);
        assert_int_equal(td_model_open_memory(file.data, file.len, types[i], &m), TD_OK);
        assert_true(m->hp.tied_embedding == !p.untied);
        assert_int_equal(m->hp.n_layers, 2);
        (void)td_model_close(m);
        td_buf_fini(&file);
    }
}

static void each_architecture_brings_its_own_vectors(void **state)
{
    static const char *const names[] = {"llama", "qwen2", "qwen3"};
    static const enum td_arch archs[] = {TD_ARCH_LLAMA, TD_ARCH_QWEN2, TD_ARCH_QWEN3};

    for (size_t i = 0; i < TD_COUNT(names); i++) {
        struct td_tiny_params p = td_tiny_defaults();
        struct td_model *m = NULL;
        struct td_buf file;

        p.arch = names[i];
        p.head_dim = 128;
        make_tiny(&p, &file);
        assert_int_equal(td_model_open_memory(file.data, file.len, names[i], &m), TD_OK);
        assert_int_equal(m->hp.arch, archs[i]);
        assert_int_equal(m->hp.rope_style, i == 0 ? TD_ROPE_PAIRS : TD_ROPE_HALVES);
        assert_int_equal(m->hp.head_dim, 128);
        assert_int_equal(m->layers[1].wo.cols, 512);
        assert_int_equal(m->layers[1].q_bias.cols, i == 1 ? 512 : 0);
        assert_int_equal(m->layers[1].v_bias.cols, i == 1 ? 256 : 0);
        assert_int_equal(m->layers[1].q_norm.cols, i == 2 ? 128 : 0);
        assert_true((m->layers[1].k_norm.data != NULL) == (i == 2));
        assert_true(m->hp.mixed_dtypes);
        (void)td_model_close(m);
        td_buf_fini(&file);
    }
}

/* ---- refusals ---- */

static void extra_bias(struct td_gguf_build *b)
{
    static const float bias[32];

    td_gguf_build_tensor(b, "blk.0.attn_q.bias", TD_DTYPE_F32, 1, (uint64_t[]){32}, bias, 128);
}

static void experts(struct td_gguf_build *b)
{
    td_gguf_build_u32(b, "llama.expert_count", 8);
}

static void window(struct td_gguf_build *b)
{
    td_gguf_build_u32(b, "llama.attention.sliding_window", 32);
}

static void window_of_the_context(struct td_gguf_build *b)
{
    td_gguf_build_u32(b, "llama.attention.sliding_window", 64);
}

static void a_window_counts_when_the_context_is_longer(void **state)
{
    struct td_buf file;
    struct td_model *m = NULL;

    small_model(&(struct change){.extra = window}, &file);
    assert_int_equal(td_model_open_memory(file.data, file.len, "small", &m), TD_OK);
    assert_int_equal(m->hp.window, 32);
    m = td_model_close(m);
    td_buf_fini(&file);
    small_model(&(struct change){.extra = window_of_the_context}, &file);
    assert_int_equal(td_model_open_memory(file.data, file.len, "small", &m), TD_OK);
    assert_int_equal(m->hp.window, 0);
    (void)td_model_close(m);
    td_buf_fini(&file);
}

static void value_length(struct td_gguf_build *b)
{
    td_gguf_build_u32(b, "llama.attention.value_length", 16);
}

static void key_length_huge(struct td_gguf_build *b)
{
    td_gguf_build_u32(b, "llama.attention.key_length", 1u << 30);
}

static void yarn(struct td_gguf_build *b)
{
    td_gguf_build_str(b, "llama.rope.scaling.type", "yarn");
}

static void linear_by_zero(struct td_gguf_build *b)
{
    td_gguf_build_str(b, "llama.rope.scaling.type", "linear");
    td_gguf_build_f32(b, "llama.rope.scaling.factor", 0);
}

static void rope_freqs_of(struct td_gguf_build *b, uint64_t n, float v)
{
    float divisors[8] = {1, v, 1, 1, 1, 1, 1, 1};

    td_gguf_build_tensor(b, "rope_freqs.weight", TD_DTYPE_F32, 1, &n, divisors, n * 4);
}

static void rope_freqs_short(struct td_gguf_build *b)
{
    rope_freqs_of(b, 2, 1);
}

static void rope_freqs_nan(struct td_gguf_build *b)
{
    rope_freqs_of(b, 4, NAN);
}

static const struct {
    const char *text; /* part of the logged reason */
    td_err expect;
    struct change change;
} refused[] = {
    {"architecture is missing", TD_ERR_FILE_FORMAT, {.drop = "general.architecture"}},
    {"architecture mamba",
     TD_ERR_FILE_UNSUPPORTED,
     {.str_key = "general.architecture", .str = "mamba"}},
    {"no tokenizer", TD_ERR_FILE_FORMAT, {.drop = "tokenizer.ggml.model"}},
    {"block_count is missing", TD_ERR_FILE_FORMAT, {.drop = "llama.block_count"}},
    {"block_count is 0", TD_ERR_FILE_FORMAT, {.u32_key = "llama.block_count"}},
    {"block_count is 4294967295",
     TD_ERR_FILE_FORMAT,
     {.u32_key = "llama.block_count", .u32 = UINT32_MAX}},
    {"blk.1.attn_norm.weight is missing",
     TD_ERR_FILE_FORMAT,
     {.u32_key = "llama.block_count", .u32 = 2}},
    {"context_length is 0", TD_ERR_FILE_FORMAT, {.u32_key = "llama.context_length"}},
    /* CVE-2025-53630: a context size that wraps when multiplied. */
    {"context_length is 4294967295",
     TD_ERR_FILE_FORMAT,
     {.u32_key = "llama.context_length", .u32 = UINT32_MAX}},
    {"embedding_length is 0", TD_ERR_FILE_FORMAT, {.u32_key = "llama.embedding_length"}},
    {"embedding_length is 4294967264",
     TD_ERR_FILE_FORMAT,
     {.u32_key = "llama.embedding_length", .u32 = 4294967264u}},
    {"[3][32], not [3][64]", TD_ERR_FILE_FORMAT, {.u32_key = "llama.embedding_length", .u32 = 64}},
    {"feed_forward_length is 0", TD_ERR_FILE_FORMAT, {.u32_key = "llama.feed_forward_length"}},
    {"head_count is 0", TD_ERR_FILE_FORMAT, {.u32_key = "llama.attention.head_count"}},
    {"head_count_kv is 0", TD_ERR_FILE_FORMAT, {.u32_key = "llama.attention.head_count_kv"}},
    {"head_count_kv is 8",
     TD_ERR_FILE_FORMAT,
     {.u32_key = "llama.attention.head_count_kv", .u32 = 8}},
    {"not a multiple", TD_ERR_FILE_FORMAT, {.u32_key = "llama.attention.head_count_kv", .u32 = 3}},
    {"dimension_count is 10",
     TD_ERR_FILE_FORMAT,
     {.u32_key = "llama.rope.dimension_count", .u32 = 10}},
    {"is odd", TD_ERR_FILE_FORMAT, {.u32_key = "llama.rope.dimension_count", .u32 = 7}},
    {"epsilon is missing", TD_ERR_FILE_FORMAT, {.drop = "llama.attention.layer_norm_rms_epsilon"}},
    {"epsilon is not in",
     TD_ERR_FILE_FORMAT,
     {.f32_key = "llama.attention.layer_norm_rms_epsilon", .f32 = NAN}},
    {"freq_base is not in", TD_ERR_FILE_FORMAT, {.f32_key = "llama.rope.freq_base", .f32 = 0.5f}},
    {"mixtures of experts", TD_ERR_FILE_UNSUPPORTED, {.extra = experts}},
    {"architecture mistral", /* such files say llama */
     TD_ERR_FILE_UNSUPPORTED,
     {.str_key = "general.architecture", .str = "mistral"}},
    {"values of 16", TD_ERR_FILE_UNSUPPORTED, {.extra = value_length}},
    {"key_length is 1073741824", TD_ERR_FILE_FORMAT, {.extra = key_length_huge}},
    {"rope scaling yarn", TD_ERR_FILE_UNSUPPORTED, {.extra = yarn}},
    {"scaling.factor is not in", TD_ERR_FILE_FORMAT, {.extra = linear_by_zero}},
    {"rope_freqs.weight is [1][2]", TD_ERR_FILE_FORMAT, {.extra = rope_freqs_short}},
    {"rope_freqs.weight: value 1", TD_ERR_FILE_FORMAT, {.extra = rope_freqs_nan}},
    {"1 of 12 tensors have no place", TD_ERR_FILE_UNSUPPORTED, {.extra = extra_bias}},
    {"output_norm.weight is missing", TD_ERR_FILE_FORMAT, {.drop = "output_norm.weight"}},
    {"attn_v.weight is [32][32], not [16][32]",
     TD_ERR_FILE_FORMAT,
     {.tensor = "blk.0.attn_v.weight", .d0 = 32, .d1 = 32}},
    {"token_embd.weight is [2][32], not [3]",
     TD_ERR_FILE_FORMAT,
     {.tensor = "token_embd.weight", .d0 = 32, .d1 = 2}},
    {"type IQ4_NL, which is not supported",
     TD_ERR_FILE_UNSUPPORTED,
     {.tensor = "blk.0.attn_q.weight", .d0 = 32, .d1 = 32, .dtype = TD_DTYPE_IQ4_NL}},
    {"for a vector",
     TD_ERR_FILE_UNSUPPORTED,
     {.tensor = "output_norm.weight", .d0 = 32, .d1 = 1, .dtype = TD_DTYPE_F16}},
};

static void files_that_do_not_fit_are_refused_with_one_logged_reason(void **state)
{
    (void)state;
    for (size_t i = 0; i < TD_COUNT(refused); i++) {
        struct td_model *m = NULL;
        struct td_buf file;
        char line[4096];
        FILE *log = catch_log();
        td_err e;

        small_model(&refused[i].change, &file);
        e = td_model_open_memory(file.data, file.len, "hostile.gguf", &m);
        caught_log(log, line, sizeof line);
        assert_null(m);
        if (e != refused[i].expect || strstr(line, refused[i].text) == NULL ||
            strstr(line, "hostile.gguf") == NULL || strchr(line, '\n') != strrchr(line, '\n')) {
            fail_msg("case %zu (%s): %s: %s", i, refused[i].text, td_err_code(e), line);
        }
        td_buf_fini(&file);
    }
}

static void a_missing_file_is_refused_with_its_path(void **state)
{
    struct td_model *m = NULL;
    char line[1024];
    FILE *log = catch_log();

    (void)state;
    assert_int_equal(td_model_open("/nonexistent/model.gguf", &m), TD_ERR_NO_FILE);
    caught_log(log, line, sizeof line);
    assert_non_null(strstr(line, "/nonexistent/model.gguf"));
    assert_null(m);
}

/* ---- rotary scaling ---- */

static void linear_by_four(struct td_gguf_build *b)
{
    td_gguf_build_str(b, "llama.rope.scaling.type", "linear");
    td_gguf_build_f32(b, "llama.rope.scaling.factor", 4);
}

static void rope_freqs_8(struct td_gguf_build *b)
{
    rope_freqs_of(b, 4, 8);
}

static void rotary_scaling_divides_the_frequencies(void **state)
{
    float freq[4];
    struct td_model *m = NULL;
    struct td_buf file;

    (void)state;
    td_rope_freqs(10000, 8, freq);
    small_model(&(struct change){.extra = linear_by_four}, &file);
    assert_int_equal(td_model_open_memory(file.data, file.len, "linear", &m), TD_OK);
    assert_true(m->rope_freq[0] == 0.25f && m->rope_freq[3] == freq[3] / 4);
    m = td_model_close(m);
    td_buf_fini(&file);
    small_model(&(struct change){.extra = rope_freqs_8}, &file);
    assert_int_equal(td_model_open_memory(file.data, file.len, "divisors", &m), TD_OK);
    assert_true(m->rope_freq[0] == 1 && m->rope_freq[1] == freq[1] / 8 &&
                m->rope_freq[2] == freq[2]);
    m = td_model_close(m);
    td_buf_fini(&file);
}

/* ---- identity ---- */

static void identity_of(const struct td_buf *file, uint8_t out[32])
{
    struct td_model *m = NULL;

    assert_int_equal(td_model_open_memory(file->data, file->len, "model", &m), TD_OK);
    memcpy(out, m->id, 32);
    (void)td_model_close(m);
}

static void identity_depends_on_head_weights_and_nothing_else(void **state)
{
    struct td_tiny_params p = td_tiny_defaults();
    struct td_buf file;
    struct td_buf other;
    uint8_t a[32];
    uint8_t b[32];

    (void)state;
    make_tiny(&p, &file);
    identity_of(&file, a);
    identity_of(&file, b);
    assert_memory_equal(a, b, 32);
    file.data[file.len - 1] ^= 1; /* the last byte of the last tensor is sampled */
    identity_of(&file, b);
    assert_memory_not_equal(a, b, 32);
    p.seed = 2;
    make_tiny(&p, &other);
    identity_of(&other, b);
    assert_memory_not_equal(a, b, 32);
    td_buf_fini(&file);
    td_buf_fini(&other);
}

static void the_full_hash_is_sha256_of_the_file(void **state)
{
    struct td_model *m = NULL;
    struct td_buf file;
    uint8_t want[32];
    uint8_t got[32];

    (void)state;
    small_model(&(struct change){0}, &file);
    assert_int_equal(td_model_open_memory(file.data, file.len, "small", &m), TD_OK);
    assert_int_equal(td_model_full_hash(m, got), TD_OK);
    assert_non_null(SHA256(file.data, file.len, want));
    assert_memory_equal(got, want, 32);
    (void)td_model_close(m);
    td_buf_fini(&file);
}

static void a_model_opens_from_a_path(void **state)
{
    struct td_tiny_params p = td_tiny_defaults();
    char path[] = "/tmp/td-model-XXXXXX";
    struct td_model *m = NULL;
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    (void)close(fd);
    assert_int_equal(td_tiny_write_file(&p, path), TD_OK);
    assert_int_equal(td_model_open(path, &m), TD_OK);
    assert_int_equal(unlink(path), 0);
    assert_true(m->name.len > 0 && m->file_bytes > m->weight_bytes);
    (void)td_model_close(m);
}

static void each_failed_allocation_is_reported_and_leaks_nothing(void **state)
{
    struct td_buf file;
    struct td_model *m = NULL;
    FILE *log = catch_log();
    char line[64];
    unsigned n = 0;
    td_err e;

    (void)state;
    if (!TD_WITH_FAULTS) {
        caught_log(log, line, sizeof line);
        skip();
        return; /* gcc does not see that skip() leaves */
    }
    small_model(&(struct change){0}, &file);
    do {
        td_mem_fail_nth(++n);
        e = td_model_open_memory(file.data, file.len, "small", &m);
        td_mem_fail_nth(0);
        assert_true(e == TD_OK || e == TD_ERR_NO_MEMORY);
        assert_true((m != NULL) == (e == TD_OK));
    } while (e != TD_OK);
    caught_log(log, line, sizeof line);
    assert_true(n > 10);
    (void)td_model_close(m);
    td_buf_fini(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_small_model_opens_with_its_numbers),
        cmocka_unit_test(a_tiny_model_of_each_type_opens),
        cmocka_unit_test(each_architecture_brings_its_own_vectors),
        cmocka_unit_test(a_window_counts_when_the_context_is_longer),
        cmocka_unit_test(files_that_do_not_fit_are_refused_with_one_logged_reason),
        cmocka_unit_test(a_missing_file_is_refused_with_its_path),
        cmocka_unit_test(rotary_scaling_divides_the_frequencies),
        cmocka_unit_test(identity_depends_on_head_weights_and_nothing_else),
        cmocka_unit_test(the_full_hash_is_sha256_of_the_file),
        cmocka_unit_test(a_model_opens_from_a_path),
        cmocka_unit_test(each_failed_allocation_is_reported_and_leaks_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
