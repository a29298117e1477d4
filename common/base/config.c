#include "common/base/config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "common/base/assert.h"
#include "common/base/config_value.h"
#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/mem.h"

#define CONFIG_MAX_FLAGS  256u
#define CONFIG_MAX_FILE   ((size_t)256 * 1024)
#define CONFIG_MAX_EVENTS 20000u

/* Options of every program. Their values live in struct builtin, the table is searched behind the
 * program's own. */
struct builtin {
    bool help;
    bool version;
    bool print_config;
    bool check_config;
    bool list_fault_points;
    char *config;
    char *fault;
};

#define BUILTIN(flag, kind, member, text)                                                          \
    {                                                                                              \
        .name = flag, .type = kind, .unit = "", .help = text,                                      \
        .offset = offsetof(struct builtin, member)                                                 \
    }

#define BUILTIN_FROM_ENV                                                                           \
    2 /* the first two; TANDEM_VERSION and the like mean other things to operators */
static const struct td_opt builtin_opts[] = {
    BUILTIN("config", TD_OPT_STRING, config, "YAML file whose keys are these flags"),
    BUILTIN("fault", TD_OPT_STRING, fault,
            "arm fault points: name=action[:after=N][:times=N][:us=N][:prob=P],..."),
    BUILTIN("print-config", TD_OPT_BOOL, print_config,
            "print the effective configuration and exit"),
    BUILTIN("check-config", TD_OPT_BOOL, check_config, "check the configuration and exit"),
    BUILTIN("list-fault-points", TD_OPT_BOOL, list_fault_points, "list fault points and exit"),
    BUILTIN("version", TD_OPT_BOOL, version, "print the version and exit"),
    BUILTIN("help", TD_OPT_BOOL, help, "print this help and exit"),
};

/* One flag of the command line, in order. */
struct flag {
    const struct td_opt *opt;
    bool is_builtin;
    const char *value;
};

struct load {
    const struct td_program *program;
    void *config;
    struct builtin builtin;
    struct flag flags[CONFIG_MAX_FLAGS];
    size_t n_flags;
};

/* Logs why `value` from `source` was not taken and what the operator can do. */
static td_err refuse(const char *source, const char *name, const char *value, const char *reason,
                     const char *remedy)
{
    char name_q[160];
    char value_q[512];
    char remedy_q[512];
    TD_LOG(ERROR, "bad option", "option=%s value=%s source=\"%s\" reason=\"%s\" remedy=%s",
           td_log_quote(name, strlen(name), name_q, sizeof name_q),
           td_log_quote(value, strlen(value), value_q, sizeof value_q), source, reason,
           td_log_quote(remedy, strlen(remedy), remedy_q, sizeof remedy_q));
    return TD_ERR_CONFIG;
}

static td_err refuse_unknown(const struct td_program *p, const char *source, const char *name)
{
    const char *names[TD_CONFIG_MAX_OPTS + TD_COUNT(builtin_opts)];
    size_t n = 0;
    char remedy[192] = "see --help";
    for (size_t i = 0; i < p->n_opts; i++) {
        names[n++] = p->opts[i].name;
    }
    for (size_t i = 0; i < TD_COUNT(builtin_opts); i++) {
        names[n++] = builtin_opts[i].name;
    }
    const char *near = td__nearest_name(name, names, n);
    if (near != NULL) {
        (void)snprintf(remedy, sizeof remedy, "did you mean %s?", near);
    }
    return refuse(source, name, "", "unknown option", remedy);
}

static const struct td_opt *find_opt(const struct td_opt *opts, size_t n, const char *name,
                                     size_t len)
{
    for (size_t i = 0; i < n; i++) {
        if (strlen(opts[i].name) == len && memcmp(opts[i].name, name, len) == 0) {
            return &opts[i];
        }
    }
    return NULL;
}

