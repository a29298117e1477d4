/* port_file.h - where a process tells which ports it listens on: --port-file.
 *
 * What: whoever waits for the file sees it whole or not at all. Thread: any; file access. Failure: TD_ERR_IO, logged.
 */
#ifndef TD_IO_PORT_FILE_H
#define TD_IO_PORT_FILE_H

#include <stdbool.h>
#include <stdio.h>

#include "common/base/err.h"

/* Lines of ports; false: the file did not take them. */
typedef bool (*td_port_file_fn)(const void *arg, FILE *f);

/* Writes what `print` prints over the file of that path, by a neighbour that is renamed. NULL or "": nothing to do. */
td_err td_port_file_write(const char *path, td_port_file_fn print, const void *arg) TD_MUST_CHECK;

#endif
