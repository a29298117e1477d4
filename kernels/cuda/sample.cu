// sample.cu - the next token from float32 logits: temperature, top-k, top-p, min-p, counter-based noise.
//
// Shapes: logits [rows][stride], vocab <= stride; one block per row. Any vocab up to 2^20.
// Design: no sort. Values map to ordered 32-bit keys; the top-k and top-p thresholds are keys found by radix selection,
//   eight bits at a time, over histograms of counts (top-k) and of probability in fixed point (top-p), so the result does
//   not depend on the order in which threads add. Before that, one histogram of distances from the largest value finds
//   which values can matter at all; where they are few they are gathered in shared memory, and the selection and the
//   draw read only them. Ties at a threshold stay in. The draw is Gumbel-max with Philox4x32-10 keyed by the seed and
//   counted by (token, position, choice): the same row gives the same token wherever it runs; values that could not win
//   with the most noise there is are not drawn for. Equal values: the smallest index.
// Bound by: reading the row from L2, once for greedy, three times for top-k or top-p. Measured: see NOTES.md.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/tk_step.h"

namespace
{

constexpr int THREADS = 1024;
constexpr int CAP = 4096;          // candidates that fit in shared memory
constexpr int BINS = 1024;         // of a histogram of distances from the largest
constexpr float PER_NAT = 32.f;    // bins of that to a factor of e in probability: it covers 32
constexpr int MARGIN = 8;          // bins behind the estimated end of the nucleus
constexpr float NOISE_MAX = 17.4f; // Gumbel noise from a 24-bit uniform is below
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
TK_DEV uint32_t philox(uint32_t c0, uint32_t c1, uint32_t c2, uint64_t seed)
{
    uint32_t x[4] = {c0, c1, c2, 0}, k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
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

// Values that the choice is made among: a whole row of logits, or the candidates of it in shared memory.
struct row {
    const float *x;
    const int32_t *ids; // NULL: the index is the id
    uint32_t n;
    float max, inv_t;
};

// f(value, index) for every value; four vectors of a thread are on their way at once.
template <typename F> TK_DEV void each(const float *x, uint32_t n, F f)
{
    const bool aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0;
    const uint32_t quads = aligned ? n / 4 : 0;
    const float4 *q = reinterpret_cast<const float4 *>(x);
    for (uint32_t i = threadIdx.x; i < quads; i += 4 * THREADS) {
        float4 v[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint32_t at = i + k * THREADS;
            v[k] = q[at < quads ? at : i];
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint32_t at = i + k * THREADS;
            if (at < quads) {
                f(v[k].x, 4 * at);
                f(v[k].y, 4 * at + 1);
                f(v[k].z, 4 * at + 2);
                f(v[k].w, 4 * at + 3);
            }
        }
    }
    for (uint32_t i = 4 * quads + threadIdx.x; i < n; i += THREADS) {
        f(x[i], i);
    }
}

struct shared {
    best part[THREADS / 32];
    float sum[THREADS / 32];
    unsigned long long hist[256], left;
    uint32_t bin;
    uint32_t bins[BINS];
    uint32_t n_list;
    float list[CAP]; // candidates
    int32_t ids[CAP];
};

// Weight of a value for radix selection: 1 for top-k, its probability in fixed point for top-p.
TK_DEV unsigned long long weight(const row &r, float x, bool mass)
{
    return mass ? (unsigned long long)(__expf((x - r.max) * r.inv_t) * MASS_ONE) : 1ull;
}

// By the first warp: from the top, the bin in which the running sum of hist reaches want, and what is left of want there.
TK_DEV void find_bin(const unsigned long long *hist, unsigned long long want, uint32_t *out_bin,
                     unsigned long long *out_left)
{
    const int lane = threadIdx.x; // owns bins 255 - 8 lane downwards
    unsigned long long own = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        own += hist[255 - 8 * lane - i];
    }
    unsigned long long upto = own;
    for (int d = 1; d < 32; d *= 2) {
        const unsigned long long o = __shfl_up_sync(~0u, upto, d);
        upto += lane >= d ? o : 0;
    }
    const uint32_t reached = __ballot_sync(~0u, upto >= want);
    const int first = reached != 0 ? __ffs((int)reached) - 1 : 31;
    if (lane == first) {
        unsigned long long left = want - (upto - own);
        int bin = 255 - 8 * lane;
        const int last = bin - 7;
        while (bin > last && hist[bin] < left) {
            left -= hist[bin--];
        }
        *out_bin = (uint32_t)bin;
        *out_left = left;
    }
}

// The largest key t >= floor such that the weights of keys >= t reach `want` (or floor, when all of them do not).
// want is a share of the total where share > 0.
TK_DEV uint32_t select_key(const row &r, uint32_t floor, unsigned long long want, float share,
                           bool mass, shared &sh)
{
    uint32_t prefix = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += THREADS) {
            sh.hist[i] = 0;
        }
        __syncthreads();
        each(r.x, r.n, [&](float x, uint32_t) {
            const uint32_t k = key_of(x);
            if (k >= floor && k != 0 &&
                (shift == 24 || k >> (shift + 8) == prefix >> (shift + 8))) {
                atomicAdd(&sh.hist[(k >> shift) & 255], weight(r, x, mass));
            }
        });
        __syncthreads();
        if (threadIdx.x < 32) {
            if (shift == 24 && share > 0) {
                unsigned long long total = 0;
                for (int i = 0; i < 8; i++) {
                    total += sh.hist[threadIdx.x * 8 + i];
                }
                for (int d = 16; d >= 1; d /= 2) {
                    total += __shfl_xor_sync(~0u, total, d);
                }
                want = (unsigned long long)((double)total * (double)share);
                want = want == 0 ? 1 : want;
            }
            find_bin(sh.hist, want, &sh.bin, &sh.left);
        }
        __syncthreads();
        prefix |= sh.bin << shift;
        want = sh.left;
        __syncthreads();
    }
    return prefix > floor ? prefix : floor;
}

