#include "tests/bench/gpu/engine_seq.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/rng.h"

void es_need(td_err err, const char *what)
{
    if (err != TD_OK) {
        (void)fprintf(stderr, "engine-check: %s: %s\n", what, td_err_code(err));
        exit(2);
    }
}

struct es_set es_make(struct td_engine *e, uint32_t n, uint32_t max_tok, uint64_t seed)
{
    const struct td_engine_info *info = e->ops->info(e);
    struct es_set s = {.e = e, .n = n, .blocks_each = (max_tok + 15) / 16};
    struct td_rng r = {seed};
    td_block_id *all = calloc(info->n_blocks, sizeof *all);
    es_need(all != NULL && n <= ES_MAX_SEQS && n * s.blocks_each <= info->n_blocks ? TD_OK
                                                                                   : TD_ERR_CONFIG,
            "sequences do not fit the pool");
    for (uint32_t i = 0; i < info->n_blocks; i++) {
        all[i] = i;
    }
    for (uint32_t i = info->n_blocks; i > 1; i--) {
        uint32_t j = (uint32_t)td_rng_below(&r, i);
        td_block_id t = all[i - 1];
        all[i - 1] = all[j];
        all[j] = t;
    }
    s.blocks = all;
    for (uint32_t i = 0; i < n; i++) {
        s.seq[i] = (struct es_seq){.slot = i, .table = all + (size_t)i * s.blocks_each};
    }
    return s;
}

void es_drop(struct es_set *s)
{
    free(s->blocks);
}

struct td_row es_row(struct es_set *s, uint32_t i, const int32_t *tokens, uint32_t n, bool sample)
{
    struct es_seq *q = &s->seq[i];
    struct td_row row = {.seq = {i, 1},
                         .pos = q->pos,
                         .n = n,
                         .tokens = tokens,
                         .table = q->table,
                         .n_blocks = s->blocks_each,
                         .sampling = sample ? q->slot : TD_NO_SAMPLE};
    q->pos += n;
    return row;
}

void es_slot(struct es_set *s, uint32_t i, struct td_sampling_params p, const int32_t *prompt,
             uint32_t n_prompt, const int32_t *output, uint32_t n_output)
{
    struct td_sampling_state st = {p, prompt, n_prompt, output, n_output};
    es_need(s->e->ops->seq_set(s->e, s->seq[i].slot, &st), "seq_set");
}

struct td_sampling_params es_greedy(void)
{
    return (struct td_sampling_params){.top_p = 1, .repetition_penalty = 1, .max_tokens = 4096};
}

struct td_sampling_params es_sampled(uint64_t seed)
{
    struct td_sampling_params p = es_greedy();
    p.temperature = 0.8f;
    p.top_p = 0.95f;
    p.top_k = 50;
    p.seed = seed;
    return p;
}

struct td_step_result es_wait(struct td_engine *e)
{
    struct td_step_result r;
    struct pollfd fd = {.fd = e->ops->event_fd(e), .events = POLLIN};
    td_err err = e->ops->poll(e, &r);
    while (err == TD_ERR_AGAIN) {
        es_need(poll(&fd, 1, 60000) == 1 ? TD_OK : TD_ERR_STALLED, "a step does not end");
        err = e->ops->poll(e, &r);
    }
    es_need(err, "poll");
    for (uint32_t i = 0; i < r.n_rows; i++) {
        es_need(r.rows[i].err, "a row");
    }
    return r;
}

struct td_step_result es_step(struct td_engine *e, const struct td_row *rows, uint32_t n)
{
    td_ticket t;
    es_need(e->ops->submit(e, rows, n, &t), "submit");
    return es_wait(e);
}

int32_t es_prefill(struct es_set *s, uint32_t i, const int32_t *tokens, uint32_t n, uint32_t chunk,
                   bool sample)
{
    int32_t id = -1;
    for (uint32_t at = 0; at < n; at += chunk) {
        uint32_t len = n - at < chunk ? n - at : chunk;
        struct td_row row = es_row(s, i, tokens + at, len, sample && at + len == n);
        struct td_step_result r = es_step(s->e, &row, 1);
        id = r.rows[0].n_ids == 1 ? r.rows[0].ids[0] : -1;
    }
    return id;
}

void es_tokens(uint32_t vocab, uint64_t seed, int32_t *out, uint32_t n)
{
    struct td_rng r = {seed};
    for (uint32_t i = 0; i < n; i++) {
        out[i] = (int32_t)td_rng_below(&r, vocab);
    }
}
