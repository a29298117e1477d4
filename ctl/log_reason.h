/* log_reason.h - the reason that a library logged for its failure, taken out of the log.
 *
 * What: between begin and end, log lines of this process and of children that it forks go into memory instead of stderr.
 * The first warning or error is where things went wrong, later ones are consequences: its reason=, text= or else msg= is
 * the answer, without quotes.
 * Owner and thread: main, no other thread logging. Bounds: the first CTL_LOG_REASON_MAX bytes are looked at. Failure:
 * without memory for it the lines go to stderr as usual and the text is "".
 */
#ifndef CTL_LOG_REASON_H
#define CTL_LOG_REASON_H

#include <stddef.h>

#define CTL_LOG_REASON_MAX 16384

struct ctl_log_reason {
    int fd; /* owned; -1: none */
};

void ctl_log_reason_begin(struct ctl_log_reason *r);
/* Puts the log back on stderr. */
void ctl_log_reason_end(struct ctl_log_reason *r, char *text, size_t cap);
/* The same over a log's text: for tests. */
void ctl_log_reason_pick(const char *log, size_t len, char *text, size_t cap);

#endif
