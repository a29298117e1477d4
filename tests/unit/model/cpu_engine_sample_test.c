/* Sampling from given logits: the choice follows the distribution, depends on nothing but its key,
 * and honours every parameter. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/cpu_engine_priv.h"
#include "tests/unit/check.h"

#define VOCAB 40
#define DRAWS 4000

struct fixture {
    struct td__ce e;
    struct td__ce_member member;
    struct td_sample_slot slot;
    float weights[VOCAB], adjusted[VOCAB], logits[VOCAB];
    uint32_t order[VOCAB], count[VOCAB];
    int32_t history[64];
};

static struct td_sampling_params plain(float temperature)
{
    return (struct td_sampling_params){
        .temperature = temperature, .top_p = 1, .repetition_penalty = 1, .max_tokens = 1};
}

static struct fixture *fixture_new(void)
{
    struct fixture *f = aligned_alloc(64, (sizeof *f + 63) / 64 * 64);
    assert_non_null(f);
    memset(f, 0, sizeof *f);
    f->e.info.n_vocab = VOCAB;
    f->e.info.max_model_len = 64;
    f->e.info.max_slots = 1;
    f->e.ops = tk_select(TK_ISA_AUTO);
    f->e.members = &f->member;
    f->e.q.slots = &f->slot;
    f->e.q.info = &f->e.info;
    f->member.weights = f->weights;
    f->member.adjusted = f->adjusted;
    f->member.order = f->order;
    f->member.count = f->count;
    f->slot.history = f->history;
    for (int i = 0; i < VOCAB; i++) {
        f->logits[i] = (float)((i * 17) % VOCAB) * 0.1f; /* a permutation of 0, 0.1 .. 3.9 */
    }
    return f;
}

static void set(struct fixture *f, struct td_sampling_params p, const int32_t *prompt,
                uint32_t n_prompt, const int32_t *output, uint32_t n_output)
{
    struct td_sampling_state s = {p, prompt, n_prompt, output, n_output};
    assert_int_equal(td_steps_slot_set(&f->e.q, 0, &s), TD_OK);
}

static int32_t sample(struct fixture *f, uint32_t position)
{
    struct td_row_result r = {.err = TD_OK};
    f->slot.n_history = f->slot.n_prompt;
    td__ce_sample(&f->e, 0, &f->slot, f->logits, position, 0, &r);
    assert_int_equal(r.err, TD_OK);
    assert_int_equal(r.n_ids, 1);
    return r.ids[0];
}

/* Draws at many positions; the share of each id. */
static void shares(struct fixture *f, double *out)
{
    memset(out, 0, VOCAB * sizeof *out);
    for (uint32_t i = 0; i < DRAWS; i++) {
        out[sample(f, i)] += 1.0 / DRAWS;
    }
}

static int rank_of(int id) /* 0: the largest logit */
{
    return VOCAB - 1 - (id * 17) % VOCAB;
}

static void temperature_zero_takes_the_largest(void **state)
{
    struct fixture *f = fixture_new();
    set(f, plain(0), NULL, 0, NULL, 0);
    for (uint32_t i = 0; i < 20; i++) {
        assert_int_equal(rank_of(sample(f, i)), 0);
    }
    free(f);
}

static void draws_follow_the_softmax(void **state)
{
    struct fixture *f = fixture_new();
    double got[VOCAB], total = 0;
    set(f, plain(0.7f), NULL, 0, NULL, 0);
    shares(f, got);
    for (int i = 0; i < VOCAB; i++) {
        total += exp((double)f->logits[i] / 0.7);
    }
    for (int i = 0; i < VOCAB; i++) {
        double p = exp((double)f->logits[i] / 0.7) / total;
        double sigma = sqrt(p * (1 - p) / DRAWS);
        assert_true(fabs(got[i] - p) <= 4.5 * sigma);
    }
    free(f);
}

static void top_k_leaves_k(void **state)
{
    struct fixture *f = fixture_new();
    struct td_sampling_params p = plain(2);
    double got[VOCAB];
    p.top_k = 3;
    set(f, p, NULL, 0, NULL, 0);
    shares(f, got);
    for (int i = 0; i < VOCAB; i++) {
        assert_true(rank_of(i) < 3 ? got[i] > 0.2 : got[i] == 0);
    }
    free(f);
}

