#include "common/model/rank_step.h"

#include <string.h>

#define MAGIC       0x54525354u /* a reader of another byte order sees another number */
#define EVERY_LOGIT 1u          /* flag of a step */
#define ROW_SAMPLES 1u          /* flags of a row */
#define ROW_LANDED  2u

/* The head, n_rows rows, n_tok token ids, then the block ids of all rows in order. */
struct head {
    uint32_t magic, version, kind, flags;
    uint64_t ticket;
    uint32_t n_rows, n_tok, n_ids, zero;
};
struct row {
    uint32_t pos, n, n_blocks, flags;
};
_Static_assert(sizeof(struct head) == 40 && sizeof(struct row) == 16, "no holes");

static size_t bytes_of(size_t n_rows, size_t n_tok, size_t n_ids)
{
    return sizeof(struct head) + n_rows * sizeof(struct row) + n_tok * sizeof(int32_t) +
           n_ids * sizeof(td_block_id);
}

static uint32_t blocks_of(uint32_t n_tok)
{
    return (n_tok + TD_KV_HASH_TOK - 1) / TD_KV_HASH_TOK;
}

size_t td_rank_step_cap(const struct td_engine_info *info)
{
    return bytes_of(info->max_rows, info->max_tokens,
                    (size_t)info->max_rows * blocks_of(info->max_model_len));
}

/* --- writing --- */

static uint8_t *put(uint8_t *at, const void *data, size_t n)
{
    memcpy(at, data, n);
    return at + n;
}

size_t td_rank_step_write_bye(uint8_t *out)
{
    struct head h = {.magic = MAGIC, .version = TD_RANK_STEP_VERSION, .kind = TD_RANK_BYE};
    memcpy(out, &h, sizeof h);
    return sizeof h;
}

size_t td_rank_step_write(const struct td_step *s, bool every_logit, uint8_t *out)
{
    struct head h = {.magic = MAGIC,
                     .version = TD_RANK_STEP_VERSION,
                     .kind = TD_RANK_STEP,
                     .flags = every_logit ? EVERY_LOGIT : 0,
                     .ticket = s->ticket,
                     .n_tok = s->n_tok};
    uint8_t *at = out + sizeof h;
    for (uint32_t i = 0; i < s->n_rows; i++) {
        const struct td_step_row *r = &s->rows[i];
        if (r->live) {
            struct row row = {r->pos, r->n, r->n_blocks,
                              (r->sampling != TD_NO_SAMPLE ? ROW_SAMPLES : 0) |
                                  ((r->want & TD_KV_LANDED) != 0 ? ROW_LANDED : 0)};
            at = put(at, &row, sizeof row);
            h.n_rows++;
            h.n_ids += r->n_blocks;
        }
    }
    at = put(at, s->tokens, s->n_tok * sizeof *s->tokens);
    for (uint32_t i = 0; i < s->n_rows; i++) {
        const struct td_step_row *r = &s->rows[i];
        if (r->live) {
            at = put(at, r->table, r->n_blocks * sizeof *r->table);
        }
    }
    memcpy(out, &h, sizeof h);
    return (size_t)(at - out);
}

/* --- reading --- */

static const char *bad_head(const struct td_steps *q, td_ticket last, const struct head *h,
                            size_t n)
{
    const struct td_engine_info *i = q->info;
    if (h->magic != MAGIC || h->version != TD_RANK_STEP_VERSION) {
        return "version";
    }
    if (h->kind == TD_RANK_BYE) {
        return n == sizeof *h ? NULL : "length";
    }
    if (h->kind != TD_RANK_STEP || (h->flags & ~EVERY_LOGIT) != 0 || h->zero != 0) {
        return "kind";
    }
    if (h->ticket <= last) {
        return "ticket";
    }
    if (h->n_rows == 0 || h->n_rows > i->max_rows || h->n_tok == 0 || h->n_tok > i->max_tokens ||
        h->n_ids > (uint64_t)i->max_rows * q->blocks_per_seq) {
        return "count";
    }
    return n == bytes_of(h->n_rows, h->n_tok, h->n_ids) ? NULL : "length";
}

