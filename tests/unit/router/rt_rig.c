#include "tests/unit/router/rt_rig.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "router/rt_model.h"
#include "tests/tiny/tiny_gguf.h"

#define NODE_EPOCH 0xd00du
#define N_BLOCKS   1000u

/* ---- the node ---- */

static void node_send(struct rig *r, const struct td_wire_msg *m)
{
    struct td_buf b;
    td_buf_init(&b, TD_WIRE_MAX_BYTES);
    assert_int_equal(td_wire_encode(m, &b), TD_OK);
    assert_int_equal(td_link_nng_send(r->node, r->session, 1, b.data, b.len), TD_OK);
    td_buf_fini(&b);
}

void rig_state(struct rig *r, bool draining)
{
    struct td_wire_msg m = {.type = TD_WIRE_STATE};
    m.state = (struct td_wire_state){.seq = ++r->state_seq,
                                     .full = true,
                                     .ready = true,
                                     .draining = draining,
                                     .role = TD_ROLE_BOTH,
                                     .prefill_us_per_ktok = 1000,
                                     .decode_step_us = 1000};
    m.state.blocks[TD_BLK_FREE] = N_BLOCKS;
    node_send(r, &m);
}

static void on_up(void *arg, const struct td_link_peer *peer)
{
    struct rig *r = arg;
    r->session = peer->session;
    r->ups++;
    rig_state(r, false);
}

static void on_lost(void *arg, uint64_t session, uint64_t epoch, td_err reason, const char *text)
{
    struct rig *r = arg;
    (void)session;
    (void)epoch;
    (void)reason;
    (void)text;
    r->losts++;
}

static void take_reserve(struct rig *r, const struct td_wire_reserve *m)
{
    assert_true(r->n_works < RIG_WORKS);
    assert_int_equal(m->mode, TD_RESERVE_LOCAL);
    struct rig_work *w = &r->works[r->n_works++];
    *w = (struct rig_work){.id = m->r.id,
                           .n_prompt = m->r.n_prompt,
                           .n_sent = m->r.n_replayed,
                           .max_tokens = m->r.sampling.max_tokens,
                           .n_stop_ids = m->r.sampling.n_stop_ids,
                           .seed = m->r.sampling.seed,
                           .priority = m->r.priority};
    memcpy(w->salt, m->r.cache_salt, sizeof w->salt);
    (void)snprintf(w->tenant, sizeof w->tenant, "%s", m->r.tenant);
}

static void take_cancel(struct rig *r, const struct td_wire_cancel *m)
{
    for (uint32_t i = 0; i < r->n_works; i++) {
        if (td_work_id_eq(&r->works[i].id, &m->id)) {
            r->works[i].cancelled = true;
            r->works[i].cancel_reason = m->reason;
        }
    }
    struct td_wire_msg ack = {.type = TD_WIRE_CANCEL_ACK,
                              .cancel_ack = {.id = m->id, .known = true}};
    if (!r->silent) {
        node_send(r, &ack);
    }
}

static void on_message(void *arg, uint64_t session, uint64_t epoch, const uint8_t *data, size_t len)
{
    struct rig *r = arg;
    struct td_wire_msg m;
    (void)session;
    (void)epoch;
    td_arena_reset(r->arena);
    assert_int_equal(td_wire_decode(data, len, r->arena, &m), TD_OK);
    if (m.type == TD_WIRE_RESERVE) {
        take_reserve(r, &m.reserve);
    } else if (m.type == TD_WIRE_CANCEL) {
        take_cancel(r, &m.cancel);
    } else if (m.type == TD_WIRE_STATE_REQUEST) {
        rig_state(r, false);
    }
}

static const struct td_link_ops node_ops = {
    .on_up = on_up, .on_message = on_message, .on_lost = on_lost};

