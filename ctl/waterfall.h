/* waterfall.h - a request's stages on one time axis: what explain draws as text and as SVG.
 *
 * What: from the record of /debug/request/ID to bars. Failed attempts are at their place in time. The stages of the last
 * attempt were measured as durations where they happened (hosts share no clock), so they are laid one after the other from
 * its placement on; the transfer lies backwards from its end, since it runs while prefill does.
 * Not: drawing. Thread: any. Bounds: CTL_BARS. Failure: absent, negative or absurd times count as 0.
 */
#ifndef CTL_WATERFALL_H
#define CTL_WATERFALL_H

#include <jansson.h>
#include <stdint.h>

#define CTL_BARS 32

enum ctl_bar_kind { CTL_BAR_WAIT, CTL_BAR_WORK, CTL_BAR_MOVE, CTL_BAR_LOST, CTL_BAR_KINDS };

struct ctl_bar {
    char name[32];
    enum ctl_bar_kind kind;
    int64_t from_us, us;
    char where[160]; /* the node, or the pair and the error of a failed attempt; "" */
};

struct ctl_waterfall {
    struct ctl_bar bars[CTL_BARS];
    uint32_t n;
    int64_t axis_us;  /* where the last bar, or the request, ends */
    int64_t first_us; /* first token; 0: none */
};

void ctl_waterfall_make(const json_t *record, struct ctl_waterfall *out);
/* A number of the record that is no time; 0 as above. */
int64_t ctl_waterfall_number(const json_t *record, const char *name);
/* The distance of marks on an axis that long: 1, 2 or 5 times a power of ten, at most `marks` of them. */
int64_t ctl_waterfall_step(int64_t axis_us, int marks);

#endif
