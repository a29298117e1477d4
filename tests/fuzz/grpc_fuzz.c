/* Bytes of a client of the gRPC port or of a server, behind HTTP/2: the first byte says how they are cut, each message goes to
 * every decoder of the public API. A request that is accepted keeps the parser's promises, an answer its reader's. */
#include <stdlib.h>
#include <string.h>

#include "common/base/utf8.h"
#include "common/io/grpc_frame.h"
#include "proto/api.h"
#include "proto/api_client.h"
#include "proto/grpc_std.h"
#include "router/rt_api.h"
#include "tests/fuzz/fuzz.h"

#define MESSAGE_MAX 65536u

static void must(bool ok)
{
    if (!ok) {
        abort();
    }
}

static void generate(const uint8_t *data, size_t len, struct td_arena *arena)
{
    struct rt_api_request r;
    struct rt_api_error error;
    if (rt_api_parse_generate(data, len, arena, &r, &error) == TD_OK) {
        must(r.root != NULL && r.n_choices >= 1 && r.n_choices <= RT_API_MAX_CHOICES);
        must(r.chat || r.n_prompts == 1);
        must(r.sampling.temperature >= 0 && r.sampling.top_p > 0 && r.sampling.top_p <= 1);
        must(r.sampling.max_tokens <= RT_API_MAX_TOKENS && r.stream);
    } else {
        must(error.err != TD_OK && error.text[0] != 0 && r.root == NULL);
    }
    rt_api_request_fini(&r);
    td_arena_reset(arena);
    if (rt_api_parse_tokenize(data, len, arena, &r, &error) == TD_OK) {
        must(r.chat || r.n_prompts == 1);
    }
    rt_api_request_fini(&r);
}

static void decode_all(const uint8_t *data, size_t len, struct td_arena *arena)
{
    struct td_api_detokenize detokenize;
    struct td_api_drain drain;
    struct td_api_watch watch;
    struct td_reflect_request reflect;
    const char *text = NULL;
    td_arena_reset(arena);
    generate(data, len, arena);
    if (td_api_detokenize_decode(data, len, arena, &detokenize) == TD_OK) {
        must(detokenize.n_ids == 0 || detokenize.ids != NULL);
    }
    TD_IGNORE(td_api_drain_decode(data, len, arena, &drain)); /* any answer is right */
    TD_IGNORE(td_api_watch_decode(data, len, arena, &watch)); /* as above */
    TD_IGNORE(td_api_empty_decode(data, len));                /* as above */
    if (td_api_id_decode(data, len, arena, &text) == TD_OK) {
        must(text != NULL);
    }
    if (td_pb_health_decode(data, len, arena, &text) == TD_OK) {
        must(text != NULL);
    }
    if (td_pb_reflect_decode(data, len, arena, &reflect) == TD_OK) {
        must(reflect.text != NULL && reflect.host != NULL);
    }
}

static void generated(const uint8_t *data, size_t len, struct td_arena *arena)
{
    struct td_api_generated g;
    if (td_api_generated_decode(data, len, arena, &g) != TD_OK) {
        return;
    }
    must(g.id != NULL && g.said <= TD_API_SAID_USAGE);
    if (g.said == TD_API_SAID_DELTA) {
        must(g.delta.text != NULL && td_utf8_valid(g.delta.text, g.delta.len));
        must(g.delta.finish <= TD_FINISH_ERROR && g.delta.stop_text != NULL);
        must(g.delta.n_ids == 0 || g.delta.ids != NULL);
    }
}

static void explained(const uint8_t *data, size_t len, struct td_arena *arena)
{
    struct td_api_explain e;
    const struct td_api_try *tries = NULL;
    uint32_t n = 0;
    if (td_api_explained_decode(data, len, arena, &e, &tries, &n) != TD_OK) {
        return;
    }
    must(e.id != NULL && e.code != NULL && e.phase != NULL && e.finish <= TD_FINISH_ERROR);
    for (uint32_t i = 0; i < n; i++) {
        must(tries[i].error != NULL);
        for (uint32_t k = 0; k < tries[i].n_pairs; k++) {
            must(tries[i].pairs[k].why_not != NULL && tries[i].pairs[k].excluded != NULL);
        }
        for (uint32_t k = 0; k < tries[i].n_skipped; k++) {
            must(tries[i].skipped[k].node != NULL && tries[i].skipped[k].why != NULL);
        }
    }
}

/* What tandemctl reads of a server's. */
static void read_all(const uint8_t *data, size_t len, struct td_arena *arena)
{
    struct td_api_event event;
    struct td_api_node node;
    const struct td_api_node *nodes = NULL;
    uint32_t n = 0;
    td_arena_reset(arena);
    generated(data, len, arena);
    td_arena_reset(arena);
    explained(data, len, arena);
    td_arena_reset(arena);
    if (td_api_event_decode(data, len, arena, &event) == TD_OK) {
        must(event.kind != NULL && event.node != NULL && event.id != NULL && event.text != NULL);
    }
    if (td_api_drained_decode(data, len, arena, &node) == TD_OK) {
        must(node.name != NULL && node.role <= TD_ROLE_BOTH && node.state <= TD_API_NODE_DRAINING);
    }
    if (td_api_nodes_decode(data, len, arena, &nodes, &n) == TD_OK) {
        for (uint32_t i = 0; i < n; i++) {
            must(nodes[i].name != NULL && nodes[i].epoch != NULL && nodes[i].why != NULL);
            must(nodes[i].role <= TD_ROLE_BOTH && nodes[i].state <= TD_API_NODE_DRAINING);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct td_grpc_reader r;
    if (size == 0) {
        return 0;
    }
    struct td_arena *arena = td_arena_create(16u << 20);
    must(arena != NULL);
    size_t piece = 1 + (size_t)data[0] * 7;
    td_grpc_reader_init(&r, MESSAGE_MAX);
    td_err err = TD_OK;
    for (size_t at = 1; at < size && err == TD_OK;) {
        size_t n = piece < size - at ? piece : size - at, used = 0;
        bool complete = false;
        err = td_grpc_reader_feed(&r, data + at, n, &used, &complete);
        must(err != TD_OK || complete || used == n);
        must(r.message.len <= MESSAGE_MAX);
        at += used;
        if (complete) {
            decode_all(r.message.data, r.message.len, arena);
            read_all(r.message.data, r.message.len, arena);
        }
    }
    td_grpc_reader_fini(&r);
    td_arena_destroy(arena);
    return 0;
}
