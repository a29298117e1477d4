/* Design: fixed places, little endian, the address last before the tag, so that a length decides everything:
 * version, p_epoch, work id, nonce, hold, prompt, hash, layout, numerics, seed, address length, address, tag. */
#include "common/node/handoff.h"

#include <string.h>

#include "common/base/trace.h"
#include "common/io/link_crypto.h"
#include "common/io/link_frame.h"

#define VERSION     1
#define FIXED_BYTES 91u /* before the address */
#define MAX_BYTES   (FIXED_BYTES + TD_WIRE_MAX_ADDR + TD_MAC_BYTES)
#define MAX_HOLD_MS (24u * 3600 * 1000)
_Static_assert(2 * MAX_BYTES < TD_HANDOFF_MAX_TEXT, "the longest hand-off fits");

static td_err tag_of(const struct td_link_key *key, const uint8_t *body, size_t len,
                     uint8_t out[TD_MAC_BYTES])
{
    static const char purpose[] = "tandem hand-off 1"; /* no other use of the key has these bytes */
    uint8_t full[TD_SHA256_BYTES];
    TD_TRY(td_hmac_sha256(key->secret, key->secret_len,
                          (struct td_piece[]){{purpose, sizeof purpose}, {body, len}}, 2, full));
    memcpy(out, full, TD_MAC_BYTES);
    return TD_OK;
}

static void put_fixed(const struct td_handoff *h, uint8_t *b)
{
    b[0] = VERSION;
    link_put64(b + 1, h->p_epoch);
    link_put64(b + 9, h->id.router_epoch);
    link_put64(b + 17, h->id.counter);
    link_put32(b + 25, h->id.attempt);
    link_put32(b + 29, h->id.choice);
    memcpy(b + 33, h->nonce, sizeof h->nonce);
    link_put32(b + 49, h->hold_ms);
    link_put32(b + 53, h->n_prompt);
    link_put64(b + 57, h->prompt_hash);
    link_put64(b + 65, h->layout_id);
    link_put64(b + 73, h->numerics_id);
    link_put64(b + 81, h->seed);
    b[89] = (uint8_t)h->address_len;
    b[90] = (uint8_t)(h->address_len >> 8);
}

static void get_fixed(const uint8_t *b, struct td_handoff *h)
{
    h->p_epoch = link_get64(b + 1);
    h->id.router_epoch = link_get64(b + 9);
    h->id.counter = link_get64(b + 17);
    h->id.attempt = link_get32(b + 25);
    h->id.choice = link_get32(b + 29);
    memcpy(h->nonce, b + 33, sizeof h->nonce);
    h->hold_ms = link_get32(b + 49);
    h->n_prompt = link_get32(b + 53);
    h->prompt_hash = link_get64(b + 57);
    h->layout_id = link_get64(b + 65);
    h->numerics_id = link_get64(b + 73);
    h->seed = link_get64(b + 81);
    h->address_len = (uint32_t)b[89] | (uint32_t)b[90] << 8;
}

static bool in_range(const struct td_handoff *h)
{
    return h->p_epoch != 0 && h->id.router_epoch != 0 && h->hold_ms > 0 &&
           h->hold_ms <= MAX_HOLD_MS && h->n_prompt > 0 && h->n_prompt <= TD_WIRE_MAX_PROMPT &&
           h->address_len > 0 && h->address_len <= TD_WIRE_MAX_ADDR;
}

td_err td_handoff_encode(const struct td_handoff *h, const struct td_link_key *keys,
                         uint32_t n_keys, char *out_text, size_t cap)
{
    uint8_t b[MAX_BYTES];
    size_t len = FIXED_BYTES + (size_t)h->address_len;
    if (n_keys == 0 || !in_range(h)) {
        return TD_ERR_BAD_REQUEST;
    }
    if (2 * (len + TD_MAC_BYTES) + 1 > cap) {
        return TD_ERR_TOO_LARGE;
    }
    put_fixed(h, b);
    memcpy(b + FIXED_BYTES, h->address, h->address_len);
    TD_TRY(tag_of(&keys[0], b, len, b + len));
    td_trace_hex(b, (uint32_t)(len + TD_MAC_BYTES), out_text);
    return TD_OK;
}

static int digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_bytes(const char *text, size_t n, uint8_t *out)
{
    for (size_t i = 0; i < n; i++) {
        int high = digit(text[2 * i]);
        int low = digit(text[2 * i + 1]);
        if (high < 0 || low < 0) {
            return false;
        }
        out[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

/* Every key is tried, whichever fits. */
static td_err verify(const uint8_t *b, size_t len, const struct td_link_key *keys, uint32_t n_keys)
{
    bool good = false;
    for (uint32_t i = 0; i < n_keys; i++) {
        uint8_t tag[TD_MAC_BYTES];
        TD_TRY(tag_of(&keys[i], b, len, tag));
        good = td_equal_secret(tag, b + len, sizeof tag) || good;
    }
    return good ? TD_OK : TD_ERR_FORBIDDEN;
}

td_err td_handoff_decode(const char *text, size_t len, const struct td_link_key *keys,
                         uint32_t n_keys, struct td_handoff *out)
{
    uint8_t b[MAX_BYTES];
    struct td_handoff h;
    size_t n = len / 2;
    if (len % 2 != 0 || n <= FIXED_BYTES + TD_MAC_BYTES || n > MAX_BYTES ||
        !read_bytes(text, n, b) || b[0] != VERSION) {
        return TD_ERR_BAD_REQUEST;
    }
    TD_TRY(verify(b, n - TD_MAC_BYTES, keys, n_keys));
    get_fixed(b, &h);
    if (!in_range(&h) || n != FIXED_BYTES + (size_t)h.address_len + TD_MAC_BYTES) {
        return TD_ERR_BAD_REQUEST;
    }
    memcpy(h.address, b + FIXED_BYTES, h.address_len);
    memset(h.address + h.address_len, 0, sizeof h.address - h.address_len);
    *out = h;
    return TD_OK;
}
