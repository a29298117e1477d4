#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/mem.h"
#include "common/io/link_int.h"

/* Creation and destruction of a process's links; its parameters, info and keys. */

#define DEFAULT_SESSIONS 64u
#define DEFAULT_PENDING  64u
#define DEFAULT_TARGETS  64u
#define DEFAULT_WINDOW   (1u << 20)
#define DEFAULT_FRAMES   1024u
#define DEFAULT_QUEUE    (32u << 20)
#define DEFAULT_MSGS     16384u
#define INFO_ROOM        ((size_t)8192) /* our info may grow to this, or to twice its first size */

static uint32_t or_default(uint32_t v, uint32_t def)
{
    return v != 0 ? v : def;
}

static uint32_t power_of_two(uint32_t v)
{
    uint32_t p = 1;
    while (p < v) {
        p *= 2;
    }
    return p;
}

static int64_t scaled(int64_t us, double scale)
{
    return (int64_t)((double)us * (scale > 0 ? scale : 1.0));
}

static bool params_ok(const struct td_link_params *p)
{
    return (p->role == TD_LINK_ROUTER || p->role == TD_LINK_NODE) && p->epoch != 0 &&
           p->name != NULL && strlen(p->name) <= TD_LINK_MAX_NAME &&
           p->info_len <= TD_LINK_MAX_INFO && p->frame_payload <= TD_LINK_FRAME_PAYLOAD &&
           p->window_frames <= 1u << 20 && p->queue_msgs <= 1u << 20 && p->queue_bytes <= 1u << 30;
}

static void set_limits(struct td_link *l, const struct td_link_params *p)
{
    l->t_beat = scaled(TD_LINK_T_BEAT_US, p->time_scale);
    l->t_dead = scaled(TD_LINK_T_DEAD_US, p->time_scale);
    l->t_handshake = scaled(TD_LINK_T_HANDSHAKE_US, p->time_scale);
    l->t_linger = scaled(TD_LINK_T_LINGER_US, p->time_scale);
    l->t_ack = scaled(TD_LINK_T_ACK_US, p->time_scale);
    l->backoff_min = scaled(TD_LINK_BACKOFF_MIN_US, p->time_scale);
    l->backoff_max = scaled(TD_LINK_BACKOFF_MAX_US, p->time_scale);
    l->max_sessions = or_default(p->max_sessions, DEFAULT_SESSIONS);
    l->max_pending = or_default(p->max_pending, DEFAULT_PENDING);
    l->max_targets = p->role == TD_LINK_ROUTER ? or_default(p->max_targets, DEFAULT_TARGETS) : 1;
    /* Closing connections keep their slot until the owner has closed them: room for as many again.
     */
    l->max_conns = 2 * (l->max_sessions + l->max_pending);
    l->limits = (struct link_queue_limits){
        .queue_bytes = or_default(p->queue_bytes, DEFAULT_QUEUE),
        .window_bytes = or_default(p->window_bytes, DEFAULT_WINDOW),
        .queue_msgs = power_of_two(or_default(p->queue_msgs, DEFAULT_MSGS)),
        .window_frames = power_of_two(or_default(p->window_frames, DEFAULT_FRAMES)),
        .frame_payload = or_default(p->frame_payload, TD_LINK_FRAME_PAYLOAD),
    };
    /* Two full frames on their way out; and the longest handshake: a HELLO or CHALLENGE, our info,
     * a reason. */
    l->info_cap = p->info_len > INFO_ROOM / 2 ? 2 * p->info_len : INFO_ROOM;
    l->info_cap = l->info_cap < TD_LINK_MAX_INFO ? l->info_cap : TD_LINK_MAX_INFO;
    size_t handshake =
        4 * LINK_OVERHEAD + LINK_MAX_HELLO + 1 + TD_LINK_MAX_NAME + l->info_cap + 4 + TD_LINK_TEXT;
    l->out_cap = 2 * ((size_t)l->limits.frame_payload + LINK_OVERHEAD + LINK_TOTAL_BYTES);
    l->out_cap = l->out_cap > handshake ? l->out_cap : handshake;
}

