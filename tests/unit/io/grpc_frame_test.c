#include <string.h>

#include "common/io/grpc_frame.h"
#include "tests/unit/check.h"

/* Feeds all bytes in pieces; the number of whole messages, each appended to `out` with a '|'. */
static td_err feed(struct td_grpc_reader *r, const char *bytes, size_t len, size_t piece, char *out)
{
    size_t at = 0;
    out[0] = 0;
    while (at < len) {
        size_t n = piece < len - at ? piece : len - at, used = 0;
        bool complete = false;
        td_err err = td_grpc_reader_feed(r, (const uint8_t *)bytes + at, n, &used, &complete);
        if (err != TD_OK) {
            return err;
        }
        at += used;
        if (complete) {
            strncat(out, (const char *)r->message.data, r->message.len);
            strcat(out, "|");
        }
    }
    return TD_OK;
}

static void messages_come_out_whole_however_the_bytes_are_cut(void **state)
{
    (void)state;
    static const char bytes[] = "\0\0\0\0\3abc\0\0\0\0\0\0\0\0\0\2de";
    for (size_t piece = 1; piece < sizeof bytes; piece++) {
        char out[64];
        struct td_grpc_reader r;
        td_grpc_reader_init(&r, 16);
        assert_int_equal(feed(&r, bytes, sizeof bytes - 1, piece, out), TD_OK);
        assert_string_equal(out, "abc||de|");
        assert_true(td_grpc_reader_between(&r));
        td_grpc_reader_fini(&r);
    }
}

static void a_part_of_a_message_is_noticed_at_the_end(void **state)
{
    (void)state;
    char out[64];
    struct td_grpc_reader r;
    td_grpc_reader_init(&r, 16);
    assert_true(td_grpc_reader_between(&r));
    assert_int_equal(feed(&r, "\0\0\0\0\3ab", 7, 7, out), TD_OK);
    assert_string_equal(out, "");
    assert_false(td_grpc_reader_between(&r));
    td_grpc_reader_fini(&r);
}

static void the_prefix_alone_is_enough_to_refuse(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        td_err err;
    } rows[] = {{"\0\0\0\0\x11", TD_ERR_TOO_LARGE},
                {"\0\xff\xff\xff\xff", TD_ERR_TOO_LARGE},
                {"\1\0\0\0\1", TD_ERR_UNSUPPORTED},
                {"\2\0\0\0\1", TD_ERR_PROTOCOL}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char out[64];
        struct td_grpc_reader r;
        td_grpc_reader_init(&r, 16);
        assert_int_equal(feed(&r, rows[i].bytes, 5, 5, out), rows[i].err);
        assert_int_equal(r.message.cap, 0); /* nothing was kept for it */
        td_grpc_reader_fini(&r);
    }
}

static void a_message_of_the_largest_size_passes(void **state)
{
    (void)state;
    char out[64];
    struct td_grpc_reader r;
    td_grpc_reader_init(&r, 16);
    assert_int_equal(feed(&r,
                          "\0\0\0\0\x10"
                          "0123456789abcdef",
                          21, 21, out),
                     TD_OK);
    assert_string_equal(out, "0123456789abcdef|");
    td_grpc_reader_fini(&r);
}

static void a_prefix_is_what_a_reader_reads(void **state)
{
    (void)state;
    uint8_t prefix[TD_GRPC_PREFIX];
    td_grpc_prefix(0x01020304, prefix);
    assert_memory_equal(prefix, "\0\1\2\3\4", 5);
}

static void timeouts_have_digits_and_a_unit(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t us; /* -1: refused */
    } rows[] = {{"1H", 3600000000}, {"2M", 120000000}, {"3S", 3000000}, {"250m", 250000},
                {"7u", 7},          {"1500n", 1},      {"0S", 0},       {"99999999H", 604800000000},
                {"", -1},           {"S", -1},         {"1", -1},       {"123456789S", -1},
                {"1s", -1},         {"-1S", -1},       {"1 S", -1},     {"1SS", -1},
                {"+1S", -1},        {"1.5S", -1}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t us = -1;
        assert_int_equal(td_grpc_timeout_parse(rows[i].text, &us), rows[i].us >= 0);
        assert_int_equal(us, rows[i].us);
    }
}

