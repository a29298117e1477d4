#include "common/model/gguf.h"

#include <sys/stat.h>

#include "tests/unit/model/model_util.h"

#define OVERFLOWING UINT64_MAX

static const uint64_t dims_32[] = {32};
static const float zeros[64];

/* A small valid file: one value of each kind, three tensors. */
static void build_valid(struct td_gguf_build *b)
{
    static const struct td_str strs[] = {{"one", 3}, {"", 0}, {"three", 5}};
    static const int32_t ints[] = {1, -2, 3};
    static const int64_t i64 = -7;
    static const uint64_t u64 = (uint64_t)1 << 40;
    static const double f64 = 0.5;
    static const int8_t i8 = -3;
    static const uint64_t dims[] = {64, 2};
    static const uint8_t q[128 / 32 * 18];

    td_gguf_build_init(b);
    td_gguf_build_u32(b, "u32", 7);
    td_gguf_build_f32(b, "f32", 0.25f);
    td_gguf_build_bool(b, "yes", true);
    td_gguf_build_str(b, "str", "text");
    td_gguf_build_strs(b, "strs", strs, 3);
    td_gguf_build_i32s(b, "ints", ints, 3);
    td_gguf_build_raw(b, "i64", TD_GGUF_I64, &i64, 8);
    td_gguf_build_raw(b, "u64", TD_GGUF_U64, &u64, 8);
    td_gguf_build_raw(b, "f64", TD_GGUF_F64, &f64, 8);
    td_gguf_build_raw(b, "i8", TD_GGUF_I8, &i8, 1);
    td_gguf_build_u32(b, "general.alignment", 32);
    td_gguf_build_tensor(b, "z", TD_DTYPE_F32, 1, dims_32, zeros, 128);
    td_gguf_build_tensor(b, "a", TD_DTYPE_Q4_0, 2, dims, q, sizeof q);
    td_gguf_build_tensor(b, "m", TD_DTYPE_F32, 1, dims_32, zeros, 128);
}

static void finish(struct td_gguf_build *b, struct td_buf *out)
{
    td_buf_init(out, TD_GGUF_BUILD_MAX);
    assert_int_equal(td_gguf_build_finish(b, out), TD_OK);
    td_gguf_build_fini(b);
}

static void valid_file(struct td_buf *out)
{
    struct td_gguf_build b;

    build_valid(&b);
    finish(&b, out);
}

/* Opens bytes in a buffer that ends where they end; touches everything a successful open promises.
 */
static td_err open_exact(const void *data, size_t len, char *text, size_t cap)
{
    uint8_t *copy = exact_copy(data, len);
    struct td_gguf *g = NULL;
    td_err e = td_gguf_open_memory(copy, len, &g, text, cap);
    unsigned sum = 0;

    assert_true((g != NULL) == (e == TD_OK));
    for (size_t i = 0; g != NULL && i < td_gguf_n_tensors(g); i++) {
        const struct td_gguf_tensor *t = td_gguf_tensor_at(g, i);

        for (uint64_t k = 0; k < t->bytes; k += 16) {
            sum += ((const uint8_t *)t->data)[k];
        }
        sum += ((const uint8_t *)t->data)[t->bytes - 1];
    }
    assert_true(sum < UINT32_MAX);
    (void)td_gguf_close(g);
    free(copy);
    return e;
}

