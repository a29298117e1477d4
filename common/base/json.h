/* json.h - the guarded way into jansson: depth and value count are checked before parsing,
 * duplicate keys refused. Bounds: depth <= 64, values <= 100,000, or what the caller names. Failure: TD_ERR_BAD_REQUEST with
 * a message that names the place.
 */
#ifndef TD_BASE_JSON_H
#define TD_BASE_JSON_H

#include <jansson.h>
#include <stddef.h>

#include "common/base/err.h"

#define TD_JSON_MAX_DEPTH  64
#define TD_JSON_MAX_VALUES 100000

/* *out_json is a new reference. err_text (optional, err_cap bytes) gets a message fit for the
 * client. */
td_err td_json_parse(const char *text, size_t len, json_t **out_json, char *err_text,
                     size_t err_cap) TD_MUST_CHECK;

/* The same with other limits: files of models are larger than requests. */
struct td_json_limits {
    size_t depth, values;
};
td_err td_json_parse_limited(const char *text, size_t len, const struct td_json_limits *limits,
                             json_t **out_json, char *err_text, size_t err_cap) TD_MUST_CHECK;

#endif
