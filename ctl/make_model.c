#include "ctl/make_model.h"

#include <dirent.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/model/random_model.h"

#define TEXT_BYTES (4ull * 1024 * 1024) /* of the files beside the weights, generously */

struct options {
    char *shape;
    int64_t seed, threads;
};

static const struct td_opt opts[] = {
    CTL_OPT("shape", STRING, "", "name", 0, 0, NULL,
            "llama3-8b, qwen3-8b, tiny-llama, tiny-qwen3, tiny-qwen2 or tiny-mistral", shape),
    CTL_OPT("seed", INT, "1", "", 0, 1e15, NULL, "the same seed gives the same bytes", seed),
    CTL_OPT("threads", INT, "0", "", 0, TD_RANDOM_MAX_THREADS, NULL,
            "threads that write; 0: one for each core", threads),
};

const struct td_program ctl_make_model_program = {
    .name = "tandemctl make-model",
    .summary = "a Hugging Face directory with random weights",
    .opts = opts,
    .n_opts = TD_COUNT(opts),
    .struct_bytes = sizeof(struct options)};

/* ---- where ---- */

static bool is_empty(const char *dir)
{
    DIR *d = opendir(dir);
    const struct dirent *e;
    bool empty = d != NULL;

    while (d != NULL && empty && (e = readdir(d)) != NULL) { /* NOLINT: this stream is ours alone */
        empty = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
    }
    if (d != NULL) {
        (void)closedir(d); /* only read */
    }
    return empty;
}

static bool prepare_dir(const char *dir)
{
    if (mkdir(dir, 0755) == 0) {
        return true;
    }
    if (errno != EEXIST) {
        ctl_say("cannot make %s: %s", dir, strerrordesc_np(errno));
        return false;
    }
    if (!is_empty(dir)) {
        ctl_say("%s is not an empty directory", dir);
        return false;
    }
    return true;
}

static bool has_room(const char *dir, uint64_t bytes)
{
    struct statvfs fs;
    uint64_t room;

    if (statvfs(dir, &fs) != 0) {
        ctl_say("cannot examine the disk of %s: %s", dir, strerrordesc_np(errno));
        return false;
    }
    room = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (room < bytes + TEXT_BYTES) {
        ctl_say("%s has room for %.1f GB, the model needs %.1f GB", dir, (double)room / 1e9,
                (double)(bytes + TEXT_BYTES) / 1e9);
        return false;
    }
    return true;
}

/* ---- how far ---- */

struct progress {
    uint64_t total;
    int64_t since_us;
    bool terminal;
    atomic_llong shown_us;
};

/* From any writing thread: about ten lines over each other a second, one of them prints. */
static void show(void *arg, uint64_t done)
{
    struct progress *p = arg;
    long long now = td_now_us();
    long long last = atomic_load(&p->shown_us);

    if (!p->terminal || now - last < 100000 ||
        !atomic_compare_exchange_strong(&p->shown_us, &last, now)) {
        return;
    }
    (void)fprintf(stderr, "\r%3.0f %%, %.1f of %.1f GB, %.1f s ",
                  100.0 * (double)done / (double)p->total, (double)done / 1e9,
                  (double)p->total / 1e9, (double)(now - p->since_us) / 1e6);
}

/* ---- the command ---- */

static const struct td_random_shape *find_shape(const char *name)
{
    const struct td_random_shape *s = td_random_shape_find(name);
    char names[256] = "";

    for (size_t i = 0; s == NULL && td_random_shape_at(i) != NULL; i++) {
        size_t at = strlen(names);

        (void)snprintf(names + at, sizeof names - at, " %s", td_random_shape_at(i)->name);
    }
    if (s == NULL) {
        ctl_say("make-model needs --shape, one of%s", names);
    }
    return s;
}

enum ctl_exit ctl_make_model(const void *options, char *const *args)
{
    const struct options *o = options;
    const struct td_random_shape *shape = find_shape(o->shape);
    uint64_t bytes = shape != NULL ? td_random_model_bytes(shape) : 0;
    struct progress p = {.total = bytes, .since_us = td_now_us()};
    char text[512] = "";
    struct td_why why = {text, sizeof text};
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    td_err err;

    if (shape == NULL) {
        return CTL_USAGE;
    }
    if (!prepare_dir(args[0]) || !has_room(args[0], bytes)) {
        return CTL_FAILED;
    }
    p.terminal = isatty(STDERR_FILENO) != 0;
    cores = o->threads > 0 ? o->threads : cores;
    cores = cores < 1 ? 1 : cores > TD_RANDOM_MAX_THREADS ? TD_RANDOM_MAX_THREADS : cores;
    err = td_random_model_write(&(struct td_random_params){.shape = shape,
                                                           .seed = (uint64_t)o->seed,
                                                           .n_threads = (uint32_t)cores,
                                                           .progress = show,
                                                           .arg = &p},
                                args[0], &why);
    if (p.terminal) {
        (void)fputc('\n', stderr);
    }
    if (err != TD_OK) {
        ctl_say("%s: %s", args[0], text[0] != 0 ? text : td_err_text(err));
        return CTL_FAILED;
    }
    (void)printf("%s: %s, seed %lld, %.2f GB in %.1f s\n", args[0], shape->name, (long long)o->seed,
                 (double)bytes / 1e9, (double)(td_now_us() - p.since_us) / 1e6);
    return CTL_OK;
}
