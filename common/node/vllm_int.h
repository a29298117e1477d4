/* vllm_int.h - what the parts of the VllmEngine service share: vllm.c (port, who may call, what is answered at once) and
 * vllm_generate.c (calls that run works). Not for others.
 */
#ifndef TD_NODE_VLLM_INT_H
#define TD_NODE_VLLM_INT_H

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/io/api_keys.h"
#include "common/io/grpc_health.h"
#include "common/io/grpc_reflect.h"
#include "common/node/node_int.h"
#include "common/node/vllm.h"
#include "common/node/vllm_request.h"
#include "common/text/tokenizer.h"

struct nd_vllm_call;

struct nd_vllm {
    struct nd_vllm_params p;
    struct td_node *node;          /* borrowed */
    struct td_grpc_server *server; /* owned, like all below */
    struct td_grpc_health *health;
    struct td_grpc_reflect *reflect;
    struct td_tls *tls;
    struct td_api_keys *keys;
    struct td_arena *arena; /* of the request being read */
    struct td_buf out;      /* of the message being written */
    struct td_text_vocab *vocab;
    struct td_text_tokenizer *tokenizer;
    struct td_buf zip; /* the tokenizer's files */
    char zip_sha256[65], engine_id[17];
    struct nd_vllm_limits limits;
    struct nd_vllm_call *calls;
    int64_t started_us;
    double last_request_unix_s;
};

/* vllm_generate.c */
void nd__vllm_generate(void *arg, struct td_grpc_call *call, const uint8_t *message, size_t len);
void nd__vllm_abort(void *arg, struct td_grpc_call *call, const uint8_t *message, size_t len);
/* Forgets all calls; their works go on or end without us. */
void nd__vllm_calls_destroy(struct nd_vllm *v);

/* vllm.c: sends v->out, or says that it could not be made; empties it. False: the call is over. */
bool nd__vllm_send(struct nd_vllm *v, struct td_grpc_call *call, td_err err);
void nd__vllm_answer(struct nd_vllm *v, struct td_grpc_call *call, td_err err);

#endif
