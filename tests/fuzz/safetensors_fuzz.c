/* A safetensors file from anywhere: every tensor of a file that opens can be read to its last byte,
 * is found by its name, and all of them cover the data. */
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/model/safetensors.h"
#include "tests/fuzz/fuzz.h"

static void read_all(const struct td_safetensors *st)
{
    volatile uint8_t sink = 0;
    uint64_t sum = 0;

    for (size_t i = 0; i < td_safetensors_n(st); i++) {
        const struct td_gguf_tensor *t = td_safetensors_at(st, i);
        const uint8_t *data = t->data;

        sink = (uint8_t)(sink + data[0] + data[t->bytes - 1]);
        sum += t->bytes;
        TD_INSIST(td_safetensors_find(st, t->name) == t);
    }
    TD_INSIST(sum <= td_safetensors_file_bytes(st));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size > 0 ? size : 1); /* ends where the input ends; aligned to 16 */
    struct td_safetensors *st = NULL;
    char text[TD_GGUF_ERR_TEXT] = "";
    struct td_why why = {text, sizeof text};

    if (copy == NULL) {
        return 0;
    }
    if (size > 0) {
        memcpy(copy, data, size);
    }
    if (td_safetensors_open_memory(copy, size, &st, &why) == TD_OK) {
        read_all(st);
    } else {
        TD_INSIST(text[0] != '\0');
    }
    (void)td_safetensors_close(st);
    free(copy);
    return 0;
}
