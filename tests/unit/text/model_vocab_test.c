#include "common/text/model_vocab.h"

#include <stdlib.h>
#include <unistd.h>

#include "common/model/model.h"
#include "tests/tiny/tiny_gguf.h"
#include "tests/unit/check.h"

static void a_models_arrays_become_its_vocabulary(void **state)
{
    (void)state;
    struct td_tiny_params p = td_tiny_defaults();
    char path[] = "/tmp/tandem-vocab-XXXXXX";
    struct td_model *m = NULL;
    struct td_text_vocab *v = NULL;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
    assert_int_equal(td_tiny_write_file(&p, path), TD_OK);
    assert_int_equal(td_model_open(path, &m), TD_OK);
    assert_int_equal(td_text_vocab_of_model(&m->tok, &v), TD_OK);
    assert_int_equal(td_text_vocab_size(v), m->tok.n_tokens);
    (void)td_text_vocab_destroy(v);
    (void)td_model_close(m);
    (void)unlink(path);
}

static void a_pre_tokeniser_that_nobody_knows_is_refused(void **state)
{
    static const struct td_str pieces[] = {{.data = "a", .len = 1}};
    static const char pre[] = "unheard-of";
    (void)state;
    struct td_model_tokenizer t = {.pre = {.data = pre, .len = sizeof pre - 1},
                                   .n_tokens = 1,
                                   .tokens = pieces,
                                   .bos = -1,
                                   .eos = -1,
                                   .eot = -1,
                                   .unk = -1,
                                   .pad = -1,
                                   .ignore_merges = -1,
                                   .nfc = -1};
    struct td_text_vocab *v = NULL;
    assert_int_equal(td_text_vocab_of_model(&t, &v), TD_ERR_FILE_UNSUPPORTED);
    assert_null(v);
    static const char known[] = "gpt-2";
    t.pre = (struct td_str){.data = known, .len = sizeof known - 1};
    assert_int_equal(td_text_vocab_of_model(&t, &v), TD_OK);
    assert_int_equal(td_text_vocab_size(v), 1);
    (void)td_text_vocab_destroy(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_models_arrays_become_its_vocabulary),
        cmocka_unit_test(a_pre_tokeniser_that_nobody_knows_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
