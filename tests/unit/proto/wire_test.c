#include "proto/wire.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/wire/samples.h"

static struct td_arena *arena;

static int setup(void **state)
{
    (void)state;
    arena = td_arena_create(64u << 20);
    return arena == NULL;
}

static int teardown(void **state)
{
    (void)state;
    arena = td_arena_destroy(arena);
    return 0;
}

static const struct td_wire_msg *sample(enum td_wire_type type)
{
    size_t n;
    const struct wire_sample *s = wire_samples(&n);
    for (size_t i = 0; i < n; i++) {
        if (s[i].msg.type == type) {
            return &s[i].msg;
        }
    }
    fail_msg("no sample of type %d", (int)type);
    return NULL;
}

/* Encodes, decodes again: the error of the first that fails. */
static td_err round_trip(const struct td_wire_msg *in, struct td_wire_msg *out)
{
    struct td_buf b;
    memset(out, 0, sizeof *out);
    td_buf_init(&b, TD_WIRE_MAX_BYTES * 2);
    td_err e = td_wire_encode(in, &b);
    if (e == TD_OK) {
        td_arena_reset(arena);
        e = td_wire_decode(b.data, b.len, arena, out);
    }
    td_buf_fini(&b);
    return e;
}

/* ---- content ---- */

static void a_request_keeps_every_field(void **state)
{
    const struct td_wire_msg *in = sample(TD_WIRE_PREFILL);
    struct td_wire_msg out;
    (void)state;
    assert_int_equal(round_trip(in, &out), TD_OK);
    const struct td_wire_request *a = &in->prefill.r, *b = &out.prefill.r;
    assert_true(td_work_id_eq(&a->id, &b->id));
    assert_int_equal(b->budget_ms, 59000);
    assert_int_equal(b->priority, -3);
    assert_string_equal(b->tenant, "acme");
    assert_string_equal(b->traceparent, a->traceparent);
    assert_string_equal(b->request_id, "req-7");
    assert_string_equal(b->adapter, "lora-1");
    assert_int_equal(b->kv_group, 1);
    assert_true(b->numerics_id == a->numerics_id && b->layout_id == a->layout_id);
    assert_memory_equal(b->cache_salt, a->cache_salt, 32);
    assert_int_equal(b->n_prompt, a->n_prompt);
    assert_memory_equal(b->prompt, a->prompt, a->n_prompt * sizeof *a->prompt);
    assert_int_equal(b->n_replayed, 2);
    const struct td_sampling_params *s = &b->sampling;
    assert_true(s->temperature == 0.75f && s->top_p == 0.9f && s->min_p == 0.05f &&
                s->repetition_penalty == 1.1f);
    assert_true(s->frequency_penalty == -0.5f && s->presence_penalty == 0.25f &&
                s->seed == a->sampling.seed);
    assert_true(s->top_k == 40 && s->logprobs == 6 && s->choice == 2 && s->max_tokens == 256 &&
                s->min_tokens == 4);
    assert_true(s->n_stop_ids == 2 && s->stop_ids[0] == 2 && s->stop_ids[1] == 0);
    assert_true(s->n_bias == 2 && s->bias[0].id == 17 && s->bias[0].bias == -100.0f &&
                s->bias[1].bias == 2.5f);
    assert_memory_equal(&out.prefill.ticket, &in->prefill.ticket, sizeof in->prefill.ticket);
    assert_string_equal(out.prefill.decode_node, "d0");
}

static void a_temperature_of_zero_is_not_an_absent_one(void **state)
{
    struct td_wire_msg in = *sample(TD_WIRE_PREFILL), out;
    (void)state;
    in.prefill.r.sampling.temperature = 0.0f;
    in.prefill.r.sampling.top_k = 0;
    assert_int_equal(round_trip(&in, &out), TD_OK);
    assert_true(out.prefill.r.sampling.temperature == 0.0f);
}

static void a_trace_state_travels_and_has_a_bound(void **state)
{
    struct td_wire_msg in = *sample(TD_WIRE_RESERVE), out;
    char longest[TD_WIRE_MAX_TEXT + 2];
    (void)state;
    assert_int_equal(round_trip(&in, &out), TD_OK);
    assert_string_equal(out.reserve.r.tracestate, ""); /* of a message that is older than it */
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 2] = '\0';
    in.reserve.r.tracestate = longest;
    assert_int_equal(round_trip(&in, &out), TD_OK);
    assert_string_equal(out.reserve.r.tracestate, longest);
    longest[sizeof longest - 2] = 'x';
    longest[sizeof longest - 1] = '\0';
    struct td_buf b;
    td_buf_init(&b, TD_WIRE_MAX_BYTES);
    assert_int_equal(td_wire_encode(&in, &b), TD_ERR_TOO_LARGE);
    td_buf_fini(&b);
}

