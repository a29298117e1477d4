/* The CUDA engine with its sm_80 kernels, whose own source runs on the CPU (tests/emulate) where the reference device's
 * operations stand otherwise: close to the float32 reference, and the same ids alone, together and by other chunks. */

#include <math.h>

#include "kernels/ref/tk_device_ref.h"
#include "tests/emulate/emulate.h"
#include "tests/unit/model/cuda_util.h"

/* ---- the engine's launches go to the emulated kernels ---- */

static uint64_t seed; /* the order of threads: another one for each launch */

struct flat_job {
    struct tk_flat a;
    struct tk_map w, x;
};
struct decode_job {
    struct tk_attn_decode a;
    struct tk_map kv;
};
struct prefill_job {
    struct tk_attn_prefill a;
    struct tk_map kv, q;
};

static void do_flat(const void *args)
{
    struct flat_job j;
    memcpy(&j, args, sizeof j);
    j.a.w = &j.w;
    j.a.x = &j.x;
    assert_int_equal(emulate_flat(&j.a, ++seed), TD_OK);
}

static void do_decode(const void *args)
{
    struct decode_job j;
    memcpy(&j, args, sizeof j);
    j.a.kv = &j.kv;
    assert_int_equal(emulate_attn_decode(&j.a, ++seed), TD_OK);
}

static void do_prefill(const void *args)
{
    struct prefill_job j;
    memcpy(&j, args, sizeof j);
    j.a.kv = &j.kv;
    j.a.q = &j.q;
    assert_int_equal(emulate_attn_prefill(&j.a, ++seed), TD_OK);
}

/* NOLINTBEGIN(readability-identifier-naming): the linker's names */
td_err __wrap_tk_flat(tk_stream s, const struct tk_flat *a);
td_err __wrap_tk_flat(tk_stream s, const struct tk_flat *a)
{
    const struct flat_job j = {*a, *a->w, *a->x};
    return tk_ref_enqueue(s, do_flat, &j, sizeof j);
}

td_err __wrap_tk_attn_decode(tk_stream s, const struct tk_attn_decode *a);
td_err __wrap_tk_attn_decode(tk_stream s, const struct tk_attn_decode *a)
{
    const struct decode_job j = {*a, *a->kv};
    return tk_ref_enqueue(s, do_decode, &j, sizeof j);
}

td_err __wrap_tk_attn_prefill(tk_stream s, const struct tk_attn_prefill *a);
td_err __wrap_tk_attn_prefill(tk_stream s, const struct tk_attn_prefill *a)
{
    const struct prefill_job j = {*a, *a->kv, *a->q};
    return tk_ref_enqueue(s, do_prefill, &j, sizeof j);
}

/* The partials lie where the kernels put them, not where the reference needs none. */
size_t __wrap_tk_attn_decode_scratch(uint32_t n_kv_heads, uint32_t group, uint32_t head_dim,
                                     uint32_t max_entries);
size_t __wrap_tk_attn_decode_scratch(uint32_t n_kv_heads, uint32_t group, uint32_t head_dim,
                                     uint32_t max_entries)
{
    return tk_attn_decode_counters(n_kv_heads) + 256 +
           (size_t)max_entries * n_kv_heads * (TK_MAX_GROUP * 8 + group * head_dim * 4);
}

/* NOLINTEND(readability-identifier-naming) */

/* ---- tests ---- */

static struct eu_model open_shape(uint32_t n_embd, uint32_t n_heads, uint32_t n_kv_heads,
                                  uint32_t window)
{
    struct td_tiny_params p = td_tiny_defaults();
    p.type = "bf16";
    p.n_embd = n_embd;
    p.n_ffn = 128;
    p.n_heads = n_heads;
    p.n_kv_heads = n_kv_heads;
    p.window = window;
    return eu_model_make(&p);
}

static void check_logits(struct eu_model m, uint32_t n, uint32_t chunk)
{
    struct td_engine *ours = eu_cuda_engine(&m, TD_CUDA_KERNELS_SM80, false);
    struct td_engine *ref = eu_engine(&m, "f32", TD_ISA_AUTO, 1);
    const size_t count = (size_t)n * m.m->hp.n_vocab;
    float *got = malloc(count * sizeof *got), *want = malloc(count * sizeof *want);
    int32_t tokens[128];
    double d = 0, r = 0;
    assert_non_null(got);
    assert_non_null(want);
    eu_tokens(&m, 5, tokens, n);
    assert_int_equal(td_cpu_engine_logits(ref, tokens, n, n, want), TD_OK);
    assert_int_equal(td_cuda_engine_logits(ours, tokens, n, chunk, got), TD_OK);
    for (size_t i = 0; i < count; i++) {
        const double x = (double)got[i], y = (double)want[i];
        d += (x - y) * (x - y);
        r += y * y;
    }
    assert_true(sqrt(d / r) < 0.03);
    free(got);
    free(want);
    ours->ops->destroy(ours);
    ref->ops->destroy(ref);
    eu_model_close(&m);
}