static void a_valid_file_reads_back(void **state)
{
    struct td_buf file;
    struct td_gguf *g = NULL;
    struct td_str s = {NULL, 0};
    struct td_str strs[3];
    int32_t ints[3];
    uint32_t u32 = 0;
    uint64_t u64 = 0;
    float f = 0;
    bool yes = false;

    (void)state;
    valid_file(&file);
    assert_int_equal(td_gguf_open_memory(file.data, file.len, &g, NULL, 0), TD_OK);
    assert_int_equal(td_gguf_version(g), 3);
    assert_int_equal(td_gguf_n_kv(g), 11);
    assert_int_equal(td_gguf_n_tensors(g), 3);
    assert_int_equal(td_gguf_get_u32(g, "u32", &u32), TD_OK);
    assert_int_equal(u32, 7);
    assert_int_equal(td_gguf_get_u64(g, "u64", &u64), TD_OK);
    assert_true(u64 == (uint64_t)1 << 40);
    assert_int_equal(td_gguf_get_f32(g, "f32", &f), TD_OK);
    assert_true(f == 0.25f);
    assert_int_equal(td_gguf_get_f32(g, "f64", &f), TD_OK);
    assert_true(f == 0.5f);
    assert_int_equal(td_gguf_get_f32(g, "i8", &f), TD_OK);
    assert_true(f == -3);
    assert_int_equal(td_gguf_get_bool(g, "yes", &yes), TD_OK);
    assert_true(yes);
    assert_int_equal(td_gguf_get_str(g, "str", &s), TD_OK);
    assert_true(td_str_eq(s, "text"));
    assert_int_equal(td_gguf_read_strings(g, "strs", strs, 3), TD_OK);
    assert_true(td_str_eq(strs[0], "one") && strs[1].len == 0 && td_str_eq(strs[2], "three"));
    assert_int_equal(td_gguf_read_i32(g, "ints", ints, 3), TD_OK);
    assert_int_equal(ints[1], -2);
    (void)td_gguf_close(g);
    td_buf_fini(&file);
}

static void tensors_are_found_by_name_and_listed_in_file_order(void **state)
{
    struct td_buf file;
    struct td_gguf *g = NULL;
    const struct td_gguf_tensor *a;

    (void)state;
    valid_file(&file);
    assert_int_equal(td_gguf_open_memory(file.data, file.len, &g, NULL, 0), TD_OK);
    assert_true(td_str_eq(td_gguf_tensor_at(g, 0)->name, "z"));
    assert_true(td_str_eq(td_gguf_tensor_at(g, 2)->name, "m"));
    a = td_gguf_tensor(g, "a");
    assert_ptr_equal(a, td_gguf_tensor_at(g, 1));
    assert_int_equal(a->bytes, 72);
    assert_int_equal(a->dims[0], 64);
    assert_int_equal(a->dims[1], 2);
    assert_int_equal(a->dims[2], 1);
    assert_ptr_equal(a->data, file.data + td_gguf_head_bytes(g) + 128);
    assert_null(td_gguf_tensor(g, "b"));
    assert_null(td_gguf_tensor(g, ""));
    (void)td_gguf_close(g);
    td_buf_fini(&file);
}

static void getters_refuse_other_kinds_and_leave_outputs_alone(void **state)
{
    struct td_buf file;
    struct td_gguf *g = NULL;
    struct td_str s = {"kept", 4};
    uint32_t u32 = 5;
    float f = 5;
    bool b = true;
    int32_t ints[4];
    struct td_str strs[4];

    (void)state;
    valid_file(&file);
    assert_int_equal(td_gguf_open_memory(file.data, file.len, &g, NULL, 0), TD_OK);
    assert_int_equal(td_gguf_get_u32(g, "none", &u32), TD_ERR_NOT_FOUND);
    assert_int_equal(td_gguf_get_u32(g, "i64", &u32), TD_ERR_FILE_FORMAT); /* negative */
    assert_int_equal(td_gguf_get_u32(g, "u64", &u32), TD_ERR_FILE_FORMAT); /* too large */
    assert_int_equal(td_gguf_get_u32(g, "yes", &u32), TD_ERR_FILE_FORMAT);
    assert_int_equal(td_gguf_get_u32(g, "f32", &u32), TD_ERR_FILE_FORMAT);
    assert_int_equal(td_gguf_get_u32(g, "strs", &u32), TD_ERR_FILE_FORMAT);
    assert_int_equal(td_gguf_get_f32(g, "str", &f), TD_ERR_FILE_FORMAT);
    assert_int_equal(td_gguf_get_bool(g, "u32", &b), TD_ERR_FILE_FORMAT);
    assert_int_equal(td_gguf_get_str(g, "u32", &s), TD_ERR_FILE_FORMAT);
    assert_int_equal(td_gguf_read_i32(g, "ints", ints, 4), TD_ERR_FILE_FORMAT); /* length */
    assert_int_equal(td_gguf_read_i32(g, "strs", ints, 3), TD_ERR_FILE_FORMAT);
    assert_int_equal(td_gguf_read_strings(g, "ints", strs, 3), TD_ERR_FILE_FORMAT);
    assert_int_equal(td_gguf_read_strings(g, "str", strs, 4), TD_ERR_FILE_FORMAT);
    assert_int_equal(u32, 5);
    assert_true(f == 5 && b && td_str_eq(s, "kept"));
    (void)td_gguf_close(g);
    td_buf_fini(&file);
}

