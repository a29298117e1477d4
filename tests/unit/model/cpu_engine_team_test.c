#include "common/model/cpu_engine_team.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "tests/unit/check.h"

#define MEMBERS 4
#define ROUNDS  300
#define ITEMS   37

struct work {
    struct td_team team;
    uint32_t taken[ITEMS]; /* times this round */
    uint32_t sum;          /* added up by the serial piece */
    uint32_t serial_runs;
    bool all_taken_once;
};

struct member {
    struct work *w;
    uint32_t id;
};

static void take(void *arg, uint32_t member, uint32_t item)
{
    ((struct work *)arg)->taken[item]++;
}

static void check_round(void *arg)
{
    struct work *w = arg;
    for (uint32_t i = 0; i < ITEMS; i++) {
        w->all_taken_once = w->all_taken_once && w->taken[i] == 1;
        w->taken[i] = 0;
    }
    w->serial_runs++;
}

static void *rounds(void *arg)
{
    struct member *m = arg;
    for (int i = 0; i < ROUNDS; i++) {
        td_team_run(&m->w->team, m->id, ITEMS, take, check_round, m->w);
    }
    return NULL;
}

static void run_members(uint32_t n, uint32_t spins)
{
    static struct work w;
    pthread_t threads[MEMBERS];
    struct member members[MEMBERS];
    memset(&w, 0, sizeof w);
    td_team_init(&w.team, n);
    w.team.spins = spins;
    w.all_taken_once = true;
    for (uint32_t i = 0; i < n; i++) {
        members[i] = (struct member){&w, i};
        assert_int_equal(pthread_create(&threads[i], NULL, rounds, &members[i]), 0);
    }
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_int_equal(w.serial_runs, ROUNDS);
    assert_true(w.all_taken_once);
}

static void every_item_is_taken_once_a_round(void **state)
{
    run_members(1, 0);
    run_members(2, 100);
    run_members(MEMBERS, 100);
}

static void *share(void *arg)
{
    struct member *m = arg;
    for (int i = 0; i < ROUNDS; i++) {
        td_team_share(&m->w->team, m->id, take, NULL, m->w);
    }
    return NULL;
}

static void each_member_takes_its_own_share(void **state)
{
    static struct work w;
    pthread_t threads[MEMBERS];
    struct member members[MEMBERS];
    memset(&w, 0, sizeof w);
    td_team_init(&w.team, MEMBERS);
    for (uint32_t i = 0; i < MEMBERS; i++) {
        members[i] = (struct member){&w, i};
        assert_int_equal(pthread_create(&threads[i], NULL, share, &members[i]), 0);
    }
    for (uint32_t i = 0; i < MEMBERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    for (uint32_t i = 0; i < ITEMS; i++) {
        assert_int_equal(w.taken[i], i < MEMBERS ? ROUNDS : 0);
    }
}

static void members_that_sleep_at_once_are_woken(void **state)
{
    run_members(MEMBERS, 0);
}

static void *sync_once(void *arg)
{
    td_team_sync(arg, NULL, NULL);
    return NULL;
}

static void absent_members_do_not_hold_the_barrier(void **state)
{
    struct td_team team;
    pthread_t threads[2];
    td_team_init(&team, 5);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, sync_once, &team), 0);
    }
    td_team_absent(&team, 3);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
}

static void a_team_larger_than_the_machine_never_spins(void **state)
{
    struct td_team team;
    td_team_init(&team, TD_TEAM_MAX);
    assert_int_equal(team.spins, 0);
    td_team_init(&team, 1);
    assert_true(team.spins > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_is_taken_once_a_round),
        cmocka_unit_test(each_member_takes_its_own_share),
        cmocka_unit_test(members_that_sleep_at_once_are_woken),
        cmocka_unit_test(absent_members_do_not_hold_the_barrier),
        cmocka_unit_test(a_team_larger_than_the_machine_never_spins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
