/* cuda_engine_plan.c - from the rows of a step to the passes that compute it. Pure: no device, no state.
 *
 * A decode row is one token of a sequence's output: its products run through the flat kernels, alone or
 * with up to 63 others, in a captured graph. Everything else is wide: prompt chunks and, unless the
 * engine is deterministic, the decode rows beside them, so that the weights are read once. Output that
 * is computed again runs flat in a deterministic engine, several tokens of one sequence to a pass.
 */
#include <string.h>

#include "common/base/assert.h"
#include "common/model/cuda_engine_priv.h"

#define GREEDY_BELOW 1e-5f /* of temperature, as the CPU engine */
#define NOBODY       UINT32_MAX
#define MAX_ENTRIES  8192u /* of a launch, unless one sequence has more: bounds the scratch */

uint32_t td__cu_bucket(uint32_t n)
{
    uint32_t b = 0;
    while (1u << b < n) {
        b++;
    }
    return b;
}

uint32_t td__cu_max_entries(uint32_t max_len)
{
    const uint32_t per_seq = tk_most_entries(max_len), all = per_seq * TK_MAX_ROWS;
    return all < MAX_ENTRIES ? all : per_seq > MAX_ENTRIES ? per_seq : MAX_ENTRIES;
}

uint32_t td__cu_class_entries(const struct td__cu_shape *c, uint32_t bucket, uint32_t cls)
{
    /* 1k, 4k, 8k, 32k tokens a row, all */
    static const uint32_t per_row[TD__CU_CLASSES] = {4, 8, 16, 64, UINT32_MAX};
    uint64_t n = (uint64_t)per_row[cls] << bucket;
    return n < c->max_entries ? (uint32_t)n : c->max_entries;
}

uint32_t td__cu_class(const struct td__cu_shape *c, uint32_t bucket, uint32_t entries)
{
    uint32_t cls = 0;
    while (td__cu_class_entries(c, bucket, cls) < entries) {
        cls++;
    }
    return cls;
}

uint32_t td__cu_product_rows(uint32_t max_tokens, uint32_t out_m[TD__CU_MAX_M])
{
    /* dense where a chunk meets decode rows: a tile more costs a quarter there */
    static const uint32_t steps[] = {32,   64,   96,   128,  192,  256,  288,  320,  384,  448,
                                     512,  544,  576,  640,  768,  896,  1024, 1088, 1280, 1536,
                                     2048, 2112, 2560, 3072, 4096, 5120, 6144, 8192, 12288};
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0] && steps[i] < max_tokens; i++) {
        out_m[n++] = steps[i];
    }
    out_m[n++] = max_tokens;
    return n;
}

struct build {
    const struct td__cu_shape *c;
    const struct td_sample_slot *slots;
    const struct td_step *s;
    struct td__cu_host *h;
};

/* One token of a sequence's output: a decode row. */
static bool is_decode(const struct build *b, const struct td_step_row *row)
{
    return row->from_engine || (row->n == 1 && row->sampling != TD_NO_SAMPLE &&
                                row->pos >= b->slots[row->sampling].n_prompt);
}

/* Leading tokens of a row that a wide pass computes as a chunk. Behind them is output that is computed again, which only
 * a deterministic engine tells apart. */
static uint32_t chunk_part(const struct build *b, const struct td_step_row *row)
{
    if (is_decode(b, row)) {
        return 0;
    }
    if (!b->c->deterministic || row->output_pos == 0 || row->output_pos >= row->pos + row->n) {
        return row->n;
    }
    return row->output_pos > row->pos ? row->output_pos - row->pos : 0;
}

static bool has_replayed(const struct build *b, const struct td_step_row *row)
{
    return row->live && !is_decode(b, row) && chunk_part(b, row) < row->n;
}

/* --- sampling --- */

