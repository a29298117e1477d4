/* An event in each form. */
#include <string.h>

#include "tests/unit/check.h"
#include "tests/unit/ctl/capture.h"

#include "ctl/watch.h"

static void an_event_is_a_line_or_a_document(void **state)
{
    (void)state;
    const struct td_api_event e = {.seq = 3,
                                   .unix_us = 1767225600123456,
                                   .kind = "node.drain",
                                   .node = "decode-0",
                                   .id = "",
                                   .text = "upgrade\x1b[2J"};
    CAPTURE(line, out, assert_int_equal(ctl_watch_print(&e, CTL_TABLE, out), TD_OK));
    assert_string_equal(line, "2026-01-01T00:00:00.123Z  node.drain  decode-0  upgrade?[2J\n");
    CAPTURE(json, out, assert_int_equal(ctl_watch_print(&e, CTL_JSON, out), TD_OK));
    assert_string_equal(json,
                        "{\"seq\":3,\"unix_us\":1767225600123456,\"kind\":\"node.drain\","
                        "\"node\":\"decode-0\",\"id\":\"\",\"text\":\"upgrade\\u001B[2J\"}\n");
    CAPTURE(yaml, out, assert_int_equal(ctl_watch_print(&e, CTL_YAML, out), TD_OK));
    assert_int_equal(strncmp(yaml, "---\nseq: 3\n", 11), 0);
    free(line);
    free(json);
    free(yaml);
}

static void a_reader_that_has_gone_is_an_error(void **state)
{
    (void)state;
    const struct td_api_event e = {.kind = "node.up", .node = "", .id = "", .text = ""};
    FILE *full = fopen("/dev/full", "w");
    assert_non_null(full);
    assert_int_equal(ctl_watch_print(&e, CTL_TABLE, full), TD_ERR_IO);
    (void)fclose(full);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_event_is_a_line_or_a_document),
        cmocka_unit_test(a_reader_that_has_gone_is_an_error),
    };
    return cmocka_run_group_tests_name("watch", tests, NULL, NULL);
}