static void logits_are_close_to_the_float32_reference(void **state)
{
    check_logits(open_shape(256, 4, 2, 0), 70, 48); /* head_dim 64 */
    check_logits(open_shape(256, 2, 1, 37), 60, 60);
    check_logits(open_shape(192, 3, 1, 0), 20, 7); /* padded */
}

/* Greedy ids behind a prompt, by decode rows: each as good as the float32 reference's best, to rounding. */
static void decode_rows_choose_what_the_reference_would(void **state)
{
    enum { PROMPT = 50, GEN = 8, ALL = PROMPT + GEN };
    struct eu_model m = open_shape(256, 4, 2, 0);
    struct td_engine *e = eu_cuda_engine(&m, TD_CUDA_KERNELS_SM80, true);
    struct td_engine *ref = eu_engine(&m, "f32", TD_ISA_AUTO, 1);
    const uint32_t vocab = m.m->hp.n_vocab;
    float *logits = malloc((size_t)ALL * vocab * sizeof *logits);
    int32_t ids[ALL];
    struct eu_seq s = eu_seq_new(0, 3, 1);
    assert_non_null(logits);
    eu_tokens(&m, 9, ids, PROMPT);
    eu_set(e, 0, eu_sampling(0, 0));
    eu_generate(e, &s, ids, PROMPT, 64, ids + PROMPT, GEN);
    assert_int_equal(td_cpu_engine_logits(ref, ids, ALL, ALL, logits), TD_OK);
    for (uint32_t t = PROMPT; t < ALL; t++) {
        const float *l = logits + (size_t)(t - 1) * vocab;
        float best = l[0], sum = 0;
        for (uint32_t i = 0; i < vocab; i++) {
            best = l[i] > best ? l[i] : best;
            sum += l[i] * l[i];
        }
        assert_true(best - l[ids[t]] < 0.1f * sqrtf(sum / (float)vocab));
    }
    free(logits);
    e->ops->destroy(e);
    ref->ops->destroy(ref);
    eu_model_close(&m);
}

static void a_sequence_in_a_batch_gives_the_ids_it_gives_alone(void **state)
{
    enum { SEQS = 3, GEN = 4 };
    static const uint32_t lens[SEQS] = {5, 40, 90};
    struct eu_model m = open_shape(256, 4, 1, 0);
    struct td_engine *e = eu_cuda_engine(&m, TD_CUDA_KERNELS_SM80, true);
    int32_t prompts[SEQS][90], alone[SEQS][GEN];
    struct eu_seq s[SEQS];
    uint32_t made[SEQS] = {0}, fed[SEQS] = {0};
    assert_string_equal(e->ops->info(e)->numerics, "cuda-sm80-bf16-v1-cc90-det");
    for (uint32_t i = 0; i < SEQS; i++) {
        eu_tokens(&m, 100 + i, prompts[i], lens[i]);
        eu_set(e, i, eu_sampling(i % 2 == 0 ? 0 : 0.8f, i));
        s[i] = eu_seq_new(i, 3, 1);
        eu_generate(e, &s[i], prompts[i], lens[i], 64, alone[i], GEN);
    }
    for (uint32_t i = 0; i < SEQS; i++) {
        eu_set(e, i, eu_sampling(i % 2 == 0 ? 0 : 0.8f, i));
        s[i] = eu_seq_new(i, i * 19 + 1, 1);
    }
    for (uint32_t step = 0; step < 20; step++) {
        struct td_row rows[SEQS];
        uint32_t who[SEQS], n = 0;
        for (uint32_t i = 0; i < SEQS; i++) {
            const uint32_t left = lens[i] - fed[i], len = left < 37 ? left : 37;
            if (made[i] == GEN) {
                continue;
            }
            who[n] = i;
            rows[n++] = len > 0 ? eu_row(&s[i], prompts[i] + fed[i], len, len == left)
                                : eu_row(&s[i], NULL, 1, true);
            fed[i] += len;
        }
        if (n == 0) {
            break;
        }
        struct td_step_result r = eu_step(e, rows, n);
        for (uint32_t k = 0; k < n; k++) {
            assert_int_equal(r.rows[k].err, TD_OK);
            if (r.rows[k].n_ids == 1) {
                assert_int_equal(r.rows[k].ids[0], alone[who[k]][made[who[k]]++]);
            }
        }
    }
    for (uint32_t i = 0; i < SEQS; i++) {
        assert_int_equal(made[i], GEN);
    }
    e->ops->destroy(e);
    eu_model_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_close_to_the_float32_reference),
        cmocka_unit_test(decode_rows_choose_what_the_reference_would),
        cmocka_unit_test(a_sequence_in_a_batch_gives_the_ids_it_gives_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
