/* What a drain asks for and when it is over. */
#include "ctl/drain.h"

#include <string.h>

#include "tests/unit/check.h"
#include "tests/unit/ctl/capture.h"

static void nodes_are_found_by_epoch_or_by_name(void **state)
{
    (void)state;
    json_t *doc = json_loads("{\"nodes\":[{\"name\":\"p0\",\"epoch\":\"aa\"},5,"
                             "{\"name\":\"p0\",\"epoch\":\"bb\"},{\"name\":\"d0\"}]}",
                             0, NULL);
    assert_string_equal(json_string_value(json_object_get(ctl_drain_find(doc, "aa"), "epoch")),
                        "aa");
    assert_string_equal(json_string_value(json_object_get(ctl_drain_find(doc, "p0"), "epoch")),
                        "bb");
    assert_non_null(ctl_drain_find(doc, "d0"));
    assert_null(ctl_drain_find(doc, "d1"));
    json_decref(doc);
    assert_null(ctl_drain_find(NULL, "x"));
}

static bool done(const char *node, bool undrain)
{
    json_t *n = json_loads(node, 0, NULL);
    bool yes = ctl_drain_done(n, undrain);
    json_decref(n);
    return yes;
}

static void a_drain_is_over_when_the_node_says_so(void **state)
{
    (void)state;
    assert_true(done("{\"draining\":true,\"drained\":true}", false));
    assert_false(done("{\"draining\":true,\"drained\":false}", false));
    assert_false(done("{}", false)); /* an older router: never by silence */
    assert_true(done("{\"ready\":true,\"draining\":false}", true));
    assert_false(done("{\"ready\":true,\"draining\":true}", true));
    assert_false(done("{\"ready\":false,\"draining\":false}", true));
    assert_false(done("{}", true));
}

static void check_said(const char *node, bool undrain, const char *want)
{
    json_t *n = json_loads(node, 0, NULL);
    CAPTURE(text, out, ctl_drain_say("p0", n, undrain, out));
    assert_string_equal(text, want);
    free(text);
    json_decref(n);
}

static void the_line_says_what_was_asked_and_how_far_it_is(void **state)
{
    (void)state;
    check_said("{\"draining\":true,\"drained\":true}", false,
               "p0 is drained: nothing runs there\n");
    check_said("{\"draining\":true,\"running\":2}", false, "p0 is draining: 2 requests left\n");
    check_said("{\"ready\":true,\"draining\":false}", true, "p0 is in service\n");
    /* The answer to --undrain tells of the node as it was when it was asked. */
    check_said("{\"draining\":true,\"drained\":true}", true, "p0 was asked to serve again\n");
    check_said("", true, "p0 has gone\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_are_found_by_epoch_or_by_name),
        cmocka_unit_test(a_drain_is_over_when_the_node_says_so),
        cmocka_unit_test(the_line_says_what_was_asked_and_how_far_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