/* "a whole number from 1 to 65535": what the option accepts, for the remedy. */
static void describe(const struct td_opt *o, char *out, size_t cap)
{
    static const char *const what[] = {"true or false", "a whole number", "a number", "text", "",
                                       "a list"};
    if (o->type == TD_OPT_ENUM) {
        (void)snprintf(out, cap, "give one of %s", o->choices);
    } else if (o->min < o->max) {
        (void)snprintf(out, cap, "give %s from %.15g to %.15g %s", what[o->type], o->min, o->max,
                       o->unit);
    } else {
        (void)snprintf(out, cap, "give %s %s", what[o->type], o->unit);
    }
}

static td_err set(const struct td_opt *o, const char *text, const char *source, void *config)
{
    const char *reason = "out of memory";
    td_err e = td__opt_set(o, text, config, &reason);
    if (e != TD_OK) {
        char remedy[256];
        describe(o, remedy, sizeof remedy);
        (void)refuse(source, o->name, text, reason, remedy);
    }
    return e;
}

td_err td_config_defaults(const struct td_program *p, void *config)
{
    TD_REQUIRE(p->n_opts <= TD_CONFIG_MAX_OPTS);
    memset(config, 0, p->struct_bytes);
    for (size_t i = 0; i < p->n_opts; i++) {
        const struct td_opt *o = &p->opts[i];
        TD_REQUIRE(o->unit != NULL && o->help != NULL && o->offset < p->struct_bytes);
        TD_REQUIRE(o->type != TD_OPT_ENUM || o->choices != NULL);
        bool empty_text =
            o->def != NULL && o->type == TD_OPT_STRING; /* "" is a string, NULL is none */
        if (o->def != NULL && (o->def[0] != '\0' || empty_text)) {
            TD_TRY(set(o, o->def, "default", config));
        }
    }
    return TD_OK;
}

/* ---- YAML ---- */

struct yaml_state {
    yaml_parser_t parser;
    const struct td_program *program;
    void *config;
    bool seen[TD_CONFIG_MAX_OPTS];
    size_t events;
};

static td_err yaml_refuse(const char *reason, size_t line)
{
    TD_LOG(ERROR, "bad config file",
           "line=%zu reason=\"%s\" remedy=\"a flat mapping of flags to values\"", line + 1, reason);
    return TD_ERR_CONFIG;
}

/* The caller deletes the event. Aliases are refused here: with them, a small file can mean a huge
 * one. */
static td_err next_event(struct yaml_state *y, yaml_event_t *ev)
{
    if (++y->events > CONFIG_MAX_EVENTS) {
        return yaml_refuse("too many entries", y->parser.mark.line);
    }
    if (yaml_parser_parse(&y->parser, ev) == 0) {
        return yaml_refuse(y->parser.problem != NULL ? y->parser.problem : "not YAML",
                           y->parser.problem_mark.line);
    }
    if (ev->type == YAML_ALIAS_EVENT) {
        yaml_event_delete(ev);
        return yaml_refuse("aliases are not allowed", y->parser.mark.line);
    }
    return TD_OK;
}

static td_err expect(struct yaml_state *y, yaml_event_type_t type, const char *reason)
{
    yaml_event_t ev = {0};
    TD_TRY(next_event(y, &ev));
    bool ok = ev.type == type;
    size_t line = ev.start_mark.line;
    yaml_event_delete(&ev);
    return ok ? TD_OK : yaml_refuse(reason, line);
}

static const char *scalar(const yaml_event_t *ev)
{
    return (const char *)ev->data.scalar.value;
}

static bool scalar_has_nul(const yaml_event_t *ev)
{
    return strlen(scalar(ev)) != ev->data.scalar.length;
}

static td_err yaml_sequence(struct yaml_state *y, const struct td_opt *o)
{
    for (;;) {
        yaml_event_t ev = {0};
        TD_TRY(next_event(y, &ev));
        if (ev.type == YAML_SEQUENCE_END_EVENT) {
            yaml_event_delete(&ev);
            return TD_OK;
        }
        td_err e = ev.type != YAML_SCALAR_EVENT || scalar_has_nul(&ev)
                       ? yaml_refuse("a list holds only plain values", ev.start_mark.line)
                       : set(o, scalar(&ev), "config file", y->config);
        yaml_event_delete(&ev);
        TD_TRY(e);
    }
}

