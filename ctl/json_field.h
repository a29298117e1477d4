/* json_field.h - fields of a server's answer, which may be missing or of another kind.
 * Thread: any. Failure: none; the default stands.
 */
#ifndef CTL_JSON_FIELD_H
#define CTL_JSON_FIELD_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* False, and *out untouched, when `object` is no object or has no whole number of this name. */
static inline bool ctl_field_int(const json_t *object, const char *name, int64_t *out)
{
    const json_t *v = json_object_get(object, name);
    if (!json_is_integer(v)) {
        return false;
    }
    *out = json_integer_value(v);
    return true;
}

/* A number of things, bytes or microseconds: 0 without it, and for one below 0. */
static inline int64_t ctl_field_count(const json_t *object, const char *name)
{
    int64_t v = 0;
    (void)ctl_field_int(object, name, &v); /* stays 0 */
    return v > 0 ? v : 0;
}

/* Borrowed; `none` also for an empty text. */
static inline const char *ctl_field_text(const json_t *object, const char *name, const char *none)
{
    const char *s = json_string_value(json_object_get(object, name));
    return s != NULL && s[0] != 0 ? s : none;
}

#endif
