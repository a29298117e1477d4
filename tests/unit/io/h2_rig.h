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

#define H2_MAX_FRAME  65536
#define H2_END_STREAM 0x1
#define H2_END_HEAD   0x4
#define H2_ACK        0x1

enum h2_frame_type {
    H2_DATA = 0,
    H2_HEADERS = 1,
    H2_PRIORITY = 2,
    H2_RST = 3,
    H2_SETTINGS = 4,
    H2_PING = 6,
    H2_GOAWAY = 7,
    H2_WINDOW = 8,
    H2_CONTINUATION = 9
};

struct h2_frame {
    uint8_t type, flags;
    uint32_t stream, len;
    uint8_t payload[H2_MAX_FRAME];
};

struct nghttp2_hd_inflater;
struct h2_conn {
    struct td_loop *loop;
    int fd;
    struct nghttp2_hd_inflater *inflater; /* owned */
    uint8_t in[1u << 20];
    size_t n_in;
    bool closed; /* by the server */
    /* of the last header block read */
    char headers[8192]; /* "name: value\n" each */
};

struct h2_conn *h2_dial(struct td_loop *loop, uint16_t port);
void h2_hang_up(struct h2_conn *c);
/* Preface and an empty SETTINGS. */
void h2_hello(struct h2_conn *c);
void h2_raw(struct h2_conn *c, const void *data, size_t len);
void h2_frame_out(struct h2_conn *c, uint8_t type, uint8_t flags, uint32_t stream,
                  const void *payload, size_t len);
/* One SETTINGS entry. */
void h2_setting(struct h2_conn *c, uint16_t id, uint32_t value);
/* Literal header fields: name, value, name, value, ..., NULL. Returns the length. */
size_t h2_block(uint8_t *out, size_t cap, const char *const *fields);
/* A POST to `path` with content-type application/grpc and more fields (or NULL). */
void h2_request(struct h2_conn *c, uint32_t stream, const char *path, const char *const *more,
                uint8_t flags);
void h2_message(struct h2_conn *c, uint32_t stream, const void *data, size_t len, uint8_t flags);
/* The next frame, of any kind; false when the server closed first. */
bool h2_next(struct h2_conn *c, struct h2_frame *out);
/* The next frame of this type (others are dropped; header blocks are decoded all the same). */
bool h2_wait(struct h2_conn *c, enum h2_frame_type type, struct h2_frame *out);
/* Until the server closes; the code of its last GOAWAY, or -1 without one. */
int64_t h2_until_closed(struct h2_conn *c);
uint32_t h2_u32(const uint8_t *at);
/* Passes of the loop until cond() holds. */
void h2_until(struct td_loop *loop, bool (*cond)(void *arg), void *arg);
/* The value of a header of the last block; "" when absent. */
const char *h2_header(const struct h2_conn *c, const char *name);
/* Reads frames of a stream until it ends (END_STREAM or RST_STREAM): its bytes into `body`, returns how many; the last block
 * is the trailers. */
size_t h2_answer(struct h2_conn *c, uint32_t stream, uint8_t *body, size_t cap);

#endif