static void every_truncation_of_a_small_file_is_refused(void **state)
{
    struct td_buf file;
    char text[TD_GGUF_ERR_TEXT];

    (void)state;
    valid_file(&file);
    for (size_t n = 0; n < file.len; n++) {
        text[0] = '\0';
        assert_int_equal(open_exact(file.data, n, text, sizeof text), TD_ERR_FILE_FORMAT);
        assert_true(text[0] != '\0');
    }
    assert_int_equal(open_exact(file.data, file.len, NULL, 0), TD_OK);
    td_buf_fini(&file);
}

static void truncations_of_a_tiny_model_are_refused(void **state)
{
    struct td_tiny_params p = td_tiny_defaults();
    struct td_buf file;

    (void)state;
    p.n_embd = 64;
    p.n_ffn = 64;
    p.type = "q8_0";
    make_tiny(&p, &file);
    for (size_t n = 0; n < file.len; n += 1 + n / 97) {
        assert_int_equal(open_exact(file.data, n, NULL, 0), TD_ERR_FILE_FORMAT);
    }
    assert_int_equal(open_exact(file.data, file.len - 1, NULL, 0), TD_ERR_FILE_FORMAT);
    assert_int_equal(open_exact(file.data, file.len, NULL, 0), TD_OK);
    td_buf_fini(&file);
}

static void no_changed_byte_of_the_head_is_read_out_of_bounds(void **state)
{
    static const uint8_t patterns[] = {0x01, 0x80, 0xff, 0x7f};
    struct td_buf file;

    (void)state;
    valid_file(&file);
    for (size_t i = 0; i < file.len - 328; i++) {
        for (size_t k = 0; k < sizeof patterns; k++) {
            file.data[i] ^= patterns[k];
            (void)open_exact(file.data, file.len, NULL, 0); /* either result is right */
            file.data[i] ^= patterns[k];
        }
    }
    td_buf_fini(&file);
}

/* ---- hostile files, by what they are ---- */

struct hostile {
    const char *why;
    void (*build)(struct td_gguf_build *b);
    td_err expect;
    const char *text; /* part of the reason */
};

static void version_1(struct td_gguf_build *b)
{
    b->version = 1;
}

static void version_4(struct td_gguf_build *b)
{
    b->version = 4;
}

static void big_endian(struct td_gguf_build *b)
{
    b->version = 0x03000000;
}

static void many_tensors(struct td_gguf_build *b)
{
    b->n_tensors = OVERFLOWING;
}

static void many_kv(struct td_gguf_build *b)
{
    b->n_kv = OVERFLOWING;
}

/* CVE-2024-21802 and its kin: counts that a small file cannot hold must not size an allocation. */
static void counts_beyond_the_file(struct td_gguf_build *b)
{
    b->n_kv = 60000;
    b->n_tensors = 60000;
}

static void long_string(struct td_gguf_build *b)
{
    td_gguf_build_raw(b, "s", TD_GGUF_STRING, &(uint64_t){OVERFLOWING}, 8);
}

static void string_of_2_gib(struct td_gguf_build *b)
{
    td_gguf_build_raw(b, "s", TD_GGUF_STRING, &(uint64_t){0x80000000u}, 8);
}

static void string_past_the_end(struct td_gguf_build *b)
{
    td_gguf_build_raw(b, "s", TD_GGUF_STRING, &(uint64_t){100000}, 8);
}

static void array_of(struct td_gguf_build *b, uint32_t elem, uint64_t n)
{
    uint8_t v[12];

    memcpy(v, &elem, 4);
    memcpy(v + 4, &n, 8);
    td_gguf_build_raw(b, "arr", TD_GGUF_ARRAY, v, sizeof v);
}

