/* tk_device_ref.c - the device of tk_device.h on the host: memory is malloc, a stream runs at once, a
 * captured graph is the list of its operations. What a test of the CUDA engine links instead of a GPU.
 */
#include "kernels/ref/tk_device_ref.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/tk_device.h"

#define MAX_OPS 16384

struct op {
    tk_ref_op run;
    void *args; /* owned copy */
};
struct tk_graph {
    struct op *ops; /* owned */
    uint32_t n;
};
struct CUstream_st {
    struct tk_graph *capturing; /* NULL: runs at once */
};
struct CUevent_st {
    int unused;
};

static uint32_t fail_in; /* operations until one fails; 0: none */
static uint32_t capability[2] = {9, 0};
static bool hopper = true; /* as tk_path_set chose */

void tk_ref_fail_nth(uint32_t n)
{
    fail_in = n;
}

void tk_ref_set_capability(uint32_t major, uint32_t minor)
{
    capability[0] = major;
    capability[1] = minor;
}

td_err tk_path_set(enum tk_path wanted, enum tk_path *out_used)
{
    const td_err err = tk_path_for(capability[0], capability[1], wanted, out_used);
    hopper = err == TD_OK ? *out_used == TK_PATH_SM90A : hopper;
    return err;
}

bool tk_ref_uses_hopper(void)
{
    return hopper;
}

td_err tk_ref_enqueue(tk_stream s, tk_ref_op run, const void *args, size_t bytes)
{
    if (fail_in > 0 && --fail_in == 0) {
        return TD_ERR_DEVICE;
    }
    if (s == NULL || s->capturing == NULL) {
        run(args);
        return TD_OK;
    }
    struct tk_graph *g = s->capturing;
    void *copy = malloc(bytes);
    if (copy == NULL || g->n == MAX_OPS) {
        free(copy);
        return TD_ERR_NO_MEMORY;
    }
    memcpy(copy, args, bytes);
    g->ops[g->n++] = (struct op){run, copy};
    return TD_OK;
}

const char *tk_cuda_last_error(void)
{
    return "reference device";
}

td_err tk_device_open(int index, struct tk_device_facts *out)
{
    if (index != 0) {
        return TD_ERR_DEVICE;
    }
    *out = (struct tk_device_facts){"reference", TK_REF_MEMORY, TK_REF_MEMORY, capability[0],
                                    capability[1]};
    return TD_OK;
}

td_err tk_device_use(int index)
{
    return index == 0 ? TD_OK : TD_ERR_DEVICE;
}

td_err tk_mem_alloc(size_t bytes, void **out)
{
    /* poison, so that whoever reads what nobody wrote meets NaN */
    void *p = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (p == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    memset(p, 0xff, bytes);
    *out = p;
    return TD_OK;
}

void tk_mem_free(void *p)
{
    free(p);
}

td_err tk_host_alloc(size_t bytes, void **out)
{
    return tk_mem_alloc(bytes, out);
}

void tk_host_free(void *p)
{
    free(p);
}

td_err tk_stream_create(tk_stream *out)
{
    *out = calloc(1, sizeof **out);
    return *out != NULL ? TD_OK : TD_ERR_NO_MEMORY;
}

void tk_stream_destroy(tk_stream s)
{
    free(s);
}

td_err tk_stream_wait(tk_stream s)
{
    (void)s;
    return TD_OK;
}

struct copy {
    void *dst;
    const void *src;
    size_t dst_pitch, src_pitch, width, rows;
};

static void do_copy(const void *args)
{
    const struct copy *c = args;
    for (size_t r = 0; r < c->rows; r++) {
        memcpy((char *)c->dst + r * c->dst_pitch, (const char *)c->src + r * c->src_pitch,
               c->width);
    }
}

td_err tk_copy(tk_stream s, void *dst, const void *src, size_t bytes)
{
    return tk_copy_rows(s, dst, bytes, src, bytes, bytes, 1);
}

td_err tk_copy_rows(tk_stream s, void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                    size_t width, size_t rows)
{
    const struct copy c = {dst, src, dst_pitch, src_pitch, width, rows};
    return tk_ref_enqueue(s, do_copy, &c, sizeof c);
}

struct fill {
    void *dst;
    int byte;
    size_t bytes;
};

static void do_fill(const void *args)
{
    const struct fill *f = args;
    memset(f->dst, f->byte, f->bytes);
}

td_err tk_fill(tk_stream s, void *dst, int byte, size_t bytes)
{
    const struct fill f = {dst, byte, bytes};
    return tk_ref_enqueue(s, do_fill, &f, sizeof f);
}

td_err tk_event_create(tk_event *out)
{
    *out = calloc(1, sizeof **out);
    return *out != NULL ? TD_OK : TD_ERR_NO_MEMORY;
}

void tk_event_destroy(tk_event e)
{
    free(e);
}

td_err tk_event_record(tk_event e, tk_stream s)
{
    (void)e;
    (void)s;
    return TD_OK;
}

td_err tk_event_wait(tk_event e)
{
    (void)e;
    return TD_OK;
}

td_err tk_graph_begin(tk_stream s)
{
    struct tk_graph *g = calloc(1, sizeof *g);
    if (g == NULL || s->capturing != NULL) {
        free(g);
        return TD_ERR_NO_MEMORY;
    }
    g->ops = calloc(MAX_OPS, sizeof *g->ops);
    if (g->ops == NULL) {
        free(g);
        return TD_ERR_NO_MEMORY;
    }
    s->capturing = g;
    return TD_OK;
}

td_err tk_graph_end(tk_stream s, struct tk_graph **out)
{
    *out = s->capturing;
    s->capturing = NULL;
    return *out != NULL ? TD_OK : TD_ERR_DEVICE;
}

td_err tk_graph_run(struct tk_graph *g, tk_stream s)
{
    for (uint32_t i = 0; i < g->n; i++) {
        if (fail_in > 0 && --fail_in == 0) {
            return TD_ERR_DEVICE;
        }
        g->ops[i].run(g->ops[i].args);
    }
    (void)s;
    return TD_OK;
}

struct tk_graph *tk_graph_destroy(struct tk_graph *g)
{
    for (uint32_t i = 0; g != NULL && i < g->n; i++) {
        free(g->ops[i].args);
    }
    if (g != NULL) {
        free(g->ops);
    }
    free(g);
    return NULL;
}
