/* Bytes of a stranger on the control port, and of a false node to a router that dialed it. The
 * first byte chooses the side and how the rest is cut. Nobody who cannot prove the secret may bring
 * a session up. */
#include <stdlib.h>
#include <string.h>

#include "common/io/link_session.h"
#include "tests/fuzz/fuzz.h"

static void must(bool ok)
{
    if (!ok) {
        abort();
    }
}

static struct td_link *make(enum td_link_role role)
{
    static const struct td_link_key key = {
        .id = "k1", .secret = "0123456789abcdef", .secret_len = 16};
    struct td_link_params p = {.role = role,
                               .epoch = 5,
                               .name = "fuzzed",
                               .info = (const uint8_t *)"info",
                               .info_len = 4,
                               .keys = &key,
                               .n_keys = 1,
                               .max_sessions = 2,
                               .max_pending = 2,
                               .max_targets = 1,
                               .queue_msgs = 16};
    struct td_link *l = NULL;
    must(td_link_create(&p, &l) == TD_OK);
    return l;
}

static bool drain(struct td_link *l, uint64_t conn)
{
    struct td_link_action a;
    bool open = true;
    while (td_link_next(l, 1, &a)) {
        must(a.type != TD_LINK_UP && a.type != TD_LINK_MESSAGE && a.type != TD_LINK_LOST);
        if (a.type == TD_LINK_WRITE) {
            td_link_conn_wrote(l, 1, a.conn);
        } else if (a.type == TD_LINK_CLOSE && a.conn == conn) {
            td_link_conn_closed(l, 1, conn);
            open = false;
        }
    }
    return open;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t nonce[TD_LINK_NONCE] = {7};
    if (size == 0) {
        return 0;
    }
    bool dialer = (data[0] & 1) != 0;
    size_t piece = 1 + (size_t)(data[0] >> 1) * 3;
    struct td_link *l = make(dialer ? TD_LINK_ROUTER : TD_LINK_NODE);
    uint32_t target = TD_LINK_NO_TARGET;
    uint64_t conn;
    if (dialer) {
        must(td_link_target_add(l, 1, &target) == TD_OK);
        (void)drain(l, 0);
    }
    must(td_link_conn_open(l, 1, target, nonce, &conn) == TD_OK);
    bool open = drain(l, conn);
    for (size_t at = 1; at < size && open; at += piece) {
        size_t len = piece < size - at ? piece : size - at;
        uint8_t *copy = malloc(len);
        must(copy != NULL);
        memcpy(copy, data + at, len);
        td_link_conn_bytes(l, 1, conn, copy, len);
        open = drain(l, conn);
        free(copy);
    }
    (void)td_link_destroy(l);
    return 0;
}
