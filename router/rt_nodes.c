#include "router/rt_nodes.h"

#include <stdio.h>
#include <string.h>

#include "common/base/assert.h"

static struct rt_node *free_slot(struct rt_nodes *ns)
{
    for (uint32_t i = 0; i < RT_MAX_NODES; i++) {
        if (ns->list[i].epoch == 0) {
            return &ns->list[i];
        }
    }
    return NULL;
}

struct rt_node *rt_nodes_find(struct rt_nodes *ns, uint64_t epoch)
{
    for (uint32_t i = 0; epoch != 0 && i < RT_MAX_NODES; i++) {
        if (ns->list[i].epoch == epoch) {
            return &ns->list[i];
        }
    }
    return NULL;
}

struct rt_node *rt_nodes_named(struct rt_nodes *ns, const char *name)
{
    struct rt_node *found = NULL;
    for (uint32_t i = 0; i < RT_MAX_NODES; i++) {
        struct rt_node *n = &ns->list[i];
        if (n->epoch != 0 && strcmp(n->name, name) == 0 &&
            (found == NULL || n->order > found->order)) {
            found = n;
        }
    }
    return found;
}

const char *rt_nodes_name(const struct rt_nodes *ns, uint64_t epoch)
{
    for (uint32_t i = 0; epoch != 0 && i < RT_MAX_NODES; i++) {
        if (ns->list[i].epoch == epoch) {
            return ns->list[i].name;
        }
    }
    for (uint32_t i = 0; epoch != 0 && i < RT_MAX_NODES; i++) {
        if (ns->gone[i].epoch == epoch) {
            return ns->gone[i].name;
        }
    }
    return "";
}

static void copy_text(char *to, size_t cap, const char *from)
{
    (void)snprintf(to, cap, "%s", from != NULL ? from : "");
}

td_err rt_nodes_up(struct rt_nodes *ns, const struct td_wire_node_info *info,
                   struct rt_node **out_node)
{
    struct rt_node *n = rt_nodes_find(ns, info->epoch);
    if (n == NULL) {
        n = free_slot(ns);
        if (n == NULL) {
            return TD_ERR_FULL;
        }
        memset(n, 0, sizeof *n);
        n->epoch = info->epoch;
        n->order = ++ns->n_ups;
        ns->count++;
    }
    n->detached = false;
    copy_text(n->name, sizeof n->name, info->name);
    copy_text(n->version, sizeof n->version, info->version);
    copy_text(n->numerics, sizeof n->numerics, info->numerics);
    copy_text(n->admin_address, sizeof n->admin_address, info->admin_address);
    n->role = info->role;
    n->layout_id = info->layout.id;
    n->numerics_id = info->numerics_id;
    n->block_tok = info->layout.block_tok != 0 ? info->layout.block_tok : 16;
    n->n_layers = info->layout.n_layers;
    n->max_model_len = info->max_model_len;
    n->n_blocks = info->n_blocks;
    n->max_seqs = info->max_seqs;
    n->n_ranks = info->n_ranks > 0 ? info->ranks[0].tp : 0;
    n->address_len = 0;
    if (info->n_ranks > 0 && info->ranks[0].address_len > 0 &&
        info->ranks[0].address_len <= sizeof n->address) {
        memcpy(n->address, info->ranks[0].address, info->ranks[0].address_len);
        n->address_len = info->ranks[0].address_len;
    }
    *out_node = n;
    return TD_OK;
}

void rt_nodes_down(struct rt_nodes *ns, uint64_t epoch)
{
    struct rt_node *n = rt_nodes_find(ns, epoch);
    if (n != NULL) {
        struct rt_gone *g = &ns->gone[ns->n_gone++ % RT_MAX_NODES];
        g->epoch = epoch;
        memcpy(g->name, n->name, sizeof g->name - 1); /* the last byte stays 0 */
        n->epoch = 0;
        TD_INSIST(ns->count > 0);
        ns->count--;
    }
}

bool rt_node_report(struct rt_node *n, const struct td_wire_state *s)
{
    bool gap = !s->full && n->have_state && s->seq != n->state_seq + 1;
    bool first_partial = !s->full && !n->have_state;
    n->state = *s;
    n->state_seq = s->seq;
    n->have_state = true;
    n->unreported_tok = 0;
    n->unreported_blk = 0;
    n->held = n->held && !s->draining; /* from here on its word: another router may take it back */
    if (s->role != 0) {
        n->role = s->role;
    }
    return !gap && !first_partial;
}

static const char *why_unwilling(const struct rt_node *n)
{
    if (!n->have_state) {
        return "has not reported yet";
    }
    if (!n->state.ready) {
        return "not ready";
    }
    return n->held || n->state.draining ? "draining" : "";
}

bool rt_node_willing(const struct rt_node *n, enum td_role role)
{
    if (n->epoch == 0 || ((unsigned)n->role & (unsigned)role) != (unsigned)role) {
        return false;
    }
    return why_unwilling(n)[0] == 0;
}

bool rt_node_usable(const struct rt_node *n, enum td_role role)
{
    return !n->detached && rt_node_willing(n, role);
}

bool rt_node_drained(const struct rt_node *n)
{
    return n->state.draining && n->inflight == 0 && n->state.running_requests == 0 &&
           n->state.queued_requests == 0;
}

const char *rt_node_why_not(const struct rt_node *n)
{
    return n->detached ? "its link is down" : why_unwilling(n);
}

uint32_t rt_nodes_ready(const struct rt_nodes *ns, enum td_role role)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < RT_MAX_NODES; i++) {
        count += rt_node_usable(&ns->list[i], role) ? 1 : 0;
    }
    return count;
}