/* One row of a step whose first `token0` tokens belong to those before it. */
static const char *read_row(const struct td_steps *q, const struct row *in, uint32_t token0,
                            struct td_step_row *out)
{
    uint32_t len = q->info->max_model_len;
    if (in->pos >= len || in->n == 0 || in->n > len - in->pos) {
        return "position";
    }
    if (in->n_blocks != blocks_of(in->pos + in->n)) {
        return "blocks";
    }
    if ((in->flags & ~(ROW_SAMPLES | ROW_LANDED)) != 0) {
        return "flags";
    }
    *out = (struct td_step_row){.live = true,
                                .pos = in->pos,
                                .n = in->n,
                                .token0 = token0,
                                .sampling = (in->flags & ROW_SAMPLES) != 0 ? 0 : TD_NO_SAMPLE,
                                .want = (in->flags & ROW_LANDED) != 0 ? TD_KV_LANDED : 0,
                                .n_blocks = in->n_blocks,
                                .table = out->table};
    return NULL;
}

static const char *read_rows(const struct td_steps *q, const struct head *h, const uint8_t *at,
                             struct td_step *out)
{
    uint64_t n_tok = 0, n_ids = 0;
    for (uint32_t i = 0; i < h->n_rows; i++, at += sizeof(struct row)) {
        struct row in;
        memcpy(&in, at, sizeof in);
        out->rows[i].table = out->tables + (size_t)i * q->blocks_per_seq;
        const char *bad = read_row(q, &in, (uint32_t)n_tok, &out->rows[i]);
        if (bad != NULL) {
            return bad;
        }
        n_tok += in.n;
        n_ids += in.n_blocks;
        if (n_tok > h->n_tok || n_ids > h->n_ids) { /* before anything is read by these counts */
            return "sum";
        }
    }
    return n_tok == h->n_tok && n_ids == h->n_ids ? NULL : "sum";
}

static const char *read_ids(const struct td_steps *q, const struct head *h, const uint8_t *at,
                            struct td_step *out)
{
    memcpy(out->tokens, at, h->n_tok * sizeof *out->tokens);
    at += h->n_tok * sizeof *out->tokens;
    for (uint32_t i = 0; i < h->n_tok; i++) {
        if (out->tokens[i] < 0 || (uint32_t)out->tokens[i] >= q->info->n_vocab) {
            return "token";
        }
    }
    for (uint32_t i = 0; i < h->n_rows; i++) {
        const struct td_step_row *row = &out->rows[i];
        memcpy(row->table, at, row->n_blocks * sizeof *row->table);
        at += row->n_blocks * sizeof *row->table;
        for (uint32_t b = 0; b < row->n_blocks; b++) {
            if (row->table[b] >= q->info->n_blocks) {
                return "block";
            }
        }
    }
    return NULL;
}

const char *td_rank_step_read(const struct td_steps *q, td_ticket last, const uint8_t *data,
                              size_t n, struct td_step *out, enum td_rank_step_kind *out_kind,
                              bool *out_every_logit)
{
    struct head h;
    if (n < sizeof h) {
        return "length";
    }
    memcpy(&h, data, sizeof h);
    const char *bad = bad_head(q, last, &h, n);
    if (bad == NULL && h.kind == TD_RANK_STEP) {
        const uint8_t *rows = data + sizeof h;
        bad = read_rows(q, &h, rows, out);
        bad = bad == NULL ? read_ids(q, &h, rows + h.n_rows * sizeof(struct row), out) : bad;
        out->ticket = h.ticket;
        out->n_rows = h.n_rows;
        out->n_tok = h.n_tok;
    }
    if (bad == NULL) {
        *out_kind = (enum td_rank_step_kind)h.kind;
        *out_every_logit = (h.flags & EVERY_LOGIT) != 0;
    }
    return bad;
}
