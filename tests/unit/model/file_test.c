#include "common/model/file.h"

#include "tests/unit/model/hf_util.h"

static char text[256];
static const struct td_why why = {text, sizeof text};
static const struct td_json_limits limits = {.depth = 4, .values = 100};

static void a_sentence_is_cut_to_fit_and_may_be_unwanted(void **state)
{
    char small[8];
    struct td_why w = {small, sizeof small};

    (void)state;
    assert_int_equal(td_why(&w, TD_ERR_IO, "%s", "longer than eight"), TD_ERR_IO);
    assert_string_equal(small, "longer ");
    w = (struct td_why){NULL, 0};
    assert_int_equal(td_why(&w, TD_ERR_IO, "x"), TD_ERR_IO);
}

static void names_are_shown_printable_and_short(void **state)
{
    char name[100];

    (void)state;
    memset(name, 'a', sizeof name);
    memcpy(name, "\x1b[2J\xff", 5);
    assert_int_equal(strlen(td_show((struct td_str){name, sizeof name}).text), 63);
    assert_memory_equal(td_show((struct td_str){name, 8}).text, "?[2J?aaa", 9);
}

static void files_are_mapped_up_to_a_size(void **state)
{
    struct hf_dir d = hf_empty();
    struct td_file_map m = {NULL, 0};
    char path[512];

    (void)state;
    hf_path(&d, "x", path);
    assert_int_equal(td_file_map(path, 10, &m, &why), TD_ERR_NO_FILE);
    hf_puts(&d, "x", "");
    assert_int_equal(td_file_map(path, 10, &m, &why), TD_ERR_FILE_FORMAT);
    hf_puts(&d, "x", "0123456789");
    assert_int_equal(td_file_map(path, 9, &m, &why), TD_ERR_FILE_FORMAT);
    assert_non_null(strstr(text, "10 bytes, more than 9"));
    assert_int_equal(td_file_map(d.path, 10, &m, &why), TD_ERR_FILE_FORMAT); /* a directory */
    assert_null(m.data);
    assert_int_equal(td_file_map(path, 10, &m, &why), TD_OK);
    assert_memory_equal(m.data, "0123456789", 10);
    td_file_unmap(&m);
    td_file_unmap(&m);
    assert_null(m.data);
    hf_remove(&d);
}

static void json_files_are_objects_within_limits(void **state)
{
    static const char *const refused[] = {
        "[1]",         "{\"a\":1", "{\"a\":1,\"a\":2}", "{\"a\":[[[[1]]]]}", "{\"a\":\"\\u0000\"}",
        "{\"a\":NaN}", "{} x"};
    struct hf_dir d = hf_empty();
    json_t *j = NULL;
    char path[512];

    (void)state;
    hf_path(&d, "x", path);
    assert_int_equal(td_file_json(path, 100, &limits, &j, &why), TD_ERR_NOT_FOUND);
    for (size_t i = 0; i < TD_COUNT(refused); i++) {
        hf_puts(&d, "x", refused[i]);
        assert_int_equal(td_file_json(path, 100, &limits, &j, &why), TD_ERR_FILE_FORMAT);
        assert_true(text[0] != '\0');
    }
    assert_null(j);
    hf_puts(&d, "x", "{\"a\": null, \"b\": true, \"c\": \"x\"}");
    assert_int_equal(td_file_json(path, 100, &limits, &j, &why), TD_OK);
    assert_null(td_json_get(j, "a"));
    assert_null(td_json_get(NULL, "a"));
    assert_true(td_json_true(j, "b") && !td_json_true(j, "c") && !td_json_true(NULL, "b"));
    assert_true(td_json_is(td_json_get(j, "c"), "x") && !td_json_is(td_json_get(j, "b"), "x"));
    assert_int_equal(td_json_str(td_json_get(j, "b")).len, 0);
    json_decref(j);
    hf_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sentence_is_cut_to_fit_and_may_be_unwanted),
        cmocka_unit_test(names_are_shown_printable_and_short),
        cmocka_unit_test(files_are_mapped_up_to_a_size),
        cmocka_unit_test(json_files_are_objects_within_limits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
