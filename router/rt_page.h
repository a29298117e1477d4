/* rt_page.h - the live page: one HTML document, in the program since it was built, and the policy it is served under.
 *
 * What: the bytes of live.html and a Content-Security-Policy that lets its one script and its one style run, by their
 * hashes, and fetch from where it came from; nothing else. Not: its figures (rt_admin.c).
 * Owner and thread: router shell, loop. Failure: of creation only: TD_ERR_NO_MEMORY; TD_ERR_INTERNAL when the document
 * has not exactly one script and one style (a test of this module's).
 */
#ifndef ROUTER_RT_PAGE_H
#define ROUTER_RT_PAGE_H

#include <stddef.h>

#include "common/base/err.h"

struct rt_page;
td_err rt_page_create(struct rt_page **out_page) TD_MUST_CHECK;
struct rt_page *rt_page_destroy(struct rt_page *p);
const void *rt_page_html(const struct rt_page *p, size_t *out_len);
const char *rt_page_policy(const struct rt_page *p);

#endif
