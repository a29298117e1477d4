#define TD_LOG_ROOM "io"
#include "common/io/link_keys.h"

#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/rng.h"

static const char *parse_line(char *line, struct td_link_key *k, bool *out_used)
{
    char *save = NULL;
    char *id = strtok_r(line, " \t\r\n", &save);
    char *secret = id != NULL ? strtok_r(NULL, " \t\r\n", &save) : NULL;
    *out_used = false;
    if (id == NULL || id[0] == '#') {
        return NULL;
    }
    if (secret == NULL || strtok_r(NULL, " \t\r\n", &save) != NULL) {
        return "needs exactly: key-id secret";
    }
    size_t n = strlen(secret);
    if (strlen(id) >= sizeof k->id) {
        return "key id too long";
    }
    if (n < TD_LINK_SECRET_MIN || n > TD_LINK_SECRET_MAX) {
        return "the secret must have 16 to 64 bytes";
    }
    (void)snprintf(k->id, sizeof k->id, "%s", id);
    memcpy(k->secret, secret, n);
    k->secret_len = (uint32_t)n;
    *out_used = true;
    return NULL;
}

/* True when the line was longer than the buffer; the rest of it is skipped. */
static bool skip_rest(const char *line, FILE *f)
{
    if (strchr(line, '\n') != NULL || feof(f)) {
        return false;
    }
    for (int c = getc(f); c != '\n' && c != EOF; c = getc(f)) {
    }
    return true;
}

td_err td_link_keys_load(const char *path, struct td_link_key out_keys[TD_LINK_MAX_KEYS],
                         uint32_t *out_n)
{
    char line[256];
    uint32_t n = 0;
    unsigned number = 0;
    const char *why = NULL;
    FILE *f = fopen(path, "rbe");
    if (f == NULL) {
        TD_LOG(ERROR, "cannot open the cluster key file", "path=%s", path);
        return TD_ERR_NO_FILE;
    }
    while (why == NULL && fgets(line, sizeof line, f) != NULL) {
        bool used = false;
        number++;
        struct td_link_key key = {0};
        bool too_long = skip_rest(line, f);
        why = parse_line(line, &key, &used);
        if (used && too_long) {
            why = "the line is too long";
        } else if (used && n == TD_LINK_MAX_KEYS) {
            why = "too many keys";
        } else if (used) {
            out_keys[n++] = key;
        }
    }
    (void)fclose(f);
    if (why == NULL && n == 0) {
        why = "no key in it";
    }
    if (why != NULL) {
        TD_LOG(ERROR, "cluster key file is wrong", "path=%s line=%u why=\"%s\"", path, number, why);
        return TD_ERR_CONFIG;
    }
    *out_n = n;
    return TD_OK;
}

void td_link_keys_random(struct td_link_key *out_key)
{
    memset(out_key, 0, sizeof *out_key);
    (void)snprintf(out_key->id, sizeof out_key->id, "local");
    out_key->secret_len = 32;
    td_rng_fill(out_key->secret, out_key->secret_len);
}
