#include "common/model/random_model.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/assert.h"
#include "common/base/rng.h"
#include "common/model/dequant.h"
#include "common/model/random_model_priv.h"

/* Design: a value is a sum of four random bytes, nearly normal, and each tensor has a table from
 * that sum to its bfloat16, so a value costs half a hash, three additions and a load. Threads take
 * pieces of a few MiB one after another and write each where it belongs. */

#define PIECE_VALUES (2u * 1024 * 1024)
#define SUMS         1021 /* of four bytes */
#define SUM_MEAN     510
#define SUM_STD      147.8 /* sqrt(4 (256^2 - 1) / 12) */
#define LOGIT_STD    3.0
#define EMBD_STD     0.05
#define QUIET        0.1 /* of rows that are no printable text */

/* ---- shapes ---- */

static const struct td_random_shape shapes[] = {
    {"llama3-8b", TD_ARCH_LLAMA, 32, 4096, 14336, 32, 8, 128, 128256, 8192, 0, 500000, 1e-5, false,
     false},
    {"qwen3-8b", TD_ARCH_QWEN3, 36, 4096, 12288, 32, 8, 128, 151936, 40960, 0, 1000000, 1e-6, false,
     false},
    {"tiny-llama", TD_ARCH_LLAMA, 3, 256, 512, 4, 2, 64, 512, 2048, 0, 10000, 1e-5, false, true},
    {"tiny-qwen3", TD_ARCH_QWEN3, 3, 256, 512, 4, 2, 128, 512, 2048, 0, 1000000, 1e-6, true, false},
    {"tiny-qwen2", TD_ARCH_QWEN2, 3, 256, 512, 4, 2, 64, 512, 2048, 0, 1000000, 1e-6, true, false},
    {"tiny-mistral", TD_ARCH_MISTRAL, 3, 256, 512, 4, 1, 64, 512, 2048, 72, 10000, 1e-5, false,
     false},
};

const struct td_random_shape *td_random_shape_at(size_t i)
{
    return i < TD_COUNT(shapes) ? &shapes[i] : NULL;
}

const struct td_random_shape *td_random_shape_find(const char *name)
{
    for (size_t i = 0; i < TD_COUNT(shapes); i++) {
        if (strcmp(shapes[i].name, name) == 0) {
            return &shapes[i];
        }
    }
    return NULL;
}

/* ---- tensors ---- */

struct tensor {
    char name[80];
    uint32_t rows, cols; /* rows 0: a vector */
    double mean, std;
    bool vocab; /* rows are tokens */
    uint32_t shard;
    uint64_t begin; /* in the shard's data */
};

struct list {
    size_t n;
    uint64_t bytes;
    struct tensor t[TD_RANDOM_MAX_TENSORS];
};

static uint64_t n_values(const struct tensor *t)
{
    return (uint64_t)(t->rows > 0 ? t->rows : 1) * t->cols;
}

static uint64_t n_bytes(const struct tensor *t)
{
    return 2 * n_values(t);
}

static void add(struct list *l, const struct tensor *t)
{
    TD_INSIST(l->n < TD_RANDOM_MAX_TENSORS);
    l->t[l->n++] = *t;
    l->bytes += n_bytes(t);
}

#define VECTOR(n, c, m, s)                                                                         \
    {                                                                                              \
        .name = n, .cols = c, .mean = m, .std = s                                                  \
    }
#define MATRIX(n, r, c, s)                                                                         \
    {                                                                                              \
        .name = n, .rows = r, .cols = c, .std = s                                                  \
    }

static void add_layer(struct list *l, const struct td_random_shape *s, uint32_t layer)
{
    uint32_t q = s->n_heads * s->head_dim;
    uint32_t kv = s->n_kv_heads * s->head_dim;
    double in = 1 / sqrt((double)s->n_embd);
    bool bias = s->arch == TD_ARCH_QWEN2;
    bool norm = s->arch == TD_ARCH_QWEN3;
    const struct {
        bool on;
        struct tensor t;
    } parts[] = {
        {true, VECTOR("input_layernorm.weight", s->n_embd, 1, 0.1)},
        /* Queries are longer than keys: attention picks, so the answer depends on the prompt. */
        {true, MATRIX("self_attn.q_proj.weight", q, s->n_embd, 3 * in)},
        {true, MATRIX("self_attn.k_proj.weight", kv, s->n_embd, in)},
        {true, MATRIX("self_attn.v_proj.weight", kv, s->n_embd, 2 * in)},
        {bias, VECTOR("self_attn.q_proj.bias", q, 0, 0.5)},
        {bias, VECTOR("self_attn.k_proj.bias", kv, 0, 0.5)},
        {bias, VECTOR("self_attn.v_proj.bias", kv, 0, 0.5)},
        {norm, VECTOR("self_attn.q_norm.weight", s->head_dim, 2, 0.2)},
        {norm, VECTOR("self_attn.k_norm.weight", s->head_dim, 1, 0.1)},
        {true, MATRIX("self_attn.o_proj.weight", s->n_embd, q, 1 / sqrt((double)q))},
        {true, VECTOR("post_attention_layernorm.weight", s->n_embd, 1, 0.1)},
        {true, MATRIX("mlp.gate_proj.weight", s->n_ffn, s->n_embd, 2 * in)},
        {true, MATRIX("mlp.up_proj.weight", s->n_ffn, s->n_embd, 2 * in)},
        {true, MATRIX("mlp.down_proj.weight", s->n_embd, s->n_ffn, 1 / sqrt((double)s->n_ffn))},
    };

    for (size_t i = 0; i < TD_COUNT(parts); i++) {
        struct tensor t = parts[i].t;

        (void)snprintf(t.name, sizeof t.name, "model.layers.%u.%s", layer, parts[i].t.name);
        if (parts[i].on) {
            add(l, &t);
        }
    }
}

