/* ranks_frame.h - bytes of a group's joining: frames, their payloads, and what of the terms differs.
 *
 * What: encoding and decoding, pure. Frames are tagged like those of the control link: HMAC-SHA256, cut to 128 bits,
 * under keys that both ends derive from the cluster secret and all of HELLO and CHALLENGE (link_derive_keys; the magic
 * in them keeps the two protocols apart). Names and reasons are written by link_frame.h.
 * Not: sockets, the order of frames (ranks_join.c). Thread: any. Bounds: TD_RANK_MAX_FRAME. Failure: every parser checks
 * lengths and ranges and returns false for what does not fit. For people: docs/wire.md.
 */
#ifndef TD_IO_RANKS_FRAME_H
#define TD_IO_RANKS_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/io/link_frame.h"
#include "common/io/ranks.h"

#define RANK_MAGIC       0x314b5254u /* "TRK1" */
#define RANK_VERSION_MIN 1
#define RANK_VERSION_MAX 1
#define RANK_LEN_BYTES   4u
#define RANK_HEAD_BYTES  8u /* with the length */
#define RANK_OVERHEAD    (RANK_HEAD_BYTES + TD_MAC_BYTES)
#define RANK_MAX_BYTES   (RANK_LEN_BYTES + TD_RANK_MAX_FRAME) /* of a whole frame */
#define RANK_MAX_PAYLOAD (RANK_MAX_BYTES - RANK_OVERHEAD)
/* Payload of HELLO and CHALLENGE: what a stranger may make us keep. */
#define RANK_MAX_HELLO       512u
#define RANK_HELLO_BYTES     80u
#define RANK_CHALLENGE_BYTES 40u
#define RANK_TERMS_BYTES     56u
#define RANK_MAX_ADDRESS     4096u /* TD_UCX_MAX_ADDRESS */

enum rank_frame_type {
    RANK_HELLO = 1, /* dialer -> rank 0, no key yet */
    RANK_CHALLENGE, /* rank 0 -> dialer: proves rank 0; from here on everything is tagged */
    RANK_PROVE,     /* dialer -> rank 0: proves the dialer; terms, name, UCX address */
    RANK_WELCOME,   /* rank 0 -> dialer: its place is taken by it */
    RANK_PEER,      /* rank 0 -> each, once all are there: another rank's name and UCX address */
    RANK_READY,     /* dialer -> rank 0: endpoints to all are made */
    RANK_GO,        /* rank 0 -> each: everybody is ready; the group's number */
    RANK_REFUSE,    /* either: err and text; without a tag before CHALLENGE */
    RANK_LEAVE,     /* rank 0 -> each: ends the group, nothing is wrong */
    RANK_LOST,      /* either: the group is over, and whose fault it is; rank 0 tells the others */
    RANK_LOADED,    /* dialer -> rank 0, once the group stands: it can take steps */
    RANK_FRAME_TYPES
};

struct rank_frame {
    uint8_t type;
    const uint8_t *payload;
    size_t len;
    const uint8_t *tag;
};

/* Writes length, type and payload at `out` [RANK_OVERHEAD + len], the tag left zero; returns the size of the whole. */
size_t rank_frame_write(uint8_t type, const void *payload, size_t len, uint8_t *out);
/* Size of the whole frame, or 0 when it is not acceptable (`max_payload` bounds the payload). */
size_t rank_frame_size(const uint8_t len_bytes[RANK_LEN_BYTES], size_t max_payload);
/* Splits a whole frame of `size` bytes as rank_frame_size() gave it. */
bool rank_frame_parse(const uint8_t *frame, size_t size, struct rank_frame *out);

struct rank_hello {
    uint16_t version_min, version_max;
    uint32_t rank, n;
    char key_id[TD_LINK_KEY_ID];
    uint8_t nonce[TD_LINK_NONCE];
};
size_t rank_hello_write(const struct rank_hello *h, uint8_t out[RANK_HELLO_BYTES]);
/* Bytes beyond the known ones are left to later versions; the keys cover them. */
bool rank_hello_parse(const uint8_t *data, size_t len, struct rank_hello *out);

struct rank_challenge {
    uint16_t version;
    uint8_t nonce[TD_LINK_NONCE];
};
size_t rank_challenge_write(const struct rank_challenge *c, uint8_t out[RANK_CHALLENGE_BYTES]);
bool rank_challenge_parse(const uint8_t *data, size_t len, struct rank_challenge *out);

/* Who a rank is: PROVE {terms, name, address}, PEER {rank, name, address}. */
struct rank_who {
    uint32_t rank;              /* PEER */
    struct td_rank_terms terms; /* PROVE */
    char name[TD_LINK_MAX_NAME + 1];
    const uint8_t *address; /* in the frame */
    size_t address_bytes;
};
/* At most RANK_MAX_PAYLOAD bytes: address_bytes is at most RANK_MAX_ADDRESS. */
size_t rank_prove_write(const struct rank_who *w, uint8_t out[RANK_MAX_PAYLOAD]);
bool rank_prove_parse(const uint8_t *data, size_t len, struct rank_who *out);
size_t rank_peer_write(const struct rank_who *w, uint8_t out[RANK_MAX_PAYLOAD]);
bool rank_peer_parse(const uint8_t *data, size_t len, struct rank_who *out);

/* GO: the group's number. LOST: the rank and why. */
bool rank_go_parse(const uint8_t *data, size_t len, uint64_t *out_group);
size_t rank_lost_write(uint32_t rank, td_err e, const char *why, uint8_t out[8 + TD_LINK_TEXT]);
bool rank_lost_parse(const uint8_t *data, size_t len, uint32_t *out_rank, td_err *out_err,
                     char why[TD_LINK_TEXT]);

/* TD_OK when both are equal; else TD_ERR_PEER_MODEL or TD_ERR_CONFIG and a text with the field and both values. */
td_err rank_terms_compare(const struct td_rank_terms *leader, const struct td_rank_terms *other,
                          uint32_t rank, char *text, size_t cap) TD_MUST_CHECK;

#endif
