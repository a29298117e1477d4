/* explain.h - `tandemctl explain REQUEST`: where the time of a request went, and why it ran where it ran.
 *
 * What: the record of /debug/request/<id>: its stages as a waterfall (waterfall.h) in text and, with --svg, as SVG
 * (svg.h); each attempt's placement with the pairs it was weighed against and why they lost. A running request shows its
 * placement so far. Takes the id as clients see it: "chatcmpl-" and "cmpl-" in front are dropped when no such request is
 * known. Thread: main. Failure: exit statuses of admin.h; CTL_FAILED when the router does not remember the request.
 */
#ifndef CTL_EXPLAIN_H
#define CTL_EXPLAIN_H

#include <jansson.h>

#include "ctl/admin.h"
#include "ctl/command.h"
#include "ctl/output.h"

extern const struct td_program ctl_explain_program;
enum ctl_exit ctl_explain(const void *options, char *const *args);

/* The record of this id, running or finished; a new reference. CTL_USAGE: no id at all; CTL_FAILED, said: unknown. */
enum ctl_exit ctl_explain_find(const struct ctl_admin *a, const char *id, json_t **out_record);
/* TD_ERR_PROTOCOL: not the record of a request. */
td_err ctl_explain_print(const json_t *record, bool wide, FILE *out) TD_MUST_CHECK;

#endif
