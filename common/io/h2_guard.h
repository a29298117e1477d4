/* h2_guard.h - how many frames of each useless kind a peer may send: what keeps floods of RST_STREAM, SETTINGS, PING,
 * CONTINUATION, PRIORITY, WINDOW_UPDATE, empty DATA and unknown frames from costing more than they are worth.
 *
 * Pure: one bucket for each class, filled by time, emptied by frames. Not: the limits that nghttp2 itself keeps (header
 * blocks, acknowledgements waiting). Owner: a connection. Thread: its. Failure: none; the caller ends the connection.
 */
#ifndef TD_IO_H2_GUARD_H
#define TD_IO_H2_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(NAME, frames at once, frames a second after that) */
#define TD_H2_CLASS_TABLE(X)                                                                       \
    X(SETTINGS, 32, 4)                                                                             \
    X(PING, 128, 16)                                                                               \
    X(RESET, 2048, 256)                                                                            \
    X(PRIORITY, 2048, 64)                                                                          \
    X(CONTINUATION, 256, 32)                                                                       \
    X(WINDOW, 32768, 16384)                                                                        \
    X(EMPTY_DATA, 2048, 256)                                                                       \
    X(OTHER, 64, 8)

enum td_h2_class {
#define TD_H2_CLASS_ENUM(name, burst, rate) TD_H2_##name,
    TD_H2_CLASS_TABLE(TD_H2_CLASS_ENUM)
#undef TD_H2_CLASS_ENUM
        TD_H2_CLASSES,
    TD_H2_FREE = TD_H2_CLASSES /* HEADERS and DATA with bytes: paid for by other limits */
};

struct td_h2_guard {
    double left[TD_H2_CLASSES];
    int64_t at_us[TD_H2_CLASSES];
};

void td_h2_guard_init(struct td_h2_guard *g, int64_t now_us);
/* The class of a frame by its header. */
enum td_h2_class td_h2_class_of(uint8_t type, uint8_t flags, size_t length);
/* False: too many of this class. */
bool td_h2_guard_take(struct td_h2_guard *g, int64_t now_us, enum td_h2_class class_of_frame);
/* A frame of this class is paid for by something else: one more may come. */
void td_h2_guard_give(struct td_h2_guard *g, enum td_h2_class class_of_frame);
const char *td_h2_class_name(enum td_h2_class c);

#endif
