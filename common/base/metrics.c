#include "common/base/metrics.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/base/utf8.h"

#define METRICS_MAX_FAMILIES 512u
#define METRICS_MAX_CHILDREN 1000u
#define METRICS_MAX_CONST    TD_METRIC_MAX_LABELS
#define METRICS_MAX_HOOKS    16u
#define METRICS_MAX_BUCKETS  64u
#define METRICS_VALUE_BYTES  128u
/* Every byte of a value may be escaped; name, =, quotes and comma beside it. */
#define METRICS_LABELS_BYTES ((2 * METRICS_MAX_CONST) * (2 * METRICS_VALUE_BYTES + 72))

/* Design: values are relaxed atomics, since a scrape needs no order between them. A double lives in
 * a 64-bit word as its bits, so that one field serves counters and gauges. The registry's lock
 * guards families and children, never the values; hooks run before it is taken. Families and
 * children are never removed, so a borrowed pointer stays valid. */
struct td_metric {
    enum td_metric_type type;
    bool lost; /* swallows updates */
    uint32_t n_buckets;
    const double *bounds;   /* borrowed from the description */
    uint64_t value;         /* counter: count; gauge: bits; histogram: bits of the sum */
    uint64_t *bucket_hits;  /* owned [n_buckets + 1], the last one is +Inf; histograms only */
    uint64_t hash;          /* of labels, so that a search compares few strings */
    char *labels;           /* owned: a="1",b="2" with the constant labels in front */
    struct td_metric *next; /* owned list */
};

struct td_metric_family {
    struct td_metric_desc desc; /* its strings are static */
    uint32_t n_labels;
    uint32_t n_children;
    struct td_metrics *owner;   /* borrowed */
    struct td_metric *children; /* owned list in order of creation */
    struct td_metric **tail;
};

struct const_label {
    const char *name; /* owned */
    char *value;      /* owned */
};

struct td_metrics {
    pthread_mutex_t lock;
    struct td_metric_family *families[METRICS_MAX_FAMILIES]; /* owned, sorted by name */
    uint32_t n_families;
    struct const_label consts[METRICS_MAX_CONST];
    uint32_t n_consts;
    struct {
        void (*fn)(void *);
        void *arg;
    } hooks[METRICS_MAX_HOOKS];
    uint32_t n_hooks;
    uint64_t lost; /* atomic: families and children that could not be made */
};

static struct td_metric lost_child = {.lost = true};

const double td_buckets_ttft[22] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                    1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const double td_buckets_itl[22] = {.001, .002, .005, .01, .025, .05, .075, .1, .15, .2, .3,
                                   .4,   .5,   .75,  1,   2.5,  5,   7.5,  10, 20,  40, 80};
const double td_buckets_e2e[21] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                   30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const double td_buckets_tokens[19] = {1,     2,      5,      10,     20,     50,    100,
                                      200,   500,    1000,   2000,   5000,   10000, 20000,
                                      50000, 100000, 200000, 500000, 1000000};
const double td_buckets_transfer_seconds[12] = {.005, .01, .025, .05, .075, .1,
                                                .2,   .3,  .5,   .75, 1,    5};
const double td_buckets_transfer_bytes[12] = {0x1p11, 0x1p13, 0x1p15, 0x1p17, 0x1p19, 0x1p21,
                                              0x1p23, 0x1p25, 0x1p27, 0x1p29, 0x1p31, 0x1p33};

