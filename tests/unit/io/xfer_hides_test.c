#include <stdio.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/fault.h"
#include "tests/unit/check.h"
#include "tests/unit/io/xfer_rig.h"

/* The transfer hides behind the computing: an engine that takes a fixed time for each layer, a link that takes 0.8 of it
 * for each slice, two chunks. What is compared are orders and shares of one run, not absolute times; since a shared
 * machine can stop any thread for long, the best of a few runs counts. The same measure, against a switch that sends at
 * the end, must say no. */

#define P_EPOCH  0x1111u
#define D_EPOCH  0x2222u
#define LAYERS   15u
#define CHUNKS   2u
#define STEPS    (LAYERS * CHUNKS)
#define LAYER_US 25000
#define LINK_US  20000 /* 0.8 of it */
#define TRIES    5

static const struct rig_shape shape = {.n_blocks = 64, .n_layers = LAYERS, .slice_bytes = 12288};

struct seen {
    bool early; /* the first slice was posted before layer 2 of the first chunk was computed */
    uint32_t before_last; /* slices on D before the last layer was computed */
    int64_t exposed_us;   /* from the last layer to the last slice on D */
    int64_t share_us;     /* of one layer in the whole transfer */
};

static void sleep_until(int64_t at_us)
{
    struct timespec t = {.tv_sec = at_us / 1000000, .tv_nsec = at_us % 1000000 * 1000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) != 0) {
    }
}

static uint32_t landed(struct rig_node *d)
{
    struct td_xfer_stats s;
    td_xfer_stats_get(d->x, &s);
    return (uint32_t)s.slices_in;
}

/* The engine: ends layer k (from 1) of the prompt at start + k * LAYER_US. */
static void compute(struct rig_node *p, struct rig_node *d, struct seen *out)
{
    int64_t start = td_now_us();
    for (uint32_t k = 1; k <= STEPS; k++) {
        struct td_xfer_stats s;
        sleep_until(start + (int64_t)k * LAYER_US);
        if (k == 2) {
            td_xfer_stats_get(p->x, &s);
            out->early = s.posts + landed(d) > 0;
        }
        if (k == STEPS) {
            out->before_last = landed(d);
        }
        fake_engine_set_step(&p->engine, 1 + (k - 1) / LAYERS, 1 + (k - 1) % LAYERS);
    }
}

static struct seen transfer(const char *transports, const char *fault)
{
    struct rig_shape s = shape;
    struct rig_node p;
    struct rig_node d;
    struct rig_job j;
    struct seen seen = {0};
    s.transports = transports;
    td_fault_reset();
    rig_up(&p, P_EPOCH, &s);
    rig_up(&d, D_EPOCH, &s);
    rig_connect(&d, &p);
    rig_job_make(&j, 3, 16, &p, &d, 1);
    rig_offer(&d, &p, &j);
    assert_int_equal(td_fault_configure(fault), TD_OK);
    fake_engine_set_step(&p.engine, 1, 0);
    rig_push(&p, &j, D_EPOCH, 0, 8, 0, 1);
    rig_push(&p, &j, D_EPOCH, 8, 8, 1, 2);
    compute(&p, &d, &seen);
    int64_t last_layer = td_now_us();
    assert_true(rig_wait_landed(&d, j.land, STEPS));
    const struct td_xfer_event *last = &d.log[d.n - 1].ev; /* LANDED: when its last slice arrived */
    assert_int_equal(last->type, TD_XFER_LANDED);
    seen.exposed_us = last->last_done_us - last_layer;
    seen.share_us = LINK_US;
    assert_true(rig_landed_exact(&d, &j));
    rig_down(&d);
    rig_down(&p);
    td_fault_reset();
    return seen;
}

static bool hides(const struct seen *s)
{
    return s->early && s->before_last * 10 >= STEPS * 9 && s->exposed_us <= 2 * s->share_us;
}

static void the_transfer_hides_behind_the_computing(void **state)
{
    char fault[64];
    struct seen s = {0};
    (void)snprintf(fault, sizeof fault, "xfer.slice.delay=delay:us=%d", LINK_US);
    for (int i = 0; i < TRIES && !hides(&s); i++) {
        s = transfer(*state, fault);
        print_message(
            "# %s: %u of %u slices before the last layer, exposed %ld us, a layer's share %ld us\n",
            (const char *)*state, s.before_last, STEPS, s.exposed_us, s.share_us);
    }
    assert_true(hides(&s));
}

static void sending_at_the_end_does_not(void **state)
{
    char fault[96];
    (void)snprintf(fault, sizeof fault, "xfer.slice.delay=delay:us=%d,xfer.at.end=on", LINK_US);
    struct seen s = transfer(*state, fault);
    print_message("# at the end: %u of %u slices before the last layer, exposed %ld us\n",
                  s.before_last, STEPS, s.exposed_us);
    assert_false(hides(&s));
    assert_false(s.early);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"the_transfer_hides_over_shm", the_transfer_hides_behind_the_computing, NULL, NULL,
         (void *)(uintptr_t) "sm"},
        {"the_transfer_hides_over_cma", the_transfer_hides_behind_the_computing, NULL, NULL,
         (void *)(uintptr_t) "sm,cma"},
        {"the_transfer_hides_over_tcp", the_transfer_hides_behind_the_computing, NULL, NULL,
         (void *)(uintptr_t) "tcp"},
        {"sending_at_the_end_does_not", sending_at_the_end_does_not, NULL, NULL,
         (void *)(uintptr_t) "sm"},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
