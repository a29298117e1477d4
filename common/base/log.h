/* log.h - logfmt lines with a constant, greppable message.
 *
 *   TD_LOG(WARN, "node lost", "node=%s epoch=%016" PRIx64 " err=%s", name, epoch, td_err_code(e));
 *   -> ts=2026-11-29T10:00:00.123Z level=warn room=router msg="node lost" node=p0 epoch=...
 * err=node_lost
 *
 * Levels: error = the operator acts, warn = degraded, info = per object life, debug = per state
 * change, trace = per message (compiled out unless -Dtrace). Each file defines TD_LOG_ROOM before
 * including this header. Bounds: a line is cut at TD_LOG_LINE bytes; a site that logs more than 20
 * lines in a second is silenced for the rest of it and then says how many were dropped (error lines
 * are never silenced). User text in a line goes through td_log_quote(). In JSON lines every value
 * is a string. Thread: any; one write(2) per line. Failure: lines may be lost.
 */
#ifndef TD_BASE_LOG_H
#define TD_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef TD_LOG_ROOM
#define TD_LOG_ROOM "base"
#endif
#define TD_LOG_LINE 2048

enum td_log_level { TD_LOG_ERROR, TD_LOG_WARN, TD_LOG_INFO, TD_LOG_DEBUG, TD_LOG_TRACE };

struct td_log_site {
    int64_t window_start_us; /* all three: relaxed atomics; a race miscounts by a few lines */
    uint32_t in_window;
    uint32_t dropped;
};

void td_log_write(struct td_log_site *site, enum td_log_level level, const char *room,
                  const char *msg, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* Lines above this level are skipped; default INFO. */
void td_log_set_level(enum td_log_level level);
bool td_log_enabled(enum td_log_level level);
/* "error".."trace" -> level; false for anything else. */
bool td_log_level_parse(const char *text, enum td_log_level *out_level);
/* JSON lines instead of logfmt. */
void td_log_set_json(bool json);
/* Lines go to this descriptor (default 2). */
void td_log_set_fd(int fd);
/* Counts of lines written so far at WARN and ERROR: tests assert them. */
uint64_t td_log_count(enum td_log_level level);
/* Writes `text` into buf as a quoted, escaped logfmt value, cut to fit; returns buf. */
const char *td_log_quote(const char *text, size_t len, char *buf, size_t cap);

#define TD_LOG(lvl, msg, ...)                                                                      \
    do {                                                                                           \
        if ((TD_LOG_##lvl != TD_LOG_TRACE || TD_WITH_TRACE) && td_log_enabled(TD_LOG_##lvl)) {     \
            static struct td_log_site td_site_;                                                    \
            td_log_write(&td_site_, TD_LOG_##lvl, TD_LOG_ROOM, msg, " " __VA_ARGS__);              \
        }                                                                                          \
    } while (0)

#endif
