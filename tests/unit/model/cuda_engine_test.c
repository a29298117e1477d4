/* The CUDA engine on the reference device: close to the float32 reference, the same ids whatever the
 * batch, the chunks and the steps in flight where it promises that, sampling as its parameters say,
 * and every failure at its row or step. */

#include <math.h>

#include "kernels/ref/tk_device_ref.h"
#include "tests/unit/model/cuda_util.h"

#define LONG 300 /* tokens: crosses a chunk of attention */

static struct eu_model open_shape(uint32_t n_embd, uint32_t n_heads, uint32_t n_kv_heads,
                                  uint32_t window, const char *type)
{
    struct td_tiny_params p = td_tiny_defaults();
    struct eu_model out;
    p.type = type;
    p.n_embd = n_embd;
    p.n_ffn = 256;
    p.n_heads = n_heads;
    p.n_kv_heads = n_kv_heads;
    p.window = window;
    make_tiny(&p, &out.file);
    assert_int_equal(td_model_open_memory(out.file.data, out.file.len, type, &out.m), TD_OK);
    return out;
}

static struct eu_model open_model(uint32_t n_heads, const char *type)
{
    return open_shape(512, n_heads, n_heads / 2, 0, type);
}

/* ||a - b|| / ||b|| */
static double distance(const float *a, const float *b, size_t n)
{
    double d = 0, r = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        r += (double)b[i] * (double)b[i];
    }
    return sqrt(d / r);
}

static void check_model(struct eu_model m, const char *type, uint32_t n, uint32_t chunk)
{
    struct td_engine *ours = eu_cuda_engine(&m, TD_CUDA_KERNELS_AUTO, false);
    struct td_engine *ref = eu_engine(&m, "f32", TD_ISA_AUTO, 2);
    const size_t count = (size_t)n * m.m->hp.n_vocab;
    float *got = malloc(count * sizeof *got), *want = malloc(count * sizeof *want);
    int32_t tokens[LONG];
    eu_tokens(&m, 5, tokens, n);
    assert_int_equal(td_cpu_engine_logits(ref, tokens, n, n, want), TD_OK);
    assert_int_equal(td_cuda_engine_logits(ours, tokens, n, chunk, got), TD_OK);
    double d = distance(got, want, count);
    print_message("# %u heads, %s: distance %.2g\n", m.m->hp.n_heads, type, d);
    assert_true(d < 0.03);
    free(got);
    free(want);
    ours->ops->destroy(ours);
    ref->ops->destroy(ref);
    eu_model_close(&m);
}

static void check_logits(uint32_t n_heads, const char *type, uint32_t n, uint32_t chunk)
{
    check_model(open_model(n_heads, type), type, n, chunk);
}

static void a_window_hides_what_lies_before_it(void **state)
{
    check_model(open_shape(512, 4, 2, 37, "bf16"), "bf16, window 37", LONG, 128);
    check_model(open_shape(512, 8, 4, 37, "bf16"), "bf16, window 37", 90, 64);
    check_model(open_shape(512, 4, 2, 37, "bf16"), "bf16, window 37, row by row", 60, 1);
}

static void logits_are_close_to_the_float32_reference(void **state)
{
    check_logits(4, "bf16", LONG, 128); /* head_dim 128 */
    check_logits(8, "bf16", 90, 64);    /* head_dim 64 */
    check_logits(4, "f16", 40, 40);
    check_logits(4, "f32", 40, 7);
    check_model(open_shape(192, 3, 1, 0, "bf16"), "bf16, 192 padded to 256", 40, 40);
}

/* Sequences with different prompts and settings, each alone; then all of them together, joining and
 * leaving, in other blocks, prefilled by other chunks. */
