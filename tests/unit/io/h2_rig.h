/* h2_rig.h - an HTTP/2 client of raw frames, for the tests of servers: it may say anything, right or wrong.
 *
 * Header blocks are written as plain literals and read by nghttp2's decoder. Owner and thread: the test's; the server's loop
 * is driven pass by pass while the client waits. Failure: cmocka assertions.
 */
#ifndef TD_TESTS_IO_H2_RIG_H
#define TD_TESTS_IO_H2_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "common/io/loop.h"
#include "tests/unit/check.h"

#define RIG_MAX_FRAME  65536
#define RIG_END_STREAM 0x1
#define RIG_END_HEAD   0x4
#define RIG_ACK        0x1

enum rig_frame_type {
    RIG_DATA = 0,
    RIG_HEADERS = 1,
    RIG_PRIORITY = 2,
    RIG_RST = 3,
    RIG_SETTINGS = 4,
    RIG_PING = 6,
    RIG_GOAWAY = 7,
    RIG_WINDOW = 8,
    RIG_CONTINUATION = 9
};

struct rig_frame {
    uint8_t type, flags;
    uint32_t stream, len;
    uint8_t payload[RIG_MAX_FRAME];
};

struct nghttp2_hd_inflater;
struct rig_conn {
    struct td_loop *loop;
    int fd;
    struct nghttp2_hd_inflater *inflater; /* owned */
    uint8_t in[1u << 20];
    size_t n_in;
    bool closed; /* by the server */
    /* of the last header block read */
    char headers[8192]; /* "name: value\n" each */
};

struct rig_conn *rig_dial(struct td_loop *loop, uint16_t port);
void rig_hang_up(struct rig_conn *c);
/* Preface and an empty SETTINGS. */
void rig_hello(struct rig_conn *c);
void rig_raw(struct rig_conn *c, const void *data, size_t len);
void rig_frame_out(struct rig_conn *c, uint8_t type, uint8_t flags, uint32_t stream,
                   const void *payload, size_t len);
/* One SETTINGS entry. */
void rig_setting(struct rig_conn *c, uint16_t id, uint32_t value);
/* Literal header fields: name, value, name, value, ..., NULL. Returns the length. */
size_t rig_block(uint8_t *out, size_t cap, const char *const *fields);
/* A POST to `path` with content-type application/grpc and more fields (or NULL). */
void rig_request(struct rig_conn *c, uint32_t stream, const char *path, const char *const *more,
                 uint8_t flags);
void rig_message(struct rig_conn *c, uint32_t stream, const void *data, size_t len, uint8_t flags);
/* The next frame, of any kind; false when the server closed first. */
bool rig_next(struct rig_conn *c, struct rig_frame *out);
/* The next frame of this type (others are dropped; header blocks are decoded all the same). */
bool rig_wait(struct rig_conn *c, enum rig_frame_type type, struct rig_frame *out);
/* Until the server closes; the code of its last GOAWAY, or -1 without one. */
int64_t rig_until_closed(struct rig_conn *c);
uint32_t rig_u32(const uint8_t *at);
/* Passes of the loop until cond() holds. */
void rig_until(struct td_loop *loop, bool (*cond)(void *arg), void *arg);
/* The value of a header of the last block; "" when absent. */
const char *rig_header(const struct rig_conn *c, const char *name);
/* Reads frames of a stream until it ends (END_STREAM or RST_STREAM): its bytes into `body`, returns how many; the last block
 * is the trailers. */
size_t rig_answer(struct rig_conn *c, uint32_t stream, uint8_t *body, size_t cap);

#endif
