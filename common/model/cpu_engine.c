/* cpu_engine.c - the CPU backend's life: making, checking and queueing steps, the engine thread. */
#include "common/model/cpu_engine.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/thread.h"
#define TD_LOG_ROOM "model"
#include "common/base/log.h"
#include "common/model/cpu_engine_ranks.h"

#define MAP_FROM      (256u * 1024) /* bytes from which memory is mapped, lazily zero */
#define MAX_ROWS      65536u
#define MAX_TOKENS    (1024u * 1024)
#define NUMERICS_INT8 "cpu-int8-v1"
#define NUMERICS_F32  "cpu-f32-v1"

static struct td__ce *of(const struct td_engine *base)
{
    struct td__ce *e = (struct td__ce *)(uintptr_t)base;
    TD_REQUIRE(e != NULL && e->magic == TD__CE_MAGIC);
    return e;
}

void *td__ce_alloc(struct td__ce *e, size_t bytes)
{
    void *p;
    TD_INSIST(e->n_owned < TD__CE_MAX_OWNED);
    if (bytes < MAP_FROM) {
        p = td_zalloc_aligned(64, bytes > 0 ? bytes : 64);
    } else {
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        p = p == MAP_FAILED ? NULL : p;
        if (p != NULL) {
            (void)madvise(p, bytes, MADV_HUGEPAGE); /* a wish: fewer TLB misses */
        }
    }
    if (p != NULL) {
        e->owned[e->n_owned].p = p;
        e->owned[e->n_owned++].bytes = bytes < MAP_FROM ? 0 : bytes;
    }
    return p;
}

/* --- steps: loop side --- */

static td_err submit_step(struct td__ce *e, const struct td_row *rows, size_t n_rows,
                          float *all_logits, td_ticket *out)
{
    if (td__ce_helps(e)) {
        return TD_ERR_UNSUPPORTED;
    }
    TD_TRY(td_steps_submit(&e->q, rows, n_rows, all_logits, out));
    atomic_fetch_add(&e->kick, 1); /* seq_cst: orders the step against a sleeping engine thread */
    td_team_wake(&e->kick, &e->kick_sleepers);
    return TD_OK;
}

static td_err ce_poll(struct td_engine *base, struct td_step_result *out)
{
    return td_steps_poll(&of(base)->q, out);
}

static uint32_t ce_layers_done(struct td_engine *base, td_ticket ticket)
{
    return td_steps_layers_done(&of(base)->q, ticket);
}

static td_err ce_submit(struct td_engine *base, const struct td_row *rows, size_t n_rows,
                        td_ticket *out)
{
    return submit_step(of(base), rows, n_rows, NULL, out);
}

static td_err ce_seq_set(struct td_engine *base, uint32_t slot, const struct td_sampling_state *s)
{
    return td_steps_slot_set(&of(base)->q, slot, s);
}

static const struct td_engine_info *ce_info(const struct td_engine *base)
{
    return &of(base)->info;
}

static int ce_event_fd(const struct td_engine *base)
{
    return of(base)->q.event_fd;
}

static int ce_layer_fd(const struct td_engine *base)
{
    return of(base)->q.layer_fd;
}

static void *ce_pool_base(const struct td_engine *base)
{
    const struct td__ce *e = of(base);
    return td__ce_helps(e) ? NULL : e->pool; /* a helping rank's has another layout */
}

td_err td_cpu_engine_farewell(const struct td_engine *base)
{
    const struct td__ce *e = of(base);
    return e->ranks != NULL ? (td_err)atomic_load(&e->ranks->farewell) : TD_ERR_AGAIN;
}

/* --- steps: engine side --- */

static bool resolve_token(const struct td__ce *e, struct td_step *s, uint32_t r)
{
    const struct td_step_row *row = &s->rows[r];
    if (!row->from_engine) {
        return true;
    }
    const struct td_sample_slot *slot = &e->q.slots[row->sampling];
    s->tokens[row->token0] = slot->last;
    return slot->has_last;
}

