/* link_crypto.h - SHA-256 and HMAC-SHA256 for the control link, over libcrypto.
 *
 * Not: encryption. The control link is authenticated, not secret (docs/wire.md). Pure: no
 * randomness.
 * Thread: one td_mac belongs to one thread; the one-shot functions are callable from any.
 * Failure: creation may fail; a digest of libcrypto that fails later is a broken library and ends
 * the process.
 */
#ifndef TD_IO_LINK_CRYPTO_H
#define TD_IO_LINK_CRYPTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

#define TD_SHA256_BYTES 32
#define TD_MAC_BYTES    16 /* HMAC-SHA256 cut to 128 bits */

/* One piece of an input that is hashed in pieces. */
struct td_piece {
    const void *data;
    size_t len;
};

void td_sha256(const struct td_piece *pieces, size_t n, uint8_t out[TD_SHA256_BYTES]);
td_err td_hmac_sha256(const uint8_t *key, size_t key_len, const struct td_piece *pieces, size_t n,
                      uint8_t out[TD_SHA256_BYTES]) TD_MUST_CHECK;
/* In time that depends on len only. */
bool td_equal_secret(const void *a, const void *b, size_t len);
/* Overwrites a secret so that the compiler keeps it. */
void td_wipe(void *p, size_t len);

/* A key made ready, for many messages. */
struct td_mac;
td_err td_mac_create(struct td_mac **out_mac) TD_MUST_CHECK;
struct td_mac *td_mac_destroy(struct td_mac *m);
void td_mac_set_key(struct td_mac *m, const uint8_t key[TD_SHA256_BYTES]);
void td_mac_tag(struct td_mac *m, const struct td_piece *pieces, size_t n,
                uint8_t out[TD_MAC_BYTES]);

#endif
