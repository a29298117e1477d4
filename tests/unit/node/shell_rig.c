#include "tests/unit/node/shell_rig.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "tests/tiny/tiny_gguf.h"

/* ---- the role ---- */

struct fake_role fake_role;

static td_err role_create(const struct nd_core_params *p, void **out_core)
{
    (void)p;
    void *mark = td_zalloc(1, 16); /* fails when the test says so, and leaks when forgotten */
    if (mark == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    fake_role.created++;
    *out_core = mark;
    return TD_OK;
}

static void role_destroy(void *core)
{
    fake_role.destroyed++;
    free(core);
}

static void role_step(void *core, int64_t now_us, const struct nd_event *ev, struct nd_actions *out)
{
    struct fake_role *f = &fake_role;
    (void)core;
    f->events[ev->type]++;
    f->last_router = ev->router_epoch;
    f->last_msg = ev->msg != NULL ? ev->msg->type : TD_WIRE_NONE;
    f->last_decode_err = ev->decode_err;
    f->last_ticket = ev->type == ND_EV_STEP ? ev->step->ticket : f->last_ticket;
    f->drain_deadline_us = ev->type == ND_EV_DRAIN ? ev->deadline_us : f->drain_deadline_us;
    if (ev->type == ND_EV_TICK &&
        f->deadline_us <= now_us) { /* not at others: a slow machine may bring one later */
        f->deadline_us = TD_NEVER;
    }
    if (f->next != NULL) {
        f->next(f, ev, out);
    }
}

static int64_t role_deadline(const void *core)
{
    (void)core;
    return fake_role.deadline_us;
}

static void role_state(const void *core, struct td_wire_state *out)
{
    (void)core;
    *out = fake_role.state;
}

static uint32_t role_work(const void *core)
{
    (void)core;
    return fake_role.n_work;
}

static uint32_t role_waits(const void *core, struct nd_wait *out, uint32_t cap)
{
    (void)core;
    assert_true(cap >= fake_role.n_waits);
    memcpy(out, fake_role.waits, fake_role.n_waits * sizeof *out);
    return fake_role.n_waits;
}

static void role_count(const void *core, struct nd_counts *out)
{
    (void)core;
    *out = fake_role.counts;
}

static td_err role_check(const void *core)
{
    (void)core;
    return TD_OK;
}

const struct nd_role_ops fake_role_ops = {.name = "decode",
                                          .role = TD_ROLE_DECODE,
                                          .create = role_create,
                                          .destroy = role_destroy,
                                          .step = role_step,
                                          .next_deadline = role_deadline,
                                          .state = role_state,
                                          .work_count = role_work,
                                          .waits = role_waits,
                                          .count = role_count,
                                          .check = role_check};

/* ---- the engine ---- */

static td_err engine_submit(struct td_engine *base, const struct td_row *rows, size_t n,
                            td_ticket *out)
{
    struct step_engine *e = (struct step_engine *)base;
    if (e->submit_err != TD_OK) {
        return e->submit_err;
    }
    assert_true(n > 0);
    e->n_submitted++;
    e->n_rows = (uint32_t)n;
    e->row = (struct td_row_result){.seq = rows[0].seq, .n_ids = 1, .ids = {42}};
    *out = ++e->ticket;
    return TD_OK;
}

static td_err engine_poll(struct td_engine *base, struct td_step_result *out)
{
    struct step_engine *e = (struct step_engine *)base;
    uint64_t n = 0;
    (void)!read(e->fd, &n, sizeof n);
    if (!e->done) {
        return e->ended ? TD_ERR_CLOSED : TD_ERR_AGAIN;
    }
    e->done = false;
    *out =
        (struct td_step_result){.ticket = e->ticket, .n_rows = 1, .rows = &e->row, .exec_us = 1000};
    return TD_OK;
}

static uint32_t engine_layers(struct td_engine *base, td_ticket t)
{
    (void)t;
    return ((struct step_engine *)base)->info.n_layers;
}

static td_err engine_seq_set(struct td_engine *base, uint32_t slot,
                             const struct td_sampling_state *s)
{
    struct step_engine *e = (struct step_engine *)base;
    (void)s;
    if (slot >= e->info.max_slots) {
        return TD_ERR_BAD_REQUEST;
    }
    e->n_slots_set++;
    return TD_OK;
}

static const struct td_engine_info *engine_info(const struct td_engine *base)
{
    return &((const struct step_engine *)base)->info;
}

static int engine_fd(const struct td_engine *base)
{
    return ((const struct step_engine *)base)->fd;
}

static void *engine_pool(const struct td_engine *base)
{
    (void)base;
    return NULL;
}

static void engine_destroy(struct td_engine *base)
{
    (void)base;
}

static void engine_init(struct step_engine *e)
{
    static const struct td_engine_ops ops = {.submit = engine_submit,
                                             .poll = engine_poll,
                                             .layers_done = engine_layers,
                                             .seq_set = engine_seq_set,
                                             .info = engine_info,
                                             .event_fd = engine_fd,
                                             .layer_fd = engine_fd,
                                             .pool_base = engine_pool,
                                             .destroy = engine_destroy};
    *e = (struct step_engine){.base = {&ops}};
    e->info = (struct td_engine_info){.layout = {.version = 1,
                                                 .n_layers = 2,
                                                 .n_kv_heads = 2,
                                                 .head_dim = 16,
                                                 .block_tok = 16,
                                                 .slice_bytes = 64,
                                                 .block_bytes = 128},
                                      .n_layers = 2,
                                      .n_vocab = 100,
                                      .max_model_len = 512,
                                      .n_blocks = 64,
                                      .max_rows = 8,
                                      .max_tokens = 256,
                                      .max_slots = 8,
                                      .numerics_id = 7,
                                      .numerics = "fake"};
    e->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    assert_true(e->fd >= 0);
}

void shell_step_done(struct shell_rig *r)
{
    uint64_t one = 1;
    r->engine.done = true;
    assert_int_equal(write(r->engine.fd, &one, sizeof one), sizeof one);
}

/* ---- routers ---- */

static void on_up(void *arg, const struct td_link_peer *peer)
{
    struct fake_router *x = arg;
    x->session = peer->session;
    x->ups++;
    x->states_in_order = true;
    x->state.seq = 0; /* a new session counts anew */
    td_arena_reset(x->rig->arena);
    assert_int_equal(td_wire_node_info_decode(peer->info, peer->info_len, x->rig->arena, &x->info),
                     TD_OK);
    (void)snprintf(x->name, sizeof x->name, "%s", x->info.name);
    (void)snprintf(x->admin, sizeof x->admin, "%s", x->info.admin_address);
}

static void on_message(void *arg, uint64_t session, uint64_t epoch, const uint8_t *data, size_t len)
{
    struct fake_router *x = arg;
    struct td_wire_msg m;
    (void)session;
    (void)epoch;
    td_arena_reset(x->rig->arena);
    assert_int_equal(td_wire_decode(data, len, x->rig->arena, &m), TD_OK);
    if (m.type == TD_WIRE_STATE) {
        x->states_in_order = x->states_in_order && m.state.seq == x->state.seq + 1;
        x->state = m.state;
        x->n_states++;
    } else if (m.type == TD_WIRE_TOKENS) {
        x->n_tokens += m.tokens.n;
    }
}

static void on_lost(void *arg, uint64_t session, uint64_t epoch, td_err reason, const char *text)
{
    struct fake_router *x = arg;
    (void)session;
    (void)epoch;
    (void)reason;
    (void)text;
    x->losts++;
}

static void on_refused(void *arg, const char *url, td_err reason, const char *text, bool remote)
{
    struct fake_router *x = arg;
    (void)url;
    (void)reason;
    (void)text;
    (void)remote;
    x->refusals++;
}

static const struct td_link_ops router_ops = {
    .on_up = on_up, .on_message = on_message, .on_lost = on_lost, .on_refused = on_refused};

void shell_attach(struct shell_rig *r, int i)
{
    struct fake_router *x = &r->routers[i];
    x->rig = r;
    x->epoch = 0x7000u + (uint64_t)i;
    struct td_wire_router_info info = {.epoch = x->epoch,
                                       .name = "r",
                                       .version = "",
                                       .version_min = TD_WIRE_VERSION_MIN,
                                       .version_max = TD_WIRE_VERSION_MAX};
    const struct td_model_tokenizer *tok = td_model_tokenizer(r->model);
    memcpy(info.model_id, r->model->id, 32);
    memcpy(info.tokenizer_hash, tok->tokenizer_hash, 32);
    memcpy(info.template_hash, tok->template_hash, 32);
    struct td_buf b;
    td_buf_init(&b, TD_LINK_MAX_INFO);
    assert_int_equal(td_wire_router_info_encode(&info, &b), TD_OK);
    struct td_link_nng_params p = {.loop = r->loop,
                                   .link = {.role = TD_LINK_ROUTER,
                                            .epoch = x->epoch,
                                            .name = "r",
                                            .info = b.data,
                                            .info_len = b.len,
                                            .keys = &r->key,
                                            .n_keys = 1,
                                            .max_sessions = 4,
                                            .max_targets = 4,
                                            .time_scale = r->p.time_scale},
                                   .ops = &router_ops,
                                   .arg = x};
    assert_int_equal(td_link_nng_create(&p, &x->link), TD_OK);
    assert_int_equal(td_link_nng_dial(x->link, td_node_control_url(r->node)), TD_OK);
    td_buf_fini(&b);
    shell_reaches(r, &x->ups, 1, "the router to be attached");
}

void shell_send_bytes(struct fake_router *x, const void *data, size_t len)
{
    assert_int_equal(td_link_nng_send(x->link, x->session, 1, data, len), TD_OK);
}

void shell_send(struct fake_router *x, const struct td_wire_msg *m)
{
    struct td_buf b;
    td_buf_init(&b, TD_WIRE_MAX_BYTES);
    assert_int_equal(td_wire_encode(m, &b), TD_OK);
    shell_send_bytes(x, b.data, b.len);
    td_buf_fini(&b);
}

/* ---- life ---- */

int shell_setup(void **state)
{
    struct shell_rig *r = td_zalloc(1, sizeof *r);
    assert_non_null(r);
    td_log_set_level(TD_LOG_ERROR);
    td_fault_reset();
    fake_role = (struct fake_role){.deadline_us = TD_NEVER};
    fake_role.state.role = TD_ROLE_DECODE;
    fake_role.state.blocks[TD_BLK_FREE] = 60;
    fake_role.state.blocks[TD_BLK_RUNNING] = 4;
    (void)snprintf(r->model_path, sizeof r->model_path, "/tmp/node-rig-XXXXXX");
    int fd = mkstemp(r->model_path);
    assert_true(fd >= 0);
    (void)close(fd);
    struct td_tiny_params tiny = td_tiny_defaults();
    tiny.n_layers = 1;
    assert_int_equal(td_tiny_write_file(&tiny, r->model_path), TD_OK);
    assert_int_equal(td_model_open(r->model_path, &r->model), TD_OK);
    assert_int_equal(td_loop_create(&r->loop), TD_OK);
    r->arena = td_arena_create(64u << 20);
    assert_non_null(r->arena);
    engine_init(&r->engine);
    r->key = (struct td_link_key){.id = "k", .secret_len = 32};
    r->p = (struct td_node_params){.loop = r->loop,
                                   .role = &fake_role_ops,
                                   .role_told = TD_ROLE_DECODE,
                                   .name = "d0",
                                   .model_name = "tiny",
                                   .engine = &r->engine.base,
                                   .model = r->model,
                                   .keys = &r->key,
                                   .n_keys = 1,
                                   .control_url = "tcp://127.0.0.1:0",
                                   .admin_host = "127.0.0.1",
                                   .max_seqs = 8,
                                   .max_queue = 16,
                                   .max_batched_tokens = 256,
                                   .chunk_tokens = 64,
                                   .steps_in_flight = 1,
                                   .time_scale = 0.1,
                                   .metrics_vllm = true};
    *state = r;
    return 0;
}

void shell_start(struct shell_rig *r)
{
    assert_int_equal(td_node_create(&r->p, &r->node), TD_OK);
}

int shell_teardown(void **state)
{
    struct shell_rig *r = *state;
    td_fault_reset();
    for (int i = 0; i < SHELL_ROUTERS; i++) {
        td_link_nng_destroy(r->routers[i].link);
    }
    td_node_destroy(r->node);
    assert_int_equal(fake_role.created, fake_role.destroyed);
    td_loop_destroy(r->loop);
    td_model_close(r->model);
    td_arena_destroy(r->arena);
    (void)close(r->engine.fd);
    (void)unlink(r->model_path);
    free(r);
    return 0;
}

void shell_until(struct shell_rig *r, bool (*cond)(void *arg), void *arg, const char *what)
{
    int64_t until = td_now_us() + SHELL_GIVE_UP_US;
    while (!cond(arg)) {
        td_loop_run_once(r->loop, 2000);
        if (td_now_us() > until) {
            fail_msg("waited in vain for %s", what);
        }
    }
}

struct goal {
    const uint32_t *value;
    uint32_t want;
};

static bool reached(void *arg)
{
    const struct goal *g = arg;
    return *g->value >= g->want;
}

void shell_reaches(struct shell_rig *r, const uint32_t *value, uint32_t want, const char *what)
{
    struct goal g = {value, want};
    shell_until(r, reached, &g, what);
}

void shell_passes(struct shell_rig *r, int n)
{
    for (int i = 0; i < n; i++) {
        td_loop_run_once(r->loop, 1000);
    }
}

int shell_get(struct shell_rig *r, const char *method, const char *path, char *out, size_t cap)
{
    return shell_ask(r->loop, td_node_admin_port(r->node), method, path, out, cap);
}

int shell_ask(struct td_loop *loop, uint16_t port, const char *method, const char *path, char *out,
              size_t cap)
{
    char head[256];
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(port)};
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0), status = 0;
    size_t n = 0;
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    (void)snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
                   method, path);
    assert_int_equal(send(fd, head, strlen(head), MSG_NOSIGNAL), strlen(head));
    int64_t until = td_now_us() + SHELL_GIVE_UP_US;
    while (td_now_us() < until) {
        td_loop_run_once(loop, 2000);
        ssize_t got = recv(fd, out + n, cap - 1 - n, 0);
        n += got > 0 ? (size_t)got : 0;
        if (got == 0) {
            break;
        }
    }
    out[n] = 0;
    (void)close(fd);
    assert_int_equal(sscanf(out, "HTTP/1.1 %d ", &status), 1);
    return status;
}
