/* link_keys.h - the cluster secret: which keys prove that a process belongs to the cluster.
 *
 * What: a file of lines `key-id secret` ('#' starts a comment). The first key is used for dialing,
 * all are accepted, so that a secret is rotated by adding the new line to every process first and
 * moving it to the top later. Secrets are TD_LINK_SECRET_MIN to TD_LINK_SECRET_MAX bytes without
 * spaces. Thread: any. Failure: TD_ERR_NO_FILE, TD_ERR_CONFIG, logged with the line; secrets are
 * never logged.
 */
#ifndef TD_IO_LINK_KEYS_H
#define TD_IO_LINK_KEYS_H

#include <stdint.h>

#include "common/base/err.h"
#include "common/io/link_session.h"

td_err td_link_keys_load(const char *path, struct td_link_key out_keys[TD_LINK_MAX_KEYS],
                         uint32_t *out_n) TD_MUST_CHECK;
/* A fresh random key named "local", for links inside one process. */
void td_link_keys_random(struct td_link_key *out_key);

#endif