static void array_that_overflows(struct td_gguf_build *b)
{
    array_of(b, TD_GGUF_U64, (uint64_t)1 << 61);
}

static void array_past_the_end(struct td_gguf_build *b)
{
    array_of(b, TD_GGUF_U64, 1000000);
}

static void array_of_strings_past_the_end(struct td_gguf_build *b)
{
    array_of(b, TD_GGUF_STRING, 4000000);
}

static void array_of_arrays(struct td_gguf_build *b)
{
    array_of(b, TD_GGUF_ARRAY, 1);
}

static void array_of_nothing_known(struct td_gguf_build *b)
{
    array_of(b, 13, 1);
}

static void negative_type(struct td_gguf_build *b)
{
    td_gguf_build_raw(b, "k", UINT32_MAX, zeros, 8);
}

static void unknown_type(struct td_gguf_build *b)
{
    td_gguf_build_raw(b, "k", 13, zeros, 8);
}

static void boolean_of_two(struct td_gguf_build *b)
{
    td_gguf_build_raw(b, "k", TD_GGUF_BOOL, &(uint8_t){2}, 1);
}

static void same_key_twice(struct td_gguf_build *b)
{
    td_gguf_build_u32(b, "k", 1);
    td_gguf_build_u32(b, "j", 1);
    td_gguf_build_u32(b, "k", 1);
}

static void empty_key(struct td_gguf_build *b)
{
    td_gguf_build_u32(b, "", 1);
}

static void vocabulary_of_17_mib(struct td_gguf_build *b)
{
    static char piece[1024 * 1024];
    struct td_str strs[17];

    memset(piece, 'x', sizeof piece);
    for (size_t i = 0; i < TD_COUNT(strs); i++) {
        strs[i] = (struct td_str){piece, sizeof piece};
    }
    td_gguf_build_strs(b, "strs", strs, TD_COUNT(strs));
}

static void alignment_0(struct td_gguf_build *b)
{
    td_gguf_build_u32(b, "general.alignment", 0);
}

static void alignment_4(struct td_gguf_build *b)
{
    td_gguf_build_u32(b, "general.alignment", 4);
}

static void alignment_24(struct td_gguf_build *b)
{
    td_gguf_build_u32(b, "general.alignment", 24);
}

static void alignment_2_mib(struct td_gguf_build *b)
{
    td_gguf_build_u32(b, "general.alignment", 2 * 1024 * 1024);
}

static void alignment_of_another_kind(struct td_gguf_build *b)
{
    td_gguf_build_str(b, "general.alignment", "32");
}

static void dims_0(struct td_gguf_build *b)
{
    td_gguf_build_entry(b, "t", TD_DTYPE_F32, 0, dims_32, 0);
}

/* gguf-tools 25: a fifth dimension must not be written anywhere. */
static void dims_5(struct td_gguf_build *b)
{
    static const uint64_t dims[5] = {32, 1, 1, 1, 1};

    td_gguf_build_entry(b, "t", TD_DTYPE_F32, 5, dims, 0);
}

static void dims_many(struct td_gguf_build *b)
{
    td_gguf_build_entry(b, "t", TD_DTYPE_F32, 1, dims_32, 0);
    memset(b->tensors.data + 9, 0xff, 4);
}

static void tensor_of(struct td_gguf_build *b, uint32_t dtype, uint64_t d0, uint64_t d1,
                      uint64_t offset)
{
    uint64_t dims[2] = {d0, d1};

    td_gguf_build_entry(b, "t", dtype, 2, dims, offset);
    td_gguf_build_tensor(b, "end", TD_DTYPE_F32, 1, dims_32, zeros, 128);
}

static void dim_zero(struct td_gguf_build *b)
{
    tensor_of(b, TD_DTYPE_F32, 0, 4, 128);
}

/* CVE-2025-53630: sizes that wrap around to something small. */
static void dims_that_overflow(struct td_gguf_build *b)
{
    tensor_of(b, TD_DTYPE_F32, (uint64_t)1 << 33, (uint64_t)1 << 33, 128);
}

static void size_that_overflows(struct td_gguf_build *b)
{
    tensor_of(b, TD_DTYPE_F32, (uint64_t)1 << 62, 2, 128);
}

