#include "tests/unit/io/xfer_rig.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/rng.h"
#include "tests/unit/check.h"

#define POLL_MS 50

void rig_up(struct rig_node *n, uint64_t epoch, const struct rig_shape *s)
{
    *n = (struct rig_node){.epoch = epoch};
    assert_true(fake_engine_init(&n->engine, s->n_blocks, s->n_layers, s->slice_bytes));
    n->log = calloc(RIG_MAX_EVENTS, sizeof *n->log);
    assert_non_null(n->log);
    struct td_xfer_params p = {
        .epoch = epoch,
        .engine = &n->engine.base,
        .device = "lo",
        .transports = s->transports,
        .checksum = s->checksum,
        .port_first = s->port_first,
        .port_last = s->port_last,
    };
    assert_int_equal(td_xfer_create(&p, &n->x), TD_OK);
}

void rig_down(struct rig_node *n)
{
    n->x = td_xfer_destroy(n->x);
    fake_engine_fini(&n->engine);
    free(n->log);
    n->log = NULL;
}

void rig_take(struct rig_node *n)
{
    struct td_xfer_event ev;
    while (td_xfer_poll(n->x, &ev)) {
        struct rig_event *e = &n->log[n->n];
        assert_true(n->n < RIG_MAX_EVENTS);
        n->n++;
        *e = (struct rig_event){.ev = ev};
        if (ev.type == TD_XFER_MSG) {
            memcpy(e->head, ev.bytes, ev.n_bytes < RIG_MSG_BYTES ? ev.n_bytes : RIG_MSG_BYTES);
            e->ev.bytes = NULL;
        }
    }
}

static uint64_t handle_of(const struct td_xfer_event *ev)
{
    switch (ev->type) {
    case TD_XFER_PUSHED:
        return ev->push;
    case TD_XFER_LANDED:
    case TD_XFER_LAND_BAD:
    case TD_XFER_UNLANDED:
        return ev->land;
    case TD_XFER_MSG:
    case TD_XFER_PEER_LOST:
    case TD_XFER_CLOSED:
        break;
    }
    return ev->epoch;
}

static bool is(const struct rig_event *e, enum td_xfer_event_type type, uint64_t handle)
{
    return e->ev.type == type && (handle == 0 || handle_of(&e->ev) == handle);
}

static void sleep_on(struct rig_node *n)
{
    struct pollfd p = {.fd = td_xfer_event_fd(n->x), .events = POLLIN};
    (void)poll(&p, 1, POLL_MS); /* the caller's loop has the limit */
}

/* What happened instead, when a wait is in vain. */
static void tell(const struct rig_node *n)
{
    struct td_xfer_stats s;
    td_xfer_stats_get(n->x, &s);
    print_message("# node %lx: posts %lu failed %lu slices %lu msgs %lu/%lu dropped %lu refused "
                  "%lu stale %lu lost %lu\n",
                  n->epoch, s.posts, s.post_failed, s.slices_in, s.msgs_in, s.msgs_out, s.dropped,
                  s.refused, s.stale, s.lost);
    for (uint32_t i = n->n < 10 ? 0 : n->n - 10; i < n->n; i++) {
        const struct td_xfer_event *e = &n->log[i].ev;
        print_message("#  event %d epoch %lx land %lx push %lx err %d bytes %zu slices %u\n",
                      (int)e->type, e->epoch, e->land, e->push, (int)e->err, e->n_bytes,
                      e->n_slices);
    }
}

const struct rig_event *rig_wait(struct rig_node *n, enum td_xfer_event_type type, uint64_t handle,
                                 uint32_t from)
{
    int64_t until = td_now_us() + RIG_LIMIT_US;
    do {
        rig_take(n);
        for (; from < n->n; from++) {
            if (is(&n->log[from], type, handle)) {
                return &n->log[from];
            }
        }
        sleep_on(n);
    } while (td_now_us() < until);
    tell(n);
    return NULL;
}

uint32_t rig_count(const struct rig_node *n, enum td_xfer_event_type type, uint64_t handle)
{
    uint32_t c = 0;
    for (uint32_t i = 0; i < n->n; i++) {
        c += is(&n->log[i], type, handle);
    }
    return c;
}

bool rig_wait_landed(struct rig_node *n, uint64_t land, uint32_t n_slices)
{
    uint32_t from = 0;
    const struct rig_event *e;
    while ((e = rig_wait(n, TD_XFER_LANDED, land, from)) != NULL) {
        if (e->ev.n_slices >= n_slices) {
            return e->ev.n_slices == n_slices;
        }
        from = (uint32_t)(e - n->log) + 1;
    }
    return false;
}