static void a_sequence_in_a_batch_gives_the_ids_it_gives_alone(void **state)
{
    enum { SEQS = 4, GEN = 8 };
    static const uint32_t lens[SEQS] = {5, 40, 270, 16};
    struct eu_model m = open_model(4, "bf16");
    struct td_engine *e = eu_cuda_engine(&m, TD_CUDA_KERNELS_AUTO, true);
    int32_t prompts[SEQS][LONG], alone[SEQS][GEN];
    struct eu_seq s[SEQS];
    assert_string_equal(e->ops->info(e)->numerics, "cuda-bf16-v1-det");
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
    uint32_t made[SEQS] = {0}, fed[SEQS] = {0};
    for (uint32_t step = 0; step < 40; step++) {
        struct td_row rows[SEQS];
        uint32_t who[SEQS], n = 0;
        for (uint32_t i = 0; i < SEQS; i++) {
            if (step < i * 2 || made[i] == GEN) {
                continue; /* joins later, has left */
            }
            uint32_t len = lens[i] - fed[i] < 37 ? lens[i] - fed[i] : 37;
            who[n] = i;
            if (len > 0) {
                rows[n++] = eu_row(&s[i], prompts[i] + fed[i], len, fed[i] + len == lens[i]);
                fed[i] += len;
            } else {
                rows[n++] = eu_row(&s[i], NULL, 1, true); /* its last id, still on the device */
            }
        }
        if (n == 0) {
            continue;
        }
        struct td_step_result r = eu_step(e, rows, n);
        for (uint32_t k = 0; k < n; k++) {
            assert_int_equal(r.rows[k].err, TD_OK);
            if (r.rows[k].n_ids == 1) {
                assert_int_equal(r.rows[k].ids[0], alone[who[k]][made[who[k]]]);
                made[who[k]]++;
            }
        }
    }
    for (uint32_t i = 0; i < SEQS; i++) {
        assert_int_equal(made[i], GEN);
    }
    e->ops->destroy(e);
    eu_model_close(&m);
}

/* Not deterministic: decode rows beside a chunk take the wide path, and find the right K and V. */
static void rows_beside_a_chunk_see_their_own_context(void **state)
{
    enum { GEN = 5, SHORT = 20 }; /* the sixth is a near tie, which another order of sums decides */
    struct eu_model m = open_model(4, "bf16");
    struct td_engine *e = eu_cuda_engine(&m, TD_CUDA_KERNELS_AUTO, false);
    int32_t prompt[LONG], want[GEN], got[GEN];
    struct eu_seq s = eu_seq_new(0, 0, 1), chunks = eu_seq_new(1, 50, 1);
    eu_tokens(&m, 7, prompt, LONG);
    eu_set(e, 0, eu_sampling(0, 0));
    eu_generate(e, &s, prompt, SHORT, SHORT, want, GEN);
    eu_set(e, 0, eu_sampling(0, 0));
    s = eu_seq_new(0, 20, 1);
    eu_generate(e, &s, prompt, SHORT, SHORT, got, 1);
    for (uint32_t i = 1; i < GEN; i++) {
        struct td_row rows[2] = {eu_row(&s, NULL, 1, true), eu_row(&chunks, prompt, 33, false)};
        struct td_step_result r = eu_step(e, rows, 2);
        assert_int_equal(r.rows[1].err, TD_OK);
        assert_int_equal(r.rows[1].n_ids, 0);
        got[i] = r.rows[0].ids[0];
    }
    assert_memory_equal(got, want, sizeof got);
    e->ops->destroy(e);
    eu_model_close(&m);
}

static void two_steps_in_flight_give_the_ids_of_one(void **state)
{
    enum { GEN = 12 };
    struct eu_model m = open_model(8, "bf16");
    struct td_engine *e = eu_cuda_engine(&m, TD_CUDA_KERNELS_AUTO, false);
    int32_t prompt[9], want[GEN];
    struct eu_seq s = eu_seq_new(0, 0, 1);
    td_ticket ticket = 0, before = 0;
    eu_tokens(&m, 1, prompt, 9);
    eu_set(e, 0, eu_sampling(1, 3));
    eu_generate(e, &s, prompt, 9, 9, want, GEN);
    eu_set(e, 0, eu_sampling(1, 3));
    s = eu_seq_new(0, 40, 1);
    struct td_row row = eu_row(&s, prompt, 9, true);
    assert_int_equal(e->ops->submit(e, &row, 1, &before), TD_OK);
    for (uint32_t i = 0; i < GEN; i++) {
        if (i + 1 < GEN) {
            row = eu_row(&s, NULL, 1, true);
            assert_int_equal(e->ops->submit(e, &row, 1, &ticket), TD_OK);
            assert_true(ticket == before + 1);
            before = ticket;
        }
        assert_int_equal(eu_wait(e).rows[0].ids[0], want[i]);
    }
    e->ops->destroy(e);
    eu_model_close(&m);
}

