/* main.c - tandem-prefill: the node program with the prefill role as its default. */
#include "common/node/program.h"
#include "decode-node/dc_core.h"
#include "prefill-node/pf_core.h"
#include "router/rt_front.h"

int main(int argc, char **argv)
{
    static const struct td_node_program program = {
        .name = "tandem-prefill",
        .summary = "a prefill node (or, with --role, any other role)",
        .default_role = TD_ROLE_PREFILL,
        .prefill = &pf_role_ops,
        .decode = &dc_role_ops,
        .front = &rt_front_ops,
    };
    return td_node_program_main(&program, argc, argv);
}
