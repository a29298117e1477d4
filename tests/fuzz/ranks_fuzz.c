/* Bytes of a stranger, or of a member, on the port of ranks: frame after frame. The first byte says whether the sender
 * has proved itself. What decodes must lie in its bounds and encode to the same bytes. */
#include <stdlib.h>
#include <string.h>

#include "common/io/ranks_frame.h"
#include "tests/fuzz/fuzz.h"

static void must(bool ok)
{
    if (!ok) {
        abort();
    }
}

static void check_hello(const struct rank_frame *f)
{
    struct rank_hello h;
    struct rank_challenge c;
    uint8_t hello[RANK_HELLO_BYTES], challenge[RANK_CHALLENGE_BYTES];
    if (rank_hello_parse(f->payload, f->len, &h)) {
        must(memchr(h.key_id, 0, sizeof h.key_id) != NULL && h.version_min <= h.version_max);
        must(rank_hello_write(&h, hello) <= f->len);
        must(memcmp(hello, f->payload, sizeof hello) == 0);
    }
    if (rank_challenge_parse(f->payload, f->len, &c)) {
        must(rank_challenge_write(&c, challenge) <= f->len);
        must(memcmp(challenge, f->payload, sizeof challenge) == 0);
    }
}

static void check_who(const struct rank_frame *f)
{
    static uint8_t back[RANK_MAX_PAYLOAD];
    static const struct td_rank_terms leader;
    struct rank_who w;
    char text[TD_LINK_TEXT];
    if (rank_prove_parse(f->payload, f->len, &w)) {
        must(w.address_bytes > 0 && w.address_bytes <= RANK_MAX_ADDRESS);
        must(rank_prove_write(&w, back) == f->len && memcmp(back, f->payload, f->len) == 0);
        text[0] = '\0';
        must((rank_terms_compare(&leader, &w.terms, 1, text, sizeof text) == TD_OK) ==
             (text[0] == '\0'));
    }
    if (rank_peer_parse(f->payload, f->len, &w)) {
        must(w.rank < TD_RANKS_MAX && w.address_bytes <= RANK_MAX_ADDRESS);
        must(rank_peer_write(&w, back) == f->len && memcmp(back, f->payload, f->len) == 0);
    }
}

static void check_end(const struct rank_frame *f)
{
    uint8_t back[8 + TD_LINK_TEXT];
    char why[TD_LINK_TEXT];
    uint64_t group;
    uint32_t rank;
    td_err e;
    if (rank_lost_parse(f->payload, f->len, &rank, &e, why)) {
        must(rank < TD_RANKS_MAX && e != TD_OK && strlen(why) <= f->len);
        must(rank_lost_write(rank, e, why, back) <= f->len);
    }
    must(rank_go_parse(f->payload, f->len, &group) == (f->len >= sizeof group));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t max = size > 0 && (data[0] & 1) != 0 ? RANK_MAX_HELLO : RANK_MAX_PAYLOAD;
    for (size_t at = 1; at + RANK_LEN_BYTES <= size;) {
        struct rank_frame f;
        size_t n = rank_frame_size(data + at, max);
        if (n == 0 || n > size - at) {
            return 0;
        }
        must(n >= RANK_OVERHEAD && n <= max + RANK_OVERHEAD);
        uint8_t *copy = malloc(n); /* ends where the frame does */
        must(copy != NULL);
        memcpy(copy, data + at, n);
        if (rank_frame_parse(copy, n, &f)) {
            must(f.len <= max && f.type < RANK_FRAME_TYPES);
            check_hello(&f);
            check_who(&f);
            check_end(&f);
        }
        free(copy);
        at += n;
    }
    return 0;
}