static td_err build(struct td_link *l)
{
    /* Between two rounds of td_link_next a session can see at most DETACHED, LOST, UP and one more,
     * a connection one REFUSED; inputs that cause more require td_link_next() in between. */
    l->max_events = 4 * l->max_sessions + 2 * l->max_conns + 16;
    l->conns = td_zalloc(l->max_conns, sizeof *l->conns);
    l->sessions = td_zalloc(l->max_sessions, sizeof *l->sessions);
    l->targets = td_zalloc(l->max_targets, sizeof *l->targets);
    l->events = td_zalloc(l->max_events, sizeof *l->events);
    l->timers = td_heap_create(l->max_conns + l->max_sessions + l->max_targets);
    l->scratch = td_zalloc(TD_LINK_MAX_FRAME, 1);
    if (l->conns == NULL || l->sessions == NULL || l->targets == NULL || l->events == NULL ||
        l->timers == NULL || l->scratch == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < l->max_conns; i++) {
        l->conns[i].slot = l->conns[i].timer.slot = i;
        l->conns[i].timer.kind = LINK_T_CONN;
        td_buf_init(&l->conns[i].rx, LINK_LEN_BYTES + TD_LINK_MAX_FRAME);
    }
    for (uint32_t i = 0; i < l->max_sessions; i++) {
        l->sessions[i].slot = l->sessions[i].timer.slot = i;
        l->sessions[i].timer.kind = LINK_T_SESSION;
        td_buf_init(&l->sessions[i].info, TD_LINK_MAX_INFO);
        td_buf_init(&l->sessions[i].big, TD_LINK_MAX_MESSAGE);
    }
    for (uint32_t i = 0; i < l->max_targets; i++) {
        l->targets[i].timer.slot = i;
        l->targets[i].timer.kind = LINK_T_TARGET;
    }
    return TD_OK;
}

td_err td_link_create(const struct td_link_params *p, struct td_link **out_link)
{
    TD_REQUIRE(params_ok(p));
    struct td_link *l = td_zalloc(1, sizeof *l);
    if (l == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    l->role = p->role;
    l->epoch = p->epoch;
    l->features = p->features;
    l->jitter_seed = p->jitter_seed;
    l->check = p->check;
    l->check_arg = p->check_arg;
    l->dirty_conns = l->dirty_targets = LINK_NONE;
    (void)snprintf(l->name, sizeof l->name, "%s", p->name);
    td_buf_init(&l->info, TD_LINK_MAX_INFO);
    set_limits(l, p);
    td_err e = build(l);
    if (e == TD_OK) {
        e = td_link_set_keys(l, p->keys, p->n_keys);
    }
    if (e == TD_OK) {
        e = td_link_set_info(l, p->info, p->info_len);
    }
    if (e != TD_OK) {
        (void)td_link_destroy(l);
        return e;
    }
    *out_link = l;
    return TD_OK;
}

struct td_link *td_link_destroy(struct td_link *l)
{
    if (l == NULL) {
        return NULL;
    }
    for (uint32_t i = 0; l->conns != NULL && i < l->max_conns; i++) {
        td_buf_fini(&l->conns[i].rx);
        free(l->conns[i].out);
        (void)td_mac_destroy(l->conns[i].mac_in);
        (void)td_mac_destroy(l->conns[i].mac_out);
    }
    for (uint32_t i = 0; l->sessions != NULL && i < l->max_sessions; i++) {
        td_buf_fini(&l->sessions[i].info);
        td_buf_fini(&l->sessions[i].big);
        link_queue_fini(&l->sessions[i].queue);
    }
    td_wipe(l->keys, sizeof l->keys);
    td_buf_fini(&l->info);
    (void)td_heap_destroy(l->timers);
    free(l->conns);
    free(l->sessions);
    free(l->targets);
    free(l->events);
    free(l->scratch);
    free(l);
    return NULL;
}

td_err td_link_set_info(struct td_link *l, const uint8_t *info, size_t len)
{
    if (len > l->info_cap) {
        return TD_ERR_TOO_LARGE;
    }
    td_buf_clear(&l->info);
    return td_buf_append(&l->info, info, len);
}

td_err td_link_set_keys(struct td_link *l, const struct td_link_key *keys, uint32_t n)
{
    if (n < 1 || n > TD_LINK_MAX_KEYS) {
        return TD_ERR_CONFIG;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (keys[i].secret_len < TD_LINK_SECRET_MIN || keys[i].secret_len > TD_LINK_SECRET_MAX ||
            strnlen(keys[i].id, TD_LINK_KEY_ID) == TD_LINK_KEY_ID) {
            return TD_ERR_CONFIG;
        }
    }
    for (uint32_t i = 0; i < l->max_conns; i++) {
        /* A dialer waiting for CHALLENGE points into the list: it starts again with the new one. */
        if (l->conns[i].state == CONN_CHALLENGE) {
            link_conn_kill(l, &l->conns[i]);
        }
    }
    td_wipe(l->keys, sizeof l->keys);
    memcpy(l->keys, keys, n * sizeof keys[0]);
    l->n_keys = n;
    return TD_OK;
}
