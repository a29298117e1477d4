#include "common/model/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

td_err td_why(const struct td_why *w, td_err e, const char *fmt, ...)
{
    va_list ap;

    if (w->text != NULL && w->cap > 0) {
        va_start(ap, fmt);
        (void)vsnprintf(w->text, w->cap, fmt, ap); /* cut to fit is fine */
        va_end(ap);
    }
    return e;
}

struct td_shown td_show(struct td_str s)
{
    struct td_shown out = {{0}};
    size_t n = s.len < sizeof out.text - 1 ? s.len : sizeof out.text - 1;

    for (size_t i = 0; i < n; i++) {
        out.text[i] = s.data[i] > ' ' && s.data[i] < 127 ? s.data[i] : '?';
    }
    return out;
}

static td_err map_fd(int fd, uint64_t max, struct td_file_map *out_map, const struct td_why *w)
{
    struct stat st;
    void *m;

    if (fstat(fd, &st) != 0) {
        return td_why(w, TD_ERR_IO, "cannot be examined: %s", strerrordesc_np(errno));
    }
    if (!S_ISREG(st.st_mode)) {
        return td_why(w, TD_ERR_FILE_FORMAT, "not a regular file");
    }
    if (st.st_size <= 0) {
        return td_why(w, TD_ERR_FILE_FORMAT, "the file is empty");
    }
    if ((uint64_t)st.st_size > max) {
        return td_why(w, TD_ERR_FILE_FORMAT, "the file has %lld bytes, more than %llu",
                      (long long)st.st_size, (unsigned long long)max);
    }
    m = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (m == MAP_FAILED) {
        return td_why(w, errno == ENOMEM ? TD_ERR_NO_MEMORY : TD_ERR_IO, "cannot be mapped: %s",
                      strerrordesc_np(errno));
    }
    *out_map = (struct td_file_map){m, (uint64_t)st.st_size};
    return TD_OK;
}

td_err td_file_map(const char *path, uint64_t max, struct td_file_map *out_map,
                   const struct td_why *w)
{
    td_err e;
    /* O_NONBLOCK: a fifo must not block the open; it is refused after fstat. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0) {
        return td_why(w, TD_ERR_NO_FILE, "cannot be opened: %s", strerrordesc_np(errno));
    }
    e = map_fd(fd, max, out_map, w);
    (void)close(fd); /* read-only: nothing can be lost */
    return e;
}

void td_file_unmap(struct td_file_map *m)
{
    if (m->data != NULL) {
        (void)munmap((void *)(uintptr_t)m->data,
                     (size_t)m->len); /* only fails on wrong arguments */
    }
    *m = (struct td_file_map){NULL, 0};
}

td_err td_file_json(const char *path, uint64_t max, const struct td_json_limits *limits,
                    json_t **out_json, const struct td_why *w)
{
    struct td_file_map map = {NULL, 0};
    json_t *json = NULL;
    td_err e;

    if (access(path, F_OK) != 0 && errno == ENOENT) {
        return TD_ERR_NOT_FOUND;
    }
    TD_TRY(td_file_map(path, max, &map, w));
    e = td_json_parse_limited(map.data, (size_t)map.len, limits, &json, w->text, w->cap);
    td_file_unmap(&map);
    if (e != TD_OK) {
        return e == TD_ERR_NO_MEMORY ? e : TD_ERR_FILE_FORMAT;
    }
    if (!json_is_object(json)) {
        json_decref(json);
        return td_why(w, TD_ERR_FILE_FORMAT, "not a JSON object");
    }
    *out_json = json;
    return TD_OK;
}

const json_t *td_json_get(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);

    return v == NULL || json_is_null(v) ? NULL : v;
}

bool td_json_true(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);

    return v != NULL && json_is_true(v);
}

struct td_str td_json_str(const json_t *v)
{
    return v != NULL && json_is_string(v)
               ? (struct td_str){json_string_value(v), json_string_length(v)}
               : (struct td_str){"", 0};
}

bool td_json_is(const json_t *v, const char *text)
{
    return v != NULL && json_is_string(v) && td_str_eq(td_json_str(v), text);
}
