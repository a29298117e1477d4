/* engine_steps.c - see engine_steps.h. */
#include "common/model/engine_steps.h"

#include <math.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/mem.h"

static void signal_fd(int fd)
{
    uint64_t one = 1;
    (void)!write(fd, &one, sizeof one); /* EAGAIN: the counter is full, so it is readable */
}

static bool ids_in_range(const struct td_steps *q, const int32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= q->info->n_vocab) {
            return false;
        }
    }
    return true;
}

static bool params_ok(const struct td_steps *q, const struct td_sampling_params *p)
{
    const float all[] = {p->temperature,       p->top_p,           p->min_p, p->repetition_penalty,
                         p->frequency_penalty, p->presence_penalty};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (!isfinite(all[i])) {
            return false;
        }
    }
    if (p->n_stop_ids > TD_SAMPLING_MAX_STOP_IDS || p->n_bias > TD_SAMPLING_MAX_BIAS ||
        p->repetition_penalty < 0 || (p->n_bias > 0 && p->bias == NULL)) {
        return false;
    }
    for (uint32_t i = 0; i < p->n_bias; i++) {
        if (!ids_in_range(q, &p->bias[i].id, 1) || !isfinite(p->bias[i].bias)) {
            return false;
        }
    }
    return ids_in_range(q, p->stop_ids, p->n_stop_ids);
}

td_err td_steps_slot_set(struct td_steps *q, uint32_t slot, const struct td_sampling_state *s)
{
    uint32_t len = q->info->max_model_len;
    if (slot >= q->info->max_slots || !params_ok(q, &s->p)) {
        return TD_ERR_BAD_REQUEST;
    }
    if (s->n_prompt > len || s->n_output > len - s->n_prompt) {
        return TD_ERR_CONTEXT_LENGTH;
    }
    if (!ids_in_range(q, s->prompt, s->n_prompt) || !ids_in_range(q, s->output, s->n_output)) {
        return TD_ERR_BAD_REQUEST;
    }
    struct td_sample_slot *out = &q->slots[slot];
    out->p = s->p;
    if (s->p.n_bias > 0) {
        memcpy(out->bias, s->p.bias, s->p.n_bias * sizeof out->bias[0]);
    }
    out->p.bias = out->bias;
    if (s->n_prompt > 0) {
        memcpy(out->history, s->prompt, s->n_prompt * sizeof *s->prompt);
    }
    if (s->n_output > 0) {
        memcpy(out->history + s->n_prompt, s->output, s->n_output * sizeof *s->output);
    }
    out->n_prompt = s->n_prompt;
    out->n_history = s->n_prompt + s->n_output;
    out->has_last = s->n_output > 0;
    out->last = out->has_last ? s->output[s->n_output - 1] : 0;
    out->version++;
    out->set = true;
    return TD_OK;
}

static bool tokens_ok(const struct td_steps *q, const struct td_row *row)
{
    for (uint32_t i = 0; i < row->n; i++) {
        if (row->tokens[i] < 0 || (uint32_t)row->tokens[i] >= q->info->n_vocab) {
            return false;
        }
    }
    return true;
}

static bool slot_is_used(const struct td_step *s, uint32_t slot)
{
    for (uint32_t r = 0; r < s->n_rows; r++) {
        if (s->rows[r].live && s->rows[r].sampling == slot) {
            return true;
        }
    }
    return false;
}

/* What is wrong with a row; nothing of it may be touched unless TD_OK. */
static td_err check_row(const struct td_steps *q, const struct td_step *s, const struct td_row *row)
{
    uint32_t len = q->info->max_model_len;
    if (row->n == 0 || row->table == NULL || (row->want & TD_WANT_PROMPT_LOGPROBS) != 0) {
        return TD_ERR_BAD_REQUEST;
    }
    if (row->pos >= len || row->n > len - row->pos) {
        return TD_ERR_CONTEXT_LENGTH;
    }
    uint32_t need = (row->pos + row->n + TD_KV_HASH_TOK - 1) / TD_KV_HASH_TOK;
    if (row->n_blocks < need) {
        return TD_ERR_BAD_REQUEST;
    }
    for (uint32_t i = 0; i < need; i++) {
        if (row->table[i] >= q->info->n_blocks) {
            return TD_ERR_BAD_REQUEST;
        }
    }
    if (row->sampling != TD_NO_SAMPLE &&
        (row->sampling >= q->info->max_slots || !q->slots[row->sampling].set ||
         slot_is_used(s, row->sampling))) {
        return TD_ERR_BAD_REQUEST;
    }
    if (row->tokens == NULL) {
        return row->n == 1 && row->sampling != TD_NO_SAMPLE ? TD_OK : TD_ERR_BAD_REQUEST;
    }
    return tokens_ok(q, row) ? TD_OK : TD_ERR_BAD_REQUEST;
}

