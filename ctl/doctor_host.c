#include "ctl/doctor_host.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "ctl/output.h"

#define MAX_TEXT   65536
#define SHM_LOW    (64ull << 20) /* what container runtimes give without being asked */
#define SHM_ENOUGH (128ull << 20)
#define FILES_LOW  4096

/* The start of a file as text; NULL when there is none. Owned by the caller. */
static char *read_text(const char *path)
{
    FILE *f = fopen(path, "re");
    if (f == NULL) {
        return NULL;
    }
    char *text = td_zalloc(MAX_TEXT + 1, 1);
    if (text != NULL) {
        text[fread(text, 1, MAX_TEXT, f)] = 0;
    }
    (void)fclose(f);
    return text;
}

/* ---- CPU ---- */

/* The value of the first line "key : value"; cut to fit. */
static void line_of(const char *text, const char *key, char *out, size_t cap)
{
    out[0] = 0;
    for (const char *p = text; p != NULL && *p != 0; p = strchr(p, '\n')) {
        p += *p == '\n';
        if (strncmp(p, key, strlen(key)) == 0) {
            const char *value = p + strcspn(p, ":\n");
            value += strspn(value, ": \t");
            (void)snprintf(out, cap, "%.*s", (int)strcspn(value, "\n"), value);
            return;
        }
    }
}

static bool has_word(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = strstr(words, word); p != NULL; p = strstr(p + n, word)) {
        if ((p == words || p[-1] == ' ') && (p[n] == ' ' || p[n] == 0)) {
            return true;
        }
    }
    return false;
}

static bool has_all(const char *flags, const char *const *words)
{
    for (; *words != NULL; words++) {
        if (!has_word(flags, *words)) {
            return false;
        }
    }
    return true;
}

void ctl_doctor_judge_cpu(struct ctl_report *r, const char *cpuinfo)
{
    /* What kernels/tk_select.c asks for, by the names of /proc/cpuinfo. */
    static const char *const avx2[] = {"avx2", "fma", "f16c", NULL};
    static const char *const avx512[] = {
        "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", NULL};
    char name[96], flags[8192];
    line_of(cpuinfo, "model name", name, sizeof name);
    line_of(cpuinfo, "flags", flags, sizeof flags);
    const char *shown = name[0] != 0 ? name : "unnamed CPU";
    if (has_all(flags, avx512)) {
        ctl_report_add(r, CTL_V_OK, "cpu", NULL, "%s: AVX-512 with VNNI%s", shown,
                       has_word(flags, "amx_int8") ? ", and AMX" : "");
    } else if (has_all(flags, avx2)) {
        ctl_report_add(r, CTL_V_OK, "cpu", NULL, "%s: AVX2 (no AVX-512 with VNNI)", shown);
    } else {
        ctl_report_add(r, CTL_V_WARN, "cpu",
                       "use a CPU with AVX2; in a virtual machine, pass the host's CPU through",
                       "%s: neither AVX2 nor AVX-512: the portable kernels run, slowly", shown);
    }
}

void ctl_doctor_judge_cores(struct ctl_report *r, long cores, const char *cpu_max)
{
    char *end = NULL;
    double quota = cpu_max != NULL ? strtod(cpu_max, &end) : 0; /* "max": 0 */
    double period = end != NULL && *end == ' ' ? strtod(end, NULL) : 0;
    double share = quota > 0 && period > 0 ? quota / period : (double)cores;
    struct ctl_finding *f;
    if (share < (double)cores) {
        f = ctl_report_add(r, CTL_V_WARN, "cores",
                           "start nodes with --threads of at most the share: threads beyond it are "
                           "stopped in the middle of a step",
                           "%ld online, but this container may use %.1f", cores, share);
    } else if (cores < 2) {
        f = ctl_report_add(
            r, CTL_V_WARN, "cores",
            "give the machine two cores or more: the event loop and the engine share "
            "this one",
            "%ld online", cores);
    } else {
        f = ctl_report_add(r, CTL_V_OK, "cores", NULL, "%ld online", cores);
    }
    ctl_finding_value(f, "cores", share);
}

void ctl_doctor_cpu(struct ctl_report *r)
{
    TD_CLEANUP(td_freep) char *info = read_text("/proc/cpuinfo");
    TD_CLEANUP(td_freep) char *quota = read_text("/sys/fs/cgroup/cpu.max");
    ctl_doctor_judge_cpu(r, info != NULL ? info : "");
    ctl_doctor_judge_cores(r, sysconf(_SC_NPROCESSORS_ONLN), quota);
}

/* ---- memory ---- */

