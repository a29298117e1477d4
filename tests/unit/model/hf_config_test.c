/* config.json and generation_config.json: each key in its range, what is not supported is refused. */
#include "common/model/hf_config.h"

#include "common/model/rope.h"
#include "tests/unit/model/hf_util.h"

static char text[TD_GGUF_ERR_TEXT];
static const struct td_why why = {text, sizeof text};

#define SIZES                                                                                      \
    "\"num_hidden_layers\":2,\"hidden_size\":256,\"intermediate_size\":512,"                       \
    "\"num_attention_heads\":4,\"vocab_size\":512,\"max_position_embeddings\":1024"
#define LLAMA "{\"model_type\":\"llama\"," SIZES

static td_err read_text(const char *json, struct td_hf_config *out)
{
    json_t *j = json_loads(json, 0, NULL);
    td_err e;

    assert_non_null(j);
    text[0] = '\0';
    e = td_hf_config_read(j, out, &why);
    json_decref(j);
    return e;
}

static struct td_hf_config good(const char *json)
{
    struct td_hf_config c = {0};
    td_err e = read_text(json, &c);

    if (e != TD_OK) {
        fail_msg("%s: %s", json, text);
    }
    return c;
}

static void absent_keys_have_the_defaults_of_transformers(void **state)
{
    struct td_hf_config c = good(LLAMA "}");

    (void)state;
    assert_int_equal(c.hp.arch, TD_ARCH_LLAMA);
    assert_int_equal(c.hp.n_kv_heads, 4);
    assert_int_equal(c.hp.head_dim, 64);
    assert_int_equal(c.hp.rope_dim, 64);
    assert_int_equal(c.hp.rope_style, TD_ROPE_HALVES);
    assert_true(c.hp.rms_eps == 1e-6f && c.hp.rope_theta == 10000);
    assert_false(c.hp.tied_embedding);
    assert_int_equal(c.hp.window, 0);
    assert_int_equal(good("{\"model_type\":\"qwen3\"," SIZES "}").hp.head_dim, 128);
    assert_int_equal(good("{\"model_type\":\"mistral\"," SIZES "}").hp.window, 0); /* 4096 > 1024 */
}

static void values_are_read(void **state)
{
    struct td_hf_config c =
        good(LLAMA ",\"architectures\":[\"LlamaForCausalLM\"],\"num_key_value_heads\":2,"
                   "\"head_dim\":96,\"rms_norm_eps\":1e-5,\"rope_theta\":500000,"
                   "\"tie_word_embeddings\":true,\"hidden_act\":\"silu\",\"rope_scaling\":null,"
                   "\"attention_bias\":false}");

    (void)state;
    assert_int_equal(c.hp.n_kv_heads, 2);
    assert_int_equal(c.hp.head_dim, 96);
    assert_true(c.hp.rms_eps == 1e-5f && c.hp.rope_theta == 500000);
    assert_true(c.hp.tied_embedding);
}

#define QWEN    "{\"model_type\":\"qwen2\"," SIZES ",\"sliding_window\":128"
#define MISTRAL "{\"model_type\":\"mistral\"," SIZES
#define FULL    "\"full_attention\""
#define SLIDE   "\"sliding_attention\""

static void windows_are_those_of_all_layers(void **state)
{
    struct td_hf_config c;

    (void)state;
    assert_int_equal(good(MISTRAL ",\"sliding_window\":100}").hp.window, 100);
    assert_int_equal(good(MISTRAL ",\"sliding_window\":null}").hp.window, 0);
    assert_int_equal(good(MISTRAL ",\"sliding_window\":1024}").hp.window, 0);
    assert_int_equal(good(QWEN ",\"use_sliding_window\":false}").hp.window, 0);
    assert_int_equal(good(QWEN "}").hp.window, 0);
    assert_int_equal(good(QWEN ",\"use_sliding_window\":true,\"max_window_layers\":2}").hp.window,
                     0);
    assert_int_equal(good(QWEN ",\"use_sliding_window\":true,\"max_window_layers\":0}").hp.window,
                     128);
    assert_int_equal(
        good(QWEN ",\"use_sliding_window\":true,\"layer_types\":[" SLIDE "," SLIDE "]}").hp.window,
        128);
    assert_int_equal(
        good(QWEN ",\"use_sliding_window\":true,\"layer_types\":[" FULL "," FULL "]}").hp.window,
        0);
    assert_int_equal(read_text(QWEN ",\"use_sliding_window\":true,\"max_window_layers\":1}", &c),
                     TD_ERR_FILE_UNSUPPORTED);
    assert_int_equal(
        read_text(QWEN ",\"use_sliding_window\":true,\"layer_types\":[" SLIDE "," FULL "]}", &c),
        TD_ERR_FILE_UNSUPPORTED);
}