static void row_of_half_a_block(struct td_gguf_build *b)
{
    tensor_of(b, TD_DTYPE_Q4_0, 48, 2, 128);
}

static void removed_tensor_type(struct td_gguf_build *b)
{
    tensor_of(b, 4, 32, 1, 128);
}

static void tensor_type_of_tomorrow(struct td_gguf_build *b)
{
    tensor_of(b, 99, 32, 1, 128);
}

static void negative_tensor_type(struct td_gguf_build *b)
{
    tensor_of(b, UINT32_MAX, 32, 1, 128);
}

static void offset_unaligned(struct td_gguf_build *b)
{
    tensor_of(b, TD_DTYPE_F32, 1, 1, 16);
}

/* CVE-2026-7482: a tensor larger than the file would hand out the heap behind it. */
static void tensor_larger_than_the_file(struct td_gguf_build *b)
{
    tensor_of(b, TD_DTYPE_F32, 1024, 1024, 128);
}

static void offset_beyond_the_file(struct td_gguf_build *b)
{
    tensor_of(b, TD_DTYPE_F32, 32, 1, 1 << 20);
}

static void offset_that_wraps(struct td_gguf_build *b)
{
    tensor_of(b, TD_DTYPE_F32, 32, 1, OVERFLOWING - 31);
}

static void tensors_that_overlap(struct td_gguf_build *b)
{
    tensor_of(b, TD_DTYPE_F32, 16, 1, 0);
}

static void same_tensor_twice(struct td_gguf_build *b)
{
    td_gguf_build_tensor(b, "t", TD_DTYPE_F32, 1, dims_32, zeros, 128);
    td_gguf_build_tensor(b, "u", TD_DTYPE_F32, 1, dims_32, zeros, 128);
    td_gguf_build_tensor(b, "t", TD_DTYPE_F32, 1, dims_32, zeros, 128);
}

static void tensor_without_name(struct td_gguf_build *b)
{
    td_gguf_build_tensor(b, "", TD_DTYPE_F32, 1, dims_32, zeros, 128);
}

static void tensor_with_a_long_name(struct td_gguf_build *b)
{
    char name[TD_GGUF_MAX_NAME + 2];

    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    td_gguf_build_tensor(b, name, TD_DTYPE_F32, 1, dims_32, zeros, 128);
}