static uint64_t to_bits(double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

static double from_bits(uint64_t bits)
{
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* Whether the value is a double's bits. */
static bool is_real(enum td_metric_type type)
{
    return type == TD_GAUGE || type == TD_COUNTER_REAL;
}

static void add_double(uint64_t *word, double v)
{
    uint64_t old = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(word, &old, to_bits(from_bits(old) + v), true,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

/* ---- updates: any thread, no lock ---- */

void td_metric_add(struct td_metric *c, uint64_t n)
{
    if (c->lost) {
        return;
    }
    TD_REQUIRE(c->type != TD_HISTOGRAM);
    if (c->type == TD_COUNTER) {
        (void)__atomic_fetch_add(&c->value, n, __ATOMIC_RELAXED);
    } else {
        add_double(&c->value, (double)n);
    }
}

void td_metric_set(struct td_metric *c, double v)
{
    if (c->lost) {
        return;
    }
    TD_REQUIRE(c->type != TD_HISTOGRAM);
    uint64_t word = is_real(c->type) ? to_bits(v) : v > 0 ? (uint64_t)v : 0;
    __atomic_store_n(&c->value, word, __ATOMIC_RELAXED);
}

void td_metric_observe(struct td_metric *c, double v)
{
    if (c->lost || isnan(v)) {
        return;
    }
    TD_REQUIRE(c->type == TD_HISTOGRAM);
    uint32_t i = 0;
    while (i < c->n_buckets && v > c->bounds[i]) {
        i++;
    }
    (void)__atomic_fetch_add(&c->bucket_hits[i], 1, __ATOMIC_RELAXED);
    add_double(&c->value, v);
}

double td_metric_value(const struct td_metric *c)
{
    uint64_t word = __atomic_load_n(&c->value, __ATOMIC_RELAXED);
    if (c->type == TD_HISTOGRAM && !c->lost) {
        uint64_t total = 0;
        for (uint32_t i = 0; i <= c->n_buckets; i++) {
            total += __atomic_load_n(&c->bucket_hits[i], __ATOMIC_RELAXED);
        }
        return (double)total;
    }
    return is_real(c->type) ? from_bits(word) : (double)word;
}

/* ---- registry ---- */

struct td_metrics *td_metrics_create(void)
{
    struct td_metrics *m = td_zalloc(1, sizeof *m);
    if (m != NULL) {
        TD_INSIST(pthread_mutex_init(&m->lock, NULL) == 0);
    }
    return m;
}

static void child_destroy(struct td_metric *c)
{
    free(c->bucket_hits);
    free(c->labels);
    free(c);
}

static void family_destroy(struct td_metric_family *f)
{
    struct td_metric *next;
    for (struct td_metric *c = f->children; c != NULL; c = next) {
        next = c->next;
        child_destroy(c);
    }
    free(f);
}

struct td_metrics *td_metrics_destroy(struct td_metrics *m)
{
    if (m == NULL) {
        return NULL;
    }
    for (uint32_t i = 0; i < m->n_families; i++) {
        family_destroy(m->families[i]);
    }
    for (uint32_t i = 0; i < m->n_consts; i++) {
        free(m->consts[i].value);
    }
    (void)pthread_mutex_destroy(&m->lock);
    free(m);
    return NULL;
}

td_err td_metrics_const_label(struct td_metrics *m, const char *name, const char *value)
{
    TD_REQUIRE(m->n_families == 0);
    if (m->n_consts == METRICS_MAX_CONST) {
        return TD_ERR_FULL;
    }
    char *copy = td_strdup(value);
    if (copy == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    m->consts[m->n_consts++] = (struct const_label){name, copy};
    return TD_OK;
}

void td_metrics_on_scrape(struct td_metrics *m, void (*fn)(void *), void *arg)
{
    TD_REQUIRE(fn != NULL && m->n_hooks < METRICS_MAX_HOOKS);
    m->hooks[m->n_hooks].fn = fn;
    m->hooks[m->n_hooks].arg = arg;
    m->n_hooks++;
}

static bool name_is_valid(const char *s, bool colon)
{
    if (s[0] == '\0' || (s[0] >= '0' && s[0] <= '9')) {
        return false;
    }
    return s[strspn(s, colon
                           ? "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:"
                           : "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")] ==
           '\0';
}

static void check_desc(const struct td_metric_desc *d)
{
    TD_REQUIRE(name_is_valid(d->name, true));
    TD_REQUIRE(d->type == TD_HISTOGRAM ? d->n_buckets > 0 && d->n_buckets <= METRICS_MAX_BUCKETS
                                       : d->n_buckets == 0);
    for (uint32_t i = 1; i < d->n_buckets; i++) {
        TD_REQUIRE(d->buckets[i - 1] < d->buckets[i]);
    }
    for (uint32_t i = 0; i < TD_METRIC_MAX_LABELS && d->labels[i] != NULL; i++) {
        TD_REQUIRE(name_is_valid(d->labels[i], false) && strcmp(d->labels[i], "le") != 0);
    }
}

static void lose(struct td_metrics *m, const char *name)
{
    (void)__atomic_fetch_add(&m->lost, 1, __ATOMIC_RELAXED);
    TD_LOG(WARN, "metric lost", "name=%s", name);
}

static struct td_metric_family *family_new(struct td_metrics *m, const struct td_metric_desc *desc)
{
    struct td_metric_family *f =
        m->n_families < METRICS_MAX_FAMILIES ? td_zalloc(1, sizeof *f) : NULL;
    if (f == NULL) {
        return NULL;
    }
    f->desc = *desc;
    f->owner = m;
    f->tail = &f->children;
    while (f->n_labels < TD_METRIC_MAX_LABELS && desc->labels[f->n_labels] != NULL) {
        f->n_labels++;
    }
    return f;
}

struct td_metric_family *td_metrics_family(struct td_metrics *m, const struct td_metric_desc *desc)
{
    check_desc(desc);
    (void)pthread_mutex_lock(&m->lock);
    uint32_t at = 0;
    while (at < m->n_families && strcmp(m->families[at]->desc.name, desc->name) < 0) {
        at++;
    }
    struct td_metric_family *f = at < m->n_families ? m->families[at] : NULL;
    if (f == NULL || strcmp(f->desc.name, desc->name) != 0) {
        f = family_new(m, desc);
        if (f != NULL) {
            memmove(&m->families[at + 1], &m->families[at],
                    (m->n_families - at) * sizeof(struct td_metric_family *));
            m->families[at] = f;
            m->n_families++;
        }
    }
    TD_REQUIRE(f == NULL || f->desc.type == desc->type);
    (void)pthread_mutex_unlock(&m->lock);
    if (f == NULL) {
        lose(m, desc->name);
    }
    return f;
}

/* ---- children ---- */

/* Appends name="value" with the value cut, checked and escaped. `at` has room: METRICS_LABELS_BYTES
 * says so. */
static size_t put_label(char *at, const char *name, const char *value)
{
    size_t len = strlen(value);
    size_t n = (size_t)sprintf(at, "%.64s=\"", name);
    for (size_t i = 0; i < len;) {
        size_t c = td_utf8_char_len(value + i, len - i);
        if (i + (c > 0 ? c : 1) > METRICS_VALUE_BYTES) {
            break;
        }
        if (c == 0) {
            at[n++] = '?';
            c = 1;
        } else if (value[i] == '"' || value[i] == '\\' || value[i] == '\n') {
            at[n++] = '\\';
            at[n++] = value[i] == '\n' ? 'n' : value[i];
        } else {
            memcpy(at + n, value + i, c);
            n += c;
        }
        i += c;
    }
    at[n++] = '"';
    at[n] = '\0';
    return n;
}

static void render_labels(const struct td_metric_family *f, const char *const *values, char *out)
{
    const struct td_metrics *m = f->owner;
    bool ended = values == NULL;
    size_t n = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < m->n_consts; i++) {
        n += put_label(out + n, m->consts[i].name, m->consts[i].value);
        out[n++] = ',';
    }
    for (uint32_t i = 0; i < f->n_labels; i++) {
        ended = ended || values[i] == NULL;
        n += put_label(out + n, f->desc.labels[i], ended ? "" : values[i]);
        out[n++] = ',';
    }
    out[n > 0 ? n - 1 : 0] = '\0';
}

static uint64_t hash_labels(const char *labels)
{
    uint64_t h = 0;
    for (const char *p = labels; *p != '\0'; p++) {
        h = td_mix64(h + (unsigned char)*p + 1);
    }
    return h;
}

static struct td_metric *find_child(const struct td_metric_family *f, const char *labels)
{
    uint64_t hash = hash_labels(labels);
    for (struct td_metric *c = f->children; c != NULL; c = c->next) {
        if (c->hash == hash && strcmp(c->labels, labels) == 0) {
            return c;
        }
    }
    return NULL;
}

static struct td_metric *child_new(struct td_metric_family *f, const char *labels)
{
    struct td_metric *c = td_zalloc(1, sizeof *c);
    if (c == NULL) {
        return NULL;
    }
    c->type = f->desc.type;
    c->n_buckets = f->desc.n_buckets;
    c->bounds = f->desc.buckets;
    c->hash = hash_labels(labels);
    c->labels = td_strdup(labels);
    c->bucket_hits =
        c->type == TD_HISTOGRAM ? td_zalloc(c->n_buckets + 1, sizeof *c->bucket_hits) : NULL;
    if (c->labels == NULL || (c->type == TD_HISTOGRAM && c->bucket_hits == NULL)) {
        child_destroy(c);
        return NULL;
    }
    *f->tail = c;
    f->tail = &c->next;
    f->n_children++;
    return c;
}

struct td_metric *td_metric_child(struct td_metric_family *f, const char *const *values)
{
    static const char *const other[TD_METRIC_MAX_LABELS] = {"other", "other", "other",
                                                            "other", "other", "other"};
    char labels[METRICS_LABELS_BYTES];
    if (f == NULL) {
        return &lost_child;
    }
    render_labels(f, values, labels);
    (void)pthread_mutex_lock(&f->owner->lock);
    struct td_metric *c = find_child(f, labels);
    if (c == NULL && f->n_children >= METRICS_MAX_CHILDREN) {
        render_labels(f, other, labels);
        c = find_child(f, labels);
    }
    if (c == NULL) {
        c = child_new(f, labels);
    }
    (void)pthread_mutex_unlock(&f->owner->lock);
    if (c == NULL) {
        lose(f->owner, f->desc.name);
        return &lost_child;
    }
    return c;
}

struct td_metric *td_metric_only(struct td_metric_family *f)
{
    TD_REQUIRE(f == NULL || f->n_labels == 0);
    return td_metric_child(f, NULL);
}

/* ---- exposition ---- */

static const char *number(double v, char out[32])
{
    if (isnan(v)) {
        return "NaN";
    }
    if (isinf(v)) {
        return v > 0 ? "+Inf" : "-Inf";
    }
    (void)snprintf(out, 32, "%.15g", v);
    if (strtod(out, NULL) != v) {
        (void)snprintf(out, 32, "%.17g", v);
    }
    return out;
}

static td_err write_sample(struct td_buf *out, const char *name, const char *suffix,
                           const char *labels, const char *value)
{
    return labels[0] == '\0' ? td_buf_printf(out, "%s%s %s\n", name, suffix, value)
                             : td_buf_printf(out, "%s%s{%s} %s\n", name, suffix, labels, value);
}

static td_err write_histogram(struct td_buf *out, const char *name, const struct td_metric *c)
{
    char text[32];
    uint64_t total = 0;
    const char *comma = c->labels[0] == '\0' ? "" : ",";
    for (uint32_t i = 0; i <= c->n_buckets; i++) {
        total += __atomic_load_n(&c->bucket_hits[i], __ATOMIC_RELAXED);
        TD_TRY(td_buf_printf(out, "%s_bucket{%s%sle=\"%s\"} %llu\n", name, c->labels, comma,
                             i < c->n_buckets ? number(c->bounds[i], text) : "+Inf",
                             (unsigned long long)total));
    }
    double sum = from_bits(__atomic_load_n(&c->value, __ATOMIC_RELAXED));
    TD_TRY(write_sample(out, name, "_sum", c->labels, number(sum, text)));
    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)total);
    return write_sample(out, name, "_count", c->labels, text);
}

static td_err write_child(struct td_buf *out, const char *name, const struct td_metric *c)
{
    char text[32];
    if (c->type == TD_HISTOGRAM) {
        return write_histogram(out, name, c);
    }
    if (is_real(c->type)) {
        return write_sample(out, name, "", c->labels, number(td_metric_value(c), text));
    }
    (void)snprintf(text, sizeof text, "%llu",
                   (unsigned long long)__atomic_load_n(&c->value, __ATOMIC_RELAXED));
    return write_sample(out, name, "", c->labels, text);
}

static td_err write_head(struct td_buf *out, const struct td_metric_desc *d)
{
    static const char *const types[] = {"counter", "gauge", "histogram", "counter"};
    TD_TRY(td_buf_printf(out, "# HELP %s ", d->name));
    for (const char *p = d->help; *p != '\0'; p++) {
        const char *esc = *p == '\\' ? "\\\\" : *p == '\n' ? "\\n" : NULL;
        TD_TRY(td_buf_append(out, esc != NULL ? esc : p, esc != NULL ? 2 : 1));
    }
    return td_buf_printf(out, "\n# TYPE %s %s\n", d->name, types[d->type]);
}

static td_err write_all(struct td_metrics *m, struct td_buf *out)
{
    for (uint32_t i = 0; i < m->n_families; i++) {
        const struct td_metric_family *f = m->families[i];
        TD_TRY(write_head(out, &f->desc));
        for (const struct td_metric *c = f->children; c != NULL; c = c->next) {
            TD_TRY(write_child(out, f->desc.name, c));
        }
    }
    return TD_OK;
}

td_err td_metrics_write(struct td_metrics *m, struct td_buf *out)
{
    static const struct td_metric_desc lost = {
        .name = "tandem_metrics_lost_total",
        .help = "Metrics that could not be created for want of memory or room.",
        .type = TD_COUNTER,
    };
    for (uint32_t i = 0; i < m->n_hooks; i++) {
        m->hooks[i].fn(m->hooks[i].arg);
    }
    TD_TRY(write_head(out, &lost));
    TD_TRY(td_buf_printf(out, "%s %llu\n", lost.name,
                         (unsigned long long)__atomic_load_n(&m->lost, __ATOMIC_RELAXED)));
    (void)pthread_mutex_lock(&m->lock);
    td_err e = write_all(m, out);
    (void)pthread_mutex_unlock(&m->lock);
    return e;
}
