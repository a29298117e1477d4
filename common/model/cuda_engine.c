/* cuda_engine.c - the CUDA backend's life: memory, its two threads, steps from the loop and back. */
#include "common/model/cuda_engine.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/mem.h"
#include "common/base/thread.h"
#define TD_LOG_ROOM "model"
#include "common/base/log.h"
#include "common/model/cpu_engine_team.h"
#include "common/model/cuda_engine_priv.h"

#define MAX_ROWS     4096u
#define MAX_TOKENS   16384u
#define LT_WORKSPACE ((size_t)64 << 20)
#define SPINS        200000 /* pauses, some ms, before a thread sleeps: a step is not late for a wake-up */
#define SPIN_CORES   8 /* with fewer the pauses would be somebody's work */
#define NUMERICS     "cuda-bf16-v1"
#define NUMERICS_64  "cuda-bf16-v2" /* heads of 64: prompts run through a kernel of their own */
#define NUMERICS_SM80                                                                              \
    "cuda-sm80-bf16-v1" /* and the device's capability: the library's products differ */

static struct td__cu *of(const struct td_engine *base)
{
    struct td__cu *e = (struct td__cu *)(uintptr_t)base;
    TD_REQUIRE(e != NULL && e->magic == TD__CU_MAGIC);
    return e;
}

td_err td__cu_said(td_err err, const char *what)
{
    TD_LOG(ERROR, "accelerator refuses", "what=\"%s\" code=%s text=\"%s\"", what, td_err_code(err),
           tk_cuda_last_error());
    return err;
}

/* Notes a pointer to be given back at the end. */
static bool keep(void ***list, uint32_t *n, uint32_t *cap, void *p)
{
    if (*n == *cap) {
        uint32_t more = *cap > 0 ? 2 * *cap : 64;
        void **grown = td_realloc(*list, more * sizeof **list);
        if (grown == NULL) {
            return false;
        }
        *list = grown;
        *cap = more;
    }
    (*list)[(*n)++] = p;
    return true;
}

td_err td__cu_alloc(struct td__cu *e, size_t count, size_t size, void **out)
{
    void *p = NULL;
    td_err err = tk_mem_alloc(count * size > 0 ? count * size : 1, &p);
    if (err != TD_OK) {
        TD_LOG(ERROR, "accelerator memory does not suffice",
               "bytes=%zu remedy=\"a smaller --max-num-batched-tokens, --max-model-len or "
               "--gpu-memory-utilization\"",
               count * size);
        return err;
    }
    if (!keep(&e->owned, &e->n_owned, &e->cap_owned, p)) {
        tk_mem_free(p);
        return TD_ERR_NO_MEMORY;
    }
    *out = p;
    return TD_OK;
}
#define ALLOC(e, p, count) td__cu_alloc((e), (count), sizeof *(p), (void **)&(p))

static td_err pin(struct td__cu *e, size_t count, size_t size, void **out)
{
    void *p = NULL;
    TD_TRY(tk_host_alloc(count * size > 0 ? count * size : 1, &p));
    if (!keep(&e->pinned, &e->n_pinned, &e->cap_pinned, p)) {
        tk_host_free(p);
        return TD_ERR_NO_MEMORY;
    }
    *out = p;
    return TD_OK;
}
#define PIN(e, p, count) pin((e), (count), sizeof *(p), (void **)&(p))

/* ---- steps: loop side ---- */

static td_err submit_step(struct td__cu *e, const struct td_row *rows, size_t n_rows,
                          float *all_logits, td_ticket *out)
{
    TD_TRY(td_steps_submit(&e->q, rows, n_rows, all_logits, out));
    atomic_fetch_add(&e->kick, 1); /* seq_cst: orders the step against a sleeping engine thread */
    td_team_wake(&e->kick, &e->kick_sleepers);
    return TD_OK;
}

static td_err cu_submit(struct td_engine *base, const struct td_row *rows, size_t n_rows,
                        td_ticket *out)
{
    return submit_step(of(base), rows, n_rows, NULL, out);
}

