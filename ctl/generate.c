/* Design: the stream's messages are decoded one by one into an arena that is reset for each; text goes out at once, what the
 * document at the end needs is kept in buffers with a maximum.
 */
#include "ctl/generate.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "ctl/call.h"
#include "ctl/output.h"
#include "proto/api_client.h"

#define ARENA_BYTES  (1u << 20)
#define DEFAULT      "127.0.0.1:8002"
#define KEEPALIVE_US 10000000

struct options {
    char *server, *api_key_file, *model, *request_id;
    struct ctl_tls tls;
    struct td_str_list stop;
    bool chat, stats;
    double temperature, top_p, timeout_s;
    int64_t max_tokens, seed;
    int format;
};

static const struct td_opt opts[] = {
    CTL_OPT("server", STRING, DEFAULT, "host:port", 0, 0, NULL,
            "gRPC port of a router, or of a node with --role both", server),
    CTL_OPT("timeout", DOUBLE, "600", "s", 0.01, 86400, NULL,
            "deadline of the whole answer; the server keeps it too", timeout_s),
    CTL_TLS_OPTS(tls),
    CTL_OPT("api-key-file", STRING, "", "path", 0, 0, NULL, "its first line is the key",
            api_key_file),
    CTL_OPT("model", STRING, "", "", 0, 0, NULL, "empty: the only one that is served", model),
    CTL_OPT(
        "chat", BOOL, "false", "", 0, 0, NULL,
        "PROMPT is a user's message in the model's chat template; else its text goes in as it is",
        chat),
    CTL_OPT("max-tokens", INT, "0", "", 0, 16777216, NULL, "of the answer; 0: the server's default",
            max_tokens),
    CTL_OPT("temperature", DOUBLE, "-1", "", -1, 2, NULL,
            "0 is greedy; negative: the server's default", temperature),
    CTL_OPT("top-p", DOUBLE, "-1", "", -1, 1, NULL, "negative: the server's default", top_p),
    CTL_OPT("seed", INT, "-1", "", -1, 9e15, NULL, "negative: any", seed),
    CTL_OPT("stop", LIST, "", "", 0, 0, NULL, "texts that end the answer", stop),
    CTL_OPT("request-id", STRING, "", "", 0, 0, NULL,
            "for logs and tandemctl explain; empty: the router's", request_id),
    CTL_OPT("stats", BOOL, "false", "", 0, 0, NULL, "a line of counts on stderr at the end", stats),
    CTL_OPT("output", ENUM, "table", "", 0, 0, CTL_FORMATS,
            "or -o: table and wide are the text as it comes, json and yaml a document at the end",
            format),
};

const struct td_program ctl_generate_program = {.name = "tandemctl generate",
                                                .summary =
                                                    "one request over gRPC, its answer as it comes",
                                                .opts = opts,
                                                .n_opts = TD_COUNT(opts),
                                                .struct_bytes = sizeof(struct options)};

/* ---- what goes in ---- */

enum ctl_exit ctl_generate_key(const char *path, char *out, size_t cap)
{
    FILE *f = fopen(path, "re");
    if (f == NULL) {
        ctl_say("cannot read %s: %s", path, strerrordesc_np(errno));
        return CTL_USAGE;
    }
    bool read = fgets(out, (int)cap, f) != NULL;
    (void)fclose(f);
    size_t n = read ? strcspn(out, "\r\n") : 0;
    if (n == 0 || (n + 1 == cap && out[n] == 0)) {
        ctl_say("%s: its first line is to be a key of at most %zu bytes", path, cap - 2);
        return CTL_USAGE;
    }
    out[n] = 0;
    return CTL_OK;
}

/* "-" is stdin. */
static enum ctl_exit read_prompt(const char *arg, struct td_buf *out)
{
    char block[8192];
    size_t n = 0;
    td_err err = strcmp(arg, "-") != 0 ? td_buf_puts(out, arg) : TD_OK;
    while (strcmp(arg, "-") == 0 && err == TD_OK &&
           (n = fread(block, 1, sizeof block, stdin)) > 0) {
        err = td_buf_append(out, block, n);
    }
    err = err == TD_OK ? td_buf_append(out, "", 1) : err;
    if (err != TD_OK || strlen((const char *)out->data) + 1 != out->len) {
        ctl_say("the prompt is larger than 4 MiB, or holds a zero byte");
        return CTL_USAGE;
    }
    return CTL_OK;
}

