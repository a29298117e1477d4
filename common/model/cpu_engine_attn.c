/* cpu_engine_attn.c - cuts the attention of a step into tasks and puts their results together.
 *
 * A task is one KV head of one row: a tile of query positions over all chunks, or, when few decode
 * rows run, one chunk of one position, so that a single long sequence keeps the whole team busy.
 * The chunks of NUMERICS.md make both give the same bits. */
#include <string.h>

#include "common/model/cpu_engine_priv.h"

static uint32_t tile_positions(const struct td__ce *e)
{
    uint32_t n = TD__CE_TILE_QUERIES / e->group;
    return n > 16 ? 16 : n;
}

void *td__ce_kv(const struct td__ce *e, td_block_id block, uint32_t layer, uint32_t head,
                uint32_t which)
{
    size_t slice = (size_t)block * e->info.n_layers + layer;
    return e->pool + ((slice * 2 + which) * e->pool_heads + head) * e->head_bytes;
}

static bool is_split(const struct td__ce *e, const struct td_step_row *row)
{
    return e->split && row->n == 1;
}

static uint32_t chunks_of(uint32_t pos)
{
    return pos / TK_CHUNK_TOK + 1;
}

/* The first position that `pos` sees. */
static uint32_t first_seen(const struct td__ce *e, uint32_t pos)
{
    return e->window == 0 || pos < e->window ? 0 : pos - e->window + 1;
}

void td__ce_attn_plan(struct td__ce *e)
{
    const struct td_step *s = e->running;
    uint32_t decode_rows = 0, task = 0;
    e->n_spans = 0;
    for (uint32_t r = 0; r < s->n_rows; r++) {
        decode_rows += s->rows[r].live && s->rows[r].n == 1;
    }
    e->split = decode_rows <= TD__CE_SPLIT_ROWS;
    for (uint32_t r = 0; r < s->n_rows; r++) {
        const struct td_step_row *row = &s->rows[r];
        if (!row->live) {
            continue;
        }
        struct td__ce_task_span *span = &e->spans[e->n_spans++];
        span->row = r;
        span->first = task;
        span->chunk0 = first_seen(e, row->pos) / TK_CHUNK_TOK;
        span->n_chunks = is_split(e, row) ? chunks_of(row->pos) - span->chunk0 : 1;
        span->n_tiles = (row->n + tile_positions(e) - 1) / tile_positions(e);
        task += span->n_tiles * e->n_kv * span->n_chunks;
    }
    e->n_attn_tasks = task;
}

static const struct td__ce_task_span *span_of(const struct td__ce *e, uint32_t task)
{
    uint32_t lo = 0, hi = e->n_spans;
    while (hi - lo > 1) {
        uint32_t mid = (lo + hi) / 2;
        if (e->spans[mid].first <= task) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    return &e->spans[lo];
}

/* Where the chunk results of a split row begin; rows have one token, so spans count them. */
static size_t part_of(const struct td__ce *e, const struct td__ce_task_span *span, uint32_t head,
                      uint32_t chunk)
{
    uint32_t per_head = chunks_of(e->info.max_model_len - 1);
    uint32_t index = 0;
    for (const struct td__ce_task_span *s = e->spans; s < span; s++) {
        index += e->running->rows[s->row].n == 1;
    }
    return (((size_t)index * e->n_kv + head) * per_head + chunk) * e->group;
}

/* Addresses of a chunk's blocks. */
static void set_blocks(const struct td__ce *e, const struct td_step_row *row, uint32_t head,
                       uint32_t chunk, struct tk_attn *a)
{
    uint32_t n = (a->n_tok + TK_BLOCK_TOK - 1) / TK_BLOCK_TOK;
    for (uint32_t b = 0; b < n; b++) {
        td_block_id id = row->table[chunk * TK_CHUNK_BLOCKS + b];
        a->k[b] = td__ce_kv(e, id, e->layer, head, 0);
        a->v[b] = td__ce_kv(e, id, e->layer, head, 1);
    }
}

static void run_chunk(const struct td__ce *e, const struct tk_attn *a)
{
    if (e->f32) {
        e->ops->attn_f32(a);
    } else {
        e->ops->attn(a);
    }
}

/* Visible tokens of a chunk for the positions pos.. of a tile. With a window also where they begin,
 * and who sees none at all (limit 0). */
static void set_limits(const struct td__ce *e, struct td__ce_member *me, uint32_t pos, uint32_t n,
                       uint32_t chunk, struct tk_attn *a)
{
    a->n_tok = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t seen = pos + i + 1, before = chunk * TK_CHUNK_TOK;
        uint32_t limit = seen <= before ? 0 : seen - before;
        uint32_t begin = first_seen(e, pos + i);
        limit = limit > TK_CHUNK_TOK ? TK_CHUNK_TOK : limit;
        begin = begin <= before ? 0 : begin - before;
        limit = begin >= limit ? 0 : limit;
        a->n_tok = limit > a->n_tok ? limit : a->n_tok;
        for (uint32_t g = 0; g < e->group; g++) {
            me->limit[i * e->group + g] = (uint16_t)limit;
            me->first[i * e->group + g] = (uint16_t)(limit > 0 ? begin : 0);
        }
    }
    a->first = e->window > 0 ? me->first : NULL;
}

