/* Design: a work's number is its counter in work ids and what the service calls it by; the low bits are its slot. Words wait in one
 * ring, in order: the role speaks while its actions are carried out, when nobody may feed it; the driver fetches them after. */
#define TD_LOG_ROOM "node"
#include "common/node/local.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"

#define SLOT_BITS 12
_Static_assert(1u << SLOT_BITS == ND_LOCAL_MAX_WORKS, "a work's number names its slot");

struct work {
    uint64_t ref;                   /* 0: free */
    const struct nd_local_ops *ops; /* NULL: detached */
    void *arg;
    enum nd_local_mode mode;
    bool ended; /* its END waits to be fetched */
    enum td_finish finish;
    uint32_t n_tokens; /* said so far */
    /* HOLD: what its hand-off says. */
    uint8_t nonce[16];
    uint32_t n_prompt;
    uint64_t prompt_hash, seed;
    char text[TD_WIRE_MAX_NAME];
    struct nd_local_end end;
};

struct word {
    uint8_t type;
    uint64_t ref;
    struct nd_local_token token;
};

struct nd_local {
    struct nd_local_params p;
    uint8_t *address;   /* owned */
    struct work *works; /* owned [ND_LOCAL_MAX_WORKS] */
    uint32_t *spare;    /* owned: free slots, a stack */
    uint32_t n_works;
    uint64_t number;    /* of the last work */
    struct word *words; /* owned [cap_words], a ring */
    uint32_t cap_words, first_word, n_words;
    char said[TD_WIRE_MAX_NAME]; /* text of the word that was fetched last */
    struct td_handoff handoff;   /* the same */
};