/* A sequence that is resumed: its prompt again through chunks, its output through decode kernels. */
static void replayed_output_goes_on_as_if_nothing_had_happened(void **state)
{
    enum { GEN = 90, KEPT = 75, PROMPT = 30 };
    struct eu_model m = open_model(4, "bf16");
    struct td_engine *e = eu_cuda_engine(&m, TD_CUDA_KERNELS_AUTO, true);
    int32_t prompt[PROMPT], want[GEN], got[GEN];
    eu_tokens(&m, 4, prompt, PROMPT);
    eu_set(e, 0, eu_sampling(0.9f, 5));
    struct eu_seq s = eu_seq_new(0, 0, 1), again = eu_seq_new(1, 40, 1);
    eu_generate(e, &s, prompt, PROMPT, 16, want, GEN);
    struct td_sampling_state st = {eu_sampling(0.9f, 5), prompt, PROMPT, want, KEPT};
    assert_int_equal(e->ops->seq_set(e, 1, &st), TD_OK);
    struct td_row row = eu_row(&again, prompt, PROMPT, false);
    assert_int_equal(eu_step(e, &row, 1).rows[0].err, TD_OK);
    row = eu_row(&again, want, KEPT, true);
    row.output_pos = PROMPT;
    memcpy(got, want, sizeof want[0] * KEPT);
    got[KEPT] = eu_step(e, &row, 1).rows[0].ids[0];
    for (uint32_t i = KEPT + 1; i < GEN; i++) {
        row = eu_row(&again, &got[i - 1], 1, true);
        got[i] = eu_step(e, &row, 1).rows[0].ids[0];
    }
    assert_memory_equal(got, want, sizeof got);
    e->ops->destroy(e);
    eu_model_close(&m);
}

/* What the sampler is told decides: each setting against the ids of the plain greedy run. */
static void sampling_parameters_reach_the_device(void **state)
{
    enum { GEN = 6, PROMPT = 12 };
    struct eu_model m = open_model(4, "bf16");
    struct td_engine *e = eu_cuda_engine(&m, TD_CUDA_KERNELS_AUTO, false);
    int32_t prompt[PROMPT], plain[GEN], got[GEN];
    struct td_logit_bias bias[1] = {{17, 1000.f}};
    struct td_sampling_params p = eu_sampling(0, 0);
    struct eu_seq s = eu_seq_new(0, 0, 1);
    eu_tokens(&m, 9, prompt, PROMPT);
    eu_set(e, 0, p);
    eu_generate(e, &s, prompt, PROMPT, PROMPT, plain, GEN);
    p.bias = bias;
    p.n_bias = 1;
    eu_set(e, 0, p);
    s = eu_seq_new(0, 0, 1);
    eu_generate(e, &s, prompt, PROMPT, PROMPT, got, GEN);
    for (int i = 0; i < GEN; i++) {
        assert_int_equal(got[i], 17);
    }
    p.frequency_penalty = 2000; /* the biased id loses once it occurred */
    eu_set(e, 0, p);
    s = eu_seq_new(0, 0, 1);
    eu_generate(e, &s, prompt, PROMPT, PROMPT, got, 3);
    assert_int_equal(got[0], 17);
    assert_true(got[1] != 17 && got[2] != 17 && got[1] != got[2]);
    p = eu_sampling(0, 0);
    p.stop_ids[0] = plain[0];
    p.n_stop_ids = 1;
    p.min_tokens = 1; /* of output: only the first choice is forbidden to stop */
    struct td_sampling_state st = {.p = p, .prompt = prompt, .n_prompt = PROMPT};
    assert_int_equal(e->ops->seq_set(e, 0, &st), TD_OK);
    s = eu_seq_new(0, 0, 1);
    eu_generate(e, &s, prompt, PROMPT, PROMPT, got, 1);
    assert_int_not_equal(got[0], plain[0]);
    e->ops->destroy(e);
    eu_model_close(&m);
}

