/* describe.h - `tandemctl describe node NAME` and `describe request ID`: everything a router knows of one.
 *
 * What: lines "Name: value" in sections; with json and yaml the router's own document. A field that the router does not
 * send is left out. Not: the waterfall (explain.h).
 * Thread: main. Failure: exit statuses of admin.h; CTL_FAILED: no such node or request.
 */
#ifndef CTL_DESCRIBE_H
#define CTL_DESCRIBE_H

#include <stdio.h>

#include <jansson.h>

#include "ctl/command.h"
#include "ctl/output.h"

extern const struct td_program ctl_describe_node_program, ctl_describe_request_program;
enum ctl_exit ctl_describe_node(const void *options, char *const *args);
enum ctl_exit ctl_describe_request(const void *options, char *const *args);

/* A row of /live's transfers as cells. */
#define CTL_TRANSFER_COLUMNS 8
extern const struct ctl_column ctl_transfer_columns[CTL_TRANSFER_COLUMNS];
void ctl_transfer_row(struct ctl_table *t, const json_t *row);
/* node: of /nodes; live: /live with the transfers, or NULL. TD_ERR_PROTOCOL: no node. */
td_err ctl_describe_print_node(const json_t *node, const json_t *live, FILE *out) TD_MUST_CHECK;
td_err ctl_describe_print_request(const json_t *record, FILE *out) TD_MUST_CHECK;

#endif
