/* model_util.h - what several tests of common/model share: whole files in memory, exact-size copies
 * so that a sanitizer sees every byte read past the end, tiny models, and log lines caught in a
 * file. */
#ifndef TD_TESTS_UNIT_MODEL_MODEL_UTIL_H
#define TD_TESTS_UNIT_MODEL_MODEL_UTIL_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/log.h"
#include "common/model/gguf.h"
#include "tests/tiny/gguf_build.h"
#include "tests/tiny/tiny_gguf.h"
#include "tests/unit/check.h"

/* Copy that ends where its allocation ends, aligned to 16. */
static inline uint8_t *exact_copy(const void *data, size_t len)
{
    uint8_t *copy = malloc(len > 0 ? len : 1);

    assert_non_null(copy);
    if (len > 0) {
        memcpy(copy, data, len);
    }
    return copy;
}

static inline void read_whole(const char *path, struct td_buf *out)
{
    FILE *f = fopen(path, "rbe");
    uint8_t chunk[65536];
    size_t n;

    td_buf_init(out, (size_t)1 << 30);
    if (f == NULL) {
        fail_msg("%s cannot be opened", path);
        return;
    }
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0) {
        assert_int_equal(td_buf_append(out, chunk, n), TD_OK);
    }
    (void)fclose(f);
}

/* A file under tests/golden. */
static inline void read_golden(const char *name, struct td_buf *out)
{
    char path[512];

    (void)snprintf(path, sizeof path, "%s/%s", TD_GOLDEN_DIR, name);
    read_whole(path, out);
}

static inline void make_tiny(const struct td_tiny_params *p, struct td_buf *out)
{
    td_buf_init(out, TD_TINY_MAX_BYTES);
    assert_int_equal(td_tiny_write(p, out), TD_OK);
}

/* Between catch_log() and caught_log() lines go to a file; the latter returns them and restores the
 * descriptor. */
static inline FILE *catch_log(void)
{
    FILE *f = tmpfile();

    assert_non_null(f);
    td_log_set_fd(fileno(f));
    return f;
}

static inline void caught_log(FILE *f, char *out, size_t cap)
{
    size_t n;

    td_log_set_fd(2);
    rewind(f);
    n = fread(out, 1, cap - 1, f);
    out[n] = '\0';
    (void)fclose(f);
}

/* A reader of golden files: little-endian values in order. */
struct golden {
    const uint8_t *at;
    size_t left;
};

static inline const uint8_t *golden_bytes(struct golden *g, size_t n)
{
    const uint8_t *at = g->at;

    assert_true(n <= g->left);
    g->at += n;
    g->left -= n;
    return at;
}

static inline uint32_t golden_u32(struct golden *g)
{
    uint32_t v;

    memcpy(&v, golden_bytes(g, 4), 4);
    return v;
}

static inline float golden_f32(struct golden *g)
{
    float v;

    memcpy(&v, golden_bytes(g, 4), 4);
    return v;
}

static inline double golden_f64(struct golden *g)
{
    double v;

    memcpy(&v, golden_bytes(g, 8), 8);
    return v;
}

#endif
