/* version.h - `tandemctl version`: its own version and that of the router, if one answers.
 *
 * What: two lines, or one object. A router that does not answer is said, and no failure: the question was answered.
 * Thread: main. Failure: none but a wrong command line.
 */
#ifndef CTL_VERSION_H
#define CTL_VERSION_H

#include "ctl/command.h"

extern const struct td_program ctl_version_program;
enum ctl_exit ctl_version(const void *options, char *const *args);

#endif
