/* program_int.h - the options of the node program: program_options.c has the table, program.c acts on it. Not for others.
 */
#ifndef TD_NODE_PROGRAM_INT_H
#define TD_NODE_PROGRAM_INT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/config.h"

/* Names as in the table; strings belong to td_config. */
struct nd_options {
    char *model, *name, *cluster_key_file, *listen, *admin_host, *kv_device, *kv_transports,
        *kv_port_range, *port_file;
    char *host, *front_admin_host, *api_key_file, *chat_template, *served_name, *numerics;
    char *otlp_endpoint;
    char *rank_listen, *rank_leader;
    double trace_ratio;
    struct td_str_list served_names;
    char *tls_cert, *tls_key, *tls_client_ca, *admin_tls_cert, *admin_tls_key, *admin_tls_client_ca;
    char *engine_host, *engine_key_file, *engine_tls_cert, *engine_tls_key, *engine_tls_client_ca;
    int64_t admin_port, port, grpc_port, front_admin_port, max_model_len, max_seqs, max_queue,
        batched_tokens, chunk, steps_in_flight, blocks, threads, device, engine_port, group_size,
        rank;
    double drain_s, hold_s, time_scale, budget_s, kv_memory_gib, gpu_share, rank_join_s,
        rank_wait_s;
    int role, isa, log_level, log_format, backend, cuda_kernels;
    bool trust_network, kv_checksum, grpc, vllm, deterministic, engine_grpc;
};

extern const struct td_opt nd__options[];
extern const size_t nd__n_options;

#endif
