/* nodes.h - the nodes that a router knows, asked by gRPC, as the JSON that its /nodes has.
 *
 * What: tandem.v1.Admin's ListNodes, Drain and Undrain. Not: what is shown of them (get.h, drain.h). Thread: main; blocks.
 * Bounds: an answer of CTL_ADMIN_MAX_BODY bytes.
 * Failure: exit statuses of call.h; CTL_FAILED also for an answer that is not these messages.
 */
#ifndef CTL_NODES_H
#define CTL_NODES_H

#include "ctl/admin.h"
#include "proto/api_client.h"

/* {"nodes": [...]}: a new reference. */
enum ctl_exit ctl_nodes_list(const struct ctl_admin *a, json_t **out_doc);
/* The node as it is after that: a new reference. */
enum ctl_exit ctl_nodes_drain(const struct ctl_admin *a, const struct td_api_drain *ask, bool undo,
                              json_t **out_node);
/* NULL when out of memory, or when a text is not UTF-8. */
json_t *ctl_nodes_json(const struct td_api_node *n);

#endif