static bool has_penalties(const struct td_sampling_params *p)
{
    return (p->repetition_penalty != 1.0f && p->repetition_penalty > 0) ||
           p->frequency_penalty != 0 || p->presence_penalty != 0;
}

static uint32_t flags_of(const struct td_sample_slot *slot, const struct td_step_row *row,
                         uint32_t position)
{
    const struct td_sampling_params *p = &slot->p;
    uint32_t output = position > slot->n_prompt ? position - slot->n_prompt : 0, f = 0;
    f |= has_penalties(p) ? TK_SAMPLE_PENALTIES : 0;
    f |= p->n_bias > 0 ? TK_SAMPLE_BIAS : 0;
    f |= p->n_stop_ids > 0 && output < p->min_tokens ? TK_SAMPLE_BAN : 0;
    f |= (row->want & TD_WANT_LOGPROBS) != 0 ? TK_SAMPLE_LOGPROB : 0;
    f |= row->from_engine ? TK_SAMPLE_CHAINED : 0;
    return f;
}

static struct tk_sample_row sample_row(const struct build *b, const struct td_step_row *row)
{
    const struct td_sample_slot *slot = &b->slots[row->sampling];
    const struct td_sampling_params *p = &slot->p;
    uint32_t position = row->pos + row->n;
    return (struct tk_sample_row){
        .temperature = p->temperature >= GREEDY_BELOW ? p->temperature : 0,
        .top_p = p->top_p < 1.0f ? p->top_p : 0,
        .min_p = p->min_p,
        .top_k = p->top_k,
        .seed = p->seed,
        .position = position,
        .choice = p->choice,
        .repetition = p->repetition_penalty,
        .frequency = p->frequency_penalty,
        .presence = p->presence_penalty,
        .slot = row->sampling,
        .flags = flags_of(slot, row, position),
        .n_bias = (uint16_t)p->n_bias,
        .n_stops = (uint16_t)p->n_stop_ids,
        .live = 1,
    };
}

static bool is_greedy(const struct tk_sample_row *r)
{
    return r->temperature <= 0 && (r->flags & ~(uint32_t)TK_SAMPLE_CHAINED) == 0;
}

/* --- passes --- */

static struct td__cu_pass *open_pass(struct build *b, bool wide)
{
    struct td__cu_host *h = b->h;
    TD_INSIST(h->n_passes < b->c->max_passes);
    struct td__cu_pass *p = &h->passes[h->n_passes];
    *p = (struct td__cu_pass){.wide = wide,
                              .greedy = true,
                              .in = h->n_passes++,
                              .result0 = h->n_results,
                              .table0 = h->n_tables};
    if (!wide) {
        memset(&h->flat[p->in], 0, sizeof h->flat[p->in]);
    }
    return p;
}

static void add_table(struct build *b, struct td__cu_pass *p, const struct td_step_row *row)
{
    struct td__cu_host *h = b->h;
    TD_INSIST(h->n_tables < b->c->max_tables);
    int32_t *to = h->tables + (size_t)h->n_tables++ * b->c->blocks_per_seq;
    for (uint32_t i = 0; i < row->n_blocks; i++) {
        to[i] = (int32_t)row->table[i];
    }
    p->n_tables++;
    p->n_blocks = row->n_blocks > p->n_blocks ? row->n_blocks : p->n_blocks;
}

/* Token i of a row becomes the next row of a flat pass; the row's last token samples where the row does. */
static void add_flat(struct build *b, struct td__cu_pass *p, uint32_t r, uint32_t i)
{
    const struct td_step_row *row = &b->s->rows[r];
    struct td__cu_flat_in *in = &b->h->flat[p->in];
    uint32_t at = p->n_tok++;
    in->tokens[at] = row->from_engine ? 0 : b->s->tokens[row->token0 + i];
    in->slot_of[at] = row->from_engine ? (int32_t)row->sampling : -1;
    in->pos[at] = (int32_t)(row->pos + i);
    in->lens[at] = in->pos[at] + 1;
    p->entries += tk_seq_entries((uint32_t)in->lens[at]);
    uint32_t owner = NOBODY;
    if (row->sampling != TD_NO_SAMPLE && i + 1 == row->n) {
        in->rows[at] = sample_row(b, row);
        p->greedy = p->greedy && is_greedy(&in->rows[at]);
        owner = r;
    }
    b->h->result_row[b->h->n_results++] = owner;
    p->n_samples++;
}

