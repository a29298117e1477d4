#include "router/rt_front.h"

#include "router/rt_shell.h"

static td_err front_create(const struct td_front_params *f, void **out_front)
{
    struct rt_shell *shell = NULL;
    struct rt_shell_params p = {.loop = f->loop,
                                .name = f->name,
                                .model_path = f->model_path,
                                .chat_template = f->chat_template,
                                .served_names = f->served_names,
                                .n_served_names = f->n_served_names,
                                .max_model_len = f->max_model_len,
                                .host = f->host,
                                .admin_host = f->admin_host,
                                .port = f->port,
                                .admin_port = f->admin_port,
                                .grpc_port = f->grpc_port,
                                .grpc = f->grpc,
                                .tls_cert = f->tls_cert,
                                .tls_key = f->tls_key,
                                .tls_client_ca = f->tls_client_ca,
                                .admin_tls = f->admin_tls,
                                .api_key_file = f->api_key_file,
                                .node_urls = &f->node_url,
                                .n_node_urls = 1,
                                .keys = f->keys,
                                .n_keys = f->n_keys,
                                .time_scale = f->time_scale,
                                .max_requests = 4096,
                                .max_queue = 1024,
                                .max_node_queue = 256,
                                .max_queue_bytes = 256u << 20,
                                .budget_us = (int64_t)(f->budget_s * 1e6),
                                .pair_wait_us = 10000000,
                                .ping_us = 30000000,
                                .max_body = 16u << 20,
                                .policy = RT_POLICY_PREDICT,
                                .resume = true,
                                .strict_pairs = true,
                                .otlp = f->otlp,
                                .trace_ratio = f->trace_ratio,
                                .trace_ratio_always = f->trace_ratio_always};
    TD_TRY(rt_shell_create(&p, &shell));
    *out_front = shell;
    return TD_OK;
}

static void front_destroy(void *front)
{
    rt_shell_destroy(front);
}

static void front_drain(void *front)
{
    rt_shell_drain(front);
}

static bool front_idle(const void *front)
{
    return rt_shell_idle(front);
}

static uint16_t front_port(const void *front)
{
    return rt_shell_port(front);
}

static uint16_t front_admin_port(const void *front)
{
    return rt_shell_admin_port(front);
}

static uint16_t front_grpc_port(const void *front)
{
    return rt_shell_grpc_port(front);
}

static void front_reload_tls(void *front)
{
    rt_shell_reload_tls(front);
}

const struct td_front_ops rt_front_ops = {.create = front_create,
                                          .destroy = front_destroy,
                                          .drain = front_drain,
                                          .idle = front_idle,
                                          .port = front_port,

                                          .admin_port = front_admin_port,
                                          .grpc_port = front_grpc_port,
                                          .reload_tls = front_reload_tls};