static void start_node(struct rig *r)
{
    struct td_wire_rank rank = {.tp = 1, .pp = 1};
    struct td_wire_node_info i = {.epoch = NODE_EPOCH,
                                  .name = "n\"1",
                                  .version = "",
                                  .model_name = "m",
                                  .numerics = "test",
                                  .admin_address = "",
                                  .role = TD_ROLE_BOTH,
                                  .version_min = TD_WIRE_VERSION_MIN,
                                  .version_max = TD_WIRE_VERSION_MAX,
                                  .layout = {.id = 9, .version = 1, .block_tok = 16},
                                  .numerics_id = 7,
                                  .max_model_len = r->model->max_model_len,
                                  .n_blocks = N_BLOCKS,
                                  .max_seqs = r->max_seqs,
                                  .max_batched_tokens = 512,
                                  .n_ranks = 1,
                                  .ranks = &rank};
    struct td_buf info;
    td_buf_init(&info, TD_LINK_MAX_INFO);
    memcpy(i.model_id, r->model->file->id, 32);
    i.model_id[0] ^= r->wrong_model ? 1 : 0;
    memcpy(i.tokenizer_hash, td_model_tokenizer(r->model->file)->tokenizer_hash, 32);
    memcpy(i.template_hash, r->model->template_hash, 32);
    assert_int_equal(td_wire_node_info_encode(&i, &info), TD_OK);
    struct td_link_nng_params p = {.loop = r->loop,
                                   .link = {.role = TD_LINK_NODE,
                                            .epoch = NODE_EPOCH,
                                            .name = "n1",
                                            .info = info.data,
                                            .info_len = info.len,
                                            .keys = &r->key,
                                            .n_keys = 1,
                                            .max_sessions = 4,
                                            .time_scale = r->p.time_scale},
                                   .ops = &node_ops,
                                   .arg = r};
    assert_int_equal(td_link_nng_create(&p, &r->node), TD_OK);
    assert_int_equal(td_link_nng_listen(r->node, "tcp://127.0.0.1:0"), TD_OK);
    (void)snprintf(r->url, sizeof r->url, "%s", td_link_nng_listen_url(r->node, 0));
    td_buf_fini(&info);
}

/* ---- life ---- */

static const char *const names[] = {"tiny", "second-name"};

int rig_setup(void **state)
{
    struct rig *r = td_zalloc(1, sizeof *r);
    assert_non_null(r);
    td_log_set_level(TD_LOG_ERROR);
    td_fault_reset();
    (void)snprintf(r->model_path, sizeof r->model_path, "/tmp/rt-rig-XXXXXX");
    int fd = mkstemp(r->model_path);
    assert_true(fd >= 0);
    (void)close(fd);
    struct td_tiny_params tiny = td_tiny_defaults();
    tiny.n_layers = 1;
    assert_int_equal(td_tiny_write_file(&tiny, r->model_path), TD_OK);
    struct rt_model_params mp = {.path = r->model_path, .names = names, .n_names = 1};
    assert_int_equal(rt_model_open(&mp, &r->model), TD_OK);
    assert_int_equal(td_text_tokenizer_create(r->model->vocab, &r->tok), TD_OK);
    assert_int_equal(td_loop_create(&r->loop), TD_OK);
    r->arena = td_arena_create(64u << 20);
    assert_non_null(r->arena);
    r->max_seqs = 8;
    r->key = (struct td_link_key){.id = "k", .secret_len = 32};
    r->p = (struct rt_shell_params){.loop = r->loop,
                                    .name = "r1",
                                    .model_path = r->model_path,
                                    .served_names = names,
                                    .n_served_names = 2,
                                    .host = "127.0.0.1",
                                    .admin_host = "127.0.0.1",
                                    .node_urls = r->urls,
                                    .n_node_urls = 1,
                                    .keys = &r->key,
                                    .n_keys = 1,
                                    .time_scale = 0.2,
                                    .max_requests = 64,
                                    .max_queue = 8,
                                    .max_node_queue = 16,
                                    .max_queue_bytes = 1 << 20,
                                    .budget_us = 60000000,
                                    .pair_wait_us = 100000,
                                    .max_body = 65536,
                                    .policy = RT_POLICY_PREDICT,
                                    .resume = true};
    *state = r;
    return 0;
}

static bool is_ready(void *arg)
{
    return rt_shell_ready(((struct rig *)arg)->shell);
}

void rig_start(struct rig *r)
{
    start_node(r);
    r->urls[0] = r->url;
    assert_int_equal(rt_shell_create(&r->p, &r->shell), TD_OK);
    if (r->p.n_node_urls > 0 && !r->wrong_model) {
        rig_until(r, is_ready, r, "the node to be ready");
    }
}

