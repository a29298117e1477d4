/* top.h - `tandemctl top`: a cluster's nodes, queues, KV pools, transfers and times, again and again.
 *
 * What: asks a router's /live and draws it (top_draw.h) on the terminal (term.h), or as plain text when the output is none
 * or --once is given. A router that goes away is said on the screen and asked again.
 * Keys: q quits, p pauses, s sorts. Thread: main. Failure: exit statuses of admin.h for the first question, and for all of
 * them without a terminal.
 */
#ifndef CTL_TOP_H
#define CTL_TOP_H

#include "ctl/command.h"

extern const struct td_program ctl_top_program;
enum ctl_exit ctl_top(const void *options, char *const *args);

#endif