static void add_all(struct list *l, const struct td_random_shape *s)
{
    double to_logits = LOGIT_STD / EMBD_STD / sqrt((double)s->n_embd);
    struct tensor embd = MATRIX("model.embed_tokens.weight", s->n_vocab, s->n_embd, EMBD_STD);
    struct tensor norm = VECTOR("model.norm.weight", s->n_embd, to_logits, to_logits / 10);
    struct tensor head = MATRIX("lm_head.weight", s->n_vocab, s->n_embd, EMBD_STD);

    embd.vocab = head.vocab = true;
    add(l, &embd);
    for (uint32_t i = 0; i < s->n_layers; i++) {
        add_layer(l, s, i);
    }
    add(l, &norm);
    if (!s->tied) {
        add(l, &head);
    }
}

/* The shard and the place of every tensor; returns the number of shards. */
static uint32_t place(struct list *l, uint64_t shard_bytes)
{
    uint32_t shard = 0;
    uint64_t at = 0;

    for (size_t i = 0; i < l->n; i++) {
        if (at > 0 && at + n_bytes(&l->t[i]) > shard_bytes) {
            shard++;
            at = 0;
        }
        l->t[i].shard = shard;
        l->t[i].begin = at;
        at += n_bytes(&l->t[i]);
    }
    return shard + 1;
}

uint64_t td_random_model_bytes(const struct td_random_shape *s)
{
    struct list *l = td_zalloc(1, sizeof *l);
    uint64_t bytes = 0;

    if (l != NULL) {
        add_all(l, s);
        bytes = l->bytes;
        free(l);
    }
    return bytes;
}

/* ---- values ---- */

static uint64_t key_of(uint64_t seed, const char *name)
{
    uint64_t h = td_mix64(seed ^ 0x7461646d6d6f6465ull);

    for (; *name != '\0'; name++) {
        h = td_mix64(h ^ (uint8_t)*name);
    }
    return h;
}

/* Sum of the bytes of the low or high half. */
static uint32_t sum_of(uint64_t z, uint32_t half)
{
    uint32_t x = (uint32_t)(z >> (32 * half));
    uint32_t v = (x & 0x00ff00ffu) + (x >> 8 & 0x00ff00ffu);

    return (v + (v >> 16)) & 0x7ffu;
}

static void fill_table(uint16_t table[SUMS], double mean, double std)
{
    for (int i = 0; i < SUMS; i++) {
        table[i] = td_f32_to_bf16((float)(mean + std * (i - SUM_MEAN) / SUM_STD));
    }
}

static void fill_values(uint64_t key, uint64_t first, size_t n, const uint16_t table[SUMS],
                        uint16_t *out)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t index = first + i;
        uint64_t z = td_mix64(key + (index / 2) * 0x9e3779b97f4a7c15ull);

        out[i] = table[sum_of(z, (uint32_t)(index % 2))];
    }
}

/* ---- the job ---- */

struct job {
    const struct td_random_params *p;
    const struct td_tiny_vocab *vocab;
    const struct list *list;
    const int *fds;             /* of the shards */
    const uint64_t *data_begin; /* behind each shard's header */
    atomic_size_t next;         /* piece over all tensors */
    atomic_ullong done;         /* bytes */
    atomic_int failed;          /* errno */
};

static uint64_t pieces_of(const struct tensor *t)
{
    return (n_values(t) + PIECE_VALUES - 1) / PIECE_VALUES;
}

