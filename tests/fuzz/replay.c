/* replay.c - main() of a fuzzer without libFuzzer: runs every file of its corpus as it is, then
 * with seeded changes, so that the normal suite and the sanitizer builds meet both. Usage:
 * NAME_fuzz DIR. Prints TAP. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/fuzz/fuzz.h"

#define REPLAY_MAX 65536 /* bytes of a corpus file */
#define N_CHANGED  64    /* changed copies of each file */

static uint8_t input[REPLAY_MAX];
static uint8_t changed[REPLAY_MAX];

static size_t read_file(const char *dir, const char *name)
{
    char path[1024];
    size_t n = 0;
    FILE *f;

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "rbe");
    if (f != NULL) {
        n = fread(input, 1, sizeof input, f);
        (void)fclose(f);
    }
    return n;
}

/* One to four bytes get other values, or the end is cut off. */
static size_t change(struct td_rng *r, size_t n)
{
    memcpy(changed, input, n);
    if (n == 0) {
        return 0;
    }
    if (td_rng_below(r, 8) == 0) {
        return (size_t)td_rng_below(r, n);
    }
    for (uint64_t i = 0; i <= td_rng_below(r, 4); i++) {
        changed[td_rng_below(r, n)] = (uint8_t)td_rng_next(r);
    }
    return n;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name); /* not by locale */
}

int main(int argc, char **argv)
{
    struct dirent **files = NULL;
    struct td_rng rng = {1};
    int n_files = argc == 2 ? scandir(argv[1], &files, NULL, by_name) : -1;
    int n_run = 0;

    if (n_files < 0) {
        (void)fprintf(stderr, "usage: %s CORPUS-FOLDER\n", argv[0]);
        return 2;
    }
    (void)puts("1..1");
    for (int i = 0; i < n_files; i++) {
        if (files[i]->d_name[0] != '.') {
            size_t n = read_file(argv[1], files[i]->d_name);

            (void)LLVMFuzzerTestOneInput(input, n);
            for (int k = 0; k < N_CHANGED; k++) {
                (void)LLVMFuzzerTestOneInput(changed, change(&rng, n));
            }
            n_run++;
        }
        free(files[i]);
    }
    free(files);
    (void)printf("%s 1 - replays %d corpus files and %d changes of each\n",
                 n_run > 0 ? "ok" : "not ok", n_run, N_CHANGED);
    return n_run > 0 ? 0 : 1;
}
