/* How the CUDA engine deals its layers to launches of whole layers (tk_layers_run), on the reference device: as many to each as it
 * takes, all of them once and in order, and the same ids as with a launch for each operation. */
#include "kernels/tk_cuda.h"
#include "tests/unit/model/cuda_util.h"

#define MOST_LAUNCHES 256
#define PROMPT        20
#define GEN           6

/* ---- the launches, as the engine enqueues them ---- */

static bool refused; /* as by a device that does not compute them */
static struct launch {
    uint32_t first, n, rows;
} launches[MOST_LAUNCHES];
static uint32_t n_launches;

/* NOLINTBEGIN(readability-identifier-naming, bugprone-reserved-identifier): the linker's names */
bool __real_tk_layers_fits(const struct tk_layer *layers, uint32_t n);
bool __wrap_tk_layers_fits(const struct tk_layer *layers, uint32_t n);
bool __wrap_tk_layers_fits(const struct tk_layer *layers, uint32_t n)
{
    return !refused && __real_tk_layers_fits(layers, n);
}

td_err __real_tk_layers_run(tk_stream s, const struct tk_layers *l);
td_err __wrap_tk_layers_run(tk_stream s, const struct tk_layers *l);
td_err __wrap_tk_layers_run(tk_stream s, const struct tk_layers *l)
{
    const struct tk_attn_decode *a = &l->layers[0].attention;
    assert_true(n_launches < MOST_LAUNCHES);
    launches[n_launches++] = (struct launch){a->layer, l->n, a->n_seqs};
    return __real_tk_layers_run(s, l);
}
/* NOLINTEND(readability-identifier-naming, bugprone-reserved-identifier) */

/* ---- an engine over so many layers ---- */

static struct eu_model open_model(uint32_t n_layers, uint32_t head_dim, const char *arch)
{
    struct td_tiny_params p = td_tiny_defaults();
    p.type = "bf16";
    p.arch = arch;
    p.n_layers = n_layers;
    p.n_embd = 128;
    p.n_ffn = 256;
    p.n_heads = 2;
    p.n_kv_heads = 1;
    p.head_dim = head_dim;
    return eu_model_make(&p);
}

static void generate(const struct eu_model *m, bool deterministic, bool whole, int32_t ids[GEN])
{
    int32_t prompt[PROMPT];
    struct eu_seq s = eu_seq_new(0, 3, 1);
    refused = !whole;
    n_launches = 0;
    struct td_engine *e = eu_cuda_engine(m, TD_CUDA_KERNELS_AUTO, deterministic);
    eu_tokens(m, 11, prompt, PROMPT);
    eu_set(e, 0, eu_sampling(0, 0));
    eu_generate(e, &s, prompt, PROMPT, 7, ids, GEN);
    e->ops->destroy(e);
    refused = false;
}

/* Every step that was captured: layers 0 .. n_layers once, in order, in as few launches as hold them. */
static void check_dealt(uint32_t n_layers)
{
    uint32_t next = 0;
    for (uint32_t i = 0; i < n_launches; i++) {
        const uint32_t left = n_layers - next;
        assert_int_equal(launches[i].first, next);
        assert_int_equal(launches[i].n, left < TK_LAYERS_MAX ? left : TK_LAYERS_MAX);
        assert_true(next == 0 || launches[i].rows == launches[i - 1].rows);
        next = (next + launches[i].n) % n_layers;
    }
    assert_int_equal(next, 0);
    assert_true(n_launches > 0);
}

static void check_depth(uint32_t n_layers)
{
    struct eu_model m = open_model(n_layers, 128, NULL);
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        int32_t want[GEN], got[GEN];
        generate(&m, deterministic != 0, false, want);
        assert_int_equal(n_launches, 0);
        generate(&m, deterministic != 0, true, got);
        check_dealt(n_layers);
        assert_memory_equal(got, want, sizeof want);
    }
    eu_model_close(&m);
}

static void all_layers_are_one_launch(void **state)
{
    (void)state;
    check_depth(1);
    check_depth(3);
}

static void a_deeper_model_takes_several_launches_in_turn(void **state)
{
    (void)state;
    check_depth(TK_LAYERS_MAX);
    check_depth(TK_LAYERS_MAX + 1); /* the second one is a layer without a qkv behind it */
    check_depth(TK_LAYERS_MAX + 5);
}

static void what_is_not_computed_so_has_launches_of_its_own(void **state)
{
    static const struct {
        uint32_t head_dim;
        const char *arch;
    } others[] = {{64, NULL}, {128, "qwen2"}, {128, "qwen3"}}; /* biases, norms of heads */
    (void)state;
    for (size_t i = 0; i < TD_COUNT(others); i++) {
        struct eu_model m = open_model(2, others[i].head_dim, others[i].arch);
        int32_t ids[GEN];
        generate(&m, false, true, ids);
        assert_int_equal(n_launches, 0);
        eu_model_close(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_layers_are_one_launch),
        cmocka_unit_test(a_deeper_model_takes_several_launches_in_turn),
        cmocka_unit_test(what_is_not_computed_so_has_launches_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