struct args {
    const float *logits;
    float *adjusted;
    const struct tk_sample_row *rows;
    tk_slots slots;
    tk_sampled *out;
    uint32_t vocab, stride;
};

TK_DEV float block_add(float v, float *part)
{
#pragma unroll
    for (int x = 16; x >= 1; x /= 2) {
        v += __shfl_xor_sync(~0u, v, x);
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        part[threadIdx.x / 32] = v;
    }
    __syncthreads();
    float s = 0;
    for (int w = 0; w < THREADS / 32; w++) { // fixed order
        s += part[w];
    }
    return s;
}

TK_DEV float penalised(float x, uint32_t seen, const struct tk_sample_row &p)
{
    const uint32_t count = seen & ~TK_IN_PROMPT;
    if (p.repetition > 0 && p.repetition != 1.f) {
        x = x > 0 ? x / p.repetition : x * p.repetition;
    }
    x -= p.frequency * (float)count;
    return count > 0 ? x - p.presence : x;
}

// Entry i and, where it is the first of its id, those of the same id behind it: in the list's order.
TK_DEV void add_bias(const tk_sample_bias *list, uint32_t i, uint32_t n, float *x)
{
    const int32_t id = list[i].id;
    for (uint32_t j = 0; j < i; j++) {
        if (list[j].id == id) {
            return;
        }
    }
    for (uint32_t j = i; j < n; j++) {
        if (list[j].id == id) {
            x[id] += list[j].bias;
        }
    }
}

