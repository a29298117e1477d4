#include "common/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/utf8.h"

#define LOG_SITE_PER_SECOND 20u
#define LOG_LIFE_PER_SECOND 1000u /* info: lines of an object's life, which people follow by req= */
#define LOG_WINDOW_US       1000000

/* All relaxed: settings that a line may see a moment late, and counts. */
static int current_level = TD_LOG_INFO;
static int current_fd = STDERR_FILENO;
static bool json_lines;
static uint64_t counts[TD_LOG_TRACE + 1];

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};

/* A line under construction; what does not fit is left out, never cut inside a JSON value. */
struct line {
    char *text;
    size_t len;
    size_t cap;
    bool full;
};

void td_log_set_level(enum td_log_level level)
{
    __atomic_store_n(&current_level, (int)level, __ATOMIC_RELAXED);
}

bool td_log_enabled(enum td_log_level level)
{
    return (int)level <= __atomic_load_n(&current_level, __ATOMIC_RELAXED);
}

bool td_log_level_parse(const char *text, enum td_log_level *out_level)
{
    for (size_t i = 0; i < sizeof level_names / sizeof level_names[0]; i++) {
        if (strcmp(text, level_names[i]) == 0) {
            *out_level = (enum td_log_level)i;
            return true;
        }
    }
    return false;
}

void td_log_set_json(bool json)
{
    __atomic_store_n(&json_lines, json, __ATOMIC_RELAXED);
}

void td_log_set_fd(int fd)
{
    __atomic_store_n(&current_fd, fd, __ATOMIC_RELAXED);
}

uint64_t td_log_count(enum td_log_level level)
{
    return __atomic_load_n(&counts[level], __ATOMIC_RELAXED);
}

static void add(struct line *l, const char *text, size_t len)
{
    if (l->full || len > l->cap - l->len) {
        l->full = true;
        return;
    }
    memcpy(l->text + l->len, text, len);
    l->len += len;
}

static void add_str(struct line *l, const char *text)
{
    add(l, text, strlen(text));
}

/* Adds the character at `s` escaped for a JSON string, which logfmt quoting shares; returns the
 * bytes used of s. */
static size_t add_escaped(struct line *l, const char *s, size_t len)
{
    char hex[8];
    size_t n = td_utf8_char_len(s, len);
    if (n != 1) {
        if (n == 0) {
            add_str(l, "\\ufffd");
            return 1;
        }
        add(l, s, n);
        return n;
    }
    switch (s[0]) {
    case '"':
        add_str(l, "\\\"");
        break;
    case '\\':
        add_str(l, "\\\\");
        break;
    case '\n':
        add_str(l, "\\n");
        break;
    case '\r':
        add_str(l, "\\r");
        break;
    case '\t':
        add_str(l, "\\t");
        break;
    default:
        if ((unsigned char)s[0] >= 0x20 && s[0] != 0x7f) {
            add(l, s, 1);
        } else {
            (void)snprintf(hex, sizeof hex, "\\u%04x", (unsigned)(unsigned char)s[0]);
            add_str(l, hex);
        }
    }
    return 1;
}

const char *td_log_quote(const char *text, size_t len, char *buf, size_t cap)
{
    if (cap < 3) {
        if (cap > 0) {
            buf[0] = '\0';
        }
        return buf;
    }
    struct line l = {
        .text = buf, .len = 1, .cap = cap - 2}; /* closing quote and terminator stay free */
    buf[0] = '"';
    size_t i = 0;
    while (i < len && !l.full) {
        i += add_escaped(&l, text + i, len - i);
    }
    buf[l.len] = '"';
    buf[l.len + 1] = '\0';
    return buf;
}

/* Length of the quoted value at s, quotes included; an unterminated one ends with the text. */
static size_t quoted_len(const char *s, size_t len)
{
    size_t i = 1;
    while (i < len && s[i] != '"') {
        i += s[i] == '\\' && i + 1 < len ? 2 : 1;
    }
    return i < len ? i + 1 : len;
}

static bool is_json_escape(const char *s, size_t len)
{
    return len >= 2 && s[0] == '\\' && strchr("\"\\/bfnrtu", s[1]) != NULL && s[1] != '\0';
}

/* Value of a logfmt pair as a JSON string. Inside quotes, escapes that td_log_quote wrote stay as
 * they are. */
static void add_json_value(struct line *l, const char *v, size_t len)
{
    bool quoted = len > 0 && v[0] == '"';
    size_t i = quoted ? 1 : 0;
    size_t end = quoted && len > 1 && v[len - 1] == '"' ? len - 1 : len;
    add_str(l, "\"");
    while (i < end && !l->full) {
        if (quoted && is_json_escape(v + i, end - i)) {
            add(l, v + i, 2);
            i += 2;
        } else {
            i += add_escaped(l, v + i, end - i);
        }
    }
    add_str(l, "\"");
}