static void log_probabilities_are_those_of_the_logits(void **state)
{
    struct eu_model m = open_model(4, "bf16");
    struct td_engine *e = eu_cuda_engine(&m, TD_CUDA_KERNELS_AUTO, false);
    const uint32_t vocab = m.m->hp.n_vocab;
    float *logits = malloc((size_t)8 * vocab * sizeof *logits);
    int32_t prompt[8];
    struct eu_seq s = eu_seq_new(0, 0, 1);
    eu_tokens(&m, 9, prompt, 8);
    assert_int_equal(td_cuda_engine_logits(e, prompt, 8, 8, logits), TD_OK);
    eu_set(e, 0, eu_sampling(0, 0));
    struct td_row row = eu_row(&s, prompt, 8, true);
    row.want = TD_WANT_LOGPROBS;
    struct td_step_result r = eu_step(e, &row, 1);
    const float *l = logits + (size_t)7 * vocab;
    double sum = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        sum += exp((double)l[i]);
    }
    double want = (double)l[r.rows[0].ids[0]] - log(sum);
    assert_true(fabs(want - (double)r.rows[0].logprobs[0]) < 1e-3);
    free(logits);
    e->ops->destroy(e);
    eu_model_close(&m);
}

static void a_device_error_fails_the_step_and_not_the_next(void **state)
{
    struct eu_model m = open_model(4, "bf16");
    struct td_engine *e = eu_cuda_engine(&m, TD_CUDA_KERNELS_AUTO, false);
    int32_t prompt[8];
    char text[1024];
    struct eu_seq s = eu_seq_new(0, 0, 1);
    eu_tokens(&m, 9, prompt, 8);
    eu_set(e, 0, eu_sampling(0, 0));
    for (uint32_t nth = 1; nth < 32; nth += 5) {
        s.pos = 0;
        struct td_row row = eu_row(&s, prompt, 8, true);
        FILE *log = catch_log();
        tk_ref_fail_nth(nth);
        struct td_step_result r = eu_step(e, &row, 1);
        tk_ref_fail_nth(0);
        caught_log(log, text, sizeof text);
        assert_int_equal(r.rows[0].err, TD_ERR_SEQ_FAILED);
        assert_int_equal(r.rows[0].n_ids, 0);
        assert_non_null(strstr(text, "enqueue a step"));
        assert_int_equal(eu_step(e, &row, 1).rows[0].err, TD_OK);
    }
    e->ops->destroy(e);
    eu_model_close(&m);
}

static void a_slot_without_a_token_fails_the_row_that_wants_it(void **state)
{
    struct eu_model m = open_model(4, "bf16");
    struct td_engine *e = eu_cuda_engine(&m, TD_CUDA_KERNELS_AUTO, false);
    struct eu_seq s = eu_seq_new(0, 0, 1), t = eu_seq_new(1, 20, 1);
    int32_t id = 5;
    eu_set(e, 0, eu_sampling(0, 0));
    eu_set(e, 1, eu_sampling(0, 0));
    struct td_row rows[2] = {eu_row(&s, NULL, 1, true), eu_row(&t, &id, 1, true)};
    struct td_step_result r = eu_step(e, rows, 2);
    assert_int_equal(r.rows[0].err, TD_ERR_SEQ_FAILED);
    assert_int_equal(r.rows[0].n_ids, 0);
    assert_int_equal(r.rows[1].err, TD_OK);
    e->ops->destroy(e);
    eu_model_close(&m);
}

