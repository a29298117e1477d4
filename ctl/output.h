/* output.h - how tandemctl prints: tables for people, JSON and YAML for programs.
 *
 * What: a table of text cells with aligned columns; a JSON value as indented JSON or as block YAML; times and sizes with
 * a fitting unit. What came from a server is printed so that it cannot steer a terminal: control characters become '?'
 * in tables and escapes elsewhere.
 * Thread: any. Bounds: CTL_TABLE_ROWS, CTL_TABLE_COLS, cells of CTL_CELL - 1 bytes (longer ones are cut and end in "..").
 * Failure: TD_ERR_NO_MEMORY, TD_ERR_FULL.
 */
#ifndef CTL_OUTPUT_H
#define CTL_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/err.h"
#include "common/base/mem.h"

#define CTL_TABLE_ROWS 8192
#define CTL_TABLE_COLS 32
#define CTL_CELL       96

enum ctl_format { CTL_TABLE, CTL_WIDE, CTL_JSON, CTL_YAML };
#define CTL_FORMATS "table|wide|json|yaml"

struct ctl_column {
    const char *head;
    bool right; /* aligned: numbers */
    bool wide;  /* shown with -o wide only */
};

struct ctl_table;
/* columns are borrowed until destroy. */
td_err ctl_table_create(const struct ctl_column *columns, uint32_t n_columns,
                        struct ctl_table **out_table) TD_MUST_CHECK;
struct ctl_table *ctl_table_destroy(struct ctl_table *t);
TD_DEFINE_CLEANUP(struct ctl_table, ctl_table_destroy)
/* The next cell, row by row. An error is kept and returned by ctl_table_print(). */
void ctl_table_cell(struct ctl_table *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Head and rows. The last row must be complete. */
td_err ctl_table_print(const struct ctl_table *t, bool wide, FILE *out) TD_MUST_CHECK;

td_err ctl_json_print(const json_t *value, FILE *out) TD_MUST_CHECK;
/* Objects keep their order; every string is quoted, so that "1e5" or "no" stays a string. */
td_err ctl_yaml_print(const json_t *value, FILE *out) TD_MUST_CHECK;

/* JSON or YAML, whichever the format says. */
td_err ctl_document_print(const json_t *value, enum ctl_format format, FILE *out) TD_MUST_CHECK;

/* Text of a server's in a line of ours: control characters become '?'. */
void ctl_print_clean(const char *text, FILE *out);

/* "850 us", "12.3 ms", "4.56 s", "3.2 min"; "-" when negative. Returns buf. */
const char *ctl_format_us(int64_t us, char *buf, size_t cap);
/* "512 B", "1.50 MiB". */
const char *ctl_format_bytes(uint64_t bytes, char *buf, size_t cap);

#endif
