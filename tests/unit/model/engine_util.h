/* engine_util.h - what the tests of the CPU engine share: a tiny model, engines over it, steps that
 * are waited for, and greedy or seeded generation through the paged interface. */
#ifndef TD_TESTS_UNIT_MODEL_ENGINE_UTIL_H
#define TD_TESTS_UNIT_MODEL_ENGINE_UTIL_H

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "common/model/cpu_engine.h"
#include "common/model/model.h"
#include "tests/unit/model/model_util.h"

#define EU_BLOCKS  96
#define EU_ROWS    6
#define EU_TOKENS  320
#define EU_SLOTS   6
#define EU_MAX_LEN 600

struct eu_model {
    struct td_buf file;
    struct td_model *m;
};

static inline struct eu_model eu_model_make(const struct td_tiny_params *p)
{
    struct eu_model out;

    make_tiny(p, &out.file);
    assert_int_equal(td_model_open_memory(out.file.data, out.file.len, p->type, &out.m), TD_OK);
    return out;
}

static inline struct eu_model eu_model_open(const char *type)
{
    struct td_tiny_params p = td_tiny_defaults();

    p.type = type;
    return eu_model_make(&p);
}

/* llama, llama with a window, qwen2, qwen3: i < EU_ARCHS. */
#define EU_ARCHS 4
static inline struct eu_model eu_model_arch(uint32_t i)
{
    static const struct {
        const char *arch;
        uint32_t window, head_dim;
    } archs[EU_ARCHS] = {{NULL, 0, 0}, {"llama", 50, 0}, {"qwen2", 0, 0}, {"qwen3", 0, 128}};
    struct td_tiny_params p = td_tiny_defaults();

    p.arch = archs[i].arch;
    p.window = archs[i].window;
    p.head_dim = archs[i].head_dim;
    return eu_model_make(&p);
}

static inline void eu_model_close(struct eu_model *m)
{
    (void)td_model_close(m->m);
    td_buf_fini(&m->file);
}

static inline struct td_cpu_engine_params eu_params(const char *numerics, enum td_cpu_isa isa,
                                                    uint32_t threads)
{
    return (struct td_cpu_engine_params){.numerics = numerics,
                                         .isa = isa,
                                         .n_threads = threads,
                                         .n_blocks = EU_BLOCKS,
                                         .max_rows = EU_ROWS,
                                         .max_tokens = EU_TOKENS,
                                         .max_slots = EU_SLOTS,
                                         .max_model_len = EU_MAX_LEN};
}

/* NULL when this machine lacks the instruction set. */
static inline struct td_engine *eu_engine(const struct eu_model *m, const char *numerics,
                                          enum td_cpu_isa isa, uint32_t threads)
{
    struct td_cpu_engine_params p = eu_params(numerics, isa, threads);
    struct td_engine *e = NULL;
    char text[512];
    FILE *log = catch_log();
    td_err err = td_cpu_engine_create(m->m, &p, &e);

    caught_log(log, text, sizeof text);
    assert_true(err == TD_OK || (err == TD_ERR_CONFIG && isa != TD_ISA_AUTO));
    return e;
}

static inline void eu_tokens(const struct eu_model *m, uint64_t seed, int32_t *out, uint32_t n)
{
    struct td_rng r = {seed};

    for (uint32_t i = 0; i < n; i++) {
        out[i] = (int32_t)td_rng_below(&r, m->m->hp.n_vocab);
    }
}

static inline struct td_sampling_params eu_sampling(float temperature, uint64_t seed)
{
    return (struct td_sampling_params){.temperature = temperature,
                                       .top_p = 0.95f,
                                       .repetition_penalty = 1,
                                       .max_tokens = 64,
                                       .seed = seed};
}

static inline void eu_set(struct td_engine *e, uint32_t slot, struct td_sampling_params p)
{
    struct td_sampling_state s = {.p = p};

    assert_int_equal(e->ops->seq_set(e, slot, &s), TD_OK);
}

/* The next finished step. */
static inline struct td_step_result eu_wait(struct td_engine *e)
{
    struct td_step_result r;
    struct pollfd fd = {.fd = e->ops->event_fd(e), .events = POLLIN};
    td_err err = e->ops->poll(e, &r);

    while (err == TD_ERR_AGAIN) {
        assert_true(poll(&fd, 1, 60000) == 1);
        err = e->ops->poll(e, &r);
    }
    assert_int_equal(err, TD_OK);
    return r;
}

static inline struct td_step_result eu_step(struct td_engine *e, const struct td_row *rows,
                                            uint32_t n)
{
    td_ticket ticket;

    assert_int_equal(e->ops->submit(e, rows, n, &ticket), TD_OK);
    struct td_step_result r = eu_wait(e);
    assert_true(r.ticket == ticket && r.n_rows == n);
    return r;
}

/* One sequence over blocks first, first + stride, ... */
struct eu_seq {
    uint32_t slot, pos;
    td_block_id table[(EU_MAX_LEN + 15) / 16];
};

static inline struct eu_seq eu_seq_new(uint32_t slot, uint32_t first, uint32_t stride)
{
    struct eu_seq s = {.slot = slot};

    for (uint32_t i = 0; i < TD_COUNT(s.table); i++) {
        s.table[i] = (first + i * stride) % EU_BLOCKS;
    }
    return s;
}

static inline struct td_row eu_row(struct eu_seq *s, const int32_t *tokens, uint32_t n, bool last)
{
    struct td_row row = {.seq = {s->slot, 7},
                         .pos = s->pos,
                         .n = n,
                         .tokens = tokens,
                         .table = s->table,
                         .n_blocks = (uint32_t)TD_COUNT(s->table),
                         .sampling = last ? s->slot : TD_NO_SAMPLE};

    s->pos += n;
    return row;
}

/* Prefills by chunks and then generates n ids alone. */
static inline void eu_generate(struct td_engine *e, struct eu_seq *s, const int32_t *prompt,
                               uint32_t n_prompt, uint32_t chunk, int32_t *out, uint32_t n)
{
    for (uint32_t at = 0; at < n_prompt; at += chunk) {
        uint32_t len = n_prompt - at < chunk ? n_prompt - at : chunk;
        struct td_row row = eu_row(s, prompt + at, len, at + len == n_prompt);
        struct td_step_result r = eu_step(e, &row, 1);

        assert_int_equal(r.rows[0].err, TD_OK);
        assert_int_equal(r.rows[0].n_ids, at + len == n_prompt);
        out[0] = r.rows[0].ids[0];
    }
    for (uint32_t i = 1; i < n; i++) {
        struct td_row row = eu_row(s, &out[i - 1], 1, true);
        out[i] = eu_step(e, &row, 1).rows[0].ids[0];
    }
}

#endif