static void add_row(const struct td_steps *q, struct td_step *s, const struct td_row *in)
{
    uint32_t r = s->n_rows;
    struct td_step_row *row = &s->rows[r];
    struct td_row_result *result = &s->results[r];
    memset(result, 0, sizeof *result);
    result->seq = in->seq;
    result->err = check_row(q, s, in);
    memset(row, 0, sizeof *row);
    row->live = result->err == TD_OK;
    if (row->live) {
        row->from_engine = in->tokens == NULL;
        row->pos = in->pos;
        row->n = in->n;
        row->token0 = s->n_tok;
        row->sampling = in->sampling;
        row->want = in->want;
        row->output_pos = in->output_pos;
        row->n_blocks = (in->pos + in->n + TD_KV_HASH_TOK - 1) / TD_KV_HASH_TOK;
        row->table = s->tables + (size_t)r * q->blocks_per_seq;
        memcpy(row->table, in->table, row->n_blocks * sizeof *row->table);
        if (in->tokens != NULL) {
            memcpy(s->tokens + s->n_tok, in->tokens, in->n * sizeof *in->tokens);
        }
        s->n_tok += in->n;
        s->push_layers |= (in->want & TD_PUSH_LAYERS) != 0;
    }
    s->n_rows++;
}

td_err td_steps_submit(struct td_steps *q, const struct td_row *rows, size_t n_rows,
                       float *all_logits, td_ticket *out)
{
    uint64_t total = 0;
    uint32_t tail = atomic_load_explicit(&q->tail, memory_order_relaxed); /* ours alone */
    for (size_t i = 0; i < n_rows && i <= q->info->max_rows; i++) {
        total += rows[i].n;
    }
    if (n_rows == 0 || n_rows > q->info->max_rows || total > q->info->max_tokens) {
        return TD_ERR_BAD_REQUEST;
    }
    /* relaxed: a step that slips in is lost as those before it are, and poll says so */
    if (atomic_load_explicit(&q->closed, memory_order_relaxed)) {
        return TD_ERR_CLOSED;
    }
    if (tail - q->polled >= TD_ENGINE_MAX_INFLIGHT) {
        return TD_ERR_AGAIN;
    }
    struct td_step *s = &q->steps[tail % TD_STEPS_SLOTS];
    s->ticket = ++q->last_ticket;
    s->n_rows = s->n_tok = 0;
    s->push_layers = false;
    s->all_logits = all_logits;
    for (size_t i = 0; i < n_rows; i++) {
        add_row(q, s, &rows[i]);
    }
    *out = s->ticket;
    /* seq_cst: publishes the step, and orders against a sleeping engine thread */
    atomic_store(&q->tail, tail + 1);
    return TD_OK;
}

td_err td_steps_poll(struct td_steps *q, struct td_step_result *out)
{
    uint64_t n;
    (void)!read(q->event_fd, &n, sizeof n); /* before looking, so that no finish is lost */
    /* acquire: pairs with td_steps_close(), and before `done`: what finished before the end is handed out */
    bool closed = atomic_load_explicit(&q->closed, memory_order_acquire);
    /* acquire: pairs with the engine thread's release after the results */
    uint32_t done = atomic_load_explicit(&q->done, memory_order_acquire);
    if (done == q->polled) {
        if (closed) {
            signal_fd(q->event_fd);
        }
        return closed ? TD_ERR_CLOSED : TD_ERR_AGAIN;
    }
    struct td_step *s = &q->steps[q->polled++ % TD_STEPS_SLOTS];
    if (done != q->polled || closed) {
        signal_fd(q->event_fd);
    }
    out->ticket = s->ticket;
    out->n_rows = s->n_rows;
    out->rows = s->results;
    out->exec_us = s->exec_us;
    return TD_OK;
}

uint32_t td_steps_layers_done(struct td_steps *q, td_ticket ticket)
{
    /* acquire: pairs with td_steps_layer() */
    uint64_t p = atomic_load_explicit(&q->progress, memory_order_acquire);
    if (p >> 16 == ticket) {
        return (uint32_t)(p & 0xffff);
    }
    return p >> 16 > ticket ? q->info->n_layers : 0;
}

uint64_t td_numerics_id(const char *text)
{
    uint64_t h = 0xcbf29ce484222325ull; /* FNV-1a */
    for (; *text != '\0'; text++) {
        h = (h ^ (uint8_t)*text) * 0x100000001b3ull;
    }
    return h;
}