// A copy of the row's logits with bias, penalties and bans; all threads see it on return.
TK_DEV const float *adjust(const args &a, const struct tk_sample_row &p, const float *logits)
{
    float *adj = a.adjusted + (size_t)blockIdx.x * a.stride;
    const uint32_t *counts =
        (p.flags & TK_SAMPLE_PENALTIES) != 0 ? a.slots.counts + (size_t)p.slot * a.vocab : nullptr;
    for (uint32_t i = threadIdx.x; i < a.vocab; i += THREADS) {
        adj[i] = logits[i];
    }
    __syncthreads();
    if ((p.flags & TK_SAMPLE_BIAS) != 0 && threadIdx.x < p.n_bias) {
        add_bias(a.slots.bias + (size_t)p.slot * TK_SLOT_BIAS, threadIdx.x, p.n_bias, adj);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; counts != nullptr && i < a.vocab; i += THREADS) {
        if (counts[i] != 0) {
            adj[i] = penalised(adj[i], counts[i], p);
        }
    }
    __syncthreads();
    if ((p.flags & TK_SAMPLE_BAN) != 0 && threadIdx.x < p.n_stops) {
        adj[a.slots.stops[(size_t)p.slot * TK_SLOT_STOPS + threadIdx.x]] = -INFINITY;
    }
    __syncthreads();
    return adj;
}

// The largest value; bad where some logit is not finite.
TK_DEV best largest(const float *x, uint32_t vocab, best *part, int *bad)
{
    best b = {-INFINITY, 0x7fffffff};
    int odd = 0;
    each(x, vocab, [&](float v, uint32_t i) {
        odd |= !(fabsf(v) < INFINITY);
        b = better(b, {v != v ? -INFINITY : v, (int32_t)i});
    });
    *bad = __syncthreads_or(odd);
    return block_best(b, part);
}

TK_DEV float noise(const struct tk_sample_row &p, uint32_t id)
{
    const float u = ((float)(philox(id, p.position, p.choice, p.seed) >> 8) + 0.5f) * 0x1p-24f;
    return -logf(-logf(u));
}

// The largest of value / temperature + noise among keys >= floor; `top` is the id of the largest value. Whoever could not
// win against it with the most noise there is, is not asked.
TK_DEV best draw(const row &r, const struct tk_sample_row &p, uint32_t floor, uint32_t top,
                 best *part)
{
    best b = {r.max * r.inv_t + noise(p, top), (int32_t)top};
    const float least = b.v - NOISE_MAX;
    each(r.x, r.n, [&](float x, uint32_t i) {
        if (key_of(x) >= floor && x * r.inv_t >= least) {
            const uint32_t id = r.ids != nullptr ? (uint32_t)r.ids[i] : i;
            b = better(b, {x * r.inv_t + noise(p, id), (int32_t)id});
        }
    });
    return block_best(b, part);
}

TK_DEV uint32_t bin_of(const row &r, float x)
{
    const float b = (r.max - x) * r.inv_t * PER_NAT;
    return b < (float)(BINS - 1) ? (uint32_t)b : BINS - 1;
}

// By the first warp: the last bin that a candidate can be in: enough values for top_k, else (by the bins' middles, with
// a margin) enough mass for top_p.
TK_DEV void find_cut(const struct tk_sample_row &p, float total, shared &sh)
{
    constexpr int EACH = BINS / 32;
    const int lane = threadIdx.x;
    const bool by_count = p.top_k > 0;
    const float want = by_count ? (float)p.top_k : p.top_p * total;
    float own = 0;
    for (int i = 0; i < EACH; i++) {
        const int b = lane * EACH + i;
        own += (float)sh.bins[b] * (by_count ? 1.f : __expf(-((float)b + 0.5f) / PER_NAT));
    }
    float upto = own;
    for (int d = 1; d < 32; d *= 2) {
        const float o = __shfl_up_sync(~0u, upto, d);
        upto += lane >= d ? o : 0.f;
    }
    const uint32_t reached = __ballot_sync(~0u, upto >= want);
    const int first = reached != 0 ? __ffs((int)reached) - 1 : 31;
    if (lane == first) {
        float sum = upto - own;
        int b = lane * EACH;
        for (; b < lane * EACH + EACH - 1; b++) {
            sum += (float)sh.bins[b] * (by_count ? 1.f : __expf(-((float)b + 0.5f) / PER_NAT));
            if (sum >= want) {
                break;
            }
        }
        b += by_count ? 0 : MARGIN;
        sh.bin = (uint32_t)(b < BINS - 1 ? b : BINS - 1);
    }
}

