#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "common/base/rng.h"
#include "common/io/xfer_int.h"
#include "tests/unit/check.h"
#include "tests/unit/io/xfer_rig.h"

/* Strangers at the data plane: bytes at the TCP port, and a UCX peer of our own making that sends whatever it likes. After
 * each of them an honest pair must still work. */

#define P_EPOCH    0x1111u
#define D_EPOCH    0x2222u
#define PORT_FIRST 28110u
#define PORT_LAST  28190u

static const struct rig_shape shape = {.transports = "tcp",
                                       .n_blocks = 32,
                                       .n_layers = 2,
                                       .slice_bytes = 4096,
                                       .port_first = PORT_FIRST,
                                       .port_last = PORT_LAST};

/* An honest transfer from p to a fresh d. */
static void still_works(struct rig_node *p, uint64_t d_epoch)
{
    struct rig_node d;
    struct rig_job j;
    struct rig_shape s = shape;
    rig_up(&d, d_epoch, &s);
    rig_connect(&d, p);
    rig_job_make(&j, d_epoch, 8, p, &d, 1);
    rig_offer(&d, p, &j);
    rig_push(p, &j, d_epoch, 0, 8, 0, 0);
    assert_true(rig_wait_landed(&d, j.land, 2));
    assert_true(rig_landed_exact(&d, &j));
    rig_down(&d);
}

/* ---- bytes at the port ---- */

static int dial(uint32_t port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

/* The port UCX took from the range, or 0. Nobody else of this test listens there. */
static uint32_t find_port(void)
{
    for (uint32_t port = PORT_FIRST; port <= PORT_LAST; port++) {
        int fd = dial(port);
        if (fd >= 0) {
            (void)close(fd);
            return port;
        }
    }
    return 0;
}

static void garbage(int fd, uint64_t kind)
{
    uint8_t bytes[4096];
    struct td_rng r = {kind};
    memset(bytes, 0xFF, sizeof bytes);
    if (kind % 4 == 1) {
        for (size_t i = 0; i < sizeof bytes; i++) {
            bytes[i] = (uint8_t)td_rng_next(&r);
        }
    } else if (kind % 4 == 2) {
        memset(bytes, 0, sizeof bytes);
    } else if (kind % 4 == 3) {
        (void)snprintf((char *)bytes, sizeof bytes, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    }
    (void)send(fd, bytes, kind % 3 == 0 ? 7 : sizeof bytes,
               MSG_NOSIGNAL); /* it may hang up first */
}

static void bytes_at_the_tcp_port_change_nothing(void **state)
{
    struct rig_node p;
    int open[32];
    (void)state;
    rig_up(&p, P_EPOCH, &shape);
    uint32_t port = find_port();
    assert_true(port != 0); /* and it is in the range that was asked for */
    for (uint64_t i = 0; i < 32; i++) {
        open[i] = dial(port);
        assert_true(open[i] >= 0);
        if (i % 5 != 0) { /* every fifth says nothing at all */
            garbage(open[i], i);
        }
        if (i % 2 == 0) {
            (void)close(open[i]);
            open[i] = -1;
        }
    }
    still_works(&p, D_EPOCH);
    for (size_t i = 0; i < 32; i++) {
        if (open[i] >= 0) {
            (void)close(open[i]);
        }
    }
    still_works(&p, D_EPOCH + 1);
    rig_down(&p);
}

/* ---- a UCX peer without manners ---- */

struct stranger {
    struct td_ucx u;
    ucp_ep_h ep;
    uint32_t pending;
    bool failed;
};

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    ((struct stranger *)arg)->failed = true;
}

static void on_sent(void *request, ucs_status_t status, void *arg)
{
    ((struct stranger *)arg)->pending--;
    ucp_request_free(request);
}

static void close_ep(struct stranger *s)
{
    ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_EP_CLOSE_FLAG_FORCE};
    ucs_status_ptr_t r = ucp_ep_close_nbx(s->ep, &force);
    if (UCS_PTR_IS_PTR(r)) {
        ucp_request_free(r);
    }
    s->ep = NULL;
    s->failed = false;
}

static void connect_to(struct stranger *s, const struct rig_node *p)
{
    const uint8_t *addr;
    size_t n;
    ucp_err_handler_t h = {on_error, s};
    td_xfer_address(p->x, &addr, &n);
    assert_int_equal(td_ucx_connect(&s->u, addr, n, h, &s->ep), TD_OK);
}

static void throw_at(struct stranger *s, struct rig_node *p, unsigned id, struct iovec header,
                     struct iovec data, bool reply)
{
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = reply ? UCP_AM_SEND_FLAG_REPLY : 0,
        .cb = {.send = on_sent},
        .user_data = s,
    };
    if (s->failed) { /* it hung up on us, as it should */
        close_ep(s);
        connect_to(s, p);
    }
    ucs_status_ptr_t r = ucp_am_send_nbx(s->ep, id, header.iov_base, header.iov_len, data.iov_base,
                                         data.iov_len, &param);
    s->pending += UCS_PTR_IS_PTR(r);
    while (s->pending > 0) {
        (void)ucp_worker_progress(s->u.worker);
        rig_take(p);
    }
}

