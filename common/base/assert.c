#include "common/base/assert.h"

#include <stdlib.h>

#include "common/base/log.h"

_Noreturn void td_assert_fail(const char *kind, const char *expr, const char *file, int line)
{
    char quoted[512];
    size_t len = 0;
    while (expr[len] != '\0') {
        len++;
    }
    TD_LOG(ERROR, "assertion failed", "kind=%s at=%s:%d expr=%s", kind, file, line,
           td_log_quote(expr, len, quoted, sizeof quoted));
    abort();
}
