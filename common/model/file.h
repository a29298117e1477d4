/* file.h - what the readers of model files share: a sentence that says what is wrong, read-only
 * mappings, JSON files with limits.
 *
 * Not: an opinion about contents. Owner: the reader that opened it. Thread: any, one at a time.
 * Bounds: the callers name the largest file and JSON size they take. Failure: TD_ERR_NO_FILE,
 * TD_ERR_IO, TD_ERR_NO_MEMORY, TD_ERR_FILE_FORMAT with a sentence; nothing is logged here. A file
 * that shrinks while it is mapped ends the process (SIGBUS), as with any mapping: model volumes are
 * read-only.
 */
#ifndef TD_MODEL_FILE_H
#define TD_MODEL_FILE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/base/json.h"
#include "common/base/mem.h"
#include "common/model/gguf.h"

/* Where a sentence for the operator goes; text may be NULL. */
struct td_why {
    char *text; /* borrowed, cap bytes */
    size_t cap;
};

/* Writes the sentence, cut to fit, and returns e. */
td_err td_why(const struct td_why *w, td_err e, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* A name from a file, fit for an error line: printable ASCII, at most 63 bytes. */
struct td_shown {
    char text[64];
};
struct td_shown td_show(struct td_str s);

struct td_file_map {
    const void *data; /* NULL: nothing is mapped */
    uint64_t len;
};

/* Maps a regular, not empty file of at most max bytes. */
td_err td_file_map(const char *path, uint64_t max, struct td_file_map *out_map,
                   const struct td_why *w) TD_MUST_CHECK;
/* Harmless on an empty one; the map is empty afterwards. */
void td_file_unmap(struct td_file_map *m);

/* Parses a file that holds one JSON object. TD_ERR_NOT_FOUND, without a sentence, when there is no
 * such file. *out_json is a new reference. */
td_err td_file_json(const char *path, uint64_t max, const struct td_json_limits *limits,
                    json_t **out_json, const struct td_why *w) TD_MUST_CHECK;

/* Members of an object, NULL for an absent key and for null, which writers use alike; harmless on
 * NULL and on other kinds of values. */
const json_t *td_json_get(const json_t *object, const char *key);
bool td_json_true(const json_t *object, const char *key);
/* Empty for what is not a string. */
struct td_str td_json_str(const json_t *v);
bool td_json_is(const json_t *v, const char *text);

static inline void td_json_decrefp(json_t **j)
{
    json_decref(*j);
}

#endif
