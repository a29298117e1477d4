/* The command; what it writes: tests/unit/text/hf_files_test.c. */
#include "ctl/export_tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "common/base/mem.h"
#include "common/model/model.h"
#include "common/model/random_model.h"
#include "tests/tiny/tiny_gguf.h"
#include "tests/unit/check.h"

static enum ctl_exit run(const char *model, const char *dir)
{
    struct {
        char *model;
    } o;
    char *copy = td_strdup(model), *args[] = {td_strdup(dir)};
    o.model = copy;
    enum ctl_exit status = ctl_export_tokenizer(&o, args);
    free(copy);
    free(args[0]);
    return status;
}

static void the_command_writes_both_files_or_says_why_not(void **state)
{
    (void)state;
    char folder[] = "/tmp/tandem-export-XXXXXX", model[64], dir[64], file[128];
    struct td_tiny_params p = td_tiny_defaults();
    struct stat s;
    assert_non_null(mkdtemp(folder));
    (void)snprintf(model, sizeof model, "%s/m.gguf", folder);
    (void)snprintf(dir, sizeof dir, "%s/tok", folder);
    assert_int_equal(td_tiny_write_file(&p, model), TD_OK);
    assert_int_equal(run(model, dir), CTL_OK);
    assert_int_equal(run(model, dir), CTL_OK); /* again over itself */
    (void)snprintf(file, sizeof file, "%s/tokenizer.json", dir);
    assert_int_equal(stat(file, &s), 0);
    assert_true(s.st_size > 1000);
    (void)unlink(file);
    (void)snprintf(file, sizeof file, "%s/tokenizer_config.json", dir);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(rmdir(dir), 0); /* nothing else was left there */
    assert_int_equal(run(dir, dir), CTL_FAILED);
    assert_int_equal(run("", dir), CTL_USAGE);
    assert_int_equal(run(model, "/proc/no/such/place"), CTL_FAILED);
    (void)unlink(model);
    (void)rmdir(folder);
}

/* What is exported of a directory is read back as the same tokenizer. */
static void a_directory_comes_back_as_it_was(void **state)
{
    static const char *const shapes[] = {"tiny-llama", "tiny-qwen3", "tiny-mistral"};
    static const char *const exported[] = {"tokenizer.json", "tokenizer_config.json"};
    static const char *const written[] = {"config.json",         "generation_config.json",
                                          "tokenizer.json",      "tokenizer_config.json",
                                          "chat_template.jinja", "model.safetensors"};
    const struct td_why why = {NULL, 0};
    (void)state;
    for (size_t i = 0; i < TD_COUNT(shapes); i++) {
        char dir[] = "/tmp/tandem-export-dir-XXXXXX", path[128];
        char out[] = "/tmp/tandem-export-out-XXXXXX", from[128];
        struct td_model *m = NULL, *again = NULL;
        struct td_random_params p = {
            .shape = td_random_shape_find(shapes[i]), .seed = 1, .n_threads = 1};
        assert_non_null(mkdtemp(dir));
        assert_int_equal(td_random_model_write(&p, dir, &why), TD_OK);
        assert_int_equal(td_model_open(dir, &m), TD_OK);
        assert_int_equal(run(dir, dir), CTL_FAILED); /* never over its own files */
        assert_non_null(mkdtemp(out));
        assert_int_equal(run(dir, out), CTL_OK);
        for (size_t k = 0; k < 2; k++) {
            (void)snprintf(path, sizeof path, "%s/%s", dir, exported[k]);
            (void)snprintf(from, sizeof from, "%s/%s", out, exported[k]);
            assert_int_equal(rename(from, path), 0);
        }
        assert_int_equal(rmdir(out), 0);
        assert_int_equal(td_model_open(dir, &again), TD_OK);
        assert_memory_equal(again->tok.tokenizer_hash, m->tok.tokenizer_hash, 32);
        assert_memory_equal(again->tok.template_hash, m->tok.template_hash, 32);
        (void)td_model_close(m);
        (void)td_model_close(again);
        for (size_t k = 0; k < TD_COUNT(written); k++) {
            (void)snprintf(path, sizeof path, "%s/%s", dir, written[k]);
            (void)unlink(path); /* not every shape has the template's file */
        }
        assert_int_equal(rmdir(dir), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_command_writes_both_files_or_says_why_not),
        cmocka_unit_test(a_directory_comes_back_as_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
