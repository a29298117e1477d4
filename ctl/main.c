/* main.c - tandemctl: the table of its commands. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "ctl/bench.h"
#include "ctl/command.h"
#include "ctl/describe.h"
#include "ctl/doctor.h"
#include "ctl/drain.h"
#include "ctl/explain.h"
#include "ctl/export_tokenizer.h"
#include "ctl/generate.h"
#include "ctl/get.h"
#include "ctl/health.h"
#include "ctl/make_model.h"
#include "ctl/top.h"
#include "ctl/version.h"
#include "ctl/watch.h"

static const struct ctl_command commands[] = {
    {"get nodes", "", 0, &ctl_get_nodes_program, ctl_get_nodes},
    {"get requests", "", 0, &ctl_get_requests_program, ctl_get_requests},
    {"get transfers", "", 0, &ctl_get_transfers_program, ctl_get_transfers},
    {"top", "", 0, &ctl_top_program, ctl_top},
    {"describe node", "NODE", 1, &ctl_describe_node_program, ctl_describe_node},
    {"describe request", "REQUEST", 1, &ctl_describe_request_program, ctl_describe_request},
    {"drain", "NODE", 1, &ctl_drain_program, ctl_drain},
    {"watch", "", 0, &ctl_watch_program, ctl_watch},
    {"generate", "PROMPT", 1, &ctl_generate_program, ctl_generate},
    {"explain", "REQUEST", 1, &ctl_explain_program, ctl_explain},
    {"health", "HOST:PORT", 1, &ctl_health_program, ctl_health},
    {"doctor", "", 0, &ctl_doctor_program, ctl_doctor},
    {"bench engine", "", 0, &ctl_bench_engine_program, ctl_bench_engine},
    {"export-tokenizer", "DIR", 1, &ctl_export_tokenizer_program, ctl_export_tokenizer},
    {"make-model", "OUT", 1, &ctl_make_model_program, ctl_make_model},
    {"version", "", 0, &ctl_version_program, ctl_version},
};

int main(int argc, char **argv)
{
    td_log_set_level(TD_LOG_WARN);
    enum ctl_exit status = ctl_command_run(commands, TD_COUNT(commands), argc, argv);
    errno = 0; /* a flush that has nothing left to do sets none, though an earlier one failed */
    if ((fflush(stdout) != 0 || ferror(stdout) != 0) && status <= CTL_FAILED) {
        ctl_say("the answer could not be written: %s", strerrordesc_np(errno != 0 ? errno : EIO));
        status = CTL_FAILED;
    }
    return (int)status;
}