td_err nd_local_create(const struct nd_local_params *p, struct nd_local **out_local)
{
    TD_REQUIRE(p->epoch != 0 && p->node_epoch != 0 && p->address_len <= TD_WIRE_MAX_ADDR);
    struct nd_local *l = td_zalloc(1, sizeof *l);
    if (l == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    l->p = *p;
    l->cap_words = p->max_tokens + 2 * ND_LOCAL_MAX_WORKS; /* and for each work HELD and END */
    l->address = td_zalloc(1, p->address_len + 1);
    l->works = td_zalloc(ND_LOCAL_MAX_WORKS, sizeof *l->works);
    l->spare = td_zalloc(ND_LOCAL_MAX_WORKS, sizeof *l->spare);
    l->words = td_zalloc(l->cap_words, sizeof *l->words);
    if (l->address == NULL || l->works == NULL || l->spare == NULL || l->words == NULL) {
        (void)nd_local_destroy(l);
        return TD_ERR_NO_MEMORY;
    }
    if (p->address_len > 0) {
        memcpy(l->address, p->address, p->address_len);
    }
    l->p.address = l->address;
    for (uint32_t i = 0; i < ND_LOCAL_MAX_WORKS; i++) {
        l->spare[i] = ND_LOCAL_MAX_WORKS - 1 - i;
    }
    *out_local = l;
    return TD_OK;
}

struct nd_local *nd_local_destroy(struct nd_local *l)
{
    if (l != NULL) {
        free(l->address);
        free(l->works);
        free(l->spare);
        free(l->words);
        free(l);
    }
    return NULL;
}

uint64_t nd_local_epoch(const struct nd_local *l)
{
    return l->p.epoch;
}

uint32_t nd_local_count(const struct nd_local *l)
{
    return l->n_works;
}

static struct work *find(const struct nd_local *l, uint64_t ref)
{
    struct work *w = &l->works[ref & (ND_LOCAL_MAX_WORKS - 1)];
    return ref != 0 && w->ref == ref ? w : NULL;
}

uint64_t nd_local_prompt_hash(const int32_t *prompt, uint32_t n)
{
    uint64_t h = n;
    for (uint32_t i = 0; i < n; i++) {
        h = td_mix64(h ^ (uint32_t)prompt[i]) + 0x9e3779b97f4a7c15ull;
    }
    return h;
}

static struct td_work_id id_of(const struct nd_local *l, uint64_t ref)
{
    return (struct td_work_id){.router_epoch = l->p.epoch, .counter = ref};
}

/* ---- from the service ---- */

static const char *or_empty(const char *s)
{
    return s != NULL ? s : "";
}

/* What a decode node can know of a hand-off without asking; prefill judges the rest. */
static td_err check_handoff(const struct nd_local *l, const struct nd_local_request *r)
{
    const struct td_handoff *h = r->handoff;
    if (h == NULL || h->p_epoch == 0 || h->id.router_epoch == 0 || h->hold_ms == 0 ||
        h->address_len == 0 || h->address_len > TD_WIRE_MAX_ADDR) {
        return TD_ERR_BAD_REQUEST;
    }
    if (h->layout_id != l->p.layout_id || h->numerics_id != l->p.numerics_id) {
        return TD_ERR_PEER_MODEL;
    }
    bool same = h->n_prompt == r->n_prompt &&
                h->prompt_hash == nd_local_prompt_hash(r->prompt, r->n_prompt);
    return same ? TD_OK : TD_ERR_BAD_REQUEST;
}

static td_err check(const struct nd_local *l, const struct nd_local_request *r)
{
    static const enum td_role serves[] = {
        [ND_LOCAL_WHOLE] = TD_ROLE_BOTH,
        [ND_LOCAL_HOLD] = TD_ROLE_PREFILL,
        [ND_LOCAL_TAKE] = TD_ROLE_DECODE,
    };
    if (serves[r->mode] != l->p.role) {
        return TD_ERR_UNSUPPORTED;
    }
    if (r->prompt == NULL || r->n_prompt == 0 || r->budget_ms == 0) {
        return TD_ERR_BAD_REQUEST;
    }
    if (r->mode == ND_LOCAL_TAKE) {
        TD_TRY(check_handoff(l, r));
    }
    return l->n_works < ND_LOCAL_MAX_WORKS ? TD_OK : TD_ERR_OVERLOADED;
}

static struct td_wire_request request_of(const struct nd_local *l, const struct nd_local_request *r,
                                         uint64_t ref)
{
    return (struct td_wire_request){.id = id_of(l, ref),
                                    .budget_ms = r->budget_ms,
                                    .priority = r->priority,
                                    .tenant = "",
                                    .traceparent = or_empty(r->traceparent),
                                    .request_id = or_empty(r->request_id),
                                    .adapter = "",
                                    .tracestate = or_empty(r->tracestate),
                                    .kv_group = l->p.kv_group,
                                    .numerics_id = l->p.numerics_id,
                                    .layout_id = l->p.layout_id,
                                    .prompt = r->prompt,
                                    .n_prompt = r->n_prompt,
                                    .sampling = r->sampling};
}

/* Whoever knows the nonce is the pair: no decode node is named. */
static void fill_hold(const struct nd_local *l, struct work *w, const struct nd_local_request *r,
                      const uint8_t nonce[16], struct td_wire_msg *m)
{
    memcpy(w->nonce, nonce, sizeof w->nonce);
    w->n_prompt = r->n_prompt;
    w->prompt_hash = nd_local_prompt_hash(r->prompt, r->n_prompt);
    w->seed = r->sampling.seed;
    *m = (struct td_wire_msg){.type = TD_WIRE_PREFILL};
    m->prefill =
        (struct td_wire_prefill){.r = request_of(l, r, w->ref),
                                 .ticket = {.p_epoch = l->p.node_epoch, .life_ms = l->p.hold_ms},
                                 .decode_node = "",
                                 .hold_ms = l->p.hold_ms};
    memcpy(m->prefill.ticket.nonce, nonce, sizeof m->prefill.ticket.nonce);
}

static void fill_take(const struct nd_local *l, const struct work *w,
                      const struct nd_local_request *r, struct td_wire_msg *m)
{
    const struct td_handoff *h = r->handoff;
    *m = (struct td_wire_msg){.type = TD_WIRE_RESERVE};
    m->reserve = (struct td_wire_reserve){
        .r = request_of(l, r, w->ref),
        .mode = TD_RESERVE_REMOTE,
        .ticket = {.p_epoch = h->p_epoch, .d_epoch = l->p.node_epoch, .life_ms = h->hold_ms},
        .prefill_node = "",
        .p_address = h->address,
        .p_address_len = h->address_len,
        .held = h->id};
    memcpy(m->reserve.ticket.nonce, h->nonce, sizeof m->reserve.ticket.nonce);
    m->reserve.r.sampling.seed = h->seed; /* the first token was drawn with it */
}

static void fill_whole(const struct nd_local *l, const struct work *w,
                       const struct nd_local_request *r, struct td_wire_msg *m)
{
    *m = (struct td_wire_msg){.type = TD_WIRE_RESERVE};
    m->reserve = (struct td_wire_reserve){
        .r = request_of(l, r, w->ref), .mode = TD_RESERVE_LOCAL, .prefill_node = ""};
}

td_err nd_local_submit(struct nd_local *l, const struct nd_local_request *r,
                       const uint8_t nonce[16], const struct nd_local_ops *ops, void *arg,
                       uint64_t *out_ref, struct td_wire_msg *out_msg)
{
    TD_REQUIRE(ops != NULL);
    TD_TRY(check(l, r));
    uint32_t i = l->spare[ND_LOCAL_MAX_WORKS - 1 - l->n_works++];
    uint64_t ref = ++l->number << SLOT_BITS | i;
    l->works[i] = (struct work){.ref = ref, .ops = ops, .arg = arg, .mode = r->mode};
    if (r->mode == ND_LOCAL_HOLD) {
        fill_hold(l, &l->works[i], r, nonce, out_msg);
    } else if (r->mode == ND_LOCAL_TAKE) {
        fill_take(l, &l->works[i], r, out_msg);
    } else {
        fill_whole(l, &l->works[i], r, out_msg);
    }
    *out_ref = ref;
    return TD_OK;
}

bool nd_local_cancel(const struct nd_local *l, uint64_t ref, struct td_wire_msg *out_msg)
{
    const struct work *w = find(l, ref);
    if (w == NULL || w->ended) {
        return false;
    }
    *out_msg = (struct td_wire_msg){.type = TD_WIRE_CANCEL};
    out_msg->cancel = (struct td_wire_cancel){.id = id_of(l, ref), .reason = TD_ERR_CANCELLED};
    return true;
}

void nd_local_detach(struct nd_local *l, uint64_t ref)
{
    struct work *w = find(l, ref);
    if (w != NULL) {
        w->ops = NULL;
    }
}

/* ---- from the role ---- */

static void say(struct nd_local *l, const struct word *x)
{
    TD_INSIST(l->n_words < l->cap_words);
    l->words[(l->first_word + l->n_words++) % l->cap_words] = *x;
}

/* A work of ours that still runs; anything else the role says late. */
static struct work *of_id(const struct nd_local *l, const struct td_work_id *id)
{
    struct work *w = id->router_epoch == l->p.epoch ? find(l, id->counter) : NULL;
    return w != NULL && !w->ended ? w : NULL;
}

/* A role may repeat a token, never leave one out. */
static void take_token(struct nd_local *l, const struct td_wire_token *t)
{
    struct work *w = of_id(l, &t->id);
    if (w == NULL || t->index < w->n_tokens) {
        return;
    }
    w->n_tokens = t->index + 1;
    w->finish = t->finish;
    say(l, &(struct word){.type = ND_LOCAL_TOKEN,
                          .ref = w->ref,
                          .token = {.index = t->index,
                                    .token = t->token,
                                    .logprob = t->logprob,
                                    .finish = t->finish}});
    if (w->mode == ND_LOCAL_HOLD) { /* the role parks the KV in the event of its token */
        say(l, &(struct word){.type = ND_LOCAL_HELD, .ref = w->ref});
    }
}

static void take_end(struct nd_local *l, const struct td_wire_end *e)
{
    struct work *w = of_id(l, &e->id);
    if (w == NULL) {
        return;
    }
    w->ended = true;
    (void)snprintf(w->text, sizeof w->text, "%s", e->text);
    w->end = (struct nd_local_end){
        .err = e->err, .finish = e->err == TD_OK ? w->finish : TD_FINISH_NONE, .stages = e->stages};
    w->end.stages.transport = e->stages.transport != NULL ? e->stages.transport : "";
    say(l, &(struct word){.type = ND_LOCAL_END, .ref = w->ref});
}

void nd_local_take(struct nd_local *l, const struct td_wire_msg *m)
{
    if (m->type == TD_WIRE_END) {
        take_end(l, &m->end);
    } else if (m->type == TD_WIRE_TOKENS) {
        for (uint32_t i = 0; i < m->tokens.n; i++) {
            take_token(l, &m->tokens.tokens[i]);
        }
    }
}

static void forget(struct nd_local *l, struct work *w)
{
    l->spare[ND_LOCAL_MAX_WORKS - l->n_works--] = (uint32_t)(w - l->works);
    w->ref = 0;
}

static void fill_handoff(struct nd_local *l, const struct work *w)
{
    l->handoff = (struct td_handoff){.p_epoch = l->p.node_epoch,
                                     .id = id_of(l, w->ref),
                                     .hold_ms = l->p.hold_ms,
                                     .n_prompt = w->n_prompt,
                                     .prompt_hash = w->prompt_hash,
                                     .layout_id = l->p.layout_id,
                                     .numerics_id = l->p.numerics_id,
                                     .seed = w->seed,
                                     .address_len = l->p.address_len};
    memcpy(l->handoff.nonce, w->nonce, sizeof w->nonce);
    memcpy(l->handoff.address, l->address, l->p.address_len);
}

/* Fills the word; false when its work is detached. */
static bool fill(struct nd_local *l, const struct word *x, struct nd_local_word *out)
{
    struct work *w = find(l, x->ref);
    TD_INSIST(w != NULL);
    *out = (struct nd_local_word){.ops = w->ops, .arg = w->arg, .ref = x->ref};
    if (x->type == ND_LOCAL_END) {
        out->type = ND_LOCAL_END;
        out->end = w->end;
        memcpy(l->said, w->text, sizeof l->said); /* the slot may get its next work */
        out->end.text = l->said;
        forget(l, w);
    } else if (x->type == ND_LOCAL_HELD) {
        fill_handoff(l, w);
        out->type = ND_LOCAL_HELD;
        out->handoff = &l->handoff;
    } else {
        out->type = ND_LOCAL_TOKEN;
        out->token = x->token;
    }
    return out->ops != NULL;
}

bool nd_local_next(struct nd_local *l, struct nd_local_word *out)
{
    while (l->n_words > 0) {
        struct word x = l->words[l->first_word];
        l->first_word = (l->first_word + 1) % l->cap_words;
        l->n_words--;
        if (fill(l, &x, out)) {
            return true;
        }
    }
    return false;
}

td_err nd_local_check(const struct nd_local *l)
{
    uint32_t used = 0;
    uint32_t ended = 0;
    for (uint32_t i = 0; i < ND_LOCAL_MAX_WORKS; i++) {
        const struct work *w = &l->works[i];
        used += w->ref != 0;
        ended += w->ref != 0 && w->ended;
    }
    if (used != l->n_works || ended > l->n_words) {
        TD_LOG(ERROR, "local works do not add up", "used=%u kept=%u ended=%u words=%u", used,
               l->n_works, ended, l->n_words);
        return TD_ERR_INTERNAL;
    }
    return TD_OK;
}