static td_err yaml_value(struct yaml_state *y, const struct td_opt *o)
{
    TD_INSIST(o != NULL);
    yaml_event_t ev = {0};
    TD_TRY(next_event(y, &ev));
    td_err e;
    if (ev.type == YAML_SEQUENCE_START_EVENT && o->type == TD_OPT_LIST) {
        td__opt_clear(o, y->config);
        e = yaml_sequence(y, o);
    } else if (ev.type == YAML_SCALAR_EVENT && !scalar_has_nul(&ev)) {
        if (o->type == TD_OPT_LIST) {
            td__opt_clear(o, y->config);
        }
        e = set(o, scalar(&ev), "config file", y->config);
    } else {
        e = yaml_refuse("expected a plain value", ev.start_mark.line);
    }
    yaml_event_delete(&ev);
    return e;
}

/* Finds the option that a key names; each key may come once. */
static td_err yaml_key(struct yaml_state *y, const yaml_event_t *ev, const struct td_opt **out_opt)
{
    const struct td_program *p = y->program;
    if (ev->type != YAML_SCALAR_EVENT || scalar_has_nul(ev)) {
        return yaml_refuse("expected the name of a flag", ev->start_mark.line);
    }
    const struct td_opt *o = find_opt(p->opts, p->n_opts, scalar(ev), ev->data.scalar.length);
    if (o == NULL) {
        return refuse_unknown(p, "config file", scalar(ev));
    }
    size_t i = (size_t)(o - p->opts);
    if (y->seen[i]) {
        return yaml_refuse("a key comes twice", ev->start_mark.line);
    }
    y->seen[i] = true;
    *out_opt = o;
    return TD_OK;
}

static td_err yaml_mapping(struct yaml_state *y)
{
    for (;;) {
        yaml_event_t ev = {0};
        const struct td_opt *o = NULL;
        TD_TRY(next_event(y, &ev));
        if (ev.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&ev);
            return TD_OK;
        }
        td_err e = yaml_key(y, &ev, &o);
        yaml_event_delete(&ev);
        TD_TRY(e);
        TD_TRY(yaml_value(y, o));
    }
}

static td_err yaml_document(struct yaml_state *y)
{
    yaml_event_t ev = {0};
    TD_TRY(expect(y, YAML_STREAM_START_EVENT, "not YAML"));
    TD_TRY(next_event(y, &ev));
    yaml_event_type_t first = ev.type;
    yaml_event_delete(&ev);
    if (first == YAML_STREAM_END_EVENT) {
        return TD_OK; /* an empty file, or one of comments only */
    }
    TD_TRY(expect(y, YAML_MAPPING_START_EVENT, "the file is not a mapping"));
    TD_TRY(yaml_mapping(y));
    TD_TRY(expect(y, YAML_DOCUMENT_END_EVENT, "text after the mapping"));
    return expect(y, YAML_STREAM_END_EVENT, "more than one document");
}

td_err td_config_yaml(const struct td_program *p, const char *text, size_t len, void *config)
{
    if (len > CONFIG_MAX_FILE) {
        return yaml_refuse("larger than 256 KB", 0);
    }
    struct yaml_state *y = td_zalloc(1, sizeof *y);
    if (y == NULL || yaml_parser_initialize(&y->parser) == 0) {
        free(y);
        return TD_ERR_NO_MEMORY;
    }
    y->program = p;
    y->config = config;
    yaml_parser_set_input_string(&y->parser, (const unsigned char *)text, len);
    td_err e = yaml_document(y);
    yaml_parser_delete(&y->parser);
    free(y);
    return e;
}

