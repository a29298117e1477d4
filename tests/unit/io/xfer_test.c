#include <stdlib.h>
#include <string.h>

#include "common/base/fault.h"
#include "tests/unit/check.h"
#include "tests/unit/io/xfer_rig.h"

/* Both ends in one process; every test runs over shared memory and over TCP. */

#define P_EPOCH 0x1111u
#define D_EPOCH 0x2222u

__attribute__((unused)) static const struct rig_shape small = {
    .n_blocks = 64, .n_layers = 4, .slice_bytes = 4096};

struct pair {
    struct rig_node p, d;
};

/* *state names the transports. */
static void pair_up(struct pair *t, void **state, const struct rig_shape *shape)
{
    struct rig_shape s = *shape;
    s.transports = *state;
    td_fault_reset();
    rig_up(&t->p, P_EPOCH, &s);
    rig_up(&t->d, D_EPOCH, &s);
    rig_connect(&t->d, &t->p);
}

static void pair_down(struct pair *t)
{
    rig_down(&t->d);
    rig_down(&t->p);
    td_fault_reset();
}

static void a_pushed_chunk_lands_bit_exact_in_shuffled_blocks(void **state)
{
    static const struct {
        uint32_t slice_bytes, n_blocks;
    } sizes[] = {{4096, 1}, {4096, 3}, {12288, 32}, {65536, 17}, {1u << 20, 5}, {512, 200}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct rig_shape s = {
            .n_blocks = 256, .n_layers = 3, .slice_bytes = sizes[i].slice_bytes, .checksum = i % 2};
        struct pair t;
        struct rig_job j;
        s.n_blocks = sizes[i].slice_bytes > 65536 ? 16 : 256;
        pair_up(&t, state, &s);
        rig_job_make(&j, 9, sizes[i].n_blocks, &t.p, &t.d, i + 1);
        rig_offer(&t.d, &t.p, &j);
        rig_push(&t.p, &j, D_EPOCH, 0, j.n_blocks, 0, 0);
        const struct rig_event *e = rig_wait(&t.p, TD_XFER_PUSHED, j.push, 0);
        assert_non_null(e);
        assert_int_equal(e->ev.err, TD_OK);
        assert_int_equal(e->ev.n_bytes, (uint64_t)j.n_blocks * 3 * s.slice_bytes);
        assert_true(rig_wait_landed(&t.d, j.land, 3));
        assert_true(rig_landed_exact(&t.d, &j));
        pair_down(&t);
    }
}

/* Every test, over each transport. */
#define OVER(test)                                                                                 \
    {#test "_over_shm", test, NULL, NULL, (void *)(uintptr_t) "sm"},                               \
    {                                                                                              \
#test "_over_tcp", test, NULL, NULL, (void *)(uintptr_t) "tcp"                             \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        OVER(a_pushed_chunk_lands_bit_exact_in_shuffled_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