static const struct {
    const char *says, *json;
    td_err expect;
} refused[] = {
    {"model_type is missing", "{" SIZES "}", TD_ERR_FILE_FORMAT},
    {"model_type mamba", "{\"model_type\":\"mamba\"," SIZES "}", TD_ERR_FILE_UNSUPPORTED},
    {"LlamaForSequenceClassification",
     LLAMA ",\"architectures\":[\"LlamaForSequenceClassification\"]}", TD_ERR_FILE_UNSUPPORTED},
    {"num_hidden_layers is missing", "{\"model_type\":\"llama\"}", TD_ERR_FILE_FORMAT},
    {"num_hidden_layers is not", "{\"model_type\":\"llama\",\"num_hidden_layers\":0}",
     TD_ERR_FILE_FORMAT},
    {"num_hidden_layers is not", "{\"model_type\":\"llama\",\"num_hidden_layers\":1.5}",
     TD_ERR_FILE_FORMAT},
    {"num_hidden_layers is not", "{\"model_type\":\"llama\",\"num_hidden_layers\":\"2\"}",
     TD_ERR_FILE_FORMAT},
    {"num_hidden_layers is not", "{\"model_type\":\"llama\",\"num_hidden_layers\":4294967298}",
     TD_ERR_FILE_FORMAT},
    {"num_key_value_heads", LLAMA ",\"num_key_value_heads\":8}", TD_ERR_FILE_FORMAT},
    {"not a multiple", LLAMA ",\"num_key_value_heads\":3}", TD_ERR_FILE_FORMAT},
    {"head_dim 63", LLAMA ",\"head_dim\":63}", TD_ERR_FILE_FORMAT},
    {"head_dim is not", LLAMA ",\"head_dim\":100000}", TD_ERR_FILE_FORMAT},
    {"rms_norm_eps", LLAMA ",\"rms_norm_eps\":-1}", TD_ERR_FILE_FORMAT},
    {"rope_theta", LLAMA ",\"rope_theta\":0.5}", TD_ERR_FILE_FORMAT},
    {"hidden_act gelu", LLAMA ",\"hidden_act\":\"gelu\"}", TD_ERR_FILE_UNSUPPORTED},
    {"attention_bias", LLAMA ",\"attention_bias\":true}", TD_ERR_FILE_UNSUPPORTED},
    {"attention_bias is not", LLAMA ",\"attention_bias\":1}", TD_ERR_FILE_FORMAT},
    {"mlp_bias", LLAMA ",\"mlp_bias\":true}", TD_ERR_FILE_UNSUPPORTED},
    {"quantization_config", LLAMA ",\"quantization_config\":{}}", TD_ERR_FILE_UNSUPPORTED},
    {"num_experts", LLAMA ",\"num_experts\":8}", TD_ERR_FILE_UNSUPPORTED},
    {"partial_rotary_factor", LLAMA ",\"partial_rotary_factor\":0.5}", TD_ERR_FILE_UNSUPPORTED},
    {"rope type yarn", LLAMA ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}}",
     TD_ERR_FILE_UNSUPPORTED},
    {"rope scaling is not", LLAMA ",\"rope_scaling\":[]}", TD_ERR_FILE_FORMAT},
    {"factor is missing", LLAMA ",\"rope_scaling\":{\"type\":\"linear\"}}", TD_ERR_FILE_FORMAT},
    {"factor is not", LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}",
     TD_ERR_FILE_FORMAT},
    {"high_freq_factor is not above",
     LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
           "\"high_freq_factor\":4,\"original_max_position_embeddings\":100}}",
     TD_ERR_FILE_FORMAT},
    {"sliding_window", MISTRAL ",\"sliding_window\":0}", TD_ERR_FILE_FORMAT},
    {"tie_word_embeddings", LLAMA ",\"tie_word_embeddings\":1}", TD_ERR_FILE_FORMAT},
};

