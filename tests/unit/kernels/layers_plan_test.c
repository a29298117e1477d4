/* The schedule of a launch of whole layers (kernels/cuda/layers_plan.h), walked on the CPU for real shapes: every block's loaders,
 * scalers and consumers as lists of waits for counts and steps of counts, in the order of kernels/cuda/layers.cuh. Counts only
 * grow until the last block of the last stage sets them to zero, when nobody may look at one any more, and the lists do not
 * depend on the order of events, so when one order ends all do; several are tried, and each looks at what must have happened
 * by then. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/layers_plan.h"
#include "tests/unit/check.h"

#define W_STAGES 12
#define X_STAGES 14
#define MOST     3 /* layers walked: all are alike */

struct shape {
    uint32_t hid, heads, kv_heads, ffn, rows, window;
    int32_t lens[TK_LAYERS_ROWS];
};

struct product {
    uint32_t tiles, cut, slices, units;
};

/* k_cut of flat.cuh: where a product is cut along K. */
static uint32_t cut_of(uint32_t tiles, uint32_t k, bool may)
{
    uint32_t c = 1;
    while (may && c < 4 && tiles * c * 2 <= 132 && k / 64 >= c * 8) {
        c *= 2;
    }
    return c;
}

struct walk {
    struct shape s;
    struct product p[TK_STAGES]; /* [0] is attention's place */
    uint32_t blocks, stages, items, att_rows;
    bool tagged; /* o's tokens: brought by the scalers */
    uint32_t entry[1 + TK_MAX_SEQS + 64];
    /* counts: of the launch, then of each block */
    uint32_t *count, n_counts;
    uint32_t *times; /* [stage][unit]: how often it was computed; attention: items, then rows */
};

enum { W_PUT, W_FREE, X_PUT, X_FREE, READY, SCALED, DRAINED, BROUGHT, BLOCK_COUNTS };
#define MOST_UNITS 1024

static uint32_t at_done(uint32_t kind)
{
    return kind;
}
static uint32_t at_part(uint32_t s, uint32_t unit) /* of a tile's K; or an item's */
{
    return TK_STAGES + s * MOST_UNITS + unit;
}
static uint32_t at_block(const struct walk *w, uint32_t block, uint32_t what)
{
    return TK_STAGES + w->stages * MOST_UNITS + block * BLOCK_COUNTS + what;
}

/* ---- lists ---- */
enum op_kind { WAIT, ADD, UNIT, ALL_ENDED, HAS };
struct op {
    enum op_kind what;
    uint32_t at, value;
};
struct list {
    struct op *op;
    uint32_t n, room, next;
};

static void put(struct list *l, enum op_kind what, uint32_t at, uint32_t value)
{
    if (l->n == l->room) {
        l->room = l->room == 0 ? 256 : 2 * l->room;
        l->op = realloc(l->op, l->room * sizeof *l->op);
        assert_non_null(l->op);
    }
    l->op[l->n++] = (struct op){what, at, value};
}

/* The next use of a ring of so many stages, from the side that fills it and from the side that empties it. */
static void fill_slot(struct list *l, uint32_t put_at, uint32_t free_at, uint32_t *n, uint32_t room)
{
    if (*n >= room) {
        put(l, WAIT, free_at, *n - room + 1);
    }
    put(l, ADD, put_at, 1);
    (*n)++;
}
static void use_slot(struct list *l, uint32_t put_at, uint32_t free_at, uint32_t *n)
{
    put(l, WAIT, put_at, ++*n);
    put(l, ADD, free_at, 1);
}

static uint32_t item_seq(const struct walk *w, uint32_t i)
{
    return w->entry[1 + TK_MAX_SEQS + i / w->s.kv_heads] >> 16;
}

/* Stages of the ring that an item's pages take. */
static uint32_t item_slots(const struct walk *w, uint32_t i)
{
    const uint32_t e = w->entry[1 + TK_MAX_SEQS + i / w->s.kv_heads];
    const int32_t len = w->s.lens[e >> 16], tok = tk_chunk_tok(len);
    const int32_t first = (int32_t)(e & (TK_CHUNK_IS_LONG - 1)) * tok,
                  left = len - first < tok ? len - first : tok;
    const int32_t hidden = tk_window_start(len, (int32_t)w->s.window) - first;
    const int32_t page0 = (hidden > 0 ? hidden : 0) / TK_BLOCK_TOK,
                  pages = (left + TK_BLOCK_TOK - 1) / TK_BLOCK_TOK;
    assert_true(page0 < pages);
    return (uint32_t)(pages - page0 + 1) / 2;
}

