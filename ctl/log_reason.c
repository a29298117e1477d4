#include "ctl/log_reason.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/mem.h"

/* The value of ` key="..."` in a logfmt line, with \" and \\ undone; false without it. */
static bool value_of(const char *line, size_t len, const char *key, char *text, size_t cap)
{
    char lead[32];
    (void)snprintf(lead, sizeof lead, " %s=\"", key);
    const char *p = memmem(line, len, lead, strlen(lead)), *end = line + len;
    size_t n = 0;
    if (p == NULL) {
        return false;
    }
    for (p += strlen(lead); p < end && *p != '"' && n + 1 < cap; p++) {
        p += *p == '\\' && p + 1 < end;
        text[n++] = *p;
    }
    text[n] = 0;
    return n > 0;
}

static bool is_complaint(const char *line, size_t len)
{
    return memmem(line, len, " level=warn ", 12) != NULL ||
           memmem(line, len, " level=error ", 13) != NULL;
}

void ctl_log_reason_pick(const char *log, size_t len, char *text, size_t cap)
{
    static const char *const keys[] = {"reason", "text", "msg"};
    text[0] = 0;
    for (size_t at = 0; at < len && text[0] == 0;) {
        const char *line = log + at, *end = memchr(line, '\n', len - at);
        size_t n = end != NULL ? (size_t)(end - line) : len - at;
        for (size_t k = 0; is_complaint(line, n) && k < TD_COUNT(keys); k++) {
            if (value_of(line, n, keys[k], text, cap)) {
                return;
            }
        }
        at += n + 1;
    }
}

void ctl_log_reason_begin(struct ctl_log_reason *r)
{
    r->fd = memfd_create("log", MFD_CLOEXEC);
    if (r->fd >= 0) {
        td_log_set_fd(r->fd);
    }
}

void ctl_log_reason_end(struct ctl_log_reason *r, char *text, size_t cap)
{
    TD_CLEANUP(td_freep) char *log = r->fd >= 0 ? td_zalloc(CTL_LOG_REASON_MAX, 1) : NULL;
    td_log_set_fd(STDERR_FILENO);
    text[0] = 0;
    if (log != NULL) {
        ssize_t n = pread(r->fd, log, CTL_LOG_REASON_MAX, 0);
        ctl_log_reason_pick(log, n > 0 ? (size_t)n : 0, text, cap);
    }
    if (r->fd >= 0) {
        (void)close(r->fd);
        r->fd = -1;
    }
}
