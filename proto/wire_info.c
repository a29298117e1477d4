#include <string.h>

#include "common/base/assert.h"
#include "proto/wire.h"
#include "proto/wire_pb.h"
#define TD_LOG_ROOM "proto"
#include "common/base/log.h"

/* The identities exchanged while attaching. A wrong one refuses the peer, so what is wrong is said
 * in the log. */

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            return TD_ERR_PROTOCOL;                                                                \
        }                                                                                          \
    } while (0)

static td_err ranks_in(const PB(NodeInfo) * p, struct td_arena *arena,
                       struct td_wire_node_info *out)
{
    CHECK(wire_in(WIRE_RANKS, (int64_t)p->n_ranks));
    struct td_wire_rank *r = TD_ARENA_ARRAY(arena, struct td_wire_rank, p->n_ranks);
    if (r == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < p->n_ranks; i++) {
        const PB(Rank) *q = p->ranks[i];
        CHECK(wire_in(WIRE_PARALLEL, q->rank) && wire_in(WIRE_PARALLEL, q->tp) &&
              wire_in(WIRE_PARALLEL, q->pp) && wire_in(WIRE_LAYERS, q->first_layer) &&
              wire_in(WIRE_LAYERS, q->n_layers) && wire_in(WIRE_HEADS, q->first_head) &&
              wire_in(WIRE_HEADS, q->n_heads) &&
              (q->has_address == 0 || wire_in(WIRE_ADDRESS_BYTES, (int64_t)q->address.len)));
        r[i] = (struct td_wire_rank){.rank = q->rank,
                                     .tp = q->tp,
                                     .pp = q->pp,
                                     .first_layer = q->first_layer,
                                     .n_layers = q->n_layers,
                                     .first_head = q->first_head,
                                     .n_heads = q->n_heads,
                                     .address = q->has_address != 0 ? q->address.data : NULL,
                                     .address_len =
                                         q->has_address != 0 ? (uint32_t)q->address.len : 0};
    }
    out->n_ranks = (uint32_t)p->n_ranks;
    out->ranks = r;
    return TD_OK;
}

static td_err layout_in(const PB(Layout) * p, struct td_wire_layout *out)
{
    CHECK(p != NULL && wire_in(WIRE_LAYOUT_CODE, p->version) && wire_in(WIRE_KV_GROUP, p->group) &&
          wire_in(WIRE_LAYERS, p->n_layers) && wire_in(WIRE_HEADS, p->n_kv_heads) &&
          wire_in(WIRE_HEAD_DIM, p->head_dim) && wire_in(WIRE_BLOCK_TOK, p->block_tok) &&
          wire_in(WIRE_LAYOUT_CODE, p->dtype) && wire_in(WIRE_LAYOUT_CODE, p->order) &&
          wire_in(WIRE_SLICE_BYTES, p->slice_bytes) && wire_in(WIRE_WINDOW, p->window));
    *out = (struct td_wire_layout){.id = p->id,
                                   .version = p->version,
                                   .group = p->group,
                                   .n_layers = p->n_layers,
                                   .n_kv_heads = p->n_kv_heads,
                                   .head_dim = p->head_dim,
                                   .block_tok = p->block_tok,
                                   .dtype = p->dtype,
                                   .order = p->order,
                                   .slice_bytes = p->slice_bytes,
                                   .window = p->window};
    return TD_OK;
}

static td_err node_info_in(const PB(NodeInfo) * p, struct td_arena *arena,
                           struct td_wire_node_info *out)
{
    CHECK(wire_in(WIRE_ROLE, (int64_t)p->role) && p->version_min <= p->version_max &&
          p->epoch != 0);
    CHECK(wire_text_in(p->name, TD_WIRE_MAX_NAME, &out->name) &&
          wire_text_in(p->version, TD_WIRE_MAX_NAME, &out->version) &&
          wire_text_in(p->model_name, TD_WIRE_MAX_NAME, &out->model_name) &&
          wire_text_in(p->numerics, TD_WIRE_MAX_NAME, &out->numerics) &&
          wire_text_in(p->admin_address, TD_WIRE_MAX_NAME, &out->admin_address));
    CHECK(wire_hash_in(p->has_model_id, &p->model_id, out->model_id) &&
          wire_hash_in(p->has_tokenizer_hash, &p->tokenizer_hash, out->tokenizer_hash) &&
          wire_hash_in(p->has_template_hash, &p->template_hash, out->template_hash));
    out->epoch = p->epoch;
    out->role = (enum td_role)p->role;
    out->version_min = p->version_min;
    out->version_max = p->version_max;
    out->features = p->features;
    out->numerics_id = p->numerics_id;
    out->max_model_len = p->max_model_len;
    out->n_blocks = p->n_blocks;
    out->max_seqs = p->max_seqs;
    out->max_batched_tokens = p->max_batched_tokens;
    TD_TRY(layout_in(p->layout, &out->layout));
    return ranks_in(p, arena, out);
}

