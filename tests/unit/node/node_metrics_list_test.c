/* The list of a node's families: what dashboards and other tools rely on in every row. */
#include "common/node/node_metrics_list.h"

#include <stdlib.h>
#include <string.h>

#include "tests/unit/check.h"

static bool ends(const char *s, const char *with)
{
    size_t n = strlen(s), k = strlen(with);
    return n >= k && strcmp(s + n - k, with) == 0;
}

static bool has_label(const struct td_metric_desc *d, const char *label)
{
    for (int i = 0; i < TD_METRIC_MAX_LABELS && d->labels[i] != NULL; i++) {
        if (strcmp(d->labels[i], label) == 0) {
            return true;
        }
    }
    return false;
}

static void every_row_has_a_name_of_its_own_and_a_help(void **state)
{
    (void)state;
    for (int i = 0; i < ND_FAMILIES; i++) {
        assert_non_null(nd_metric_list[i].name);
        assert_true(nd_metric_list[i].help != NULL && ends(nd_metric_list[i].help, "."));
        for (int k = 0; k < i; k++) {
            assert_string_not_equal(nd_metric_list[i].name, nd_metric_list[k].name);
        }
    }
}

static void a_name_says_its_type_and_whose_it_is(void **state)
{
    (void)state;
    for (int i = 0; i < ND_FAMILIES; i++) {
        const struct td_metric_desc *d = &nd_metric_list[i];
        bool vllm = i >= V_RUNNING;
        assert_int_equal(strncmp(d->name, vllm ? "vllm:" : "tandem_node_", vllm ? 5 : 12), 0);
        assert_int_equal(has_label(d, "engine"), vllm);
        assert_int_equal(d->n_buckets > 0, d->type == TD_HISTOGRAM);
        /* vLLM's one histogram that is called a total */
        bool odd = strcmp(d->name, "vllm:iteration_tokens_total") == 0;
        bool counts = d->type == TD_COUNTER || d->type == TD_COUNTER_REAL;
        assert_int_equal(ends(d->name, "_total"), counts || odd);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_has_a_name_of_its_own_and_a_help),
        cmocka_unit_test(a_name_says_its_type_and_whose_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
