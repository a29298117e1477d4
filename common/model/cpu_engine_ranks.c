/* cpu_engine_ranks.c - shares of a group, its steps, and its end. */
#include "common/model/cpu_engine_ranks.h"

#define TD_LOG_ROOM "model"
#include "common/base/log.h"
#include "common/model/rank_step.h"

#define LANDED_BYTES (4u * 1024 * 1024) /* of one trade of landed slices, or one slice */

/* --- shares --- */

static void share_out(struct td__ce_cut *out, uint32_t units, uint32_t n, uint32_t unit,
                      uint32_t end)
{
    for (uint32_t p = 0; p < n; p++) {
        uint32_t from, to;
        td_rank_share(units, p, n, &from, &to);
        out->from[p] = from * unit;
        out->from[p + 1] = to * unit < end ? to * unit : end;
    }
}

/* KV heads that belong together, so that their queries fill whole quantised blocks. */
static uint32_t heads_together(const struct td_hparams *hp)
{
    uint32_t width = hp->n_heads / hp->n_kv_heads * hp->head_dim, heads = 1;
    while (heads * width % TK_QK !=
           0) { /* ends: all heads' width is a multiple, see td__ce_check_shape */
        heads++;
    }
    return heads;
}

/* What is cut, and into how many pieces at most. */
enum part { PART_HEADS, PART_EMBD, PART_FFN, PART_VOCAB, PARTS };

static void count_units(const struct td_hparams *hp, uint32_t out[PARTS])
{
    out[PART_HEADS] = hp->n_kv_heads / heads_together(hp);
    out[PART_EMBD] = hp->n_embd / TK_LANES;
    out[PART_FFN] = hp->n_ffn / TK_QK;
    out[PART_VOCAB] = (hp->n_vocab + TK_LANES - 1) / TK_LANES;
}

static td_err check_cut(const struct td_hparams *hp, uint32_t n)
{
    static const char *const names[PARTS] = {"kv heads", "embedding", "feed-forward", "vocabulary"};
    uint32_t units[PARTS];
    count_units(hp, units);
    for (size_t i = 0; i < PARTS; i++) {
        if (units[i] < n) {
            TD_LOG(ERROR, "--tensor-parallel-size is larger than this model can be cut",
                   "tensor_parallel_size=%u most=%u cut=\"%s\"", n, units[i], names[i]);
            return TD_ERR_CONFIG;
        }
    }
    return TD_OK;
}

td_err td_cpu_engine_check_ranks(const struct td_model *model, uint32_t n)
{
    TD_TRY(td__ce_check_shape(&model->hp));
    return n > 1 ? check_cut(&model->hp, n) : TD_OK;
}

