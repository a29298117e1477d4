/* rt_front.h - the router's shell as the API front of a node with --role both (common/node/program.h). */
#ifndef ROUTER_RT_FRONT_H
#define ROUTER_RT_FRONT_H

#include "common/node/program.h"

extern const struct td_front_ops rt_front_ops;

#endif
