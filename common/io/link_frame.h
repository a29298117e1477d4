/* link_frame.h - the bytes of control link frames and of the handshake bodies. Pure layout: no
 * state, no crypto. docs/wire.md describes them for people. All integers are little endian. Every
 * parser checks lengths and ranges and returns false for what does not fit.
 */
#ifndef TD_IO_LINK_FRAME_H
#define TD_IO_LINK_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/io/link_crypto.h"
#include "common/io/link_session.h"

#define LINK_MAGIC        0x314b4c54u /* "TLK1" */
#define LINK_LEN_BYTES    4u
#define LINK_HEADER_BYTES 20u
#define LINK_OVERHEAD     (LINK_LEN_BYTES + LINK_HEADER_BYTES + TD_MAC_BYTES)
#define LINK_TOTAL_BYTES  4u /* in front of the first piece of a cut message */
/* Payload of HELLO and CHALLENGE: what a stranger may make us keep. */
#define LINK_MAX_HELLO       512u
#define LINK_HELLO_BYTES     120u
#define LINK_CHALLENGE_BYTES 80u

enum link_frame_type {
    LINK_HELLO = 1, /* dialer -> listener, no key yet */
    LINK_CHALLENGE, /* listener -> dialer: first frame under the session key, proves the listener */
    LINK_PROVE,     /* dialer -> listener: proves the dialer, carries its info */
    LINK_ACCEPT,    /* listener -> dialer: its info */
    LINK_REFUSE,    /* either: err and text; without a key before CHALLENGE */
    LINK_DATA,
    LINK_BEAT, /* acknowledges; heartbeat */
    LINK_BYE,  /* the session is over: err and text */
    LINK_FRAME_TYPES
};

#define LINK_F_BIG   1u
#define LINK_F_FIRST 2u
#define LINK_F_LAST  4u

struct link_frame {
    uint8_t type, flags;
    uint64_t seq, ack;
    const uint8_t *payload;
    size_t len;
    const uint8_t *mac;
};

/* Writes length and header for a payload of `len` bytes at `out`; the payload follows at the
 * returned address. */
uint8_t *link_frame_begin(uint8_t *out, const struct link_frame *f);
/* The length field: size of the whole frame with it, or 0 when it is not acceptable (`max` bounds
 * the payload). */
size_t link_frame_size(const uint8_t len_bytes[LINK_LEN_BYTES], size_t max_payload);
/* Splits a whole frame of `size` bytes as link_frame_size() gave it. */
bool link_frame_parse(const uint8_t *frame, size_t size, struct link_frame *out);

struct link_hello {
    uint16_t version_min, version_max;
    uint64_t features, epoch, session, received;
    uint64_t peer_epoch; /* whom the session is with; 0 for a new one */
    uint8_t role;
    char key_id[TD_LINK_KEY_ID];
    uint8_t nonce[TD_LINK_NONCE];
};
size_t link_hello_write(const struct link_hello *h, uint8_t out[LINK_HELLO_BYTES]);
bool link_hello_parse(const uint8_t *data, size_t len, struct link_hello *out);

struct link_challenge {
    uint16_t version;
    uint64_t features, epoch, session, received;
    uint8_t role;
    bool resumed;
    uint8_t nonce[TD_LINK_NONCE];
};
size_t link_challenge_write(const struct link_challenge *c, uint8_t out[LINK_CHALLENGE_BYTES]);
bool link_challenge_parse(const uint8_t *data, size_t len, struct link_challenge *out);

/* PROVE and ACCEPT: a name and the owner's info bytes. */
size_t link_identity_write(const char *name, const uint8_t *info, size_t info_len, uint8_t *out);
bool link_identity_parse(const uint8_t *data, size_t len, char name[TD_LINK_MAX_NAME + 1],
                         const uint8_t **out_info, size_t *out_info_len);

/* REFUSE and BYE. The text is made printable and terminated. */
size_t link_reason_write(td_err e, const char *text, uint8_t out[4 + TD_LINK_TEXT]);
bool link_reason_parse(const uint8_t *data, size_t len, td_err *out_err, char text[TD_LINK_TEXT]);

/* Keys of both directions, from the secret and everything both sides said in HELLO and CHALLENGE.
 */
struct link_keys {
    uint8_t dialer[TD_SHA256_BYTES], listener[TD_SHA256_BYTES];
};
td_err link_derive_keys(const struct td_link_key *key, const uint8_t *hello, size_t hello_len,
                        const uint8_t *challenge, size_t challenge_len,
                        struct link_keys *out) TD_MUST_CHECK;
/* The same, into the MACs of one end of the connection, made when they are NULL. */
td_err link_set_macs(struct td_mac **in, struct td_mac **out, const struct td_link_key *key,
                     const struct td_piece *hello, const struct td_piece *challenge,
                     bool dialer) TD_MUST_CHECK;
/* Printable, and terminated inside its field: it goes into logs. */
bool link_key_id_ok(const uint8_t id[TD_LINK_KEY_ID]);
/* Nonzero. */
uint64_t link_session_id(const uint8_t dialer_nonce[TD_LINK_NONCE],
                         const uint8_t listener_nonce[TD_LINK_NONCE]);

static inline uint32_t link_get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline uint64_t link_get64(const uint8_t *p)
{
    return link_get32(p) | (uint64_t)link_get32(p + 4) << 32;
}
static inline void link_put32(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
    p[2] = (uint8_t)(v >> 16);
    p[3] = (uint8_t)(v >> 24);
}
static inline void link_put64(uint8_t *p, uint64_t v)
{
    link_put32(p, (uint32_t)v);
    link_put32(p + 4, (uint32_t)(v >> 32));
}

#endif
