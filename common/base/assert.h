/* assert.h - assertions that stay on.
 *
 * TD_REQUIRE: the caller broke the contract of this function. TD_INSIST: this module broke its own
 * invariant. TD_DASSERT: hot paths, debug builds only. Peer, user and file input is never asserted:
 * it is rejected. Failure: logs file, line and expression, then aborts (the only abort outside
 * main()).
 */
#ifndef TD_BASE_ASSERT_H
#define TD_BASE_ASSERT_H

_Noreturn void td_assert_fail(const char *kind, const char *expr, const char *file, int line);

#define TD_REQUIRE(expr) ((expr) ? (void)0 : td_assert_fail("require", #expr, __FILE__, __LINE__))
#define TD_INSIST(expr)  ((expr) ? (void)0 : td_assert_fail("insist", #expr, __FILE__, __LINE__))
#ifdef TD_DEBUG
#define TD_DASSERT(expr) TD_INSIST(expr)
#else
#define TD_DASSERT(expr) ((void)0)
#endif

#endif
