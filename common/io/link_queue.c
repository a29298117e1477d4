#include "common/io/link_queue.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/mem.h"

#define FIRST_CAP ((size_t)4096)

td_err link_queue_init(struct link_queue *q, const struct link_queue_limits *lim)
{
    *q = (struct link_queue){.lim = *lim, .base = 1, .next_cut = 1, .next_emit = 1};
    q->slices = td_zalloc(lim->window_frames, sizeof *q->slices);
    for (unsigned i = 0; i < TD_LINK_LANES; i++) {
        q->lanes[i].msgs = td_zalloc(lim->queue_msgs, sizeof *q->lanes[i].msgs);
        if (q->lanes[i].msgs == NULL) {
            return TD_ERR_NO_MEMORY;
        }
    }
    return q->slices != NULL ? TD_OK : TD_ERR_NO_MEMORY;
}

void link_queue_fini(struct link_queue *q)
{
    for (unsigned i = 0; i < TD_LINK_LANES; i++) {
        free(q->lanes[i].ring);
        free(q->lanes[i].msgs);
    }
    free(q->slices);
    memset(q, 0, sizeof *q);
}

static void shed(struct link_lane *lane)
{
    if (lane->cap > TD_LINK_KEEP) {
        free(lane->ring);
        lane->ring = NULL;
        lane->cap = 0;
    }
}

void link_queue_reset(struct link_queue *q)
{
    for (unsigned i = 0; i < TD_LINK_LANES; i++) {
        struct link_lane *lane = &q->lanes[i];
        lane->head = lane->cut = lane->tail = 0;
        lane->msg_head = lane->msg_count = 0;
        q->unacked[i] = 0;
        shed(lane);
    }
    q->base = q->next_cut = q->next_emit = 1;
    q->small_run = 0;
}

size_t link_queue_bytes(const struct link_queue *q)
{
    size_t n = 0;
    for (unsigned i = 0; i < TD_LINK_LANES; i++) {
        n += (size_t)(q->lanes[i].tail - q->lanes[i].head);
    }
    return n;
}

size_t link_queue_unacked(const struct link_queue *q)
{
    return q->unacked[0] + q->unacked[1];
}

/* Copies between a ring and flat memory; `at` counts from the beginning of time. */
static void ring_in(struct link_lane *lane, uint64_t at, const uint8_t *data, size_t len)
{
    size_t from = (size_t)at & (lane->cap - 1);
    size_t first = len < lane->cap - from ? len : lane->cap - from;
    memcpy(lane->ring + from, data, first);
    memcpy(lane->ring, data + first, len - first);
}

static void ring_out(const struct link_lane *lane, uint64_t at, uint8_t *out, size_t len)
{
    size_t from = (size_t)at & (lane->cap - 1);
    size_t first = len < lane->cap - from ? len : lane->cap - from;
    memcpy(out, lane->ring + from, first);
    memcpy(out + first, lane->ring, len - first);
}