static void layers_are_told_one_by_one(void **state)
{
    struct eu_model m = open_model(4, "bf16");
    struct td_engine *e = eu_cuda_engine(&m, TD_CUDA_KERNELS_AUTO, false);
    int32_t prompt[40];
    td_ticket ticket;
    struct eu_seq s = eu_seq_new(0, 0, 1);
    eu_tokens(&m, 9, prompt, 40);
    struct td_row row = eu_row(&s, prompt, 40, false);
    row.want = TD_PUSH_LAYERS;
    assert_int_equal(e->ops->submit(e, &row, 1, &ticket), TD_OK);
    struct pollfd fd = {.fd = e->ops->layer_fd(e), .events = POLLIN};
    assert_int_equal(poll(&fd, 1, 60000), 1);
    assert_true(e->ops->layers_done(e, ticket) >= 1);
    assert_int_equal(eu_wait(e).ticket, ticket);
    assert_int_equal(e->ops->layers_done(e, ticket), m.m->hp.n_layers);
    assert_null(e->ops->pool_base(e));
    e->ops->destroy(e);
    eu_model_close(&m);
}

static td_err create_error(const struct eu_model *m, struct td_cuda_engine_params p, char *text,
                           size_t cap)
{
    struct td_engine *e = NULL;
    FILE *log = catch_log();
    td_err err = td_cuda_engine_create(m->m, &p, &e);
    caught_log(log, text, cap);
    if (err == TD_OK) {
        e->ops->destroy(e);
    }
    return err;
}

static void what_the_device_cannot_compute_is_refused_with_a_reason(void **state)
{
    char text[4096];
    struct eu_model m = open_model(4, "q8_0");
    assert_int_equal(
        create_error(&m, eu_cuda_params(TD_CUDA_KERNELS_AUTO, false), text, sizeof text),
        TD_ERR_FILE_UNSUPPORTED);
    assert_non_null(strstr(text, "quantised"));
    eu_model_close(&m);
    m = open_model(16, "bf16"); /* head_dim 32 */
    assert_int_equal(
        create_error(&m, eu_cuda_params(TD_CUDA_KERNELS_AUTO, false), text, sizeof text),
        TD_ERR_FILE_UNSUPPORTED);
    assert_non_null(strstr(text, "head_dim"));
    eu_model_close(&m);
    m = open_model(4, "bf16");
    struct td_cuda_engine_params p = eu_cuda_params(TD_CUDA_KERNELS_AUTO, false);
    p.memory_utilization = 1.5;
    assert_int_equal(create_error(&m, p, text, sizeof text), TD_ERR_CONFIG);
    p = eu_cuda_params(TD_CUDA_KERNELS_AUTO, false);
    p.device = 3;
    assert_int_equal(create_error(&m, p, text, sizeof text), TD_ERR_DEVICE);
    eu_model_close(&m);
}

/* Numerics and refusal for a device of this capability; the reference device computes the same either way. */
static void expect_kernels(uint32_t major, uint32_t minor, enum td_cuda_kernels wanted,
                           const char *numerics)
{
    struct eu_model m = open_shape(512, 8, 4, 0, "bf16"); /* head_dim 64 */
    struct td_cuda_engine_params p = eu_cuda_params(TD_CUDA_KERNELS_AUTO, false);
    struct td_engine *e = NULL;
    char text[4096];
    p.kernels = wanted;
    tk_ref_set_capability(major, minor);
    FILE *log = catch_log();
    td_err err = td_cuda_engine_create(m.m, &p, &e);
    caught_log(log, text, sizeof text);
    tk_ref_set_capability(9, 0);
    assert_int_equal(err, numerics != NULL ? TD_OK : TD_ERR_UNSUPPORTED);
    if (numerics != NULL) {
        assert_string_equal(e->ops->info(e)->numerics, numerics);
        e->ops->destroy(e);
    } else {
        assert_non_null(strstr(text, "these kernels do not run on this GPU"));
    }
    eu_model_close(&m);
}