static void absent_texts_are_empty_strings(void **state)
{
    struct td_wire_msg in = *sample(TD_WIRE_RESERVE), out;
    (void)state;
    in.reserve.r.tenant = in.reserve.r.traceparent = in.reserve.r.request_id =
        in.reserve.r.adapter = "";
    in.reserve.prefill_node = "";
    in.reserve.p_address_len = 0;
    assert_int_equal(round_trip(&in, &out), TD_OK);
    assert_string_equal(out.reserve.r.tenant, "");
    assert_string_equal(out.reserve.prefill_node, "");
    assert_int_equal(out.reserve.p_address_len, 0);
}

static void tokens_keep_all_columns(void **state)
{
    const struct td_wire_msg *in = sample(TD_WIRE_TOKENS);
    struct td_wire_msg out;
    (void)state;
    assert_int_equal(round_trip(in, &out), TD_OK);
    assert_int_equal(out.tokens.n, in->tokens.n);
    for (uint32_t i = 0; i < out.tokens.n; i++) {
        const struct td_wire_token *a = &in->tokens.tokens[i], *b = &out.tokens.tokens[i];
        assert_true(td_work_id_eq(&a->id, &b->id));
        assert_true(a->index == b->index && a->token == b->token && a->logprob == b->logprob &&
                    a->finish == b->finish);
    }
}

static void tokens_of_two_routers_do_not_fit_one_message(void **state)
{
    struct td_wire_token t[2] = {{.id = {.router_epoch = 1}}, {.id = {.router_epoch = 2}}};
    struct td_wire_msg in = {.type = TD_WIRE_TOKENS, .tokens = {.n = 2, .tokens = t}}, out;
    (void)state;
    assert_int_equal(round_trip(&in, &out), TD_ERR_BAD_REQUEST);
}

static void a_table_keeps_its_blocks(void **state)
{
    const struct td_wire_msg *in = sample(TD_WIRE_TABLE);
    struct td_wire_msg out;
    (void)state;
    assert_int_equal(round_trip(in, &out), TD_OK);
    assert_int_equal(out.table.n_blocks, 3);
    assert_memory_equal(out.table.blocks, in->table.blocks, 3 * sizeof *in->table.blocks);
    assert_true(out.table.land == in->table.land && out.table.first_tok == 16 &&
                out.table.n_tok == 40);
}

static void a_record_keeps_its_verification_data(void **state)
{
    const struct td_wire_msg *in = sample(TD_WIRE_RECORD);
    struct td_wire_msg out;
    (void)state;
    assert_int_equal(round_trip(in, &out), TD_OK);
    const struct td_wire_record *a = &in->record, *b = &out.record;
    assert_true(b->p_epoch == a->p_epoch && b->d_epoch == a->d_epoch &&
                b->layout_id == a->layout_id && b->numerics_id == a->numerics_id &&
                b->n_tok == 40 && b->n_slices == 90 && b->first_token == 9690 &&
                b->first_logprob == -0.5f && b->finish == TD_FINISH_LENGTH && b->seed == a->seed);
    assert_int_equal(b->grammar_len, 3);
    assert_memory_equal(b->grammar, a->grammar, 3);
    assert_string_equal(b->stages.transport, "shm");
    assert_int_equal(b->stages.kv_bytes, 7 << 20);
}

/* ---- bounds ---- */

static void the_longest_prompt_passes_and_one_more_token_does_not(void **state)
{
    struct td_wire_msg in = *sample(TD_WIRE_PREFILL), out;
    int32_t *ids = td_zalloc(TD_WIRE_MAX_PROMPT + 1, sizeof *ids);
    (void)state;
    assert_non_null(ids);
    for (uint32_t i = 0; i <= TD_WIRE_MAX_PROMPT; i++) {
        ids[i] = (int32_t)(i % 200000);
    }
    in.prefill.r.prompt = ids;
    in.prefill.r.n_prompt = TD_WIRE_MAX_PROMPT;
    assert_int_equal(round_trip(&in, &out), TD_OK);
    assert_int_equal(out.prefill.r.n_prompt, TD_WIRE_MAX_PROMPT);
    assert_memory_equal(out.prefill.r.prompt, ids, TD_WIRE_MAX_PROMPT * sizeof *ids);
    in.prefill.r.n_prompt++;
    assert_int_equal(round_trip(&in, &out), TD_ERR_TOO_LARGE);
    free(ids);
}

