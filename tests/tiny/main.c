/* tiny-gguf: writes a tiny model. Usage: tiny-gguf OUT [--seed N] [--layers N] [--type
 * mix|q4_1|...] [--embd N]
 * [--ffn N] [--heads N] [--kv-heads N] [--ctx N] [--untied] [--arch llama|qwen2|qwen3] [--window N] */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/mem.h"
#include "tests/tiny/tiny_gguf.h"

enum {
    OPT_SEED = 1,
    OPT_LAYERS,
    OPT_TYPE,
    OPT_EMBD,
    OPT_FFN,
    OPT_HEADS,
    OPT_KV,
    OPT_CTX,
    OPT_UNTIED,
    OPT_ARCH,
    OPT_WINDOW
};

static const struct option options[] = {
    {"seed", required_argument, NULL, OPT_SEED},   {"layers", required_argument, NULL, OPT_LAYERS},
    {"type", required_argument, NULL, OPT_TYPE},   {"embd", required_argument, NULL, OPT_EMBD},
    {"ffn", required_argument, NULL, OPT_FFN},     {"heads", required_argument, NULL, OPT_HEADS},
    {"kv-heads", required_argument, NULL, OPT_KV}, {"ctx", required_argument, NULL, OPT_CTX},
    {"arch", required_argument, NULL, OPT_ARCH},   {"window", required_argument, NULL, OPT_WINDOW},
    {"untied", no_argument, NULL, OPT_UNTIED},     {NULL, 0, NULL, 0},
};

/* Numbers that are no numbers become 0, which td_tiny_write() refuses (a seed of 0 is as good as
 * any). */
static uint32_t number(const char *text)
{
    unsigned long long v = strtoull(text, NULL, 10);

    return v <= UINT32_MAX ? (uint32_t)v : 0;
}

static bool apply(struct td_tiny_params *p, int opt, const char *arg)
{
    switch (opt) {
    case OPT_SEED:
        p->seed = strtoull(arg, NULL, 10);
        return true;
    case OPT_TYPE:
        p->type = arg;
        return true;
    case OPT_UNTIED:
        p->untied = true;
        return true;
    case OPT_ARCH:
        p->arch = arg;
        return true;
    case OPT_WINDOW:
        p->window = number(arg);
        return true;
    case OPT_LAYERS:
        p->n_layers = number(arg);
        return true;
    case OPT_EMBD:
        p->n_embd = number(arg);
        return true;
    case OPT_FFN:
        p->n_ffn = number(arg);
        return true;
    case OPT_HEADS:
        p->n_heads = number(arg);
        return true;
    case OPT_KV:
        p->n_kv_heads = number(arg);
        return true;
    case OPT_CTX:
        p->n_ctx = number(arg);
        return true;
    default:
        return false;
    }
}

int main(int argc, char **argv)
{
    struct td_tiny_params p = td_tiny_defaults();
    td_err e;
    int opt;

    while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) { /* NOLINT: one thread */
        if (!apply(&p, opt, optarg)) {
            return 2;
        }
    }
    if (optind + 1 != argc) {
        (void)fprintf(stderr,
                      "usage: tiny-gguf OUT [--seed N] [--layers N] [--type mix|q4_1|...]\n");
        return 2;
    }
    e = td_tiny_write_file(&p, argv[optind]);
    if (e != TD_OK) {
        (void)fprintf(stderr, "tiny-gguf: %s\n", td_err_text(e));
        return 1;
    }
    return 0;
}