static void top_p_leaves_the_smallest_set_that_reaches_it(void **state)
{
    struct fixture *f = fixture_new();
    struct td_sampling_params p = plain(1);
    double got[VOCAB], total = 0, sum = 0;
    int keep = 0;
    p.top_p = 0.5f;
    for (int i = 0; i < VOCAB; i++) {
        total += exp(0.1 * i);
    }
    while (sum < 0.5 * total) {
        sum += exp(0.1 * (VOCAB - 1 - keep++));
    }
    set(f, p, NULL, 0, NULL, 0);
    shares(f, got);
    for (int i = 0; i < VOCAB; i++) {
        assert_true((got[i] > 0) == (rank_of(i) < keep));
    }
    free(f);
}

static void top_p_is_a_share_of_what_top_k_leaves(void **state)
{
    struct fixture *f = fixture_new();
    struct td_sampling_params p = plain(1000); /* all but equal */
    double got[VOCAB];
    p.top_k = 10;
    p.top_p = 0.45f; /* five of ten */
    set(f, p, NULL, 0, NULL, 0);
    shares(f, got);
    for (int i = 0; i < VOCAB; i++) {
        assert_true((got[i] > 0) == (rank_of(i) < 5));
    }
    free(f);
}

static void min_p_is_relative_to_the_best(void **state)
{
    struct fixture *f = fixture_new();
    struct td_sampling_params p = plain(1);
    double got[VOCAB];
    p.min_p = 0.6f; /* exp(-0.5) = 0.607: ranks 0 to 5 */
    set(f, p, NULL, 0, NULL, 0);
    shares(f, got);
    for (int i = 0; i < VOCAB; i++) {
        assert_true((got[i] > 0) == (rank_of(i) <= 5));
    }
    free(f);
}

static void the_draw_depends_on_seed_position_and_choice_only(void **state)
{
    struct fixture *f = fixture_new();
    struct td_sampling_params p = plain(1);
    int32_t first[100], same = 0;
    p.seed = 42;
    set(f, p, NULL, 0, NULL, 0);
    for (uint32_t i = 0; i < 100; i++) {
        first[i] = sample(f, i);
    }
    set(f, p, NULL, 0, NULL, 0);
    for (uint32_t i = 100; i-- > 0;) { /* any order */
        assert_int_equal(sample(f, i), first[i]);
    }
    p.choice = 1;
    set(f, p, NULL, 0, NULL, 0);
    for (uint32_t i = 0; i < 100; i++) {
        same += sample(f, i) == first[i];
    }
    assert_true(same < 30);
    free(f);
}

static void penalties_count_what_was_said(void **state)
{
    struct fixture *f = fixture_new();
    struct td_sampling_params p = plain(0);
    const int32_t prompt[] = {7}; /* 7 * 17 % 40 = 39: the largest logit, 3.9 */
    const int32_t output[] = {7, 7};
    p.frequency_penalty = 0.04f; /* 3.9 - 0.08 is still the largest */
    set(f, p, prompt, 1, output, 2);
    f->slot.n_prompt = 1;
    struct td_row_result r = {.err = TD_OK};
    td__ce_sample(&f->e, 0, &f->slot, f->logits, 9, 0, &r);
    assert_int_equal(r.ids[0], 7);
    p.presence_penalty = 0.05f; /* 3.77: no longer */
    set(f, p, prompt, 1, output, 2);
    td__ce_sample(&f->e, 0, &f->slot, f->logits, 9, 0, &r);
    assert_int_equal(rank_of(r.ids[0]), 1);
    p.frequency_penalty = p.presence_penalty = 0;
    p.repetition_penalty = 1.1f; /* of the prompt too */
    set(f, p, prompt, 1, NULL, 0);
    td__ce_sample(&f->e, 0, &f->slot, f->logits, 9, 0, &r);
    assert_int_equal(rank_of(r.ids[0]), 1);
    for (int i = 0; i < VOCAB; i++) {
        assert_int_equal(f->count[i], 0);
    }
    free(f);
}

static void bias_moves_a_logit(void **state)
{
    struct fixture *f = fixture_new();
    struct td_sampling_params p = plain(0);
    const struct td_logit_bias bias[] = {{5, 100}, {7, -100}};
    p.bias = bias;
    p.n_bias = 2;
    set(f, p, NULL, 0, NULL, 0);
    assert_int_equal(sample(f, 3), 5);
    p.bias = bias + 1;
    p.n_bias = 1;
    set(f, p, NULL, 0, NULL, 0);
    assert_int_equal(rank_of(sample(f, 3)), 1);
    free(f);
}

static void stop_ids_wait_for_min_tokens(void **state)
{
    struct fixture *f = fixture_new();
    struct td_sampling_params p = plain(0);
    p.n_stop_ids = 1;
    p.stop_ids[0] = 7;
    p.min_tokens = 2;
    set(f, p, NULL, 0, NULL, 0);
    int want[3] = {1, 1, 0}; /* ranks */
    for (uint32_t i = 0; i < 3; i++) {
        struct td_row_result r = {.err = TD_OK};
        td__ce_sample(&f->e, 0, &f->slot, f->logits, i, 0, &r);
        assert_int_equal(rank_of(r.ids[0]), want[i]);
    }
    free(f);
}

