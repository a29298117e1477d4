/* rt_http_int.h - what the files of routes share: rt_http.c (tables, keys, the API's and the probes' routes), rt_admin.c
 * (what operators see and do). Not for others.
 */
#ifndef ROUTER_RT_HTTP_INT_H
#define ROUTER_RT_HTTP_INT_H

#include "router/rt_shell_int.h"

#define RT_BODY_MAX (8u << 20)

struct rt_call {
    struct rt_shell *s;
    struct td_http_exchange *x;
    const struct td_http_request *r;
    struct td_api_key *key;
    char id[TD_WIRE_MAX_NAME]; /* x-request-id of every answer */
};

/* rt_http.c */
void rt__refuse(struct rt_call *c, td_err err, const char *text, const char *param, double retry_s);
void rt__answer(struct rt_call *c, const char *type, const void *body, size_t len);
/* err: of filling the body. */
void rt__answer_json(struct rt_call *c, const struct td_buf *body, td_err err);

/* rt_admin.c: handlers of the admin port */
void rt__admin_nodes(struct rt_call *c);
void rt__admin_requests(struct rt_call *c);
void rt__admin_request(struct rt_call *c);
void rt__admin_live(struct rt_call *c);
void rt__admin_page(struct rt_call *c);
void rt__admin_drain(struct rt_call *c);
void rt__admin_probe(struct rt_call *c);

#endif
