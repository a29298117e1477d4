/* special.h - finds control and user-defined tokens in text: leftmost, longest.
 *
 * What: a sorted list of texts, searched by narrowing; a first-byte table skips everything else at
 * a byte per step. Owner: the vocabulary; never changes after sealing. Thread: any. Bounds: texts
 * of 1 to TD_TEXT_SPECIAL_MAX bytes, so a search costs at most that many steps per byte of text.
 * Failure: TD_ERR_NO_MEMORY.
 */
#ifndef TD_TEXT_SPECIAL_H
#define TD_TEXT_SPECIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

struct td_text_specials;

struct td_text_special {
    const uint8_t *text; /* borrowed: the vocabulary's */
    uint32_t len;
    int32_t id;
    bool control; /* recognised only where controls are allowed */
};

/* Copies the list (not the texts). Of two with the same text the one with the lower id counts. */
td_err td_text_specials_create(const struct td_text_special *list, size_t n,
                               struct td_text_specials **out_specials) TD_MUST_CHECK;
struct td_text_specials *td_text_specials_destroy(struct td_text_specials *s);

/* First place in [p, end) where a token stands (controls only if asked for): returns it and sets
 * *out_at, or NULL. */
const struct td_text_special *td_text_specials_find(const struct td_text_specials *s, bool controls,
                                                    const uint8_t *p, const uint8_t *end,
                                                    const uint8_t **out_at);
/* The token with exactly this text, or NULL. */
const struct td_text_special *td_text_specials_exact(const struct td_text_specials *s,
                                                     const uint8_t *text, size_t len);

#endif
