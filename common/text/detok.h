/* detok.h - token ids to text, as a stream of whole UTF-8 characters.
 *
 * What: keeps back the first bytes of a character until the rest has come, and replaces what can
 * never become one by U+FFFD (one per maximal ill-formed subsequence, as Unicode recommends and
 * Hugging Face does), so that every output is valid UTF-8 and may go into a JSON string. Not:  a
 * stop-string matcher (stop.h). For exact bytes use td_text_vocab_bytes. Owner and thread: embedded
 * in the stream it serves. The vocabulary is borrowed. Bounds: at most 3 bytes are held back; one
 * push writes at most 3 * (longest piece + 3) bytes. Failure: that of td_buf; then nothing has
 * changed. TD_ERR_BAD_REQUEST for an id outside the vocabulary.
 */
#ifndef TD_TEXT_DETOK_H
#define TD_TEXT_DETOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/text/vocab.h"

struct td_text_detok {
    const struct td_text_vocab *vocab; /* borrowed */
    uint8_t held[4];
    uint8_t n_held; /* <= 3 */
    bool skip_special;
};

/* skip_special: control tokens give no text. */
void td_text_detok_init(struct td_text_detok *d, const struct td_text_vocab *vocab,
                        bool skip_special);
/* Appends the characters that are complete with token `id` to `out`. */
td_err td_text_detok_push(struct td_text_detok *d, int32_t id, struct td_buf *out) TD_MUST_CHECK;
/* End of the stream: what is held back can never be completed and becomes U+FFFD. */
td_err td_text_detok_flush(struct td_text_detok *d, struct td_buf *out) TD_MUST_CHECK;

#endif
