#include "common/io/link_crypto.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/params.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/mem.h"

/* libcrypto allocates inside each context at creation and, for a context in use, not again: tags
 * cost no allocation. */

void td_sha256(const struct td_piece *pieces, size_t n, uint8_t out[TD_SHA256_BYTES])
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    unsigned len = 0;
    bool ok = ctx != NULL && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) == 1;
    for (size_t i = 0; ok && i < n; i++) {
        ok = EVP_DigestUpdate(ctx, pieces[i].data, pieces[i].len) == 1;
    }
    ok = ok && EVP_DigestFinal_ex(ctx, out, &len) == 1;
    EVP_MD_CTX_free(ctx);
    TD_INSIST(ok && len == TD_SHA256_BYTES);
}

struct td_mac {
    EVP_MAC *algorithm;   /* owned */
    EVP_MAC_CTX *context; /* owned */
};

td_err td_mac_create(struct td_mac **out_mac)
{
    struct td_mac *m = td_zalloc(1, sizeof *m);
    if (m == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    m->algorithm = EVP_MAC_fetch(NULL, "HMAC", NULL);
    m->context = m->algorithm != NULL ? EVP_MAC_CTX_new(m->algorithm) : NULL;
    if (m->context == NULL) {
        (void)td_mac_destroy(m);
        return TD_ERR_NO_MEMORY;
    }
    *out_mac = m;
    return TD_OK;
}

struct td_mac *td_mac_destroy(struct td_mac *m)
{
    if (m != NULL) {
        EVP_MAC_CTX_free(m->context);
        EVP_MAC_free(m->algorithm);
        free(m);
    }
    return NULL;
}

static void set_key(struct td_mac *m, const uint8_t *key, size_t len)
{
    char digest[] = "SHA256";
    const OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_end(),
    };
    TD_INSIST(EVP_MAC_init(m->context, key, len, params) == 1);
}

void td_mac_set_key(struct td_mac *m, const uint8_t key[TD_SHA256_BYTES])
{
    set_key(m, key, TD_SHA256_BYTES);
}

static void full_tag(struct td_mac *m, const struct td_piece *pieces, size_t n,
                     uint8_t out[TD_SHA256_BYTES])
{
    size_t len = 0;
    bool ok = EVP_MAC_init(m->context, NULL, 0, NULL) == 1;
    for (size_t i = 0; ok && i < n; i++) {
        ok = EVP_MAC_update(m->context, pieces[i].data, pieces[i].len) == 1;
    }
    ok = ok && EVP_MAC_final(m->context, out, &len, TD_SHA256_BYTES) == 1;
    TD_INSIST(ok && len == TD_SHA256_BYTES);
}

void td_mac_tag(struct td_mac *m, const struct td_piece *pieces, size_t n,
                uint8_t out[TD_MAC_BYTES])
{
    uint8_t full[TD_SHA256_BYTES];
    full_tag(m, pieces, n, full);
    memcpy(out, full, TD_MAC_BYTES);
}

td_err td_hmac_sha256(const uint8_t *key, size_t key_len, const struct td_piece *pieces, size_t n,
                      uint8_t out[TD_SHA256_BYTES])
{
    struct td_mac *m = NULL;
    TD_TRY(td_mac_create(&m));
    set_key(m, key, key_len);
    full_tag(m, pieces, n, out);
    (void)td_mac_destroy(m);
    return TD_OK;
}

bool td_equal_secret(const void *a, const void *b, size_t len)
{
    return CRYPTO_memcmp(a, b, len) == 0;
}

void td_wipe(void *p, size_t len)
{
    OPENSSL_cleanse(p, len);
}