static void drop_failed(struct td__ce *e, struct td_step *s)
{
    for (uint32_t r = 0; r < s->n_rows; r++) {
        struct td_step_row *row = &s->rows[r];
        if (row->live && (!resolve_token(e, s, r) || TD_FAULT(STEP_FAIL))) {
            row->live = false;
            s->results[r].err = TD_ERR_SEQ_FAILED;
            if (row->sampling != TD_NO_SAMPLE) {
                e->q.slots[row->sampling].has_last = false;
            }
        }
    }
}

void td__ce_lay_out(struct td__ce *e, struct td_step *s)
{
    uint32_t n_tok = 0;
    e->n_sample = 0;
    for (uint32_t r = 0; r < s->n_rows; r++) {
        struct td_step_row *row = &s->rows[r];
        if (!row->live) {
            continue;
        }
        memmove(s->tokens + n_tok, s->tokens + row->token0, row->n * sizeof *s->tokens);
        row->token0 = n_tok;
        for (uint32_t i = 0; i < row->n; i++) {
            e->tok_row[n_tok++] = r;
        }
        if (row->sampling != TD_NO_SAMPLE) {
            e->sample_rows[e->n_sample++] = r;
        }
    }
    s->n_tok = n_tok;
    e->running = s;
    td__ce_attn_plan(e);
    if (e->ranks != NULL) {
        td__ce_list_landed(e);
    }
}

static void execute(struct td__ce *e, struct td_step *s)
{
    int64_t start = td_now_us();
    TD_FAULT_DELAY(STEP_PAUSE);
    drop_failed(e, s);
    e->every_logit = s->all_logits != NULL;
    td__ce_lay_out(e, s);
    if (e->ranks != NULL && s->n_tok > 0) {
        td__ce_tell(e);
    }
    if (s->n_tok > 0 && !td__ce_over(e)) {
        td_team_sync(&e->team, NULL, NULL); /* lets the helpers in */
        td__ce_run(e, 0);
    }
    if (td__ce_over(e)) {
        return; /* not finished, and no step after it will be */
    }
    s->exec_us = td_now_us() - start;
    td_steps_finish(&e->q, s);
}

/* Takes steps until the engine is stopped or its group over. */
static void lead(struct td__ce *e)
{
    for (uint32_t taken = 0; !td__ce_over(e);) {
        uint32_t kick = atomic_load(&e->kick);
        struct td_step *s = td_steps_take(&e->q, taken);
        if (s != NULL) {
            taken++;
            execute(e, s);
        } else if (atomic_load(&e->stop)) {
            break;
        } else {
            td_team_wait(&e->kick, kick, &e->kick_sleepers, e->team.spins);
        }
    }
}

/* A helping rank runs what rank 0 tells. */
static void follow(struct td__ce *e)
{
    while (!td__ce_over(e) && td__ce_hear(e)) {
        td_team_sync(&e->team, NULL, NULL);
        td__ce_run(e, 0);
    }
}

static void *engine_main(void *arg)
{
    struct td__ce *e = arg;
    td_thread_enter(&td_engine_role, "engine");
    if (td__ce_helps(e)) {
        follow(e);
    } else {
        lead(e);
    }
    if (e->ranks != NULL) {
        td__ce_part(e);
    }
    e->running = NULL; /* helpers leave */
    td_team_sync(&e->team, NULL, NULL);
    return NULL;
}

struct helper {
    struct td__ce *e;
    uint32_t member;
};

static void *helper_main(void *arg)
{
    struct helper h = *(struct helper *)arg;
    free(arg);
    td_thread_enter(&td_engine_role, "engine-help");
    for (;;) {
        td_team_sync(&h.e->team, NULL, NULL);
        if (h.e->running == NULL) {
            return NULL;
        }
        td__ce_run(h.e, h.member);
    }
}

/* --- life --- */

/* Hands out pieces of one allocation; with base NULL it only adds up. */
struct carver {
    uint8_t *base;
    size_t at;
};