static uint32_t slices_of(const struct product *p, uint32_t unit)
{
    const uint32_t part = unit % p->cut;
    return p->slices * (part + 1) / p->cut - p->slices * part / p->cut;
}

static bool is_last(const struct walk *w, uint32_t s)
{
    return s + 1 == w->stages;
}
static bool has_unit(const struct walk *w, uint32_t kind, uint32_t b)
{
    return tk_stage_first(kind, b, w->blocks) < w->p[kind].units;
}
static bool has_item(const struct walk *w, uint32_t b)
{
    return tk_stage_first(TK_STAGE_ATTN, b, w->blocks) < w->items;
}
static bool is_scaled(const struct walk *w, uint32_t s, uint32_t b)
{
    const uint32_t kind = tk_stage_kind(s);
    return kind != TK_STAGE_ATTN &&
           tk_stage_is_scaled(kind, is_last(w, s), has_unit(w, kind, b), has_item(w, b));
}
static uint32_t all_done(const struct walk *w, uint32_t s)
{
    const uint32_t kind = tk_stage_kind(s);
    const uint32_t n = kind == TK_STAGE_ATTN ? tk_stage_blocks(w->items, w->att_rows, w->blocks)
                                             : tk_stage_blocks(w->p[kind].units, 0, w->blocks);
    return kind == TK_STAGE_QKV ? n : (tk_stage_layer(s) + 1) * n;
}

static void list_load_w(const struct walk *w, uint32_t b, struct list *l)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < w->stages; s++) {
        const uint32_t kind = tk_stage_kind(s), first = tk_stage_first(kind, b, w->blocks);
        const uint32_t units = kind == TK_STAGE_ATTN ? w->items : w->p[kind].units;
        for (uint32_t u = first; u < units; u += w->blocks) {
            const uint32_t slots =
                kind == TK_STAGE_ATTN ? item_slots(w, u) : slices_of(&w->p[kind], u);
            for (uint32_t k = 0; k < slots; k++) {
                fill_slot(l, at_block(w, b, W_PUT), at_block(w, b, W_FREE), &n, W_STAGES);
            }
        }
    }
}

/* Of a block's units of a product. */
static uint32_t slices_here(const struct walk *w, uint32_t kind, uint32_t b)
{
    uint32_t n = 0;
    for (uint32_t u = tk_stage_first(kind, b, w->blocks); u < w->p[kind].units; u += w->blocks) {
        n += slices_of(&w->p[kind], u);
    }
    return n;
}

static void list_load_x(const struct walk *w, uint32_t b, struct list *l)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < w->stages; s++) {
        const uint32_t kind = tk_stage_kind(s);
        if (kind == TK_STAGE_ATTN || (!is_scaled(w, s, b) && !has_unit(w, kind, b))) {
            continue;
        }
        if (kind == TK_STAGE_O && w->tagged) {
            n += slices_here(w, kind, b);
            continue;
        }
        put(l, WAIT, at_done(tk_stage_kind(s - 1)), all_done(w, s - 1));
        put(l, ALL_ENDED, s - 1, 0);
        if (w->tagged && has_unit(w, TK_STAGE_O, b) && kind == TK_STAGE_GATE_UP) {
            put(l, HAS, at_block(w, b, X_FREE),
                n); /* or the ring's phases could not be told apart */
        }
        if (is_scaled(w, s, b)) {
            put(l, ADD, at_block(w, b, READY), 1);
        }
        for (uint32_t u = tk_stage_first(kind, b, w->blocks); u < w->p[kind].units;
             u += w->blocks) {
            for (uint32_t k = 0; k < slices_of(&w->p[kind], u); k++) {
                fill_slot(l, at_block(w, b, X_PUT), at_block(w, b, X_FREE), &n, X_STAGES);
            }
        }
    }
}

