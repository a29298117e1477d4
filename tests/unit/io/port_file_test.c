/* The file of ports: whole or not there, and only where one was asked for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/io/port_file.h"
#include "tests/unit/check.h"

static char folder[] = "/tmp/port-file-test-XXXXXX";

static bool print_word(const void *arg, FILE *f)
{
    return fprintf(f, "admin %s\n", (const char *)arg) > 0;
}

static bool print_nothing(const void *arg, FILE *f)
{
    (void)arg;
    (void)f;
    return false;
}

static void read_all(const char *path, char out[64])
{
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    size_t n = fread(out, 1, 63, f);
    out[n] = '\0';
    (void)fclose(f);
}

static void a_later_file_replaces_an_earlier_one(void **state)
{
    char path[64], got[64];
    (void)state;
    (void)snprintf(path, sizeof path, "%s/ports", folder);
    assert_int_equal(td_port_file_write(path, print_word, "1"), TD_OK);
    assert_int_equal(td_port_file_write(path, print_word, "2"), TD_OK);
    read_all(path, got);
    assert_string_equal(got, "admin 2\n");
    assert_int_equal(td_port_file_write(path, print_nothing, NULL), TD_ERR_IO);
    read_all(path, got);
    assert_string_equal(got, "admin 2\n"); /* the earlier one stays */
}

static void no_path_is_nothing_to_do_and_a_wrong_one_an_error(void **state)
{
    char path[64];
    (void)state;
    assert_int_equal(td_port_file_write(NULL, print_nothing, NULL), TD_OK);
    assert_int_equal(td_port_file_write("", print_nothing, NULL), TD_OK);
    (void)snprintf(path, sizeof path, "%s/none/ports", folder);
    assert_int_equal(td_port_file_write(path, print_word, "1"), TD_ERR_IO);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **state)
{
    char path[64];
    (void)state;
    (void)snprintf(path, sizeof path, "%s/ports", folder);
    (void)unlink(path);
    (void)snprintf(path, sizeof path, "%s/ports.tmp", folder);
    (void)unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_later_file_replaces_an_earlier_one),
        cmocka_unit_test(no_path_is_nothing_to_do_and_a_wrong_one_an_error),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
