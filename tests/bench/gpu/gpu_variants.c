/* Candidates for what runs now, each timed beside it in one call, so that one look at a device decides. None moves a bit of
 * any result. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/gpu/gpu_cases.h"
#include "tests/bench/gpu/gpu_model.h"

#define SAMPLES 25
#define BETTER  0.997 /* of the best so far: less is noise */

/* ---- a whole decode step: how much of its weights a product brings into L2 before its turn ---- */

static void do_step(void *ctx, tk_stream s, int i)
{
    gm_step(ctx, s, false);
    (void)i;
}

static double time_step(struct gm *m, const char *name)
{
    const struct gpu_time t = gpu_time_graph(do_step, m, 1, SAMPLES);
    gpu_say(name, t, 0, 0, ", \"B\": %u, \"ctx\": %u, \"ahead\": \"%u,%u,%u,%u\", \"blocks\": %u",
            m->rows, m->table_stride * TK_BLOCK_TOK, m->ahead[GM_QKV], m->ahead[GM_O],
            m->ahead[GM_GU], m->ahead[GM_DN], m->attn_blocks);
    return t.median;
}

/* One operation after the other, keeping what helps: first the one behind attention, where memory idles. */
static double search_ahead(struct gm *m, double best)
{
    static const enum gm_op order[] = {GM_O, GM_GU, GM_DN, GM_QKV};
    static const uint32_t slices[] = {4, 10, 24, 64};
    for (size_t o = 0; o < sizeof order / sizeof order[0]; o++) {
        uint32_t keep = 0;
        for (size_t i = 0; i < sizeof slices / sizeof slices[0]; i++) {
            m->ahead[order[o]] = slices[i];
            const double us = time_step(m, "step.variant");
            if (us < BETTER * best) {
                best = us;
                keep = slices[i];
            }
        }
        m->ahead[order[o]] = keep;
    }
    return best;
}

static void step_case(struct gm *m, uint32_t rows, uint32_t ctx)
{
    gm_kv(m, rows, ctx);
    gm_decode_prepare(m, rows, ctx);
    memset(m->ahead, 0, sizeof m->ahead);
    m->attn_blocks = 0;
    double best = search_ahead(m, time_step(m, "step.variant"));
    const uint32_t tok = (uint32_t)tk_chunk_tok((int32_t)ctx);
    m->attn_blocks = rows * m->s.kv_heads * ((ctx + tok - 1) / tok);
    if (!(time_step(m, "step.variant") < BETTER * best)) {
        m->attn_blocks = 0;
    }
    uint32_t found[GM_OPS];
    const uint32_t blocks = m->attn_blocks;
    memcpy(found, m->ahead, sizeof found);
    for (int i = 0; i < 3; i++) { /* turn by turn: the card warms up for both */
        memset(m->ahead, 0, sizeof m->ahead);
        m->attn_blocks = 0;
        (void)time_step(m, "step.now");
        memcpy(m->ahead, found, sizeof found);
        m->attn_blocks = blocks;
        (void)time_step(m, "step.found");
    }
    gm_decode_drop(m);
    gm_kv_drop(m);
}

void gpu_variants_step(void)
{
    struct gm *m = gm_create(&gm_llama3_8b, 1);
    step_case(m, 1, 1024);
    step_case(m, 8, 1024);
    step_case(m, 64, 1024);
    gm_destroy(m);
}