/* o's tokens as they come: its heads' rows, of every sequence that is one. */
static void list_bring(const struct walk *w, uint32_t b, uint32_t s, struct list *l, uint32_t *n)
{
    const struct product *p = &w->p[TK_STAGE_O];
    for (uint32_t u = tk_stage_first(TK_STAGE_O, b, w->blocks); u < p->units; u += w->blocks) {
        const uint32_t k0 = p->slices * (u % p->cut) / p->cut, k1 = k0 + slices_of(p, u);
        put(l, WAIT, at_block(w, b, DRAINED), tk_stage_layer(s) + 1);
        put(l, ADD, at_block(w, b, BROUGHT), 1);
        for (uint32_t r = 0; r < w->att_rows; r++) {
            const uint32_t head = r % w->s.heads;
            if (w->s.lens[r / w->s.heads] > 0 && head * 2 < k1 && head * 2 + 2 > k0) {
                put(l, WAIT, at_part(s - 1, w->items + r), 1);
            }
        }
        put(l, HAS, at_block(w, b, X_FREE), *n);
        for (uint32_t k = k0; k < k1; k++) {
            fill_slot(l, at_block(w, b, X_PUT), at_block(w, b, X_FREE), n, X_STAGES);
        }
    }
}

static void list_scalers(const struct walk *w, uint32_t b, struct list *l)
{
    uint32_t n = 0, slots = 0;
    for (uint32_t s = 0; s < w->stages; s++) {
        const uint32_t kind = tk_stage_kind(s);
        if (kind == TK_STAGE_O && w->tagged) {
            list_bring(w, b, s, l, &slots);
        } else if (kind != TK_STAGE_ATTN) {
            slots += slices_here(w, kind, b);
        }
        if (is_scaled(w, s, b)) {
            put(l, WAIT, at_block(w, b, READY), ++n);
            put(l, ADD, at_block(w, b, SCALED), 1);
        }
    }
}

struct used {
    uint32_t w, x, scaled;
};

static uint32_t chunks_of(const struct walk *w, uint32_t seq)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->items; i += w->s.kv_heads) {
        n += item_seq(w, i) == seq;
    }
    return n;
}

static void list_row(const struct walk *w, uint32_t s, uint32_t row, struct list *l)
{
    put(l, ADD, at_part(s, w->items + row), 1);
    put(l, UNIT, s, w->items + row);
}

static void list_attend(const struct walk *w, uint32_t b, uint32_t s, struct list *l,
                        struct used *n)
{
    const uint32_t heads = w->s.heads, group = heads / w->s.kv_heads, kv = w->s.kv_heads;
    if (w->tagged && has_unit(w, TK_STAGE_O, b)) {
        put(l, ADD, at_block(w, b, DRAINED), 1);
    }
    if (has_item(w, b) && s > 0) {
        put(l, WAIT, at_block(w, b, SCALED), ++n->scaled);
    }
    for (uint32_t i = tk_stage_first(TK_STAGE_ATTN, b, w->blocks); i < w->items; i += w->blocks) {
        const uint32_t head = i % kv;
        for (uint32_t j = 0; j < group + 2 && s > 0; j++) { /* its heads' tiles, every part of K */
            const uint32_t tile = j < group ? head * group + j : heads + (j - group) * kv + head;
            for (uint32_t k = 0; k < w->p[TK_STAGE_QKV].cut; k++) {
                put(l, WAIT, at_part(s - 1, tile * w->p[TK_STAGE_QKV].cut + k), 1);
            }
        }
        for (uint32_t k = 0; k < item_slots(w, i); k++) {
            use_slot(l, at_block(w, b, W_PUT), at_block(w, b, W_FREE), &n->w);
        }
        put(l, ADD, at_part(s, i), 1);
        put(l, UNIT, s, i);
        for (uint32_t j = 0; j < group && chunks_of(w, item_seq(w, i)) == 1; j++) { /* whole rows */
            list_row(w, s, item_seq(w, i) * heads + head * group + j, l);
        }
    }
    for (uint32_t u = tk_stage_first_row(b, w->blocks); u < w->att_rows; u += w->blocks) {
        if (chunks_of(w, u / heads) == 1) {
            continue; /* waits for nobody */
        }
        for (uint32_t i = 0; i < w->items; i++) { /* the items of its sequence and KV head */
            if (item_seq(w, i) == u / heads && i % kv == u % heads / group) {
                put(l, WAIT, at_part(s, i), 1);
            }
        }
        list_row(w, s, u, l);
    }
    const bool has_row = tk_stage_first_row(b, w->blocks) < w->att_rows,
               tells = tk_stage_tells(w->tagged, has_item(w, b), has_row);
    if (tk_stage_keeps_step(tells, has_item(w, b), s)) {
        put(l, WAIT, at_done(TK_STAGE_DOWN), all_done(w, s - 2));
    }
    if (tells) {
        put(l, ADD, at_done(TK_STAGE_ATTN), 1);
    }
}

