/* Design: nobody tells us of changes; watchers' statuses are asked for again and again by one timer, which runs only while
 * there are watchers.
 */
#define TD_LOG_ROOM "io"
#include "common/io/grpc_health.h"

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"

#define POLL_US     100000
#define ARENA_BYTES (1u << 20)
#define NAME_MAX_   128

struct watch {
    struct td_grpc_health *health;
    struct td_grpc_call *call; /* borrowed */
    struct watch *prev, *next;
    char service[NAME_MAX_];
    enum td_health last;
};

struct td_grpc_health {
    td_grpc_health_fn status;
    void *arg;
    struct td_timer *timer; /* owned */
    struct td_arena *arena; /* owned */
    struct watch *watches;
    uint32_t n_watches;
};

static td_err send_status(struct td_grpc_call *call, enum td_health status)
{
    struct td_buf b;
    td_buf_init(&b, 64);
    td_err err = td_pb_health_encode(&b, status);
    err = err == TD_OK ? td_grpc_send(call, b.data, b.len) : err;
    td_buf_fini(&b);
    return err;
}

static bool decode(struct td_grpc_health *h, struct td_grpc_call *call, const uint8_t *message,
                   size_t len, const char **out_service)
{
    td_arena_reset(h->arena);
    td_err err = td_pb_health_decode(message, len, h->arena, out_service);
    if (err != TD_OK) {
        td_grpc_fail(call, err, "not a HealthCheckRequest", 0);
    }
    return err == TD_OK;
}

static void h_check(void *arg, struct td_grpc_call *call, const uint8_t *message, size_t len)
{
    struct td_grpc_health *h = arg;
    const char *service = "";
    if (!decode(h, call, message, len, &service)) {
        return;
    }
    enum td_health status = h->status(h->arg, service);
    if (status == TD_HEALTH_SERVICE_UNKNOWN) {
        td_grpc_fail(call, TD_ERR_NOT_FOUND, "unknown service", 0);
        return;
    }
    if (send_status(call, status) == TD_OK) {
        td_grpc_finish(call, TD_GRPC_OK, NULL, NULL, 0);
    }
}

/* ---- watches ---- */

static void watch_gone(void *arg)
{
    struct watch *w = arg;
    struct td_grpc_health *h = w->health;
    if (w->prev != NULL) {
        w->prev->next = w->next;
    } else {
        h->watches = w->next;
    }
    if (w->next != NULL) {
        w->next->prev = w->prev;
    }
    h->n_watches--;
    free(w);
}

static void poll_watches(void *arg)
{
    struct td_grpc_health *h = arg;
    for (struct watch *w = h->watches; w != NULL; w = w->next) {
        enum td_health now = h->status(h->arg, w->service);
        if (now != w->last) {
            w->last = now;
            TD_IGNORE(send_status(w->call, now)); /* what cannot be sent is reset, and gone later */
        }
    }
    td_timer_set(h->timer, h->watches != NULL ? td_now_us() + POLL_US : TD_NEVER);
}

static void h_watch(void *arg, struct td_grpc_call *call, const uint8_t *message, size_t len)
{
    struct td_grpc_health *h = arg;
    const char *service = "";
    if (!decode(h, call, message, len, &service)) {
        return;
    }
    if (h->n_watches == TD_GRPC_MAX_WATCHES || strlen(service) >= NAME_MAX_) {
        td_grpc_fail(call, TD_ERR_OVERLOADED, "too many watches", 1);
        return;
    }
    struct watch *w = td_zalloc(1, sizeof *w);
    if (w == NULL) {
        td_grpc_fail(call, TD_ERR_NO_MEMORY, NULL, 1);
        return;
    }
    w->health = h;
    w->call = call;
    (void)snprintf(w->service, sizeof w->service, "%s", service);
    w->last = h->status(h->arg, service);
    w->next = h->watches;
    if (h->watches != NULL) {
        h->watches->prev = w;
    }
    h->watches = w;
    h->n_watches++;
    td_grpc_call_set_background(call);
    td_grpc_call_on_gone(call, watch_gone, w);
    TD_IGNORE(send_status(call, w->last)); /* as above */
    /* Else one watch after the other would put the next poll off for ever. */
    if (td_timer_at(h->timer) == TD_NEVER) {
        td_timer_set(h->timer, td_now_us() + POLL_US);
    }
}

/* ---- life ---- */

/* Open to all, like the probes of HTTP. */
static const struct td_grpc_method methods[] = {
    {.name = "Check", .open = true, .handle = h_check},
    {.name = "Watch", .open = true, .handle = h_watch},
};

td_err td_grpc_health_create(struct td_loop *loop, td_grpc_health_fn status, void *arg,
                             struct td_grpc_health **out_health)
{
    struct td_grpc_health *h = td_zalloc(1, sizeof *h);
    if (h == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    h->status = status;
    h->arg = arg;
    h->arena = td_arena_create(ARENA_BYTES);
    if (h->arena == NULL ||
        td_timer_create(loop, "grpc health", poll_watches, h, &h->timer) != TD_OK) {
        td_grpc_health_destroy(h);
        return TD_ERR_NO_MEMORY;
    }
    *out_health = h;
    return TD_OK;
}

struct td_grpc_health *td_grpc_health_destroy(struct td_grpc_health *h)
{
    if (h != NULL) {
        td_timer_destroy(h->timer);
        td_arena_destroy(h->arena);
        free(h);
    }
    return NULL;
}

void td_grpc_health_add(struct td_grpc_health *h, struct td_grpc_server *s)
{
    const struct td_grpc_service service = {.name = "grpc.health.v1.Health",
                                            .methods = methods,
                                            .n_methods = TD_COUNT(methods),
                                            .arg = h};
    td_grpc_server_add(s, &service);
}