void rig_submit(struct rig_node *n, const struct td_xfer_cmd *c)
{
    assert_int_equal(td_xfer_submit(n->x, c), TD_OK);
}

void rig_connect(struct rig_node *d, const struct rig_node *p)
{
    struct td_xfer_cmd c = {.type = TD_XFER_CONNECT, .epoch = p->epoch};
    td_xfer_address(p->x, &c.bytes, &c.n_bytes);
    rig_submit(d, &c);
}

void rig_send(struct rig_node *n, uint64_t epoch, const void *bytes, size_t len)
{
    struct td_xfer_cmd c = {.type = TD_XFER_SEND, .epoch = epoch, .bytes = bytes, .n_bytes = len};
    rig_submit(n, &c);
}

/* The first `n` of a seeded permutation of 0 .. of - 1. */
static void draw(uint32_t *out, uint32_t n, uint32_t of, uint64_t seed)
{
    assert_true(n <= of);
    uint32_t *all = malloc(of * sizeof *all);
    struct td_rng r = {seed};
    assert_non_null(all);
    for (uint32_t i = 0; i < of; i++) {
        all[i] = i;
    }
    for (uint32_t i = 0; i < n && i < of; i++) {
        uint32_t k = i + (uint32_t)(td_rng_next(&r) % (of - i));
        out[i] = all[k];
        all[k] = all[i];
    }
    free(all);
}

static uint64_t stamp(const struct rig_job *j, uint32_t entry, uint32_t layer)
{
    return j->land * 1000003 + entry * 1009 + layer;
}

void rig_job_make(struct rig_job *j, uint64_t handle, uint32_t n_blocks, struct rig_node *p,
                  struct rig_node *d, uint64_t seed)
{
    uint32_t dst[RIG_MAX_TABLE];
    assert_true(n_blocks <= RIG_MAX_TABLE);
    *j = (struct rig_job){
        .land = handle,
        .push = handle << 8,
        .layout = 77,
        .id = {.router_epoch = 5, .counter = handle, .attempt = 1},
        .n_blocks = n_blocks,
        .n_layers = p->engine.info.n_layers,
    };
    draw(dst, n_blocks, d->engine.info.n_blocks, seed);
    draw(j->src, n_blocks, p->engine.info.n_blocks, seed + 1);
    for (uint32_t i = 0; i < n_blocks; i++) {
        j->table[i] = (struct td_block_ref){dst[i], 100 + i};
        for (uint32_t l = 0; l < j->n_layers; l++) {
            fake_engine_fill(&p->engine, j->src[i], l, stamp(j, i, l));
        }
    }
}

void rig_land(struct rig_node *d, const struct rig_job *j, uint64_t p_epoch)
{
    struct td_xfer_cmd c = {
        .type = TD_XFER_LAND,
        .epoch = p_epoch,
        .land = j->land,
        .id = j->id,
        .layout_id = j->layout,
        .blocks = j->table,
        .n_blocks = j->n_blocks,
        .n_layers = j->n_layers,
    };
    rig_submit(d, &c);
}

void rig_offer(struct rig_node *d, struct rig_node *p, const struct rig_job *j)
{
    uint32_t from = p->n;
    rig_land(d, j, p->epoch);
    rig_send(d, p->epoch, "table", 5);
    const struct rig_event *e = rig_wait(p, TD_XFER_MSG, d->epoch, from);
    assert_non_null(e);
    assert_int_equal(e->ev.n_bytes, 5);
    assert_memory_equal(e->head, "table", 5);
}

void rig_push(struct rig_node *p, const struct rig_job *j, uint64_t d_epoch, uint32_t first,
              uint32_t n, uint32_t chunk, uint64_t ticket)
{
    struct td_xfer_cmd c = {
        .type = TD_XFER_PUSH,
        .epoch = d_epoch,
        .land = j->land,
        .push = j->push + chunk,
        .id = j->id,
        .layout_id = j->layout,
        .blocks = &j->table[first],
        .src = &j->src[first],
        .n_blocks = n,
        .first_block = first,
        .chunk = chunk,
        .ticket = ticket,
        .n_layers = j->n_layers,
    };
    rig_submit(p, &c);
}

bool rig_landed_exact(const struct rig_node *d, const struct rig_job *j)
{
    for (uint32_t i = 0; i < j->n_blocks; i++) {
        for (uint32_t l = 0; l < j->n_layers; l++) {
            if (!fake_engine_holds(&d->engine, j->table[i].index, l, stamp(j, i, l))) {
                return false;
            }
        }
    }
    return true;
}
