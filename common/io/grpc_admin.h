/* grpc_admin.h - gRPC on an HTTP server's own port: health checking, reflection, and what the owner adds.
 *
 * What: connections that begin with HTTP/2's preface are handed over by the HTTP server; so probes need no port of their own.
 * Open to all whom the port lets in (td_tls_lets_in), like its routes. Owner: a shell. Thread: loop. Bounds: fewer connections' worth of everything than
 * a client port. Failure: of creation only.
 */
#ifndef TD_IO_GRPC_ADMIN_H
#define TD_IO_GRPC_ADMIN_H

#include "common/io/grpc_health.h"
#include "common/io/grpc_server.h"
#include "common/io/http_server.h"
#include "common/io/tls.h"

struct td_grpc_admin;

/* `http` must live longer, and `tls` (NULL: cleartext), which is that port's: where it asks for certificates, everything but
 * health checking needs one. */
td_err td_grpc_admin_create(struct td_loop *loop, struct td_http_server *http,
                            const struct td_tls *tls, td_grpc_health_fn status, void *arg,
                            struct td_grpc_admin **out_admin) TD_MUST_CHECK;
struct td_grpc_admin *td_grpc_admin_destroy(struct td_grpc_admin *a);
/* To add services to. */
struct td_grpc_server *td_grpc_admin_server(struct td_grpc_admin *a);

#endif