static void a_status_text_is_percent_encoded_and_bounded(void **state)
{
    (void)state;
    char out[TD_GRPC_MAX_TEXT * 3 + 1];
    char longer[TD_GRPC_MAX_TEXT * 2];
    td_grpc_text_encode("100% \xc3\xa9\n~", out);
    assert_string_equal(out, "100%25 %C3%A9%0A~");
    memset(longer, '%', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    td_grpc_text_encode(longer, out);
    assert_int_equal(strlen(out), TD_GRPC_MAX_TEXT * 3);
}

static void content_types_of_other_protocols_are_not_grpc(void **state)
{
    (void)state;
    assert_true(td_grpc_is_content_type("application/grpc"));
    assert_true(td_grpc_is_content_type("application/grpc+proto"));
    assert_true(td_grpc_is_content_type("application/grpc;x=y"));
    assert_false(td_grpc_is_content_type(NULL));
    assert_false(td_grpc_is_content_type("application/json"));
    assert_false(td_grpc_is_content_type("application/grpc-web"));
    assert_false(td_grpc_is_content_type("application/grpc+json"));
}

static void every_error_has_the_status_that_clients_expect(void **state)
{
    (void)state;
    static const struct {
        td_err err;
        enum td_grpc_status status;
    } rows[] = {{TD_OK, TD_GRPC_OK},
                {TD_ERR_BAD_REQUEST, TD_GRPC_INVALID_ARGUMENT},
                {TD_ERR_CONTEXT_LENGTH, TD_GRPC_INVALID_ARGUMENT},
                {TD_ERR_UNSUPPORTED, TD_GRPC_UNIMPLEMENTED},
                {TD_ERR_UNAUTHORIZED, TD_GRPC_UNAUTHENTICATED},
                {TD_ERR_FORBIDDEN, TD_GRPC_PERMISSION_DENIED},
                {TD_ERR_MODEL_NOT_FOUND, TD_GRPC_NOT_FOUND},
                {TD_ERR_METHOD, TD_GRPC_UNIMPLEMENTED},
                {TD_ERR_TOO_LARGE, TD_GRPC_RESOURCE_EXHAUSTED},
                {TD_ERR_RATE_LIMITED, TD_GRPC_RESOURCE_EXHAUSTED},
                {TD_ERR_OVERLOADED, TD_GRPC_RESOURCE_EXHAUSTED},
                {TD_ERR_CANCELLED, TD_GRPC_CANCELLED},
                {TD_ERR_BUDGET, TD_GRPC_DEADLINE_EXCEEDED},
                {TD_ERR_NO_NODE, TD_GRPC_UNAVAILABLE},
                {TD_ERR_DRAINING, TD_GRPC_UNAVAILABLE},
                {TD_ERR_REPLAYS, TD_GRPC_UNAVAILABLE},
                {TD_ERR_POISON, TD_GRPC_ABORTED},
                {TD_ERR_INTERNAL, TD_GRPC_INTERNAL}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(td_grpc_status_of(rows[i].err), rows[i].status);
    }
#define NEVER_OK(name, value, code, http, retry, cls, text)                                        \
    assert_int_not_equal(td_grpc_status_of(TD_ERR_##name), TD_GRPC_OK);
    TD_ERR_TABLE(NEVER_OK)
#undef NEVER_OK
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_come_out_whole_however_the_bytes_are_cut),
        cmocka_unit_test(a_part_of_a_message_is_noticed_at_the_end),
        cmocka_unit_test(the_prefix_alone_is_enough_to_refuse),
        cmocka_unit_test(a_message_of_the_largest_size_passes),
        cmocka_unit_test(a_prefix_is_what_a_reader_reads),
        cmocka_unit_test(timeouts_have_digits_and_a_unit),
        cmocka_unit_test(a_status_text_is_percent_encoded_and_bounded),
        cmocka_unit_test(content_types_of_other_protocols_are_not_grpc),
        cmocka_unit_test(every_error_has_the_status_that_clients_expect),
    };
    return cmocka_run_group_tests_name("grpc_frame", tests, NULL, NULL);
}