static td_err wait_step(struct td_steps *q)
{
    struct td_step_result result;
    struct pollfd fd = {.fd = q->event_fd, .events = POLLIN};
    td_err err = td_steps_poll(q, &result);
    while (err == TD_ERR_AGAIN) {
        (void)poll(&fd, 1, -1); /* EINTR: asks again */
        err = td_steps_poll(q, &result);
    }
    return err != TD_OK ? err : result.rows[0].err;
}

td_err td_steps_logits(struct td_steps *q, td_steps_submit_fn submit, void *engine,
                       const int32_t *tokens, uint32_t n, uint32_t chunk, float *out_logits)
{
    uint32_t blocks = (n + TD_KV_HASH_TOK - 1) / TD_KV_HASH_TOK;
    if (n == 0 || chunk == 0 || chunk > q->info->max_tokens || blocks > q->info->n_blocks) {
        return TD_ERR_BAD_REQUEST;
    }
    TD_CLEANUP(td_freep) void *memory = td_zalloc(blocks, sizeof(td_block_id));
    td_block_id *table = memory;
    if (table == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < blocks; i++) {
        table[i] = i;
    }
    for (uint32_t pos = 0; pos < n; pos += chunk) {
        struct td_row row = {.pos = pos,
                             .n = n - pos < chunk ? n - pos : chunk,
                             .tokens = tokens + pos,
                             .table = table,
                             .n_blocks = blocks,
                             .sampling = TD_NO_SAMPLE};
        TD_TRY(submit(engine, &row, out_logits + (size_t)pos * q->info->n_vocab));
        TD_TRY(wait_step(q));
    }
    return TD_OK;
}

/* --- engine side --- */

struct td_step *td_steps_take(struct td_steps *q, uint32_t taken)
{
    /* acquire: pairs with td_steps_submit() */
    uint32_t tail = atomic_load_explicit(&q->tail, memory_order_acquire);
    return tail != taken ? &q->steps[taken % TD_STEPS_SLOTS] : NULL;
}

void td_steps_layer(struct td_steps *q, const struct td_step *s, uint32_t n_layers)
{
    /* release: K and V of these layers, even of a step without a live row, are written */
    atomic_store_explicit(&q->progress, s->ticket << 16 | n_layers, memory_order_release);
    if (s->push_layers) {
        signal_fd(q->layer_fd);
    }
}

void td_steps_finish(struct td_steps *q, struct td_step *s)
{
    td_steps_layer(q, s, q->info->n_layers);
    atomic_fetch_add_explicit(&q->done, 1, memory_order_release); /* hands the slot to the loop */
    signal_fd(q->event_fd);
}

void td_steps_close(struct td_steps *q)
{
    /* release: what finished before is seen with it */
    atomic_store_explicit(&q->closed, true, memory_order_release);
    signal_fd(q->event_fd);
}

/* --- life --- */

static bool make_step(const struct td_steps *q, struct td_step *s)
{
    const struct td_engine_info *i = q->info;
    s->tokens = td_zalloc(i->max_tokens, sizeof *s->tokens);
    s->rows = td_zalloc(i->max_rows, sizeof *s->rows);
    s->tables = td_zalloc((size_t)i->max_rows * q->blocks_per_seq, sizeof *s->tables);
    s->results = td_zalloc(i->max_rows, sizeof *s->results);
    return s->tokens != NULL && s->rows != NULL && s->tables != NULL && s->results != NULL;
}

td_err td_steps_init(struct td_steps *q, const struct td_engine_info *info)
{
    uint32_t len = info->max_model_len;
    q->info = info;
    q->blocks_per_seq = (len + TD_KV_HASH_TOK - 1) / TD_KV_HASH_TOK;
    q->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    q->layer_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (q->event_fd < 0 || q->layer_fd < 0) {
        return TD_ERR_IO;
    }
    /* one more than none, so that a queue without slots is no failure */
    q->slots = td_zalloc((size_t)info->max_slots + 1, sizeof *q->slots);
    q->history = td_zalloc((size_t)info->max_slots * len + 1, sizeof *q->history);
    if (q->slots == NULL || q->history == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < info->max_slots; i++) {
        q->slots[i].history = q->history + (size_t)i * len;
    }
    for (uint32_t i = 0; i < TD_STEPS_SLOTS; i++) {
        if (!make_step(q, &q->steps[i])) {
            return TD_ERR_NO_MEMORY;
        }
    }
    return TD_OK;
}

void td_steps_fini(struct td_steps *q)
{
    for (uint32_t i = 0; i < TD_STEPS_SLOTS; i++) {
        free(q->steps[i].tokens);
        free(q->steps[i].rows);
        free(q->steps[i].tables);
        free(q->steps[i].results);
    }
    free(q->slots);
    free(q->history);
    if (q->event_fd >= 0) {
        (void)close(q->event_fd);
    }
    if (q->layer_fd >= 0) {
        (void)close(q->layer_fd);
    }
}
