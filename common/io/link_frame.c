#include "common/io/link_frame.h"

#include <string.h>

#include "common/base/assert.h"

uint8_t *link_frame_begin(uint8_t *out, const struct link_frame *f)
{
    link_put32(out, (uint32_t)(LINK_HEADER_BYTES + f->len + TD_MAC_BYTES));
    out[4] = f->type;
    out[5] = f->flags;
    out[6] = out[7] = 0;
    link_put64(out + 8, f->seq);
    link_put64(out + 16, f->ack);
    return out + LINK_LEN_BYTES + LINK_HEADER_BYTES;
}

size_t link_frame_size(const uint8_t len_bytes[LINK_LEN_BYTES], size_t max_payload)
{
    uint32_t len = link_get32(len_bytes);
    if (len < LINK_HEADER_BYTES + TD_MAC_BYTES || len > TD_LINK_MAX_FRAME ||
        len - LINK_HEADER_BYTES - TD_MAC_BYTES > max_payload) {
        return 0;
    }
    return LINK_LEN_BYTES + (size_t)len;
}

bool link_frame_parse(const uint8_t *frame, size_t size, struct link_frame *out)
{
    if (size < LINK_OVERHEAD || frame[4] < LINK_HELLO || frame[4] >= LINK_FRAME_TYPES ||
        frame[6] != 0 || frame[7] != 0) {
        return false;
    }
    *out = (struct link_frame){
        .type = frame[4],
        .flags = frame[5],
        .seq = link_get64(frame + 8),
        .ack = link_get64(frame + 16),
        .payload = frame + LINK_LEN_BYTES + LINK_HEADER_BYTES,
        .len = size - LINK_OVERHEAD,
        .mac = frame + size - TD_MAC_BYTES,
    };
    return true;
}

/* ---- HELLO ---- */

size_t link_hello_write(const struct link_hello *h, uint8_t out[LINK_HELLO_BYTES])
{
    memset(out, 0, LINK_HELLO_BYTES);
    link_put32(out, LINK_MAGIC);
    link_put32(out + 4, (uint32_t)h->version_min | (uint32_t)h->version_max << 16);
    link_put64(out + 8, h->features);
    link_put64(out + 16, h->epoch);
    link_put64(out + 24, h->session);
    link_put64(out + 32, h->received);
    link_put64(out + 40, h->peer_epoch);
    out[48] = h->role;
    memcpy(out + 56, h->key_id, TD_LINK_KEY_ID);
    memcpy(out + 88, h->nonce, TD_LINK_NONCE);
    return LINK_HELLO_BYTES;
}

bool link_key_id_ok(const uint8_t id[TD_LINK_KEY_ID])
{
    size_t n = 0;
    while (n < TD_LINK_KEY_ID && id[n] != 0) {
        if (id[n] <= ' ' || id[n] > '~' || id[n] == '"' || id[n] == '\\') {
            return false;
        }
        n++;
    }
    return n < TD_LINK_KEY_ID;
}

bool link_hello_parse(const uint8_t *data, size_t len, struct link_hello *out)
{
    if (len < LINK_HELLO_BYTES || link_get32(data) != LINK_MAGIC || !link_key_id_ok(data + 56)) {
        return false;
    }
    uint32_t versions = link_get32(data + 4);
    *out = (struct link_hello){
        .version_min = (uint16_t)(versions & 0xffffu),
        .version_max = (uint16_t)(versions >> 16),
        .features = link_get64(data + 8),
        .epoch = link_get64(data + 16),
        .session = link_get64(data + 24),
        .received = link_get64(data + 32),
        .peer_epoch = link_get64(data + 40),
        .role = data[48],
    };
    memcpy(out->key_id, data + 56, TD_LINK_KEY_ID);
    memcpy(out->nonce, data + 88, TD_LINK_NONCE);
    return out->epoch != 0 && out->version_min <= out->version_max;
}

/* ---- CHALLENGE ---- */

size_t link_challenge_write(const struct link_challenge *c, uint8_t out[LINK_CHALLENGE_BYTES])
{
    memset(out, 0, LINK_CHALLENGE_BYTES);
    link_put32(out, LINK_MAGIC);
    link_put32(out + 4, c->version);
    link_put64(out + 8, c->features);
    link_put64(out + 16, c->epoch);
    link_put64(out + 24, c->session);
    link_put64(out + 32, c->received);
    out[40] = c->role;
    out[41] = c->resumed ? 1 : 0;
    memcpy(out + 48, c->nonce, TD_LINK_NONCE);
    return LINK_CHALLENGE_BYTES;
}

bool link_challenge_parse(const uint8_t *data, size_t len, struct link_challenge *out)
{
    if (len < LINK_CHALLENGE_BYTES || link_get32(data) != LINK_MAGIC ||
        link_get32(data + 4) > UINT16_MAX || data[41] > 1) {
        return false;
    }
    *out = (struct link_challenge){
        .version = (uint16_t)link_get32(data + 4),
        .features = link_get64(data + 8),
        .epoch = link_get64(data + 16),
        .session = link_get64(data + 24),
        .received = link_get64(data + 32),
        .role = data[40],
        .resumed = data[41] != 0,
    };
    memcpy(out->nonce, data + 48, TD_LINK_NONCE);
    return out->epoch != 0 && out->session != 0;
}

