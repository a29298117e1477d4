#include "common/io/grpc_admin.h"

#include "common/base/mem.h"
#include "common/io/grpc_reflect.h"

#define MAX_STREAMS  64
#define MAX_MESSAGE  65536u
#define MAX_BUFFERED (4u << 20)
#define MAX_UNSENT   (32u << 20)

struct td_grpc_admin {
    struct td_http_server *http;     /* borrowed */
    const struct td_tls *tls;        /* borrowed; NULL: cleartext */
    struct td_grpc_server *server;   /* owned */
    struct td_grpc_health *health;   /* owned */
    struct td_grpc_reflect *reflect; /* owned */
};

static td_err admit(void *arg, struct td_grpc_call *c)
{
    const struct td_grpc_admin *a = arg;
    return td_tls_lets_in(a->tls, td_grpc_call_verified(c)) ? TD_OK : TD_ERR_FORBIDDEN;
}

static td_err make(struct td_grpc_admin *a, struct td_loop *loop, td_grpc_health_fn status,
                   void *arg)
{
    struct td_grpc_server_params p;
    td_grpc_server_defaults(&p);
    p.h2.loop = loop;
    p.h2.max_streams = MAX_STREAMS;
    p.h2.max_unsent = MAX_UNSENT;
    p.max_message = MAX_MESSAGE;
    p.max_buffered = MAX_BUFFERED;
    p.admit = admit;
    p.admit_text = TD_TLS_SHOW_ONE;
    p.arg = a;
    TD_TRY(td_grpc_server_create(&p, &a->server));
    TD_TRY(td_grpc_health_create(loop, status, arg, &a->health));
    td_grpc_health_add(a->health, a->server);
    return td_grpc_reflect_create(a->server, false, &a->reflect);
}

td_err td_grpc_admin_create(struct td_loop *loop, struct td_http_server *http,
                            const struct td_tls *tls, td_grpc_health_fn status, void *arg,
                            struct td_grpc_admin **out_admin)
{
    struct td_grpc_admin *a = td_zalloc(1, sizeof *a);
    if (a == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    a->http = http;
    a->tls = tls;
    td_err err = make(a, loop, status, arg);
    if (err != TD_OK) {
        td_grpc_admin_destroy(a);
        return err;
    }
    td_http_server_set_h2(http, td_grpc_server_h2(a->server));
    *out_admin = a;
    return TD_OK;
}

struct td_grpc_admin *td_grpc_admin_destroy(struct td_grpc_admin *a)
{
    if (a != NULL) {
        td_http_server_set_h2(a->http, NULL);
        td_grpc_server_destroy(a->server);
        td_grpc_health_destroy(a->health);
        td_grpc_reflect_destroy(a->reflect);
        free(a);
    }
    return NULL;
}

struct td_grpc_server *td_grpc_admin_server(struct td_grpc_admin *a)
{
    return a->server;
}
