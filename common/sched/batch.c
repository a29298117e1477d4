#include "common/sched/batch.h"

#include <stddef.h>

#include "common/base/assert.h"

/* What is left of a step while it is planned. */
struct room {
    struct td_batch_row *out;
    uint32_t n, rows, tokens;
};

bool td_batch_init(struct td_batch *b, const struct td_batch_params *p)
{
    if (p->unit_tok == 0 || p->chunk_tok < p->unit_tok || p->chunk_tok % p->unit_tok != 0 ||
        p->max_tokens < p->unit_tok || p->max_rows == 0) {
        return false;
    }
    *b = (struct td_batch){.p = *p};
    return true;
}

/* Inserts `it` before `at`; NULL: at the end. */
static void insert(struct td_batch_list *l, struct td_batch_item *it, struct td_batch_item *at)
{
    it->next = at;
    it->prev = at != NULL ? at->prev : l->last;
    *(it->prev != NULL ? &it->prev->next : &l->first) = it;
    *(at != NULL ? &at->prev : &l->last) = it;
    l->n++;
}

static void unlink_item(struct td_batch_list *l, struct td_batch_item *it)
{
    *(it->prev != NULL ? &it->prev->next : &l->first) = it->next;
    *(it->next != NULL ? &it->next->prev : &l->last) = it->prev;
    it->prev = it->next = NULL;
    l->n--;
}

/* Started prompts come before new ones: their receivers wait with a stall clock. */
static bool before(const struct td_batch_item *a, const struct td_batch_item *b)
{
    if (a->started != b->started) {
        return a->started;
    }
    return a->key != b->key ? a->key < b->key : a->number < b->number;
}

void td_batch_join_prefill(struct td_batch *b, struct td_batch_item *it, int64_t key,
                           uint64_t number, uint32_t n_tok)
{
    TD_REQUIRE(it->kind == TD_BATCH_OUT && n_tok > 0);
    *it = (struct td_batch_item){
        .kind = TD_BATCH_PREFILL, .key = key, .number = number, .todo_tok = n_tok};
    struct td_batch_item *at = b->prefill.first;
    while (at != NULL && !before(it, at)) {
        at = at->next;
    }
    insert(&b->prefill, it, at);
    b->todo_tok += n_tok;
}

void td_batch_join_decode(struct td_batch *b, struct td_batch_item *it)
{
    TD_REQUIRE(it->kind == TD_BATCH_OUT);
    *it = (struct td_batch_item){.kind = TD_BATCH_DECODE};
    insert(&b->decode, it, NULL);
}

void td_batch_leave(struct td_batch *b, struct td_batch_item *it)
{
    if (it->kind == TD_BATCH_PREFILL) {
        b->todo_tok -= it->todo_tok;
        unlink_item(&b->prefill, it);
    } else if (it->kind == TD_BATCH_DECODE) {
        unlink_item(&b->decode, it);
    }
    it->kind = TD_BATCH_OUT;
}

static void add_row(struct room *r, struct td_batch_item *it, uint32_t n, bool last)
{
    r->out[r->n++] = (struct td_batch_row){it, n, last, it->kind};
    r->rows--;
    r->tokens -= n;
}

/* Decode rows from the front of the list; who was served moves to its end, so that those left out
 * are first in the next step. */
static void plan_decode(struct td_batch *b, struct room *r, uint32_t kept_rows,
                        uint32_t kept_tokens)
{
    uint32_t n = b->decode.n;
    struct td_batch_item *it = b->decode.first;
    while (n-- > 0 && r->rows > kept_rows && r->tokens > kept_tokens) {
        struct td_batch_item *next = it->next;
        if (!it->held) {
            add_row(r, it, 1, false);
            unlink_item(&b->decode, it);
            insert(&b->decode, it, NULL);
        }
        it = next;
    }
}

/* Tokens of the prompt that fit: all of it, or a multiple of the unit. */
static uint32_t chunk_of(const struct td_batch *b, const struct td_batch_item *it, uint32_t room)
{
    uint32_t n = it->todo_tok < b->p.chunk_tok ? it->todo_tok : b->p.chunk_tok;
    if (n > room) {
        n = room;
    }
    return n == it->todo_tok ? n : n / b->p.unit_tok * b->p.unit_tok;
}

static void plan_prefill(struct td_batch *b, struct room *r)
{
    struct td_batch_item *it = b->prefill.first;
    while (it != NULL && r->rows > 0 && r->tokens > 0) {
        struct td_batch_item *next = it->next;
        uint32_t n = chunk_of(b, it, r->tokens);
        if (n > 0) {
            bool last = n == it->todo_tok;
            add_row(r, it, n, last);
            it->started = true;
            it->todo_tok -= n;
            b->todo_tok -= n;
            if (last) {
                td_batch_leave(b, it);
            }
        }
        it = next;
    }
}

uint32_t td_batch_plan(struct td_batch *b, struct td_batch_row *out, uint32_t cap)
{
    struct room r = {
        .out = out, .rows = cap < b->p.max_rows ? cap : b->p.max_rows, .tokens = b->p.max_tokens};
    bool prompts = b->prefill.n > 0;
    uint32_t kept_rows = prompts && r.rows > 1 ? 1 : 0;
    uint32_t kept_tokens = prompts && b->p.max_tokens > b->p.unit_tok ? b->p.unit_tok : 0;
    plan_decode(b, &r, kept_rows, kept_tokens);
    plan_prefill(b, &r);
    return r.n;
}
