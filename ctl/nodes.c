#include "ctl/nodes.h"

#include <inttypes.h>

#include "ctl/call.h"

#define ARENA_BYTES (64u << 20)
#define ASK_MAX     4096

static json_t *hex(uint64_t v)
{
    char text[24];
    (void)snprintf(text, sizeof text, "%016" PRIx64, v);
    return json_string(text);
}

static json_t *blocks_json(const struct td_api_node *n)
{
    static const char *const states[TD_BLK_STATES] = {"free",    "cached", "reserved",   "filling",
                                                      "running", "parked", "quarantined"};
    json_t *o = json_object();
    for (int i = 0; i < TD_BLK_STATES && o != NULL; i++) {
        (void)json_object_set_new(o, states[i], json_integer(n->blocks[i]));
    }
    return o;
}

/* In the order and with the names of the router's /nodes. */
json_t *ctl_nodes_json(const struct td_api_node *n)
{
    static const char *const roles[] = {"", "prefill", "decode", "both"};
    return json_pack(
        "{s:s, s:s, s:s, s:b, s:b, s:b, s:s, s:s, s:s, s:s, s:o, s:o, s:I, s:I, s:I, s:I, s:I, "
        "s:I, "
        "s:I, s:I, s:I, s:I, s:I, s:o, s:I, s:I, s:I}",
        "name", n->name, "role", roles[n->role & 3], "epoch", n->epoch, "ready", (int)n->ready,
        "draining", (int)(n->state == TD_API_NODE_DRAINING), "drained", (int)n->drained, "why_not",
        n->why, "version", n->version, "numerics", n->numerics, "admin", n->address, "layout_id",
        hex(n->layout_id), "numerics_id", hex(n->numerics_id), "block_tokens",
        (json_int_t)n->block_tok, "layers", (json_int_t)n->n_layers, "max_model_len",
        (json_int_t)n->max_model_len, "max_seqs", (json_int_t)n->max_seqs, "ranks",
        (json_int_t)n->n_ranks, "running", (json_int_t)n->running, "queued", (json_int_t)n->queued,
        "queued_prompt_tokens", (json_int_t)n->queued_prompt_tok, "inflight",
        (json_int_t)n->inflight, "dispatched", (json_int_t)n->dispatched, "n_blocks",
        (json_int_t)n->n_blocks, "blocks", blocks_json(n), "prefill_us_per_ktok",
        (json_int_t)n->prefill_us_per_ktok, "decode_step_us", (json_int_t)n->decode_step_us,
        "report_age_us", (json_int_t)n->report_age_us);
}

static json_t *list_json(const struct td_api_node *nodes, uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < n && list != NULL; i++) {
        json_t *one = ctl_nodes_json(&nodes[i]);
        if (one == NULL || json_array_append_new(list, one) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list != NULL ? json_pack("{s:o}", "nodes", list) : NULL;
}

static enum ctl_exit give(const struct ctl_admin *a, json_t *json, json_t **out)
{
    if (json == NULL) {
        ctl_say("%s: not the answer of a router of this version", a->router);
        return CTL_FAILED;
    }
    *out = json;
    return CTL_OK;
}

enum ctl_exit ctl_nodes_list(const struct ctl_admin *a, json_t **out_doc)
{
    const struct td_buf nothing = {0};
    const struct td_api_node *nodes = NULL;
    const uint8_t *data = NULL;
    size_t len = 0;
    uint32_t n = 0;
    struct td_grpc_client_answer answer;
    enum ctl_exit status = ctl_call_admin(a, "ListNodes", a->router, &nothing, &answer);
    if (status != CTL_OK) {
        return status;
    }
    struct td_arena *arena = td_arena_create(ARENA_BYTES);
    bool ok = arena != NULL && td_grpc_client_message(&answer, 0, &data, &len) &&
              td_api_nodes_decode(data, len, arena, &nodes, &n) == TD_OK;
    status = give(a, ok ? list_json(nodes, n) : NULL, out_doc);
    td_arena_destroy(arena);
    td_grpc_client_answer_fini(&answer);
    return status;
}

static enum ctl_exit drain(const struct ctl_admin *a, const struct td_api_drain *ask, bool undo,
                           const struct td_buf *message, json_t **out_node)
{
    struct td_api_node node = {0};
    const uint8_t *data = NULL;
    size_t len = 0;
    struct td_grpc_client_answer answer;
    enum ctl_exit status =
        ctl_call_admin(a, undo ? "Undrain" : "Drain", ask->node, message, &answer);
    if (status != CTL_OK) {
        return status;
    }
    struct td_arena *arena = td_arena_create(ARENA_BYTES);
    bool ok = arena != NULL && td_grpc_client_message(&answer, 0, &data, &len) &&
              td_api_drained_decode(data, len, arena, &node) == TD_OK && node.name[0] != 0;
    status = give(a, ok ? ctl_nodes_json(&node) : NULL, out_node);
    td_arena_destroy(arena);
    td_grpc_client_answer_fini(&answer);
    return status;
}

enum ctl_exit ctl_nodes_drain(const struct ctl_admin *a, const struct td_api_drain *ask, bool undo,
                              json_t **out_node)
{
    struct td_buf message;
    td_buf_init(&message, ASK_MAX);
    if (td_api_drain_ask_encode(&message, ask, undo) != TD_OK) {
        td_buf_fini(&message);
        ctl_say("the name or the reason is too long");
        return CTL_USAGE;
    }
    enum ctl_exit status = drain(a, ask, undo, &message, out_node);
    td_buf_fini(&message);
    return status;
}
