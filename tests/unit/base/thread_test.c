#include "common/base/thread.h"

#include <pthread.h>

#include "tests/unit/check.h"

static void an_unregistered_thread_may_play_any_role(void **state)
{
    (void)state;
    td_assert_on(td_loop);
    td_assert_on(td_engine_role);
    td_assert_on(td_xfer);
}

static void *play_engine(void *out_name)
{
    td_thread_enter(&td_engine_role, "engine-0-with-a-long-name");
    td_assert_on(td_engine_role);
    (void)pthread_getname_np(pthread_self(), out_name, 16);
    return NULL;
}

static void a_registered_thread_passes_its_own_check_and_has_its_name(void **state)
{
    pthread_t thread;
    char name[16] = "";
    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, play_engine, name), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(name, "engine-0-with-a");
    td_assert_on(td_loop); /* the other thread's role is not ours */
}

static void enter_loop_and_call_engine_code(void)
{
    td_thread_enter(&td_loop, "loop");
    td_assert_on(td_engine_role);
}

static void a_registered_thread_aborts_in_another_role(void **state)
{
    (void)state;
    CHECK_ABORTS(enter_loop_and_call_engine_code());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unregistered_thread_may_play_any_role),
        cmocka_unit_test(a_registered_thread_passes_its_own_check_and_has_its_name),
        cmocka_unit_test(a_registered_thread_aborts_in_another_role),
    };
    return cmocka_run_group_tests_name("base/thread", tests, NULL, NULL);
}
