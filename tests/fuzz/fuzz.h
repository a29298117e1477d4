/* fuzz.h - the one function of a fuzzer: libFuzzer calls it with -Dfuzz=true, replay.c with the
 * corpus otherwise. */
#ifndef TD_TESTS_FUZZ_FUZZ_H
#define TD_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* libFuzzer's name. Any input is right; wrong is only what a sanitizer, an assertion or a hang
 * says. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size); /* NOLINT: libFuzzer's name */

#endif