static td_err cu_poll(struct td_engine *base, struct td_step_result *out)
{
    return td_steps_poll(&of(base)->q, out);
}

static uint32_t cu_layers_done(struct td_engine *base, td_ticket ticket)
{
    return td_steps_layers_done(&of(base)->q, ticket);
}

static td_err cu_seq_set(struct td_engine *base, uint32_t slot, const struct td_sampling_state *s)
{
    return td_steps_slot_set(&of(base)->q, slot, s);
}

static const struct td_engine_info *cu_info(const struct td_engine *base)
{
    return &of(base)->info;
}

static int cu_event_fd(const struct td_engine *base)
{
    return of(base)->q.event_fd;
}

static int cu_layer_fd(const struct td_engine *base)
{
    return of(base)->q.layer_fd;
}

static void *cu_pool_base(const struct td_engine *base)
{
    (void)of(base);
    return NULL; /* device memory: nothing on the host may read it */
}

/* ---- steps: engine side ---- */

/* Rows whose turn comes to fail, by a fault point. */
static void drop_faulty(struct td_step *s)
{
    for (uint32_t r = 0; r < s->n_rows; r++) {
        if (s->rows[r].live && TD_FAULT(STEP_FAIL)) {
            s->rows[r].live = false;
            s->results[r].err = TD_ERR_SEQ_FAILED;
        }
    }
}

static void start_step(struct td__cu *e, struct td_step *s, uint32_t slot)
{
    struct td__cu_host *h = &e->host[slot];
    h->started_us = td_now_us();
    TD_FAULT_DELAY(STEP_PAUSE);
    drop_faulty(s);
    td_err err = td__cu_plan(&e->shape, e->q.slots, s, h);
    err = err == TD_OK ? td__cu_enqueue(e, s, slot) : err;
    h->failed = err != TD_OK;
    if (h->failed) {
        (void)td__cu_said(err, "enqueue a step");
        /* what was enqueued still reads this slot's memory; a broken device says so at once */
        (void)tk_stream_wait(e->stream);
    }
    atomic_fetch_add(&e->queued, 1); /* seq_cst, both: as kick */
    atomic_fetch_add(&e->queued_kick, 1);
    td_team_wake(&e->queued_kick, &e->queued_sleepers);
}

static void *engine_main(void *arg)
{
    struct td__cu *e = arg;
    td_thread_enter(&td_engine_role, "engine");
    if (tk_device_use(e->device) != TD_OK) {
        (void)td__cu_said(TD_ERR_DEVICE, "use the device"); /* every step will fail, and say so */
    }
    for (uint32_t taken = 0;;) {
        uint32_t kick = atomic_load(&e->kick);
        struct td_step *s = td_steps_take(&e->q, taken);
        if (s != NULL) {
            start_step(e, s, taken++ % TD_STEPS_SLOTS);
        } else if (atomic_load(&e->stop)) {
            return NULL;
        } else {
            td_team_wait(&e->kick, kick, &e->kick_sleepers, e->spins);
        }
    }
}

/* Waits for layers, where anybody asked for them, then for the step. */
static td_err wait_step(struct td__cu *e, const struct td_step *s, uint32_t slot)
{
    const struct td__cu_host *h = &e->host[slot];
    /* layers are told by the wide pass only where nothing comes behind it */
    bool wide = h->n_passes > 0 && h->passes[h->n_passes - 1].wide;
    for (uint32_t i = 0; s->push_layers && wide && i + 1 < e->info.n_layers; i++) {
        TD_TRY(tk_event_wait(e->layer_done[slot].ev[i]));
        td_steps_layer(&e->q, s, i + 1);
    }
    return tk_event_wait(e->done[slot]);
}

static void fail_step(struct td_step *s)
{
    for (uint32_t r = 0; r < s->n_rows; r++) {
        if (s->results[r].err == TD_OK) {
            s->results[r].err = TD_ERR_SEQ_FAILED;
            s->results[r].n_ids = 0;
        }
    }
}