static void the_device_or_a_parameter_chooses_the_kernels(void **state)
{
    expect_kernels(9, 0, TD_CUDA_KERNELS_AUTO, "cuda-bf16-v2");
    expect_kernels(9, 0, TD_CUDA_KERNELS_SM90A, "cuda-bf16-v2");
    expect_kernels(9, 0, TD_CUDA_KERNELS_SM80, "cuda-sm80-bf16-v1-cc90");
    expect_kernels(8, 6, TD_CUDA_KERNELS_AUTO, "cuda-sm80-bf16-v1-cc86");
    expect_kernels(12, 0, TD_CUDA_KERNELS_AUTO, "cuda-sm80-bf16-v1-cc120");
    expect_kernels(8, 0, TD_CUDA_KERNELS_SM90A, NULL);
    expect_kernels(7, 5, TD_CUDA_KERNELS_AUTO, NULL);
}

static void the_pool_takes_what_the_share_of_memory_leaves(void **state)
{
    struct eu_model m = open_model(4, "bf16");
    struct td_cuda_engine_params p = eu_cuda_params(TD_CUDA_KERNELS_AUTO, false);
    struct td_engine *e = NULL;
    char text[1024];
    p.n_blocks = 0;
    p.memory_utilization = 0.5;
    FILE *log = catch_log();
    assert_int_equal(td_cuda_engine_create(m.m, &p, &e), TD_OK);
    caught_log(log, text, sizeof text);
    const struct td_engine_info *i = e->ops->info(e);
    assert_int_equal(i->n_blocks, TK_REF_MEMORY / 2 / i->layout.block_bytes);
    e->ops->destroy(e);
    eu_model_close(&m);
}

/* Every operation of the set-up fails once: an error, no crash, nothing kept. */
static void each_failure_while_it_is_made_is_an_error(void **state)
{
    struct eu_model m = open_model(4, "bf16");
    char text[8192];
    td_err err = TD_ERR_DEVICE;
    for (uint32_t nth = 1; err != TD_OK; nth += nth < 60 ? 1 : 31) {
        tk_ref_fail_nth(nth);
        err = create_error(&m, eu_cuda_params(TD_CUDA_KERNELS_AUTO, true), text, sizeof text);
        assert_true(err == TD_OK || err == TD_ERR_DEVICE);
    }
    tk_ref_fail_nth(0);
#if TD_WITH_FAULTS
    err = TD_ERR_NO_MEMORY;
    for (unsigned nth = 1; err != TD_OK; nth++) {
        td_mem_fail_nth(nth);
        err = create_error(&m, eu_cuda_params(TD_CUDA_KERNELS_AUTO, true), text, sizeof text);
        assert_true(err == TD_OK || err == TD_ERR_NO_MEMORY);
    }
    td_mem_fail_nth(0);
#endif
    eu_model_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_close_to_the_float32_reference),
        cmocka_unit_test(a_window_hides_what_lies_before_it),
        cmocka_unit_test(a_sequence_in_a_batch_gives_the_ids_it_gives_alone),
        cmocka_unit_test(rows_beside_a_chunk_see_their_own_context),
        cmocka_unit_test(two_steps_in_flight_give_the_ids_of_one),
        cmocka_unit_test(replayed_output_goes_on_as_if_nothing_had_happened),
        cmocka_unit_test(sampling_parameters_reach_the_device),
        cmocka_unit_test(log_probabilities_are_those_of_the_logits),
        cmocka_unit_test(a_device_error_fails_the_step_and_not_the_next),
        cmocka_unit_test(a_slot_without_a_token_fails_the_row_that_wants_it),
        cmocka_unit_test(layers_are_told_one_by_one),
        cmocka_unit_test(what_the_device_cannot_compute_is_refused_with_a_reason),
        cmocka_unit_test(the_device_or_a_parameter_chooses_the_kernels),
        cmocka_unit_test(the_pool_takes_what_the_share_of_memory_leaves),
        cmocka_unit_test(each_failure_while_it_is_made_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
