#include "router/rt_page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>
#include <openssl/sha.h>

#include "common/base/mem.h"

static const unsigned char html[] = {
#include "router/live_page.inc"
};

struct rt_page {
    char policy[512];
};

/* The hash of what stands between `open` and `shut`, as a policy names it. */
static td_err hash_of(const char *open, const char *shut, char out[64])
{
    const char *end = (const char *)html + sizeof html;
    const char *from = memmem(html, sizeof html, open, strlen(open));
    const char *to = from != NULL ? memmem(from, (size_t)(end - from), shut, strlen(shut)) : NULL;
    if (to == NULL || memmem(to, (size_t)(end - to), open, strlen(open)) != NULL) {
        return TD_ERR_INTERNAL;
    }
    unsigned char digest[SHA256_DIGEST_LENGTH], text[48]; /* 32 bytes are 44 characters */
    from += strlen(open);
    (void)SHA256((const unsigned char *)from, (size_t)(to - from), digest);
    (void)EVP_EncodeBlock(text, digest, sizeof digest);
    (void)snprintf(out, 64, "sha256-%s", (const char *)text);
    return TD_OK;
}

td_err rt_page_create(struct rt_page **out_page)
{
    char script[64], style[64];
    TD_TRY(hash_of("<script>", "</script>", script));
    TD_TRY(hash_of("<style>", "</style>", style));
    struct rt_page *p = td_zalloc(1, sizeof *p);
    if (p == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    (void)snprintf(p->policy, sizeof p->policy,
                   "default-src 'none'; script-src '%s'; style-src '%s'; connect-src 'self'; "
                   "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
                   script, style);
    *out_page = p;
    return TD_OK;
}

struct rt_page *rt_page_destroy(struct rt_page *p)
{
    free(p);
    return NULL;
}

const void *rt_page_html(const struct rt_page *p, size_t *out_len)
{
    (void)p;
    *out_len = sizeof html;
    return html;
}

const char *rt_page_policy(const struct rt_page *p)
{
    return p->policy;
}