int rig_teardown(void **state)
{
    struct rig *r = *state;
    td_fault_reset();
    rt_shell_destroy(r->shell);
    td_link_nng_destroy(r->node);
    td_text_tokenizer_destroy(r->tok);
    rt_model_close(r->model);
    td_loop_destroy(r->loop);
    td_arena_destroy(r->arena);
    (void)unlink(r->model_path);
    free(r);
    return 0;
}

void rig_until(struct rig *r, bool (*cond)(void *arg), void *arg, const char *what)
{
    int64_t until = td_now_us() + RIG_GIVE_UP_US;
    while (!cond(arg)) {
        td_loop_run_once(r->loop, 2000);
        if (td_now_us() > until) {
            fail_msg("waited in vain for %s", what);
        }
    }
}

void rig_passes(struct rig *r, int n)
{
    for (int i = 0; i < n; i++) {
        td_loop_run_once(r->loop, 1000);
    }
}

/* ---- what the node says ---- */

struct nth {
    struct rig *r;
    uint32_t n;
};

static bool has_work(void *arg)
{
    const struct nth *w = arg;
    return w->r->n_works > w->n;
}

struct rig_work *rig_work(struct rig *r, uint32_t i)
{
    struct nth w = {r, i};
    rig_until(r, has_work, &w, "a request at the node");
    return &r->works[i];
}

void rig_token(struct rig *r, struct rig_work *w, int32_t token, enum td_finish finish)
{
    struct td_wire_token t = {.id = w->id, .index = w->n_sent++, .token = token, .finish = finish};
    struct td_wire_msg m = {.type = TD_WIRE_TOKENS, .tokens = {.n = 1, .tokens = &t}};
    node_send(r, &m);
}

void rig_repeat(struct rig *r, struct rig_work *w, int32_t token, uint32_t n)
{
    struct td_wire_token *t = td_zalloc(n, sizeof *t);
    assert_non_null(t);
    for (uint32_t i = 0; i < n; i++) {
        t[i] = (struct td_wire_token){.id = w->id, .index = w->n_sent++, .token = token};
    }
    struct td_wire_msg m = {.type = TD_WIRE_TOKENS, .tokens = {.n = n, .tokens = t}};
    node_send(r, &m);
    free(t);
}

int32_t rig_byte(struct rig *r, uint8_t byte)
{
    for (size_t id = 0; id < td_text_vocab_size(r->model->vocab); id++) {
        size_t n = 0;
        const uint8_t *b = td_text_vocab_bytes(r->model->vocab, (int32_t)id, &n);
        if (b != NULL && n == 1 && b[0] == byte) {
            return (int32_t)id;
        }
    }
    fail_msg("no token of byte %u", byte);
    return 0;
}

int32_t rig_end_id(const struct rig *r)
{
    assert_true(r->model->n_end_ids > 0);
    return r->model->end_ids[0];
}

void rig_say(struct rig *r, struct rig_work *w, const char *text)
{
    for (; *text != 0; text++) {
        rig_token(r, w, rig_byte(r, (uint8_t)*text), TD_FINISH_NONE);
    }
}

void rig_end(struct rig *r, struct rig_work *w, td_err err, const char *text)
{
    struct td_wire_msg m = {.type = TD_WIRE_END};
    m.end = (struct td_wire_end){
        .id = w->id,
        .err = err,
        .text = text,
        .stages = {.transport = "shm", .kv_bytes = 4096, .prefill_us = 11, .cached_tokens = 2}};
    node_send(r, &m);
}

void rig_finish(struct rig *r, struct rig_work *w)
{
    rig_token(r, w, rig_end_id(r), TD_FINISH_STOP);
    rig_end(r, w, TD_OK, "");
}

static bool is_cancelled(void *arg)
{
    return ((struct rig_work *)arg)->cancelled;
}

void rig_cancelled(struct rig *r, struct rig_work *w)
{
    rig_until(r, is_cancelled, w, "a cancel at the node");
}

void rig_garbage(struct rig *r)
{
    static const uint8_t junk[] = {0xff, 0xff, 0xff, 0x01, 0x02};
    assert_int_equal(td_link_nng_send(r->node, r->session, 1, junk, sizeof junk), TD_OK);
}

/* ---- clients ---- */