static void logprobs_are_those_of_the_raw_logits(void **state)
{
    struct fixture *f = fixture_new();
    struct td_sampling_params p = plain(0);
    const struct td_logit_bias bias = {5, 100};
    double total = 0;
    p.bias = &bias;
    p.n_bias = 1;
    set(f, p, NULL, 0, NULL, 0);
    for (int i = 0; i < VOCAB; i++) {
        total += exp((double)f->logits[i]);
    }
    struct td_row_result r = {.err = TD_OK};
    td__ce_sample(&f->e, 0, &f->slot, f->logits, 1, TD_WANT_LOGPROBS, &r);
    assert_true(fabs((double)r.logprobs[0] - ((double)f->logits[5] - log(total))) < 1e-5);
    free(f);
}

static void logits_that_are_not_finite_fail_the_row(void **state)
{
    struct fixture *f = fixture_new();
    struct td_row_result r = {.err = TD_OK};
    set(f, plain(0), NULL, 0, NULL, 0);
    f->logits[11] = NAN;
    td__ce_sample(&f->e, 0, &f->slot, f->logits, 1, 0, &r);
    assert_int_equal(r.err, TD_ERR_SEQ_FAILED);
    assert_int_equal(r.n_ids, 0);
    assert_false(f->slot.has_last);
    free(f);
}

static void a_bad_state_is_refused(void **state)
{
    struct fixture *f = fixture_new();
    const int32_t outside[] = {VOCAB}, negative[] = {-1}, many[64] = {0};
    const struct td_logit_bias bias = {VOCAB, 1};
    struct td_sampling_state s = {.p = plain(1)};
    assert_int_equal(td_steps_slot_set(&f->e.q, 1, &s), TD_ERR_BAD_REQUEST);
    s.prompt = outside;
    s.n_prompt = 1;
    assert_int_equal(td_steps_slot_set(&f->e.q, 0, &s), TD_ERR_BAD_REQUEST);
    s.prompt = negative;
    assert_int_equal(td_steps_slot_set(&f->e.q, 0, &s), TD_ERR_BAD_REQUEST);
    s.prompt = many;
    s.n_prompt = 64;
    s.output = many;
    s.n_output = 1;
    assert_int_equal(td_steps_slot_set(&f->e.q, 0, &s), TD_ERR_CONTEXT_LENGTH);
    s.n_output = UINT32_MAX;
    assert_int_equal(td_steps_slot_set(&f->e.q, 0, &s), TD_ERR_CONTEXT_LENGTH);
    s.n_output = s.n_prompt = 0;
    s.p.bias = &bias;
    s.p.n_bias = 1;
    assert_int_equal(td_steps_slot_set(&f->e.q, 0, &s), TD_ERR_BAD_REQUEST);
    s.p = plain(NAN);
    assert_int_equal(td_steps_slot_set(&f->e.q, 0, &s), TD_ERR_BAD_REQUEST);
    s.p = plain(1);
    s.p.n_stop_ids = TD_SAMPLING_MAX_STOP_IDS + 1;
    assert_int_equal(td_steps_slot_set(&f->e.q, 0, &s), TD_ERR_BAD_REQUEST);
    s.p.n_stop_ids = 0;
    s.p.n_bias = TD_SAMPLING_MAX_BIAS + 1;
    s.p.bias = &bias;
    assert_int_equal(td_steps_slot_set(&f->e.q, 0, &s), TD_ERR_BAD_REQUEST);
    assert_false(f->slot.set);
    free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(temperature_zero_takes_the_largest),
        cmocka_unit_test(draws_follow_the_softmax),
        cmocka_unit_test(top_k_leaves_k),
        cmocka_unit_test(top_p_leaves_the_smallest_set_that_reaches_it),
        cmocka_unit_test(top_p_is_a_share_of_what_top_k_leaves),
        cmocka_unit_test(min_p_is_relative_to_the_best),
        cmocka_unit_test(the_draw_depends_on_seed_position_and_choice_only),
        cmocka_unit_test(penalties_count_what_was_said),
        cmocka_unit_test(bias_moves_a_logit),
        cmocka_unit_test(stop_ids_wait_for_min_tokens),
        cmocka_unit_test(logprobs_are_those_of_the_raw_logits),
        cmocka_unit_test(logits_that_are_not_finite_fail_the_row),
        cmocka_unit_test(a_bad_state_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