static uint8_t payload[1u << 20];

static bool is_slice(unsigned id)
{
    return id == XF_AM_SLICE || id == XF_AM_SLICE_AT;
}

/* Headers that are random, or nearly right. */
static size_t make_header(uint8_t *out, unsigned id, struct td_rng *r)
{
    size_t len = is_slice(id) ? sizeof(struct td_slice_header) : sizeof(struct xf_frame);
    for (size_t i = 0; i < 256; i++) {
        out[i] = (uint8_t)td_rng_next(r);
    }
    struct td_slice_header h = {.magic = TD_SLICE_MAGIC,
                                .version = TD_SLICE_VERSION,
                                .land = D_EPOCH + 2,
                                .p_epoch = D_EPOCH + 2,
                                .d_epoch = P_EPOCH,
                                .n_blocks = UINT32_MAX,
                                .first_block = 1,
                                .bytes = UINT64_MAX};
    struct xf_frame f = {XF_FRAME_MAGIC, TD_SLICE_VERSION, 0x6666, P_EPOCH, td_rng_next(r)};
    h.header_sum = td_slice_header_sum(&h);
    switch (td_rng_next(r) % 4) {
    case 0:
        return td_rng_next(r) % 200;
    case 1:
        return len;
    case 2:
        memcpy(out, is_slice(id) ? (void *)&h : (void *)&f, len);
        return len;
    default:
        memcpy(out, is_slice(id) ? (void *)&h : (void *)&f, len);
        return td_rng_next(r) % len;
    }
}

static void a_stranger_that_speaks_ucx_is_refused_and_counted(void **state)
{
    static const size_t lens[] = {0, 1, 31, 4096, 70000, sizeof payload};
    struct td_ucx_params u = {.device = "lo", .transports = shape.transports};
    struct rig_node p;
    struct stranger s = {0};
    struct td_xfer_stats stats;
    struct td_rng r = {42};
    uint8_t header[256];
    (void)state;
    rig_up(&p, P_EPOCH, &shape);
    assert_int_equal(td_ucx_open(&u, &s.u), TD_OK);
    connect_to(&s, &p);
    for (int i = 0; i < 3000; i++) {
        unsigned id = (unsigned)(td_rng_next(&r) % (XF_AM_TABLE + 4));
        size_t n = make_header(header, id, &r);
        size_t len = lens[td_rng_next(&r) % (id < XF_AM_TABLE ? 6 : 4)]; /* UCX reads past its
                                                          table for a long message of a high id */
        throw_at(&s, &p, id, (struct iovec){header, n}, (struct iovec){payload, len},
                 td_rng_next(&r) % 2);
    }
    /* Frames that are right but for who they come from, and a HELLO whose address is garbage. */
    for (unsigned id = XF_AM_HELLO; id <= XF_AM_BYE; id++) {
        struct xf_frame f = {XF_FRAME_MAGIC, TD_SLICE_VERSION, 0x6666, P_EPOCH, 4096};
        throw_at(&s, &p, id, (struct iovec){&f, sizeof f}, (struct iovec){payload, 4096}, true);
        throw_at(&s, &p, id, (struct iovec){&f, sizeof f}, (struct iovec){payload, 4096}, false);
    }
    still_works(&p, D_EPOCH + 2);
    td_xfer_stats_get(p.x, &stats);
    assert_true(stats.refused > 1000);
    assert_true(stats.stale > 0);
    assert_int_equal(stats.slices_in, 0);
    assert_int_equal(rig_count(&p, TD_XFER_MSG, 0x6666), 0);
    close_ep(&s);
    td_ucx_close(&s.u);
    rig_down(&p);
}

/* ---- a peer that offers slices by reference, badly ---- */

#define BAD_EPOCH 0x3333u

struct offer {
    uint64_t token, at[2];
};

/* A stranger that said HELLO properly, with a probe that P finds, and a land of P for it. */
static void befriend(struct stranger *s, struct rig_node *p, struct xf_probe *probe)
{
    struct td_ucx_params u = {.device = "lo", .transports = "tcp,cma", .probe = probe};
    struct xf_frame f = {XF_FRAME_MAGIC, TD_SLICE_VERSION, BAD_EPOCH, P_EPOCH, 0};
    *s = (struct stranger){0};
    assert_int_equal(td_ucx_open(&u, &s->u), TD_OK);
    connect_to(s, p);
    f.n_bytes = s->u.address_bytes;
    throw_at(s, p, XF_AM_HELLO, (struct iovec){&f, sizeof f},
             (struct iovec){s->u.address, s->u.address_bytes}, true);
}

