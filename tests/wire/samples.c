#include "samples.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

#define WORK                                                                                       \
    {                                                                                              \
        .router_epoch = 0x0102030405060708, .counter = 77, .attempt = 1, .choice = 2               \
    }
#define TICKET                                                                                     \
    {                                                                                              \
        .p_epoch = 0x1111111111111111, .d_epoch = 0x2222222222222222,                              \
        .nonce = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, .life_ms = 30000          \
    }

static const int32_t prompt[] = {1, 9690, 198, 2683, 359, 253, 0, 49151};
static const struct td_logit_bias bias[] = {{17, -100.0f}, {0, 2.5f}};

#define REQUEST                                                                                    \
    {                                                                                              \
        .id = WORK, .budget_ms = 59000, .priority = -3, .tenant = "acme",                          \
        .traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",                  \
        .request_id = "req-7", .adapter = "lora-1", .kv_group = 1,                                 \
        .numerics_id = 0x3333333333333333, .layout_id = 0x4444444444444444,                        \
        .cache_salt = {0xaa, 0xbb}, .prompt = prompt, .n_prompt = COUNT(prompt), .n_replayed = 2,  \
        .sampling = {.temperature = 0.75f,                                                         \
                     .top_p = 0.9f,                                                                \
                     .min_p = 0.05f,                                                               \
                     .repetition_penalty = 1.1f,                                                   \
                     .frequency_penalty = -0.5f,                                                   \
                     .presence_penalty = 0.25f,                                                    \
                     .top_k = 40,                                                                  \
                     .logprobs = 6,                                                                \
                     .seed = 0xfedcba9876543210,                                                   \
                     .choice = 2,                                                                  \
                     .max_tokens = 256,                                                            \
                     .min_tokens = 4,                                                              \
                     .n_stop_ids = 2,                                                              \
                     .stop_ids = {2, 0},                                                           \
                     .n_bias = COUNT(bias),                                                        \
                     .bias = bias},                                                                \
    }

#define STAGES                                                                                     \
    {                                                                                              \
        .prefill_queue_us = 1, .prefill_us = 2000, .transfer_us = 300, .transfer_exposed_us = 40,  \
        .decode_queue_us = 5, .decode_us = 60000, .kv_bytes = 7 << 20, .cached_tokens = 16,        \
        .prompt_tokens = 8, .output_tokens = 9, .transport = "shm"                                 \
    }

static const uint8_t address[] = {0xde, 0xad, 0xbe, 0xef};
static const uint8_t blob[] = {9, 8, 7};
static const struct td_block_ref blocks[] = {{0, 1}, {300, 70000}, {131071, 4294967295u}};
static const struct td_wire_token tokens[] = {
    {.id = WORK, .index = 0, .token = 9690, .logprob = -0.5f, .finish = TD_FINISH_NONE},
    {.id = {.router_epoch = 0x0102030405060708, .counter = 1ull << 40},
     .index = 511,
     .token = 2,
     .logprob = -12.25f,
     .finish = TD_FINISH_STOP},
};
/* One step of plain requests: most columns are left out. */
static const struct td_wire_token plain_tokens[] = {
    {.id = {.router_epoch = 5, .counter = 1}, .index = 3, .token = 100},
    {.id = {.router_epoch = 5, .counter = 2}, .index = 4, .token = 200},
};

static const struct wire_sample samples[] = {
    {"prefill",
     {.type = TD_WIRE_PREFILL, .prefill = {.r = REQUEST, .ticket = TICKET, .decode_node = "d0"}}},
    {"reserve",
     {.type = TD_WIRE_RESERVE,
      .reserve = {.r = REQUEST,
                  .mode = TD_RESERVE_REMOTE,
                  .ticket = TICKET,
                  .prefill_node = "p0",
                  .p_address = address,
                  .p_address_len = sizeof address}}},
    {"prefill_hold",
     {.type = TD_WIRE_PREFILL,
      .prefill = {.r = REQUEST,
                  .ticket = {.p_epoch = 0x1111111111111111, .nonce = {1, 2, 3}, .life_ms = 30000},
                  .decode_node = "",
                  .hold_ms = 30000}}},
    {"reserve_held",
     {.type = TD_WIRE_RESERVE,
      .reserve = {.r = REQUEST,
                  .mode = TD_RESERVE_REMOTE,
                  .ticket = TICKET,
                  .prefill_node = "",
                  .p_address = address,
                  .p_address_len = sizeof address,
                  .held = {.router_epoch = 0x6666666666666666, .counter = 4097}}}},
    {"reserve_local",
     {.type = TD_WIRE_RESERVE,
      .reserve = {.r = REQUEST, .mode = TD_RESERVE_LOCAL, .prefill_node = ""}}},
    {"cancel", {.type = TD_WIRE_CANCEL, .cancel = {.id = WORK, .reason = TD_ERR_CANCELLED}}},
    {"cancel_ack", {.type = TD_WIRE_CANCEL_ACK, .cancel_ack = {.id = WORK, .known = true}}},
    {"tokens",
     {.type = TD_WIRE_TOKENS, .tokens = {.step = 123456789, .n = COUNT(tokens), .tokens = tokens}}},
    {"tokens_plain",
     {.type = TD_WIRE_TOKENS,
      .tokens = {.step = 7, .n = COUNT(plain_tokens), .tokens = plain_tokens}}},
    {"end",
     {.type = TD_WIRE_END,
      .end = {.id = WORK,
              .err = TD_ERR_STALLED,
              .text = "transfer moved no byte for 5 s",
              .stages = STAGES}}},
    {"end_ok",
     {.type = TD_WIRE_END,
      .end = {.id = WORK, .err = TD_OK, .text = "", .stages = {.transport = ""}}}},
    {"state",
     {.type = TD_WIRE_STATE,
      .state = {.seq = 42,
                .full = true,
                .ready = true,
                .draining = false,
                .role = TD_ROLE_DECODE,
                .queued_requests = 3,
                .running_requests = 4,
                .queued_prompt_tok = 5000,
                .blocks = {1000, 20, 3, 4, 50, 6, 7},
                .prefill_us_per_ktok = 90000,
                .decode_step_us = 8000}}},
    {"state_request", {.type = TD_WIRE_STATE_REQUEST}},
    {"park", {.type = TD_WIRE_PARK, .lease = {.id = WORK, .life_ms = 30000}}},
    {"pull", {.type = TD_WIRE_PULL, .lease = {.id = WORK, .life_ms = 20000}}},
    {"lease", {.type = TD_WIRE_LEASE, .lease = {.id = WORK, .life_ms = 10000}}},
    {"drain", {.type = TD_WIRE_DRAIN, .drain = {.limit_ms = 600000, .why = "upgrade"}}},
    {"undrain", {.type = TD_WIRE_DRAIN, .drain = {.why = "upgraded", .undo = true}}},
    {"role", {.type = TD_WIRE_ROLE, .role = {.role = TD_ROLE_BOTH}}},
    {"go_away",
     {.type = TD_WIRE_GO_AWAY, .go_away = {.reason = TD_ERR_DRAINING, .text = "shutting down"}}},
    {"table",
     {.type = TD_WIRE_TABLE,
      .table = {.id = WORK,
                .ticket = TICKET,
                .land = 0x5555555555555555,
                .layout_id = 0x4444444444444444,
                .first_tok = 16,
                .n_tok = 40,
                .n_blocks = COUNT(blocks),
                .blocks = blocks,
                .kv_group = 1}}},
    {"record",
     {.type = TD_WIRE_RECORD,
      .record = {.id = WORK,
                 .land = 0x5555555555555555,
                 .p_epoch = 0x1111111111111111,
                 .d_epoch = 0x2222222222222222,
                 .layout_id = 0x4444444444444444,
                 .numerics_id = 0x3333333333333333,
                 .n_tok = 40,
                 .n_slices = 90,
                 .first_token = 9690,
                 .first_logprob = -0.5f,
                 .finish = TD_FINISH_LENGTH,
                 .seed = 0xfedcba9876543210,
                 .stages = STAGES,
                 .grammar = blob,
                 .grammar_len = sizeof blob,
                 .draft = address,
                 .draft_len = sizeof address,
                 .kv_group = 1}}},
    {"taken", {.type = TD_WIRE_TAKEN, .taken = {.id = WORK, .err = TD_ERR_KV_MISMATCH}}},
    {"abort",
     {.type = TD_WIRE_ABORT,
      .abort = {.id = WORK, .land = 0x5555555555555555, .err = TD_ERR_CANCELLED}}},
};

const struct wire_sample *wire_samples(size_t *out_n)
{
    *out_n = COUNT(samples);
    return samples;
}

static const struct td_wire_rank ranks[] = {
    {.rank = 0,
     .tp = 2,
     .pp = 1,
     .first_layer = 0,
     .n_layers = 30,
     .first_head = 0,
     .n_heads = 2,
     .address = address,
     .address_len = sizeof address},
    {.rank = 1, .tp = 2, .pp = 1, .first_layer = 0, .n_layers = 30, .first_head = 2, .n_heads = 1},
};

const struct td_wire_node_info *wire_sample_node_info(void)
{
    static const struct td_wire_node_info info = {.epoch = 0x1111111111111111,
                                                  .name = "p0",
                                                  .version = "0.1.0",
                                                  .model_name = "smollm2",
                                                  .numerics = "cpu-int8-v1",
                                                  .admin_address = "127.0.0.1:8100",
                                                  .role = TD_ROLE_PREFILL,
                                                  .version_min = 1,
                                                  .version_max = 1,
                                                  .features = 3,
                                                  .model_id = {1, 2, 3},
                                                  .tokenizer_hash = {4, 5, 6},
                                                  .template_hash = {7, 8, 9},
                                                  .layout = {.id = 0x4444444444444444,
                                                             .version = 1,
                                                             .group = 0,
                                                             .n_layers = 30,
                                                             .n_kv_heads = 3,
                                                             .head_dim = 64,
                                                             .block_tok = 16,
                                                             .dtype = 0,
                                                             .order = 1,
                                                             .slice_bytes = 12288},
                                                  .numerics_id = 0x3333333333333333,
                                                  .max_model_len = 8192,
                                                  .n_blocks = 512,
                                                  .max_seqs = 64,
                                                  .max_batched_tokens = 2048,
                                                  .n_ranks = COUNT(ranks),
                                                  .ranks = ranks};
    return &info;
}

const struct td_wire_router_info *wire_sample_router_info(void)
{
    static const struct td_wire_router_info info = {.epoch = 0x0102030405060708,
                                                    .name = "r0",
                                                    .version = "0.1.0",
                                                    .version_min = 1,
                                                    .version_max = 1,
                                                    .features = 3,
                                                    .model_id = {1, 2, 3},
                                                    .tokenizer_hash = {4, 5, 6},
                                                    .template_hash = {7, 8, 9}};
    return &info;
}
