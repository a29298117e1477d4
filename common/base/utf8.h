/* utf8.h - is this UTF-8? For text of unknown origin on its way into logs, metrics and error
 * messages. Not: normalisation, code point tables (common/text). Thread: any. Failure: none.
 */
#ifndef TD_BASE_UTF8_H
#define TD_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Length (1 to 4) of the well-formed UTF-8 character at s, or 0: no surrogates, no overlong forms,
 * at most U+10FFFF. Requires: len > 0 bytes at s. */
size_t td_utf8_char_len(const char *s, size_t len);
bool td_utf8_valid(const char *s, size_t len);

#endif
