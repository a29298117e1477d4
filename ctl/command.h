/* command.h - the words of tandemctl's command line, and what its exit status means.
 *
 * What: a table of commands, each with its own option table (common/base/config.h), so that --help, TANDEM_* variables,
 * --config and refusals are those of every tandem program. Finds the command by its words, takes its arguments out of
 * the flags, loads the options, runs it.
 * Not: any command (get.c, explain.c, doctor.c, bench.c).
 * Short flags: -o FORMAT is --output FORMAT, -w is --watch=2, -h is --help.
 * Thread: main. Bounds: CTL_MAX_ARGS arguments, CTL_MAX_WORDS words in a command's name. Failure: a line on stderr and
 * CTL_USAGE.
 */
#ifndef CTL_COMMAND_H
#define CTL_COMMAND_H

#include <stddef.h>
#include <stdio.h>

#include "common/base/config.h"

#define CTL_MAX_ARGS  256
#define CTL_MAX_WORDS 3

/* The exit status, for scripts. */
enum ctl_exit {
    CTL_OK = 0,
    CTL_FAILED = 1,      /* it was tried and the answer is no */
    CTL_USAGE = 2,       /* the command line or a configuration file is wrong */
    CTL_UNREACHABLE = 3, /* the router does not answer */
};

struct ctl_command {
    const char *words; /* "get nodes" */
    const char *args;  /* names of the arguments it requires, for help: "REQUEST"; "" without */
    int n_args;
    const struct td_program *program; /* its name is "tandemctl " and the words */
    /* args: [n_args], borrowed. */
    enum ctl_exit (*run)(const void *options, char *const *args);
};

/* argv[0] is the program. */
enum ctl_exit ctl_command_run(const struct ctl_command *commands, size_t n, int argc, char **argv);
void ctl_command_help(const struct ctl_command *commands, size_t n, FILE *out);
/* "tandemctl: ..." on stderr. */
void ctl_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The same, but nothing for a caller that lets the status tell. */
void ctl_say_unless(bool quiet, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A row of an option table, for `struct options` in the same file. */
#define CTL_OPT(n, t, d, u, lo, hi, ch, h, f)                                                      \
    {                                                                                              \
        n, TD_OPT_##t, d, u, lo, hi, ch, TD_OPT_BOOT, h, offsetof(struct options, f)               \
    }

#endif
