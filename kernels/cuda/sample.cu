// sample.cu - the next token from float32 logits: temperature, top-k, top-p, min-p, counter-based noise.
//
// Shapes: logits [rows][stride], vocab <= stride; one block per row. Any vocab up to 2^20.
// Design: no sort. Values map to ordered 32-bit keys; the top-k and top-p thresholds are keys found by radix selection,
//   eight bits at a time, over histograms of counts (top-k) and of probability in fixed point (top-p), so the result does
//   not depend on the order in which threads add. Filters apply in this order: top-k, top-p of what is left, min-p
//   relative to the largest. Ties at a threshold stay in. The draw is Gumbel-max with Philox4x32-10 keyed by the seed and
//   counted by (token, position): the same row gives the same token wherever it runs.
//   temperature <= 0 takes the largest logit, the smallest index of equals. NaN counts as the smallest value.
// Bound by: reading the row from L2 up to ten times. Not measured yet against a peer.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/tk_cuda.h"

namespace
{

constexpr int THREADS = 1024;
constexpr uint32_t MAX_VOCAB = 1u << 20;
constexpr float MASS_ONE =
    4294967296.f; // probability of the largest value, in fixed point: sums stay under 2^52

struct best {
    float v;
    int32_t i;
};

TK_DEV uint32_t key_of(float x)
{
    const uint32_t u = __float_as_uint(x);
    return x != x ? 0 : (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}

TK_DEV best better(best a, best b)
{
    return b.v > a.v || (b.v == a.v && b.i < a.i) ? b : a;
}

TK_DEV best block_best(best b, best *part)
{
#pragma unroll
    for (int x = 16; x >= 1; x /= 2) {
        const best o = {__shfl_xor_sync(~0u, b.v, x), __shfl_xor_sync(~0u, b.i, x)};
        b = better(b, o);
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        part[threadIdx.x / 32] = b;
    }
    __syncthreads();
    best r = part[0];
    for (int w = 1; w < THREADS / 32; w++) {
        r = better(r, part[w]);
    }
    return r;
}

// First of Philox4x32-10's four words.
TK_DEV uint32_t philox(uint32_t c0, uint32_t c1, uint64_t seed)
{
    uint32_t x[4] = {c0, c1, 0, 0}, k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll
    for (int r = 0; r < 10; r++) {
        const uint32_t h0 = __umulhi(0xD2511F53u, x[0]), l0 = 0xD2511F53u * x[0];
        const uint32_t h1 = __umulhi(0xCD9E8D57u, x[2]), l1 = 0xCD9E8D57u * x[2];
        const uint32_t y0 = h1 ^ x[1] ^ k0, y2 = h0 ^ x[3] ^ k1;
        x[0] = y0, x[1] = l1, x[2] = y2, x[3] = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return x[0];
}

struct row {
    const float *logits;
    uint32_t vocab;
    float max, inv_t;
};

// Weight of a value for radix selection: 1 for top-k, its probability in fixed point for top-p.
TK_DEV unsigned long long weight(const row &r, float x, bool mass)
{
    return mass ? (unsigned long long)(__expf((x - r.max) * r.inv_t) * MASS_ONE) : 1ull;
}

// The largest key t >= floor such that the weights of keys >= t reach `want` (or floor, when all of them do not).
// want is a share of the total where share > 0.
TK_DEV uint32_t select_key(const row &r, uint32_t floor, unsigned long long want, float share,
                           bool mass, unsigned long long *hist, uint32_t *out_bin,
                           unsigned long long *out_left)
{
    uint32_t prefix = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += THREADS) {
            hist[i] = 0;
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < r.vocab; i += THREADS) {
            const float x = r.logits[i];
            const uint32_t k = key_of(x);
            if (k >= floor && k != 0 &&
                (shift == 24 || k >> (shift + 8) == prefix >> (shift + 8))) {
                atomicAdd(&hist[(k >> shift) & 255], weight(r, x, mass));
            }
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            if (shift == 24 && share > 0) {
                unsigned long long total = 0;
                for (int i = 0; i < 256; i++) {
                    total += hist[i];
                }
                want = (unsigned long long)((double)total * (double)share);
                want = want == 0 ? 1 : want;
            }
            int bin = 255;
            while (bin > 0 && hist[bin] < want) {
                want -= hist[bin];
                bin--;
            }
            *out_bin = (uint32_t)bin;
            *out_left = want;
        }
        __syncthreads();
        prefix |= *out_bin << shift;
        want = *out_left;
        __syncthreads();
    }
    return prefix > floor ? prefix : floor;
}

__global__ void __launch_bounds__(THREADS)
    sample_kernel(const float *logits, uint32_t vocab, uint32_t stride, const tk_sample_row *rows,
                  int32_t *token)
{
    __shared__ best part[THREADS / 32];
    __shared__ unsigned long long hist[256], left;
    __shared__ uint32_t bin;
    const tk_sample_row p = rows[blockIdx.x];
    row r;
    r.logits = logits + (size_t)blockIdx.x * stride;
    r.vocab = vocab;
    best b = {-INFINITY, 0x7fffffff};
    for (uint32_t i = threadIdx.x; i < vocab; i += THREADS) {
        const float x = r.logits[i];
        b = better(b, {x != x ? -INFINITY : x, (int32_t)i});
    }
    b = block_best(b, part);
    if (p.temperature > 0) {
        r.max = b.v;
        r.inv_t = 1.f / p.temperature;
        uint32_t floor = 1;
        if (p.top_k > 0 && (uint32_t)p.top_k < vocab) {
            floor =
                select_key(r, floor, (unsigned long long)p.top_k, 0.f, false, hist, &bin, &left);
        }
        if (p.top_p > 0 && p.top_p < 1) {
            floor = select_key(r, floor, 0, p.top_p, true, hist, &bin, &left);
        }
        const float least = p.min_p > 0 ? r.max + __logf(p.min_p) * p.temperature : -INFINITY;
        b = {-INFINITY, 0x7fffffff};
        for (uint32_t i = threadIdx.x; i < vocab; i += THREADS) {
            const float x = r.logits[i];
            if (key_of(x) >= floor && x >= least) {
                const float u = ((float)(philox(i, p.position, p.seed) >> 8) + 0.5f) * 0x1p-24f;
                b = better(b, {x * r.inv_t - logf(-logf(u)), (int32_t)i});
            }
        }
        b = block_best(b, part);
    }
    if (threadIdx.x == 0) {
        token[blockIdx.x] = b.i < (int32_t)vocab ? b.i : 0;
    }
}

} // namespace

extern "C" td_err tk_sample(tk_stream s, const float *logits, uint32_t vocab, uint32_t stride,
                            const struct tk_sample_row *rows_dev, uint32_t rows, int32_t *out_token)
{
    if (rows == 0 || vocab == 0 || vocab > MAX_VOCAB || stride < vocab) {
        return TD_ERR_UNSUPPORTED;
    }
    tk_launch l(s, rows, THREADS, 0, 1, false);
    TK_TRY_CUDA(
        cudaLaunchKernelEx(&l.cfg, sample_kernel, logits, vocab, stride, rows_dev, out_token));
    return TD_OK;
}