static void the_largest_tables_pass_and_one_more_entry_does_not(void **state)
{
    struct td_wire_msg in = *sample(TD_WIRE_TABLE), out;
    struct td_block_ref *b = td_zalloc(TD_WIRE_MAX_BLOCKS + 1, sizeof *b);
    struct td_wire_token *t = td_zalloc(TD_WIRE_MAX_TOKENS_MSG + 1, sizeof *t);
    (void)state;
    if (b == NULL || t == NULL) {
        fail_msg("out of memory");
        return;
    }
    memset(b, 0xff, (TD_WIRE_MAX_BLOCKS + 1) * sizeof *b);
    in.table.blocks = b;
    in.table.n_blocks = TD_WIRE_MAX_BLOCKS;
    assert_int_equal(round_trip(&in, &out), TD_OK);
    assert_memory_equal(out.table.blocks, b, TD_WIRE_MAX_BLOCKS * sizeof *b);
    in.table.n_blocks++;
    assert_int_equal(round_trip(&in, &out), TD_ERR_TOO_LARGE);
    in = (struct td_wire_msg){.type = TD_WIRE_TOKENS,
                              .tokens = {.n = TD_WIRE_MAX_TOKENS_MSG, .tokens = t}};
    for (uint32_t i = 0; i < TD_WIRE_MAX_TOKENS_MSG; i++) {
        t[i] =
            (struct td_wire_token){.id = {.counter = UINT64_MAX - i, .attempt = 15, .choice = 1023},
                                   .index = TD_WIRE_MAX_PROMPT,
                                   .token = 1 << 24,
                                   .logprob = -1.5f,
                                   .finish = TD_FINISH_ERROR};
    }
    assert_int_equal(round_trip(&in, &out), TD_OK);
    assert_true(out.tokens.tokens[4095].id.counter == UINT64_MAX - 4095);
    in.tokens.n++;
    assert_int_equal(round_trip(&in, &out), TD_ERR_TOO_LARGE);
    free(b);
    free(t);
}

/* Each row breaks one field of a good message; the receiver must refuse it. */
static void break_request(struct td_wire_msg *m, int row)
{
    struct td_wire_request *r = &m->prefill.r;
    struct td_sampling_params *s = &r->sampling;
    static const int32_t negative[2] = {5, -1};
    switch (row) {
    case 0:
        r->id.attempt = 16;
        break;
    case 1:
        r->id.choice = 1024;
        break;
    case 2:
        r->n_prompt = 0;
        r->n_replayed = 0;
        break;
    case 3:
        r->n_replayed = r->n_prompt;
        break;
    case 4:
        r->prompt = negative;
        r->n_prompt = 2;
        r->n_replayed = 0;
        break;
    case 5:
        s->temperature = -0.5f;
        break;
    case 6:
        s->temperature = NAN;
        break;
    case 7:
        s->top_p = 1.5f;
        break;
    case 8:
        s->min_p = INFINITY;
        break;
    case 9:
        s->repetition_penalty = 0.0f;
        break;
    case 10:
        s->top_k = -2;
        break;
    case 11:
        s->max_tokens = 0;
        break;
    case 12:
        s->logprobs = 65;
        break;
    case 13:
        s->stop_ids[1] = -7;
        break;
    case 14:
        r->kv_group = 99;
        break;
    case 15:
        r->priority = INT32_MAX;
        break;
    case 16:
        r->budget_ms = UINT32_MAX;
        break;
    case 17:
        r->tenant = "\xff\xfe";
        break;
    default:
        s->min_tokens = TD_WIRE_MAX_PROMPT + 1;
        break;
    }
}

static void a_request_with_one_field_out_of_range_is_refused(void **state)
{
    (void)state;
    for (int row = 0; row <= 18; row++) {
        struct td_wire_msg in = *sample(TD_WIRE_PREFILL), out;
        break_request(&in, row);
        td_err e = round_trip(&in, &out);
        if (e != TD_ERR_PROTOCOL) {
            fail_msg("row %d: %s", row, td_err_code(e));
        }
    }
}

