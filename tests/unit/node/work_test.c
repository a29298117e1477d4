#include "common/node/work.h"

#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "tests/unit/check.h"
#include "tests/unit/node/rig.h"

struct seq {
    _Alignas(16) struct nd_work w;
    uint64_t own;
};

static struct nd_works *works_of(uint32_t capacity, size_t prompt_bytes)
{
    struct nd_works *w = NULL;
    struct nd_works_params p = {capacity, sizeof(struct seq), prompt_bytes};
    assert_int_equal(nd_works_create(&p, &w), TD_OK);
    return w;
}

static struct nd_work *open_one(struct nd_works *w, uint64_t counter, uint32_t n_prompt)
{
    struct td_wire_request q = rig_request(counter, n_prompt, 10);
    struct nd_work *work = NULL;
    assert_int_equal(nd_works_open(w, &q, 1000, &work), TD_OK);
    return work;
}

static void works_are_found_by_id_and_by_handle_until_closed(void **state)
{
    (void)state;
    struct nd_works *w = works_of(4, 10000);
    struct nd_work *a = open_one(w, 1, 10);
    ((struct seq *)a)->own = 5;
    struct td_work_id id = a->id;
    uint64_t handle = nd_work_handle(a);
    struct td_seq_ref ref = a->ref;
    assert_ptr_equal(nd_works_find(w, &id), a);
    assert_ptr_equal(nd_works_by_handle(w, handle), a);
    assert_ptr_equal(nd_works_at(w, ref), a);
    struct td_work_id other = id;
    other.attempt = 1;
    assert_null(nd_works_find(w, &other));
    assert_int_equal(nd_works_check(w), TD_OK);
    nd_works_close(w, a);
    assert_null(nd_works_find(w, &id));
    assert_null(nd_works_by_handle(w, handle));
    assert_null(nd_works_at(w, ref));
    assert_int_equal(nd_works_buried(w, &id), ND_GRAVE_ENDED);
    struct nd_work *b = open_one(w, 2, 10);
    assert_ptr_equal(a, b);
    assert_int_equal(((struct seq *)b)->own, 0);
    assert_true(nd_work_handle(b) != handle);
    assert_null(nd_works_by_handle(w, 0));
    assert_null(nd_works_by_handle(w, UINT64_MAX));
    assert_null(nd_works_destroy(w));
}

static void an_id_is_opened_once_and_the_table_is_bounded(void **state)
{
    struct nd_work *work = NULL;
    (void)state;
    struct nd_works *w = works_of(2, 100000);
    struct td_wire_request q = rig_request(1, 10, 10);
    assert_int_equal(nd_works_open(w, &q, 0, &work), TD_OK);
    assert_int_equal(nd_works_open(w, &q, 0, &work), TD_ERR_STALE);
    q.id.choice = 1;
    assert_int_equal(nd_works_open(w, &q, 0, &work), TD_OK);
    q.id.choice = 2;
    assert_int_equal(nd_works_open(w, &q, 0, &work), TD_ERR_OVERLOADED);
    assert_int_equal(nd_works_check(w), TD_OK);
    (void)nd_works_destroy(w);
}

static void prompts_share_a_bounded_store(void **state)
{
    struct nd_work *work = NULL;
    (void)state;
    struct nd_works *w = works_of(8, 1000);
    struct nd_work *a = open_one(w, 1, 200);
    struct td_wire_request big = rig_request(2, 200, 10);
    assert_int_equal(nd_works_open(w, &big, 0, &work), TD_ERR_OVERLOADED);
    assert_int_equal(nd_works_count(w), 1);
    nd_works_close(w, a);
    assert_int_equal(nd_works_open(w, &big, 0, &work), TD_OK);
    assert_int_equal(nd_works_check(w), TD_OK);
    (void)nd_works_destroy(w);
}

static void timers_never_pass_the_budget_unless_told(void **state)
{
    (void)state;
    struct nd_works *w = works_of(4, 10000);
    struct nd_work *a = open_one(w, 1, 10); /* budget: 60 s after 1000 us */
    nd_works_arm(w, a, INT64_MAX / 2, false);
    assert_int_equal(nd_works_next_deadline(w), 60001000);
    nd_works_arm(w, a, 70000000, true);
    assert_int_equal(nd_works_next_deadline(w), 70000000);
    assert_null(nd_works_due(w, 69999999));
    assert_ptr_equal(nd_works_due(w, 70000000), a);
    assert_true(nd_works_next_deadline(w) == TD_NEVER);
    (void)nd_works_destroy(w);
}