static void list_multiply(const struct walk *w, uint32_t b, uint32_t s, struct list *l,
                          struct used *n)
{
    const uint32_t kind = tk_stage_kind(s);
    const struct product *p = &w->p[kind];
    const bool summed = tk_stage_is_summed(kind, is_last(w, s));
    bool scaled = !summed || !is_scaled(w, s, b);
    for (uint32_t u = tk_stage_first(kind, b, w->blocks); u < p->units; u += w->blocks) {
        for (uint32_t k = 0; k < slices_of(p, u); k++) {
            use_slot(l, at_block(w, b, X_PUT), at_block(w, b, X_FREE), &n->x);
            use_slot(l, at_block(w, b, W_PUT), at_block(w, b, W_FREE), &n->w);
        }
        put(l, ADD, at_part(s, u), 1);
        if (!scaled) {
            put(l, WAIT, at_block(w, b, SCALED), ++n->scaled);
            scaled = true;
        }
        for (uint32_t k = 0; k < p->cut && summed; k++) { /* the parts of its tile */
            put(l, WAIT, at_part(s, u / p->cut * p->cut + k), 1);
        }
        put(l, UNIT, s, u);
    }
    if (has_unit(w, kind, b) && summed) {
        put(l, ADD, at_done(kind), 1);
    }
}

static void list_consume(const struct walk *w, uint32_t b, struct list *l)
{
    struct used n = {0, 0, 0};
    for (uint32_t s = 0; s < w->stages; s++) {
        if (tk_stage_kind(s) == TK_STAGE_ATTN) {
            list_attend(w, b, s, l, &n);
        } else {
            list_multiply(w, b, s, l, &n);
        }
    }
}

/* ---- the walk ---- */
static uint32_t units_of(const struct walk *w, uint32_t s)
{
    const uint32_t kind = tk_stage_kind(s);
    return kind == TK_STAGE_ATTN ? w->items + w->att_rows : w->p[kind].units;
}

static void do_op(struct walk *w, const struct op *o)
{
    switch (o->what) {
    case WAIT:
        break;
    case ADD:
        w->count[o->at] += o->value;
        /* a barrier's phases are told apart by one bit: nobody may be two ahead */
        if (o->at >= at_block(w, 0, 0)) {
            const uint32_t what = (o->at - at_block(w, 0, 0)) % BLOCK_COUNTS;
            assert_true(what != READY || w->count[o->at] <= w->count[o->at + SCALED - READY] + 1);
            assert_true(what != DRAINED || w->count[o->at] <= w->count[o->at + 1] + 1);
        }
        break;
    case UNIT:
        w->times[o->at * MOST_UNITS + o->value]++;
        break;
    case HAS:
        assert_true(w->count[o->at] >= o->value);
        break;
    case ALL_ENDED: /* whoever goes on relies on every unit of that stage */
        for (uint32_t u = 0; u < units_of(w, o->at); u++) {
            assert_int_equal(w->times[o->at * MOST_UNITS + u], 1);
        }
        break;
    }
}

/* Behind the step that lets the last block set the counts to zero: nobody waits for one or adds to it, however late it is. */
static void check_reset(const struct walk *w, const struct op *o, const struct list *l, uint32_t n)
{
    const uint32_t last = w->stages - 1;
    if (o->what != ADD || o->at != at_done(tk_stage_kind(last)) ||
        w->count[o->at] != all_done(w, last)) {
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = l[i].next; k < l[i].n; k++) {
            assert_true((l[i].op[k].what != WAIT && l[i].op[k].what != ADD) ||
                        l[i].op[k].at >= TK_STAGES);
        }
    }
}

