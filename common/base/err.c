#include "common/base/err.h"

#include <stddef.h>

struct err_row {
    int value;
    const char *code;
    const char *text;
    int http;
    bool retryable;
    enum td_err_class cls;
};

static const struct err_row rows[] = {{0, "ok", "ok", 200, false, TD_CLASS_NONE},
#define ERR_ROW(name, value, code, http, retry, cls, text)                                         \
    {value, code, text, http, retry, TD_CLASS_##cls},
                                      TD_ERR_TABLE(ERR_ROW)
#undef ERR_ROW
};

static const struct err_row unknown = {1,     "internal_error", "unknown error", 500,
                                       false, TD_CLASS_REQUEST};

static const struct err_row *find(int value)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].value == value) {
            return &rows[i];
        }
    }
    return &unknown;
}

const char *td_err_code(td_err e)
{
    return find((int)e)->code;
}

const char *td_err_text(td_err e)
{
    return find((int)e)->text;
}

int td_err_http(td_err e)
{
    return find((int)e)->http;
}

bool td_err_retryable(td_err e)
{
    return find((int)e)->retryable;
}

enum td_err_class td_err_class_of(td_err e)
{
    return find((int)e)->cls;
}

bool td_err_known(int value)
{
    return find(value) != &unknown;
}
