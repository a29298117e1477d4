#include "common/io/ranks_frame.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/assert.h"

_Static_assert(RANK_TERMS_BYTES + 1 + TD_LINK_MAX_NAME + RANK_MAX_ADDRESS <= RANK_MAX_PAYLOAD,
               "the longest PROVE fits into a frame");

size_t rank_frame_write(uint8_t type, const void *payload, size_t len, uint8_t *out)
{
    TD_REQUIRE(len <= RANK_MAX_PAYLOAD);
    size_t size = RANK_OVERHEAD + len;
    link_put32(out, (uint32_t)(size - RANK_LEN_BYTES));
    link_put32(out + 4, type); /* and three zeros */
    if (len > 0) {
        memcpy(out + RANK_HEAD_BYTES, payload, len);
    }
    memset(out + RANK_HEAD_BYTES + len, 0, TD_MAC_BYTES);
    return size;
}

size_t rank_frame_size(const uint8_t len_bytes[RANK_LEN_BYTES], size_t max_payload)
{
    uint32_t len = link_get32(len_bytes);
    size_t least = RANK_OVERHEAD - RANK_LEN_BYTES;
    if (len < least || len > TD_RANK_MAX_FRAME || len - least > max_payload) {
        return 0;
    }
    return RANK_LEN_BYTES + (size_t)len;
}

bool rank_frame_parse(const uint8_t *frame, size_t size, struct rank_frame *out)
{
    uint32_t type = size < RANK_OVERHEAD ? 0 : link_get32(frame + 4);
    if (type < RANK_HELLO || type >= RANK_FRAME_TYPES) {
        return false;
    }
    *out = (struct rank_frame){
        .type = (uint8_t)type,
        .payload = frame + RANK_HEAD_BYTES,
        .len = size - RANK_OVERHEAD,
        .tag = frame + size - TD_MAC_BYTES,
    };
    return true;
}

/* ---- HELLO, CHALLENGE ---- */

size_t rank_hello_write(const struct rank_hello *h, uint8_t out[RANK_HELLO_BYTES])
{
    link_put32(out, RANK_MAGIC);
    link_put32(out + 4, (uint32_t)h->version_min | (uint32_t)h->version_max << 16);
    link_put32(out + 8, h->rank);
    link_put32(out + 12, h->n);
    memcpy(out + 16, h->key_id, TD_LINK_KEY_ID);
    memcpy(out + 48, h->nonce, TD_LINK_NONCE);
    return RANK_HELLO_BYTES;
}

bool rank_hello_parse(const uint8_t *data, size_t len, struct rank_hello *out)
{
    if (len < RANK_HELLO_BYTES || len > RANK_MAX_HELLO || link_get32(data) != RANK_MAGIC ||
        !link_key_id_ok(data + 16)) {
        return false;
    }
    uint32_t versions = link_get32(data + 4);
    struct rank_hello h = {
        .version_min = (uint16_t)(versions & 0xffffu),
        .version_max = (uint16_t)(versions >> 16),
        .rank = link_get32(data + 8),
        .n = link_get32(data + 12),
    };
    if (h.version_min > h.version_max) {
        return false;
    }
    memcpy(h.key_id, data + 16, TD_LINK_KEY_ID);
    memcpy(h.nonce, data + 48, TD_LINK_NONCE);
    *out = h;
    return true;
}

size_t rank_challenge_write(const struct rank_challenge *c, uint8_t out[RANK_CHALLENGE_BYTES])
{
    link_put32(out, RANK_MAGIC);
    link_put32(out + 4, c->version);
    memcpy(out + 8, c->nonce, TD_LINK_NONCE);
    return RANK_CHALLENGE_BYTES;
}

bool rank_challenge_parse(const uint8_t *data, size_t len, struct rank_challenge *out)
{
    if (len < RANK_CHALLENGE_BYTES || len > RANK_MAX_HELLO || link_get32(data) != RANK_MAGIC ||
        link_get32(data + 4) > UINT16_MAX) {
        return false;
    }
    out->version = (uint16_t)link_get32(data + 4);
    memcpy(out->nonce, data + 8, TD_LINK_NONCE);
    return true;
}

/* ---- PROVE, PEER ---- */

static void terms_write(const struct td_rank_terms *t, uint8_t out[RANK_TERMS_BYTES])
{
    memcpy(out, t->model_id, sizeof t->model_id);
    link_put64(out + 32, t->numerics_id);
    link_put32(out + 40, t->n_blocks);
    link_put32(out + 44, t->max_rows);
    link_put32(out + 48, t->max_tokens);
    link_put32(out + 52, t->max_model_len);
}

