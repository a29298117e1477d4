#include "common/model/kv_layout.h"

#include "tests/unit/check.h"

static const struct td_kv_layout base = {.version = 1,
                                         .n_layers = 30,
                                         .n_kv_heads = 3,
                                         .head_dim = 64,
                                         .block_tok = 16,
                                         .dtype = TD_KV_BF16,
                                         .order = TD_KV_K_DIM_TOKEN,
                                         .slice_bytes = 12288,
                                         .block_bytes = 368640};

/* Nodes of different builds compare ids, so the value may never change. */
static void the_id_of_a_layout_is_stable(void **state)
{
    struct td_kv_layout copy = base;
    assert_true(td_kv_layout_id(&copy) == td_kv_layout_id(&base));
    assert_true(td_kv_layout_id(&base) == UINT64_C(0x2f6e09293c5e16e2));
}

static void every_field_changes_the_id(void **state)
{
    uint64_t id = td_kv_layout_id(&base);
    struct td_kv_layout l[11];
    for (int i = 0; i < 11; i++) {
        l[i] = base;
    }
    l[0].version++;
    l[1].group++;
    l[2].n_layers++;
    l[3].n_kv_heads++;
    l[4].head_dim++;
    l[5].block_tok++;
    l[6].dtype++;
    l[7].order--;
    l[8].slice_bytes++;
    l[9].block_bytes++;
    l[10].window++;
    for (int i = 0; i < 11; i++) {
        assert_true(td_kv_layout_id(&l[i]) != id);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_id_of_a_layout_is_stable),
        cmocka_unit_test(every_field_changes_the_id),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