static void *carve(struct carver *c, size_t count, size_t size)
{
    void *p = c->base != NULL ? c->base + c->at : NULL;
    c->at += (count * size + 63) / 64 * 64;
    return p;
}

static struct tk_act carve_act(const struct td__ce *e, struct carver *c, uint32_t rows, uint32_t k)
{
    size_t padded = ((size_t)rows + TK_PANEL - 1) / TK_PANEL * TK_PANEL;
    struct tk_act a = {.k = k};
    if (e->f32) {
        a.x = carve(c, padded * k, sizeof *a.x);
    } else {
        a.q = carve(c, padded * k, 1);
        a.b = carve(c, padded * k / TK_QK, sizeof *a.b);
    }
    return a;
}

static void carve_member(const struct td__ce *e, struct carver *c, struct td__ce_member *me)
{
    size_t v = TD__CE_TILE_QUERIES, f = sizeof(float), vocab = e->info.n_vocab;
    me->attn = carve(c, tk_attn_scratch(e->dim, TD__CE_TILE_QUERIES), f);
    me->q = carve(c, v * e->dim, f);
    me->m = carve(c, v, f);
    me->l = carve(c, v, f);
    me->o = carve(c, v * e->dim, f);
    me->sm = carve(c, v, f);
    me->sl = carve(c, v, f);
    me->so = carve(c, v * e->dim, f);
    me->gate = carve(c, TD__CE_GATE_ROWS * TK_QK, f);
    me->up = carve(c, TD__CE_GATE_ROWS * TK_QK, f);
    me->norm = carve(c, e->embd, f);
    me->weights = carve(c, vocab, f);
    me->adjusted = carve(c, vocab, f);
    me->order = carve(c, vocab, sizeof *me->order);
    me->count = carve(c, vocab, sizeof *me->count);
}

static void carve_all(struct td__ce *e, struct carver *c)
{
    const struct td_hparams *hp = &e->model->hp;
    size_t f = sizeof(float), tok = e->info.max_tokens;
    size_t parts =
        (size_t)TD__CE_SPLIT_ROWS * e->n_heads * ((e->info.max_model_len - 1) / TK_CHUNK_TOK + 1);
    e->x = carve(c, tok * e->embd, f);
    e->qkv = carve(c, tok * e->qkv_width, f);
    e->att = carve(c, tok * e->q_width, f);
    e->act_embd = carve_act(e, c, e->info.max_tokens, e->embd);
    e->act_att = carve_act(e, c, e->info.max_tokens, hp->n_heads * e->dim);
    e->act_ffn = carve_act(e, c, e->info.max_tokens, hp->n_ffn);
    e->act_head = carve_act(e, c, 2 * e->info.max_rows, e->embd);
    e->logits = td__ce_helps(e) ? NULL : carve(c, (size_t)e->info.max_rows * e->info.n_vocab, f);
    e->part_m = carve(c, parts, f);
    e->part_l = carve(c, parts, f);
    e->part_o = carve(c, parts * e->dim, f);
    e->spans = carve(c, e->info.max_rows, sizeof *e->spans);
    e->tok_row = carve(c, tok, sizeof *e->tok_row);
    e->sample_rows = carve(c, e->info.max_rows, sizeof *e->sample_rows);
    struct td__ce_member *members = carve(c, e->team.n, sizeof *members);
    e->members = members;
    struct td__ce_member none;
    for (uint32_t i = 0; i < e->team.n; i++) {
        carve_member(e, c, members != NULL ? &members[i] : &none);
    }
}

