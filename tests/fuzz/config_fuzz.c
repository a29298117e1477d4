/* A configuration file from anywhere: the YAML reader in front of every type of option. */
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>

#include "common/base/config.h"
#include "common/base/log.h"
#include "tests/fuzz/fuzz.h"

struct fuzz_config {
    bool flag;
    int64_t number;
    double ratio;
    char *text;
    int choice;
    struct td_str_list list;
};

#define OPT(kind, member)                                                                          \
    .name = #member, .type = (kind), .unit = "", .help = "",                                       \
    .offset = offsetof(struct fuzz_config, member)

static const struct td_opt opts[] = {
    {OPT(TD_OPT_BOOL, flag)},
    {OPT(TD_OPT_INT, number), .min = -10, .max = 10},
    {OPT(TD_OPT_DOUBLE, ratio), .min = 0, .max = 1},
    {OPT(TD_OPT_STRING, text)},
    {OPT(TD_OPT_ENUM, choice), .choices = "red|green"},
    {OPT(TD_OPT_LIST, list)},
};
static const struct td_program program = {.name = "fuzz",
                                          .summary = "fuzz",
                                          .opts = opts,
                                          .n_opts = 6,
                                          .struct_bytes = sizeof(struct fuzz_config)};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_config c;
    static bool silent;

    if (!silent) {
        td_log_set_fd(open("/dev/null", O_WRONLY | O_CLOEXEC));
        silent = true;
    }
    if (td_config_defaults(&program, &c) == TD_OK &&
        td_config_yaml(&program, (const char *)data, size, &c) == TD_OK &&
        (c.number < -10 || c.number > 10 || !(c.ratio >= 0 && c.ratio <= 1) || c.choice < 0 ||
         c.choice > 1 || c.list.count > TD_CONFIG_LIST_MAX)) {
        abort(); /* accepted what the table forbids */
    }
    td_config_fini(&program, &c);
    return 0;
}
