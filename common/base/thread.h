/* thread.h - threads as capabilities, so that clang refuses a call from the wrong thread.
 *
 * Roles: td_loop (sockets, sessions, timers, scheduler, pool), td_engine (executes batches),
 * td_xfer (owns the UCX worker). A function marked TD_ON(td_loop) may be called only by code that
 * holds that role; a callback enters its role by td_assert_on(td_loop), which also checks at run
 * time that the calling thread registered itself with td_thread_enter(). Pure objects carry no
 * role: whoever drives them owns them.
 */
#ifndef TD_BASE_THREAD_H
#define TD_BASE_THREAD_H

#if defined(__clang__)
#define TD_TS(x) __attribute__((x))
#else
#define TD_TS(x)
#endif

struct TD_TS(capability("role")) td_role_cap {
    const char *name;
    int id;
};
extern struct td_role_cap td_loop;
extern struct td_role_cap td_engine_role;
extern struct td_role_cap td_xfer;

#define TD_ON(role) TD_TS(requires_capability(role))
#define TD_ANY      /* callable from any thread */

/* Registers the calling thread as `role`, gives it that name for the debugger. */
void td_thread_enter(const struct td_role_cap *role, const char *name);
/* Aborts when the calling thread registered itself as another role; unregistered threads (tests)
 * pass. */
void td_thread_check(const struct td_role_cap *role) TD_TS(assert_capability(*role));
#define td_assert_on(role) td_thread_check(&(role))

#endif
