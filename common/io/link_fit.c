#include "common/io/link_fit.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define HASH_SHOWN 6 /* bytes of a hash that people compare */

struct identity {
    uint32_t version_min, version_max;
    const uint8_t *model_id, *tokenizer_hash, *template_hash; /* [32] */
};

static void hex(const uint8_t *hash, char out[2 * HASH_SHOWN + 1])
{
    for (int i = 0; i < HASH_SHOWN; i++) {
        (void)snprintf(out + 2 * i, 3, "%02x", hash[i]);
    }
}

static td_err same_hash(const char *what, const uint8_t *router, const uint8_t *node, char *text,
                        size_t cap)
{
    char r[2 * HASH_SHOWN + 1], n[2 * HASH_SHOWN + 1];
    if (memcmp(router, node, 32) == 0) {
        return TD_OK;
    }
    hex(router, r);
    hex(node, n);
    (void)snprintf(text, cap, "%s differs: router %s.., node %s..; give both the same --model file",
                   what, r, n);
    return TD_ERR_PEER_MODEL;
}

static td_err fit(const struct identity *router, const struct identity *node, char *text,
                  size_t cap)
{
    if (router->version_min > node->version_max || node->version_min > router->version_max) {
        (void)snprintf(
            text, cap,
            "no common wire version: router %u to %u, node %u to %u; upgrade the older one",
            router->version_min, router->version_max, node->version_min, node->version_max);
        return TD_ERR_PEER_VERSION;
    }
    TD_TRY(same_hash("model", router->model_id, node->model_id, text, cap));
    TD_TRY(same_hash("tokenizer", router->tokenizer_hash, node->tokenizer_hash, text, cap));
    return same_hash("chat template", router->template_hash, node->template_hash, text, cap);
}

static struct identity of_router(const struct td_wire_router_info *i)
{
    return (struct identity){i->version_min, i->version_max, i->model_id, i->tokenizer_hash,
                             i->template_hash};
}

static struct identity of_node(const struct td_wire_node_info *i)
{
    return (struct identity){i->version_min, i->version_max, i->model_id, i->tokenizer_hash,
                             i->template_hash};
}

td_err td_link_fit_node(const struct td_wire_router_info *us, const struct td_wire_node_info *node,
                        const struct td_link_expect *expect, char *text, size_t cap)
{
    struct identity r = of_router(us), n = of_node(node);
    TD_TRY(fit(&r, &n, text, cap));
    if (expect->layout_id != 0 && expect->layout_id != node->layout.id) {
        (void)snprintf(text, cap,
                       "KV layout differs: router expects %016" PRIx64 ", node has %016" PRIx64,
                       expect->layout_id, node->layout.id);
        return TD_ERR_PEER_MODEL;
    }
    if (expect->numerics_id != 0 && expect->numerics_id != node->numerics_id) {
        (void)snprintf(text, cap,
                       "numerics differ: router expects %016" PRIx64 ", node has %016" PRIx64
                       " (%s)",
                       expect->numerics_id, node->numerics_id, node->numerics);
        return TD_ERR_PEER_MODEL;
    }
    return TD_OK;
}

td_err td_link_fit_router(const struct td_wire_node_info *us,
                          const struct td_wire_router_info *router, char *text, size_t cap)
{
    struct identity r = of_router(router), n = of_node(us);
    return fit(&r, &n, text, cap);
}

static td_err unreadable(td_err e, char *text, size_t cap)
{
    (void)snprintf(text, cap, "what the peer says about itself cannot be read: %s", td_err_text(e));
    return e == TD_ERR_NO_MEMORY ? e : TD_ERR_PROTOCOL;
}

td_err td_link_check_node(void *at_router, uint64_t peer_epoch, const uint8_t *info, size_t len,
                          char *text, size_t cap)
{
    struct td_link_fit_at_router *f = at_router;
    struct td_wire_node_info node;
    td_arena_reset(f->arena);
    td_err e = td_wire_node_info_decode(info, len, f->arena, &node);
    if (e != TD_OK || node.epoch != peer_epoch) {
        return unreadable(e != TD_OK ? e : TD_ERR_PROTOCOL, text, cap);
    }
    return td_link_fit_node(f->us, &node, &f->expect, text, cap);
}

td_err td_link_check_router(void *at_node, uint64_t peer_epoch, const uint8_t *info, size_t len,
                            char *text, size_t cap)
{
    struct td_link_fit_at_node *f = at_node;
    struct td_wire_router_info router;
    td_arena_reset(f->arena);
    td_err e = td_wire_router_info_decode(info, len, f->arena, &router);
    if (e != TD_OK || router.epoch != peer_epoch) {
        return unreadable(e != TD_OK ? e : TD_ERR_PROTOCOL, text, cap);
    }
    return td_link_fit_router(f->us, &router, text, cap);
}
