#include "ctl/command.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "ctl/completion.h"

#define SUMMARY "asks and checks a tandem cluster"

__attribute__((format(printf, 1, 0))) static void say(const char *fmt, va_list ap)
{
    char text[1024];
    // NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): both callers have started it
    (void)vsnprintf(text, sizeof text, fmt, ap);
    for (char *c = text; *c != 0; c++) {
        *c = iscntrl((unsigned char)*c) ? '?' : *c; /* some of it comes from servers */
    }
    (void)fprintf(stderr, "tandemctl: %s\n", text);
}

void ctl_say(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(fmt, ap);
    va_end(ap);
}

void ctl_say_unless(bool quiet, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (!quiet) {
        say(fmt, ap);
    }
    va_end(ap);
}

static void print_statuses(FILE *out)
{
    (void)fputs(
        "\nExit status: 0 done; 1 tried, and the answer is no or it failed; 2 the command line "
        "or a\nconfiguration file is wrong; 3 the router does not answer.\n",
        out);
}

void ctl_command_help(const struct ctl_command *commands, size_t n, FILE *out)
{
    (void)fprintf(out, "tandemctl - " SUMMARY "\n\nusage: tandemctl COMMAND [--flag value]...\n\n");
    for (size_t i = 0; i < n; i++) {
        char left[64];
        (void)snprintf(left, sizeof left, "%s %s", commands[i].words, commands[i].args);
        (void)fprintf(out, "  %-26s %s\n", left, commands[i].program->summary);
    }
    (void)fprintf(out, "  %-26s words and flags for a shell: source <(...)\n",
                  "completion bash|zsh|fish");
    (void)fputs("\n`tandemctl COMMAND --help` lists the flags of a command.\n", out);
    print_statuses(out);
}

/* How many leading arguments are the words of this command; 0: another command. */
static int match(const char *words, int argc, char *const *argv)
{
    int n = 0;
    while (*words != 0) {
        size_t len = strcspn(words, " ");
        if (n >= argc || strlen(argv[n]) != len || strncmp(argv[n], words, len) != 0) {
            return 0;
        }
        n++;
        words += len + (words[len] == ' ');
    }
    return n;
}

/* The first word of some command, which needs another. */
static bool is_prefix(const struct ctl_command *commands, size_t n, const char *word)
{
    size_t len = strlen(word);
    for (size_t i = 0; i < n; i++) {
        if (strncmp(commands[i].words, word, len) == 0 && commands[i].words[len] == ' ') {
            return true;
        }
    }
    return false;
}

static const struct td_opt *find(const struct td_program *p, const char *name, size_t len)
{
    for (size_t i = 0; i < p->n_opts; i++) {
        if (strlen(p->opts[i].name) == len && strncmp(p->opts[i].name, name, len) == 0) {
            return &p->opts[i];
        }
    }
    return NULL;
}

/* Whether "--name" alone is followed by its value. An unknown flag is refused later, by its name. */
static bool takes_next(const struct td_program *p, const char *flag)
{
    if (strchr(flag, '=') != NULL) {
        return false;
    }
    const struct td_opt *o = find(p, flag + 2, strlen(flag + 2));
    bool builtin = strcmp(flag, "--config") == 0 || strcmp(flag, "--fault") == 0;
    return builtin || (o != NULL && o->type != TD_OPT_BOOL);
}

/* The command line taken apart: flags in the form of config.h, and what stands between them. */
struct split {
    char *flags[CTL_MAX_ARGS + 2]; /* borrowed; [0] is the program */
    char *args[CTL_MAX_WORDS + CTL_MAX_ARGS];
    int n_flags, n_args;
};

static char *fixed(const char *text)
{
    return (char *)(uintptr_t)text; /* the option table never writes there */
}

static void split_one(const struct td_program *p, int argc, char **argv, int *i, struct split *s)
{
    char *arg = argv[*i];
    if (strncmp(arg, "-o", 2) == 0) {
        s->flags[s->n_flags++] = fixed("--output");
        if (arg[2] != 0) {
            s->flags[s->n_flags++] = arg + 2;
        } else if (*i + 1 < argc) {
            s->flags[s->n_flags++] = argv[++*i];
        }
    } else if (strcmp(arg, "-w") == 0) {
        s->flags[s->n_flags++] = fixed("--watch=2");
    } else if (arg[0] == '-' && arg[1] != 0) {
        s->flags[s->n_flags++] = arg;
        if (strncmp(arg, "--", 2) == 0 && takes_next(p, arg) && *i + 1 < argc) {
            s->flags[s->n_flags++] = argv[++*i];
        }
    } else {
        s->args[s->n_args++] = arg;
    }
}

