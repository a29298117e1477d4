/* digest.h - SHA-256 over pieces: lengths are hashed with the bytes, so that two lists never
 * collide by shifting.
 *
 * Thread: its owner's. Failure: OpenSSL runs out of memory; remembered, and told once by
 * td_digest_end().
 */
#ifndef TD_MODEL_DIGEST_H
#define TD_MODEL_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/model/gguf.h"

struct td_digest {
    void *ctx; /* owned EVP_MD_CTX; NULL after a failure */
};

void td_digest_begin(struct td_digest *d);
void td_digest_bytes(struct td_digest *d, const void *data, size_t len);
void td_digest_u64(struct td_digest *d, uint64_t v);
/* Length, then bytes. */
void td_digest_str(struct td_digest *d, struct td_str s);
/* Frees d in every case. */
td_err td_digest_end(struct td_digest *d, uint8_t out_hash[32]) TD_MUST_CHECK;

#endif