static void other_messages_out_of_range_are_refused(void **state)
{
    struct td_wire_token t = {.finish = 99};
    struct td_wire_token u = {.token = -1};
    const struct td_wire_msg bad[] = {
        {.type = TD_WIRE_ROLE, .role = {.role = 4}},
        {.type = TD_WIRE_ROLE, .role = {.role = 0}},
        {.type = TD_WIRE_STATE, .state = {.role = 0}},
        {.type = TD_WIRE_TOKENS, .tokens = {.n = 1, .tokens = &t}},
        {.type = TD_WIRE_TOKENS, .tokens = {.n = 1, .tokens = &u}},
        {.type = TD_WIRE_LEASE, .lease = {.life_ms = UINT32_MAX}},
        {.type = TD_WIRE_RECORD,
         .record = {.n_tok = TD_WIRE_MAX_PROMPT + 1, .stages = {.transport = ""}}},
        {.type = TD_WIRE_RECORD, .record = {.finish = 5, .stages = {.transport = ""}}},
        {.type = TD_WIRE_TABLE, .table = {.first_tok = TD_WIRE_MAX_PROMPT + 1}},
        {.type = TD_WIRE_CANCEL, .cancel = {.reason = (td_err)5}},
    };
    (void)state;
    for (size_t i = 0; i < TD_COUNT(bad); i++) {
        struct td_wire_msg out;
        td_err e = round_trip(&bad[i], &out);
        if (e != TD_ERR_PROTOCOL) {
            fail_msg("row %zu: %s", i, td_err_code(e));
        }
    }
}

static void names_that_are_too_long_are_refused_and_texts_are_cut(void **state)
{
    struct td_wire_msg in = *sample(TD_WIRE_PREFILL), out;
    char name[TD_WIRE_MAX_NAME + 2], text[TD_WIRE_MAX_TEXT + 100];
    (void)state;
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    in.prefill.r.request_id = name;
    assert_int_equal(round_trip(&in, &out), TD_ERR_TOO_LARGE);
    name[TD_WIRE_MAX_NAME] = '\0';
    assert_int_equal(round_trip(&in, &out), TD_OK);
    /* Cut between characters: each is two bytes, and the limit falls into the middle of one. */
    for (size_t i = 0; i < sizeof text - 1; i++) {
        text[i] = (char)(i % 2 == 1 ? 0xc3 : (i == 0 ? 'x' : 0xa4));
    }
    text[sizeof text - 1] = '\0';
    in = *sample(TD_WIRE_END);
    in.end.text = text;
    assert_int_equal(round_trip(&in, &out), TD_OK);
    assert_int_equal(strlen(out.end.text), TD_WIRE_MAX_TEXT - 1);
}

static void a_logprob_that_is_no_number_becomes_zero(void **state)
{
    struct td_wire_token t = {.logprob = NAN};
    struct td_wire_msg in = {.type = TD_WIRE_TOKENS, .tokens = {.n = 1, .tokens = &t}}, out;
    (void)state;
    assert_int_equal(round_trip(&in, &out), TD_OK);
    assert_true(out.tokens.n == 1 && out.tokens.tokens != NULL &&
                out.tokens.tokens[0].logprob == 0.0f);
}

/* ---- bytes of others ---- */

static void nothing_and_nonsense_are_refused(void **state)
{
    static const uint8_t nonsense[][4] = {
        {0xff, 0xff, 0xff, 0xff}, {0x0a, 0xff, 0xff, 0x7f}, {0x08, 0x01, 0, 0}};
    struct td_wire_msg m;
    (void)state;
    assert_int_equal(td_wire_decode((const uint8_t *)"", 0, arena, &m), TD_ERR_PROTOCOL);
    for (size_t i = 0; i < TD_COUNT(nonsense); i++) {
        assert_int_equal(td_wire_decode(nonsense[i], 4, arena, &m), TD_ERR_PROTOCOL);
    }
}