static const struct hostile hostile[] = {
    {"version 1", version_1, TD_ERR_FILE_UNSUPPORTED, "version 1"},
    {"version 4", version_4, TD_ERR_FILE_UNSUPPORTED, "version 4"},
    {"big endian", big_endian, TD_ERR_FILE_UNSUPPORTED, "big-endian"},
    {"2^64 tensors", many_tensors, TD_ERR_FILE_FORMAT, "at most"},
    {"2^64 metadata entries", many_kv, TD_ERR_FILE_FORMAT, "at most"},
    {"more entries than bytes", counts_beyond_the_file, TD_ERR_FILE_FORMAT, "too short"},
    {"string of 2^64 bytes", long_string, TD_ERR_FILE_FORMAT, "longer than"},
    {"string of 2^31 bytes", string_of_2_gib, TD_ERR_FILE_FORMAT, "longer than"},
    {"string past the end", string_past_the_end, TD_ERR_FILE_FORMAT, "file ends"},
    {"array whose size wraps", array_that_overflows, TD_ERR_FILE_FORMAT, "longer than"},
    {"array past the end", array_past_the_end, TD_ERR_FILE_FORMAT, "file ends"},
    {"strings past the end", array_of_strings_past_the_end, TD_ERR_FILE_FORMAT, "file ends"},
    {"array of arrays", array_of_arrays, TD_ERR_FILE_UNSUPPORTED, "arrays of arrays"},
    {"array of type 13", array_of_nothing_known, TD_ERR_FILE_FORMAT, "type 13"},
    {"negative metadata type", negative_type, TD_ERR_FILE_FORMAT, "does not exist"},
    {"metadata type 13", unknown_type, TD_ERR_FILE_FORMAT, "type 13"},
    {"boolean of 2", boolean_of_two, TD_ERR_FILE_FORMAT, "neither 0 nor 1"},
    {"duplicate key", same_key_twice, TD_ERR_FILE_FORMAT, "k occurs twice"},
    {"empty key", empty_key, TD_ERR_FILE_FORMAT, "key is empty"},
    {"17 MiB of vocabulary", vocabulary_of_17_mib, TD_ERR_FILE_FORMAT, "exceed"},
    {"alignment 0", alignment_0, TD_ERR_FILE_FORMAT, "power of two"},
    {"alignment 4", alignment_4, TD_ERR_FILE_FORMAT, "power of two"},
    {"alignment 24", alignment_24, TD_ERR_FILE_FORMAT, "power of two"},
    {"alignment 2 MiB", alignment_2_mib, TD_ERR_FILE_FORMAT, "power of two"},
    {"alignment as text", alignment_of_another_kind, TD_ERR_FILE_FORMAT, "not a 32-bit"},
    {"no dimensions", dims_0, TD_ERR_FILE_FORMAT, "0 dimensions"},
    {"five dimensions", dims_5, TD_ERR_FILE_FORMAT, "5 dimensions"},
    {"2^32 dimensions", dims_many, TD_ERR_FILE_FORMAT, "4294967295 dimensions"},
    {"dimension of zero", dim_zero, TD_ERR_FILE_FORMAT, "is zero"},
    {"dimensions that wrap", dims_that_overflow, TD_ERR_FILE_FORMAT, "overflows"},
    {"size that wraps", size_that_overflows, TD_ERR_FILE_FORMAT, "overflows"},
    {"half a block", row_of_half_a_block, TD_ERR_FILE_FORMAT, "block of 32"},
    {"removed tensor type", removed_tensor_type, TD_ERR_FILE_FORMAT, "type 4 does"},
    {"unknown tensor type", tensor_type_of_tomorrow, TD_ERR_FILE_FORMAT, "type 99"},
    {"negative tensor type", negative_tensor_type, TD_ERR_FILE_FORMAT, "does not exist"},
    {"unaligned tensor", offset_unaligned, TD_ERR_FILE_FORMAT, "not aligned"},
    {"tensor beyond the file", tensor_larger_than_the_file, TD_ERR_FILE_FORMAT, "past the end"},
    {"offset beyond the file", offset_beyond_the_file, TD_ERR_FILE_FORMAT, "past the end"},
    {"offset that wraps", offset_that_wraps, TD_ERR_FILE_FORMAT, "past the end"},
    {"overlap", tensors_that_overlap, TD_ERR_FILE_FORMAT, "overlap"},
    {"duplicate tensor", same_tensor_twice, TD_ERR_FILE_FORMAT, "t occurs twice"},
    {"tensor without name", tensor_without_name, TD_ERR_FILE_FORMAT, "name is empty"},
    {"long tensor name", tensor_with_a_long_name, TD_ERR_FILE_FORMAT, "longer than 128"},
};

static void hostile_files_are_refused_with_a_reason(void **state)
{
    (void)state;
    for (size_t i = 0; i < TD_COUNT(hostile); i++) {
        char text[TD_GGUF_ERR_TEXT] = "";
        struct td_gguf_build b;
        struct td_buf file;
        td_err e;

        td_gguf_build_init(&b);
        td_gguf_build_str(&b, "general.architecture", "llama");
        hostile[i].build(&b);
        finish(&b, &file);
        e = open_exact(file.data, file.len, text, sizeof text);
        if (e != hostile[i].expect || strstr(text, hostile[i].text) == NULL) {
            fail_msg("%s: %s, \"%s\"", hostile[i].why, td_err_code(e), text);
        }
        td_buf_fini(&file);
    }
}

static void limits_themselves_are_accepted(void **state)
{
    static char piece[TD_GGUF_MAX_STRING];
    struct td_str strs[16];
    char name[TD_GGUF_MAX_NAME + 1];
    struct td_gguf_build b;
    struct td_buf file;

    (void)state;
    memset(piece, 'x', sizeof piece);
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    for (size_t i = 0; i < TD_COUNT(strs); i++) {
        strs[i] = (struct td_str){piece, sizeof piece};
    }
    td_gguf_build_init(&b);
    b.version = 2;
    b.alignment = TD_GGUF_MAX_ALIGNMENT;
    td_gguf_build_u32(&b, "general.alignment", TD_GGUF_MAX_ALIGNMENT);
    td_gguf_build_strs(&b, "strs", strs, TD_COUNT(strs));
    td_gguf_build_tensor(&b, name, TD_DTYPE_F32, 4, (uint64_t[]){32, 1, 1, 1}, zeros, 128);
    finish(&b, &file);
    assert_int_equal(open_exact(file.data, file.len, NULL, 0), TD_OK);
    td_buf_fini(&file);
}