td_err td_wire_node_info_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                                struct td_wire_node_info *out)
{
    td_err e = TD_OK;
    TD_REQUIRE(arena != NULL && out != NULL);
    memset(out, 0, sizeof *out);
    PB(NodeInfo) *p =
        (void *)wire_unpack(&tandem__wire__v1__node_info__descriptor, data, len, arena, &e);
    if (p != NULL) {
        e = node_info_in(p, arena, out);
    }
    if (e != TD_OK) {
        TD_LOG(DEBUG, "node info refused", "bytes=%zu err=%s", len, td_err_code(e));
    }
    return e;
}

static td_err router_info_in(const PB(RouterInfo) * p, struct td_wire_router_info *out)
{
    CHECK(p->version_min <= p->version_max && p->epoch != 0);
    CHECK(wire_text_in(p->name, TD_WIRE_MAX_NAME, &out->name) &&
          wire_text_in(p->version, TD_WIRE_MAX_NAME, &out->version));
    CHECK(wire_hash_in(p->has_model_id, &p->model_id, out->model_id) &&
          wire_hash_in(p->has_tokenizer_hash, &p->tokenizer_hash, out->tokenizer_hash) &&
          wire_hash_in(p->has_template_hash, &p->template_hash, out->template_hash));
    out->epoch = p->epoch;
    out->version_min = p->version_min;
    out->version_max = p->version_max;
    out->features = p->features;
    return TD_OK;
}

td_err td_wire_router_info_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                                  struct td_wire_router_info *out)
{
    td_err e = TD_OK;
    TD_REQUIRE(arena != NULL && out != NULL);
    memset(out, 0, sizeof *out);
    PB(RouterInfo) *p =
        (void *)wire_unpack(&tandem__wire__v1__router_info__descriptor, data, len, arena, &e);
    if (p != NULL) {
        e = router_info_in(p, out);
    }
    if (e != TD_OK) {
        TD_LOG(DEBUG, "router info refused", "bytes=%zu err=%s", len, td_err_code(e));
    }
    return e;
}

/* ---- out ---- */

static bool names_fit(const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (names[i] != NULL && strnlen(names[i], TD_WIRE_MAX_NAME + 1) > TD_WIRE_MAX_NAME) {
            return false;
        }
    }
    return true;
}

static PB(Layout) layout_out(const struct td_wire_layout *l)
{
    PB(Layout) p = TANDEM__WIRE__V1__LAYOUT__INIT;
    p.has_id = p.has_version = p.has_group = p.has_n_layers = p.has_n_kv_heads = 1;
    p.id = l->id;
    p.version = l->version;
    p.group = l->group;
    p.n_layers = l->n_layers;
    p.n_kv_heads = l->n_kv_heads;
    p.has_head_dim = p.has_block_tok = p.has_dtype = p.has_order = p.has_slice_bytes = 1;
    p.head_dim = l->head_dim;
    p.block_tok = l->block_tok;
    p.dtype = l->dtype;
    p.order = l->order;
    p.slice_bytes = l->slice_bytes;
    p.has_window = l->window != 0;
    p.window = l->window;
    return p;
}

