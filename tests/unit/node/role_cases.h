/* role_cases.h - what is true of every role's core, as tests that both roles run.
 *
 * A case says how to ask this role for work, how to send it the other role's, and what comes of it. Owner and thread: the
 * test's. */
#ifndef TD_TESTS_NODE_ROLE_CASES_H
#define TD_TESTS_NODE_ROLE_CASES_H

#include "tests/unit/check.h"
#include "tests/unit/node/rig.h"

#define ROLE_NODE 0u

struct role_case {
    const struct nd_role_ops *ops;
    enum td_role shown; /* in its state */
    bool local_prefill;
    uint32_t n_tokens; /* that this role makes of a request for 6 */
    struct td_wire_msg (*ask)(const struct rig *r, const struct td_wire_request *q);
    struct td_wire_msg (*other)(const struct rig *r, const struct td_wire_request *q);
};

/* A small engine, and parameters that fit it. */
struct td_engine_info role_engine(void);
struct nd_core_params role_params(const struct td_engine_info *e);

/* One node of this role, with so many blocks. */
struct rig *role_case_rig(const struct role_case *c, uint32_t n_blocks);
/* Asks for 6 tokens after a prompt of this length, and delivers. */
struct td_wire_request role_case_put(const struct role_case *c, struct rig *r, uint64_t counter,
                                     uint64_t router, uint32_t prompt);

/* Runs the shared tests and then the role's own, whose *state is the case. */
int role_cases_run(const char *name, const struct role_case *c, const struct CMUnitTest *own,
                   size_t n_own);

#endif
