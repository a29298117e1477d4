/* report.h - what `tandemctl doctor` finds: a list of verdicts, each with what to do about it.
 *
 * What: findings are printed as they are made (a check may take seconds) or collected for one JSON document.
 * Owner and thread: doctor.c, main. Bounds: CTL_REPORT_MAX findings, CTL_REPORT_VALUES figures each, texts cut to fit;
 * findings past the bound are counted and make the report fail. Failure: none.
 */
#ifndef CTL_REPORT_H
#define CTL_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/err.h"
#include "ctl/output.h"

#define CTL_REPORT_MAX    1024
#define CTL_REPORT_VALUES 12

enum ctl_verdict {
    CTL_V_OK,
    CTL_V_WARN, /* works, but slower or with less than it could */
    CTL_V_FAIL, /* a cluster will not work like this */
    CTL_V_SKIP, /* not asked for */
};

struct ctl_value {
    const char *name; /* static, with its unit: "gb_per_s" */
    double value;
    char text[24]; /* shown instead of the figure unless "" */
};

struct ctl_finding {
    enum ctl_verdict verdict;
    char check[96];                             /* "port 127.0.0.1:8000" */
    char detail[320];                           /* what was seen */
    char remedy[256];                           /* what to do; "" unless WARN or FAIL */
    struct ctl_value values[CTL_REPORT_VALUES]; /* name NULL: none */
};

struct ctl_report {
    FILE *live; /* lines go there at once; NULL: only collected. Borrowed */
    struct ctl_finding findings[CTL_REPORT_MAX];
    uint32_t n, lost;
};

/* A finding with its detail; returns it (valid until the next call) so that values can be added. The remedy is dropped
 * for OK and SKIP. */
struct ctl_finding *ctl_report_add(struct ctl_report *r, enum ctl_verdict verdict,
                                   const char *check, const char *remedy, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* Past CTL_REPORT_VALUES it is dropped. */
void ctl_finding_value(struct ctl_finding *f, const char *name, double value);
/* The same for a word, cut to fit. */
void ctl_finding_text(struct ctl_finding *f, const char *name, const char *text);
bool ctl_report_failed(const struct ctl_report *r);
uint32_t ctl_report_count(const struct ctl_report *r, enum ctl_verdict verdict);
/* {"ok":true,"checks":[{"check","verdict","detail","remedy",values...}]} */
td_err ctl_report_json(const struct ctl_report *r, enum ctl_format format, FILE *out) TD_MUST_CHECK;

#endif