static void every_cut_message_is_refused_or_still_a_message(void **state)
{
    size_t n;
    const struct wire_sample *s = wire_samples(&n);
    (void)state;
    for (size_t i = 0; i < n; i++) {
        struct td_buf b;
        td_buf_init(&b, TD_WIRE_MAX_BYTES);
        assert_int_equal(td_wire_encode(&s[i].msg, &b), TD_OK);
        for (size_t cut = 0; cut < b.len; cut++) {
            struct td_wire_msg m;
            td_arena_reset(arena);
            /* The body is one length-prefixed field, so a cut shows. */
            assert_int_equal(td_wire_decode(b.data, cut, arena, &m), TD_ERR_PROTOCOL);
        }
        td_buf_fini(&b);
    }
}

static void one_corrupt_byte_never_crashes_and_what_decodes_encodes(void **state)
{
    size_t n;
    const struct wire_sample *s = wire_samples(&n);
    struct td_rng rng = {99};
    (void)state;
    for (size_t i = 0; i < n; i++) {
        struct td_buf b, again;
        td_buf_init(&b, TD_WIRE_MAX_BYTES);
        td_buf_init(&again, TD_WIRE_MAX_BYTES * 2);
        assert_int_equal(td_wire_encode(&s[i].msg, &b), TD_OK);
        for (int k = 0; k < 3000; k++) {
            struct td_wire_msg m;
            size_t at = (size_t)td_rng_below(&rng, b.len);
            uint8_t was = b.data[at];
            b.data[at] = (uint8_t)td_rng_next(&rng);
            td_arena_reset(arena);
            td_buf_clear(&again);
            if (td_wire_decode(b.data, b.len, arena, &m) == TD_OK && m.type != TD_WIRE_NONE) {
                assert_int_equal(td_wire_encode(&m, &again), TD_OK);
            }
            b.data[at] = was;
        }
        td_buf_fini(&b);
        td_buf_fini(&again);
    }
}

static void unknown_fields_are_ignored_wherever_they_stand(void **state)
{
    /* cancel { id { 2: 77, field 900: 5 } reason { 1: sint -15, field 901: "xy" } field 902: 1 }
     * field 903: 1 */
    static const uint8_t bytes[] = {0x1a, 0x15, 0x0a, 0x05, 0x10, 77,   0xa0, 0x38,
                                    5,    0x12, 0x07, 0x08, 29,   0xaa, 0x38, 2,
                                    'x',  'y',  0xb0, 0x38, 1,    0xb8, 0x38, 1};
    struct td_wire_msg m;
    (void)state;
    td_arena_reset(arena);
    uint8_t b[sizeof bytes];
    memcpy(b, bytes, sizeof b);
    b[1] = 19; /* 2 + 5 + 2 + 7 + 3 bytes of body */
    assert_int_equal(td_wire_decode(b, sizeof b, arena, &m), TD_OK);
    assert_int_equal(m.type, TD_WIRE_CANCEL);
    assert_int_equal(m.cancel.id.counter, 77);
    assert_int_equal(m.cancel.reason, TD_ERR_CANCELLED);
}

static void a_message_of_many_unknown_fields_is_refused_for_its_memory(void **state)
{
    struct td_wire_msg m;
    size_t len = 2u << 20;
    uint8_t *b = td_zalloc(len, 1);
    (void)state;
    assert_non_null(b);
    for (size_t i = 0; i + 3 <= len; i += 3) {
        memcpy(b + i, "\xb8\x3e\x01", 3); /* field 999: 1 */
    }
    td_arena_reset(arena);
    assert_int_equal(td_wire_decode(b, len - len % 3, arena, &m), TD_ERR_PROTOCOL);
    assert_true(td_arena_used(arena) < 15 * len);
    free(b);
}

static void a_full_arena_is_out_of_memory_not_a_wrong_message(void **state)
{
    struct td_arena *small = td_arena_create(256);
    struct td_wire_msg m;
    struct td_buf b;
    (void)state;
    td_buf_init(&b, TD_WIRE_MAX_BYTES);
    assert_int_equal(td_wire_encode(sample(TD_WIRE_PREFILL), &b), TD_OK);
    assert_int_equal(td_wire_decode(b.data, b.len, small, &m), TD_ERR_NO_MEMORY);
    td_buf_fini(&b);
    (void)td_arena_destroy(small);
}

static void encoding_into_a_small_buffer_fails_and_leaves_it_as_it_was(void **state)
{
    struct td_buf b;
    (void)state;
    td_buf_init(&b, 100);
    assert_int_equal(td_buf_append(&b, "before", 6), TD_OK);
    assert_int_equal(td_wire_encode(sample(TD_WIRE_PREFILL), &b), TD_ERR_FULL);
    assert_int_equal(b.len, 6);
    td_buf_fini(&b);
}

