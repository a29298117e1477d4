/* config.h - one option table per program: it makes --help, environment names, YAML keys and
 * --print-config.
 *
 * A row = name, type, default as text, unit, range, reload class, help, offset into the program's
 * config struct. Sources, later wins: defaults < --config FILE (YAML, keys = long flags) <
 * TANDEM_<FLAG> environment < command line. An unknown key or flag is refused with the nearest
 * known name. List options (type LIST) may repeat on the command line and are YAML sequences or
 * comma lists. Always present: --help --version --config --print-config
 * --check-config --list-fault-points --fault.
 * A bool flag takes no value or =true|false; --no-<flag> clears it. An INT with unit "bytes" takes
 * K, M or G (binary). A STRING without default is NULL. Unknown TANDEM_* variables are ignored:
 * programs share the environment. Bounds: 64 items a list, 256 flags on a command line, a file of
 * 256 KB that is one flat mapping. Owner: main(). Strings in the struct are owned by it and freed
 * by td_config_fini. Failure: TD_ERR_CONFIG, logged with the option's name, the bad value and the
 * remedy.
 */
#ifndef TD_BASE_CONFIG_H
#define TD_BASE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/err.h"

enum td_opt_type {
    TD_OPT_BOOL,
    TD_OPT_INT,
    TD_OPT_DOUBLE,
    TD_OPT_STRING,
    TD_OPT_ENUM,
    TD_OPT_LIST
};
enum td_opt_class { TD_OPT_BOOT, TD_OPT_RELOAD, TD_OPT_DEBUG };

#define TD_CONFIG_LIST_MAX 64
struct td_str_list {
    char *items[TD_CONFIG_LIST_MAX]; /* owned */
    uint32_t count;
};

struct td_opt {
    const char *name; /* long flag without dashes, e.g. "kv-device" */
    enum td_opt_type type;
    const char *def;  /* default as text; NULL: none; "": an empty string (STRING), none (others) */
    const char *unit; /* shown in help; "" when none */
    double min, max;  /* INT, DOUBLE */
    const char *choices; /* ENUM: "a|b|c"; the struct holds an int index */
    enum td_opt_class cls;
    const char *help;
    size_t offset; /* into the struct: bool, int64_t, double, char *, int, struct td_str_list */
};

#define TD_CONFIG_MAX_OPTS 256
/* Which rows of the table the command line named: what a program may refuse when it would have no effect. */
struct td_opt_set {
    uint64_t bits[TD_CONFIG_MAX_OPTS / 64];
};

struct td_program {
    const char *name;    /* "tandem-router" */
    const char *summary; /* first line of --help */
    const char *args;    /* words that usage shows behind the name; NULL: none */
    const struct td_opt *opts;
    size_t n_opts;
    size_t struct_bytes;
    size_t
        told_offset; /* of a struct td_opt_set in the struct, not its first field; 0: it has none */
};

enum td_config_outcome { TD_CONFIG_RUN, TD_CONFIG_EXIT_OK, TD_CONFIG_EXIT_BAD };

/* Fills *config (zeroed by the callee). EXIT_OK after --help, --version, --print-config,
 * --check-config ...: main() returns 0. */
enum td_config_outcome td_config_load(const struct td_program *p, int argc, char **argv,
                                      void *config);
/* What main() returns after a run that ended so: 0, 2 for options that cannot be used (TD_ERR_CONFIG), as for unknown ones; else 1. */
int td_config_exit_status(td_err err);
/* Applies a YAML text as --config would. For tests and the fuzzer; config is initialised with
 * defaults by td_config_defaults(). */
td_err td_config_defaults(const struct td_program *p, void *config) TD_MUST_CHECK;
td_err td_config_yaml(const struct td_program *p, const char *text, size_t len,
                      void *config) TD_MUST_CHECK;
/* Whether the command line has named this option; requires told_offset. */
bool td_config_told(const struct td_program *p, const void *config, const char *name);
void td_config_fini(const struct td_program *p, void *config);
void td_config_help(const struct td_program *p, FILE *out);
void td_config_print(const struct td_program *p, const void *config, FILE *out);

#endif
