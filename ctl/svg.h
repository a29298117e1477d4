/* svg.h - the waterfall of a request as one SVG document that stands alone: title, axis with units, a bar for each stage
 * with its time and place, a legend.
 *
 * What: text from servers is escaped; no script, no outside resource, colours that differ also without colour sight and a
 * dark scheme where the viewer asks for one.
 * Thread: any. Failure: TD_ERR_PROTOCOL: not the record of a finished request.
 */
#ifndef CTL_SVG_H
#define CTL_SVG_H

#include <jansson.h>
#include <stdio.h>

#include "common/base/err.h"

td_err ctl_svg_print(const json_t *record, FILE *out) TD_MUST_CHECK;

#endif
