/* grpc_reflect.h - server reflection, v1 and v1alpha: which services a server has, and the descriptors of their files.
 *
 * Owner: a shell. Thread: loop. Bounds: those of the server's messages. Failure: of creation only.
 */
#ifndef TD_IO_GRPC_REFLECT_H
#define TD_IO_GRPC_REFLECT_H

#include "common/io/grpc_server.h"

struct td_grpc_reflect;

/* Adds itself to `server`, which must be destroyed first. open: everybody may ask. */
td_err td_grpc_reflect_create(struct td_grpc_server *server, bool open,
                              struct td_grpc_reflect **out_reflect) TD_MUST_CHECK;
struct td_grpc_reflect *td_grpc_reflect_destroy(struct td_grpc_reflect *r);

#endif