/* Values [first, first + n) of a tensor, by rows where rows differ. */
static void fill_piece(const struct job *j, const struct tensor *t, uint64_t first, size_t n,
                       uint16_t *out)
{
    uint16_t loud[SUMS];
    uint16_t quiet[SUMS];
    uint64_t key = key_of(j->p->seed, t->name);

    fill_table(loud, t->mean, t->std);
    fill_table(quiet, t->mean, t->std * QUIET);
    for (size_t i = 0; i < n;) {
        uint64_t row = (first + i) / t->cols;
        uint64_t rest = t->cols - (first + i) % t->cols;
        size_t len = rest < n - i ? (size_t)rest : n - i;
        bool silent = t->vocab && (row >= j->vocab->n_tokens || !j->vocab->printable[row]);

        fill_values(key, first + i, len, silent ? quiet : loud, out + i);
        i += len;
    }
}

static bool write_at(int fd, const void *data, size_t len, uint64_t offset)
{
    const char *at = data;

    while (len > 0) {
        ssize_t n = pwrite(fd, at, len, (off_t)offset);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return false;
        }
        at += n;
        len -= (size_t)n;
        offset += (uint64_t)n;
    }
    return true;
}

static bool run_piece(struct job *j, const struct tensor *t, uint64_t piece, uint16_t *values)
{
    uint64_t first = piece * PIECE_VALUES;
    uint64_t left = n_values(t) - first;
    size_t n = left < PIECE_VALUES ? (size_t)left : PIECE_VALUES;

    fill_piece(j, t, first, n, values);
    if (!write_at(j->fds[t->shard], values, 2 * n,
                  j->data_begin[t->shard] + t->begin + 2 * first)) {
        return false;
    }
    /* relaxed: a number to show */
    uint64_t done = atomic_fetch_add_explicit(&j->done, 2 * n, memory_order_relaxed) + 2 * n;
    if (j->p->progress != NULL) {
        j->p->progress(j->p->arg, done);
    }
    return true;
}

/* The tensor that piece *piece over all belongs to, and which of its own that is; NULL behind the
 * last. */
static const struct tensor *locate(const struct list *l, uint64_t *piece)
{
    for (size_t i = 0; i < l->n; i++) {
        if (*piece < pieces_of(&l->t[i])) {
            return &l->t[i];
        }
        *piece -= pieces_of(&l->t[i]);
    }
    return NULL;
}

static void *work(void *arg)
{
    struct job *j = arg;
    uint16_t *values = td_zalloc(PIECE_VALUES, sizeof *values);

    if (values == NULL) {
        atomic_store(&j->failed, ENOMEM);
        return NULL;
    }
    while (atomic_load(&j->failed) == 0) {
        uint64_t piece = atomic_fetch_add(&j->next, 1);
        const struct tensor *t = locate(j->list, &piece);

        if (t == NULL) {
            break;
        }
        if (!run_piece(j, t, piece, values)) {
            atomic_store(&j->failed, errno != 0 ? errno : EIO);
        }
    }
    free(values);
    return NULL;
}

/* The caller works too, so a thread that cannot be made is only missed. */
static td_err run_job(struct job *j, const struct td_why *w)
{
    pthread_t threads[TD_RANDOM_MAX_THREADS];
    uint32_t n = 0;
    int failed;

    while (n + 1 < j->p->n_threads && pthread_create(&threads[n], NULL, work, j) == 0) {
        n++;
    }
    (void)work(j);
    while (n > 0) {
        (void)pthread_join(threads[--n], NULL);
    }
    failed = atomic_load(&j->failed);
    return failed == 0 ? TD_OK
                       : td_why(w, failed == ENOMEM ? TD_ERR_NO_MEMORY : TD_ERR_IO,
                                "cannot write the weights: %s", strerrordesc_np(failed));
}

/* ---- shards ---- */

static void shard_name(uint32_t i, uint32_t n, char out[64])
{
    if (n == 1) {
        (void)snprintf(out, 64, "model.safetensors");
    } else {
        (void)snprintf(out, 64, "model-%05u-of-%05u.safetensors", i + 1, n);
    }
}

static td_err put_header(const struct list *l, uint32_t shard, struct td_buf *b)
{
    TD_TRY(td_buf_puts(b, "{\"__metadata__\":{\"format\":\"pt\"}"));
    for (size_t i = 0; i < l->n; i++) {
        const struct tensor *t = &l->t[i];

        if (t->shard != shard) {
            continue;
        }
        TD_TRY(td_buf_printf(b, ",\"%s\":{\"dtype\":\"BF16\",\"shape\":[", t->name));
        TD_TRY(t->rows > 0 ? td_buf_printf(b, "%u,%u", t->rows, t->cols)
                           : td_buf_printf(b, "%u", t->cols));
        TD_TRY(td_buf_printf(b, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)t->begin,
                             (unsigned long long)(t->begin + n_bytes(t))));
    }
    TD_TRY(td_buf_puts(b, "}"));
    while (b->len % 8 != 0) {
        TD_TRY(td_buf_puts(b, " "));
    }
    return TD_OK;
}

