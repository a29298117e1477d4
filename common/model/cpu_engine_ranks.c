/* cpu_engine_ranks.c - shares of a group, the step that rank 0 tells the others, and the group's end. */
#include "common/model/cpu_engine_ranks.h"

#include <inttypes.h>
#include <string.h>

#define TD_LOG_ROOM "model"
#include "common/base/log.h"

#define STEP_MAGIC   0x54525354u /* also says that both ends have one byte order */
#define STEP_VERSION 1u
#define LANDED_BYTES (4u * 1024 * 1024) /* of one trade of landed slices, or one slice */
#define FLAG_EVERY   1u                 /* of a step: logits of every token */
#define FLAG_SAMPLES 1u                 /* of a row */
#define FLAG_LANDED  2u
#define STEP_FLAGS   FLAG_EVERY
#define ROW_FLAGS    (FLAG_SAMPLES | FLAG_LANDED)

enum step_kind { KIND_STEP = 1, KIND_BYE = 2 };

/* A message: the head, n_rows rows, n_tok token ids, then the block ids of all rows in order. */
struct step_head {
    uint32_t magic, version, kind, flags;
    uint64_t ticket;
    uint32_t n_rows, n_tok, n_ids, zero;
};
struct step_row {
    uint32_t pos, n, n_blocks, flags;
};
_Static_assert(sizeof(struct step_head) == 40 && sizeof(struct step_row) == 16, "no holes");

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
    r->message_cap = sizeof(struct step_head) + e->info.max_rows * sizeof(struct step_row) +
                     e->info.max_tokens * sizeof(int32_t) + ids * sizeof(td_block_id);
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

static size_t message_bytes(const struct step_head *h)
{
    return sizeof *h + h->n_rows * sizeof(struct step_row) + h->n_tok * sizeof(int32_t) +
           h->n_ids * sizeof(td_block_id);
}

/* Where the parts of a message begin; the head's counts are within bounds. */
struct parts {
    struct step_row *rows;
    int32_t *tokens;
    td_block_id *ids;
};

static struct parts parts_of(uint8_t *message, const struct step_head *h)
{
    struct parts p = {.rows = (struct step_row *)(void *)(message + sizeof *h)};
    p.tokens = (int32_t *)(void *)(p.rows + h->n_rows);
    p.ids = (td_block_id *)(void *)(p.tokens + h->n_tok);
    return p;
}

static void say(struct td__ce *e, const struct step_head *h)
{
    struct td_ranks *group = e->ranks->group;
    memcpy(e->ranks->message, h, sizeof *h);
    td__ce_set_over(e, group->ops->tell(group, e->ranks->message, message_bytes(h)));
}

void td__ce_tell(struct td__ce *e)
{
    const struct td_step *s = e->running;
    struct step_head h = {.magic = STEP_MAGIC,
                          .version = STEP_VERSION,
                          .kind = KIND_STEP,
                          .flags = e->every_logit ? FLAG_EVERY : 0,
                          .ticket = s->ticket,
                          .n_tok = s->n_tok};
    for (uint32_t i = 0; i < s->n_rows; i++) {
        h.n_rows += s->rows[i].live;
    }
    struct parts p = parts_of(e->ranks->message, &h);
    memcpy(p.tokens, s->tokens, s->n_tok * sizeof *s->tokens);
    for (uint32_t i = 0, at = 0; i < s->n_rows; i++) {
        const struct td_step_row *row = &s->rows[i];
        if (row->live) {
            p.rows[at++] =
                (struct step_row){.pos = row->pos,
                                  .n = row->n,
                                  .n_blocks = row->n_blocks,
                                  .flags = (row->sampling != TD_NO_SAMPLE ? FLAG_SAMPLES : 0) |
                                           ((row->want & TD_KV_LANDED) != 0 ? FLAG_LANDED : 0)};
            memcpy(p.ids + h.n_ids, row->table, row->n_blocks * sizeof *row->table);
            h.n_ids += row->n_blocks;
        }
    }
    say(e, &h);
}

/* What is wrong with a head, or NULL. */
static const char *bad_head(const struct td__ce *e, const struct step_head *h, size_t n)
{
    const struct td_engine_info *i = &e->info;
    if (h->magic != STEP_MAGIC || h->version != STEP_VERSION) {
        return "version";
    }
    if (h->kind == KIND_BYE) {
        return n == sizeof *h ? NULL : "length";
    }
    if (h->kind != KIND_STEP || (h->flags & ~STEP_FLAGS) != 0) {
        return "kind";
    }
    if (h->ticket <= e->ranks->last_ticket) {
        return "ticket";
    }
    if (h->n_rows == 0 || h->n_rows > i->max_rows || h->n_tok == 0 || h->n_tok > i->max_tokens ||
        h->n_ids > (uint64_t)i->max_rows * e->q.blocks_per_seq) {
        return "count";
    }
    return n == message_bytes(h) ? NULL : "length";
}

