#include "common/base/metrics_process.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"

enum family { P_CPU, P_RSS, P_VIRTUAL, P_FDS, P_MAX_FDS, P_START, P_THREADS, FAMILIES };

static const struct td_metric_desc descs[FAMILIES] = {
    [P_CPU] = {.name = "process_cpu_seconds_total",
               .help = "Processor time used, user and system.",
               .type = TD_COUNTER_REAL},
    [P_RSS] = {.name = "process_resident_memory_bytes", .help = "Memory in RAM.", .type = TD_GAUGE},
    [P_VIRTUAL] = {.name = "process_virtual_memory_bytes",
                   .help = "Address space.",
                   .type = TD_GAUGE},
    [P_FDS] = {.name = "process_open_fds", .help = "Open descriptors.", .type = TD_GAUGE},
    [P_MAX_FDS] = {.name = "process_max_fds",
                   .help = "Descriptors that may be open.",
                   .type = TD_GAUGE},
    [P_START] = {.name = "process_start_time_seconds",
                 .help = "Start of the process, unix time.",
                 .type = TD_GAUGE},
    [P_THREADS] = {.name = "process_threads", .help = "Threads.", .type = TD_GAUGE},
};

static const struct td_metric_desc build_desc = {.name = "tandem_build_info",
                                                 .help = "The version; the value is 1.",
                                                 .type = TD_GAUGE,
                                                 .labels = {"version"}};

struct td_metrics_process {
    struct td_metric *one[FAMILIES]; /* borrowed from the registry */
    double start_s;
};

static double seconds(const struct timeval *t)
{
    return (double)t->tv_sec + (double)t->tv_usec * 1e-6;
}

/* Entries of a folder of /proc/self, without "." and ".."; 0: not readable. */
static uint32_t entries(const char *path)
{
    DIR *d = opendir(path);
    uint32_t n = 0;
    if (d == NULL) {
        return 0;
    }
    while (readdir(d) != NULL) { // NOLINT(concurrency-mt-unsafe): the stream is ours alone
        n++;
    }
    (void)closedir(d);
    return n > 2 ? n - 2 : 0;
}

static void read_memory(struct td_metrics_process *p)
{
    char text[128];
    FILE *f = fopen("/proc/self/statm", "re");
    char *line = f != NULL ? fgets(text, sizeof text, f) : NULL;
    if (f != NULL) {
        (void)fclose(f);
    }
    if (line == NULL) {
        return;
    }
    char *rest = NULL;
    double page = (double)sysconf(_SC_PAGESIZE);
    td_metric_set(p->one[P_VIRTUAL], strtod(line, &rest) * page);
    td_metric_set(p->one[P_RSS], strtod(rest, NULL) * page);
}

static void on_scrape(void *arg)
{
    struct td_metrics_process *p = arg;
    struct rusage used;
    struct rlimit limit;
    if (getrusage(RUSAGE_SELF, &used) == 0) {
        td_metric_set(p->one[P_CPU], seconds(&used.ru_utime) + seconds(&used.ru_stime));
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        td_metric_set(p->one[P_MAX_FDS], (double)limit.rlim_cur);
    }
    uint32_t fds = entries("/proc/self/fd");
    if (fds > 0) {
        td_metric_set(p->one[P_FDS], fds - 1); /* without the one that read the folder */
    }
    uint32_t threads = entries("/proc/self/task");
    if (threads > 0) {
        td_metric_set(p->one[P_THREADS], threads);
    }
    read_memory(p);
    td_metric_set(p->one[P_START], p->start_s);
}

/* The kernel's word for when we began: field 22 of stat, in ticks since boot. 0 when unreadable. */
static double started_s(void)
{
    char text[1024];
    double up = 0;
    FILE *f = fopen("/proc/self/stat", "re");
    size_t n = f != NULL ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f != NULL) {
        (void)fclose(f);
    }
    text[n] = '\0';
    char *at = strrchr(text, ')'); /* the name before it may hold blanks */
    for (int field = 2; at != NULL && field < 22; field++) {
        at = strchr(at + 1, ' ');
    }
    f = fopen("/proc/uptime", "re");
    char line[64];
    if (f != NULL && fgets(line, sizeof line, f) != NULL) {
        up = strtod(line, NULL);
    }
    if (f != NULL) {
        (void)fclose(f);
    }
    double age = at != NULL && up > 0 ? up - strtod(at, NULL) / (double)sysconf(_SC_CLK_TCK) : 0;
    return (double)td_wall_us() * 1e-6 - age;
}

td_err td_metrics_process_create(struct td_metrics *m, const char *version,
                                 struct td_metrics_process **out_process)
{
    struct td_metrics_process *p = td_zalloc(1, sizeof *p);
    if (p == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    for (int i = 0; i < FAMILIES; i++) {
        p->one[i] = td_metric_only(td_metrics_family(m, &descs[i]));
    }
    const char *const values[] = {version, NULL};
    td_metric_set(td_metric_child(td_metrics_family(m, &build_desc), values), 1);
    p->start_s = started_s();
    td_metrics_on_scrape(m, on_scrape, p);
    *out_process = p;
    return TD_OK;
}

struct td_metrics_process *td_metrics_process_destroy(struct td_metrics_process *p)
{
    free(p);
    return NULL;
}
