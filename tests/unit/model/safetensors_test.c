/* One safetensors file: what the format demands, and files that lie. */
#include "common/model/safetensors.h"

#include "tests/unit/model/hf_util.h"

static char text[TD_GGUF_ERR_TEXT];
static const struct td_why why = {text, sizeof text};

/* A file of this header, padded as writers do so that data are aligned, and of this many bytes of
 * data; free() it. */
static uint8_t *file_of(const char *header, size_t data, size_t *out_len)
{
    size_t n = (strlen(header) + 7) / 8 * 8;
    uint8_t *f = calloc(1, 8 + n + data);

    assert_non_null(f);
    for (int i = 0; i < 8; i++) {
        f[i] = (uint8_t)((uint64_t)n >> (8 * i));
    }
    memset(f + 8, ' ', n);
    memcpy(f + 8, header, strlen(header));
    for (size_t i = 0; i < data; i++) {
        f[8 + n + i] = (uint8_t)i;
    }
    *out_len = 8 + n + data;
    return f;
}

/* Opens an exact copy, so that a sanitizer sees a byte too many. */
static td_err open_file(const char *header, size_t data, struct td_safetensors **out,
                        uint8_t **out_file)
{
    size_t n;

    *out_file = file_of(header, data, &n);
    text[0] = '\0';
    return td_safetensors_open_memory(*out_file, n, out, &why);
}

#define TENSOR(name, dtype, shape, from, to)                                                       \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #from "," #to   \
    "]}"

#define VALID                                                                                      \
    "{\"__metadata__\":{\"format\":\"pt\"}," TENSOR("b", "F32", "[2,3]", 8, 32) "," TENSOR(        \
        "a", "BF16", "[4]", 0, 8) "," TENSOR("s", "F16", "[]", 32, 34) "}       "

static void a_file_gives_its_tensors_by_place_and_by_name(void **state)
{
    struct td_safetensors *st = NULL;
    uint8_t *file;
    const struct td_gguf_tensor *t;

    (void)state;
    assert_int_equal(open_file(VALID, 34, &st, &file), TD_OK);
    assert_int_equal(td_safetensors_n(st), 3);
    assert_memory_equal(td_safetensors_at(st, 0)->name.data, "a", 1);
    t = td_safetensors_find(st, (struct td_str){"b", 1});
    assert_non_null(t);
    assert_int_equal(t->dtype, TD_DTYPE_F32);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dims[0], 3); /* the fastest first */
    assert_int_equal(t->dims[1], 2);
    assert_int_equal(t->bytes, 24);
    assert_int_equal(*(const uint8_t *)t->data, 8);
    assert_int_equal(td_safetensors_find(st, (struct td_str){"s", 1})->n_dims, 0);
    assert_null(td_safetensors_find(st, (struct td_str){"c", 1}));
    assert_true(td_safetensors_file_bytes(st) > strlen(VALID) + 34);
    (void)td_safetensors_close(st);
    free(file);
}

static const struct {
    const char *says, *header;
    size_t data;
    td_err expect;
} refused[] = {
    {"does not begin with {", "[]", 0, TD_ERR_FILE_FORMAT},
    {"does not begin with {", " {}", 0, TD_ERR_FILE_FORMAT},
    {"invalid JSON", "{\"a\":", 0, TD_ERR_FILE_FORMAT},
    {"deeper", "{\"a\":{\"b\":{\"c\":{\"d\":{}}}}}", 0, TD_ERR_FILE_FORMAT},
    {"uplicate", "{" TENSOR("a", "F32", "[1]", 0, 4) "," TENSOR("a", "F32", "[1]", 4, 8) "}", 8,
     TD_ERR_FILE_FORMAT},
    {"described by", "{\"a\":1}", 0, TD_ERR_FILE_FORMAT},
    {"described by", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, TD_ERR_FILE_FORMAT},
    {"has no dtype", "{\"a\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
     TD_ERR_FILE_FORMAT},
    {"type F8_E4M3", "{" TENSOR("a", "F8_E4M3", "[4]", 0, 4) "}", 4, TD_ERR_FILE_UNSUPPORTED},
    {"type Q4_0", "{" TENSOR("a", "Q4_0", "[4]", 0, 4) "}", 4, TD_ERR_FILE_UNSUPPORTED},
    {"has no shape", "{\"a\":{\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[0,4]}}", 4,
     TD_ERR_FILE_FORMAT},
    {"impossible shape", "{" TENSOR("a", "F32", "[-1]", 0, 4) "}", 4, TD_ERR_FILE_FORMAT},
    {"impossible shape", "{" TENSOR("a", "F32", "[0]", 0, 0) "}", 0, TD_ERR_FILE_FORMAT},
    {"impossible shape", "{" TENSOR("a", "F32", "[1.5]", 0, 4) "}", 4, TD_ERR_FILE_FORMAT},
    /* a product that wraps to the right size */
    {"impossible shape", "{" TENSOR("a", "F32", "[4611686018427387905,4]", 0, 16) "}", 16,
     TD_ERR_FILE_FORMAT},
    {"dimensions", "{" TENSOR("a", "F32", "[1,1,1,1,1]", 0, 4) "}", 4, TD_ERR_FILE_UNSUPPORTED},
    {"for a shape of 8", "{" TENSOR("a", "F32", "[2]", 0, 4) "}", 4, TD_ERR_FILE_FORMAT},
    {"outside", "{" TENSOR("a", "F32", "[1]", 4, 0) "}", 4, TD_ERR_FILE_FORMAT},
    {"outside", "{" TENSOR("a", "F32", "[2]", 0, 8) "}", 4, TD_ERR_FILE_FORMAT},
    {"no data_offsets", "{" TENSOR("a", "F32", "[1]", -4, 0) "}", 4, TD_ERR_FILE_FORMAT},
    {"outside", "{" TENSOR("a", "F32", "[1]", 0, 9223372036854775807) "}", 4, TD_ERR_FILE_FORMAT},
    {"overlaps", "{" TENSOR("a", "F32", "[1]", 0, 4) "," TENSOR("b", "F32", "[1]", 0, 4) "}", 4,
     TD_ERR_FILE_FORMAT},
    {"overlaps", "{" TENSOR("a", "F32", "[2]", 0, 8) "," TENSOR("b", "F32", "[1]", 4, 8) "}", 8,
     TD_ERR_FILE_FORMAT},
    {"hole", "{" TENSOR("a", "F32", "[1]", 4, 8) "}", 8, TD_ERR_FILE_FORMAT},
    {"at the end", "{" TENSOR("a", "F32", "[1]", 0, 4) "}", 8, TD_ERR_FILE_FORMAT},
};