static enum ctl_exit run_with(const struct ctl_command *c, const struct split *s,
                              const void *options)
{
    if (s->n_args != c->n_args) {
        ctl_say(s->n_args < c->n_args ? "'%s' needs %s; see tandemctl %s --help"
                                      : "'%s' takes %s; see tandemctl %s --help",
                c->words, c->n_args > 0 ? c->args : "no argument", c->words);
        return CTL_USAGE;
    }
    return c->run(options, s->args);
}

/* Flags first: the value of a misspelt one would count as an argument. */
static enum ctl_exit run_command(const struct ctl_command *c, int argc, char **argv)
{
    struct split s = {.flags = {fixed("tandemctl")}, .n_flags = 1};
    for (int i = 0; i < argc; i++) {
        split_one(c->program, argc, argv, &i, &s);
    }
    struct td_program program = *c->program;
    program.args = c->args;
    TD_CLEANUP(td_freep) void *options = td_zalloc(1, program.struct_bytes);
    if (options == NULL) {
        ctl_say("out of memory");
        return CTL_FAILED;
    }
    enum td_config_outcome how = td_config_load(&program, s.n_flags, s.flags, options);
    if (how != TD_CONFIG_RUN) {
        for (int i = 1; how == TD_CONFIG_EXIT_OK && i < s.n_flags; i++) {
            if (strcmp(s.flags[i], "--help") == 0 || strcmp(s.flags[i], "-h") == 0) {
                print_statuses(stdout);
            }
        }
        return how == TD_CONFIG_EXIT_OK ? CTL_OK : CTL_USAGE;
    }
    enum ctl_exit status = run_with(c, &s, options);
    td_config_fini(c->program, options);
    return status;
}

static enum ctl_exit refuse(const struct ctl_command *commands, size_t n, const char *word)
{
    if (is_prefix(commands, n, word)) {
        ctl_say("'%s' needs one more word:", word);
        for (size_t i = 0; i < n; i++) {
            if (strncmp(commands[i].words, word, strlen(word)) == 0) {
                (void)fprintf(stderr, "  tandemctl %s %s\n", commands[i].words, commands[i].args);
            }
        }
    } else {
        ctl_say("unknown command '%.64s'; see tandemctl --help", word);
    }
    return CTL_USAGE;
}

static enum ctl_exit completion(const struct ctl_command *commands, size_t n, int argc, char **argv)
{
    if (argc != 3 || ctl_completion_print(commands, n, argv[2], stdout) != TD_OK) {
        ctl_say("usage: tandemctl completion bash|zsh|fish");
        return CTL_USAGE;
    }
    return CTL_OK;
}

/* What is asked of tandemctl itself; false: a command. */
static bool answered(const struct ctl_command *commands, size_t n, int argc, char **argv,
                     enum ctl_exit *out_status)
{
    const char *first = argv[1];
    *out_status = CTL_OK;
    if (strcmp(first, "--help") == 0 || strcmp(first, "-h") == 0 || strcmp(first, "help") == 0) {
        ctl_command_help(commands, n, stdout);
    } else if (strcmp(first, "--version") == 0) {
        (void)printf("tandemctl %s\n", TD_VERSION);
    } else if (strcmp(first, "completion") == 0) {
        *out_status = completion(commands, n, argc, argv);
    } else {
        return false;
    }
    return true;
}

enum ctl_exit ctl_command_run(const struct ctl_command *commands, size_t n, int argc, char **argv)
{
    enum ctl_exit status;
    if (argc < 2 || argc > CTL_MAX_ARGS) {
        ctl_command_help(commands, n, stderr);
        return CTL_USAGE;
    }
    if (answered(commands, n, argc, argv, &status)) {
        return status;
    }
    for (size_t i = 0; i < n; i++) {
        int words = match(commands[i].words, argc - 1, argv + 1);
        if (words > 0) {
            return run_command(&commands[i], argc - 1 - words, argv + 1 + words);
        }
    }
    return refuse(commands, n, argv[1]);
}