static void terms_read(const uint8_t data[RANK_TERMS_BYTES], struct td_rank_terms *out)
{
    memcpy(out->model_id, data, sizeof out->model_id);
    out->numerics_id = link_get64(data + 32);
    out->n_blocks = link_get32(data + 40);
    out->max_rows = link_get32(data + 44);
    out->max_tokens = link_get32(data + 48);
    out->max_model_len = link_get32(data + 52);
}

static bool who_read(const uint8_t *data, size_t len, struct rank_who *out)
{
    return link_identity_parse(data, len, out->name, &out->address, &out->address_bytes) &&
           out->address_bytes > 0 && out->address_bytes <= RANK_MAX_ADDRESS;
}

size_t rank_prove_write(const struct rank_who *w, uint8_t out[RANK_MAX_PAYLOAD])
{
    TD_REQUIRE(w->address_bytes <= RANK_MAX_ADDRESS);
    terms_write(&w->terms, out);
    return RANK_TERMS_BYTES +
           link_identity_write(w->name, w->address, w->address_bytes, out + RANK_TERMS_BYTES);
}

bool rank_prove_parse(const uint8_t *data, size_t len, struct rank_who *out)
{
    struct rank_who w = {0};
    if (len < RANK_TERMS_BYTES || !who_read(data + RANK_TERMS_BYTES, len - RANK_TERMS_BYTES, &w)) {
        return false;
    }
    terms_read(data, &w.terms);
    *out = w;
    return true;
}

size_t rank_peer_write(const struct rank_who *w, uint8_t out[RANK_MAX_PAYLOAD])
{
    TD_REQUIRE(w->address_bytes <= RANK_MAX_ADDRESS);
    link_put32(out, w->rank);
    return 4 + link_identity_write(w->name, w->address, w->address_bytes, out + 4);
}

bool rank_peer_parse(const uint8_t *data, size_t len, struct rank_who *out)
{
    struct rank_who w = {0};
    if (len < 4 || !who_read(data + 4, len - 4, &w)) {
        return false;
    }
    w.rank = link_get32(data);
    *out = w;
    return w.rank < TD_RANKS_MAX;
}

/* ---- GO, LOST ---- */

bool rank_go_parse(const uint8_t *data, size_t len, uint64_t *out_group)
{
    if (len < 8) {
        return false;
    }
    *out_group = link_get64(data);
    return true;
}

size_t rank_lost_write(uint32_t rank, td_err e, const char *why, uint8_t out[8 + TD_LINK_TEXT])
{
    link_put32(out, rank);
    return 4 + link_reason_write(e, why, out + 4);
}

bool rank_lost_parse(const uint8_t *data, size_t len, uint32_t *out_rank, td_err *out_err,
                     char why[TD_LINK_TEXT])
{
    uint32_t rank = len < 4 ? TD_RANKS_MAX : link_get32(data);
    if (rank >= TD_RANKS_MAX || !link_reason_parse(data + 4, len - 4, out_err, why)) {
        return false;
    }
    *out_rank = rank;
    return true;
}

/* ---- terms ---- */

static void hex8(const uint8_t id[32], char out[17])
{
    for (size_t i = 0; i < 8; i++) {
        (void)snprintf(out + 2 * i, 3, "%02x", id[i]);
    }
}

td_err rank_terms_compare(const struct td_rank_terms *leader, const struct td_rank_terms *other,
                          uint32_t rank, char *text, size_t cap)
{
    const struct {
        const char *field;
        uint32_t ours, theirs;
    } sizes[] = {
        {"n_blocks", leader->n_blocks, other->n_blocks},
        {"max_rows", leader->max_rows, other->max_rows},
        {"max_tokens", leader->max_tokens, other->max_tokens},
        {"max_model_len", leader->max_model_len, other->max_model_len},
    };
    if (memcmp(leader->model_id, other->model_id, sizeof leader->model_id) != 0) {
        char ours[17], theirs[17];
        hex8(leader->model_id, ours);
        hex8(other->model_id, theirs);
        (void)snprintf(text, cap, "model_id differs: rank 0 %s.., rank %u %s..", ours, rank,
                       theirs);
        return TD_ERR_PEER_MODEL;
    }
    if (leader->numerics_id != other->numerics_id) {
        (void)snprintf(text, cap, "numerics_id differs: rank 0 %016" PRIx64 ", rank %u %016" PRIx64,
                       leader->numerics_id, rank, other->numerics_id);
        return TD_ERR_PEER_MODEL;
    }
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (sizes[i].ours != sizes[i].theirs) {
            (void)snprintf(text, cap, "%s differs: rank 0 %u, rank %u %u", sizes[i].field,
                           sizes[i].ours, rank, sizes[i].theirs);
            return TD_ERR_CONFIG;
        }
    }
    return TD_OK;
}