static td_err open_shard(const struct list *l, const char *path, uint32_t shard, int *out_fd,
                         uint64_t *out_begin, const struct td_why *w)
{
    struct td_buf b;
    uint8_t len[8];
    td_err e;
    bool ok = false;

    td_buf_init(&b, 1024u * 1024);
    e = put_header(l, shard, &b);
    for (int i = 0; i < 8; i++) {
        len[i] = (uint8_t)((uint64_t)b.len >> (8 * i));
    }
    *out_begin = 8 + b.len;
    *out_fd = e == TD_OK ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) : -1;
    ok = *out_fd >= 0 && write_at(*out_fd, len, 8, 0) && write_at(*out_fd, b.data, b.len, 8);
    td_buf_fini(&b);
    TD_TRY(e);
    return ok ? TD_OK : td_why(w, TD_ERR_IO, "cannot write %s: %s", path, strerrordesc_np(errno));
}

static td_err write_index(const struct list *l, uint32_t n, const char *dir, const struct td_why *w)
{
    struct td_buf b;
    char shard[64];
    td_err e;

    td_buf_init(&b, 1024u * 1024);
    e = td_buf_printf(&b, "{\"metadata\":{\"total_size\":%llu},\"weight_map\":{",
                      (unsigned long long)l->bytes);
    for (size_t i = 0; e == TD_OK && i < l->n; i++) {
        shard_name(l->t[i].shard, n, shard);
        e = td_buf_printf(&b, "%s\n\"%s\":\"%s\"", i > 0 ? "," : "", l->t[i].name, shard);
    }
    e = e == TD_OK ? td_buf_puts(&b, "}}\n") : e;
    e = e == TD_OK ? td__random_write_file(dir, "model.safetensors.index.json", b.data, b.len, w)
                   : e;
    td_buf_fini(&b);
    return e;
}

static td_err close_shards(int *fds, uint32_t n, td_err e, const struct td_why *w)
{
    for (uint32_t i = 0; i < n; i++) {
        if (fds[i] >= 0 && close(fds[i]) != 0 && e == TD_OK) {
            e = td_why(w, TD_ERR_IO, "cannot write the weights: %s", strerrordesc_np(errno));
        }
    }
    return e;
}

static td_err write_weights(struct job *j, struct list *l, const char *dir, const struct td_why *w)
{
    uint64_t most = j->p->shard_bytes != 0 ? j->p->shard_bytes : TD_RANDOM_SHARD_BYTES;
    uint32_t n = place(l, most);
    int fds[TD_RANDOM_MAX_TENSORS];
    uint64_t begin[TD_RANDOM_MAX_TENSORS];
    td_err e = TD_OK;

    memset(fds, 0xff, sizeof fds); /* -1: not open */
    for (uint32_t i = 0; e == TD_OK && i < n; i++) {
        char name[64];
        char path[4096];

        shard_name(i, n, name);
        (void)snprintf(path, sizeof path, "%s/%s", dir, name); /* one cut short cannot be opened */
        e = open_shard(l, path, i, &fds[i], &begin[i], w);
    }
    j->fds = fds;
    j->data_begin = begin;
    j->list = l;
    e = e == TD_OK ? run_job(j, w) : e;
    e = close_shards(fds, n, e, w);
    return e == TD_OK && n > 1 ? write_index(l, n, dir, w) : e;
}

td_err td__random_write_file(const char *dir, const char *name, const void *data, size_t len,
                             const struct td_why *w)
{
    char path[4096];
    int fd;
    bool ok;

    (void)snprintf(path, sizeof path, "%s/%s", dir, name); /* one cut short cannot be opened */
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    ok = fd >= 0 && write_at(fd, data, len, 0);
    if (fd >= 0 && close(fd) != 0) {
        ok = false;
    }
    return ok ? TD_OK : td_why(w, TD_ERR_IO, "cannot write %s: %s", path, strerrordesc_np(errno));
}

td_err td_random_model_write(const struct td_random_params *p, const char *dir,
                             const struct td_why *w)
{
    TD_CLEANUP(td_tiny_vocab_destroyp) struct td_tiny_vocab *vocab = NULL;
    TD_CLEANUP(td_freep) struct list *l = td_zalloc(1, sizeof *l);
    struct job j = {.p = p};

    TD_REQUIRE(p->n_threads >= 1 && p->n_threads <= TD_RANDOM_MAX_THREADS);
    if (l == NULL || td_tiny_vocab_create(&vocab) != TD_OK) {
        return td_why(w, TD_ERR_NO_MEMORY, "out of memory");
    }
    j.vocab = vocab;
    add_all(l, p->shape);
    TD_TRY(td__random_write_texts(p->shape, vocab, dir, w));
    return write_weights(&j, l, dir, w);
}