static void take_results(const struct td__cu_host *h, struct td_step *s)
{
    for (uint32_t i = 0; i < h->n_results; i++) {
        uint32_t r = h->result_row[i];
        if (r == UINT32_MAX) {
            continue;
        }
        struct td_row_result *out = &s->results[r];
        if (h->results[i].token == TK_FAILED) {
            out->err = TD_ERR_SEQ_FAILED;
            continue;
        }
        out->n_ids = 1;
        out->ids[0] = h->results[i].token;
        out->logprobs[0] = h->results[i].logprob;
    }
}

static void finish_step(struct td__cu *e, struct td_step *s, uint32_t slot, int64_t *last_us)
{
    struct td__cu_host *h = &e->host[slot];
    td_err err = h->failed ? TD_OK : wait_step(e, s, slot);
    if (err != TD_OK) {
        (void)td__cu_said(err, "run a step");
    }
    if (h->failed || err != TD_OK) {
        fail_step(s);
    } else {
        take_results(h, s);
    }
    int64_t now = td_now_us();
    s->exec_us = now - (h->started_us > *last_us ? h->started_us : *last_us);
    *last_us = now;
    td_steps_finish(&e->q, s);
}

static void *waiter_main(void *arg)
{
    struct td__cu *e = arg;
    int64_t last_us = 0;
    td_thread_enter(&td_engine_role, "engine-wait");
    if (tk_device_use(e->device) != TD_OK) {
        (void)td__cu_said(TD_ERR_DEVICE, "use the device");
    }
    for (uint32_t finished = 0;;) {
        uint32_t kick = atomic_load(&e->queued_kick);
        if (atomic_load(&e->queued) != finished) {
            uint32_t slot = finished++ % TD_STEPS_SLOTS;
            finish_step(e, &e->q.steps[slot], slot, &last_us);
        } else if (atomic_load(&e->stop_waiter)) {
            return NULL;
        } else {
            td_team_wait(&e->queued_kick, kick, &e->queued_sleepers, e->spins);
        }
    }
}

/* ---- memory ---- */

static td_err make_host(struct td__cu *e, struct td__cu_host *h)
{
    const struct td__cu_shape *c = &e->shape;
    TD_TRY(PIN(e, h->flat, c->max_passes));
    TD_TRY(PIN(e, h->tables, (size_t)c->max_tables * c->blocks_per_seq));
    TD_TRY(PIN(e, h->tokens, c->max_tokens));
    TD_TRY(PIN(e, h->slot_of, c->max_tokens));
    TD_TRY(PIN(e, h->pos, c->max_tokens));
    TD_TRY(PIN(e, h->table_of, c->max_tokens));
    TD_TRY(PIN(e, h->lens, c->max_tokens));
    TD_TRY(PIN(e, h->pick, c->max_samples));
    TD_TRY(PIN(e, h->chunks, c->max_rows));
    TD_TRY(PIN(e, h->tiles, c->max_tiles));
    TD_TRY(PIN(e, h->rows, c->max_samples));
    TD_TRY(PIN(e, h->results, c->max_samples));
    TD_TRY(PIN(e, h->result_row, c->max_samples));
    TD_TRY(PIN(e, h->groups, c->max_rows));
    return PIN(e, h->passes, c->max_passes);
}

static td_err make_hosts(struct td__cu *e)
{
    for (uint32_t i = 0; i < TD_STEPS_SLOTS; i++) {
        TD_TRY(make_host(e, &e->host[i]));
        TD_TRY(tk_event_create(&e->done[i]));
        e->layer_done[i].ev = td_zalloc(e->info.n_layers, sizeof(tk_event));
        if (e->layer_done[i].ev == NULL) {
            return TD_ERR_NO_MEMORY;
        }
        for (uint32_t l = 0; l < e->info.n_layers; l++) {
            TD_TRY(tk_event_create(&e->layer_done[i].ev[l]));
        }
    }
    return TD_OK;
}

