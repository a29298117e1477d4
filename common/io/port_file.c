#define TD_LOG_ROOM "io"
#include "common/io/port_file.h"

#include "common/base/log.h"

#define MAX_PATH 4096

td_err td_port_file_write(const char *path, td_port_file_fn print, const void *arg)
{
    char tmp[MAX_PATH];
    if (path == NULL || path[0] == '\0') {
        return TD_OK;
    }
    (void)snprintf(tmp, sizeof tmp, "%s.tmp", path);
    FILE *f = fopen(tmp, "we");
    bool ok = f != NULL && print(arg, f);
    ok = f != NULL && fclose(f) == 0 && ok;
    if (!ok || rename(tmp, path) != 0) {
        TD_LOG(ERROR, "cannot write the port file", "path=%s", path);
        return TD_ERR_IO;
    }
    return TD_OK;
}
