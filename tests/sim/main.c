/* tandem-sim: plays seeds of the simulated cluster.
 *
 *     tandem-sim --seeds A..B [--jobs N] [--twice] [--expect-failure]
 *     tandem-sim --seed N [-v]
 *
 * Prints one line for each failing seed, ending in the command that plays it again, and a summary.
 * --twice: every seed must give the same trace twice. --expect-failure: succeeds when a seed fails
 * (planted bugs); the first one is printed. Exit 0: as expected, 1: not, 2: usage.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "tests/sim/sim.h"

#ifndef SIM_BUG
#define SIM_BUG "none"
#endif
#define MAX_JOBS 64

struct options {
    uint64_t first, last;
    uint32_t jobs;
    bool verbose, twice, expect_failure;
};

struct totals {
    uint64_t seeds, failed, hash, events, reqs, faults, complete, errors, cancelled, resets,
        replays, resumes, lost, outs, taken, expired;
    int64_t virtual_us;
};

static const char *program;
/* What a signal prints: made before each seed, since a handler may only write. */
static char last_words[512];
static volatile sig_atomic_t n_last_words;

/* An assertion of the code under test is a failing seed like any other. */
static void on_abort(int sig)
{
    (void)sig;
    ssize_t written = write(1, last_words, (size_t)n_last_words);
    (void)written;
    _exit(3);
}

static void prepare_last_words(uint64_t seed)
{
    int n = snprintf(last_words, sizeof last_words,
                     "seed %" PRIu64 " FAILED: an assertion or a crash; -v shows it\n"
                     "  again: %s --seed %" PRIu64 " --bug " SIM_BUG " -v\n",
                     seed, program, seed);
    n_last_words = n < (int)sizeof last_words ? n : (int)sizeof last_words - 1;
}

static void add(struct totals *t, const struct sim_result *r)
{
    t->seeds++;
    t->failed += !r->ok;
    t->hash = td_mix64(t->hash ^ r->hash);
    t->events += r->n_events;
    t->reqs += r->n_reqs;
    t->faults += r->n_faults;
    t->complete += r->n_complete;
    t->errors += r->n_error;
    t->cancelled += r->n_cancelled;
    t->resets += r->n_resets;
    t->replays += r->n_replays;
    t->resumes += r->n_resumes;
    t->lost += r->n_lost;
    t->outs += r->n_outs;
    t->taken += r->n_taken;
    t->expired += r->n_expired;
    t->virtual_us += r->virtual_us;
}

static void merge(struct totals *t, const struct totals *o)
{
    t->seeds += o->seeds;
    t->failed += o->failed;
    t->hash ^= o->hash;
    t->events += o->events;
    t->reqs += o->reqs;
    t->faults += o->faults;
    t->complete += o->complete;
    t->errors += o->errors;
    t->cancelled += o->cancelled;
    t->resets += o->resets;
    t->replays += o->replays;
    t->resumes += o->resumes;
    t->lost += o->lost;
    t->outs += o->outs;
    t->taken += o->taken;
    t->expired += o->expired;
    t->virtual_us += o->virtual_us;
}

static void play(const struct options *o, uint64_t seed, struct totals *t)
{
    prepare_last_words(seed);
    struct sim_result r = sim_run(seed, o->verbose);
    if (r.ok && o->twice) {
        struct sim_result again = sim_run(seed, false);
        if (again.hash != r.hash) {
            r.ok = false;
            (void)snprintf(r.why, sizeof r.why, "trace %016" PRIx64 ", then %016" PRIx64, r.hash,
                           again.hash);
        }
    }
    add(t, &r);
    if (!r.ok) {
        (void)printf("seed %" PRIu64 " FAILED: %s\n  again: %s --seed %" PRIu64 " --bug " SIM_BUG
                     " -v\n",
                     seed, r.why, program, seed);
        (void)fflush(stdout);
    } else if (o->verbose || o->first == o->last) {
        (void)printf("seed %" PRIu64 " ok: trace %016" PRIx64 " events=%" PRIu64 "\n", seed, r.hash,
                     r.n_events);
    }
}

/* Seeds first + index, first + index + jobs, ... */
static void play_share(const struct options *o, uint32_t index, struct totals *t)
{
    for (uint64_t seed = o->first + index; seed <= o->last; seed += o->jobs) {
        play(o, seed, t);
        if (o->expect_failure && t->failed > 0) {
            return;
        }
    }
}