static void close_flat(struct build *b, struct td__cu_pass *p)
{
    struct td__cu_flat_in *in = &b->h->flat[p->in];
    for (uint32_t i = p->n_tok; i < TK_MAX_ROWS; i++) {
        in->slot_of[i] = in->pos[i] = -1;
    }
}

static bool has_room(const struct build *b, const struct td__cu_pass *p, uint32_t len)
{
    return p->n_tok < TK_MAX_ROWS && p->entries + tk_seq_entries(len) <= b->c->max_entries;
}

/* A pass of output that is computed again; the row's table is there already unless it is the row's first. */
static struct td__cu_pass *open_replayed(struct build *b, const struct td_step_row *row, bool first)
{
    struct td__cu_pass *p = open_pass(b, false);
    p->ordered = true;
    if (first) {
        add_table(b, p, row);
    } else {
        p->table0--;
        p->n_tables = 1;
        p->n_blocks = row->n_blocks;
    }
    return p;
}

static void add_replayed(struct build *b, uint32_t r)
{
    const struct td_step_row *row = &b->s->rows[r];
    struct td__cu_pass *p = open_replayed(b, row, true);
    for (uint32_t i = chunk_part(b, row); i < row->n; i++) {
        if (!has_room(b, p, row->pos + i + 1)) {
            close_flat(b, p);
            p = open_replayed(b, row, false);
        }
        add_flat(b, p, r, i);
    }
    close_flat(b, p);
}

static void plan_decode(struct build *b)
{
    struct td__cu_pass *p = NULL;
    for (uint32_t r = 0; r < b->s->n_rows; r++) {
        const struct td_step_row *row = &b->s->rows[r];
        if (!row->live || !is_decode(b, row)) {
            continue;
        }
        if (p == NULL || !has_room(b, p, row->pos + 1)) {
            if (p != NULL) {
                close_flat(b, p);
            }
            p = open_pass(b, false);
        }
        add_table(b, p, row);
        add_flat(b, p, r, 0);
    }
    if (p != NULL) {
        close_flat(b, p);
    }
}

/* --- the wide pass --- */

/* Attention of the n decode rows from tok0 on, in launches of bounded work. */
static void add_groups(struct build *b, struct td__cu_pass *p, uint32_t tok0, uint32_t n,
                       uint32_t table0)
{
    struct td__cu_group *g = NULL;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t entries = tk_seq_entries((uint32_t)b->h->lens[tok0 + i]);
        if (g == NULL || g->n == TK_MAX_SEQS || g->entries + entries > b->c->max_entries) {
            g = &b->h->groups[p->n_groups++];
            *g = (struct td__cu_group){.tok0 = tok0 + i, .table0 = table0 + i};
        }
        g->n++;
        g->entries += entries;
    }
}

static void pick_token(struct build *b, struct td__cu_pass *p, uint32_t token, uint32_t r)
{
    struct td__cu_host *h = b->h;
    const struct td_step_row *row = r != NOBODY ? &b->s->rows[r] : NULL;
    uint32_t at = p->n_samples++;
    h->pick[at] = (int32_t)token;
    h->rows[at] = row != NULL ? sample_row(b, row) : (struct tk_sample_row){.slot = TK_NO_SLOT};
    p->greedy = p->greedy && is_greedy(&h->rows[at]);
    h->result_row[h->n_results++] = r;
}

