#include "ctl/bench.h"

#include <math.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/model/cpu_engine.h"
#include "common/model/model.h"
#include "ctl/log_reason.h"
#include "ctl/output.h"

struct options {
    char *model;
    int64_t threads, reps;
    int numerics, isa;
    int format;
    bool json;
};

static const char *const numerics_names[] = {"int8", "f32"};
static const char *const isa_names[] = {"auto", "portable", "avx2", "avx512", "amx"};

static const struct td_opt opts[] = {
    CTL_OPT("model", STRING, "", "path", 0, 0, NULL, "GGUF file or Hugging Face directory", model),
    CTL_OPT("threads", INT, "0", "", 0, 256, NULL, "compute threads; 0: one for each core",
            threads),
    CTL_OPT("reps", INT, "5", "", 1, TD_BENCH_MAX_REPS, NULL, "samples of each case", reps),
    CTL_OPT("numerics", ENUM, "int8", "", 0, 0, "int8|f32", "as for nodes", numerics),
    CTL_OPT("isa", ENUM, "auto", "", 0, 0, "auto|portable|avx2|avx512|amx",
            "instruction set of the kernels", isa),
    CTL_OPT("output", ENUM, "table", "", 0, 0, CTL_FORMATS, "or -o: the form of the result",
            format),
    CTL_OPT("json", BOOL, "false", "", 0, 0, NULL, "the same as -o json", json),
};

const struct td_program ctl_bench_engine_program = {.name = "tandemctl bench engine",
                                                    .summary = "tokens per second of this machine",
                                                    .opts = opts,
                                                    .n_opts = TD_COUNT(opts),
                                                    .struct_bytes = sizeof(struct options)};

/* ---- what takes so long ---- */

/* Says what is going on; on a terminal a thread adds the seconds. */
struct progress {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool ticking, stop; /* stop: under lock */
    int64_t since_us;
    const char *what;
};

static void *tick(void *arg)
{
    struct progress *p = arg;
    struct timespec until;
    (void)pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        (void)fprintf(stderr, "\r%s: %.0f s", p->what, (double)(td_now_us() - p->since_us) / 1e6);
        (void)clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        (void)pthread_cond_timedwait(&p->wake, &p->lock, &until);
    }
    (void)pthread_mutex_unlock(&p->lock);
    (void)fputc('\n', stderr);
    return NULL;
}

static void progress_begin(struct progress *p, const char *what)
{
    *p = (struct progress){.lock = PTHREAD_MUTEX_INITIALIZER,
                           .wake = PTHREAD_COND_INITIALIZER,
                           .since_us = td_now_us(),
                           .what = what};
    p->ticking = isatty(STDERR_FILENO) != 0 && pthread_create(&p->thread, NULL, tick, p) == 0;
    if (!p->ticking) {
        (void)fprintf(stderr, "%s\n", what);
    }
}

static void progress_end(struct progress *p)
{
    if (p->ticking) {
        (void)pthread_mutex_lock(&p->lock);
        p->stop = true;
        (void)pthread_cond_signal(&p->wake);
        (void)pthread_mutex_unlock(&p->lock);
        (void)pthread_join(p->thread, NULL);
    }
}

/* ---- the result ---- */

static double tenths(double x)
{
    return round(x * 10) / 10; /* more digits would be noise */
}

td_err ctl_bench_json(const struct ctl_bench_setup *s, const struct td_bench_result *r,
                      enum ctl_format format, FILE *out)
{
    char id[65];
    for (int i = 0; i < 32; i++) {
        (void)snprintf(id + 2 * i, 3, "%02x", s->model_id[i]);
    }
    json_t *cases = json_array();
    for (int i = 0; i < TD_BENCH_CASES; i++) {
        const struct td_bench_case *c = &r->cases[i];
        (void)json_array_append_new(
            cases, json_pack("{s:s,s:s,s:f,s:f,s:f}", "name", c->name, "unit", "tokens/s", "median",
                             tenths(c->median), "best", tenths(c->best), "worst",
                             tenths(c->worst))); /* counted below */
    }
    json_t *doc = json_array_size(cases) != TD_BENCH_CASES
                      ? NULL
                      : json_pack("{s:s,s:s,s:s,s:i,s:s,s:s,s:i,s:O}", "cpu", r->cpu, "model",
                                  s->model, "model_id", id, "threads", (int)s->threads, "numerics",
                                  s->numerics, "isa", s->isa, "reps", (int)r->reps, "cases", cases);
    td_err err = doc != NULL ? ctl_document_print(doc, format, out) : TD_ERR_NO_MEMORY;
    json_decref(doc);
    json_decref(cases);
    return err;
}

/* ---- the command ---- */

static td_err open_engine(const struct options *o, uint32_t threads, struct td_model **out_model,
                          struct td_engine **out_engine)
{
    struct td_cpu_engine_params p = {.numerics = numerics_names[o->numerics],
                                     .isa = (enum td_cpu_isa)o->isa,
                                     .n_threads = threads,
                                     .n_blocks = TD_BENCH_BLOCKS,
                                     .max_rows = TD_BENCH_STREAMS,
                                     .max_tokens = TD_BENCH_PREFILL,
                                     .max_slots = TD_BENCH_STREAMS,
                                     .max_model_len = 2048};
    TD_TRY(td_model_open(o->model, out_model));
    return td_cpu_engine_create(*out_model, &p, out_engine);
}

static td_err measure(const struct options *o, struct ctl_bench_setup *setup,
                      struct td_bench_result *out)
{
    struct progress p;
    struct td_model *model = NULL;
    struct td_engine *engine = NULL;
    progress_begin(&p, "reading the model and packing its weights");
    td_err err = open_engine(o, setup->threads, &model, &engine);
    progress_end(&p);
    if (err == TD_OK) {
        memcpy(setup->model_id, model->id, sizeof setup->model_id);
        progress_begin(&p, "measuring prefill, decode at two contexts, 16 streams");
        err = td_bench_engine(engine, (uint32_t)o->reps, out);
        progress_end(&p);
    }
    if (engine != NULL) {
        engine->ops->destroy(engine);
    }
    (void)td_model_close(model); /* NULL */
    return err;
}

enum ctl_exit ctl_bench_engine(const void *options, char *const *args)
{
    const struct options *o = options;
    struct td_bench_result result;
    struct ctl_log_reason logged;
    char why[320];
    (void)args;
    if (o->model[0] == 0) {
        ctl_say("bench engine needs --model PATH");
        return CTL_USAGE;
    }
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    struct ctl_bench_setup setup = {.model = o->model,
                                    .threads = (uint32_t)(o->threads > 0 ? o->threads : cores),
                                    .numerics = numerics_names[o->numerics],
                                    .isa = isa_names[o->isa]};
    ctl_log_reason_begin(&logged);
    td_err err = measure(o, &setup, &result);
    ctl_log_reason_end(&logged, why, sizeof why);
    if (err != TD_OK) {
        ctl_say("%s: %s", o->model, why[0] != 0 ? why : td_err_text(err));
        return CTL_FAILED;
    }
    enum ctl_format format = o->json ? CTL_JSON : (enum ctl_format)o->format;
    if (format == CTL_JSON || format == CTL_YAML) {
        err = ctl_bench_json(&setup, &result, format, stdout);
    } else {
        (void)printf("model: %s\nthreads: %u, numerics: %s, isa: %s\n", setup.model, setup.threads,
                     setup.numerics, setup.isa);
        td_bench_engine_print(&result, stdout);
    }
    return err == TD_OK ? CTL_OK : CTL_FAILED;
}