static void headers_that_lie_are_refused_with_a_sentence(void **state)
{
    (void)state;
    for (size_t i = 0; i < TD_COUNT(refused); i++) {
        struct td_safetensors *st = NULL;
        uint8_t *file;

        assert_int_equal(open_file(refused[i].header, refused[i].data, &st, &file),
                         refused[i].expect);
        if (strstr(text, refused[i].says) == NULL) {
            fail_msg("%zu: \"%s\" does not say \"%s\"", i, text, refused[i].says);
        }
        assert_null(st);
        free(file);
    }
}

static void lengths_that_lie_are_refused(void **state)
{
    static const uint64_t lengths[] = {0, 1, 1000, 100000001, UINT64_MAX, UINT64_MAX - 7};
    size_t n;
    uint8_t *file = file_of(VALID, 34, &n);
    struct td_safetensors *st = NULL;

    (void)state;
    for (size_t i = 0; i < TD_COUNT(lengths); i++) {
        memcpy(file, &lengths[i], 8);
        assert_int_equal(td_safetensors_open_memory(file, n, &st, &why), TD_ERR_FILE_FORMAT);
    }
    free(file);
}

static void every_cut_of_a_file_is_refused(void **state)
{
    size_t n;
    uint8_t *file = file_of(VALID, 34, &n);

    (void)state;
    for (size_t cut = 0; cut < n; cut++) {
        uint8_t *part = exact_copy(file, cut);
        struct td_safetensors *st = NULL;

        assert_int_equal(td_safetensors_open_memory(part, cut, &st, &why), TD_ERR_FILE_FORMAT);
        free(part);
    }
    free(file);
}

static void data_that_are_not_aligned_are_refused(void **state)
{
    struct td_safetensors *st = NULL;
    uint8_t *file;

    (void)state;
    assert_int_equal(
        open_file("{" TENSOR("a", "BF16", "[1]", 1, 3) "," TENSOR("b", "I8", "[1]", 0, 1) "}", 3,
                  &st, &file),
        TD_ERR_FILE_UNSUPPORTED);
    assert_non_null(strstr(text, "not aligned"));
    free(file);
}

static void each_failed_allocation_is_reported_and_leaks_nothing(void **state)
{
    size_t len;
    uint8_t *file = file_of(VALID, 34, &len);
    struct td_safetensors *st = NULL;
    unsigned n = 0;
    td_err e;

    (void)state;
    do {
        td_mem_fail_nth(++n);
        e = td_safetensors_open_memory(file, len, &st, &why);
        td_mem_fail_nth(0);
        assert_true(e == TD_OK || e == TD_ERR_NO_MEMORY);
    } while (e != TD_OK);
    assert_true(n > 3);
    (void)td_safetensors_close(st);
    free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_gives_its_tensors_by_place_and_by_name),
        cmocka_unit_test(headers_that_lie_are_refused_with_a_sentence),
        cmocka_unit_test(lengths_that_lie_are_refused),
        cmocka_unit_test(every_cut_of_a_file_is_refused),
        cmocka_unit_test(data_that_are_not_aligned_are_refused),
        cmocka_unit_test(each_failed_allocation_is_reported_and_leaks_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