/* The first n tokens of a row. */
static void add_wide(struct build *b, struct td__cu_pass *p, uint32_t r, uint32_t n)
{
    const struct td_step_row *row = &b->s->rows[r];
    struct td__cu_host *h = b->h;
    uint32_t tok0 = p->n_tok;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t t = p->n_tok++;
        h->tokens[t] = row->from_engine ? 0 : b->s->tokens[row->token0 + i];
        h->slot_of[t] = row->from_engine ? (int32_t)row->sampling : -1;
        h->pos[t] = (int32_t)(row->pos + i);
        h->lens[t] = h->pos[t] + 1;
        h->table_of[t] = (int32_t)p->n_tables;
        if (b->s->all_logits != NULL) {
            pick_token(b, p, t, NOBODY);
        }
    }
    if (b->s->all_logits == NULL && row->sampling != TD_NO_SAMPLE && n == row->n) {
        pick_token(b, p, tok0 + n - 1, r);
    }
    add_table(b, p, row);
}

static void add_chunk(struct build *b, struct td__cu_pass *p, uint32_t r, uint32_t n)
{
    b->h->chunks[p->n_chunks++] = (struct tk_chunk){
        (int32_t)p->n_tok, (int32_t)n, (int32_t)b->s->rows[r].pos, (int32_t)p->n_tables};
    add_wide(b, p, r, n);
}

static td_err plan_wide(struct build *b, bool decode_too)
{
    struct td__cu_pass *p = NULL;
    struct td__cu_host *h = b->h;
    for (uint32_t r = 0; r < b->s->n_rows; r++) {
        const struct td_step_row *row = &b->s->rows[r];
        uint32_t n = b->s->all_logits != NULL ? row->n : row->live ? chunk_part(b, row) : 0;
        if (!row->live || n == 0) {
            continue;
        }
        p = p != NULL ? p : open_pass(b, true);
        add_chunk(b, p, r, n);
    }
    uint32_t tok0 = p != NULL ? p->n_tok : 0, table0 = p != NULL ? p->n_tables : 0;
    for (uint32_t r = 0; decode_too && r < b->s->n_rows; r++) {
        const struct td_step_row *row = &b->s->rows[r];
        if (row->live && is_decode(b, row)) {
            p = p != NULL ? p : open_pass(b, true);
            add_wide(b, p, r, 1);
        }
    }
    if (p == NULL) {
        return TD_OK;
    }
    if (decode_too) {
        add_groups(b, p, tok0, p->n_tok - tok0, table0);
    }
    return tk_tiles_host(h->chunks, p->n_chunks, h->tiles, b->c->max_tiles, &p->n_tiles);
}

/* Beside a chunk, or when more than one flat pass would read the weights, decode rows go wide. */
static bool is_mixed(const struct build *b)
{
    uint32_t chunks = 0, decode = 0;
    for (uint32_t r = 0; r < b->s->n_rows; r++) {
        const struct td_step_row *row = &b->s->rows[r];
        decode += row->live && is_decode(b, row);
        chunks += row->live && !is_decode(b, row);
    }
    return !b->c->deterministic && decode > 0 && (chunks > 0 || decode > TK_MAX_ROWS);
}

td_err td__cu_plan(const struct td__cu_shape *c, const struct td_sample_slot *slots,
                   const struct td_step *s, struct td__cu_host *h)
{
    struct build b = {c, slots, s, h};
    h->n_passes = h->n_results = h->n_tables = 0;
    if (s->all_logits != NULL) {
        return plan_wide(&b, false);
    }
    bool mixed = is_mixed(&b);
    if (!mixed) {
        plan_decode(&b);
    }
    TD_TRY(plan_wide(&b, mixed));
    for (uint32_t r = 0; r < s->n_rows; r++) { /* behind the chunks that they follow */
        if (has_replayed(&b, &s->rows[r])) {
            add_replayed(&b, r);
        }
    }
    return TD_OK;
}