static td_err make_buffers(struct td__ce *e)
{
    struct carver c = {NULL, 0};
    carve_all(e, &c);
    c = (struct carver){td__ce_alloc(e, c.at), 0};
    if (c.base == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    carve_all(e, &c);
    e->pool = td__ce_alloc(e, (size_t)e->info.n_blocks * e->info.n_layers * 2 * e->pool_heads *
                                  e->head_bytes);
    if (e->pool == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    return e->ranks != NULL ? td__ce_ranks_buffers(e) : TD_OK;
}

static const char *numerics_of(bool f32)
{
    return f32 ? NUMERICS_F32 : NUMERICS_INT8;
}

uint64_t td_cpu_engine_numerics_id(const char *numerics)
{
    bool f32 = strcmp(numerics, "f32") == 0;
    return f32 || strcmp(numerics, "int8") == 0 ? td_numerics_id(numerics_of(f32)) : 0;
}

static void describe(struct td__ce *e, const struct td_cpu_engine_params *p)
{
    const struct td_hparams *hp = &e->model->hp;
    struct td_engine_info *i = &e->info;
    i->n_layers = hp->n_layers;
    i->n_vocab = hp->n_vocab;
    i->max_model_len = td_model_context(hp, p->max_model_len);
    i->n_blocks = p->n_blocks;
    i->max_rows = p->max_rows;
    i->max_tokens = p->max_tokens;
    i->max_slots = p->max_slots;
    i->numerics = numerics_of(e->f32);
    i->numerics_id = td_numerics_id(i->numerics);
    memcpy(i->model_id, e->model->id, sizeof i->model_id);
    uint32_t slice = 2 * hp->n_kv_heads * hp->head_dim * TK_BLOCK_TOK * (e->f32 ? 4 : 2);
    i->layout = (struct td_kv_layout){.version = 1,
                                      .n_layers = hp->n_layers,
                                      .n_kv_heads = hp->n_kv_heads,
                                      .head_dim = hp->head_dim,
                                      .block_tok = TK_BLOCK_TOK,
                                      .dtype = e->f32 ? TD_KV_F32 : TD_KV_BF16,
                                      .order = TD_KV_K_DIM_TOKEN,
                                      .slice_bytes = slice,
                                      .block_bytes = (uint64_t)slice * hp->n_layers,
                                      .window = hp->window};
    e->q_scale = 1.0f / sqrtf((float)hp->head_dim);
}

static const struct tk_ops *ops_of(enum td_cpu_isa isa)
{
    switch (isa) {
    case TD_ISA_AUTO:
        return tk_select(TK_ISA_AUTO);
    case TD_ISA_PORTABLE:
        return tk_select(TK_ISA_REF);
    case TD_ISA_AVX2:
        return tk_select(TK_ISA_AVX2);
    case TD_ISA_AVX512:
        return tk_select(TK_ISA_AVX512);
    case TD_ISA_AMX:
        break;
    }
    return NULL;
}

static bool in_range(uint32_t v, uint32_t max)
{
    return v >= 1 && v <= max;
}

static td_err check_params(const struct td_cpu_engine_params *p, const struct tk_ops *ops)
{
    const struct {
        const char *name;
        bool ok;
    } checks[] = {
        {"numerics", p->numerics != NULL &&
                         (strcmp(p->numerics, "int8") == 0 || strcmp(p->numerics, "f32") == 0)},
        {"isa", ops != NULL},
        {"n_threads", in_range(p->n_threads, TD_TEAM_MAX)},
        {"n_blocks", p->n_blocks > 0},
        {"max_rows", in_range(p->max_rows, MAX_ROWS)},
        {"max_tokens", in_range(p->max_tokens, MAX_TOKENS)},
        {"max_slots", p->max_slots <= MAX_ROWS},
    };
    for (size_t i = 0; i < TD_COUNT(checks); i++) {
        if (!checks[i].ok) {
            TD_LOG(ERROR, "cpu engine refuses a parameter", "name=%s", checks[i].name);
            return TD_ERR_CONFIG;
        }
    }
    return TD_OK;
}

static td_err start_threads(struct td__ce *e)
{
    for (uint32_t i = 1; i <= e->team.n; i++) { /* the engine thread last */
        struct helper *h = i < e->team.n ? td_zalloc(1, sizeof *h) : NULL;
        if (h != NULL) {
            *h = (struct helper){e, i};
        }
        int rc = i < e->team.n && h == NULL ? ENOMEM
                 : h != NULL ? pthread_create(&e->threads[e->n_started], NULL, helper_main, h)
                             : pthread_create(&e->threads[e->n_started], NULL, engine_main, e);
        if (rc != 0) {
            free(h);
            TD_LOG(ERROR, "cannot start an engine thread", "errno=%d", rc);
            return TD_ERR_NO_MEMORY;
        }
        e->n_started++;
    }
    return TD_OK;
}

static void ce_destroy(struct td_engine *base)
{
    if (base == NULL) {
        return;
    }
    struct td__ce *e = of(base);
    atomic_store(&e->stop, true);
    if (td__ce_helps(e)) { /* may wait for rank 0's next step, which nothing else ends */
        e->ranks->group->ops->stop(e->ranks->group);
    }
    atomic_fetch_add(&e->kick, 1);
    td_team_wake(&e->kick, &e->kick_sleepers);
    if (e->n_started > 0 && e->n_started < e->team.n) { /* half built: nobody waits for the rest */
        td_team_absent(&e->team, e->team.n - e->n_started);
    }
    for (uint32_t i = 0; i < e->n_started; i++) {
        (void)pthread_join(e->threads[i], NULL);
    }
    e->magic = 0;
    for (uint32_t i = 0; i < e->n_owned; i++) {
        if (e->owned[i].bytes > 0) {
            (void)munmap(e->owned[i].p, e->owned[i].bytes);
        } else {
            free(e->owned[i].p);
        }
    }
    td_steps_fini(&e->q);
    free(e);
}

static const struct td_engine_ops engine_ops = {
    .submit = ce_submit,
    .poll = ce_poll,
    .layers_done = ce_layers_done,
    .seq_set = ce_seq_set,
    .info = ce_info,
    .event_fd = ce_event_fd,
    .layer_fd = ce_layer_fd,
    .pool_base = ce_pool_base,
    .destroy = ce_destroy,
};

static void destroy_enginep(struct td__ce **e)
{
    ce_destroy(*e != NULL ? &(*e)->base : NULL);
}

td_err td_cpu_engine_create(const struct td_model *model, const struct td_cpu_engine_params *p,
                            struct td_engine **out_engine)
{
    const struct tk_ops *ops = ops_of(p->isa);
    TD_TRY(check_params(p, ops));
    TD_CLEANUP(destroy_enginep) struct td__ce *e = td_zalloc_aligned(64, sizeof *e);
    if (e == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    e->base.ops = &engine_ops;
    e->magic = TD__CE_MAGIC;
    e->model = model;
    e->ops = ops;
    e->f32 = strcmp(p->numerics, "f32") == 0;
    e->q.event_fd = e->q.layer_fd = -1;
    td_team_init(&e->team, p->n_threads);
    describe(e, p);
    TD_TRY(td_steps_init(&e->q, &e->info));
    TD_TRY(td__ce_load(e, p->ranks));
    TD_TRY(make_buffers(e));
    TD_TRY(start_threads(e));
    TD_LOG(INFO, "cpu engine ready", "numerics=%s isa=%s threads=%u blocks=%u", e->info.numerics,
           ops->name, p->n_threads, p->n_blocks);
    if (e->ranks != NULL) {
        TD_LOG(INFO, "cpu engine is one of a group of ranks",
               "rank=%u ranks=%u kv_heads=%u ffn=%u vocab=%u", e->ranks->rank, e->ranks->n, e->n_kv,
               e->ffn, e->n_out);
    }
    *out_engine = &TD_STEAL(e)->base;
    return TD_OK;
}

/* --- tool hook --- */

static td_err submit_for_logits(void *engine, const struct td_row *row, float *logits)
{
    td_ticket ticket;
    return submit_step(engine, row, 1, logits, &ticket);
}

td_err td_cpu_engine_logits(struct td_engine *base, const int32_t *tokens, uint32_t n,
                            uint32_t chunk, float *out_logits)
{
    struct td__ce *e = of(base);
    return td_steps_logits(&e->q, submit_for_logits, e, tokens, n, chunk, out_logits);
}