void rig_dial(struct rig *r, uint16_t port, struct rig_client *c)
{
    (void)r;
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(port)};
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    *c = (struct rig_client){.fd = socket(AF_INET, SOCK_STREAM, 0)};
    c->got = calloc(1, RIG_CLIENT_MAX);
    assert_non_null(c->got);
    assert_int_equal(connect(c->fd, (struct sockaddr *)&sa, sizeof sa), 0);
    assert_int_equal(fcntl(c->fd, F_SETFL, O_NONBLOCK), 0);
}

void rig_send(struct rig_client *c, const char *text)
{
    assert_int_equal(send(c->fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

void rig_post(struct rig *r, struct rig_client *c, const char *path, const char *body,
              const char *extra)
{
    char head[1024];
    if (c->got == NULL) {
        rig_dial(r, rt_shell_port(r->shell), c);
    }
    (void)snprintf(head, sizeof head,
                   "POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                   "Content-Length: %zu\r\n%s\r\n",
                   path, strlen(body), extra);
    rig_send(c, head);
    rig_send(c, body);
}

static void read_some(struct rig_client *c)
{
    ssize_t n = recv(c->fd, c->got + c->n, RIG_CLIENT_MAX - 1 - c->n, 0);
    c->closed = c->closed || n == 0;
    c->n += n > 0 ? (size_t)n : 0;
    c->got[c->n] = 0;
}

struct wish {
    struct rig_client *c;
    const char *text;
};

static bool has_text(void *arg)
{
    struct wish *w = arg;
    read_some(w->c);
    return strstr(w->c->got, w->text) != NULL || w->c->closed;
}

void rig_read(struct rig *r, struct rig_client *c, const char *want)
{
    struct wish w = {c, want};
    rig_until(r, has_text, &w, want);
    if (strstr(c->got, want) == NULL) {
        fail_msg("connection ended without '%s': %s", want, c->got);
    }
}

static bool is_whole(void *arg)
{
    struct rig_client *c = arg;
    read_some(c);
    const char *body = strstr(c->got, "\r\n\r\n");
    const char *length = strstr(c->got, "Content-Length: ");
    if (body == NULL) {
        return c->closed;
    }
    if (length != NULL && length < body) {
        return strlen(body + 4) >= strtoul(length + 16, NULL, 10);
    }
    return strstr(body, "\r\n0\r\n\r\n") != NULL || c->closed;
}

int rig_answer(struct rig *r, struct rig_client *c)
{
    rig_until(r, is_whole, c, "an answer");
    int status = 0;
    assert_int_equal(sscanf(c->got, "HTTP/1.1 %d ", &status), 1);
    return status;
}

int rig_get(struct rig *r, uint16_t port, const char *path, struct rig_client *c)
{
    char head[512];
    rig_dial(r, port, c);
    (void)snprintf(head, sizeof head, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path);
    rig_send(c, head);
    return rig_answer(r, c);
}

void rig_hang_up(struct rig_client *c)
{
    (void)close(c->fd);
    free(c->got);
    *c = (struct rig_client){.fd = -1};
}

char *rig_body(struct rig_client *c)
{
    char *body = strstr(c->got, "\r\n\r\n");
    assert_non_null(body);
    body += 4;
    if (strstr(c->got, "Transfer-Encoding: chunked") == NULL) {
        return body;
    }
    char *in = body, *out = body;
    for (;;) {
        char *end = NULL;
        size_t n = strtoul(in, &end, 16);
        if (end == in || n == 0) {
            break;
        }
        in = end + 2;
        assert_true(strlen(in) >= n);
        memmove(out, in, n);
        out += n;
        in += n + 2;
    }
    *out = 0;
    return body;
}

json_t *rig_json(struct rig_client *c)
{
    const char *body = rig_body(c);
    json_t *j = json_loads(body, JSON_DISABLE_EOF_CHECK, NULL);
    if (j == NULL) {
        fail_msg("not JSON: %s", body);
    }
    return j;
}

json_t *rig_event(const char *body, unsigned n)
{
    for (const char *at = strstr(body, "data: "); at != NULL; at = strstr(at + 6, "\ndata: ")) {
        at += at[0] == '\n' ? 1 : 0;
        if (n-- == 0) {
            return strncmp(at + 6, "[DONE]", 6) == 0
                       ? NULL
                       : json_loads(at + 6, JSON_DISABLE_EOF_CHECK, NULL);
        }
    }
    return NULL;
}