static td_err load_file(struct load *l, const char *path)
{
    char quoted[512];
    TD_CLEANUP(td_freep) char *text = td_zalloc(CONFIG_MAX_FILE + 1, 1);
    if (text == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    FILE *f = fopen(path, "re");
    size_t len = f != NULL ? fread(text, 1, CONFIG_MAX_FILE + 1, f) : 0;
    bool failed = f == NULL || ferror(f) != 0;
    if (f != NULL) {
        (void)fclose(f);
    }
    if (failed) {
        TD_LOG(ERROR, "cannot read config file",
               "path=%s errno=%d remedy=\"check the path and its permissions\"",
               td_log_quote(path, strlen(path), quoted, sizeof quoted), errno);
        return TD_ERR_CONFIG;
    }
    td_err e = td_config_yaml(l->program, text, len, l->config);
    if (e != TD_OK) {
        TD_LOG(ERROR, "config file refused", "path=%s",
               td_log_quote(path, strlen(path), quoted, sizeof quoted));
    }
    return e;
}

/* ---- environment ---- */

static const char *env_value(const struct td_opt *o)
{
    char name[96] = "TANDEM_";
    size_t n = strlen(name);
    for (const char *c = o->name; *c != '\0' && n + 1 < sizeof name; c++) {
        name[n++] = (char)(*c == '-' ? '_' : *c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c);
    }
    name[n] = '\0';
    const char *value = getenv(name); /* NOLINT(concurrency-mt-unsafe): before any thread starts */
    /* A Kubernetes Service named "tandem" puts TANDEM_PORT=tcp://... into every pod of its
     * namespace. */
    if (value != NULL && o->type == TD_OPT_INT && strncmp(value, "tcp://", 6) == 0) {
        return NULL;
    }
    return value;
}

static td_err load_env(const struct td_opt *opts, size_t n, void *config)
{
    for (size_t i = 0; i < n; i++) {
        const char *value = env_value(&opts[i]);
        if (value != NULL) {
            if (opts[i].type == TD_OPT_LIST) {
                td__opt_clear(&opts[i], config);
            }
            TD_TRY(set(&opts[i], value, "environment", config));
        }
    }
    return TD_OK;
}

/* ---- command line ---- */

/* Fills *f from `name` (without dashes). Accepts no-<flag> for bools. */
static td_err resolve(const struct load *l, const char *name, size_t len, struct flag *f)
{
    const struct td_program *p = l->program;
    f->opt = find_opt(p->opts, p->n_opts, name, len);
    if (f->opt == NULL && len > 3 && memcmp(name, "no-", 3) == 0) {
        f->opt = find_opt(p->opts, p->n_opts, name + 3, len - 3);
        f->opt = f->opt != NULL && f->opt->type == TD_OPT_BOOL ? f->opt : NULL;
        f->value = f->opt != NULL ? "false" : NULL;
    }
    if (f->opt == NULL) {
        f->opt = find_opt(builtin_opts, TD_COUNT(builtin_opts), name, len);
        f->is_builtin = f->opt != NULL;
    }
    if (f->opt == NULL) {
        char unknown[128];
        (void)snprintf(unknown, sizeof unknown, "%.*s", (int)(len < 100 ? len : 100), name);
        return refuse_unknown(p, "command line", unknown);
    }
    return TD_OK;
}

/* One argument; *i moves past a value that stands alone. */
static td_err parse_flag(struct load *l, int argc, char **argv, int *i)
{
    const char *arg = argv[*i];
    struct flag f = {0};
    if (strcmp(arg, "-h") == 0) {
        arg = "--help";
    }
    if (strncmp(arg, "--", 2) != 0 || arg[2] == '\0') {
        return refuse("command line", arg, "", "not a flag", "flags start with --");
    }
    size_t len = strcspn(arg + 2, "=");
    TD_TRY(resolve(l, arg + 2, len, &f));
    if (arg[2 + len] == '=') {
        if (f.value != NULL) {
            return refuse("command line", arg, "", "takes no value", "leave the value out");
        }
        f.value = arg + 2 + len + 1;
    } else if (f.opt->type == TD_OPT_BOOL) {
        f.value = f.value != NULL ? f.value : "true";
    } else if (*i + 1 < argc) {
        f.value = argv[++*i];
    } else {
        return refuse("command line", f.opt->name, "", "needs a value", "see --help");
    }
    if (l->n_flags == CONFIG_MAX_FLAGS) {
        return refuse("command line", f.opt->name, "", "more than 256 flags", "use --config");
    }
    l->flags[l->n_flags++] = f;
    return TD_OK;
}

static td_err parse_argv(struct load *l, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        TD_TRY(parse_flag(l, argc, argv, &i));
    }
    return TD_OK;
}

