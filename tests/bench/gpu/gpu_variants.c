/* A whole decode step's layers as one launch, its products between two attentions as one launch and as a launch each, timed in
 * turn, so that one look at a device decides which rows get which. None moves a bit of any result. */
#include <stdio.h>

#include "tests/bench/gpu/gpu_cases.h"
#include "tests/bench/gpu/gpu_model.h"

#define SAMPLES 25
#define ROUNDS  3

static void do_step(void *ctx, tk_stream s, int i)
{
    gm_step(ctx, s, false);
    (void)i;
}

static void step_case(struct gm *m, uint32_t rows, uint32_t ctx)
{
    static const char *const names[] = {"step.layers", "step.chain", "step.launches"};
    const int first = rows <= TK_LAYERS_ROWS ? GM_LAYERS : GM_CHAIN, ways = GM_LAUNCHES + 1 - first;
    gm_kv(m, rows, ctx);
    gm_decode_prepare(m, rows, ctx);
    for (int i = 0; i < ways * ROUNDS; i++) { /* turn by turn: the card warms up for all */
        m->products = (enum gm_products)(first + i % ways);
        gpu_say(names[m->products], gpu_time_graph(do_step, m, 1, SAMPLES), 0, 0,
                ", \"B\": %u, \"ctx\": %u", rows, ctx);
    }
    m->products = GM_LAYERS;
    gm_decode_drop(m);
    gm_kv_drop(m);
}

void gpu_variants_step(void)
{
    struct gm *m = gm_create(&gm_llama3_8b, 1);
    step_case(m, 1, 1024);
    step_case(m, 2, 1024);
    step_case(m, 4, 1024);
    step_case(m, 1, 8192);
    step_case(m, 8, 1024);
    step_case(m, 16, 1024);
    step_case(m, 32, 1024);
    gm_destroy(m);
}
