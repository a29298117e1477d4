/* grpc_health.h - the service grpc.health.v1.Health: Check, and Watch, which tells of changes.
 *
 * Owner: a shell, which answers what a service's status is. Thread: loop. Bounds: TD_GRPC_MAX_WATCHES. Failure: of creation
 * only; a client that does not read is lost like any other.
 */
#ifndef TD_IO_GRPC_HEALTH_H
#define TD_IO_GRPC_HEALTH_H

#include "common/io/grpc_server.h"
#include "proto/grpc_std.h"

#define TD_GRPC_MAX_WATCHES 4096

struct td_grpc_health;

/* TD_HEALTH_SERVICE_UNKNOWN for a name that means nothing here. */
typedef enum td_health (*td_grpc_health_fn)(void *arg, const char *service);

td_err td_grpc_health_create(struct td_loop *loop, td_grpc_health_fn status, void *arg,
                             struct td_grpc_health **out_health) TD_MUST_CHECK;
/* After the servers it was added to. */
struct td_grpc_health *td_grpc_health_destroy(struct td_grpc_health *h);
/* May be added to several servers of the loop. */
void td_grpc_health_add(struct td_grpc_health *h, struct td_grpc_server *s);

#endif
