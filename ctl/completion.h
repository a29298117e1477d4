/* completion.h - `tandemctl completion bash|zsh|fish`: words and flags for the shell, made from the tables of commands.
 *
 * What: a script on a stream: commands, their flags, the values of flags that have a list of them, files after flags that
 * take a path, and the names of attached nodes where a command wants one (asked of the router, which may be absent). Bash
 * and zsh share one list, written in what both understand; fish has a line for each word.
 * Thread: any. Failure: TD_ERR_UNSUPPORTED for another shell.
 */
#ifndef CTL_COMPLETION_H
#define CTL_COMPLETION_H

#include <stdio.h>

#include "ctl/command.h"

#define CTL_SHELLS "bash|zsh|fish"

td_err ctl_completion_print(const struct ctl_command *commands, size_t n, const char *shell,
                            FILE *out) TD_MUST_CHECK;

#endif