static struct td_opt_set *told_of(const struct td_program *p, void *config)
{
    return (struct td_opt_set *)(void *)((char *)config + p->told_offset);
}

/* Applies the flags of one table; the first occurrence of a list replaces what file and environment
 * said. */
static td_err apply_flags(const struct load *l, bool builtin, void *config)
{
    for (size_t i = 0; i < l->n_flags; i++) {
        const struct flag *f = &l->flags[i];
        if (f->is_builtin != builtin) {
            continue;
        }
        bool first = f->opt->type == TD_OPT_LIST;
        for (size_t j = 0; j < i; j++) {
            first = first && l->flags[j].opt != f->opt;
        }
        if (first) {
            td__opt_clear(f->opt, config);
        }
        TD_TRY(set(f->opt, f->value, "command line", config));
        if (!builtin && l->program->told_offset != 0) {
            size_t n = (size_t)(f->opt - l->program->opts);
            told_of(l->program, config)->bits[n / 64] |= UINT64_C(1) << n % 64;
        }
    }
    return TD_OK;
}

bool td_config_told(const struct td_program *p, const void *config, const char *name)
{
    const struct td_opt *o = find_opt(p->opts, p->n_opts, name, strlen(name));
    TD_REQUIRE(p->told_offset != 0 && o != NULL);
    size_t n = (size_t)(o - p->opts);
    return (told_of(p, (void *)(uintptr_t)config)->bits[n / 64] >> n % 64 & 1) != 0;
}

/* ---- output ---- */

static void print_opt_help(const struct td_opt *o, FILE *out)
{
    char flag[160];
    (void)snprintf(flag, sizeof flag, "--%s %s", o->name, td__opt_kind(o));
    (void)fprintf(out, "  %-34s %s", flag, o->help);
    if (o->unit[0] != '\0') {
        (void)fprintf(out, ", in %s", o->unit);
    }
    if (o->min < o->max) {
        (void)fprintf(out, ", %.15g to %.15g", o->min, o->max);
    }
    if (o->def != NULL && o->def[0] != '\0') {
        (void)fprintf(out, " (%s)", o->def);
    }
    (void)fputc('\n', out);
}

void td_config_help(const struct td_program *p, FILE *out)
{
    bool has_args = p->args != NULL && p->args[0] != '\0';
    (void)fprintf(out, "%s - %s\n\nusage: %s%s%s [--flag value]...\n\n", p->name, p->summary,
                  p->name, has_args ? " " : "", has_args ? p->args : "");
    for (size_t i = 0; i < p->n_opts; i++) {
        print_opt_help(&p->opts[i], out);
    }
    (void)fputc('\n', out);
    for (size_t i = 0; i < TD_COUNT(builtin_opts); i++) {
        print_opt_help(&builtin_opts[i], out);
    }
    (void)fputs("\nEach flag is also an environment variable (--kv-device: TANDEM_KV_DEVICE) and a "
                "key of the\n"
                "--config file. The command line wins over the environment, that over the file.\n",
                out);
}

