/* record.h - what a router knows of one request, asked by gRPC, as the JSON that its /debug/request has.
 *
 * What: tandem.v1.Admin's Explain: a finished request with its stages, or a running one with its phase; its attempts, each with the
 * pairs that it was weighed against. Not: its picture (waterfall.h). Thread: main; blocks.
 * Bounds: an answer of CTL_ADMIN_MAX_BODY bytes.
 * Failure: exit statuses of call.h; CTL_FAILED also for an answer that is not this message.
 */
#ifndef CTL_RECORD_H
#define CTL_RECORD_H

#include "ctl/admin.h"
#include "proto/api_client.h"

/* *out_record: a new reference; NULL with CTL_OK: the router knows no such request. */
enum ctl_exit ctl_record_ask(const struct ctl_admin *a, const char *id, json_t **out_record);
/* NULL when out of memory, or when a text is not UTF-8. */
json_t *ctl_record_json(const struct td_api_explain *e, const struct td_api_try *tries, uint32_t n);

#endif
