/* A JSON document from anywhere: the guard's own scan, jansson behind it, the message in front. */
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/utf8.h"
#include "tests/fuzz/fuzz.h"

/* The guard's promise, checked on the result. */
static size_t depth_of(const json_t *json)
{
    size_t deepest = 0;
    size_t i;
    const char *key;
    json_t *child;

    if (json_is_array(json)) {
        json_array_foreach(json, i, child)
        {
            size_t d = depth_of(child);
            deepest = d > deepest ? d : deepest;
        }
    } else if (json_is_object(json)) {
        json_object_foreach((json_t *)(uintptr_t)json, key, child)
        {
            size_t d = depth_of(child);
            deepest = d > deepest ? d : deepest;
        }
    } else {
        return 0;
    }
    return deepest + 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[128] = "";
    json_t *json = NULL;
    td_err e = td_json_parse((const char *)data, size, &json, text, sizeof text);

    if (e == TD_OK ? depth_of(json) > TD_JSON_MAX_DEPTH
                   : json != NULL || text[0] == '\0' || !td_utf8_valid(text, strlen(text))) {
        abort();
    }
    json_decref(json);
    return 0;
}
