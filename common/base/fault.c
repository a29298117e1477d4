#include "common/base/fault.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/log.h"
#include "common/base/rng.h"

#define FAULT_SPEC_BYTES 256
#define FAULT_UNLIMITED  UINT64_MAX

/* What one point does. Written by td_fault_configure() before threads start (or by a test between
 * steps); only the counters change afterwards. `armed` is released last and acquired first, so that
 * a test may arm a live process. */
struct point {
    bool armed;
    bool delay;
    uint64_t after; /* hits that pass unharmed first */
    uint64_t times; /* how often it fires at most */
    int64_t us;
    double prob;
    uint64_t hits;
    uint64_t fired;
};

static struct point points[TD_FAULT_COUNT];

static const struct {
    const char *name;
    const char *help;
} names[TD_FAULT_COUNT] = {
#define FAULT_NAME(id, name, help) {name, help},
    TD_FAULT_POINTS(FAULT_NAME)
#undef FAULT_NAME
};

static td_err refuse(const char *part, const char *reason)
{
    char quoted[FAULT_SPEC_BYTES];
    TD_LOG(ERROR, "bad fault specification", "part=%s reason=\"%s\"",
           td_log_quote(part, strlen(part), quoted, sizeof quoted), reason);
    return TD_ERR_CONFIG;
}

static struct point *find(const char *name)
{
    for (size_t i = 0; i < TD_FAULT_COUNT; i++) {
        if (strcmp(names[i].name, name) == 0) {
            return &points[i];
        }
    }
    return NULL;
}

static bool parse_count(const char *text, uint64_t *out)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || v > INT64_MAX) {
        return false;
    }
    *out = v;
    return true;
}

static bool parse_setting(const char *text, struct point *pt)
{
    uint64_t us;
    if (strncmp(text, "after=", 6) == 0) {
        return parse_count(text + 6, &pt->after);
    }
    if (strncmp(text, "times=", 6) == 0) {
        return parse_count(text + 6, &pt->times);
    }
    if (strncmp(text, "us=", 3) == 0 && parse_count(text + 3, &us)) {
        pt->us = (int64_t)us;
        return true;
    }
    if (strncmp(text, "prob=", 5) == 0) {
        char *end;
        pt->prob = strtod(text + 5, &end);
        return end != text + 5 && *end == '\0' && pt->prob >= 0.0 && pt->prob <= 1.0;
    }
    return false;
}

static bool parse_action(const char *text, struct point *pt)
{
    static const char *const firing[] = {"fail", "drop", "flip", "on"};
    for (size_t i = 0; i < sizeof firing / sizeof firing[0]; i++) {
        if (strcmp(text, firing[i]) == 0) {
            return true;
        }
    }
    pt->delay = strcmp(text, "delay") == 0;
    return pt->delay;
}

/* One "name=action:key=value:..."; `part` is scratch. */
static td_err configure_one(char *part)
{
    struct point pt = {.times = FAULT_UNLIMITED, .prob = 1.0};
    char *save = NULL;
    char *equals = strchr(part, '=');
    if (equals == NULL) {
        return refuse(part, "expected name=action");
    }
    *equals = '\0';
    struct point *target = find(part);
    if (target == NULL) {
        return refuse(part, "unknown fault point, see --list-fault-points");
    }
    char *word = strtok_r(equals + 1, ":", &save);
    if (word == NULL || !parse_action(word, &pt)) {
        return refuse(word != NULL ? word : part, "action is fail, drop, flip, on or delay");
    }
    while ((word = strtok_r(NULL, ":", &save)) != NULL) {
        if (!parse_setting(word, &pt)) {
            return refuse(word, "setting is after=N, times=N, us=N or prob=0..1");
        }
    }
    if (pt.delay && pt.us == 0) {
        return refuse(part, "delay needs us=N");
    }
    __atomic_store_n(&target->armed, false, __ATOMIC_RELEASE);
    *target = pt;
    __atomic_store_n(&target->armed, true, __ATOMIC_RELEASE);
    return TD_OK;
}

td_err td_fault_configure(const char *spec)
{
    if (!TD_WITH_FAULTS && spec[0] != '\0') {
        return refuse(spec, "this build has no fault points, build with -Dfault=true");
    }
    while (*spec != '\0') {
        char part[FAULT_SPEC_BYTES];
        size_t len = strcspn(spec, ",");
        if (len >= sizeof part) {
            return refuse("", "part is too long");
        }
        memcpy(part, spec, len);
        part[len] = '\0';
        if (len > 0) {
            TD_TRY(configure_one(part));
        }
        spec += len + (spec[len] == ',');
    }
    return TD_OK;
}

/* Counts one hit and says whether it fires. The counters are relaxed: they order nothing else. */
static bool fires(struct point *pt, enum td_fault_id id)
{
    uint64_t hit = __atomic_fetch_add(&pt->hits, 1, __ATOMIC_RELAXED);
    if (!__atomic_load_n(&pt->armed, __ATOMIC_ACQUIRE) || hit < pt->after) {
        return false;
    }
    if (pt->prob < 1.0) {
        /* A draw by position, so that a run repeats itself. */
        struct td_rng r = {td_mix64(hit + ((uint64_t)id << 32))};
        if (td_rng_unit(&r) >= pt->prob) {
            return false;
        }
    }
    return __atomic_fetch_add(&pt->fired, 1, __ATOMIC_RELAXED) < pt->times;
}

bool td_fault_hit(enum td_fault_id id)
{
    struct point *pt = &points[id];
    return fires(pt, id) && !pt->delay;
}

int64_t td_fault_delay_us(enum td_fault_id id)
{
    struct point *pt = &points[id];
    return fires(pt, id) && pt->delay ? pt->us : 0;
}

uint64_t td_fault_hits(enum td_fault_id id)
{
    return __atomic_load_n(&points[id].hits, __ATOMIC_RELAXED);
}

const char *td_fault_name(enum td_fault_id id)
{
    return names[id].name;
}

const char *td_fault_help(enum td_fault_id id)
{
    return names[id].help;
}

void td_fault_reset(void)
{
    /* Other threads may be passing a point: what they read besides these only counts when armed. */
    for (size_t i = 0; i < TD_FAULT_COUNT; i++) {
        __atomic_store_n(&points[i].armed, false, __ATOMIC_RELEASE);
        __atomic_store_n(&points[i].hits, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&points[i].fired, 0, __ATOMIC_RELAXED);
    }
}

void td_fault_sleep(enum td_fault_id id)
{
    int64_t us = td_fault_delay_us(id);
    struct timespec left = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    while (us > 0 && clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR) {
    }
}