// Puts the values that top_k or top_p can keep into shared memory. False where they do not fit or may not be all.
TK_DEV bool gather(const row &r, const struct tk_sample_row &p, uint32_t floor, shared &sh,
                   float *out_total)
{
    for (int i = threadIdx.x; i < BINS; i += THREADS) {
        sh.bins[i] = 0;
    }
    sh.n_list = 0;
    __syncthreads();
    float mass = 0;
    each(r.x, r.n, [&](float x, uint32_t) {
        if (key_of(x) >= floor) {
            mass += __expf((x - r.max) * r.inv_t);
            atomicAdd(&sh.bins[bin_of(r, x)], 1u);
        }
    });
    const float total = block_add(mass, sh.sum);
    if (threadIdx.x < 32) {
        find_cut(p, total, sh);
    }
    __syncthreads();
    const uint32_t cut = sh.bin;
    if (cut == BINS - 1) {
        return false; // the last bin holds everything behind it
    }
    mass = 0;
    each(r.x, r.n, [&](float x, uint32_t i) {
        if (key_of(x) >= floor && bin_of(r, x) <= cut) {
            const uint32_t at = atomicAdd(&sh.n_list, 1u);
            if (at < CAP) {
                sh.list[at] = x;
                sh.ids[at] = (int32_t)i;
                mass += __expf((x - r.max) * r.inv_t);
            }
        }
    });
    const float kept = block_add(mass, sh.sum); // also a barrier behind the list
    *out_total = total;
    return sh.n_list <= CAP &&
           (p.top_k > 0 ? sh.n_list >= (uint32_t)p.top_k : kept >= p.top_p * total);
}

// The choice with temperature: floor of min_p, then top_k and top_p, then the draw. Nothing depends on the order in which
// candidates were gathered.
TK_DEV best choose(const row &all, const struct tk_sample_row &p, uint32_t top, shared &sh)
{
    const bool by_k = p.top_k > 0 && (uint32_t)p.top_k<all.n, by_p = p.top_p> 0 && p.top_p < 1;
    uint32_t floor = 1;
    float total = 0;
    row r = all;
    if (p.min_p > 0) {
        const uint32_t least = key_of(all.max + __logf(p.min_p) * p.temperature);
        floor = least > floor ? least : floor;
    }
    struct tk_sample_row how = p;
    how.top_k = by_k ? p.top_k : 0;
    const bool few = (by_k || by_p) && gather(all, how, floor, sh, &total);
    if (few) {
        r.x = sh.list;
        r.ids = sh.ids;
        r.n = sh.n_list;
    }
    __syncthreads();
    if (by_k) {
        floor = select_key(r, floor, (unsigned long long)p.top_k, 0.f, false, sh);
    }
    if (by_p) {
        // without top_k the share is of all values, of which the list holds the first ones only
        const bool part = few && !by_k;
        const unsigned long long want =
            part ? (unsigned long long)((double)total * (double)p.top_p * (double)MASS_ONE) : 0;
        floor = select_key(r, floor, want > 0 ? want : 1, part ? 0.f : p.top_p, true, sh);
    }
    return draw(r, p, floor, top, sh.part);
}

TK_DEV bool is_chain_broken(const struct tk_sample_row &p, const tk_slots &slots)
{
    return (p.flags & TK_SAMPLE_CHAINED) != 0 && __ldcg(slots.last + p.slot) < 0;
}

