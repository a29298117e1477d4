/* Which kernels a device runs, and the host-side work lists of the attention kernels. No CUDA here: unit tests run it anywhere. */
#include <stdlib.h>

#include "kernels/tk_cuda.h"

td_err tk_path_for(uint32_t major, uint32_t minor, enum tk_path wanted, enum tk_path *out)
{
    /* code for sm_90a runs on exactly that */
    const bool hopper = major == 9 && minor == 0;
    if (major < 8 || (wanted == TK_PATH_SM90A && !hopper)) {
        return TD_ERR_UNSUPPORTED;
    }
    *out = hopper && wanted != TK_PATH_SM80 ? TK_PATH_SM90A : TK_PATH_SM80;
    return TD_OK;
}

size_t tk_kv_slice_bytes(uint32_t n_kv_heads, uint32_t head_dim, uint32_t header_bytes)
{
    const size_t raw = (size_t)2 * n_kv_heads * TK_BLOCK_TOK * head_dim * 2 + header_bytes;
    return (raw + 127) & ~(size_t)127;
}

size_t tk_plan_words(uint32_t max_seqs, uint32_t max_tokens_total)
{
    /* every sequence may waste most of one chunk */
    return 1 + TK_MAX_SEQS + (size_t)max_tokens_total / TK_CHUNK_TOK + max_seqs;
}

struct cut {
    uint32_t first, end; /* chunks */
};
static struct cut chunks_of(int32_t len, uint32_t window)
{
    const int32_t tok = tk_chunk_tok(len);
    if (len <= 0) {
        return (struct cut){0, 0};
    }
    return (struct cut){(uint32_t)(tk_window_start(len, (int32_t)window) / tok),
                        (uint32_t)((len - 1) / tok + 1)};
}

td_err tk_plan_window_host(const int32_t *lens, uint32_t n_seqs, uint32_t window,
                           uint32_t *out_words, size_t words, uint32_t *out_entries)
{
    if (n_seqs > TK_MAX_SEQS || window > INT32_MAX) {
        return TD_ERR_UNSUPPORTED;
    }
    size_t n = 0;
    for (uint32_t i = 0; i < n_seqs; i++) {
        const struct cut c = chunks_of(lens[i], window);
        n += c.end - c.first;
    }
    if (1 + TK_MAX_SEQS + n > words) {
        return TD_ERR_FULL;
    }
    uint32_t *entry = out_words + 1 + TK_MAX_SEQS;
    uint32_t at = 0;
    for (uint32_t i = 0; i < n_seqs; i++) {
        const struct cut c = chunks_of(lens[i], window);
        out_words[1 + i] = at;
        for (uint32_t j = c.first; j < c.end; j++) {
            entry[at++] = i << 16 | j | (lens[i] > TK_CHUNK_LONG ? TK_CHUNK_IS_LONG : 0);
        }
    }
    out_words[0] = at;
    *out_entries = at;
    return TD_OK;
}

td_err tk_plan_host(const int32_t *lens, uint32_t n_seqs, uint32_t *out_words, size_t words,
                    uint32_t *out_entries)
{
    return tk_plan_window_host(lens, n_seqs, 0, out_words, words, out_entries);
}

static uint32_t key_tiles(const struct tk_chunk *c, uint32_t tile)
{
    const uint32_t rows_end = (tile + 1) * TK_TILE_ROWS;
    const uint32_t last =
        (uint32_t)c->pos0 + (rows_end < (uint32_t)c->n ? rows_end : (uint32_t)c->n) - 1;
    return last / TK_TILE_KEYS + 1;
}

struct tile_key {
    uint32_t keys, entry;
};

static int by_work(const void *a, const void *b)
{
    const struct tile_key *x = a, *y = b;
    if (x->keys != y->keys) {
        return x->keys > y->keys ? -1 : 1;
    }
    return x->entry < y->entry ? -1 : x->entry > y->entry;
}

/* Sorts through a table of pairs on the heap: once per prefill step, not per token. */
td_err tk_tiles_host(const struct tk_chunk *chunks, uint32_t n_chunks, uint32_t *out_tiles,
                     size_t cap, uint32_t *out_n)
{
    size_t n = 0;
    for (uint32_t i = 0; i < n_chunks; i++) {
        if (chunks[i].n < 0 || chunks[i].pos0 < 0 || chunks[i].n > 65535 * TK_TILE_ROWS ||
            n_chunks > 65535) {
            return TD_ERR_UNSUPPORTED;
        }
        n += ((size_t)chunks[i].n + TK_TILE_ROWS - 1) / TK_TILE_ROWS;
    }
    if (n > cap) {
        return TD_ERR_FULL;
    }
    struct tile_key *t = malloc((n != 0 ? n : 1) * sizeof *t);
    if (t == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    size_t at = 0;
    for (uint32_t i = 0; i < n_chunks; i++) {
        const uint32_t tiles = ((uint32_t)chunks[i].n + TK_TILE_ROWS - 1) / TK_TILE_ROWS;
        for (uint32_t j = 0; j < tiles; j++) {
            t[at].keys = key_tiles(&chunks[i], j);
            t[at].entry = i << 16 | j;
            at++;
        }
    }
    qsort(t, n, sizeof *t, by_work);
    for (size_t i = 0; i < n; i++) {
        out_tiles[i] = t[i].entry;
    }
    free(t);
    *out_n = (uint32_t)n;
    return TD_OK;
}
