#include "common/node/slots.h"

#include <stdbool.h>

#include "tests/unit/check.h"

static void each_slot_is_lent_once(void **state)
{
    bool seen[9] = {false};
    (void)state;
    struct nd_slots *s = nd_slots_create(8);
    assert_int_equal(nd_slots_size(s), 8);
    for (int i = 0; i < 8; i++) {
        uint32_t slot = nd_slots_take(s);
        assert_true(slot >= 1 && slot <= 8 && !seen[slot]);
        seen[slot] = true;
    }
    assert_int_equal(nd_slots_take(s), 0);
    assert_int_equal(nd_slots_free(s), 0);
    nd_slots_give(s, 3);
    nd_slots_give(s, 0);
    assert_int_equal(nd_slots_free(s), 1);
    assert_int_equal(nd_slots_take(s), 3);
    assert_null(nd_slots_destroy(s));
}

static void giving_back_too_much_is_a_bug(void **state)
{
    (void)state;
    struct nd_slots *s = nd_slots_create(2);
    CHECK_ABORTS(nd_slots_give(s, 1));
    uint32_t slot = nd_slots_take(s);
    CHECK_ABORTS(nd_slots_give(s, slot + 7));
    assert_null(nd_slots_destroy(s));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_slot_is_lent_once),
        cmocka_unit_test(giving_back_too_much_is_a_bug),
    };
    return cmocka_run_group_tests_name("node/slots", tests, NULL, NULL);
}