TK_DEV void keep(const struct tk_sample_row &p, const tk_slots &slots, uint32_t vocab,
                 int32_t token, float logprob, tk_sampled *out)
{
    *out = {token, logprob};
    if (p.slot != TK_NO_SLOT) {
        slots.last[p.slot] = token;
        if ((p.flags & TK_SAMPLE_PENALTIES) != 0 && token >= 0) {
            slots.counts[(size_t)p.slot * vocab + (uint32_t)token]++;
        }
    }
}

__global__ void __launch_bounds__(THREADS) sample_kernel(const args a)
{
    __shared__ shared sh;
    pdl_wait();
    pdl_launch();
    const struct tk_sample_row p = a.rows[blockIdx.x];
    if (p.live == 0) {
        return;
    }
    const float *logits = a.logits + (size_t)blockIdx.x * a.stride;
    int bad = 0;
    best b = largest(logits, a.vocab, sh.part, &bad);
    const float max = b.v;
    float lse = 0;
    if ((p.flags & TK_SAMPLE_LOGPROB) != 0) {
        float sum = 0;
        each(logits, a.vocab, [&](float x, uint32_t) { sum += __expf(x - max); });
        lse = max + logf(block_add(sum, sh.sum));
    }
    row r = {logits, nullptr, a.vocab, max, 0.f};
    if ((p.flags & (TK_SAMPLE_PENALTIES | TK_SAMPLE_BIAS | TK_SAMPLE_BAN)) != 0) {
        int unused = 0; // a ban is an infinity
        r.x = adjust(a, p, logits);
        b = largest(r.x, a.vocab, sh.part, &unused);
        r.max = b.v;
    }
    if (p.temperature > 0 && bad == 0 && (uint32_t)b.i < a.vocab) {
        r.inv_t = 1.f / p.temperature;
        b = choose(r, p, (uint32_t)b.i, sh);
    }
    if (threadIdx.x == 0) {
        const bool failed = bad != 0 || (uint32_t)b.i >= a.vocab || is_chain_broken(p, a.slots);
        const bool told = !failed && (p.flags & TK_SAMPLE_LOGPROB) != 0;
        keep(p, a.slots, a.vocab, failed ? TK_FAILED : b.i, told ? logits[b.i] - lse : 0.f,
             a.out + blockIdx.x);
    }
}

__global__ void __launch_bounds__(32)
    greedy_kernel(const float *val, const int32_t *idx, uint32_t parts,
                  const struct tk_sample_row *rows, const tk_slots slots, tk_sampled *out)
{
    pdl_wait();
    pdl_launch();
    const struct tk_sample_row p = rows[blockIdx.x];
    best b = {-INFINITY, 0x7fffffff};
    for (uint32_t i = threadIdx.x; i < parts; i += 32) {
        const size_t at = (size_t)i * TK_MAX_ROWS + blockIdx.x;
        b = better(b, {__ldcg(val + at), __ldcg(idx + at)});
    }
#pragma unroll
    for (int x = 16; x >= 1; x /= 2) {
        b = better(b, {__shfl_xor_sync(~0u, b.v, x), __shfl_xor_sync(~0u, b.i, x)});
    }
    if (threadIdx.x == 0 && p.live != 0) {
        // NaN never wins, so a row of nothing else has no index
        const bool failed =
            b.i == 0x7fffffff || !(fabsf(b.v) < INFINITY) || is_chain_broken(p, slots);
        keep(p, slots, 0, failed ? TK_FAILED : b.i, 0.f, out + blockIdx.x);
    }
}

__global__ void __launch_bounds__(256)
    take_kernel(int32_t *tokens, const int32_t *slot, const int32_t *last, uint32_t n)
{
    const uint32_t i = blockIdx.x * 256 + threadIdx.x;
    if (i < n && slot[i] >= 0) {
        const int32_t t = last[slot[i]];
        tokens[i] = t < 0 ? 0 : t; // the row fails when it samples
    }
}