void ctl_doctor_judge_memory(struct ctl_report *r, uint64_t available, uint64_t need)
{
    char have[32], want[32];
    (void)ctl_format_bytes(available, have, sizeof have);
    (void)ctl_format_bytes(need, want, sizeof want);
    struct ctl_finding *f;
    if (need == 0) {
        f = ctl_report_add(r, CTL_V_OK, "memory", NULL, "%s available", have);
    } else if (available < need) {
        f = ctl_report_add(r, CTL_V_FAIL, "memory",
                           "free memory, raise the container's limit, or lower --kv-memory",
                           "%s available, a node of this model needs about %s", have, want);
    } else if (available / 2 < need) {
        f = ctl_report_add(r, CTL_V_WARN, "memory",
                           "put prefill and decode on two machines, or lower --kv-memory",
                           "%s available: one node (about %s) fits, two do not", have, want);
    } else {
        f = ctl_report_add(r, CTL_V_OK, "memory", NULL, "%s available, a node needs about %s", have,
                           want);
    }
    ctl_finding_value(f, "available_bytes", (double)available);
    ctl_finding_value(f, "needed_bytes", (double)need);
}

/* MemAvailable, or what the container's limit leaves when that is less; 0: unknown. */
static uint64_t available_memory(void)
{
    TD_CLEANUP(td_freep) char *meminfo = read_text("/proc/meminfo");
    TD_CLEANUP(td_freep) char *limit = read_text("/sys/fs/cgroup/memory.max");
    TD_CLEANUP(td_freep) char *used = read_text("/sys/fs/cgroup/memory.current");
    char kb[64] = "";
    line_of(meminfo != NULL ? meminfo : "", "MemAvailable", kb, sizeof kb);
    uint64_t available = strtoull(kb, NULL, 10) * 1024;
    uint64_t max = limit != NULL ? strtoull(limit, NULL, 10) : 0; /* "max": 0 */
    uint64_t now = used != NULL ? strtoull(used, NULL, 10) : 0;
    uint64_t left = max > now ? max - now : 0;
    return max > 0 && left < available ? left : available;
}

void ctl_doctor_memory(struct ctl_report *r, uint64_t need_bytes)
{
    uint64_t available = available_memory();
    if (available == 0) {
        ctl_report_add(r, CTL_V_WARN, "memory", "mount /proc", "cannot read /proc/meminfo");
        return;
    }
    ctl_doctor_judge_memory(r, available, need_bytes);
}

/* ---- shared memory ---- */

void ctl_doctor_judge_shm(struct ctl_report *r, uint64_t total, uint64_t available)
{
    char all[32], left[32];
    (void)ctl_format_bytes(total, all, sizeof all);
    (void)ctl_format_bytes(available, left, sizeof left);
    bool low = available < SHM_ENOUGH;
    struct ctl_finding *f = ctl_report_add(
        r, low ? CTL_V_WARN : CTL_V_OK, "/dev/shm",
        total <= SHM_LOW
            ? "containers get 64 MB: use --shm-size=1g, or an emptyDir of medium Memory"
            : "remove what fills it: UCX falls back to TCP between nodes of this host",
        "%s, %s available", all, left);
    ctl_finding_value(f, "available_bytes", (double)available);
}

void ctl_doctor_shm(struct ctl_report *r)
{
    struct statvfs v;
    if (statvfs("/dev/shm", &v) != 0 || access("/dev/shm", W_OK) != 0) {
        ctl_report_add(r, CTL_V_WARN, "/dev/shm",
                       "mount a tmpfs there: without it nodes of one host move KV over TCP",
                       "missing or not writable");
        return;
    }
    ctl_doctor_judge_shm(r, (uint64_t)v.f_blocks * v.f_frsize, (uint64_t)v.f_bavail * v.f_frsize);
}

/* ---- limits ---- */

void ctl_doctor_limits(struct ctl_report *r)
{
    struct rlimit files = {0}, locked = {0};
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || getrlimit(RLIMIT_MEMLOCK, &locked) != 0) {
        ctl_report_add(r, CTL_V_WARN, "limits", "run as the user of the service", "cannot be read");
        return;
    }
    ctl_report_add(r, files.rlim_cur < FILES_LOW ? CTL_V_WARN : CTL_V_OK, "open files",
                   "raise it (LimitNOFILE=65536, ulimit -n): each client is a file",
                   "%" PRIu64 " allowed", (uint64_t)files.rlim_cur);
    if (access("/sys/class/infiniband", F_OK) == 0) {
        bool low = locked.rlim_cur != RLIM_INFINITY;
        ctl_report_add(r, low ? CTL_V_WARN : CTL_V_OK, "locked memory",
                       "set it to unlimited (LimitMEMLOCK=infinity): RDMA registers the KV pool",
                       low ? "limited" : "unlimited");
    }
}
