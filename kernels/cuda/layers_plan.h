/* layers_plan.h - who does what in a launch of whole layers (layers.cu), and how many must be done before the next may begin.
 *
 * What: the schedule alone, in plain C, so that the kernel and the test that walks it (tests/unit/kernels/layers_plan_test.c)
 *   have one. A launch is stages, TK_STAGES a layer; a stage is units (parts of a product's tiles, attention's items) that are
 *   dealt to the blocks, and attention's rows on top. Every block goes through the stages in order.
 * Not: arithmetic; the bits do not depend on any of this.
 */
#ifndef TK_LAYERS_PLAN_H
#define TK_LAYERS_PLAN_H

#include "kernels/tk_cuda.h"

/* Of a layer. Attention reads the qkv before it: the launch before leaves the first. The last layer may end without one. */
enum tk_stage { TK_STAGE_ATTN, TK_STAGE_O, TK_STAGE_GATE_UP, TK_STAGE_DOWN, TK_STAGE_QKV };

TK_HOST_DEVICE static inline uint32_t tk_stage_kind(uint32_t s)
{
    return s % TK_STAGES;
}
TK_HOST_DEVICE static inline uint32_t tk_stage_layer(uint32_t s)
{
    return s / TK_STAGES;
}

/* A block's first unit of a stage; then every blocks-th. down and qkv from the far end: who has one unit less of gate+up goes
 * on with down, and who has none of qkv's has time for attention's items. */
TK_HOST_DEVICE static inline uint32_t tk_stage_first(uint32_t kind, uint32_t block, uint32_t blocks)
{
    return kind >= TK_STAGE_DOWN ? blocks - 1 - block : block;
}
/* The same of attention's rows (sequence x query head), which sum the items' parts. */
TK_HOST_DEVICE static inline uint32_t tk_stage_first_row(uint32_t block, uint32_t blocks)
{
    return blocks - 1 - block;
}

/* The qkv that attention of the same launch reads is not summed by the blocks that made it: attention waits for its parts. */
TK_HOST_DEVICE static inline bool tk_stage_is_summed(uint32_t kind, bool last)
{
    return kind != TK_STAGE_QKV || last;
}

/* Whether o's tokens, attention's output of so many sequences and query heads, come with a tag each. */
TK_HOST_DEVICE static inline bool tk_layers_are_tagged(uint32_t seqs, uint32_t heads)
{
    return seqs <= TK_LAYERS_TAGGED && heads <= TK_LAYERS_HEADS;
}

/* Blocks that take part in a stage of so many units and, of attention, rows. */
TK_HOST_DEVICE static inline uint32_t tk_stage_blocks(uint32_t units, uint32_t rows,
                                                      uint32_t blocks)
{
    const uint32_t a = units < blocks ? units : blocks, b = rows < blocks ? rows : blocks;
    return a + b < blocks ? a + b : blocks;
}

/* Whether a block tells that it is done with attention: where o's tokens come with tags nobody waits for it. */
TK_HOST_DEVICE static inline bool tk_stage_tells(bool tagged, bool has_item, bool has_row)
{
    return !tagged && (has_item || has_row);
}

/* Whether it waits for the input of the qkv before, before it tells: one that has rows alone waits for nobody where they have one
 * chunk each, and would be counted in a layer that others have not begun (layers_plan_test.c and layers_test.c have such
 * blocks). Who does not tell must not wait: the others may end the launch, and with it the count. */
TK_HOST_DEVICE static inline bool tk_stage_keeps_step(bool tells, bool has_item, uint32_t s)
{
    return s > 0 && tells && !has_item;
}

/* Whether a block needs the norm's scale of the input of a stage: for the stage, or for the attention behind it. */
TK_HOST_DEVICE static inline bool tk_stage_is_scaled(uint32_t kind, bool last, bool has_unit,
                                                     bool has_item)
{
    return (kind == TK_STAGE_GATE_UP && has_unit) ||
           (kind == TK_STAGE_QKV && (last ? has_unit : has_item));
}

#endif