static bool can(const struct walk *w, const struct op *o)
{
    return o->what != WAIT || w->count[o->at] >= o->value;
}

/* A block that has nothing but attention's rows: what it tells and waits for hangs together with nothing else. Or any. */
static uint32_t odd_block(const struct walk *w, uint64_t seed)
{
    for (uint32_t b = 0; b < w->blocks; b++) {
        bool alone = !has_item(w, b) && tk_stage_first_row(b, w->blocks) < w->att_rows;
        for (uint32_t kind = TK_STAGE_O; kind < TK_STAGES; kind++) {
            alone = alone && !has_unit(w, kind, b);
        }
        if (alone) {
            return b;
        }
    }
    return w->blocks > 0 ? (uint32_t)seed % w->blocks : 0;
}

/* Until nobody can go on, but block `late`, whose four lists begin then. most: what one may do before another has its turn. */
static void walk_lists(struct walk *w, struct list *l, uint32_t n, uint64_t seed, uint32_t most,
                       uint32_t late)
{
    bool moved = true;
    while (moved) {
        moved = false;
        for (uint32_t i = 0; i < n; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            const uint32_t at = (i + (uint32_t)(seed >> 40)) % n;
            struct list *x = &l[at];
            for (uint32_t k = 0;
                 at / 4 != late && k < most && x->next < x->n && can(w, &x->op[x->next]); k++) {
                do_op(w, &x->op[x->next]);
                check_reset(w, &x->op[x->next++], l, n);
                moved = true;
            }
        }
        for (uint32_t i = 0; i < n && !moved; i++) { /* chance may have missed one */
            moved = i / 4 != late && l[i].next < l[i].n && can(w, &l[i].op[l[i].next]);
        }
        if (!moved && late < w->blocks) {
            moved = true;
            late = w->blocks;
        }
    }
}

static void plan(struct walk *w, const struct shape *s, uint32_t blocks, bool with_qkv)
{
    const uint32_t qkv = (s->heads + 2 * s->kv_heads) * 128;
    const uint32_t n[TK_STAGES] = {0, s->hid, 2 * s->ffn, s->hid, qkv};
    const uint32_t k[TK_STAGES] = {0, s->heads * 128, s->hid, s->ffn, s->hid};
    uint32_t entries = 0;
    memset(w, 0, sizeof *w);
    w->s = *s;
    w->blocks = blocks;
    w->stages = TK_STAGES * MOST - (with_qkv ? 0 : 1);
    assert_int_equal(tk_plan_window_host(s->lens, s->rows, s->window, w->entry,
                                         sizeof w->entry / sizeof w->entry[0], &entries),
                     TD_OK);
    w->items = entries * s->kv_heads;
    w->att_rows = s->rows * s->heads;
    for (uint32_t kind = 1; kind < TK_STAGES; kind++) {
        struct product *p = &w->p[kind];
        p->tiles = (n[kind] + TK_FLAT_ROWS - 1) / TK_FLAT_ROWS;
        p->slices = k[kind] / 64;
        p->cut = cut_of(p->tiles, k[kind], kind != TK_STAGE_GATE_UP);
        p->units = p->tiles * p->cut;
        assert_true(kind == TK_STAGE_GATE_UP || p->units <= blocks);
    }
    assert_true(w->items <= TK_LAYERS_ITEMS && w->items + w->att_rows <= MOST_UNITS);
    w->n_counts = at_block(w, blocks, 0);
    w->count = calloc(w->n_counts, sizeof *w->count);
    w->times = calloc((size_t)w->stages * MOST_UNITS, sizeof *w->times);
    assert_true(w->count != NULL && w->times != NULL);
}

