/* watch.h - `tandemctl watch`: a router's events as they happen, by tandem.v1.Admin's WatchEvents.
 *
 * What: one line an event (table), one JSON document a line (json), or YAML documents; ends when the router does, when the reader
 * has gone, or after --count events.
 * Not: what happened before it was asked (describe.h, get.h). Thread: main.
 * Bounds: a router that is silent for --keepalive is asked whether it lives. Failure: exit statuses of call.h.
 */
#ifndef CTL_WATCH_H
#define CTL_WATCH_H

#include <stdio.h>

#include "ctl/command.h"
#include "ctl/output.h"
#include "proto/api_client.h"

extern const struct td_program ctl_watch_program;
enum ctl_exit ctl_watch(const void *options, char *const *args);

/* One event in any format. */
td_err ctl_watch_print(const struct td_api_event *e, enum ctl_format format,
                       FILE *out) TD_MUST_CHECK;

#endif
