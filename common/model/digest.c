#include "common/model/digest.h"

#include <openssl/evp.h>
#include <string.h>

static void give_up(struct td_digest *d)
{
    EVP_MD_CTX_free(d->ctx);
    d->ctx = NULL;
}

void td_digest_begin(struct td_digest *d)
{
    d->ctx = EVP_MD_CTX_new();
    if (d->ctx != NULL && EVP_DigestInit_ex(d->ctx, EVP_sha256(), NULL) != 1) {
        give_up(d);
    }
}

void td_digest_bytes(struct td_digest *d, const void *data, size_t len)
{
    if (d->ctx != NULL && len > 0 && EVP_DigestUpdate(d->ctx, data, len) != 1) {
        give_up(d);
    }
}

void td_digest_u64(struct td_digest *d, uint64_t v)
{
    uint8_t le[8];

    for (int i = 0; i < 8; i++) {
        le[i] = (uint8_t)(v >> (8 * i));
    }
    td_digest_bytes(d, le, sizeof le);
}

void td_digest_str(struct td_digest *d, struct td_str s)
{
    td_digest_u64(d, s.len);
    td_digest_bytes(d, s.data, s.len);
}

td_err td_digest_end(struct td_digest *d, uint8_t out_hash[32])
{
    uint8_t hash[EVP_MAX_MD_SIZE];

    if (d->ctx == NULL || EVP_DigestFinal_ex(d->ctx, hash, NULL) != 1) {
        give_up(d);
        return TD_ERR_NO_MEMORY;
    }
    give_up(d);
    memcpy(out_hash, hash, 32);
    return TD_OK;
}
