/* port_owner.h - which process listens on a TCP port of this host.
 *
 * What: reads /proc; sees processes of other users only as root. Thread: any; file access. Failure: "" when unknown.
 */
#ifndef TD_IO_PORT_OWNER_H
#define TD_IO_PORT_OWNER_H

#include <stddef.h>
#include <stdint.h>

/* "tandem-router (pid 123)", or "". */
void td_port_owner(uint16_t port, char *out, size_t cap);

/* The socket that listens on this port, by the text of /proc/net/tcp or tcp6; 0: none. For tests. */
uint64_t td_port_owner_inode(const char *table, uint16_t port);

#endif
