#include "router/rt_live.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"

#define SECOND_US 1000000

struct sample {
    uint64_t finished, failed, replays, tokens, kv_bytes;
    double ttft_sum, ttft_max, itl_sum, itl_max; /* microseconds */
    uint64_t n_ttft, n_itl;
    struct rt_live_gauges g;
};

struct pair {
    char p[64], d[64];     /* names; p[0] == 0: free */
    const char *transport; /* static */
    uint64_t count, bytes, last_bytes;
    int64_t us, exposed_us, last_us; /* sums; of the last one */
    int64_t at_us;
};

struct rt_live {
    uint64_t next; /* samples ever closed; number of the one that fills */
    int64_t due_us;
    struct sample now, ring[RT_LIVE_SAMPLES];
    struct pair pairs[RT_LIVE_PAIRS];
};

struct rt_live *rt_live_create(void)
{
    return td_zalloc(1, sizeof(struct rt_live));
}

struct rt_live *rt_live_destroy(struct rt_live *l)
{
    free(l);
    return NULL;
}

uint64_t rt_live_next(const struct rt_live *l)
{
    return l->next;
}

static void add(double v, double *sum, double *max, uint64_t *n)
{
    *sum += v;
    *max = v > *max ? v : *max;
    (*n)++;
}

void rt_live_observe(struct rt_live *l, enum rt_metric what, double value)
{
    struct sample *s = &l->now;
    if (what == RT_M_TTFT_US) {
        add(value, &s->ttft_sum, &s->ttft_max, &s->n_ttft);
        s->tokens++;
    } else if (what == RT_M_ITL_US) {
        add(value, &s->itl_sum, &s->itl_max, &s->n_itl);
        s->tokens++;
    } else if (what == RT_M_RETRY) {
        s->replays++;
    }
}

/* The pair's row; a new pair takes a free row, or the one that was quiet longest. */
static struct pair *row(struct rt_live *l, const char *p, const char *d)
{
    struct pair *oldest = &l->pairs[0];
    for (uint32_t i = 0; i < RT_LIVE_PAIRS; i++) {
        struct pair *x = &l->pairs[i];
        if (x->p[0] == 0) {
            oldest = x;
            break;
        }
        if (strcmp(x->p, p) == 0 && strcmp(x->d, d) == 0) {
            return x;
        }
        oldest = x->at_us < oldest->at_us ? x : oldest;
    }
    memset(oldest, 0, sizeof *oldest);
    (void)snprintf(oldest->p, sizeof oldest->p, "%s", p);
    (void)snprintf(oldest->d, sizeof oldest->d, "%s", d);
    return oldest;
}

void rt_live_end(struct rt_live *l, int64_t now_us, const struct rt_action *end)
{
    const struct td_wire_stages *s = &end->stages;
    if (end->err == TD_OK) {
        l->now.finished++;
    } else {
        l->now.failed++;
    }
    l->now.kv_bytes += s->kv_bytes;
    if (s->kv_bytes == 0 || end->p_name[0] == 0) {
        return;
    }
    struct pair *x = row(l, end->p_name, end->d_name);
    x->count++;
    x->bytes += s->kv_bytes;
    x->last_bytes = s->kv_bytes;
    x->us += (int64_t)s->transfer_us;
    x->exposed_us += (int64_t)s->transfer_exposed_us;
    x->last_us = (int64_t)s->transfer_us;
    x->transport = s->transport != NULL ? s->transport : x->transport;
    x->at_us = now_us;
}

void rt_live_tick(struct rt_live *l, int64_t now_us, const struct rt_live_gauges *g)
{
    if (l->due_us == 0) {
        l->due_us = now_us + SECOND_US;
    }
    if (now_us < l->due_us) {
        return;
    }
    l->now.g = *g;
    l->ring[l->next++ % RT_LIVE_SAMPLES] = l->now;
    memset(&l->now, 0, sizeof l->now);
    /* A loop that was held up does not catch up: rates would be wrong for each of the seconds. */
    l->due_us = l->due_us + SECOND_US > now_us ? l->due_us + SECOND_US : now_us + SECOND_US;
}

static double mean(double sum, uint64_t n)
{
    return n > 0 ? sum / (double)n : 0;
}

static td_err samples_json(const struct rt_live *l, uint64_t since, struct td_buf *out)
{
    uint64_t first = l->next > RT_LIVE_SAMPLES ? l->next - RT_LIVE_SAMPLES : 0;
    first = since > first ? since : first;
    TD_TRY(td_buf_printf(
        out,
        "\"sample_fields\":[\"finished\",\"failed\",\"replays\",\"tokens\",\"kv_bytes\","
        "\"ttft_mean_us\",\"ttft_max_us\",\"tpot_mean_us\",\"tpot_max_us\",\"queued\",\"running\","
        "\"kv_prefill\",\"kv_decode\"],\"interval_us\":%d,\"next\":%" PRIu64 ",\"samples\":[",
        SECOND_US, l->next));
    for (uint64_t i = first; i < l->next; i++) {
        const struct sample *s = &l->ring[i % RT_LIVE_SAMPLES];
        TD_TRY(td_buf_printf(out,
                             "%s[%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64
                             ",%.0f,%.0f,%.0f,%.0f,%u,%u,%.4f,%.4f]",
                             i > first ? "," : "", s->finished, s->failed, s->replays, s->tokens,
                             s->kv_bytes, mean(s->ttft_sum, s->n_ttft), s->ttft_max,
                             mean(s->itl_sum, s->n_itl), s->itl_max, s->g.queued, s->g.running,
                             s->g.kv_prefill, s->g.kv_decode));
    }
    return td_buf_puts(out, "]");
}

static td_err pair_json(const struct pair *x, int64_t now_us, struct td_buf *out)
{
    TD_TRY(td_buf_puts(out, "{\"prefill\":"));
    TD_TRY(td_buf_json_string(out, x->p, strlen(x->p)));
    TD_TRY(td_buf_puts(out, ",\"decode\":"));
    TD_TRY(td_buf_json_string(out, x->d, strlen(x->d)));
    return td_buf_printf(out,
                         ",\"transport\":\"%s\",\"count\":%" PRIu64 ",\"bytes\":%" PRIu64
                         ",\"transfer_us\":%" PRId64 ",\"exposed_us\":%" PRId64
                         ",\"last_bytes\":%" PRIu64 ",\"last_us\":%" PRId64 ",\"age_us\":%" PRId64
                         "}",
                         x->transport != NULL ? x->transport : "", x->count, x->bytes, x->us,
                         x->exposed_us, x->last_bytes, x->last_us, now_us - x->at_us);
}

td_err rt_live_json(const struct rt_live *l, int64_t now_us, uint64_t since, struct td_buf *out)
{
    bool first = true;
    TD_TRY(samples_json(l, since, out));
    TD_TRY(td_buf_puts(out, ",\"transfers\":["));
    for (uint32_t i = 0; i < RT_LIVE_PAIRS && l->pairs[i].p[0] != 0; i++) {
        TD_TRY(first ? TD_OK : td_buf_puts(out, ","));
        TD_TRY(pair_json(&l->pairs[i], now_us, out));
        first = false;
    }
    return td_buf_puts(out, "]");
}