static const char *bad_rows(const struct td__ce *e, const struct step_head *h,
                            const struct parts *p)
{
    uint64_t n_tok = 0, n_ids = 0;
    uint32_t len = e->info.max_model_len;
    for (uint32_t i = 0; i < h->n_rows; i++) {
        const struct step_row *row = &p->rows[i];
        if (row->pos >= len || row->n == 0 || row->n > len - row->pos) {
            return "position";
        }
        if (row->n_blocks != (row->pos + row->n + TK_BLOCK_TOK - 1) / TK_BLOCK_TOK) {
            return "blocks";
        }
        if ((row->flags & ~ROW_FLAGS) != 0) {
            return "flags";
        }
        n_tok += row->n;
        n_ids += row->n_blocks;
    }
    return n_tok == h->n_tok && n_ids == h->n_ids ? NULL : "sum";
}

static const char *bad_ids(const struct td__ce *e, const struct step_head *h, const struct parts *p)
{
    for (uint32_t i = 0; i < h->n_tok; i++) {
        if (p->tokens[i] < 0 || (uint32_t)p->tokens[i] >= e->info.n_vocab) {
            return "token";
        }
    }
    for (uint32_t i = 0; i < h->n_ids; i++) {
        if (p->ids[i] >= e->info.n_blocks) {
            return "block";
        }
    }
    return NULL;
}

/* A believed message as the running step. */
static void adopt(struct td__ce *e, const struct step_head *h, const struct parts *p)
{
    struct td_step *s = &e->q.steps[0]; /* nobody submits here */
    const td_block_id *ids = p->ids;
    s->ticket = e->ranks->last_ticket = h->ticket;
    s->n_rows = h->n_rows;
    memcpy(s->tokens, p->tokens, h->n_tok * sizeof *s->tokens);
    for (uint32_t i = 0, token0 = 0; i < h->n_rows; i++) {
        const struct step_row *in = &p->rows[i];
        struct td_step_row *row = &s->rows[i];
        *row = (struct td_step_row){.live = true,
                                    .pos = in->pos,
                                    .n = in->n,
                                    .token0 = token0,
                                    .sampling = (in->flags & FLAG_SAMPLES) != 0 ? 0 : TD_NO_SAMPLE,
                                    .want = (in->flags & FLAG_LANDED) != 0 ? TD_KV_LANDED : 0,
                                    .n_blocks = in->n_blocks,
                                    .table = s->tables + (size_t)i * e->q.blocks_per_seq};
        memcpy(row->table, ids, in->n_blocks * sizeof *ids);
        ids += in->n_blocks;
        token0 += in->n;
    }
    e->every_logit = (h->flags & FLAG_EVERY) != 0;
    td__ce_lay_out(e, s);
}

bool td__ce_hear(struct td__ce *e)
{
    struct td__ce_ranks *r = e->ranks;
    struct step_head h = {0};
    size_t n = 0;
    td__ce_set_over(e, r->group->ops->hear(r->group, r->message, r->message_cap, &n));
    if (td__ce_over(e)) {
        return false;
    }
    const char *bad = n < sizeof h ? "length" : NULL;
    if (bad == NULL) {
        memcpy(&h, r->message, sizeof h);
        bad = bad_head(e, &h, n);
    }
    if (bad == NULL && h.kind == KIND_BYE) {
        return false;
    }
    struct parts p = {0};
    if (bad == NULL) {
        p = parts_of(r->message, &h);
        bad = bad_rows(e, &h, &p);
    }
    bad = bad == NULL ? bad_ids(e, &h, &p) : bad;
    if (bad != NULL) {
        TD_LOG(ERROR, "rank 0 told a step that this rank cannot take", "rank=%u field=%s bytes=%zu",
               r->rank, bad, n);
        td__ce_set_over(e, TD_ERR_PROTOCOL);
        return false;
    }
    adopt(e, &h, &p);
    return true;
}

/* --- end --- */

void td__ce_part(struct td__ce *e)
{
    struct td__ce_ranks *r = e->ranks;
    if (!td__ce_over(e) && r->rank == 0) {
        say(e, &(struct step_head){.magic = STEP_MAGIC, .version = STEP_VERSION, .kind = KIND_BYE});
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