static void graves_are_a_ring_of_the_latest(void **state)
{
    struct td_work_id id = {1, 0, 0, 0};
    (void)state;
    struct nd_works *w = works_of(4, 1000);
    for (uint64_t i = 0; i < ND_TOMBSTONES + 10; i++) {
        id.counter = i;
        nd_works_bury(w, &id, ND_GRAVE_CANCELLED);
    }
    id.counter = 9;
    assert_int_equal(nd_works_buried(w, &id), ND_GRAVE_NONE);
    id.counter = 10;
    assert_int_equal(nd_works_buried(w, &id), ND_GRAVE_CANCELLED);
    nd_works_bury(w, &id, ND_GRAVE_ENDED);
    assert_int_equal(nd_works_buried(w, &id), ND_GRAVE_ENDED);
    (void)nd_works_destroy(w);
}

static void the_sampling_state_splits_prompt_and_output(void **state)
{
    struct nd_actions out;
    struct nd_work *work = NULL;
    struct td_logit_bias bias[2] = {{3, 1.5f}, {4, -2.0f}};
    (void)state;
    assert_int_equal(nd_actions_init(&out, ND_MIN_ACTIONS), TD_OK);
    struct nd_works *w = works_of(4, 10000);
    struct td_wire_request q = rig_request(1, 100, 50);
    q.n_replayed = 20;
    q.sampling.n_bias = 2;
    q.sampling.bias = bias;
    assert_int_equal(nd_works_open(w, &q, 0, &work), TD_OK);
    int32_t first = 777;
    nd_work_seq_set(w, work, 3, &first, &out);
    assert_int_equal(out.n, 1);
    assert_int_equal(out.list[0].type, ND_DO_SEQ_SET);
    assert_int_equal(out.list[0].slot, 3);
    const struct td_sampling_state *s = out.list[0].sampling;
    assert_int_equal(s->n_prompt, 80);
    assert_int_equal(s->n_output, 21);
    assert_memory_equal(s->prompt, q.prompt, 80 * sizeof(int32_t));
    assert_memory_equal(s->output, q.prompt + 80, 20 * sizeof(int32_t));
    assert_int_equal(s->output[20], 777);
    assert_int_equal(s->p.bias[1].id, 4);
    const int32_t *piece = nd_work_tokens(w, work, 33, 40, &out);
    assert_memory_equal(piece, q.prompt + 33, 40 * sizeof(int32_t));
    assert_int_equal(nd_work_output_pos(work), 80);
    nd_actions_fini(&out);
    (void)nd_works_destroy(w);
}

static void a_stream_ends_by_stop_by_length_or_by_context(void **state)
{
    (void)state;
    struct nd_works *w = works_of(4, 10000);
    struct nd_work *a = open_one(w, 1, 30);
    a->sampling.n_stop_ids = 1;
    a->sampling.stop_ids[0] = 5;
    a->sampling.min_tokens = 2;
    assert_int_equal(nd_work_finish(a, 1000, 1, 5), TD_FINISH_NONE);
    assert_int_equal(nd_work_finish(a, 1000, 2, 5), TD_FINISH_STOP);
    assert_int_equal(nd_work_finish(a, 1000, 2, 6), TD_FINISH_NONE);
    assert_int_equal(nd_work_finish(a, 1000, 9, 6), TD_FINISH_LENGTH);
    assert_int_equal(nd_work_finish(a, 34, 2, 6), TD_FINISH_NONE);
    assert_int_equal(nd_work_finish(a, 34, 3, 6), TD_FINISH_LENGTH);
    assert_int_equal(nd_work_max_output(a, 34), 4);
    assert_int_equal(nd_work_max_output(a, 1000), 10);
    (void)nd_works_destroy(w);
}

static void log_names_are_plain_or_made_from_the_id(void **state)
{
    struct nd_work *work = NULL;
    (void)state;
    struct nd_works *w = works_of(4, 10000);
    struct td_wire_request q = rig_request(1, 10, 10);
    q.request_id = "chatcmpl-12.3";
    assert_int_equal(nd_works_open(w, &q, 0, &work), TD_OK);
    assert_string_equal(work->req, "chatcmpl-12.3");
    q.id.counter = 2;
    q.request_id = "evil\" req=other";
    assert_int_equal(nd_works_open(w, &q, 0, &work), TD_OK);
    assert_string_equal(work->req, "0123456789abcdef-2");
    (void)nd_works_destroy(w);
}