static void a_vocabulary_file_without_tensors_opens(void **state)
{
    struct td_gguf_build b;
    struct td_buf file;

    (void)state;
    td_gguf_build_init(&b);
    td_gguf_build_str(&b, "tokenizer.ggml.model", "gpt2");
    finish(&b, &file);
    assert_int_equal(open_exact(file.data, file.len, NULL, 0), TD_OK);
    td_buf_fini(&file);
}

static void paths_that_are_no_model_are_refused(void **state)
{
    char dir[] = "/tmp/td-gguf-XXXXXX";
    char path[64];
    char text[TD_GGUF_ERR_TEXT];
    struct td_gguf *g = NULL;
    FILE *f;

    (void)state;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(td_gguf_open(dir, &g, text, sizeof text), TD_ERR_FILE_FORMAT);
    (void)snprintf(path, sizeof path, "%s/file", dir);
    assert_int_equal(td_gguf_open(path, &g, text, sizeof text), TD_ERR_NO_FILE);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(td_gguf_open(path, &g, text, sizeof text), TD_ERR_FILE_FORMAT);
    assert_int_equal(unlink(path), 0);
    f = fopen(path, "wbe");
    assert_non_null(f);
    (void)fclose(f);
    assert_int_equal(td_gguf_open(path, &g, text, sizeof text), TD_ERR_FILE_FORMAT);
    assert_non_null(strstr(text, "empty"));
    assert_null(g);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

static void names_in_reasons_are_made_printable(void **state)
{
    struct td_gguf_build b;
    struct td_buf file;
    char text[TD_GGUF_ERR_TEXT];

    (void)state;
    td_gguf_build_init(&b);
    td_gguf_build_raw(&b, "bad\n\x1b key", TD_GGUF_BOOL, &(uint8_t){7}, 1);
    finish(&b, &file);
    assert_int_equal(open_exact(file.data, file.len, text, sizeof text), TD_ERR_FILE_FORMAT);
    assert_non_null(strstr(text, "bad???key"));
    td_buf_fini(&file);
}

static void each_failed_allocation_is_reported_and_leaks_nothing(void **state)
{
    struct td_buf file;
    struct td_gguf *g = NULL;
    unsigned n = 0;
    td_err e;

    (void)state;
    if (!TD_WITH_FAULTS) {
        skip();
    }
    valid_file(&file);
    do {
        td_mem_fail_nth(++n);
        e = td_gguf_open_memory(file.data, file.len, &g, NULL, 0);
        td_mem_fail_nth(0);
        assert_true(e == TD_OK || e == TD_ERR_NO_MEMORY);
        assert_true((g != NULL) == (e == TD_OK));
    } while (e != TD_OK);
    assert_true(n > 4);
    (void)td_gguf_close(g);
    td_buf_fini(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_valid_file_reads_back),
        cmocka_unit_test(tensors_are_found_by_name_and_listed_in_file_order),
        cmocka_unit_test(getters_refuse_other_kinds_and_leave_outputs_alone),
        cmocka_unit_test(every_truncation_of_a_small_file_is_refused),
        cmocka_unit_test(truncations_of_a_tiny_model_are_refused),
        cmocka_unit_test(no_changed_byte_of_the_head_is_read_out_of_bounds),
        cmocka_unit_test(hostile_files_are_refused_with_a_reason),
        cmocka_unit_test(limits_themselves_are_accepted),
        cmocka_unit_test(a_vocabulary_file_without_tensors_opens),
        cmocka_unit_test(paths_that_are_no_model_are_refused),
        cmocka_unit_test(names_in_reasons_are_made_printable),
        cmocka_unit_test(each_failed_allocation_is_reported_and_leaks_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
