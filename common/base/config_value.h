/* config_value.h - one option's value: text into the struct and back. Internal to config.
 *
 * Owner: the caller's struct owns what it points to. Thread: any (no state). Failure: TD_ERR_CONFIG
 * with *out_reason set to a static text, or TD_ERR_NO_MEMORY; the struct is unchanged.
 */
#ifndef TD_BASE_CONFIG_VALUE_H
#define TD_BASE_CONFIG_VALUE_H

#include "common/base/config.h"

/* Parses `text` into the option's place in `config`, freeing what was there. A LIST grows by the
 * comma-separated items of `text`. */
td_err td__opt_set(const struct td_opt *o, const char *text, void *config,
                   const char **out_reason) TD_MUST_CHECK;
/* Frees what the option owns; a LIST is empty afterwards. */
void td__opt_clear(const struct td_opt *o, void *config);
/* As a YAML value. */
void td__opt_print(const struct td_opt *o, const void *config, FILE *out);
/* "INT", "a|b|c" ... for help. */
const char *td__opt_kind(const struct td_opt *o);
/* The candidate nearest to `name`, or NULL when none is near. */
const char *td__nearest_name(const char *name, const char *const *candidates, size_t n);

#endif