static void part(struct stranger *s, struct rig_node *p)
{
    struct td_xfer_cmd c = {.type = TD_XFER_CLOSE, .epoch = BAD_EPOCH};
    if (s->ep != NULL) {
        close_ep(s);
    }
    td_ucx_close(&s->u);
    rig_submit(p, &c);
    assert_non_null(rig_wait(p, TD_XFER_CLOSED, BAD_EPOCH, 0));
    rig_down(p);
}

static void bad_offer(const struct xf_probe *probe, struct offer o, size_t n, td_err want)
{
    struct rig_shape shape_ref = shape;
    struct xf_probe mine = *probe;
    struct rig_node p;
    struct stranger s;
    struct rig_job j;
    struct td_xfer_stats stats;
    shape_ref.transports = "tcp,cma";
    rig_up(&p, P_EPOCH, &shape_ref);
    befriend(&s, &p, &mine);
    rig_job_make(&j, 77, 2, &p, &p, 5);
    rig_land(&p, &j, BAD_EPOCH);
    do {
        td_xfer_stats_get(p.x, &stats);
    } while (stats.lands == 0);
    struct td_slice_header h = {.magic = TD_SLICE_MAGIC,
                                .version = TD_SLICE_VERSION,
                                .land = j.land,
                                .p_epoch = BAD_EPOCH,
                                .d_epoch = P_EPOCH,
                                .layout_id = j.layout,
                                .id = j.id,
                                .generation = j.table[0].generation,
                                .n_blocks = 2,
                                .bytes = 2ull * shape.slice_bytes};
    h.header_sum = td_slice_header_sum(&h);
    throw_at(&s, &p, XF_AM_SLICE_AT, (struct iovec){&h, sizeof h}, (struct iovec){&o, n}, true);
    if (want != TD_OK) {
        const struct rig_event *e = rig_wait(&p, TD_XFER_LAND_BAD, j.land, 0);
        assert_non_null(e);
        assert_int_equal(e->ev.err, want);
    }
    if (o.token != 1) {
        assert_non_null(rig_wait(&p, TD_XFER_PEER_LOST, BAD_EPOCH, 0));
    }
    td_xfer_stats_get(p.x, &stats);
    assert_int_equal(stats.slices_in, 0);
    still_works(&p, D_EPOCH);
    part(&s, &p);
}

static void bad_offers_spoil_their_own_land_only(void **state)
{
    const struct xf_probe right = {XF_PROBE_MAGIC, BAD_EPOCH};
    const struct xf_probe wrong = {XF_PROBE_MAGIC, BAD_EPOCH + 1};
    static uint8_t bytes[2][4096];
    uint64_t a = (uintptr_t)bytes[0];
    uint64_t b = (uintptr_t)bytes[1];
    (void)state;
    assert_true(sizeof bytes[0] >= shape.slice_bytes);
    bad_offer(&right, (struct offer){1, {a, 16}}, sizeof(struct offer), TD_ERR_TRANSPORT);
    bad_offer(&right, (struct offer){1, {a, b}}, 16, TD_ERR_PROTOCOL);
    bad_offer(&wrong, (struct offer){1, {a, b}}, sizeof(struct offer), TD_ERR_PROTOCOL);
    bad_offer(&right, (struct offer){2, {a, 16}}, sizeof(struct offer), TD_ERR_TRANSPORT);
    bad_offer(&right, (struct offer){0, {a, 16}}, 8, TD_ERR_PROTOCOL);
}

static void an_answer_to_what_was_never_offered_ends_the_connection(void **state)
{
    struct xf_probe probe = {XF_PROBE_MAGIC, BAD_EPOCH};
    struct rig_shape shape_ref = shape;
    struct rig_node p;
    struct stranger s;
    uint64_t token = 1;
    struct xf_frame f = {XF_FRAME_MAGIC, TD_SLICE_VERSION, BAD_EPOCH, P_EPOCH, sizeof token};
    (void)state;
    shape_ref.transports = "tcp,cma";
    rig_up(&p, P_EPOCH, &shape_ref);
    befriend(&s, &p, &probe);
    throw_at(&s, &p, XF_AM_TAKEN, (struct iovec){&f, sizeof f},
             (struct iovec){&token, sizeof token}, true);
    assert_non_null(rig_wait(&p, TD_XFER_PEER_LOST, BAD_EPOCH, 0));
    still_works(&p, D_EPOCH);
    part(&s, &p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_at_the_tcp_port_change_nothing),
        cmocka_unit_test(a_stranger_that_speaks_ucx_is_refused_and_counted),
        cmocka_unit_test(bad_offers_spoil_their_own_land_only),
        cmocka_unit_test(an_answer_to_what_was_never_offered_ends_the_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