/* Each row breaks one thing of a good request. */
static void a_request_that_this_node_cannot_run_is_refused(void **state)
{
    struct td_engine_info e = {.layout = {.block_tok = 16},
                               .n_vocab = RIG_VOCAB,
                               .max_model_len = 200,
                               .n_blocks = 10,
                               .numerics_id = RIG_NUMERICS};
    struct nd_core_params p = {.engine = &e, .layout_id = RIG_LAYOUT_ID};
    const struct td_wire_request good = rig_request(1, 100, 10);
    (void)state;
    assert_int_equal(nd_request_check(&p, &good), TD_OK);
#define REFUSED(field, value, error)                                                               \
    do {                                                                                           \
        struct td_wire_request q = good;                                                           \
        q.field = (value);                                                                         \
        assert_int_equal(nd_request_check(&p, &q), error);                                         \
    } while (0)
    REFUSED(numerics_id, 1, TD_ERR_NO_PAIR);
    REFUSED(layout_id, 1, TD_ERR_NO_PAIR);
    REFUSED(kv_group, 1, TD_ERR_UNSUPPORTED);
    REFUSED(adapter, "lora", TD_ERR_UNSUPPORTED);
    REFUSED(n_prompt, 0, TD_ERR_BAD_REQUEST);
    REFUSED(n_replayed, 100, TD_ERR_BAD_REQUEST);
    REFUSED(sampling.max_tokens, 0, TD_ERR_BAD_REQUEST);
    REFUSED(sampling.n_stop_ids, TD_SAMPLING_MAX_STOP_IDS + 1, TD_ERR_BAD_REQUEST);
    REFUSED(sampling.n_bias, TD_SAMPLING_MAX_BIAS + 1, TD_ERR_BAD_REQUEST);
    struct td_wire_request longer = rig_request(2, 200, 10);
    assert_int_equal(nd_request_check(&p, &longer), TD_ERR_CONTEXT_LENGTH);
    longer = rig_request(2, 170, 10);
    assert_int_equal(nd_request_check(&p, &longer),
                     TD_ERR_CONTEXT_LENGTH); /* its context, but not its pool, has room */
    int32_t wild[100] = {0};
    REFUSED(prompt, wild, TD_OK);
    wild[50] = (int32_t)RIG_VOCAB;
    REFUSED(prompt, wild, TD_ERR_BAD_REQUEST);
    wild[50] = -1;
    REFUSED(prompt, wild, TD_ERR_BAD_REQUEST);
#undef REFUSED
}

#if TD_WITH_FAULTS
static void creation_survives_every_failed_allocation(void **state)
{
    struct nd_works_params p = {4, sizeof(struct seq), 1000};
    (void)state;
    td_err e = TD_ERR_NO_MEMORY;
    for (unsigned nth = 1; e != TD_OK; nth++) {
        struct nd_works *w = NULL;
        td_mem_fail_nth(nth);
        e = nd_works_create(&p, &w);
        assert_true(e == TD_OK || e == TD_ERR_NO_MEMORY);
        (void)nd_works_destroy(w);
    }
    td_mem_fail_nth(0);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(works_are_found_by_id_and_by_handle_until_closed),
        cmocka_unit_test(an_id_is_opened_once_and_the_table_is_bounded),
        cmocka_unit_test(prompts_share_a_bounded_store),
        cmocka_unit_test(timers_never_pass_the_budget_unless_told),
        cmocka_unit_test(graves_are_a_ring_of_the_latest),
        cmocka_unit_test(the_sampling_state_splits_prompt_and_output),
        cmocka_unit_test(a_stream_ends_by_stop_by_length_or_by_context),
        cmocka_unit_test(log_names_are_plain_or_made_from_the_id),
        cmocka_unit_test(a_request_that_this_node_cannot_run_is_refused),
#if TD_WITH_FAULTS
        cmocka_unit_test(creation_survives_every_failed_allocation),
#endif
    };
    return cmocka_run_group_tests_name("node/work", tests, NULL, NULL);
}