static void what_does_not_fit_is_refused_with_a_sentence(void **state)
{
    (void)state;
    for (size_t i = 0; i < TD_COUNT(refused); i++) {
        struct td_hf_config c;

        if (read_text(refused[i].json, &c) != refused[i].expect ||
            strstr(text, refused[i].says) == NULL) {
            fail_msg("%s: \"%s\" does not say \"%s\"", refused[i].json, text, refused[i].says);
        }
    }
}

static void rotary_scaling_divides_the_slow_frequencies(void **state)
{
    struct td_hf_config c =
        good(LLAMA ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":4}}");
    float plain[32];
    float got[32];

    (void)state;
    td_rope_freqs(10000, 64, plain);
    td_hf_rope_freqs(&c, got);
    for (int i = 0; i < 32; i++) {
        assert_true(got[i] == plain[i] / 4);
    }
    /* transformers 5 keeps the base inside */
    c = good(LLAMA ",\"rope_parameters\":{\"rope_type\":\"llama3\",\"rope_theta\":10000.0,"
                   "\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"
                   "\"original_max_position_embeddings\":256}}");
    td_hf_rope_freqs(&c, got);
    for (int i = 0; i < 32; i++) {
        double turns = (double)plain[i] * 256 / (2 * 3.14159265358979323846);

        if (turns >= 4) {
            assert_true(got[i] == plain[i]);
        } else if (turns <= 1) {
            assert_true(got[i] == (float)((double)plain[i] / 8));
        } else {
            assert_true(got[i] < plain[i] && got[i] > plain[i] / 8);
        }
    }
    assert_true(got[31] == plain[31] / 8 && got[0] == 1);
}

static void defaults_of_sampling_are_read_in_their_ranges(void **state)
{
    static const char *const wrong[] = {"{\"temperature\":-1}", "{\"top_p\":0}", "{\"top_k\":-1}",
                                        "{\"min_p\":2}", "{\"repetition_penalty\":\"x\"}"};
    struct td_model_defaults d;
    json_t *j = json_loads("{\"temperature\":0.6,\"top_p\":0.9,\"top_k\":20,\"eos_token_id\":[1]}",
                           0, NULL);

    (void)state;
    assert_int_equal(td_hf_defaults_read(NULL, &d, &why), TD_OK);
    assert_true(d.temperature == 1 && d.top_p == 1 && d.min_p == 0 && d.top_k == 0);
    assert_int_equal(td_hf_defaults_read(j, &d, &why), TD_OK);
    assert_true(d.temperature == 0.6f && d.top_p == 0.9f && d.top_k == 20);
    assert_true(d.repetition_penalty == 1);
    json_decref(j);
    for (size_t i = 0; i < TD_COUNT(wrong); i++) {
        j = json_loads(wrong[i], 0, NULL);
        assert_int_equal(td_hf_defaults_read(j, &d, &why), TD_ERR_FILE_FORMAT);
        json_decref(j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent_keys_have_the_defaults_of_transformers),
        cmocka_unit_test(values_are_read),
        cmocka_unit_test(windows_are_those_of_all_layers),
        cmocka_unit_test(what_does_not_fit_is_refused_with_a_sentence),
        cmocka_unit_test(rotary_scaling_divides_the_slow_frequencies),
        cmocka_unit_test(defaults_of_sampling_are_read_in_their_ranges),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
