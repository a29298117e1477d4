/* The live page as it is served: one document that needs nothing else, under a policy that fits it. */
#include "router/rt_page.h"

#include <string.h>

#include "common/base/mem.h"
#include "tests/unit/check.h"

static void the_policy_allows_one_script_and_one_style_by_hash(void **state)
{
    (void)state;
    struct rt_page *p = NULL;
    assert_int_equal(rt_page_create(&p), TD_OK);
    const char *policy = rt_page_policy(p);
    assert_int_equal(strncmp(policy, "default-src 'none'; ", 20), 0);
    assert_non_null(strstr(policy, "script-src 'sha256-"));
    assert_non_null(strstr(policy, "style-src 'sha256-"));
    assert_non_null(strstr(policy, "frame-ancestors 'none'"));
    assert_null(strstr(policy, "unsafe"));
    assert_null(strchr(policy, '*'));
    assert_null(rt_page_destroy(p));
    assert_null(rt_page_destroy(NULL));
}

static void the_document_is_whole_and_asks_for_nothing_outside(void **state)
{
    (void)state;
    struct rt_page *p = NULL;
    size_t len = 0;
    assert_int_equal(rt_page_create(&p), TD_OK);
    const char *html = rt_page_html(p, &len);
    static const char *const never[] = {"https:", "//cdn",         "src=\"",  "@import",
                                        "url(",   "innerHTML",     "onclick", "eval(",
                                        "style=", "document.write"};
    assert_true(len > 10000 && len < 65536);
    assert_memory_equal(html, "<!doctype html>", 15);
    assert_memory_equal(html + len - 8, "</html>\n", 8);
    for (size_t i = 0; i < TD_COUNT(never); i++) {
        if (memmem(html, len, never[i], strlen(never[i])) != NULL) {
            fail_msg("the page holds %s", never[i]);
        }
    }
    for (size_t i = 0; i < len; i++) {
        assert_true((unsigned char)html[i] < 0x7f && html[i] != 0);
    }
    rt_page_destroy(p);
}

static void without_memory_there_is_no_page(void **state)
{
    (void)state;
    struct rt_page *p = NULL;
    td_mem_fail_nth(1);
    assert_int_equal(rt_page_create(&p), TD_ERR_NO_MEMORY);
    td_mem_fail_nth(0);
    assert_null(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_policy_allows_one_script_and_one_style_by_hash),
        cmocka_unit_test(the_document_is_whole_and_asks_for_nothing_outside),
        cmocka_unit_test(without_memory_there_is_no_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
