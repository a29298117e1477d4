/* What a process of a group shows of its place and its exchanges. */
#include "common/node/rank_metrics.h"

#include <string.h>

#include "common/base/mem.h"
#include "tests/unit/check.h"

static struct td_ranks_stats figures;

static void read_figures(const struct td_ranks *r, struct td_ranks_stats *out)
{
    assert_int_equal(r->n, 4);
    *out = figures;
}

static const char *scrape(struct td_metrics *reg, struct td_buf *page)
{
    td_buf_clear(page);
    assert_int_equal(td_metrics_write(reg, page), TD_OK);
    assert_int_equal(td_buf_puts(page, ""), TD_OK);
    assert_int_equal(td_buf_append(page, "", 1), TD_OK);
    return (const char *)page->data;
}

static void place_and_exchanges_are_read_at_each_scrape(void **state)
{
    struct td_ranks group = {.rank = 3, .n = 4};
    struct nd_rank_source source = {&group, read_figures};
    struct nd_rank_metrics *m = NULL;
    struct td_metrics *reg = td_metrics_create();
    struct td_buf page;
    (void)state;
    td_buf_init(&page, 1 << 20);
    figures = (struct td_ranks_stats){.transport = "shm"};
    assert_int_equal(nd_rank_metrics_create(reg, &source, &m), TD_OK);
    const char *text = scrape(reg, &page);
    assert_non_null(strstr(text, "tandem_node_rank{rank=\"3\",size=\"4\",transport=\"shm\"} 1\n"));
    assert_non_null(strstr(text, "tandem_node_rank_exchanges_total 0\n"));
    figures.exchanges = 7;
    figures.bytes_out = 100;
    figures.bytes_in = 300;
    figures.wait_us = 2500000;
    text = scrape(reg, &page);
    assert_non_null(strstr(text, "tandem_node_rank_exchanges_total 7\n"));
    assert_non_null(strstr(text, "tandem_node_rank_sent_bytes_total 100\n"));
    assert_non_null(strstr(text, "tandem_node_rank_received_bytes_total 300\n"));
    assert_non_null(strstr(text, "tandem_node_rank_wait_seconds_total 2.5\n"));
    td_metrics_destroy(reg);
    assert_null(nd_rank_metrics_destroy(m));
    td_buf_fini(&page);
}

static void a_node_that_computes_alone_is_rank_0_of_1(void **state)
{
    struct nd_rank_source alone = {0};
    struct nd_rank_metrics *m = NULL;
    struct td_metrics *reg = td_metrics_create();
    struct td_buf page;
    (void)state;
    td_buf_init(&page, 1 << 20);
    assert_int_equal(nd_rank_metrics_create(reg, &alone, &m), TD_OK);
    const char *text = scrape(reg, &page);
    assert_non_null(strstr(text, "tandem_node_rank{rank=\"0\",size=\"1\",transport=\"\"} 1\n"));
    assert_non_null(strstr(text, "tandem_node_rank_exchanges_total 0\n"));
    td_metrics_destroy(reg);
    assert_null(nd_rank_metrics_destroy(m));
    td_buf_fini(&page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(place_and_exchanges_are_read_at_each_scrape),
        cmocka_unit_test(a_node_that_computes_alone_is_rank_0_of_1),
    };
    return cmocka_run_group_tests_name("node/rank_metrics", tests, NULL, NULL);
}
