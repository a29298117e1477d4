/* top_draw.h - the screen of `tandemctl top`, from two answers of a router's /live: a pure function.
 *
 * What: a summary, then nodes and transfers, as many lines as fit and no line wider than the screen; narrow screens leave
 * out columns, short ones rows, and say how many.
 * Not: the terminal (term.h). Thread: any. Failure: TD_ERR_PROTOCOL: not such an answer; TD_ERR_NO_MEMORY.
 */
#ifndef CTL_TOP_DRAW_H
#define CTL_TOP_DRAW_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "common/base/err.h"

#define CTL_TOP_MIN_COLUMNS 20
#define CTL_TOP_MAX_NODES   256

enum ctl_top_sort { CTL_TOP_BY_NAME, CTL_TOP_BY_LOAD, CTL_TOP_BY_KV, CTL_TOP_SORTS };
#define CTL_TOP_SORT_NAMES "name|load|kv"

struct ctl_top_screen {
    unsigned columns, rows; /* rows 0: as many as there are */
    bool screen;            /* control sequences: colours, ends of lines; else plain text */
    bool paused;
    enum ctl_top_sort sort;
    const char *trouble; /* what went wrong lately, or "" */
};

/* before: an earlier answer, for rates; NULL: none yet. */
td_err ctl_top_draw(const json_t *now, const json_t *before, const struct ctl_top_screen *s,
                    FILE *out) TD_MUST_CHECK;

#endif
