#define TD_LOG_ROOM "node"
#include "common/node/group.h"

#include <inttypes.h>
#include <stdlib.h>

#include "common/base/log.h"
#include "common/base/mem.h"

struct nd_group {
    struct td_ranks *ranks; /* owned */
    struct td_watch *watch; /* owned */
    void (*over)(void *arg, td_err why);
    void *arg;
};

static const char *alone_fault(const struct nd_group_options *o)
{
    if (o->rank != 0) {
        return "--rank needs a group: say --tensor-parallel-size as rank 0 does";
    }
    if (o->leader[0] != 0) {
        return "--rank-leader needs a group: say --tensor-parallel-size as rank 0 does";
    }
    return NULL;
}

static const char *group_fault(const struct nd_group_options *o)
{
    if (o->rank >= o->size) {
        return "--rank counts from 0: it must be below --tensor-parallel-size";
    }
    if (o->cuda) {
        return "the cuda backend computes on one GPU yet: --backend cpu, or no "
               "--tensor-parallel-size";
    }
    if (!o->has_keys) {
        return "the processes of a group prove a secret to each other: --cluster-key-file, the "
               "same "
               "for all";
    }
    if (o->rank > 0 && o->leader[0] == 0) {
        return "a rank above 0 dials rank 0: --rank-leader HOST:PORT, where rank 0 has "
               "--rank-listen";
    }
    if (o->rank == 0 && o->leader[0] != 0) {
        return "rank 0 is the leader and dials nobody: no --rank-leader, or the --rank of this "
               "process";
    }
    if (o->rank == 0 && o->data_plane && o->n_ports == 1) {
        return "rank 0 opens a port for KV and one for its ranks: --kv-port-range of two ports or "
               "more";
    }
    if (o->numerics_id == 0) {
        return "--numerics is int8 or f32";
    }
    return NULL;
}

td_err nd_group_check(const struct nd_group_options *o)
{
    const char *fault = o->size > 1 ? group_fault(o) : alone_fault(o);
    if (fault != NULL) {
        TD_LOG(ERROR, "options do not make a group of ranks",
               "size=%" PRId64 " rank=%" PRId64 " remedy=\"%s\"", o->size, o->rank, fault);
        return TD_ERR_CONFIG;
    }
    return TD_OK;
}

td_err nd_group_join(const struct td_rank_params *p, struct nd_group **out_group)
{
    struct nd_group *g = td_zalloc(1, sizeof *g);
    if (g == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    td_err err = td_ranks_join(p, &g->ranks);
    if (err != TD_OK) {
        free(g);
        return err;
    }
    *out_group = g;
    return TD_OK;
}

td_err nd_group_loaded(struct nd_group *g, int64_t wait_us)
{
    return td_ranks_loaded(g->ranks, wait_us);
}

struct td_ranks *nd_group_ranks(const struct nd_group *g)
{
    return g->ranks;
}

static void on_readable(void *arg, unsigned ready)
{
    struct nd_group *g = arg;
    (void)ready;
    td_err err = td_ranks_check(g->ranks);
    if (err != TD_OK) {
        g->watch = td_watch_destroy(g->watch);
        g->over(g->arg, err);
    }
}

td_err nd_group_watch(struct nd_group *g, struct td_loop *loop, void (*over)(void *arg, td_err why),
                      void *arg)
{
    g->over = over;
    g->arg = arg;
    return td_watch_create(loop, "nd-group", td_ranks_watch_fd(g->ranks), TD_WATCH_READ,
                           on_readable, g, &g->watch);
}

void nd_group_leave(struct nd_group *g, bool broken)
{
    if (g == NULL) {
        return;
    }
    g->watch = td_watch_destroy(g->watch);
    if (broken) {
        g->ranks->ops->stop(g->ranks);
    }
}

struct nd_group *nd_group_destroy(struct nd_group *g)
{
    if (g != NULL) {
        td_watch_destroy(g->watch);
        td_ranks_destroy(g->ranks);
        free(g);
    }
    return NULL;
}
