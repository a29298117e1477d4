/* rt_model.h - what the router knows of the served model: vocabulary, template, end tokens, names,
 * hashes.
 *
 * What: opens the model file for its metadata (weights stay untouched on disk) and builds the
 * shared, read-only text objects from it. Turns a checked request into token ids. Not: an engine.
 * Owner: router shell. Thread: creation on one; rt_model_encode with one tokenizer per thread.
 * Failure: creation logs what is wrong with the file; encoding gives a typed error and a text for
 * the client.
 */
#ifndef ROUTER_RT_MODEL_H
#define ROUTER_RT_MODEL_H

#include <stdint.h>

#include "common/base/err.h"
#include "common/model/model.h"
#include "common/text/template.h"
#include "common/text/tokenizer.h"
#include "common/text/vocab.h"
#include "router/rt_api.h"

struct rt_model {
    struct td_model *file;       /* owned */
    struct td_text_vocab *vocab; /* owned */
    struct td_template *chat;    /* owned; NULL: the model has no chat template */
    const char *names[8];        /* served names; the first is the default; borrowed */
    uint32_t n_names;
    int32_t end_ids[TD_TOK_MAX_END_IDS];
    uint32_t n_end_ids;
    uint32_t max_model_len; /* limited by --max-model-len */
    uint8_t template_hash[32];
};

struct rt_model_params {
    const char *path;
    const char *chat_template_file; /* NULL or "": the model's own */
    const char *const *names;       /* borrowed for the model's life */
    uint32_t n_names;
    uint32_t max_model_len; /* 0: the model's */
};

td_err rt_model_open(const struct rt_model_params *p, struct rt_model **out_model) TD_MUST_CHECK;
struct rt_model *rt_model_close(struct rt_model *m);
/* True for a served name, or NULL (the default). */
bool rt_model_serves(const struct rt_model *m, const char *name);

/* Token ids of prompt `index` of the request (a chat has one prompt); *out_ids is the caller's
 * (free). `tok`: this thread's. error gets the reason. */
struct rt_model_prompt {
    const struct rt_api_request *request;
    uint32_t index;
    int64_t now_s; /* the date a template may print */
};
td_err rt_model_encode(const struct rt_model *m, struct td_text_tokenizer *tok,
                       const struct rt_model_prompt *prompt, int32_t **out_ids, uint32_t *out_n,
                       struct rt_api_error *error) TD_MUST_CHECK;
/* The request's sampling settings with the model's defaults for what it leaves open, the model's end
 * ids (unless ignored), and max_tokens limited to the context. */
td_err rt_model_limit(const struct rt_model *m, const struct rt_api_request *r, uint32_t n_prompt,
                      struct td_sampling_params *s, struct rt_api_error *error) TD_MUST_CHECK;

#endif
