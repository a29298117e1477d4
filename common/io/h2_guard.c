#include "common/io/h2_guard.h"

/* Frame types and the one flag of RFC 9113 that matter here. */
#define FRAME_DATA          0x0
#define FRAME_HEADERS       0x1
#define FRAME_PRIORITY      0x2
#define FRAME_RST_STREAM    0x3
#define FRAME_SETTINGS      0x4
#define FRAME_PING          0x6
#define FRAME_WINDOW_UPDATE 0x8
#define FRAME_CONTINUATION  0x9
#define FLAG_END_STREAM     0x1

static const struct {
    const char *name;
    double burst, rate;
} classes[TD_H2_CLASSES] = {
#define CLASS_ROW(name, burst, rate) {#name, burst, rate},
    TD_H2_CLASS_TABLE(CLASS_ROW)
#undef CLASS_ROW
};

void td_h2_guard_init(struct td_h2_guard *g, int64_t now_us)
{
    for (int i = 0; i < TD_H2_CLASSES; i++) {
        g->left[i] = classes[i].burst;
        g->at_us[i] = now_us;
    }
}

enum td_h2_class td_h2_class_of(uint8_t type, uint8_t flags, size_t length)
{
    switch (type) {
    case FRAME_DATA:
        return length > 0 || (flags & FLAG_END_STREAM) != 0 ? TD_H2_FREE : TD_H2_EMPTY_DATA;
    case FRAME_HEADERS:
        return TD_H2_FREE;
    case FRAME_PRIORITY:
        return TD_H2_PRIORITY;
    case FRAME_RST_STREAM:
        return TD_H2_RESET;
    case FRAME_SETTINGS:
        return TD_H2_SETTINGS;
    case FRAME_PING:
        return TD_H2_PING;
    case FRAME_WINDOW_UPDATE:
        return TD_H2_WINDOW;
    case FRAME_CONTINUATION:
        return TD_H2_CONTINUATION;
    default:
        return TD_H2_OTHER;
    }
}

bool td_h2_guard_take(struct td_h2_guard *g, int64_t now_us, enum td_h2_class c)
{
    if (c >= TD_H2_CLASSES) {
        return true;
    }
    double filled = g->left[c] + (double)(now_us - g->at_us[c]) * 1e-6 * classes[c].rate;
    g->left[c] = filled < classes[c].burst ? filled : classes[c].burst;
    g->at_us[c] = now_us;
    if (g->left[c] < 1) {
        return false;
    }
    g->left[c] -= 1;
    return true;
}

void td_h2_guard_give(struct td_h2_guard *g, enum td_h2_class c)
{
    if (c < TD_H2_CLASSES && g->left[c] < classes[c].burst) {
        g->left[c] += 1;
    }
}

const char *td_h2_class_name(enum td_h2_class c)
{
    return c < TD_H2_CLASSES ? classes[c].name : "FREE";
}