/* Rewrites " key=value key="value"" as ,"key":"value"...; a pair that does not fit ends the line.
 */
static void add_json_fields(struct line *l, const char *s, size_t len)
{
    size_t i = 0;
    while (i < len && !l->full) {
        size_t before = l->len;
        while (i < len && s[i] == ' ') {
            i++;
        }
        size_t key = i;
        while (i < len && s[i] != '=' && s[i] != ' ') {
            i++;
        }
        if (i == key) {
            break;
        }
        add_str(l, ",");
        add_json_value(l, s + key, i - key);
        add_str(l, ":");
        i += i < len && s[i] == '=';
        size_t value = i;
        if (i < len && s[i] == '"') {
            i += quoted_len(s + i, len - i);
        }
        while (i < len && s[i] != ' ') {
            i++;
        }
        add_json_value(l, s + value, i - value);
        if (l->full) {
            l->len = before;
        }
    }
}

static void format_time(char *out, size_t cap)
{
    int64_t now = td_wall_us();
    time_t seconds = (time_t)(now / 1000000);
    struct tm tm;
    char date[32];
    (void)gmtime_r(&seconds, &tm);
    (void)strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(out, cap, "%s.%03dZ", date, (int)(now / 1000 % 1000));
}

/* False when this site has had its lines for this second. *out_dropped: lines to own up to on this
 * one. */
static bool site_allows(struct td_log_site *site, enum td_log_level level, uint32_t *out_dropped)
{
    int64_t now = td_now_us();
    int64_t start = __atomic_load_n(&site->window_start_us, __ATOMIC_RELAXED);
    if (start == 0 || now - start >= LOG_WINDOW_US) {
        __atomic_store_n(&site->window_start_us, now, __ATOMIC_RELAXED);
        __atomic_store_n(&site->in_window, 0, __ATOMIC_RELAXED);
    }
    uint32_t n = __atomic_fetch_add(&site->in_window, 1, __ATOMIC_RELAXED);
    if (n >= (level == TD_LOG_INFO ? LOG_LIFE_PER_SECOND : LOG_SITE_PER_SECOND) &&
        level != TD_LOG_ERROR) {
        (void)__atomic_fetch_add(&site->dropped, 1, __ATOMIC_RELAXED);
        return false;
    }
    *out_dropped = __atomic_exchange_n(&site->dropped, 0, __ATOMIC_RELAXED);
    return true;
}

static size_t render(char *out, size_t cap, enum td_log_level level, const char *room,
                     const char *msg, const char *fields, size_t fields_len)
{
    char ts[48];
    char head[256];
    struct line l = {.text = out, .cap = cap - 2}; /* "}" and the newline stay free */
    bool json = __atomic_load_n(&json_lines, __ATOMIC_RELAXED);
    format_time(ts, sizeof ts);
    (void)snprintf(head, sizeof head,
                   json ? "{\"ts\":\"%s\",\"level\":\"%s\",\"room\":\"%s\",\"msg\":\"%s\""
                        : "ts=%s level=%s room=%s msg=\"%s\"",
                   ts, level_names[level], room, msg);
    add_str(&l, head);
    if (json) {
        add_json_fields(&l, fields, fields_len);
        out[l.len++] = '}';
    } else {
        size_t room_left = l.cap - l.len;
        add(&l, fields, fields_len < room_left ? fields_len : room_left);
    }
    while (l.len > 0 && out[l.len - 1] == ' ') {
        l.len--;
    }
    out[l.len++] = '\n';
    return l.len;
}

void td_log_write(struct td_log_site *site, enum td_log_level level, const char *room,
                  const char *msg, const char *fmt, ...)
{
    char fields[TD_LOG_LINE];
    char line[TD_LOG_LINE];
    uint32_t dropped = 0;
    va_list args;
    int saved_errno = errno; /* a log line must not disturb its caller's error handling */
    if (!site_allows(site, level, &dropped)) {
        return;
    }
    va_start(args, fmt);
    int n = vsnprintf(fields, sizeof fields, fmt, args);
    va_end(args);
    size_t len = n < 0 ? 0 : (size_t)n < sizeof fields ? (size_t)n : sizeof fields - 1;
    for (size_t i = 0; i < len; i++) {
        if (fields[i] == '\n' || fields[i] == '\r') {
            fields[i] = ' '; /* one line is one record, whatever a caller passed */
        }
    }
    if (dropped > 0 && len + 32 < sizeof fields) {
        len += (size_t)snprintf(fields + len, sizeof fields - len, " dropped_lines=%u", dropped);
    }
    size_t total = render(line, sizeof line, level, room, msg, fields, len);
    (void)__atomic_fetch_add(&counts[level], 1, __ATOMIC_RELAXED);
    while (write(__atomic_load_n(&current_fd, __ATOMIC_RELAXED), line, total) < 0 &&
           errno == EINTR) {
    }
    errno = saved_errno;
}
