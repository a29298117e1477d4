#include "common/model/hf_dir.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/assert.h"
#include "common/model/gguf_priv.h"
#include "common/model/safetensors.h"

#define DIR_MAGIC 0x68666472u
#define SINGLE    "model.safetensors"
#define INDEX     "model.safetensors.index.json"
/* A vocabulary of a million with as many merges, each a pair. */
#define TOKENIZER_JSON ((struct td_json_limits){.depth = 16, .values = 8u * 1024 * 1024})
#define INDEX_JSON     ((struct td_json_limits){.depth = 8, .values = 2u * TD_ST_MAX_TENSORS})
#define CONFIG_JSON    ((struct td_json_limits){.depth = 32, .values = 100000})

struct td_hf_dir {
    uint32_t magic;
    char *path;                                                 /* owned */
    json_t *config, *generation, *tokenizer_config, *tokenizer; /* owned references */
    struct td_file_map jinja;
    size_t n_shards;
    struct td_safetensors **shards; /* owned [n_shards] */
    const char **shard_names;       /* owned array; borrowed from index */
    json_t *index;                  /* owned reference, or NULL */
    size_t n_tensors;
    struct td_gguf_tensor *tensors; /* owned, sorted by name */
    uint64_t bytes;
};

/* ---- files ---- */

static td_err join(const struct td_hf_dir *d, const char *name, char out[TD_HF_MAX_PATH],
                   const struct td_why *w)
{
    int n = snprintf(out, TD_HF_MAX_PATH, "%s/%s", d->path, name);

    return n > 0 && (unsigned)n < TD_HF_MAX_PATH
               ? TD_OK
               : td_why(w, TD_ERR_FILE_FORMAT, "the path of %s is too long", name);
}

/* Puts the file's name before the sentence. */
static td_err in_file(const struct td_why *w, td_err e, const char *name)
{
    char inner[TD_GGUF_ERR_TEXT];

    if (w->text == NULL || w->cap == 0) {
        return e;
    }
    (void)snprintf(inner, sizeof inner, "%s", w->text); /* cut to fit is fine */
    return td_why(w, e, "%s: %s", name, inner);
}

static td_err read_json(const struct td_hf_dir *d, const char *name, uint64_t max,
                        const struct td_json_limits *limits, json_t **out, const struct td_why *w)
{
    char path[TD_HF_MAX_PATH];
    td_err e;

    TD_TRY(join(d, name, path, w));
    e = td_file_json(path, max, limits, out, w);
    return e == TD_OK || e == TD_ERR_NOT_FOUND ? e : in_file(w, e, name);
}

static td_err read_optional(const struct td_hf_dir *d, const char *name, uint64_t max,
                            const struct td_json_limits *limits, json_t **out,
                            const struct td_why *w)
{
    td_err e = read_json(d, name, max, limits, out, w);

    return e == TD_ERR_NOT_FOUND ? TD_OK : e;
}

static td_err read_template(struct td_hf_dir *d, const struct td_why *w)
{
    static const char name[] = "chat_template.jinja";
    char path[TD_HF_MAX_PATH];
    td_err e;

    TD_TRY(join(d, name, path, w));
    if (access(path, F_OK) != 0) {
        return TD_OK;
    }
    e = td_file_map(path, TD_HF_MAX_CONFIG, &d->jinja, w);
    return e == TD_OK ? TD_OK : in_file(w, e, name);
}

static td_err read_files(struct td_hf_dir *d, const struct td_why *w)
{
    static const char config[] = "config.json";
    td_err e = read_json(d, config, TD_HF_MAX_CONFIG, &CONFIG_JSON, &d->config, w);

    if (e != TD_OK) {
        return e == TD_ERR_NOT_FOUND ? td_why(w, TD_ERR_NO_FILE, "the directory has no %s", config)
                                     : e;
    }
    TD_TRY(read_optional(d, "generation_config.json", TD_HF_MAX_CONFIG, &CONFIG_JSON,
                         &d->generation, w));
    TD_TRY(read_optional(d, "tokenizer_config.json", TD_HF_MAX_CONFIG, &CONFIG_JSON,
                         &d->tokenizer_config, w));
    TD_TRY(
        read_optional(d, "tokenizer.json", TD_HF_MAX_TOKENIZER, &TOKENIZER_JSON, &d->tokenizer, w));
    return read_template(d, w);
}

/* ---- shards ---- */

