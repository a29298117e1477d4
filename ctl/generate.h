/* generate.h - `tandemctl generate PROMPT`: one request to a router's gRPC port, its answer as it comes.
 *
 * What: tandem.v1.Engine's Generate with sampling, key, deadline and TLS; text on stdout (what would steer a terminal becomes '?'
 * there), or one JSON or YAML document at the end. An example of a client in C as much as a tool.
 * Not: a chat of several messages, token ids in, several choices. Thread: main.
 * Bounds: a prompt of CTL_GENERATE_MAX bytes; one choice.
 * Failure: CTL_USAGE wrong options or files, CTL_UNREACHABLE nobody answers in time or TLS fails, CTL_FAILED the request was
 * refused or failed: its status and code are said.
 */
#ifndef CTL_GENERATE_H
#define CTL_GENERATE_H

#include <stdio.h>

#include "ctl/command.h"

#define CTL_GENERATE_MAX (4u << 20)

extern const struct td_program ctl_generate_program;
enum ctl_exit ctl_generate(const void *options, char *const *args);

/* The key in the first line of a file: CTL_USAGE when there is none. */
enum ctl_exit ctl_generate_key(const char *path, char *out, size_t cap);
/* A part of the answer, which may be cut anywhere but within a character. */
void ctl_generate_put(const char *text, size_t len, bool clean, FILE *out);

#endif