static td_err encode(const struct options *o, const char *prompt, struct td_buf *out)
{
    const struct td_api_chat_message message = {.role = "user", .content = prompt};
    const struct td_api_sampling sampling = {.has_temperature = o->temperature >= 0,
                                             .temperature = (float)o->temperature,
                                             .has_top_p = o->top_p >= 0,
                                             .top_p = (float)o->top_p,
                                             .has_seed = o->seed >= 0,
                                             .seed = (uint64_t)o->seed,
                                             .has_max_tokens = o->max_tokens > 0,
                                             .max_tokens = (uint32_t)o->max_tokens,
                                             .stop = (const char *const *)o->stop.items,
                                             .n_stop = o->stop.count};
    const struct td_api_generate g = {.model = o->model,
                                      .request_id = o->request_id,
                                      .input = o->chat ? TD_API_CHAT : TD_API_TEXT,
                                      .text = prompt,
                                      .messages = &message,
                                      .n_messages = 1,
                                      .has_sampling = true,
                                      .sampling = sampling,
                                      .n = 1};
    return td_api_generate_encode(out, &g);
}

/* ---- what comes out ---- */

struct answer {
    const struct options *o;
    struct td_arena *arena; /* owned, as are the buffers */
    struct td_buf text, ids;
    char id[160];
    enum td_finish finish;
    struct td_api_usage usage;
    int64_t start_us, first_us; /* 0: no token yet */
    bool clean;
    td_err err;
};

void ctl_generate_put(const char *text, size_t len, bool clean, FILE *out)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        bool c1 =
            c == 0xc2 && i + 1 < len && (unsigned char)text[i + 1] < 0xa0; /* U+0080 to U+009F */
        bool steers = c1 || c == 0x7f || (c < ' ' && c != '\n' && c != '\t');
        (void)fputc(clean && steers ? '?' : c, out);
        i += clean && c1 ? 1 : 0;
    }
}

static td_err keep(struct answer *a, const struct td_api_delta *d)
{
    if (a->first_us == 0 && d->n_ids > 0) {
        a->first_us = td_now_us();
    }
    a->finish = d->finish != TD_FINISH_NONE ? d->finish : a->finish;
    if (a->o->format == CTL_TABLE || a->o->format == CTL_WIDE) {
        ctl_generate_put(d->text, d->len, a->clean, stdout);
        return fflush(stdout) == 0 ? TD_OK : TD_ERR_IO; /* who reads wants it now */
    }
    TD_TRY(d->len > 0 ? td_buf_append(&a->text, d->text, d->len) : TD_OK);
    return d->n_ids > 0 ? td_buf_append(&a->ids, d->ids, d->n_ids * sizeof *d->ids) : TD_OK;
}

static bool on_message(void *arg, const uint8_t *data, size_t len)
{
    struct answer *a = arg;
    struct td_api_generated g;
    td_arena_reset(a->arena);
    a->err = td_api_generated_decode(data, len, a->arena, &g);
    if (a->err != TD_OK) {
        return false;
    }
    (void)snprintf(a->id, sizeof a->id, "%s", g.id);
    if (g.said == TD_API_SAID_DELTA) {
        a->err = keep(a, &g.delta);
    } else if (g.said == TD_API_SAID_USAGE) {
        a->usage = g.usage;
    }
    return a->err == TD_OK;
}

static const char *finish_name(enum td_finish f)
{
    static const char *const names[] = {"", "stop", "length", "abort", "error"};
    return names[f];
}

static td_err print_document(const struct answer *a)
{
    json_t *ids = json_array();
    const int32_t *at = (const int32_t *)(const void *)a->ids.data;
    for (size_t i = 0; i < a->ids.len / sizeof *at && ids != NULL; i++) {
        (void)json_array_append_new(ids, json_integer(at[i])); /* a lost one shows in the count */
    }
    json_t *doc = json_pack(
        "{s:s, s:o, s:o, s:s, s:{s:I, s:I, s:I}, s:I, s:I}", "id", a->id, "text",
        json_stringn(a->text.len > 0 ? (const char *)a->text.data : "", a->text.len), "token_ids",
        ids, "finish_reason", finish_name(a->finish), "usage", "prompt_tokens",
        (json_int_t)a->usage.prompt_tokens, "completion_tokens",
        (json_int_t)a->usage.completion_tokens, "cached_tokens", (json_int_t)a->usage.cached_tokens,
        "first_token_us", (json_int_t)(a->first_us != 0 ? a->first_us - a->start_us : -1),
        "total_us", (json_int_t)(td_now_us() - a->start_us));
    td_err err = doc != NULL ? ctl_document_print(doc, (enum ctl_format)a->o->format, stdout)
                             : TD_ERR_NO_MEMORY;
    json_decref(doc);
    return err;
}