__global__ void __launch_bounds__(256)
    gather_kernel(const tk_bf16 *h, const int32_t *at, tk_bf16 *out, uint32_t dim)
{
    const uint4 *src = reinterpret_cast<const uint4 *>(h + (size_t)at[blockIdx.x] * dim);
    uint4 *dst = reinterpret_cast<uint4 *>(out + (size_t)blockIdx.x * dim);
    for (uint32_t i = threadIdx.x; i < dim / 8; i += 256) {
        dst[i] = src[i];
    }
}

__global__ void __launch_bounds__(256)
    count_kernel(const int32_t *ids, uint32_t n, uint32_t n_prompt, uint32_t *counts)
{
    const uint32_t i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) {
        if (i < n_prompt) {
            atomicOr(counts + ids[i], TK_IN_PROMPT);
        } else {
            atomicAdd(counts + ids[i], 1u);
        }
    }
}

} // namespace

extern "C" td_err tk_sample(tk_stream s, const struct tk_sample *p)
{
    if (p->n_rows == 0 || p->vocab == 0 || p->vocab > TK_MAX_VOCAB || p->stride < p->vocab) {
        return TD_ERR_UNSUPPORTED;
    }
    const args a = {p->logits, p->adjusted, p->rows, p->slots, p->out, p->vocab, p->stride};
    tk_launch l(s, p->n_rows, THREADS, 0, 1, p->pdl);
    TD_TRY(tk_prepare(sample_kernel, 0));
    TK_TRY_CUDA(cudaLaunchKernelEx(&l.cfg, sample_kernel, a));
    return TD_OK;
}

extern "C" td_err tk_greedy(tk_stream s, const struct tk_greedy *p)
{
    if (p->n_rows == 0 || p->n_rows > TK_MAX_ROWS || p->parts == 0 || p->parts > TK_ARGMAX_PARTS) {
        return TD_ERR_UNSUPPORTED;
    }
    tk_launch l(s, p->n_rows, 32, 0, 1, p->pdl);
    TD_TRY(tk_prepare(greedy_kernel, 0));
    TK_TRY_CUDA(cudaLaunchKernelEx(&l.cfg, greedy_kernel, p->best_val, p->best_idx, p->parts,
                                   p->rows, p->slots, p->out));
    return TD_OK;
}

extern "C" td_err tk_take_tokens(tk_stream s, int32_t *tokens, const int32_t *slot,
                                 const int32_t *last, uint32_t n)
{
    if (n == 0) {
        return TD_ERR_UNSUPPORTED;
    }
    tk_launch l(s, (n + 255) / 256, 256, 0, 1, false);
    TD_TRY(tk_prepare(take_kernel, 0));
    TK_TRY_CUDA(cudaLaunchKernelEx(&l.cfg, take_kernel, tokens, slot, last, n));
    return TD_OK;
}

extern "C" td_err tk_gather_rows(tk_stream s, const tk_bf16 *h, const int32_t *at, tk_bf16 *out,
                                 uint32_t n, uint32_t dim)
{
    if (n == 0 || dim % 8 != 0) {
        return TD_ERR_UNSUPPORTED;
    }
    tk_launch l(s, n, 256, 0, 1, false);
    TK_TRY_CUDA(cudaLaunchKernelEx(&l.cfg, gather_kernel, h, at, out, dim));
    return TD_OK;
}

extern "C" td_err tk_count_tokens(tk_stream s, const int32_t *ids, uint32_t n, uint32_t n_prompt,
                                  uint32_t *counts)
{
    if (n == 0) {
        return TD_OK;
    }
    tk_launch l(s, (n + 255) / 256, 256, 0, 1, false);
    TK_TRY_CUDA(cudaLaunchKernelEx(&l.cfg, count_kernel, ids, n, n_prompt, counts));
    return TD_OK;
}