/* ---- PROVE, ACCEPT ---- */

size_t link_identity_write(const char *name, const uint8_t *info, size_t info_len, uint8_t *out)
{
    size_t n = strlen(name);
    TD_REQUIRE(n <= TD_LINK_MAX_NAME && info_len <= TD_LINK_MAX_INFO);
    out[0] = (uint8_t)n;
    for (size_t i = 0; i < n; i++) {
        out[1 + i] = (uint8_t)name[i]; /* without the terminating zero */
    }
    if (info_len > 0) {
        memcpy(out + 1 + n, info, info_len);
    }
    return 1 + n + info_len;
}

static bool printable(char c)
{
    return c >= ' ' && c <= '~';
}

bool link_identity_parse(const uint8_t *data, size_t len, char name[TD_LINK_MAX_NAME + 1],
                         const uint8_t **out_info, size_t *out_info_len)
{
    if (len < 1 || data[0] > TD_LINK_MAX_NAME || len < 1u + data[0] ||
        len - 1 - data[0] > TD_LINK_MAX_INFO) {
        return false;
    }
    for (size_t i = 0; i < data[0]; i++) {
        char c = (char)data[1 + i];
        if (!printable(c) || c == ' ' || c == '"') {
            return false;
        }
        name[i] = c;
    }
    name[data[0]] = '\0';
    *out_info = data + 1 + data[0];
    *out_info_len = len - 1 - data[0];
    return true;
}

/* ---- REFUSE, BYE ---- */

size_t link_reason_write(td_err e, const char *text, uint8_t out[4 + TD_LINK_TEXT])
{
    size_t n = strnlen(text, TD_LINK_TEXT - 1);
    link_put32(out, (uint32_t)e);
    memcpy(out + 4, text, n);
    return 4 + n;
}

bool link_reason_parse(const uint8_t *data, size_t len, td_err *out_err, char text[TD_LINK_TEXT])
{
    if (len < 4 || len > 4 + TD_LINK_TEXT - 1) {
        return false;
    }
    int32_t code = (int32_t)link_get32(data);
    *out_err = td_err_known(code) && code != 0 ? (td_err)code : TD_ERR_PEER_LOST;
    for (size_t i = 4; i < len; i++) {
        text[i - 4] = printable((char)data[i]) ? (char)data[i] : '?';
    }
    text[len - 4] = '\0';
    return true;
}

/* ---- keys ---- */

td_err link_derive_keys(const struct td_link_key *key, const uint8_t *hello, size_t hello_len,
                        const uint8_t *challenge, size_t challenge_len, struct link_keys *out)
{
    static const char purpose[] = "tandem link 1", dialer[] = "dialer", listener[] = "listener";
    uint8_t lens[8], transcript[TD_SHA256_BYTES], root[TD_SHA256_BYTES];
    link_put32(lens, (uint32_t)hello_len);
    link_put32(lens + 4, (uint32_t)challenge_len);
    td_sha256(
        (struct td_piece[]){{lens, sizeof lens}, {hello, hello_len}, {challenge, challenge_len}}, 3,
        transcript);
    TD_TRY(td_hmac_sha256(
        key->secret, key->secret_len,
        (struct td_piece[]){{purpose, sizeof purpose}, {transcript, sizeof transcript}}, 2, root));
    td_err e = td_hmac_sha256(root, sizeof root, (struct td_piece[]){{dialer, sizeof dialer}}, 1,
                              out->dialer);
    if (e == TD_OK) {
        e = td_hmac_sha256(root, sizeof root, (struct td_piece[]){{listener, sizeof listener}}, 1,
                           out->listener);
    }
    td_wipe(root, sizeof root);
    return e;
}

td_err link_set_macs(struct td_mac **in, struct td_mac **out, const struct td_link_key *key,
                     const struct td_piece *hello, const struct td_piece *challenge, bool dialer)
{
    struct link_keys keys;
    if (*in == NULL) {
        TD_TRY(td_mac_create(in));
    }
    if (*out == NULL) {
        TD_TRY(td_mac_create(out));
    }
    TD_TRY(link_derive_keys(key, hello->data, hello->len, challenge->data, challenge->len, &keys));
    td_mac_set_key(*out, dialer ? keys.dialer : keys.listener);
    td_mac_set_key(*in, dialer ? keys.listener : keys.dialer);
    td_wipe(&keys, sizeof keys);
    return TD_OK;
}

uint64_t link_session_id(const uint8_t dialer_nonce[TD_LINK_NONCE],
                         const uint8_t listener_nonce[TD_LINK_NONCE])
{
    uint8_t sum[TD_SHA256_BYTES];
    td_sha256((struct td_piece[]){{dialer_nonce, TD_LINK_NONCE}, {listener_nonce, TD_LINK_NONCE}},
              2, sum);
    uint64_t id = link_get64(sum);
    return id != 0 ? id : 1;
}