static void check_ended(const struct walk *w, const struct list *l, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(l[i].next, l[i].n);
    }
    for (uint32_t s = 0; s < w->stages; s++) {
        for (uint32_t u = 0; u < units_of(w, s); u++) {
            assert_int_equal(w->times[s * MOST_UNITS + u], 1);
        }
    }
    /* the last block of the last stage finds every count where it sets them to zero */
    assert_int_equal(w->count[at_done(tk_stage_kind(w->stages - 1))], all_done(w, w->stages - 1));
    for (uint32_t s = w->stages - TK_STAGES; s < w->stages; s++) {
        const uint32_t kind = tk_stage_kind(s);
        if (tk_stage_is_summed(kind, is_last(w, s)) && !(w->tagged && kind == TK_STAGE_ATTN)) {
            assert_int_equal(w->count[at_done(kind)], all_done(w, s));
        }
    }
    for (uint32_t b = 0; b < w->blocks;
         b++) { /* what was brought was used, and what was scaled was met */
        assert_int_equal(w->count[at_block(w, b, W_PUT)], w->count[at_block(w, b, W_FREE)]);
        assert_int_equal(w->count[at_block(w, b, X_PUT)], w->count[at_block(w, b, X_FREE)]);
        assert_int_equal(w->count[at_block(w, b, READY)], w->count[at_block(w, b, SCALED)]);
    }
}

static void check(const struct shape *s, uint32_t blocks, bool with_qkv, uint64_t seed)
{
    struct walk *w = malloc(sizeof *w);
    assert_non_null(w);
    plan(w, s, blocks, with_qkv);
    w->tagged = w->items != 0 && tk_layers_are_tagged(s->rows, s->heads);
    const uint32_t n = 4 * blocks;
    struct list *l = calloc(n, sizeof *l);
    assert_non_null(l);
    for (uint32_t b = 0; b < blocks; b++) {
        list_load_w(w, b, &l[4 * b]);
        list_load_x(w, b, &l[4 * b + 1]);
        list_scalers(w, b, &l[4 * b + 2]);
        list_consume(w, b, &l[4 * b + 3]);
    }
    walk_lists(w, l, n, seed, seed % 2 == 0 ? 1 : 50, odd_block(w, seed));
    check_ended(w, l, n);
    for (uint32_t i = 0; i < n; i++) {
        free(l[i].op);
    }
    free(l), free(w->count), free(w->times), free(w);
}

static void every_order_of_events_ends_and_computes_all_of_it_once(void **state)
{
    static const struct shape shapes[] = {
        {4096, 32, 8, 14336, 1, 0, {1024}}, /* Llama-3-8B's */
        {4096, 32, 8, 14336, 1, 0, {1}},
        {4096, 32, 8, 14336, 1, 0, {8192}},
        {4096, 32, 8, 14336, 1, 4096, {8192}},
        {4096, 32, 8, 14336, 2, 0, {1024, 1024}},
        {4096, 32, 8, 14336, 4, 0, {1024, 1, 300, 1024}},
        {4096, 32, 8, 14336, 8, 0, {1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024}},
        {4096, 32, 8, 14336, 3, 0, {700, 0, 17}},
        {4096, 32, 8, 14336, 2, 0, {0, 0}},
        {4096, 32, 8, 12288, 1, 0, {1024}},  /* Qwen3-8B's */
        {3584, 28, 4, 18944, 1, 0, {1024}},  /* Qwen2.5-7B's */
        {2048, 72, 9, 2816, 2, 0, {700, 5}}, /* too many heads for tags */
        {1024, 8, 2, 2816, 3, 0, {5, 900, 2100}},
        {1024, 8, 2, 2048, 8, 0, {5, 257, 29, 43, 57, 0, 85, 99}}, /* blocks with rows alone */
        {1024, 64, 8, 1024, 2, 0, {200, 17}},                      /* the same, tagged */
        {256, 2, 1, 576, 1, 0, {300}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        check(&shapes[i], 132, false, 1);
        check(&shapes[i], 132, true, 2);
        check(&shapes[i], 144, true, 3); /* blocks without any unit of most products */
    }
}

static void fewer_blocks_than_units_of_a_wide_product_take_turns(void **state)
{
    static const struct shape s = {512, 4, 2, 1472, 3, 0, {1, 700, 300}};
    (void)state;
    for (uint32_t blocks = 16; blocks < 40; blocks += 5) {
        check(&s, blocks, false, blocks);
        check(&s, blocks, true, blocks + 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_order_of_events_ends_and_computes_all_of_it_once),
        cmocka_unit_test(fewer_blocks_than_units_of_a_wide_product_take_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
