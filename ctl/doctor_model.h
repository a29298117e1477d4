/* doctor_model.h - can this model file be served: opens, shape, tokenizer, chat template.
 *
 * What: everything that a router and a node do with a model before the first request, step by step, each step a finding.
 * Not: the weights' values: engines read those. Thread: main. Failure: findings.
 */
#ifndef CTL_DOCTOR_MODEL_H
#define CTL_DOCTOR_MODEL_H

#include <stdint.h>

#include "ctl/report.h"

/* What the other checks want to know; zeros when the file cannot be read. */
struct ctl_model_facts {
    uint64_t weight_bytes;
    uint64_t kv_bytes_per_tok; /* bf16, all layers */
};

/* template_path: a Jinja file instead of the model's own, or "". */
void ctl_doctor_model(struct ctl_report *r, const char *path, const char *template_path,
                      struct ctl_model_facts *out_facts);

#endif