static td_err lane_reserve(struct link_lane *lane, size_t len)
{
    size_t used = (size_t)(lane->tail - lane->head);
    size_t cap = lane->cap > 0 ? lane->cap : FIRST_CAP;
    while (cap - used < len || cap < used) {
        cap *= 2;
    }
    if (cap == lane->cap) {
        return TD_OK;
    }
    uint8_t *ring = td_zalloc(cap, 1);
    if (ring == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    struct link_lane grown = *lane;
    grown.ring = ring;
    grown.cap = cap;
    for (uint64_t at = lane->head; at < lane->tail;) {
        size_t from = (size_t)at & (lane->cap - 1);
        size_t n =
            lane->cap - from < lane->tail - at ? lane->cap - from : (size_t)(lane->tail - at);
        ring_in(&grown, at, lane->ring + from, n);
        at += n;
    }
    free(lane->ring);
    *lane = grown;
    return TD_OK;
}

static bool waits_in_big(const struct link_queue *q, uint64_t key)
{
    const struct link_lane *lane = &q->lanes[TD_LINK_LANE_BIG];
    for (uint32_t i = 0; key != 0 && i < lane->msg_count; i++) {
        if (lane->msgs[(lane->msg_head + i) & (q->lim.queue_msgs - 1)].key == key) {
            return true;
        }
    }
    return false;
}

td_err link_queue_push(struct link_queue *q, uint64_t key, const uint8_t *data, size_t len)
{
    bool big = len > q->lim.frame_payload || waits_in_big(q, key);
    struct link_lane *lane = &q->lanes[big ? TD_LINK_LANE_BIG : 0];
    if (lane->msg_count == q->lim.queue_msgs || link_queue_bytes(q) + len > q->lim.queue_bytes) {
        return TD_ERR_FULL;
    }
    TD_TRY(lane_reserve(lane, len));
    ring_in(lane, lane->tail, data, len);
    lane->tail += len;
    lane->msgs[(lane->msg_head + lane->msg_count) & (q->lim.queue_msgs - 1)] =
        (struct link_msg){.key = key, .after = q->lanes[0].tail, .len = (uint32_t)len};
    lane->msg_count++;
    return TD_OK;
}

/* Whose turn it is, or -1. */
static int choose_lane(const struct link_queue *q)
{
    bool small = q->lanes[0].msg_count > 0;
    bool big = q->lanes[TD_LINK_LANE_BIG].msg_count > 0;
    size_t window = q->lim.window_bytes;
    if (q->next_cut - q->base >= q->lim.window_frames || link_queue_unacked(q) >= window) {
        return -1;
    }
    const struct link_lane *lane = &q->lanes[TD_LINK_LANE_BIG];
    big = big && q->unacked[TD_LINK_LANE_BIG] < window - window / 4 &&
          lane->msgs[lane->msg_head].after <= q->lanes[0].cut;
    if (small && !(big && q->small_run >= TD_LINK_BIG_EVERY)) {
        return 0;
    }
    return big ? (int)TD_LINK_LANE_BIG : -1;
}

static bool cut(struct link_queue *q)
{
    int which = choose_lane(q);
    if (which < 0) {
        return false;
    }
    struct link_lane *lane = &q->lanes[which];
    struct link_msg *m = &lane->msgs[lane->msg_head];
    uint32_t left = m->len - m->done;
    uint32_t len = left < q->lim.frame_payload ? left : q->lim.frame_payload;
    q->slices[q->next_cut & (q->lim.window_frames - 1)] = (struct link_slice){
        .at = lane->cut,
        .len = len,
        .total = m->len,
        .lane = (uint8_t)which,
        .first = m->done == 0,
        .last = len == left,
    };
    q->next_cut++;
    q->unacked[which] += len;
    q->small_run = which == 0 ? q->small_run + 1 : 0;
    lane->cut += len;
    m->done += len;
    if (m->done == m->len) {
        lane->msg_head = (lane->msg_head + 1) & (q->lim.queue_msgs - 1);
        lane->msg_count--;
        lane->msg_head = lane->msg_count > 0 ? lane->msg_head : 0; /* stay in warm memory */
    }
    return true;
}

const struct link_slice *link_queue_peek(struct link_queue *q, uint64_t *out_seq)
{
    if (q->next_emit == q->next_cut && !cut(q)) {
        return NULL;
    }
    *out_seq = q->next_emit;
    return &q->slices[q->next_emit & (q->lim.window_frames - 1)];
}

void link_queue_emitted(struct link_queue *q)
{
    TD_INSIST(q->next_emit < q->next_cut);
    q->next_emit++;
}

void link_queue_copy(const struct link_queue *q, const struct link_slice *s, uint8_t *out)
{
    ring_out(&q->lanes[s->lane], s->at, out, s->len);
}

bool link_queue_ack(struct link_queue *q, uint64_t seq)
{
    if (seq >= q->next_cut) {
        return false;
    }
    for (; q->base <= seq; q->base++) {
        const struct link_slice *s = &q->slices[q->base & (q->lim.window_frames - 1)];
        q->lanes[s->lane].head = s->at + s->len;
        q->unacked[s->lane] -= s->len;
    }
    if (q->next_emit < q->base) {
        q->next_emit = q->base;
    }
    for (unsigned i = 0; i < TD_LINK_LANES; i++) {
        if (q->lanes[i].head == q->lanes[i].tail) {
            shed(&q->lanes[i]);
        }
    }
    return true;
}

void link_queue_rewind(struct link_queue *q)
{
    q->next_emit = q->base;
}
