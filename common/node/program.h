/* program.h - the node program: options, engine, one td_node, signals. tandem-prefill and tandem-decode are this with
 * another default role; with --role both the process also carries an API front (the router's shell), handed in as a table
 * so that this room knows neither roles nor the router.
 * Owner and thread: main(). Failure: exit status 1 after a logged error, 2 for bad options.
 */
#ifndef TD_NODE_PROGRAM_H
#define TD_NODE_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/io/link_session.h"
#include "common/io/loop.h"
#include "common/io/otlp.h"
#include "common/io/tls.h"
#include "common/node/core.h"

struct td_front_params {
    struct td_loop *loop;
    const char *name, *model_path, *chat_template, *host, *admin_host, *api_key_file, *node_url;
    const char *const *served_names;
    uint32_t n_served_names, max_model_len;
    uint16_t port, admin_port, grpc_port;
    bool grpc;
    const char *tls_cert, *tls_key, *tls_client_ca;
    struct td_tls_files admin_tls;
    const struct td_link_key *keys;
    uint32_t n_keys;
    double time_scale, budget_s;
    struct td_otlp *otlp; /* borrowed; NULL: no traces */
    double trace_ratio;
    bool trace_ratio_always;
};

struct td_front_ops {
    td_err (*create)(const struct td_front_params *p, void **out_front);
    void (*destroy)(void *front);
    void (*drain)(void *front);
    bool (*idle)(const void *front);
    uint16_t (*port)(const void *front);
    uint16_t (*admin_port)(const void *front);
    uint16_t (*grpc_port)(const void *front); /* 0: off */
    void (*reload_tls)(void *front);
};

struct td_node_program {
    const char *name; /* "tandem-prefill" */
    const char *summary;
    enum td_role default_role;
    const struct nd_role_ops *prefill, *decode;
    const struct td_front_ops *front;
};

int td_node_program_main(const struct td_node_program *prog, int argc, char **argv);

#endif
