/* capture.h - what a function prints to a stream, as text. Owned by the caller: free(). */
#ifndef TD_TESTS_UNIT_CTL_CAPTURE_H
#define TD_TESTS_UNIT_CTL_CAPTURE_H

#include <stdio.h>
#include <stdlib.h>

/* CAPTURE(text, out, call(..., out)): runs the statement with a stream `out` and leaves what it printed in `text`. */
#define CAPTURE(text, out, statement)                                                              \
    char *text = NULL;                                                                             \
    do {                                                                                           \
        size_t capture_n_ = 0;                                                                     \
        FILE *out = open_memstream(&text, &capture_n_);                                            \
        assert_non_null(out);                                                                      \
        statement;                                                                                 \
        (void)fclose(out);                                                                         \
    } while (0)

#endif
