/* explain.h - `tandemctl explain REQUEST`: where the time of one finished request went.
 *
 * What: the stage times of /debug/request/<id> as a waterfall. Stages were measured as durations where they happened;
 * they are drawn one after the other, the transfer backwards from its end, since it runs while prefill does.
 * Takes the id as clients see it: "chatcmpl-" and "cmpl-" in front are dropped when no such request is known.
 * Thread: main. Failure: exit statuses of admin.h; CTL_FAILED when the router does not remember the request.
 */
#ifndef CTL_EXPLAIN_H
#define CTL_EXPLAIN_H

#include <jansson.h>

#include "ctl/command.h"
#include "ctl/output.h"

extern const struct td_program ctl_explain_program;
enum ctl_exit ctl_explain(const void *options, char *const *args);

/* TD_ERR_PROTOCOL: not the record of a request. */
td_err ctl_explain_print(const json_t *record, FILE *out) TD_MUST_CHECK;

#endif