/* ---- identities ---- */

static void identities_out_of_range_are_refused(void **state)
{
    struct td_buf b;
    (void)state;
    td_buf_init(&b, 1u << 20);
    for (int row = 0; row < 6; row++) {
        struct td_wire_node_info i = *wire_sample_node_info(), out;
        struct td_wire_rank rank = i.ranks[0];
        i.epoch = row == 0 ? 0 : i.epoch;
        i.version_min = row == 1 ? 9 : i.version_min;
        i.role = row == 2 ? (enum td_role)7 : i.role;
        i.layout.n_layers = row == 3 ? 5000 : i.layout.n_layers;
        rank.tp = row == 4 ? 1000 : rank.tp;
        rank.first_head = row == 5 ? 100000 : rank.first_head;
        i.ranks = &rank;
        i.n_ranks = 1;
        td_buf_clear(&b);
        td_arena_reset(arena);
        assert_int_equal(td_wire_node_info_encode(&i, &b), TD_OK);
        assert_int_equal(td_wire_node_info_decode(b.data, b.len, arena, &out), TD_ERR_PROTOCOL);
    }
    struct td_wire_node_info i = *wire_sample_node_info();
    i.n_ranks = TD_WIRE_MAX_RANKS + 1;
    assert_int_equal(td_wire_node_info_encode(&i, &b), TD_ERR_TOO_LARGE);
    struct td_wire_router_info r = *wire_sample_router_info(), out;
    r.epoch = 0;
    td_buf_clear(&b);
    assert_int_equal(td_wire_router_info_encode(&r, &b), TD_OK);
    assert_int_equal(td_wire_router_info_decode(b.data, b.len, arena, &out), TD_ERR_PROTOCOL);
    assert_int_equal(td_wire_router_info_decode(b.data, 3, arena, &out), TD_ERR_PROTOCOL);
    td_buf_fini(&b);
}

static void every_type_has_a_name_and_ids_are_found(void **state)
{
    size_t n;
    const struct wire_sample *s = wire_samples(&n);
    bool seen[TD_WIRE_TYPES] = {false};
    (void)state;
    for (size_t i = 0; i < n; i++) {
        seen[s[i].msg.type] = true;
    }
    for (int t = TD_WIRE_NONE + 1; t < TD_WIRE_TYPES; t++) {
        assert_true(seen[t]);
        assert_string_not_equal(td_wire_type_name((enum td_wire_type)t), "unknown");
    }
    assert_string_equal(td_wire_type_name(TD_WIRE_TYPES), "unknown");
    assert_int_equal(td_wire_id(sample(TD_WIRE_TAKEN))->counter, 77);
    assert_null(td_wire_id(sample(TD_WIRE_STATE)));
}

#define T(name) cmocka_unit_test(name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_request_keeps_every_field),
        T(a_temperature_of_zero_is_not_an_absent_one),
        T(a_trace_state_travels_and_has_a_bound),
        T(absent_texts_are_empty_strings),
        T(tokens_keep_all_columns),
        T(tokens_of_two_routers_do_not_fit_one_message),
        T(a_table_keeps_its_blocks),
        T(a_record_keeps_its_verification_data),
        T(the_longest_prompt_passes_and_one_more_token_does_not),
        T(the_largest_tables_pass_and_one_more_entry_does_not),
        T(a_request_with_one_field_out_of_range_is_refused),
        T(other_messages_out_of_range_are_refused),
        T(names_that_are_too_long_are_refused_and_texts_are_cut),
        T(a_logprob_that_is_no_number_becomes_zero),
        T(nothing_and_nonsense_are_refused),
        T(every_cut_message_is_refused_or_still_a_message),
        T(one_corrupt_byte_never_crashes_and_what_decodes_encodes),
        T(unknown_fields_are_ignored_wherever_they_stand),
        T(a_message_of_many_unknown_fields_is_refused_for_its_memory),
        T(a_full_arena_is_out_of_memory_not_a_wrong_message),
        T(encoding_into_a_small_buffer_fails_and_leaves_it_as_it_was),
        T(identities_out_of_range_are_refused),
        T(every_type_has_a_name_and_ids_are_found),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
