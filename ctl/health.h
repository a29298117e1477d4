/* health.h - `tandemctl health ADDRESS`: asks a process over gRPC whether it serves, as a probe does.
 *
 * What: grpc.health.v1.Health/Check at host:port; one word on stdout. Not: HTTP's probes (curl does).
 * Thread: main. Failure: CTL_FAILED: it does not serve, or does not know the service; CTL_UNREACHABLE: no answer.
 */
#ifndef CTL_HEALTH_H
#define CTL_HEALTH_H

#include "ctl/command.h"

extern const struct td_program ctl_health_program;
enum ctl_exit ctl_health(const void *options, char *const *args);

#endif
