/* term.h - the terminal while a screen is drawn: keys without Enter, the alternate screen, and the way back.
 *
 * What: term_open() takes the terminal; whatever ends the process gives it back: ctl_term_close(), exit(), and the signals
 * that end or stop it (INT, TERM, HUP, QUIT, TSTP, PIPE, and those of a crash). After a stop the screen is taken again.
 * Not: drawing. Owner and thread: main; one at a time in a process. Failure: TD_ERR_UNSUPPORTED: no terminal.
 */
#ifndef CTL_TERM_H
#define CTL_TERM_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

/* in: keys are read here; out: the screen. Both are terminals, borrowed. */
td_err ctl_term_open(int in, int out) TD_MUST_CHECK;
/* Idempotent. */
void ctl_term_close(void);
/* Columns and rows; 0 and 0 when it does not say. */
void ctl_term_size(int out, unsigned *columns, unsigned *rows);
/* A key, 0 when none came in that time, -1 when there will be none any more. Returns early with 0 when the size has
 * changed. */
int ctl_term_key(int64_t wait_us);

#endif