static PB(Rank) rank_out(const struct td_wire_rank *r)
{
    PB(Rank) p = TANDEM__WIRE__V1__RANK__INIT;
    p.has_rank = p.has_tp = p.has_pp = p.has_first_layer = p.has_n_layers = p.has_first_head =
        p.has_n_heads = 1;
    p.rank = r->rank;
    p.tp = r->tp;
    p.pp = r->pp;
    p.first_layer = r->first_layer;
    p.n_layers = r->n_layers;
    p.first_head = r->first_head;
    p.n_heads = r->n_heads;
    p.has_address = r->address_len > 0;
    p.address = wire_bytes_out(r->address, r->address_len);
    return p;
}

static void node_scalars_out(const struct td_wire_node_info *i, PB(NodeInfo) * p)
{
    p->has_epoch = p->has_role = p->has_version_min = p->has_version_max = p->has_features = 1;
    p->epoch = i->epoch;
    p->role = (PB(Role))i->role;
    p->version_min = i->version_min;
    p->version_max = i->version_max;
    p->features = i->features;
    p->has_numerics_id = p->has_max_model_len = p->has_n_blocks = p->has_max_seqs =
        p->has_max_batched_tokens = 1;
    p->numerics_id = i->numerics_id;
    p->max_model_len = i->max_model_len;
    p->n_blocks = i->n_blocks;
    p->max_seqs = i->max_seqs;
    p->max_batched_tokens = i->max_batched_tokens;
    p->has_model_id = p->has_tokenizer_hash = p->has_template_hash = 1;
    p->model_id = wire_bytes_out(i->model_id, sizeof i->model_id);
    p->tokenizer_hash = wire_bytes_out(i->tokenizer_hash, sizeof i->tokenizer_hash);
    p->template_hash = wire_bytes_out(i->template_hash, sizeof i->template_hash);
}

td_err td_wire_node_info_encode(const struct td_wire_node_info *i, struct td_buf *out)
{
    const char *const names[] = {i->name, i->version, i->model_name, i->numerics, i->admin_address};
    PB(NodeInfo) p = TANDEM__WIRE__V1__NODE_INFO__INIT;
    PB(Layout) layout = layout_out(&i->layout);
    PB(Rank) ranks[TD_WIRE_MAX_RANKS];
    PB(Rank) * rank_ptrs[TD_WIRE_MAX_RANKS];
    if (i->n_ranks > TD_WIRE_MAX_RANKS || !names_fit(names, sizeof names / sizeof names[0])) {
        return TD_ERR_TOO_LARGE;
    }
    for (uint32_t r = 0; r < i->n_ranks; r++) {
        if (i->ranks[r].address_len > TD_WIRE_MAX_ADDR) {
            return TD_ERR_TOO_LARGE;
        }
        ranks[r] = rank_out(&i->ranks[r]);
        rank_ptrs[r] = &ranks[r];
    }
    node_scalars_out(i, &p);
    p.name = wire_text_out(i->name);
    p.version = wire_text_out(i->version);
    p.model_name = wire_text_out(i->model_name);
    p.numerics = wire_text_out(i->numerics);
    p.admin_address = wire_text_out(i->admin_address);
    p.layout = &layout;
    p.n_ranks = i->n_ranks;
    p.ranks = rank_ptrs;
    return wire_pack(&p.base, out);
}

td_err td_wire_router_info_encode(const struct td_wire_router_info *i, struct td_buf *out)
{
    const char *const names[] = {i->name, i->version};
    PB(RouterInfo) p = TANDEM__WIRE__V1__ROUTER_INFO__INIT;
    if (!names_fit(names, sizeof names / sizeof names[0])) {
        return TD_ERR_TOO_LARGE;
    }
    p.has_epoch = p.has_version_min = p.has_version_max = p.has_features = 1;
    p.epoch = i->epoch;
    p.version_min = i->version_min;
    p.version_max = i->version_max;
    p.features = i->features;
    p.name = wire_text_out(i->name);
    p.version = wire_text_out(i->version);
    p.has_model_id = p.has_tokenizer_hash = p.has_template_hash = 1;
    p.model_id = wire_bytes_out(i->model_id, sizeof i->model_id);
    p.tokenizer_hash = wire_bytes_out(i->tokenizer_hash, sizeof i->tokenizer_hash);
    p.template_hash = wire_bytes_out(i->template_hash, sizeof i->template_hash);
    return wire_pack(&p.base, out);
}