static td_err make_inputs(struct td__cu *e)
{
    const struct td__cu_shape *c = &e->shape;
    TD_TRY(ALLOC(e, e->d_flat, 1));
    TD_TRY(ALLOC(e, e->d_flat_tables, (size_t)TK_MAX_ROWS * c->blocks_per_seq));
    TD_TRY(ALLOC(e, e->d_tokens, c->max_tokens));
    TD_TRY(ALLOC(e, e->d_slot_of, c->max_tokens));
    TD_TRY(ALLOC(e, e->d_pos, c->max_tokens));
    TD_TRY(ALLOC(e, e->d_table_of, c->max_tokens));
    TD_TRY(ALLOC(e, e->d_lens, c->max_tokens));
    TD_TRY(ALLOC(e, e->d_pick, c->max_samples));
    TD_TRY(ALLOC(e, e->d_tables, (size_t)c->max_tables * c->blocks_per_seq));
    TD_TRY(ALLOC(e, e->d_chunks, c->max_rows));
    TD_TRY(ALLOC(e, e->d_tiles, c->max_tiles));
    TD_TRY(ALLOC(e, e->d_rows, c->max_samples));
    TD_TRY(ALLOC(e, e->d_history, e->info.max_model_len));
    TD_TRY(ALLOC(e, e->d_results, (size_t)c->max_samples + TK_MAX_ROWS));
    TD_TRY(tk_fill(e->stream, e->d_flat_tables, 0,
                   (size_t)TK_MAX_ROWS * c->blocks_per_seq * sizeof *e->d_flat_tables));
    return tk_fill(e->stream, e->d_tables, 0,
                   (size_t)c->max_tables * c->blocks_per_seq * sizeof *e->d_tables);
}

static td_err make_slots(struct td__cu *e)
{
    const size_t n = e->info.max_slots > 0 ? e->info.max_slots : 1;
    TD_TRY(ALLOC(e, e->slots.last, n));
    TD_TRY(ALLOC(e, e->slots.counts, n * e->info.n_vocab));
    TD_TRY(ALLOC(e, e->slots.bias, n * TK_SLOT_BIAS));
    TD_TRY(ALLOC(e, e->slots.stops, n * TK_SLOT_STOPS));
    e->slot_version = td_zalloc(n, sizeof *e->slot_version); /* a slot's first set is version 1 */
    return e->slot_version != NULL
               ? tk_fill(e->stream, e->slots.last, 0xff, n * sizeof *e->slots.last)
               : TD_ERR_NO_MEMORY;
}