static td_err open_shard(struct td_hf_dir *d, const char *name, const struct td_why *w)
{
    char path[TD_HF_MAX_PATH];
    struct td_safetensors *st = NULL;
    td_err e;

    TD_TRY(join(d, name, path, w));
    e = td_safetensors_open(path, &st, w);
    if (e != TD_OK) {
        return in_file(w, e, name);
    }
    d->shard_names[d->n_shards] = name;
    d->shards[d->n_shards++] = st;
    d->n_tensors += td_safetensors_n(st);
    d->bytes += td_safetensors_file_bytes(st);
    return TD_OK;
}

/* A file of this directory, not a path out of it. */
static bool is_shard_name(const char *name)
{
    size_t n = strlen(name);
    static const char end[] = ".safetensors";

    return n > sizeof end - 1 && n < 256 && name[0] != '.' && strchr(name, '/') == NULL &&
           strcmp(name + n - (sizeof end - 1), end) == 0;
}

static const struct td_safetensors *find_shard(const struct td_hf_dir *d, const char *name)
{
    for (size_t i = 0; i < d->n_shards; i++) {
        if (strcmp(d->shard_names[i], name) == 0) {
            return d->shards[i];
        }
    }
    return NULL;
}

/* One entry of the index: opens its shard when it is new, and finds its tensor there. */
static td_err take_indexed(struct td_hf_dir *d, const char *tensor, const json_t *file,
                           const struct td_why *w)
{
    const char *name = json_string_value(file);
    struct td_str key = {tensor, strlen(tensor)};
    const struct td_safetensors *st;

    if (name == NULL || !is_shard_name(name)) {
        return td_why(w, TD_ERR_FILE_FORMAT, INDEX ": tensor %s is not in a .safetensors file",
                      td_show(key).text);
    }
    st = find_shard(d, name);
    if (st == NULL) {
        if (d->n_shards == TD_HF_MAX_SHARDS) {
            return td_why(w, TD_ERR_FILE_FORMAT, INDEX ": more than %u shards", TD_HF_MAX_SHARDS);
        }
        TD_TRY(open_shard(d, name, w));
        st = d->shards[d->n_shards - 1];
    }
    if (td_safetensors_find(st, key) == NULL) {
        return td_why(w, TD_ERR_FILE_FORMAT, INDEX ": tensor %s is not in %s", td_show(key).text,
                      td_show((struct td_str){name, strlen(name)}).text);
    }
    return TD_OK;
}

static td_err open_index(struct td_hf_dir *d, const struct td_why *w)
{
    const json_t *map = json_object_get(d->index, "weight_map");
    const char *tensor;
    json_t *file;

    if (!json_is_object(map) || json_object_size(map) == 0) {
        return td_why(w, TD_ERR_FILE_FORMAT, INDEX ": has no weight_map");
    }
    json_object_foreach((json_t *)(uintptr_t)map, tensor, file)
    {
        TD_TRY(take_indexed(d, tensor, file, w));
    }
    if (json_object_size(map) != d->n_tensors) {
        return td_why(w, TD_ERR_FILE_FORMAT, INDEX ": names %zu tensors, the shards hold %zu",
                      json_object_size(map), d->n_tensors);
    }
    return TD_OK;
}

static td_err open_shards(struct td_hf_dir *d, const struct td_why *w)
{
    char path[TD_HF_MAX_PATH];

    d->shards = td_zalloc(TD_HF_MAX_SHARDS, sizeof(struct td_safetensors *));
    d->shard_names = td_zalloc(TD_HF_MAX_SHARDS, sizeof *d->shard_names);
    if (d->shards == NULL || d->shard_names == NULL) {
        return td_why(w, TD_ERR_NO_MEMORY, "out of memory");
    }
    TD_TRY(join(d, SINGLE, path, w));
    if (access(path, F_OK) == 0) {
        return open_shard(d, SINGLE, w);
    }
    TD_TRY(read_optional(d, INDEX, TD_HF_MAX_INDEX, &INDEX_JSON, &d->index, w));
    return d->index != NULL ? open_index(d, w)
                            : td_why(w, TD_ERR_NO_FILE,
                                     "the directory has neither " SINGLE " nor " INDEX
                                     " (pickled weights are not read)");
}

/* ---- one table ---- */

static int by_name(const void *a, const void *b)
{
    return td__str_cmp(((const struct td_gguf_tensor *)a)->name,
                       ((const struct td_gguf_tensor *)b)->name);
}

