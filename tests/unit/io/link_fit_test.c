#include "common/io/link_fit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/io/link_session.h"

static struct td_wire_router_info router(void)
{
    return (struct td_wire_router_info){.epoch = 1,
                                        .name = "r0",
                                        .version = "0.1.0",
                                        .version_min = 1,
                                        .version_max = 2,
                                        .model_id = {0xaa},
                                        .tokenizer_hash = {0xbb},
                                        .template_hash = {0xcc}};
}

static struct td_wire_node_info node(void)
{
    return (struct td_wire_node_info){.epoch = 2,
                                      .name = "n0",
                                      .version = "0.1.0",
                                      .model_name = "m",
                                      .numerics = "cpu-int8",
                                      .admin_address = "",
                                      .role = TD_ROLE_DECODE,
                                      .version_min = 2,
                                      .version_max = 3,
                                      .model_id = {0xaa},
                                      .tokenizer_hash = {0xbb},
                                      .template_hash = {0xcc},
                                      .layout = {.id = 7},
                                      .numerics_id = 9};
}

static void equal_identities_and_overlapping_versions_fit(void **state)
{
    struct td_wire_router_info r = router();
    struct td_wire_node_info n = node();
    struct td_link_expect any = {0}, both = {.layout_id = 7, .numerics_id = 9};
    char text[TD_LINK_TEXT] = "";
    (void)state;
    assert_int_equal(td_link_fit_node(&r, &n, &any, text, sizeof text), TD_OK);
    assert_int_equal(td_link_fit_node(&r, &n, &both, text, sizeof text), TD_OK);
    assert_int_equal(td_link_fit_router(&n, &r, text, sizeof text), TD_OK);
    assert_string_equal(text, "");
}

static void each_difference_is_refused_with_both_values(void **state)
{
    static const struct {
        td_err err;
        const char *words[3];
    } want[] = {
        {TD_ERR_PEER_VERSION, {"wire version", "1 to 1", "2 to 3"}},
        {TD_ERR_PEER_MODEL, {"model", "ee0000000000", "aa0000000000"}},
        {TD_ERR_PEER_MODEL, {"tokenizer", "ee0000000000", "bb0000000000"}},
        {TD_ERR_PEER_MODEL, {"chat template", "ee0000000000", "cc0000000000"}},
        {TD_ERR_PEER_MODEL, {"KV layout", "0000000000000063", "0000000000000007"}},
        {TD_ERR_PEER_MODEL, {"numerics", "0000000000000063", "cpu-int8"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct td_wire_router_info r = router();
        struct td_wire_node_info n = node();
        struct td_link_expect expect = {.layout_id = i == 4 ? 0x63 : 0,
                                        .numerics_id = i == 5 ? 0x63 : 0};
        char text[TD_LINK_TEXT] = "";
        r.version_max = i == 0 ? 1 : 2;
        r.model_id[0] = i == 1 ? 0xee : 0xaa;
        r.tokenizer_hash[0] = i == 2 ? 0xee : 0xbb;
        r.template_hash[0] = i == 3 ? 0xee : 0xcc;
        assert_int_equal(td_link_fit_node(&r, &n, &expect, text, sizeof text), want[i].err);
        for (int w = 0; w < 3; w++) {
            assert_non_null(strstr(text, want[i].words[w]));
        }
        assert_int_equal(td_link_fit_router(&n, &r, text, sizeof text),
                         i < 4 ? want[i].err : TD_OK);
    }
}

static void unreadable_information_is_refused(void **state)
{
    struct td_wire_router_info r = router();
    struct td_wire_node_info n = node();
    struct td_arena *arena = td_arena_create(1u << 20);
    struct td_link_fit_at_router at_router = {.us = &r, .arena = arena};
    struct td_link_fit_at_node at_node = {.us = &n, .arena = arena};
    char text[TD_LINK_TEXT] = "";
    const uint8_t garbage[] = {0xff, 0xff, 0xff};
    struct td_buf info;
    (void)state;
    assert_int_equal(td_link_check_node(&at_router, 2, garbage, sizeof garbage, text, sizeof text),
                     TD_ERR_PROTOCOL);
    assert_int_equal(td_link_check_router(&at_node, 1, garbage, sizeof garbage, text, sizeof text),
                     TD_ERR_PROTOCOL);
    td_buf_init(&info, 65536);
    assert_int_equal(td_wire_node_info_encode(&n, &info), TD_OK);
    assert_int_equal(td_link_check_node(&at_router, 2, info.data, info.len, text, sizeof text),
                     TD_OK);
    /* What it says must be about the process that shook hands. */
    assert_int_equal(td_link_check_node(&at_router, 3, info.data, info.len, text, sizeof text),
                     TD_ERR_PROTOCOL);
    td_buf_clear(&info);
    assert_int_equal(td_wire_router_info_encode(&r, &info), TD_OK);
    assert_int_equal(td_link_check_router(&at_node, 1, info.data, info.len, text, sizeof text),
                     TD_OK);
    td_buf_fini(&info);
    (void)td_arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_identities_and_overlapping_versions_fit),
        cmocka_unit_test(each_difference_is_refused_with_both_values),
        cmocka_unit_test(unreadable_information_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