static enum ctl_exit show_end(const struct answer *a)
{
    td_err err = TD_OK;
    if (a->o->format == CTL_JSON || a->o->format == CTL_YAML) {
        err = print_document(a);
    } else {
        (void)fputc('\n', stdout);
    }
    (void)fflush(stdout); /* before the line below; a failure is told at the end */
    if (a->o->stats) {
        char text[2][32];
        (void)fprintf(stderr,
                      "%s: %" PRIu64 " prompt tokens (%" PRIu64 " cached), %" PRIu64
                      " of output, ended by %s; first after %s, total %s\n",
                      a->id, a->usage.prompt_tokens, a->usage.cached_tokens,
                      a->usage.completion_tokens, finish_name(a->finish),
                      ctl_format_us(a->first_us != 0 ? a->first_us - a->start_us : -1, text[0], 32),
                      ctl_format_us(td_now_us() - a->start_us, text[1], 32));
    }
    return err == TD_OK && fflush(stdout) == 0 ? CTL_OK : CTL_FAILED;
}

/* ---- the call ---- */

static enum ctl_exit call(struct answer *a, const struct ctl_peer *peer, const char *key,
                          const struct td_buf *message)
{
    char why[256] = "";
    struct td_grpc_client_answer answer;
    const struct td_grpc_client_call c = {.address = peer->address,
                                          .tls = peer->tls,
                                          .path = "/tandem.v1.Engine/Generate",
                                          .key = key[0] != 0 ? key : NULL,
                                          .message = message->data,
                                          .len = message->len,
                                          .timeout_us = (int64_t)(a->o->timeout_s * 1e6),
                                          .keepalive_us = KEEPALIVE_US,
                                          .on_message = on_message,
                                          .arg = a};
    a->start_us = td_now_us();
    td_err err = td_grpc_client_run(&c, &answer, why, sizeof why);
    if (err != TD_OK) {
        ctl_say("%s: %s", a->o->server, why);
        return err == TD_ERR_BAD_REQUEST                           ? CTL_USAGE
               : err == TD_ERR_PROTOCOL || err == TD_ERR_TOO_LARGE ? CTL_FAILED
                                                                   : CTL_UNREACHABLE;
    }
    if (a->err != TD_OK) {
        td_grpc_client_answer_fini(&answer);
        if (a->err == TD_ERR_BAD_REQUEST) {
            ctl_say("%s: not the answer of an engine of this version", a->o->server);
        }
        return CTL_FAILED;
    }
    enum ctl_exit status = ctl_call_judge(a->o->server, false, &answer);
    if (status == CTL_OK) {
        td_grpc_client_answer_fini(&answer);
        status = show_end(a);
    }
    if (status == CTL_OK && a->finish == TD_FINISH_NONE) {
        ctl_say("%s: the answer stopped without an end", a->o->server);
        status = CTL_FAILED;
    }
    return status;
}

static enum ctl_exit generate(const struct options *o, const char *key, const char *prompt,
                              const struct ctl_peer *peer)
{
    struct td_buf message;
    struct answer a = {
        .o = o, .arena = td_arena_create(ARENA_BYTES), .clean = isatty(STDOUT_FILENO) != 0};
    td_buf_init(&message, CTL_GENERATE_MAX + 65536);
    td_buf_init(&a.text, TD_GRPC_CLIENT_MAX);
    td_buf_init(&a.ids, TD_GRPC_CLIENT_MAX);
    enum ctl_exit status = CTL_FAILED;
    if (a.arena == NULL || encode(o, prompt, &message) != TD_OK) {
        ctl_say("the request does not fit into memory");
    } else {
        status = call(&a, peer, key, &message);
    }
    td_buf_fini(&message);
    td_buf_fini(&a.text);
    td_buf_fini(&a.ids);
    td_arena_destroy(a.arena);
    return status;
}

enum ctl_exit ctl_generate(const void *options, char *const *args)
{
    const struct options *o = options;
    char key[TD_GRPC_CLIENT_MAX_KEY + 2] = "";
    struct td_buf prompt;
    struct ctl_peer peer = {.tls = NULL};
    td_buf_init(&prompt, CTL_GENERATE_MAX);
    enum ctl_exit status =
        o->api_key_file[0] != 0 ? ctl_generate_key(o->api_key_file, key, sizeof key) : CTL_OK;
    status = status == CTL_OK ? read_prompt(args[0], &prompt) : status;
    status =
        status == CTL_OK ? ctl_peer_open("--server", o->server, &o->tls, false, &peer) : status;
    if (status == CTL_OK) {
        status = generate(o, key, (const char *)prompt.data, &peer);
        ctl_peer_close(&peer);
    }
    td_buf_fini(&prompt);
    return status;
}
