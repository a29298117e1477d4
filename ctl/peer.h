/* peer.h - whom a command talks to: an address, in cleartext or by TLS.
 *
 * What: the TLS options of every command that asks something, and what they and a given "http://host:port", "https://..." or
 * "host:port" come to. The scheme decides; without one, any TLS option means TLS.
 * Not: a connection (common/io/http_client.h, grpc_client.h).
 * Thread: main. Bounds: CTL_PEER_MAX bytes of address. Failure: a line on stderr and CTL_USAGE.
 */
#ifndef CTL_PEER_H
#define CTL_PEER_H

#include <stdbool.h>

#include "common/io/tls_client.h"
#include "ctl/command.h"

#define CTL_PEER_MAX 512

struct ctl_tls {
    char *ca, *cert, *key, *server_name; /* NULL or "": not given */
};
#define CTL_TLS_OPTS(field)                                                                        \
    CTL_OPT("tls-ca", STRING, "", "path", 0, 0, NULL,                                              \
            "PEM certificates to trust for https://; empty: the system's", field.ca),              \
        CTL_OPT("tls-cert", STRING, "", "path", 0, 0, NULL,                                        \
                "PEM certificate to show, where one is asked for", field.cert),                    \
        CTL_OPT("tls-key", STRING, "", "path", 0, 0, NULL, "PEM key of --tls-cert, no password",   \
                field.key),                                                                        \
        CTL_OPT("tls-server-name", STRING, "", "", 0, 0, NULL,                                     \
                "expected in the server's certificate; empty: the host that is asked",             \
                field.server_name)

struct ctl_peer {
    char url[CTL_PEER_MAX];     /* "https://host:port", no slash behind */
    char address[CTL_PEER_MAX]; /* "host:port", for gRPC */
    bool has_path;              /* the URL has one: gRPC knows none */
    struct td_tls_client *tls;  /* owned; NULL: cleartext */
};

/* `option` names `given` in what is said. quiet: nothing is. */
enum ctl_exit ctl_peer_open(const char *option, const char *given, const struct ctl_tls *tls,
                            bool quiet, struct ctl_peer *out);
void ctl_peer_close(struct ctl_peer *p);

#endif