static td_err make_flat_work(struct td__cu *e)
{
    const size_t rows = TK_MAX_ROWS, vocab = e->logits_stride;
    TD_TRY(ALLOC(e, e->f_h, rows * e->embd));
    TD_TRY(ALLOC(e, e->f_hg, rows * e->embd));
    TD_TRY(ALLOC(e, e->f_q, rows * e->qkv_width));
    TD_TRY(ALLOC(e, e->f_att, rows * e->q_width));
    TD_TRY(ALLOC(e, e->f_act, rows * e->ffn));
    TD_TRY(ALLOC(e, e->ss1, (size_t)TK_NORM_PARTS * TK_MAX_ROWS));
    TD_TRY(ALLOC(e, e->ss2, (size_t)TK_NORM_PARTS * TK_MAX_ROWS));
    TD_TRY(ALLOC(e, e->best_val, (size_t)TK_ARGMAX_PARTS * TK_MAX_ROWS));
    TD_TRY(ALLOC(e, e->best_idx, (size_t)TK_ARGMAX_PARTS * TK_MAX_ROWS));
    TD_TRY(ALLOC(e, e->logits, rows * vocab));
    TD_TRY(ALLOC(e, e->adjusted, rows * vocab));
    TD_TRY(ALLOC(e, e->w_last, rows * e->embd));
    TD_TRY(ALLOC(e, e->w_last_n, rows * e->embd));
    TD_TRY(td__cu_alloc(e, tk_chain_work_bytes(), 1, &e->chain_work));
    TD_TRY(tk_fill(e->stream, e->chain_work, 0, tk_chain_work_bytes()));
    TD_TRY(td__cu_alloc(e, tk_layers_work_bytes(), 1, &e->layers_work));
    TD_TRY(tk_fill(e->stream, e->layers_work, 0, tk_layers_work_bytes()));
    e->flat_layers = td_zalloc(TK_LAYERS_MAX, sizeof *e->flat_layers);
    if (e->flat_layers == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    /* empty rows of a batch are computed too, from what lies there: numbers, please */
    return tk_fill(e->stream, e->f_att, 0, rows * e->q_width * sizeof *e->f_att);
}

static td_err make_wide_work(struct td__cu *e)
{
    const size_t tok = e->info.max_tokens;
    TD_TRY(ALLOC(e, e->w_h, tok * e->embd));
    TD_TRY(ALLOC(e, e->w_n, tok * e->embd));
    TD_TRY(ALLOC(e, e->w_q, tok * e->qkv_width));
    TD_TRY(ALLOC(e, e->w_att, tok * e->q_width));
    TD_TRY(ALLOC(e, e->w_gu, tok * 2 * e->ffn));
    TD_TRY(ALLOC(e, e->w_act, tok * e->ffn));
    return tk_rows_map(e->w_q, e->info.max_tokens, e->n_heads, e->dim, e->qkv_width, &e->m_wq);
}

static td_err make_attention(struct td__cu *e)
{
    uint32_t entries = e->shape.max_entries;
    size_t bytes = tk_attn_decode_scratch(e->n_kv, e->group, e->dim, entries);
    void *p;
    TD_TRY(td__cu_alloc(e, bytes, 1, &p));
    e->attn_scratch = p;
    TD_TRY(ALLOC(e, e->plan, (size_t)1 + TK_MAX_SEQS + entries));
    return tk_fill(e->stream, e->attn_scratch, 0, tk_attn_decode_counters(e->n_kv));
}

/* What is left below the wanted share of the device, or what was asked for. */
static td_err size_pool(struct td__cu *e, const struct td_cuda_engine_params *p)
{
    struct tk_device_facts f;
    TD_TRY(tk_device_open(e->device, &f));
    const uint64_t block = e->info.layout.block_bytes, used = f.total_bytes - f.free_bytes;
    const uint64_t may = (uint64_t)((double)f.total_bytes * p->memory_utilization);
    uint64_t n = p->n_blocks;
    if (n == 0) {
        n = may > used ? (may - used) / block : 0;
        n = n < UINT32_MAX / 2 ? n : UINT32_MAX / 2;
    }
    if (n < e->shape.blocks_per_seq && p->n_blocks == 0) {
        TD_LOG(ERROR, "accelerator memory does not hold one full sequence",
               "free_bytes=%" PRIu64 " blocks=%" PRIu64
               " need=%u remedy=\"a smaller --max-model-len or a larger --gpu-memory-utilization\"",
               f.free_bytes, n, e->shape.blocks_per_seq);
        return TD_ERR_NO_MEMORY;
    }
    e->info.n_blocks = (uint32_t)n;
    return TD_OK;
}

static td_err make_pool(struct td__cu *e, const struct td_cuda_engine_params *p)
{
    TD_TRY(size_pool(e, p));
    void *base;
    TD_TRY(td__cu_alloc(e, e->info.n_blocks, e->info.layout.block_bytes, &base));
    e->pool = (struct tk_kv_pool){
        base, e->info.n_blocks, e->info.n_layers, e->n_kv, e->dim, 0, e->info.layout.slice_bytes};
    TD_TRY(tk_fill(e->stream, base, 0, e->info.n_blocks * e->info.layout.block_bytes));
    TD_TRY(tk_kv_map(&e->pool, &e->m_pool));
    for (uint32_t i = 0; i < e->info.n_layers; i++) {
        TD_TRY(tk_kv_decode_map(&e->pool, i, &e->layers[i].m_kv));
    }
    return TD_OK;
}

/* ---- life ---- */

static void describe_shape(struct td__cu *e, const struct td_cuda_engine_params *p)
{
    struct td__cu_shape *c = &e->shape;
    const uint32_t len = e->info.max_model_len;
    c->deterministic = p->deterministic;
    c->blocks_per_seq = (len + TK_BLOCK_TOK - 1) / TK_BLOCK_TOK;
    c->max_entries = td__cu_max_entries(len);
    c->max_rows = p->max_rows;
    c->max_tokens = p->max_tokens;
    c->max_tiles = p->max_tokens / TK_TILE_ROWS + p->max_rows;
    c->max_passes = p->max_rows + p->max_tokens / TK_MAX_ROWS + 2;
    c->max_samples = p->max_tokens;
    c->max_tables = 2 * p->max_rows; /* a row may be in a wide and in a flat pass */
}

static void describe(struct td__cu *e, const struct td_cuda_engine_params *p)
{
    const struct td_hparams *hp = &e->model->hp;
    struct td_engine_info *i = &e->info;
    e->embd = (hp->n_embd + TK_FLAT_ROWS - 1) / TK_FLAT_ROWS * TK_FLAT_ROWS;
    e->ffn = hp->n_ffn;
    e->n_heads = hp->n_heads;
    e->n_kv = hp->n_kv_heads;
    e->dim = hp->head_dim;
    e->group = e->n_heads / e->n_kv;
    e->q_width = e->n_heads * e->dim;
    e->qkv_width = (e->n_heads + 2 * e->n_kv) * e->dim;
    e->scale = 1.0f / sqrtf((float)e->dim);
    i->n_layers = hp->n_layers;
    i->n_vocab = hp->n_vocab;
    e->logits_stride = (hp->n_vocab + 3) / 4 * 4;
    i->max_model_len = td_model_context(hp, p->max_model_len);
    i->max_rows = p->max_rows;
    i->max_tokens = p->max_tokens;
    i->max_slots = p->max_slots;
    i->numerics = e->numerics;
    i->numerics_id = td_numerics_id(i->numerics);
    memcpy(i->model_id, e->model->id, sizeof i->model_id);
    const uint32_t slice = (uint32_t)tk_kv_slice_bytes(e->n_kv, e->dim, 0);
    i->layout = (struct td_kv_layout){.version = 1,
                                      .n_layers = hp->n_layers,
                                      .n_kv_heads = e->n_kv,
                                      .head_dim = e->dim,
                                      .block_tok = TK_BLOCK_TOK,
                                      .dtype = TD_KV_BF16,
                                      .order = TD_KV_TOKEN_DIM,
                                      .slice_bytes = slice,
                                      .block_bytes = (uint64_t)slice * hp->n_layers,
                                      .window = hp->window};
    describe_shape(e, p);
}

static td_err check_params(const struct td_cuda_engine_params *p)
{
    const struct {
        const char *name;
        bool ok;
    } checks[] = {
        {"device", p->device >= 0},
        {"kernels", p->kernels <= TD_CUDA_KERNELS_SM90A},
        {"memory_utilization", p->memory_utilization > 0 && p->memory_utilization <= 1},
        {"max_rows", p->max_rows >= 1 && p->max_rows <= MAX_ROWS},
        {"max_tokens", p->max_tokens >= p->max_rows && p->max_tokens <= MAX_TOKENS},
        {"max_slots", p->max_slots <= MAX_ROWS},
    };
    for (size_t i = 0; i < TD_COUNT(checks); i++) {
        if (!checks[i].ok) {
            TD_LOG(ERROR, "cuda engine refuses a parameter", "name=%s", checks[i].name);
            return TD_ERR_CONFIG;
        }
    }
    return TD_OK;
}

static void name_numerics(struct td__cu *e, const struct tk_device_facts *f, bool hopper,
                          bool deterministic)
{
    const char *det = deterministic ? "-det" : "";
    if (hopper) {
        (void)snprintf(e->numerics, sizeof e->numerics, "%s%s",
                       e->model->hp.head_dim == 64 ? NUMERICS_64 : NUMERICS, det);
    } else {
        (void)snprintf(e->numerics, sizeof e->numerics, NUMERICS_SM80 "-cc%u%u%s", f->major,
                       f->minor, det);
    }
}

static td_err open_device(struct td__cu *e, const struct td_cuda_engine_params *p)
{
    static const enum tk_path paths[] = {TK_PATH_AUTO, TK_PATH_SM80, TK_PATH_SM90A};
    struct tk_device_facts f;
    enum tk_path path = TK_PATH_AUTO;
    td_err err = tk_device_open(e->device, &f);
    if (err != TD_OK) {
        return td__cu_said(
            err, "open the device (nvidia-smi shows driver and GPUs; --device, --backend)");
    }
    err = tk_path_set(paths[p->kernels], &path);
    if (err == TD_ERR_UNSUPPORTED) {
        TD_LOG(ERROR, "these kernels do not run on this GPU",
               "device=\"%s\" capability=%u.%u need=\"8.0 or later; sm_90a: exactly 9.0\"", f.name,
               f.major, f.minor);
    }
    TD_TRY(err);
    const bool hopper = path == TK_PATH_SM90A;
    name_numerics(e, &f, hopper, p->deterministic);
    TD_LOG(INFO, "accelerator",
           "device=%d name=\"%s\" capability=%u.%u kernels=%s bytes=%" PRIu64 " free=%" PRIu64,
           e->device, f.name, f.major, f.minor, hopper ? "sm_90a" : "sm_80", f.total_bytes,
           f.free_bytes);
    return TD_OK;
}

static td_err build(struct td__cu *e, const struct td_cuda_engine_params *p)
{
    TD_TRY(tk_stream_create(&e->stream));
    TD_TRY(td__cu_load(e));
    const bool shaped = e->layers[0].bias != NULL || e->layers[0].q_norm != NULL;
    e->fused = !shaped;
    TD_TRY(tk_lt_create(LT_WORKSPACE, &e->lt));
    TD_TRY(make_hosts(e));
    TD_TRY(make_inputs(e));
    TD_TRY(make_slots(e));
    TD_TRY(make_flat_work(e));
    TD_TRY(make_wide_work(e));
    TD_TRY(make_attention(e));
    TD_TRY(make_pool(e, p));
    return td__cu_prepare(e);
}

static td_err start_threads(struct td__cu *e)
{
    void *(*const mains[])(void *) = {engine_main, waiter_main};
    for (; e->n_threads < 2; e->n_threads++) {
        int rc = pthread_create(&e->threads[e->n_threads], NULL, mains[e->n_threads], e);
        if (rc != 0) {
            TD_LOG(ERROR, "cannot start an engine thread", "errno=%d", rc);
            return TD_ERR_NO_MEMORY;
        }
    }
    return TD_OK;
}

/* The engine thread first: what it has enqueued is still waited for. */
static void stop_threads(struct td__cu *e)
{
    atomic_store(&e->stop, true);
    atomic_fetch_add(&e->kick, 1);
    td_team_wake(&e->kick, &e->kick_sleepers);
    if (e->n_threads > 0) {
        (void)pthread_join(e->threads[0], NULL);
    }
    if (e->n_threads > 1) {
        atomic_store(&e->stop_waiter, true);
        atomic_fetch_add(&e->queued_kick, 1);
        td_team_wake(&e->queued_kick, &e->queued_sleepers);
        (void)pthread_join(e->threads[1], NULL);
    }
}

static void free_device(struct td__cu *e)
{
    for (uint32_t i = 0; i < TD__CU_BUCKETS; i++) {
        for (uint32_t k = 0; k < 2 * TD__CU_CLASSES; k++) {
            (void)tk_graph_destroy(e->graphs[i][k / TD__CU_CLASSES][k % TD__CU_CLASSES]);
        }
    }
    e->lt = tk_lt_destroy(e->lt);
    for (uint32_t i = 0; i < TD_STEPS_SLOTS; i++) {
        tk_event_destroy(e->done[i]);
        for (uint32_t l = 0; e->layer_done[i].ev != NULL && l < e->info.n_layers; l++) {
            tk_event_destroy(e->layer_done[i].ev[l]);
        }
        free(e->layer_done[i].ev);
    }
    for (uint32_t i = 0; i < e->n_owned; i++) {
        tk_mem_free(e->owned[i]);
    }
    for (uint32_t i = 0; i < e->n_pinned; i++) {
        tk_host_free(e->pinned[i]);
    }
    tk_stream_destroy(e->stream);
}

static void cu_destroy(struct td_engine *base)
{
    if (base == NULL) {
        return;
    }
    struct td__cu *e = of(base);
    stop_threads(e);
    e->magic = 0;
    if (e->stream != NULL) {
        (void)tk_stream_wait(e->stream); /* a broken device is broken either way */
    }
    free_device(e);
    free(e->owned);
    free(e->pinned);
    free(e->slot_version);
    free(e->layers);
    free(e->flat_layers);
    td_steps_fini(&e->q);
    free(e);
}

static const struct td_engine_ops engine_ops = {
    .submit = cu_submit,
    .poll = cu_poll,
    .layers_done = cu_layers_done,
    .seq_set = cu_seq_set,
    .info = cu_info,
    .event_fd = cu_event_fd,
    .layer_fd = cu_layer_fd,
    .pool_base = cu_pool_base,
    .destroy = cu_destroy,
};

static void destroy_enginep(struct td__cu **e)
{
    cu_destroy(*e != NULL ? &(*e)->base : NULL);
}

td_err td_cuda_engine_create(const struct td_model *model, const struct td_cuda_engine_params *p,
                             struct td_engine **out_engine)
{
    TD_TRY(check_params(p));
    TD_CLEANUP(destroy_enginep) struct td__cu *e = td_zalloc_aligned(64, sizeof *e);
    if (e == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    e->base.ops = &engine_ops;
    e->magic = TD__CU_MAGIC;
    e->model = model;
    e->device = p->device;
    e->q.event_fd = e->q.layer_fd = -1;
    e->spins = sysconf(_SC_NPROCESSORS_ONLN) >= SPIN_CORES ? SPINS : 0;
    TD_TRY(td__cu_check_model(model));
    TD_TRY(open_device(e, p));
    describe(e, p);
    TD_TRY(td_steps_init(&e->q, &e->info));
    e->layers = td_zalloc_aligned(64, e->info.n_layers * sizeof *e->layers);
    if (e->layers == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    td_err err = build(e, p);
    if (err != TD_OK) {
        return td__cu_said(err, "make the engine");
    }
    TD_TRY(start_threads(e));
    TD_LOG(INFO, "cuda engine ready", "numerics=%s blocks=%u block_bytes=%" PRIu64,
           e->info.numerics, e->info.n_blocks, e->info.layout.block_bytes);
    *out_engine = &TD_STEAL(e)->base;
    return TD_OK;
}

/* ---- tool hook ---- */

static td_err submit_for_logits(void *engine, const struct td_row *row, float *logits)
{
    td_ticket ticket;
    return submit_step(engine, row, 1, logits, &ticket);
}

td_err td_cuda_engine_logits(struct td_engine *base, const int32_t *tokens, uint32_t n,
                             uint32_t chunk, float *out_logits)
{
    struct td__cu *e = of(base);
    return td_steps_logits(&e->q, submit_for_logits, e, tokens, n, chunk, out_logits);
}
