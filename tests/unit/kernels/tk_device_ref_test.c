/* The reference device: graphs replay what was captured, failures come when asked for, and the choice of the next token
 * follows its rules. */
#include "kernels/ref/tk_device_ref.h"

#include <math.h>
#include <string.h>

#include "kernels/tk_device.h"
#include "kernels/tk_step.h"
#include "tests/unit/check.h"

#define VOCAB 40
#define DRAWS 4000

static void a_graph_runs_what_was_captured_and_only_when_run(void **state)
{
    tk_stream s;
    struct tk_graph *g = NULL;
    int32_t src = 1, dst = 0;
    assert_int_equal(tk_stream_create(&s), TD_OK);
    assert_int_equal(tk_graph_begin(s), TD_OK);
    assert_int_equal(tk_copy(s, &dst, &src, sizeof src), TD_OK);
    assert_int_equal(tk_graph_end(s, &g), TD_OK);
    assert_int_equal(dst, 0);
    src = 7;
    assert_int_equal(tk_graph_run(g, s), TD_OK);
    assert_int_equal(dst, 7);
    src = 8;
    assert_int_equal(tk_copy(s, &dst, &src, sizeof src), TD_OK);
    assert_int_equal(dst, 8);
    (void)tk_graph_destroy(g);
    tk_stream_destroy(s);
}

static void the_nth_operation_fails_once(void **state)
{
    int32_t src = 1, dst = 0;
    tk_ref_fail_nth(2);
    assert_int_equal(tk_copy(NULL, &dst, &src, sizeof src), TD_OK);
    assert_int_equal(tk_copy(NULL, &dst, &src, sizeof src), TD_ERR_DEVICE);
    assert_int_equal(tk_copy(NULL, &dst, &src, sizeof src), TD_OK);
}

static void fresh_memory_is_poisoned(void **state)
{
    void *p = NULL;
    float f;
    assert_int_equal(tk_mem_alloc(sizeof f, &p), TD_OK);
    memcpy(&f, p, sizeof f);
    assert_true(isnan(f));
    tk_mem_free(p);
}

struct fixture {
    float logits[VOCAB], adjusted[VOCAB];
    struct tk_sample_row row;
    int32_t last[1], stops[TK_SLOT_STOPS];
    uint32_t counts[VOCAB];
    struct tk_sample_bias bias[TK_SLOT_BIAS];
};

static struct fixture fixture(float temperature)
{
    struct fixture f;
    memset(&f, 0, sizeof f);
    for (int i = 0; i < VOCAB; i++) {
        f.logits[i] = (float)((i * 17) % VOCAB) * 0.1f; /* a permutation of 0, 0.1 .. 3.9 */
    }
    f.row =
        (struct tk_sample_row){.temperature = temperature, .repetition = 1, .seed = 5, .live = 1};
    return f;
}

static struct tk_sampled sample(struct fixture *f)
{
    struct tk_sampled out = {-2, 0};
    const struct tk_sample a = {.logits = f->logits,
                                .adjusted = f->adjusted,
                                .rows = &f->row,
                                .slots = {f->last, f->counts, f->bias, f->stops},
                                .out = &out,
                                .n_rows = 1,
                                .vocab = VOCAB,
                                .stride = VOCAB};
    assert_int_equal(tk_sample(NULL, &a), TD_OK);
    return out;
}

/* Draws at many positions; how often each id came. */
static void draw_many(struct fixture *f, int count[VOCAB])
{
    memset(count, 0, VOCAB * sizeof *count);
    for (uint32_t i = 0; i < DRAWS; i++) {
        f->row.position = i;
        count[sample(f).token]++;
    }
}

static void draws_follow_the_softmax_and_their_key_alone(void **state)
{
    struct fixture f = fixture(1);
    int count[VOCAB];
    double z = 0, chi = 0;
    draw_many(&f, count);
    for (int i = 0; i < VOCAB; i++) {
        z += exp((double)f.logits[i]);
    }
    for (int i = 0; i < VOCAB; i++) {
        double e = DRAWS * exp((double)f.logits[i]) / z;
        chi += (count[i] - e) * (count[i] - e) / e;
    }
    assert_true(chi < 72); /* 39 degrees of freedom, one in a thousand */
    f.row.position = 3;
    int32_t id = sample(&f).token;
    assert_int_equal(sample(&f).token, id);
    int others = 0;
    for (uint32_t c = 1; c < 20; c++) {
        f.row.choice = c;
        others += sample(&f).token != id;
    }
    assert_true(others > 10);
}

