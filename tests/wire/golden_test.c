/* golden_test.c - the committed encodings of tests/wire/golden against the code: they decode to the
 * samples, the samples encode to them, byte for byte. `golden_test --write DIR` makes the files
 * anew: only for a new message, never to make a change of an old one pass (proto/README.md). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "samples.h"

static const char *folder;

static struct td_buf bytes_of(const struct td_wire_msg *m)
{
    struct td_buf b;
    td_buf_init(&b, TD_WIRE_MAX_BYTES);
    assert_int_equal(td_wire_encode(m, &b), TD_OK);
    return b;
}

static struct td_buf bytes_of_node_info(const struct td_wire_node_info *i)
{
    struct td_buf b;
    td_buf_init(&b, 65536);
    assert_int_equal(td_wire_node_info_encode(i, &b), TD_OK);
    return b;
}

static struct td_buf bytes_of_router_info(const struct td_wire_router_info *i)
{
    struct td_buf b;
    td_buf_init(&b, 65536);
    assert_int_equal(td_wire_router_info_encode(i, &b), TD_OK);
    return b;
}

static struct td_buf read_golden(const char *name)
{
    char path[512];
    struct td_buf b;
    td_buf_init(&b, 1u << 20);
    (void)snprintf(path, sizeof path, "%s/%s.bin", folder, name);
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        fail_msg("cannot open %s", path);
    }
    int c;
    while ((c = fgetc(f)) != EOF) {
        uint8_t byte = (uint8_t)c;
        assert_int_equal(td_buf_append(&b, &byte, 1), TD_OK);
    }
    (void)fclose(f);
    return b;
}

static void expect_equal(const struct td_buf *a, const struct td_buf *b)
{
    assert_int_equal(a->len, b->len);
    assert_memory_equal(a->data, b->data, a->len);
}

static void samples_encode_to_the_golden_bytes(void **state)
{
    size_t n;
    const struct wire_sample *s = wire_samples(&n);
    (void)state;
    for (size_t i = 0; i < n; i++) {
        struct td_buf golden = read_golden(s[i].name), ours = bytes_of(&s[i].msg);
        print_message("# %s: %zu bytes\n", s[i].name, golden.len);
        expect_equal(&ours, &golden);
        td_buf_fini(&golden);
        td_buf_fini(&ours);
    }
}

/* What was decoded says everything that the bytes said, or encoding it again would differ. */
static void golden_bytes_decode_and_encode_to_themselves(void **state)
{
    size_t n;
    const struct wire_sample *s = wire_samples(&n);
    struct td_arena *arena = td_arena_create(1u << 22);
    (void)state;
    for (size_t i = 0; i < n; i++) {
        struct td_buf golden = read_golden(s[i].name);
        struct td_wire_msg m;
        td_arena_reset(arena);
        assert_int_equal(td_wire_decode(golden.data, golden.len, arena, &m), TD_OK);
        assert_int_equal(m.type, s[i].msg.type);
        const struct td_work_id *got = td_wire_id(&m), *want = td_wire_id(&s[i].msg);
        assert_true((got == NULL) == (want == NULL));
        assert_true(got == NULL || td_work_id_eq(got, want));
        struct td_buf again = bytes_of(&m);
        expect_equal(&again, &golden);
        td_buf_fini(&again);
        td_buf_fini(&golden);
    }
    (void)td_arena_destroy(arena);
}

static void identities_match_their_golden_bytes_both_ways(void **state)
{
    struct td_arena *arena = td_arena_create(1u << 20);
    struct td_wire_node_info node;
    struct td_wire_router_info router;
    (void)state;
    struct td_buf golden = read_golden("node_info"),
                  ours = bytes_of_node_info(wire_sample_node_info());
    expect_equal(&ours, &golden);
    assert_int_equal(td_wire_node_info_decode(golden.data, golden.len, arena, &node), TD_OK);
    assert_string_equal(node.numerics, "cpu-int8-v1");
    assert_int_equal(node.ranks[1].first_head, 2);
    struct td_buf again = bytes_of_node_info(&node);
    expect_equal(&again, &golden);
    td_buf_fini(&golden);
    td_buf_fini(&ours);
    td_buf_fini(&again);
    golden = read_golden("router_info");
    ours = bytes_of_router_info(wire_sample_router_info());
    expect_equal(&ours, &golden);
    assert_int_equal(td_wire_router_info_decode(golden.data, golden.len, arena, &router), TD_OK);
    again = bytes_of_router_info(&router);
    expect_equal(&again, &golden);
    td_buf_fini(&golden);
    td_buf_fini(&ours);
    td_buf_fini(&again);
    (void)td_arena_destroy(arena);
}

/* Written by protoc from future.txt, with fields and a value that this version does not know. */
static void a_message_of_a_newer_version_decodes_without_its_new_fields(void **state)
{
    struct td_arena *arena = td_arena_create(1u << 20);
    struct td_wire_msg m;
    (void)state;
    struct td_buf golden = read_golden("newer_end");
    assert_int_equal(td_wire_decode(golden.data, golden.len, arena, &m), TD_OK);
    assert_int_equal(m.type, TD_WIRE_END);
    assert_int_equal(m.end.id.counter, 77);
    assert_int_equal(m.end.err, TD_ERR_INTERNAL); /* a code that this version does not have */
    td_buf_fini(&golden);
    golden = read_golden("newer_type");
    assert_int_equal(td_wire_decode(golden.data, golden.len, arena, &m), TD_OK);
    assert_int_equal(m.type, TD_WIRE_NONE);
    td_buf_fini(&golden);
    golden = read_golden("newer_requires");
    assert_int_equal(td_wire_decode(golden.data, golden.len, arena, &m), TD_ERR_UNKNOWN_REQUIRES);
    assert_int_equal(m.type, TD_WIRE_RESERVE);
    assert_int_equal(m.reserve.r.id.counter, 77); /* enough to refuse it by name */
    td_buf_fini(&golden);
    (void)td_arena_destroy(arena);
}

static void write_file(const char *name, struct td_buf b)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s.bin", folder, name);
    FILE *f = fopen(path, "wb");
    if (f == NULL || fwrite(b.data, 1, b.len, f) != b.len || fclose(f) != 0) {
        perror(path);
        exit(1);
    }
    td_buf_fini(&b);
}

static int write_all(void)
{
    size_t n;
    const struct wire_sample *s = wire_samples(&n);
    for (size_t i = 0; i < n; i++) {
        write_file(s[i].name, bytes_of(&s[i].msg));
    }
    write_file("node_info", bytes_of_node_info(wire_sample_node_info()));
    write_file("router_info", bytes_of_router_info(wire_sample_router_info()));
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_encode_to_the_golden_bytes),
        cmocka_unit_test(golden_bytes_decode_and_encode_to_themselves),
        cmocka_unit_test(identities_match_their_golden_bytes_both_ways),
        cmocka_unit_test(a_message_of_a_newer_version_decodes_without_its_new_fields),
    };
    if (argc == 3 && strcmp(argv[1], "--write") == 0) {
        folder = argv[2];
        return write_all();
    }
    if (argc != 2) {
        (void)fprintf(stderr, "usage: %s [--write] FOLDER\n", argv[0]);
        return 2;
    }
    folder = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
