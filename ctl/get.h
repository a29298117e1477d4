/* get.h - `tandemctl get nodes`, `get requests` and `get transfers`: what a router knows, as a table, JSON or YAML.
 *
 * What: tables of /nodes, /requests and /live; with json and yaml the router's own document (requests cut to --limit). --watch
 * asks again and again. A field that the router does not send shows as "-".
 * Thread: main. Failure: exit statuses of admin.h.
 */
#ifndef CTL_GET_H
#define CTL_GET_H

#include <stdio.h>

#include <jansson.h>

#include "ctl/command.h"
#include "ctl/output.h"

extern const struct td_program ctl_get_nodes_program, ctl_get_requests_program,
    ctl_get_transfers_program;
enum ctl_exit ctl_get_nodes(const void *options, char *const *args);
enum ctl_exit ctl_get_requests(const void *options, char *const *args);
enum ctl_exit ctl_get_transfers(const void *options, char *const *args);

/* One document in any format. TD_ERR_PROTOCOL: not the shape that a router sends. */
td_err ctl_get_print_nodes(const json_t *doc, enum ctl_format format, FILE *out) TD_MUST_CHECK;
td_err ctl_get_print_requests(json_t *doc, uint32_t limit, enum ctl_format format,
                              FILE *out) TD_MUST_CHECK;

td_err ctl_get_print_transfers(json_t *doc, enum ctl_format format, FILE *out) TD_MUST_CHECK;

#endif
