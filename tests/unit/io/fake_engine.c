#include "tests/unit/io/fake_engine.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/rng.h"

static td_err no_submit(struct td_engine *e, const struct td_row *rows, size_t n, td_ticket *out)
{
    return TD_ERR_UNSUPPORTED;
}

static td_err no_poll(struct td_engine *e, struct td_step_result *out)
{
    return TD_ERR_AGAIN;
}

static td_err no_seq_set(struct td_engine *e, uint32_t slot, const struct td_sampling_state *s)
{
    return TD_ERR_UNSUPPORTED;
}

static uint32_t layers_done(struct td_engine *base, td_ticket t)
{
    struct fake_engine *e = (struct fake_engine *)base;
    uint64_t running = __atomic_load_n(&e->running, __ATOMIC_ACQUIRE);
    if (running != 0 && t != running) {
        return t < running ? e->info.n_layers : 0;
    }
    return __atomic_load_n(&e->layers, __ATOMIC_ACQUIRE);
}

static const struct td_engine_info *info(const struct td_engine *e)
{
    return &((const struct fake_engine *)e)->info;
}

static int no_fd(const struct td_engine *e)
{
    return -1;
}

static int layer_fd(const struct td_engine *e)
{
    return ((const struct fake_engine *)e)->fd;
}

static void *pool_base(const struct td_engine *e)
{
    return ((const struct fake_engine *)e)->pool;
}

static void no_destroy(struct td_engine *e)
{
}

bool fake_engine_init(struct fake_engine *e, uint32_t n_blocks, uint32_t n_layers,
                      uint32_t slice_bytes)
{
    static const struct td_engine_ops ops = {
        .submit = no_submit,
        .poll = no_poll,
        .layers_done = layers_done,
        .seq_set = no_seq_set,
        .info = info,
        .event_fd = no_fd,
        .layer_fd = layer_fd,
        .pool_base = pool_base,
        .destroy = no_destroy,
    };
    *e = (struct fake_engine){.base = {&ops}};
    e->info.layout = (struct td_kv_layout){
        .version = 1,
        .n_layers = n_layers,
        .block_tok = 16,
        .slice_bytes = slice_bytes,
        .block_bytes = (uint64_t)n_layers * slice_bytes,
    };
    e->info.n_layers = n_layers;
    e->info.n_blocks = n_blocks;
    e->info.numerics = "fake";
    e->pool = aligned_alloc(4096, (fake_engine_bytes(e) + 4095) & ~(size_t)4095);
    e->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (e->pool == NULL || e->fd < 0) {
        return false;
    }
    memset(e->pool, 0, fake_engine_bytes(e));
    return true;
}

void fake_engine_fini(struct fake_engine *e)
{
    free(e->pool);
    e->pool = NULL;
    if (e->fd >= 0) {
        (void)close(e->fd);
    }
}

void fake_engine_set_layers(struct fake_engine *e, uint32_t layers)
{
    uint64_t one = 1;
    __atomic_store_n(&e->layers, layers, __ATOMIC_RELEASE);
    while (write(e->fd, &one, sizeof one) < 0) {
    }
}

void fake_engine_set_step(struct fake_engine *e, td_ticket running, uint32_t layers)
{
    /* The new step's count first, so that nobody sees it with the old one's. */
    if (__atomic_load_n(&e->running, __ATOMIC_RELAXED) != running) {
        __atomic_store_n(&e->layers, 0, __ATOMIC_RELEASE);
        __atomic_store_n(&e->running, running, __ATOMIC_RELEASE);
    }
    fake_engine_set_layers(e, layers);
}

size_t fake_engine_bytes(const struct fake_engine *e)
{
    return (size_t)e->info.n_blocks * e->info.layout.block_bytes;
}

/* A slice is rows of ROW words: the first tells the row, the others only the stamp (so that sanitizer builds, which look
 * at every access, can copy and compare rows at once). */
#define ROW 64
static void row_of(uint64_t stamp, uint64_t row[ROW])
{
    for (size_t i = 0; i < ROW; i++) {
        row[i] = td_mix64(stamp * 0x10001 + i);
    }
}

void fake_engine_fill(struct fake_engine *e, uint32_t block, uint32_t layer, uint64_t stamp)
{
    uint8_t *at = td_engine_slice(&e->base, block, layer);
    uint64_t row[ROW];
    row_of(stamp, row);
    for (size_t i = 0; i < e->info.layout.slice_bytes; i += sizeof row) {
        row[0] = td_mix64(stamp ^ i);
        memcpy(at + i, row, sizeof row);
    }
}

bool fake_engine_holds(const struct fake_engine *e, uint32_t block, uint32_t layer, uint64_t stamp)
{
    const uint8_t *at = td_engine_slice(&e->base, block, layer);
    uint64_t row[ROW];
    row_of(stamp, row);
    for (size_t i = 0; i < e->info.layout.slice_bytes; i += sizeof row) {
        row[0] = td_mix64(stamp ^ i);
        if (memcmp(at + i, row, sizeof row) != 0) {
            return false;
        }
    }
    return true;
}

void fake_engine_poison(struct fake_engine *e, uint8_t byte)
{
    memset(e->pool, byte, fake_engine_bytes(e));
}

bool fake_engine_is_poison(const struct fake_engine *e, uint32_t block, uint8_t byte)
{
    const uint8_t *p = td_engine_slice(&e->base, block, 0);
    /* All bytes equal the first: compare the block with itself, one byte on. */
    return p[0] == byte && memcmp(p, p + 1, e->info.layout.block_bytes - 1) == 0;
}