static td_err make_table(struct td_hf_dir *d, const struct td_why *w)
{
    size_t at = 0;

    if (d->n_tensors > TD_ST_MAX_TENSORS) {
        return td_why(w, TD_ERR_FILE_FORMAT, "%zu tensors, more than %u", d->n_tensors,
                      TD_ST_MAX_TENSORS);
    }
    d->tensors = td_zalloc(d->n_tensors + 1, sizeof *d->tensors);
    if (d->tensors == NULL) {
        return td_why(w, TD_ERR_NO_MEMORY, "out of memory for %zu tensors", d->n_tensors);
    }
    for (size_t s = 0; s < d->n_shards; s++) {
        for (size_t i = 0; i < td_safetensors_n(d->shards[s]); i++) {
            d->tensors[at++] = *td_safetensors_at(d->shards[s], i);
        }
    }
    qsort(d->tensors, d->n_tensors, sizeof *d->tensors, by_name);
    for (size_t i = 1; i < d->n_tensors; i++) {
        if (by_name(&d->tensors[i - 1], &d->tensors[i]) == 0) {
            return td_why(w, TD_ERR_FILE_FORMAT, "tensor %s is in two shards",
                          td_show(d->tensors[i].name).text);
        }
    }
    return TD_OK;
}

/* ---- life ---- */

bool td_hf_is_dir(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

td_err td_hf_dir_open(const char *path, struct td_hf_dir **out_dir, const struct td_why *w)
{
    TD_CLEANUP(td_hf_dir_closep) struct td_hf_dir *d = td_zalloc(1, sizeof *d);

    if (d == NULL || (d->path = td_strdup(path)) == NULL) {
        return td_why(w, TD_ERR_NO_MEMORY, "out of memory");
    }
    TD_TRY(read_files(d, w));
    TD_TRY(open_shards(d, w));
    TD_TRY(make_table(d, w));
    d->magic = DIR_MAGIC;
    *out_dir = TD_STEAL(d);
    return TD_OK;
}

struct td_hf_dir *td_hf_dir_close(struct td_hf_dir *d)
{
    if (d == NULL) {
        return NULL;
    }
    d->magic = 0;
    for (size_t i = 0; i < d->n_shards; i++) {
        (void)td_safetensors_close(d->shards[i]); /* always NULL */
    }
    td_file_unmap(&d->jinja);
    json_decref(d->config);
    json_decref(d->generation);
    json_decref(d->tokenizer_config);
    json_decref(d->tokenizer);
    json_decref(d->index);
    free(d->shards);
    free(d->shard_names);
    free(d->tensors);
    free(d->path);
    free(d);
    return NULL;
}

const json_t *td_hf_dir_config(const struct td_hf_dir *d)
{
    TD_REQUIRE(d->magic == DIR_MAGIC);
    return d->config;
}

const json_t *td_hf_dir_generation(const struct td_hf_dir *d)
{
    return d->generation;
}

const json_t *td_hf_dir_tokenizer_config(const struct td_hf_dir *d)
{
    return d->tokenizer_config;
}

const json_t *td_hf_dir_tokenizer(const struct td_hf_dir *d)
{
    return d->tokenizer;
}

void td_hf_dir_drop_tokenizer(struct td_hf_dir *d)
{
    json_decref(d->tokenizer);
    d->tokenizer = NULL;
}

struct td_str td_hf_dir_template(const struct td_hf_dir *d)
{
    return (struct td_str){d->jinja.data != NULL ? d->jinja.data : "", (size_t)d->jinja.len};
}

struct td_str td_hf_dir_name(const struct td_hf_dir *d)
{
    size_t end = strlen(d->path);
    size_t begin;

    while (end > 1 && d->path[end - 1] == '/') {
        end--;
    }
    begin = end;
    while (begin > 0 && d->path[begin - 1] != '/') {
        begin--;
    }
    return (struct td_str){d->path + begin, end - begin};
}

size_t td_hf_dir_n_tensors(const struct td_hf_dir *d)
{
    return d->n_tensors;
}

const struct td_gguf_tensor *td_hf_dir_tensor_at(const struct td_hf_dir *d, size_t i)
{
    TD_REQUIRE(i < d->n_tensors);
    return &d->tensors[i];
}

const struct td_gguf_tensor *td_hf_dir_tensor(const struct td_hf_dir *d, const char *name)
{
    struct td_gguf_tensor key = {.name = {name, strlen(name)}};

    return d->n_tensors > 0 ? bsearch(&key, d->tensors, d->n_tensors, sizeof *d->tensors, by_name)
                            : NULL;
}

uint64_t td_hf_dir_bytes(const struct td_hf_dir *d)
{
    return d->bytes;
}
