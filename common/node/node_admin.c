#define TD_LOG_ROOM "node"
#include <inttypes.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/node/node_int.h"

#define MAX_WAITS 4096

static bool is_draining(void *arg)
{
    const struct td_node *n = arg;
    return n->draining || n->held;
}

static td_err write_metrics(void *arg, struct td_buf *out)
{
    const struct td_node *n = arg;
    return nd_metrics_write(n->metrics, out);
}

static td_err waits_json(const struct nd_wait *w, uint32_t n, struct td_buf *b)
{
    int64_t now = td_now_us();
    TD_TRY(td_buf_puts(b, "{\"waits\":["));
    for (uint32_t i = 0; i < n; i++) {
        TD_TRY(td_buf_printf(b,
                             "%s{\"router\":\"%016" PRIx64 "\",\"counter\":%" PRIu64
                             ",\"attempt\":%u,\"what\":\"%s\","
                             "\"age_us\":%" PRId64 ",\"deadline_in_us\":%" PRId64 "}",
                             i > 0 ? "," : "", w[i].id.router_epoch, w[i].id.counter,
                             w[i].id.attempt, w[i].what, now - w[i].since_us,
                             w[i].deadline_us == TD_NEVER ? -1 : w[i].deadline_us - now));
    }
    return td_buf_puts(b, "]}");
}

static td_err write_waits(void *arg, struct td_buf *out)
{
    const struct td_node *n = arg;
    TD_CLEANUP(td_freep) struct nd_wait *w = td_zalloc(MAX_WAITS, sizeof *w);
    return w != NULL ? waits_json(w, n->p.role->waits(n->core, w, MAX_WAITS), out)
                     : TD_ERR_NO_MEMORY;
}

static void count_call(void *arg, const struct td_grpc_call *c, enum td_grpc_status status)
{
    const struct td_node *n = arg;
    nd_metrics_call(n->metrics, td_grpc_call_service(c), td_grpc_call_method(c), status);
}

void nd__count_calls(struct td_node *n, struct td_grpc_server *server)
{
    td_grpc_server_on_end(server, count_call, n);
}

/* The probes of gRPC say what those of HTTP say: a node without a router is ready too. */
enum td_health nd__health(void *arg, const char *service)
{
    const struct td_node *n = arg;
    bool is_prefill = n->p.role_told != TD_ROLE_DECODE,
         is_decode = n->p.role_told != TD_ROLE_PREFILL;
    enum td_health ready = n->draining || n->held ? TD_HEALTH_NOT_SERVING : TD_HEALTH_SERVING;
    if (strcmp(service, "liveness") == 0) {
        return TD_HEALTH_SERVING; /* this line runs: the loop lives */
    }
    if (service[0] == 0 || strcmp(service, "readiness") == 0) {
        return ready;
    }
    if (strcmp(service, "prefill") == 0) {
        return is_prefill ? ready : TD_HEALTH_NOT_SERVING;
    }
    if (strcmp(service, "decode") == 0) {
        return is_decode ? ready : TD_HEALTH_NOT_SERVING;
    }
    return TD_HEALTH_SERVICE_UNKNOWN;
}

static const struct nd_admin_ops ops = {
    .draining = is_draining, .metrics = write_metrics, .waits = write_waits, .health = nd__health};

td_err nd__admin_create(struct td_node *n)
{
    const struct nd_admin_params p = {.loop = n->p.loop,
                                      .host = n->p.admin_host,
                                      .port = n->p.admin_port,
                                      .tls = n->p.admin_tls,
                                      .ops = &ops,
                                      .arg = n};
    TD_TRY(nd_admin_create(&p, &n->admin));
    nd__count_calls(n, nd_admin_grpc(n->admin));
    return TD_OK;
}