/* A worker hands its totals back through a pipe; one that died says nothing and counts as a failure. */
static bool run_jobs(const struct options *o, struct totals *t)
{
    int fds[MAX_JOBS];
    pid_t pids[MAX_JOBS];
    bool ok = true;
    for (uint32_t i = 0; i < o->jobs; i++) {
        int pair[2];
        if (pipe(pair) != 0) {
            return false;
        }
        pids[i] = fork();
        if (pids[i] == 0) {
            struct totals mine = {0};
            play_share(o, i, &mine);
            ssize_t n = write(pair[1], &mine, sizeof mine);
            _exit(n == (ssize_t)sizeof mine ? 0 : 3);
        }
        (void)close(pair[1]);
        fds[i] = pair[0];
    }
    for (uint32_t i = 0; i < o->jobs; i++) {
        struct totals other = {0};
        int status = 0;
        bool whole = read(fds[i], &other, sizeof other) == (ssize_t)sizeof other;
        (void)close(fds[i]);
        ok = waitpid(pids[i], &status, 0) == pids[i] && whole && status == 0 && ok;
        if (whole) {
            merge(t, &other);
        } else {
            t->failed++;
        }
    }
    return ok;
}

static bool parse_range(const char *text, uint64_t *out_first, uint64_t *out_last)
{
    char *end = NULL;
    errno = 0;
    *out_first = *out_last = strtoull(text, &end, 10);
    if (errno == 0 && end != text && strncmp(end, "..", 2) == 0) {
        text = end + 2;
        *out_last = strtoull(text, &end, 10);
    }
    return errno == 0 && end != text && *end == '\0' && *out_first <= *out_last;
}

static bool parse(int argc, char **argv, struct options *o)
{
    *o = (struct options){.first = 1, .last = 100, .jobs = 1};
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        uint64_t n = 0, same = 0;
        if (strcmp(arg, "-v") == 0) {
            o->verbose = true;
        } else if (strcmp(arg, "--twice") == 0) {
            o->twice = true;
        } else if (strcmp(arg, "--expect-failure") == 0) {
            o->expect_failure = true;
        } else if (strcmp(arg, "--seed") == 0 || strcmp(arg, "--seeds") == 0) {
            if (!parse_range(value, &o->first, &o->last)) {
                return false;
            }
            i++;
        } else if (strcmp(arg, "--jobs") == 0) {
            if (!parse_range(value, &n, &same) || n != same || n == 0 || n > MAX_JOBS) {
                return false;
            }
            o->jobs = (uint32_t)n;
            i++;
        } else if (strcmp(arg, "--bug") == 0 && strcmp(value, SIM_BUG) == 0) {
            i++;
        } else {
            (void)fprintf(stderr, "%s: unknown or wrong: %s %s (built with --bug %s)\n", argv[0],
                          arg, value, SIM_BUG);
            return false;
        }
    }
    return true;
}

static void summary(const struct totals *t, int64_t us)
{
    (void)printf("sim: bug=%s seeds=%" PRIu64 " failed=%" PRIu64 " requests=%" PRIu64
                 " complete=%" PRIu64 " errors=%" PRIu64 " cancelled=%" PRIu64 " reset=%" PRIu64
                 " replays=%" PRIu64 " faults=%" PRIu64 " resumes=%" PRIu64 " lost=%" PRIu64
                 " outside=%" PRIu64 " taken=%" PRIu64 " expired=%" PRIu64 " events=%" PRIu64
                 " virtual_s=%.0f wall_s=%.1f trace=%016" PRIx64 "\n",
                 SIM_BUG, t->seeds, t->failed, t->reqs, t->complete, t->errors, t->cancelled,
                 t->resets, t->replays, t->faults, t->resumes, t->lost, t->outs, t->taken,
                 t->expired, t->events, (double)t->virtual_us / 1e6, (double)us / 1e6, t->hash);
}

int main(int argc, char **argv)
{
    struct options o;
    struct totals t = {0};
    program = argv[0];
    if (!parse(argc, argv, &o)) {
        (void)fprintf(stderr,
                      "usage: %s --seeds A..B | --seed N [-v] [--jobs N] [--twice] "
                      "[--expect-failure]\n",
                      argv[0]);
        return 2;
    }
    td_log_set_level(o.verbose ? TD_LOG_DEBUG : TD_LOG_ERROR);
    if (!o.verbose) {
        td_log_set_fd(open("/dev/null", O_WRONLY | O_CLOEXEC));
    }
    (void)signal(SIGABRT, on_abort);
    (void)signal(SIGSEGV, on_abort);
    int64_t started = td_now_us();
    bool ok = true;
    if (o.jobs == 1) {
        play_share(&o, 0, &t);
    } else {
        ok = run_jobs(&o, &t);
    }
    summary(&t, td_now_us() - started);
    bool failed = !ok || t.failed > 0;
    return failed == o.expect_failure ? 0 : 1;
}