static void filters_keep_the_likeliest(void **state)
{
    struct fixture f = fixture(1);
    int count[VOCAB];
    f.row.top_k = 3;
    draw_many(&f, count);
    for (int i = 0; i < VOCAB; i++) {
        assert_int_equal(count[i] > 0, f.logits[i] > 3.65f);
    }
    f.row.top_k = 0;
    f.row.min_p = 0.5f; /* within ln 2 of 3.9 */
    draw_many(&f, count);
    for (int i = 0; i < VOCAB; i++) {
        assert_int_equal(count[i] > 0, f.logits[i] > 3.9f - 0.6932f);
    }
    f.row.min_p = 0;
    f.row.top_p = 1e-6f;
    draw_many(&f, count);
    f.row.temperature = 0;
    assert_int_equal(count[sample(&f).token], DRAWS);
}

static void bias_penalties_and_bans_change_the_choice(void **state)
{
    struct fixture f = fixture(0);
    int32_t plain = sample(&f).token;
    f.row.flags = TK_SAMPLE_BIAS | TK_SAMPLE_LOGPROB;
    f.row.n_bias = 2; /* both are of the same id */
    f.bias[0] = f.bias[1] = (struct tk_sample_bias){4, 5};
    struct tk_sampled got = sample(&f);
    assert_int_equal(got.token, 4);
    double z = 0;
    for (int i = 0; i < VOCAB; i++) {
        z += exp((double)f.logits[i]);
    }
    assert_true(fabs((double)got.logprob - ((double)f.logits[4] - log(z))) < 1e-4);
    f.row.flags = TK_SAMPLE_BAN;
    f.row.n_stops = 1;
    f.stops[0] = plain;
    assert_int_not_equal(sample(&f).token, plain);
    f.row.flags = TK_SAMPLE_PENALTIES;
    f.row.presence = 1;
    f.row.frequency = 0.5f;
    f.counts[plain] = TK_IN_PROMPT; /* of the prompt alone: no presence, no frequency */
    assert_int_equal(sample(&f).token, plain);
    assert_int_equal(f.counts[plain], TK_IN_PROMPT + 1);
    assert_int_not_equal(sample(&f).token, plain);
}

static void a_row_that_is_not_finite_fails_and_so_does_what_it_feeds(void **state)
{
    struct fixture f = fixture(0);
    f.logits[3] = NAN;
    assert_int_equal(sample(&f).token, TK_FAILED);
    f.logits[3] = 0;
    f.row.flags = TK_SAMPLE_CHAINED;
    assert_int_equal(sample(&f).token, TK_FAILED);
    f.row.flags = 0;
    assert_true(sample(&f).token >= 0);
    f.row.flags = TK_SAMPLE_CHAINED;
    assert_true(sample(&f).token >= 0);
}

static void histories_are_counted(void **state)
{
    static const int32_t ids[5] = {3, 3, 4, 3, 5};
    uint32_t counts[6] = {0};
    assert_int_equal(tk_count_tokens(NULL, ids, 5, 2, counts), TD_OK);
    assert_int_equal(counts[3], TK_IN_PROMPT + 1);
    assert_int_equal(counts[4], 1);
    assert_int_equal(counts[5], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_graph_runs_what_was_captured_and_only_when_run),
        cmocka_unit_test(the_nth_operation_fails_once),
        cmocka_unit_test(fresh_memory_is_poisoned),
        cmocka_unit_test(draws_follow_the_softmax_and_their_key_alone),
        cmocka_unit_test(filters_keep_the_likeliest),
        cmocka_unit_test(bias_penalties_and_bans_change_the_choice),
        cmocka_unit_test(a_row_that_is_not_finite_fails_and_so_does_what_it_feeds),
        cmocka_unit_test(histories_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
