/* completion.h - `tandemctl completion bash`: words and flags for the shell, made from the tables of commands.
 *
 * What: a bash script on a stream: commands, their flags, and the values of flags that have a list of them; files after
 * other flags. Not: other shells. Thread: any. Failure: TD_ERR_UNSUPPORTED for another shell.
 */
#ifndef CTL_COMPLETION_H
#define CTL_COMPLETION_H

#include <stdio.h>

#include "ctl/command.h"

td_err ctl_completion_print(const struct ctl_command *commands, size_t n, const char *shell,
                            FILE *out) TD_MUST_CHECK;

#endif