/* One position, one chunk: straight from the rows' own query vectors into the parts. */
static void split_task(struct td__ce *e, struct td__ce_member *me,
                       const struct td__ce_task_span *span, uint32_t head, uint32_t chunk)
{
    const struct td_step_row *row = &e->running->rows[span->row];
    size_t at = part_of(e, span, head, chunk);
    struct tk_attn a = {.head_dim = e->dim,
                        .nq = e->group,
                        .q = e->qkv + (size_t)row->token0 * e->qkv_width + head * e->group * e->dim,
                        .limit = me->limit,
                        .m = e->part_m + at,
                        .l = e->part_l + at,
                        .o = e->part_o + at * e->dim,
                        .scratch = me->attn};
    set_limits(e, me, row->pos, 1, chunk, &a);
    set_blocks(e, row, head, chunk, &a);
    run_chunk(e, &a);
}

/* The state takes a chunk. The first chunk that a vector sees is copied, and with a window that is
 * not the same one for all vectors of a tile. */
static void merge(const struct td__ce *e, struct td__ce_member *me, struct tk_attn *a, uint32_t pos,
                  uint32_t chunk)
{
    if (e->window == 0) {
        e->ops->attn_merge(a, me->sm, me->sl, me->so, chunk == 0);
        return;
    }
    for (uint32_t v = 0; v < a->nq; v++) {
        bool fresh = first_seen(e, pos + v / e->group) / TK_CHUNK_TOK == chunk;
        me->fresh[v] = fresh ? me->limit[v] : 0;
        me->known[v] = fresh ? 0 : me->limit[v];
    }
    a->limit = me->fresh;
    e->ops->attn_merge(a, me->sm, me->sl, me->so, true);
    a->limit = me->known;
    e->ops->attn_merge(a, me->sm, me->sl, me->so, false);
    a->limit = me->limit;
}

/* A tile of positions over all chunks, into e->att. */
static void tile_task(struct td__ce *e, struct td__ce_member *me, const struct td_step_row *row,
                      uint32_t head, uint32_t tile)
{
    uint32_t first = tile * tile_positions(e), n = row->n - first;
    n = n > tile_positions(e) ? tile_positions(e) : n;
    uint32_t width = e->group * e->dim, pos = row->pos + first;
    struct tk_attn a = {.head_dim = e->dim,
                        .nq = n * e->group,
                        .q = me->q,
                        .limit = me->limit,
                        .m = me->m,
                        .l = me->l,
                        .o = me->o,
                        .scratch = me->attn};
    for (uint32_t i = 0; i < n; i++) {
        memcpy(me->q + (size_t)i * width,
               e->qkv + (size_t)(row->token0 + first + i) * e->qkv_width + head * width,
               width * sizeof(float));
    }
    for (uint32_t c = first_seen(e, pos) / TK_CHUNK_TOK; c < chunks_of(pos + n - 1); c++) {
        set_limits(e, me, pos, n, c, &a);
        set_blocks(e, row, head, c, &a);
        run_chunk(e, &a);
        merge(e, me, &a, pos, c);
    }
    for (uint32_t v = 0; v < n * e->group; v++) {
        uint32_t t = row->token0 + first + v / e->group, h = head * e->group + v % e->group;
        e->ops->attn_finish(me->so + (size_t)v * e->dim, me->sl[v], e->dim,
                            e->att + (size_t)t * e->q_width + (size_t)h * e->dim);
    }
}

void td__ce_attn_task(struct td__ce *e, uint32_t member, uint32_t task)
{
    /* last tiles first: they see the most tokens, so the team ends together */
    task = e->n_attn_tasks - 1 - task;
    const struct td__ce_task_span *span = span_of(e, task);
    const struct td_step_row *row = &e->running->rows[span->row];
    uint32_t i = task - span->first;
    if (is_split(e, row)) {
        split_task(e, &e->members[member], span, i % e->n_kv, span->chunk0 + i / e->n_kv);
    } else {
        tile_task(e, &e->members[member], row, i % e->n_kv, i / e->n_kv);
    }
}

void td__ce_attn_collect(struct td__ce *e, uint32_t member, uint32_t t)
{
    struct td__ce_member *me = &e->members[member];
    const struct td__ce_task_span *span = e->spans;
    while (span->row != e->tok_row[t]) {
        span++;
    }
    const struct td_step_row *row = &e->running->rows[span->row];
    if (!is_split(e, row)) {
        return;
    }
    for (uint32_t head = 0; head < e->n_kv; head++) {
        for (uint32_t c = span->chunk0; c < span->chunk0 + span->n_chunks; c++) {
            size_t at = part_of(e, span, head, c);
            struct tk_attn a = {.head_dim = e->dim,
                                .nq = e->group,
                                .limit = me->limit,
                                .m = e->part_m + at,
                                .l = e->part_l + at,
                                .o = e->part_o + at * e->dim};
            set_limits(e, me, row->pos, 1, c, &a);
            e->ops->attn_merge(&a, me->sm, me->sl, me->so, c == span->chunk0);
        }
        for (uint32_t g = 0; g < e->group; g++) {
            e->ops->attn_finish(me->so + (size_t)g * e->dim, me->sl[g], e->dim,
                                e->att + (size_t)t * e->q_width + (head * e->group + g) * e->dim);
        }
    }
}
