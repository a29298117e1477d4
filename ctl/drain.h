/* drain.h - `tandemctl drain NODE`: takes a node out of service, or with --undrain back into it.
 *
 * What: asks the router by gRPC (Drain, Undrain); the node then admits nothing new from any router and finishes what runs. With
 * --wait asks again until the node reports that nothing is left, or that it serves again.
 * Thread: main. Failure: exit statuses of admin.h; CTL_FAILED: no such node, or not done within --wait-timeout.
 */
#ifndef CTL_DRAIN_H
#define CTL_DRAIN_H

#include <jansson.h>
#include <stdio.h>

#include "ctl/command.h"

extern const struct td_program ctl_drain_program;
enum ctl_exit ctl_drain(const void *options, char *const *args);

/* The node of this name or epoch in a /nodes document; the last one listed when a restarted one and its predecessor are
 * both there and neither is asked for by epoch. Borrowed; NULL: none. */
const json_t *ctl_drain_find(const json_t *doc, const char *name);
/* What remains to be waited for: true when nothing does. */
bool ctl_drain_done(const json_t *node, bool undrain);
/* One line: how far the node is with what was asked; node NULL: it has gone. */
void ctl_drain_say(const char *name, const json_t *node, bool undrain, FILE *out);

#endif
