#include "common/io/port_owner.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/mem.h"

#define MAX_TABLE (4u << 20)
#define LISTENING 0x0a

/* The words of a line: "sl: local:port remote:port state queues timer retransmits uid timeout inode ...". */
enum { LOCAL = 1, STATE = 3, INODE = 9 };

/* The n-th word of a line, or an empty text at its end. */
static const char *word(const char *line, int n)
{
    line += strspn(line, " ");
    for (; n > 0; n--) {
        line += strcspn(line, " \n");
        line += strspn(line, " ");
    }
    return line;
}

static uint64_t inode_of_line(const char *line, uint16_t port)
{
    const char *local = word(line, LOCAL);
    const char *colon = memchr(local, ':', strcspn(local, " \n"));
    if (colon == NULL || strtoul(colon + 1, NULL, 16) != port ||
        strtoul(word(line, STATE), NULL, 16) != LISTENING) {
        return 0;
    }
    return strtoull(word(line, INODE), NULL, 10);
}

uint64_t td_port_owner_inode(const char *table, uint16_t port)
{
    uint64_t inode = 0;
    for (const char *line = table; line != NULL && *line != 0 && inode == 0;) {
        inode = inode_of_line(line, port);
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    return inode;
}

static uint64_t find_inode(const char *path, uint16_t port)
{
    FILE *f = fopen(path, "re");
    TD_CLEANUP(td_freep) char *text = td_zalloc(MAX_TABLE + 1, 1);
    uint64_t inode = 0;
    if (f != NULL && text != NULL) {
        text[fread(text, 1, MAX_TABLE, f)] = 0;
        inode = td_port_owner_inode(text, port);
    }
    if (f != NULL) {
        (void)fclose(f);
    }
    return inode;
}

/* Does this process hold the socket? `want` is its name in /proc, "socket:[123]". */
static bool holds(const char *pid, const char *want)
{
    char path[64], target[64];
    bool found = false;
    (void)snprintf(path, sizeof path, "/proc/%.20s/fd", pid);
    DIR *d = opendir(path);
    struct dirent *e;
    while (d != NULL && !found &&
           (e = readdir(d)) != NULL) { /* NOLINT(concurrency-mt-unsafe): own DIR */
        ssize_t n = readlinkat(dirfd(d), e->d_name, target, sizeof target - 1);
        target[n > 0 ? n : 0] = 0;
        found = strcmp(target, want) == 0;
    }
    if (d != NULL) {
        (void)closedir(d);
    }
    return found;
}

/* By its program: a thread's name hides it in "comm". */
static void name_process(const char *pid, char *out, size_t cap)
{
    char path[64], program[512];
    (void)snprintf(path, sizeof path, "/proc/%.20s/exe", pid);
    ssize_t n = readlink(path, program, sizeof program - 1);
    program[n > 0 ? n : 0] = 0;
    const char *slash = strrchr(program, '/');
    (void)snprintf(out, cap, "%.40s (pid %.20s)", slash != NULL ? slash + 1 : "a process", pid);
}

void td_port_owner(uint16_t port, char *out, size_t cap)
{
    char want[48];
    uint64_t inode = find_inode("/proc/net/tcp", port);
    inode = inode != 0 ? inode : find_inode("/proc/net/tcp6", port);
    out[0] = 0;
    DIR *d = inode != 0 ? opendir("/proc") : NULL;
    struct dirent *e;
    (void)snprintf(want, sizeof want, "socket:[%" PRIu64 "]", inode);
    while (d != NULL && out[0] == 0 &&
           (e = readdir(d)) != NULL) { /* NOLINT(concurrency-mt-unsafe): own DIR */
        bool is_pid = e->d_name[0] >= '0' && e->d_name[0] <= '9';
        if (is_pid && holds(e->d_name, want)) {
            name_process(e->d_name, out, cap);
        }
    }
    if (d != NULL) {
        (void)closedir(d);
    }
}