td_err td__ce_ranks_make(struct td__ce *e, struct td_ranks *group)
{
    const struct td_hparams *hp = &e->model->hp;
    uint32_t n = group->n, units[PARTS];
    if (n < 2 || n > TD_RANKS_MAX || group->rank >= n) {
        TD_LOG(ERROR, "cpu engine refuses a group of ranks", "rank=%u ranks=%u", group->rank, n);
        return TD_ERR_CONFIG;
    }
    TD_TRY(check_cut(hp, n));
    count_units(hp, units);
    struct td__ce_ranks *r = e->ranks = td__ce_alloc(e, sizeof *r);
    if (r == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    r->group = group;
    r->rank = group->rank;
    r->n = n;
    atomic_store(&r->farewell, TD_ERR_AGAIN);
    share_out(&r->heads, units[PART_HEADS], n, heads_together(hp), hp->n_kv_heads);
    share_out(&r->embd, units[PART_EMBD], n, TK_LANES, hp->n_embd);
    share_out(&r->ffn, units[PART_FFN], n, 1, units[PART_FFN]);
    share_out(&r->vocab, units[PART_VOCAB], n, TK_LANES, hp->n_vocab);
    return TD_OK;
}

td_err td__ce_ranks_buffers(struct td__ce *e)
{
    struct td__ce_ranks *r = e->ranks;
    size_t ids = (size_t)e->info.max_rows * e->q.blocks_per_seq;
    r->slices_per_trade = LANDED_BYTES / e->info.layout.slice_bytes;
    r->slices_per_trade = r->slices_per_trade == 0 ? 1 : r->slices_per_trade;
    r->message_cap = td_rank_step_cap(&e->info);
    r->message = td__ce_alloc(e, r->message_cap);
    r->landed = td__ce_alloc(e, ids * sizeof *r->landed);
    r->wire = td__ce_alloc(e, td__ce_wire_bytes(e));
    return r->message != NULL && r->landed != NULL && r->wire != NULL ? TD_OK : TD_ERR_NO_MEMORY;
}

/* --- steps --- */

void td__ce_list_landed(struct td__ce *e)
{
    struct td__ce_ranks *r = e->ranks;
    r->n_landed = 0;
    for (uint32_t i = 0; i < e->running->n_rows; i++) {
        const struct td_step_row *row = &e->running->rows[i];
        if (!row->live || (row->want & TD_KV_LANDED) == 0) {
            continue;
        }
        uint32_t seen = e->window == 0 || row->pos < e->window ? 0 : row->pos - e->window + 1;
        for (uint32_t b = seen / TK_BLOCK_TOK; b * TK_BLOCK_TOK < row->pos; b++) {
            r->landed[r->n_landed++] = row->table[b];
        }
    }
}

void td__ce_tell(struct td__ce *e)
{
    struct td__ce_ranks *r = e->ranks;
    size_t n = td_rank_step_write(e->running, e->every_logit, r->message);
    td__ce_set_over(e, r->group->ops->tell(r->group, r->message, n));
}

bool td__ce_hear(struct td__ce *e)
{
    struct td__ce_ranks *r = e->ranks;
    struct td_step *s = &e->q.steps[0]; /* nobody submits here */
    enum td_rank_step_kind kind = TD_RANK_BYE;
    size_t n = 0;
    td__ce_set_over(e, r->group->ops->hear(r->group, r->message, r->message_cap, &n));
    if (td__ce_over(e)) {
        return false;
    }
    const char *bad =
        td_rank_step_read(&e->q, r->last_ticket, r->message, n, s, &kind, &e->every_logit);
    if (bad != NULL) {
        TD_LOG(ERROR, "rank 0 told a step that this rank cannot take", "rank=%u field=%s bytes=%zu",
               r->rank, bad, n);
        td__ce_set_over(e, TD_ERR_PROTOCOL);
        return false;
    }
    if (kind == TD_RANK_BYE) {
        return false;
    }
    r->last_ticket = s->ticket;
    td__ce_lay_out(e, s);
    return true;
}

/* --- end --- */

void td__ce_part(struct td__ce *e)
{
    struct td__ce_ranks *r = e->ranks;
    if (!td__ce_over(e) && r->rank == 0) {
        size_t n = td_rank_step_write_bye(r->message);
        td__ce_set_over(e, r->group->ops->tell(r->group, r->message, n));
    }
    td_err err = (td_err)atomic_load(&r->over);
    if (err == TD_OK || err == TD_ERR_CLOSED ||
        atomic_load(&e->stop)) { /* CLOSED: stopped by this process */
        TD_LOG(INFO, "engine leaves its group of ranks", "rank=%u ranks=%u err=%s", r->rank, r->n,
               td_err_code(err));
    } else {
        TD_LOG(ERROR, "engine has lost its group of ranks", "rank=%u ranks=%u err=%s", r->rank,
               r->n, td_err_code(err));
        r->group->ops->stop(r->group);
    }
    atomic_store(&r->farewell, (int)err); /* seq_cst: before whoever is woken asks */
    td_steps_close(&e->q);
}