void td_config_print(const struct td_program *p, const void *config, FILE *out)
{
    static const char *const classes[] = {"at boot", "reloadable", "for debugging"};
    for (size_t i = 0; i < p->n_opts; i++) {
        const struct td_opt *o = &p->opts[i];
        (void)fprintf(out, "# %s", o->help);
        if (o->unit[0] != '\0') {
            (void)fprintf(out, ", in %s", o->unit);
        }
        /* A text without a value has no spelling of its own: its line is a comment, so that loading this page gives
         * NULL again. */
        bool none = o->type == TD_OPT_STRING &&
                    *(char *const *)(const void *)((const char *)config + o->offset) == NULL;
        (void)fprintf(out, " [%s]\n%s%s: ", classes[o->cls], none ? "# " : "", o->name);
        td__opt_print(o, config, out);
        (void)fputc('\n', out);
    }
}

static void list_fault_points(FILE *out)
{
    for (int i = 0; i < TD_FAULT_COUNT; i++) {
        (void)fprintf(out, "%-20s %s\n", td_fault_name((enum td_fault_id)i),
                      td_fault_help((enum td_fault_id)i));
    }
}

/* Flags that answer without a configuration. */
static bool answered(const struct load *l)
{
    const struct builtin *b = &l->builtin;
    if (b->help) {
        td_config_help(l->program, stdout);
    } else if (b->version) {
        (void)printf("%s %s%s\n", l->program->name, TD_VERSION,
                     TD_WITH_FAULTS ? " (fault points)" : "");
    } else if (b->list_fault_points) {
        list_fault_points(stdout);
    }
    return b->help || b->version || b->list_fault_points;
}

/* All sources in their order. */
static td_err load_all(struct load *l)
{
    const struct td_program *p = l->program;
    TD_TRY(td_config_defaults(p, l->config));
    if (l->builtin.config != NULL && l->builtin.config[0] != '\0') {
        TD_TRY(load_file(l, l->builtin.config));
    }
    TD_TRY(load_env(p->opts, p->n_opts, l->config));
    TD_TRY(apply_flags(l, false, l->config));
    return l->builtin.fault != NULL ? td_fault_configure(l->builtin.fault) : TD_OK;
}

static enum td_config_outcome run(struct load *l, int argc, char **argv)
{
    if (parse_argv(l, argc, argv) != TD_OK ||
        load_env(builtin_opts, BUILTIN_FROM_ENV, &l->builtin) != TD_OK ||
        apply_flags(l, true, &l->builtin) != TD_OK) {
        return TD_CONFIG_EXIT_BAD;
    }
    if (answered(l)) {
        return TD_CONFIG_EXIT_OK;
    }
    if (load_all(l) != TD_OK) {
        return TD_CONFIG_EXIT_BAD;
    }
    if (l->builtin.print_config) {
        td_config_print(l->program, l->config, stdout);
    } else if (l->builtin.check_config) {
        (void)printf("%s: configuration ok\n", l->program->name);
    }
    return l->builtin.print_config || l->builtin.check_config ? TD_CONFIG_EXIT_OK : TD_CONFIG_RUN;
}

enum td_config_outcome td_config_load(const struct td_program *p, int argc, char **argv,
                                      void *config)
{
    TD_REQUIRE(p->n_opts <= TD_CONFIG_MAX_OPTS);
    memset(config, 0, p->struct_bytes);
    struct load *l = td_zalloc(1, sizeof *l);
    if (l == NULL) {
        return TD_CONFIG_EXIT_BAD;
    }
    l->program = p;
    l->config = config;
    enum td_config_outcome outcome = run(l, argc, argv);
    for (size_t i = 0; i < TD_COUNT(builtin_opts); i++) {
        td__opt_clear(&builtin_opts[i], &l->builtin);
    }
    free(l);
    if (outcome != TD_CONFIG_RUN) {
        td_config_fini(p, config);
    }
    return outcome;
}

void td_config_fini(const struct td_program *p, void *config)
{
    for (size_t i = 0; i < p->n_opts; i++) {
        td__opt_clear(&p->opts[i], config);
    }
}

int td_config_exit_status(td_err err)
{
    return err == TD_OK ? 0 : err == TD_ERR_CONFIG ? 2 : 1;
}
